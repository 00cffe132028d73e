//! RocksDB options of tablet stores, and the resources that all stores of a server share.
//!
//! Every RocksDB option that differs from its default is set here with its reason. All tablets of a server share the block
//! cache, the write buffer manager, the background threads and the IO rate limit. So a thousand tablets cost little more
//! than one: about 190 KB and 6 to 8 file descriptors each. Several servers of one process may share a block cache too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::locality::{BloomFilter, Compression, LocalityGroupOptions, Residence};
use ebla_model::memory_groups::MemoryGroups;
use ebla_model::scan_cache::ScanCacheState;
use ebla_runtime::metrics::{Counter, Histogram, HistogramCounts};
use rocksdb::{
    BlockBasedOptions, BlockBasedTablePinningTier, Cache, DBCompressionType, Env, LogLevel, Options, SliceTransform,
    WriteBufferManager,
};

use super::compaction::{CurrentGcRules, GcFilterFactory};
use super::error::StoreError;
use super::faults::{InjectedFaults, StoreFault, StoreOperation};
use super::memory::{MemoryBudget, MemoryCache};
use super::scan::{column_prefix_of, row_prefix_of};
use super::scan_cache::ScanCache;

/// Settings for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Memory for blocks of all tablets, with their indexes and filters.
    pub cache_bytes: usize,
    /// Memory for rows of all tablets that are read again and again (the scan cache); 0: none.
    pub scan_cache_bytes: usize,
    /// Memory for locality groups that are held in memory, all tablets together. What does not fit is served from files.
    pub memory_group_bytes: usize,
    /// Memory for unflushed data of all tablets together; above it the flush scheduler acts.
    pub memtable_bytes: usize,
    /// A tablet whose memtable reaches this size flushes, independently of the flush scheduler.
    pub write_buffer_bytes: usize,
    /// Threads for compactions; flushes have half as many.
    pub background_threads: u8,
    /// Rate limit of flushes and compactions in bytes per second, all tablets together; none: no limit.
    pub write_rate_bytes: Option<u32>,
    /// Maximum number of open files of one tablet. RocksDB raises it to at least 20.
    pub open_files_max: u16,
}

/// RocksDB's default: the window of Zstd follows from the level.
const WINDOW_BITS: i32 = -14;
/// Level of Zstd in two-pass compression.
const TWO_PASS_LEVEL: i32 = 3;
/// Least size of a block in two-pass compression, in KiB.
const TWO_PASS_BLOCK_KIB_MIN: usize = 64;
/// Below this size of a block, in KiB, each file has a dictionary in two-pass compression: larger blocks contain what a dictionary would, and
/// with one they take several times as long to write (docs/reports/2026-11-locality-groups.md).
const DICTIONARY_BELOW_KIB: u16 = 512;
/// Size of a file's dictionary, and of the sample of its blocks that the dictionary is trained on.
const DICTIONARY_BYTES: i32 = 64 << 10;
const DICTIONARY_SAMPLE_BYTES: i32 = 100 * DICTIONARY_BYTES;
/// A new file in which half of the entries are deletions, or half of this many entries in a row, is compacted as soon as no level is too
/// large: nothing else would free the space of what was deleted, if there are few writes afterwards.
const TOMBSTONE_WINDOW: usize = 4096;
const TOMBSTONES_IN_WINDOW: usize = TOMBSTONE_WINDOW / 2;
const TOMBSTONE_RATIO: f64 = 0.5;
/// A memtable's Bloom filter is part of its arena, in idle stores too. 0.5 % of the buffer is 10 bits per row for rows of 250 bytes ...
const MEMTABLE_FILTER_RATIO: f64 = 0.005;
/// ... and at most this many bytes: the filters of some thousands of idle column families would fill a server's budget for memtables.
/// With 100,000 rows in the memtable this is 5 bits per row, and reads of rows that it lacks are as fast as with 10.
const MEMTABLE_FILTER_BYTES_MAX: f64 = 65_536.0;
/// Options of column families in memory that the binding has only as text: blocks of new files are put into the cache, and those of
/// deleted files are removed from it, all of them.
const MEMORY_OPTIONS: &str =
    "block_based_table_factory={prepopulate_block_cache=kFlushAndCompaction;};uncache_aggressiveness=1000000";

