//! Errors of the commit log.

use std::io;
use std::sync::Arc;

use ebla_model::error::ErrorKind;
use ebla_model::id::LogIndex;

use super::record::GroupReplica;

/// Why the log rejected or failed a call.
///
/// Cloneable, because a disk failure is reported to every waiting submission and to every later call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The disk failed. A failed write is final: the state of the last write is unknown, the log accepts nothing more, and
    /// the process must exit. A failed read is returned to its caller only.
    #[error("commit log: {action}: {message}")]
    Disk {
        /// The operation that failed.
        action: &'static str,
        /// Kind of the system's error.
        kind: io::ErrorKind,
        /// Message of the system's error.
        message: Arc<str>,
    },
    /// The disk has no space for a batch or for a new segment. Nothing of it counts as written: the same step can be repeated when there is
    /// space.
    #[error("commit log: {action}: {message}")]
    NoSpace {
        /// The operation that failed.
        action: &'static str,
        /// Message of the system's error.
        message: Arc<str>,
    },
    /// A later release wrote the segment. Nothing was changed.
    #[error(
        "commit log segment {segment} has format {format}, written by a later release: start a release that reads it. \
        The log is unchanged"
    )]
    LaterFormat {
        /// The segment.
        segment: u64,
        /// Its format.
        format: u16,
    },
    /// The log has been stopped.
    #[error("the commit log has stopped")]
    Stopped,
    /// The group was never added, or it was removed.
    #[error("group {0} is not in the commit log")]
    UnknownGroup(GroupReplica),
    /// The group's part of the log is damaged: the replica must be replaced under a new id.
    #[error("group {0} is quarantined: its log is damaged; replace the replica")]
    Quarantined(GroupReplica),
    /// The record does not follow the group's log: a bug of the caller. Nothing of the submission was accepted.
    #[error("record of group {group} does not follow its log: expected {expected}, got {got}")]
    OutOfOrder {
        /// The record's group.
        group: GroupReplica,
        /// The next valid index, or the lowest index that a truncation may keep.
        expected: LogIndex,
        /// The index of the record.
        got: LogIndex,
    },
    /// A submission above [`super::SUBMISSION_MAX_BYTES`].
    #[error("submission of {0} bytes exceeds the limit of 512 MiB")]
    TooLarge(usize),
    /// An old entry does not have the bytes that were written: the segment is corrupted. The replica must be replaced.
    #[error("entry {index} of group {group} is damaged in the commit log")]
    Damaged {
        /// The entry's group.
        group: GroupReplica,
        /// The entry's index.
        index: LogIndex,
    },
}

impl LogError {
    /// A failure of the disk while doing `action`.
    pub(crate) fn disk(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Disk { action, kind: error.kind(), message: error.to_string().into() }
    }

    /// A failure of a write that can be repeated if only space was missing. Not for a sync: after it fails, the state of earlier writes is
    /// unknown.
    pub(crate) fn write(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::StorageFull => Self::NoSpace { action, message: error.to_string().into() },
            _ => Self::disk(action)(error),
        }
    }

    /// What the caller should do. Repeating the call here never helps, but for [`Self::NoSpace`] once there is space.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk { .. }
            | Self::LaterFormat { .. }
            | Self::OutOfOrder { .. }
            | Self::Quarantined(_)
            | Self::Damaged { .. } => ErrorKind::GiveUp,
            Self::Stopped | Self::UnknownGroup(_) | Self::NoSpace { .. } => ErrorKind::RetryElsewhere,
            Self::TooLarge(_) => ErrorKind::FixRequest,
        }
    }
}
