//! How many calls a server has answered within the last seconds, and how long they took: counts by upper bounds, which can be added over
//! servers. Pure.
//!
//! ```text
//!   counters since the start ── observe ──> CallWindow ──> CallTimes of about 10 s      server
//!                                                              │ add                    reader
//!                                                              └──> rate, quantile
//! ```
//!
//! A quantile is an upper bound: the smallest bound that this fraction of the calls did not exceed. It is exact for the sum of servers
//! too, even if they have different bounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A window begins at the newest sample that is at least so old.
const WINDOW: Duration = Duration::from_secs(10);
/// Samples are not closer than this, so a window has few of them; and a shorter time has no rate.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// The bound of calls that are longer than all others.
const NO_BOUND: u64 = u64::MAX;

/// Calls by the upper bounds of their durations. Each call counts for its smallest bound only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts(BTreeMap<u64, u64>);

/// The upper bound of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyBound {
    /// It is at most this.
    AtMost(Duration),
    /// It is longer than all bounds.
    Longer,
}

impl LatencyCounts {
    /// Adds calls that took at most `at_most_micros` microseconds, and more than the next smaller bound; `None`: longer than all bounds.
    pub fn add_calls(&mut self, at_most_micros: Option<u64>, calls: u64) {
        if calls > 0 {
            let known = self.0.entry(at_most_micros.unwrap_or(NO_BOUND)).or_default();
            *known = known.saturating_add(calls);
        }
    }

    /// Adds the calls of another one.
    pub fn add(&mut self, other: &Self) {
        other.buckets().for_each(|(bound, calls)| self.add_calls(bound, calls));
    }

    /// The bounds in microseconds, ascending, with their calls; the one without a bound is the last.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        self.0.iter().map(|(bound, calls)| (Some(*bound).filter(|bound| *bound != NO_BOUND), *calls))
    }

    /// The number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, calls| sum.saturating_add(*calls))
    }

    /// The calls that an earlier state of the same counters did not have.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = Self::default();
        for (bound, calls) in &self.0 {
            let before = earlier.0.get(bound).copied().unwrap_or_default();
            new.add_calls(Some(*bound), calls.saturating_sub(before));
        }
        new
    }

    /// The smallest bound that at least this share of the calls keeps, in thousandths: 500 is the median; `None` without calls.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<LatencyBound> {
        let wanted = u128::from(self.count()).saturating_mul(u128::from(per_mille)).div_ceil(1_000).max(1);
        let mut seen = 0_u128;
        for (bound, calls) in self.buckets() {
            seen = seen.saturating_add(u128::from(calls));
            if seen >= wanted {
                let at_most = |micros| LatencyBound::AtMost(Duration::from_micros(micros));
                return Some(bound.map_or(LatencyBound::Longer, at_most));
            }
        }
        None
    }
}

/// Calls of the data API, by what they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Those that read.
    pub reads: LatencyCounts,
    /// Those that write, conditional ones and read-modify-writes included.
    pub writes: LatencyCounts,
}

/// The calls that ended within a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// How long the period was.
    pub period: Duration,
    /// The calls.
    pub calls: CallCounts,
}

impl CallTimes {
    /// Calls per second, rounded; 0 for no time.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        let calls = u128::from(self.calls.reads.count()).saturating_add(u128::from(self.calls.writes.count()));
        let millis = self.period.as_millis();
        let rounded = calls.saturating_mul(1_000).saturating_add(millis / 2).checked_div(millis);
        u64::try_from(rounded.unwrap_or_default()).unwrap_or(u64::MAX)
    }
}

/// The last states of the counters of a server. Its clock is that of the caller.
#[derive(Clone, Debug, Default)]
pub struct CallWindow {
    /// Ascending by time since boot.
    samples: VecDeque<(Duration, CallCounts)>,
}

