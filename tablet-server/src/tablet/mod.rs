//! A tablet's replica on this server. [`Tablet`] has about ten methods, the narrow interface of the server.
//!
//! ```text
//!   Tablet   read  write  check  modify  sample            rows, at the leader
//!            split  set_schema  drop_range  drop_table     the tablet: one entry of its log each
//!            collect_garbage                               its dead cells: one entry for each range of rows
//!            change_replicas                               its replicas
//!            descriptor  report  digest                    this replica
//!
//!   write -> admission -> latch -> queue -> one command for a group of writes -> Group::propose
//!                                                                                      |
//!   read  -> lease or barrier -> pinned view -> model::gc, filter <-- TabletStateMachine::apply -> TabletStore
//! ```
//!
//! Rooms: `read` and `write` are the paths of requests, `core` is the replicated state machine, `lifecycle` manages the
//! replicas of the server. `request` holds the requests as values, `handler` converts them from and to the wire.
//!
//! Invariants:
//! 1. Only a leader whose term's first entry is applied reads or evaluates.
//! 2. A write is proposed bound to the term in which it was evaluated.
//! 3. A request that failed with a reason other than `OutcomeUnknown` and `Deadline` was not applied and never will be.
//!
//! Not here: routing. A request for a row of another tablet is refused.

pub mod core;
pub mod failure;
pub mod handler;
pub mod lifecycle;
pub mod read;
pub mod request;
pub mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ebla_model::id::{Generation, OperationId, ReplicaId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_runtime::{Blocking, Runtime};

use self::core::applied_state::TabletMetadata;
use self::core::command;
use self::core::state_machine::TabletStateMachine;
pub use self::failure::{Failure, Leader};
use self::lifecycle::split::TabletHost;
pub use self::lifecycle::{
    digest::Digest,
    manager::{InitialState, TabletManager},
    report::{ReplicaReport, Sample},
};
pub use self::request::{CheckRequest, ModifyRequest, ReadBatch, ReadPosition, ReadRequest, RowMutations, WriteId};
use self::write::admission::Admission;
use self::write::latch::Latches;
use self::write::queue::{self, WriteQueue};
use crate::raft::{Group, GroupId};

/// A replica of a tablet with its running Raft group.
pub struct Tablet {
    id: GroupId,
    state_machine: Arc<TabletStateMachine>,
    group: Arc<Group>,
    runtime: Runtime,
    /// Thread pool for reads of the store.
    reads: Blocking,
    /// Thread pool for flushes.
    maintenance: Blocking,
    splitting: AtomicBool,
    changing: AtomicBool,
    admission: Admission,
    latches: Latches,
    queue: Arc<WriteQueue>,
    host: Arc<dyn TabletHost>,
}

/// The parts of a [`Tablet`].
pub struct TabletParts {
    /// The ids of the tablet and of the replica.
    pub id: GroupId,
    /// The state machine that `group` drives.
    pub state_machine: Arc<TabletStateMachine>,
    /// The replica's Raft group, started.
    pub group: Arc<Group>,
    /// Clock and tasks; the tablet's own tasks are children of its `tasks`.
    pub runtime: Runtime,
    /// The server's thread pool for reads.
    pub reads: Blocking,
    /// The server's thread pool for flushes.
    pub maintenance: Blocking,
    /// The server's admission control.
    pub admission: Admission,
    /// Services of the server and the cluster.
    pub host: Arc<dyn TabletHost>,
}

impl fmt::Debug for Tablet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tablet").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Tablet {
    /// Starts the tablet and its batcher task, which ends with `parts.runtime.tasks`.
    #[must_use]
    pub fn start(parts: TabletParts) -> Arc<Self> {
        let tablet = Arc::new(Self {
            id: parts.id,
            state_machine: parts.state_machine,
            group: parts.group,
            runtime: parts.runtime,
            reads: parts.reads,
            maintenance: parts.maintenance,
            splitting: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            admission: parts.admission.tablet(),
            latches: Latches::new(),
            queue: Arc::new(WriteQueue::new()),
            host: parts.host,
        });
        queue::start_batcher(&tablet);
        tablet
    }

    /// The tablet's id.
    #[must_use]
    pub const fn id(&self) -> TabletId {
        self.id.tablet
    }

    /// The replica's id.
    #[must_use]
    pub const fn replica(&self) -> ReplicaId {
        self.id.replica
    }

    /// The table that the tablet belongs to.
    #[must_use]
    pub fn table(&self) -> TableId {
        self.state_machine.applied_state().metadata.descriptor.table
    }

    /// The tablet as this replica has applied it.
    #[must_use]
    pub fn descriptor(&self) -> TabletDescriptor {
        self.state_machine.applied_state().metadata.descriptor.clone()
    }

    /// The table's schema as this replica has applied it.
    #[must_use]
    pub fn schema(&self) -> Arc<TableSchema> {
        Arc::clone(&self.state_machine.applied_state().metadata.schema)
    }

    /// Whether this replica leads and has applied its term's first entry.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.group.leadership().is_some()
    }

    /// The presumed leader: a hint.
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
    pub const fn state_machine(&self) -> &Arc<TabletStateMachine> {
        &self.state_machine
    }

    /// Sets the tablet's schema, unless it has a later one already; returns the tablet's descriptor.
    ///
    /// # Errors
    /// `NotLeader`, `TabletDropped`, `OutcomeUnknown`, `Deadline`. Safe to repeat.
    pub async fn set_schema(&self, schema: TableSchema, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.propose_command(command::set_schema(schema), timeout).await?;
        Ok(self.descriptor())
    }

    /// Deletes the tablet's rows in `range`, once per operation id; returns the tablet's descriptor.
    ///
    /// # Errors
    /// As [`Tablet::set_schema`].
    pub async fn drop_range(
        &self,
        operation: OperationId,
        range: KeyRange,
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        self.propose_command(command::drop_range(operation, range), timeout).await?;
        Ok(self.descriptor())
    }

    /// Drops the tablet: from now on it refuses all reads and writes. Returns its last descriptor.
    ///
    /// # Errors
    /// As [`Tablet::set_schema`].
    pub async fn drop_table(&self, operation: OperationId, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.propose_command(command::drop_table(operation), timeout).await?;
        Ok(self.descriptor())
    }

    /// Fails unless `generation` is the tablet's, and it is not dropped.
    pub(crate) fn check_generation(&self, metadata: &TabletMetadata, generation: Generation) -> Result<(), Failure> {
        if metadata.dropped {
            return Err(Failure::new(ebla_model::Reason::TabletDropped, "the tablet was dropped"));
        }
        if metadata.descriptor.generation != generation {
            return Err(Failure::wrong_tablet(metadata.descriptor.clone()));
        }
        Ok(())
    }
}
