//! Encoding of commands and replies: bytes in the log, values in `model::command`.

use bytes::Bytes;
pub use ebla_model::command::Command;
use ebla_model::command::{CommandKind, Reply, RowWrite};
use ebla_model::error::Error;
use ebla_model::id::{OperationId, TableId};
use ebla_model::key::KeyRange;
use ebla_model::mutation::Change;
use ebla_model::schema::TableSchema;
use ebla_proto::convert;

/// The approximate maximum size of a command, which ends between rows. A larger row has a command of its own.
pub const COMMAND_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Encodes a command.
#[must_use]
pub fn encode(command: &Command) -> Bytes {
    convert::command::encode(command)
}

/// Decodes a command.
///
/// # Errors
/// When these bytes are not a command that this release knows: the replica must stop.
pub fn decode(bytes: &[u8]) -> Result<Command, Error> {
    convert::command::decode(bytes)
}

/// Encodes a reply.
#[must_use]
pub fn encode_reply(reply: &Reply) -> Bytes {
    convert::command::encode_reply(reply)
}

/// Decodes a reply.
///
/// # Errors
/// When these bytes are not a reply.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Error> {
    convert::command::decode_reply(bytes)
}

/// Sets the schema of a table.
#[must_use]
pub const fn set_schema(schema: TableSchema) -> CommandKind {
    CommandKind::SetSchema(schema)
}

/// Deletes the rows of a range of a table, once per operation.
#[must_use]
pub const fn drop_range(operation: OperationId, table: TableId, range: KeyRange) -> CommandKind {
    CommandKind::DropRange { operation, table, range }
}

/// The approximate size of a row's write in a command, in bytes.
#[must_use]
pub fn row_bytes(write: &RowWrite) -> usize {
    let changes: usize = write.changes.iter().map(Change::size_bytes).sum();
    let kept =
        write.result.as_ref().map_or(0, Bytes::len) + write.token.as_ref().map_or(0, |token| token.token.token.len());
    64 + write.row.as_bytes().len() + changes + kept
}
