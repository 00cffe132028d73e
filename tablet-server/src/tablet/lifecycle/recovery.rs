//! What becomes of a replica that cannot run, as a pure function of the failure.
//!
//! | failure | reason | recovery |
//! |---|---|---|
//! | the disk is full, no more files can be opened | `ResourceExhausted` | the replica is closed and opened again after a pause |
//! | bytes of the log are damaged | `DataDamaged` | quarantine: the master replaces the replica from its peers |
//! | bytes of the store are damaged, files are missing | `DataDamaged` | quarantine, if the other members are a majority and respond |
//! | ... and they are none, or do not respond | `DataDamaged` | opened again after a pause: it votes, and serves what is readable |
//! | a store cannot be opened for another reason | any other | opened again after a pause: no other replica is concerned |
//! | the core of a running replica ended for another reason | any other | the process ends: an invariant or the disk is broken |
//! | the server stops | `Cancelled`, `Unavailable` | none is needed; opening again fails in the same way |
//!
//! A replica that waits is reported as one that does not run, so the master replaces it if it waits for longer than the grace.
//!
//! A replica with a damaged store may vote: its promises are in the log. One with a damaged log may not. So a damaged store is given
//! up only when the others are known to respond: at that moment another server may have been lost.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::ReplicaId;
use ebla_model::metadata::{Membership, Replica};
use ebla_runtime::Failpoint;

use crate::raft::FaultPart;

/// The pause before the first attempt to open a replica again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Whether a group can go on without one of its voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Majority {
    /// The other members are a majority, and have just responded.
    WithoutIt,
    /// They are none, do not respond, or were not asked.
    NeedsIt,
}

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
    /// The members of the replica's group; `None`: it is no voter, or its store could not be read.
    pub(super) membership: Option<Membership>,
}

impl ReplicaFailure {
    /// A failure of a replica whose state is not known.
    pub(super) const fn unknown(error: Error) -> Self {
        Self { error, part: FaultPart::StateMachine, membership: None }
    }
}

/// The members of a group, if `replica` is one of its voters.
pub(super) fn membership_with(membership: &Membership, replica: ReplicaId) -> Option<Membership> {
    membership.is_voter(replica).then(|| membership.clone())
}

/// Whether the group can go on without its voter `own`. `sound`: the other replicas that run and are not damaged.
pub(super) fn majority_without(membership: &Membership, own: ReplicaId, sound: &BTreeSet<ReplicaId>) -> Majority {
    let has_voters = !membership.voters.is_empty();
    let others = |replica: Replica| replica.replica != own && sound.contains(&replica.replica);
    if has_voters && membership.has_majority(others) { Majority::WithoutIt } else { Majority::NeedsIt }
}

