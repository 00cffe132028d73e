//! Memory of a cluster in one process whose clients open reads of large rows and never read the responses.
//!
//! ```sh
//! target/release/examples/unread target/release/ebla [STREAMS] [ROW_KIB] [CONNECTIONS]
//! ```
//!
//! The table has 16 rows. Each of the streams (default 4,096, a thousand on a connection, as many as a server allows) reads all of them, and its
//! client reads nothing beyond the headers. Meanwhile another client reads one row through a connection of its own, again and again. The measurement ends
//! early when the cluster holds more than `RESIDENT_MAX`, so that it does not take the machine's memory.

#[path = "support/up.rs"]
mod up;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use ebla_proto::data;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::target::Target;
use ebla_workload::bench::{Values, Workload};
use futures::StreamExt as _;
use tonic::transport::Channel;
use up::Up;

/// The table that [`Target`] creates.
const TABLE: &str = "projects/bench/instances/bench/tables/bench";
const ROWS: u64 = 16;
const FULL: Duration = Duration::from_secs(20);
/// The streams of a connection that a server allows (`ebla_runtime::serve::PUBLIC_STREAMS_MAX`).
const STREAMS_PER_CONNECTION: usize = 1_000;
/// Streams between two lines of the report.
const STEP: usize = 256;
/// Streams that are opened at the same time.
const OPENING: usize = 64;
const RESIDENT_MAX: u64 = 8 << 30;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(program) = arguments.first() else {
        eprintln!("usage: unread EBLA [STREAMS] [ROW_KIB] [CONNECTIONS]");
        return ExitCode::FAILURE;
    };
    let number = |at: usize, default| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let Ok(tokio) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else { return ExitCode::FAILURE };
    let streams: usize = number(1, 4_096);
    let connections = number(3, streams.div_ceil(STREAMS_PER_CONNECTION));
    if connections * STREAMS_PER_CONNECTION < streams {
        eprintln!("unread: {streams} streams need more connections: a server allows {STREAMS_PER_CONNECTION} on each");
        return ExitCode::FAILURE;
    }
    let run = Box::pin(run(program, streams, number(2, 1_024) << 10, connections));
    match tokio.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unread: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(program: &str, streams: usize, row_bytes: usize, connections: usize) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::system("unread");
    let (up, addresses) = Up::start(&[program]).await?;
    let memory = Processes::parse(&up.pid().to_string())?;
    let target = Target::new(&runtime, "up", &addresses, Processes::default(), 1).await?;
    target.create(ROWS, 1).await?;
    let values = Values::new(&runtime, row_bytes);
    let mut other = target.client(0).ok_or("no address to write to")?;
    for row in 0..ROWS {
        other.write_rows(&[row], &values).await?;
    }
    let resident = || memory.resident_bytes().unwrap_or_default();
    println!(
        "{ROWS} rows of {} KiB, {connections} connections; resident at first: {} MiB",
        row_bytes >> 10,
        resident() >> 20
    );
    let address = addresses.split(',').next().unwrap_or_default();
    let clients: Vec<_> = (0..connections)
        .map(|_| BigtableClient::new(runtime.net.channel(address)).max_decoding_message_size(256 << 20))
        .collect();
    let (mut held, mut refused) = (Vec::new(), 0_usize);
    for first in (0..streams).step_by(STEP) {
        let opening = (first..(first + STEP).min(streams)).map(|number| open(&clients, number));
        let mut opened = futures::stream::iter(opening).buffer_unordered(OPENING);
        while let Some(opened) = opened.next().await {
            match opened {
                Some(stream) => held.push(stream),
                None => refused += 1,
            }
        }
        drop(opened);
        report(&runtime, held.len(), refused, resident(), &mut other, &values).await;
        if resident() > RESIDENT_MAX {
            println!("ended early: more than {} MiB", RESIDENT_MAX >> 20);
            break;
        }
    }
    tokio::time::sleep(FULL).await;
    println!("{} s later:", FULL.as_secs());
    report(&runtime, held.len(), refused, resident(), &mut other, &values).await;
    Ok(())
}

/// A read of all rows whose headers have arrived; `None` if it is refused.
async fn open(clients: &[BigtableClient<Channel>], number: usize) -> Option<tonic::Streaming<data::ReadRowsResponse>> {
    let mut client = clients.get(number % clients.len())?.clone();
    let request = data::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let opened = tokio::time::timeout(Duration::from_secs(30), client.read_rows(request)).await;
    Some(opened.ok()?.ok()?.into_inner())
}

async fn report(
    runtime: &Runtime,
    held: usize,
    refused: usize,
    resident: u64,
    other: &mut ebla_workload::bench::target::Client,
    values: &Values,
) {
    let started = runtime.clock.monotonic();
    let read = tokio::time::timeout(Duration::from_secs(30), other.request(Workload::Read, 0, ROWS, values)).await;
    let took = runtime.clock.monotonic().saturating_sub(started);
    let outcome = match read {
        Ok(Ok(())) => "answered".to_owned(),
        Ok(Err(status)) => format!("{}", status.code()),
        Err(_elapsed) => "no answer".to_owned(),
    };
    println!(
        "{held} streams, {refused} refused: {} MiB; another client: {outcome} after {} ms",
        resident >> 20,
        took.as_millis()
    );
}
