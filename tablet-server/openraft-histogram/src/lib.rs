//! The histograms of openraft's own statistics. They count nothing.
//!
//! openraft shows its statistics only with its feature `runtime-stats`, which is off here; no metric of ours comes from them. The published crate of
//! this name computes tables for all of its resolutions when the first histogram is made: 26 MB that are never read, in every
//! process with a replica. So `[patch.crates-io]` in the workspace's `Cargo.toml` replaces it by this crate, which has only the items that openraft
//! compiles against.
//!
//! A version of openraft that needs more of a histogram does not compile. Then look first whether the published crate still makes all tables at
//! once (`docs/inside/decisions/0011-memory.md`).

use std::fmt;
use std::marker::PhantomData;

/// A histogram without content. `T`: what the published crate stores with each slot of a sliding window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram<T = ()>(PhantomData<T>);

impl<T> Histogram<T> {
    /// The histogram.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }

    /// Ignores the value.
    pub const fn record(&mut self, _value: u64) {}

    /// Ignores the value, whatever it is counted for.
    pub const fn record_n(&mut self, _value: u64, _count: u64) {}

    /// The percentiles of no values.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats::default()
    }
}

/// Percentiles, of no values: all are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say which percentile it is")]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        AsciiChart.fmt(f)
    }
}

/// A chart of histograms, which shows none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsciiChart;

impl AsciiChart {
    /// The chart.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }

    /// Leaves the histogram out.
    #[must_use]
    pub const fn add(self, _name: &str, _histogram: Histogram) -> Self {
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("openraft's statistics are off")
    }
}
