//! What can go wrong, told so that the caller knows what it may do next.

use ebla_model::id::ReplicaId;
use ebla_model::metadata::Replica;
use thiserror::Error;

/// This replica cannot go on: its group stops, gives no vote and no acknowledgement, and a person or the master looks.
///
/// Never for what a command may cause by itself: that is an answer, the same on all replicas.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Fault {
    message: String,
}

impl Fault {
    /// A fault with its reason in words.
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
    #[error("raft settings: {0}")]
    Settings(String),
    /// Log or state machine are damaged or unreadable.
    #[error("start raft group: {0}")]
    Damaged(String),
}

/// What became of a proposed command that has no answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProposeError {
    /// Surely not in any log: propose it elsewhere.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, as far as is known here.
        hint: Option<Replica>,
    },
    /// It may be applied, now or later, or never.
    #[error("outcome unknown")]
    Unknown,
    /// Surely not in any log; this replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// Why a read must not be served here now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// Ask the leader.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, as far as is known here.
        hint: Option<Replica>,
    },
    /// No majority confirmed the leadership in time.
    #[error("leadership was not confirmed in time")]
    Timeout,
    /// This replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// Why leadership was not handed over.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TransferError {
    /// Only the leader can.
    #[error("not the leader")]
    NotLeader,
    /// Not a voter.
    #[error("replica {0} does not vote")]
    NotVoter(ReplicaId),
    /// The target did not catch up in time; leadership stays here.
    #[error("the target lags")]
    Lags,
    /// The target did not take over in time: there is no leader until the next election.
    #[error("the target did not take over")]
    NotTaken,
    /// This replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// Why the membership was not changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// Only the leader can.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, as far as is known here.
        hint: Option<Replica>,
    },
    /// The membership is not the one that the order was made for.
    #[error("the membership has changed: {0}")]
    Stale(String),
    /// Another change is under way.
    #[error("a change is under way")]
    Busy,
    /// The new replica has not caught up in time; it stays a learner and goes on.
    #[error("the new replica has not caught up in time")]
    Behind,
    /// The change is not possible; transfer leadership first when it removes the leader.
    #[error("refused: {0}")]
    Refused(String),
    /// It may be applied, now or later, or never: look at the membership.
    #[error("outcome unknown")]
    Unknown,
}
