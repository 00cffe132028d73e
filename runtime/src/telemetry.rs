//! Logs, counters and histograms, and what a panic does.
//!
//! Metrics live in a [`Registry`] that prints them in the Prometheus text format. A metric is a handle of an atomic:
//! recording takes no lock and allocates nothing.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What is logged: a level for everything, and levels for parts of the program.
///
/// openraft logs each step of its protocol, so it stays at `error` unless the filter names it; and it calls a request that meets a
/// stopped group an error, which the caller is told anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// A text that is no filter of logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is no log level: use off, error, warn, info, debug or trace, or TARGET=LEVEL such as ebla_master=debug, separated by commas"
)]
pub struct InvalidLogFilter {
    part: String,
}

/// The crate whose own level is low unless it is named.
const CHATTY: &str = "openraft";
/// Its levels then.
const CHATTY_LEVELS: &str = ",openraft=error,openraft::raft::raft_inner=off,openraft::core::heartbeat=off";

impl FromStr for LogFilter {
    type Err = InvalidLogFilter;

    fn from_str(text: &str) -> Result<Self, InvalidLogFilter> {
        let mut names_chatty = false;
        let mut is_off = false;
        for part in text.split(',').map(str::trim) {
            let invalid = || InvalidLogFilter { part: part.to_owned() };
            // A target alone would mean "all of it"; a level with a typing error would be such a target.
            let (target, level) = part.rsplit_once('=').unwrap_or(("", part));
            LevelFilter::from_str(level).ok().filter(|_level| !level.is_empty()).ok_or_else(invalid)?;
            if part.contains('=') && target.is_empty() {
                return Err(invalid());
            }
            names_chatty |= target.starts_with(CHATTY);
            is_off |= target.is_empty() && level.eq_ignore_ascii_case("off");
        }
        let added = if names_chatty || is_off { "" } else { CHATTY_LEVELS };
        let filter = format!("{text}{added}");
        EnvFilter::try_new(&filter).map_err(|_error| InvalidLogFilter { part: text.to_owned() })?;
        Ok(Self(filter))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sends logs to standard error. The first call in a process wins; later ones, as in tests, are without effect.
pub fn init_filtered(filter: &LogFilter) {
    let filter = EnvFilter::new(&filter.0);
    let _already = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// As [`init_filtered`]; with `info` when `filter` is no [`LogFilter`].
pub fn init(filter: &str) {
    init_filtered(&filter.parse().unwrap_or_else(|_invalid| LogFilter("info".to_owned())));
}

/// Ends the process at the first panic of any thread, after the message: a broken invariant must not be served on.
pub fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let _closed = std::io::stderr().flush();
        std::process::abort();
    }));
}

/// A number that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes both ways.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Sets the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number as last set.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many buckets a histogram has: bucket `i` counts waits below `2^i` microseconds, the last one all others.
const BUCKETS: usize = 27;

/// Durations in buckets of powers of two, from 1 microsecond to about a minute.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<HistogramState>);

#[derive(Debug, Default)]
struct HistogramState {
    buckets: [AtomicU64; BUCKETS],
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let index = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(BUCKETS).min(BUCKETS - 1);
        if let Some(bucket) = self.0.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// An upper bound of the duration below which `quantile` (0 to 1) of all lie; at most twice the true value.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let counts: Vec<u64> = self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut below = 0;
        for (index, count) in counts.iter().enumerate() {
            below += count;
            #[expect(clippy::cast_precision_loss, reason = "a share of a count needs no exactness")]
            if total > 0 && below as f64 >= quantile * total as f64 {
                return Duration::from_micros(1 << index);
            }
        }
        Duration::ZERO
    }
}

#[derive(Clone, Debug)]
enum Metric {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

/// All metrics of a process, by name (`ebla_component_noun_unit`, labels in braces as part of the name); clones share them.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<BTreeMap<String, Metric>>>);

impl Registry {
    /// No metrics yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter of that name, made at the first call. A name that already is another kind gives a handle that is
    /// not printed.
    #[must_use]
    pub fn counter(&self, name: &str) -> Counter {
        match self.entry(name, || Metric::Counter(Counter::default())) {
            Metric::Counter(counter) => counter,
            Metric::Gauge(_) | Metric::Histogram(_) => Counter::default(),
        }
    }

