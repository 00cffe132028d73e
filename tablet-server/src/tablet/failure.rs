//! Why a tablet did not do what it was asked, with what the caller needs to do better.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::metadata::TabletDescriptor;

/// Who seems to lead a tablet. A hint: when wrong it costs a round trip, never an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The server whose replica leads.
    pub server: ServerId,
    /// The Raft term in which it was seen to lead; of two hints the later term is the better one.
    pub term: u64,
}

/// A refusal of a tablet: the error, and the present picture where the caller's was stale.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened and what the caller should do.
    pub error: Error,
    /// Descriptors that replace what the caller believed; empty where they would not help.
    pub descriptors: Vec<TabletDescriptor>,
    /// Who leads the tablet, as far as this replica knows.
    pub leader: Option<Leader>,
    /// How long to wait before the next attempt, where waiting helps.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that says nothing about places.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self::from(Error::new(reason, message))
    }

    /// The caller's picture of the tablet is stale; `now` is the present one.
    #[must_use]
    pub fn wrong_tablet(now: TabletDescriptor) -> Self {
        Self { descriptors: vec![now], ..Self::new(Reason::WrongTablet, "the tablet has changed") }
    }

    /// This replica does not lead. Nothing of the request was applied.
    #[must_use]
    pub fn not_leader(leader: Option<Leader>) -> Self {
        let reason = if leader.is_some() { Reason::NotLeader } else { Reason::NoLeader };
        Self { leader, ..Self::new(reason, "this replica does not lead the tablet") }
    }

    /// Too much is under way; nothing of the request was applied.
    #[must_use]
    pub fn busy(retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Reason::Busy, "too many bytes are being written") }
    }

    /// The caller's time is over. A write may or may not be applied later.
    #[must_use]
    pub fn deadline() -> Self {
        Self::new(Reason::Deadline, "the deadline passed before the tablet answered")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, descriptors: Vec::new(), leader: None, retry_after: None }
    }
}
