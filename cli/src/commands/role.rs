//! What `ebla master` and `ebla tablet-server` have in common: one process of a cluster that meets the others through etcd.

use std::path::PathBuf;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::etcd::Etcd;
use ebla_model::error::Error;
use ebla_mounttable::Target;
use ebla_mounttable_namespace::publisher::PERIOD;
use ebla_mounttable_namespace::{Publisher, Roots};
use ebla_runtime::Runtime;
use serde_json::Value;

use super::mt;
use crate::output::Failure;
use crate::process::{self, Listen};

/// How a process takes part in a cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct Role {
    /// etcd's client addresses, separated by commas: http://HOST:PORT
    #[arg(long, value_name = "URL,…", env = "EBLA_ETCD", value_delimiter = ',', required = true, value_parser = process::etcd_url)]
    pub etcd: Vec<String>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub listen: String,
    /// Where others reach this process, when that is not where it listens
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub advertise: Option<String>,
    /// The folder of this process, and of no other
    #[arg(long, value_name = "DIR", env = "EBLA_DATA")]
    pub data: PathBuf,
    /// Written, whole, when the process is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// How long etcd keeps what says that this process lives, when nothing is heard of it
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease_ttl: u64,
    /// A mounttable in which this process keeps itself mounted, under ebla/ and what it is; repeat for several of one table
    #[arg(long, value_name = "HOST:PORT")]
    pub publish_to: Vec<String>,
    /// As whom, where callers are believed
    #[arg(long, value_name = "NAMES", default_value = "ebla", requires = "publish_to")]
    pub publish_as: String,
    /// The token (JWT) that says as whom, where tokens are checked
    #[arg(long, value_name = "FILE", requires = "publish_to")]
    pub publish_token_file: Option<PathBuf>,
    /// Serve beyond loopback although there is no TLS and no login
    #[arg(long)]
    pub insecure: bool,
}

impl Role {
    /// Checks the addresses and the ready file; the way to the lock service. etcd need not be there yet.
    ///
    /// # Errors
    /// With one thing to do.
    pub async fn begin(&self, runtime: &Runtime) -> Result<SharedChubby, Failure> {
        process::check_exposure(&self.listen, self.insecure)?;
        process::check_reachable(&self.listen, self.advertise.as_deref())?;
        if let Some(file) = &self.ready_file {
            process::check_ready(file)?;
        }
        process::check_free(&[Listen { option: "--listen", address: &self.listen }]).await?;
        let etcd = Etcd::new(&self.etcd, runtime).map_err(|error| Failure::usage(Error::from(error).message))?;
        // A broken invariant must not be served on.
        ebla_runtime::panic_hook::abort_on_panic();
        Ok(etcd.shared())
    }

    /// How long the lease outlives a silent process.
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(self.lease_ttl)
    }

    /// Keeps `address` mounted under `name`, if that was asked for: anew every minute, for as long as what is returned lives. No mounttable
    /// need be there yet.
    ///
    /// # Errors
    /// Usage, when a root or the address is none, or the token cannot be read.
    pub async fn publish(&self, name: &str, address: &str, runtime: &Runtime) -> Result<Option<Publisher>, Failure> {
        if self.publish_to.is_empty() {
            return Ok(None);
        }
        let roots: Vec<_> = self.publish_to.iter().map(|root| mt::rooted(root)).collect();
        let roots = Roots::new(roots.iter().map(String::as_str)).map_err(mt::refused)?;
        let names = mt::namespace(roots, self.publish_token_file.as_deref(), Some(&self.publish_as), runtime)?;
        let publisher = Publisher::start(&names, PERIOD);
        publisher.add_server(address.parse().map_err(mt::refused)?).await;
        publisher.add_name(name, Target::Leaf).await;
        Ok(Some(publisher))
    }

    /// Tells that the process is ready: the ready file, and a line on stderr.
    ///
    /// # Errors
    /// When the ready file cannot be written.
    pub fn announce(&self, what: &str, address: &str, ready: &Value) -> Result<(), Failure> {
        if let Some(file) = &self.ready_file {
            process::write_ready(file, ready)?;
        }
        let login = if self.insecure { "no TLS, no login (--insecure)" } else { "no TLS, no login: loopback only" };
        eprintln!("ebla {}   {what} at {address}   data {}   {login}", env!("CARGO_PKG_VERSION"), self.data.display());
        Ok(())
    }
}
