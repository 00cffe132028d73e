//! A tablet server: made of its parts, served on one port, stopped in the reverse order.
//!
//! ```text
//!   registry, commit log           who it is, what lives here, the log of all groups
//!   directory (watches Chubby)     who else there is
//!   network, hosted replicas       Raft groups and stores
//!   router -> cluster handle       any row, wherever it is led
//!   front, internal, control       gRPC on one port
//!   announcer, flushing, lease     what happens without being asked
//! ```
//!
//! The port is bound first, because its number is what is registered; requests are answered only when the replicas are
//! open. A server is `ready` when it serves and stands in Chubby, whether or not the cluster has begun.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_client::{Cluster, Directory};
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, ServerId};
use ebla_proto::control::control_server::ControlServer;
use ebla_proto::locate::locate_server::LocateServer;
use ebla_proto::tablet::tablets_server::TabletsServer;
use ebla_routing::ChubbyDirectory;
use ebla_runtime::config::ByteSize;
use ebla_runtime::{Blocking, Listener, Rng, Runtime, ServeOptions, serve};
use ebla_storage::log::{CommitLog, LogError, LogOptions, Record, Recovered, SegmentWitness, Step};
use ebla_storage::registry::{Identity, Registry, ReplicaState};
use ebla_storage::tablet::Shared;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tonic::service::Routes;
use tracing::{error, info, warn};

use crate::announce::Announcer;
use crate::config::{Restart, ServerConfig, ServerOptions, Threads};
use crate::control::ControlService;
use crate::flushing::{self, FlushBudgets};
use crate::front::{self, FrontConfig};
use crate::internal::{LocateService, MESSAGE_BYTES_MAX, TabletService};
use crate::lease::{self, Presence, Standing};
use crate::leaving::{self, Left};
use crate::memory::Memory;
use crate::raft::{AddressBook, GroupId, Network, NetworkOptions, Pools};
use crate::router::{Neighbours, Router};
use crate::tablet::hosted::{Hosted, HostedParts};
use crate::tablet::serve::Local;
use crate::tablet::split::SplitHelp;

