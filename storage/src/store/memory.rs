//! Locality groups in memory (paper, section 6): all blocks of their files are in a cache of the store for them alone.
//!
//! ```text
//!   MemoryBudget   of a server: what the groups of each store need, and which stores' groups fit
//!   MemoryCache    of a store: the blocks
//! ```
//!
//! RocksDB puts the blocks of each file that a flush or a compaction writes into the cache, and removes those of a file that it
//! deletes. What an earlier process wrote is loaded when the store is opened. So reads find every block in the cache; one that must
//! read a file nevertheless is counted ([`MemoryGroups::disk_reads`]).
//!
//! The budget counts what the blocks need, from the properties of the files. If not all groups fit, those of the stores that need least are held
//! in memory, and the others are served from their files with a small cache: a write is never refused for lack of this memory. The sizes are
//! determined again by [`GroupStore::load_memory_groups`]; until then files that were just written may exceed the budget, and a compaction
//! holds the blocks of its old and its new files for a moment.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::codec;
use ebla_model::key::KeyRange;
use ebla_model::locality::Residence;
use ebla_model::memory_groups::MemoryGroups;
use parking_lot::Mutex;
use rocksdb::{Cache, LruCacheOptions, Range, ReadOptions, properties};

use super::cell_family::CellFamily;
use super::cursor::DiskReads;
use super::error::StoreError;
use super::scan::{check, end_of_keys};
use super::{GroupStore, Handle};

/// The cache of a store whose groups fit holds this more than they need: what is flushed before the sizes are determined again.
const SPARE_BYTES: u64 = 64 << 20;
/// The cache of a store whose groups do not fit.
const PARTIAL_BYTES: u64 = 256 << 10;
/// Memory of a cached block besides its content: entry of the cache, object and allocation. An upper bound.
const BLOCK_OVERHEAD_BYTES: u64 = 512;
/// Bytes of a cell in a block besides its key and value: their lengths.
const ENTRY_OVERHEAD_BYTES: u64 = 5;
/// Four parts of a cache, each with a lock.
const SHARD_BITS: i32 = 2;

/// The budget of a server.
pub(super) struct MemoryBudget {
    limit_bytes: u64,
    stores: Mutex<Stores>,
    disk_reads: AtomicU64,
}

#[derive(Default)]
struct Stores {
    next: u64,
    members: BTreeMap<u64, Member>,
}

/// A store.
struct Member {
    cache: Cache,
    needed_bytes: u64,
    state: MemberState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberState {
    /// Its groups do not fit.
    Excess,
    /// They fit, and have to be loaded.
    ToLoad,
    /// Everything is in the cache.
    Loaded,
}

impl MemoryBudget {
    pub(super) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes: limit_bytes as u64, stores: Mutex::default(), disk_reads: AtomicU64::new(0) })
    }

    pub(super) fn usage(&self) -> MemoryGroups {
        let stores = self.stores.lock();
        let sum = |bytes: fn(&Member) -> u64| stores.members.values().map(bytes).sum::<u64>();
        MemoryGroups {
            limit_bytes: self.limit_bytes,
            needed_bytes: sum(|member| member.needed_bytes),
            excess_bytes: sum(|member| if member.state == MemberState::Excess { member.needed_bytes } else { 0 }),
            cached_bytes: sum(|member| if member.needed_bytes > 0 { member.cache.get_usage() as u64 } else { 0 }),
            disk_reads: self.disk_reads.load(Ordering::Relaxed),
        }
    }

    /// Sets what a store needs, and the capacities of all caches accordingly. Returns the state of this store.
    fn update(&self, number: u64, needed_bytes: u64) -> MemberState {
        let mut stores = self.stores.lock();
        if let Some(member) = stores.members.get_mut(&number) {
            member.needed_bytes = needed_bytes;
        }
        let needed = stores.members.iter().map(|(number, member)| (*number, member.needed_bytes));
        let fitting = fitting(self.limit_bytes, needed);
        for (number, member) in &mut stores.members {
            member.state = match member.state {
                _ if !fitting.contains(number) => MemberState::Excess,
                MemberState::Excess => MemberState::ToLoad,
                state => state,
            };
            let capacity = capacity(member.state, member.needed_bytes);
            member.cache.set_capacity(usize::try_from(capacity).unwrap_or(usize::MAX));
        }
        stores.members.get(&number).map_or(MemberState::Excess, |member| member.state)
    }

    fn set_loaded(&self, number: u64) {
        if let Some(member) = self.stores.lock().members.get_mut(&number)
            && member.state == MemberState::ToLoad
        {
            member.state = MemberState::Loaded;
        }
    }
}

