//! The expected response of each step: two sorted maps of cells, changed and read as documented by the API.
//!
//! Filters are those of `ebla_model`; everything else is written down once more, as plainly as possible.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::filter::{CompiledFilter, Filter};
use ebla_model::key::RowKey;
use ebla_model::time::Micros;
use tonic::Code;

use super::program::{Change, Direction, FAMILIES, FUTURE, Range, Rule, Step, Table};

/// A cell of an answer. A time that the server chose is [`STAMPED`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OutCell {
    pub(crate) family: String,
    pub(crate) qualifier: Bytes,
    pub(crate) at: Reverse<i64>,
    pub(crate) value: Bytes,
    pub(crate) labels: Vec<String>,
}

/// Stands for every time before the year 2100.
pub(crate) const STAMPED: i64 = -1;

/// The response of a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    Done,
    Matched(bool),
    Row(Vec<OutCell>),
    Rows(Vec<(Bytes, Vec<OutCell>)>),
    Entries(Vec<Code>),
    Refused(Code),
}

impl Outcome {
    /// Without what the API does not specify: the order of families, and of versions that a filter duplicated.
    pub(crate) fn loosely(&self) -> Self {
        let sorted = |cells: &[OutCell]| {
            let mut cells = cells.to_vec();
            cells.sort();
            cells
        };
        match self {
            Self::Row(cells) => Self::Row(sorted(cells)),
            Self::Rows(rows) => Self::Rows(rows.iter().map(|(key, cells)| (key.clone(), sorted(cells))).collect()),
            other => other.clone(),
        }
    }
}

type Cells = BTreeMap<(String, Bytes, Reverse<i64>), Bytes>;

/// The two tables.
#[derive(Clone, Default)]
pub(crate) struct Model {
    one: BTreeMap<Bytes, Cells>,
    two: BTreeMap<Bytes, Cells>,
}

impl Model {
    /// Runs a step.
    pub(crate) fn run(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Mutate { table, row, changes } => {
                self.mutate(*table, row, changes).map_or_else(Outcome::Refused, |()| Outcome::Done)
            }
            Step::Bulk { table, entries } => {
                let code = |done: Result<(), Code>| done.err().unwrap_or(Code::Ok);
                Outcome::Entries(entries.iter().map(|(row, changes)| code(self.mutate(*table, row, changes))).collect())
            }
            Step::Check { table, row, predicate, then, otherwise } => self
                .check(*table, row, predicate.as_ref(), then, otherwise)
                .map_or_else(Outcome::Refused, Outcome::Matched),
            Step::Modify { table, row, rules } => {
                self.modify(*table, row, rules).map_or_else(Outcome::Refused, Outcome::Row)
            }
            Step::Read { table, keys, ranges, filter, limit, direction } => self
                .read(*table, (keys, ranges), filter.as_ref(), *limit, *direction)
                .map_or_else(Outcome::Refused, Outcome::Rows),
        }
    }

    fn rows(&mut self, table: Table) -> &mut BTreeMap<Bytes, Cells> {
        match table {
            Table::One => &mut self.one,
            Table::Two => &mut self.two,
        }
    }

    fn mutate(&mut self, table: Table, row: &Bytes, changes: &[Change]) -> Result<(), Code> {
        changes.iter().try_for_each(in_order)?;
        changes.iter().try_for_each(|change| family_exists(table, change))?;
        let cells = self.rows(table).entry(row.clone()).or_default();
        for change in changes {
            apply(cells, change);
        }
        Ok(())
    }

    fn check(
        &mut self,
        table: Table,
        row: &Bytes,
        predicate: Option<&Filter>,
        then: &[Change],
        otherwise: &[Change],
    ) -> Result<bool, Code> {
        if then.is_empty() && otherwise.is_empty() {
            return Err(Code::InvalidArgument);
        }
        // Both branches are checked, whichever is taken.
        then.iter().chain(otherwise).try_for_each(in_order)?;
        let filter = compiled(predicate)?;
        then.iter().chain(otherwise).try_for_each(|change| family_exists(table, change))?;
        let cells = self.rows(table).get(row).cloned().unwrap_or_default();
        let matched = !filtered(row, &cells, &filter).is_empty();
        self.mutate(table, row, if matched { then } else { otherwise })?;
        Ok(matched)
    }

    fn modify(&mut self, table: Table, row: &Bytes, rules: &[(String, Bytes, Rule)]) -> Result<Vec<OutCell>, Code> {
        let cells = self.rows(table).entry(row.clone()).or_default();
        let mut columns: BTreeMap<(String, Bytes), (i64, Bytes)> = BTreeMap::new();
        for (family, qualifier, rule) in rules {
            known_family(table, family)?;
            let column = columns.entry((family.clone(), qualifier.clone())).or_insert_with(|| {
                let newest = cells.iter().find(|((f, q, _), _)| f == family && q == qualifier);
                match (newest, rule) {
                    (Some(((_, _, Reverse(at)), value)), _) => (*at, value.clone()),
                    (None, Rule::Append(_)) => (STAMPED, Bytes::new()),
                    (None, Rule::Increment(_)) => (STAMPED, Bytes::from_static(&[0; 8])),
                }
            });
            column.1 = match rule {
                Rule::Append(suffix) => [column.1.as_ref(), suffix.as_ref()].concat().into(),
                Rule::Increment(amount) => {
                    let counter = column.1.as_ref().try_into().map_err(|_| Code::FailedPrecondition)?;
                    Bytes::copy_from_slice(&i64::from_be_bytes(counter).wrapping_add(*amount).to_be_bytes())
                }
            };
        }
        let mut out = Vec::new();
        for ((family, qualifier), (at, value)) in columns {
            if at != STAMPED {
                cells.insert((family.clone(), qualifier.clone(), Reverse(at)), value.clone());
            }
            out.push(OutCell { family, qualifier, at: Reverse(at), value, labels: Vec::new() });
        }
        Ok(out)
    }

    fn read(
        &mut self,
        table: Table,
        (keys, ranges): (&[Bytes], &[Range]),
        filter: Option<&Filter>,
        limit: i64,
        direction: Direction,
    ) -> Result<Vec<(Bytes, Vec<OutCell>)>, Code> {
        let ranges = ranges.iter().map(half_open).collect::<Result<Vec<_>, _>>()?;
        let filter = compiled(filter)?;
        let asked = |key: &Bytes| {
            keys.is_empty() && ranges.is_empty()
                || keys.contains(key)
                || ranges.iter().any(|(start, end)| key >= start && end.as_ref().is_none_or(|end| key < end))
        };
        let mut rows: Vec<_> = self
            .rows(table)
            .iter()
            .filter(|(key, _)| asked(key))
            .map(|(key, cells)| (key.clone(), filtered(key, cells, &filter)))
            .filter(|(_, cells)| !cells.is_empty())
            .collect();
        if direction == Direction::Descending {
            rows.reverse();
        }
        if limit > 0 {
            rows.truncate(usize::try_from(limit).unwrap());
        }
        Ok(rows)
    }
}

