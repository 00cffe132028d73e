//! Filter push-down: which column ranges of a row a read needs, in the store's order.
//!
//! A row may have a million columns and a read may need one of them. A [`Projection`] lists the column ranges in each row
//! that a filter, or a read-modify-write, depends on; [`RowProjector`] goes through one row and decides for each cell whether
//! to read it or where to seek next. Skipping cells never changes a result (`ebla_model::filter::ColumnRange`); the filter still
//! runs on the cells that were read.
use std::borrow::Cow;
use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::filter::{ColumnRange, CompiledFilter};
use ebla_model::id::FamilyId;
use ebla_storage::store::ScanPlan;

use crate::tablet::read::row_assembler::{CellOrder, Families};

/// The column ranges of each row that a read needs.
#[derive(Debug)]
pub(in crate::tablet) struct Projection {
    /// Ascending and disjoint; `None`: all cells.
    ranges: Option<Vec<EncodedRange>>,
    /// The families of the ranges.
    families: BTreeSet<FamilyId>,
}

/// A range of adjacent columns. The bounds are the part of a cell's key after the row.
#[derive(Debug)]
struct EncodedRange {
    start: Vec<u8>,
    /// Exclusive; `None`: to the end of the row.
    end: Option<Vec<u8>>,
    columns: usize,
    versions: usize,
    is_one_column: bool,
}

impl Projection {
    pub(in crate::tablet) const ALL: Self = Self { ranges: None, families: BTreeSet::new() };
    pub(in crate::tablet) const NOTHING: Self = Self { ranges: Some(Vec::new()), families: BTreeSet::new() };

    /// The plan, limited to the locality groups of the families that it needs cells of.
    pub(in crate::tablet) fn limit<'k>(&'k self, plan: ScanPlan<'k>) -> ScanPlan<'k> {
        if self.ranges.is_some() { plan.of_families(&self.families) } else { plan }
    }

    /// The families that it needs cells of; `None`: all.
    pub(in crate::tablet) fn families(&self) -> Option<&BTreeSet<FamilyId>> {
        self.ranges.as_ref().map(|_ranges| &self.families)
    }

    /// Replaces the bounds of one row's cells by those of its only projected column, if there is one: then the filters of columns of a locality
    /// group can be used.
    pub(in crate::tablet) fn narrow(&self, (lower, upper): (Vec<u8>, Option<Vec<u8>>)) -> (Vec<u8>, Option<Vec<u8>>) {
        match self.ranges.as_deref() {
            Some([range]) if range.is_one_column => {
                let column = [lower.as_slice(), range.start.as_slice()].concat();
                let end = codec::prefix_end(&column);
                (column, end)
            }
            _ => (lower, upper),
        }
    }

    /// The cells that a filter's result depends on.
    pub(in crate::tablet) fn for_filter(filter: Option<&CompiledFilter>, families: &Families) -> Self {
        filter.map_or(Self::ALL, |filter| Self::of(families, |_, name| filter.needed_columns(name)))
    }

    /// The cells that decide whether a predicate matches (or, without one, whether any cell exists), plus some columns.
    pub(in crate::tablet) fn for_predicate(
        predicate: Option<&CompiledFilter>,
        columns: &BTreeSet<(FamilyId, Bytes)>,
        families: &Families,
    ) -> Self {
        let any = || vec![ColumnRange { columns: 1, versions: 1, ..ColumnRange::whole() }];
        Self::of(families, |id, name| {
            let mut stretches = predicate.map_or_else(any, |predicate| predicate.needed_columns_to_match(name));
            stretches.extend(columns_of(id, columns));
            ColumnRange::merge_overlapping(stretches)
        })
    }

    /// All of these columns.
    pub(in crate::tablet) fn for_columns(columns: &BTreeSet<(FamilyId, Bytes)>, families: &Families) -> Self {
        Self::of(families, |id, _| columns_of(id, columns).collect())
    }

    fn of(families: &Families, stretches: impl Fn(FamilyId, &str) -> Vec<ColumnRange>) -> Self {
        let (mut ranges, mut needed) = (Vec::new(), BTreeSet::new());
        for (id, name) in families.names() {
            for stretch in stretches(id, name.as_str()) {
                ranges.push(EncodedRange::new(id, &stretch));
                needed.insert(id);
            }
        }
        Self { ranges: Some(ranges), families: needed }
    }
}

