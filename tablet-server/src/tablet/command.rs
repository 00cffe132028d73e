//! Commands on their way into the log and answers on their way back: bytes here, values in `model::command`.

use bytes::Bytes;
pub use ebla_model::command::Command;
use ebla_model::command::{CommandKind, Reply, RowWrite};
use ebla_model::error::Error;
use ebla_model::id::{OperationId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::mutation::Change;
use ebla_model::schema::TableSchema;
use ebla_proto::convert;

/// A command is cut, between rows, when it has about so many bytes. A larger row travels alone.
pub const COMMAND_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The bytes of a command.
#[must_use]
pub fn encode(command: &Command) -> Bytes {
    convert::command::encode(command)
}

/// Reads a command.
///
/// # Errors
/// When these are no bytes of a command that this release knows: the replica must stop.
pub fn decode(bytes: &[u8]) -> Result<Command, Error> {
    convert::command::decode(bytes)
}

/// The bytes of an answer.
#[must_use]
pub fn encode_reply(reply: &Reply) -> Bytes {
    convert::command::encode_reply(reply)
}

/// Reads an answer.
///
/// # Errors
/// When these are no bytes of an answer.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Error> {
    convert::command::decode_reply(bytes)
}

/// Gives a tablet this schema.
#[must_use]
pub const fn set_schema(schema: TableSchema) -> CommandKind {
    CommandKind::SetSchema(schema)
}

/// Deletes the rows of a range, once.
#[must_use]
pub const fn drop_range(operation: OperationId, range: KeyRange) -> CommandKind {
    CommandKind::DropRange { operation, range }
}

/// Ends the tablet.
#[must_use]
pub const fn drop_table(operation: OperationId) -> CommandKind {
    CommandKind::Drop { operation }
}

/// Divides the tablet at `at`.
#[must_use]
pub const fn split(at: RowKey, child: TabletId) -> CommandKind {
    CommandKind::Split { at, child }
}

/// About how many bytes a row's write takes in a command.
#[must_use]
pub fn row_bytes(write: &RowWrite) -> usize {
    let changes: usize = write.changes.iter().map(Change::size_bytes).sum();
    let kept =
        write.result.as_ref().map_or(0, Bytes::len) + write.token.as_ref().map_or(0, |token| token.token.token.len());
    64 + write.row.as_bytes().len() + changes + kept
}
