//! Memory of a cluster in one process: empty, while 1 GB is written, at the end, and half a minute later; compared with an etcd of
//! three members with the same rows, if it is installed.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example memory -- target/release/ebla [MEGABYTES]
//! ```
//!
//! The rows have 1,000 incompressible bytes, in 12 tablets. Eight clients write batches of 100 rows each, all
//! over the table. Three copies of each row are on disk before it is acknowledged, or two of three. The resident set counts mapped
//! files too, where etcd stores its rows; `anonymous` can only be reclaimed by swapping. The limits are at the
//! end: below 100 MiB when empty, below 500 MiB from then on.

#[path = "support/up.rs"]
mod up;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_tests::etcd::{Build, EtcdCluster};
use ebla_workload::bench::processes::{Processes, children};
use ebla_workload::bench::target::Target;
use ebla_workload::bench::{Values, row_key};
use futures::StreamExt as _;
use up::Up;

/// Of each row.
const VALUE_BYTES: usize = 1_000;
/// Rows of a request.
const BATCH: u64 = 100;
/// Tablets of the table.
const TABLETS: u64 = 12;
/// Clients that write at the same time.
const CLIENTS: usize = 8;
/// When a system that serves is treated as settled.
const SETTLED: Duration = Duration::from_secs(10);
/// When freed memory has been returned to the system.
const LATER: Duration = Duration::from_secs(30);
/// Limits in MiB.
const EMPTY_MAX: u64 = 100;
const LOADED_MAX: u64 = 500;

/// Memory of all processes of a system according to /proc, in MiB.
#[derive(Clone, Copy, Default)]
struct Memory {
    resident: u64,
    anonymous: u64,
    huge: u64,
    /// The largest resident set so far.
    peak: u64,
}

/// A system's measurements, by the names of the moments.
type Measured = Vec<(&'static str, Memory)>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(program) = arguments.first() else {
        eprintln!("usage: memory EBLA [MEGABYTES]");
        return ExitCode::FAILURE;
    };
    let megabytes = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1_000);
    let Ok(tokio) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else { return ExitCode::FAILURE };
    match tokio.block_on(Box::pin(run(program, megabytes))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("memory: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(program: &str, megabytes: u64) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = Runtime::system("memory");
    let rows = megabytes * 1_000_000 / VALUE_BYTES as u64;
    println!("{rows} rows of {VALUE_BYTES} bytes; all figures in MiB\n");
    println!("{:<6} {:<12} {:>9} {:>9} {:>9} {:>9}", "", "", "resident", "anonymous", "huge", "peak");
    let (up, address) = Up::start(&[program]).await?;
    let measured = measure("up", &address, BTreeSet::from([up.pid()]), rows, &runtime).await?;
    drop(up);
    let before = children(std::process::id());
    match EtcdCluster::start(3, Build::newest()).await {
        Ok(etcd) => {
            let members: BTreeSet<_> = children(std::process::id()).difference(&before).copied().collect();
            let places: Vec<_> = etcd.endpoints().iter().map(|one| one.replace("http://", "etcd://")).collect();
            let theirs = measure("etcd", &places.join(","), members, rows, &runtime).await?;
            println!();
            for ((moment, our), (_, their)) in measured.iter().zip(&theirs) {
                println!("up / etcd, resident: {:.2} {moment}", ratio(our.resident, their.resident));
            }
        }
        Err(skip) => println!("\nno etcd: {}", skip.0),
    }
    let is_kept = measured.iter().all(|(moment, memory)| match *moment {
        "empty" => memory.resident < EMPTY_MAX,
        _ => memory.resident < LOADED_MAX,
    });
    println!(
        "\nbelow {EMPTY_MAX} MiB when empty and {LOADED_MAX} MiB with load: {}",
        if is_kept { "yes" } else { "NO" }
    );
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(
    name: &'static str,
    places: &str,
    processes: BTreeSet<u32>,
    rows: u64,
    runtime: &Runtime,
) -> Result<Measured, Box<dyn Error>> {
    let mut measured = Measured::new();
    let mut note = |moment| {
        let memory = memory(&processes);
        let Memory { resident, anonymous, huge, peak } = memory;
        println!("{name:<6} {moment:<12} {resident:>9} {anonymous:>9} {huge:>9} {peak:>9}");
        measured.push((moment, memory));
    };
    tokio::time::sleep(SETTLED).await;
    note("empty");
    let values = Values::new(runtime, VALUE_BYTES);
    let target = Target::new(runtime, name, places, Processes::default(), CLIENTS * 16).await?;
    target.create(rows, TABLETS).await?;
    let batches = rows / BATCH;
    for (quarter, moment) in ["a quarter", "half", "3 quarters", "all written"].into_iter().enumerate() {
        let quarter = quarter as u64;
        let part = batches * quarter / 4..batches * (quarter + 1) / 4;
        write(&target, part, batches, &values).await?;
        note(moment);
    }
    tokio::time::sleep(LATER).await;
    note("later");
    Ok(measured)
}

/// Writes these batches. Each has every `batches`th row, so that all tablets get some of it.
async fn write(
    target: &Target,
    part: std::ops::Range<u64>,
    batches: u64,
    values: &Values,
) -> Result<(), Box<dyn Error>> {
    let one = |(number, batch): (usize, u64)| async move {
        let mut client = target.client(number % CLIENTS).ok_or("no address to write to")?;
        let rows: Vec<u64> = (0..BATCH).map(|row| row * batches + batch).collect();
        let written = client.write_rows(&rows, values).await;
        written.map_err(|error| format!("write {}: {error}", row_key(batch)).into())
    };
    let mut written = futures::stream::iter(part.enumerate()).map(one).buffer_unordered(CLIENTS);
    while let Some(batch) = written.next().await {
        let () = batch.map_err(|error: Box<dyn Error>| error)?;
    }
    Ok(())
}

/// The sum over these processes; exited ones are skipped.
fn memory(processes: &BTreeSet<u32>) -> Memory {
    let mut sum = Memory::default();
    for pid in processes {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        sum.resident += mebibytes(&status, "VmRSS:");
        sum.anonymous += mebibytes(&status, "RssAnon:");
        sum.peak += mebibytes(&status, "VmHWM:");
        sum.huge += mebibytes(&maps, "AnonHugePages:");
    }
    sum
}

/// The figure behind `name`, which the kernel gives in units of 1,024 bytes.
fn mebibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) / 1024
}

#[expect(clippy::cast_precision_loss, reason = "no system holds 2^52 MiB")]
fn ratio(our: u64, their: u64) -> f64 {
    our as f64 / their as f64
}
