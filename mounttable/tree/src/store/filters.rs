//! Translation to Bigtable's API: conditions and selections to filters, changes to mutations, rows from results. Pure.
//!
//! CheckAndMutateRow tests whether a filter passes any cell of the row, and no cell of an empty row passes. So a
//! condition that an absent row fulfils is negated, and its changes are in the other branch.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::cell::Row as ModelRow;
use ebla_model::filter::Filter;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::time::Micros;

use crate::store::{Cell, Change, ChildSelection, Condition, Family, Row, SERVERS_SAMPLE, ServerSelection};

/// A condition in the form that CheckAndMutateRow takes.
#[derive(Clone, PartialEq, Debug)]
pub enum ConditionFilter {
    /// The condition holds when the filter passes a cell.
    Passes(Filter),
    /// The condition holds when the filter passes no cell.
    Blocks(Filter),
}

/// The condition as a filter on the row.
///
/// The depth of the filter does not grow with the number of parts: each part that must hold passes exactly one cell, so
/// all of them hold when the number of passed cells equals the number of parts.
pub fn condition_filter(when: &Condition) -> ConditionFilter {
    let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
    collect(when, &mut wanted, &mut unwanted);
    let (parts, unwanted) = (wanted.len(), interleave(unwanted));
    let Some(any) = interleave(wanted) else { return ConditionFilter::Blocks(unwanted.unwrap_or(Filter::BlockAll)) };
    let all = match i32::try_from(parts.saturating_sub(1)).unwrap_or(i32::MAX) {
        0 => any,
        others => Filter::Chain(vec![any, Filter::CellsPerRowOffset(others)]),
    };
    ConditionFilter::Passes(match unwanted {
        None => all,
        Some(unwanted) => condition(all, Some(condition(unwanted, None, Some(Filter::PassAll))), None),
    })
}

/// Adds a part unless it is already there.
fn add(parts: &mut Vec<Filter>, part: Filter) {
    if !parts.contains(&part) {
        parts.push(part);
    }
}

/// Divides the parts of a condition into those that must pass a cell and those that must not.
fn collect(when: &Condition, wanted: &mut Vec<Filter>, unwanted: &mut Vec<Filter>) {
    match when {
        Condition::RowAbsent => add(unwanted, Filter::PassAll),
        Condition::Has(family, name) => add(wanted, latest(*family, name)),
        Condition::HasNot(family, name) => add(unwanted, latest(*family, name)),
        Condition::Is(family, name, value) => {
            let value = Bytes::copy_from_slice(value.as_bytes());
            let exactly = Filter::ValueRange { start: Bound::Included(value.clone()), end: Bound::Included(value) };
            add(wanted, Filter::Chain(vec![column(*family, name), Filter::CellsPerColumnLimit(1), exactly]));
        }
        Condition::Begins(family, name, head) => {
            let (start, end) = prefix_range(head);
            let begins = Filter::ValueRange { start, end };
            add(wanted, Filter::Chain(vec![column(*family, name), Filter::CellsPerColumnLimit(1), begins]));
        }
        Condition::All(parts) => parts.iter().for_each(|part| collect(part, wanted, unwanted)),
    }
}

/// The filter of a read: the latest versions of all of `m`, and the selected columns of `s` and `c`.
pub fn read(children: &ChildSelection, servers: &ServerSelection) -> Filter {
    let families = if *servers == ServerSelection::All { "[ms]" } else { "m" };
    let node = Filter::Chain(vec![Filter::FamilyNameRegex(families.into()), Filter::CellsPerColumnLimit(1)]);
    let references = match children {
        ChildSelection::Named(names) => {
            let mut names = names.clone();
            names.sort();
            // An element that occurs twice in a path must not be read twice.
            names.dedup();
            let named = interleave(names.iter().map(|name| column(Family::Children, name)).collect());
            named.map(|named| Filter::Chain(vec![named, Filter::CellsPerColumnLimit(1)]))
        }
        ChildSelection::Page { prefix, after, limit } => page(prefix, after.as_deref(), *limit),
    };
    let parts = [Some(node), references].into_iter().flatten().chain(selected_servers(servers)).collect();
    // The node is part of every read.
    interleave(parts).unwrap_or(Filter::BlockAll)
}

