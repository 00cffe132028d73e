//! A tablet's replica on this server, and what may be asked of it: about ten methods, the waist of the server.
//!
//! ```text
//!   Tablet   read  write  check  modify  sample            of rows, at the leader
//!            split  set_schema  drop_range  drop_table     of the tablet, one entry of its log each
//!            collect                                       of its dead cells, an entry for each stretch of rows
//!            change_replicas                               of who holds it
//!            descriptor  report  digest  flush             of this replica
//!
//!   write -> admission -> latch -> queue -> one command for what gathered -> Group::propose
//!                                                                              |
//!   read  -> lease or barrier -> pinned view -> model::gc, filter   <-- Machine::apply: state + apply -> TabletStore
//! ```
//!
//! `state` and `apply` are pure: what a command does to a tablet is a function of the two. `machine` carries that out
//! on the store for `raft`. `hosted` is the set of all replicas of the server.
//!
//! Invariants: only a leader whose term's first entry is applied reads or decides; a write is proposed bound to the term
//! it was decided in; what was refused with anything but `OutcomeUnknown` or `Deadline` was not and will not be applied.
//! What is absent: routing (a request for another tablet's row is refused) and the wire.

pub mod admission;
pub mod apply;
pub mod collect;
pub mod command;
mod cradle;
mod cursor;
mod decide;
pub mod digest;
pub mod failure;
mod filters;
pub mod hosted;
pub mod latch;
pub mod machine;
mod queue;
pub mod read;
pub mod replicas;
pub mod rows;
pub mod serve;
pub mod split;
pub mod split_point;
pub mod state;
mod wanted;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ebla_model::cell::Row;
use ebla_model::filter::CompiledFilter;
use ebla_model::id::{
    Generation, LogId, OperationId, ReplicaId, SchemaVersion, Sequence, SessionId, TableId, TabletId,
};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::Mutation;
use ebla_model::rmw::Rule;
use ebla_model::schema::TableSchema;
use ebla_runtime::{Blocking, Runtime};

use crate::raft::{Group, GroupId};
use crate::tablet::admission::Admission;
pub use crate::tablet::failure::{Failure, Leader};
use crate::tablet::latch::Latches;
use crate::tablet::machine::Machine;
use crate::tablet::queue::WriteQueue;
use crate::tablet::split::SplitHelp;

/// Names one write for ever: sent again, it is applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteId {
    /// The incarnation of the front or client that sends it.
    pub session: SessionId,
    /// Its number in that session.
    pub sequence: Sequence,
    /// Every lower sequence of the session has been answered and will not be sent again.
    pub lowest_outstanding: Sequence,
}

/// Which rows to read and what to see of them.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The tablet's generation as the caller knows it; another one is answered with `WrongTablet`.
    pub generation: Generation,
    /// The rows wanted. What lies outside the tablet is not looked at.
    pub rows: RowSet,
    /// Absent: everything.
    pub filter: Option<CompiledFilter>,
    /// Rows that come out of the filter, over all batches of the request; 0: no limit.
    pub limit: u64,
    /// Descending keys; the order inside a row stays.
    pub reversed: bool,
    /// Any replica may answer from what it has applied, if the tablet is one of METADATA: lookups take what it says for hints.
    pub any_replica: bool,
}

/// Where a read that was answered in part goes on.
#[derive(Clone, Debug, Default)]
pub struct Resume {
    /// Everything up to this key (from above, when reversed) has been looked at.
    pub after: Option<RowKey>,
    /// Rows returned so far, which count against the limit.
    pub rows: u64,
}

/// Part of the answer to a read, all from one pinned view.
#[derive(Clone, Debug, Default)]
pub struct ReadBatch {
    /// Whole rows, none of them empty, in the order asked for.
    pub rows: Vec<Row>,
    /// Everything up to and including this key has been looked at (from above, when reversed); absent when nothing was.
    pub last_row: Option<RowKey>,
    /// The limit is reached, or nothing more of the request lies in the tablet.
    pub finished: bool,
    /// Rows that had a visible cell before the filter, or cells that the filter could not want.
    pub rows_seen: u64,
    /// Visible cells that were read for the filter.
    pub cells_seen: u64,
    /// Cells in `rows`.
    pub cells_returned: u64,
}

