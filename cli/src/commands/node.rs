//! Common parts of `ebla master` and `ebla tablet-server`: processes of a cluster that find each other through etcd.

use std::path::PathBuf;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::etcd::Etcd;
use ebla_model::error::Error;
use ebla_mounttable_namespace::publisher::PERIOD;
use ebla_mounttable_namespace::{Namespace, Publisher, Roots};
use ebla_mounttable_tree::Target;
use ebla_runtime::{CONNECTIONS_MAX, ConnectionLimit, Runtime};
use serde_json::Value;

use super::mt;
use crate::config::ConfigArguments;
use crate::output::Failure;
use crate::process::{self, Exposure, Listen, Monitoring, Users};
use crate::tls::EtcdTlsArguments;

/// How many connections a process accepts.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ConnectionArguments {
    /// Connections at once of this process; a further one is closed. Those of masters and tablet servers do not count if their
    /// certificates prove what they are
    #[arg(long, value_name = "NUMBER", env = "EBLA_CONNECTIONS", default_value_t = CONNECTIONS_MAX)]
    pub connections: usize,
    /// Those of one address (IPv6: of its first 64 bits), so that one machine cannot take them all; more for a proxy [default: half of
    /// --connections]
    #[arg(long, value_name = "NUMBER", env = "EBLA_CONNECTIONS_PER_ADDRESS")]
    pub connections_per_address: Option<usize>,
}

impl ConnectionArguments {
    /// The runtime whose listeners accept this many connections together.
    pub fn limit(self, runtime: Runtime) -> Runtime {
        let of_address = self.connections_per_address.unwrap_or_else(|| self.connections.div_ceil(2));
        let limit = ConnectionLimit::new(self.connections).with_max_of_address(of_address);
        let net = runtime.net.clone().with_connections(limit);
        Runtime { net, ..runtime }
    }
}

/// Options of a process of a cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeArguments {
    /// Configuration file
    #[command(flatten)]
    pub config: ConfigArguments,
    /// etcd's client addresses, separated by commas: http://HOST:PORT, or https://HOST:PORT with --tls-ca or --etcd-tls-ca
    #[arg(long, value_name = "URL,…", env = "EBLA_ETCD", value_delimiter = ',', required = true, value_parser = process::etcd_url)]
    pub etcd: Vec<String>,
    /// The files of TLS to etcd
    #[command(flatten)]
    pub etcd_tls: EtcdTlsArguments,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub listen: String,
    /// Address where other processes reach this one, if it differs from --listen
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub advertise: Option<String>,
    /// Where to serve metrics, health and readiness over HTTP: /metrics, /healthz, /readyz, /debug/, and on a tablet server the web console: /; port 0 takes a free one [default: no
    /// such port]
    #[arg(long, value_name = "HOST:PORT", env = "EBLA_HTTP", value_parser = process::host_port)]
    pub http: Option<String>,
    /// Data folder, used by this process only
    #[arg(long, value_name = "DIR", env = "EBLA_DATA")]
    pub data: PathBuf,
    /// File to write when the process is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Seconds until the lease in etcd expires after the last sign of life of this process
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease_ttl: u64,
    /// Address of a mounttable in which this process keeps itself mounted, below ebla/; repeat for several servers of one table
    #[arg(long, value_name = "HOST:PORT")]
    pub publish_to: Vec<String>,
    /// Identity for --publish-to, as a mounttable with --insecure-dev-identity accepts it
    #[arg(long, value_name = "NAMES", default_value = "ebla", requires = "publish_to")]
    pub publish_as: String,
    /// File with the token (JWT) for --publish-to, for a mounttable with --jwt-keys
    #[arg(long, value_name = "FILE", requires = "publish_to")]
    pub publish_token_file: Option<PathBuf>,
    /// Send the token of --publish-token-file although connections have no TLS: others on the network path can read and use it
    #[arg(long, requires = "publish_token_file")]
    pub publish_insecure_token: bool,
    /// Listen on addresses other than loopback although there is no TLS and no authentication
    #[arg(long)]
    pub insecure: bool,
    /// Connections
    #[command(flatten)]
    pub connections: ConnectionArguments,
}

/// What a process announces when it is ready.
#[derive(Debug)]
pub struct Announcement<'a> {
    /// The process, for people, such as `tablet server 3`.
    pub process: String,
    /// Its address.
    pub address: &'a str,
    /// Where its HTTP port is, if it has one.
    pub http: Option<&'a str>,
    /// The name under which it is published.
    pub name: String,
    /// The contents of the ready file.
    pub ready: Value,
    /// How it treats users.
    pub users: Users,
}

