//! Decoded entries of a tablet's log.

use ebla_model::command::Command;
use ebla_model::error::Error;
use ebla_model::id::LogId;
use ebla_model::metadata::Membership;

use crate::raft::{CommittedEntry, Payload};
use crate::tablet::core::{apply, command};

/// A decoded log entry.
pub(super) struct DecodedEntry {
    pub(super) id: LogId,
    pub(super) payload: DecodedPayload,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all entries are commands, and a box would cost each of them an allocation"
)]
pub(super) enum DecodedPayload {
    Blank,
    Membership(Membership),
    Command(Command),
}

impl DecodedEntry {
    /// # Errors
    /// When an entry holds a command that this release does not know.
    pub(super) fn decode_all(entries: &[CommittedEntry]) -> Result<Vec<Self>, Error> {
        entries.iter().map(Self::decode).collect()
    }

    fn decode(entry: &CommittedEntry) -> Result<Self, Error> {
        let payload = match &entry.payload {
            Payload::Blank => DecodedPayload::Blank,
            Payload::Membership(membership) => DecodedPayload::Membership(membership.clone()),
            Payload::Command(bytes) => DecodedPayload::Command(command::decode(bytes)?),
        };
        Ok(Self { id: entry.id, payload })
    }

    /// Whether it only puts cells: no stored cell is read, and only a memtable grows.
    pub(super) fn is_put_only(&self) -> bool {
        match &self.payload {
            DecodedPayload::Blank => true,
            DecodedPayload::Membership(_) => false,
            DecodedPayload::Command(command) => apply::is_put_only(&command.kind),
        }
    }
}