/// The selection in `s` when it is neither all nor nothing. A cell that two parts select comes twice.
fn selected_servers(servers: &ServerSelection) -> Vec<Filter> {
    let first = || {
        Filter::Chain(vec![
            Filter::FamilyNameRegex(name(Family::Servers).into()),
            Filter::CellsPerColumnLimit(1),
            Filter::CellsPerRowLimit(i32::try_from(SERVERS_SAMPLE).unwrap_or(i32::MAX)),
        ])
    };
    match servers {
        ServerSelection::All | ServerSelection::None => Vec::new(),
        ServerSelection::First => vec![first()],
        ServerSelection::FirstAnd(address) => vec![first(), latest(Family::Servers, address)],
    }
}

/// The references of one page; `None` if there can be none.
fn page(prefix: &str, after: Option<&str>, limit: usize) -> Option<Filter> {
    let (start, end) = prefix_range(prefix);
    let start = match after {
        Some(after) if after >= prefix && !after.starts_with(prefix) => return None,
        Some(after) if after >= prefix => Bound::Excluded(Bytes::copy_from_slice(after.as_bytes())),
        _ => start,
    };
    Some(Filter::Chain(vec![
        Filter::ColumnRange { family: name(Family::Children).to_owned(), start, end },
        Filter::CellsPerColumnLimit(1),
        Filter::CellsPerRowLimit(i32::try_from(limit.max(1)).unwrap_or(i32::MAX)),
    ]))
}

/// The change as a mutation.
pub fn mutation(change: Change) -> Mutation {
    match change {
        Change::Set(family, qualifier, cell) => Mutation::SetCell {
            family: name(family).to_owned(),
            qualifier: qualifier.into(),
            timestamp: WriteTime::At(cell.timestamp),
            value: cell.value.into(),
        },
        Change::DeleteColumn(family, qualifier) => Mutation::DeleteColumn {
            family: name(family).to_owned(),
            qualifier: qualifier.into(),
            start: Micros::ZERO,
            end: None,
        },
        Change::DeleteFamily(family) => Mutation::DeleteFamily { family: name(family).to_owned() },
        Change::DeleteRow => Mutation::DeleteRow,
    }
}

/// The row's latest cells. Bytes that are not text become text that no node writes, so decoding reports the damage.
pub fn row(read: &ModelRow) -> Row {
    let mut row = Row::new();
    for cell in &read.cells {
        let Some(family) = family(cell.family.as_str()) else { continue };
        let column = String::from_utf8_lossy(&cell.qualifier).into_owned();
        let value = String::from_utf8_lossy(&cell.value).into_owned();
        // Newest first.
        row.entry((family, column)).or_insert(Cell { timestamp: cell.timestamp, value });
    }
    row
}

/// The family's name in the table.
pub const fn name(family: Family) -> &'static str {
    match family {
        Family::Meta => "m",
        Family::Servers => "s",
        Family::Children => "c",
    }
}

/// The family of this name in the table.
pub fn family(of: &str) -> Option<Family> {
    [Family::Meta, Family::Servers, Family::Children].into_iter().find(|family| name(*family) == of)
}

/// A range, because a regular expression would need escaping.
fn column(of: Family, qualifier: &str) -> Filter {
    let qualifier = Bytes::copy_from_slice(qualifier.as_bytes());
    Filter::ColumnRange {
        family: name(of).to_owned(),
        start: Bound::Included(qualifier.clone()),
        end: Bound::Included(qualifier),
    }
}

fn latest(family: Family, name: &str) -> Filter {
    Filter::Chain(vec![column(family, name), Filter::CellsPerColumnLimit(1)])
}

/// The range of all values with this prefix.
fn prefix_range(head: &str) -> (Bound<Bytes>, Bound<Bytes>) {
    let mut end = head.as_bytes().to_vec();
    // No byte of UTF-8 is 255.
    let end = match end.last_mut() {
        Some(last) => {
            *last = last.saturating_add(1);
            Bound::Excluded(Bytes::from(end))
        }
        None => Bound::Unbounded,
    };
    let start =
        if head.is_empty() { Bound::Unbounded } else { Bound::Included(Bytes::copy_from_slice(head.as_bytes())) };
    (start, end)
}

fn condition(predicate: Filter, then: Option<Filter>, otherwise: Option<Filter>) -> Filter {
    Filter::Condition { predicate: Box::new(predicate), then: then.map(Box::new), otherwise: otherwise.map(Box::new) }
}

/// The union of the filters.
fn interleave(mut filters: Vec<Filter>) -> Option<Filter> {
    if filters.len() < 2 { filters.pop() } else { Some(Filter::Interleave(filters)) }
}