/// Options of a database that the binding has only as text. A store is closed without a flush, because the commit log has what
/// was not flushed; and when background errors have stopped flushes, as in a damaged store, the engine would wait for its own
/// flush for ever.
const DATABASE_OPTIONS: &str = "avoid_flush_during_shutdown=true";

impl StoreOptions {
    /// Small settings for a whole cluster in one process, for all its servers together.
    #[must_use]
    pub fn up() -> Self {
        Self {
            cache_bytes: 192 << 20,
            scan_cache_bytes: 32 << 20,
            memory_group_bytes: 96 << 20,
            memtable_bytes: 64 << 20,
            write_buffer_bytes: 8 << 20,
            background_threads: 2,
            write_rate_bytes: None,
            open_files_max: 128,
        }
    }

    /// For a tablet server with its own process: memtables for a thousand tablets.
    #[must_use]
    pub fn server() -> Self {
        Self {
            cache_bytes: 512 << 20,
            scan_cache_bytes: 64 << 20,
            memory_group_bytes: 256 << 20,
            memtable_bytes: 512 << 20,
            write_buffer_bytes: 32 << 20,
            background_threads: 4,
            ..Self::up()
        }
    }

    /// Sets the memory of the scan cache in bytes; `None`: as it is.
    pub fn resize_scan_cache(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.scan_cache_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
    }
}

/// A block cache; clones are the same cache, which several servers of a process may share.
#[derive(Clone)]
pub struct BlockCache(Cache);

impl BlockCache {
    /// An empty cache of at most `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        // CLOCK instead of LRU: a lookup takes no lock and moves nothing, and a point read makes three for each file. With 0
        // RocksDB estimates the size of entries itself.
        Self(Cache::new_hyper_clock_cache(bytes, 0))
    }
}

/// Memory use of all stores of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in the block cache, those of other servers that share it included.
    pub cache_bytes: usize,
    /// Bytes of memtables, including flushed ones that are still read.
    pub memtable_bytes: usize,
}

/// Resources that all tablet stores of a server share. Created once; each store keeps them alive.
pub struct SharedResources {
    options: StoreOptions,
    cache: Cache,
    memory: Arc<MemoryBudget>,
    memtables: WriteBufferManager,
    database: Options,
    meta: Options,
    faults: InjectedFaults,
    scan_cache: Option<ScanCache>,
    /// How long flushes took, and the bytes of keys and values that were written, all stores together.
    flushes: Histogram,
    written_bytes: Counter,
    /// Rows that were returned to readers, and cells that were scanned for them.
    rows_read: Counter,
    cells_scanned: Counter,
}

impl SharedResources {
    /// Creates the resources with their own block cache and starts the background threads.
    ///
    /// # Errors
    /// [`StoreError::Engine`] when the system refuses.
    pub fn new(options: StoreOptions) -> Result<Arc<Self>, StoreError> {
        let cache = BlockCache::new(options.cache_bytes);
        Self::with_cache(options, cache)
    }