/// What becomes of a replica that failed.
pub(super) fn recovery(stage: Stage, failure: &ReplicaFailure, majority: Majority) -> Recovery {
    match (stage, failure.error.reason, failure.part) {
        (_, Reason::DataDamaged, FaultPart::StateMachine) if Failpoint::DamagedStoreReopened.is_enabled() => {
            Recovery::Reopen
        }
        (_, Reason::DataDamaged, FaultPart::StateMachine)
            if failure.membership.is_some() && majority == Majority::NeedsIt =>
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

    fn failure(reason: Reason, part: FaultPart, voters: Option<u64>) -> ReplicaFailure {
        let membership = voters.map(|voters| Membership::initial(&(1..=voters).map(ServerId::new).collect::<Vec<_>>()));
        ReplicaFailure { error: Error::new(reason, "failed"), part, membership }
    }

    /// The recoveries while it is opened and while it runs.
    fn recoveries(reason: Reason, part: FaultPart, voters: Option<u64>, majority: Majority) -> [Recovery; 2] {
        STAGES.map(|stage| recovery(stage, &failure(reason, part, voters), majority))
    }

    #[test]
    fn a_damaged_store_is_quarantined_only_if_the_group_can_go_on_without_it() {
        use Recovery::{Quarantine, ReopenDamaged};
        for voters in [1, 2, 3, 5] {
            let found = |majority| recoveries(Reason::DataDamaged, FaultPart::StateMachine, Some(voters), majority);
            assert_eq!(found(Majority::NeedsIt), [ReopenDamaged; 2]);
            assert_eq!(found(Majority::WithoutIt), [Quarantine; 2]);
        }
        // A learner, or one whose state cannot be read: there is nothing to serve.
        let unknown = recoveries(Reason::DataDamaged, FaultPart::StateMachine, None, Majority::NeedsIt);
        assert_eq!(unknown, [Quarantine; 2]);
    }

    #[test]
    fn a_damaged_log_is_quarantined_whatever_the_others_do() {
        for voters in [None, Some(1), Some(2), Some(3)] {
            for majority in [Majority::NeedsIt, Majority::WithoutIt] {
                let found = recoveries(Reason::DataDamaged, FaultPart::Log, voters, majority);
                assert_eq!(found, [Recovery::Quarantine; 2], "{voters:?} voters");
            }
        }
    }

    #[test]
    fn the_others_are_a_majority_if_enough_of_them_are_sound() {
        let [first, second, third, fourth] = [1, 2, 3, 4].map(ReplicaId::new);
        let mut membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        let majority = |membership: &Membership, sound: &[ReplicaId]| {
            majority_without(membership, first, &sound.iter().copied().collect())
        };
        assert_eq!(majority(&membership, &[second, third]), Majority::WithoutIt);
        assert_eq!(majority(&membership, &[third]), Majority::NeedsIt);
        assert_eq!(majority(&membership, &[first, third, fourth]), Majority::NeedsIt, "itself and others do not count");
        membership.voters = vec![[first].into(), [first, second, third].into()];
        assert_eq!(majority(&membership, &[second, third]), Majority::NeedsIt, "during a change");
        membership.voters = vec![[first, second].into()];
        assert_eq!(majority(&membership, &[second]), Majority::NeedsIt);
        assert_eq!(majority(&Membership::default(), &[second, third]), Majority::NeedsIt);
    }

    #[test]
    fn a_replica_without_resources_waits() {
        for part in [FaultPart::Log, FaultPart::StateMachine] {
            for voters in [None, Some(1), Some(3)] {
                let found = recoveries(Reason::ResourceExhausted, part, voters, Majority::WithoutIt);
                assert_eq!(found, [Recovery::Reopen; 2]);
            }
        }
    }

    #[test]
    fn only_a_running_replica_ends_the_process() {
        for reason in Reason::ALL {
            let [opening, _running] = recoveries(*reason, FaultPart::StateMachine, Some(3), Majority::WithoutIt);
            assert_ne!(opening, Recovery::EndProcess, "{reason}");
        }
        let running = |reason| recoveries(reason, FaultPart::StateMachine, Some(1), Majority::NeedsIt)[1];
        assert_eq!(running(Reason::Internal), Recovery::EndProcess);
        assert_eq!(running(Reason::Cancelled), Recovery::Reopen, "the server is stopping");
    }

    #[test]
    fn only_a_voter_has_members_that_need_it() {
        let mut membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        let [first, second] = [1, 2].map(ReplicaId::new);
        assert_eq!(membership_with(&membership, first).as_ref(), Some(&membership));
        membership.voters = vec![[first].into()];
        assert_eq!(membership_with(&membership, second), None);
        assert_eq!(membership_with(&Membership::default(), first), None);
    }

    #[test]
    fn the_pause_grows_to_its_maximum() {
        let pauses = [0, 1, 2, 9, 1_000].map(reopen_pause);
        assert_eq!(pauses[..3], [500, 1_000, 2_000].map(Duration::from_millis));
        assert_eq!(pauses[3..], [PAUSE_MAX; 2]);
    }
}
