//! The store of a group: one RocksDB directory for each replica of a group.
//!
//! ```text
//!   SharedResources ----- block cache, write buffer manager, threads, limits: one for the server
//!     GroupStore ----- one folder: create, open, destroy (open.rs)
//!       Batch ---- an atomic write, cells and applied index together (batch.rs)
//!       View  ---- one snapshot; Scan iterates over its cells (scan.rs, merge.rs, cursor.rs), rows and columns above it (cells.rs)
//!       Placements -- which column family the cells of a table's family are in (cell_family.rs, placement.rs, relocation.rs)
//!       the scan cache: rows that are read again, above the block cache (scan_cache)
//!       locality groups in memory (memory.rs)
//!       flush, checkpoint (checkpoint.rs), sizes (sizes.rs), costs of families (usage.rs), garbage collection rules (compaction.rs)
//!       reading a copy as a whole, to find damage (scrub.rs)
//!       failures injected by tests (faults.rs)
//! ```
//!
//! The server's commit log replaces RocksDB's WAL, which is off: a crash loses unflushed data, and the replica applies it
//! again from the commit log. This is correct for two reasons. The applied index is written in the same batch as the data
//! it covers, and column families are only flushed together (`atomic_flush`, [`GroupStore::flush`]), so a crash leaves a
//! state that existed, with its own index.
//!
//! This layer stores bytes. The layers above interpret ranges, schemas and garbage collection rules.

mod activity;
pub mod batch;
mod cell_family;
pub mod cells;
mod checkpoint;
pub mod compaction;
mod cursor;
pub mod error;
mod faults;
mod gaps;
pub mod layout;
mod memory;
mod merge;
mod open;
pub mod options;
mod placement;
mod relocation;
pub mod scan;
mod scan_cache;
mod scrub;
mod sizes;
#[cfg(test)]
mod tests;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use ebla_runtime::Clock;
use parking_lot::{Mutex, RwLock};
use rocksdb::{
    BoundColumnFamily, DBWithThreadMode, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, MultiThreaded, ReadOptions,
    WriteBatch, WriteOptions, properties,
};

pub use self::activity::StoreActivity;
pub use self::batch::Batch;
pub use self::cell_family::CellFamily;
pub use self::compaction::GcRules;
pub use self::error::StoreError;
pub use self::faults::{StoreFault, StoreOperation};
pub use self::layout::MetaKey;
pub use self::options::{BlockCache, MemoryUsage, SharedResources, StoreOptions};
pub use self::placement::{FamilyPlacement, Placements, TablePlacement, WantedFamilies};
pub use self::relocation::Relocation;
pub use self::scan::{Direction, ReadTier, Scan, ScanPlan, View};
pub use self::scan_cache::{CachedRow, Cells, RowLookup};
pub use self::scrub::{Scrub, ScrubProgress};

use self::batch::Change;
use self::compaction::CurrentGcRules;
use self::memory::MemoryCache;
use self::relocation::Relocations;
use self::scan_cache::{CachedStore, ScanCache};

/// Column families are created while others are read, so their handles are counted references.
type Database = DBWithThreadMode<MultiThreaded>;
/// The name of [`CellFamily::lg0`], which every store has.
const LG0: &str = "lg0";
/// The handle of a column family.
type Handle<'s> = Arc<BoundColumnFamily<'s>>;

/// How often [`GroupStore::with_view`] takes a new view when the collection rules keep changing.
const VIEWS_MAX: usize = 8;

/// The data of one tablet replica. All calls block; share it in an `Arc`.
///
/// Dropping it closes it as a crash would: writes since the last flush are gone from it. After a failed write or flush the replica must stop: RocksDB rejects further writes, and
/// its memory is behind the commit log.
pub struct GroupStore {
    dir: PathBuf,
    // Before `shared`: fields drop in this order, and the database uses the shared resources.
    database: Database,
    rules: Arc<CurrentGcRules>,
    /// The blocks of its locality groups in memory.
    memory: MemoryCache,
    /// The column families of cells that exist. Locked to copy or extend the list.
    cell_families: RwLock<Vec<CellFamily>>,
    /// Where cells are. Locked to copy or replace the pointer.
    placements: RwLock<Arc<Placements>>,
    /// Locked while placements change.
    relocations: Mutex<Relocations>,
    unflushed: Unflushed,
    stall_check: WriteStallCheck,
    /// Held during a flush: two at once would subtract the same bytes twice.
    flushing: Mutex<()>,
    /// See [`GroupStore::tolerate_damage`].
    tolerates_damage: AtomicBool,
    /// Its part in the scan cache.
    cached: CachedStore,
    shared: Arc<SharedResources>,
}

