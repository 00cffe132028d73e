//! Reads: a consistent view of a store, and the cell iterator that all reads use.
//!
//! A [`View`] is one RocksDB snapshot, with the placement of families in column families of that moment. All iterators of one read are created together, right after the view: compactions
//! that drop garbage ignore snapshots, so an iterator that is created later could miss cells that the view should see. A
//! view therefore stores the epoch of the garbage collection rules and returns [`StoreError::Expired`] when they have
//! changed. An existing iterator keeps its data pinned.
//!
//! RocksDB's iterator is "not valid" at the end *and* on an error. [`Scan`] is the only code that advances one, and it checks
//! the status each time, so a damaged block is an error and never an early end.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::id::FamilyId;
use ebla_model::locality::BloomFilter;
use ebla_runtime::Failpoint;
use rocksdb::{DBRawIteratorWithThreadMode, ReadOptions, SnapshotWithThreadMode};

use super::cell_family::CellFamily;
use super::cursor::{Cursor, counted};
use super::error::StoreError;
use super::layout::MetaKey;
use super::merge::Merge;
use super::placement::Placements;
use super::{Database, GroupStore};

/// The length of a family's id in a key.
const FAMILY_BYTES: usize = 4;

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Where a read may look for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTier {
    /// Memtables, block cache and disk.
    All,
    /// Memtables and block cache only; an uncached block is the error [`StoreError::NotCached`].
    BlockCache,
}

/// Bounds and options of a [`Scan`].
#[derive(Clone, Copy, Debug)]
pub struct ScanPlan<'k> {
    lower: &'k [u8],
    upper: Option<&'k [u8]>,
    direction: Direction,
    read_tier: ReadTier,
    skips_max: Option<u64>,
    fill_cache: FillCache,
    families: Option<&'k BTreeSet<FamilyId>>,
}

/// Whether a scan adds the blocks that it reads from disk to the block cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillCache {
    Yes,
    No,
}

impl<'k> ScanPlan<'k> {
    /// The keys with `lower <= key < upper` (none: to the end), ascending, from all tiers.
    #[must_use]
    pub fn new(lower: &'k [u8], upper: Option<&'k [u8]>) -> Self {
        Self {
            lower,
            upper,
            direction: Direction::Forward,
            read_tier: ReadTier::All,
            skips_max: None,
            fill_cache: FillCache::Yes,
            families: None,
        }
    }

    /// Sets the direction.
    #[must_use]
    pub fn in_direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    /// Sets the read tier.
    #[must_use]
    pub fn with_read_tier(self, read_tier: ReadTier) -> Self {
        Self { read_tier, ..self }
    }

    /// Makes the scan return [`StoreError::TooManySkipped`] when one step skips more deleted keys than this.
    #[must_use]
    pub fn skipping_at_most(self, keys: u64) -> Self {
        Self { skips_max: Some(keys), ..self }
    }

    /// Does not add blocks to the block cache: for data that is not read again soon.
    #[must_use]
    pub fn without_filling_cache(self) -> Self {
        Self { fill_cache: FillCache::No, ..self }
    }

    /// Opens only the column families that cells of these families are in. Cells of other families may still be returned.
    #[must_use]
    pub fn of_families(self, families: &'k BTreeSet<FamilyId>) -> Self {
        Self { families: Some(families), ..self }
    }

    /// Whether all keys belong to one row, so that the bloom filter of rows can be used.
    ///
    /// Never for descending scans: they start at the upper bound, which belongs to the next row.
    fn is_one_row(&self) -> bool {
        let Some((upper, row)) = self.upper.zip(row_prefix_of(self.lower)) else { return false };
        self.direction == Direction::Forward && !is_after(row, upper)
    }

    /// Whether all keys belong to one column of one row, so that the bloom filter of columns can be used.
    fn is_one_column(&self) -> bool {
        let Some((upper, column)) = self.upper.zip(column_prefix_of(self.lower)) else { return false };
        self.direction == Direction::Forward && !is_after(column, upper)
    }