impl NodeArguments {
    /// Checks the addresses and the ready file, and returns a client of the lock service. etcd need not be available yet.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub async fn prepare(&self, runtime: &Runtime) -> Result<SharedChubby, Failure> {
        let http = self.http.as_deref().map(|address| Listen { option: "--http", address });
        let listen: Vec<_> = [Listen { option: "--listen", address: &self.listen }].into_iter().chain(http).collect();
        for Listen { address, .. } in &listen {
            process::check_exposure(address, Exposure::from(self.insecure).with_tls_of(&runtime.net))?;
        }
        process::check_reachable(&self.listen, self.advertise.as_deref())?;
        if let Some(file) = &self.ready_file {
            process::check_ready(file)?;
        }
        process::check_free(&listen).await?;
        let runtime = self.runtime_of_etcd(runtime)?;
        let etcd = Etcd::new(&self.etcd, &runtime).map_err(|error| Failure::usage(Error::from(error).message))?;
        Ok(etcd.shared())
    }

    /// The runtime for connections to etcd: with TLS of its own, if there is one. Its files are watched until the process ends.
    fn runtime_of_etcd(&self, runtime: &Runtime) -> Result<Runtime, Failure> {
        let Some(tls) = self.etcd_tls.open(&runtime.clock)? else { return Ok(runtime.clone()) };
        tls.watch(&runtime.tasks);
        Ok(Runtime { net: runtime.net.clone().with_tls(tls), ..runtime.clone() })
    }

    /// What a process of this role shows at `--http`, which is open from now on.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn monitor(&self, role: &'static str, runtime: &Runtime) -> Result<Monitoring, Failure> {
        Monitoring::new(role, runtime).listen(self.http.as_deref(), runtime).await
    }

    /// Time until the lease of a process that does not renew it expires.
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(self.lease_ttl)
    }

    /// Publishes the process in the mounttable of `--publish-to`, waits for `registration`, reports that the process is
    /// ready, and then waits forever: it returns only on failure. `published` is set to the publisher.
    ///
    /// # Errors
    /// Usage, when a root or the address is invalid, or the token cannot be read; when the ready file cannot be written.
    pub async fn serve(
        &self,
        announcement: Announcement<'_>,
        registration: impl Future<Output = ()>,
        published: &mut Option<Publisher>,
        runtime: &Runtime,
    ) -> Result<(), Failure> {
        *published = self.publish(&announcement.name, announcement.address, runtime).await?;
        registration.await;
        self.announce(&announcement, runtime)?;
        std::future::pending().await
    }

    /// Keeps `address` mounted under `name`, if `--publish-to` was given, until the publisher is dropped. The mounttable need
    /// not be available yet.
    async fn publish(&self, name: &str, address: &str, runtime: &Runtime) -> Result<Option<Publisher>, Failure> {
        if self.publish_to.is_empty() {
            return Ok(None);
        }
        let roots: Vec<_> = self.publish_to.iter().map(|root| mt::rooted(root)).collect();
        let roots = Roots::new(roots.iter().map(String::as_str)).map_err(mt::to_failure)?;
        let token = self.publish_token_file.as_deref();
        let builder = Namespace::builder(runtime.clone()).roots(roots);
        let builder = if self.publish_insecure_token { builder.allow_plaintext_token() } else { builder };
        let names = mt::namespace(builder, token, Some(&self.publish_as))?;
        let publisher = Publisher::start(&names, PERIOD);
        publisher.add_server(address.parse().map_err(mt::to_failure)?).await;
        publisher.add_name(name, Target::Leaf).await;
        Ok(Some(publisher))
    }

    /// Reports that the process is ready: writes the ready file and a line on stderr.
    fn announce(
        &self,
        Announcement { process, address, http, ready, users, .. }: &Announcement<'_>,
        runtime: &Runtime,
    ) -> Result<(), Failure> {
        if let Some(file) = &self.ready_file {
            let mut ready = ready.clone();
            if let (Some(http), Some(ready)) = (http, ready.as_object_mut()) {
                ready.insert("metrics".to_owned(), (*http).into());
            }
            process::write_ready(file, &ready)?;
        }
        let security = Exposure::from(self.insecure).described(&runtime.net, *users);
        let http = http.map(|http| format!("   metrics at {http}")).unwrap_or_default();
        eprintln!(
            "ebla {}   {process} at {address}{http}   data {}   {security}",
            env!("CARGO_PKG_VERSION"),
            self.data.display()
        );
        Ok(())
    }
}
