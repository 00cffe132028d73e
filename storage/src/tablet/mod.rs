//! The tablet store: one RocksDB directory for each tablet replica.
//!
//! ```text
//!   Shared ----- cache, memtable account, threads, limits: one for the server
//!     TabletStore ----- one folder: create, open, destroy (open.rs)
//!       Batch ---- written in one step, cells and applied index together (batch.rs)
//!       View  ---- one snapshot; Scan goes through its cells (scan.rs), rows and columns above it (cells.rs)
//!       flush, checkpoint (checkpoint.rs), sizes (sizes.rs), collection rules (compaction.rs)
//! ```
//!
//! The server's commit log is the log, so the engine's own is off: what is not flushed is lost in a crash and applied
//! again from the commit log. That is right only because two things hold. The applied index is written in the same batch
//! as the data it covers, and families are only ever flushed together (`atomic_flush`, [`TabletStore::flush`]), so what
//! a crash leaves is a state that existed, with its own index.
//!
//! What is absent: ranges, schemas and garbage rules as meaning. This layer keeps bytes; who may read them is decided above.

pub mod batch;
pub mod cells;
mod checkpoint;
pub mod compaction;
pub mod error;
pub mod layout;
mod open;
pub mod options;
pub mod scan;
mod sizes;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rocksdb::{
    ColumnFamily, DB, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, ReadOptions, ReadTier, WriteBatch, WriteOptions,
    properties,
};

pub use self::batch::Batch;
pub use self::compaction::GcRules;
pub use self::error::StoreError;
pub use self::layout::MetaKey;
pub use self::options::{BlockCache, Shared, SharedUsage, StoreOptions};
pub use self::scan::{Direction, Reach, Scan, ScanPlan, View};

use self::batch::Change;
use self::compaction::SharedRules;

/// The family that holds the cells of locality group 0, which is the only one so far.
const CELLS: &str = "lg0";

/// How often [`TabletStore::with_view`] takes a new view when the collection rules keep changing.
const VIEWS_MAX: usize = 8;

/// The data of one tablet replica. All calls block; share it in an `Arc`.
///
/// Dropping it flushes and closes. After an error of a write or flush the replica must stop: the engine refuses further
/// writes, and what it holds in memory is behind the commit log.
pub struct TabletStore {
    dir: PathBuf,
    // Before `shared`: fields drop in this order, and the database uses what is shared.
    database: DB,
    rules: Arc<SharedRules>,
    unflushed: Unflushed,
    brake: Brake,
    /// Held over a flush: two at once would take the same bytes off the count.
    flushing: Mutex<()>,
    _shared: Arc<Shared>,
}

/// What was written since the last flush that we asked for.
#[derive(Default)]
struct Unflushed {
    payload_bytes: AtomicU64,
    range_tombstones: AtomicU64,
}

/// Whether the engine held up writers when it was asked last.
#[derive(Default)]
struct Brake {
    is_on: AtomicBool,
    calls: AtomicU32,
}

/// While the engine holds nobody up it is asked at each of so many calls only: asking costs as much as a small write, and a
/// write that has to wait after all waits for milliseconds.
const BRAKE_CALLS: u32 = 32;

impl TabletStore {
    fn assemble(dir: PathBuf, database: DB, rules: Arc<SharedRules>, shared: Arc<Shared>) -> Self {
        Self {
            dir,
            database,
            rules,
            unflushed: Unflushed::default(),
            brake: Brake::default(),
            flushing: Mutex::new(()),
            _shared: shared,
        }
    }

