//! Which operations are slower than nearly all recent ones of their method.
//!
//! Of each method the latencies are counted in buckets whose bounds grow by a fifth. Every [`PERIOD`] the 99th percentile is determined from the
//! counts, and the counts are halved: what was counted a minute ago has nearly no weight. Between that, an operation costs one count and one
//! comparison. An operation is an outlier if it took longer than the bucket of the percentile reaches, so outliers are about one in a hundred.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The methods whose latencies are compared: those of the data API, then those between servers. Admin calls are too few and too different.
const METHODS: [&str; 11] = [
    "ReadRows",
    "MutateRow",
    "MutateRows",
    "CheckAndMutateRow",
    "ReadModifyWriteRow",
    "SampleRowKeys",
    "Read",
    "Write",
    "Check",
    "Modify",
    "Sample",
];
/// The buckets of a power of two: neighbouring bounds differ by about a fifth.
const BUCKETS_PER_DOUBLING: usize = 4;
/// The buckets of a method: up to 2^32 microseconds, which is more than an hour.
const BUCKETS: usize = 32 * BUCKETS_PER_DOUBLING;
/// How often the percentiles are determined.
const PERIOD: Duration = Duration::from_secs(10);
/// With fewer recent operations a method has no percentile: a hundredth of them would be a few.
const SAMPLES_MIN: u64 = 500;
/// No percentile is known: nothing is slower.
const UNKNOWN: u64 = u64::MAX;

/// The recent latencies of one method.
#[derive(Debug)]
struct Latencies {
    buckets: [AtomicU32; BUCKETS],
    /// The 99th percentile in microseconds, rounded up to the end of its bucket.
    percentile: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outliers {
    methods: [Latencies; METHODS.len()],
    /// When the percentiles are determined next, on the monotonic clock. Locked for a comparison, and once in a period for the calculation.
    next: Mutex<Duration>,
}

impl Outliers {
    /// No latencies. `now`: on the monotonic clock.
    pub(super) fn new(now: Duration) -> Self {
        let latencies =
            || Latencies { buckets: array::from_fn(|_bucket| AtomicU32::new(0)), percentile: AtomicU64::new(UNKNOWN) };
        Self { methods: array::from_fn(|_method| latencies()), next: Mutex::new(now.saturating_add(PERIOD)) }
    }

    /// Counts an operation that has ended at `now`. Returns whether it took longer than the recent 99th percentile of its method.
    pub(super) fn count(&self, method: &str, took: Duration, now: Duration) -> bool {
        let known = METHODS.iter().position(|known| *known == method);
        let Some(latencies) = known.and_then(|known| self.methods.get(known)) else { return false };
        self.renew(now);
        let micros = u64::try_from(took.as_micros()).unwrap_or(UNKNOWN);
        if let Some(count) = latencies.buckets.get(bucket(micros)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        micros > latencies.percentile.load(Ordering::Relaxed)
    }

    /// Determines the percentiles if it is time, and no other thread does.
    fn renew(&self, now: Duration) {
        let Some(mut next) = self.next.try_lock() else { return };
        if now < *next {
            return;
        }
        *next = now.saturating_add(PERIOD);
        for latencies in &self.methods {
            let counts: Vec<u64> = latencies
                .buckets
                .iter()
                .map(|bucket| {
                    let count = bucket.load(Ordering::Relaxed);
                    // What is counted at the same time stays.
                    bucket.fetch_sub(count - count / 2, Ordering::Relaxed);
                    u64::from(count)
                })
                .collect();
            latencies.percentile.store(percentile(&counts).unwrap_or(UNKNOWN), Ordering::Relaxed);
        }
    }
}

/// The bucket of a latency.
fn bucket(micros: u64) -> usize {
    let micros = micros.clamp(1, (1 << 32) - 1);
    let power = micros.ilog2();
    // The two bits below the highest one.
    let quarter = (micros << 2 >> power) & 3;
    let index = u64::from(power) * 4 + quarter;
    usize::try_from(index).unwrap_or(BUCKETS - 1).min(BUCKETS - 1)
}

/// The largest latency of a bucket, in microseconds.
fn last_of(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX).min(BUCKETS as u64 - 1);
    let (power, quarter) = (bucket / 4, bucket % 4);
    // The first one of the next bucket, times four.
    let next = (4 + quarter + 1) << power;
    next.div_ceil(4).saturating_sub(1)
}

/// The 99th percentile of latencies counted by bucket, in microseconds and rounded up to the end of its bucket; `None` when they are too few.
fn percentile(counts: &[u64]) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    if all < SAMPLES_MIN {
        return None;
    }
    // At most a hundredth of them may be above.
    let above_max = all / 100;
    let mut above = 0;
    let found = counts.iter().rposition(|count| {
        above += count;
        above > above_max
    });
    found.map(last_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn each_latency_is_at_most_the_end_of_its_bucket_and_above_the_one_before() {
        let some = (0..5_000).chain((0..32).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]));
        for latency in some.filter(|latency| *latency > 0) {
            let found = bucket(latency);
            assert!(latency <= last_of(found), "{latency}");
            assert!(found == 0 || latency > last_of(found - 1) || last_of(found - 1) == last_of(found), "{latency}");
            assert!(latency < 16 || last_of(found) <= latency + latency / 3, "{latency}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn the_percentile_leaves_at_most_a_hundredth_above() {
        let mut counts = vec![0; BUCKETS];
        counts[bucket(1_000)] = 990;
        counts[bucket(50_000)] = 10;
        assert_eq!(percentile(&counts), Some(last_of(bucket(1_000))));
        counts[bucket(50_000)] = 11;
        assert_eq!(percentile(&counts), Some(last_of(bucket(50_000))), "eleven of 1,001 are more than a hundredth");
        assert_eq!(percentile(&[0, SAMPLES_MIN - 1]), None);
        assert_eq!(percentile(&[]), None);
    }

    #[test]
    fn an_operation_slower_than_recent_ones_of_its_method_is_an_outlier() {
        let outliers = Outliers::new(START);
        for _operation in 0..1_000 {
            assert!(!outliers.count("MutateRow", micros(2_000), START));
            assert!(!outliers.count("ReadRows", micros(30_000), START));
        }
        assert!(!outliers.count("MutateRow", micros(30_000), START), "no percentile is known yet");
        let later = START + PERIOD;
        assert!(outliers.count("MutateRow", micros(30_000), later));
        assert!(!outliers.count("MutateRow", micros(2_000), later));
        assert!(!outliers.count("ReadRows", micros(30_000), later), "each method has its own");
        assert!(!outliers.count("CreateTable", micros(u64::MAX), later), "an admin call is not compared");
    }

    #[test]
    fn old_latencies_lose_their_weight() {
        let outliers = Outliers::new(START);
        (0..10_000).for_each(|_operation| assert!(!outliers.count("MutateRow", micros(50), START)));
        let mut now = START;
        let mut are_outliers = Vec::new();
        for _period in 0..8 {
            now += PERIOD;
            are_outliers.push(outliers.count("MutateRow", micros(900), now));
            for _operation in 0..2_000 {
                outliers.count("MutateRow", micros(900), now);
            }
        }
        assert_eq!((are_outliers.first(), are_outliers.last()), (Some(&true), Some(&false)));
        for _period in 0..20 {
            now += PERIOD;
            outliers.renew(now);
        }
        assert!(
            !outliers.count("MutateRow", micros(5_000_000), now),
            "of a method that is not called nothing is known"
        );
    }
}
