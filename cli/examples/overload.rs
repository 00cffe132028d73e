//! Goodput of a cluster in one process under three times the load that it can carry.
//!
//! ```sh
//! taskset -c 0 target/release/examples/overload target/release/ebla [SECONDS]
//! ```
//!
//! The cluster has one processor and the load another one. For conditional writes, reads with a filter, and writes: first a
//! closed loop finds the capacity. Then calls arrive at three times that rate, whether earlier ones have been answered or not,
//! for `SECONDS` (default 60). Each call is abandoned after a second, and goodput is what was answered before. Calls that are
//! refused are not repeated. Then the closed loop runs again, second by second.
//! Writes are the cheapest calls: a refusal costs the server not much less than one.

#[path = "support/up.rs"]
mod up;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_workload::bench::closed_loop::{self, LoopResult};
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::target::{Client, Target};
use ebla_workload::bench::{Values, Workload};
use up::Up;

const ROWS: u64 = 20_000;
const TABLETS: u64 = 12;
const VALUE_BYTES: usize = 100;
/// Clients of the closed loop.
const CLIENTS: usize = 128;
/// The offered rate, as a multiple of the capacity.
const TIMES: f64 = 3.0;
/// Time after which a caller abandons its call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Arrivals are grouped by this interval.
const STEP: Duration = Duration::from_millis(2);
/// Length of the measurement of the capacity.
const CAPACITY: Duration = Duration::from_secs(10);
/// Seconds of the closed loop after the overload.
const AFTER: usize = 10;
/// The processor of the cluster.
const CLUSTER_PROCESSOR: &str = "1";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(program) = arguments.first() else {
        eprintln!("usage: overload EBLA [SECONDS]");
        return ExitCode::FAILURE;
    };
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(60);
    let Ok(tokio) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else { return ExitCode::FAILURE };
    let run = Box::pin(run(program, Duration::from_secs(seconds)));
    match tokio.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(program: &str, length: Duration) -> Result<(), Box<dyn Error>> {
    for workload in [Workload::Check, Workload::Filtered, Workload::Write] {
        let runtime = Runtime::system("overload");
        let (_up, addresses) = Up::start(&["taskset", "-c", CLUSTER_PROCESSOR, program]).await?;
        let load = Load::new(&runtime, &addresses, workload).await?;
        let capacity = load.closed(CAPACITY).await?.per_second();
        println!("{}: capacity {capacity:.0}/s with {CLIENTS} clients", workload.name());
        let outcome = load.open(capacity * TIMES, length).await;
        let goodput = outcome.answered as f64 / length.as_secs_f64();
        println!(
            "{}: offered {:.0}/s for {} s: goodput {goodput:.0}/s, {:.0} % of the capacity; refused {}, abandoned {}, not sent {}",
            workload.name(),
            capacity * TIMES,
            length.as_secs(),
            goodput / capacity * 100.0,
            outcome.refused,
            outcome.abandoned,
            outcome.not_sent,
        );
        for second in 1..=AFTER {
            let after = load.closed(Duration::from_secs(1)).await?;
            println!("{}: {second} s later: {:.0}/s, {} errors", workload.name(), after.per_second(), after.errors);
        }
    }
    Ok(())
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
    in_flight: AtomicU64,
}

/// A load of one kind on a table.
struct Load {
    runtime: Runtime,
    target: Target,
    values: Arc<Values>,
    workload: Workload,
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
    async fn new(runtime: &Runtime, addresses: &str, workload: Workload) -> Result<Self, Box<dyn Error>> {
        let target = Target::new(runtime, "up", addresses, Processes::default(), CLIENTS).await?;
        target.create(ROWS, TABLETS).await?;
        let values = Arc::new(Values::new(runtime, VALUE_BYTES));
        let mut client = target.client(0).ok_or("no address to write to")?;
        let rows: Vec<u64> = (0..ROWS).collect();
        for part in rows.chunks(500) {
            client.write_rows(part, &values).await?;
        }
        Ok(Self { runtime: runtime.clone(), target, values, workload })
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
    async fn open(&self, rate: f64, length: Duration) -> Outcome {
        /// Calls that this program can have in flight.
        const IN_FLIGHT_MAX: u64 = 100_000;
        let counters = Arc::new(Counters::default());
        let (mut sent, mut not_sent) = (0_u64, 0_u64);
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
            while sent + not_sent < due {
                if counters.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                    not_sent += 1;
                    continue;
                }
                sent += 1;
                self.send(sent, &counters);
            }
        }
        while counters.in_flight.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(STEP).await;
        }
        Outcome {
            answered: counters.answered.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            abandoned: counters.abandoned.load(Ordering::Relaxed),
            not_sent,
        }
    }

    fn send(&self, number: u64, counters: &Arc<Counters>) {
        let Some(mut client) = self.target.client(usize::try_from(number).unwrap_or(0) % CLIENTS) else { return };
        let (values, counters, workload) = (Arc::clone(&self.values), Arc::clone(counters), self.workload);
        let row = self.runtime.rng.below(ROWS);
        counters.in_flight.fetch_add(1, Ordering::Relaxed);
        self.runtime.tasks.spawn("call", async move {
            let count = match tokio::time::timeout(PATIENCE, client.request(workload, row, ROWS, &values)).await {
                Ok(Ok(())) => &counters.answered,
                Ok(Err(_refused)) => &counters.refused,
                Err(_elapsed) => &counters.abandoned,
            };
            count.fetch_add(1, Ordering::Relaxed);
            counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
