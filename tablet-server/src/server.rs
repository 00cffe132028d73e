//! A tablet server: built from its parts, served on one port, stopped in the reverse order.
//!
//! ```text
//!   registry, commit log           identity, local replicas, the Raft log of all groups
//!   directory (watches Chubby)     the other servers, tables, the master
//!   network, tablet manager        Raft groups and stores
//!   router -> cluster handle       any row, wherever its tablet is led
//!   front, rpc, control            gRPC services on one port
//!   metadata writer, maintenance, lease   background tasks
//! ```
//!
//! The port is bound first, because its number is registered in Chubby; requests are served only when the replicas are
//! open. A server is `ready` when it serves and is registered in Chubby, whether or not the cluster is initialized.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_client::{Cluster, Directory};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, ServerId};
use ebla_routing::{ChubbyDirectory, ReadinessCheck, start_trace_export};
use ebla_runtime::metrics::Source;
use ebla_runtime::trace::{Recorder, TraceSource};
use ebla_runtime::{Blocking, Listener, Runtime, Watchdog};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::{Identity, Registry};
use ebla_storage::store::SharedResources;
use ebla_storage::store::options::{OPEN_FILES_WANTED, raise_open_files_limit};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::capacity::Capacity;
use crate::clock_exchange;
use crate::config::{QUEUE_MAX, RestartScope, ServerConfig, ServerOptions, Threads};
use crate::control::ControlService;
use crate::directory_cache::DirectoryCache;
use crate::drain::{self, DrainOutcome};
use crate::front::{FrontConfig, FrontMetrics};
use crate::heat;
use crate::log_writer;
use crate::maintenance::{self, MaintenanceLimits};
use crate::metadata_writer::MetadataWriter;
use crate::metrics::{ServerSource, StoreSource};
use crate::opened_disk::open_disk;
use crate::raft::{AddressBook, BlockingPools, Network, NetworkOptions};
use crate::readiness::ServerReadiness;
use crate::registration::{self, Registration, RegistrationStatus};
use crate::response_budget::ResponseBudget;
use crate::router::{LocalHandlers, Router};
use crate::services::Services;
use crate::slow_disk;
use crate::tablet::handler::TabletHandler;
use crate::tablet::lifecycle::manager::{TabletManager, TabletManagerParts};
use crate::tablet::lifecycle::split::TabletHost;

/// Time limit for releasing the lease on shutdown. Without Chubby the lease expires by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for transferring leaderships.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for requests in flight on shutdown.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for flushing on shutdown: data that is not flushed is in the log.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the tasks of a server to end.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// A peer that does not respond within this time is treated as unreachable; a slow sync must fit into it.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running tablet server.
pub struct TabletServer {
    server: ServerId,
    address: String,
    manager: Arc<TabletManager>,
    network: Arc<Network>,
    local_handlers: LocalHandlers,
    log: CommitLog,
    cluster: Cluster,
    directory: ChubbyDirectory,
    responses: ResponseBudget,
    registration_status: watch::Receiver<RegistrationStatus>,
    readiness: Arc<ServerReadiness>,
    metrics: Vec<Arc<dyn Source>>,
    /// The registration in Chubby: stopped first.
    lease: Runtime,
    /// The gRPC services on the port: stopped second, with the requests in flight.
    serving: Runtime,
    /// Directory, metadata writer, maintenance.
    background: Runtime,
    /// Raft's network and the replicas: stopped last.
    replication: Runtime,
    /// Watches the tasks of the groups; `None` without threads.
    _watchdog: Option<Watchdog>,
}

