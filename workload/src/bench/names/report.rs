//! Results of the load, each compared with its limit.

use std::ops::{Add, Sub};

use ebla_model::capacity::readable_bytes;
use serde_json::{Value, json};

use crate::bench::closed_loop::LoopResult;

/// Result of one part of the load.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Name of the part.
    pub name: &'static str,
    /// Operations, errors, latencies.
    pub outcome: LoopResult,
    /// Cost.
    pub cost: Cost,
    /// Memory of the server's processes, if measured.
    pub memory: Option<Memory>,
    /// The limit, if there is one.
    pub limit: Option<Limit>,
}

/// Cost of a part of the load for the server and the generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Processor time of the server's processes, in microseconds; `None` when they are unknown.
    pub cpu_micros: Option<u64>,
    /// Processor time of this process, in microseconds.
    pub generator_micros: Option<u64>,
    /// Requests of the server to its storage; `None` when it does not report them.
    pub requests: Option<Requests>,
}

/// Requests of a mounttable to its storage, from its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    /// Reads of nodes.
    pub reads: u64,
    /// Conditional changes of nodes.
    pub changes: u64,
    /// Requests for counters: charges, and heartbeats every few seconds.
    pub counters: u64,
}

impl Add for Requests {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            changes: self.changes + other.changes,
            counters: self.counters + other.counters,
        }
    }
}

impl Sub for Requests {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            changes: self.changes.saturating_sub(before.changes),
            counters: self.counters.saturating_sub(before.counters),
        }
    }
}

impl Cost {
    /// Sum of two parts of the load.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_micros: both(self.cpu_micros, other.cpu_micros, u64::saturating_add),
            generator_micros: both(self.generator_micros, other.generator_micros, u64::saturating_add),
            requests: both(self.requests, other.requests, Requests::add),
        }
    }

    /// Difference to `before`: both are counts since the start of the processes.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_micros: both(self.cpu_micros, before.cpu_micros, u64::saturating_sub),
            generator_micros: both(self.generator_micros, before.generator_micros, u64::saturating_sub),
            requests: both(self.requests, before.requests, Requests::sub),
        }
    }
}

/// Combines two values; unknown if one is unknown.
fn both<T>(one: Option<T>, other: Option<T>, join: impl Fn(T, T) -> T) -> Option<T> {
    Some(join(one?, other?))
}

/// Resident memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Before.
    pub before: u64,
    /// Maximum during the operation.
    pub peak: u64,
    /// After.
    pub after: u64,
}

/// An upper limit of a measured value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit {
    /// The value and its unit.
    pub of: &'static str,
    /// The limit.
    pub at_most: f64,
    /// The measured value; `None` when it could not be measured.
    pub measured: Option<f64>,
}

/// Columns of [`Measurement::line`].
pub const COLUMNS: [&str; 9] = [
    "WORKLOAD",
    "OPS/S",
    "P50 MS",
    "P99 MS",
    "ERRORS",
    "CPU S/M (+ LOAD)",
    "READS + CHANGES + COUNTERS EACH",
    "MEMORY (PEAK, AFTER)",
    "LIMIT",
];

impl Measurement {
    /// A count divided by the operations; `None` when there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of one load are far below 2^52")]
    pub fn each(&self, sum: u64) -> Option<f64> {
        (self.outcome.operations > 0).then(|| sum as f64 / self.outcome.operations as f64)
    }

    /// Processor time of the server in seconds per million operations, which is microseconds per operation.
    #[must_use]
    pub fn cpu_seconds_per_million(&self) -> Option<f64> {
        self.each(self.cost.cpu_micros?)
    }

    /// Storage reads per operation.
    #[must_use]
    pub fn reads_each(&self) -> Option<f64> {
        self.each(self.cost.requests?.reads)
    }

    /// Storage changes per operation.
    #[must_use]
    pub fn changes_each(&self) -> Option<f64> {
        self.each(self.cost.requests?.changes)
    }

    fn counters_each(&self) -> Option<f64> {
        self.each(self.cost.requests?.counters)
    }

    /// Maximum growth of the server's memory, in MiB.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "no process holds 2^52 bytes")]
    pub fn growth_mebibytes(&self) -> Option<f64> {
        self.memory.map(|memory| memory.peak.saturating_sub(memory.before) as f64 / f64::from(1 << 20))
    }

    /// Adds a limit for the value that `measured` returns.
    #[must_use]
    pub fn with_limit(self, of: &'static str, at_most: f64, measured: impl Fn(&Self) -> Option<f64>) -> Self {
        Self { limit: Some(Limit { of, at_most, measured: measured(&self) }), ..self }
    }