fn columns_of(family: FamilyId, columns: &BTreeSet<(FamilyId, Bytes)>) -> impl Iterator<Item = ColumnRange> {
    let from = (family, Bytes::new());
    columns.range(from..).take_while(move |(id, _)| *id == family).map(|(_, name)| ColumnRange::column(name.clone()))
}

impl EncodedRange {
    fn new(family: FamilyId, stretch: &ColumnRange) -> Self {
        let encode = |qualifier: &[u8]| codec::column_part(family, qualifier);
        let end = match &stretch.end {
            Some(end) => Some(encode(end)),
            None => codec::prefix_end(&family.get().to_be_bytes()),
        };
        // The least qualifier after one is the same with a zero byte.
        let rest = stretch.end.as_deref().and_then(|end| end.strip_prefix(&stretch.start[..]));
        Self {
            start: encode(&stretch.start),
            end,
            columns: stretch.columns,
            versions: stretch.versions,
            is_one_column: rest == Some(&[0]),
        }
    }

    fn ends_before(&self, column: &[u8]) -> bool {
        self.end.as_deref().is_some_and(|end| end <= column)
    }

    const fn is_bounded(&self) -> bool {
        self.columns != usize::MAX || self.versions != usize::MAX
    }
}

/// What the scan does with a cell.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tablet) enum CellAction<'p> {
    /// The result may depend on it.
    Read,
    /// The result does not depend on it, nor on any cell before the target.
    Seek(SeekTarget<'p>),
}

/// The position of the next cell that the result may depend on.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tablet) enum SeekTarget<'p> {
    /// At or after this key within the row.
    Column(Cow<'p, [u8]>),
    /// In another row.
    NextRow,
}

/// Applies a projection to the cells of one row, in ascending or descending order.
#[derive(Debug)]
pub(in crate::tablet) struct RowProjector<'p> {
    projection: &'p Projection,
    order: CellOrder,
    /// The index of the range of the last cell that was read.
    index: usize,
    /// Its column.
    column: Vec<u8>,
    /// Columns of the range with a visible version, not counting the current one.
    columns: usize,
    /// Visible versions of the current column.
    versions: usize,
}

impl<'p> RowProjector<'p> {
    pub(in crate::tablet) const fn new(projection: &'p Projection, order: CellOrder) -> Self {
        Self { projection, order, index: usize::MAX, column: Vec::new(), columns: 0, versions: 0 }
    }

    /// Decides about the cell with this key within the row.
    pub(in crate::tablet) fn action(&mut self, cell: &[u8]) -> CellAction<'p> {
        let projection: &'p Projection = self.projection;
        let Some(ranges) = &projection.ranges else { return CellAction::Read };
        let index = ranges.partition_point(|range| range.ends_before(cell));
        match ranges.get(index) {
            Some(range) if range.start.as_slice() <= cell => self.action_in_range(index, range, cell),
            range => CellAction::Seek(if self.order == CellOrder::Descending {
                // No cell has the end of the previous range as its key, so a descending seek finds that range's last cell.
                let before = index.checked_sub(1).and_then(|before| ranges.get(before)?.end.as_deref());
                before.map_or(SeekTarget::NextRow, |end| SeekTarget::Column(end.into()))
            } else {
                range.map_or(SeekTarget::NextRow, |range| SeekTarget::Column(range.start.as_slice().into()))
            }),
        }
    }

    /// Counts of columns and versions apply only to ascending scans, where the first columns and newest versions come first.
    fn action_in_range(&mut self, index: usize, range: &'p EncodedRange, cell: &[u8]) -> CellAction<'p> {
        if self.order == CellOrder::Descending || !range.is_bounded() {
            return CellAction::Read;
        }
        let column = codec::without_timestamp(cell);
        if self.index != index || self.column != column {
            self.columns = if self.index == index { self.columns + usize::from(self.versions > 0) } else { 0 };
            self.versions = 0;
            self.index = index;
            self.column.clear();
            self.column.extend_from_slice(column);
        }
        let end = if self.columns >= range.columns {
            range.end.as_deref().map(Cow::from)
        } else if self.versions >= range.versions {
            codec::prefix_end(column).map(Cow::from)
        } else {
            return CellAction::Read;
        };
        CellAction::Seek(end.map_or(SeekTarget::NextRow, SeekTarget::Column))
    }

    /// Counts the current cell as visible.
    pub(in crate::tablet) const fn count_visible(&mut self) {
        self.versions += 1;
    }
}

#[cfg(test)]
mod tests;
