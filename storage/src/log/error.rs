//! What the commit log can refuse or fail with.

use std::io;
use std::sync::Arc;

use ebla_model::error::ErrorKind;

use super::record::GroupId;

/// Why the log did not do what was asked.
///
/// Cloneable, because a failed disk is told to everyone who waits and to everyone who comes later.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The disk failed. A failed write is final: nothing is known of what was written last, nothing more is accepted, and
    /// the process must end. A failed read is told to who asked.
    #[error("commit log: {action}: {message}")]
    Disk {
        /// What was being done.
        action: &'static str,
        /// What the system said, as a kind.
        kind: io::ErrorKind,
        /// What the system said.
        message: Arc<str>,
    },
    /// The log has been stopped.
    #[error("the commit log has stopped")]
    Stopped,
    /// The group was never added, or was removed.
    #[error("group {0} is not in the commit log")]
    UnknownGroup(GroupId),
    /// What the log holds of this group is damaged: the replica must be replaced under a new id.
    #[error("group {0} is quarantined: its log is damaged")]
    Quarantined(GroupId),
    /// The record does not follow what the group has: a mistake of the caller. Nothing of the submission was accepted.
    #[error("record of group {group} does not follow its log: expected {expected}, got {got}")]
    OutOfOrder {
        /// Whose record.
        group: GroupId,
        /// The index that could come next, or the least that could be kept.
        expected: u64,
        /// The index that came.
        got: u64,
    },
    /// A submission above the bound of one batch ([`super::SUBMISSION_MAX_BYTES`]).
    #[error("submission of {0} bytes is too large")]
    TooLarge(usize),
    /// An old entry could not be read back as it was written: the segment has rotted. The replica must be replaced.
    #[error("entry {index} of group {group} is damaged in the commit log")]
    Damaged {
        /// Whose entry.
        group: GroupId,
        /// Which.
        index: u64,
    },
}

impl LogError {
    /// A failure of the disk while doing `action`.
    pub(crate) fn disk(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Disk { action, kind: error.kind(), message: error.to_string().into() }
    }

    /// What the caller should do. None of them is cured by asking here again.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk { .. } | Self::OutOfOrder { .. } | Self::Quarantined(_) | Self::Damaged { .. } => {
                ErrorKind::GiveUp
            }
            Self::Stopped | Self::UnknownGroup(_) => ErrorKind::RetryElsewhere,
            Self::TooLarge(_) => ErrorKind::FixRequest,
        }
    }
}
