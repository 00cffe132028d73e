//! Registers: read, write, compare-and-set on one row; a bank row is one too, its value the mark of its transfer.
//!
//! Two steps. First *zones*: every value is written once, so from the first end to the last start of the operations that
//! show a value, the row holds it, and two values cannot be held at once (Gibbons and Korach). That is n log n, finds
//! almost everything that can be wrong, and says it plainly. Then the search for an order ([`wgl`]) within its budget: it
//! alone judges swaps that found something else.

use std::collections::BTreeSet;

use super::wgl::{self, Model, Order};
use super::{Judgement, zones};
use crate::verify::finding::{Anomaly, Finding};
use crate::verify::history::{Action, Extent, History, Moment, Operation, Outcome, Process, Token};

/// A row with one value, at first none.
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
            // Without an answer, a swap that finds something else changes nothing: it need not be in the order.
            Action::Swap { expected, value, swapped: Some(true) | None } => (expected == state).then_some(Some(*value)),
            Action::Swap { expected, swapped: Some(false), .. } => (expected != state).then_some(*state),
            _ => None,
        }
    }
}

/// What is wrong with the register in `row`. `budget`: see [`wgl::order`].
pub fn check(row: &str, operations: &[Operation], history: &History, budget: usize) -> Judgement {
    let mut written: BTreeSet<Token> = operations.iter().filter_map(Operation::token).collect();
    let mut sent_later = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let Action::Read { value: Some(value) } = operation.action else { continue };
        if !written.insert(value) {
            continue;
        }
        if !history.may_have_sent(value) {
            let finding = Finding::new(Anomaly::Invented, row, "a value that was written", value.to_string());
            return Judgement::Wrong(Box::new(finding.around(operations, number)));
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
        return Judgement::Wrong(Box::new(finding.around_first(operations, |operation| operation == seen)));
    }
    if wgl::order(&Register, &lean(&all), budget) == Order::Exists {
        return Judgement::Fine;
    }
    match wgl::order(&Register, &all, budget) {
        Order::Exists => Judgement::Fine,
        Order::Undecided => Judgement::Undecided,
        Order::Impossible(stuck) => {
            let seen = all.get(stuck).map(|operation| operation.to_string()).unwrap_or_default();
            let expected = "answers that some order of the operations explains";
            let anomaly = match wgl::order(&Register, &lean(&live), budget / 5) {
                Order::Exists => Anomaly::Lost,
                _ => Anomaly::Stale,
            };
            let is_stuck = |operation: &Operation| all.get(stuck).is_some_and(|stuck| *stuck == operation);
            let finding = Finding::new(anomaly, row, expected, seen);
            Judgement::Wrong(Box::new(finding.around_first(operations, is_stuck)))
        }
    }
}

/// The operations without writes of unknown outcome whose value nobody saw: these can only explain a swap that found
/// something else. To be tried first.
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

/// Where writes may be missing, any of them may be what a swap found in the place of what it expected: there such swaps
/// say nothing.
fn conclusive(operations: &[Operation], extent: Extent) -> impl Iterator<Item = &Operation> {
    let is_mismatch = |operation: &Operation| matches!(operation.action, Action::Swap { swapped: Some(false), .. });
    operations.iter().filter(move |operation| extent == Extent::Whole || !is_mismatch(operation))
}
