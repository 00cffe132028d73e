//! Reads: a view of a store at one moment, and the one iterator that everything reads cells through.
//!
//! A [`View`] is one snapshot of the engine. All iterators of one read are made together, right after the view:
//! compactions that drop garbage ignore snapshots, so an iterator made later could miss cells that the view should see.
//! A view therefore remembers the epoch of the collection rules and refuses ([`StoreError::Expired`]) when they have
//! changed; what an iterator saw when it was made stays pinned as long as it lives.
//!
//! The engine's iterator says "not valid" at the end *and* on an error. [`Scan`] is the only place that steps one, and it
//! asks for the status each time, so a damaged block is an error and never an early end.

use std::cmp::Ordering;

use bytes::Bytes;
use rocksdb::{DB, DBRawIteratorWithThreadMode, ReadOptions, ReadTier, SnapshotWithThreadMode};

use super::TabletStore;
use super::error::StoreError;
use super::layout::MetaKey;

/// Which way to go through keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Rising keys.
    Forward,
    /// Falling keys.
    Reverse,
}

/// How far a read may go for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the disk.
    Disk,
    /// Memtables and block cache only; what lies beyond errs with [`StoreError::NotCached`].
    Cache,
}

/// Which keys a [`Scan`] goes through, and how.
#[derive(Clone, Copy, Debug)]
pub struct ScanPlan<'k> {
    lower: &'k [u8],
    upper: Option<&'k [u8]>,
    direction: Direction,
    reach: Reach,
    skips_max: Option<u64>,
    blocks: Blocks,
}

/// What becomes of the blocks that a scan reads from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    Cached,
    Forgotten,
}

impl<'k> ScanPlan<'k> {
    /// The keys from `lower` up to but not including `upper` (none: to the end), rising, from disk.
    #[must_use]
    pub fn new(lower: &'k [u8], upper: Option<&'k [u8]>) -> Self {
        Self {
            lower,
            upper,
            direction: Direction::Forward,
            reach: Reach::Disk,
            skips_max: None,
            blocks: Blocks::Cached,
        }
    }

    /// The same keys in this direction.
    #[must_use]
    pub fn toward(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    /// Read no further than this.
    #[must_use]
    pub fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Err with [`StoreError::TooManySkipped`] when one step meets more deleted keys than this.
    #[must_use]
    pub fn skipping_at_most(self, keys: u64) -> Self {
        Self { skips_max: Some(keys), ..self }
    }

    /// Leave the block cache to others: what this reads is not read again soon.
    #[must_use]
    pub fn once(self) -> Self {
        Self { blocks: Blocks::Forgotten, ..self }
    }

    /// Whether all its keys belong to one row, so that the filter on rows may be asked.
    ///
    /// Falling scans position themselves by the upper bound, which belongs to the next row: not for them.
    fn is_one_row(&self) -> bool {
        let Some((upper, row)) = self.upper.zip(row_prefix_of(self.lower)) else { return false };
        self.direction == Direction::Forward && !is_after_row(row, upper)
    }

    fn options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(self.lower);
        if let Some(upper) = self.upper {
            options.set_iterate_upper_bound(upper);
        }
        // With a prefix extractor the engine's default is a mixture whose result past the first row is undefined: say
        // which of the two is meant.
        if self.is_one_row() {
            options.set_prefix_same_as_start(true);
        } else {
            options.set_total_order_seek(true);
        }
        if self.reach == Reach::Cache {
            options.set_read_tier(ReadTier::BlockCache);
        }
        if self.blocks == Blocks::Forgotten {
            options.fill_cache(false);
        }
        if let Some(skips) = self.skips_max {
            options.set_max_skippable_internal_keys(skips);
        }
        options
    }
}

/// A store as it is at one moment. Many reads may hold one each; writes go on meanwhile.
///
/// Take it, make the iterators, read; do not keep it: it holds back the space of what is deleted.
pub struct View<'s> {
    store: &'s TabletStore,
    snapshot: SnapshotWithThreadMode<'s, DB>,
    epoch: u64,
}

