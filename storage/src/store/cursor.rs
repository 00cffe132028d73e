//! A RocksDB iterator over the cells of one column family. It counts the blocks that it reads from files if the family is in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::{DBRawIteratorWithThreadMode, PerfContext, PerfMetric};

use super::Database;
use super::error::StoreError;
use super::scan::Direction;

/// Counts blocks that reads of groups in memory had to read from files; `None`: not counted.
pub(super) type DiskReads<'v> = Option<&'v AtomicU64>;

/// An iterator. All its steps go through this type, so that none is missed by the counter.
pub(super) struct Cursor<'v> {
    raw: DBRawIteratorWithThreadMode<'v, Database>,
    disk_reads: DiskReads<'v>,
}

impl<'v> Cursor<'v> {
    /// The iterator that `create` returns.
    pub(super) fn new(
        disk_reads: DiskReads<'v>,
        create: impl FnOnce() -> DBRawIteratorWithThreadMode<'v, Database>,
    ) -> Self {
        Self { raw: counted(disk_reads, create), disk_reads }
    }

    /// Seeks to the first entry in this direction.
    pub(super) fn seek_to_start(&mut self, direction: Direction) {
        self.counted(|raw| match direction {
            Direction::Forward => raw.seek_to_first(),
            Direction::Reverse => raw.seek_to_last(),
        });
    }

    /// Seeks to the first entry at or beyond `key` in this direction.
    pub(super) fn seek(&mut self, key: &[u8], direction: Direction) {
        self.counted(|raw| match direction {
            Direction::Forward => raw.seek(key),
            Direction::Reverse => raw.seek_for_prev(key),
        });
    }

    /// Steps to the next entry in this direction. Only at an entry.
    pub(super) fn step(&mut self, direction: Direction) {
        self.counted(|raw| match direction {
            Direction::Forward => raw.next(),
            Direction::Reverse => raw.prev(),
        });
    }

    pub(super) fn item(&self) -> Option<(&[u8], &[u8])> {
        self.raw.item()
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        self.raw.key()
    }

    /// Returns the error of an iterator that is not at an entry, unless it is at the end.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        super::scan::check(&self.raw)
    }

    fn counted(&mut self, act: impl FnOnce(&mut DBRawIteratorWithThreadMode<'v, Database>)) {
        counted(self.disk_reads, || act(&mut self.raw));
    }
}

/// Runs `read`, and counts the blocks that it reads from files.
pub(super) fn counted<T>(disk_reads: DiskReads<'_>, read: impl FnOnce() -> T) -> T {
    let Some(counter) = disk_reads else { return read() };
    let before = blocks_read();
    let result = read();
    let blocks = blocks_read().saturating_sub(before);
    if blocks > 0 {
        counter.fetch_add(blocks, Ordering::Relaxed);
    }
    result
}

thread_local! {
    /// RocksDB counts per thread, without being asked to.
    static COUNTERS: PerfContext = PerfContext::default();
}

/// The blocks that this thread has read from files.
pub(super) fn blocks_read() -> u64 {
    COUNTERS.with(|counters| counters.metric(PerfMetric::BlockReadCount))
}
