//! The replica of a group on this server, running: its state machine, its Raft group, and what its tablets share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ebla_model::command::{CommandKind, NewTablet};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, OperationId, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_runtime::{Blocking, Failpoint, Runtime};
use tokio::sync::Semaphore;

use crate::capacity::Capacity;
use crate::clock_comparison::ClockComparison;
use crate::raft::{Group, GroupReplica};
use crate::tablet::Tablet;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::failure::{Failure, Leader};
use crate::tablet::lifecycle::moves::DrivenMoves;
use crate::tablet::lifecycle::split::TabletHost;
use crate::tablet::write::admission::Admission;
use crate::tablet::write::latch::Latches;
use crate::tablet::write::queue::{self, WriteQueue};

/// A group's replica with its running Raft group. Its tablets share its log, its store, and its queue of writes.
pub struct TabletGroup {
    id: GroupReplica,
    pub(in crate::tablet) state_machine: Arc<GroupStateMachine>,
    pub(in crate::tablet) raft: Arc<Group>,
    pub(in crate::tablet) runtime: Runtime,
    /// Thread pool for reads of the store.
    pub(in crate::tablet) reads: Blocking,
    /// Thread pool for flushes.
    pub(in crate::tablet) maintenance: Blocking,
    /// A split, a merge or a division is in progress.
    pub(in crate::tablet) dividing: AtomicBool,
    /// A change of replicas is in progress.
    pub(in crate::tablet) changing: AtomicBool,
    pub(in crate::tablet) admission: Admission,
    pub(in crate::tablet) latches: Latches,
    /// The turn of the one conditional write that waits for the state while that is held for long.
    pub(in crate::tablet) state_turn: Semaphore,
    pub(in crate::tablet) queue: Arc<WriteQueue>,
    pub(in crate::tablet) host: Arc<dyn TabletHost>,
    server: ServerId,
    capacity: Arc<Capacity>,
    clocks: Arc<ClockComparison>,
    pub(in crate::tablet) moves: DrivenMoves,
}

/// The parts of a [`TabletGroup`].
pub struct TabletGroupParts {
    /// The ids of the group and of the replica.
    pub id: GroupReplica,
    /// The state machine that `raft` drives.
    pub state_machine: Arc<GroupStateMachine>,
    /// The replica's Raft group, started.
    pub raft: Arc<Group>,
    /// Clock and tasks; the group's own tasks are children of its `tasks`.
    pub runtime: Runtime,
    /// The server's thread pool for reads.
    pub reads: Blocking,
    /// The server's thread pool for flushes.
    pub maintenance: Blocking,
    /// The server's admission control.
    pub admission: Admission,
    /// Services of the server and the cluster.
    pub host: Arc<dyn TabletHost>,
    /// This server.
    pub server: ServerId,
    /// What the server can still take.
    pub capacity: Arc<Capacity>,
    /// The comparison of the server's clock with others.
    pub clocks: Arc<ClockComparison>,
}