/// Calls that may wait for a thread, for each pool.
const QUEUE_MAX: usize = 16_384;
/// How long giving the lease back may take at the end: without Chubby it ends by itself.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// How long handing leaderships over may take.
const HAND_OVER_MAX: Duration = Duration::from_secs(3);
/// How long requests under way may take at the end.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// How long flushing may take at the end: what is not flushed is in the log.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How long the tasks of a server may take to end.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// A peer that does not answer in this time is taken for unreachable; a slow sync must fit into it.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// A running tablet server.
pub struct TabletServer {
    server: ServerId,
    address: String,
    hosted: Arc<Hosted>,
    network: Arc<Network>,
    neighbours: Neighbours,
    log: CommitLog,
    cluster: Cluster,
    directory: ChubbyDirectory,
    standing: watch::Receiver<Standing>,
    /// What stands in Chubby: given back first.
    lease: Runtime,
    /// What answers on the port: ended next, with what is under way.
    serving: Runtime,
    /// Directory, announcer, flushing.
    outer: Runtime,
    /// Raft's network and the replicas: what is stopped last.
    inner: Runtime,
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
    /// When the data folder is in use or damaged, or the port is taken. A first start waits for Chubby; a later one does not
    /// need it, and whether the folder belongs to this cluster is found out [later](Self::refused).
    pub fn start(
        config: ServerConfig,
        chubby: SharedChubby,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let listener = runtime.net.listen(&config.listen).await;
            let listener =
                listener.map_err(|error| Error::internal(format!("listen on {}: {error}", config.listen)))?;
            let address = config.advertise.clone().unwrap_or_else(|| listener.local_addr().to_string());
            let (outer, inner) = (runtime.child("server"), runtime.child("replicas"));
            let pools = ServerPools::new(&config.options)?;
            let disk = open_disk(&config, &pools.raft.maintenance, &runtime.rng).await?;
            write_log(&disk.log, config.options.threads, &inner)?;
            let server = lease::identify(&disk.registry, &chubby).await?;
            let memory = remember(&config, &disk.registry, &pools.raft.maintenance).await?;
            let directory = memory.directory(Arc::clone(&chubby), &outer);
            let store = config.options.store.clone();
            let shared = match &config.options.block_cache {
                Some(cache) => Shared::with_cache(store, cache.clone())?,
                None => Shared::new(store)?,
            };
            let scratch = config.data_dir.join("scratch");
            let network = Network::new(
                NetworkOptions {
                    server,
                    addresses: Arc::new(Addresses(directory.clone())),
                    neighbours: config.options.neighbours.groups.clone(),
                    scratch: scratch.clone(),
                    maintenance: pools.raft.maintenance.clone(),
                    answer_wait: ANSWER_WAIT,
                },
                &inner,
            );
            let announcer = Announcer::new(server, Arc::clone(&chubby), directory.clone(), &outer);
            let hosted = Hosted::open(HostedParts {
                server,
                registry: Arc::clone(&disk.registry),
                log: disk.log.clone(),
                quarantined: disk.quarantined,
                network: Arc::clone(&network),
                shared,
                pools: pools.raft,
                reads: pools.reads,
                runtime: inner.clone(),
                scratch,
                timings: config.options.timings,
                wait_before_voting: config.options.restart == Restart::Alone,
                help: Arc::clone(&announcer) as Arc<dyn SplitHelp>,
            })
            .await?;
            let local = Local::new(Arc::clone(&hosted), runtime.clock.clone());
            let neighbours = config.options.neighbours.tablets.clone();
            let known = Arc::new(directory.clone()) as Arc<dyn Directory>;
            let router = Router::new(server, local.clone(), neighbours.clone(), known, &outer);
            let cluster = router.cluster(outer.clone());
            announcer.start(&hosted, cluster.clone());
            let incarnation = Incarnation::new(runtime.rng.u64());
            let services = Services {
                local,
                log: disk.log.clone(),
                directory: directory.clone(),
                control: ControlService::new(Arc::clone(&hosted), incarnation),
                network: Arc::clone(&network),
                front: FrontConfig {
                    cluster: cluster.clone(),
                    chubby: Arc::clone(&chubby),
                    directory: directory.clone(),
                    runtime: outer.clone(),
                    request_bytes: config.options.request_bytes,
                },
            };
            let (lease, serving) = (outer.child("lease"), outer.child("serving"));
            services.serve(listener, &serving);
            flushing::start(&hosted, budgets(&config.options), &outer);
            adopt_when_known(&hosted, &directory, &outer);
            memory.keep(&directory, hosted.maintenance(), &outer);
            let presence = Presence { server, address: address.clone(), incarnation, ttl: config.options.lease_ttl };
            let standing = lease::keep(presence, Arc::clone(&disk.registry), chubby, &lease);
            info!(%server, address, "tablet server started");
            let log = disk.log;
            Ok(Self {
                server,
                address,
                hosted,
                network,
                neighbours,
                log,
                cluster,
                directory,
                standing,
                lease,
                serving,
                outer,
                inner,
            })
        })
    }

    /// This server's id.
    #[must_use]
    pub const fn id(&self) -> ServerId {
        self.server
    }

    /// `host:port` that others reach it by.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its replicas.
    #[must_use]
    pub const fn hosted(&self) -> &Arc<Hosted> {
        &self.hosted
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

    /// Returns when the server has registered and knows what stands in Chubby. Cancel-safe.
    pub async fn ready(&self) {
        // The sender lives as long as the server's tasks; when they have ended there is nothing to wait for.
        let _ended = self.standing.clone().wait_for(|standing| *standing == Standing::Registered).await.map(drop);
        self.directory.ready().await;
    }

    /// Returns when Chubby has been found to be another cluster's: this server's folder has no place there, and it should
    /// end. Cancel-safe.
    pub async fn refused(&self) -> Error {
        let mut standing = self.standing.clone();
        let refused =
            standing.wait_for(|standing| matches!(standing, Standing::Refused(_))).await.map(|now| now.clone());
        match refused {
            Ok(Standing::Refused(error)) => error,
            // A server that has stopped is not refused any more.
            _ => std::future::pending().await,
        }
    }

    /// Prepares for [`TabletServer::stop`] while others stay: takes no orders that begin something, gives the lease back,
    /// and hands every leadership to another server. Requests are served and handed on until the stop. Bounded to 4 s.
    pub fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.hosted.leave();
            self.lease.tasks.stop(RELEASE_MAX).await;
            match leaving::hand_over(&self.hosted, &self.directory, HAND_OVER_MAX).await {
                Left::Nothing => {}
                Left::Alone(leaderships) => {
                    info!(server = %self.server, leaderships, "no other server to transfer leaderships to: all are stopping");
                }
                Left::Refused(leaderships) => {
                    warn!(server = %self.server, leaderships, "leaderships not transferred; followers elect new leaders");
                }
            }
        })
    }

    /// Stops in order: no new requests, those under way end, memory goes to disk, tasks and groups end, the log's last
    /// batch is written, stores are closed. Leaderships end with it, unless it [left](Self::leave) before.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.hosted.leave();
            self.lease.tasks.stop(RELEASE_MAX).await;
            self.network.shut_doors();
            self.neighbours.leave(self.server);
            self.serving.tasks.stop(DRAIN_MAX).await;
            self.outer.tasks.stop(STOP_GRACE).await;
            // What is not flushed in time is applied again from the log at the next start.
            let _late = tokio::time::timeout(FLUSH_MAX, self.hosted.flush()).await;
            self.hosted.stop().await;
            self.inner.tasks.stop(STOP_GRACE).await;
            self.network.abort();
            let log = self.log.clone();
            // The writer ends on its own thread; waiting for it must not hold an async worker.
            let _stopped = self.hosted.maintenance().run(move || log.stop()).await;
            info!(server = %self.server, "tablet server stopped");
        })
    }

    /// Falls silent at once, as a crashed process would: no lease is given back, no leadership handed over, nothing
    /// flushed by order. For tests in one process.
    pub fn abort(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.network.abort();
            self.neighbours.leave(self.server);
            self.outer.tasks.stop(Duration::ZERO).await;
            self.hosted.abort().await;
            self.inner.tasks.stop(Duration::ZERO).await;
            let log = self.log.clone();
            let _ended = self.hosted.maintenance().run(move || log.abandon()).await;
        })
    }
}

