//! How long tablet servers need to serve again after `kill -9`: what they had not written into SSTables is replayed from the commit log
//! (paper, section 5.3 "Tablet Serving" and section 6 "Speeding up tablet recovery").
//!
//! ```text
//!   1. three tablet servers, a master and an etcd, each a process; a table of TABLETS tablets; MEGABYTES of rows in batches
//!   2. one server is killed:        until every tablet accepts a write through the other two (failover)
//!                                   until the killed one, started again, reports all its groups
//!   3. all three are killed while they write: until every tablet accepts a write (recovery from the logs, all on the same processors)
//! ```
//!
//! Before each kill the bytes of the commit logs and SSTables of each server are printed. A server reads its whole log once; it applies what its
//! memtables held: at most `StoreOptions::write_buffer_bytes` for each group, and `memtable_bytes` in all.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example recovery -- target/release/ebla [MEGABYTES [TABLETS]]
//! ```

#[path = "support/stored_bytes.rs"]
mod stored_bytes;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ebla_client::Admin;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::bench::Values;
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::target::Target;
use futures::StreamExt as _;

use crate::stored_bytes::stored_bytes;

const SERVERS: usize = 3;
const VALUE_BYTES: usize = 1_000;
/// Rows of a request.
const BATCH: u64 = 100;
/// Clients that write at the same time.
const CLIENTS: usize = 8;
/// The timeout of one write to a tablet that recovers; it is sent again.
const WRITE_MAX: Duration = Duration::from_millis(250);
/// The pause before refused writes are sent again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it writes again before all servers are killed.
const LOADING: Duration = Duration::from_secs(10);
/// How long recovery may take.
const SERVED_MAX: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(program) = arguments.first() else {
        eprintln!("usage: recovery EBLA [MEGABYTES [TABLETS]]");
        return ExitCode::FAILURE;
    };
    let number = |position: usize, default: u64| match arguments.get(position) {
        Some(text) => text.parse().map_err(|error| format!("{text}: {error}")),
        None => Ok(default),
    };
    let outcome = match (number(1, 1_000), number(2, 100)) {
        (Ok(megabytes), Ok(tablets)) => Box::pin(run(program, megabytes, tablets)).await,
        (Err(error), _) | (_, Err(error)) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("recovery: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(program: &str, megabytes: u64, tablets: u64) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::system("recovery");
    let plan = Plan { masters: 1, build: Build::newest(), ..Plan::new(program, SERVERS) };
    let mut cluster = ProcessCluster::start(plan, Loopback::claim()?, &runtime).await?;
    let servers: Vec<_> = (0..SERVERS).map(Node::TabletServer).collect();
    let addresses = cluster.addresses();
    let batches = (megabytes * 1_000_000 / VALUE_BYTES as u64).div_ceil(BATCH);
    let table = Table::new(&addresses, batches, tablets, &runtime).await?;
    table.target.create(batches * BATCH, tablets).await?;
    table.load(0..batches).await?;
    let groups = async || -> Result<usize, Box<dyn Error>> {
        let address = addresses.first().ok_or("the cluster has no address")?;
        Ok(Admin::connect(address, &runtime).groups().await?.len())
    };
    println!("{} rows of {VALUE_BYTES} bytes in {tablets} tablets, {} groups", batches * BATCH, groups().await?);
    print_bytes(&cluster.folder().join("data"))?;

    let clock = &runtime.clock;
    let others: Vec<_> = addresses.iter().skip(1).cloned().collect();
    let through_others = Table::new(&others, batches, tablets, &runtime).await?;
    through_others.write_each(clock).await?;
    let killed = clock.monotonic();
    cluster.kill(Node::TabletServer(0)).await?;
    through_others.write_each(clock).await?;
    println!(
        "one server killed: every tablet accepts a write after {:.1} s",
        (clock.monotonic() - killed).as_secs_f64()
    );
    let started = clock.monotonic();
    cluster.restart(Node::TabletServer(0)).await?;
    cluster.wait_ready(&[Node::TabletServer(0)]).await?;
    println!("  started again: ready after {:.1} s", (clock.monotonic() - started).as_secs_f64());
    cluster.wait_healthy().await?;

    // Killed while it writes, when the memtables are as full as they get.
    tokio::select! {
        loaded = table.load(0..batches) => loaded?,
        () = tokio::time::sleep(LOADING) => {}
    }
    println!("before all are killed, with {} groups:", groups().await?);
    print_bytes(&cluster.folder().join("data"))?;
    let killed = clock.monotonic();
    cluster.kill_all(&servers).await?;
    for server in &servers {
        cluster.restart(*server).await?;
    }
    cluster.wait_ready(&servers).await?;
    println!("all servers killed and started: ready after {:.1} s", (clock.monotonic() - killed).as_secs_f64());
    table.write_each(clock).await?;
    println!("  every tablet accepts a write after {:.1} s", (clock.monotonic() - killed).as_secs_f64());
    Ok(())
}

/// A table with `batches * BATCH` rows, and clients on some servers.
struct Table {
    target: Target,
    batches: u64,
    tablets: u64,
    values: Values,
}

impl Table {
    async fn new(addresses: &[String], batches: u64, tablets: u64, runtime: &Runtime) -> Result<Self, Box<dyn Error>> {
        let clients = CLIENTS * 16;
        let target = Target::new(runtime, "ebla", &addresses.join(","), Processes::default(), clients).await?;
        Ok(Self { target, batches, tablets, values: Values::new(runtime, VALUE_BYTES) })
    }

    /// Writes these batches. Each has every `batches`th row, so that all tablets get some of it.
    async fn load(&self, batches: std::ops::Range<u64>) -> Result<(), Box<dyn Error>> {
        let one = |(number, batch): (usize, u64)| async move {
            let rows: Vec<u64> = (0..BATCH).map(|row| row * self.batches + batch).collect();
            self.write(number % CLIENTS, &rows).await
        };
        let mut written = futures::stream::iter(batches.enumerate()).map(one).buffer_unordered(CLIENTS);
        while let Some(batch) = written.next().await {
            batch?;
        }
        Ok(())
    }

    /// Returns when every tablet has accepted a write since this call. Each is asked again and again by itself: one that is not served does
    /// not delay the others.
    async fn write_each(&self, clock: &ebla_runtime::Clock) -> Result<(), Box<dyn Error>> {
        let deadline = clock.monotonic() + SERVED_MAX;
        let tablets = (0..self.tablets).map(|tablet| self.write_to(tablet, deadline, clock));
        let mut accepted = futures::stream::iter(tablets).buffer_unordered(CLIENTS * 16);
        while let Some(tablet) = accepted.next().await {
            tablet?;
        }
        Ok(())
    }

    /// Returns when this tablet has accepted a write.
    async fn write_to(
        &self,
        tablet: u64,
        deadline: Duration,
        clock: &ebla_runtime::Clock,
    ) -> Result<(), Box<dyn Error>> {
        let row = [tablet * self.batches * BATCH / self.tablets];
        let client = usize::try_from(tablet)?;
        loop {
            let error = match tokio::time::timeout(WRITE_MAX, self.write(client, &row)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            if clock.monotonic() > deadline {
                return Err(format!("tablet {tablet} accepts no write: {error}").into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn write(&self, client: usize, rows: &[u64]) -> Result<(), Box<dyn Error>> {
        let mut client = self.target.client(client).ok_or("no address to write to")?;
        client.write_rows(rows, &self.values).await.map_err(|status| status.message().to_owned().into())
    }
}

/// Prints the bytes of files of each kind in each folder of a tablet server.
fn print_bytes(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut folders: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    folders.sort_by_key(fs::DirEntry::file_name);
    for folder in folders {
        let name = folder.file_name().to_string_lossy().into_owned();
        let [log, tables] = stored_bytes(&folder.path())?.map(|bytes| bytes / 1_000_000);
        if tables > 0 || log > 0 {
            println!("  {name}: commit log {log} MB, SSTables {tables} MB");
        }
    }
    Ok(())
}
