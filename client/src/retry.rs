//! When to try again: a pure decision over error kinds.
//!
//! | kind | what is done |
//! |---|---|
//! | refresh and retry | at once the first time (the answer brought the truth), then with back-off |
//! | retry elsewhere | at once while a replica is left that was not asked, then with back-off |
//! | wait, retry here | with back-off, or after what the server asked for when that is longer |
//! | fix the request, give up | never |
//!
//! Back-off doubles from 5 ms to 250 ms; the caller adds jitter and never waits past its deadline. A server that is
//! too busy and names a time to come back is met with a budget too: retries may be a tenth of the calls, and a call that finds the budget empty waits
//! the longest back-off instead of the next one, so a thousand clients cannot keep an overloaded server down.
//! A leader change costs no budget: it is nobody's overload.

use std::time::Duration;

use ebla_model::error::ErrorKind;

/// The first delay.
pub const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// The longest delay.
pub const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// Whether a replica is left that this call has not asked since it last waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choices {
    /// There is one.
    Left,
    /// All were asked.
    Exhausted,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Try again at once.
    Now,
    /// Try again after this long, give or take the jitter.
    After(Duration),
    /// The error is the answer.
    Stop,
}

/// The history of one call's attempts.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    waits: u32,
    refreshes: u32,
    at_once: u32,
}

/// Attempts at once in a row before even a correction waits: two servers that send a call to and fro must not spin.
const AT_ONCE_MAX: u32 = 8;

impl Retry {
    /// What to do after an attempt that failed with `kind`. `retry_after`: what the server asked for.
    pub fn next(
        &mut self,
        kind: ErrorKind,
        choices: Choices,
        retry_after: Option<Duration>,
        budget: &mut Budget,
    ) -> Decision {
        match kind {
            ErrorKind::FixRequest | ErrorKind::GiveUp => Decision::Stop,
            ErrorKind::RefreshAndRetry => {
                self.refreshes = self.refreshes.saturating_add(1);
                if self.refreshes == 1 { self.at_once(retry_after) } else { self.wait(retry_after) }
            }
            ErrorKind::RetryElsewhere if choices == Choices::Left => self.at_once(retry_after),
            // A server that names a time is overloaded; one that does not is between two leaders.
            ErrorKind::Wait if retry_after.is_some() && !budget.spend() => {
                Decision::After(BACKOFF_MAX.max(retry_after.unwrap_or_default()))
            }
            ErrorKind::RetryElsewhere | ErrorKind::RetryHere | ErrorKind::Wait => self.wait(retry_after),
        }
    }

    /// The call made progress: what comes next is a new story.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn at_once(&mut self, retry_after: Option<Duration>) -> Decision {
        self.at_once = self.at_once.saturating_add(1);
        if retry_after.is_some() || self.at_once > AT_ONCE_MAX { self.wait(retry_after) } else { Decision::Now }
    }

    fn wait(&mut self, retry_after: Option<Duration>) -> Decision {
        let factor = 1u32.checked_shl(self.waits.min(16)).unwrap_or(u32::MAX);
        self.waits = self.waits.saturating_add(1);
        let backoff = BACKOFF_MIN.saturating_mul(factor).min(BACKOFF_MAX);
        Decision::After(backoff.max(retry_after.unwrap_or_default()))
    }
}

/// How many retries a handle may send to busy servers: a tenth of its calls, and some to begin with.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Tenths of a retry.
    tenths: u32,
}

/// Retries that may be saved up.
const BUDGET_MAX_TENTHS: u32 = 1_000;

impl Default for Budget {
    fn default() -> Self {
        Self { tenths: BUDGET_MAX_TENTHS }
    }
}

impl Budget {
    /// A call was sent for the first time.
    pub fn earn(&mut self) {
        self.tenths = self.tenths.saturating_add(1).min(BUDGET_MAX_TENTHS);
    }

    /// Takes one retry; false when none is left.
    pub fn spend(&mut self) -> bool {
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

    fn next(retry: &mut Retry, kind: ErrorKind, choices: Choices) -> Decision {
        retry.next(kind, choices, None, &mut Budget::default())
    }

    #[test]
    fn a_correction_is_followed_at_once_and_only_once() {
        let mut retry = Retry::default();
        assert_eq!(next(&mut retry, ErrorKind::RefreshAndRetry, Choices::Left), Decision::Now);
        assert_eq!(next(&mut retry, ErrorKind::RefreshAndRetry, Choices::Left), Decision::After(BACKOFF_MIN));
        assert_eq!(next(&mut retry, ErrorKind::RefreshAndRetry, Choices::Left), Decision::After(BACKOFF_MIN * 2));
    }

    #[test]
    fn other_replicas_are_asked_before_anyone_waits() {
        let mut retry = Retry::default();
        assert_eq!(next(&mut retry, ErrorKind::RetryElsewhere, Choices::Left), Decision::Now);
        assert_eq!(next(&mut retry, ErrorKind::RetryElsewhere, Choices::Exhausted), Decision::After(BACKOFF_MIN));
    }

    #[test]
    fn two_servers_that_name_each_other_do_not_make_a_call_spin() {
        let mut retry = Retry::default();
        let waited =
            (0..20).filter(|_| next(&mut retry, ErrorKind::RetryElsewhere, Choices::Left) != Decision::Now).count();
        assert_eq!(waited, 12);
    }

    #[test]
    fn backoff_ends_at_its_maximum() {
        let mut retry = Retry::default();
        let last = (0..40).map(|_| next(&mut retry, ErrorKind::Wait, Choices::Exhausted)).last();
        assert_eq!(last, Some(Decision::After(BACKOFF_MAX)));
    }

    #[test]
    fn the_server_may_ask_for_a_longer_wait() {
        let asked = Duration::from_secs(2);
        let decision = Retry::default().next(ErrorKind::Wait, Choices::Left, Some(asked), &mut Budget::default());
        assert_eq!(decision, Decision::After(asked));
    }

    #[test]
    fn an_empty_budget_slows_retries_to_a_busy_server() {
        let mut budget = Budget::default();
        while budget.spend() {}
        let mut ask = |after| Retry::default().next(ErrorKind::Wait, Choices::Left, after, &mut budget);
        assert_eq!(ask(Some(BACKOFF_MIN)), Decision::After(BACKOFF_MAX));
        assert_eq!(ask(None), Decision::After(BACKOFF_MIN), "a leader change costs no budget");
        (0..10).for_each(|_| budget.earn());
        assert!(budget.spend());
    }

    #[test]
    fn an_error_of_the_request_is_final() {
        assert_eq!(next(&mut Retry::default(), ErrorKind::FixRequest, Choices::Left), Decision::Stop);
        assert_eq!(next(&mut Retry::default(), ErrorKind::GiveUp, Choices::Left), Decision::Stop);
    }
}