    /// As [`SharedResources::new`], with a block cache that others use too; `options.cache_bytes` is then ignored.
    ///
    /// # Errors
    /// [`StoreError::Engine`] when the system refuses.
    pub fn with_cache(options: StoreOptions, BlockCache(cache): BlockCache) -> Result<Arc<Self>, StoreError> {
        // A safety net only, at twice the budget: RocksDB's manager flushes the store that is being written and never the
        // idle ones that hold the memory. Stalling is off for the same reason; the flush scheduler's back-pressure comes
        // first.
        let memtables = WriteBufferManager::new_write_buffer_manager(options.memtable_bytes.saturating_mul(2), false);
        let database = database_options(&options, &memtables)?;
        let meta = meta_options(&options, &cache);
        let (faults, scan_cache) = (InjectedFaults::default(), ScanCache::new(options.scan_cache_bytes));
        let memory = MemoryBudget::new(options.memory_group_bytes);
        let (flushes, written_bytes) = (Histogram::default(), Counter::default());
        Ok(Arc::new(Self {
            options,
            cache,
            memory,
            memtables,
            database,
            meta,
            faults,
            scan_cache,
            flushes,
            written_bytes,
            rows_read: Counter::default(),
            cells_scanned: Counter::default(),
        }))
    }

    /// Makes operations of stores fail, in place of earlier injected failures; for tests.
    pub fn inject_faults(&self, faults: Vec<StoreFault>) {
        self.faults.set(faults);
    }

    pub(super) fn check_injected(&self, operation: StoreOperation, dir: &Path) -> Result<(), StoreError> {
        self.faults.check(operation, dir)
    }

    /// The options that it was created with.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Current memory use, all tablets together.
    #[must_use]
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage { cache_bytes: self.cache.get_usage(), memtable_bytes: self.memtables.get_usage() }
    }

    /// How long flushes took since the start, all stores together.
    #[must_use]
    pub fn flush_latency(&self) -> HistogramCounts {
        self.flushes.counts()
    }

    /// Bytes of keys and values that were written since the start, all stores together.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.get()
    }

    /// Rows that were returned to readers since the start, all stores together.
    #[must_use]
    pub fn rows_read(&self) -> u64 {
        self.rows_read.get()
    }

    /// Cells that were scanned for readers since the start, all stores together.
    #[must_use]
    pub fn cells_scanned(&self) -> u64 {
        self.cells_scanned.get()
    }

    pub(super) fn count_read(&self, rows: usize, cells: u64) {
        self.rows_read.add(u64::try_from(rows).unwrap_or(u64::MAX));
        self.cells_scanned.add(cells);
    }

    pub(super) fn record_flush(&self, duration: Duration) {
        self.flushes.record(duration);
    }

    pub(super) fn count_written(&self, bytes: u64) {
        self.written_bytes.add(bytes);
    }

    /// Use and size of the scan cache; all zero when there is none.
    #[must_use]
    pub fn scan_cache_state(&self) -> ScanCacheState {
        self.scan_cache().map(ScanCache::state).unwrap_or_default()
    }

    pub(super) const fn scan_cache(&self) -> Option<&ScanCache> {
        self.scan_cache.as_ref()
    }

    /// The groups in memory of all stores.
    #[must_use]
    pub fn memory_groups(&self) -> MemoryGroups {
        self.memory.usage()
    }

    /// The cache for the groups in memory of a new store.
    pub(super) fn memory_cache(&self) -> MemoryCache {
        MemoryCache::new(&self.memory)
    }

    pub(super) fn database(&self) -> &Options {
        &self.database
    }

    pub(super) fn meta_family(&self) -> Options {
        self.meta.clone()
    }

    /// The options of a column family of cells; its compactions apply `rules`, and its blocks are in `memory` if its group is.
    pub(super) fn cell_family(
        &self,
        group: LocalityGroupOptions,
        rules: Arc<CurrentGcRules>,
        memory: &MemoryCache,
    ) -> Result<Options, StoreError> {
        let mut options = match group.residence {
            Residence::Files => cell_options(&self.options, group, &self.cache),
            Residence::Memory => {
                let options =
                    cell_options(&self.options, group, memory.cache()).get_options_from_string(MEMORY_OPTIONS);
                options.map_err(StoreError::engine("set the options of a group in memory"))?
            }
        };
        options.set_compaction_filter_factory(GcFilterFactory::new(rules));
        Ok(options)
    }
}

