//! A whole cluster in this process: an embedded Chubby, a master, tablet servers; the same code as separate processes.
//!
//! ```text
//!   DATA/LOCK        locked while the cluster runs: two clusters on one folder would corrupt it
//!   DATA/chubby/     the lock service's files
//!   DATA/server-N/   each tablet server's registry, commit log and tablets
//! ```
//!
//! The first server listens on the given address; the others and the master use free ports. All of them are in one process,
//! so a failed sync of one stops all: crash tests need separate processes.
//!
//! When a start fails or is cancelled, the parts that were started are stopped in reverse order.

use std::path::Path;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig, MergeRules};
use ebla_model::cluster_name::ClusterName;
use ebla_model::error::{Error, Reason};
use ebla_model::heat::HeatOption;
use ebla_runtime::Runtime;
use ebla_runtime::trace::TraceOptions;
use ebla_runtime::units::ByteSize;
use ebla_tablet_server::{BlockCache, CollectorAddress, LocalServers, ServerConfig, ServerOptions, TabletServer};

use crate::process::DataFolder;
use crate::splits::SplitArguments;

/// Timeout of a start, including recovery of a large log.
const READY_MAX: Duration = Duration::from_secs(120);
/// Time for requests in progress and flushes during a stop.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Tablet servers, at least 1.
    pub servers: usize,
    /// `host:port` of the first tablet server; port 0 takes a free one.
    pub listen: String,
    /// When tablets split.
    pub splits: SplitArguments,
    /// Which operations the servers record.
    pub traces: TraceOptions,
    /// The collector of traces, if there is one.
    pub collector: Option<CollectorAddress>,
    /// When small tablets are merged.
    pub merges: MergeRules,
    /// Disk space below which writes are refused; `None`: the default.
    pub disk_reserve: Option<ByteSize>,
    /// Memory of the scan caches of all servers; `None`: the default.
    pub scan_cache: Option<ByteSize>,
    /// Memory of each server for locality groups in memory; `None`: the default.
    pub memory_groups: Option<ByteSize>,
    /// Whether key heat is collected.
    pub heat: HeatOption,
    /// The name under which the cluster registers itself.
    pub cluster_name: ClusterName,
}

/// A running cluster.
pub struct LocalCluster {
    /// The lock service.
    pub chubby: SharedChubby,
    /// The master.
    pub master: Master,
    /// The tablet servers, in order; a test may remove one and stop it.
    pub servers: Vec<TabletServer>,
    runtime: Runtime,
    folder: DataFolder,
}

/// The parts that have been started so far.
#[derive(Default)]
struct Parts {
    servers: Vec<TabletServer>,
    master: Option<Master>,
}

impl Parts {
    /// Stops the parts, then the tasks that a partly started one has left running under `runtime`.
    async fn stop(self, runtime: &Runtime) {
        if let Some(master) = self.master {
            master.stop().await;
        }
        futures::future::join_all(self.servers.into_iter().map(TabletServer::stop)).await;
        runtime.tasks.stop(STOP_GRACE).await;
    }
}

impl LocalCluster {
    /// Starts everything in `folder` and waits until every tablet is served; `None` when `stop_signal` completed before. The
    /// folder is released at the end; if no server was started and this process created the folder, it is removed.
    ///
    /// # Errors
    /// `Unavailable` when the cluster is not ready in two minutes; errors of the parts. All parts have been stopped then.
    pub async fn start(
        config: LocalConfig,
        folder: DataFolder,
        stop_signal: impl Future<Output = ()>,
        runtime: &Runtime,
    ) -> Result<Option<Self>, Error> {
        let runtime = runtime.child("local");
        let mut parts = Parts::default();
        // A pending stop signal has priority: work that a cancelled part has handed to other threads may still write into
        // the folder when it is removed.
        let begun = tokio::select! {
            biased;
            () = stop_signal => Ok(None),
            begun = begin(&config, folder.path(), &mut parts, &runtime) => begun.map(Some),
        };
        match (begun, parts) {
            (Ok(Some(chubby)), Parts { servers, master: Some(master) }) => {
                Ok(Some(Self { chubby, master, servers, runtime, folder }))
            }
            (begun, parts) => {
                let served = !parts.servers.is_empty();
                parts.stop(&runtime).await;
                if !served {
                    folder.discard();
                }
                begun.map(|_chubby| None)
            }
        }
    }

    /// The public address of each server, in order.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address().to_owned()).collect()
    }

    /// The data folder.
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Returns when a server of the process can run no more, with the reason. Cancel-safe.
    pub async fn failed(&self) -> Error {
        let failures = self.servers.iter().map(|server| Box::pin(server.failed()));
        futures::future::select_all(failures).await.0
    }

    /// Stops everything in reverse order of the start: refuse new requests, drain, flush, release.
    pub async fn stop(self) {
        let Self { servers, master, runtime, folder, chubby: _ } = self;
        Parts { servers, master: Some(master) }.stop(&runtime).await;
        drop(folder);
    }
}

