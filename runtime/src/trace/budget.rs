//! How many records of one sort are made per second.

use std::time::Duration;

/// Something that is allowed a number of times per second, and after a pause that many times at once. Pure.
#[derive(Debug)]
pub(super) struct RateBudget {
    per_second: f64,
    left: f64,
    at: Duration,
}

impl RateBudget {
    /// A full budget. `now`: on the monotonic clock, as in [`Self::take`].
    pub(super) fn new(per_second: u32, now: Duration) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, left: per_second, at: now }
    }

    /// Takes one, if there is one; the budget grows with time.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let grown = now.saturating_sub(self.at).as_secs_f64() * self.per_second;
        self.left = (self.left + grown).min(self.per_second);
        // The readings of two threads may arrive in the other order.
        self.at = self.at.max(now);
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_grows_with_time_up_to_that_of_a_second() {
        let mut budget = RateBudget::new(10, Duration::from_secs(5));
        let mut taken = |now| (0..100).filter(|_attempt| budget.take(now)).count();
        assert_eq!(taken(Duration::from_secs(5)), 10);
        assert_eq!(taken(Duration::from_millis(5_500)), 5);
        assert_eq!(taken(Duration::from_secs(5)), 0, "a reading that arrives late adds nothing");
        assert_eq!(taken(Duration::from_millis(5_500)), 0);
        assert_eq!(taken(Duration::from_secs(60)), 10);
    }
}