/// Writes since the last requested flush.
#[derive(Default)]
struct Unflushed {
    payload_bytes: AtomicU64,
    range_tombstones: AtomicU64,
}

/// Cached result of the last write stall query.
#[derive(Default)]
struct WriteStallCheck {
    is_on: AtomicBool,
    calls: AtomicU32,
}

/// Without a write stall RocksDB is queried only once per this number of calls: a query costs as much as a small write, and
/// an undetected stall delays a write by milliseconds only.
const STALL_CHECK_INTERVAL: u32 = 32;

impl GroupStore {
    fn assemble(
        dir: PathBuf,
        (database, cell_families): (Database, Vec<CellFamily>),
        (rules, memory): (Arc<CurrentGcRules>, MemoryCache),
        shared: Arc<SharedResources>,
    ) -> Self {
        let cached = shared.scan_cache().map_or_else(CachedStore::without_cache, ScanCache::new_store);
        Self {
            dir,
            database,
            rules,
            memory,
            cell_families: RwLock::new(cell_families),
            placements: RwLock::default(),
            relocations: Mutex::default(),
            unflushed: Unflushed::default(),
            stall_check: WriteStallCheck::default(),
            flushing: Mutex::new(()),
            tolerates_damage: AtomicBool::new(false),
            cached,
            shared,
        }
    }

    /// The folder it lives in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops all compactions, from now on and until the store is opened again. For a store that is damaged and that nothing can
    /// replace: a compaction would meet the damaged block, and after that RocksDB refuses all writes.
    ///
    /// Flushes go on, so the number of files grows, and cells that are garbage stay on disk.
    ///
    /// # Errors
    /// When RocksDB refuses the change of its options.
    pub fn tolerate_damage(&self) -> Result<(), StoreError> {
        for family in self.families()? {
            let changed = self.database.set_options_cf(&family, &[("disable_auto_compactions", "true")]);
            changed.map_err(StoreError::engine("stop compactions"))?;
        }
        self.tolerates_damage.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the store is used although it is damaged.
    #[must_use]
    pub fn tolerates_damage(&self) -> bool {
        self.tolerates_damage.load(Ordering::Relaxed)
    }

    /// A read view of the current state. See [`View`] for its rules.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(self)
    }

    /// Reads through a view, and repeats the read with a new view if the garbage collection rules change.
    ///
    /// # Errors
    /// Errors of `read`; [`StoreError::Expired`] only when the rules changed many times in a row.
    pub fn with_view<T>(&self, mut read: impl FnMut(&View<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        for _ in 1..VIEWS_MAX {
            match read(&self.view()) {
                Err(StoreError::Expired) => {}
                done => return done,
            }
        }
        read(&self.view())
    }

    /// Applies all changes of `batch` atomically; not durable until flushed (the commit log has them).
    ///
    /// # Errors
    /// When RocksDB fails. The replica must then stop: nothing is retried.
    pub fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.shared.check_injected(StoreOperation::Write, &self.dir)?;
        let changes = self.engine_batch(batch)?;
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let rows = self.shared.scan_cache().map(|cache| cache.begin_write(&self.cached, batch));
        self.database.write_opt(changes, &options).map_err(StoreError::engine("write batch"))?;
        if let Some(rows) = rows {
            rows.written();
        }
        self.count_unflushed(batch.payload_bytes());
        self.shared.count_written(batch.payload_bytes());
        self.unflushed.range_tombstones.fetch_add(batch.range_tombstones(), Ordering::Relaxed);
        Ok(())
    }

    /// Counts rows that were returned to a reader, and the cells that were scanned for them.
    pub fn count_read(&self, rows: usize, cells_scanned: u64) {
        self.shared.count_read(rows, cells_scanned);
    }

