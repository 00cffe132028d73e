//! A bounded cache of parts of rows, over `quick_cache`: weighted entries, and eviction that resists scans (S3-FIFO).
//!
//! A row's own cells and each of its references are entries of their own, because a directory may have very many
//! references. The entry of the own cells has a number, and a reference is valid only together with the own cells that
//! it was inserted under. So removing these invalidates the whole row, without an index of its references.

use std::fmt;
use std::sync::Arc;

use ebla_model::Micros;
use quick_cache::unsync::Cache;
use quick_cache::{Equivalent, Weighter};

use crate::store::RowPart;
use crate::store::path_row::OVERHEAD_BYTES;

/// The cells of one part of a row; `None` when there are none.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CachedPart {
    pub(super) cells: Option<Arc<RowPart>>,
    /// Not later than the start of the read.
    pub(super) at: Micros,
}

/// Parts of rows; a part is the row's own cells (`None`) or its reference to one child.
pub(super) struct RowCache {
    parts: Cache<PartKey, Entry, StoredWeight>,
    /// The bytes that weigh as much as one small part.
    bytes_per_unit: usize,
    inserted_rows: u64,
}

#[derive(PartialEq, Eq, Hash, Clone, Debug)]
struct PartKey {
    row: Box<str>,
    child: Option<Box<str>>,
}

/// The same, without an allocation.
impl Equivalent<PartKey> for (&str, Option<&str>) {
    fn equivalent(&self, key: &PartKey) -> bool {
        *self.0 == *key.row && self.1 == key.child.as_deref()
    }
}

#[derive(Clone)]
struct Entry {
    part: CachedPart,
    /// The number of the own cells.
    row: u64,
    weight: u64,
}

#[derive(Clone)]
struct StoredWeight;

impl Weighter<PartKey, Entry> for StoredWeight {
    fn weight(&self, _key: &PartKey, entry: &Entry) -> u64 {
        entry.weight
    }
}

impl RowCache {
    /// A cache with this capacity in parts and bytes.
    pub(super) fn new(parts_max: usize, bytes_max: usize) -> Self {
        let capacity = u64::try_from(parts_max).unwrap_or(u64::MAX);
        let bytes_per_unit = bytes_max.checked_div(parts_max).unwrap_or_default().max(1);
        let parts = Cache::with_weighter(parts_max, capacity, StoredWeight);
        Self { parts, bytes_per_unit, inserted_rows: 0 }
    }

    /// The entry of a part.
    pub(super) fn get(&self, key: &str, child: Option<&str>) -> Option<CachedPart> {
        let own = self.parts.get(&(key, None))?;
        if child.is_none() {
            return Some(own.part.clone());
        }
        self.parts.get(&(key, child)).filter(|entry| entry.row == own.row).map(|entry| entry.part.clone())
    }

    /// Inserts or replaces a part; a reference only together with the row's own cells.
    pub(super) fn put(&mut self, key: &str, child: Option<&str>, part: CachedPart) {
        let row = match (self.parts.peek(&(key, None)), child) {
            (Some(own), _) => own.row,
            (None, Some(_)) => return,
            (None, None) => {
                self.inserted_rows = self.inserted_rows.wrapping_add(1);
                self.inserted_rows
            }
        };
        let units = bytes(key, child, &part).div_ceil(self.bytes_per_unit);
        let weight = u64::try_from(units).unwrap_or(u64::MAX);
        let key = PartKey { row: key.into(), child: child.map(Into::into) };
        self.parts.insert(key, Entry { part, row, weight });
    }

    /// Removes all parts of a row.
    pub(super) fn evict(&mut self, key: &str) {
        // Its references are invalid now, and leave when they are the least used.
        drop(self.parts.remove(&(key, None)));
    }

    /// The number of entries, and their weight in units of small parts.
    pub(super) fn size(&self) -> (usize, u64) {
        (self.parts.len(), self.parts.weight())
    }
}

impl fmt::Debug for RowCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowCache").field("size", &self.size()).finish_non_exhaustive()
    }
}

fn bytes(key: &str, child: Option<&str>, part: &CachedPart) -> usize {
    let cells = part.cells.as_ref().map_or(0, |part| part.bytes());
    key.len() + child.map_or(0, str::len) + OVERHEAD_BYTES + cells
}
