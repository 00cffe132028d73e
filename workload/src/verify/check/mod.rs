//! Checkers: could a correct store have produced this history? Pure functions from histories to findings.
//!
//! | checker | rows | proves | cost |
//! |---|---|---|---|
//! | [`lists`] | append lists | each token once, none lost, all reads in real-time order: linearizable | n log n |
//! | [`counters`] | counters | linearizable: between acknowledged and sent, in real-time order | n log n |
//! | [`registers`] | registers, bank rows | no overlapping values ([`zones`]); linearizable, or undecided ([`wgl`]) | n log n; then mostly linear, at worst 2^n, bounded |
//! | [`scans`] | boundary rows | a scan returns every required row exactly once, in order | n log n |
//! | [`drops`] | dropped prefixes | rows that were dropped do not return, later ones stay | n |
//! | [`super::blind_writes`] | blind writes | the last acknowledged version | n |
//!
//! Torn rows are detected where rows are read, by their contents (`rows.rs`).

pub mod counters;
pub mod drops;
pub mod lists;
pub mod order;
pub mod registers;
pub mod scans;
pub mod wgl;
pub mod zones;

#[cfg(test)]
mod tests;

use super::finding::Finding;
use super::history::History;
use super::rows::Kind;

/// Configurations that the search for a linear order may visit in one row: a few tenths of a second and 15 MiB.
const BUDGET: usize = 50_000;

/// Result of the checkers for a history.
#[derive(Clone, Debug, Default)]
pub struct CheckResult {
    /// The anomalies.
    pub findings: Vec<Finding>,
    /// Rows whose order could not be decided within the budget.
    pub undecided: u64,
}

impl CheckResult {
    /// Adds the findings of another result.
    pub fn add(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.undecided += other.undecided;
    }
}

impl From<RowResult> for CheckResult {
    fn from(judgement: RowResult) -> Self {
        match judgement {
            RowResult::Valid => Self::default(),
            RowResult::Invalid(finding) => Self { findings: vec![*finding], undecided: 0 },
            RowResult::Undecided => Self { findings: Vec::new(), undecided: 1 },
        }
    }
}

/// Result of a checker with a budget for one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowResult {
    /// A correct store could have produced the history.
    Valid,
    /// No correct store could have produced it.
    Invalid(Box<Finding>),
    /// The budget was exhausted.
    Undecided,
}

/// Checks every row with recorded operations, one per step, so that an asynchronous caller can yield between them.
pub fn each(history: &History) -> impl Iterator<Item = CheckResult> {
    let lists = history.rows_of(Kind::List).map(|(row, operations)| lists::check(row, operations, history));
    let counters = history.rows_of(Kind::Count).map(|(row, operations)| {
        let finding = counters::check(row, operations, history.extent);
        finding.into_iter().collect()
    });
    let exact = lists.chain(counters).map(|findings| CheckResult { findings, undecided: 0 });
    let registers = [Kind::Bank, Kind::Register].into_iter().flat_map(|kind| history.rows_of(kind));
    let registers = registers.map(|(row, operations)| registers::check(row, operations, history, BUDGET).into());
    exact.chain(registers)
}

/// Checks every row with recorded operations.
pub fn all(history: &History) -> CheckResult {
    let mut whole = CheckResult::default();
    each(history).for_each(|verdict| whole.add(verdict));
    whole
}