impl<'s> View<'s> {
    pub(super) fn new(store: &'s TabletStore) -> Self {
        // The epoch first: rules that change in between make the view expire for nothing, never the reverse.
        let epoch = store.rules().epoch();
        Self { store, snapshot: store.database().snapshot(), epoch }
    }

    /// The value of a meta key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn get_meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        let value = self.snapshot.get_cf(self.store.meta_family()?, key.encode());
        Ok(value.map_err(StoreError::engine("read meta key"))?.map(Bytes::from))
    }

    /// All meta keys that begin with `prefix`, rising, with their values.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn metas(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let upper = ebla_model::codec::prefix_end(prefix);
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(prefix);
        if let Some(upper) = upper {
            options.set_iterate_upper_bound(upper);
        }
        let raw = self.snapshot.raw_iterator_cf_opt(self.store.meta_family()?, options);
        Scan::start(raw, Direction::Forward)?.collect()
    }

    /// The cells with `lower <= key < upper` in this direction. Empty when the bounds cross.
    ///
    /// # Errors
    /// [`StoreError::Expired`]: take a new view. Else when the store cannot be read.
    pub fn cells(&self, lower: &[u8], upper: Option<&[u8]>, direction: Direction) -> Result<Scan<'_>, StoreError> {
        self.scan(&ScanPlan::new(lower, upper).toward(direction))
    }

    /// The cells of this plan.
    ///
    /// # Errors
    /// As [`Self::cells`], and those that the plan asks for.
    pub fn scan(&self, plan: &ScanPlan<'_>) -> Result<Scan<'_>, StoreError> {
        if plan.upper.is_some_and(|upper| upper <= plan.lower) {
            return Ok(Scan { raw: None, direction: plan.direction, failed: None });
        }
        let raw = self.snapshot.raw_iterator_cf_opt(self.store.cell_family()?, plan.options());
        self.check_epoch()?;
        Scan::start(raw, plan.direction)
    }

    /// The stored value at an encoded cell key.
    ///
    /// # Errors
    /// As [`Self::cells`].
    pub fn get_cell(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let value = self.snapshot.get_cf(self.store.cell_family()?, key);
        self.check_epoch()?;
        Ok(value.map_err(StoreError::engine("read cell"))?.map(Bytes::from))
    }

    /// The iterator (or value) was pinned before this check, so rules that come later cannot have touched it.
    fn check_epoch(&self) -> Result<(), StoreError> {
        if self.store.rules().epoch() == self.epoch { Ok(()) } else { Err(StoreError::Expired) }
    }
}

/// An iterator over cells that tells an error from the end.
///
/// As a cursor: [`Self::entry`] borrows what it stands on, [`Self::step`] goes on. As an [`Iterator`]: copies.
pub struct Scan<'v> {
    raw: Option<DBRawIteratorWithThreadMode<'v, DB>>,
    direction: Direction,
    failed: Option<StoreError>,
}

impl<'v> Scan<'v> {
    fn start(mut raw: DBRawIteratorWithThreadMode<'v, DB>, direction: Direction) -> Result<Self, StoreError> {
        match direction {
            Direction::Forward => raw.seek_to_first(),
            Direction::Reverse => raw.seek_to_last(),
        }
        settled(Self { raw: Some(raw), direction, failed: None })
    }

    /// Key and value it stands on; `None` at the end.
    #[must_use]
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.raw.as_ref()?.item()
    }

    /// Goes to the next entry in its direction.
    ///
    /// # Errors
    /// When it cannot be read. [`Self::entry`] is then `None`, which is *not* the end.
    pub fn step(&mut self) -> Result<(), StoreError> {
        let Some(raw) = &mut self.raw else { return Ok(()) };
        match self.direction {
            Direction::Forward => raw.next(),
            Direction::Reverse => raw.prev(),
        }
        check(raw)
    }

    /// Goes to the first entry at or beyond `key` in its direction, within its bounds.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let Some(raw) = &mut self.raw else { return Ok(()) };
        match self.direction {
            Direction::Forward => raw.seek(key),
            Direction::Reverse => raw.seek_for_prev(key),
        }
        check(raw)
    }

    /// Ends it where it stands.
    pub fn end(&mut self) {
        self.raw = None;
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            // Nothing follows an error: a caller that goes on must not take the rest for all.
            self.raw = None;
            return Some(Err(error));
        }
        let (key, value) = self.entry()?;
        let entry = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        if let Err(error) = self.step() {
            self.failed = Some(error);
        }
        Some(Ok(entry))
    }
}

