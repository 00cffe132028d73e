//! Samples as text: OpenMetrics 1.0, as the library writes it, and the text format 0.0.4 of Prometheus, which everything else reads.
//!
//! The second is made from the first: in it the name of a counter is the one of its samples, and comments other than `HELP` and `TYPE` mean
//! nothing.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{Family, HistogramCounts, Kind, Sample, SampleValue};

/// The media type of the text format.
pub const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The media type of OpenMetrics.
pub const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus' text format 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl TextFormat {
    /// The format that a client with this `Accept` header gets: OpenMetrics if it names it, with any quality but 0.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let accepts = |part: &str| {
            let mut parameters = part.split(';').map(str::trim);
            let is_open_metrics = parameters.next() == Some("application/openmetrics-text");
            let is_refused = parameters.any(|parameter| {
                parameter.strip_prefix("q=").is_some_and(|quality| quality.parse::<f32>().is_ok_and(|q| q <= 0.0))
            });
            is_open_metrics && !is_refused
        };
        if accept.is_some_and(|accept| accept.split(',').any(accepts)) { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Its media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => TEXT_TYPE,
            Self::OpenMetrics => OPENMETRICS_TYPE,
        }
    }
}

/// The samples as text, ordered by the names of their families.
///
/// # Errors
/// When a value does not fit into the format.
pub fn render(samples: Vec<Sample>, format: TextFormat) -> Result<String, fmt::Error> {
    let mut families: BTreeMap<&'static str, (&'static Family, Vec<Sample>)> = BTreeMap::new();
    for sample in samples {
        let family = sample.family;
        families.entry(family.name).or_insert_with(|| (family, Vec::new())).1.push(sample);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families.into_values().collect())));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    encode_eof(&mut text)?;
    Ok(match format {
        TextFormat::OpenMetrics => text,
        TextFormat::Prometheus => to_prometheus(&text),
    })
}

/// OpenMetrics as the text format of Prometheus.
fn to_prometheus(text: &str) -> String {
    // The line HELP of a family comes before its TYPE, so the types are collected first.
    let counters: std::collections::BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let comment = ["# HELP ", "# TYPE "].into_iter().find_map(|word| Some((word, line.strip_prefix(word)?)));
        match comment {
            Some((word, rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(name) { "_total" } else { "" };
                out.push_str(&format!("{word}{name}{suffix} {rest}\n"));
            }
            None if line.starts_with('#') => {}
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// The samples of one scrape, by family.
#[derive(Debug)]
struct Scrape(Vec<(&'static Family, Vec<Sample>)>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (family, samples) in &self.0 {
            let (name, unit) = name_and_unit(family);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, family.help, unit.as_ref(), kind)?;
            for sample in samples {
                encode_sample(&mut metric, sample)?;
            }
        }
        Ok(())
    }
}

/// The name without what the library adds to it.
fn name_and_unit(family: &Family) -> (&'static str, Option<Unit>) {
    let name = family.name.strip_suffix("_total").unwrap_or(family.name);
    let Some(unit) = family.unit() else { return (name, None) };
    match name.strip_suffix(unit).and_then(|name| name.strip_suffix('_')) {
        Some(name) => (name, Some(Unit::Other(unit.to_owned()))),
        None => (name, None),
    }
}

fn encode_sample(metric: &mut MetricEncoder<'_>, sample: &Sample) -> Result<(), fmt::Error> {
    if sample.labels.is_empty() {
        return encode_value(metric, sample);
    }
    let values = sample.labels.iter().map(AsRef::as_ref);
    let labels: Vec<(&str, &str)> = sample.family.labels.iter().copied().zip(values).collect();
    let mut series = metric.encode_family(&labels)?;
    encode_value(&mut series, sample)
}

fn encode_value(encoder: &mut MetricEncoder<'_>, sample: &Sample) -> Result<(), fmt::Error> {
    match (&sample.value, sample.family.kind) {
        (SampleValue::Integer(value), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        (SampleValue::Float(value), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        // The library writes large integers as signed numbers.
        (SampleValue::Integer(value), _) => encoder.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX)),
        (SampleValue::Float(value), _) => encoder.encode_gauge(value),
        (SampleValue::Histogram(counts), _) => encode_histogram(encoder, counts),
    }
}

fn encode_histogram(encoder: &mut MetricEncoder<'_>, counts: &HistogramCounts) -> Result<(), fmt::Error> {
    let bounds = counts.bounds.iter().map(|micros| seconds(*micros)).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts.buckets.iter().copied()).collect();
    encoder.encode_histogram::<NoLabelSet>(seconds(counts.sum_micros), counts.count(), &buckets, None)
}

