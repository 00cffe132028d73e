//! Metrics: what a process tells a monitoring system, in the formats of Prometheus and OpenMetrics.
//!
//! ```text
//!   Family        one line of the table of all metrics: name, type, labels, help      a constant of the crate that measures
//!   Counter, Histogram   live figures: an atomic addition records one event
//!   Source        the samples of a part of the process, read when somebody scrapes
//!   Metrics       the registry of a process: its sources  -> exposition -> text
//! ```
//!
//! A registry is a value that is passed to those who register: a test or a simulation has as many as it wants. Most figures exist anyway, for
//! reports to the master and for `ebla status`; their sources read them at scrape time, so nothing is counted twice. Where an event has to be
//! counted as it happens, the handle is resolved when the server starts, and recording takes no lock and looks nothing up.
//!
//! Invariant: the number of series depends on the number of servers, methods and causes, never on the number of tables, tablets, groups or
//! callers. `docs/reference/metrics.md` is generated from the tables of families.

mod exposition;
mod histogram;
mod process;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;

pub use self::exposition::{OPENMETRICS_TYPE, TEXT_TYPE, TextFormat, render};
pub use self::histogram::{Histogram, HistogramCounts, LATENCY_BOUNDS};
pub use self::process::{FAMILIES as PROCESS_FAMILIES, ProcessSource};

/// How long a source may take to return its samples.
pub const SOURCE_TIMEOUT: Duration = Duration::from_secs(4);

static MISSING: Family = Family::gauge(
    "ebla_metrics_missing_sources",
    &[],
    "Parts of the process whose figures are not in this scrape, because reading them took too long",
);

/// The metrics of the registry itself.
pub static REGISTRY_FAMILIES: &[&Family] = &[&MISSING];

/// What the figures of a family mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of events, or a sum, since the start of the process. It only grows; its name ends in `_total`.
    Counter,
    /// A value of this moment.
    Gauge,
    /// How many events were at most so long or so large, with their sum.
    Histogram,
}

impl Kind {
    /// Its name in the formats.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric with all its series: one line of the table of all metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name as Prometheus shows it: `ebla_`, the part of the system, what is measured, and the unit (`_seconds`, `_bytes`, `_ratio`); a
    /// counter ends in `_total`.
    pub name: &'static str,
    /// What the figures mean.
    pub kind: Kind,
    /// The labels of its series, in the order in which [`Family::sample`] takes their values.
    pub labels: &'static [&'static str],
    /// What it measures, without a period at the end.
    pub help: &'static str,
}

impl Family {
    /// A counter.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// The value of one of its series. `labels`: the values of its labels, as many as it has.
    pub fn sample<const N: usize>(
        &'static self,
        labels: [Cow<'static, str>; N],
        value: impl Into<SampleValue>,
    ) -> Sample {
        Sample { family: self, labels: labels.into_iter().collect(), value: value.into() }
    }

    /// The unit at the end of its name, if there is one.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["seconds", "bytes", "ratio"].into_iter().find(|unit| name.ends_with(unit))
    }
}

/// One series of a family at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its family.
    pub family: &'static Family,
    /// The values of the labels, in the family's order.
    pub labels: Vec<Cow<'static, str>>,
    /// Its value.
    pub value: SampleValue,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleValue {
    /// Of a counter or a gauge.
    Integer(u64),
    /// Of a counter or a gauge in seconds, or a ratio.
    Float(f64),
    /// Of a histogram.
    Histogram(HistogramCounts),
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<usize> for SampleValue {
    fn from(value: usize) -> Self {
        Self::Integer(u64::try_from(value).unwrap_or(u64::MAX))
    }
}

impl From<bool> for SampleValue {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<HistogramCounts> for SampleValue {
    fn from(value: HistogramCounts) -> Self {
        Self::Histogram(value)
    }
}

/// A number of events since the start of the process. Cheap to clone; clones share the number.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts one event.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts this many.
    pub fn add(&self, count: u64) {
        // It guards no other memory.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A part of the process that has samples.
pub trait Source: Send + Sync + 'static {
    /// The samples now. What blocks is done on threads for that. A part that cannot be read returns no samples.
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>>;
}

/// The registry of a process; clones are the same registry.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Locked to add a source, or to copy the list.
    sources: Arc<Mutex<Vec<Arc<dyn Source>>>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("sources", &self.sources.lock().len()).finish()
    }
}

