//! A process that serves a table. Any number of servers may serve the same table: they hold no state besides caches.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error as ModelError, Reason as ModelReason};
use ebla_mounttable_tree::access::Permissions;
use ebla_mounttable_tree::error::Error as TableError;
use ebla_mounttable_tree::file::{self, FileNode};
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::outage::{self, Credit};
use ebla_mounttable_tree::store::bigtable::BigtableStore;
use ebla_mounttable_tree::store::cache;
use ebla_mounttable_tree::store::caching::{CacheHandle, CachingStore, LookupCounts};
use ebla_mounttable_tree::store::coalescing::CoalescingStore;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::system::SystemStore;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::{Maintained, Table, TableOptions};
use ebla_proto::DESCRIPTORS;
use ebla_proto::health::health_server::{self, HealthServer};
use ebla_proto::mounttable::mount_table_admin_server::{self, MountTableAdminServer};
use ebla_proto::mounttable::mount_table_server::{self, MountTableServer};
use ebla_runtime::metrics::Source;
use ebla_runtime::serve::PEER_STREAMS_MAX;
use ebla_runtime::{Listener, Protocol, Runtime, ServeOptions, add_reflection, serve};
use futures::future::BoxFuture;
use thiserror::Error;
use tonic::service::Routes;
use tracing::{info, warn};

use crate::gateway;
use crate::health::{Health, HealthMonitor};
use crate::metrics::MounttableSource;
use crate::service::identity::{AuthMethod, Authenticator};
use crate::service::{Service, WriteMode};

/// The services that server reflection lists.
const DESCRIBED_SERVICES: [&str; 3] =
    [mount_table_server::SERVICE_NAME, mount_table_admin_server::SERVICE_NAME, health_server::SERVICE_NAME];
/// The time for calls to finish when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The time for detached work to finish afterwards. Unfinished protocol steps are completed by other servers.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The gRPC address, `host:port`; port 0 selects a free one.
    pub listen: String,
    /// The address of the gateway for JSON over HTTP; `None`: no gateway.
    pub http_listen: Option<String>,
    /// The name of the table, which a request to destroy it must repeat.
    pub table: String,
    /// The options of the tree.
    pub options: TableOptions,
    /// How callers are authenticated.
    pub identity: AuthMethod,
    /// Patterns of superusers.
    pub superusers: Vec<BlessingPattern>,
    /// The interval of sweeps, each with a recount of the quotas; zero: never.
    pub sweep_period: Duration,
    /// The options of the cache.
    pub cache: cache::CacheOptions,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: String,
    http_address: Option<String>,
    cache_handle: CacheHandle,
    health: HealthMonitor,
    /// The services: stopped first.
    serving: Runtime,
    runtime: Runtime,
}

/// The storage of a table.
#[derive(Debug)]
pub enum Storage {
    /// In a table of a cluster.
    Cluster(Box<BigtableStore>),
    /// In memory, for the lifetime of the process.
    Memory,
}