/// A write of one row: all of its mutations, in their order, or none.
#[derive(Clone, Debug)]
pub struct RowMutations {
    /// Names the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// What to do, validated by the caller (`model::mutation::validate`).
    pub mutations: Vec<Mutation>,
    /// The caller's own name for the write.
    pub token: Option<IdempotencyToken>,
}

/// A write that depends on what a filter sees of the row.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// The tablet's generation as the caller knows it.
    pub generation: Generation,
    /// Names the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// Matches when it lets a cell pass; absent: when the row has a cell.
    pub predicate: Option<CompiledFilter>,
    /// Applied on a match.
    pub then: Vec<Mutation>,
    /// Applied without one.
    pub otherwise: Vec<Mutation>,
    /// The caller's own name for the write.
    pub token: Option<IdempotencyToken>,
}

/// A write whose values are computed from what the row holds.
#[derive(Clone, Debug)]
pub struct ModifyRequest {
    /// The tablet's generation as the caller knows it.
    pub generation: Generation,
    /// Names the write.
    pub id: WriteId,
    /// The row.
    pub row: RowKey,
    /// What to compute, in order.
    pub rules: Vec<Rule>,
    /// The caller's own name for the write.
    pub token: Option<IdempotencyToken>,
}

/// How large a tablet is, and what it covers.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Bytes on disk and in memory, roughly.
    pub size_bytes: u64,
    /// The tablet now.
    pub descriptor: TabletDescriptor,
}

/// What this replica tells the master of itself.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tablet as this replica has applied it.
    pub descriptor: TabletDescriptor,
    /// Which of its replicas this is.
    pub replica: ReplicaId,
    /// Whether it leads.
    pub leads: bool,
    /// Its Raft term.
    pub term: u64,
    /// Bytes on disk and in memory, roughly.
    pub size_bytes: u64,
    /// The schema it has applied.
    pub schema_version: SchemaVersion,
    /// The last entry it has applied.
    pub applied: LogId,
    /// At the leader: a majority has confirmed the leadership a moment ago, and `descriptor` has the last membership of
    /// the log, with one set of voters. So nobody else is a member, nor is becoming one.
    pub settled: bool,
    /// At the leader: the other replicas that have answered it lately.
    pub heard: Vec<ReplicaId>,
}

/// A replica that has not answered its leader for so many election times is not heard of.
const HEARD_ELECTIONS: u32 = 3;

/// A replica with its Raft group running.
pub struct Tablet {
    id: GroupId,
    machine: Arc<Machine>,
    group: Arc<Group>,
    runtime: Runtime,
    /// Where reads of the store run.
    reads: Blocking,
    /// Where flushes run.
    maintenance: Blocking,
    splitting: AtomicBool,
    changing: AtomicBool,
    admission: Admission,
    latches: Latches,
    queue: Arc<WriteQueue>,
    help: Arc<dyn SplitHelp>,
}

/// What a [`Tablet`] is made of.
pub struct Parts {
    /// Which tablet, and which of its replicas.
    pub id: GroupId,
    /// The state machine that `group` drives.
    pub machine: Arc<Machine>,
    /// The replica's Raft group, started.
    pub group: Arc<Group>,
    /// Clock and tasks; the tablet's own tasks are children of its `tasks`.
    pub runtime: Runtime,
    /// The server's pool for reads.
    pub reads: Blocking,
    /// The server's pool for flushes.
    pub maintenance: Blocking,
    /// What all tablets of the server may have under way.
    pub admission: Admission,
    /// What a split needs of the rest of the server.
    pub help: Arc<dyn SplitHelp>,
}

