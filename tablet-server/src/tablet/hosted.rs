//! All replicas of a server: opened at start, made and removed by order, born of splits, found by id.
//!
//! The registry on disk says which replicas live here; this is the same set in memory, with their groups running. A
//! tablet has at most one replica on a server. What may be made, and when, is decided by three facts: a replica that was
//! removed never lives again (tombstone); a tablet that begins is made from its seed on every replica alike; any other
//! missing replica is made *empty* and filled by the leader's snapshot, never from a seed whose content it cannot have.

mod orders;
mod starting;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{Generation, ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_runtime::{Blocking, Runtime};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::{Registry, ReplicaState};
use ebla_storage::tablet::Shared;
use futures::StreamExt as _;
use tracing::{error, warn};

pub use self::orders::{Beginning, Created};
use crate::raft::{GroupDirectory, GroupId, Network, Pools, RaftTimings};
use crate::tablet::admission::Admission;
use crate::tablet::split::SplitHelp;
use crate::tablet::{Report, Tablet};

/// Replicas are opened so many at a time: opening reads files, and a server may have a thousand.
const OPENED_AT_ONCE: usize = 8;
/// How long a replica's tasks may take to end.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Whether a store has been closed is looked at so often ...
const CLOSE_LOOK: Duration = Duration::from_millis(5);
/// ... and so many times.
const CLOSE_LOOKS: usize = 400;

/// What the set of replicas is made with.
pub struct HostedParts {
    /// This server.
    pub server: ServerId,
    /// What lives here, on disk.
    pub registry: Arc<Registry>,
    /// The server's commit log.
    pub log: CommitLog,
    /// Groups whose log is damaged: their replicas are not started.
    pub quarantined: BTreeSet<GroupId>,
    /// Groups on the other servers.
    pub network: Arc<Network>,
    /// Memory and threads of all stores.
    pub shared: Arc<Shared>,
    /// Threads for apply and maintenance.
    pub pools: Pools,
    /// Threads for reads.
    pub reads: Blocking,
    /// Clock and tasks.
    pub runtime: Runtime,
    /// Folder for checkpoints on their way.
    pub scratch: PathBuf,
    /// Times of the groups.
    pub timings: RaftTimings,
    /// Whether replicas that ran before keep out of elections at first: `wait_before_voting` of
    /// [`crate::raft::GroupConfig`].
    pub wait_before_voting: bool,
    /// What splits need.
    pub help: Arc<dyn SplitHelp>,
}

/// The replicas of a server.
pub struct Hosted {
    me: Weak<Self>,
    parts: HostedParts,
    admission: Admission,
    /// Held to look up, insert or remove.
    replicas: RwLock<BTreeMap<TabletId, Replica>>,
    /// Replicas whose group is being started, so that none is started twice. Held for a look-up.
    starting: Mutex<BTreeSet<GroupId>>,
    /// The server is about to end.
    leaving: AtomicBool,
}

#[derive(Clone)]
struct Replica {
    tablet: Arc<Tablet>,
    /// Owns the tablet's tasks.
    runtime: Runtime,
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("server", &self.parts.server).finish_non_exhaustive()
    }
}