    /// The folder it lives in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The store as it is now. See [`View`] for what may be done with it, and when.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(self)
    }

    /// Reads through a view, and again through a new one while the collection rules change under it.
    ///
    /// # Errors
    /// What `read` returns; [`StoreError::Expired`] only when the rules changed many times in a row.
    pub fn with_view<T>(&self, mut read: impl FnMut(&View<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        for _ in 1..VIEWS_MAX {
            match read(&self.view()) {
                Err(StoreError::Expired) => {}
                done => return done,
            }
        }
        read(&self.view())
    }

    /// Makes all changes of `batch` take effect together; not durable until flushed (the commit log has them).
    ///
    /// # Errors
    /// When the engine refuses. The replica must then stop: nothing is retried.
    pub fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let changes = self.engine_batch(batch)?;
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.database.write_opt(changes, &options).map_err(StoreError::engine("write batch"))?;
        self.unflushed.payload_bytes.fetch_add(batch.payload_bytes(), Ordering::Relaxed);
        self.unflushed.range_tombstones.fetch_add(batch.range_tombstones(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether the engine makes writers wait, until flushes or compactions have caught up; may be some calls old.
    #[must_use]
    pub fn holds_up_writers(&self) -> bool {
        let call = self.brake.calls.fetch_add(1, Ordering::Relaxed);
        if !self.brake.is_on.load(Ordering::Relaxed) && !call.is_multiple_of(BRAKE_CALLS) {
            return false;
        }
        let is_on = self.engine_holds_up_writers();
        self.brake.is_on.store(is_on, Ordering::Relaxed);
        is_on
    }

    fn engine_holds_up_writers(&self) -> bool {
        let says = |property| self.database.property_int_value(property).ok().flatten().is_none_or(|value| value > 0);
        says(properties::IS_WRITE_STOPPED) || says(properties::ACTUAL_DELAYED_WRITE_RATE)
    }

    /// The value of a meta key now.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        self.meta_at(key, ReadTier::All)
    }

    /// The value of a meta key as a crash at this moment would leave it: memtables are not looked at.
    ///
    /// The commit log may be purged by this and by nothing weaker ("a flush was asked for" proves nothing).
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn persisted_meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        self.meta_at(key, ReadTier::Persisted)
    }

    /// All meta keys that begin with `prefix`, rising, with their values.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn meta_scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.view().metas(prefix)
    }

    /// Makes all that was written so far durable: all families together, one after the other never.
    ///
    /// # Errors
    /// When the engine fails to. The replica must then stop.
    pub fn flush(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let payload_bytes = self.unflushed.payload_bytes.load(Ordering::Relaxed);
        let range_tombstones = self.unflushed.range_tombstones.load(Ordering::Relaxed);
        let families = [self.meta_family()?, self.cell_family()?];
        let [meta, cells] = &families;
        self.database.flush_cfs_opt(&[meta, cells], &FlushOptions::default()).map_err(StoreError::engine("flush"))?;
        // What was written during the flush stays counted.
        self.unflushed.payload_bytes.fetch_sub(payload_bytes, Ordering::Relaxed);
        self.unflushed.range_tombstones.fetch_sub(range_tombstones, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of keys and values that a crash would lose now (and the commit log would bring back). An estimate from above.
    ///
    /// The engine uses about twice as much memory for them.
    ///
    /// # Errors
    /// When the engine does not tell.
    pub fn unflushed_bytes(&self) -> Result<u64, StoreError> {
        // The engine also flushes by itself, when a memtable is full; its memory then falls below our count.
        let counted = self.unflushed.payload_bytes.load(Ordering::Relaxed);
        Ok(counted.min(self.memtable_bytes()?))
    }

    /// Range deletes since the last flush. Each one makes the next read rebuild a list: above 1000, flush.
    #[must_use]
    pub fn unflushed_range_tombstones(&self) -> u64 {
        self.unflushed.range_tombstones.load(Ordering::Relaxed)
    }

    /// Sets what compactions may drop, from now on. Until the first call they drop nothing.
    ///
    /// Call it after the batch that made it true was written, and before any write that relies on it (a new family).
    pub fn set_gc_rules(&self, rules: GcRules) {
        self.rules.set(rules);
    }

    /// Compacts everything now; blocks as long as that takes.
    ///
    /// # Errors
    /// When the store lacks a family.
    pub fn compact(&self) -> Result<(), StoreError> {
        let cells = self.cell_family()?;
        self.database.compact_range_cf(cells, None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn meta_at(&self, key: MetaKey, tier: ReadTier) -> Result<Option<Bytes>, StoreError> {
        let mut options = ReadOptions::default();
        options.set_read_tier(tier);
        let value = self.database.get_cf_opt(self.meta_family()?, key.encode(), &options);
        Ok(value.map_err(StoreError::engine("read meta key"))?.map(Bytes::from))
    }

    fn engine_batch(&self, batch: &Batch) -> Result<WriteBatch, StoreError> {
        let (meta, cells) = (self.meta_family()?, self.cell_family()?);
        // Each record costs about eight bytes besides key and value.
        let bytes = usize::try_from(batch.payload_bytes()).unwrap_or(0).saturating_add(8 * batch.len());
        let mut engine = WriteBatch::with_capacity_bytes(bytes);
        for change in batch.changes() {
            match change {
                Change::Put { key, value } => engine.put_cf(cells, key, value),
                Change::Delete { key } => engine.delete_cf(cells, key),
                Change::DeleteRange { from, to } => engine.delete_range_cf(cells, from, to),
                Change::PutMeta { key, value } => engine.put_cf(meta, key, value),
                Change::DeleteMeta { key } => engine.delete_cf(meta, key),
            }
        }
        Ok(engine)
    }

    fn memtable_bytes(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for family in [self.meta_family()?, self.cell_family()?] {
            let used = self.database.property_int_value_cf(family, properties::CUR_SIZE_ALL_MEM_TABLES);
            bytes += used.map_err(StoreError::engine("ask for memtable size"))?.unwrap_or(u64::MAX / 2);
        }
        Ok(bytes)
    }

    fn database(&self) -> &DB {
        &self.database
    }

    fn rules(&self) -> &SharedRules {
        &self.rules
    }

    fn meta_family(&self) -> Result<&ColumnFamily, StoreError> {
        self.family(DEFAULT_COLUMN_FAMILY_NAME)
    }

    fn cell_family(&self) -> Result<&ColumnFamily, StoreError> {
        self.family(CELLS)
    }

    fn family(&self, name: &str) -> Result<&ColumnFamily, StoreError> {
        self.database
            .cf_handle(name)
            .ok_or_else(|| StoreError::damaged("open column family", format!("there is no {name}")))
    }
}