impl std::fmt::Debug for TabletServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TabletServer")
            .field("server", &self.server)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl TabletServer {
    /// Starts a server. Its tasks are children of `runtime.tasks`.
    ///
    /// # Errors
    /// When the data folder is in use or damaged, or the port is in use. A first start waits for Chubby; later starts do not
    /// need it, and whether the server may belong to this cluster is checked [later](Self::registration_refused). `FailedPrecondition`
    /// when its replicas were given up as lost.
    pub fn start(
        config: ServerConfig,
        chubby: SharedChubby,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            // Released again: a caller whose connection is accepted waits for its response until all stores are open, while
            // one that is refused goes to another server.
            drop(listen(&config.listen, &runtime).await?);
            let (background, replication) = (runtime.child("server"), runtime.child("replicas"));
            raise_open_files();
            let pools = ServerPools::new(&config.options)?;
            let disk = open_disk(&config, &pools.raft.maintenance, &runtime).await?;
            let failure = watch::Sender::new(None);
            log_writer::start(&disk.log, &config.options.threads, &replication, failure.clone())?;
            let failed = failure.clone();
            disk.registry.set_failure_callback(move |error| {
                failed.send_replace(Some(Error::internal(error.to_string())));
            });
            let versions = config.options.versions;
            let server = registration::identify(&disk.registry, versions, &chubby, &runtime).await?;
            registration::refuse_if_excluded(server, versions, &chubby).await?;
            let directory_cache = load_directory_cache(&config, &disk.registry, &pools.raft.maintenance).await?;
            let directory = directory_cache.directory(Arc::clone(&chubby), &background);
            // Without Chubby, its copy says which version was active.
            registration::check_version(versions, directory.active_version())?;
            let store = config.options.store.clone();
            let shared = match &config.options.block_cache {
                Some(cache) => SharedResources::with_cache(store, cache.clone())?,
                None => SharedResources::new(store)?,
            };
            let capacity = capacity_of(&config);
            sample_disk(&capacity, server, &pools.raft.maintenance).await?;
            let scratch = config.data_dir.join("scratch");
            let network = Network::new(
                NetworkOptions {
                    server,
                    versions,
                    election_max: config.options.timings.election_max,
                    addresses: Arc::new(Addresses(directory.clone())),
                    local_peers: config.options.local_servers.raft.clone(),
                    scratch: scratch.clone(),
                    maintenance: pools.raft.maintenance.clone(),
                    response_timeout: PEER_TIMEOUT,
                    capacity: Arc::clone(&capacity),
                },
                &replication,
            );
            let watchdog = start_watchdog(&network, &config.options.threads)?;
            let metadata_writer = MetadataWriter::new(server, Arc::clone(&chubby), directory.clone(), &background);
            let manager = TabletManager::open(TabletManagerParts {
                server,
                registry: Arc::clone(&disk.registry),
                log: disk.log.clone(),
                quarantined: disk.quarantined,
                network: Arc::clone(&network),
                shared,
                pools: pools.raft,
                reads: pools.reads,
                runtime: replication.clone(),
                scratch,
                timings: config.options.timings,
                needs_vote_holdoff: config.options.restart == RestartScope::Server,
                host: Arc::clone(&metadata_writer) as Arc<dyn TabletHost>,
                capacity,
                failure,
            })
            .await?;
            let responses = ResponseBudget::new(config.options.response_bytes, runtime.clock.clone());
            let recorder = Recorder::new(server, config.options.traces, runtime.clock.clone());
            let (clock, memory) = (runtime.clock.clone(), responses.memory());
            let handler = TabletHandler::new(Arc::clone(&manager), clock, memory, Arc::clone(&recorder));
            let local_handlers = config.options.local_servers.router.clone();
            let directory_handle = Arc::new(directory.clone()) as Arc<dyn Directory>;
            let router = Router::new(server, handler.clone(), local_handlers.clone(), directory_handle, &background);
            let cluster = router.cluster(background.clone());
            metadata_writer.start(&manager, cluster.clone());
            let incarnation = Incarnation::new(runtime.rng.u64());
            let (readiness, front_metrics) = (ServerReadiness::new(&manager), FrontMetrics::default());
            let services = Services {
                handler,
                log: disk.log.clone(),
                directory: directory.clone(),
                control: ControlService::new(
                    &manager,
                    &directory,
                    incarnation,
                    &config.options,
                    runtime.net.connection_limit(),
                    &front_metrics,
                ),
                network: Arc::clone(&network),
                front: FrontConfig {
                    cluster: cluster.clone(),
                    chubby: Arc::clone(&chubby),
                    directory: directory.clone(),
                    runtime: background.clone(),
                    request_bytes: config.options.request_bytes,
                    responses: responses.clone(),
                    access: config.options.access.clone(),
                    metrics: front_metrics.clone(),
                    recorder: Arc::clone(&recorder),
                },
                readiness: Arc::clone(&readiness),
            };
            let (lease, serving) = (background.child("lease"), background.child("serving"));
            let listener = listen(&config.listen, &runtime).await?;
            let address = config.advertise.clone().unwrap_or_else(|| listener.local_addr().to_string());
            services.serve(listener, &serving)?;
            responses.start(&background);
            if let Some(collector) = &config.options.collector {
                start_trace_export(&recorder, collector, &background)?;
            }
            clock_exchange::start(&manager, &directory, &background);
            slow_disk::start(&manager, &background);
            maintenance::start_scrubber(&manager, config.options.scrub, &background);
            maintenance::start(&manager, maintenance_limits(&config.options), &background);
            heat::start(config.options.heat, &manager, (&directory, &cluster), incarnation, &background);
            persist_cluster_id(&manager, &directory, &background);
            directory_cache.persist_changes(&directory, manager.maintenance(), &background);
            let (zone, ttl) = (config.options.zone.clone(), config.options.lease_ttl);
            let registration = Registration { server, address: address.clone(), incarnation, zone, versions, ttl };
            let registration_status = registration::maintain(registration, Arc::clone(&disk.registry), chubby, &lease);
            readiness.observe(&registration_status, &background.tasks);
            let in_memory = ServerSource {
                manager: Arc::downgrade(&manager),
                front: front_metrics,
                raft: network.counters(),
                responses: responses.clone(),
                readiness: Arc::clone(&readiness),
                metadata_writer: Arc::downgrade(&metadata_writer),
                directory: directory.clone(),
            };
            let stores = StoreSource { manager: Arc::downgrade(&manager) };
            let metrics: Vec<Arc<dyn Source>> =
                vec![Arc::new(in_memory), Arc::new(stores), Arc::new(TraceSource::new(recorder))];
            info!(%server, address, "tablet server started");
            let log = disk.log;
            Ok(Self {
                server,
                address,
                manager,
                network,
                local_handlers,
                log,
                cluster,
                directory,
                responses,
                registration_status,
                readiness,
                metrics,
                lease,
                serving,
                background,
                replication,
                _watchdog: watchdog,
            })
        })
    }

    /// This server's id.
    #[must_use]
    pub const fn id(&self) -> ServerId {
        self.server
    }

    /// `host:port` under which other servers reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its replicas.
    #[must_use]
    pub const fn tablet_manager(&self) -> &Arc<TabletManager> {
        &self.manager
    }

    /// The cluster as seen from here.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its copy of Chubby's files.
    #[must_use]
    pub const fn directory(&self) -> &ChubbyDirectory {
        &self.directory
    }

    /// Memory of responses that are prepared and not sent.
    #[must_use]
    pub const fn responses(&self) -> &ResponseBudget {
        &self.responses
    }

    /// What it tells a monitoring system. The sources do not keep the server alive.
    #[must_use]
    pub fn metrics(&self) -> &[Arc<dyn Source>] {
        &self.metrics
    }

    /// Whether the server can serve: its stores are open, it has been registered in Chubby, and it is not stopping. The check does not keep
    /// the server alive; its error is the reason.
    #[must_use]
    pub fn readiness(&self) -> ReadinessCheck {
        let readiness = Arc::clone(&self.readiness);
        Arc::new(move || readiness.now())
    }

    /// Returns when the server has registered and has read Chubby's files. Cancel-safe.
    pub async fn ready(&self) {
        // The sender lives as long as the server's tasks; when they have ended there is nothing to wait for.
        let _ended = self
            .registration_status
            .clone()
            .wait_for(|registration_status| *registration_status == RegistrationStatus::Registered)
            .await
            .map(drop);
        self.directory.ready().await;
    }

    /// Returns when Chubby turns out to belong to another cluster or to have an active version that this release does not support, or this
    /// server to be given up as lost: the data folder must not be used, and the server must shut down. Cancel-safe.
    pub async fn registration_refused(&self) -> Error {
        let mut registration_status = self.registration_status.clone();
        let refused = registration_status
            .wait_for(|registration_status| matches!(registration_status, RegistrationStatus::Refused(_)))
            .await
            .map(|now| now.clone());
        match refused {
            Ok(RegistrationStatus::Refused(error)) => error,
            // A server that has stopped is never refused.
            _ => std::future::pending().await,
        }
    }

    /// Returns when the process must end, with the reason: the core of a replica ended by an unexpected failure, so an invariant
    /// or the disk is broken, or the commit log of a simulation could not be written. Cancel-safe.
    pub async fn failed(&self) -> Error {
        self.manager.failed().await
    }

    /// Drains the server before [`TabletServer::stop`] while other servers keep running: accepts no new work from the master,
    /// releases the lease, and transfers every leadership to another server. Requests are served until the stop. Takes at
    /// most 4 s.
    pub fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.manager.start_drain();
            self.lease.tasks.stop(RELEASE_TIMEOUT).await;
            match drain::transfer_leaderships(&self.manager, &self.directory, TRANSFER_TIMEOUT).await {
                DrainOutcome::Complete => {}
                DrainOutcome::NoOtherServer(leaderships) => {
                    info!(server = %self.server, leaderships, "no other server to transfer leaderships to: all are stopping");
                }
                DrainOutcome::Incomplete(leaderships) => {
                    warn!(server = %self.server, leaderships, "leaderships not transferred; followers elect new leaders");
                }
            }
        })
    }

    /// Graceful shutdown: accepts no new requests, waits for requests in flight, flushes memtables, stops tasks and groups,
    /// writes the log's last batch, and closes the stores. It transfers no leadership: see [`Self::drain`].
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.manager.start_drain();
            self.lease.tasks.stop(RELEASE_TIMEOUT).await;
            self.network.close_inbound_streams();
            self.local_handlers.deregister(self.server);
            self.serving.tasks.stop(REQUESTS_TIMEOUT).await;
            self.background.tasks.stop(STOP_GRACE).await;
            // Data that is not flushed in time is applied again from the log at the next start.
            let _late = tokio::time::timeout(FLUSH_TIMEOUT, self.manager.flush()).await;
            self.manager.stop().await;
            self.replication.tasks.stop(STOP_GRACE).await;
            self.network.abort();
            let log = self.log.clone();
            // The writer ends on its own thread; waiting for it must not block an async worker.
            let _stopped = self.manager.maintenance().run(move || log.stop()).await;
            info!(server = %self.server, "tablet server stopped");
        })
    }

    /// Stops at once, as a crashed process would: releases no lease, transfers no leadership, flushes nothing explicitly. For
    /// tests in one process.
    pub fn abort(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.network.abort();
            self.local_handlers.deregister(self.server);
            self.background.tasks.stop(Duration::ZERO).await;
            self.manager.abort().await;
            self.replication.tasks.stop(Duration::ZERO).await;
            let log = self.log.clone();
            let _ended = self.manager.maintenance().run(move || log.abort()).await;
        })
    }
}

