//! What stands in a tablet's log, and what applying it answers.
//!
//! Commands are resolved: no clock, no condition, no name of a family is left to be looked up when one is applied.

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
    /// The leader's clock when it proposed this. Apply takes the greatest seen so far as the log's time.
    pub time: Micros,
    /// What to do.
    pub kind: CommandKind,
}

/// What a command does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Writes rows, each for itself.
    Write(Vec<RowWrite>),
    /// Divides the tablet: what is at or above `at` becomes the tablet `child`.
    Split {
        /// The child's first key; strictly inside the tablet's range.
        at: RowKey,
        /// The child's id, never used before.
        child: TabletId,
    },
    /// Takes this schema unless the present one is as new.
    SetSchema(TableSchema),
    /// Deletes the rows of a range.
    DropRange {
        /// Applied once.
        operation: OperationId,
        /// Clamped to the tablet's range.
        range: KeyRange,
    },
    /// Ends the tablet: its table is deleted.
    Drop {
        /// Applied once.
        operation: OperationId,
    },
    /// Removes what the garbage collection rules call dead.
    Collect {
        /// Clamped to the tablet's range.
        range: KeyRange,
        /// The GC time to judge by.
        time: Micros,
    },
    /// Nothing but the time.
    Tick,
}

/// The changes of one row, applied together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowWrite {
    /// Who writes.
    pub session: SessionId,
    /// Which of its writes this is.
    pub sequence: Sequence,
    /// The lowest number that the session may still send.
    pub lowest_outstanding: Sequence,
    /// The row.
    pub row: RowKey,
    /// Taken in order.
    pub changes: Vec<Change>,
    /// Kept with the session and the token, to answer the same request again.
    pub result: Option<Bytes>,
    /// The caller's own name for the write.
    pub token: Option<CallToken>,
}

/// An idempotency token, and what kind of call it was given to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallToken {
    /// The kind of call.
    pub kind: CallKind,
    /// The token.
    pub token: IdempotencyToken,
}

impl CallToken {
    /// What a tablet knows a write of this row by.
    pub fn key(&self, row: &RowKey) -> Bytes {
        self.token.key(row, self.kind)
    }
}

/// What applying a command answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// One for each row of a `Write`, in its order.
    Write(Vec<RowReply>),
    /// The two halves.
    Split {
        /// The tablet as it goes on.
        left: Box<TabletDescriptor>,
        /// The child.
        right: Box<TabletDescriptor>,
    },
    /// It was applied.
    Done,
    /// It was not applied, on no replica.
    Refused(Refusal),
}

/// What became of one row's write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowReply {
    /// It was applied.
    Applied,
    /// It had been applied before, with this result where one was kept.
    Duplicate(Option<Bytes>),
    /// It was not applied, on no replica.
    Refused(Refusal),
}

/// Why a command or a row's write was not applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind that a program acts on.
    pub kind: RefusalKind,
    /// The facts, for a person.
    pub message: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The row is not, or no longer, in the tablet's range.
    OutOfRange,
    /// A family was dropped between proposal and apply.
    UnknownFamily,
    /// The tablet was dropped.
    Dropped,
    /// The session declared this write answered.
    SessionForgotten,
    /// The tablet's state forbids it for now.
    NotNow,
    /// Its idempotency token may have been forgotten, or would be too early.
    TokenOutOfTime,
}