    /// The options of an iterator over a column family of cells.
    fn options(&self, bloom: BloomFilter) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(self.lower);
        if let Some(upper) = self.upper {
            options.set_iterate_upper_bound(upper);
        }
        // With a prefix extractor RocksDB's default has undefined results past the first prefix: choose one of the two modes
        // explicitly.
        let is_one_prefix = match bloom {
            BloomFilter::None | BloomFilter::Rows => self.is_one_row(),
            BloomFilter::Columns => self.is_one_column(),
        };
        if is_one_prefix {
            options.set_prefix_same_as_start(true);
        } else {
            options.set_total_order_seek(true);
        }
        if self.read_tier == ReadTier::BlockCache {
            options.set_read_tier(rocksdb::ReadTier::BlockCache);
        }
        if self.fill_cache == FillCache::No {
            options.fill_cache(false);
        }
        if let Some(skips) = self.skips_max {
            options.set_max_skippable_internal_keys(skips);
        }
        options
    }
}

/// A consistent view (snapshot) of a store. Many can exist at once, concurrently with writes.
///
/// Take it, create the iterators, read, and drop it: a view retains the space of deleted data.
pub struct View<'s> {
    store: &'s GroupStore,
    snapshot: SnapshotWithThreadMode<'s, Database>,
    placements: Arc<Placements>,
    epoch: u64,
}

impl<'s> View<'s> {
    pub(super) fn new(store: &'s GroupStore) -> Self {
        // The epoch first: rules that change in between make the view expire without need, never the reverse.
        let epoch = store.rules().epoch();
        loop {
            let placements = store.placements();
            let snapshot = store.database().snapshot();
            // The placements that belong to the snapshot: later ones may name column families that it has no cells in, earlier ones
            // lack those that cells were written to.
            if Arc::ptr_eq(&placements, &store.placements()) {
                return Self { store, snapshot, placements, epoch };
            }
        }
    }

    /// The store.
    pub(super) const fn store(&self) -> &'s GroupStore {
        self.store
    }

    /// The value of a meta key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn get_meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        let value = self.snapshot.get_cf(&self.store.meta_family()?, key.encode());
        Ok(value.map_err(StoreError::engine("read meta key"))?.map(Bytes::from))
    }

    /// All meta keys with this prefix, ascending, with their values.
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
        let meta = self.store.meta_family()?;
        Scan::start(Cursor::new(None, || self.snapshot.raw_iterator_cf_opt(&meta, options)), Direction::Forward)?
            .collect()
    }

    /// The cells with `lower <= key < upper` in this direction. Empty when the bounds cross.
    ///
    /// # Errors
    /// [`StoreError::Expired`]: take a new view. Else when the store cannot be read.
    pub fn cells(&self, lower: &[u8], upper: Option<&[u8]>, direction: Direction) -> Result<Scan<'_>, StoreError> {
        self.scan(&ScanPlan::new(lower, upper).in_direction(direction))
    }

    /// The cells of this plan.
    ///
    /// # Errors
    /// As [`Self::cells`], and the errors that the plan's options cause.
    pub fn scan(&self, plan: &ScanPlan<'_>) -> Result<Scan<'_>, StoreError> {
        if plan.upper.is_some_and(|upper| upper <= plan.lower) {
            return Ok(Scan::empty(plan.direction));
        }
        if self.placements.is_trivial() {
            let cursor = self.cursor(CellFamily::lg0(), plan)?;
            self.check_epoch()?;
            return Scan::start(cursor, plan.direction);
        }
        let mut sources = Vec::new();
        for family in self.placements.of_range((plan.lower, plan.upper), plan.families) {
            sources.push((family, self.cursor(family, plan)?));
        }
        self.check_epoch()?;
        match sources.len() {
            0 => Ok(Scan::empty(plan.direction)),
            1 => sources.pop().map_or_else(
                || Ok(Scan::empty(plan.direction)),
                |(_family, cursor)| Scan::start(cursor, plan.direction),
            ),
            _ => {
                let merge = Merge::start(sources, Arc::clone(&self.placements), plan.direction)?;
                Ok(Scan { entries: Entries::Merged(merge), direction: plan.direction, failed: None })
            }
        }
    }

    /// An iterator over a column family, before its first entry.
    fn cursor(&self, family: CellFamily, plan: &ScanPlan<'_>) -> Result<Cursor<'_>, StoreError> {
        let (handle, options) = (self.store.cell_family(family)?, plan.options(family.options.bloom));
        let create = || self.snapshot.raw_iterator_cf_opt(&handle, options);
        Ok(Cursor::new(self.store.memory().disk_reads(family), create))
    }

    /// The stored value at an encoded cell key.
    ///
    /// # Errors
    /// As [`Self::cells`].
    pub fn get_cell(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let placement = self.placements.of_key(key);
        for family in [Some(placement.current), placement.previous].into_iter().flatten() {
            let handle = self.store.cell_family(family)?;
            let value = counted(self.store.memory().disk_reads(family), || self.snapshot.get_cf(&handle, key));
            self.check_epoch()?;
            if let Some(value) = value.map_err(StoreError::engine("read cell"))? {
                return Ok(Some(Bytes::from(value)));
            }
        }
        Ok(None)
    }

    /// The iterator (or value) was pinned before this check, so later rules cannot affect it.
    fn check_epoch(&self) -> Result<(), StoreError> {
        if self.store.rules().epoch() == self.epoch { Ok(()) } else { Err(StoreError::Expired) }
    }
}

/// An iterator over cells that distinguishes an error from the end.
///
/// As a cursor: [`Self::entry`] borrows the current entry, [`Self::step`] advances. As an [`Iterator`] it copies.
pub struct Scan<'v> {
    entries: Entries<'v>,
    direction: Direction,
    failed: Option<StoreError>,
}

