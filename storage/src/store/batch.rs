//! An atomic write batch: cells and meta keys together, all or nothing.
//!
//! A batch is a plain value and knows no store, so the rules that decide what to write (`tablet::core::apply`) stay pure and
//! are tested without a disk. It is converted to RocksDB's write batch when it is written.

use bytes::Bytes;

use super::layout::MetaKey;
use super::scan::end_of_keys;

/// Changes to a tablet store that take effect together.
///
/// Later changes of one batch win over earlier ones of the same key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<Change>,
    payload_bytes: u64,
    range_tombstones: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put { key: Vec<u8>, value: Bytes },
    Delete { key: Vec<u8> },
    DeleteRange { from: Vec<u8>, to: Vec<u8> },
    PutMeta { key: Vec<u8>, value: Bytes },
    DeleteMeta { key: Vec<u8> },
}

impl Batch {
    /// A batch that changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the cell at an encoded cell key; `value` carries its tag.
    pub fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        let value = value.into();
        self.count(key.len() + value.len());
        self.changes.push(Change::Put { key, value });
    }

    /// Deletes the cell at an encoded cell key, if it exists.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.count(key.len());
        self.changes.push(Change::Delete { key });
    }

    /// Deletes all cells with `from <= key < to` (without `to`: all from `from` on). An empty range has no effect.
    ///
    /// For many cells only: each one slows the next read of a memtable, see [`super::cells::plan_delete`].
    pub fn delete_range(&mut self, from: Vec<u8>, to: Option<Vec<u8>>) {
        let to = to.unwrap_or_else(end_of_keys);
        if from >= to {
            return;
        }
        self.count(from.len() + to.len());
        self.range_tombstones += 1;
        self.changes.push(Change::DeleteRange { from, to });
    }

    /// Sets a meta key.
    pub fn put_meta(&mut self, key: MetaKey, value: impl Into<Bytes>) {
        let (key, value) = (key.encode(), value.into());
        self.count(key.len() + value.len());
        self.changes.push(Change::PutMeta { key, value });
    }

    /// Deletes a meta key, if it exists.
    pub fn delete_meta(&mut self, key: MetaKey) {
        let key = key.encode();
        self.count(key.len());
        self.changes.push(Change::DeleteMeta { key });
    }

    /// Appends all changes of `later`.
    pub fn append(&mut self, later: Self) {
        self.changes.extend(later.changes);
        self.payload_bytes += later.payload_bytes;
        self.range_tombstones += later.range_tombstones;
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Bytes of all keys and values in it.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Number of range deletes.
    #[must_use]
    pub fn range_tombstones(&self) -> u64 {
        self.range_tombstones
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    fn count(&mut self, bytes: usize) {
        self.payload_bytes = self.payload_bytes.saturating_add(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_and_tombstones_are_counted() {
        let mut batch = Batch::new();
        assert!(batch.is_empty());
        batch.put(b"k".to_vec(), vec![0; 9]);
        batch.delete(b"kk".to_vec());
        batch.delete_range(b"a".to_vec(), Some(b"b".to_vec()));
        assert_eq!((batch.len(), batch.payload_bytes(), batch.range_tombstones()), (3, 14, 1));
        let mut first = Batch::new();
        first.put_meta(MetaKey::Applied, vec![1]);
        first.append(batch);
        assert_eq!((first.len(), first.payload_bytes(), first.range_tombstones()), (4, 22, 1));
    }

    #[test]
    fn an_empty_range_has_no_effect() {
        let mut batch = Batch::new();
        batch.delete_range(b"b".to_vec(), Some(b"a".to_vec()));
        batch.delete_range(b"b".to_vec(), Some(b"b".to_vec()));
        assert!(batch.is_empty());
    }
}