/// A delete of versions names at least one.
fn in_order(change: &Change) -> Result<(), Code> {
    match change {
        Change::DeleteColumn { start, end, .. } if *end != 0 && start >= end => Err(Code::InvalidArgument),
        _ => Ok(()),
    }
}

fn family_exists(table: Table, change: &Change) -> Result<(), Code> {
    match change {
        Change::Set { family, .. } | Change::DeleteColumn { family, .. } | Change::DeleteFamily { family } => {
            known_family(table, family)
        }
        Change::DeleteRow => Ok(()),
    }
}

fn known_family(table: Table, family: &str) -> Result<(), Code> {
    let there = match table {
        Table::One => &FAMILIES[..1],
        Table::Two => &FAMILIES[..],
    };
    if there.contains(&family) { Ok(()) } else { Err(Code::NotFound) }
}

fn apply(cells: &mut Cells, change: &Change) {
    match change {
        Change::Set { family, qualifier, at, value } => {
            cells.insert((family.clone(), qualifier.clone(), Reverse(*at)), value.clone());
        }
        Change::DeleteColumn { family, qualifier, start, end } => {
            let gone = |at: i64| at >= *start && (*end == 0 || at < *end);
            cells.retain(|(f, q, Reverse(at)), _| f != family || q != qualifier || !gone(*at));
        }
        Change::DeleteFamily { family } => cells.retain(|(f, _, _), _| f != family),
        Change::DeleteRow => cells.clear(),
    }
}

fn compiled(filter: Option<&Filter>) -> Result<CompiledFilter, Code> {
    filter.map_or_else(
        || Ok(CompiledFilter::pass_all()),
        |filter| CompiledFilter::compile(filter.clone()).map_err(|_| Code::InvalidArgument),
    )
}

fn filtered(key: &Bytes, cells: &Cells, filter: &CompiledFilter) -> Vec<OutCell> {
    let cell = |((family, qualifier, Reverse(at)), value): (&(String, Bytes, Reverse<i64>), &Bytes)| {
        Cell::new(FamilyName::new(family).unwrap(), qualifier.clone(), Micros::new(*at), value.clone())
    };
    let row = Row { key: RowKey::new(key.clone()), cells: cells.iter().map(cell).collect() };
    filter.apply(row, &|| false).unwrap().cells.iter().map(out).collect()
}

fn out(cell: &Cell) -> OutCell {
    OutCell {
        family: cell.family.as_str().to_owned(),
        qualifier: cell.qualifier.clone(),
        at: Reverse(cell.timestamp.get()),
        value: cell.value.clone(),
        labels: cell.labels.iter().map(ToString::to_string).collect(),
    }
}

/// A time as answers show it.
pub(crate) fn shown(at: i64) -> Reverse<i64> {
    Reverse(if at < FUTURE { STAMPED } else { at })
}

/// `[start, end)`; an empty range is refused.
fn half_open((start, end): &Range) -> Result<(Bytes, Option<Bytes>), Code> {
    let after = |key: &Bytes| Bytes::from([key.as_ref(), &[0]].concat());
    let start = match start {
        Bound::Unbounded => Bytes::new(),
        Bound::Included(key) => key.clone(),
        Bound::Excluded(key) => after(key),
    };
    let end = match end {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.clone()),
    };
    if end.as_ref().is_some_and(|end| start >= *end) { Err(Code::InvalidArgument) } else { Ok((start, end)) }
}
