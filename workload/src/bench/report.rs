//! Results of rounds: medians, costs per row, and ratios between targets with their intervals.

use ebla_runtime::Rng;
use serde_json::{Value, json};

use super::Combination;
use super::counters::ServerCounters;
use super::processes::Spent;
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
    counts: Counts,
    /// Throughput of the first target divided by that of this one.
    ratio: Option<Interval>,
}

/// What is counted per row, the sum over all processes and servers of a target; `None` where it is unknown.
struct Counts {
    switches: Option<f64>,
    write_calls: Option<f64>,
    syncs: Option<f64>,
    records: Option<f64>,
    proposals: Option<f64>,
    frames: Option<f64>,
    frame_bytes: Option<f64>,
    /// Log entries in a frame that has any; not per row.
    entries_per_frame: Option<f64>,
}

/// Columns of [`Comparison::lines`].
pub const COLUMNS: [&str; 9] = [
    "WORKLOAD",
    "CLIENTS",
    "TABLETS",
    "TARGET",
    "ROWS/S",
    "P50 MS",
    "P99 MS",
    "CPU US (+ LOAD)",
    "FIRST / THIS [95 %]",
];

/// Columns of [`Comparison::count_lines`].
pub const COUNT_COLUMNS: [&str; 12] = [
    "WORKLOAD",
    "CLIENTS",
    "TABLETS",
    "TARGET",
    "SWITCHES",
    "WRITE CALLS",
    "SYNCS",
    "RECORDS",
    "PROPOSALS",
    "FRAMES",
    "FRAME BYTES",
    "ENTRIES/FRAME",
];

impl Counts {
    fn new(rounds: &[Round]) -> Self {
        let spent = |count: fn(&Spent) -> Option<u64>| all(rounds, |round| round.per_row(count(&round.spent?)?));
        let servers = |count: fn(&ServerCounters) -> u64| all(rounds, |round| round.per_row(count(&round.servers?)));
        Self {
            switches: spent(|spent| Some(spent.switches)),
            write_calls: spent(|spent| spent.write_calls),
            syncs: servers(|servers| servers.syncs),
            records: servers(|servers| servers.records),
            proposals: servers(|servers| servers.proposals),
            frames: servers(|servers| servers.frames),
            frame_bytes: servers(|servers| servers.frame_bytes),
            entries_per_frame: all(rounds, |round| entries_per_frame(&round.servers?)),
        }
    }

    fn cells(&self) -> Vec<String> {
        let two_digits = |count: Option<f64>| count.map(|count| format!("{count:.2}")).unwrap_or_default();
        vec![
            two_digits(self.switches),
            two_digits(self.write_calls),
            two_digits(self.syncs),
            two_digits(self.records),
            two_digits(self.proposals),
            two_digits(self.frames),
            self.frame_bytes.map(|bytes| format!("{bytes:.0}")).unwrap_or_default(),
            two_digits(self.entries_per_frame),
        ]
    }
}

/// `None` when no frame had an entry, as when all servers are in one process.
#[expect(clippy::cast_precision_loss, reason = "counts of one round are far below 2^52")]
fn entries_per_frame(servers: &ServerCounters) -> Option<f64> {
    (servers.entry_frames > 0).then(|| servers.entries as f64 / servers.entry_frames as f64)
}

impl Comparison {
    /// Computes the results. `targets`: name and rounds of each target; the first target is compared with the others.
    pub fn new(combination: Combination, targets: &[(String, Vec<Round>)], rng: &Rng) -> Self {
        let first = targets.first().map(|(_, rounds)| rounds.as_slice()).unwrap_or_default();
        let figures = |(number, (name, rounds)): (usize, &(String, Vec<Round>))| TargetResults {
            name: name.clone(),
            rows_per_second: median_of(rounds, |round| round.rows_per_second()),
            p50_micros: median_of(rounds, |round| round.quantile_micros(0.5)),
            p99_micros: median_of(rounds, |round| round.quantile_micros(0.99)),
            cpu_micros: all(rounds, |round| round.per_row(round.spent?.cpu_micros)),
            generator_micros: all(rounds, |round| round.per_row(round.generator_micros?)).unwrap_or(f64::NAN),
            counts: Counts::new(rounds),
            ratio: if number == 0 { None } else { ratio(first, rounds, rng) },
        };
        Self { combination, targets: targets.iter().enumerate().map(figures).collect() }
    }

