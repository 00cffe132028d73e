//! One replica of a Raft group: propose, lead, read safely, change the membership, stop.
//!
//! A `Group` does not know what a command means; the [`StateMachine`] does. Its view of the leadership is the one that
//! openraft's core last published. That view may be stale for a moment. This is safe, because a proposal is bound to its term,
//! and a read to a leader lease that was still valid after the read arrived.
//!
//! Its methods are grouped by purpose: `propose`, `read`, `transfer` with `relinquish`, `membership`, `receive`; `driver` has its
//! background tasks.

mod driver;
pub(super) mod membership;
pub(super) mod propose;
mod read;
mod receive;
mod relinquish;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::id::{LogIndex, ReplicaId};
use ebla_model::metadata::Replica;
use ebla_model::time::whole_micros;
use ebla_runtime::trace::FollowerTime;
use ebla_runtime::{Clock, Runtime, Steps, Tasks};
use ebla_storage::log::{CommitLog, GroupReplica};
use openraft::RaftMetrics;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{Fatal, ForwardToLeader};
use openraft::type_config::alias::WatchReceiverOf;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use self::propose::permits;
use self::relinquish::RelinquishedTerm;
use super::config::{GroupConfig, RaftTimings, openraft_config};
use super::counters::RaftCounters;
use super::election::vote_holdoff::VoteHoldoff;
use super::entry_times::{EntryClock, EntryTimes};
use super::error::{Fault, StartError};
use super::lease::leader_lease::LeaseSuspensions;
use super::lease::quorum::QuorumTracker;
use super::runtime::executor::ExecutorShard;
use super::state_machine::StateMachine;
use super::status::{GroupStatus, Leadership, is_running, leadership, status};
use super::storage::adapter::{Raft, StateMachineAdapter};
use super::storage::log_store::{LogStore, wait_until_durable};
use super::storage::snapshot::Checkpoints;
use super::storage::sync_tracker::SyncTracker;
use super::transport::follower_recovery::FollowerRecovery;
use super::transport::links::Links;
use super::transport::message::GroupOrigin;
use super::transport::peer::PeerFactory;
use super::types::{TypeConfig, log_id, replica};

/// One replica of a Raft group.
pub struct Group {
    config: GroupConfig,
    machine: Arc<dyn StateMachine>,
    raft: Raft,
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    lease_suspensions: LeaseSuspensions,
    /// What the followers have acknowledged while this replica leads.
    quorum: QuorumTracker,
    entry_clock: EntryClock,
    /// The target of the leadership transfer in progress, or 0.
    transfer_target: AtomicU64,
    relinquished: RelinquishedTerm,
    vote_holdoff: VoteHoldoff,
    /// When a leader last sent something that was accepted, or the replica started: microseconds since boot.
    heard: AtomicU64,
    /// Set when the server is about to stop.
    elections_disabled: AtomicBool,
    clock: Clock,
    status: watch::Receiver<GroupStatus>,
    proposals: Semaphore,
    counters: Arc<RaftCounters>,
    tasks: Tasks,
    steps: Steps,
    /// Runs the futures of the core.
    shard: ExecutorShard,
    /// The tokio runtime of the shard.
    handle: Handle,
}

impl Group {
    /// Starts the replica; see `Network::start_group`.
    pub(super) async fn start(
        config: GroupConfig,
        log: CommitLog,
        machine: Arc<dyn StateMachine>,
        links: Arc<Links>,
        shard: ExecutorShard,
        runtime: &Runtime,
    ) -> Result<Arc<Self>, StartError> {
        let clock = runtime.clock.clone();
        let vote_holdoff = VoteHoldoff::new(clock.monotonic(), config.vote_holdoff);
        let tasks = runtime.tasks.child("raft-group");
        log.add_group(config.group).map_err(|error| StartError::Faulty(error.into()))?;
        wait_until_durable(&log, config.group).await.map_err(StartError::Faulty)?;
        let (quorum, recovery) = (QuorumTracker::default(), FollowerRecovery::default());
        let counters = Arc::clone(links.counters());
        let entry_clock = EntryClock::new(clock.clone());
        let observers = (quorum.clone(), recovery.clone(), entry_clock.clone());
        let (raft, handle) = start_core(&config, log, Arc::clone(&machine), links, &shard, observers).await?;
        let (sender, status) = watch::channel(GroupStatus::default());
        let metrics = raft.metrics();
        let proposals = Semaphore::new(permits(config.proposal_bytes_max));
        let lease_suspensions = LeaseSuspensions::default();
        let transfer_target = AtomicU64::new(0);
        let group = Self {
            config,
            machine,
            raft,
            metrics,
            lease_suspensions,
            quorum,
            entry_clock,
            transfer_target,
            relinquished: RelinquishedTerm::new(),
            vote_holdoff,
            heard: AtomicU64::new(whole_micros(clock.monotonic())),
            elections_disabled: AtomicBool::new(false),
            clock,
            status,
            proposals,
            counters,
            tasks,
            steps: runtime.steps.clone(),
            shard,
            handle,
        };
        let group = Arc::new(group);
        driver::start(&group, sender, recovery);
        Ok(group)
    }