fn settled(scan: Scan<'_>) -> Result<Scan<'_>, StoreError> {
    if let Some(raw) = &scan.raw {
        check(raw)?;
    }
    Ok(scan)
}

/// Not valid may be the end or an error: ask.
fn check(raw: &DBRawIteratorWithThreadMode<'_, DB>) -> Result<(), StoreError> {
    if raw.valid() {
        return Ok(());
    }
    raw.status().map_err(|error| match error.kind() {
        // The engine has one word for both; only the message tells which limit was met.
        rocksdb::ErrorKind::Incomplete if error.as_ref().contains("skipped") => StoreError::TooManySkipped,
        rocksdb::ErrorKind::Incomplete => StoreError::NotCached,
        _ => StoreError::engine("scan cells")(error),
    })
}

/// What all keys of the row begin with that this key belongs to, its terminator included; `None` when it holds none.
///
/// Escaped text holds no 00 01 but its terminator, because a zero byte in it is always followed by FF.
pub(super) fn row_prefix_of(key: &[u8]) -> Option<&[u8]> {
    let end = key.windows(2).position(|pair| pair == [0x00, 0x01])?;
    key.get(..end + 2)
}

/// A key after that of every cell: rows have at most 4 KiB, METADATA's begin with a table id.
pub(super) fn end_of_keys() -> Vec<u8> {
    vec![0xff; 4096 + 1]
}

/// Whether `bound` lets in keys after the row with this prefix. The first such key is that of `row + 00`.
fn is_after_row(row: &[u8], bound: &[u8]) -> bool {
    let Some((_, stem)) = row.split_last() else { return true };
    match bound.strip_prefix(stem) {
        Some(rest) => rest.cmp(&[0xff, 0x00, 0x01]) == Ordering::Greater,
        None => bound > row,
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::codec;
    use ebla_model::id::FamilyId;
    use ebla_model::key::{KeyRange, RowKey};

    use super::*;

    #[test]
    fn the_row_of_a_key_ends_with_its_terminator() {
        assert_eq!(row_prefix_of(b"ab\0\x01rest\0\x01"), Some(&b"ab\0\x01"[..]));
        assert_eq!(row_prefix_of(b"a\0\xff\0\x01x"), Some(&b"a\0\xff\0\x01"[..]));
        assert_eq!(row_prefix_of(b"ab"), None);
        assert_eq!(row_prefix_of(b""), None);
    }

    #[test]
    fn one_row_is_told_from_more() {
        let row = RowKey::new("ab");
        let family = FamilyId::new(1);
        let is_one = |lower: &[u8], upper: Option<&[u8]>| ScanPlan::new(lower, upper).is_one_row();

        let (lower, upper) = codec::range_bounds(&KeyRange::single(row.clone()));
        assert!(is_one(&lower, upper.as_deref()));
        let column = codec::column_prefix(&row, family, b"q");
        assert!(is_one(&column, codec::prefix_end(&column).as_deref()));
        let prefix = codec::row_prefix(&row);
        assert!(is_one(&prefix, codec::prefix_end(&prefix).as_deref()));

        let (lower, upper) = codec::range_bounds(&KeyRange::prefix(b"ab"));
        assert!(!is_one(&lower, upper.as_deref()));
        assert!(!is_one(&prefix, None));
        assert!(!is_one(b"ab", Some(b"ac")), "a bound that is no key of a row");
        assert!(!ScanPlan::new(&prefix, upper.as_deref()).toward(Direction::Reverse).is_one_row());
    }

    #[test]
    fn the_end_of_keys_is_after_the_greatest_row() {
        let greatest = codec::encode_parts(&[0xff; 4096], FamilyId::new(u32::MAX), b"", ebla_model::time::Micros::ZERO);
        assert!(end_of_keys() > greatest);
    }
}
