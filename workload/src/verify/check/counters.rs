//! Checker of counters: an increment returns the new value, so the responses determine the order, as with lists.
//!
//! An increment to n precedes a read of n, and both precede an increment to n + 1. The history is linearizable if
//!
//! 1. no two acknowledged increments returned the same value,
//! 2. the order of the values agrees with real time, and
//! 3. each missing value, up to the highest one seen, has an increment of unknown outcome that was sent early enough.
//!
//! No search is needed; the tests compare this checker with a search. Cost: n log n.

use std::collections::BTreeMap;

use super::order;
use crate::verify::finding::{Anomaly, Finding};
use crate::verify::history::{Action, Extent, Moment, Operation, Outcome, Process};

/// The first anomaly of the counter in `row`. A truncated history has no upper bound.
pub fn check(row: &str, operations: &[Operation], extent: Extent) -> Option<Finding> {
    impossible(row, operations)
        .or_else(|| out_of_bounds(row, operations, extent))
        .or_else(|| answered_twice(row, operations))
        .or_else(|| out_of_order(row, operations))
        .or_else(|| if extent == Extent::Whole { unexplained(row, operations) } else { None })
}

/// A counter starts at 0, and an increment returns more.
fn impossible(row: &str, operations: &[Operation]) -> Option<Finding> {
    let is_impossible = |operation: &Operation| match operation.action {
        Action::Increment { count: Some(count) } => count < 1,
        Action::Count { count } => count < 0,
        _ => false,
    };
    let number = operations.iter().position(is_impossible)?;
    let seen = operations.get(number).map(Operation::to_string).unwrap_or_default();
    Some(Finding::new(Anomaly::Phantom, row, "a counter that starts at 0", seen).around(operations, number))
}

/// The value that is read back is between the number of increments acknowledged before and the number sent by then.
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
            count if count > most && extent == Extent::Whole && most > 0 => Anomaly::Duplicate,
            count if count > most && extent == Extent::Whole => Anomaly::Phantom,
            _ => return None,
        };
        let expected = format!("{least} to {most}: the numbers of increments acknowledged and sent");
        Some(Finding::new(anomaly, row, expected, count.to_string()).around(operations, number))
    })
}

/// Two increments returned the same value: the second did not see the first.
fn answered_twice(row: &str, operations: &[Operation]) -> Option<Finding> {
    let mut answered: BTreeMap<i64, usize> = BTreeMap::new();
    operations.iter().enumerate().find_map(|(number, operation)| {
        let Action::Increment { count: Some(count) } = operation.action else { return None };
        let first = answered.insert(count, number)?;
        let first = operations.get(first).map(Operation::to_string).unwrap_or_default();
        let expected = format!("another value than that of: {first}");
        Some(Finding::new(Anomaly::Lost, row, expected, operation.to_string()).around(operations, number))
    })
}

/// Position in the order: increments at odd positions, reads after them.
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
    let expected = format!("at least the value after: {}", shown(earlier));
    Some(Finding::new(order::anomaly(operations, later), row, expected, shown(later)).around(operations, later))
}

/// The first value that was skipped although no increment could have produced it.
///
/// Each missing value needs an increment of unknown outcome that was sent before any operation that saw more had ended. The
/// bound increases with the value, so the oldest increment is assigned to the smallest value.
fn unexplained(row: &str, operations: &[Operation]) -> Option<Finding> {
    // Acknowledged increments with an unreadable response count too.
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
    // From the highest position down: the earliest end of all operations that saw at least this value.
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
        // Odd positions are those of increments with a response.
        if bounds.contains_key(&place) {
            continue;
        }
        let Some((_, (bound, number))) = bounds.range(place..).next() else { break };
        if unknown.next().is_none_or(|start| start > *bound) {
            let seen = operations.get(*number).map(Operation::to_string).unwrap_or_default();
            let expected = format!("{count} increments before it, but fewer were sent");
            return Some(Finding::new(Anomaly::Duplicate, row, expected, seen).around(operations, *number));
        }
    }
    None
}
