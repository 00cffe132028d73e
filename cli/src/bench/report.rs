//! From slices to figures: medians, what a row costs, and the ratios to the peers with their intervals.

use ebla_runtime::Rng;
use serde_json::{Value, json};

use super::slice::Slice;
use super::statistics::{Interval, bootstrap, median};

/// The slices of one workload at one number of clients.
pub struct Measured {
    workload: &'static str,
    clients: usize,
    targets: Vec<Figures>,
}

/// What is told of one target.
struct Figures {
    name: String,
    rows_per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    /// Processor time of all of its processes for each row; `None` where they are not known.
    cpu_micros: Option<f64>,
    /// Processor time of the load generator for each row.
    generator_micros: f64,
    /// Times a commit log waited for its disk for each row, over all servers.
    syncs: Option<f64>,
    /// How many times as many rows a second the first target did.
    ratio: Option<Interval>,
}

/// What [`Measured::lines`] has in its columns.
pub const COLUMNS: [&str; 9] =
    ["WORKLOAD", "CLIENTS", "TARGET", "ROWS/S", "P50 MS", "P99 MS", "CPU US (+ LOAD)", "SYNCS", "FIRST / THIS [95 %]"];

impl Measured {
    /// What was done. By target: its name and its slices, in the order of the rounds. The first target is compared with the
    /// others.
    pub fn new(workload: &'static str, clients: usize, targets: &[(String, Vec<Slice>)], rng: &Rng) -> Self {
        let first = targets.first().map(|(_, slices)| slices.as_slice()).unwrap_or_default();
        let figures = |(number, (name, slices)): (usize, &(String, Vec<Slice>))| Figures {
            name: name.clone(),
            rows_per_second: median_of(slices, |slice| slice.rows_per_second()),
            p50_micros: median_of(slices, |slice| slice.quantile_micros(0.5)),
            p99_micros: median_of(slices, |slice| slice.quantile_micros(0.99)),
            cpu_micros: all(slices, |slice| slice.per_row(slice.cpu_micros?)),
            generator_micros: all(slices, |slice| slice.per_row(slice.generator_micros?)).unwrap_or(f64::NAN),
            syncs: all(slices, |slice| slice.per_row(slice.syncs?)),
            ratio: if number == 0 { None } else { ratio(first, slices, rng) },
        };
        Self { workload, clients, targets: targets.iter().enumerate().map(figures).collect() }
    }

    /// A line for each target.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let line = |one: &Figures| {
            vec![
                self.workload.to_owned(),
                self.clients.to_string(),
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

    /// The same for programs.
    pub fn json(&self) -> Value {
        let target = |one: &Figures| {
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
            "workload": self.workload,
            "clients": self.clients,
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
        })
    }
}

fn median_of(slices: &[Slice], figure: impl Fn(&Slice) -> f64) -> f64 {
    median(slices.iter().map(figure).collect())
}

/// The median, where every slice has the figure.
fn all(slices: &[Slice], figure: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
    slices.iter().map(figure).collect::<Option<Vec<_>>>().map(median)
}

/// Ratios within each round, which both met under the same conditions.
fn ratio(first: &[Slice], other: &[Slice], rng: &Rng) -> Option<Interval> {
    let ratios: Vec<f64> =
        first.iter().zip(other).map(|(a, b)| a.rows_per_second() / b.rows_per_second().max(1e-9)).collect();
    bootstrap(&ratios, rng)
}
