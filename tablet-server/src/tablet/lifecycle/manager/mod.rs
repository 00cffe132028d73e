//! The tablet manager: the replicas of all groups of a server. It opens them at start, creates and removes them on request,
//! starts children of divided groups, and finds groups and tablets by id.
//!
//! The registry on disk lists the local replicas; the manager holds the same set in memory, with their groups running. A
//! group has at most one replica on a server. Three facts decide how a replica may be created: a removed replica never
//! returns (tombstone); the first replicas of a new group are all created from the same seed; any other
//! missing replica is created *empty* and filled by the leader's snapshot, never from a seed whose content it cannot have.

mod damage;
mod divisions;
mod force_membership;
mod highest_ids;
mod provision;
mod recover;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::tablet_move::DeparturePhase;
use ebla_runtime::{Blocking, Clock, Runtime};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::{Registry, ReplicaState};
use ebla_storage::store::SharedResources;
use futures::StreamExt as _;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::{error, warn};

pub use self::damage::ScrubRate;
pub use self::force_membership::QuorumLoss;
pub use self::provision::{CreateOutcome, InitialState};
use crate::capacity::Capacity;
use crate::clock_comparison::ClockComparison;
use crate::disk_speeds::DiskSpeeds;
use crate::raft::{BlockingPools, GroupDirectory, GroupReplica, Network, RaftTimings};
use crate::scrub_results::ScrubResults;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::lifecycle::split::TabletHost;
use crate::tablet::write::admission::Admission;
use crate::tablet::{ReplicaReport, Tablet, TabletGroup};

/// Replicas opened concurrently: opening reads files.
const OPEN_CONCURRENCY: usize = 8;
/// Descriptors of nearby tablets that an error carries, in each direction.
const NEARBY_MAX: usize = 8;
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
    pub quarantined: BTreeSet<GroupReplica>,
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
    /// Services that groups need.
    pub host: Arc<dyn TabletHost>,
    /// What the server can still take.
    pub capacity: Arc<Capacity>,
    /// Why the process must end.
    pub failure: watch::Sender<Option<Error>>,
}

/// The replicas of a server.
pub struct TabletManager {
    me: Weak<Self>,
    parts: TabletManagerParts,
    admission: Admission,
    /// Locked to look up, insert or remove.
    replicas: RwLock<BTreeMap<GroupId, Replica>>,
    /// Replicas whose group is being started, so that none is started twice. Locked for a lookup.
    starting: Mutex<BTreeSet<GroupReplica>>,
    /// Replicas that wait until they are opened again: no message starts them. Locked for a lookup.
    waiting: Mutex<BTreeSet<GroupReplica>>,
    /// Whether the server is draining.
    draining: AtomicBool,
    clocks: Arc<ClockComparison>,
    disk_speeds: DiskSpeeds,
    scrub_results: ScrubResults,
}

#[derive(Clone)]
struct Replica {
    group: Arc<TabletGroup>,
    /// Owns the group's tasks.
    runtime: Runtime,
}

impl std::fmt::Debug for TabletManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TabletManager").field("server", &self.parts.server).finish_non_exhaustive()
    }
}

