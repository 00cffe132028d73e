//! Goodput of a cluster in one process under three times the load that it can carry.
//!
//! ```sh
//! taskset -c 0 target/release/examples/overload target/release/ebla [SECONDS] [CONNECTIONS] [--peer]
//! ```
//!
//! The cluster has one processor and the load another one. For conditional writes, reads with a filter, and writes: first a
//! closed loop finds the capacity. Then calls arrive at three times that rate on `CONNECTIONS` connections (default 8), whether earlier ones have been
//! answered or not, for `SECONDS` (default 60). Goodput is what was answered within a second of its planned start. After that time a call
//! is abandoned, wherever it is. Calls that are refused are not repeated. Elections won meanwhile are counted. The shares of their processors that the
//! cluster and the load use say which of both is the limit. Then the closed loop runs again, second by second;
//! the goodput is also printed as a share of the mean of both closed loops, because the speed of a shared machine changes within a minute.
//!
//! The server tells how many calls it accepts on a connection; further ones wait in the client, in their order. There are two sorts of client,
//! measured one after the other:
//!
//! - *patient*: calls wait there until they are abandoned, as HTTP/2 libraries do. Under overload each call is then sent when its second is nearly over.
//! - *impatient*: calls that have waited for half a second are not sent any more, as with the timeout of a connection pool.
//!
//! With `--peer` the connections begin as those of a peer do, so that the server accepts 4,096 calls on each, and none waits in the client.
//!
//! Writes are the cheapest calls: a refusal costs the server not much less than one. The load has connections of its own (`support/connection.rs`), because
//! a client of a library would need more processor than the cluster.

#[path = "support/connection.rs"]
mod connection;
#[path = "support/up.rs"]
mod up;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser as _;
use connection::Connection;
use ebla_runtime::Runtime;
use ebla_runtime::net::Origin;
use ebla_runtime::peer::PREAMBLE;
use ebla_workload::bench::bigtable::encoded;
use ebla_workload::bench::closed_loop::{self, LoopResult};
use ebla_workload::bench::processes::{Processes, thread_time};
use ebla_workload::bench::target::{Client, Target};
use ebla_workload::bench::{Values, Workload};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use up::Up;

const ROWS: u64 = 20_000;
const TABLETS: u64 = 12;
const VALUE_BYTES: usize = 100;
/// Clients of the closed loop.
const CLIENTS: usize = 128;
/// The offered rate, as a multiple of the capacity.
const TIMES: f64 = 3.0;
/// Clients that share a connection of [`Target`].
const CLIENTS_PER_CONNECTION: usize = 16;
/// Time after its planned start when a caller abandons its call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which an impatient client keeps a call that it cannot send.
const QUEUED_MAX: Duration = Duration::from_millis(500);
/// Arrivals are grouped by this interval.
const STEP: Duration = Duration::from_millis(2);
/// Length of the measurement of the capacity.
const CAPACITY: Duration = Duration::from_secs(10);
/// Seconds of the closed loop after the overload.
const AFTER: usize = 10;
/// Groups whose leader has changed, by election or transfer.
const LEADERS: &str = "ebla_raft_elections_won_total";
/// Leaderships that were transferred.
const TRANSFERS: &str = "ebla_raft_leadership_transfers_total";
/// The processor of the cluster.
const CLUSTER_PROCESSOR: &str = "1";

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: String,
    /// Length of the overload in seconds
    #[arg(default_value_t = 60)]
    seconds: u64,
    /// Connections of the load
    #[arg(default_value_t = 8)]
    connections: usize,
    /// Connections like those of a peer, with 4,096 calls each
    #[arg(long)]
    peer: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Ok(tokio) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else { return ExitCode::FAILURE };
    let run = Box::pin(run(&arguments));
    match tokio.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let length = Duration::from_secs(arguments.seconds);
    let connections = arguments.connections.max(1);
    let origin = if arguments.peer { Origin::Peer } else { Origin::Public };
    for workload in [Workload::Check, Workload::Filtered, Workload::Write] {
        let runtime = Runtime::system("overload");
        let (up, addresses) = Up::start(&["taskset", "-c", CLUSTER_PROCESSOR, &arguments.ebla]).await?;
        let load = Load::new(&runtime, &addresses, workload, connections, origin).await?;
        let name = workload.name();
        let used = Used::now(&runtime, &up);
        let capacity = load.closed(CAPACITY).await?.per_second();
        println!(
            "{name}: capacity {capacity:.0}/s with {CLIENTS} clients; {}; {connections} connections of {} calls",
            used.shares(&Used::now(&runtime, &up)),
            load.streams_max
        );
        let mut before = capacity;
        for patience in [Patience::Patient, Patience::Impatient] {
            let (leaders, transfers) = (up.counter(LEADERS).await?, up.counter(TRANSFERS).await?);
            let used = Used::now(&runtime, &up);
            let outcome = load.open(before * TIMES, length, patience).await;
            let shares = used.shares(&Used::now(&runtime, &up));
            let goodput = outcome.answered as f64 / length.as_secs_f64();
            println!(
                "{name}, {patience:?}: offered {:.0}/s for {} s: goodput {goodput:.0}/s, {:.0} % of the capacity; \
                 refused {}, abandoned {}, not sent {}; {shares}; new leaders {}, of these by transfer {}",
                before * TIMES,
                length.as_secs(),
                goodput / before * 100.0,
                outcome.refused,
                outcome.abandoned,
                outcome.not_sent,
                up.counter(LEADERS).await?.saturating_sub(leaders),
                up.counter(TRANSFERS).await?.saturating_sub(transfers),
            );
            let mut sum = 0.0;
            for second in 1..=AFTER {
                let after = load.closed(Duration::from_secs(1)).await?;
                println!("{name}: {second} s later: {:.0}/s, {} errors", after.per_second(), after.errors);
                sum += after.per_second();
            }
            let after = sum / AFTER as f64;
            // The speed of a shared machine changes within a minute.
            let share = goodput / ((before + after) / 2.0) * 100.0;
            println!("{name}, {patience:?}: {share:.0} % of the mean of {before:.0}/s before and {after:.0}/s after");
            before = after;
        }
    }
    Ok(())
}

