//! A tablet on this server. [`Tablet`] has about ten methods, the narrow interface of the server.
//!
//! ```text
//!   Tablet        read  write  check  modify  sample            rows, at the leader
//!                 split  set_schema  drop_range                 one entry of its group's log each
//!                 collect_garbage                               its dead cells: one entry for each range of rows
//!                 descriptor  digest                            this replica
//!   TabletGroup   create_tablets  drop_table                    one entry of its log each
//!                 merge                                         two of its tablets
//!                 divide  change_replicas                       the group itself
//!                 move_tablet  import                           a tablet to, and from, another group
//!
//!   write -> admission -> latch -> queue -> one command for a group of writes -> Group::propose
//!                                                                                      |
//!   read  -> lease or barrier -> pinned view -> model::gc, filter <-- GroupStateMachine::apply -> GroupStore
//! ```
//!
//! A [`TabletGroup`] is a replica of a Raft group: one log, one store, many tablets of any tables. A [`Tablet`] is a handle to
//! one of them; the tablet may leave the group while the handle exists, and each call finds that out.
//!
//! Folders: `read` and `write` are the paths of requests, `core` is the replicated state machine, `lifecycle` manages the
//! replicas of the server. `load` measures how much a tablet is used, `heat` which of its keys. `request` holds the requests as values, `handler`
//! converts them from and to the wire, `served_calls` records those of other servers.
//!
//! Invariants:
//! 1. Only a leader whose term's first entry is applied reads or evaluates.
//! 2. A write is proposed bound to the term in which it was evaluated.
//! 3. A request that failed with a reason other than `OutcomeUnknown` and `Deadline` was not applied and never will be.
//!
//! Not here: routing. A request for a row of another tablet is refused.

pub mod core;
pub mod failure;
pub mod group;
pub mod handler;
pub(crate) mod heat;
pub mod lifecycle;
pub mod load;
pub mod read;
pub mod request;
mod served_calls;
pub mod write;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::Reason;
use ebla_model::command::CommandKind;
use ebla_model::id::{Generation, OperationId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_model::stored_row::stored_row;
use ebla_runtime::Failpoint;

use self::core::applied_state::{AppliedState, TabletMetadata};
use self::core::command;
pub use self::failure::{Failure, Leader};
pub use self::group::{TabletGroup, TabletGroupParts};
pub use self::lifecycle::{
    digest::Digest,
    manager::{InitialState, TabletManager},
    report::{ReplicaReport, Sample, TableSizes, TabletReport},
};
pub use self::request::{CheckRequest, ModifyRequest, ReadBatch, ReadPosition, ReadRequest, RowMutations, WriteId};
use self::write::latch::LatchMode;

/// A tablet of a local replica's group. Cheap to clone; gives access to the group.
#[derive(Clone)]
pub struct Tablet {
    group: Arc<TabletGroup>,
    id: TabletId,
    table: TableId,
}

impl fmt::Debug for Tablet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tablet").field("id", &self.id).field("group", &self.group).finish()
    }
}

impl Deref for Tablet {
    type Target = TabletGroup;

    fn deref(&self) -> &TabletGroup {
        &self.group
    }
}

impl Tablet {
    const fn new(group: Arc<TabletGroup>, id: TabletId, table: TableId) -> Self {
        Self { group, id, table }
    }

    /// The tablet's id.
    #[must_use]
    pub const fn id(&self) -> TabletId {
        self.id
    }

    /// The table that the tablet belongs to.
    #[must_use]
    pub const fn table(&self) -> TableId {
        self.table
    }

    /// The group that holds the tablet.
    #[must_use]
    pub const fn group(&self) -> &Arc<TabletGroup> {
        &self.group
    }

    /// The tablet as this replica has applied it.
    ///
    /// # Errors
    /// `TabletDropped`, `WrongTablet`: the group does not hold the tablet any more.
    pub fn metadata(&self) -> Result<Arc<TabletMetadata>, Failure> {
        self.metadata_in(&self.state_machine.applied_state())
    }

    /// The tablet in this applied state of its group.
    ///
    /// # Errors
    /// As [`Tablet::metadata`].
    pub(in crate::tablet) fn metadata_in(&self, applied_state: &AppliedState) -> Result<Arc<TabletMetadata>, Failure> {
        let tablet = applied_state.tablet(self.id).cloned();
        tablet.ok_or_else(|| {
            if applied_state.metadata.dropped.contains(&self.table) {
                Failure::new(Reason::TabletDropped, "the table was dropped")
            } else {
                Failure::new(
                    Reason::WrongTablet,
                    "the tablet was merged with another one, or has moved to another group",
                )
            }
        })
    }