impl Metrics {
    /// Adds the samples of a source to all later scrapes.
    pub fn register(&self, source: Arc<dyn Source>) {
        self.sources.lock().push(source);
    }

    /// All samples now. The sources are read at the same time; one that takes longer than [`SOURCE_TIMEOUT`], because a disk hangs, is left
    /// out and counted in `ebla_metrics_missing_sources`.
    pub async fn samples(&self) -> Vec<Sample> {
        let sources = self.sources.lock().clone();
        let read = sources.iter().map(|source| tokio::time::timeout(SOURCE_TIMEOUT, source.samples()));
        let read = join_all(read).await;
        let missing = read.iter().filter(|samples| samples.is_err()).count();
        let samples = read.into_iter().filter_map(Result::ok).flatten();
        samples.chain([MISSING.sample([], missing)]).collect()
    }
}

/// What is wrong with a table of families, for the test that each crate with a table has.
#[must_use]
pub fn table_faults(families: &[&Family]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for family in families {
        let name = family.name;
        let mut fault = |text: &str| faults.push(format!("{name}: {text}"));
        if !names.insert(name) {
            fault("two families have this name");
        }
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !name.starts_with("ebla_") || !name.bytes().all(is_word) {
            fault("a name is ebla_ and lower-case words");
        }
        if name.ends_with("_total") != (family.kind == Kind::Counter) {
            fault("a counter, and nothing else, ends in _total");
        }
        let is_reserved =
            ["_count", "_sum", "_bucket", "_info", "_created"].iter().any(|suffix| name.ends_with(suffix));
        if is_reserved {
            fault("the ending has a meaning of its own in the formats");
        }
        if family.help.is_empty() || family.help.ends_with('.') || family.help.contains('\n') {
            fault("the help is one line without a period at the end");
        }
        if family.labels.iter().any(|label| *label == "le" || !label.bytes().all(is_word)) {
            fault("a label is a lower-case word, and not le");
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    static ROWS: Family = Family::counter("ebla_test_rows_total", &["server"], "Rows");
    static SIZE: Family = Family::gauge("ebla_test_size_bytes", &[], "Size");

    struct Fixed(Counter);

    impl Source for Fixed {
        fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
            Box::pin(async { vec![ROWS.sample(["1".into()], self.0.get()), SIZE.sample([], 7_u64)] })
        }
    }

    #[tokio::test]
    async fn registries_are_independent_and_values_are_those_of_the_scrape() {
        let (one, other, rows) = (Metrics::default(), Metrics::default(), Counter::default());
        one.register(Arc::new(Fixed(rows.clone())));
        rows.add(2);
        rows.increment();
        let samples = one.clone().samples().await;
        let missing = |sources: usize| MISSING.sample([], sources);
        assert_eq!(samples, [ROWS.sample(["1".into()], 3_u64), SIZE.sample([], 7_u64), missing(0)]);
        assert_eq!(other.samples().await, [missing(0)]);
    }

    /// Returns nothing, as one whose disk hangs.
    struct Hangs;

    impl Source for Hangs {
        fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_hangs_is_left_out_and_counted() {
        let metrics = Metrics::default();
        metrics.register(Arc::new(Hangs));
        metrics.register(Arc::new(Fixed(Counter::default())));
        let samples = metrics.samples().await;
        assert_eq!(samples, [ROWS.sample(["1".into()], 0_u64), SIZE.sample([], 7_u64), MISSING.sample([], 1_usize)]);
    }

    #[test]
    fn a_faulty_table_is_recognized() {
        assert_eq!(table_faults(&[&ROWS, &SIZE, &MISSING]), Vec::<String>::new());
        assert_eq!((ROWS.unit(), SIZE.unit()), (None, Some("bytes")));
        let bad = Family::gauge("Rows_total", &["le"], "");
        assert_eq!(table_faults(&[&bad]).len(), 4);
        assert_eq!(table_faults(&[&ROWS, &ROWS]).len(), 1);
        assert_eq!(table_faults(&[&Family::gauge("ebla_rows_count", &[], "Rows")]).len(), 1);
    }
}
