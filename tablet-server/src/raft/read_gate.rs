//! When a leader may answer a read from its own state without asking anyone.
//!
//! Followers that acknowledged a message refuse to vote for `election_max` after they got it, so until then no other
//! leader can have committed anything. The leader counts from when it *sent* the message, and takes three quarters of
//! that time, because the rule itself has no margin for clocks that differ in speed. A read is linearizable when the
//! lease held at some moment after the request had arrived, whatever pause follows.
//!
//! The lease alone is not enough. The gate is shut
//! - until the first entry of this term has been applied: before that the leader may not know what is committed;
//! - while a split (or the like) that this leader proposed awaits its apply: the child may serve elsewhere already;
//! - from before a transfer is begun until the term ends: the target is elected in spite of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ebla_runtime::{Bug, planted};

/// What of the lease time is used: numerator and denominator.
const LEASE_SHARE: (u32, u32) = (3, 4);

/// What the leader's core last told of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaderView {
    /// It leads in this term.
    pub(super) term: u64,
    /// The term of the last applied entry.
    pub(super) applied_term: Option<u64>,
    /// When the last message was sent that a majority has acknowledged, as time since boot: see `acknowledged`. A sole
    /// voter has its own word for ever, for no one else can be elected.
    pub(super) acknowledged: Option<Duration>,
}

impl LeaderView {
    /// Whether the lease holds at `now`. `election_max`: how long a follower refuses to vote after a message.
    pub(super) fn lease_holds(&self, now: Duration, election_max: Duration) -> bool {
        if self.applied_term != Some(self.term) {
            return false;
        }
        let share = if planted(Bug::LeaseTooLong) { (20, 1) } else { LEASE_SHARE };
        let lease = election_max * share.0 / share.1;
        self.acknowledged.is_some_and(|sent| now < sent.saturating_add(lease))
    }
}

/// Shuts the fast way of reading, whatever the lease says.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadGate(Arc<Shut>);

#[derive(Debug, Default)]
struct Shut {
    holders: AtomicUsize,
    /// Shut in this term and all before it.
    through_term: AtomicU64,
}

impl ReadGate {
    pub(super) fn is_open(&self, term: u64) -> bool {
        self.0.holders.load(Ordering::SeqCst) == 0 && self.0.through_term.load(Ordering::SeqCst) < term
    }

    pub(super) fn close(&self) -> ReadsClosed {
        self.0.holders.fetch_add(1, Ordering::SeqCst);
        ReadsClosed(Arc::clone(&self.0))
    }

    pub(super) fn close_term(&self, term: u64) {
        self.0.through_term.fetch_max(term, Ordering::SeqCst);
    }
}

/// While it is held, reads take the slow way (a majority is asked, and apply is waited for). Dropping it opens the gate.
///
/// Taken *before* a split is proposed, dropped after its apply or, when its outcome is unknown, at the end of the term.
#[derive(Debug)]
#[must_use = "dropping it opens the gate again"]
pub struct ReadsClosed(Arc<Shut>);

impl Drop for ReadsClosed {
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELECTION_MAX: Duration = Duration::from_secs(2);

    fn view(acknowledged: Option<Duration>) -> LeaderView {
        LeaderView { term: 3, applied_term: Some(3), acknowledged }
    }

    #[test]
    fn the_lease_holds_for_three_quarters_of_the_time_others_refuse_to_vote() {
        let sent = Duration::from_secs(100);
        let view = view(Some(sent));
        assert!(view.lease_holds(sent, ELECTION_MAX));
        assert!(view.lease_holds(sent + Duration::from_millis(1499), ELECTION_MAX));
        assert!(!view.lease_holds(sent + Duration::from_millis(1500), ELECTION_MAX));
    }

    #[test]
    fn no_lease_before_an_acknowledgement_or_before_the_terms_first_entry_is_applied() {
        assert!(!view(None).lease_holds(Duration::ZERO, ELECTION_MAX));
        let early = LeaderView { applied_term: Some(2), ..view(Some(Duration::ZERO)) };
        assert!(!early.lease_holds(Duration::ZERO, ELECTION_MAX));
        let alone = view(Some(Duration::MAX));
        assert!(alone.lease_holds(Duration::from_secs(9), ELECTION_MAX));
    }

    #[test]
    fn the_gate_is_shut_while_anyone_holds_it_and_for_a_term_that_ends() {
        let gate = ReadGate::default();
        assert!(gate.is_open(1));
        let (first, second) = (gate.close(), gate.close());
        drop(first);
        assert!(!gate.is_open(1));
        drop(second);
        assert!(gate.is_open(1));
        gate.close_term(4);
        assert!(!gate.is_open(4));
        assert!(gate.is_open(5));
    }
}
