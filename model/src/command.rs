//! Commands of a tablet's log, and the results of applying them.
//!
//! Commands are resolved: applying one needs no clock, no condition and no lookup of a family name.

use bytes::Bytes;

use crate::id::{OperationId, Sequence, SessionId, TabletId};
use crate::idempotency::{CallKind, IdempotencyToken};
use crate::key::{KeyRange, RowKey};
use crate::metadata::TabletDescriptor;
use crate::mutation::Change;
use crate::schema::TableSchema;
use crate::time::Micros;

/// An entry of a tablet's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The leader's clock at proposal. The log's time at apply is the maximum so far.
    pub time: Micros,
    /// What to do.
    pub kind: CommandKind,
}

/// What a command does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Writes rows, each atomically.
    Write(Vec<RowWrite>),
    /// Splits the tablet: rows at or above `at` become the tablet `child`.
    Split {
        /// The child's first key; strictly inside the tablet's range.
        at: RowKey,
        /// The child's id, never used before.
        child: TabletId,
    },
    /// Installs this schema unless the current one is as new.
    SetSchema(TableSchema),
    /// Deletes the rows of a range.
    DropRange {
        /// Applied once.
        operation: OperationId,
        /// Clamped to the tablet's range.
        range: KeyRange,
    },
    /// Drops the tablet: its table is deleted.
    Drop {
        /// Applied once.
        operation: OperationId,
    },
    /// Removes the cells that are garbage according to the garbage collection rules.
    Collect {
        /// Clamped to the tablet's range.
        range: KeyRange,
        /// The GC time for the rules.
        time: Micros,
    },
    /// Only advances the log's time.
    Tick,
}

/// The changes of one row, applied atomically.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowWrite {
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
    /// The key of a write of this row in the tablet's token table.
    pub fn key(&self, row: &RowKey) -> Bytes {
        self.token.key(row, self.kind)
    }
}

/// The result of applying a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// One for each row of a `Write`, in its order.
    Write(Vec<RowReply>),
    /// The two children.
    Split {
        /// The left child, which keeps the tablet's id.
        left: Box<TabletDescriptor>,
        /// The right child.
        right: Box<TabletDescriptor>,
    },
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
    /// The row is not in the tablet's range (any more).
    OutOfRange,
    /// A family was dropped between proposal and apply.
    UnknownFamily,
    /// The tablet was dropped.
    Dropped,
    /// The session has acknowledged the response of this write.
    SessionForgotten,
    /// The tablet's state forbids it for now.
    NotNow,
    /// Its idempotency token may have expired, or would expire too early.
    TokenOutOfTime,
}
