//! Key heat: how much each part of a table's keys is read and written over time.
//!
//! ```text
//!   tablet server    counts reads, writes, bytes and latency of each tablet it leads, and of sub-ranges of the busiest ones
//!        │ once a window (a minute)
//!        ▼
//!   HeatWindow       one for each table and server ── fold ──► ten windows in one ── fold ──► six of those in one
//!        │
//!        ▼
//!   heat_map         a matrix of key buckets and times      diagnose, hot_tablets: what the windows say, in words
//! ```
//!
//! The windows are stored in the table of [`TableName::heat`](crate::schema::TableName::heat), in a column family for each [`HeatStep`],
//! whose rule of garbage collection is the retention. Everything here is a function of values.

mod diagnosis;
mod fold;
mod hot_tablets;
mod map;
mod step;
#[cfg(test)]
mod tests;

pub use diagnosis::{Access, Finding, diagnose};
pub use fold::fold;
pub use hot_tablets::{HOT_TABLET_MILLI_PERCENT_MIN, HotTablet, HotTablets};
pub use map::{HeatColumn, HeatMap, heat_map};
pub use step::{HeatStep, WINDOW, families};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;
use crate::id::TabletId;
use crate::key::{KeyRange, RowKey};

/// The most sub-ranges of one tablet in a window.
pub const TABLET_RANGES_MAX: usize = 16;
/// The most ranges in the windows of one server, all its tables together.
pub const SERVER_RANGES_MAX: usize = 1_024;
/// The most ranges in a window that was folded, and in one that was read.
pub const FOLDED_RANGES_MAX: usize = 256;
/// The most rows that one window names.
pub const ROWS_MAX: usize = 32;
/// The longest key of a sub-range in bytes: a longer one is cut there, which is still a boundary.
pub const KEY_BYTES_MAX: usize = 128;

/// What was counted of a range of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatCounts {
    /// Rows that were read by their keys, and batches of scans.
    pub reads: u64,
    /// Rows that were written.
    pub writes: u64,
    /// Bytes of cells that reads returned.
    pub read_bytes: u64,
    /// Bytes of mutations.
    pub written_bytes: u64,
    /// Requests whose latency was measured: batches of reads, and calls that write.
    pub calls: u64,
    /// The latencies of these, added, in microseconds.
    pub call_micros: u64,
}

impl HeatCounts {
    /// Adds other counts. A sum that is too large stays at the maximum.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.parts_mut().into_iter().zip(other.parts()) {
            *own = own.saturating_add(more);
        }
    }

    /// Reads and writes.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The mean latency in microseconds; zero if none was measured.
    #[must_use]
    pub const fn latency_micros(&self) -> u64 {
        match self.call_micros.checked_div(self.calls) {
            Some(mean) => mean,
            None => 0,
        }
    }

    /// Part number `at` of `parts` equal parts, from zero on: all parts together have the same counts. `parts` is not zero.
    #[must_use]
    pub fn part(&self, at: u64, parts: u64) -> Self {
        let share = |count: u64| {
            let (each, rest) = (count.checked_div(parts).unwrap_or(0), count.checked_rem(parts).unwrap_or(0));
            each + u64::from(at < rest)
        };
        Self::of_parts(self.parts().map(share))
    }

    /// The counts of `weight` of `total`, rounded down.
    #[must_use]
    pub fn scaled(&self, weight: u64, total: u64) -> Self {
        Self::of_parts(self.parts().map(|count| scale(count, weight, total)))
    }

    /// These counts without those of `other`; not below zero.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = *self;
        for (own, less) in left.parts_mut().into_iter().zip(other.parts()) {
            *own = own.saturating_sub(less);
        }
        left
    }

    const fn parts(&self) -> [u64; 6] {
        [self.reads, self.writes, self.read_bytes, self.written_bytes, self.calls, self.call_micros]
    }

    const fn parts_mut(&mut self) -> [&mut u64; 6] {
        [
            &mut self.reads,
            &mut self.writes,
            &mut self.read_bytes,
            &mut self.written_bytes,
            &mut self.calls,
            &mut self.call_micros,
        ]
    }

    const fn of_parts([reads, writes, read_bytes, written_bytes, calls, call_micros]: [u64; 6]) -> Self {
        Self { reads, writes, read_bytes, written_bytes, calls, call_micros }
    }
}

