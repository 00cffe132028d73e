//! A whole cluster in this process: an embedded Chubby, a master, tablet servers; the same code as separate processes.
//!
//! ```text
//!   DATA/LOCK        held while the cluster runs: two clusters on one folder would ruin it
//!   DATA/chubby/     the lock service's files
//!   DATA/server-N/   each tablet server's registry, commit log and tablets
//! ```
//!
//! The first server takes the given address; the others and the master take free ports. All of them share this
//! process's fate, so a failed sync of one ends all: crash tests need processes.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use ebla_runtime::config::ByteSize;
use ebla_tablet_server::{Neighbours, ServerConfig, ServerOptions, TabletServer};

use crate::process;

/// How long a start may take: recovery of a large log included.
const READY_MAX: Duration = Duration::from_secs(120);
/// What a stop gives to requests that are under way, and to flushes.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The folder that everything is kept in; made when absent.
    pub data: PathBuf,
    /// Tablet servers, at least 1.
    pub servers: usize,
    /// `host:port` of the first tablet server; port 0 takes a free one.
    pub listen: String,
    /// A tablet larger than this splits, in bytes; `None`: the default, 128 MiB.
    pub split_bytes: Option<u64>,
}

/// A running cluster.
pub struct LocalCluster {
    /// The lock service.
    pub chubby: SharedChubby,
    /// The master.
    pub master: Master,
    /// The tablet servers, in order; a test may take one out and stop it.
    pub servers: Vec<TabletServer>,
    runtime: Runtime,
    _lock: File,
}

impl LocalCluster {
    /// Starts everything and waits until every tablet is served.
    ///
    /// # Errors
    /// `FailedPrecondition` when another cluster uses the folder or the address, `Unavailable` when it is not ready in
    /// two minutes, and what the parts say.
    pub async fn start(config: LocalConfig, runtime: &Runtime) -> Result<Self, Error> {
        let runtime = runtime.child("local");
        let lock = process::lock(&config.data)?;
        let chubby = Embedded::open(&config.data.join("chubby"), runtime.clock.clone(), &runtime.tasks)
            .map_err(|error| Error::from(error).context("open the lock service"))?
            .shared();
        let neighbours = Neighbours::default();
        let mut servers = Vec::new();
        for number in 1..=config.servers.max(1) {
            servers.push(start_server(&config, number, &neighbours, &chubby, &runtime).await?);
        }
        let master = Master::start(
            MasterConfig::new("127.0.0.1:0", config.servers.clamp(1, 3)),
            chubby.clone(),
            runtime.child("master"),
        )
        .await
        .map_err(|error| error.context("start the master"))?;
        let cluster = Self { chubby, master, servers, runtime, _lock: lock };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// The public address of each server, in order.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address().to_owned()).collect()
    }

    /// Stops everything in the reverse order of start: nothing new, drain, flush, release.
    pub async fn stop(self) {
        self.master.stop().await;
        futures::future::join_all(self.servers.into_iter().map(TabletServer::stop)).await;
        self.runtime.tasks.stop(STOP_GRACE).await;
    }

    async fn ready(&self) -> Result<(), Error> {
        let all = async {
            self.master.ready().await;
            for server in &self.servers {
                server.ready().await;
            }
            Ok(())
        };
        let refusals = self.servers.iter().map(|server| Box::pin(server.refused()));
        let refused = async { Err(futures::future::select_all(refusals).await.0) };
        let late = |_| {
            Error::new(
                Reason::Unavailable,
                format!("not ready after {READY_MAX:?}; EBLA_LOG=info shows what it waits for"),
            )
        };
        let either = async {
            tokio::select! {
                ready = all => ready,
                refused = refused => refused,
            }
        };
        tokio::time::timeout(READY_MAX, either).await.map_err(late)?
    }
}

async fn start_server(
    config: &LocalConfig,
    number: usize,
    neighbours: &Neighbours,
    chubby: &SharedChubby,
    runtime: &Runtime,
) -> Result<TabletServer, Error> {
    let listen = if number == 1 { config.listen.clone() } else { free_port_beside(&config.listen) };
    let mut options = ServerOptions::up(neighbours.clone());
    if let Some(bytes) = config.split_bytes {
        options.split_bytes = ByteSize::new(bytes);
    }
    let data_dir = config.data.join(format!("server-{number}"));
    let server = ServerConfig::new(data_dir, &listen, options);
    TabletServer::start(server, chubby.clone(), runtime.child("server"))
        .await
        .map_err(|error| error.context(&format!("start tablet server {number} at {listen}")))
}

fn free_port_beside(address: &str) -> String {
    let host = address.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
    format!("{host}:0")
}
