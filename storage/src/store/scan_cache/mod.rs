//! The scan cache: the stored cells of rows that were asked for by their keys more than once (paper, section 6). It is above the
//! block cache: a hit opens no file, decodes no block and merges no versions of several SSTables.
//!
//! ```text
//!   look_up   before a view is pinned: the cached row, or a ticket to fill it
//!   fill      reads the row's cells through a view, and keeps them unless a write of the row has begun since the ticket
//!   write     removes the rows of a batch before the batch is written, and until it is written nothing fills them
//! ```
//!
//! **Coherence.** All changes of a store pass through [`super::GroupStore::write`], so the cache needs to know no command. An entry
//! exists only while no write of its row has begun since the snapshot that it was read from. So a hit is what a view that is pinned
//! at that moment would read. The moves of cells between column families change no visible cell, and compactions remove only cells
//! that readers must hide anyway, so neither matters here. Entries contain raw cells: garbage collection rules, which depend on the
//! time, and filters are applied at each read.
//!
//! **Writes of many rows at once** (a range of rows is deleted) begin a new generation of the store's entries. The old ones are
//! never found again, and are evicted like others that are not used.
//!
//! **Admission.** The first read of a row leaves a fingerprint, the second one fills (`asked_rows.rs`). Scans neither fill nor look.
//! What is evicted decides `quick_cache`: S3-FIFO, which resists scans too.

mod asked_rows;
mod cached_row;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::codec;
use ebla_model::id::FamilyId;
use ebla_model::key::RowKey;
use ebla_model::scan_cache::ScanCacheState;
use ebla_runtime::Failpoint;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter};

use super::batch::Change;
use super::error::StoreError;
use super::scan::{ReadTier, ScanPlan, View, is_after, row_prefix_of};
use super::{Batch, GroupStore};

use self::asked_rows::AskedRows;
pub use self::cached_row::{CachedRow, Cells};
use self::cached_row::{CellsBuilder, FamilySet};

/// A row with more bytes of keys and values is not cached, nor one that takes more than a 64th of the cache.
const ROW_BYTES_MAX: usize = 64 << 10;
const ROW_SHARE_MAX: usize = 64;
/// What an entry costs besides the bytes of its row: allocations, and its places in the tables of `quick_cache`, of which a part is
/// free and another one is for entries that are gone.
const ENTRY_BYTES: usize = 256;
/// The expected size of an entry, which decides how many evicted ones `quick_cache` remembers.
const ENTRY_BYTES_EXPECTED: usize = 1024;
/// Parts of the cache with locks of their own. A constant, so that a simulation evicts the same rows on every machine.
const SHARDS: usize = 16;
/// Rows are divided into this number of parts, in each of which writes and fills exclude each other.
const STRIPES: usize = 256;

/// The scan cache of a server, shared by its stores.
pub(super) struct ScanCache {
    rows: Cache<OwnedRowId, Arc<CachedRow>, RowWeight, PassHash, CountEvictions>,
    asked: AskedRows,
    stripes: Vec<Stripe>,
    capacity_bytes: usize,
    row_bytes_max: usize,
    next_store: AtomicU64,
    counters: Arc<Counters>,
}

/// Counts since the start of the server.
#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    fills: AtomicU64,
    refused_fills: AtomicU64,
    evictions: AtomicU64,
}

/// Writes of the rows of one part.
#[derive(Default)]
struct Stripe {
    /// Beginnings and ends of writes. Changes only under the lock.
    changes: AtomicU64,
    /// The writes in progress. Locked to change it, and to insert an entry.
    writers: Mutex<u32>,
}

/// A store's part in the cache.
pub(super) struct CachedStore {
    /// Never used again: a store that is opened again has none of the entries of before.
    id: u64,
    /// Grows at the beginning of each write of many rows.
    generation: AtomicU64,
    /// The writes of many rows in progress, and one for ever after a failed write: nothing is looked up meanwhile.
    row_range_writes: AtomicU64,
}

/// What identifies an entry. The hash is that of store and row.
struct OwnedRowId {
    hash: u64,
    store: u64,
    generation: u64,
    /// The common prefix of the keys of the row's cells.
    row: Box<[u8]>,
}

/// As [`OwnedRowId`], for a search.
struct RowId<'r> {
    hash: u64,
    store: u64,
    generation: u64,
    row: &'r [u8],
}