    /// Whether the limit is met without errors; `None` without a limit, or when the value could not be measured.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        let limit = self.limit?;
        limit.measured.map(|measured| measured <= limit.at_most && self.outcome.errors == 0)
    }

    /// One line of a table.
    #[must_use]
    pub fn line(&self) -> Vec<String> {
        let shown = |figure: Option<f64>| figure.map_or_else(|| "?".to_owned(), |figure| format!("{figure:.2}"));
        let millis = |quantile| {
            let micros = self.outcome.quantile_micros(quantile);
            micros.map_or_else(|| "-".to_owned(), |micros| format!("{:.2}", micros / 1_000.0))
        };
        let generator = self.cost.generator_micros.and_then(|micros| self.each(micros));
        let memory = |memory: Memory| {
            let [before, peak, after] = [memory.before, memory.peak, memory.after].map(readable_bytes);
            format!("{before} ({peak}, {after})")
        };
        vec![
            self.name.to_owned(),
            format!("{:.0}", self.outcome.per_second()),
            millis(0.5),
            millis(0.99),
            self.outcome.errors.to_string(),
            format!("{} + {}", shown(self.cpu_seconds_per_million()), shown(generator)),
            [self.reads_each(), self.changes_each(), self.counters_each()].map(shown).join(" + "),
            self.memory.map(memory).unwrap_or_default(),
            self.verdict(),
        ]
    }

    fn verdict(&self) -> String {
        let Some(Limit { of, at_most, measured }) = self.limit else { return String::new() };
        let verdict = match self.is_met() {
            None => return format!("{of}: at most {at_most}, not measured"),
            Some(true) => "met",
            Some(false) => "missed",
        };
        format!("{of}: {:.2}, at most {at_most}: {verdict}", measured.unwrap_or(f64::NAN))
    }

    /// The result as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let requests = |it: Requests| json!({"reads": it.reads, "changes": it.changes, "counters": it.counters});
        let memory = |it: Memory| json!({"before": it.before, "peak": it.peak, "after": it.after});
        let limit =
            |it: Limit| json!({"of": it.of, "at_most": it.at_most, "measured": it.measured, "met": self.is_met()});
        json!({
            "workload": self.name,
            "operations": self.outcome.operations,
            "seconds": self.outcome.took.as_secs_f64(),
            "operations_per_second": self.outcome.per_second(),
            "p50_micros": self.outcome.quantile_micros(0.5),
            "p99_micros": self.outcome.quantile_micros(0.99),
            "errors": self.outcome.errors,
            "first_error": self.outcome.first_error,
            "cpu_seconds_per_million": self.cpu_seconds_per_million(),
            "generator_seconds_per_million": self.cost.generator_micros.and_then(|micros| self.each(micros)),
            "storage_requests": self.cost.requests.map(requests),
            "resident_bytes": self.memory.map(memory),
            "bar": self.limit.map(limit),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measurement(errors: u64) -> Measurement {
        let took = Duration::from_secs(2);
        Measurement {
            name: "resolve",
            outcome: LoopResult { operations: 1_000_000, errors, took, ..LoopResult::none() },
            cost: Cost {
                cpu_micros: Some(21_500_000),
                generator_micros: Some(40_000_000),
                requests: Some(Requests { reads: 2_000, changes: 0, counters: 9 }),
            },
            memory: None,
            limit: None,
        }
    }

    #[test]
    fn a_result_is_compared_with_its_limit() {
        let of = |measurement: Measurement, at_most| {
            measurement.with_limit("CPU-s per million", at_most, Measurement::cpu_seconds_per_million)
        };
        let good = of(measurement(0), 25.0);
        assert_eq!(good.line()[8], "CPU-s per million: 21.50, at most 25: met");
        assert_eq!(good.line()[..6], ["resolve", "500000", "-", "-", "0", "21.50 + 40.00"]);
        assert_eq!(good.line()[6], "0.00 + 0.00 + 0.00");
        assert_eq!(good.json()["bar"]["met"], true);
        assert!(of(measurement(0), 20.0).line()[8].ends_with("at most 20: missed"));
        assert_eq!(of(measurement(1), 25.0).is_met(), Some(false), "a load with errors does not meet its limit");
    }

    #[test]
    fn costs_are_differences_and_add_up() {
        let at = |cpu, reads| Cost {
            cpu_micros: Some(cpu),
            generator_micros: None,
            requests: Some(Requests { reads, changes: 1, counters: 1 }),
        };
        let part = at(30, 7).since(at(10, 4));
        assert_eq!(part.requests, Some(Requests { reads: 3, changes: 0, counters: 0 }));
        let whole = part.plus(part);
        assert_eq!((whole.cpu_micros, whole.generator_micros), (Some(40), None));
        assert_eq!(part.plus(Cost::default()), Cost::default());
    }

    #[test]
    fn an_unmeasured_limit_is_neither_met_nor_missed() {
        let unmeasured = Measurement { cost: Cost::default(), ..measurement(0) };
        let unmeasured = unmeasured.with_limit("CPU-s per million", 25.0, Measurement::cpu_seconds_per_million);
        assert_eq!(unmeasured.is_met(), None);
        assert_eq!(unmeasured.line()[8], "CPU-s per million: at most 25, not measured");
        assert_eq!(unmeasured.json()["cpu_seconds_per_million"], Value::Null);
        assert_eq!(measurement(0).is_met(), None, "without a limit");
    }

    #[test]
    fn memory_growth_is_the_peak_minus_the_start() {
        let memory = Memory { before: 40 << 20, peak: 56 << 20, after: 44 << 20 };
        let measurement = Measurement { memory: Some(memory), ..measurement(0) };
        assert_eq!(measurement.growth_mebibytes(), Some(16.0));
        assert_eq!(measurement.line()[7], "40.0 MiB (56.0 MiB, 44.0 MiB)");
    }
}