/// The reason why a server did not start.
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
    /// As [`Server::start_seeded`], over this storage. Boxed here, so that the machine code for both
    /// kinds of storage is generated in this crate (decision 0012).
    ///
    /// # Errors
    /// As [`Server::start`]; errors of the setup.
    pub fn open(
        config: ServerConfig,
        nodes: Vec<FileNode>,
        storage: Storage,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            match storage {
                Storage::Cluster(store) => {
                    Self::start_seeded(config, nodes, SystemStore::new(*store, runtime.clone()), runtime).await
                }
                Storage::Memory => {
                    let store = SystemStore::new(MemoryStore::default(), runtime.clone());
                    Self::start_seeded(config, nodes, store, runtime).await
                }
            }
        })
    }

    /// Seeds the table if it is new, with `nodes`, or else with a root that has [`AuthMethod::default_root`], and serves
    /// it. An existing table stays as it is.
    ///
    /// # Errors
    /// As [`Server::start`]; errors of the setup.
    pub async fn start_seeded<S>(
        config: ServerConfig,
        mut nodes: Vec<FileNode>,
        store: S,
        runtime: Runtime,
    ) -> Result<Self, StartError>
    where
        S: Store + Environment + Clone + 'static,
    {
        let has_file = !nodes.is_empty();
        if !has_file {
            nodes = file::parse("{}", &config.identity.default_root())?;
        }
        let created = Table::new(store.clone(), config.options).seed(&nodes).await?;
        match (created, has_file) {
            (0, true) => {
                info!("the table exists; the permissions file was not applied (ebla mt admin setup does that)")
            }
            (0, false) => {}
            (_, false) if config.superusers.is_empty() && config.identity.default_root() != Permissions::open() => {
                warn!("created a closed table: without superusers and permissions file no caller has any rights");
            }
            _ => info!(created, "table seeded"),
        }
        Ok(Self::start(config, store, runtime).await?)
    }

    /// Binds the addresses and serves. Its tasks are a child group of `runtime`'s.
    ///
    /// # Errors
    /// `Unavailable` when an address cannot be bound.
    pub async fn start<S>(config: ServerConfig, store: S, runtime: Runtime) -> Result<Self, ModelError>
    where
        S: Store + Environment + Clone + 'static,
    {
        let runtime = runtime.child("mounttable");
        let listener = listen(&runtime, &config.listen).await?;
        let address = listener.local_addr().to_string();
        let http_listener = match &config.http_listen {
            Some(address) => Some(listen(&runtime, address).await?),
            None => None,
        };
        let http_address = http_listener.as_ref().map(|listener| listener.local_addr().to_string());
        let store = CachingStore::new(store, config.cache);
        let cache_handle = store.cache_handle();
        let table = Table::new(CoalescingStore::new(store), config.options);
        if config.options.credit == Credit::On {
            // Before the first request: until then every mount counts as affected by an outage.
            let server = runtime.rng.u64();
            heartbeat(&table, server).await;
            let table = table.clone();
            runtime.tasks.spawn_until_stopped("heartbeat", async move {
                loop {
                    tokio::time::sleep(outage::HEARTBEAT_INTERVAL).await;
                    heartbeat(&table, server).await;
                }
            });
        }
        let authenticator = Authenticator::new(config.identity, config.superusers);
        let tasks = runtime.tasks.clone();
        let service = Service::new(table.clone(), &config.table, authenticator, cache_handle.clone(), tasks);
        let health = HealthMonitor::new();
        health.start(table.clone(), &runtime);
        let routes = Routes::new(MountTableServer::new(service.clone()))
            .add_service(MountTableAdminServer::new(service.clone()))
            .add_service(HealthServer::new(health.view()));
        let serving = runtime.child("serving");
        let routes = add_reflection(routes, DESCRIPTORS, &DESCRIBED_SERVICES, &serving.tasks.token())?;
        // Watches and `KeepMounted` occupy a stream each for as long as their callers like.
        let options = ServeOptions { public_streams_max: PEER_STREAMS_MAX, ..ServeOptions::default() };
        serve(&serving.tasks, listener, routes, options.clone());
        if let Some(listener) = http_listener {
            let options = ServeOptions { protocol: Protocol::Http1AndHttp2, ..options };
            serve(&serving.tasks, listener, gateway::routes(service.clone(), &health.view()), options);
        }
        if !config.sweep_period.is_zero() {
            let (period, rng) = (config.sweep_period, runtime.rng.clone());
            runtime.tasks.spawn_until_stopped("sweep", async move {
                loop {
                    // Jitter keeps the servers of one table from sweeping at the same time.
                    tokio::time::sleep(rng.jitter(period)).await;
                    if service.write_mode() == WriteMode::ReadOnly {
                        continue;
                    }
                    match table.maintain().await {
                        Ok(Maintained { swept, corrections }) => {
                            let corrected = corrections.len();
                            info!(?swept, corrected, "sweep finished");
                        }
                        Err(error) => warn!(%error, "sweep aborted; the next one starts over"),
                    }
                }
            });
        }
        Ok(Self { address, http_address, cache_handle, health, serving, runtime })
    }

    /// The gRPC address, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address of the gateway, `host:port`, if there is one.
    pub fn http_address(&self) -> Option<&str> {
        self.http_address.as_deref()
    }

    /// Lookups since the start, by the way they were answered.
    pub fn lookups(&self) -> LookupCounts {
        self.cache_handle.counts()
    }

    /// What it tells a monitoring system.
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::new(MounttableSource { cache: self.cache_handle.clone(), health: self.health.view() })
    }

    /// Whether it can read its table; the error is the reason why not. It does not block.
    pub fn readiness(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let health = self.health.view();
        move || match health.now() {
            Health::Serving => Ok(()),
            Health::NotServing(reason) => Err(format!("the mounttable cannot read its table: {reason:?}")),
            Health::Stopping => Err("the mounttable is stopping".to_owned()),
        }
    }

    /// Stops gracefully: health checks fail, new calls are refused, and calls in progress finish.
    pub async fn stop(&self) {
        self.health.stop();
        self.serving.tasks.stop(DRAIN_TIMEOUT).await;
        self.runtime.tasks.stop(STOP_TIMEOUT).await;
    }
}

async fn listen(runtime: &Runtime, address: &str) -> Result<Listener, ModelError> {
    let failed = |error| ModelError::new(ModelReason::Unavailable, format!("listen on {address}: {error}"));
    runtime.net.listen(address).await.map_err(failed)
}

async fn heartbeat<S: Store + Environment>(table: &Table<S>, server: u64) {
    match table.heartbeat(server).await {
        Ok(Some(ended)) => {
            warn!(begin = %ended.begin, end = %ended.end, "storage outage ended: mount deadlines extended")
        }
        Ok(None) => {}
        Err(error) => warn!(%error, "heartbeat failed; retrying"),
    }
}