/// The processor time that the cluster and the load have used.
struct Used {
    at: Duration,
    cluster: Duration,
    load: Duration,
}

impl Used {
    fn now(runtime: &Runtime, up: &Up) -> Self {
        let of = |pid| thread_time(pid).unwrap_or_default();
        Self { at: runtime.clock.monotonic(), cluster: of(up.pid()), load: of(std::process::id()) }
    }

    /// The share of its processor that each has used until `later`.
    fn shares(&self, later: &Self) -> String {
        let percent = |before: Duration, after: Duration| {
            after.saturating_sub(before).as_secs_f64() / later.at.saturating_sub(self.at).as_secs_f64() * 100.0
        };
        let (cluster, load) = (percent(self.cluster, later.cluster), percent(self.load, later.load));
        format!("processors: cluster {cluster:.0} %, load {load:.0} %")
    }
}

/// What a client does with calls that it cannot send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// It keeps them until they are abandoned.
    Patient,
    /// It keeps them for [`QUEUED_MAX`].
    Impatient,
}

/// The concurrent calls that the server at `address` accepts on a connection: HTTP/2's `SETTINGS_MAX_CONCURRENT_STREAMS`, in its first frame
/// (RFC 9113, sections 3.4, 4.1 and 6.5).
async fn streams_max(runtime: &Runtime, address: &str, origin: Origin) -> io::Result<usize> {
    let mut connection = runtime.net.connect(address).await?;
    if origin == Origin::Peer {
        connection.write_all(PREAMBLE).await?;
    }
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    connection.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    let [high, middle, low, ..] = {
        let mut header = [0; 9];
        connection.read_exact(&mut header).await?;
        header
    };
    let mut settings = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(0)];
    connection.read_exact(&mut settings).await?;
    let limit = settings.chunks_exact(6).find_map(|setting| match setting {
        [0, 3, a, b, c, d] => usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok(),
        _ => None,
    });
    Ok(limit.unwrap_or(Semaphore::MAX_PERMITS))
}

/// What became of the calls that arrived.
#[derive(Debug, Default)]
struct Outcome {
    answered: u64,
    refused: u64,
    abandoned: u64,
    not_sent: u64,
}

/// Counters of calls that end at any time.
#[derive(Debug, Default)]
struct Counters {
    answered: AtomicU64,
    refused: AtomicU64,
    abandoned: AtomicU64,
    not_sent: AtomicU64,
    in_flight: AtomicU64,
}

/// A load of one kind on a table.
struct Load {
    runtime: Runtime,
    target: Target,
    values: Arc<Values>,
    workload: Workload,
    streams_max: usize,
    /// The connections of the overload, each with its streams that are free.
    connections: Vec<(Arc<Connection>, Arc<Semaphore>)>,
}

/// A client of the closed loop.
struct Random {
    client: Client,
    runtime: Runtime,
    values: Arc<Values>,
    workload: Workload,
}

