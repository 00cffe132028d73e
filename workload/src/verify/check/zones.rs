//! Zones: the times in which a register must have had a value, which must not overlap.
//!
//! ```text
//!   write v  |-----|                      first end of all that shows v
//!   read v              |------|          last start of all that shows v
//!                  '----'                 zone: the row held v throughout
//! ```
//!
//! Every value is written once. An operation shows a value when it writes, reads or replaces it. If the first end is before the
//! last start, the row had the value between them. Then no other value can be there: no second such zone may overlap, and no
//! operations of another value may all be inside. Without failed swaps these conditions are complete. Source: Gibbons and
//! Korach, "Testing shared memories", 1997.

use std::collections::BTreeMap;

use crate::verify::history::{Action, Moment, Operation, Outcome, Token};

/// A contradiction.
#[derive(Clone, Debug)]
pub struct Conflict<'a> {
    /// The value of the row and its zone, as text.
    pub held: String,
    /// An operation that shows another value in this zone.
    pub seen: &'a Operation,
}

/// The zone of a value.
#[derive(Clone, Copy, Debug)]
struct Zone<'a> {
    value: Option<Token>,
    /// `None`: no operation that shows it has an end.
    first_end: Option<Moment>,
    last_start: Moment,
    /// The operation that started last.
    last: Option<&'a Operation>,
}

/// Two values with overlapping zones, or a value that was read before it was written.
pub fn conflict<'a>(operations: &[&'a Operation]) -> Option<Conflict<'a>> {
    let zones = zones(operations);
    if let Some(early) = read_before_write(operations) {
        return Some(early);
    }
    // The zones in which the value is certain, by their start.
    let mut held: Vec<(Moment, &Zone<'a>)> = zones
        .iter()
        .filter_map(|zone| Some((zone.first_end?, zone)))
        .filter(|(end, zone)| *end < zone.last_start)
        .collect();
    held.sort_by_key(|(from, _)| *from);
    for (one, other) in held.iter().zip(held.iter().skip(1)) {
        if other.0 < one.1.last_start {
            // It is unknown which of the two is wrong; the last operation is shown.
            let (holder, shown) = if one.1.last_start <= other.1.last_start { (other, one) } else { (one, other) };
            let seen = shown.1.last.or(holder.1.last)?;
            return Some(Conflict { held: words(holder.0, holder.1), seen });
        }
    }
    // The other values must have a moment outside of all these zones.
    for zone in &zones {
        let Some(end) = zone.first_end.filter(|end| zone.last_start <= *end) else { continue };
        let place = held.partition_point(|(from, _)| *from < zone.last_start);
        let around = place.checked_sub(1).and_then(|place| held.get(place));
        if let Some((from, holder)) = around.filter(|(_, holder)| end < holder.last_start)
            && let Some(seen) = zone.last
        {
            return Some(Conflict { held: words(*from, holder), seen });
        }
    }
    None
}

fn words(from: Moment, zone: &Zone<'_>) -> String {
    let value = zone.value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
    format!("{value}, which the row had from {from} to {}", zone.last_start)
}

fn zones<'a>(operations: &[&'a Operation]) -> Vec<Zone<'a>> {
    let mut zones: BTreeMap<Option<Token>, Zone<'a>> = BTreeMap::new();
    // Initially the row has no value.
    let nothing = Zone { value: None, first_end: Some(Moment::default()), last_start: Moment::default(), last: None };
    zones.insert(None, nothing);
    for &operation in operations {
        for value in shown(operation) {
            let new = Zone { value, first_end: None, last_start: operation.start, last: Some(operation) };
            let zone = zones.entry(value).or_insert(new);
            let end = (operation.outcome == Outcome::Ok).then_some(operation.end);
            zone.first_end = [zone.first_end, end].into_iter().flatten().min();
            if operation.start >= zone.last_start {
                (zone.last_start, zone.last) = (operation.start, Some(operation));
            }
        }
    }
    zones.into_values().collect()
}

/// The values that an operation shows, if it was applied.
fn shown(operation: &Operation) -> Vec<Option<Token>> {
    match operation.action {
        Action::Read { value } => vec![value],
        Action::Write { value } => vec![Some(value)],
        Action::Swap { expected, value, swapped: Some(true) } => vec![expected, Some(value)],
        // If its value is seen anywhere, it was applied; otherwise its zone is a point without effect.
        Action::Swap { value, swapped: None, .. } => vec![Some(value)],
        _ => Vec::new(),
    }
}

fn read_before_write<'a>(operations: &[&'a Operation]) -> Option<Conflict<'a>> {
    let starts: BTreeMap<Token, Moment> =
        operations.iter().filter_map(|operation| Some((operation.token()?, operation.start))).collect();
    operations.iter().find_map(|&operation| {
        let Action::Read { value: Some(value) } = operation.action else { return None };
        let sent = *starts.get(&value)?;
        (operation.end < sent).then(|| Conflict { held: format!("{value} not before {sent}"), seen: operation })
    })
}