    /// One line for each target.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let line = |one: &TargetResults| {
            vec![
                format!("{:.0}", one.rows_per_second),
                format!("{:.2}", one.p50_micros / 1000.0),
                format!("{:.2}", one.p99_micros / 1000.0),
                match one.cpu_micros {
                    Some(cpu) => format!("{cpu:.0} + {:.0}", one.generator_micros),
                    None => format!("? + {:.0}", one.generator_micros),
                },
                one.ratio
                    .map(|ratio| format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high))
                    .unwrap_or_default(),
            ]
        };
        self.targets.iter().map(|one| [self.names(one), line(one)].concat()).collect()
    }

    /// One line for each target of which something is counted.
    pub fn count_lines(&self) -> Vec<Vec<String>> {
        let lines = self.targets.iter().map(|one| (one, one.counts.cells()));
        let known = lines.filter(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
        known.map(|(one, cells)| [self.names(one), cells].concat()).collect()
    }

    /// The first cells of a line.
    fn names(&self, target: &TargetResults) -> Vec<String> {
        vec![
            self.combination.workload.to_owned(),
            self.combination.clients.to_string(),
            self.combination.tablets.map(|tablets| tablets.to_string()).unwrap_or_default(),
            target.name.clone(),
        ]
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
                "switches_per_row": one.counts.switches,
                "write_calls_per_row": one.counts.write_calls,
                "syncs_per_row": one.counts.syncs,
                "records_per_row": one.counts.records,
                "proposals_per_row": one.counts.proposals,
                "frames_per_row": one.counts.frames,
                "frame_bytes_per_row": one.counts.frame_bytes,
                "entries_per_frame": one.counts.entries_per_frame,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::closed_loop::empty;

    fn round(rows: u64, spent: Option<Spent>, servers: Option<ServerCounters>) -> Round {
        let took = Duration::from_secs(1);
        Round { rows, took, latencies: empty(), spent, generator_micros: Some(rows * 30), servers }
    }

    fn comparison() -> Comparison {
        let spent = Spent { cpu_micros: 40_000, switches: 1_030, write_calls: None };
        let servers = ServerCounters {
            syncs: 118,
            records: 300,
            frames: 250,
            frame_bytes: 210_000,
            entry_frames: 160,
            entries: 200,
            proposals: 90,
        };
        let combination = Combination { workload: "write", clients: 16, tablets: Some(12) };
        let first = ("ebla".to_owned(), vec![round(100, Some(spent), Some(servers))]);
        let second = ("emulator".to_owned(), vec![round(200, None, None)]);
        Comparison::new(combination, &[first, second], &Rng::seeded(7))
    }

    #[test]
    fn a_line_names_its_combination_and_compares_with_the_first_target() {
        let lines: Vec<String> = comparison().lines().iter().map(|line| line.join("|")).collect();
        assert_eq!(
            lines,
            ["write|16|12|ebla|100|0.00|0.00|400 + 30|", "write|16|12|emulator|200|0.00|0.00|? + 30|0.50 [0.50, 0.50]",]
        );
    }

    #[test]
    fn counts_are_per_row_and_a_target_without_any_has_no_line() {
        let lines: Vec<String> = comparison().count_lines().iter().map(|line| line.join("|")).collect();
        assert_eq!(lines, ["write|16|12|ebla|10.30||1.18|3.00|0.90|2.50|2100|1.25"]);
        assert!(comparison().count_lines().iter().all(|line| line.len() == COUNT_COLUMNS.len()));
        assert!(comparison().lines().iter().all(|line| line.len() == COLUMNS.len()));
    }

    #[test]
    fn json_has_the_combination_and_the_counts() {
        let json = comparison().json();
        assert_eq!(json["tablets"], 12);
        assert_eq!(json["targets"][0]["switches_per_row"], 10.3);
        assert_eq!(json["targets"][0]["entries_per_frame"], 1.25);
        assert_eq!(json["targets"][1]["syncs_per_row"], Value::Null);
    }
}
