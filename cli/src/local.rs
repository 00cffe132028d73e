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
//!
//! A start that fails, or that is told to stop, stops what it has started, in the reverse order.

use std::path::Path;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use ebla_runtime::units::ByteSize;
use ebla_tablet_server::{BlockCache, LocalServers, ServerConfig, ServerOptions, TabletServer};

use crate::process::DataFolder;

/// How long a start may take: recovery of a large log included.
const READY_MAX: Duration = Duration::from_secs(120);
/// What a stop gives to requests that are under way, and to flushes.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Tablet servers, at least 1.
    pub servers: usize,
    /// `host:port` of the first tablet server; port 0 takes a free one.
    pub listen: String,
    /// A tablet larger than this splits; `None`: the default, 128 MiB.
    pub split_bytes: Option<ByteSize>,
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
    folder: DataFolder,
}

/// What has been started so far.
#[derive(Default)]
struct Parts {
    servers: Vec<TabletServer>,
    master: Option<Master>,
}

impl Parts {
    /// Stops what serves, then what a half-started part has left running under `runtime`.
    async fn stop(self, runtime: &Runtime) {
        if let Some(master) = self.master {
            master.stop().await;
        }
        futures::future::join_all(self.servers.into_iter().map(TabletServer::stop)).await;
        runtime.tasks.stop(STOP_GRACE).await;
    }
}

impl LocalCluster {
    /// Starts everything in `folder` and waits until every tablet is served; `None` when `told` ended before. The folder is given
    /// up at the end; when nothing could be served from it, and this process made it, it is removed.
    ///
    /// # Errors
    /// `Unavailable` when it is not ready in two minutes, and what the parts say. All that was started has been stopped.
    pub async fn start(
        config: LocalConfig,
        folder: DataFolder,
        told: impl Future<Output = ()>,
        runtime: &Runtime,
    ) -> Result<Option<Self>, Error> {
        let runtime = runtime.child("local");
        let mut parts = Parts::default();
        // A wish to stop that is there already comes first: what a part that is cut off has given to other threads may
        // still write into the folder when it is removed.
        let begun = tokio::select! {
            biased;
            () = told => Ok(None),
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

    /// Where everything is kept.
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Stops everything in the reverse order of start: nothing new, drain, flush, release.
    pub async fn stop(self) {
        let Self { servers, master, runtime, folder, chubby: _ } = self;
        Parts { servers, master: Some(master) }.stop(&runtime).await;
        drop(folder);
    }
}

/// Starts one part after the other, and waits until all is ready.
async fn begin(config: &LocalConfig, data: &Path, parts: &mut Parts, runtime: &Runtime) -> Result<SharedChubby, Error> {
    let chubby = Embedded::open(&data.join("chubby"), runtime.clock.clone(), &runtime.tasks)
        .map_err(|error| Error::from(error).context("open the lock service"))?
        .shared();
    let whole = ServerOptions::up(LocalServers::default());
    let options = whole.clone().divided_among(config.servers, &BlockCache::new(whole.store.cache_bytes));
    for number in 1..=config.servers.max(1) {
        let server = start_server(config, data, number, options.clone(), &chubby, runtime).await?;
        parts.servers.push(server);
    }
    let master = MasterConfig::new("127.0.0.1:0", config.servers.clamp(1, 3));
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
        Error::new(Reason::Unavailable, format!("not ready after {READY_MAX:?}; EBLA_LOG=info shows what it waits for"))
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
    if let Some(size) = config.split_bytes {
        options.split_bytes = size;
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
        LocalConfig { servers, listen: listen.to_owned(), split_bytes: None }
    }

    async fn start(data: &Path, config: LocalConfig) -> Result<Option<LocalCluster>, Error> {
        let folder = DataFolder::claim(data)?;
        LocalCluster::start(config, folder, std::future::pending(), &Runtime::system("test")).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_that_fails_half_way_stops_what_it_started() {
        let parent = tempfile::tempdir().unwrap();
        let folder = DataFolder::claim(parent.path()).unwrap();
        // The second server finds a file where its folder should be, when the first one serves already.
        let in_the_way = parent.path().join("server-2");
        std::fs::write(&in_the_way, "").unwrap();
        let runtime = Runtime::system("test");
        let told = std::future::pending();
        let failed = LocalCluster::start(config(2, "127.0.0.1:0"), folder, told, &runtime).await;
        assert!(failed.is_err_and(|error| error.message.contains("start tablet server 2")));
        // Whatever still ran would hold the locks of the folder, of the lock service and of the first server.
        std::fs::remove_file(&in_the_way).unwrap();
        let cluster = start(parent.path(), config(2, "127.0.0.1:0")).await.unwrap().unwrap();
        cluster.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_that_fails_or_is_told_to_stop_leaves_no_new_folder() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let failed = start(&data, config(1, &taken.local_addr().unwrap().to_string())).await;
        assert!(failed.is_err_and(|error| error.message.contains("start tablet server 1")));
        assert!(!data.exists());
        let folder = DataFolder::claim(&data).unwrap();
        let told = async {};
        let started = LocalCluster::start(config(1, "127.0.0.1:0"), folder, told, &Runtime::system("test")).await;
        assert!(started.is_ok_and(|cluster| cluster.is_none()));
        assert!(!data.exists());
    }
}