/// Microseconds in seconds, rounded as decimal fractions are.
fn seconds(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Histogram;

    static CALLS: Family = Family::counter("ebla_test_calls_total", &["method", "code"], "Calls");
    static CPU: Family = Family::counter("ebla_test_cpu_seconds_total", &[], "Processor time");
    static DISK: Family = Family::gauge("ebla_test_disk_free_bytes", &["server"], "Free space");
    static LATENCY: Family = Family::histogram("ebla_test_latency_seconds", &[], "Latency");

    fn samples() -> Vec<Sample> {
        let latency = Histogram::new(&[1_000, 250_000]);
        for millis in [1, 2, 300] {
            latency.record(Duration::from_millis(millis));
        }
        vec![
            DISK.sample(["2".into()], 1_u64 << 40),
            CALLS.sample(["ReadRows".into(), "OK".into()], 3_u64),
            DISK.sample(["1".into()], u64::MAX),
            LATENCY.sample([], latency.counts()),
            CALLS.sample(["a \"b\"\\\n".into(), "OK".into()], 0_u64),
            CPU.sample([], 1.5),
        ]
    }

    #[test]
    fn prometheus_text_names_each_series_as_its_family() {
        let text = render(samples(), TextFormat::Prometheus).unwrap();
        assert_eq!(
            text,
            "# HELP ebla_test_calls_total Calls\n\
             # TYPE ebla_test_calls_total counter\n\
             ebla_test_calls_total{method=\"ReadRows\",code=\"OK\"} 3\n\
             ebla_test_calls_total{method=\"a \\\"b\\\"\\\\\\n\",code=\"OK\"} 0\n\
             # HELP ebla_test_cpu_seconds_total Processor time\n\
             # TYPE ebla_test_cpu_seconds_total counter\n\
             ebla_test_cpu_seconds_total 1.5\n\
             # HELP ebla_test_disk_free_bytes Free space\n\
             # TYPE ebla_test_disk_free_bytes gauge\n\
             ebla_test_disk_free_bytes{server=\"2\"} 1099511627776\n\
             ebla_test_disk_free_bytes{server=\"1\"} 9223372036854775807\n\
             # HELP ebla_test_latency_seconds Latency\n\
             # TYPE ebla_test_latency_seconds histogram\n\
             ebla_test_latency_seconds_sum 0.303\n\
             ebla_test_latency_seconds_count 3\n\
             ebla_test_latency_seconds_bucket{le=\"0.001\"} 1\n\
             ebla_test_latency_seconds_bucket{le=\"0.25\"} 2\n\
             ebla_test_latency_seconds_bucket{le=\"+Inf\"} 3\n"
        );
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        let text = render(samples(), TextFormat::OpenMetrics).unwrap();
        for line in [
            "# TYPE ebla_test_calls counter",
            "ebla_test_calls_total{method=\"ReadRows\",code=\"OK\"} 3",
            "# UNIT ebla_test_cpu_seconds seconds",
            "ebla_test_cpu_seconds_total 1.5",
            "# UNIT ebla_test_disk_free_bytes bytes",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_is_the_one_that_the_client_names() {
        let format = |accept: &str| TextFormat::accepted(Some(accept));
        let scraper = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(format(scraper), TextFormat::OpenMetrics);
        assert_eq!(format("application/openmetrics-text;q=0"), TextFormat::Prometheus);
        assert_eq!(format("text/html,*/*"), TextFormat::Prometheus);
        assert_eq!(TextFormat::accepted(None).media_type(), TEXT_TYPE);
    }
}
