//! Would a second log file help when a sync is slow? The algorithm of the paper (section 6, "Commit-log implementation": two log
//! writing threads, each with a file of its own, one active at a time) on bare files, before anything is built.
//!
//! One batch after the other is written and synced. With two files, a batch whose sync takes longer than a threshold is written to the
//! other file too, which is the active one from then on; the batch is durable when one of them has it. Each round measures
//! both ways under the same disturbance, in alternation:
//!
//! ```text
//!   quiet      nothing else uses the disk
//!   files      two threads write files of 64 MiB and sync them, as flushes and compactions do
//!   device     a tenth of a percent of the syncs find a device that stands still for 200 ms, for all files: a slow disk
//!   path       the same stall, but of one file only: as in GFS, where the other file is on other machines
//! ```
//!
//! `cargo run --release -p ebla-storage --example two_logs [-- FOLDER [BATCHES [ROUNDS]]]`

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a batch: a few rows.
const BATCH: usize = 4_096;
/// Bytes of a log file, allocated beforehand as the product does, and overwritten from the start again.
const FILE_BYTES: u64 = 16 << 20;
/// A sync that takes longer is slow: about ten times the usual one.
const THRESHOLD: Duration = Duration::from_millis(10);
/// Of a simulated stall.
const STALL: Duration = Duration::from_millis(200);
/// One of this number of syncs stalls.
const STALL_EVERY: u64 = 1_000;
/// Of a file that a disturbing thread writes.
const DISTURBANCE_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Quiet,
    Files,
    Device,
    Path,
}

fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(|| std::env::temp_dir().join("ebla-two-logs"), PathBuf::from);
    let batches = arguments.next().map_or(Ok(3_000), |text| text.parse())?;
    let rounds = arguments.next().map_or(Ok(3), |text| text.parse())?;
    std::fs::create_dir_all(&dir)?;
    println!("{batches} batches of {BATCH} bytes in each of {rounds} rounds; microseconds, but switches");
    println!("{:<8}{:<8}{:>9}{:>9}{:>9}{:>9}{:>10}", "", "files", "p50", "p99", "p99.9", "longest", "switches");
    for (name, disturbance) in [
        ("quiet", Disturbance::Quiet),
        ("files", Disturbance::Files),
        ("device", Disturbance::Device),
        ("path", Disturbance::Path),
    ] {
        let mut taken = [Vec::new(), Vec::new()];
        let mut switches = 0;
        for _round in 0..rounds {
            let [one, two] = &mut taken;
            disturbed(&dir, disturbance, || {
                append(&dir, batches, disturbance, 1, one)?;
                switches += append(&dir, batches, disturbance, 2, two)?;
                Ok(())
            })?;
        }
        for (files, taken) in taken.iter_mut().enumerate() {
            taken.sort_unstable();
            println!(
                "{name:<8}{:<8}{:>9}{:>9}{:>9}{:>9}{:>10}",
                files + 1,
                per_mille(taken, 500),
                per_mille(taken, 990),
                per_mille(taken, 999),
                per_mille(taken, 1_000),
                if files == 0 { "-".to_owned() } else { switches.to_string() },
            );
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Microseconds.
fn per_mille(sorted: &[Duration], part: usize) -> u128 {
    sorted.get(sorted.len() * part / 1_000).or(sorted.last()).map_or(0, Duration::as_micros)
}

/// Calls `measure` while the threads of this disturbance, if it has any, write.
fn disturbed(dir: &Path, disturbance: Disturbance, measure: impl FnOnce() -> BenchResult<()>) -> BenchResult<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let count = if disturbance == Disturbance::Files { 2 } else { 0 };
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (is_over, path) = (Arc::clone(&is_over), dir.join(format!("disturbance-{number}")));
            thread::spawn(move || -> std::io::Result<()> {
                let bytes = vec![7; DISTURBANCE_BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    let file = File::create(&path)?;
                    file.write_all_at(&bytes, 0)?;
                    file.sync_data()?;
                }
                Ok(())
            })
        })
        .collect();
    let measured = measure();
    is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_panic| "a disturbing thread failed")??;
    }
    measured
}

/// A log file with its writing thread.
struct Log {
    orders: mpsc::Sender<u64>,
    is_busy: bool,
}

/// Appends batches to one of `files` logs at a time. Adds the time until each was durable; returns how often the active log changed.
fn append(
    dir: &Path,
    batches: u64,
    disturbance: Disturbance,
    files: usize,
    taken: &mut Vec<Duration>,
) -> BenchResult<u64> {
    let (sender, done) = mpsc::channel();
    let device = Arc::new(Mutex::new(0));
    let mut logs = Vec::new();
    for number in 0..files {
        let path = dir.join(format!("log-{number}"));
        // With a path of its own a file has its own stalls.
        let stalls = if disturbance == Disturbance::Path { Arc::new(Mutex::new(0)) } else { Arc::clone(&device) };
        let can_stall = matches!(disturbance, Disturbance::Device | Disturbance::Path);
        logs.push(start(&path, number, can_stall.then_some(stalls), sender.clone())?);
    }
    let (mut active, mut switches) = (0, 0);
    for batch in 0..batches {
        let began = Instant::now();
        order(&mut logs, active, batch)?;
        let mut has_switched = false;
        loop {
            let wait = if has_switched { Duration::from_secs(60) } else { THRESHOLD };
            match done.recv_timeout(wait) {
                Ok((log, finished)) => {
                    let finished: std::io::Result<u64> = finished;
                    if let Some(log) = logs.get_mut::<usize>(log) {
                        log.is_busy = false;
                    }
                    // The late sync of an earlier batch is no answer.
                    if finished? == batch {
                        break;
                    }
                }
                Err(_late) => {
                    let other = (active + 1) % files;
                    if logs.get(other).is_some_and(|log| !log.is_busy) {
                        order(&mut logs, other, batch)?;
                        (active, has_switched) = (other, true);
                        switches += 1;
                    }
                }
            }
        }
        taken.push(began.elapsed());
    }
    Ok(switches)
}

fn order(logs: &mut [Log], number: usize, batch: u64) -> BenchResult<()> {
    let log = logs.get_mut(number).ok_or("no such log")?;
    log.is_busy = true;
    log.orders.send(batch)?;
    Ok(())
}

/// Starts the thread of a log, which ends with its orders. `stalls` counts syncs; the one that stalls holds the lock meanwhile, and so
/// delays every sync that shares it.
fn start(
    path: &Path,
    number: usize,
    stalls: Option<Arc<Mutex<u64>>>,
    done: mpsc::Sender<(usize, std::io::Result<u64>)>,
) -> BenchResult<Log> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    file.write_all_at(&vec![0; usize::try_from(FILE_BYTES)?], 0)?;
    file.sync_all()?;
    let (orders, received) = mpsc::channel();
    thread::spawn(move || {
        let bytes = [3; BATCH];
        for batch in received {
            let at = batch * BATCH as u64 % FILE_BYTES;
            let written = file.write_all_at(&bytes, at).and_then(|()| {
                if let Some(stalls) = &stalls {
                    let mut syncs = stalls.lock();
                    *syncs += 1;
                    if *syncs % STALL_EVERY == 0 {
                        thread::sleep(STALL);
                    }
                }
                file.sync_data()
            });
            // A receiver that is gone has all its answers.
            let _gone = done.send((number, written.map(|()| batch)));
        }
    });
    Ok(Log { orders, is_busy: false })
}
