//! What becomes of a replica that cannot run, as a pure function of the failure.
//!
//! | failure | reason | recovery |
//! |---|---|---|
//! | the disk is full, no more files can be opened | `ResourceExhausted` | the replica is closed and opened again after a pause |
//! | bytes of the log are damaged | `DataDamaged` | quarantine: the master replaces the replica from its peers |
//! | bytes of the store are damaged, files are missing | `DataDamaged` | quarantine, if the group can go on without the replica |
//! | ... and the group has one or two voters | `DataDamaged` | opened again after a pause: it serves what is readable |
//! | a store cannot be opened for another reason | any other | opened again after a pause: no other replica is concerned |
//! | the core of a running replica ended for another reason | any other | the process ends: an invariant or the disk is broken |
//! | the server stops | `Cancelled`, `Unavailable` | none is needed; opening again fails in the same way |
//!
//! A replica that waits is reported as one that does not run, so the master replaces it if it waits for longer than the grace.
//!
//! A replica with a damaged store may vote: its promises are in the log. One with a damaged log may not.

use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::ReplicaId;
use ebla_model::metadata::Membership;

use crate::raft::FaultPart;

/// The pause before the first attempt to open a replica again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The fewest voters of a group that can lose one: the others are a majority.
const VOTERS_MIN: usize = 3;

/// When a replica failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// While it was opened.
    Opening,
    /// While it ran.
    Running,
}

/// What becomes of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// It is opened again after a pause.
    Reopen,
    /// It is opened again after a pause, as far as its store is readable.
    ReopenDamaged,
    /// It is quarantined, and replaced by the master.
    Quarantine,
    /// The process ends.
    EndProcess,
}

/// Why a replica cannot run.
#[derive(Clone, Debug)]
pub(super) struct ReplicaFailure {
    /// What happened.
    pub(super) error: Error,
    /// Where it happened.
    pub(super) part: FaultPart,
    /// The voters of the replica's group; `None`: it is no voter, or its store could not be read.
    pub(super) voters: Option<usize>,
}

impl ReplicaFailure {
    /// A failure of a replica whose state is not known.
    pub(super) const fn unknown(error: Error) -> Self {
        Self { error, part: FaultPart::StateMachine, voters: None }
    }
}

/// The number of voters of a group, if `replica` is one of them.
pub(super) fn voters_with(membership: &Membership, replica: ReplicaId) -> Option<usize> {
    let voters = membership.replicas().filter(|replica| membership.is_voter(replica.replica)).count();
    membership.is_voter(replica).then_some(voters)
}

/// What becomes of a replica that failed.
pub(super) fn recovery(stage: Stage, failure: &ReplicaFailure) -> Recovery {
    match (stage, failure.error.reason, failure.part) {
        (_, Reason::DataDamaged, FaultPart::StateMachine)
            if failure.voters.is_some_and(|voters| voters < VOTERS_MIN) =>
        {
            Recovery::ReopenDamaged
        }
        (_, Reason::DataDamaged, _) => Recovery::Quarantine,
        (_, Reason::ResourceExhausted | Reason::Cancelled | Reason::Unavailable, _) | (Stage::Opening, _, _) => {
            Recovery::Reopen
        }
        (Stage::Running, _, _) => Recovery::EndProcess,
    }
}

/// The pause before an attempt to open a replica again; `attempt`: from 0. It doubles up to 30 s.
pub(super) fn reopen_pause(attempt: u32) -> Duration {
    PAUSE_MIN.saturating_mul(2_u32.saturating_pow(attempt)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;

    use super::*;

    const STAGES: [Stage; 2] = [Stage::Opening, Stage::Running];

    fn failure(reason: Reason, part: FaultPart, voters: Option<usize>) -> ReplicaFailure {
        ReplicaFailure { error: Error::new(reason, "failed"), part, voters }
    }

    /// The recoveries while it is opened and while it runs.
    fn recoveries(reason: Reason, part: FaultPart, voters: Option<usize>) -> [Recovery; 2] {
        STAGES.map(|stage| recovery(stage, &failure(reason, part, voters)))
    }

    #[test]
    fn a_damaged_store_is_quarantined_only_if_the_group_can_go_on_without_it() {
        use Recovery::{Quarantine, ReopenDamaged};
        let table = [
            (Some(1), ReopenDamaged),
            (Some(2), ReopenDamaged),
            (Some(3), Quarantine),
            (Some(5), Quarantine),
            // A learner, or one whose state cannot be read: there is nothing to serve.
            (None, Quarantine),
        ];
        for (voters, expected) in table {
            let found = recoveries(Reason::DataDamaged, FaultPart::StateMachine, voters);
            assert_eq!(found, [expected; 2], "{voters:?} voters");
        }
    }

    #[test]
    fn a_damaged_log_is_quarantined_whatever_the_number_of_voters() {
        for voters in [None, Some(1), Some(2), Some(3)] {
            let found = recoveries(Reason::DataDamaged, FaultPart::Log, voters);
            assert_eq!(found, [Recovery::Quarantine; 2], "{voters:?} voters");
        }
    }

    #[test]
    fn a_replica_without_resources_waits() {
        for part in [FaultPart::Log, FaultPart::StateMachine] {
            for voters in [None, Some(1), Some(3)] {
                assert_eq!(recoveries(Reason::ResourceExhausted, part, voters), [Recovery::Reopen; 2]);
            }
        }
    }

    #[test]
    fn only_a_running_replica_ends_the_process() {
        for reason in Reason::ALL {
            let [opening, _running] = recoveries(*reason, FaultPart::StateMachine, Some(3));
            assert_ne!(opening, Recovery::EndProcess, "{reason}");
        }
        let running = |reason| recoveries(reason, FaultPart::StateMachine, Some(1))[1];
        assert_eq!(running(Reason::Internal), Recovery::EndProcess);
        assert_eq!(running(Reason::Cancelled), Recovery::Reopen, "the server is stopping");
    }

    #[test]
    fn only_voters_count_the_voters() {
        let mut membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        let [first, second, third] = [1, 2, 3].map(ReplicaId::new);
        assert_eq!(voters_with(&membership, first), Some(3));
        membership.voters = vec![[first].into()];
        assert_eq!([first, second].map(|replica| voters_with(&membership, replica)), [Some(1), None]);
        membership.voters = vec![[first].into(), [first, third].into()];
        assert_eq!(voters_with(&membership, third), Some(2), "during a change");
        assert_eq!(voters_with(&Membership::default(), first), None);
    }

    #[test]
    fn the_pause_grows_to_its_maximum() {
        let pauses = [0, 1, 2, 9, 1_000].map(reopen_pause);
        assert_eq!(pauses[..3], [500, 1_000, 2_000].map(Duration::from_millis));
        assert_eq!(pauses[3..], [PAUSE_MAX; 2]);
    }
}