/// The state of the cache when a row was looked up: a fill is refused when a write has begun since.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    hash: u64,
    store: u64,
    generation: u64,
    /// [`Stripe::changes`].
    changes: u64,
}

/// The result of looking a row up. It says nothing about writes that begin afterwards: it is as old as a view of that moment.
#[derive(Debug)]
pub struct RowLookup {
    row: Vec<u8>,
    cached: Option<Arc<CachedRow>>,
    /// None: the row is not worth a place yet.
    ticket: Option<Ticket>,
}

impl RowLookup {
    /// The common prefix of the keys of the row's cells.
    #[must_use]
    pub fn row_prefix(&self) -> &[u8] {
        &self.row
    }

    /// The cached cells, if those of all these families are there (`None`: of all families).
    #[must_use]
    pub fn cached(&self, families: Option<&BTreeSet<FamilyId>>) -> Option<&Arc<CachedRow>> {
        self.cached.as_ref().filter(|row| row.has_all(families))
    }

    /// Whether any cells of the row are cached.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        self.cached.is_some()
    }
}

impl ScanCache {
    /// A cache of at most `bytes`, keys and overhead included; `None` for 0. Allocates nearly nothing before the first read.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        if bytes == 0 {
            return None;
        }
        let asked = AskedRows::new(bytes);
        let counters: Arc<Counters> = Arc::default();
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity((bytes / ENTRY_BYTES_EXPECTED).max(1))
            .weight_capacity(bytes.saturating_sub(asked.bytes()) as u64)
            .build()
            .ok()?;
        Some(Self {
            rows: Cache::with_options(options, RowWeight, PassHash, CountEvictions(Arc::clone(&counters))),
            asked,
            stripes: std::iter::repeat_with(Stripe::default).take(STRIPES).collect(),
            capacity_bytes: bytes,
            row_bytes_max: ROW_BYTES_MAX.min(bytes / ROW_SHARE_MAX),
            next_store: AtomicU64::new(1),
            counters,
        })
    }

    /// The part of a store that is created or opened.
    pub(super) fn new_store(&self) -> CachedStore {
        CachedStore::new(self.next_store.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts and sizes.
    pub(super) fn state(&self) -> ScanCacheState {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScanCacheState {
            hits: count(&self.counters.hits),
            misses: count(&self.counters.misses),
            fills: count(&self.counters.fills),
            refused_fills: count(&self.counters.refused_fills),
            evictions: count(&self.counters.evictions),
            rows: self.rows.len() as u64,
            bytes: self.rows.weight(),
            capacity_bytes: self.capacity_bytes as u64,
        }
    }

    fn look_up(&self, store: &CachedStore, row: Vec<u8>) -> RowLookup {
        // In this order: a write of many rows raises its count before it raises the generation.
        let generation = store.generation.load(Ordering::SeqCst);
        if store.row_range_writes.load(Ordering::SeqCst) > 0 {
            return RowLookup { row, cached: None, ticket: None };
        }
        let hash = hash_of(store.id, &row);
        // Before the entry is searched, and before the caller pins a view.
        let changes = self.stripe(hash).map_or(0, |stripe| stripe.changes.load(Ordering::SeqCst));
        let ticket = Ticket { hash, store: store.id, generation, changes };
        let cached = self.rows.get(&RowId { hash, store: store.id, generation, row: &row });
        let is_wanted = cached.is_some() || self.asked.was_asked(hash);
        RowLookup { row, cached, ticket: is_wanted.then_some(ticket) }
    }

    /// Keeps an entry, unless a write has begun since the lookup or is in progress.
    fn insert(&self, store: &CachedStore, lookup: &RowLookup, ticket: Ticket, row: Arc<CachedRow>) {
        let Some(stripe) = self.stripe(ticket.hash) else { return };
        // Held until the entry is there: a write that begins afterwards removes it.
        let writers = stripe.writers.lock();
        let is_current = *writers == 0 && stripe.changes.load(Ordering::SeqCst) == ticket.changes;
        let is_store = ticket.store == store.id && ticket.generation == store.generation.load(Ordering::SeqCst);
        if !is_current || !is_store {
            self.counters.refused_fills.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (hash, generation) = (ticket.hash, ticket.generation);
        let id = OwnedRowId { hash, store: store.id, generation, row: lookup.row.as_slice().into() };
        self.rows.insert(id, row);
        self.counters.fills.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a write of these changes: removes their rows. They are not filled until the result is dropped.
    pub(super) fn begin_write<'c>(&'c self, store: &'c CachedStore, batch: &Batch) -> WriteInProgress<'c> {
        let mut write =
            WriteInProgress { cache: self, store, hashes: Vec::new(), has_ranges: false, is_written: false };
        if Failpoint::ScanCacheKeepsRows.is_enabled() {
            return write;
        }
        let mut last: &[u8] = &[];
        for change in batch.changes() {
            match rows_of(change) {
                Rows::None => {}
                // The cells of a row usually follow each other.
                Rows::One(row) if row == last => {}
                Rows::One(row) => {
                    last = row;
                    let hash = hash_of(store.id, row);
                    write.hashes.push(hash);
                    self.begin_row(store, hash, row);
                }
                Rows::Many => write.has_ranges = true,
            }
        }
        if write.has_ranges {
            store.row_range_writes.fetch_add(1, Ordering::SeqCst);
            store.generation.fetch_add(1, Ordering::SeqCst);
        }
        write
    }

    fn begin_row(&self, store: &CachedStore, hash: u64, row: &[u8]) {
        if let Some(stripe) = self.stripe(hash) {
            let mut writers = stripe.writers.lock();
            *writers += 1;
            stripe.changes.fetch_add(1, Ordering::SeqCst);
        }
        let generation = store.generation.load(Ordering::SeqCst);
        if self.rows.remove(&RowId { hash, store: store.id, generation, row }).is_some() {
            // It was in use: its next read fills it again.
            self.asked.remember(hash);
        }
    }

    fn end_row(&self, hash: u64) {
        if let Some(stripe) = self.stripe(hash) {
            let mut writers = stripe.writers.lock();
            *writers -= 1;
            stripe.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn stripe(&self, hash: u64) -> Option<&Stripe> {
        self.stripes.get(usize::try_from(hash % STRIPES as u64).unwrap_or(0))
    }
}

impl CachedStore {
    const fn new(id: u64) -> Self {
        Self { id, generation: AtomicU64::new(0), row_range_writes: AtomicU64::new(0) }
    }

    /// The part of a store of a server without a scan cache.
    pub(super) const fn without_cache() -> Self {
        Self::new(0)
    }
}

/// A write that has begun. Dropped when it has ended.
pub(super) struct WriteInProgress<'c> {
    cache: &'c ScanCache,
    store: &'c CachedStore,
    /// Of single rows.
    hashes: Vec<u64>,
    /// Whether ranges of rows are changed too.
    has_ranges: bool,
    is_written: bool,
}

impl WriteInProgress<'_> {
    /// Ends the write. Without this call it has failed, and it is unknown what a reader sees: the store is not cached any more.
    pub(super) fn written(mut self) {
        self.is_written = true;
    }
}

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        if self.is_written && self.has_ranges {
            self.store.row_range_writes.fetch_sub(1, Ordering::SeqCst);
        } else if !self.is_written && !self.has_ranges {
            self.store.row_range_writes.fetch_add(1, Ordering::SeqCst);
        }
        for hash in &self.hashes {
            self.cache.end_row(*hash);
        }
    }
}

impl GroupStore {
    /// Looks a stored row up in the scan cache; `None` when there is no cache. Call it before a view is pinned, and before the
    /// state is read that the row is interpreted with.
    #[must_use]
    pub fn look_up(&self, row: &RowKey) -> Option<RowLookup> {
        Some(self.shared.scan_cache()?.look_up(&self.cached, codec::row_prefix(row)))
    }

    /// Counts rows that were read by their keys: from the cache, and not from it.
    pub fn count_cache_use(&self, hits: u64, misses: u64) {
        if let Some(cache) = self.shared.scan_cache() {
            cache.counters.hits.fetch_add(hits, Ordering::Relaxed);
            cache.counters.misses.fetch_add(misses, Ordering::Relaxed);
        }
    }
}

impl View<'_> {
    /// Reads the cells of a row in these families (`None`: all), with those that are cached already, and caches them. `None` when
    /// the row is not worth it or is too large; then it must be read cell by cell.
    ///
    /// The view must have been pinned after the lookup.
    ///
    /// # Errors
    /// As [`View::scan`].
    pub fn fill(
        &self,
        lookup: &RowLookup,
        families: Option<&BTreeSet<FamilyId>>,
        read_tier: ReadTier,
    ) -> Result<Option<Arc<CachedRow>>, StoreError> {
        let store = self.store();
        let Some((cache, ticket)) = store.shared.scan_cache().zip(lookup.ticket) else { return Ok(None) };
        if families.is_some_and(BTreeSet::is_empty) {
            return Ok(None);
        }
        let known = lookup.cached.as_deref();
        let wanted = FamilySet::of(families).union(known.map(CachedRow::families));
        if known.is_some_and(|known| known.is_too_large(&wanted)) {
            return Ok(None);
        }
        let upper = codec::prefix_end(&lookup.row);
        let plan = ScanPlan::new(&lookup.row, upper.as_deref()).with_read_tier(read_tier);
        let plan = wanted.families().map_or(plan, |families| plan.of_families(families));
        let mut scan = self.scan(&plan)?;
        let mut cells = CellsBuilder::default();
        let mut scanned = 0;
        while let Some((key, value)) = scan.entry() {
            scanned += key.len() + value.len();
            if scanned > cache.row_bytes_max {
                let marked = CachedRow::too_large(known, wanted);
                cache.insert(&store.cached, lookup, ticket, Arc::new(marked));
                return Ok(None);
            }
            let cell = key.strip_prefix(lookup.row.as_slice()).unwrap_or_default();
            if wanted.has_cell(cell) {
                cells.push(cell, value);
            }
            scan.step()?;
        }
        let row = Arc::new(CachedRow::new(known, wanted, cells));
        cache.insert(&store.cached, lookup, ticket, Arc::clone(&row));
        Ok(Some(row))
    }
}

