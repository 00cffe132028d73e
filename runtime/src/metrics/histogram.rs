//! Histograms that are recorded without a lock: one atomic addition for the bucket and one for the sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::time::whole_micros;

/// Upper bounds of buckets for the durations of calls and of syncs, in microseconds: from a cached read to a stalled disk. Few, because
/// each is a series for each method.
pub const LATENCY_BOUNDS: &[u64] =
    &[500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];

/// How many events were at most so long. Cheap to clone; clones share the figures.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Upper bounds in microseconds, ascending.
    bounds: &'static [u64],
    /// One more than bounds: the last bucket has no bound.
    buckets: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// The figures of a [`Histogram`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    /// The upper bounds in microseconds, ascending.
    pub bounds: &'static [u64],
    /// The events of each bucket that are in no earlier one; the last one has no bound.
    pub buckets: Vec<u64>,
    /// The sum of all durations, in microseconds.
    pub sum_micros: u64,
}

impl HistogramCounts {
    /// The number of events.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl Histogram {
    /// A histogram with these upper bounds in microseconds, ascending.
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_bucket| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner { bounds, buckets, sum_micros: AtomicU64::new(0) }))
    }

    /// Counts an event of this duration.
    pub fn record(&self, duration: Duration) {
        let micros = whole_micros(duration);
        let bucket = self.0.bounds.partition_point(|bound| *bound < micros);
        // Readers need no agreement between the numbers: a scrape may miss an event of this moment.
        if let Some(bucket) = self.0.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The figures now.
    #[must_use]
    pub fn counts(&self) -> HistogramCounts {
        HistogramCounts {
            bounds: self.0.bounds,
            buckets: self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum_micros: self.0.sum_micros.load(Ordering::Relaxed),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(LATENCY_BOUNDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_longer_events_have_one_of_their_own() {
        let histogram = Histogram::new(&[10, 20]);
        for micros in [0, 10, 11, 20, 21, 1_000] {
            histogram.clone().record(Duration::from_micros(micros));
        }
        let counts = histogram.counts();
        assert_eq!(counts, HistogramCounts { bounds: &[10, 20], buckets: vec![2, 2, 2], sum_micros: 1_062 });
        assert_eq!(counts.count(), 6);
    }
}
