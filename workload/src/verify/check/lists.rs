//! Checker of append lists, the most precise one: a list contains the order of all its writes.
//!
//! Every append adds a unique token and returns the list. So the list that was read back determines the order of all
//! operations: an append is at its token, a read of n tokens after the n-th. The history is linearizable if this order agrees
//! with real time: an operation that ended before another one began precedes it.
//! Cost: n log n for n operations, independent of their concurrency.

use std::collections::{BTreeMap, BTreeSet};

use super::order;
use crate::verify::finding::{Anomaly, Finding};
use crate::verify::history::{Action, History, Operation, Outcome, Prefix, Token};

/// All anomalies of the list in `row`, whose text was read back into the history.
pub fn check(row: &str, operations: &[Operation], history: &History) -> Vec<Finding> {
    let text = history.texts.get(row).map_or("", String::as_str);
    let sent: BTreeSet<Token> = operations.iter().filter_map(Operation::token).collect();
    let mut findings = Vec::new();
    let mut places: BTreeMap<Token, u64> = BTreeMap::new();
    for (place, word) in (1u64..).zip(text.split_terminator(',')) {
        match word.parse::<Token>() {
            Ok(token) if places.contains_key(&token) => {
                let seen = format!("{token} at {} and at {place}", places.get(&token).copied().unwrap_or_default());
                let finding = Finding::new(Anomaly::Duplicate, row, format!("{token} once"), seen);
                findings.push(finding.around_first(operations, |operation| operation.token() == Some(token)));
            }
            Ok(token) if sent.contains(&token) || history.may_have_sent(token) => drop(places.insert(token, place)),
            _ => {
                let seen = format!("{word:?} at {place}");
                findings.push(Finding::new(Anomaly::Phantom, row, "tokens that were sent", seen));
            }
        }
    }
    findings.extend(lost(row, operations, &places));
    // A list with wrong contents does not determine an order.
    if findings.is_empty() {
        findings.extend(rewritten(row, operations, text, &places));
    }
    if findings.is_empty() {
        findings.extend(stale(row, operations, &places));
    }
    findings
}

fn lost(row: &str, operations: &[Operation], places: &BTreeMap<Token, u64>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let Action::Append { token, .. } = &operation.action else { continue };
        if operation.outcome == Outcome::Ok && !places.contains_key(token) {
            let expected = format!("{token}, acknowledged at {}", operation.end);
            let seen = format!("{} tokens without it", places.len());
            findings.push(Finding::new(Anomaly::Lost, row, expected, seen).around(operations, number));
        }
    }
    findings
}

/// A list only grows: every earlier response must be a prefix of the list that was read back.
fn rewritten(row: &str, operations: &[Operation], text: &str, places: &BTreeMap<Token, u64>) -> Option<Finding> {
    let prefixes = Prefix::all(text);
    let is_prefix = |list: &Prefix| {
        let known = usize::try_from(list.tokens).ok().and_then(|tokens| prefixes.get(tokens));
        known == Some(list)
    };
    let is_wrong = |operation: &Operation| match &operation.action {
        Action::List { list } => !is_prefix(list),
        Action::Append { token, list: Some(list) } => !is_prefix(list) || places.get(token) != Some(&list.tokens),
        _ => false,
    };
    let number = operations.iter().position(is_wrong)?;
    let seen = operations.get(number).map(Operation::to_string).unwrap_or_default();
    let expected = format!("a prefix of the list that was read back, which has {} tokens", prefixes.len() - 1);
    Some(Finding::new(Anomaly::Stale, row, expected, seen).around(operations, number))
}

/// Position of an operation in the order: appends at odd positions, reads after them.
fn place(operation: &Operation, places: &BTreeMap<Token, u64>) -> Option<u64> {
    match &operation.action {
        Action::Append { token, .. } => places.get(token).map(|place| place * 2 - 1),
        Action::List { list } => Some(list.tokens * 2),
        _ => None,
    }
}

/// An operation that is ordered before one that had ended when it began.
fn stale(row: &str, operations: &[Operation], places: &BTreeMap<Token, u64>) -> Option<Finding> {
    let (earlier, later) = order::contradiction(operations, |operation| place(operation, places))?;
    let shown = |number: usize| operations.get(number).map(Operation::to_string).unwrap_or_default();
    let expected = format!("at least the list after: {}", shown(earlier));
    Some(Finding::new(order::anomaly(operations, later), row, expected, shown(later)).around(operations, later))
}
