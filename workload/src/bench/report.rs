//! Results of rounds: medians, cost per row, and ratios between targets with their intervals.

use ebla_runtime::Rng;
use serde_json::{Value, json};

use super::Combination;
use super::round::Round;
use super::statistics::{Interval, bootstrap, median};

/// The results of all targets for one combination of workload, clients and tablets.
pub struct Comparison {
    combination: Combination,
    targets: Vec<TargetResults>,
}

/// The results of one target.
struct TargetResults {
    name: String,
    rows_per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    /// Processor time of its processes per row; `None` when they are unknown.
    cpu_micros: Option<f64>,
    /// Processor time of the load generator per row.
    generator_micros: f64,
    /// Commit log fsyncs per row, over all servers.
    syncs: Option<f64>,
    /// Throughput of the first target divided by that of this one.
    ratio: Option<Interval>,
}

/// Columns of [`Comparison::lines`].
pub const COLUMNS: [&str; 10] = [
    "WORKLOAD",
    "CLIENTS",
    "TABLETS",
    "TARGET",
    "ROWS/S",
    "P50 MS",
    "P99 MS",
    "CPU US (+ LOAD)",
    "SYNCS",
    "FIRST / THIS [95 %]",
];

impl Comparison {
    /// Computes the results. `targets`: name and rounds of each target; the first target is compared with the others.
    pub fn new(combination: Combination, targets: &[(String, Vec<Round>)], rng: &Rng) -> Self {
        let first = targets.first().map(|(_, rounds)| rounds.as_slice()).unwrap_or_default();
        let figures = |(number, (name, rounds)): (usize, &(String, Vec<Round>))| TargetResults {
            name: name.clone(),
            rows_per_second: median_of(rounds, |round| round.rows_per_second()),
            p50_micros: median_of(rounds, |round| round.quantile_micros(0.5)),
            p99_micros: median_of(rounds, |round| round.quantile_micros(0.99)),
            cpu_micros: all(rounds, |round| round.per_row(round.cpu_micros?)),
            generator_micros: all(rounds, |round| round.per_row(round.generator_micros?)).unwrap_or(f64::NAN),
            syncs: all(rounds, |round| round.per_row(round.syncs?)),
            ratio: if number == 0 { None } else { ratio(first, rounds, rng) },
        };
        Self { combination, targets: targets.iter().enumerate().map(figures).collect() }
    }

    /// One line for each target.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let line = |one: &TargetResults| {
            vec![
                self.combination.workload.to_owned(),
                self.combination.clients.to_string(),
                self.combination.tablets.map(|tablets| tablets.to_string()).unwrap_or_default(),
                one.name.clone(),
                format!("{:.0}", one.rows_per_second),
                format!("{:.2}", one.p50_micros / 1000.0),
                format!("{:.2}", one.p99_micros / 1000.0),
                match one.cpu_micros {
                    Some(cpu) => format!("{cpu:.0} + {:.0}", one.generator_micros),
                    None => format!("? + {:.0}", one.generator_micros),
                },
                one.syncs.map(|syncs| format!("{syncs:.2}")).unwrap_or_default(),
                one.ratio
                    .map(|ratio| format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high))
                    .unwrap_or_default(),
            ]
        };
        self.targets.iter().map(line).collect()
    }

    /// The results as JSON.
    pub fn json(&self) -> Value {
        let target = |one: &TargetResults| {
            json!({
                "name": one.name,
                "rows_per_second": one.rows_per_second,
                "p50_micros": one.p50_micros,
                "p99_micros": one.p99_micros,
                "cpu_micros_per_row": one.cpu_micros,
                "generator_micros_per_row": one.generator_micros,
                "syncs_per_row": one.syncs,
                "ratio": one.ratio.map(|ratio| json!({"median": ratio.median, "low": ratio.low, "high": ratio.high})),
            })
        };
        json!({
            "workload": self.combination.workload,
            "clients": self.combination.clients,
            "tablets": self.combination.tablets,
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
        })
    }
}

fn median_of(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure).collect())
}

/// The median, if every round has the value.
fn all(rounds: &[Round], figure: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
    rounds.iter().map(figure).collect::<Option<Vec<_>>>().map(median)
}

/// Ratios of corresponding rounds, which ran under the same conditions.
fn ratio(first: &[Round], other: &[Round], rng: &Rng) -> Option<Interval> {
    let ratios: Vec<f64> =
        first.iter().zip(other).map(|(a, b)| a.rows_per_second() / b.rows_per_second().max(1e-9)).collect();
    bootstrap(&ratios, rng)
}