/// Where the entries of a scan come from.
enum Entries<'v> {
    None,
    /// One column family.
    Of(Cursor<'v>),
    /// Several ones.
    Merged(Merge<'v>),
}

impl<'v> Scan<'v> {
    fn start(mut cursor: Cursor<'v>, direction: Direction) -> Result<Self, StoreError> {
        cursor.seek_to_start(direction);
        cursor.check()?;
        Ok(Self { entries: Entries::Of(cursor), direction, failed: None })
    }

    fn empty(direction: Direction) -> Self {
        Self { entries: Entries::None, direction, failed: None }
    }

    /// Key and value of the current entry; `None` at the end.
    #[must_use]
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        match &self.entries {
            Entries::None => None,
            Entries::Of(cursor) => cursor.item(),
            Entries::Merged(merge) => merge.entry(),
        }
    }

    /// Advances to the next entry in its direction.
    ///
    /// # Errors
    /// When it cannot be read. [`Self::entry`] is then `None`, which is *not* the end.
    pub fn step(&mut self) -> Result<(), StoreError> {
        match &mut self.entries {
            Entries::None => Ok(()),
            Entries::Of(cursor) => {
                cursor.step(self.direction);
                cursor.check()
            }
            Entries::Merged(merge) => merge.step(),
        }
    }

    /// Seeks to the first entry at or beyond `key` in its direction, within its bounds.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        match &mut self.entries {
            Entries::None => Ok(()),
            Entries::Of(cursor) => {
                cursor.seek(key, self.direction);
                cursor.check()
            }
            Entries::Merged(merge) => merge.seek(key),
        }
    }

    /// Ends the scan.
    pub fn end(&mut self) {
        self.entries = Entries::None;
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            // Nothing follows an error: a caller that continues must not treat the rest as complete.
            self.end();
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

/// Returns the error of an iterator that is not valid, unless it is at the end.
pub(super) fn check(raw: &DBRawIteratorWithThreadMode<'_, Database>) -> Result<(), StoreError> {
    if raw.valid() || Failpoint::IteratorStatusIgnored.is_enabled() {
        return Ok(());
    }
    raw.status().map_err(|error| match error.kind() {
        // RocksDB has one code for both; only the message says which limit was reached.
        rocksdb::ErrorKind::Incomplete if error.as_ref().contains("skipped") => StoreError::TooManySkipped,
        rocksdb::ErrorKind::Incomplete => StoreError::NotCached,
        _ => StoreError::engine("scan cells")(error),
    })
}

/// The common prefix of all keys of this key's row, with its terminator; `None` when the key has no row.
///
/// Escaped text contains 00 01 only as its terminator, because FF always follows a zero byte in it.
pub(super) fn row_prefix_of(key: &[u8]) -> Option<&[u8]> {
    let end = key.windows(2).position(|pair| pair == [0x00, 0x01])?;
    key.get(..end + 2)
}

/// The common prefix of all keys of this key's column in its row; `None` when the key has no column.
pub(super) fn column_prefix_of(key: &[u8]) -> Option<&[u8]> {
    let start = row_prefix_of(key)?.len() + FAMILY_BYTES;
    let qualifier = row_prefix_of(key.get(start..)?)?;
    key.get(..start + qualifier.len())
}

/// A key after every cell's: rows have at most 4 KiB, METADATA's begin with a table id.
pub(super) fn end_of_keys() -> Vec<u8> {
    vec![0xff; 4096 + 1]
}

/// Whether `bound` includes keys after those with this prefix, which ends with an escaped string. The first such key is that of the same string
/// with 00 appended.
pub(super) fn is_after(prefix: &[u8], bound: &[u8]) -> bool {
    let Some((_, stem)) = prefix.split_last() else { return true };
    match bound.strip_prefix(stem) {
        Some(rest) => rest.cmp(&[0xff, 0x00, 0x01]) == Ordering::Greater,
        None => bound > prefix,
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
    fn a_plan_for_one_row_is_recognised() {
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
        assert!(!ScanPlan::new(&prefix, upper.as_deref()).in_direction(Direction::Reverse).is_one_row());
    }

    #[test]
    fn the_column_of_a_key_ends_with_the_terminator_of_its_qualifier() {
        let row = RowKey::new(&b"a\0b"[..]);
        for qualifier in [&b""[..], b"q", b"q\0", b"\0\x01"] {
            let prefix = codec::column_prefix(&row, FamilyId::new(1), qualifier);
            let cell = codec::encode_parts(row.as_bytes(), FamilyId::new(1), qualifier, ebla_model::time::Micros::ZERO);
            assert_eq!(column_prefix_of(&cell), Some(&prefix[..]), "{qualifier:?}");
            assert_eq!(column_prefix_of(&prefix), Some(&prefix[..]), "{qualifier:?}");
        }
        assert_eq!(column_prefix_of(&codec::row_prefix(&row)), None);
        assert_eq!(column_prefix_of(b"a\0\x01\0\0\0\x01q"), None, "a qualifier without an end");
    }

    #[test]
    fn a_plan_for_one_column_is_recognised() {
        let (row, family) = (RowKey::new("ab"), FamilyId::new(1));
        let is_one = |lower: &[u8], upper: Option<&[u8]>| ScanPlan::new(lower, upper).is_one_column();
        let column = codec::column_prefix(&row, family, b"q");
        assert!(is_one(&column, codec::prefix_end(&column).as_deref()));
        let next = codec::column_prefix(&row, family, b"q\0");
        assert!(is_one(&column, Some(&next)), "the least column after it is no part of it");
        assert!(!is_one(&column, codec::prefix_end(&next).as_deref()));
        assert!(!is_one(&column, Some(&codec::column_prefix(&row, family, b"r"))));
        let (lower, upper) = codec::range_bounds(&KeyRange::single(row));
        assert!(!is_one(&lower, upper.as_deref()), "a whole row");
        assert!(!is_one(&column, None));
        let reverse = ScanPlan::new(&column, Some(&next)).in_direction(Direction::Reverse);
        assert!(!reverse.is_one_column());
    }

    #[test]
    fn the_end_of_keys_is_after_the_greatest_row() {
        let greatest = codec::encode_parts(&[0xff; 4096], FamilyId::new(u32::MAX), b"", ebla_model::time::Micros::ZERO);
        assert!(end_of_keys() > greatest);
    }
}