impl CallWindow {
    /// Takes the counters of this time since boot, and returns what they have counted for about 10 s, or since the time before if that is
    /// longer ago; `None` at first, and for less than a second.
    pub fn observe(&mut self, now: Duration, counts: CallCounts) -> Option<CallTimes> {
        while self.samples.get(1).is_some_and(|(at, _counts)| now.saturating_sub(*at) >= WINDOW) {
            self.samples.pop_front();
        }
        let first = self.samples.front().map(|(at, before)| CallTimes {
            period: now.saturating_sub(*at),
            calls: CallCounts { reads: counts.reads.since(&before.reads), writes: counts.writes.since(&before.writes) },
        });
        let is_due = self.samples.back().is_none_or(|(at, _counts)| now.saturating_sub(*at) >= SAMPLE_PERIOD);
        if is_due {
            self.samples.push_back((now, counts));
        }
        first.filter(|times| times.period >= SAMPLE_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(buckets: &[(u64, u64)]) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        buckets.iter().for_each(|(bound, calls)| counts.add_calls(Some(*bound).filter(|bound| *bound > 0), *calls));
        counts
    }

    fn at_most(micros: u64) -> Option<LatencyBound> {
        Some(LatencyBound::AtMost(Duration::from_micros(micros)))
    }

    #[test]
    fn a_quantile_is_the_bound_that_so_many_calls_keep() {
        let counts = latencies(&[(500, 50), (1_000, 49), (0, 1)]);
        assert_eq!(counts.count(), 100);
        assert_eq!([500, 510, 990].map(|share| counts.quantile(share)), [at_most(500), at_most(1_000), at_most(1_000)]);
        assert_eq!(counts.quantile(991), Some(LatencyBound::Longer));
        assert_eq!(latencies(&[(500, 1)]).quantile(0), at_most(500));
        assert_eq!(LatencyCounts::default().quantile(500), None);
    }

    #[test]
    fn servers_are_added_also_with_other_bounds() {
        let mut sum = latencies(&[(500, 90), (0, 1)]);
        sum.add(&latencies(&[(700, 8), (0, 1)]));
        assert_eq!(sum, latencies(&[(500, 90), (700, 8), (0, 2)]));
        assert_eq!((sum.quantile(980), sum.quantile(990)), (at_most(700), Some(LatencyBound::Longer)));
        let mut full = latencies(&[(500, u64::MAX)]);
        full.add(&latencies(&[(500, 1)]));
        assert_eq!((full.count(), full.quantile(999)), (u64::MAX, at_most(500)));
    }

    fn observed(window: &mut CallWindow, second: u64, calls: u64) -> Option<(u64, u64)> {
        let counts = CallCounts { reads: latencies(&[(500, calls)]), writes: LatencyCounts::default() };
        let times = window.observe(Duration::from_secs(second), counts)?;
        Some((times.period.as_secs(), times.calls.reads.count()))
    }

    #[test]
    fn a_window_has_about_ten_seconds() {
        let mut window = CallWindow::default();
        assert_eq!(observed(&mut window, 100, 5), None);
        assert_eq!(observed(&mut window, 100, 6), None, "no time has passed");
        for second in 1..=10 {
            assert_eq!(observed(&mut window, 100 + second, 5 + second), Some((second, second)));
        }
        assert_eq!(observed(&mut window, 115, 20), Some((10, 10)), "the calls since second 105");
        // No report was requested for a minute: the window is longer, and then ten seconds again.
        assert_eq!(observed(&mut window, 175, 80), Some((60, 60)));
        assert_eq!(observed(&mut window, 185, 82), Some((10, 2)));
        assert!(window.samples.len() < 12, "{window:?}");
    }

    #[test]
    fn a_rate_is_rounded() {
        let calls = CallCounts { reads: latencies(&[(500, 14)]), writes: latencies(&[(0, 1)]) };
        let rate = |millis| CallTimes { period: Duration::from_millis(millis), calls: calls.clone() }.per_second();
        assert_eq!([rate(10_000), rate(1_500), rate(0)], [2, 10, 0]);
    }
}
