//! Reads of rows by their keys, through the scan cache (`ebla_storage::store::RowLookup`).
//!
//! The rows are looked up after the leadership is confirmed, and before a view is pinned and the applied state is read: as with a
//! view, what was found is never newer than the range, the schema and the times that it is interpreted with. Rows that were asked
//! for again are read as a whole and cached; all others are read cell by cell, and a scan always is.

use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::stored_row::stored_row;
use ebla_storage::store::{CachedRow, GroupStore, RowLookup};

use crate::tablet::read::projection::{CellAction, Projection, RowProjector};
use crate::tablet::read::row_assembler::{CellOrder, RowAssembler};
use crate::tablet::read::row_iterator::{ScanStats, ScannedRow};
use crate::tablet::{ReadPosition, ReadRequest};

/// Rows that are looked up for one batch.
const ROWS_MAX: usize = 128;

/// The rows that a batch asks for by their keys, as the scan cache has them.
#[derive(Debug, Default)]
pub(super) struct PointLookups {
    /// In the order of the read.
    rows: Vec<(RowKey, RowLookup)>,
    is_descending: bool,
    /// No other rows are asked for.
    is_complete: bool,
}

impl PointLookups {
    /// Looks up the next rows of a request.
    pub(super) fn new(store: &GroupStore, table: TableId, request: &ReadRequest, position: &ReadPosition) -> Self {
        let mut lookups = Self { rows: Vec::new(), is_descending: request.reversed, is_complete: true };
        let is_left = |range: &&KeyRange| match &position.after {
            Some(key) if request.reversed => range.start() < key,
            Some(key) => range.end().is_none_or(|end| *end > key.successor()),
            None => true,
        };
        let ranges = request.rows.ranges().iter();
        if request.reversed {
            lookups.add(store, table, ranges.rev().filter(is_left));
        } else {
            lookups.add(store, table, ranges.filter(is_left));
        }
        lookups
    }

    fn add<'k>(&mut self, store: &GroupStore, table: TableId, ranges: impl Iterator<Item = &'k KeyRange>) {
        for range in ranges {
            let is_wanted = self.rows.len() < ROWS_MAX && range.is_single();
            let row = range.start();
            match is_wanted.then(|| store.look_up(&stored_row(table, row))).flatten() {
                Some(lookup) => self.rows.push((row.clone(), lookup)),
                None => {
                    self.is_complete = false;
                    return;
                }
            }
        }
    }

    /// Whether cells of all rows of the request are cached, so that perhaps no view is needed.
    pub(super) fn are_all_cached(&self) -> bool {
        self.is_complete && self.rows.iter().all(|(_row, lookup)| lookup.is_cached())
    }

    /// The row of this range, if it was looked up.
    pub(super) fn of(&self, range: &KeyRange) -> Option<&RowLookup> {
        if !range.is_single() {
            return None;
        }
        let by_key = |(row, _lookup): &(RowKey, RowLookup)| {
            let order = row.cmp(range.start());
            if self.is_descending { order.reverse() } else { order }
        };
        let at = self.rows.binary_search_by(by_key).ok()?;
        self.rows.get(at).map(|(_row, lookup)| lookup)
    }
}

/// Assembles a row from its cached cells; `None` when it has none.
pub(super) fn assemble(
    (lookup, cached): (&RowLookup, &CachedRow),
    mut assembler: RowAssembler<'_>,
    projection: &Projection,
    filter: Option<&CompiledFilter>,
) -> Result<(Option<ScannedRow>, ScanStats), Error> {
    let mut stats = ScanStats::default();
    let mut cells = cached.cells().peekable();
    if cells.peek().is_none() {
        return Ok((None, stats));
    }
    let row = assembler.start_row(lookup.row_prefix())?;
    let projection =
        if filter.is_none_or(|filter| filter.may_pass_row(row.as_bytes())) { projection } else { &Projection::NOTHING };
    let mut projector = RowProjector::new(projection, CellOrder::Ascending);
    let mut skipped = false;
    for (cell, value) in cells {
        stats.cells += 1;
        stats.bytes += cell.len() + value.len();
        match projector.action(cell) {
            CellAction::Read => {
                if assembler.add_cell(cell, value)? {
                    projector.count_visible();
                }
            }
            // A cached row is small: its cells are stepped over.
            CellAction::Seek(_target) => skipped = true,
        }
    }
    Ok((Some(ScannedRow { row: assembler.finish_row()?, skipped }), stats))
}

/// Reads through the cache, for tests.
#[cfg(test)]
pub(in crate::tablet) mod testing {
    use ebla_model::cell::Row;
    use ebla_model::id::TabletId;
    use ebla_storage::store::ReadTier;

    use super::*;
    use crate::tablet::core::state_machine::GroupStateMachine;

    /// A row as a reader sees it who finds it in the scan cache, or puts it there; and whether it was found.
    pub(in crate::tablet) fn read_row(
        state_machine: &GroupStateMachine,
        tablet: TabletId,
        key: &RowKey,
    ) -> (Row, bool) {
        let store = state_machine.store();
        let table = state_machine.applied_state().tablet(tablet).unwrap().descriptor.table;
        let mut attempts = 0;
        let (lookup, cached) = loop {
            let lookup = store.look_up(&stored_row(table, key)).unwrap();
            let view = store.view();
            if let Some(cached) = lookup.cached(None).cloned() {
                break (lookup, cached);
            }
            attempts += 1;
            // The second attempt fills, and the next one hits.
            assert!(attempts < 3, "the row is not cached");
            view.fill(&lookup, None, ReadTier::All).unwrap();
        };
        let applied_state = state_machine.applied_state();
        let families = applied_state.tablet(tablet).unwrap().families();
        let assembler = RowAssembler::new(families, applied_state.gc_time, CellOrder::Ascending);
        let (found, _stats) = assemble((&lookup, &cached), assembler, &Projection::ALL, None).unwrap();
        (found.map_or_else(|| Row::empty(key.clone()), |found| found.row), attempts == 0)
    }
}
