//! The row iterator: assembles the rows of a scan, reading only the projected cells of each.
//!
//! Unneeded cells are stepped over up to a few in a row, because a step is cheap; after that the iterator seeks. So a read of
//! narrow rows never seeks, and a read of one column of a row with a million columns costs as much as in a small row.

use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_storage::store::{Scan, StoreError};

use crate::tablet::read::projection::{CellAction, Projection, RowProjector, SeekTarget};
use crate::tablet::read::row_assembler::RowAssembler;

/// Unneeded cells in a row before the iterator seeks. A seek costs about as much as ten steps.
const STEPS_MAX: usize = 8;

/// An error of a scan: store errors may be retried with a new view, others are returned to the caller.
pub(super) enum ScanError {
    Store(StoreError),
    Other(Error),
}

impl From<StoreError> for ScanError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for ScanError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The work that a scan did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanStats {
    /// Cells read or stepped over; skipped ones are not counted.
    pub(super) cells: u64,
    /// Bytes of their keys and values.
    pub(super) bytes: usize,
}

/// A row, with the visible cells of the projection.
pub(super) struct ScannedRow {
    pub(super) row: Row,
    /// Whether the row has cells outside the projection.
    pub(super) skipped: bool,
}

/// How many rows lie between the bounds of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanExtent {
    /// At most one: after it the scan ends without a seek.
    OneRow,
    /// Any number.
    ManyRows,
}

/// Iterates over the rows of a scan.
pub(super) struct RowIterator<'a, 'v> {
    scan: Scan<'v>,
    assembler: RowAssembler<'a>,
    projection: &'a Projection,
    /// Skips rows by their key.
    filter: Option<&'a CompiledFilter>,
    extent: ScanExtent,
    stats: ScanStats,
}

impl<'a, 'v> RowIterator<'a, 'v> {
    /// At the start of `scan`, whose cells come in the assembler's order.
    pub(super) fn new(scan: Scan<'v>, assembler: RowAssembler<'a>, projection: &'a Projection) -> Self {
        Self { scan, assembler, projection, filter: None, extent: ScanExtent::ManyRows, stats: ScanStats::default() }
    }

    /// Skips the cells of rows that the filter rejects by their key.
    pub(super) fn with_row_filter(self, filter: Option<&'a CompiledFilter>) -> Self {
        Self { filter, ..self }
    }

    /// Sets how many rows lie between the scan's bounds.
    pub(super) fn with_extent(self, extent: ScanExtent) -> Self {
        Self { extent, ..self }
    }

    /// The work since the last call.
    pub(super) fn take_stats(&mut self) -> ScanStats {
        std::mem::take(&mut self.stats)
    }

    /// The next row; `None` at the end. A row without projected cells is empty.
    pub(super) fn next_row(&mut self) -> Result<Option<ScannedRow>, ScanError> {
        let Some((key, _)) = self.scan.entry() else { return Ok(None) };
        let row = self.assembler.start_row(key)?;
        let projection = if self.filter.is_none_or(|filter| filter.may_pass_row(row.as_bytes())) {
            self.projection
        } else {
            &Projection::NOTHING
        };
        let mut projector = RowProjector::new(projection, self.assembler.order());
        let mut steps = 0;
        let mut skipped = false;
        while let Some((key, value)) = self.scan.entry() {
            let Some(cell) = self.assembler.within_row(key) else { break };
            self.stats.cells += 1;
            self.stats.bytes += key.len() + value.len();
            match projector.action(cell) {
                CellAction::Read => {
                    if self.assembler.add_cell(cell, value)? {
                        projector.count_visible();
                    }
                    steps = 0;
                    self.scan.step()?;
                }
                CellAction::Seek(SeekTarget::NextRow) if self.extent == ScanExtent::OneRow => {
                    skipped = true;
                    self.scan.end();
                }
                CellAction::Seek(target) => {
                    skipped = true;
                    steps += 1;
                    if steps > STEPS_MAX {
                        let target = self.assembler.key_of(&target);
                        self.scan.seek(&target)?;
                    } else {
                        self.scan.step()?;
                    }
                }
            }
        }
        Ok(Some(ScannedRow { row: self.assembler.finish_row()?, skipped }))
    }
}

#[cfg(test)]
mod tests;