/// Starts one part after the other, and waits until all are ready.
async fn begin(config: &LocalConfig, data: &Path, parts: &mut Parts, runtime: &Runtime) -> Result<SharedChubby, Error> {
    let chubby = Embedded::open(&data.join("chubby"), runtime.clock.clone(), &runtime.tasks)
        .map_err(|error| Error::from(error).context("open the lock service"))?
        .shared();
    let mut whole = ServerOptions::up(LocalServers::default());
    whole.store.resize_scan_cache(config.scan_cache.map(ByteSize::bytes));
    let reads = whole.start_reads().map_err(|error| Error::internal(format!("start threads: {error}")))?;
    let mut options = whole.clone().divided_among(config.servers, &BlockCache::new(whole.store.cache_bytes));
    options.shared_reads = Some(reads);
    for number in 1..=config.servers.max(1) {
        let server = start_server(config, data, number, options.clone(), &chubby, runtime).await?;
        parts.servers.push(server);
    }
    let master = MasterConfig {
        merges: config.merges,
        heat: config.heat,
        cluster_name: config.cluster_name.clone(),
        traces: config.traces,
        collector: config.collector.clone(),
        ..MasterConfig::new("127.0.0.1:0", config.servers.clamp(1, 3))
    };
    let master = Master::start(master, chubby.clone(), runtime.child("master")).await;
    let master = parts.master.insert(master.map_err(|error| error.context("start the master"))?);
    ready(master, &parts.servers).await?;
    Ok(chubby)
}

async fn ready(master: &Master, servers: &[TabletServer]) -> Result<(), Error> {
    let all = async {
        master.ready().await;
        for server in servers {
            server.ready().await;
        }
        Ok(())
    };
    let refusals = servers.iter().map(|server| Box::pin(server.registration_refused()));
    let refused = async { Err(futures::future::select_all(refusals).await.0) };
    let late = |_| {
        Error::new(
            Reason::Unavailable,
            format!("not ready after {READY_MAX:?}; run with EBLA_LOG=info to see what it is waiting for"),
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

async fn start_server(
    config: &LocalConfig,
    data: &Path,
    number: usize,
    mut options: ServerOptions,
    chubby: &SharedChubby,
    runtime: &Runtime,
) -> Result<TabletServer, Error> {
    let listen = if number == 1 { config.listen.clone() } else { free_port_beside(&config.listen) };
    config.splits.apply_to(&mut options);
    options.heat = config.heat;
    options.traces = config.traces;
    options.collector.clone_from(&config.collector);
    options.disk_reserve = config.disk_reserve;
    if let Some(size) = config.memory_groups {
        options.store.memory_group_bytes = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    }
    let server = ServerConfig::new(data.join(format!("server-{number}")), &listen, options);
    TabletServer::start(server, chubby.clone(), runtime.child("server"))
        .await
        .map_err(|error| error.context(&format!("start tablet server {number} at {listen}")))
}

fn free_port_beside(address: &str) -> String {
    let host = address.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
    format!("{host}:0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(servers: usize, listen: &str) -> LocalConfig {
        LocalConfig {
            servers,
            listen: listen.to_owned(),
            splits: SplitArguments::default(),
            traces: TraceOptions::default(),
            collector: None,
            merges: MergeRules::default(),
            disk_reserve: None,
            scan_cache: None,
            memory_groups: None,
            heat: HeatOption::Off,
            cluster_name: ClusterName::default(),
        }
    }

    async fn start(data: &Path, config: LocalConfig) -> Result<Option<LocalCluster>, Error> {
        let folder = DataFolder::claim(data)?;
        LocalCluster::start(config, folder, std::future::pending(), &Runtime::system("test")).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_start_stops_the_parts_that_were_started() {
        let parent = tempfile::tempdir().unwrap();
        let folder = DataFolder::claim(parent.path()).unwrap();
        // A file in the place of the second server's folder: its start fails after the first server has started.
        let blocking_file = parent.path().join("server-2");
        std::fs::write(&blocking_file, "").unwrap();
        let runtime = Runtime::system("test");
        let stop_signal = std::future::pending();
        let failed = LocalCluster::start(config(2, "127.0.0.1:0"), folder, stop_signal, &runtime).await;
        assert!(failed.is_err_and(|error| error.message.contains("start tablet server 2")));
        // A part that still ran would hold the lock of the folder, the lock service or the first server.
        std::fs::remove_file(&blocking_file).unwrap();
        let cluster = start(parent.path(), config(2, "127.0.0.1:0")).await.unwrap().unwrap();
        cluster.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_or_cancelled_start_leaves_no_new_folder() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let failed = start(&data, config(1, &taken.local_addr().unwrap().to_string())).await;
        assert!(failed.is_err_and(|error| error.message.contains("start tablet server 1")));
        assert!(!data.exists());
        let folder = DataFolder::claim(&data).unwrap();
        let stop_signal = async {};
        let started =
            LocalCluster::start(config(1, "127.0.0.1:0"), folder, stop_signal, &Runtime::system("test")).await;
        assert!(started.is_ok_and(|cluster| cluster.is_none()));
        assert!(!data.exists());
    }
}
