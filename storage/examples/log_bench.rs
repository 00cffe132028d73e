//! Benchmark of commit log appends, compared with the raw disk and RocksDB's WAL in the same run.
//!
//! Writers append entries of 1,000 bytes and wait for each to be durable. The floor is one thread that overwrites a file
//! with `O_DSYNC`, as many entries at a time as there are writers: no group commit can be faster. Targets:
//! 60,000 appends/s at 16 writers and 8,000 at one on a quiet disk. Absolute figures depend on the machine, ratios less.
//!
//! `cargo run --release -p ebla-storage --example log_bench [-- FOLDER [SECONDS]]`

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ebla_model::id::{GroupId, LogId, LogIndex, ReplicaId, Term};
use ebla_storage::disk::{Disk, Durability, RealDisk};
use ebla_storage::log::{CommitLog, GroupReplica, LogError, LogOptions, MemoryManifest, Record};
use rocksdb::statistics::Ticker;
use rocksdb::{DB, Options, WriteOptions};

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const RECORD_BYTES: usize = 1000;
const WRITERS: [u64; 3] = [1, 16, 256];
/// Number of entries that a writer appends before it purges the log.
const RETAINED_ENTRIES: u64 = 1000;
const BLOCK: usize = 4096;

/// Measurements of one way to append.
struct Figure {
    name: &'static str,
    appends_per_second: f64,
    /// Disk syncs per append, if known.
    syncs_per_append: Option<f64>,
    /// Sorted.
    latencies: Vec<Duration>,
}

fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(|| std::env::temp_dir().join("ebla-log-bench"), PathBuf::from);
    let seconds = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let span = Duration::from_secs_f64(seconds);
    println!(
        "{:>8}  {:<28}{:>11}{:>9}{:>14}{:>9}{:>9}",
        "writers", "", "appends/s", "ratio", "syncs/append", "p50 us", "p99 us"
    );
    for writers in WRITERS {
        let _absent_is_fine = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        let figures = [
            floor(&dir, writers, span, Durability::OnWrite)?,
            floor(&dir, writers, span, Durability::OnSync)?,
            commit_log(&dir, writers, span, Files::Fresh)?,
            commit_log(&dir, writers, span, Files::Recycled)?,
            rocksdb_log(&dir, writers, span)?,
        ];
        let best = figures.first().map_or(1.0, |floor| floor.appends_per_second);
        figures.iter().for_each(|figure| print(writers, figure, best));
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn print(writers: u64, figure: &Figure, floor: f64) {
    let syncs = figure.syncs_per_append.map_or("-".to_owned(), |syncs| format!("{syncs:.3}"));
    println!(
        "{writers:>8}  {:<28}{:>11.0}{:>9.2}{syncs:>14}{:>9}{:>9}",
        figure.name,
        figure.appends_per_second,
        figure.appends_per_second / floor,
        percentile(&figure.latencies, 50),
        percentile(&figure.latencies, 99),
    );
}

/// Microseconds.
fn percentile(sorted: &[Duration], percent: usize) -> u128 {
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).map_or(0, Duration::as_micros)
}

/// One thread, one write and one sync for the entries of all writers.
fn floor(dir: &Path, writers: u64, span: Duration, durability: Durability) -> BenchResult<Figure> {
    let disk = RealDisk::open(&dir.join("floor"))?;
    let batch = vec![7_u8; (usize::try_from(writers)? * RECORD_BYTES).next_multiple_of(BLOCK)];
    let (name, label) = match durability {
        Durability::OnWrite => ("recycled", "floor: overwrite, O_DSYNC"),
        Durability::OnSync => ("appended", "append, fdatasync"),
    };
    let file = disk.create(name)?;
    let length = 64 << 20;
    if durability == Durability::OnWrite {
        (0..64).try_for_each(|n| file.write_at(n << 20, &vec![1; 1 << 20]))?;
        file.sync()?;
    }
    let file = disk.open(name, durability)?;
    let (mut latencies, mut offset) = (Vec::new(), 0);
    let started = Instant::now();
    while started.elapsed() < span {
        let begun = Instant::now();
        file.write_at(offset, &batch)?;
        if durability == Durability::OnSync {
            file.sync()?;
        }
        latencies.push(begun.elapsed());
        offset += batch.len() as u64;
        if durability == Durability::OnWrite && offset + batch.len() as u64 > length {
            offset = 0;
        }
    }
    let appends = latencies.len() as u64 * writers;
    let per_append = 1.0 / as_float(writers);
    Ok(figure(label, appends, started.elapsed(), Some(per_append), latencies))
}

