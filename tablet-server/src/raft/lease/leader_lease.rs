//! The leader lease: when a leader may answer a read from its own state without asking a quorum.
//!
//! Followers that acknowledged a message refuse to vote for `election_max` after they received it, so until then no other
//! leader can have committed anything. The leader counts from when it *sent* the message, and uses three quarters of that
//! time, because the rule itself has no margin for clocks that run at different speeds. A read is linearizable when the
//! lease was valid at some moment after the request arrived, however long the process pauses after that moment.
//!
//! The lease alone is not enough. Lease reads are not allowed
//! - until the first entry of this term has been applied: before that the leader may not know what is committed;
//! - while the fate of a division that this leader proposed is not known: the new group may already serve elsewhere;
//! - from before a leadership transfer begins until the term ends: the target is elected in spite of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ebla_model::id::Term;
use ebla_runtime::Failpoint;

/// The share of the lease time that is used: numerator and denominator.
const LEASE_SHARE: (u32, u32) = (3, 4);

/// The lease of a leader, as its core last published it.
#[derive(Clone, Copy, Debug)]
pub(in crate::raft) struct LeaderLease {
    /// The term in which it leads.
    pub(in crate::raft) term: Term,
    /// The term of the last applied entry.
    pub(in crate::raft) applied_term: Option<Term>,
    /// When the last message was sent that a quorum has acknowledged, as time since boot: see `quorum`. For a sole voter it never
    /// expires, because no other replica can be elected.
    pub(in crate::raft) acknowledged: Option<Duration>,
}

impl LeaderLease {
    /// Whether the lease is valid at `now`. `election_max`: how long a follower refuses to vote after a message.
    pub(in crate::raft) fn is_valid(&self, now: Duration, election_max: Duration) -> bool {
        if self.applied_term != Some(self.term) {
            return false;
        }
        let share = match () {
            () if Failpoint::LeaseTooLong.is_enabled() => (20, 1),
            () if Failpoint::LeaseWithoutMargin.is_enabled() => (1, 1),
            () => LEASE_SHARE,
        };
        let lease = election_max * share.0 / share.1;
        self.acknowledged.is_some_and(|sent| now < sent.saturating_add(lease))
    }
}

/// Suspends lease reads, however valid the lease is. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct LeaseSuspensions(Arc<SuspensionState>);

#[derive(Debug, Default)]
struct SuspensionState {
    guards: AtomicUsize,
    /// Lease reads are suspended in this term and in all earlier ones.
    through_term: AtomicU64,
}

impl LeaseSuspensions {
    /// Whether lease reads are suspended in this term.
    pub(in crate::raft) fn is_suspended(&self, term: Term) -> bool {
        self.0.guards.load(Ordering::SeqCst) != 0 || self.0.through_term.load(Ordering::SeqCst) >= term.get()
    }

    /// Suspends lease reads until the guard is dropped.
    pub(in crate::raft) fn suspend(&self) -> LeaseSuspension {
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        LeaseSuspension(Arc::clone(&self.0))
    }

    /// Suspends lease reads until this term ends.
    pub(in crate::raft) fn suspend_term(&self, term: Term) {
        self.0.through_term.fetch_max(term.get(), Ordering::SeqCst);
    }
}

/// While this guard lives, reads need a read index: a quorum is asked, and the apply is awaited. Dropping it allows lease
/// reads again.
///
/// It is taken *before* a division is proposed, and `Group::propose_holding` drops it when the fate of the entry is known.
#[derive(Debug)]
#[must_use = "dropping it allows lease reads again"]
pub struct LeaseSuspension(Arc<SuspensionState>);

impl Drop for LeaseSuspension {
    fn drop(&mut self) {
        self.0.guards.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELECTION_MAX: Duration = Duration::from_secs(2);

    fn lease(acknowledged: Option<Duration>) -> LeaderLease {
        LeaderLease { term: Term::new(3), applied_term: Some(Term::new(3)), acknowledged }
    }

    #[test]
    fn the_lease_is_valid_for_three_quarters_of_the_time_in_which_followers_refuse_to_vote() {
        let sent = Duration::from_secs(100);
        let lease = lease(Some(sent));
        assert!(lease.is_valid(sent, ELECTION_MAX));
        assert!(lease.is_valid(sent + Duration::from_millis(1499), ELECTION_MAX));
        assert!(!lease.is_valid(sent + Duration::from_millis(1500), ELECTION_MAX));
    }

    #[test]
    fn no_lease_before_an_acknowledgement_or_before_the_terms_first_entry_is_applied() {
        assert!(!lease(None).is_valid(Duration::ZERO, ELECTION_MAX));
        let early = LeaderLease { applied_term: Some(Term::new(2)), ..lease(Some(Duration::ZERO)) };
        assert!(!early.is_valid(Duration::ZERO, ELECTION_MAX));
        let alone = lease(Some(Duration::MAX));
        assert!(alone.is_valid(Duration::from_secs(9), ELECTION_MAX));
    }

    #[test]
    fn lease_reads_are_suspended_while_a_guard_lives_and_until_a_term_ends() {
        let suspensions = LeaseSuspensions::default();
        assert!(!suspensions.is_suspended(Term::new(1)));
        let (first, second) = (suspensions.suspend(), suspensions.suspend());
        drop(first);
        assert!(suspensions.is_suspended(Term::new(1)));
        drop(second);
        assert!(!suspensions.is_suspended(Term::new(1)));
        suspensions.suspend_term(Term::new(4));
        assert!(suspensions.is_suspended(Term::new(4)));
        assert!(!suspensions.is_suspended(Term::new(5)));
    }
}
