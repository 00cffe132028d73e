//! Is this history one that a correct store could have given? Pure functions from histories to findings.
//!
//! | checker | rows | proves | cost |
//! |---|---|---|---|
//! | [`lists`] | append lists | each token once, none lost, all reads in real-time order: linearizable | n log n |
//! | [`counters`] | counters | linearizable: between acknowledged and sent, in real-time order | n log n |
//! | [`registers`] | registers, bank rows | no value in the place of another ([`zones`]); linearizable, or undecided ([`wgl`]) | n log n; then mostly linear, at worst 2^n, bounded |
//! | [`scans`] | borders | a scan has every row that stood still exactly once, in order | n log n |
//! | [`super::ledger`] | blind writes | the last acknowledged version | n |
//!
//! Half rows are found where rows are read, by their content (`rows.rs`).

pub mod counters;
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

/// Configurations that the search for a linear order may visit in one row: some tenths of a second and 15 MiB.
const BUDGET: usize = 50_000;

/// What the checkers say about a history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Rows whose order could not be decided within the budget.
    pub undecided: u64,
}

impl Verdict {
    /// Adds another's findings.
    pub fn add(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.undecided += other.undecided;
    }
}

impl From<Judgement> for Verdict {
    fn from(judgement: Judgement) -> Self {
        match judgement {
            Judgement::Fine => Self::default(),
            Judgement::Wrong(finding) => Self { findings: vec![*finding], undecided: 0 },
            Judgement::Undecided => Self { findings: Vec::new(), undecided: 1 },
        }
    }
}

/// What a checker with a budget says about one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// A correct store could have given it.
    Fine,
    /// None could.
    Wrong(Box<Finding>),
    /// The budget did not suffice.
    Undecided,
}

/// Checks every row whose operations the history keeps, a step for each, so that an asynchronous caller can let others
/// run between them.
pub fn each(history: &History) -> impl Iterator<Item = Verdict> {
    let lists = history.rows_of(Kind::List).map(|(row, operations)| lists::check(row, operations, history));
    let counters = history.rows_of(Kind::Count).map(|(row, operations)| {
        let finding = counters::check(row, operations, history.extent);
        finding.into_iter().collect()
    });
    let exact = lists.chain(counters).map(|findings| Verdict { findings, undecided: 0 });
    let registers = [Kind::Bank, Kind::Register].into_iter().flat_map(|kind| history.rows_of(kind));
    let registers = registers.map(|(row, operations)| registers::check(row, operations, history, BUDGET).into());
    exact.chain(registers)
}

/// Checks every row whose operations the history keeps.
pub fn all(history: &History) -> Verdict {
    let mut whole = Verdict::default();
    each(history).for_each(|verdict| whole.add(verdict));
    whole
}