/// Limits of the number of open files of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFilesLimit {
    /// The limit in force; none: unlimited.
    pub soft: Option<u64>,
    /// The maximum without more privileges; none: unlimited.
    pub hard: Option<u64>,
}

/// Recommended limit for a server of 1000 tablets.
pub const OPEN_FILES_WANTED: u64 = 65_536;

/// Raises the limit of open files to [`OPEN_FILES_WANTED`], or as far as allowed, and returns the limit.
///
/// The caller should log a low limit at start: a thousand tablets with 6 to 8 files each exceed 1024.
#[must_use]
pub fn raise_open_files_limit() -> OpenFilesLimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES_WANTED, |hard| hard.min(OPEN_FILES_WANTED));
    if limit.current.is_some_and(|soft| soft < wanted) {
        // A refusal is not an error: the result shows the limit in force.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    let limit = getrlimit(Resource::Nofile);
    OpenFilesLimit { soft: limit.current, hard: limit.maximum }
}

fn database_options(options: &StoreOptions, memtables: &WriteBufferManager) -> Result<Options, StoreError> {
    let threads = i32::from(options.background_threads.max(1));
    let mut env = Env::new().map_err(StoreError::engine("create RocksDB environment"))?;
    env.set_low_priority_background_threads(threads);
    env.set_high_priority_background_threads((threads / 2).max(1));

    let mut database = Options::default();
    database.set_env(&env);
    database.set_write_buffer_manager(memtables);
    // The applied index and the data are in different families; without this a crash could keep one and lose the other.
    database.set_atomic_flush(true);
    database.set_max_background_jobs(threads);
    database.set_max_open_files(i32::from(options.open_files_max));
    // There are a thousand table caches, one per store: few shards, no preallocated manifest, no statistics threads.
    database.set_table_cache_num_shard_bits(1);
    database.set_max_manifest_file_size(1 << 20);
    database.set_manifest_preallocation_size(64 << 10);
    database.set_stats_dump_period_sec(0);
    database.set_stats_persist_period_sec(0);
    database.set_skip_stats_update_on_db_open(true);
    // Background threads delete files that an iterator has released: reads do not wait for it.
    database.set_avoid_unnecessary_blocking_io(true);
    database.set_log_level(LogLevel::Warn);
    database.set_keep_log_file_num(1);
    database.set_max_log_file_size(1 << 20);
    database.set_bytes_per_sync(1 << 20);
    if let Some(rate) = options.write_rate_bytes {
        // 100 ms between refills, fairness 10: RocksDB's defaults.
        database.set_ratelimiter(i64::from(rate), 100_000, 10);
    }
    database.get_options_from_string(DATABASE_OPTIONS).map_err(StoreError::engine("set the options of the database"))
}

fn family_options(options: &StoreOptions) -> Options {
    let mut family = Options::default();
    family.set_write_buffer_size(options.write_buffer_bytes);
    // One active, one being flushed, one waiting: a single slow flush does not stall writes.
    family.set_max_write_buffer_number(3);
    // With the default (1 MB) a thousand idle tablets charge 2.95 GB to the write buffer manager.
    family.set_arena_block_size(32 << 10);
    family.set_level_compaction_dynamic_level_bytes(true);
    // A tablet is split at 128 MiB: files of 16 MiB can be dropped whole when a split leaves them outside.
    family.set_target_file_size_base(16 << 20);
    family
}

fn meta_options(options: &StoreOptions, cache: &Cache) -> Options {
    let mut family = family_options(options);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_cache_index_and_filter_blocks(true);
    family.set_block_based_table_factory(&blocks);
    family.set_compression_type(DBCompressionType::None);
    family
}

