//! What `ebla master` and `ebla tablet-server` have in common: one process of a cluster that meets the others through etcd.

use std::path::PathBuf;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::etcd::Etcd;
use ebla_model::error::Error;
use ebla_runtime::Runtime;
use serde_json::Value;

use crate::output::Failure;
use crate::process;

/// How a process takes part in a cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct Role {
    /// etcd's client addresses, separated by commas: http://HOST:PORT
    #[arg(long, value_name = "URL,…", env = "EBLA_ETCD", value_delimiter = ',', required = true)]
    pub etcd: Vec<String>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: String,
    /// Where others reach this process, when that is not where it listens
    #[arg(long, value_name = "HOST:PORT")]
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
    /// Serve beyond loopback although there is no TLS and no login
    #[arg(long)]
    pub insecure: bool,
}

impl Role {
    /// Checks the addresses; the way to the lock service. etcd need not be there yet.
    ///
    /// # Errors
    /// With one thing to do.
    pub fn begin(&self, runtime: &Runtime) -> Result<SharedChubby, Failure> {
        process::check_exposure(&self.listen, self.insecure)?;
        process::check_reachable(&self.listen, self.advertise.as_deref())?;
        let etcd = Etcd::new(&self.etcd, runtime).map_err(|error| Failure::usage(Error::from(error).message))?;
        // A broken invariant must not be served on.
        ebla_runtime::telemetry::abort_on_panic();
        Ok(etcd.shared())
    }

    /// How long the lease outlives a silent process.
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(self.lease_ttl)
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