/// The rows that a change affects.
enum Rows<'b> {
    None,
    /// One, by the common prefix of its cells' keys.
    One(&'b [u8]),
    Many,
}

fn rows_of(change: &Change) -> Rows<'_> {
    match change {
        Change::Put { key, .. } | Change::Delete { key } => row_prefix_of(key).map_or(Rows::Many, Rows::One),
        Change::DeleteRange { from, to } => match row_prefix_of(from) {
            Some(row) if !is_after(row, to) => Rows::One(row),
            _ => Rows::Many,
        },
        Change::PutMeta { .. } | Change::DeleteMeta { .. } => Rows::None,
    }
}

/// Without random keys, so that a simulation repeats itself.
fn hash_of(store: u64, row: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(store);
    hasher.write(row);
    hasher.finish()
}

impl Hash for OwnedRowId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for RowId<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for OwnedRowId {
    fn eq(&self, other: &Self) -> bool {
        (self.hash, self.store, self.generation, &self.row) == (other.hash, other.store, other.generation, &other.row)
    }
}

impl Eq for OwnedRowId {}

impl Equivalent<OwnedRowId> for RowId<'_> {
    fn equivalent(&self, key: &OwnedRowId) -> bool {
        (self.hash, self.store, self.generation, self.row) == (key.hash, key.store, key.generation, &*key.row)
    }
}

/// The bytes that an entry is charged with.
#[derive(Clone)]
struct RowWeight;

impl Weighter<OwnedRowId, Arc<CachedRow>> for RowWeight {
    fn weight(&self, id: &OwnedRowId, row: &Arc<CachedRow>) -> u64 {
        (ENTRY_BYTES + id.row.len() + row.bytes()) as u64
    }
}

/// Counts what is evicted.
#[derive(Clone)]
struct CountEvictions(Arc<Counters>);

impl Lifecycle<OwnedRowId, Arc<CachedRow>> for CountEvictions {
    type RequestState = ();

    fn on_evict(&self, _state: &mut (), _id: OwnedRowId, _row: Arc<CachedRow>) {
        self.0.evictions.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes the hash that an id contains.
#[derive(Clone, Copy)]
struct PassHash;

impl BuildHasher for PassHash {
    type Hasher = PassedHash;

    fn build_hasher(&self) -> PassedHash {
        PassedHash(0)
    }
}

struct PassedHash(u64);

impl Hasher for PassedHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
