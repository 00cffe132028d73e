//! Sizes and durations with units, as people write them: `64MiB`, `10s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// A text that is not a size or duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not a {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

/// A size in bytes, written `512`, `64KiB`, `128 MiB`, `1GiB` or with decimal units (`10MB`). `64K`, `64M`, `64G` and `64Ki`,
/// `64Mi`, `64Gi` are binary. Case does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size of `bytes`.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of `count` MiB (2^20 bytes).
    #[must_use]
    pub const fn mebibytes(count: u32) -> Self {
        Self((count as u64) << 20)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

const BYTE_UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, &BYTE_UNITS).map(Self).ok_or(UnitError {
            text: text.to_owned(),
            expected: "size; expected a number of bytes with or without a unit, such as 64MiB",
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit: &(&str, u64)| self.0 >= unit.1 && self.0.is_multiple_of(unit.1);
        match [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1_u64 << 10)].iter().find(|unit| whole(unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A duration, written `150us`, `300ms`, `10s`, `5m`, `2h` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(Duration);

impl HumanDuration {
    /// Wraps `duration`.
    #[must_use]
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

const DURATION_UNITS: [(&str, u64); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

impl FromStr for HumanDuration {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let micros = quantity(text, &DURATION_UNITS);
        let micros = micros.ok_or(UnitError {
            text: text.to_owned(),
            expected: "duration; expected a number with a unit, such as 10s",
        })?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

/// The number times its unit; `None` when the text has another form, the unit is unknown, or the product overflows.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let (_name, factor) = units.iter().find(|(name, _factor)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_parsed_with_their_units() {
        assert_eq!("128 MiB".parse(), Ok(ByteSize::mebibytes(128)));
        assert_eq!("10MB".parse(), Ok(ByteSize::new(10_000_000)));
        for binary in ["64M", "64m", "64Mi", "64mib", "65536K", "67108864"] {
            assert_eq!(binary.parse(), Ok(ByteSize::mebibytes(64)), "{binary}");
        }
        assert_eq!(ByteSize::mebibytes(64).to_string(), "64MiB");
        assert_eq!("300ms".parse(), Ok(HumanDuration::new(Duration::from_millis(300))));
        assert!("300".parse::<HumanDuration>().is_err());
        assert!("12 XiB".parse::<ByteSize>().is_err());
        assert!("99999999999 GiB".parse::<ByteSize>().is_err());
    }
}
