//! The failure of a tablet request: the error, with the data that the caller needs to retry better.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ServerId, TabletId, Term};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;

/// The pause that a caller should make while a tablet moves: a small one moves in less.
const MOVE_PAUSE: Duration = Duration::from_millis(20);

/// The presumed leader of a tablet. A hint: a wrong one costs a round trip, never correctness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The server whose replica leads.
    pub server: ServerId,
    /// The Raft term in which it was seen to lead; the hint with the later term is better.
    pub term: Term,
}

/// The failure of a request: the error, and current routing data if the caller's was stale.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The reason and the message.
    pub error: Error,
    /// Descriptors that replace the caller's stale ones; empty where they would not help.
    pub descriptors: Vec<TabletDescriptor>,
    /// The tablet's leader, as far as this replica knows.
    pub leader: Option<Leader>,
    /// The pause before the next attempt, where waiting helps.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without routing data.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self::from(Error::new(reason, message))
    }

    /// The caller's descriptor of the tablet is stale; `now` is the current one.
    #[must_use]
    pub fn wrong_tablet(now: TabletDescriptor) -> Self {
        Self { descriptors: vec![now], ..Self::new(Reason::WrongTablet, "the tablet's range or replicas have changed") }
    }

    /// This replica does not lead. Nothing of the request was applied.
    #[must_use]
    pub fn not_leader(leader: Option<Leader>) -> Self {
        let reason = if leader.is_some() { Reason::NotLeader } else { Reason::NoLeader };
        Self { leader, ..Self::new(reason, "this replica is not the tablet's leader") }
    }

    /// Admission control refused the request; nothing of it was applied.
    #[must_use]
    pub fn busy(retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(
                Reason::Busy,
                "the tablet is overloaded, or another operation on it is in progress; retry later",
            )
        }
    }

    /// The caller's deadline passed while the write waited for its proposal; nothing of it was applied.
    #[must_use]
    pub fn too_late(retry_after: Duration) -> Self {
        let message = "the deadline passed while the write waited to be proposed; it was not applied";
        Self { retry_after: Some(retry_after), ..Self::new(Reason::Busy, message) }
    }

    /// The tablet is being moved to another group, and is not served until it is there. Nothing of the request was applied.
    #[must_use]
    pub fn moving(target: GroupId) -> Self {
        let message = format!("the tablet is being moved to group {target}; retry soon");
        Self { retry_after: Some(MOVE_PAUSE), ..Self::new(Reason::Busy, message) }
    }

    /// A request needs bytes that are damaged in the only replica of the tablet's group, which is on `server`.
    #[must_use]
    pub fn damaged(table: &TableName, tablet: TabletId, server: ServerId, cause: &Error) -> Self {
        let message = format!(
            "some rows of table {table} cannot be read: a block of tablet {tablet} is damaged, and tablet server {server} has its only \
             replica; the other rows can be read: restore the lost ones from a copy, and check the disk (docs/operate/\
             troubleshooting.md, damaged data); {cause}"
        );
        Self::new(Reason::DataDamaged, message)
    }

    /// The caller's deadline has passed. A write may or may not be applied later.
    #[must_use]
    pub fn deadline() -> Self {
        Self::new(Reason::Deadline, "the deadline passed before the tablet responded")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, descriptors: Vec::new(), leader: None, retry_after: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_without_another_replica_names_the_table_and_the_next_step() {
        let table = TableName::from_parts("p", "i", "t").unwrap();
        let cause = Error::damaged("read cells: data is damaged: Corruption: block checksum mismatch");
        let failure = Failure::damaged(&table, TabletId::new(7), ServerId::new(1), &cause);
        assert_eq!(failure.error.reason, Reason::DataDamaged);
        assert_eq!(
            failure.error.message,
            "some rows of table projects/p/instances/i/tables/t cannot be read: a block of tablet 7 is damaged, and tablet server 1 \
             has its only replica; the other rows can be read: restore the lost ones from a copy, and check the disk \
             (docs/operate/troubleshooting.md, damaged data); read cells: data is damaged: Corruption: block checksum mismatch"
        );
    }
}
