//! Benchmark of the scan cache: reads of single rows of one store with it and without it, in alternation, in the same memory: what
//! the scan cache gets, the block cache does not have.
//!
//! `cargo run --release -p ebla-storage --example scan_cache_bench [-- FOLDER]`

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::RowKey;
use ebla_model::stored_row::stored_row;
use ebla_model::time::Micros;
use ebla_storage::store::{Batch, GroupStore, ReadTier, ScanPlan, SharedResources, StoreOptions};

type BenchResult<T> = Result<T, Box<dyn Error>>;

const TABLE: TableId = TableId::new(7);
const FAMILY: FamilyId = FamilyId::new(1);
const ROWS: u64 = 50_000;
const VALUE_BYTES: usize = 1_000;
const READS: usize = 100_000;
const ROUNDS: usize = 9;
const SCAN_CACHE_BYTES: usize = 16 << 20;
/// YCSB's exponent of Zipf's law.
const EXPONENT: f64 = 0.99;

fn main() -> BenchResult<()> {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("ebla-scan-cache-bench"), PathBuf::from);
    let _absent_is_fine = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    println!(
        "{ROWS} rows of {VALUE_BYTES} B; of the caches' memory {} MiB are the scan cache, or none; {READS} reads, {ROUNDS} rounds",
        SCAN_CACHE_BYTES >> 20
    );
    println!("{:<62}{:>10}{:>10}{:>22}{:>7}", "", "us without", "us with", "without / with", "hits");
    // The data has 50 MB: it fits into the first block cache and not into the second.
    for (caches, memory) in [("block cache holds all", 512 << 20), ("block cache holds a third", 32 << 20)] {
        for (files, versions) in [("one file", 1), ("four files with a version each", 4)] {
            let folder = dir.join(format!("{memory}-{versions}"));
            let stores = Stores::new(&folder, memory, versions)?;
            for (chosen, numbers) in [("zipfian", zipfian()), ("uniform", uniform())] {
                measure(&format!("{chosen}, {files}, {caches}"), &stores, &numbers)?;
            }
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The same data with and without a scan cache.
struct Stores {
    without: GroupStore,
    with: GroupStore,
    shared: Arc<SharedResources>,
}

impl Stores {
    fn new(dir: &Path, memory: usize, versions: i64) -> BenchResult<Self> {
        std::fs::create_dir_all(dir)?;
        let (without, _none) = store(&dir.join("without"), memory, 0, versions)?;
        let (with, shared) = store(&dir.join("with"), memory, SCAN_CACHE_BYTES, versions)?;
        Ok(Self { without, with, shared })
    }
}

fn store(
    dir: &Path,
    memory: usize,
    scan_cache_bytes: usize,
    versions: i64,
) -> BenchResult<(GroupStore, Arc<SharedResources>)> {
    let options = StoreOptions {
        cache_bytes: memory - scan_cache_bytes,
        scan_cache_bytes,
        // Only the benchmark flushes.
        memtable_bytes: 1 << 30,
        write_buffer_bytes: 512 << 20,
        ..StoreOptions::up()
    };
    let shared = SharedResources::new(options)?;
    let store = GroupStore::create(dir, &shared)?;
    for version in 1..=versions {
        for first in (0..ROWS).step_by(100) {
            let mut batch = Batch::new();
            for row in first..first + 100 {
                let key = codec::encode_parts(stored(row).as_bytes(), FAMILY, b"field0", Micros::new(version));
                batch.put(key, codec::encode_value(&noise(row)));
            }
            store.write(&batch)?;
        }
        store.flush()?;
        if version == 1 {
            store.compact()?;
        }
    }
    Ok((store, shared))
}

fn measure(what: &str, stores: &Stores, numbers: &[u64]) -> BenchResult<()> {
    let versions = read(&stores.without, numbers.first().copied().unwrap_or_default())?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut before = stores.shared.scan_cache_state();
    for round in 0..=ROUNDS {
        if round == 1 {
            // The first round fills the caches.
            (without, with) = (Vec::new(), Vec::new());
            before = stores.shared.scan_cache_state();
        }
        let order = if round % 2 == 0 {
            [(&stores.without, 0), (&stores.with, 1)]
        } else {
            [(&stores.with, 1), (&stores.without, 0)]
        };
        for (store, at) in order {
            let started = Instant::now();
            for number in numbers {
                if read(store, *number)? != versions {
                    return Err(format!("row {number} has other cells").into());
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "a figure of a benchmark")]
            let micros = started.elapsed().as_secs_f64() * 1e6 / numbers.len() as f64;
            if at == 0 { without.push(micros) } else { with.push(micros) }
        }
    }
    let after = stores.shared.scan_cache_state();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let ratios: Vec<f64> = without.iter().zip(&with).map(|(without, with)| without / with).collect();
    let [ratio, least, most] = middle(ratios);
    println!(
        "{what:<62}{:>10.2}{:>10.2}{:>22}{:>6}%",
        middle(without)[0],
        middle(with)[0],
        format!("{ratio:.2} [{least:.2}, {most:.2}]"),
        hits * 100 / (hits + misses).max(1)
    );
    Ok(())
}

/// Median, least and greatest.
fn middle(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
    [at(values.len() / 2), at(0), at(values.len().saturating_sub(1))]
}

/// Reads a row as a tablet does: through the cache if there is one. Copies each value; returns the number of cells.
fn read(store: &GroupStore, number: u64) -> BenchResult<usize> {
    let row = stored(number);
    let lookup = store.look_up(&row);
    if let Some(cached) = lookup.as_ref().and_then(|lookup| lookup.cached(None)) {
        store.count_cache_use(1, 0);
        return copied(cached.cells().map(|(_cell, value)| value.to_vec()));
    }
    store.count_cache_use(0, 1);
    let view = store.view();
    if let Some(lookup) = &lookup
        && let Some(row) = view.fill(lookup, None, ReadTier::All)?
    {
        return copied(row.cells().map(|(_cell, value)| value.to_vec()));
    }
    let lower = codec::row_prefix(&row);
    let upper = codec::prefix_end(&lower);
    let mut scan = view.scan(&ScanPlan::new(&lower, upper.as_deref()))?;
    let mut cells = 0;
    while let Some((_key, value)) = scan.entry() {
        cells += copied(std::iter::once(value.to_vec()))?;
        scan.step()?;
    }
    Ok(cells)
}

/// Checks and counts values.
fn copied(values: impl Iterator<Item = Vec<u8>>) -> BenchResult<usize> {
    let mut cells = 0;
    for value in values {
        if value.len() != VALUE_BYTES + 1 {
            return Err("a value has another length".into());
        }
        std::hint::black_box(value);
        cells += 1;
    }
    Ok(cells)
}

fn stored(number: u64) -> RowKey {
    stored_row(TABLE, &RowKey::new(format!("user{number:012}")))
}

/// Incompressible bytes.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..VALUE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn uniform() -> Vec<u64> {
    let mut random = Random(0x5555_1234);
    (0..READS).map(|_| (random.next() >> 11) % ROWS).collect()
}

/// Rows by Zipf's law; popular ones are spread over the table.
#[expect(clippy::cast_precision_loss, reason = "numbers of rows are far below 2^52")]
fn zipfian() -> Vec<u64> {
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=ROWS {
        sum += (rank as f64).powf(-EXPONENT);
        sums.push(sum);
    }
    let mut random = Random(0x1234_5555);
    let rank = |random: &mut Random| {
        let drawn = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        sums.partition_point(|sum| *sum < drawn) as u64
    };
    // A prime that does not divide the number of rows: each rank has a row of its own.
    (0..READS).map(|_| rank(&mut random) * 7_919 % ROWS).collect()
}
