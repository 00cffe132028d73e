//! The retry policy: a pure decision over error kinds, with exponential back-off and a retry budget.
//!
//! | kind | retry |
//! |---|---|
//! | refresh and retry | at once the first time (the response contained the new location), then with back-off |
//! | retry elsewhere | at once while an untried replica is left, then with back-off |
//! | wait, retry here | with back-off, or after the server's `retry_after` if that is longer |
//! | fix the request, give up | never |
//!
//! Back-off doubles from 5 ms to 250 ms; the caller adds jitter and never waits past its deadline. Retries to a server
//! that is overloaded (it sends `retry_after`) also need the retry budget: a tenth of the calls. Without budget a call
//! waits the longest back-off instead of the next one, so a thousand clients cannot keep an overloaded server down.
//! A leader change costs no budget: it is not an overload.

use std::time::Duration;

use ebla_model::error::ErrorKind;

/// The first delay.
pub const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// The longest delay.
pub const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// Whether this call has untried replicas left since its last back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// At least one.
    Left,
    /// All were tried.
    Exhausted,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Try again at once.
    Now,
    /// Try again after this delay, with jitter.
    After(Duration),
    /// Do not retry: return the error.
    Stop,
}

/// The back-off of one call.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    waits: u32,
    refreshes: u32,
    at_once: u32,
}

/// Immediate retries in a row before even a redirect waits: two servers that redirect to each other must not spin.
const AT_ONCE_MAX: u32 = 8;

impl Backoff {
    /// What to do after an attempt that failed with `kind`. `retry_after`: the delay that the server requested.
    pub fn next(
        &mut self,
        kind: ErrorKind,
        candidates: Candidates,
        retry_after: Option<Duration>,
        budget: &mut RetryBudget,
    ) -> RetryDecision {
        match kind {
            ErrorKind::FixRequest | ErrorKind::GiveUp => RetryDecision::Stop,
            ErrorKind::RefreshAndRetry => {
                self.refreshes = self.refreshes.saturating_add(1);
                if self.refreshes == 1 { self.at_once(retry_after) } else { self.wait(retry_after) }
            }
            ErrorKind::RetryElsewhere if candidates == Candidates::Left => self.at_once(retry_after),
            // A server that sends `retry_after` is overloaded; without it the tablet is electing a leader.
            ErrorKind::Wait if retry_after.is_some() && !budget.withdraw() => {
                RetryDecision::After(BACKOFF_MAX.max(retry_after.unwrap_or_default()))
            }
            ErrorKind::RetryElsewhere | ErrorKind::RetryHere | ErrorKind::Wait => self.wait(retry_after),
        }
    }

    /// The call made progress: the next failure starts with the shortest back-off.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn at_once(&mut self, retry_after: Option<Duration>) -> RetryDecision {
        self.at_once = self.at_once.saturating_add(1);
        if retry_after.is_some() || self.at_once > AT_ONCE_MAX { self.wait(retry_after) } else { RetryDecision::Now }
    }

    fn wait(&mut self, retry_after: Option<Duration>) -> RetryDecision {
        let factor = 1u32.checked_shl(self.waits.min(16)).unwrap_or(u32::MAX);
        self.waits = self.waits.saturating_add(1);
        let backoff = BACKOFF_MIN.saturating_mul(factor).min(BACKOFF_MAX);
        RetryDecision::After(backoff.max(retry_after.unwrap_or_default()))
    }
}

/// The number of retries that a handle may send to overloaded servers: a tenth of its calls, and an initial credit.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// Tenths of a retry.
    tenths: u32,
}

/// The maximum credit.
const BUDGET_MAX_TENTHS: u32 = 1_000;

impl Default for RetryBudget {
    fn default() -> Self {
        Self { tenths: BUDGET_MAX_TENTHS }
    }
}

impl RetryBudget {
    /// Adds the credit of one new call.
    pub fn deposit(&mut self) {
        self.tenths = self.tenths.saturating_add(1).min(BUDGET_MAX_TENTHS);
    }

    /// Takes one retry; false when the budget is empty.
    pub fn withdraw(&mut self) -> bool {
        match self.tenths.checked_sub(10) {
            Some(left) => {
                self.tenths = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(backoff: &mut Backoff, kind: ErrorKind, candidates: Candidates) -> RetryDecision {
        backoff.next(kind, candidates, None, &mut RetryBudget::default())
    }

    #[test]
    fn a_redirect_is_retried_at_once_and_only_once() {
        let mut backoff = Backoff::default();
        assert_eq!(next(&mut backoff, ErrorKind::RefreshAndRetry, Candidates::Left), RetryDecision::Now);
        assert_eq!(next(&mut backoff, ErrorKind::RefreshAndRetry, Candidates::Left), RetryDecision::After(BACKOFF_MIN));
        assert_eq!(
            next(&mut backoff, ErrorKind::RefreshAndRetry, Candidates::Left),
            RetryDecision::After(BACKOFF_MIN * 2)
        );
    }

    #[test]
    fn other_replicas_are_tried_before_back_off() {
        let mut backoff = Backoff::default();
        assert_eq!(next(&mut backoff, ErrorKind::RetryElsewhere, Candidates::Left), RetryDecision::Now);
        assert_eq!(
            next(&mut backoff, ErrorKind::RetryElsewhere, Candidates::Exhausted),
            RetryDecision::After(BACKOFF_MIN)
        );
    }

    #[test]
    fn redirects_between_two_servers_back_off() {
        let mut backoff = Backoff::default();
        let delayed = (0..20)
            .filter(|_| next(&mut backoff, ErrorKind::RetryElsewhere, Candidates::Left) != RetryDecision::Now)
            .count();
        assert_eq!(delayed, 12);
    }

    #[test]
    fn backoff_ends_at_its_maximum() {
        let mut backoff = Backoff::default();
        let last = (0..40).map(|_| next(&mut backoff, ErrorKind::Wait, Candidates::Exhausted)).last();
        assert_eq!(last, Some(RetryDecision::After(BACKOFF_MAX)));
    }

    #[test]
    fn retry_after_extends_the_back_off() {
        let requested = Duration::from_secs(2);
        let decision =
            Backoff::default().next(ErrorKind::Wait, Candidates::Left, Some(requested), &mut RetryBudget::default());
        assert_eq!(decision, RetryDecision::After(requested));
    }

    #[test]
    fn an_empty_budget_slows_retries_to_an_overloaded_server() {
        let mut budget = RetryBudget::default();
        while budget.withdraw() {}
        let mut decide = |after| Backoff::default().next(ErrorKind::Wait, Candidates::Left, after, &mut budget);
        assert_eq!(decide(Some(BACKOFF_MIN)), RetryDecision::After(BACKOFF_MAX));
        assert_eq!(decide(None), RetryDecision::After(BACKOFF_MIN), "a leader change costs no budget");
        (0..10).for_each(|_| budget.deposit());
        assert!(budget.withdraw());
    }

    #[test]
    fn an_error_of_the_request_is_final() {
        assert_eq!(next(&mut Backoff::default(), ErrorKind::FixRequest, Candidates::Left), RetryDecision::Stop);
        assert_eq!(next(&mut Backoff::default(), ErrorKind::GiveUp, Candidates::Left), RetryDecision::Stop);
    }
}
