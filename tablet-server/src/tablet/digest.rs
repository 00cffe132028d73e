//! What a replica holds, in a few numbers: replicas of a tablet that have applied the same entry must have the same.
//!
//! Everything is read through one view, so cells and state are those of one entry. What replicas may differ in without
//! anyone seeing it is left out: cells that a compaction may drop at any time, floors drawn a little earlier or later,
//! sessions that have expired. It reads the whole tablet; nobody pays for it who does not ask.

use ebla_model::error::Error;
use ebla_model::id::LogId;
use ebla_storage::tablet::{Direction, StoreError, TabletStore, View};

use crate::tablet::Tablet;
use crate::tablet::failure::Failure;
use crate::tablet::machine::gc_rules;
use crate::tablet::read::pool_failure;
use crate::tablet::state::{MetaEdit, TabletState};

/// A replica's content in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The last entry in it.
    pub applied: LogId,
    /// Cells that no rule calls garbage by the key alone.
    pub cells: u64,
    /// Their keys and values, as they are stored.
    pub cell_bytes: u64,
    /// CRC-32C of keys and values, each with its length, in order.
    pub cells_crc32c: u32,
    /// The same of the meta keys.
    pub state_crc32c: u32,
}

impl Tablet {
    /// What this replica holds now. Any replica answers. It reads the whole tablet on a thread for reads.
    ///
    /// # Errors
    /// When the store cannot be read, or the threads are all busy.
    pub async fn digest(&self) -> Result<Digest, Failure> {
        let store = self.machine().store();
        let digest = self.reads.run(move || of(&store)).await.map_err(pool_failure)??;
        Ok(digest)
    }
}

/// What a store holds now. Blocking.
fn of(store: &TabletStore) -> Result<Digest, Error> {
    let read = |view: &View<'_>| match TabletState::load(view.metas(&[])?) {
        Ok(state) => of_view(view, &state.canonical()).map(Ok),
        Err(damaged) => Ok(Err(damaged)),
    };
    store.with_view(read)?
}

fn of_view(view: &View<'_>, state: &TabletState) -> Result<Digest, StoreError> {
    let rules = gc_rules(state);
    let (lower, upper) = ebla_model::codec::range_bounds(&state.descriptor.range);
    let mut digest = Digest { applied: state.applied, state_crc32c: of_state(state), ..Digest::default() };
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

fn of_state(state: &TabletState) -> u32 {
    let puts = state.save().into_iter().filter_map(|edit| match edit {
        MetaEdit::Put(key, value) => Some((key.encode(), value)),
        MetaEdit::Delete(_) => None,
    });
    puts.fold(0, |crc, (key, value)| append(append(crc, &key), &value))
}

/// With the length first, so that no two sequences of parts are the same bytes.
fn append(crc: u32, part: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &(part.len() as u64).to_be_bytes()), part)
}