struct ServerPools {
    raft: BlockingPools,
    reads: Blocking,
}

impl ServerPools {
    fn new(options: &ServerOptions) -> Result<Self, Error> {
        let no_threads = |error| Error::internal(format!("start threads: {error}"));
        let pool = |name, threads| Blocking::pool(name, threads, QUEUE_MAX).map_err(no_threads);
        let raft = match &options.threads {
            Threads::Pools => BlockingPools {
                apply: pool("apply", options.apply_threads)?,
                maintenance: pool("maintenance", options.maintenance_threads)?,
            },
            Threads::Inline { apply, .. } => BlockingPools { apply: apply.clone(), maintenance: Blocking::inline() },
        };
        Ok(Self {
            raft,
            reads: match &options.shared_reads {
                Some(shared) => shared.clone(),
                None => options.start_reads().map_err(no_threads)?,
            },
        })
    }
}

/// Persists the cluster's id as soon as Chubby reports it. A request of the master may persist it earlier.
fn persist_cluster_id(manager: &Arc<TabletManager>, directory: &ChubbyDirectory, runtime: &Runtime) {
    let (manager, directory) = (Arc::clone(manager), directory.clone());
    runtime.tasks.spawn_until_stopped("adopt", async move {
        let mut changes = directory.changes();
        while manager.registry().identity().is_none() {
            if let Some(cluster) = directory.cluster() {
                let identity = Identity { cluster, server: manager.server() };
                let registry = Arc::clone(manager.registry());
                let adopted = manager.maintenance().run(move || registry.set_identity(identity)).await;
                if let Ok(Err(error)) = adopted {
                    error!(%error, "cannot persist the cluster id in the registry");
                    return;
                }
            } else if changes.changed().await.is_err() {
                return;
            }
        }
    });
}