    /// Identifies the group and the replica.
    pub const fn id(&self) -> GroupReplica {
        self.config.group
    }

    /// Whether the replica has had no contact for longer than `limit`: a follower with a leader, a leader with a majority. openraft names a leader
    /// that is gone until another one is elected, so this is measured by messages.
    pub fn is_cut_off(&self, limit: Duration) -> bool {
        let now = self.clock.monotonic();
        let is_recent = |at: Duration| now.saturating_sub(at) <= limit;
        let status = self.status();
        if !status.is_leader {
            return !is_recent(Duration::from_micros(self.heard.load(Ordering::Relaxed)));
        }
        let own = self.config.group.replica;
        let answered = |id: &ReplicaId| status.last_contact.get(id).is_some_and(|at| is_recent(*at));
        !status.membership.has_majority(|one| one.replica == own || answered(&one.replica))
    }

    /// A leader has sent something that was accepted.
    fn hear(&self) {
        self.heard.store(whole_micros(self.clock.monotonic()), Ordering::Relaxed);
    }

    /// The times of the Raft protocol.
    pub const fn timings(&self) -> RaftTimings {
        self.config.timings
    }

    /// The present status of the group.
    pub fn status(&self) -> GroupStatus {
        let mut now = self.relinquished.correct(status(&self.raft, self.replica()), self.replica());
        // While the target campaigns.
        now.leader = now.leader.or_else(|| self.pending_transfer().flatten());
        now
    }

    /// The status at the last change of leader, readiness or membership. The receiver is notified at the next change.
    pub fn watch(&self) -> watch::Receiver<GroupStatus> {
        self.status.clone()
    }

    /// The leadership of this replica, once it has applied the first entry of its term, and until it gives the leadership up.
    pub fn leadership(&self) -> Option<Leadership> {
        leadership(&self.raft).filter(|leadership| !self.relinquished.covers(leadership.term))
    }

    /// Campaigns unless a live leader is known: for a new group, and for one that has certainly lost its leader, so that it need
    /// not wait for the election timeout.
    pub async fn campaign(&self) {
        if self.vote_holdoff.remaining(self.clock.monotonic()).is_none()
            && !self.elections_disabled.load(Ordering::Relaxed)
        {
            // If the core has stopped, the next proposal reports it.
            let _stopped = self.raft.trigger().elect(true).await;
        }
    }

    /// Disables elections: this replica does not campaign any more. For a server that is about to stop.
    pub fn disable_elections(&self) {
        self.elections_disabled.store(true, Ordering::Relaxed);
        self.raft.runtime_config().elect(false);
    }

