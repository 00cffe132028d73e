//! The errors of replication. Each variant says what the caller may do next.

use ebla_model::Reason;
use ebla_model::id::ReplicaId;
use ebla_model::metadata::Replica;
use ebla_storage::log::LogError;
use openraft::errors::ErrorSource;
use thiserror::Error;

/// This replica cannot continue: its core ends, grants no vote and acknowledges nothing. The reason decides what becomes of the
/// replica: it is opened again, quarantined, or the process ends (`tablet::lifecycle::recovery`).
///
/// A failure that a command itself causes is never a fault: it is the command's result, the same on all replicas.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Fault {
    reason: Reason,
    part: FaultPart,
    message: String,
}

/// Where a fault comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPart {
    /// The group's log: what it has promised may be lost.
    Log,
    /// The state machine with its store, or another part that has promised nothing.
    StateMachine,
}

impl Fault {
    /// A fault by a broken invariant or an unexpected failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self::with_reason(Reason::Internal, message)
    }

    /// A fault by damaged bytes in the log.
    pub fn damaged_log(message: impl Into<String>) -> Self {
        Self::of_log(Reason::DataDamaged, message)
    }

    /// A fault of the log, of this reason.
    pub fn of_log(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, part: FaultPart::Log, message: message.into() }
    }

    /// A fault of the state machine or another part, of this reason.
    pub fn with_reason(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, part: FaultPart::StateMachine, message: message.into() }
    }

    /// Where it comes from.
    pub const fn part(&self) -> FaultPart {
        self.part
    }

    /// What happened.
    pub const fn reason(&self) -> Reason {
        self.reason
    }
}

impl From<Fault> for ebla_model::error::Error {
    fn from(fault: Fault) -> Self {
        Self::new(fault.reason, fault.message)
    }
}

impl From<LogError> for Fault {
    fn from(error: LogError) -> Self {
        let reason = match &error {
            LogError::Damaged { .. } | LogError::Quarantined(_) => Reason::DataDamaged,
            LogError::Stopped | LogError::UnknownGroup(_) => Reason::Cancelled,
            // Met only when the log is opened.
            LogError::LaterFormat { .. } => Reason::FailedPrecondition,
            LogError::NoSpace { .. } => Reason::ResourceExhausted,
            LogError::Disk { .. } | LogError::OutOfOrder { .. } | LogError::TooLarge(_) => Reason::Internal,
        };
        Self::of_log(reason, error.to_string())
    }
}

/// openraft passes errors of the storage on as faults, so that their reasons are not lost.
impl ErrorSource for Fault {
    fn from_error<E: std::error::Error + 'static>(error: &E) -> Self {
        let error: &(dyn std::error::Error + 'static) = error;
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let fault = inner.and_then(|inner| inner.downcast_ref::<Self>());
        fault.cloned().unwrap_or_else(|| Self::new(error.to_string()))
    }

    fn from_string(message: impl ToString) -> Self {
        Self::new(message.to_string())
    }
}

impl From<Fault> for std::io::Error {
    fn from(fault: Fault) -> Self {
        Self::other(fault)
    }
}

/// Why a group could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The settings contradict each other.
    #[error("invalid raft settings: {0}")]
    Settings(String),
    /// The log or the state machine cannot be used.
    #[error("cannot start raft group: {0}")]
    Faulty(Fault),
    /// The server is stopping.
    #[error("cannot start raft group: the server is stopping")]
    Stopping,
}

impl StartError {
    /// Where the failure comes from.
    pub const fn part(&self) -> FaultPart {
        match self {
            Self::Faulty(fault) => fault.part(),
            Self::Settings(_) | Self::Stopping => FaultPart::StateMachine,
        }
    }
}

impl From<StartError> for ebla_model::error::Error {
    fn from(error: StartError) -> Self {
        let reason = match &error {
            StartError::Settings(_) => Reason::Internal,
            StartError::Faulty(fault) => fault.reason,
            StartError::Stopping => Reason::Cancelled,
        };
        Self::new(reason, error.to_string())
    }
}

/// Why a proposed command has no result.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProposeError {
    /// The command is certainly in no log: propose it at the leader.
    #[error("this replica is not the leader")]
    NotLeader {
        /// The leader, if this replica knows it.
        hint: Option<Replica>,
    },
    /// The command may be applied, now or later, or never.
    #[error("outcome of the proposal is unknown: it may still be applied")]
    Unknown,
    /// The command is certainly in no log; this replica has stopped.
    #[error("this replica has stopped")]
    Stopped,
}

/// Why this replica must not serve a read now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReadIndexError {
    /// Another replica leads: send the read there.
    #[error("this replica is not the leader")]
    NotLeader {
        /// The leader, if this replica knows it.
        hint: Option<Replica>,
    },
    /// No quorum confirmed the leadership before the deadline.
    #[error("no quorum confirmed the leadership before the deadline")]
    Timeout,
    /// This replica has stopped.
    #[error("this replica has stopped")]
    Stopped,
}

/// Why leadership was not transferred.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TransferError {
    /// Only the leader can do this.
    #[error("this replica is not the leader")]
    NotLeader,
    /// The target is no voter.
    #[error("replica {0} is not a voter")]
    NotVoter(ReplicaId),
    /// The target did not catch up in time; this replica still leads.
    #[error("the target of the leadership transfer has not caught up; try again later")]
    TargetBehind,
    /// The target was not elected in time: there is no leader until the next election.
    #[error("the target of the leadership transfer was not elected in time")]
    TargetNotElected,
    /// This replica has stopped.
    #[error("this replica has stopped")]
    Stopped,
}

/// Why the membership was not changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MembershipError {
    /// Only the leader can do this.
    #[error("this replica is not the leader")]
    NotLeader {
        /// The leader, if this replica knows it.
        hint: Option<Replica>,
    },
    /// The membership is not the one that the change expects.
    #[error("the membership has changed meanwhile: {0}")]
    Stale(String),
    /// Another membership change is in progress.
    #[error("another membership change is in progress; try again later")]
    Busy,
    /// The new replica has not caught up in time; it stays a learner and continues to catch up.
    #[error("the new replica has not caught up in time; it continues as a learner")]
    LearnerBehind,
    /// The change is not possible; if it removes the leader, transfer leadership first.
    #[error("membership change refused: {0}")]
    Refused(String),
    /// The change may be applied, now or later, or never: inspect the membership.
    #[error("outcome of the membership change is unknown: it may still be applied")]
    Unknown,
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_fault_keeps_its_reason_on_its_way_through_openraft() {
        let fault = Fault::with_reason(Reason::ResourceExhausted, "no space");
        assert_eq!(Fault::from_error(&io::Error::from(fault.clone())), fault);
        let of_log = Fault::damaged_log("a record");
        assert_eq!(Fault::from_error(&io::Error::from(of_log)).part(), FaultPart::Log);
        let other = io::Error::other("unexpected");
        assert_eq!(Fault::from_error(&other), Fault::new("unexpected"));
        assert_eq!(Fault::from_error(&io::Error::from_raw_os_error(5)).reason(), Reason::Internal);
    }
}
