//! The tablet manager: all replicas of a server. It opens them at start, creates and removes them on request, starts
//! children of splits, and finds them by id.
//!
//! The registry on disk lists the local replicas; the manager holds the same set in memory, with their groups running. A
//! tablet has at most one replica on a server. Three facts decide how a replica may be created: a removed replica never
//! returns (tombstone); the first replicas of a new tablet are all created from the same seed; any other
//! missing replica is created *empty* and filled by the leader's snapshot, never from a seed whose content it cannot have.

mod provision;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{Generation, ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_runtime::{Blocking, Runtime};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::{Registry, ReplicaState};
use ebla_storage::tablet::SharedResources;
use futures::StreamExt as _;
use parking_lot::{Mutex, RwLock};
use tracing::{error, warn};

pub use self::provision::{CreateOutcome, InitialState};
use crate::raft::{BlockingPools, GroupDirectory, GroupId, Network, RaftTimings};
use crate::tablet::lifecycle::split::TabletHost;
use crate::tablet::write::admission::Admission;
use crate::tablet::{ReplicaReport, Tablet};

/// Replicas opened concurrently: opening reads files, and a server may have a thousand replicas.
const OPEN_CONCURRENCY: usize = 8;
/// Time limit for the tasks of a replica to end.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// The period of the check whether a store is closed ...
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// ... and the number of checks.
const CLOSE_CHECKS: usize = 400;

/// The dependencies and settings of a [`TabletManager`].
pub struct TabletManagerParts {
    /// This server.
    pub server: ServerId,
    /// The registry of local replicas.
    pub registry: Arc<Registry>,
    /// The server's commit log.
    pub log: CommitLog,
    /// Groups whose log is damaged: their replicas are not started.
    pub quarantined: BTreeSet<GroupId>,
    /// The network to groups on other servers.
    pub network: Arc<Network>,
    /// Memory and threads shared by all stores.
    pub shared: Arc<SharedResources>,
    /// Threads for apply and maintenance.
    pub pools: BlockingPools,
    /// Threads for reads.
    pub reads: Blocking,
    /// Clock and tasks.
    pub runtime: Runtime,
    /// Folder for partly received checkpoints.
    pub scratch: PathBuf,
    /// Timings of the groups.
    pub timings: RaftTimings,
    /// Whether restarted replicas stay out of elections at first: `vote_holdoff` of
    /// [`crate::raft::GroupConfig`].
    pub needs_vote_holdoff: bool,
    /// Services that tablets need.
    pub host: Arc<dyn TabletHost>,
}

/// The replicas of a server.
pub struct TabletManager {
    me: Weak<Self>,
    parts: TabletManagerParts,
    admission: Admission,
    /// Locked to look up, insert or remove.
    replicas: RwLock<BTreeMap<TabletId, Replica>>,
    /// Replicas whose group is being started, so that none is started twice. Locked for a lookup.
    starting: Mutex<BTreeSet<GroupId>>,
    /// Whether the server is draining.
    draining: AtomicBool,
}

#[derive(Clone)]
struct Replica {
    tablet: Arc<Tablet>,
    /// Owns the tablet's tasks.
    runtime: Runtime,
}

impl std::fmt::Debug for TabletManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TabletManager").field("server", &self.parts.server).finish_non_exhaustive()
    }
}

