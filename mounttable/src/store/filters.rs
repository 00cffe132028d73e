//! What the store asks, in the words of a Bigtable: conditions and reads as filters, changes as mutations, rows as they
//! come. Pure.
//!
//! CheckAndMutateRow asks whether a filter lets any cell of the row pass, and of a row without cells none passes. So a
//! condition that an absent row meets is asked the other way round, and its changes stand in the other branch.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::cell::Row as ModelRow;
use ebla_model::filter::Filter;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::time::Micros;

use crate::store::{Cell, Change, Children, Family, Predicate, Row, Servers, TELLING};

/// A condition as CheckAndMutateRow takes it.
#[derive(Clone, PartialEq, Debug)]
pub enum Check {
    /// It holds when the filter lets a cell pass.
    Passes(Filter),
    /// It holds when the filter lets none pass.
    Blocks(Filter),
}

/// The condition as a filter on the row.
///
/// However many parts it has, the filter is no deeper: of what must let a cell pass each part lets exactly one pass, so
/// all of them hold when as many cells come out as there are parts.
pub fn check(when: &Predicate) -> Check {
    let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
    collect(when, &mut wanted, &mut unwanted);
    let (parts, unwanted) = (wanted.len(), pooled(unwanted));
    let Some(any) = pooled(wanted) else { return Check::Blocks(unwanted.unwrap_or(Filter::BlockAll)) };
    let all = match i32::try_from(parts.saturating_sub(1)).unwrap_or(i32::MAX) {
        0 => any,
        others => Filter::Chain(vec![any, Filter::CellsPerRowOffset(others)]),
    };
    Check::Passes(match unwanted {
        None => all,
        Some(unwanted) => condition(all, Some(condition(unwanted, None, Some(Filter::PassAll))), None),
    })
}

/// Puts a part where it belongs, once.
fn add(parts: &mut Vec<Filter>, part: Filter) {
    if !parts.contains(&part) {
        parts.push(part);
    }
}

/// Sorts the parts of a condition into what must and what must not let a cell pass.
fn collect(when: &Predicate, wanted: &mut Vec<Filter>, unwanted: &mut Vec<Filter>) {
    match when {
        Predicate::RowAbsent => add(unwanted, Filter::PassAll),
        Predicate::Has(family, name) => add(wanted, latest(*family, name)),
        Predicate::HasNot(family, name) => add(unwanted, latest(*family, name)),
        Predicate::Is(family, name, value) => {
            let value = Bytes::copy_from_slice(value.as_bytes());
            let exactly = Filter::ValueRange { start: Bound::Included(value.clone()), end: Bound::Included(value) };
            add(wanted, Filter::Chain(vec![column(*family, name), Filter::CellsPerColumnLimit(1), exactly]));
        }
        Predicate::Begins(family, name, head) => {
            let (start, end) = beginning(head);
            let begins = Filter::ValueRange { start, end };
            add(wanted, Filter::Chain(vec![column(*family, name), Filter::CellsPerColumnLimit(1), begins]));
        }
        Predicate::All(parts) => parts.iter().for_each(|part| collect(part, wanted, unwanted)),
    }
}

/// What a read lets pass: the latest versions of all of `m`, and of `s` and `c` what was asked for.
pub fn read(children: &Children, servers: &Servers) -> Filter {
    let families = if *servers == Servers::All { "[ms]" } else { "m" };
    let node = Filter::Chain(vec![Filter::FamilyNameRegex(families.into()), Filter::CellsPerColumnLimit(1)]);
    let references = match children {
        Children::Named(names) => {
            let mut names = names.clone();
            names.sort();
            // A name that stands twice in a path would come twice.
            names.dedup();
            let named = pooled(names.iter().map(|name| column(Family::Children, name)).collect());
            named.map(|named| Filter::Chain(vec![named, Filter::CellsPerColumnLimit(1)]))
        }
        Children::Page { prefix, after, limit } => page(prefix, after.as_deref(), *limit),
    };
    let parts = [Some(node), references].into_iter().flatten().chain(some_of(servers)).collect();
    // The node is there in any case.
    pooled(parts).unwrap_or(Filter::BlockAll)
}

/// What is wanted of `s` when that is not all or nothing. A cell that is wanted for two reasons comes twice.
fn some_of(servers: &Servers) -> Vec<Filter> {
    let first = || {
        Filter::Chain(vec![
            Filter::FamilyNameRegex(name(Family::Servers).into()),
            Filter::CellsPerColumnLimit(1),
            Filter::CellsPerRowLimit(i32::try_from(TELLING).unwrap_or(i32::MAX)),
        ])
    };
    match servers {
        Servers::All | Servers::None => Vec::new(),
        Servers::First => vec![first()],
        Servers::FirstAnd(address) => vec![first(), latest(Family::Servers, address)],
    }
}

/// The references of one page; `None` if there can be none.
fn page(prefix: &str, after: Option<&str>, limit: usize) -> Option<Filter> {
    let (start, end) = beginning(prefix);
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

/// The row's latest cells. What is no text becomes text that no node writes, so that it is found to be damaged.
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

/// A range, because a pattern would have to be escaped.
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

/// The range of all that begins with `head`.
fn beginning(head: &str) -> (Bound<Bytes>, Bound<Bytes>) {
    let mut end = head.as_bytes().to_vec();
    // No byte of UTF-8 is the largest there is.
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

/// What any of the filters lets pass.
fn pooled(mut filters: Vec<Filter>) -> Option<Filter> {
    if filters.len() < 2 { filters.pop() } else { Some(Filter::Interleave(filters)) }
}
