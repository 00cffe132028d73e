//! Benchmark of locality groups: a scan of a small family beside a large one, in one locality group and in two, in alternation with
//! a scan of the same family without the large one; reads of absent keys with each Bloom filter; reads of a group in memory; and the space of
//! text by each compression.
//!
//! `cargo run --release -p ebla-storage --example locality_bench -- [FOLDER [PAGES...]]`: PAGES are files of text; without them
//! compression is not measured.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::stored_row::{stored_range, stored_row};
use ebla_model::time::Micros;
use ebla_storage::store::{Batch, CellFamily, GroupStore, ScanPlan, SharedResources, StoreOptions, WantedFamilies};

type BenchResult<T> = Result<T, Box<dyn Error>>;

const TABLE: TableId = TableId::new(7);
const SMALL: FamilyId = FamilyId::new(1);
const LARGE: FamilyId = FamilyId::new(2);
const ROWS: u64 = 20_000;
const SMALL_BYTES: usize = 20;
const LARGE_BYTES: usize = 10_000;
const ROUNDS: usize = 9;
const ABSENT_ROWS: u64 = 100_000;
const ABSENT_READS: u64 = 20_000;
const BLOOM_FILTERS: [&str; 3] = ["none", "rows", "columns"];
const COMPRESSIONS: [&str; 7] = ["none", "lz4", "lz4-then-zstd", "zstd:1", "zstd:3", "zstd:9", "two-pass"];

fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let dir = arguments.next().unwrap_or_else(|| std::env::temp_dir().join("ebla-locality-bench"));
    let pages: Vec<PathBuf> = arguments.collect();
    let _absent_is_fine = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    scans(&dir)?;
    absent_keys(&dir)?;
    in_memory(&dir)?;
    if !pages.is_empty() {
        compressions(&dir, &pages)?;
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// A cache of 32 MiB: the large family does not fit, the small one does.
fn resources() -> BenchResult<Arc<SharedResources>> {
    Ok(SharedResources::new(StoreOptions { cache_bytes: 32 << 20, ..StoreOptions::up() })?)
}

fn group(number: u32, options: &str) -> BenchResult<CellFamily> {
    Ok(CellFamily { group: number, options: options.parse()? })
}

/// A store whose small and large families are in these groups.
fn store(dir: &Path, small: CellFamily, large: CellFamily, shared: &Arc<SharedResources>) -> BenchResult<GroupStore> {
    let store = GroupStore::create(dir, shared)?;
    let families: WantedFamilies = [(SMALL, small), (LARGE, large)].into();
    store.place_tables(BTreeMap::from([(TABLE, families)]))?;
    Ok(store)
}

fn key(row: &str, family: FamilyId, version: u64) -> Vec<u8> {
    let row = stored_row(TABLE, &RowKey::copy_from_slice(row.as_bytes()));
    codec::encode_parts(row.as_bytes(), family, b"q", Micros::new(i64::try_from(version).unwrap_or(i64::MAX)))
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

/// Scans of the small family.
fn scans(dir: &Path) -> BenchResult<()> {
    let lg0 = CellFamily::lg0();
    let layouts = [("alone", lg0, None), ("one group", lg0, Some(lg0)), ("two groups", lg0, Some(group(1, "")?))];
    let mut stores = Vec::new();
    for (name, small, large) in layouts {
        let store = store(&dir.join(name), small, large.unwrap_or(lg0), &resources()?)?;
        for row in 0..ROWS {
            let mut batch = Batch::new();
            let name = format!("{row:08}");
            batch.put(key(&name, SMALL, 1), noise(SMALL_BYTES, row));
            if large.is_some() {
                batch.put(key(&name, LARGE, 1), noise(LARGE_BYTES, row));
            }
            store.write(&batch)?;
        }
        store.flush()?;
        store.compact()?;
        stores.push((name, store));
    }
    let mut seconds = vec![Vec::new(); stores.len()];
    for round in 0..ROUNDS {
        let order: Vec<usize> =
            if round % 2 == 0 { (0..stores.len()).collect() } else { (0..stores.len()).rev().collect() };
        for at in order {
            let Some(((_name, store), seconds)) = stores.get(at).zip(seconds.get_mut(at)) else { continue };
            seconds.push(scan(store)?);
        }
    }
    println!("scan of a family with {ROWS} cells of {SMALL_BYTES} B; the large family has {LARGE_BYTES} B per row");
    let alone: Vec<f64> = seconds.first().cloned().unwrap_or_default();
    for ((name, _store), seconds) in stores.iter().zip(&seconds) {
        let mut ratios: Vec<f64> = seconds.iter().zip(&alone).map(|(one, alone)| one / alone).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, middle, most) = (ratios.first(), ratios.get(ratios.len() / 2), ratios.last());
        let shown = |ratio: Option<&f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        println!("{name:<12} time relative to alone: {} [{}, {}]", shown(middle), shown(least), shown(most));
    }
    Ok(())
}

/// Seconds of one scan of the small family; checks what it reads.
fn scan(store: &GroupStore) -> BenchResult<f64> {
    let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &KeyRange::all()));
    let families = BTreeSet::from([SMALL]);
    let started = Instant::now();
    let view = store.view();
    let mut scan = view.scan(&ScanPlan::new(&lower, upper.as_deref()).of_families(&families))?;
    let mut cells = 0;
    while let Some((key, value)) = scan.entry() {
        if value.len() == SMALL_BYTES {
            cells += 1;
            scan.step()?;
            continue;
        }
        // As a read does: to the next row.
        let row = codec::unescape(key)?.0;
        let next = codec::prefix_end(&codec::row_prefix(&RowKey::new(row)));
        match next {
            Some(next) => scan.seek(&next)?,
            None => scan.end(),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    if cells == ROWS { Ok(seconds) } else { Err(format!("{cells} cells were found").into()) }
}

/// What a read of an absent key does.
type AbsentKey = (&'static str, fn(u64) -> Vec<u8>);

/// The prefix of a row's cells.
fn row_of(number: u64) -> Vec<u8> {
    codec::row_prefix(&stored_row(TABLE, &RowKey::new(format!("{number:08}"))))
}

/// The prefix of the versions of a column.
fn column_of(number: u64, qualifier: &[u8]) -> Vec<u8> {
    codec::column_prefix(&stored_row(TABLE, &RowKey::new(format!("{number:08}"))), SMALL, qualifier)
}

/// Reads of rows and columns that do not exist, between those that do. Indexes and filters are cached, blocks of cells are not added to the
/// cache.
fn absent_keys(dir: &Path) -> BenchResult<()> {
    let keys: [AbsentKey; 3] = [
        ("absent row", |number| row_of(2 * number + 1)),
        ("column of an absent row", |number| column_of(2 * number + 1, b"q")),
        ("absent column", |number| column_of(2 * number, b"z")),
    ];
    println!(
        "\n{ABSENT_READS} reads of absent keys among {ABSENT_ROWS} rows: blocks read from files per 1000 reads, us per read"
    );
    let [row, column, other] = keys.map(|(name, _prefix)| name);
    println!("{:<10}{row:>28}{column:>28}{other:>28}", "bloom");
    for bloom in BLOOM_FILTERS {
        let family = group(1, &format!("bloom={bloom}"))?;
        let store = store(&dir.join(format!("bloom-{bloom}")), family, CellFamily::lg0(), &resources()?)?;
        let mut batch = Batch::new();
        for number in 0..ABSENT_ROWS {
            batch.put(key(&format!("{:08}", 2 * number), SMALL, 1), noise(100, number));
        }
        store.write(&batch)?;
        store.flush()?;
        store.compact()?;
        print!("{bloom:<10}");
        for (_name, prefix) in keys {
            // Once with the cache: for indexes and filters.
            read_absent(&store, &prefix(0), |plan| plan)?;
            let (before, started) = (blocks_read(), Instant::now());
            for at in 0..ABSENT_READS {
                // In no order, all over the rows.
                let number = at.wrapping_mul(7_919) % ABSENT_ROWS;
                read_absent(&store, &prefix(number), |plan| plan.without_filling_cache())?;
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let (blocks, micros) = (
                (blocks_read() - before) as f64 * 1000.0 / ABSENT_READS as f64,
                started.elapsed().as_secs_f64() * 1e6 / ABSENT_READS as f64,
            );
            print!("{blocks:>18.1}{micros:>10.2}");
        }
        println!();
    }
    Ok(())
}

fn read_absent(store: &GroupStore, prefix: &[u8], plan: for<'k> fn(ScanPlan<'k>) -> ScanPlan<'k>) -> BenchResult<()> {
    let upper = codec::prefix_end(prefix);
    let view = store.view();
    let scan = view.scan(&plan(ScanPlan::new(prefix, upper.as_deref())))?;
    if scan.entry().is_some() { Err("an absent key was found".into()) } else { Ok(()) }
}

/// The blocks that this thread has read from files.
fn blocks_read() -> u64 {
    rocksdb::PerfContext::default().metric(rocksdb::PerfMetric::BlockReadCount)
}

/// Reads of all rows of a group in memory, after its store was opened: none goes to the disk.
fn in_memory(dir: &Path) -> BenchResult<()> {
    let (path, family) = (dir.join("memory"), group(1, "in-memory=yes")?);
    let filled = store(&path, family, CellFamily::lg0(), &resources()?)?;
    let mut batch = Batch::new();
    for number in 0..ABSENT_ROWS {
        batch.put(key(&format!("{number:08}"), SMALL, 1), noise(100, number));
    }
    filled.write(&batch)?;
    filled.flush()?;
    drop(filled);
    let (shared, started) = (resources()?, Instant::now());
    let store = GroupStore::open(&path, &shared)?;
    let opened = started.elapsed().as_secs_f64();
    let started = Instant::now();
    for number in 0..ABSENT_ROWS {
        let (lower, view) = (row_of(number), store.view());
        let upper = codec::prefix_end(&lower);
        if view.scan(&ScanPlan::new(&lower, upper.as_deref()))?.entry().is_none() {
            return Err("a row was not found".into());
        }
    }
    let (seconds, groups) = (started.elapsed().as_secs_f64(), shared.memory_groups());
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let micros = seconds * 1e6 / ABSENT_ROWS as f64;
    println!(
        "\na group in memory with {ABSENT_ROWS} rows: opened in {opened:.3} s, {} B in the cache, {micros:.2} us per read of a row, {} blocks \
         read from files by reads",
        groups.cached_bytes, groups.disk_reads
    );
    Ok(())
}

/// The space of pages by each compression, several versions of each.
fn compressions(dir: &Path, pages: &[PathBuf]) -> BenchResult<()> {
    let mut contents = Vec::new();
    for page in pages {
        contents.push((page.display().to_string(), std::fs::read(page)?));
    }
    let bytes: usize = contents.iter().map(|(_name, page)| page.len()).sum();
    println!("\n{} pages, {bytes} B", contents.len());
    println!("{:<16}{:>10}{:>16}{:>16}", "compression", "ratio", "write MB/s", "read MB/s");
    for compression in COMPRESSIONS {
        let store = store(
            &dir.join(compression.replace(':', "-")),
            CellFamily::lg0(),
            group(1, &format!("compression={compression};block=64k"))?,
            &resources()?,
        )?;
        for (version, (name, page)) in (1..).zip(&contents) {
            let mut batch = Batch::new();
            batch.put(key(name, LARGE, version), page.clone());
            store.write(&batch)?;
        }
        let started = Instant::now();
        store.flush()?;
        store.compact()?;
        let written = started.elapsed().as_secs_f64();
        let size = store.size_bytes()?;
        let started = Instant::now();
        let view = store.view();
        let mut scan = view.scan(&ScanPlan::new(b"", None).without_filling_cache())?;
        let mut read = 0;
        while let Some((_key, value)) = scan.entry() {
            read += value.len();
            scan.step()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "megabytes")]
        let (ratio, write, read) =
            (bytes as f64 / size as f64, bytes as f64 / written / 1e6, read as f64 / seconds / 1e6);
        println!("{compression:<16}{ratio:>10.2}{write:>16.0}{read:>16.0}");
    }
    Ok(())
}
