//! When the messages were sent that a quorum has acknowledged. Each acknowledgment counts for the message that it answers.
//!
//! openraft keeps such times too, but some of them are later than the truth: when a response covers all entries that were
//! sent, openraft also counts a later request without entries (a commit notice) as acknowledged, although that request may
//! still be in flight, or lost. A follower that answers late because its disk is slow gave its promise when the *entries*
//! arrived. A lease counted from the later request would outlive that promise, and a quorum would seem confirmed that was
//! never asked. So the leader lease and the read index count from these times alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::Term;
use parking_lot::Mutex;

/// What the followers of one group have acknowledged, recorded by the group's peers. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct QuorumTracker(Arc<Mutex<Acknowledgments>>);

/// Locked to read or to record one acknowledgment.
#[derive(Debug, Default)]
struct Acknowledgments {
    /// The latest term in which a follower acknowledged anything; all times belong to it.
    term: Term,
    /// For each follower that has acknowledged anything: when the latest acknowledged message was sent, as time since boot.
    sent: Vec<(u64, Duration)>,
}

impl QuorumTracker {
    /// Records that `follower` has accepted the message that was sent to it at `sent` in this term.
    pub(in crate::raft) fn record(&self, term: Term, follower: u64, sent: Duration) {
        let mut state = self.0.lock();
        if term > state.term {
            *state = Acknowledgments { term, sent: Vec::new() };
        }
        if term < state.term {
            return;
        }
        match state.sent.iter_mut().find(|(known, _)| *known == follower) {
            Some((_, latest)) => *latest = (*latest).max(sent),
            None => state.sent.push((follower, sent)),
        }
    }

    /// The latest time such that a majority of each set of voters has acknowledged a message of this term sent then or later. The
    /// leader itself acknowledges everything at once.
    pub(in crate::raft) fn acknowledged_by_quorum(
        &self,
        term: Term,
        voters: &[BTreeSet<u64>],
        leader: u64,
    ) -> Option<Duration> {
        let state = self.0.lock();
        if state.term != term && voters.iter().any(|set| set.iter().any(|voter| *voter != leader)) {
            return None;
        }
        // Without a set of voters there is no quorum.
        voters.iter().map(|set| state.by_majority(set, leader)).min().flatten()
    }
}

impl Acknowledgments {
    fn by_voter(&self, voter: u64, leader: u64) -> Option<Duration> {
        if voter == leader {
            return Some(Duration::MAX);
        }
        self.sent.iter().find(|(known, _)| *known == voter).map(|(_, sent)| *sent)
    }

    fn by_majority(&self, set: &BTreeSet<u64>, leader: u64) -> Option<Duration> {
        let times = || set.iter().filter_map(|voter| self.by_voter(*voter, leader));
        times().filter(|since| times().filter(|other| other >= since).count() > set.len() / 2).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn term(number: u64) -> Term {
        Term::new(number)
    }

    fn tracker(number: u64, times: &[(u64, u64)]) -> QuorumTracker {
        let tracker = QuorumTracker::default();
        for (follower, seconds) in times {
            tracker.record(term(number), *follower, at(*seconds));
        }
        tracker
    }

    fn sets<const N: usize>(sets: [&[u64]; N]) -> Vec<BTreeSet<u64>> {
        sets.iter().map(|set| set.iter().copied().collect()).collect()
    }

    #[test]
    fn the_leader_and_the_fastest_followers_are_the_quorum() {
        let three = sets([&[1, 2, 3]]);
        assert_eq!(tracker(4, &[(2, 10), (3, 12), (3, 11)]).acknowledged_by_quorum(term(4), &three, 1), Some(at(12)));
        assert_eq!(tracker(4, &[(3, 12)]).acknowledged_by_quorum(term(4), &three, 1), Some(at(12)));
        assert_eq!(tracker(4, &[]).acknowledged_by_quorum(term(4), &three, 1), None);
        let five = sets([&[1, 2, 3, 4, 5]]);
        assert_eq!(tracker(4, &[(2, 10), (3, 12), (4, 11)]).acknowledged_by_quorum(term(4), &five, 1), Some(at(11)));
        assert_eq!(tracker(4, &[(2, 10)]).acknowledged_by_quorum(term(4), &five, 1), None);
    }

    #[test]
    fn each_set_of_a_joint_configuration_needs_a_majority() {
        let joint = sets([&[1, 2, 3], &[1, 3, 4]]);
        assert_eq!(tracker(4, &[(2, 10)]).acknowledged_by_quorum(term(4), &joint, 1), None);
        assert_eq!(tracker(4, &[(2, 10), (4, 9)]).acknowledged_by_quorum(term(4), &joint, 1), Some(at(9)));
        assert_eq!(tracker(4, &[(3, 10)]).acknowledged_by_quorum(term(4), &joint, 1), Some(at(10)));
        assert_eq!(tracker(4, &[(3, 10)]).acknowledged_by_quorum(term(4), &[], 1), None);
    }

    #[test]
    fn learners_and_other_terms_do_not_count() {
        let three = sets([&[1, 2, 3]]);
        assert_eq!(tracker(4, &[(9, 10)]).acknowledged_by_quorum(term(4), &three, 1), None);
        let tracker = tracker(4, &[(2, 10)]);
        assert_eq!(tracker.acknowledged_by_quorum(term(5), &three, 1), None);
        tracker.record(term(3), 3, at(20));
        assert_eq!(tracker.acknowledged_by_quorum(term(4), &three, 1), Some(at(10)));
        tracker.record(term(5), 3, at(11));
        assert_eq!(
            (tracker.acknowledged_by_quorum(term(4), &three, 1), tracker.acknowledged_by_quorum(term(5), &three, 1)),
            (None, Some(at(11)))
        );
    }

    #[test]
    fn a_sole_voter_is_its_own_quorum() {
        assert_eq!(tracker(4, &[]).acknowledged_by_quorum(term(7), &sets([&[1]]), 1), Some(Duration::MAX));
        // A leader that was removed from the voters is not.
        assert_eq!(tracker(4, &[(2, 10)]).acknowledged_by_quorum(term(4), &sets([&[2, 3]]), 1), None);
    }
}