/// The stores whose groups fit together: as many as possible, those with the smallest needs.
fn fitting(limit_bytes: u64, needed: impl Iterator<Item = (u64, u64)>) -> BTreeSet<u64> {
    let mut by_size: Vec<(u64, u64)> = needed.map(|(number, bytes)| (bytes, number)).collect();
    by_size.sort_unstable();
    let mut left = limit_bytes;
    let mut found = BTreeSet::new();
    for (bytes, number) in by_size {
        let Some(rest) = left.checked_sub(bytes) else { break };
        left = rest;
        found.insert(number);
    }
    found
}

/// The capacity of a store's cache. A compaction holds old and new blocks, so twice the need.
const fn capacity(state: MemberState, needed_bytes: u64) -> u64 {
    match state {
        MemberState::Excess => PARTIAL_BYTES,
        MemberState::ToLoad | MemberState::Loaded => needed_bytes.saturating_mul(2).saturating_add(SPARE_BYTES),
    }
}

/// The cache of a store; it leaves the budget when it is dropped.
pub(super) struct MemoryCache {
    number: u64,
    cache: Cache,
    budget: Arc<MemoryBudget>,
    /// Held while groups are loaded.
    loading: Mutex<()>,
}

impl MemoryCache {
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> Self {
        let mut options = LruCacheOptions::default();
        options.set_capacity(usize::try_from(SPARE_BYTES).unwrap_or(usize::MAX));
        options.set_num_shard_bits(SHARD_BITS);
        let cache = Cache::new_lru_cache_opts(&options);
        let mut stores = budget.stores.lock();
        let number = stores.next;
        stores.next += 1;
        stores.members.insert(number, Member { cache: cache.clone(), needed_bytes: 0, state: MemberState::ToLoad });
        Self { number, cache, budget: Arc::clone(budget), loading: Mutex::new(()) }
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The counter for reads of a column family.
    pub(super) fn disk_reads(&self, family: CellFamily) -> DiskReads<'_> {
        (family.options.residence == Residence::Memory).then_some(&self.budget.disk_reads)
    }
}

impl Drop for MemoryCache {
    fn drop(&mut self) {
        self.budget.stores.lock().members.remove(&self.number);
    }
}

impl GroupStore {
    /// Whether the store has locality groups in memory.
    #[must_use]
    pub fn has_memory_groups(&self) -> bool {
        self.cell_families.read().iter().any(|family| family.options.residence == Residence::Memory)
    }

    /// Determines what the groups in memory need, and loads them if they fit and are not loaded. Blocking: reads all their files once.
    ///
    /// A store does this when it is opened; it is repeated because the groups grow, and because others may leave the budget.
    ///
    /// # Errors
    /// When a file cannot be read: the groups are then served from files, and the next call tries again.
    pub fn load_memory_groups(&self) -> Result<(), StoreError> {
        let mut families = self.cell_handles()?;
        families.retain(|(family, _handle)| family.options.residence == Residence::Memory);
        if families.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.memory().loading.lock();
        let mut needed = 0_u64;
        for (_family, handle) in &families {
            needed = needed.saturating_add(self.file_properties(handle)?.memory_bytes());
        }
        let memory = self.memory();
        if memory.budget.update(memory.number, needed) == MemberState::ToLoad {
            for (_family, handle) in &families {
                self.load(handle)?;
            }
            memory.budget.set_loaded(memory.number);
        }
        Ok(())
    }