fn as_float(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

fn figure(
    name: &'static str,
    appends: u64,
    took: Duration,
    syncs: Option<f64>,
    mut latencies: Vec<Duration>,
) -> Figure {
    latencies.sort_unstable();
    Figure { name, appends_per_second: as_float(appends) / took.as_secs_f64(), syncs_per_append: syncs, latencies }
}

enum Files {
    /// The log's first segments: files grow.
    Fresh,
    /// As in long use: segments reuse files that were written before.
    Recycled,
}

fn commit_log(dir: &Path, writers: u64, span: Duration, files: Files) -> BenchResult<Figure> {
    let (name, folder) = match files {
        Files::Fresh => ("commit log, new files", "fresh"),
        Files::Recycled => ("commit log, recycled files", "recycled"),
    };
    let disk = Arc::new(RealDisk::open(&dir.join(folder))?);
    let (log, _recovered) = CommitLog::open(disk, Arc::new(MemoryManifest::default()), LogOptions::default())?;
    log.start_writer()?;
    if matches!(files, Files::Recycled) {
        fill_and_purge(&log)?;
    }
    let before = log.stats();
    let started = Instant::now();
    let latencies = in_parallel(writers, span, |writer, ends| {
        let group = group(writer + 1);
        log.add_group(group)?;
        let mut index = 0;
        timed(ends, || {
            index += 1;
            append(&log, group, index)
        })
    })?;
    let took = started.elapsed();
    let stats = log.stats();
    log.stop();
    let records = stats.records - before.records;
    let syncs = as_float(stats.syncs - before.syncs) / as_float(records);
    Ok(figure(name, latencies.len() as u64, took, Some(syncs), latencies))
}

fn group(number: u64) -> GroupReplica {
    GroupReplica { group: GroupId::new(number), replica: ReplicaId::new(1) }
}

fn log_id(index: u64) -> LogId {
    LogId { term: Term::new(1), index: LogIndex::new(index) }
}

/// Fills segments and purges them, until the log has files to recycle.
fn fill_and_purge(log: &CommitLog) -> BenchResult<()> {
    let group = group(0);
    log.add_group(group)?;
    for index in 1..=330 {
        let payload = Bytes::from(vec![1; 1 << 20]);
        wait(log, vec![Record::Entry { group, id: log_id(index), payload }])?;
    }
    wait(log, vec![Record::Purge { group, upto: log_id(330) }])?;
    wait(log, vec![Record::Vote { group, vote: Bytes::new() }])?;
    // A segment is released after a durable batch has recorded it as not needed: two batches later.
    wait(log, vec![Record::Entry { group, id: log_id(331), payload: Bytes::from(vec![1; 60 << 20]) }])?;
    wait(log, vec![Record::Purge { group, upto: log_id(331) }])
}

fn append(log: &CommitLog, group: GroupReplica, index: u64) -> BenchResult<()> {
    let payload = Bytes::from(vec![7; RECORD_BYTES]);
    let mut records = vec![Record::Entry { group, id: log_id(index), payload }];
    if index.is_multiple_of(RETAINED_ENTRIES) {
        records.push(Record::Purge { group, upto: log_id(index) });
    }
    wait(log, records)
}

/// Submits and waits until it is durable.
fn wait(log: &CommitLog, records: Vec<Record>) -> BenchResult<()> {
    let (sender, receiver) = mpsc::sync_channel(1);
    log.submit(
        records,
        Box::new(move |result: Result<(), LogError>| {
            let _receiver_waits = sender.send(result);
        }),
    );
    Ok(receiver.recv()??)
}

fn rocksdb_log(dir: &Path, writers: u64, span: Duration) -> BenchResult<Figure> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.enable_statistics();
    let db = DB::open(&options, dir.join("rocksdb"))?;
    let value = vec![7_u8; RECORD_BYTES];
    let started = Instant::now();
    let latencies = in_parallel(writers, span, |writer, ends| {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let mut index = 0_u64;
        timed(ends, || {
            index += 1;
            let key = [writer.to_be_bytes(), index.to_be_bytes()].concat();
            Ok(db.put_opt(key, &value, &synced)?)
        })
    })?;
    let took = started.elapsed();
    let appends = latencies.len() as u64;
    let syncs = as_float(options.get_ticker_count(Ticker::WalFileSynced)) / as_float(appends);
    Ok(figure("RocksDB, log synced", appends, took, Some(syncs), latencies))
}

/// Repeats `work` until `ends` is set. Returns the latency of each call.
fn timed(ends: &AtomicBool, mut work: impl FnMut() -> BenchResult<()>) -> BenchResult<Vec<Duration>> {
    let mut latencies = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        work()?;
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}

/// Runs `work` on this many threads, each with its number, for `span`.
fn in_parallel(
    threads: u64,
    span: Duration,
    work: impl Fn(u64, &AtomicBool) -> BenchResult<Vec<Duration>> + Sync,
) -> BenchResult<Vec<Duration>> {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let (work, ends) = (&work, &ends);
                    move || work(number, ends)
                })
            })
            .collect();
        std::thread::sleep(span);
        ends.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for handle in handles {
            all.extend(handle.join().map_err(|_panic| "a writer panicked")??);
        }
        Ok(all)
    })
}