impl TabletManager {
    /// Opens all local replicas and starts their groups. A replica that cannot be opened does not keep the others from
    /// running: a damaged one is quarantined, another waits and is opened again later.
    ///
    /// # Errors
    /// When the registry cannot record that a replica is quarantined.
    pub async fn open(parts: TabletManagerParts) -> Result<Arc<Self>, Error> {
        let manager = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            parts,
            admission: Admission::new(),
            replicas: RwLock::default(),
            starting: Mutex::default(),
            waiting: Mutex::default(),
            draining: AtomicBool::new(false),
            clocks: Arc::default(),
            disk_speeds: DiskSpeeds::default(),
            scrub_results: ScrubResults::default(),
        });
        let live = manager.replicas_to_start()?;
        let opened = futures::stream::iter(live)
            .map(|replica| manager.open_at_start(replica))
            .buffer_unordered(OPEN_CONCURRENCY);
        opened.collect::<()>().await;
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

    /// The running replica of a group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<Arc<TabletGroup>> {
        let replicas = self.replicas.read();
        replicas.get(&group).map(|replica| Arc::clone(&replica.group))
    }

    /// The running replicas of all groups.
    #[must_use]
    pub fn groups(&self) -> Vec<Arc<TabletGroup>> {
        let replicas = self.replicas.read();
        replicas.values().map(|replica| Arc::clone(&replica.group)).collect()
    }

    /// A tablet of a local group. While a tablet moves between groups, and this server has both, the one with the higher
    /// generation counts.
    #[must_use]
    pub fn tablet(&self, tablet: TabletId) -> Option<Tablet> {
        let replicas = self.replicas.read();
        let found = replicas.values().filter_map(|replica| {
            let generation = replica.group.state_machine().applied_state().tablet(tablet)?.descriptor.generation;
            Some((generation, &replica.group))
        });
        found.max_by_key(|(generation, _group)| *generation).and_then(|(_generation, group)| group.tablet(tablet))
    }

    /// All tablets of the local groups.
    #[must_use]
    pub fn tablets(&self) -> Vec<Tablet> {
        self.groups().iter().flat_map(TabletGroup::tablets).collect()
    }

    /// Whether a local group has dropped this table.
    #[must_use]
    pub fn has_dropped(&self, table: TableId) -> bool {
        self.groups().iter().any(|group| group.state_machine().applied_state().metadata.dropped.contains(&table))
    }

    /// The descriptors of a table's tablets next to `near` and of `near` itself, as far as local groups hold them: at most
    /// eight below and from it on.
    #[must_use]
    pub fn nearby_descriptors(&self, table: TableId, near: TabletId) -> Vec<TabletDescriptor> {
        let mut all: Vec<Arc<TabletMetadata>> = Vec::new();
        for group in self.groups() {
            let tablets = Arc::clone(&group.state_machine().applied_state().metadata);
            all.extend(tablets.tablets.values().filter(|tablet| tablet.descriptor.table == table).cloned());
        }
        all.sort_by(|a, b| a.descriptor.range.start().cmp(b.descriptor.range.start()));
        let at = all.iter().position(|tablet| tablet.descriptor.tablet == near).unwrap_or(0);
        let nearby = all.iter().skip(at.saturating_sub(NEARBY_MAX)).take(2 * NEARBY_MAX);
        let mut nearby: Vec<_> = nearby.map(|tablet| tablet.descriptor.clone()).collect();
        if !nearby.iter().any(|tablet| tablet.tablet == near) {
            nearby.extend(self.moved_away(near));
        }
        nearby
    }

    /// A tablet that has left a local group a moment ago, as it was when its new group began to serve it.
    fn moved_away(&self, tablet: TabletId) -> Option<TabletDescriptor> {
        let left = self.groups().into_iter().filter_map(|group| {
            let applied_state = group.state_machine().applied_state();
            let departure = applied_state.metadata.departures.get(&tablet)?;
            (departure.phase == DeparturePhase::Left).then(|| departure.arrived())
        });
        left.max_by_key(|tablet| tablet.generation)
    }

    /// The reports of all running replicas.
    #[must_use]
    pub fn report(&self) -> Vec<ReplicaReport> {
        let groups = self.groups().into_iter();
        groups.filter(|group| group.raft().is_running()).map(|group| group.report()).collect()
    }

    /// Replicas that may have lost acknowledged entries: they do not run.
    #[must_use]
    pub fn quarantined(&self) -> Vec<GroupReplica> {
        let records = self.parts.registry.replicas();
        records.into_iter().filter(|(_, record)| record.state == ReplicaState::Quarantined).map(|(id, _)| id).collect()
    }

    /// Local replicas that do not run: they are being started, could not be, or have ended by an error.
    #[must_use]
    pub fn idle(&self) -> Vec<GroupReplica> {
        // In this order: a replica that is started meanwhile is seen in one place or the other.
        let records = self.parts.registry.replicas().into_iter();
        let live: Vec<_> = records.filter(|(_, record)| record.state == ReplicaState::Live).map(|(id, _)| id).collect();
        let runs = |id: &GroupReplica| {
            self.group(id.group).is_some_and(|group| group.replica() == id.replica && group.raft().is_running())
        };
        live.into_iter().filter(|id| !runs(id)).collect()
    }

    /// Admission control of writes, for all groups of the server.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// What the server can still take.
    #[must_use]
    pub const fn capacity(&self) -> &Arc<Capacity> {
        &self.parts.capacity
    }

    /// This server's clock.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.parts.runtime.clock
    }

    /// The comparison of this server's clock with others.
    #[must_use]
    pub const fn clocks(&self) -> &Arc<ClockComparison> {
        &self.clocks
    }

    /// The speeds of this server's disk and of the others'.
    #[must_use]
    pub const fn disk_speeds(&self) -> &DiskSpeeds {
        &self.disk_speeds
    }

    /// The other servers that a leadership may go to: their clocks are not off and their disks are not slow.
    #[must_use]
    pub fn leadership_targets(&self) -> BTreeSet<ServerId> {
        self.disk_speeds.without_slow(self.clocks.trusted(self.clock().monotonic()))
    }

    /// The results of scrubbing the stores.
    #[must_use]
    pub const fn scrub_results(&self) -> &ScrubResults {
        &self.scrub_results
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
        self.groups().iter().for_each(|group| group.raft().disable_elections());
    }

    /// Whether the server is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Flushes all memtables, so that the next start has little to apply again.
    pub async fn flush(&self) {
        let flushes = self.groups().into_iter().map(|group| async move {
            let state_machine = Arc::clone(group.state_machine());
            if let Err(error) = self.run_maintenance(move || state_machine.flush()).await {
                warn!(group = %group.id(), %error, "flush at shutdown failed; the log will be applied at the next start");
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
            replica.group.raft().abort();
            replica.runtime.tasks.cancel();
        }
        let ends = all.into_values().map(|replica| async move {
            replica.runtime.tasks.stop(Duration::ZERO).await;
            replica.group.raft().stop().await;
            wait_until_closed(replica).await;
        });
        futures::future::join_all(ends).await;
    }

    /// Removes a replica from those that run, for its stop.
    fn take(&self, id: GroupReplica) -> Option<Replica> {
        let mut replicas = self.replicas.write();
        let is_present = replicas.get(&id.group).is_some_and(|present| present.group.replica() == id.replica);
        if is_present { replicas.remove(&id.group) } else { None }
    }

    fn take_all(&self) -> BTreeMap<GroupId, Replica> {
        let mut replicas = self.replicas.write();
        std::mem::take(&mut *replicas)
    }

    /// The replicas to start; replicas with a damaged log are quarantined.
    fn replicas_to_start(&self) -> Result<Vec<GroupReplica>, Error> {
        let mut live = Vec::new();
        for (id, record) in self.parts.registry.replicas() {
            if record.state != ReplicaState::Live {
                continue;
            }
            if self.parts.quarantined.contains(&id) {
                error!(group = %id.group, replica = %id.replica, "replica quarantined: its log is damaged");
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
    replica.group.raft().stop().await;
    replica.runtime.tasks.stop(STOP_GRACE).await;
    wait_until_closed(replica).await;
}

/// Returns when the last reference to the replica's store is dropped, so that its folder may be deleted or opened again.
/// Gives up after two seconds, because a reader may be slow.
async fn wait_until_closed(replica: Replica) {
    let state_machine = Arc::downgrade(replica.group.state_machine());
    drop(replica);
    for _ in 0..CLOSE_CHECKS {
        if state_machine.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(CLOSE_CHECK_INTERVAL).await;
    }
}
