//! Counters: an increment is answered with the counter, so answers tell the order, as with lists.
//!
//! An increment to n stands before a read of n, and both before an increment to n + 1. The history is linearizable if
//!
//! 1. no two acknowledged increments were answered the same,
//! 2. the order of the answers agrees with time, and
//! 3. each number that nobody was answered, up to the highest that was seen, has an increment of unknown outcome that was
//!    sent early enough.
//!
//! No search is needed; the tests compare this with one. Cost: n log n.

use std::collections::BTreeMap;

use super::order;
use crate::verify::finding::{Anomaly, Finding};
use crate::verify::history::{Action, Extent, Moment, Operation, Outcome, Process};

/// What is wrong with the counter in `row`. A history that was cut off has no upper bound.
pub fn check(row: &str, operations: &[Operation], extent: Extent) -> Option<Finding> {
    impossible(row, operations)
        .or_else(|| out_of_bounds(row, operations, extent))
        .or_else(|| answered_twice(row, operations))
        .or_else(|| out_of_order(row, operations))
        .or_else(|| if extent == Extent::Whole { unexplained(row, operations) } else { None })
}

/// A counter begins at 0, and an increment is answered with more.
fn impossible(row: &str, operations: &[Operation]) -> Option<Finding> {
    let is_impossible = |operation: &Operation| match operation.action {
        Action::Increment { count: Some(count) } => count < 1,
        Action::Count { count } => count < 0,
        _ => false,
    };
    let number = operations.iter().position(is_impossible)?;
    let seen = operations.get(number).map(Operation::to_string).unwrap_or_default();
    Some(Finding::new(Anomaly::Invented, row, "a counter that begins at 0", seen).around(operations, number))
}

/// What is read back lies between the increments acknowledged before it and all those that were sent by then.
fn out_of_bounds(row: &str, operations: &[Operation], extent: Extent) -> Option<Finding> {
    operations.iter().enumerate().find_map(|(number, operation)| {
        let Action::Count { count } = operation.action else { return None };
        if operation.by != Process::ReadBack {
            return None;
        }
        let counted = |is_such: &dyn Fn(&Operation) -> bool| {
            let such = operations.iter().filter(|other| other.is_write() && is_such(other));
            i64::try_from(such.count()).unwrap_or(i64::MAX)
        };
        let least = counted(&|other| other.outcome == Outcome::Ok && other.end < operation.start);
        let most = counted(&|other| other.start <= operation.end);
        let anomaly = match count {
            count if count < least => Anomaly::Lost,
            count if count > most && extent == Extent::Whole && most > 0 => Anomaly::Doubled,
            count if count > most && extent == Extent::Whole => Anomaly::Invented,
            _ => return None,
        };
        let expected = format!("{least} to {most}: so many increments were acknowledged, so many sent");
        Some(Finding::new(anomaly, row, expected, count.to_string()).around(operations, number))
    })
}

/// Two increments to one number: the second did not see the first.
fn answered_twice(row: &str, operations: &[Operation]) -> Option<Finding> {
    let mut answered: BTreeMap<i64, usize> = BTreeMap::new();
    operations.iter().enumerate().find_map(|(number, operation)| {
        let Action::Increment { count: Some(count) } = operation.action else { return None };
        let first = answered.insert(count, number)?;
        let first = operations.get(first).map(Operation::to_string).unwrap_or_default();
        let expected = format!("another number than that of: {first}");
        Some(Finding::new(Anomaly::Lost, row, expected, operation.to_string()).around(operations, number))
    })
}

/// Increments at odd places, reads behind them.
fn place(operation: &Operation) -> Option<u64> {
    let doubled = |count: i64| u64::try_from(count).unwrap_or(0).saturating_mul(2);
    match operation.action {
        Action::Increment { count } => count.map(|count| doubled(count).saturating_sub(1)),
        Action::Count { count } => Some(doubled(count)),
        _ => None,
    }
}

fn out_of_order(row: &str, operations: &[Operation]) -> Option<Finding> {
    let (earlier, later) = order::contradiction(operations, place)?;
    let shown = |number: usize| operations.get(number).map(Operation::to_string).unwrap_or_default();
    let expected = format!("no less than what was there after: {}", shown(earlier));
    Some(Finding::new(order::anomaly(operations, later), row, expected, shown(later)).around(operations, later))
}

/// The first number that was passed although no increment could have made it.
///
/// Numbers without an answer need an increment of unknown outcome each, sent before anything that saw more had ended.
/// The bound rises with the number, so the oldest increment for the smallest number is the best there is.
fn unexplained(row: &str, operations: &[Operation]) -> Option<Finding> {
    // Acknowledged increments whose answer could not be read count for a number too, whichever.
    let mut unknown: Vec<Moment> = operations
        .iter()
        .filter(|operation| matches!(operation.action, Action::Increment { count: None }))
        .map(|operation| operation.start)
        .collect();
    unknown.sort_unstable();
    let mut unknown = unknown.into_iter();
    let mut seen: Vec<(u64, Moment, usize)> = operations
        .iter()
        .enumerate()
        .filter_map(|(number, operation)| Some((place(operation)?, operation.end, number)))
        .collect();
    // From the highest place down: what had ended first of all that saw at least so much.
    seen.sort_unstable_by(|one, other| other.cmp(one));
    let mut first_end: Option<(Moment, usize)> = None;
    let mut bounds: BTreeMap<u64, (Moment, usize)> = BTreeMap::new();
    for (place, end, number) in seen {
        let first = first_end.map_or((end, number), |first| first.min((end, number)));
        first_end = Some(first);
        bounds.insert(place, first);
    }
    let highest = bounds.last_key_value().map_or(0, |(place, _)| place.div_ceil(2));
    for count in 1..=highest {
        let place = count * 2 - 1;
        // Odd places are those of increments that were answered.
        if bounds.contains_key(&place) {
            continue;
        }
        let Some((_, (bound, number))) = bounds.range(place..).next() else { break };
        if unknown.next().is_none_or(|start| start > *bound) {
            let seen = operations.get(*number).map(Operation::to_string).unwrap_or_default();
            let expected = format!("{count} increments before it; fewer were sent");
            return Some(Finding::new(Anomaly::Doubled, row, expected, seen).around(operations, *number));
        }
    }
    None
}