fn cell_options(options: &StoreOptions, group: LocalityGroupOptions, cache: &Cache) -> Options {
    let mut family = family_options(options);
    set_compression(&mut family, group);
    family.set_prefix_extractor(match group.bloom {
        BloomFilter::None | BloomFilter::Rows => SliceTransform::create("ebla.row", row_of_key, Some(has_row)),
        BloomFilter::Columns => SliceTransform::create("ebla.column", column_of_key, Some(has_column)),
    });
    if group.bloom != BloomFilter::None {
        let max = MEMTABLE_FILTER_BYTES_MAX / options.write_buffer_bytes.max(1) as f64;
        family.set_memtable_prefix_bloom_ratio(max.min(MEMTABLE_FILTER_RATIO));
    }
    family.set_block_based_table_factory(&cell_blocks(group, cache));
    family.add_compact_on_deletion_collector_factory(TOMBSTONE_WINDOW, TOMBSTONES_IN_WINDOW, TOMBSTONE_RATIO);
    family
}

fn set_compression(family: &mut Options, group: LocalityGroupOptions) {
    match group.compression {
        Compression::None => family.set_compression_type(DBCompressionType::None),
        Compression::Lz4 => family.set_compression_type(DBCompressionType::Lz4),
        Compression::Lz4ThenZstd => {
            family.set_compression_type(DBCompressionType::Lz4);
            family.set_bottommost_compression_type(DBCompressionType::Zstd);
        }
        Compression::Zstd(level) => {
            family.set_compression_type(DBCompressionType::Zstd);
            family.set_compression_options(WINDOW_BITS, i32::from(level), 0, 0);
        }
        Compression::TwoPass => {
            family.set_compression_type(DBCompressionType::Zstd);
            let (dictionary, sample) = match group.block_kib {
                ..DICTIONARY_BELOW_KIB => (DICTIONARY_BYTES, DICTIONARY_SAMPLE_BYTES),
                DICTIONARY_BELOW_KIB.. => (0, 0),
            };
            family.set_compression_options(WINDOW_BITS, TWO_PASS_LEVEL, 0, dictionary);
            family.set_zstd_max_train_bytes(sample);
        }
    }
}

fn cell_blocks(group: LocalityGroupOptions, cache: &Cache) -> BlockBasedOptions {
    let mut blocks = BlockBasedOptions::default();
    let kib = usize::from(group.block_kib);
    blocks.set_block_size(
        1024 * if group.compression == Compression::TwoPass { kib.max(TWO_PASS_BLOCK_KIB_MIN) } else { kib },
    );
    blocks.set_block_cache(cache);
    match group.bloom {
        BloomFilter::None => {}
        BloomFilter::Rows | BloomFilter::Columns => blocks.set_bloom_filter(10.0, false),
    }
    if group.residence == Residence::Memory {
        blocks.set_unpartitioned_pinning_tier(BlockBasedTablePinningTier::All);
    }
    // Reads ask for a row or a column, never for a cell with a known timestamp: one filter entry per row or column is enough.
    blocks.set_whole_key_filtering(false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_optimize_filters_for_memory(true);
    blocks
}

/// Called by RocksDB, so it must not panic: a key without a row is its own prefix.
fn row_of_key(key: &[u8]) -> &[u8] {
    row_prefix_of(key).unwrap_or(key)
}

fn has_row(key: &[u8]) -> bool {
    row_prefix_of(key).is_some()
}

/// As [`row_of_key`].
fn column_of_key(key: &[u8]) -> &[u8] {
    column_prefix_of(key).unwrap_or(key)
}

fn has_column(key: &[u8]) -> bool {
    column_prefix_of(key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_never_falls() {
        let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let after = raise_open_files_limit();
        assert!(after.soft.unwrap_or(u64::MAX) >= before.current.unwrap_or(u64::MAX));
        assert_eq!(after.hard, before.maximum);
    }

    #[test]
    fn an_idle_server_uses_little_memory() {
        let shared = SharedResources::new(StoreOptions::up()).unwrap();
        assert!(shared.usage().memtable_bytes < 1 << 20);
        assert_eq!(shared.options(), &StoreOptions::up());
    }
}