/// A group is divided when it is larger than this many tablets of the maximum size.
const DIVIDE_FACTOR: u64 = 64;

fn maintenance_limits(options: &ServerOptions) -> MaintenanceLimits {
    MaintenanceLimits {
        memtable_bytes: options.store.memtable_bytes as u64,
        log_bytes: options.log_bytes.bytes(),
        split_bytes: options.split_bytes.bytes(),
        metadata_split_bytes: options.metadata_split_bytes.bytes(),
        split_load: options.split_load.into(),
        divide_bytes: options.split_bytes.bytes().saturating_mul(DIVIDE_FACTOR),
    }
}

/// Addresses of other servers, as Chubby last reported them: a server that has lost its lease, or is stopping, still votes.
struct Addresses(ChubbyDirectory);

impl AddressBook for Addresses {
    fn cluster(&self) -> Option<ClusterId> {
        self.0.cluster()
    }

    fn active_version(&self) -> ClusterVersion {
        self.0.active_version()
    }

    fn address(&self, server: ServerId) -> Option<String> {
        // The copy of Chubby's files answers at once.
        self.0.address(server).now_or_never().flatten()
    }
}

/// Loads the persisted copy of Chubby's files.
async fn load_directory_cache(
    config: &ServerConfig,
    registry: &Registry,
    maintenance: &Blocking,
) -> Result<DirectoryCache, Error> {
    let (data_dir, cluster) = (config.data_dir.clone(), registry.identity().map(|identity| identity.cluster));
    let loaded = maintenance.run(move || DirectoryCache::load(&data_dir, cluster)).await;
    loaded.map_err(|error| Error::internal(error.to_string()))
}