impl TabletManager {
    /// Opens all local replicas and starts their groups.
    ///
    /// # Errors
    /// When a store cannot be opened for another reason than damage; a damaged one is quarantined and skipped.
    pub async fn open(parts: TabletManagerParts) -> Result<Arc<Self>, Error> {
        let manager = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            parts,
            admission: Admission::new(),
            replicas: RwLock::default(),
            starting: Mutex::default(),
            draining: AtomicBool::new(false),
        });
        let live = manager.replicas_to_start()?;
        let opened =
            futures::stream::iter(live).map(|replica| manager.reopen(replica)).buffer_unordered(OPEN_CONCURRENCY);
        let outcomes: Vec<Result<(), Error>> = opened.collect().await;
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        // Only now: a message for a child must not create it empty while its parent, not open yet, is about to create it.
        let directory: Weak<dyn GroupDirectory> = Weak::clone(&manager.me) as Weak<dyn GroupDirectory>;
        manager.parts.network.set_directory(directory);
        Ok(manager)
    }

    /// This server.
    #[must_use]
    pub const fn server(&self) -> ServerId {
        self.parts.server
    }

    /// The running replica of a tablet.
    #[must_use]
    pub fn tablet(&self, tablet: TabletId) -> Option<Arc<Tablet>> {
        let replicas = self.replicas.read();
        replicas.get(&tablet).map(|replica| Arc::clone(&replica.tablet))
    }

    /// All running replicas.
    #[must_use]
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        let replicas = self.replicas.read();
        replicas.values().map(|replica| Arc::clone(&replica.tablet)).collect()
    }

    /// The descriptors of a table's tablets, as far as local replicas know them.
    #[must_use]
    pub fn descriptors(&self, table: TableId) -> Vec<TabletDescriptor> {
        let known =
            |tablet: &Arc<Tablet>| tablet.table() == table && tablet.descriptor().generation > Generation::new(0);
        self.tablets().iter().filter(|tablet| known(tablet)).map(|tablet| tablet.descriptor()).collect()
    }

    /// The reports of all running replicas.
    #[must_use]
    pub fn report(&self) -> Vec<ReplicaReport> {
        self.tablets().iter().map(|tablet| tablet.report()).collect()
    }

    /// Replicas that may have lost acknowledged entries: they do not run.
    #[must_use]
    pub fn quarantined(&self) -> Vec<GroupId> {
        let records = self.parts.registry.replicas();
        records.into_iter().filter(|(_, record)| record.state == ReplicaState::Quarantined).map(|(id, _)| id).collect()
    }

    /// Local replicas that do not run: they are being started, or could not be.
    #[must_use]
    pub fn idle(&self) -> Vec<GroupId> {
        // In this order: a replica that is started meanwhile is seen in one place or the other.
        let records = self.parts.registry.replicas().into_iter();
        let live: Vec<_> = records.filter(|(_, record)| record.state == ReplicaState::Live).map(|(id, _)| id).collect();
        let runs = |id: &GroupId| self.tablet(id.tablet).is_some_and(|tablet| tablet.replica() == id.replica);
        live.into_iter().filter(|id| !runs(id)).collect()
    }

    /// Admission control of writes, for all tablets of the server.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The commit log.
    #[must_use]
    pub const fn log(&self) -> &CommitLog {
        &self.parts.log
    }

    /// The registry of local replicas.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.parts.registry
    }

    /// Memory and threads shared by all stores.
    #[must_use]
    pub const fn shared(&self) -> &Arc<SharedResources> {
        &self.parts.shared
    }

    /// Threads for flushes.
    #[must_use]
    pub const fn maintenance(&self) -> &Blocking {
        &self.parts.pools.maintenance
    }

    /// Starts draining: the server starts no more long operations, and no replica stands for election.
    pub fn start_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.tablets().iter().for_each(|tablet| tablet.group().disable_elections());
    }

    /// Whether the server is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Flushes all memtables, so that the next start has little to apply again.
    pub async fn flush(&self) {
        let flushes = self.tablets().into_iter().map(|tablet| async move {
            let state_machine = Arc::clone(tablet.state_machine());
            if let Err(error) = self.run_maintenance(move || state_machine.flush()).await {
                warn!(tablet = %tablet.id(), %error, "flush at shutdown failed; the log will be applied at the next start");
            }
        });
        futures::stream::iter(flushes).for_each_concurrent(OPEN_CONCURRENCY, |flush| flush).await;
    }

    /// Stops all groups. Transfers no leadership.
    pub async fn stop(&self) {
        let all = self.take_all();
        futures::stream::iter(all.into_values()).for_each_concurrent(OPEN_CONCURRENCY, stop).await;
    }

    /// Stops all groups at once, as a crash would; returns when they hold no resources any more.
    pub async fn abort(&self) {
        let all = self.take_all();
        for replica in all.values() {
            replica.tablet.group().abort();
            replica.runtime.tasks.cancel();
        }
        let ends = all.into_values().map(|replica| async move {
            replica.runtime.tasks.stop(Duration::ZERO).await;
            replica.tablet.group().stop().await;
            wait_until_closed(replica).await;
        });
        futures::future::join_all(ends).await;
    }

    fn take_all(&self) -> BTreeMap<TabletId, Replica> {
        let mut replicas = self.replicas.write();
        std::mem::take(&mut *replicas)
    }

    /// The replicas to start; replicas with a damaged log are quarantined.
    fn replicas_to_start(&self) -> Result<Vec<GroupId>, Error> {
        let mut live = Vec::new();
        for (id, record) in self.parts.registry.replicas() {
            if record.state != ReplicaState::Live {
                continue;
            }
            if self.parts.quarantined.contains(&id) {
                error!(tablet = %id.tablet, replica = %id.replica, "replica quarantined: its log is damaged");
                self.parts.registry.quarantine(id)?;
                continue;
            }
            live.push(id);
        }
        Ok(live)
    }

    async fn run_maintenance<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.pools.maintenance.run(call).await;
        outcome.map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?
    }
}

async fn stop(replica: Replica) {
    // The group first: a proposal in flight may wait for a majority that has stopped before.
    replica.tablet.group().stop().await;
    replica.runtime.tasks.stop(STOP_GRACE).await;
    wait_until_closed(replica).await;
}

/// Returns when the last reference to the replica's store is dropped, so that its folder may be deleted or opened again.
/// Gives up after two seconds, because a reader may be slow.
async fn wait_until_closed(replica: Replica) {
    let state_machine = Arc::downgrade(replica.tablet.state_machine());
    drop(replica);
    for _ in 0..CLOSE_CHECKS {
        if state_machine.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(CLOSE_CHECK_INTERVAL).await;
    }
}
