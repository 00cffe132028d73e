//! Whether the clock of a server is off, by comparison with the clocks of the other servers.
//!
//! A clock is off when it differs from the median of all clocks by more than [`OFFSET_MAX`], and most clocks do not. So three clocks
//! are enough to find a wrong one, and two are not. If there is no majority of clocks that agree, none is off.

use std::time::Duration;

/// How far two clocks may be apart. Clocks that are synchronised by NTP differ by milliseconds.
pub const OFFSET_MAX: Duration = Duration::from_secs(5);

/// The fewest clocks of which one can be found wrong.
const CLOCKS_MIN: usize = 3;

/// A clock in comparison with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// By how many microseconds it is ahead of the median of all clocks; `None`: too few are known.
    pub offset_micros: Option<i64>,
    /// Whether it is off.
    pub is_off: bool,
}

/// The state of the clock that shows `at` while `clocks`, which include it, show these times, in microseconds from any common start.
#[must_use]
pub fn clock_state(clocks: &[i64], at: i64) -> ClockState {
    if clocks.len() < CLOCKS_MIN {
        return ClockState::default();
    }
    let mut sorted = clocks.to_vec();
    sorted.sort_unstable();
    let median = sorted.get((sorted.len() - 1) / 2).copied().unwrap_or(at);
    let agrees = |clock: &i64| u128::from(clock.abs_diff(median)) <= OFFSET_MAX.as_micros();
    let agreeing = clocks.iter().filter(|clock| agrees(clock)).count();
    let is_off = 2 * agreeing > clocks.len() && !agrees(&at);
    ClockState { offset_micros: Some(at.saturating_sub(median)), is_off }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn are_off(seconds: &[i64]) -> Vec<bool> {
        let clocks: Vec<i64> = seconds.iter().map(|seconds| seconds * SECOND).collect();
        clocks.iter().map(|at| clock_state(&clocks, *at).is_off).collect()
    }

    #[test]
    fn the_clock_that_most_others_contradict_is_off() {
        assert_eq!(are_off(&[0, 0, 3_600]), [false, false, true]);
        assert_eq!(are_off(&[0, -3_600, 1]), [false, true, false]);
        assert_eq!(are_off(&[0, 5, 0]), [false; 3], "at the bound");
        assert_eq!(are_off(&[0, 6, 0]), [false, true, false]);
    }

    #[test]
    fn without_a_majority_that_agrees_nobody_is_off() {
        assert_eq!(are_off(&[0, 3_600]), [false; 2], "two clocks");
        assert_eq!(are_off(&[0, 0, 3_600, 3_600]), [false; 4]);
        assert_eq!(are_off(&[0, 60, 120]), [false; 3]);
    }

    #[test]
    fn the_offset_is_that_from_the_median() {
        let clocks = [0, 2 * SECOND, -7 * SECOND, i64::MAX];
        let offset = |at| clock_state(&clocks, at).offset_micros;
        assert_eq!(
            [offset(0), offset(2 * SECOND), offset(-7 * SECOND)],
            [Some(0), Some(2 * SECOND), Some(-7 * SECOND)]
        );
        assert_eq!(clock_state(&clocks[..2], 0), ClockState::default());
    }
}
