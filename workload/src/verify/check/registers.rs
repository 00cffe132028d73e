//! Checker of registers: read, write, compare-and-set on one row. A bank row is a register whose value is the mark of its transfer.
//!
//! Two steps. First *zones*: every value is written once, so the row has it from the first end to the last start of the
//! operations that show it, and two values cannot overlap (Gibbons and Korach). This takes n log n, finds almost all
//! anomalies, and explains them clearly. Then a search for a linear order ([`wgl`]) within a budget; only the search covers
//! swaps that found another value.

use std::collections::BTreeSet;

use super::wgl::{self, Model, Order};
use super::{RowResult, zones};
use crate::verify::finding::{Anomaly, Finding};
use crate::verify::history::{Action, Extent, History, Moment, Operation, Outcome, Process, Token};

/// A row with one value, initially none.
pub struct Register;

impl Model for Register {
    type State = Option<Token>;

    fn initial(&self) -> Option<Token> {
        None
    }

    fn step(&self, state: &Option<Token>, operation: &Operation) -> Option<Option<Token>> {
        match &operation.action {
            Action::Read { value } => (value == state).then_some(*state),
            Action::Write { value } => Some(Some(*value)),
            // A swap without a response that finds another value changes nothing: it need not be in the order.
            Action::Swap { expected, value, swapped: Some(true) | None } => (expected == state).then_some(Some(*value)),
            Action::Swap { expected, swapped: Some(false), .. } => (expected != state).then_some(*state),
            _ => None,
        }
    }
}

/// Checks the register in `row`. `budget`: see [`wgl::order`].
pub fn check(row: &str, operations: &[Operation], history: &History, budget: usize) -> RowResult {
    let mut written: BTreeSet<Token> = operations.iter().filter_map(Operation::token).collect();
    let mut sent_later = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let Action::Read { value: Some(value) } = operation.action else { continue };
        if !written.insert(value) {
            continue;
        }
        if !history.may_have_sent(value) {
            let finding = Finding::new(Anomaly::Phantom, row, "a value that was written", value.to_string());
            return RowResult::Invalid(Box::new(finding.around(operations, number)));
        }
        sent_later.push(Operation {
            by: Process::Writer(value.writer),
            start: Moment::default(),
            end: operation.end,
            outcome: Outcome::Unknown,
            action: Action::Write { value },
        });
    }
    let all: Vec<&Operation> = conclusive(operations, history.extent).chain(&sent_later).collect();
    let live: Vec<&Operation> = all.iter().copied().filter(|each| each.by != Process::ReadBack).collect();
    let (anomaly, conflict) = match zones::conflict(&live) {
        Some(conflict) => (Anomaly::Stale, Some(conflict)),
        None => (Anomaly::Lost, zones::conflict(&all)),
    };
    if let Some(zones::Conflict { held, seen }) = conflict {
        let finding = Finding::new(anomaly, row, held, seen.to_string());
        return RowResult::Invalid(Box::new(finding.around_first(operations, |operation| operation == seen)));
    }
    if wgl::order(&Register, &lean(&all), budget) == Order::Exists {
        return RowResult::Valid;
    }
    match wgl::order(&Register, &all, budget) {
        Order::Exists => RowResult::Valid,
        Order::Undecided => RowResult::Undecided,
        Order::Impossible(stuck) => {
            let seen = all.get(stuck).map(|operation| operation.to_string()).unwrap_or_default();
            let expected = "responses that some order of the operations explains";
            let anomaly = match wgl::order(&Register, &lean(&live), budget / 5) {
                Order::Exists => Anomaly::Lost,
                _ => Anomaly::Stale,
            };
            let is_stuck = |operation: &Operation| all.get(stuck).is_some_and(|stuck| *stuck == operation);
            let finding = Finding::new(anomaly, row, expected, seen);
            RowResult::Invalid(Box::new(finding.around_first(operations, is_stuck)))
        }
    }
}

/// The operations without writes of unknown outcome whose value was never seen: these can only explain a failed swap. Tried
/// first.
fn lean<'a>(operations: &[&'a Operation]) -> Vec<&'a Operation> {
    let mut seen: BTreeSet<Token> = BTreeSet::new();
    for operation in operations {
        match operation.action {
            Action::Read { value } => seen.extend(value),
            Action::Swap { expected, .. } => seen.extend(expected),
            _ => {}
        }
    }
    let is_unseen = |operation: &Operation| operation.token().is_some_and(|value| !seen.contains(&value));
    let is_moot = |operation: &Operation| operation.outcome == Outcome::Unknown && is_unseen(operation);
    operations.iter().copied().filter(|operation| !is_moot(operation)).collect()
}

/// In a truncated history, a failed swap may have found the value of a missing write: such swaps are not checked.
fn conclusive(operations: &[Operation], extent: Extent) -> impl Iterator<Item = &Operation> {
    let is_mismatch = |operation: &Operation| matches!(operation.action, Action::Swap { swapped: Some(false), .. });
    operations.iter().filter(move |operation| extent == Extent::Whole || !is_mismatch(operation))
}