    /// As [`Tablet::metadata_in`], for an operation that needs a tablet that is served.
    ///
    /// # Errors
    /// As [`Tablet::metadata`]; `Busy` while the tablet is being moved to another group.
    pub(in crate::tablet) fn served_in(&self, applied_state: &AppliedState) -> Result<Arc<TabletMetadata>, Failure> {
        let metadata = self.metadata_in(applied_state)?;
        match metadata.moves_to {
            Some(target) if !Failpoint::MoveKeepsWriting.is_enabled() => Err(Failure::moving(target)),
            _ => Ok(metadata),
        }
    }

    /// The tablet as this replica has applied it, if it is served.
    ///
    /// # Errors
    /// As [`Tablet::served_in`].
    pub(in crate::tablet) fn served(&self) -> Result<Arc<TabletMetadata>, Failure> {
        self.served_in(&self.state_machine.applied_state())
    }

    /// The tablet's descriptor as this replica has applied it.
    ///
    /// # Errors
    /// As [`Tablet::metadata`].
    pub fn descriptor(&self) -> Result<TabletDescriptor, Failure> {
        Ok(self.metadata()?.descriptor.clone())
    }

    /// A row of the tablet as its group's store has it.
    pub(in crate::tablet) fn stored_row(&self, row: &RowKey) -> RowKey {
        stored_row(self.table, row)
    }

    /// Sets the schema of the tablet's table in its group, unless the group has a later one already; returns the tablet's
    /// descriptor. No write is evaluated by the earlier schema and applied after this one.
    ///
    /// # Errors
    /// `NotLeader`, `TabletDropped`, `WrongTablet`, `Busy` while the tablet moves, `OutcomeUnknown`, `Deadline`. Safe to repeat.
    pub async fn set_schema(&self, schema: TableSchema, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.leader_term()?;
        // Another tablet of the group may have received it.
        if self.served()?.schema().version < schema.version {
            self.propose_alone(command::set_schema(schema), timeout).await?;
        }
        // If the tablet departs meanwhile, the other group may not have received the schema.
        Ok(self.served()?.descriptor.clone())
    }

    /// The key of the latch of the tablet's table in its group: that of no row.
    pub(in crate::tablet) fn table_latch_key(&self) -> RowKey {
        self.stored_row(&RowKey::EMPTY)
    }

    /// Deletes the table's rows in `range` from the tablet's group, once per operation id; returns the tablet's descriptor.
    ///
    /// No write is evaluated against rows that are dropped before it is applied: it would bring parts of them back.
    ///
    /// # Errors
    /// As [`Tablet::set_schema`].
    pub async fn drop_range(
        &self,
        operation: OperationId,
        range: KeyRange,
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        self.propose_alone(command::drop_range(operation, self.table, range), timeout).await?;
        self.descriptor()
    }

    /// Proposes a command that changes what the table's rows are. No write to the table is evaluated before it and applied after it.
    async fn propose_alone(&self, command: CommandKind, timeout: Duration) -> Result<(), Failure> {
        let deadline = Deadline::after(&self.runtime.clock, timeout);
        let mode = if Failpoint::DropUnlatched.is_enabled() { LatchMode::Shared } else { LatchMode::Exclusive };
        let table = self.table_latch_key();
        let latch = tokio::time::timeout(timeout, self.latches.acquire(&table, mode));
        let latch = latch.await.map_err(|_elapsed| Failure::deadline())?;
        self.propose_holding(command, deadline.remaining(&self.runtime.clock), latch).await.map(drop)
    }

    /// Passes a result on; an error of damaged data becomes what the caller must know.
    pub(in crate::tablet) fn unless_damaged<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|failure| match failure.error.reason {
            Reason::DataDamaged => self.group.report_damage(self.id, failure.error),
            _ => failure,
        })
    }

    /// Fails unless `generation` is the tablet's.
    pub(crate) fn check_generation(metadata: &TabletMetadata, generation: Generation) -> Result<(), Failure> {
        if metadata.descriptor.generation == generation {
            Ok(())
        } else {
            Err(Failure::wrong_tablet(metadata.descriptor.clone()))
        }
    }
}