/// `count * weight / total`, rounded down; zero for a total of zero.
pub(crate) fn scale(count: u64, weight: u64, total: u64) -> u64 {
    let scaled = (u128::from(count) * u128::from(weight)).checked_div(u128::from(total)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The counts of a range of keys in one tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeHeat {
    /// The keys.
    pub range: KeyRange,
    /// The tablet that had them; of a folded range, the one with the most reads and writes.
    pub tablet: TabletId,
    /// What was counted.
    pub counts: HeatCounts,
}

/// A row with many of the reads or writes of its tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHeat {
    /// The row. Rows with keys of more than [`KEY_BYTES_MAX`] bytes are not counted one by one.
    pub row: RowKey,
    /// At least this many reads, by samples.
    pub reads: u64,
    /// At least this many writes, by samples.
    pub writes: u64,
}

/// What was counted of one table in one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatWindow {
    /// By range. Those of one server do not overlap; a range without reads and writes is missing.
    pub ranges: Vec<RangeHeat>,
    /// The rows that most requests of their tablets were for, at most [`ROWS_MAX`].
    pub rows: Vec<RowHeat>,
    /// What was counted of tablets that have no range of their own, because their server has too many tablets.
    pub other: HeatCounts,
}

impl HeatWindow {
    /// All counts together.
    #[must_use]
    pub fn total(&self) -> HeatCounts {
        let mut total = self.other;
        self.ranges.iter().for_each(|range| total.add(&range.counts));
        total
    }
}

/// What a heat map shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeatMetric {
    /// Reads and writes.
    #[default]
    Requests,
    /// Rows that were read by their keys, and batches of scans.
    Reads,
    /// Rows that were written.
    Writes,
    /// Bytes that reads returned.
    ReadBytes,
    /// Bytes of mutations.
    WrittenBytes,
    /// The mean latency in microseconds. It is measured by tablet: all sub-ranges of a tablet have the same.
    Latency,
}

impl HeatMetric {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Requests, Self::Reads, Self::Writes, Self::ReadBytes, Self::WrittenBytes, Self::Latency];

    /// Its name in options and in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::ReadBytes => "read-bytes",
            Self::WrittenBytes => "written-bytes",
            Self::Latency => "latency",
        }
    }

    /// Its value for these counts.
    #[must_use]
    pub const fn of(self, counts: &HeatCounts) -> u64 {
        match self {
            Self::Requests => counts.requests(),
            Self::Reads => counts.reads,
            Self::Writes => counts.writes,
            Self::ReadBytes => counts.read_bytes,
            Self::WrittenBytes => counts.written_bytes,
            Self::Latency => counts.latency_micros(),
        }
    }

    /// What decides how keys are divided into buckets: the value itself, or for latency the number of requests.
    pub(crate) const fn weight(self, counts: &HeatCounts) -> u64 {
        match self {
            Self::Latency => counts.requests(),
            _ => self.of(counts),
        }
    }
}

impl fmt::Display for HeatMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HeatMetric {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|metric| metric.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("unknown metric {name:?}: expected one of {known}"))
        })
    }
}

/// Whether key heat is collected, and the length of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeatOption {
    /// It is not.
    #[default]
    Off,
    /// It is, in windows of this length: at least [`HeatOption::WINDOW_MIN`], a whole number of milliseconds.
    Every(Duration),
}

impl HeatOption {
    /// Windows of a minute.
    pub const ON: Self = Self::Every(WINDOW);
    /// The shortest window.
    pub const WINDOW_MIN: Duration = Duration::from_millis(100);

    /// The length of a window; `None`: off.
    #[must_use]
    pub const fn window(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::Every(window) => Some(window),
        }
    }
}

/// A key of a sub-range: cut if it is too long.
#[must_use]
pub fn boundary(row: &RowKey) -> RowKey {
    // A copy: the key may be a part of a large message.
    RowKey::copy_from_slice(row.as_bytes().get(..KEY_BYTES_MAX).unwrap_or(row.as_bytes()))
}
