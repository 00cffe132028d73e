//! The cells of a store as apply reads them, also of a store that tolerates damage.

use ebla_model::error::Error;
use ebla_storage::store::cells::{self, DeletePlan};
use ebla_storage::store::{Direction, GroupStore, StoreError};

use crate::tablet::core::apply::CellReader;

/// The cells of a store as apply reads them.
///
/// A store that tolerates damage has no peers that could disagree, and apply must not fail by it: the entry would be applied again
/// after each start. A deletion then needs no read, because it can be a range tombstone; where keys are collected, those behind the
/// damage stay, as they are unreadable anyway.
pub(super) struct StoredCells<'a> {
    pub(super) store: &'a GroupStore,
}

impl StoredCells<'_> {
    fn is_tolerated(&self, error: &StoreError) -> bool {
        matches!(error, StoreError::Damaged { .. }) && self.store.tolerates_damage()
    }
}

impl CellReader for StoredCells<'_> {
    fn keys_if_few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        match self.store.with_view(|view| cells::plan_delete(view, lower, upper)) {
            Ok(DeletePlan::Keys(keys)) => Ok(Some(keys)),
            Ok(DeletePlan::Range) => Ok(None),
            Err(error) if self.is_tolerated(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = Vec::new();
        let read = |view: &ebla_storage::store::View<'_>| -> Result<(), StoreError> {
            keys.clear();
            let mut scan = view.cells(lower, upper, Direction::Forward)?;
            while let Some((key, _)) = scan.entry() {
                keys.push(key.to_vec());
                scan.step()?;
            }
            Ok(())
        };
        match self.store.with_view(read) {
            Err(error) if !self.is_tolerated(&error) => Err(error.into()),
            _ => Ok(keys),
        }
    }
}