impl fmt::Debug for Tablet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tablet").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Tablet {
    /// Puts the parts together and starts the task that proposes writes; it ends with `parts.runtime.tasks`.
    #[must_use]
    pub fn start(parts: Parts) -> Arc<Self> {
        let tablet = Arc::new(Self {
            id: parts.id,
            machine: parts.machine,
            group: parts.group,
            runtime: parts.runtime,
            reads: parts.reads,
            maintenance: parts.maintenance,
            splitting: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            admission: parts.admission.tablet(),
            latches: Latches::new(),
            queue: Arc::new(WriteQueue::new()),
            help: parts.help,
        });
        queue::start_batcher(&tablet);
        tablet
    }

    /// Which tablet this is.
    #[must_use]
    pub const fn id(&self) -> TabletId {
        self.id.tablet
    }

    /// Which of the tablet's replicas this is.
    #[must_use]
    pub const fn replica(&self) -> ReplicaId {
        self.id.replica
    }

    /// The table it is part of.
    #[must_use]
    pub fn table(&self) -> TableId {
        self.machine.published().shape.descriptor.table
    }

    /// The tablet as this replica has applied it.
    #[must_use]
    pub fn descriptor(&self) -> TabletDescriptor {
        self.machine.published().shape.descriptor.clone()
    }

    /// The table's schema as this replica has applied it.
    #[must_use]
    pub fn schema(&self) -> Arc<TableSchema> {
        Arc::clone(&self.machine.published().shape.schema)
    }

    /// Whether this replica leads and has applied its term's first entry.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.group.leadership().is_some()
    }

    /// Who seems to lead: a hint.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        let status = self.group.status();
        status.leader.map(|replica| Leader { server: replica.server, term: status.term })
    }

    /// The Raft group, for votes, transfers and purges.
    #[must_use]
    pub const fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The state machine, for flushes and sizes.
    #[must_use]
    pub const fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// How large the tablet is here. Any replica answers.
    #[must_use]
    pub fn sample(&self) -> Sample {
        Sample { size_bytes: self.machine.size_bytes(), descriptor: self.descriptor() }
    }

    /// What this replica tells the master of itself.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = self.runtime.clock.monotonic();
        // The lease first: nobody else had changed the membership before this moment, and what this leader changed since
        // is in the status.
        let holds_lease = self.group.read_permit(now).is_some();
        let status = self.group.status();
        let published = self.machine.published();
        let descriptor = &published.shape.descriptor;
        let is_last = status.membership_log_id == Some(descriptor.membership_log_id);
        let silence = self.group.timings().election_max * HEARD_ELECTIONS;
        let is_near = |at: &Duration| now.saturating_sub(*at) < silence;
        Report {
            settled: holds_lease && status.is_leader && is_last && descriptor.membership.is_uniform(),
            heard: status.heard.iter().filter(|(_, at)| is_near(at)).map(|(id, _)| *id).collect(),
            descriptor: descriptor.clone(),
            replica: self.id.replica,
            leads: status.is_leader,
            term: status.term,
            size_bytes: self.machine.size_bytes(),
            schema_version: published.shape.schema.version,
            applied: published.applied,
        }
    }

    /// Makes this schema the tablet's, unless it has a later one already; returns what the tablet covers.
    ///
    /// # Errors
    /// `NotLeader`, `TabletDropped`, `OutcomeUnknown`, `Deadline`. Safe to repeat.
    pub async fn set_schema(&self, schema: TableSchema, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.order(command::set_schema(schema), timeout).await?;
        Ok(self.descriptor())
    }

    /// Deletes the tablet's rows that lie in `range`, once for each operation; returns what the tablet covers.
    ///
    /// # Errors
    /// As [`Tablet::set_schema`].
    pub async fn drop_range(
        &self,
        operation: OperationId,
        range: KeyRange,
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        self.order(command::drop_range(operation, range), timeout).await?;
        Ok(self.descriptor())
    }

    /// Ends the tablet: from here on it refuses all reads and writes. Returns what it covered.
    ///
    /// # Errors
    /// As [`Tablet::set_schema`].
    pub async fn drop_table(&self, operation: OperationId, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.order(command::drop_table(operation), timeout).await?;
        Ok(self.descriptor())
    }

    /// Fails unless `generation` is the tablet's, and it is not dropped.
    pub(crate) fn expect_shape(&self, shape: &machine::Shape, generation: Generation) -> Result<(), Failure> {
        if shape.dropped {
            return Err(Failure::new(ebla_model::Reason::TabletDropped, "the tablet was dropped"));
        }
        if shape.descriptor.generation != generation {
            return Err(Failure::wrong_tablet(shape.descriptor.clone()));
        }
        Ok(())
    }
}