    /// Whether RocksDB stalls writes until flushes or compactions have caught up. The result may be some calls old.
    #[must_use]
    pub fn is_write_stalled(&self) -> bool {
        let call = self.stall_check.calls.fetch_add(1, Ordering::Relaxed);
        if !self.stall_check.is_on.load(Ordering::Relaxed) && !call.is_multiple_of(STALL_CHECK_INTERVAL) {
            return false;
        }
        let is_on = self.query_write_stall();
        self.stall_check.is_on.store(is_on, Ordering::Relaxed);
        is_on
    }

    fn query_write_stall(&self) -> bool {
        let says = |property| self.database.property_int_value(property).ok().flatten().is_none_or(|value| value > 0);
        says(properties::IS_WRITE_STOPPED) || says(properties::ACTUAL_DELAYED_WRITE_RATE)
    }

    /// The current value of a meta key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        self.meta_at(key, rocksdb::ReadTier::All)
    }

    /// The persisted value of a meta key: memtables are ignored, as after a crash.
    ///
    /// Log compaction (the purge of the commit log) must use this value and nothing weaker: a requested flush proves nothing.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn persisted_meta(&self, key: MetaKey) -> Result<Option<Bytes>, StoreError> {
        self.meta_at(key, rocksdb::ReadTier::Persisted)
    }

    /// All meta keys with this prefix, ascending, with their values.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn meta_scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.view().metas(prefix)
    }

    /// Makes all writes so far durable: all column families in one atomic flush.
    ///
    /// # Errors
    /// When RocksDB fails. The replica must then stop.
    pub fn flush(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.flushing.lock();
        let payload_bytes = self.unflushed.payload_bytes.load(Ordering::Relaxed);
        let range_tombstones = self.unflushed.range_tombstones.load(Ordering::Relaxed);
        let families = self.families()?;
        let families: Vec<&Handle<'_>> = families.iter().collect();
        let clock = Clock::system();
        let began = clock.monotonic();
        self.database.flush_cfs_opt(&families, &FlushOptions::default()).map_err(StoreError::engine("flush"))?;
        // A flush of nothing is none.
        if payload_bytes > 0 {
            self.shared.record_flush(clock.monotonic().saturating_sub(began));
        }
        // Writes during the flush stay counted.
        self.unflushed.payload_bytes.fetch_sub(payload_bytes, Ordering::Relaxed);
        self.unflushed.range_tombstones.fetch_sub(range_tombstones, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of keys and values that a crash would lose now (the commit log would restore them). An upper bound.
    ///
    /// RocksDB uses about twice as much memory for them.
    ///
    /// # Errors
    /// When RocksDB does not return its memory use.
    pub fn unflushed_bytes(&self) -> Result<u64, StoreError> {
        // RocksDB also flushes by itself, when a memtable is full; its memory then falls below our count.
        let counted = self.unflushed.payload_bytes.load(Ordering::Relaxed);
        Ok(counted.min(self.memtable_bytes()?))
    }

    /// Range deletes since the last flush. Each one makes the next read rebuild a list: flush above 1000.
    #[must_use]
    pub fn unflushed_range_tombstones(&self) -> u64 {
        self.unflushed.range_tombstones.load(Ordering::Relaxed)
    }

    /// Sets the garbage collection rules of compactions. Until the first call they drop nothing.
    ///
    /// Call it after the batch that changed the rules, and before any write that depends on them (a new family).
    pub fn set_gc_rules(&self, rules: GcRules) {
        self.rules.set(rules);
    }

    /// Compacts the whole store; blocks until it is done.
    ///
    /// # Errors
    /// When the store lacks a column family.
    pub fn compact(&self) -> Result<(), StoreError> {
        for cells in self.all_cells()? {
            self.database.compact_range_cf(&cells, None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    fn meta_at(&self, key: MetaKey, tier: rocksdb::ReadTier) -> Result<Option<Bytes>, StoreError> {
        let mut options = ReadOptions::default();
        options.set_read_tier(tier);
        let value = self.database.get_cf_opt(&self.meta_family()?, key.encode(), &options);
        Ok(value.map_err(StoreError::engine("read meta key"))?.map(Bytes::from))
    }

    fn engine_batch(&self, batch: &Batch) -> Result<WriteBatch, StoreError> {
        let (meta, placements) = (self.meta_family()?, self.placements());
        let all = self.cell_handles()?;
        let lg0 = CellFamily::lg0();
        // A few: a search is faster than a name and a lookup for each change.
        let handle = |wanted: CellFamily| {
            let found = all.iter().find(|(family, _handle)| *family == wanted).map(|(_family, handle)| handle);
            found.ok_or_else(|| missing_family(&wanted.to_string()))
        };
        // Each record costs about eight bytes besides key and value.
        let bytes = usize::try_from(batch.payload_bytes()).unwrap_or(0).saturating_add(8 * batch.len());
        let mut engine = WriteBatch::with_capacity_bytes(bytes);
        for change in batch.changes() {
            match change {
                Change::Put { key, value } if placements.is_trivial() => engine.put_cf(handle(lg0)?, key, value),
                Change::Put { key, value } => engine.put_cf(handle(placements.of_key(key).current)?, key, value),
                Change::Delete { key } if placements.is_trivial() => engine.delete_cf(handle(lg0)?, key),
                Change::Delete { key } => {
                    let placement = placements.of_key(key);
                    for family in [Some(placement.current), placement.previous].into_iter().flatten() {
                        engine.delete_cf(handle(family)?, key);
                    }
                }
                // A range may belong to several families, and has few deletions: all column families get it.
                Change::DeleteRange { from, to } => {
                    all.iter().for_each(|(_family, cells)| engine.delete_range_cf(cells, from, to));
                }
                Change::PutMeta { key, value } => engine.put_cf(&meta, key, value),
                Change::DeleteMeta { key } => engine.delete_cf(&meta, key),
            }
        }
        Ok(engine)
    }

    fn memtable_bytes(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for family in self.families()? {
            let used = self.database.property_int_value_cf(&family, properties::CUR_SIZE_ALL_MEM_TABLES);
            bytes += used.map_err(StoreError::engine("read memtable size"))?.unwrap_or(u64::MAX / 2);
        }
        Ok(bytes)
    }

    fn count_unflushed(&self, payload_bytes: u64) {
        self.unflushed.payload_bytes.fetch_add(payload_bytes, Ordering::Relaxed);
    }

    fn database(&self) -> &Database {
        &self.database
    }

    fn rules(&self) -> &CurrentGcRules {
        &self.rules
    }

    fn memory(&self) -> &MemoryCache {
        &self.memory
    }

    fn placements(&self) -> Arc<Placements> {
        Arc::clone(&self.placements.read())
    }

    fn meta_family(&self) -> Result<Handle<'_>, StoreError> {
        self.family(DEFAULT_COLUMN_FAMILY_NAME)
    }

    fn lg0(&self) -> Result<Handle<'_>, StoreError> {
        self.family(LG0)
    }

    fn cell_family(&self, family: CellFamily) -> Result<Handle<'_>, StoreError> {
        if family == CellFamily::lg0() { self.lg0() } else { self.family(&family.to_string()) }
    }

    /// All column families of cells, with their handles.
    fn cell_handles(&self) -> Result<Vec<(CellFamily, Handle<'_>)>, StoreError> {
        let families = self.cell_families.read().clone();
        families.into_iter().map(|family| Ok((family, self.cell_family(family)?))).collect()
    }

    /// The handles of all column families of cells.
    fn all_cells(&self) -> Result<Vec<Handle<'_>>, StoreError> {
        Ok(self.cell_handles()?.into_iter().map(|(_family, handle)| handle).collect())
    }

    /// All column families.
    fn families(&self) -> Result<Vec<Handle<'_>>, StoreError> {
        let mut families = vec![self.meta_family()?];
        families.extend(self.all_cells()?);
        Ok(families)
    }

    fn family(&self, name: &str) -> Result<Handle<'_>, StoreError> {
        self.database.cf_handle(name).ok_or_else(|| missing_family(name))
    }
}

fn missing_family(name: &str) -> StoreError {
    StoreError::damaged("open column family", format!("column family {name} is missing"))
}