impl closed_loop::Client for Random {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let number = self.runtime.rng.below(ROWS);
        let answer = self.client.request(self.workload, number, ROWS, &self.values).await;
        answer.map(|()| Some(1)).map_err(|status| status.to_string())
    }
}

impl Load {
    async fn new(
        runtime: &Runtime,
        addresses: &str,
        workload: Workload,
        connections: usize,
        origin: Origin,
    ) -> Result<Self, Box<dyn Error>> {
        let clients = connections * CLIENTS_PER_CONNECTION;
        let target = Target::new(runtime, "up", addresses, Processes::default(), clients).await?.with_origin(origin);
        target.create(ROWS, TABLETS).await?;
        let values = Arc::new(Values::new(runtime, VALUE_BYTES));
        let mut client = target.client(0).ok_or("no address to write to")?;
        let rows: Vec<u64> = (0..ROWS).collect();
        for part in rows.chunks(500) {
            client.write_rows(part, &values).await?;
        }
        let streams_max = streams_max(runtime, addresses.split(',').next().unwrap_or_default(), origin).await?;
        let mut open = Vec::new();
        for address in addresses.split(',').cycle().take(connections) {
            let connection = Connection::open(runtime, address, origin).await?;
            open.push((Arc::new(connection), Arc::new(Semaphore::new(streams_max))));
        }
        Ok(Self { runtime: runtime.clone(), target, values, workload, streams_max, connections: open })
    }

    async fn closed(&self, length: Duration) -> Result<LoopResult, Box<dyn Error>> {
        let one = |number| {
            let client = self.target.client(number)?;
            let (runtime, values) = (self.runtime.clone(), Arc::clone(&self.values));
            Some(Random { client, runtime, values, workload: self.workload })
        };
        let clients = (0..CLIENTS).filter_map(one).collect();
        Ok(closed_loop::run(&self.runtime, clients, Some(length)).await?)
    }

    /// Sends `rate` calls a second for `length`, and waits for the last ones.
    async fn open(&self, rate: f64, length: Duration, patience: Patience) -> Outcome {
        /// Calls that this program can have in flight.
        const IN_FLIGHT_MAX: u64 = 300_000;
        let counters = Arc::new(Counters::default());
        let (mut started, mut skipped) = (0_u64, 0_u64);
        let began = self.runtime.clock.monotonic();
        let mut ticks = tokio::time::interval(STEP);
        loop {
            ticks.tick().await;
            let elapsed = self.runtime.clock.monotonic().saturating_sub(began);
            if elapsed >= length {
                break;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count")]
            let due = (rate * elapsed.as_secs_f64()) as u64;
            while started + skipped < due {
                if counters.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                    skipped += 1;
                    continue;
                }
                let planned = began + Duration::from_secs_f64((started + skipped) as f64 / rate);
                started += 1;
                self.start(started, planned, patience, &counters);
            }
        }
        while counters.in_flight.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(STEP).await;
        }
        Outcome {
            answered: counters.answered.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            abandoned: counters.abandoned.load(Ordering::Relaxed),
            not_sent: counters.not_sent.load(Ordering::Relaxed) + skipped,
        }
    }

    /// Starts a call whose start was planned for `planned`.
    fn start(&self, number: u64, planned: Duration, patience: Patience, counters: &Arc<Counters>) {
        let at = usize::try_from(number).unwrap_or(0) % self.connections.len();
        let Some((connection, streams)) = self.connections.get(at).cloned() else { return };
        let Some((method, message)) = encoded(self.workload, self.runtime.rng.below(ROWS), ROWS, &self.values) else {
            return;
        };
        let Ok(uri) = connection.uri(method) else { return };
        let (clock, counters) = (self.runtime.clock.clone(), Arc::clone(counters));
        counters.in_flight.fetch_add(1, Ordering::Relaxed);
        self.runtime.tasks.spawn("call", async move {
            let left = |of: Duration| of.saturating_sub(clock.monotonic().saturating_sub(planned));
            let place = match patience {
                Patience::Patient => Ok(None),
                Patience::Impatient => tokio::time::timeout(left(QUEUED_MAX), streams.acquire()).await.map(Result::ok),
            };
            let count = match place {
                Err(_elapsed) => &counters.not_sent,
                Ok(_place) => match tokio::time::timeout(left(PATIENCE), connection.call(uri, &message)).await {
                    Ok(Ok(true)) => &counters.answered,
                    Ok(_refused) => &counters.refused,
                    Err(_elapsed) => &counters.abandoned,
                },
            };
            count.fetch_add(1, Ordering::Relaxed);
            counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