impl fmt::Debug for TabletGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TabletGroup").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TabletGroup {
    /// Starts the group's batcher task, which ends with `parts.runtime.tasks`.
    #[must_use]
    pub fn start(parts: TabletGroupParts) -> Arc<Self> {
        let group = Arc::new(Self {
            id: parts.id,
            state_machine: parts.state_machine,
            raft: parts.raft,
            runtime: parts.runtime,
            reads: parts.reads,
            maintenance: parts.maintenance,
            dividing: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            admission: parts.admission.group(),
            latches: Latches::new(),
            state_turn: Semaphore::new(1),
            queue: Arc::new(WriteQueue::new()),
            host: parts.host,
            server: parts.server,
            capacity: parts.capacity,
            clocks: parts.clocks,
            moves: DrivenMoves::default(),
        });
        queue::start_batcher(&group);
        group
    }

    /// The group's id.
    #[must_use]
    pub const fn id(&self) -> GroupId {
        self.id.group
    }

    /// The replica's id.
    #[must_use]
    pub const fn replica(&self) -> ReplicaId {
        self.id.replica
    }

    /// The group as this replica has applied it.
    #[must_use]
    pub fn descriptor(&self) -> GroupDescriptor {
        self.state_machine.applied_state().metadata.descriptor.clone()
    }

    /// A tablet of the group, as this replica has applied it.
    #[must_use]
    pub fn tablet(self: &Arc<Self>, tablet: TabletId) -> Option<Tablet> {
        let table = self.state_machine.applied_state().tablet(tablet)?.descriptor.table;
        Some(Tablet::new(Arc::clone(self), tablet, table))
    }

    /// The tablets of the group, as this replica has applied them.
    #[must_use]
    pub fn tablets(self: &Arc<Self>) -> Vec<Tablet> {
        let metadata = Arc::clone(&self.state_machine.applied_state().metadata);
        let tablet = |tablet: &Arc<TabletMetadata>| {
            let TabletDescriptor { tablet, table, .. } = tablet.descriptor;
            Tablet::new(Arc::clone(self), tablet, table)
        };
        metadata.tablets.values().map(tablet).collect()
    }

    /// The ids of the group's tablets.
    #[must_use]
    pub fn tablet_ids(&self) -> Vec<TabletId> {
        self.state_machine.applied_state().metadata.tablets.keys().copied().collect()
    }

    /// Measures the load of its tablets; a replica that does not lead has none.
    pub fn measure_loads(&self) {
        let (is_leader, now) = (self.is_leader(), self.runtime.clock.monotonic());
        for tablet in self.state_machine.applied_state().metadata.tablets.values() {
            if is_leader {
                tablet.load.measure(now);
            } else {
                tablet.load.reset();
            }
        }
    }

    /// Creates tablets, once per operation id; `schema`: of their table.
    ///
    /// # Errors
    /// `NotLeader`, `NoLeader`, `TabletDropped`, `OutcomeUnknown`, `Deadline`. Safe to repeat.
    pub async fn create_tablets(
        &self,
        operation: OperationId,
        schema: TableSchema,
        tablets: Vec<NewTablet>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        self.propose_command(CommandKind::CreateTablets { operation, schema, tablets }, timeout).await.map(drop)
    }

    /// Drops the tablets of a table, once per operation id.
    ///
    /// # Errors
    /// `NotLeader`, `NoLeader`, `OutcomeUnknown`, `Deadline`. Safe to repeat.
    pub async fn drop_table(&self, operation: OperationId, table: TableId, timeout: Duration) -> Result<(), Failure> {
        self.propose_command(CommandKind::Drop { operation, table }, timeout).await.map(drop)
    }

    /// The error of a write that stores cells, while such writes are refused: for lack of disk space, or because the clock is ahead.
    /// None on a replica that does not lead: what it knows of the others may be old, and the caller must learn who leads.
    pub(in crate::tablet) fn write_refusal(&self) -> Option<Error> {
        if (!self.capacity.may_refuse() && !self.clocks.may_refuse()) || !self.is_leader() {
            return None;
        }
        let full = self.capacity.refusal(self.server, self.voting_servers().into_iter());
        full.filter(|_full| !Failpoint::FullDiskIgnored.is_enabled()).or_else(|| self.clock_refusal())
    }

    /// The error of a write that stores cells, while this server's clock is too far ahead and another server can lead the group.
    pub(in crate::tablet) fn clock_refusal(&self) -> Option<Error> {
        self.clocks.refusal(self.server, self.voting_servers().into_iter())
    }

    fn voting_servers(&self) -> Vec<ServerId> {
        let applied_state = self.state_machine.applied_state();
        let membership = &applied_state.metadata.descriptor.membership;
        let voters = membership.replicas().filter(|replica| membership.is_voter(replica.replica));
        voters.map(|replica| replica.server).collect()
    }

    /// Has the store examined after a request for `tablet` has met damaged data. Returns the failure of the request: `Unavailable`,
    /// because another replica takes over; the error itself if an examination has shown that the files are sound, or, with the next
    /// step, if no other replica exists.
    pub(in crate::tablet) fn report_damage(&self, tablet: TabletId, error: Error) -> Failure {
        let damage = self.state_machine.damage();
        if damage.is_refuted() {
            return Failure::from(error);
        }
        damage.report();
        let applied_state = self.state_machine.applied_state();
        let membership = &applied_state.metadata.descriptor.membership;
        let has_other =
            membership.replicas().any(|other| membership.is_voter(other.replica) && other.replica != self.replica());
        match applied_state.tablet(tablet) {
            Some(metadata) if !has_other => Failure::damaged(&metadata.schema().name, tablet, self.server, &error),
            _ => {
                let message = format!("a block of this replica may be damaged, another one takes over: {error}");
                Failure::new(Reason::Unavailable, message)
            }
        }
    }

    /// Whether this replica leads and has applied its term's first entry.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raft.leadership().is_some()
    }

    /// The presumed leader: a hint.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        let status = self.raft.status();
        status.leader.map(|replica| Leader { server: replica.server, term: status.term })
    }

    /// The Raft group, for votes, transfers and purges.
    #[must_use]
    pub const fn raft(&self) -> &Arc<Group> {
        &self.raft
    }

    /// The state machine, for flushes and sizes.
    #[must_use]
    pub const fn state_machine(&self) -> &Arc<GroupStateMachine> {
        &self.state_machine
    }
}
