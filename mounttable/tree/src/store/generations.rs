//! A bounded cache of parts of rows in two generations, young and old.
//!
//! An entry that is used goes into the young generation. When the young generation holds half of the capacity, it
//! becomes the old one, and the previous old one is dropped. This approximates LRU without sorting.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ebla_model::Micros;

use crate::store::RowPart;

/// The overhead of one entry besides its bytes: map nodes, counts, a time.
const OVERHEAD_BYTES: usize = 160;

/// The cells of one part of a row; `None` when there are none.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CachedPart {
    pub(super) cells: Option<Arc<RowPart>>,
    /// Not later than the start of the read.
    pub(super) at: Micros,
}

/// Parts of rows; a part is the row's own cells (`None`) or its reference to one child.
#[derive(Debug)]
pub(super) struct TwoGenerationCache {
    young: Generation,
    old: Generation,
    entries_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Generation {
    rows: HashMap<String, Parts>,
    entries: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Parts {
    own: Option<CachedPart>,
    references: BTreeMap<String, CachedPart>,
}

impl TwoGenerationCache {
    /// A cache with this capacity in entries and bytes.
    pub(super) fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self { young: Generation::default(), old: Generation::default(), entries_max, bytes_max }
    }

    /// The entry of a part. A lookup moves it into the young generation.
    pub(super) fn get(&mut self, key: &str, child: Option<&str>) -> Option<CachedPart> {
        if let Some(known) = self.young.get(key, child) {
            return Some(known.clone());
        }
        let known = self.old.take(key, child)?;
        self.put(key, child, known.clone());
        Some(known)
    }

    /// Inserts or replaces a part.
    pub(super) fn put(&mut self, key: &str, child: Option<&str>, known: CachedPart) {
        drop(self.old.take(key, child));
        drop(self.young.take(key, child));
        self.young.put(key, child, known);
        if self.young.entries > self.entries_max / 2 || self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Evicts all parts of a row.
    pub(super) fn evict(&mut self, key: &str) {
        self.young.evict(key);
        self.old.evict(key);
    }

    /// The number of entries, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.young.entries + self.old.entries, self.young.bytes + self.old.bytes)
    }
}

impl Generation {
    fn get(&self, key: &str, child: Option<&str>) -> Option<&CachedPart> {
        let parts = self.rows.get(key)?;
        match child {
            None => parts.own.as_ref(),
            Some(child) => parts.references.get(child),
        }
    }

    /// The part must be absent.
    fn put(&mut self, key: &str, child: Option<&str>, known: CachedPart) {
        self.entries += 1;
        self.bytes += bytes(key, child, &known);
        if !self.rows.contains_key(key) {
            self.rows.insert(key.to_owned(), Parts::default());
        }
        let Some(parts) = self.rows.get_mut(key) else { return };
        match child {
            None => parts.own = Some(known),
            Some(child) => drop(parts.references.insert(child.to_owned(), known)),
        }
    }

    fn take(&mut self, key: &str, child: Option<&str>) -> Option<CachedPart> {
        let parts = self.rows.get_mut(key)?;
        let known = match child {
            None => parts.own.take(),
            Some(child) => parts.references.remove(child),
        }?;
        if parts.own.is_none() && parts.references.is_empty() {
            self.rows.remove(key);
        }
        self.forget(bytes(key, child, &known));
        Some(known)
    }

    fn evict(&mut self, key: &str) {
        let Some(parts) = self.rows.remove(key) else { return };
        if let Some(own) = &parts.own {
            self.forget(bytes(key, None, own));
        }
        for (child, known) in &parts.references {
            self.forget(bytes(key, Some(child), known));
        }
    }

    fn forget(&mut self, bytes: usize) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

fn bytes(key: &str, child: Option<&str>, known: &CachedPart) -> usize {
    let cells = known.cells.iter().flat_map(|part| part.cells());
    // Counted twice: as cells, and as the node decoded from them.
    let cells: usize = cells.map(|((_, column), cell)| 2 * (column.len() + cell.value.len() + OVERHEAD_BYTES)).sum();
    key.len() + child.map_or(0, str::len) + OVERHEAD_BYTES + cells
}