/// What is served on the port.
struct Services {
    local: Local,
    log: CommitLog,
    directory: ChubbyDirectory,
    control: ControlService,
    network: Arc<Network>,
    front: FrontConfig,
}

impl Services {
    fn serve(self, listener: Listener, runtime: &Runtime) {
        let tablets = TabletsServer::new(TabletService::new(self.local, self.directory.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let routes = Routes::new(tablets)
            .add_service(LocateServer::new(LocateService::new(self.directory, self.log)))
            .add_service(ControlServer::new(self.control))
            .add_service(self.network.service());
        serve(&runtime.tasks, listener, front::add_services(routes, self.front), ServeOptions::default());
    }
}

struct ServerPools {
    raft: Pools,
    reads: Blocking,
}

impl ServerPools {
    fn new(options: &ServerOptions) -> Result<Self, Error> {
        let pool = |name: &str, threads: usize| match options.threads {
            Threads::Pools => Blocking::pool(name, threads, QUEUE_MAX)
                .map_err(|error| Error::internal(format!("start threads: {error}"))),
            Threads::None { .. } => Ok(Blocking::inline()),
        };
        Ok(Self {
            raft: Pools {
                apply: pool("apply", options.apply_threads)?,
                maintenance: pool("maintenance", options.maintenance_threads)?,
            },
            reads: pool("reads", options.read_threads)?,
        })
    }
}

/// Writes down which cluster this server is part of as soon as Chubby says so; the first order may be earlier.
fn adopt_when_known(hosted: &Arc<Hosted>, directory: &ChubbyDirectory, runtime: &Runtime) {
    let (hosted, directory) = (Arc::clone(hosted), directory.clone());
    runtime.tasks.spawn_until_stopped("adopt", async move {
        let mut changes = directory.changes();
        while hosted.registry().identity().is_none() {
            if let Some(cluster) = directory.cluster() {
                let identity = Identity { cluster, server: hosted.server() };
                let registry = Arc::clone(hosted.registry());
                let adopted = hosted.maintenance().run(move || registry.adopt(identity)).await;
                if let Ok(Err(error)) = adopted {
                    error!(%error, "cannot write down the cluster's id");
                    return;
                }
            } else if changes.changed().await.is_err() {
                return;
            }
        }
    });
}

fn budgets(options: &ServerOptions) -> FlushBudgets {
    FlushBudgets {
        memtable_bytes: options.store.memtable_bytes as u64,
        log_bytes: options.log_bytes.bytes(),
        split_bytes: options.split_bytes.bytes(),
    }
}

/// Where other servers listen, as Chubby last said: one that has lost its lease, or is about to end, still votes.
struct Addresses(ChubbyDirectory);

impl AddressBook for Addresses {
    fn cluster(&self) -> Option<ClusterId> {
        self.0.cluster()
    }

    fn address(&self, server: ServerId) -> Option<String> {
        // The copy of Chubby's files answers at once.
        self.0.address(server).now_or_never().flatten()
    }
}

/// What was kept of the cluster.
async fn remember(config: &ServerConfig, registry: &Registry, maintenance: &Blocking) -> Result<Memory, Error> {
    let (data_dir, cluster) = (config.data_dir.clone(), registry.identity().map(|identity| identity.cluster));
    let loaded = maintenance.run(move || Memory::load(&data_dir, cluster)).await;
    loaded.map_err(|error| Error::internal(error.to_string()))
}

/// What a server has on disk before its replicas are opened.
struct Opened {
    registry: Arc<Registry>,
    log: CommitLog,
    quarantined: BTreeSet<GroupId>,
}

async fn open_disk(config: &ServerConfig, maintenance: &Blocking, rng: &Rng) -> Result<Opened, Error> {
    let (config, rng) = (config.clone(), rng.fork());
    let opened = maintenance.run(move || open_disk_now(&config, rng)).await;
    opened.map_err(|error| Error::internal(error.to_string()))?
}

fn open_disk_now(config: &ServerConfig, rng: Rng) -> Result<Opened, Error> {
    let doing = |action: &'static str| move |error: std::io::Error| Error::internal(format!("{action}: {error}"));
    let data_dir = &config.data_dir;
    std::fs::create_dir_all(data_dir).map_err(doing("make the data folder"))?;
    let registry = Arc::new(Registry::open(data_dir)?);
    // Checkpoints on their way do not outlive the process.
    let scratch = data_dir.join("scratch");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch).map_err(doing("sweep the scratch folder"))?;
    }
    let disk = (config.options.open_disk)(&data_dir.join("log")).map_err(doing("open the log's folder"))?;
    let memory = |size: ByteSize| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    let (segment_bytes, cache_bytes) = (memory(config.options.segment_bytes), memory(config.options.log_cache));
    let options = LogOptions { segment_bytes, cache_bytes, rng, ..LogOptions::default() };
    let (log, recovered) = CommitLog::open(disk, Arc::clone(&registry) as Arc<dyn SegmentWitness>, options)
        .map_err(|error| Error::damaged(format!("open the commit log: {error}")))?;
    forget_removed(&log, &registry, &recovered);
    let quarantined = quarantined(&registry, &recovered);
    Ok(Opened { registry, log, quarantined })
}

