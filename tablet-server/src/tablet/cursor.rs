//! One row after the other out of a scan, and of each only what is wanted.
//!
//! What is not wanted is stepped over for a few cells, for a step is cheap, and then jumped over. So a read of a narrow row
//! never seeks, and one of a single column in a row of a million costs what it costs in a small one.

use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_storage::tablet::{Scan, StoreError};

use crate::tablet::rows::{CellOrder, Gatherer};
use crate::tablet::wanted::{Look, Progress, Target, Wanted};

/// So many cells in a row are stepped over before the rest is jumped over. A seek costs about as much as ten steps.
const STEPS_MAX: usize = 8;

/// An error of the store is looked at once more, any other goes to the caller.
pub(super) enum StoreOr {
    Store(StoreError),
    Other(Error),
}

impl From<StoreError> for StoreOr {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for StoreOr {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// What was gone over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    /// Cells, jumped over ones not counted.
    pub(super) cells: u64,
    /// Bytes of their keys and values.
    pub(super) bytes: usize,
}

/// A row, with its visible cells as far as they are wanted.
pub(super) struct Found {
    pub(super) row: Row,
    /// Whether the row has cells that nobody wanted.
    pub(super) skipped: bool,
}

/// Where a reader stands.
pub(super) struct Cursor<'a, 'v> {
    scan: Scan<'v>,
    gatherer: Gatherer<'a>,
    wanted: &'a Wanted,
    /// Says of a row's key whether the row is wanted at all.
    filter: Option<&'a CompiledFilter>,
    /// The scan ends with its first row.
    one_row: bool,
    looked: Looked,
}

impl<'a, 'v> Cursor<'a, 'v> {
    /// At the beginning of `scan`, whose cells come in the gatherer's order.
    pub(super) fn new(scan: Scan<'v>, gatherer: Gatherer<'a>, wanted: &'a Wanted) -> Self {
        Self { scan, gatherer, wanted, filter: None, one_row: false, looked: Looked::default() }
    }

    /// Rows that the filter does not want by their key are left out.
    pub(super) fn picking(self, filter: Option<&'a CompiledFilter>) -> Self {
        Self { filter, ..self }
    }

    /// There is only one row between the scan's bounds.
    pub(super) fn in_one_row(self, one_row: bool) -> Self {
        Self { one_row, ..self }
    }

    /// What was gone over since this was asked last.
    pub(super) fn take_looked(&mut self) -> Looked {
        std::mem::take(&mut self.looked)
    }

    /// The next row; `None` at the end. One of which nothing is wanted comes empty.
    pub(super) fn next_row(&mut self) -> Result<Option<Found>, StoreOr> {
        let Some((key, _)) = self.scan.entry() else { return Ok(None) };
        let row = self.gatherer.begin(key)?;
        let wanted = if self.filter.is_none_or(|filter| filter.needs_row(row.as_bytes())) {
            self.wanted
        } else {
            &Wanted::NOTHING
        };
        let mut progress = Progress::new(wanted, self.gatherer.order() == CellOrder::Falling);
        let mut stepped = 0;
        let mut skipped = false;
        while let Some((key, value)) = self.scan.entry() {
            let Some(cell) = self.gatherer.within_row(key) else { break };
            self.looked.cells += 1;
            self.looked.bytes += key.len() + value.len();
            match progress.look(cell) {
                Look::Take => {
                    if self.gatherer.take(cell, value)? {
                        progress.saw();
                    }
                    stepped = 0;
                    self.scan.step()?;
                }
                Look::GoTo(Target::NextRow) if self.one_row => {
                    skipped = true;
                    self.scan.end();
                }
                Look::GoTo(target) => {
                    skipped = true;
                    stepped += 1;
                    if stepped > STEPS_MAX {
                        let target = self.gatherer.key_of(&target);
                        self.scan.seek(&target)?;
                    } else {
                        self.scan.step()?;
                    }
                }
            }
        }
        Ok(Some(Found { row: self.gatherer.finish()?, skipped }))
    }
}

#[cfg(test)]
mod tests;
