//! Cell-level operations on a store: how to delete a range of cells, the bounds of a column's versions, the sizes of rows.
//!
//! A cell's key is `row, family id, qualifier, inverted timestamp` (`ebla_model::codec`), so a row, a family of it and a
//! column each are one contiguous range, newest version first within a column. The tablet layer assembles rows and applies
//! garbage collection rules to reads.

use std::collections::BTreeMap;

use ebla_model::codec::{self, CodecError};
use ebla_model::id::FamilyId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::locality::StoredBytes;
use ebla_model::time::Micros;

use super::GroupStore;
use super::error::StoreError;
use super::scan::{ScanPlan, View};

/// How to delete a range of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletePlan {
    /// Few cells: delete each by its key.
    Keys(Vec<Vec<u8>>),
    /// Many cells, or many deleted ones between them: one range tombstone is cheaper, now and for later reads.
    Range,
}

/// Above this many cells a delete writes a range tombstone.
pub const SINGLE_DELETES_MAX: usize = 16;
/// Number of deleted keys that [`plan_delete`] skips before it chooses a range tombstone.
const DELETED_KEYS_MAX: u64 = 64;

/// Plans the deletion of the cells with `lower <= key < upper`. Reads at most one key more than [`SINGLE_DELETES_MAX`].
///
/// Replicas may choose differently (their compactions differ) and still end with the same cells.
///
/// # Errors
/// [`StoreError::Expired`]: take a new view. Else when the store cannot be read.
pub fn plan_delete(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<DeletePlan, StoreError> {
    match live_keys(view, lower, upper) {
        Err(StoreError::TooManySkipped) => Ok(DeletePlan::Range),
        other => other,
    }
}

fn live_keys(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<DeletePlan, StoreError> {
    let mut scan = view.scan(&ScanPlan::new(lower, upper).skipping_at_most(DELETED_KEYS_MAX))?;
    let mut keys = Vec::new();
    while let Some((key, _)) = scan.entry() {
        if keys.len() == SINGLE_DELETES_MAX {
            return Ok(DeletePlan::Range);
        }
        keys.push(key.to_vec());
        scan.step()?;
    }
    Ok(DeletePlan::Keys(keys))
}

/// The bounds of the versions of a column with `start <= timestamp < end` (without `end`: all from `start` on).
///
/// The bounds cross when the range is empty. Timestamps are inverted in keys: the newest version has the lowest key.
#[must_use]
pub fn version_bounds(
    row: &RowKey,
    (family, qualifier): (FamilyId, &[u8]),
    start: Micros,
    end: Option<Micros>,
) -> (Vec<u8>, Vec<u8>) {
    let at = |time: Micros| codec::encode_parts(row.as_bytes(), family, qualifier, time);
    // The key of `end` itself is excluded and is below all wanted ones: its direct successor is the bound.
    let lower = match end {
        Some(end) => successor(at(end)),
        None => codec::column_prefix(row, family, qualifier),
    };
    (lower, successor(at(start)))
}

impl GroupStore {
    /// [`GroupStore::sizes`] by rows: first row of each piece and the piece's bytes. Pieces within one row are joined.
    ///
    /// # Errors
    /// When the store cannot be read or holds an invalid cell key.
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

    /// Approximate size of the rows of `range` in files. Unflushed data is not counted.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn row_range_bytes(&self, range: &KeyRange) -> Result<u64, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        self.range_bytes(&lower, upper.as_deref())
    }

    /// [`GroupStore::bytes_by_group`] of the rows of `range`.
    ///
    /// # Errors
    /// As [`GroupStore::bytes_by_group`].
    pub fn row_bytes_by_group(&self, range: &KeyRange) -> Result<BTreeMap<u32, StoredBytes>, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        self.bytes_by_group(&lower, upper.as_deref())
    }
}

fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn damaged(error: CodecError) -> StoreError {
    StoreError::damaged("decode cell", error.to_string())
}
