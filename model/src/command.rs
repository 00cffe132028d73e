//! Commands of a group's log, and the results of applying them.
//!
//! A group holds tablets of any tables; a command names the tablets or the table that it concerns. Commands are resolved: applying one needs no clock, no condition and no lookup of a family name.

use std::time::Duration;

use bytes::Bytes;

use crate::id::{GroupId, OperationId, Sequence, SessionId, TableId, TabletId};
use crate::idempotency::{CallKind, IdempotencyToken};
use crate::key::{KeyRange, RowKey};
use crate::metadata::TabletDescriptor;
use crate::mutation::Change;
use crate::schema::TableSchema;
use crate::tablet_move::{ImportStatus, MoveId, MoveStep};
use crate::time::Micros;

/// An entry of a group's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The leader's clock at proposal. The log's time at apply is the maximum so far.
    pub time: Micros,
    /// The time since the leader's previous command to this group in the same term, by its monotonic clock; `None` for the first one.
    pub elapsed: Option<Duration>,
    /// The leader's clock, if it is behind `time`: the GC time does not advance beyond it. From [`Feature::LeaderClocks`] on.
    ///
    /// [`Feature::LeaderClocks`]: crate::cluster_version::Feature::LeaderClocks
    pub clock: Option<Micros>,
    /// What to do.
    pub kind: CommandKind,
}

/// What a command does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Writes rows, each atomically.
    Write(Vec<RowWrite>),
    /// Creates tablets of one table, unless this operation was applied before.
    CreateTablets {
        /// Applied once.
        operation: OperationId,
        /// The schema of their table.
        schema: TableSchema,
        /// The tablets.
        tablets: Vec<NewTablet>,
    },
    /// Splits a tablet: its rows at or above `at` become the tablet `child` of the same group.
    Split {
        /// The tablet, which keeps its id for the rows below `at`.
        tablet: TabletId,
        /// The child's first key; strictly inside the tablet's range.
        at: RowKey,
        /// The child's id, never used before.
        child: TabletId,
    },
    /// Merges two adjacent tablets of a table: the rows of `left` become rows of `right`.
    Merge {
        /// The tablet with the lower rows, which is gone afterwards.
        left: TabletId,
        /// The tablet with the higher rows, which keeps its id.
        right: TabletId,
    },
    /// Moves tablets to the new group `child`, which starts with a copy of the store on the same servers.
    Divide {
        /// The tablets to move: some of the group's, not all.
        tablets: Vec<TabletId>,
        /// The new group's id, never used before.
        child: GroupId,
    },
    /// Installs the schema of a table for its tablets in this group, unless the current one is as new.
    SetSchema(TableSchema),
    /// Deletes the rows of a range in all tablets of a table in this group.
    DropRange {
        /// Applied once.
        operation: OperationId,
        /// The table.
        table: TableId,
        /// Clamped to the ranges of the tablets.
        range: KeyRange,
    },
    /// Drops all tablets of a table in this group: the table is deleted.
    Drop {
        /// Applied once.
        operation: OperationId,
        /// The table.
        table: TableId,
    },
    /// Removes the cells of a tablet that are garbage according to the garbage collection rules.
    Collect {
        /// The tablet.
        tablet: TabletId,
        /// Clamped to the tablet's range.
        range: KeyRange,
        /// The GC time for the rules.
        time: Micros,
    },
    /// A step of moving a tablet to another existing group.
    Move(MoveId, MoveStep),
    /// Only advances the log's time.
    Tick,
}

/// A tablet to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTablet {
    /// Its id, never used before.
    pub tablet: TabletId,
    /// Its rows.
    pub range: KeyRange,
}

/// The changes of one row, applied atomically.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowWrite {
    /// The tablet that the row belongs to.
    pub tablet: TabletId,
    /// The writer's session.
    pub session: SessionId,
    /// The write's number in the session.
    pub sequence: Sequence,
    /// The lowest sequence that the session may still send.
    pub lowest_outstanding: Sequence,
    /// The row.
    pub row: RowKey,
    /// Applied in order.
    pub changes: Vec<Change>,
    /// The response, stored with the session and the token for retries of the same request.
    pub result: Option<Bytes>,
    /// The caller's idempotency token.
    pub token: Option<CallToken>,
}

/// An idempotency token and the kind of its call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallToken {
    /// The kind of call.
    pub kind: CallKind,
    /// The token.
    pub token: IdempotencyToken,
}

impl CallToken {
    /// The key of a write of this row in the group's token table. `row`: as in the group's store ([`crate::stored_row`]).
    pub fn key(&self, row: &RowKey) -> Bytes {
        self.token.key(row, self.kind)
    }
}

/// The result of applying a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// One for each row of a `Write`, in its order.
    Write(Vec<RowReply>),
    /// The two halves.
    Split {
        /// The left child, which keeps the tablet's id.
        left: Box<TabletDescriptor>,
        /// The right child.
        right: Box<TabletDescriptor>,
    },
    /// The tablet with the rows of both tablets.
    Merge(Box<TabletDescriptor>),
    /// A step of a move in the target's log.
    Import(ImportStatus),
    /// It was applied.
    Done,
    /// It was not applied, on no replica.
    Refused(Refusal),
}

/// The result of one row's write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowReply {
    /// It was applied.
    Applied,
    /// It was a duplicate of an applied write, with this stored result if there is one.
    Duplicate(Option<Bytes>),
    /// It was not applied, on no replica.
    Refused(Refusal),
}

/// Why a command or a row's write was not applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind, for programs.
    pub kind: RefusalKind,
    /// The facts, for people.
    pub message: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The group does not hold the tablet, or the row is not in the tablet's range (any more).
    OutOfRange,
    /// A family was dropped between proposal and apply.
    UnknownFamily,
    /// The tablet was dropped.
    Dropped,
    /// The session has acknowledged the response of this write.
    SessionForgotten,
    /// The group's state forbids it for now.
    NotNow,
    /// Its idempotency token may have expired, or would expire too early.
    TokenOutOfTime,
}
