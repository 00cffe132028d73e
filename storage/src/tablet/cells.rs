//! What a tablet asks of a store in terms of cells: what a delete has to delete, where a column's versions lie, how large rows
//! are.
//!
//! A cell's key is `row, family id, qualifier, inverted timestamp` (`ebla_model::codec`), so a row, a family of it and a
//! column each are one contiguous range, newest version first within a column. Reading rows, and judging what garbage
//! rules hide, is the tablet's.

use ebla_model::codec::{self, CodecError};
use ebla_model::id::FamilyId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;

use super::TabletStore;
use super::error::StoreError;
use super::scan::{ScanPlan, View};

/// What a delete finds where it is to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// So few cells that each one is deleted by its key.
    Few(Vec<Vec<u8>>),
    /// Too many, or too many deleted ones between them: one range tombstone is cheaper, now and for later reads.
    Many,
}

/// Above this many cells a delete writes a range tombstone.
pub const SINGLE_DELETES_MAX: usize = 16;
/// How many deleted keys a probe passes before it gives up counting.
const PROBE_SKIPS_MAX: u64 = 64;

/// How best to delete the cells with `lower <= key < upper`: reads at most one key more than [`SINGLE_DELETES_MAX`].
///
/// Replicas may answer differently (their compactions differ) and still end with the same cells.
///
/// # Errors
/// [`StoreError::Expired`]: take a new view. Else when the store cannot be read.
pub fn probe(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<Probe, StoreError> {
    match probe_keys(view, lower, upper) {
        Err(StoreError::TooManySkipped) => Ok(Probe::Many),
        other => other,
    }
}

fn probe_keys(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<Probe, StoreError> {
    let mut scan = view.scan(&ScanPlan::new(lower, upper).skipping_at_most(PROBE_SKIPS_MAX))?;
    let mut keys = Vec::new();
    while let Some((key, _)) = scan.entry() {
        if keys.len() == SINGLE_DELETES_MAX {
            return Ok(Probe::Many);
        }
        keys.push(key.to_vec());
        scan.step()?;
    }
    Ok(Probe::Few(keys))
}

/// The bounds of the versions of a column with `start <= timestamp < end` (without `end`: all from `start` on).
///
/// They cross when there are none. Timestamps are inverted in keys: the newest version has the least key.
#[must_use]
pub fn version_bounds(
    row: &RowKey,
    (family, qualifier): (FamilyId, &[u8]),
    start: Micros,
    end: Option<Micros>,
) -> (Vec<u8>, Vec<u8>) {
    let at = |time: Micros| codec::encode_parts(row.as_bytes(), family, qualifier, time);
    // The key of `end` itself is excluded and lies below all wanted ones: what follows it directly is the bound.
    let lower = match end {
        Some(end) => successor(at(end)),
        None => codec::column_prefix(row, family, qualifier),
    };
    (lower, successor(at(start)))
}

impl TabletStore {
    /// [`TabletStore::sizes`] by rows: first row of each piece and the piece's bytes. Pieces within one row are joined.
    ///
    /// # Errors
    /// When the store cannot be read or holds what is no cell.
    pub fn row_sizes(&self, range: &KeyRange) -> Result<Vec<(RowKey, u64)>, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        let mut rows: Vec<(RowKey, u64)> = Vec::new();
        for (key, bytes) in self.sizes(&lower, upper.as_deref())? {
            let (row, _) = codec::unescape(&key).map_err(damaged)?;
            match rows.last_mut() {
                Some((last, size)) if last.bytes() == &row => *size += bytes,
                _ => rows.push((RowKey::new(row), bytes)),
            }
        }
        Ok(rows)
    }

    /// About how many bytes the rows of `range` take in files. What is not flushed is not counted.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub fn row_range_bytes(&self, range: &KeyRange) -> Result<u64, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        self.range_bytes(&lower, upper.as_deref())
    }
}

fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn damaged(error: CodecError) -> StoreError {
    StoreError::damaged("decode cell", error.to_string())
}
