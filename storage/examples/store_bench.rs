//! Benchmark of the tablet store, compared with direct use of RocksDB in the same run.
//!
//! Targets (docs of the store): 250,000 cells/s from one thread into 12 tablets without RocksDB's WAL, a cached row
//! read below 12 us, a scan above 1,300 MB/s of 1 KB cells. Absolute figures depend on the machine, the ratios do not.
//!
//! `cargo run --release -p ebla-storage --example store_bench [-- FOLDER]`

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ebla_model::codec;
use ebla_model::id::{FamilyId, LogId, LogIndex, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;
use ebla_storage::store::layout::encode_log_id;
use ebla_storage::store::{Batch, Direction, GroupStore, MetaKey, SharedResources, StoreOptions};
use rocksdb::{BlockBasedOptions, Cache, DB, Options, ReadOptions, WriteBatch, WriteOptions};

type BenchResult<T> = Result<T, Box<dyn Error>>;

const TABLETS: usize = 12;
const CELLS: u64 = 240_000;
const VALUE_BYTES: usize = 1000;
const BATCH: u64 = 16;
const READS: u64 = 100_000;
const FAMILY: FamilyId = FamilyId::new(1);

fn main() -> BenchResult<()> {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("ebla-store-bench"), PathBuf::from);
    let _absent_is_fine = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    // The cache holds all data, so the benchmark measures code, not the disk.
    let options = StoreOptions { cache_bytes: 512 << 20, memtable_bytes: 512 << 20, ..StoreOptions::up() };
    println!("{:<44}{:>14}{:>14}{:>8}", "", "store", "raw RocksDB", "ratio");
    load_twelve(&dir, &options)?;
    read_and_scan(&dir, &options)?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Load of small cells into twelve tablets.
fn load_twelve(dir: &Path, options: &StoreOptions) -> BenchResult<()> {
    let shared = SharedResources::new(options.clone())?;
    let stores = (0..TABLETS)
        .map(|n| GroupStore::create(&dir.join(format!("store{n}")), &shared))
        .collect::<Result<Vec<_>, _>>()?;
    let raws = (0..TABLETS).map(|n| raw(&dir.join(format!("raw{n}")), options)).collect::<BenchResult<Vec<_>>>()?;
    for value_bytes in [50, VALUE_BYTES] {
        let value = noise(value_bytes);
        let started = Instant::now();
        for (first, store) in (0..CELLS).step_by(usize::try_from(BATCH)?).zip(stores.iter().cycle()) {
            store.write(&store_batch(first, &value))?;
        }
        let ours = per_second(CELLS, started);
        let started = Instant::now();
        for (first, raw) in (0..CELLS).step_by(usize::try_from(BATCH)?).zip(raws.iter().cycle()) {
            raw.write_opt(raw_batch(first, &value), &no_log())?;
        }
        let theirs = per_second(CELLS, started);
        line(&format!("load {value_bytes} B cells, {TABLETS} tablets, cells/s"), ours, theirs);
    }
    Ok(())
}

/// Reads of one tablet of 1 KB rows, all cached.
fn read_and_scan(dir: &Path, options: &StoreOptions) -> BenchResult<()> {
    let shared = SharedResources::new(options.clone())?;
    let store = GroupStore::create(&dir.join("one"), &shared)?;
    let raw = raw(&dir.join("raw-one"), options)?;
    let value = noise(VALUE_BYTES);
    for first in (0..CELLS / 2).step_by(usize::try_from(BATCH)?) {
        store.write(&store_batch(first, &value))?;
        raw.write_opt(raw_batch(first, &value), &no_log())?;
    }
    store.flush()?;
    raw.flush()?;
    store.compact()?;
    raw.compact_range(None::<&[u8]>, None::<&[u8]>);
    for _warm_up in 0..2 {
        scan(&store, &raw, Report::Silent)?;
    }
    scan(&store, &raw, Report::Printed)?;
    point_reads(&store, &raw)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Report {
    Printed,
    Silent,
}

fn scan(store: &GroupStore, raw: &DB, report: Report) -> BenchResult<()> {
    for direction in [Direction::Forward, Direction::Reverse] {
        let started = Instant::now();
        let (mut bytes, mut cells) = (0, 0);
        let view = store.view();
        for cell in view.cells(b"", None, direction)? {
            bytes += cell?.1.len() as u64;
            cells += 1;
        }
        let ours = per_second(bytes, started) / 1e6;
        let started = Instant::now();
        let mut raw_bytes = 0;
        let mut iterator = raw.raw_iterator();
        match direction {
            Direction::Forward => iterator.seek_to_first(),
            Direction::Reverse => iterator.seek_to_last(),
        }
        while let Some((_, value)) = iterator.item() {
            raw_bytes += value.to_vec().len() as u64;
            match direction {
                Direction::Forward => iterator.next(),
                Direction::Reverse => iterator.prev(),
            }
        }
        iterator.status()?;
        let theirs = per_second(raw_bytes, started) / 1e6;
        if report == Report::Printed {
            line(&format!("scan {direction:?}, {cells} cells, MB/s"), ours, theirs);
        }
    }
    Ok(())
}

fn point_reads(store: &GroupStore, raw: &DB) -> BenchResult<()> {
    let rows: Vec<RowKey> = (0..READS).map(|n| row(n * 7919 % (CELLS / 2))).collect();

    let started = Instant::now();
    for row in &rows {
        assert_eq!(cells_between(store, codec::range_bounds(&KeyRange::single(row.clone())))?, 1, "the row is there");
    }
    let whole = micros_each(started);
    let started = Instant::now();
    for row in &rows {
        let column = codec::column_prefix(row, FAMILY, b"q");
        let end = codec::prefix_end(&column);
        assert_eq!(cells_between(store, (column, end))?, 1, "the column is there");
    }
    let column = micros_each(started);
    let started = Instant::now();
    for row in &rows {
        let prefix = codec::row_prefix(row);
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(codec::prefix_end(&prefix).unwrap_or_default());
        let mut iterator = raw.raw_iterator_opt(options);
        iterator.seek(&prefix);
        let cell = iterator.value().map(<[u8]>::to_vec);
        iterator.next();
        assert!(cell.is_some() && !iterator.valid(), "the row is there and has one cell");
    }
    let theirs = micros_each(started);
    line("read a row, cached, us", whole, theirs);
    line("read a column, cached, us", column, theirs);

    let started = Instant::now();
    for row in &rows {
        let beyond = row.successor();
        assert_eq!(cells_between(store, codec::range_bounds(&KeyRange::single(beyond)))?, 0, "no such row");
    }
    let missing = micros_each(started);
    line("read a row that is not there, us", missing, theirs);
    Ok(())
}

/// Number of cells between the bounds; copies each cell.
fn cells_between(store: &GroupStore, (lower, upper): (Vec<u8>, Option<Vec<u8>>)) -> BenchResult<usize> {
    let view = store.view();
    let cells: Vec<_> = view.cells(&lower, upper.as_deref(), Direction::Forward)?.collect::<Result<_, _>>()?;
    Ok(cells.len())
}

fn row(number: u64) -> RowKey {
    RowKey::new(format!("com.example.www/page{number:010}"))
}

fn store_batch(first: u64, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    for number in first..first + BATCH {
        let key = codec::encode_parts(row(number).as_bytes(), FAMILY, b"q", Micros::new(1));
        batch.put(key, codec::encode_value(value));
    }
    batch.put_meta(MetaKey::Applied, encode_log_id(LogId { term: Term::new(1), index: LogIndex::new(first) }));
    batch
}

fn raw_batch(first: u64, value: &[u8]) -> WriteBatch {
    let mut batch = WriteBatch::default();
    for number in first..first + BATCH {
        let key = codec::encode_parts(row(number).as_bytes(), FAMILY, b"q", Micros::new(1));
        batch.put(key, codec::encode_value(value));
    }
    batch.put(b"applied", encode_log_id(LogId { term: Term::new(1), index: LogIndex::new(first) }));
    batch
}

fn no_log() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

fn raw(dir: &Path, options: &StoreOptions) -> BenchResult<DB> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(options.cache_bytes));
    blocks.set_block_size(16 << 10);
    blocks.set_bloom_filter(10.0, false);
    let mut database = Options::default();
    database.create_if_missing(true);
    database.set_write_buffer_size(options.write_buffer_bytes);
    database.set_compression_type(rocksdb::DBCompressionType::Lz4);
    database.set_bottommost_compression_type(rocksdb::DBCompressionType::Zstd);
    database.set_block_based_table_factory(&blocks);
    Ok(DB::open(&database, dir)?)
}

/// Incompressible bytes.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    });
    words.flatten().take(length).collect()
}

#[expect(clippy::cast_precision_loss, reason = "figures of a benchmark")]
fn per_second(count: u64, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "figures of a benchmark")]
fn micros_each(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / READS as f64
}

fn line(what: &str, ours: f64, theirs: f64) {
    println!("{what:<44}{ours:>14.1}{theirs:>14.1}{:>8.2}", ours / theirs);
}