impl Hosted {
    /// Opens all replicas that live here and starts their groups.
    ///
    /// # Errors
    /// When a store cannot be opened for another reason than damage; a damaged one is quarantined and left out.
    pub async fn open(parts: HostedParts) -> Result<Arc<Self>, Error> {
        let hosted = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            parts,
            admission: Admission::new(),
            replicas: RwLock::default(),
            starting: Mutex::default(),
            leaving: AtomicBool::new(false),
        });
        let live = hosted.live()?;
        let opened = futures::stream::iter(live).map(|replica| hosted.reopen(replica)).buffer_unordered(OPENED_AT_ONCE);
        let outcomes: Vec<Result<(), Error>> = opened.collect().await;
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        // Only now: a message for a child must not have it made empty while its parent, not yet open, is about to make it.
        let directory: Weak<dyn GroupDirectory> = Weak::clone(&hosted.me) as Weak<dyn GroupDirectory>;
        hosted.parts.network.serve(directory);
        Ok(hosted)
    }

    /// This server.
    #[must_use]
    pub const fn server(&self) -> ServerId {
        self.parts.server
    }

    /// The replica of a tablet that is here and runs.
    #[must_use]
    pub fn tablet(&self, tablet: TabletId) -> Option<Arc<Tablet>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.get(&tablet).map(|replica| Arc::clone(&replica.tablet))
    }

    /// All replicas that run here.
    #[must_use]
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.values().map(|replica| Arc::clone(&replica.tablet)).collect()
    }

    /// What the replicas here know of a table's tablets.
    #[must_use]
    pub fn descriptors(&self, table: TableId) -> Vec<TabletDescriptor> {
        let known =
            |tablet: &Arc<Tablet>| tablet.table() == table && tablet.descriptor().generation > Generation::new(0);
        self.tablets().iter().filter(|tablet| known(tablet)).map(|tablet| tablet.descriptor()).collect()
    }

    /// What every replica here tells of itself.
    #[must_use]
    pub fn report(&self) -> Vec<Report> {
        self.tablets().iter().map(|tablet| tablet.report()).collect()
    }

    /// Replicas that may have lost what they acknowledged: they do not run.
    #[must_use]
    pub fn quarantined(&self) -> Vec<GroupId> {
        let records = self.parts.registry.replicas();
        records.into_iter().filter(|(_, record)| record.state == ReplicaState::Quarantined).map(|(id, _)| id).collect()
    }

    /// Replicas that are here and do not run: they are being started, or could not be.
    #[must_use]
    pub fn idle(&self) -> Vec<GroupId> {
        // In this order: one that is started meanwhile is seen in one place or the other.
        let records = self.parts.registry.replicas().into_iter();
        let live: Vec<_> = records.filter(|(_, record)| record.state == ReplicaState::Live).map(|(id, _)| id).collect();
        let runs = |id: &GroupId| self.tablet(id.tablet).is_some_and(|tablet| tablet.replica() == id.replica);
        live.into_iter().filter(|id| !runs(id)).collect()
    }

    /// What the writes of all tablets here may have under way.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The commit log.
    #[must_use]
    pub const fn log(&self) -> &CommitLog {
        &self.parts.log
    }

    /// What lives here, on disk.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.parts.registry
    }

    /// Memory and threads of all stores.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.parts.shared
    }

    /// Threads for flushes.
    #[must_use]
    pub const fn maintenance(&self) -> &Blocking {
        &self.parts.pools.maintenance
    }

    /// The server is about to end: nothing that takes long is begun here any more, and no replica stands for election.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.tablets().iter().for_each(|tablet| tablet.group().abstain());
    }

    /// Whether the server is about to end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Writes all memtables to disk, so that the next start has little to apply again.
    pub async fn flush(&self) {
        let flushes = self.tablets().into_iter().map(|tablet| async move {
            let machine = Arc::clone(tablet.machine());
            if let Err(error) = self.maintain(move || machine.flush()).await {
                warn!(tablet = %tablet.id(), %error, "not flushed before the end");
            }
        });
        futures::stream::iter(flushes).for_each_concurrent(OPENED_AT_ONCE, |flush| flush).await;
    }

    /// Stops all groups. Leadership is not handed over.
    pub async fn stop(&self) {
        let all = self.take_all();
        futures::stream::iter(all.into_values()).for_each_concurrent(OPENED_AT_ONCE, stop).await;
    }

    /// Stops all groups at once, as a crash would; returns when they hold nothing any more.
    pub async fn abort(&self) {
        let all = self.take_all();
        for replica in all.values() {
            replica.tablet.group().abort();
            replica.runtime.tasks.cancel();
        }
        let ends = all.into_values().map(|replica| async move {
            replica.runtime.tasks.stop(Duration::ZERO).await;
            replica.tablet.group().stop().await;
            closed(replica).await;
        });
        futures::future::join_all(ends).await;
    }

    fn take_all(&self) -> BTreeMap<TabletId, Replica> {
        let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *replicas)
    }

    /// The replicas to start; those with a damaged log are quarantined.
    fn live(&self) -> Result<Vec<GroupId>, Error> {
        let mut live = Vec::new();
        for (id, record) in self.parts.registry.replicas() {
            if record.state != ReplicaState::Live {
                continue;
            }
            if self.parts.quarantined.contains(&id) {
                error!(tablet = %id.tablet, replica = %id.replica, "replica's log is damaged: quarantined");
                self.parts.registry.quarantine(id)?;
                continue;
            }
            live.push(id);
        }
        Ok(live)
    }

    async fn maintain<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.pools.maintenance.run(call).await;
        outcome.map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?
    }
}

async fn stop(replica: Replica) {
    // The group first: a proposal under way may wait for a majority that has stopped before us.
    replica.tablet.group().stop().await;
    replica.runtime.tasks.stop(STOP_GRACE).await;
    closed(replica).await;
}

/// Returns when nobody holds the replica's store any more, so that its folder may be deleted or opened again; gives up after
/// a while, for a reader may be slow.
async fn closed(replica: Replica) {
    let machine = Arc::downgrade(replica.tablet.machine());
    drop(replica);
    for _ in 0..CLOSE_LOOKS {
        if machine.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(CLOSE_LOOK).await;
    }
}