/// Has the log forget groups whose replicas are not here any more: removed, or not finished being made. A crash may have come
/// before it was told, and it carries a group, a damaged one too, from segment to segment until it is.
fn forget_removed(log: &CommitLog, registry: &Registry, recovered: &Recovered) {
    let here: BTreeSet<GroupId> = registry.replicas().into_iter().map(|(id, _)| id).collect();
    let carried: BTreeSet<GroupId> = recovered.groups.keys().chain(&recovered.quarantined).copied().collect();
    for group in carried.difference(&here) {
        info!(tablet = %group.tablet, replica = %group.replica, "the log forgets a replica that is gone");
        // Told again at the next start if it does not reach the disk now.
        log.submit(vec![Record::Removed { group: *group }], Box::new(|_outcome| ()));
    }
}

/// Has the log written: by its own thread, or by a task where there are none.
fn write_log(log: &CommitLog, threads: Threads, runtime: &Runtime) -> Result<(), Error> {
    let Threads::None { sync } = threads else {
        return log.start_writer().map_err(|error| Error::internal(format!("start the log's writer: {error}")));
    };
    let (queued, work) = (Arc::new(Notify::new()), log.clone());
    let signal = Arc::clone(&queued);
    log.wake_by(move || signal.notify_one());
    // For what was queued before anybody could be woken.
    queued.notify_one();
    let rng = runtime.rng.fork();
    runtime.tasks.spawn_until_stopped("commit-log", async move {
        if let Err(failure) = write_batches(&work, &queued, sync, &rng).await {
            error!(%failure, "the commit log has ended");
        }
    });
    Ok(())
}

/// What the log's thread does, with a pause before each batch in place of the disk's time.
async fn write_batches(log: &CommitLog, queued: &Notify, sync: Duration, rng: &Rng) -> Result<(), LogError> {
    let mark_after = LogOptions::default().mark_after;
    loop {
        queued.notified().await;
        loop {
            tokio::time::sleep(rng.jitter(sync)).await;
            if log.step()? == Step::Idle && tokio::time::timeout(mark_after, queued.notified()).await.is_err() {
                log.mark()?;
                break;
            }
        }
    }
}

/// The live replicas whose log is not whole: what they acknowledged may be lost.
fn quarantined(registry: &Registry, recovered: &Recovered) -> BTreeSet<GroupId> {
    let live = registry.replicas().into_iter().filter(|(_, record)| record.state == ReplicaState::Live);
    let lost: BTreeSet<GroupId> = live.map(|(id, _)| id).filter(|id| !recovered.groups.contains_key(id)).collect();
    if !lost.is_empty() {
        error!(
            replicas = lost.len(),
            cut_bytes = recovered.cut_bytes,
            "the commit log has lost what replicas acknowledged"
        );
    }
    lost
}
