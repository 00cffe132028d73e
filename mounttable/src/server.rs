//! A process that serves a table. Any number of them may serve the same one: they keep nothing but hints.

use std::time::Duration;

use ebla_model::error::{Error as ModelError, Reason as ModelReason};
use ebla_proto::mounttable::mount_table_admin_server::MountTableAdminServer;
use ebla_proto::mounttable::mount_table_server::MountTableServer;
use ebla_runtime::{Listener, Protocol, Runtime, ServeOptions, serve};
use futures::future::BoxFuture;
use thiserror::Error;
use tonic::service::Routes;
use tracing::{info, warn};

use crate::access::Permissions;
use crate::error::Error as TableError;
use crate::file::FileNode;
use crate::gateway;
use crate::identity::BlessingPattern;
use crate::outage::{self, Credit};
use crate::service::identity::{Door, Identity};
use crate::service::{Changes, Service};
use crate::store::bigtable::Bigtable;
use crate::store::cache;
use crate::store::cached::{Cached, Counts, Knowledge};
use crate::store::gathered::Gathered;
use crate::store::grounded::Grounded;
use crate::store::memory::Memory;
use crate::store::{Store, Surroundings};
use crate::table::{Options, Table};

/// How long calls may take to end when the server is told to stop.
const DRAIN: Duration = Duration::from_secs(3);

/// How long work that outlives its caller may then still take. What is cut off is finished by whoever comes by.
const GRACE: Duration = Duration::from_secs(5);

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Where its gateway for JSON over HTTP listens, as `listen`; `None`: there is none.
    pub http_listen: Option<String>,
    /// What the table is called: has to be said to destroy it.
    pub table: String,
    /// Of the tree.
    pub options: Options,
    /// How callers are recognised.
    pub identity: Identity,
    /// Who may do everything.
    pub superusers: Vec<BlessingPattern>,
    /// How often it goes through the whole table; zero: never.
    pub sweep_period: Duration,
    /// What it remembers of rows.
    pub cache: cache::Options,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: String,
    http_address: Option<String>,
    knowledge: Knowledge,
    /// What answers calls: stopped first.
    serving: Runtime,
    runtime: Runtime,
}

/// Where a server stores its table.
#[derive(Debug)]
pub enum Storage {
    /// In a table of a cluster.
    Cluster(Box<Bigtable>),
    /// In this process, as long as it runs.
    Memory,
}

/// Why a server did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The table could not be set up.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An address could not be bound.
    #[error(transparent)]
    Server(#[from] ModelError),
}

impl Server {
    /// Creates what the table begins with, `nodes`, and serves it. Boxed here, so that the machine code of both kinds of
    /// storage is made in this crate (decision 0012).
    ///
    /// # Errors
    /// As [`Server::start`], and what kept the table from being set up.
    pub fn open(
        config: ServerConfig,
        nodes: Vec<FileNode>,
        storage: Storage,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            match storage {
                Storage::Cluster(store) => {
                    Self::set_up(config, &nodes, Grounded::new(*store, runtime.clone()), runtime).await
                }
                Storage::Memory => {
                    Self::set_up(config, &nodes, Grounded::new(Memory::default(), runtime.clone()), runtime).await
                }
            }
        })
    }

    async fn set_up<S>(config: ServerConfig, nodes: &[FileNode], store: S, runtime: Runtime) -> Result<Self, StartError>
    where
        S: Store + Surroundings + Clone + 'static,
    {
        let table = Table::new(store.clone(), config.options);
        table.apply(nodes).await?;
        // A root that is there keeps the permissions that it was given since.
        table.setup(Permissions::open()).await?;
        Ok(Self::start(config, store, runtime).await?)
    }

    /// Binds and serves. Its tasks are a group of their own under `runtime`'s.
    ///
    /// # Errors
    /// `Unavailable` when an address cannot be bound.
    pub async fn start<S>(config: ServerConfig, store: S, runtime: Runtime) -> Result<Self, ModelError>
    where
        S: Store + Surroundings + Clone + 'static,
    {
        let runtime = runtime.child("mounttable");
        let listener = listen(&runtime, &config.listen).await?;
        let address = listener.local_addr().to_string();
        let http_listener = match &config.http_listen {
            Some(address) => Some(listen(&runtime, address).await?),
            None => None,
        };
        let http_address = http_listener.as_ref().map(|listener| listener.local_addr().to_string());
        let store = Cached::new(store, config.cache);
        let knowledge = store.knowledge();
        let table = Table::new(Gathered::new(store), config.options);
        if config.options.credit == Credit::On {
            // Before anybody asks: until then every mount might have been met by an outage.
            let server = runtime.rng.u64();
            beat(&table, server).await;
            let table = table.clone();
            runtime.tasks.spawn_until_stopped("heartbeat", async move {
                loop {
                    tokio::time::sleep(outage::BEAT).await;
                    beat(&table, server).await;
                }
            });
        }
        let door = Door::new(config.identity, config.superusers);
        let tasks = runtime.tasks.clone();
        let service = Service::new(table.clone(), &config.table, door, knowledge.clone(), tasks);
        let routes = Routes::new(MountTableServer::new(service.clone()))
            .add_service(MountTableAdminServer::new(service.clone()));
        let serving = runtime.child("serving");
        serve(&serving.tasks, listener, routes, ServeOptions::default());
        if let Some(listener) = http_listener {
            let options = ServeOptions { protocol: Protocol::Http1AndHttp2, ..ServeOptions::default() };
            serve(&serving.tasks, listener, gateway::routes(service.clone()), options);
        }
        if !config.sweep_period.is_zero() {
            let (period, rng) = (config.sweep_period, runtime.rng.clone());
            runtime.tasks.spawn_until_stopped("sweep", async move {
                loop {
                    // Servers of one table should not sweep it at the same time.
                    tokio::time::sleep(rng.jitter(period)).await;
                    if service.changes() == Changes::Refused {
                        continue;
                    }
                    match table.sweep().await {
                        Ok(swept) => info!(?swept, "swept"),
                        Err(error) => warn!(%error, "sweep ended early"),
                    }
                }
            });
        }
        Ok(Self { address, http_address, knowledge, serving, runtime })
    }

    /// Where it listens, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where its gateway listens, `host:port`, if it has one.
    pub fn http_address(&self) -> Option<&str> {
        self.http_address.as_deref()
    }

    /// How names were looked up until now: from what was known, or by reading.
    pub fn lookups(&self) -> Counts {
        self.knowledge.counts()
    }

    /// Stops in order: takes no calls, lets those under way end.
    pub async fn stop(&self) {
        self.serving.tasks.stop(DRAIN).await;
        self.runtime.tasks.stop(GRACE).await;
    }
}

async fn listen(runtime: &Runtime, address: &str) -> Result<Listener, ModelError> {
    let failed = |error| ModelError::new(ModelReason::Unavailable, format!("listen on {address}: {error}"));
    runtime.net.listen(address).await.map_err(failed)
}

async fn beat<S: Store + Surroundings>(table: &Table<S>, server: u64) {
    match table.beat(server).await {
        Ok(Some(over)) => warn!(begin = %over.begin, end = %over.end, "nobody could write; deadlines are put off"),
        Ok(None) => {}
        Err(error) => warn!(%error, "no heartbeat"),
    }
}
