//! The digest of a tablet on a replica: checksums that must be equal on all replicas that have applied the same entry.
//!
//! All data is read through one view, so cells and state belong to the same entry. Invisible differences between replicas
//! are excluded: cells that a compaction may drop at any time, floors raised a little earlier or later,
//! sessions that have expired. A digest has the cells of one tablet and the state of its whole group. It reads the whole tablet; it is computed only on request.

use ebla_model::error::Error;
use ebla_model::id::{LogId, TabletId};
use ebla_model::stored_row::stored_range;
use ebla_storage::store::{Direction, GroupStore, StoreError, View};

use crate::tablet::Tablet;
use crate::tablet::core::state::{GroupState, MetaEdit};
use crate::tablet::core::store_rules::gc_rules;
use crate::tablet::failure::Failure;
use crate::tablet::read::scan::pool_failure;

/// Checksums of a replica's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The last applied entry.
    pub applied: LogId,
    /// The number of cells that no rule calls dead by their key alone.
    pub cells: u64,
    /// The bytes of their stored keys and values.
    pub cell_bytes: u64,
    /// CRC-32C of the tablet's keys and values, each with its length, in order.
    pub cells_crc32c: u32,
    /// The same of the group's meta keys.
    pub state_crc32c: u32,
}

impl Tablet {
    /// The digest of this replica's current content. Any replica may be used. Reads the whole tablet on the read pool.
    ///
    /// # Errors
    /// When the store cannot be read, or the thread pool is full. Damaged data is reported, as by any other read: the store is examined.
    pub async fn digest(&self) -> Result<Digest, Failure> {
        let store = self.state_machine().store();
        let tablet = self.id();
        let digest = self.reads.run(move || digest_store(&store, tablet)).await.map_err(pool_failure)?;
        self.unless_damaged(digest.map_err(Failure::from))
    }
}

/// The digest of a tablet in a store's current content. Blocking.
fn digest_store(store: &GroupStore, tablet: TabletId) -> Result<Digest, Error> {
    let read = |view: &View<'_>| match GroupState::load(view.metas(&[])?) {
        Ok(state) => digest_view(view, &state.canonical(), tablet).map(Ok),
        Err(damaged) => Ok(Err(damaged)),
    };
    store.with_view(read)?
}

fn digest_view(view: &View<'_>, state: &GroupState, tablet: TabletId) -> Result<Digest, StoreError> {
    let rules = gc_rules(state);
    let Some(tablet) = state.tablets.get(&tablet) else { return Ok(Digest::default()) };
    let (lower, upper) = ebla_model::codec::range_bounds(&stored_range(tablet.table, &tablet.range));
    let mut digest = Digest { applied: state.applied, state_crc32c: state_crc(state), ..Digest::default() };
    let mut cells = view.cells(&lower, upper.as_deref(), Direction::Forward)?;
    while let Some((key, value)) = cells.entry() {
        if !rules.is_garbage(key) {
            digest.cells += 1;
            digest.cell_bytes += (key.len() + value.len()) as u64;
            digest.cells_crc32c = append(append(digest.cells_crc32c, key), value);
        }
        cells.step()?;
    }
    Ok(digest)
}

fn state_crc(state: &GroupState) -> u32 {
    let puts = state.save().into_iter().filter_map(|edit| match edit {
        MetaEdit::Put(key, value) => Some((key.encode(), value)),
        MetaEdit::Delete(_) => None,
    });
    puts.fold(0, |crc, (key, value)| append(append(crc, &key), &value))
}

/// With the length first, so that different sequences of parts never give the same bytes.
fn append(crc: u32, part: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &(part.len() as u64).to_be_bytes()), part)
}
