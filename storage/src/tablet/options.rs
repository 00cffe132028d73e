//! How tablet stores are tuned, and what all stores of a server share.
//!
//! Every number of the engine's that differs from its default stands here with its reason. Shared by all tablets of a
//! server: block cache, account of memtable memory, background threads, IO limit. So a thousand tablets cost little more
//! than one: about 190 KB and 6 to 8 file descriptors each. Several servers of one process may share a block cache too.

use std::sync::Arc;

use rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, Env, LogLevel, Options, SliceTransform, WriteBufferManager,
};

use super::compaction::{CollectorFactory, SharedRules};
use super::error::StoreError;
use super::scan::row_prefix_of;

/// What a person may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Memory for blocks of all tablets, with their indexes and filters.
    pub cache_bytes: usize,
    /// Memory that what is not flushed may take in all tablets together; above it the flush scheduler acts.
    pub memtable_bytes: usize,
    /// A tablet whose memtable reaches this size flushes whatever the scheduler says.
    pub write_buffer_bytes: usize,
    /// Size of an uncompressed block: what one random read fetches.
    pub block_bytes: usize,
    /// Threads for compactions; flushes have half as many of their own.
    pub background_threads: u8,
    /// Limit of what flushes and compactions write a second, all tablets together; none: no limit.
    pub write_rate_bytes: Option<u32>,
    /// Files that one tablet keeps open. Below 20 the engine takes 20.
    pub open_files_max: u16,
}

impl StoreOptions {
    /// For a whole cluster in one process, all its servers together: small.
    #[must_use]
    pub fn up() -> Self {
        Self {
            cache_bytes: 192 << 20,
            memtable_bytes: 64 << 20,
            write_buffer_bytes: 8 << 20,
            block_bytes: 16 << 10,
            background_threads: 2,
            write_rate_bytes: None,
            open_files_max: 128,
        }
    }

    /// For a tablet server of its own: memtables for a thousand tablets.
    #[must_use]
    pub fn server() -> Self {
        Self {
            cache_bytes: 512 << 20,
            memtable_bytes: 512 << 20,
            write_buffer_bytes: 32 << 20,
            background_threads: 4,
            ..Self::up()
        }
    }
}

/// Memory for blocks of files; clones are the same memory, which several servers of a process may share.
#[derive(Clone)]
pub struct BlockCache(Cache);

impl BlockCache {
    /// An empty cache of at most so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        // A clock instead of lists: a look-up takes no lock and moves nothing, and a point read makes three for each file. The
        // engine finds out the size of entries by itself (0).
        Self(Cache::new_hyper_clock_cache(bytes, 0))
    }
}

/// Memory in use by all stores of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedUsage {
    /// Bytes in the block cache, those of other servers that share it included.
    pub cache_bytes: usize,
    /// Bytes of memtables, flushed ones that are still read included.
    pub memtable_bytes: usize,
}

/// What all tablet stores of a server share. Made once; each store keeps it alive.
pub struct Shared {
    options: StoreOptions,
    cache: Cache,
    memtables: WriteBufferManager,
    database: Options,
    meta: Options,
    cells: Options,
}

impl Shared {
    /// Takes the memory accounts and starts the background threads, with a block cache of its own.
    ///
    /// # Errors
    /// [`StoreError::Engine`] when the system refuses.
    pub fn new(options: StoreOptions) -> Result<Arc<Self>, StoreError> {
        let cache = BlockCache::new(options.cache_bytes);
        Self::with_cache(options, cache)
    }

    /// As [`Shared::new`], with a block cache that others use too; `options.cache_bytes` counts for nothing then.
    ///
    /// # Errors
    /// [`StoreError::Engine`] when the system refuses.
    pub fn with_cache(options: StoreOptions, BlockCache(cache): BlockCache) -> Result<Arc<Self>, StoreError> {
        // A safety net only, at twice the budget: the engine's own manager flushes the store that is being written and
        // never the idle ones that hold the memory. Stalling is left off for the same reason; the scheduler's
        // back-pressure comes first.
        let memtables = WriteBufferManager::new_write_buffer_manager(options.memtable_bytes.saturating_mul(2), false);
        let database = database_options(&options, &memtables)?;
        let meta = meta_options(&options, &cache);
        let cells = cell_options(&options, &cache);
        Ok(Arc::new(Self { options, cache, memtables, database, meta, cells }))
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// What is used now, all tablets together.
    #[must_use]
    pub fn usage(&self) -> SharedUsage {
        SharedUsage { cache_bytes: self.cache.get_usage(), memtable_bytes: self.memtables.get_usage() }
    }

    pub(super) fn database(&self) -> &Options {
        &self.database
    }

    pub(super) fn meta_family(&self) -> Options {
        self.meta.clone()
    }

    /// The options of one tablet's cells; its compactions obey `rules`.
    pub(super) fn cell_family(&self, rules: Arc<SharedRules>) -> Options {
        let mut options = self.cells.clone();
        options.set_compaction_filter_factory(CollectorFactory::new(rules));
        options
    }
}

/// How many files this process may open: now, and at most without more rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFilesLimit {
    /// The limit in force; none: without limit.
    pub soft: Option<u64>,
    /// What it may be raised to; none: without limit.
    pub hard: Option<u64>,
}

