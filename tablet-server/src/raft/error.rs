//! The errors of replication. Each variant says what the caller may do next.

use ebla_model::id::ReplicaId;
use ebla_model::metadata::Replica;
use thiserror::Error;

/// This replica cannot continue: its group stops, grants no vote and acknowledges nothing, until the master or an operator
/// replaces or repairs it.
///
/// A failure that a command itself causes is never a fault: it is the command's result, the same on all replicas.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Fault {
    message: String,
}

impl Fault {
    /// A fault with a readable reason.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
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
    /// The log or the state machine is damaged or unreadable.
    #[error("cannot start raft group: {0}")]
    Damaged(String),
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
