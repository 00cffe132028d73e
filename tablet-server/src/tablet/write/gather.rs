//! How long the batcher gathers writes before it proposes them. A pure function of the last proposals.
//!
//! A client with one write in flight sends its next one as soon as the last one is answered. If the batcher proposed whatever
//! is queued when a proposal ends, the clients would fall into two halves that wait for each other: a proposal would hold half
//! of the writes that are in flight, and every proposal costs messages and syncs on three servers. So the batcher waits for as
//! many writes as were in flight, for half the duration of a proposal at most. A single client never waits.
//!
//! A wait that did not bring the expected writes halves the next one; a wait that did restores the full length.

use std::time::Duration;

/// The longest wait, whatever a proposal takes.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// The longest wait is the duration of a proposal divided by this number; the shortest one, divided by [`DIVISOR_MAX`].
const DIVISOR_MIN: u32 = 2;
/// See [`DIVISOR_MIN`].
const DIVISOR_MAX: u32 = 64;

/// What the batcher knows of the writes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gathering {
    /// Writes that were in flight at the end of the last proposal: those that it answered and those queued meanwhile.
    expected: usize,
    /// The duration of a proposal, smoothed; zero before the first one.
    proposal: Duration,
    /// The present length of a wait: the duration of a proposal divided by this number.
    divisor: u32,
}

impl Gathering {
    /// Before the first proposal nothing is expected.
    pub(super) const fn new() -> Self {
        Self { expected: 0, proposal: Duration::ZERO, divisor: DIVISOR_MIN }
    }

    /// How many writes to wait for, and how long, when `queued` are there; `None` to propose them now.
    pub(super) fn wait(&self, queued: usize) -> Option<(usize, Duration)> {
        let waits = queued > 0 && queued < self.expected && !self.proposal.is_zero();
        waits.then(|| (self.expected, (self.proposal / self.divisor).min(WAIT_MAX)))
    }

    /// Records that a wait ended with `queued` writes.
    pub(super) fn record_wait(&mut self, queued: usize) {
        self.divisor = if queued >= self.expected { DIVISOR_MIN } else { (self.divisor * 2).min(DIVISOR_MAX) };
    }

    /// Records a proposal that answered `answered` writes after `duration`; `queued` have arrived meanwhile.
    pub(super) fn record_proposal(&mut self, answered: usize, queued: usize, duration: Duration) {
        self.expected = answered.saturating_add(queued);
        self.proposal = if self.proposal.is_zero() { duration } else { (self.proposal * 3 + duration) / 4 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPOSAL: Duration = Duration::from_millis(4);

    /// After one proposal of `answered` writes, during which `queued` arrived.
    fn after(answered: usize, queued: usize) -> Gathering {
        let mut gathering = Gathering::new();
        gathering.record_proposal(answered, queued, PROPOSAL);
        gathering
    }

    #[test]
    fn nothing_is_awaited_before_the_first_proposal() {
        assert_eq!(Gathering::new().wait(1), None);
    }

    #[test]
    fn a_single_client_never_waits() {
        assert_eq!(after(1, 0).wait(1), None);
    }

    #[test]
    fn the_writes_that_were_in_flight_are_awaited_for_half_a_proposal() {
        let gathering = after(3, 2);
        assert_eq!(gathering.wait(2), Some((5, PROPOSAL / 2)));
        assert_eq!(gathering.wait(5), None);
        assert_eq!(gathering.wait(0), None, "an empty queue has its own wait, without a limit");
    }

    #[test]
    fn waits_in_vain_become_shorter_and_a_successful_one_restores_them() {
        let mut gathering = after(3, 2);
        for divisor in [4, 8, 16, 32, 64, 64] {
            gathering.record_wait(4);
            assert_eq!(gathering.wait(1), Some((5, PROPOSAL / divisor)));
        }
        gathering.record_wait(5);
        assert_eq!(gathering.wait(1), Some((5, PROPOSAL / 2)));
    }

    #[test]
    fn clients_that_leave_are_no_longer_expected() {
        let mut gathering = after(30, 20);
        gathering.record_wait(2);
        gathering.record_proposal(2, 0, PROPOSAL);
        assert_eq!(gathering.wait(2), None);
    }

    #[test]
    fn a_slow_proposal_does_not_lengthen_the_wait_beyond_its_bound() {
        let mut gathering = Gathering::new();
        gathering.record_proposal(2, 2, Duration::from_secs(10));
        assert_eq!(gathering.wait(1), Some((4, WAIT_MAX)));
    }
}
