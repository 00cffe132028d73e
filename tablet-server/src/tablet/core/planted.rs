//! Planted faults of snapshots: what an installed snapshot lacks.

use ebla_model::codec;
use ebla_model::error::Error;
use ebla_runtime::Failpoint;
use ebla_storage::store::layout::MetaKey;
use ebla_storage::store::{Batch, GroupStore};

use crate::tablet::core::state::GroupState;

/// Removes from a store what the enabled fault leaves out of a snapshot; whether there is such a fault.
pub(super) fn omit_from_snapshot(store: &GroupStore, state: &GroupState) -> Result<bool, Error> {
    let mut batch = Batch::new();
    if Failpoint::SnapshotForgetsSessions.is_enabled() {
        state.sessions.keys().for_each(|id| batch.delete_meta(MetaKey::Session(*id)));
    } else if Failpoint::SnapshotLosesTablet.is_enabled() {
        if let Some(range) = state.stored_ranges().first() {
            let (from, to) = codec::range_bounds(range);
            batch.delete_range(from, to);
        }
    } else {
        return Ok(false);
    }
    store.write(&batch)?;
    store.flush()?;
    Ok(true)
}