/// Before the server accepts its first write.
async fn sample_disk(capacity: &Arc<Capacity>, server: ServerId, maintenance: &Blocking) -> Result<(), Error> {
    let capacity = Arc::clone(capacity);
    let sampled = maintenance.run(move || capacity.sample_disk(server)).await;
    sampled.map_err(|error| Error::internal(error.to_string()))
}

fn capacity_of(config: &ServerConfig) -> Arc<Capacity> {
    let ServerOptions { resources, disk_reserve, local_servers, .. } = &config.options;
    Capacity::new(resources(&config.data_dir, *disk_reserve), local_servers.clone())
}

/// Fewer open files than this do not suffice for a busy server: a group has some tens of files, a connection one.
const OPEN_FILES_LOW: u64 = 8_192;

async fn listen(address: &str, runtime: &Runtime) -> Result<Listener, Error> {
    let listener = runtime.net.listen(address).await;
    listener.map_err(|error| Error::internal(format!("listen on {address}: {error}")))
}

/// Raises the limit of open files of this process: the usual 1024 are few for groups and connections.
fn raise_open_files() {
    let limit = raise_open_files_limit();
    if let Some(soft) = limit.soft.filter(|soft| *soft < OPEN_FILES_LOW) {
        warn!(
            limit = soft,
            wanted = OPEN_FILES_WANTED,
            "low limit of open files; raise it with ulimit -n or LimitNOFILE"
        );
    }
}

/// Starts the thread that reports tasks of groups that do not yield. A simulation has no threads, and time stands still in its polls.
fn start_watchdog(network: &Network, threads: &Threads) -> Result<Option<Watchdog>, Error> {
    match threads {
        Threads::Pools => Watchdog::start(network.executor_watches())
            .map(Some)
            .map_err(|error| Error::internal(format!("start the watchdog: {error}"))),
        Threads::Inline { .. } => Ok(None),
    }
}
