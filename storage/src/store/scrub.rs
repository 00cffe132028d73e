//! Reading a copy of a store as a whole, to find damaged blocks before a read meets them.
//!
//! A copy is a checkpoint: hard links to the same files, which stay there while compactions replace them. It is opened for reading
//! without the block cache, so that every block comes from its file and its checksum is compared. The operating system may
//! still answer from its own cache.

use std::path::Path;

use rocksdb::{BlockBasedOptions, ColumnFamilyDescriptor, DB, DEFAULT_COLUMN_FAMILY_NAME, Options, ReadOptions};

use super::error::StoreError;
use super::open::cell_families;

/// The files that a scrub keeps open.
const OPEN_FILES_MAX: i32 = 64;

/// Whether a scrub has read everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubProgress {
    /// There is more to read.
    More,
    /// Everything was read.
    Complete,
}

/// A scrub of one copy. All calls block.
pub struct Scrub {
    database: DB,
    /// The families that are not completely read; the present one is the last.
    left: Vec<String>,
    /// The last key that was read in the present family.
    last: Option<Vec<u8>>,
    bytes: u64,
}

impl std::fmt::Debug for Scrub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrub").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Scrub {
    /// Opens the copy in `dir` for reading.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its manifest, or the index of a file, is damaged; else when it cannot be opened.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let mut options = Options::default();
        options.set_max_open_files(OPEN_FILES_MAX);
        let family = |name: &str| {
            let mut blocks = BlockBasedOptions::default();
            blocks.disable_cache();
            let mut options = Options::default();
            options.set_block_based_table_factory(&blocks);
            ColumnFamilyDescriptor::new(name, options)
        };
        let mut left: Vec<String> = cell_families(dir)?.iter().map(ToString::to_string).collect();
        left.push(DEFAULT_COLUMN_FAMILY_NAME.to_owned());
        let families = left.iter().map(|name| family(name));
        let database = DB::open_cf_descriptors_read_only(&options, dir, families, false)
            .map_err(StoreError::engine("open a copy to read it"))?;
        Ok(Self { database, left, last: None, bytes: 0 })
    }

    /// Reads about `bytes` more.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a block is damaged.
    pub fn step(&mut self, bytes: u64) -> Result<ScrubProgress, StoreError> {
        let until = self.bytes.saturating_add(bytes);
        while let Some(name) = self.left.last() {
            let family = self.database.cf_handle(name);
            let family = family.ok_or_else(|| StoreError::damaged("read a copy", "a column family is missing"))?;
            let mut options = ReadOptions::default();
            options.set_verify_checksums(true);
            options.set_total_order_seek(true);
            let mut entries = self.database.raw_iterator_cf_opt(family, options);
            match &self.last {
                Some(last) => entries.seek(last),
                None => entries.seek_to_first(),
            }
            while let Some((key, value)) = entries.item() {
                self.bytes = self.bytes.saturating_add((key.len() + value.len()) as u64);
                if self.bytes >= until {
                    self.last = Some(key.to_vec());
                    break;
                }
                entries.next();
            }
            entries.status().map_err(StoreError::engine("read a copy"))?;
            if self.bytes >= until && entries.valid() {
                return Ok(ScrubProgress::More);
            }
            drop(entries);
            self.left.pop();
            self.last = None;
        }
        Ok(ScrubProgress::Complete)
    }

    /// The bytes of keys and values that were read.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the copy in `dir` as a whole.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::step`].
    pub fn check(dir: &Path) -> Result<u64, StoreError> {
        let mut scrub = Self::open(dir)?;
        while scrub.step(u64::MAX)? == ScrubProgress::More {}
        Ok(scrub.bytes)
    }
}
