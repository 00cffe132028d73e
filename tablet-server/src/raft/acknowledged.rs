//! When the messages were sent that followers have acknowledged, each answer counted for the message it belongs to.
//!
//! openraft keeps such times too, but at times later than is true: an answer that covers all entries that were sent also
//! acknowledges, in its books, a request that came after them without entries (the news of a commit), which may be on its way
//! yet, or lost. A follower that answers late, because its disk is slow, gave its promise when the *entries* came, so
//! a lease counted from the later request outlives it, and a majority seems asked that was not. So leases are counted from
//! these times alone, and a majority that openraft has asked must show here too.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The times of one group, filled by its peers; clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Acknowledged(Arc<Mutex<Times>>);

/// Guarded for a look or a note.
#[derive(Debug, Default)]
struct Times {
    /// The term that they are of: the latest that anything was acknowledged in.
    term: u64,
    /// For each follower that has acknowledged anything: when the latest of it was sent, as time since boot.
    sent: Vec<(u64, Duration)>,
}

impl Acknowledged {
    /// `follower` has accepted what was sent to it in this term at that moment.
    pub(super) fn note(&self, term: u64, follower: u64, sent: Duration) {
        let mut times = self.held();
        if term > times.term {
            *times = Times { term, sent: Vec::new() };
        }
        if term < times.term {
            return;
        }
        match times.sent.iter_mut().find(|(known, _)| *known == follower) {
            Some((_, latest)) => *latest = (*latest).max(sent),
            None => times.sent.push((follower, sent)),
        }
    }

    /// The latest moment from which on a majority of each set of voters has accepted something that was sent in this term. The
    /// leader itself accepts everything at once.
    pub(super) fn by_majority(&self, term: u64, voters: &[BTreeSet<u64>], leader: u64) -> Option<Duration> {
        let times = self.held();
        if times.term != term && voters.iter().any(|set| set.iter().any(|voter| *voter != leader)) {
            return None;
        }
        // No sets, no majority.
        voters.iter().map(|set| times.of_majority(set, leader)).min().flatten()
    }

    fn held(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Times {
    fn of(&self, voter: u64, leader: u64) -> Option<Duration> {
        if voter == leader {
            return Some(Duration::MAX);
        }
        self.sent.iter().find(|(known, _)| *known == voter).map(|(_, sent)| *sent)
    }

    fn of_majority(&self, set: &BTreeSet<u64>, leader: u64) -> Option<Duration> {
        let times = || set.iter().filter_map(|voter| self.of(*voter, leader));
        times().filter(|since| times().filter(|other| other >= since).count() > set.len() / 2).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn noted(term: u64, times: &[(u64, u64)]) -> Acknowledged {
        let acknowledged = Acknowledged::default();
        for (follower, seconds) in times {
            acknowledged.note(term, *follower, at(*seconds));
        }
        acknowledged
    }

    fn sets<const N: usize>(sets: [&[u64]; N]) -> Vec<BTreeSet<u64>> {
        sets.iter().map(|set| set.iter().copied().collect()).collect()
    }

    #[test]
    fn the_leader_and_the_fastest_others_are_the_majority() {
        let three = sets([&[1, 2, 3]]);
        assert_eq!(noted(4, &[(2, 10), (3, 12), (3, 11)]).by_majority(4, &three, 1), Some(at(12)));
        assert_eq!(noted(4, &[(3, 12)]).by_majority(4, &three, 1), Some(at(12)));
        assert_eq!(noted(4, &[]).by_majority(4, &three, 1), None);
        let five = sets([&[1, 2, 3, 4, 5]]);
        assert_eq!(noted(4, &[(2, 10), (3, 12), (4, 11)]).by_majority(4, &five, 1), Some(at(11)));
        assert_eq!(noted(4, &[(2, 10)]).by_majority(4, &five, 1), None);
    }

    #[test]
    fn each_of_two_sets_needs_its_majority() {
        let joint = sets([&[1, 2, 3], &[1, 3, 4]]);
        assert_eq!(noted(4, &[(2, 10)]).by_majority(4, &joint, 1), None);
        assert_eq!(noted(4, &[(2, 10), (4, 9)]).by_majority(4, &joint, 1), Some(at(9)));
        assert_eq!(noted(4, &[(3, 10)]).by_majority(4, &joint, 1), Some(at(10)));
        assert_eq!(noted(4, &[(3, 10)]).by_majority(4, &[], 1), None);
    }

    #[test]
    fn learners_and_other_terms_do_not_count() {
        let three = sets([&[1, 2, 3]]);
        assert_eq!(noted(4, &[(9, 10)]).by_majority(4, &three, 1), None);
        let acknowledged = noted(4, &[(2, 10)]);
        assert_eq!(acknowledged.by_majority(5, &three, 1), None);
        acknowledged.note(3, 3, at(20));
        assert_eq!(acknowledged.by_majority(4, &three, 1), Some(at(10)));
        acknowledged.note(5, 3, at(11));
        assert_eq!(
            (acknowledged.by_majority(4, &three, 1), acknowledged.by_majority(5, &three, 1)),
            (None, Some(at(11)))
        );
    }

    #[test]
    fn a_leader_alone_is_its_own_majority() {
        assert_eq!(noted(4, &[]).by_majority(7, &sets([&[1]]), 1), Some(Duration::MAX));
        // One that has been voted out is not.
        assert_eq!(noted(4, &[(2, 10)]).by_majority(4, &sets([&[2, 3]]), 1), None);
    }
}
