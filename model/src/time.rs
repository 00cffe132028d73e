//! Time as the data model knows it: microseconds since the Unix epoch, handed in by whoever has a clock.

use std::fmt;
use std::time::Duration;

/// Microseconds since the Unix epoch. Order is time order. Paper section 2, "Timestamps".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Micros(i64);

impl Micros {
    /// The epoch; the least timestamp that a cell may have.
    pub const ZERO: Self = Self(0);
    /// The end of time.
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

    /// The millisecond in which this lies. Tables keep time in whole milliseconds.
    #[must_use]
    pub const fn truncate_to_millis(self) -> Self {
        Self(self.0 - self.0.rem_euclid(1000))
    }

    /// Whether it is a millisecond's first microsecond.
    pub const fn is_whole_millis(self) -> bool {
        self.0 % 1000 == 0
    }

    /// So much later, at most [`Self::MAX`].
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(duration)))
    }

    /// So much earlier, at the least `i64::MIN`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(duration)))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(i128::from(self.0) - i128::from(earlier.0)).unwrap_or(0))
    }
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
    }

    #[test]
    fn millis_truncate_downwards() {
        assert_eq!(Micros::new(1999).truncate_to_millis(), Micros::from_millis(1));
        assert_eq!(Micros::new(-1).truncate_to_millis(), Micros::from_millis(-1));
        assert!(Micros::from_millis(3).is_whole_millis());
        assert!(!Micros::new(3001).is_whole_millis());
    }
}