    /// The gauge of that name; as [`Registry::counter`].
    #[must_use]
    pub fn gauge(&self, name: &str) -> Gauge {
        match self.entry(name, || Metric::Gauge(Gauge::default())) {
            Metric::Gauge(gauge) => gauge,
            Metric::Counter(_) | Metric::Histogram(_) => Gauge::default(),
        }
    }

    /// The histogram of that name; as [`Registry::counter`].
    #[must_use]
    pub fn histogram(&self, name: &str) -> Histogram {
        match self.entry(name, || Metric::Histogram(Histogram::default())) {
            Metric::Histogram(histogram) => histogram,
            Metric::Counter(_) | Metric::Gauge(_) => Histogram::default(),
        }
    }

    fn entry(&self, name: &str, make: impl FnOnce() -> Metric) -> Metric {
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.entry(name.to_owned()).or_insert_with(make).clone()
    }

    /// Everything as Prometheus text.
    #[must_use]
    pub fn text(&self) -> String {
        let metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::new();
        for (name, metric) in &metrics {
            print(&mut text, name, metric);
        }
        text
    }
}

/// Writing into a `String` cannot fail, so its results are dropped.
fn print(text: &mut String, name: &str, metric: &Metric) {
    match metric {
        Metric::Counter(counter) => _ = writeln!(text, "{name} {}", counter.get()),
        Metric::Gauge(gauge) => _ = writeln!(text, "{name} {}", gauge.get()),
        Metric::Histogram(histogram) => print_histogram(text, name, histogram),
    }
}

fn print_histogram(text: &mut String, name: &str, histogram: &Histogram) {
    let mut below = 0;
    for (index, bucket) in histogram.0.buckets.iter().enumerate() {
        below += bucket.load(Ordering::Relaxed);
        if index + 1 < BUCKETS {
            _ = writeln!(text, "{name}_bucket{{le=\"{}\"}} {below}", 1_u64 << index);
        }
    }
    _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {below}");
    _ = writeln!(text, "{name}_sum {}", histogram.0.sum_micros.load(Ordering::Relaxed));
    _ = writeln!(text, "{name}_count {below}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openraft_logs_errors_only_unless_the_filter_names_it() {
        let filter = |text: &str| text.parse::<LogFilter>().map(|filter| filter.to_string());
        assert_eq!(filter("info").unwrap(), format!("info{CHATTY_LEVELS}"));
        assert_eq!(filter("warn,ebla_master=debug").unwrap(), format!("warn,ebla_master=debug{CHATTY_LEVELS}"));
        assert_eq!(filter("info,openraft=debug").unwrap(), "info,openraft=debug");
        assert_eq!(filter("info,openraft::core=trace").unwrap(), "info,openraft::core=trace");
        assert_eq!(filter("off").unwrap(), "off");
        assert_eq!(filter("INFO").unwrap(), format!("INFO{CHATTY_LEVELS}"));
    }

    #[test]
    fn a_filter_that_names_no_level_is_refused_with_the_levels_that_exist() {
        for text in ["inof", "", "warn,", "ebla_master=loud", "=info", "ebla_master", "warn;info"] {
            let refused = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(refused.contains("error, warn, info, debug or trace"), "{text}: {refused}");
        }
    }

    #[test]
    fn metrics_of_one_name_are_one_and_print() {
        let registry = Registry::new();
        registry.counter("ebla_test_calls_total").increment();
        registry.counter("ebla_test_calls_total").add(2);
        registry.gauge("ebla_test_bytes").set(9);
        registry.histogram("ebla_test_wait_micros").record(Duration::from_micros(5));
        let text = registry.text();
        assert!(text.contains("ebla_test_calls_total 3\n"), "{text}");
        assert!(text.contains("ebla_test_bytes 9\n"), "{text}");
        assert!(text.contains("ebla_test_wait_micros_bucket{le=\"8\"} 1\n"), "{text}");
        assert!(text.contains("ebla_test_wait_micros_bucket{le=\"4\"} 0\n"), "{text}");
    }

    #[test]
    fn a_quantile_is_at_most_twice_the_truth() {
        let histogram = Histogram::default();
        for micros in 1..=1_000 {
            histogram.record(Duration::from_micros(micros));
        }
        let median = histogram.quantile(0.5);
        assert!((Duration::from_micros(500)..=Duration::from_micros(1_024)).contains(&median), "{median:?}");
        assert_eq!(histogram.count(), 1_000);
        assert_eq!(Histogram::default().quantile(0.9), Duration::ZERO);
    }
}