    /// What the cells of each locality group in these rows would need in memory, by the group's number: an estimate from the files.
    /// Unflushed data is not counted. Blocking: may read the end of each file.
    ///
    /// # Errors
    /// When the store lacks a family.
    pub fn group_memory_bytes(&self, ranges: &[KeyRange]) -> Result<BTreeMap<u32, u64>, StoreError> {
        let (mut groups, mut properties) = (BTreeMap::new(), BTreeMap::new());
        for range in ranges {
            let (lower, upper) = codec::range_bounds(range);
            let end = upper.clone().unwrap_or_else(end_of_keys);
            for family in self.placements().of_range((&lower, upper.as_deref()), None) {
                let handle = self.cell_family(family)?;
                let properties = match properties.entry(family) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(entry) => entry.insert(self.file_properties(&handle)?),
                };
                let files = self.database().get_approximate_sizes_cf(&handle, &[Range::new(&lower, &end)]);
                let bytes = properties.memory_bytes_of(files.first().copied().unwrap_or(0));
                let group: &mut u64 = groups.entry(family.group).or_default();
                *group = group.saturating_add(bytes);
            }
        }
        Ok(groups)
    }

    /// Reads all entries of a column family, which puts their blocks into its cache.
    fn load(&self, handle: &Handle<'_>) -> Result<(), StoreError> {
        let mut options = ReadOptions::default();
        options.set_total_order_seek(true);
        let mut entries = self.database().raw_iterator_cf_opt(handle, options);
        entries.seek_to_first();
        while entries.valid() {
            entries.next();
        }
        check(&entries)
    }

    fn file_properties(&self, handle: &Handle<'_>) -> Result<FileProperties, StoreError> {
        let text = self.database().property_value_cf(handle, properties::AGGREGATED_TABLE_PROPERTIES);
        let text = text.map_err(StoreError::engine("read the properties of files"))?;
        Ok(FileProperties::parse(text.as_deref().unwrap_or_default()))
    }
}

/// Sums over the files of a column family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileProperties {
    /// Blocks of cells, and their bytes in files.
    blocks: u64,
    block_bytes: u64,
    /// Cells, with deletions; the bytes of their keys and values.
    entries: u64,
    entry_bytes: u64,
    /// Indexes and filters.
    index_bytes: u64,
    filter_bytes: u64,
}

impl FileProperties {
    /// Reads what RocksDB prints: `name=value`, separated by `; `.
    fn parse(text: &str) -> Self {
        let value = |wanted: &str| {
            let mut properties = text.split(';').filter_map(|property| property.trim().split_once('='));
            // The name of the index's size continues with its format in parentheses.
            let is_it =
                |name: &str| name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("));
            properties.find(|(name, _value)| is_it(name)).and_then(|(_name, value)| value.parse().ok()).unwrap_or(0)
        };
        Self {
            blocks: value("# data blocks"),
            block_bytes: value("data block size"),
            entries: value("# entries"),
            entry_bytes: value("raw key size").saturating_add(value("raw value size")),
            index_bytes: value("index block size"),
            filter_bytes: value("filter block size"),
        }
    }

    /// What all blocks need in memory.
    fn memory_bytes(&self) -> u64 {
        let blocks = self.blocks.saturating_mul(BLOCK_OVERHEAD_BYTES);
        let entries = self.entries.saturating_mul(ENTRY_OVERHEAD_BYTES).saturating_add(self.entry_bytes);
        blocks.saturating_add(entries).saturating_add(self.index_bytes).saturating_add(self.filter_bytes)
    }

    /// What `bytes` of the files need in memory.
    fn memory_bytes_of(&self, bytes: u64) -> u64 {
        let files = self.block_bytes.saturating_add(self.index_bytes).saturating_add(self.filter_bytes).max(1);
        let needed = u128::from(bytes) * u128::from(self.memory_bytes()) / u128::from(files);
        u64::try_from(needed).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_groups_are_held_in_memory() {
        let fitting = |limit, needed: &[u64]| fitting(limit, (0..).zip(needed.iter().copied()));
        assert_eq!(fitting(100, &[60, 30, 10]), [0, 1, 2].into());
        assert_eq!(fitting(99, &[60, 30, 10]), [1, 2].into());
        assert_eq!(fitting(0, &[0, 1]), [0].into(), "what needs nothing always fits");
        assert_eq!(fitting(50, &[30, 30]), [0].into(), "of two with the same need, the earlier one");
    }

    #[test]
    fn properties_of_files_are_read() {
        let text = "# data blocks=3; # data blocks compression rejected=1; # entries=50; data block size=1000; \
                    raw key size=1000; raw average key size=20.000000; raw value size=3000; index block size (user-key? 1, delta-value? 1)=70; filter block size=30; ";
        let properties = FileProperties::parse(text);
        let expected = FileProperties {
            blocks: 3,
            block_bytes: 1000,
            entries: 50,
            entry_bytes: 4000,
            index_bytes: 70,
            filter_bytes: 30,
        };
        assert_eq!(properties, expected);
        assert_eq!(properties.memory_bytes(), 3 * 512 + 50 * 5 + 4100);
        assert_eq!(properties.memory_bytes_of(1100), 3 * 512 + 50 * 5 + 4100);
        assert_eq!(properties.memory_bytes_of(550), (3 * 512 + 50 * 5 + 4100) / 2);
        assert_eq!(FileProperties::parse("").memory_bytes_of(10), 0, "no files");
    }
}