/// What a server of 1000 tablets should be allowed.
pub const OPEN_FILES_WANTED: u64 = 65_536;

/// Raises the limit of open files as far as it goes (to [`OPEN_FILES_WANTED`] at most) and says where it is then.
///
/// The caller says so at start when it stays low: a thousand tablets with 6 to 8 files each do not fit into 1024.
#[must_use]
pub fn raise_open_files_limit() -> OpenFilesLimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES_WANTED, |hard| hard.min(OPEN_FILES_WANTED));
    if limit.current.is_some_and(|soft| soft < wanted) {
        // A refusal is no failure: the answer tells the limit that holds.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    let limit = getrlimit(Resource::Nofile);
    OpenFilesLimit { soft: limit.current, hard: limit.maximum }
}

fn database_options(options: &StoreOptions, memtables: &WriteBufferManager) -> Result<Options, StoreError> {
    let threads = i32::from(options.background_threads.max(1));
    let mut env = Env::new().map_err(StoreError::engine("open the engine's environment"))?;
    env.set_low_priority_background_threads(threads);
    env.set_high_priority_background_threads((threads / 2).max(1));

    let mut database = Options::default();
    database.set_env(&env);
    database.set_write_buffer_manager(memtables);
    // The applied index lies in one family and the data in others; without this a crash keeps one and loses the other.
    database.set_atomic_flush(true);
    database.set_max_background_jobs(threads);
    database.set_max_open_files(i32::from(options.open_files_max));
    // One table cache for each of a thousand stores: few shards, no preallocated manifest, no statistics threads.
    database.set_table_cache_num_shard_bits(1);
    database.set_max_manifest_file_size(1 << 20);
    database.set_manifest_preallocation_size(64 << 10);
    database.set_stats_dump_period_sec(0);
    database.set_stats_persist_period_sec(0);
    database.set_skip_stats_update_on_db_open(true);
    // Deleting files that an iterator held is left to the background: reads do not wait for it.
    database.set_avoid_unnecessary_blocking_io(true);
    database.set_log_level(LogLevel::Warn);
    database.set_keep_log_file_num(1);
    database.set_max_log_file_size(1 << 20);
    database.set_bytes_per_sync(1 << 20);
    if let Some(rate) = options.write_rate_bytes {
        // 100 ms between refills, compactions one time in ten before flushes: the engine's defaults.
        database.set_ratelimiter(i64::from(rate), 100_000, 10);
    }
    Ok(database)
}

fn family_options(options: &StoreOptions) -> Options {
    let mut family = Options::default();
    family.set_write_buffer_size(options.write_buffer_bytes);
    // One fills, one is being flushed, one waits: writes do not stop for a single slow flush.
    family.set_max_write_buffer_number(3);
    // With the default (1 MB) a thousand idle tablets charge 2.95 GB to the memtable account.
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

fn cell_options(options: &StoreOptions, cache: &Cache) -> Options {
    let mut family = family_options(options);
    family.set_compression_type(DBCompressionType::Lz4);
    family.set_bottommost_compression_type(DBCompressionType::Zstd);
    family.set_prefix_extractor(SliceTransform::create("ebla.row", row_of_key, Some(has_row)));
    // The memtable's filter lives in its arena and is paid by idle tablets too: 0.5 % of the buffer (40 KB of 8 MB) is
    // 10 bits a row for rows of 250 bytes.
    family.set_memtable_prefix_bloom_ratio(0.005);
    family.set_block_based_table_factory(&cell_blocks(options, cache));
    family
}

fn cell_blocks(options: &StoreOptions, cache: &Cache) -> BlockBasedOptions {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(options.block_bytes);
    blocks.set_block_cache(cache);
    blocks.set_bloom_filter(10.0, false);
    // Reads ask for a row or a column, never for a cell whose timestamp they know: one filter entry a row is enough.
    blocks.set_whole_key_filtering(false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_optimize_filters_for_memory(true);
    blocks
}

/// Called by the engine, so it must not panic: a key without a row is its own prefix.
fn row_of_key(key: &[u8]) -> &[u8] {
    row_prefix_of(key).unwrap_or(key)
}

fn has_row(key: &[u8]) -> bool {
    row_prefix_of(key).is_some()
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
    fn an_idle_server_uses_next_to_nothing() {
        let shared = Shared::new(StoreOptions::up()).unwrap();
        assert!(shared.usage().memtable_bytes < 1 << 20);
        assert_eq!(shared.options(), &StoreOptions::up());
    }
}
