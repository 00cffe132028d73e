//! Time in the data model: microseconds since the Unix epoch. Callers pass the time; this crate has no clock.

use std::fmt;
use std::time::Duration;

/// Microseconds since the Unix epoch. Order is time order. Paper section 2, "Timestamps".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Micros(i64);

impl Micros {
    /// The epoch; the lowest timestamp of a cell.
    pub const ZERO: Self = Self(0);
    /// The latest time.
    pub const MAX: Self = Self(i64::MAX);

    /// This many microseconds after the epoch.
    pub const fn new(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// This many milliseconds after the epoch, at most [`Self::MAX`].
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// This many seconds after the epoch, perhaps with a fraction. Values out of range saturate, and a value that is no number is zero.
    #[expect(clippy::cast_possible_truncation, reason = "a conversion from floats saturates")]
    pub const fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e6) as i64)
    }

    /// This time, truncated to whole milliseconds, the granularity of tables.
    #[must_use]
    pub const fn truncate_to_millis(self) -> Self {
        Self(self.0 - self.0.rem_euclid(1000))
    }

    /// Whether it is a multiple of a millisecond.
    pub const fn is_whole_millis(self) -> bool {
        self.0 % 1000 == 0
    }

    /// This time plus `duration`, at most [`Self::MAX`].
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(duration)))
    }

    /// This time minus `duration`, at least `i64::MIN`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(duration)))
    }

    /// The duration since `earlier`; zero if this is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(i128::from(self.0) - i128::from(earlier.0)).unwrap_or(0))
    }
}

/// Whole microseconds of a duration, at most `u64::MAX`.
pub fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Whole microseconds of a duration, at most `i64::MAX`.
fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Micros::MAX.plus(Duration::from_secs(1)), Micros::MAX);
        assert_eq!(Micros::new(5).since(Micros::new(9)), Duration::ZERO);
        assert_eq!(Micros::MAX.since(Micros::new(i64::MIN)).as_micros(), u128::from(u64::MAX));
        assert_eq!(Micros::ZERO.minus(Duration::MAX), Micros::new(-i64::MAX));
        assert_eq!(whole_micros(Duration::MAX), u64::MAX);
        let of_seconds = [1.5, 1e300, f64::NAN].map(Micros::from_secs_f64);
        assert_eq!(of_seconds, [Micros::new(1_500_000), Micros::MAX, Micros::ZERO]);
    }

    #[test]
    fn millis_truncate_downwards() {
        assert_eq!(Micros::new(1999).truncate_to_millis(), Micros::from_millis(1));
        assert_eq!(Micros::new(-1).truncate_to_millis(), Micros::from_millis(-1));
        assert!(Micros::from_millis(3).is_whole_millis());
        assert!(!Micros::new(3001).is_whole_millis());
    }
}