    /// Waits until the published metrics satisfy `condition`; `None` when that did not happen in time.
    async fn wait_for<T>(
        &self,
        timeout: Duration,
        mut condition: impl FnMut(&RaftMetrics<TypeConfig>) -> Option<T>,
    ) -> Option<T> {
        let mut metrics = self.raft.metrics();
        let satisfied = async {
            loop {
                let result = condition(&metrics.borrow_watched());
                if result.is_some() {
                    return result;
                }
                if metrics.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(timeout, satisfied).await.unwrap_or(None)
    }

    /// Removes a hint that names this replica, which may still believe in a leadership that has ended: such a hint is useless.
    fn not_self(&self, hint: Option<Replica>) -> Option<Replica> {
        hint.filter(|replica| replica.replica != self.replica())
    }

    /// What created the group.
    pub const fn origin(&self) -> GroupOrigin {
        self.config.origin
    }

    /// Log compaction: purges the log up to `upto`, as far as the state machine has it on disk and no follower is being sent it.
    ///
    /// A follower that needs purged entries gets a snapshot.
    pub async fn purge(&self, upto: LogIndex) {
        let is_covered =
            |m: &RaftMetrics<TypeConfig>| m.snapshot.as_ref().is_some_and(|id| log_id(id).index >= upto).then_some(());
        if self.raft.trigger().snapshot().await.is_err() {
            return;
        }
        // openraft purges only entries that it knows to be in a snapshot. When the store has fewer entries on disk than
        // requested, openraft purges only those.
        let _behind = self.wait_for(PURGE_TIMEOUT, is_covered).await;
        let _stopped = self.raft.trigger().purge_log(upto.get()).await;
    }

    /// Spawns `work` on the group's executor shard, so that it and the core wake each other without a task switch. It must not
    /// block, and it is dropped when the server stops.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // The caller observes the work by other means than its handle.
        drop(self.shard.spawn(work));
    }

    /// Whether the core runs: it has neither been stopped nor ended by an error.
    pub fn is_running(&self) -> bool {
        is_running(&self.raft)
    }

    /// Returns why the core has ended by an error, as soon as it has; pending while it runs and when it was stopped. Cancel-safe.
    ///
    /// The replica does nothing any more. Its owner must stop it, and decide by the reason what becomes of it.
    pub async fn failed(&self) -> Fault {
        let mut metrics = self.metrics.clone();
        loop {
            let end = metrics.borrow_watched().running_state.clone();
            match end {
                Ok(()) => {}
                Err(fatal) => match fault_of(&fatal) {
                    Some(fault) => return fault,
                    None => return std::future::pending().await,
                },
            }
            if metrics.changed().await.is_err() {
                // The core was dropped with its tasks, or it panicked, which ends the process.
                return std::future::pending().await;
            }
        }
    }

    /// When the entry at `index` was appended, synced, committed and applied here; `None` when it is not among the last entries.
    pub fn entry_times(&self, index: LogIndex) -> Option<EntryTimes> {
        self.entry_clock.times(index)
    }

    /// The followers that have acknowledged the entry at `index` to this leader, as far as it is known. Times are on the monotonic clock.
    pub fn entry_followers(&self, index: LogIndex) -> Vec<FollowerTime> {
        self.entry_clock.followers(index)
    }

    /// Stops this replica without a leadership transfer. May be called again.
    pub async fn stop(&self) {
        self.tasks.cancel();
        let stopped = self.stop_core();
        // It fails when the runtime stops at the same time.
        let _runtime_stopped = stopped.await;
        self.tasks.stop(Duration::from_secs(1)).await;
    }

    /// As [`Group::stop`], without waiting: for a stop that simulates a crash.
    pub fn abort(&self) {
        self.tasks.cancel();
        drop(self.stop_core());
    }

    /// Stops the core, on a task of its own that is never cancelled: when the first caller that waits for the stop of a core is
    /// cancelled, openraft fails all other callers that wait for it.
    fn stop_core(&self) -> tokio::task::JoinHandle<()> {
        let raft = self.raft.clone();
        self.handle.spawn(async move {
            // Its only error is a core that stopped by itself, which was logged when it happened.
            let _already_stopped = raft.shutdown().await;
        })
    }

    pub(super) const fn raft(&self) -> &Raft {
        &self.raft
    }

    pub(super) const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) const fn config(&self) -> &GroupConfig {
        &self.config
    }

    const fn relinquished(&self) -> &RelinquishedTerm {
        &self.relinquished
    }

    pub(super) const fn lease_suspensions(&self) -> &LeaseSuspensions {
        &self.lease_suspensions
    }

    pub(super) const fn replica(&self) -> ReplicaId {
        self.config.group.replica
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("id", &self.config.group).finish_non_exhaustive()
    }
}

/// How long a purge waits until openraft knows what the store has on disk.
const PURGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts openraft's core; all futures that it spawns join the shard.
async fn start_core(
    config: &GroupConfig,
    log: CommitLog,
    machine: Arc<dyn StateMachine>,
    links: Arc<Links>,
    shard: &ExecutorShard,
    (quorum, recovery, entry_clock): (QuorumTracker, FollowerRecovery, EntryClock),
) -> Result<(Raft, Handle), StartError> {
    let settings = openraft_config(config)?;
    let sync_tracker = Arc::new(SyncTracker::default());
    let peers = PeerFactory {
        links,
        group: config.group,
        origin: config.origin,
        checkpoints: Checkpoints {
            machine: Arc::clone(&machine),
            group: config.group,
            scratch: config.scratch.clone(),
            maintenance: config.pools.maintenance.clone(),
        },
        quorum,
        recovery,
        entry_clock: entry_clock.clone(),
    };
    let pool = config.pools.apply.clone();
    let store = LogStore::new(log, config.group, Arc::clone(&sync_tracker), entry_clock.clone(), pool);
    let adapter = StateMachineAdapter::new(machine, sync_tracker, entry_clock, config.pools.clone());
    let node = config.group.replica.get();
    let started = shard.spawn(async move {
        let raft = Raft::new(node, settings, peers, store, adapter).await?;
        Ok::<_, Fatal<TypeConfig>>((raft, Handle::current()))
    });
    let started = started.await.map_err(|_stopped| StartError::Stopping)?;
    started.map_err(|fatal| fault_of(&fatal).map_or(StartError::Stopping, StartError::Faulty))
}

/// Why the core has ended by itself; `None` when it was stopped.
fn fault_of(fatal: &Fatal<TypeConfig>) -> Option<Fault> {
    match fatal {
        Fatal::StorageError(error) => {
            let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Fault>());
            Some(source.cloned().unwrap_or_else(|| Fault::new(error.to_string())))
        }
        Fatal::Panicked => Some(Fault::new("the raft core panicked")),
        Fatal::Stopped => None,
    }
}

fn leader_hint(forward: &ForwardToLeader<TypeConfig>) -> Option<Replica> {
    Some(replica(forward.leader_id?, forward.leader_node?))
}
