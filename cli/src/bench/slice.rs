//! One slice: so many clients, so long, against one target.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_proto::status;
use ebla_runtime::Runtime;
use futures::future::join_all;
use hdrhistogram::Histogram;

use super::closed::empty;
use super::counters::LogCounters;
use super::processes::Processes;
use super::target::Target;
use super::{Plan, Values, Workload};

/// What one slice gave.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Rows read or written.
    pub rows: u64,
    /// How long it took.
    pub took: Duration,
    /// Latencies of requests, in microseconds.
    pub latencies: Histogram<u64>,
    /// Processor time of the target's processes, where they are known.
    pub cpu_micros: Option<u64>,
    /// Processor time of this process.
    pub generator_micros: Option<u64>,
    /// Times the target's commit logs waited for their disks, where it tells.
    pub syncs: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of one slice are far below 2^52")]
impl Slice {
    /// Rows a second.
    pub fn rows_per_second(&self) -> f64 {
        self.rows as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latencies, in microseconds.
    pub fn quantile_micros(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64
    }

    /// A sum, divided by the rows; `None` when there were none.
    pub fn per_row(&self, sum: u64) -> Option<f64> {
        (self.rows > 0).then(|| sum as f64 / self.rows as f64)
    }
}

/// What is counted before and after.
struct Counted {
    cpu_micros: Option<u64>,
    generator_micros: Option<u64>,
    log: Option<LogCounters>,
}

impl Counted {
    async fn now(runtime: &Runtime, target: &Target) -> Self {
        let log = target.log_counters(runtime).await;
        Self { cpu_micros: target.processes.cpu_micros(), generator_micros: Processes::own().cpu_micros(), log }
    }
}

/// How much a counter has grown.
fn grown(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

/// Runs one slice. The first error ends it: a benchmark of refused requests would flatter.
///
/// # Errors
/// What a client met.
pub async fn run(
    runtime: &Runtime,
    target: &Target,
    workload: Workload,
    clients: usize,
    plan: &Plan,
    values: &Values,
) -> Result<Slice, Error> {
    let before = Counted::now(runtime, target).await;
    let stop = Arc::new(AtomicBool::new(false));
    let started = runtime.clock.monotonic();
    let timer = async {
        tokio::time::sleep(plan.slice).await;
        stop.store(true, Ordering::Relaxed);
    };
    // Each client is a task of its own, so that the generator uses both cores as programs would.
    let mut tasks = Vec::with_capacity(clients);
    for number in 0..clients {
        let client =
            one_client(runtime.clone(), target.clone(), workload, number, plan.rows, values.clone(), stop.clone());
        tasks.push(runtime.tasks.start_until_stopped("bench client", client));
    }
    let (results, ()) = futures::join!(join_all(tasks), timer);
    let elapsed = runtime.clock.monotonic().saturating_sub(started);
    let mut latencies = empty();
    for result in results {
        let one = result.map_err(|_| Error::internal("a bench client ended early"))??;
        latencies.add(one).map_err(|error| Error::internal(error.to_string()))?;
    }
    let after = Counted::now(runtime, target).await;
    let syncs = before.log.zip(after.log).map(|(before, after)| (after - before).syncs);
    Ok(Slice {
        rows: latencies.len() * workload.rows_per_request(),
        took: elapsed,
        latencies,
        cpu_micros: grown(before.cpu_micros, after.cpu_micros),
        generator_micros: grown(before.generator_micros, after.generator_micros),
        syncs,
    })
}

/// Slices of each part in the order A B C, C B A, A B C …, by name: a machine that slowly changes changes all alike.
///
/// # Errors
/// The first that a slice ends with.
pub async fn alternate<T, E>(
    parts: &[T],
    rounds: usize,
    name: impl Fn(&T) -> &str,
    slice: impl AsyncFn(&T) -> Result<Slice, E>,
) -> Result<Vec<(String, Vec<Slice>)>, E> {
    let mut slices: Vec<(String, Vec<Slice>)> = parts.iter().map(|part| (name(part).to_owned(), Vec::new())).collect();
    for round in 0..rounds {
        let mut order: Vec<_> = parts.iter().zip(&mut slices).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (part, (_, done)) in order {
            done.push(slice(part).await?);
        }
    }
    Ok(slices)
}

async fn one_client(
    runtime: Runtime,
    target: Target,
    workload: Workload,
    number: usize,
    rows: u64,
    values: Values,
    stop: Arc<AtomicBool>,
) -> Result<Histogram<u64>, Error> {
    let mut client = target.client(number).ok_or_else(|| Error::internal("the target has no address"))?;
    let rng = runtime.rng.fork();
    let mut latencies = empty();
    while !stop.load(Ordering::Relaxed) {
        let row = rng.below(rows);
        let sent = runtime.clock.monotonic();
        let answer = client.request(workload, row, rows, &values).await;
        answer.map_err(|status| {
            status::from_status(&status).0.context(&format!("{} on {}", workload.name(), target.name))
        })?;
        let took = runtime.clock.monotonic().saturating_sub(sent);
        latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}
