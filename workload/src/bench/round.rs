//! One round: a number of clients, for a duration, against one target.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_proto::status;
use ebla_runtime::Runtime;
use futures::future::join_all;
use hdrhistogram::Histogram;

use super::closed_loop::empty;
use super::counters::ServerCounters;
use super::processes::{Processes, Spent, Usage};
use super::target::Target;
use super::zipfian::Requests;
use super::{Plan, Values, Workload};

/// Result of one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Rows read or written.
    pub rows: u64,
    /// Duration.
    pub took: Duration,
    /// Latencies of requests, in microseconds.
    pub latencies: Histogram<u64>,
    /// What the target's processes spent, if they are known.
    pub spent: Option<Spent>,
    /// Processor time of this process.
    pub generator_micros: Option<u64>,
    /// Growth of the counters of the target's servers, if it reports them.
    pub servers: Option<ServerCounters>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of one round are far below 2^52")]
impl Round {
    /// Rows per second.
    pub fn rows_per_second(&self) -> f64 {
        self.rows as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latencies, in microseconds.
    pub fn quantile_micros(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64
    }

    /// A sum divided by the number of rows; `None` when there were none.
    pub fn per_row(&self, sum: u64) -> Option<f64> {
        (self.rows > 0).then(|| sum as f64 / self.rows as f64)
    }
}

/// Counters read before and after a round.
struct Counted {
    usage: Option<Usage>,
    generator_micros: Option<u64>,
    servers: Option<ServerCounters>,
}

impl Counted {
    async fn now(target: &Target) -> Self {
        let servers = target.server_counters().await;
        Self { usage: target.processes.usage(), generator_micros: Processes::own().cpu_micros(), servers }
    }
}

/// Growth of a counter.
fn grown(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

/// Runs one round. The first error aborts it: refused requests are fast and would improve the result.
///
/// # Errors
/// The first error of a client.
pub async fn run(
    runtime: &Runtime,
    target: &Target,
    workload: Workload,
    clients: usize,
    plan: &Plan,
    values: &Values,
) -> Result<Round, Error> {
    let requests = Arc::new(Requests::new(workload, plan.rows));
    let before = Counted::now(target).await;
    let stop = Arc::new(AtomicBool::new(false));
    let started = runtime.clock.monotonic();
    let timer = async {
        tokio::time::sleep(plan.round_length).await;
        stop.store(true, Ordering::Relaxed);
    };
    // Each client is a separate task, so that the generator uses all cores.
    let mut tasks = Vec::with_capacity(clients);
    for number in 0..clients {
        let requests = (Arc::clone(&requests), plan.rows);
        let client = one_client(runtime.clone(), target.clone(), requests, number, values.clone(), stop.clone());
        tasks.push(runtime.tasks.start_until_stopped("bench client", client));
    }
    let (results, ()) = futures::join!(join_all(tasks), timer);
    let elapsed = runtime.clock.monotonic().saturating_sub(started);
    let mut latencies = empty();
    for result in results {
        let one = result.map_err(|_| Error::internal("a bench client was dropped"))??;
        latencies.add(one).map_err(|error| Error::internal(error.to_string()))?;
    }
    let after = Counted::now(target).await;
    Ok(Round {
        rows: latencies.len() * workload.rows_per_request(),
        took: elapsed,
        latencies,
        spent: before.usage.zip(after.usage).map(|(before, after)| after.since(&before)),
        generator_micros: grown(before.generator_micros, after.generator_micros),
        servers: before.servers.zip(after.servers).map(|(before, after)| after - before),
    })
}

/// Rounds of each part in the order A B C, C B A, A B C …, by name: slow changes of the machine affect all parts equally.
///
/// # Errors
/// The error of the first round that fails.
pub async fn alternate<T, E>(
    parts: &[T],
    count: usize,
    name: impl Fn(&T) -> &str,
    round: impl AsyncFn(&T) -> Result<Round, E>,
) -> Result<Vec<(String, Vec<Round>)>, E> {
    let mut rounds: Vec<(String, Vec<Round>)> = parts.iter().map(|part| (name(part).to_owned(), Vec::new())).collect();
    for number in 0..count {
        let mut order: Vec<_> = parts.iter().zip(&mut rounds).collect();
        if number % 2 == 1 {
            order.reverse();
        }
        for (part, (_, done)) in order {
            done.push(round(part).await?);
        }
    }
    Ok(rounds)
}

async fn one_client(
    runtime: Runtime,
    target: Target,
    (requests, rows): (Arc<Requests>, u64),
    number: usize,
    values: Values,
    stop: Arc<AtomicBool>,
) -> Result<Histogram<u64>, Error> {
    let mut client = target.client(number).ok_or_else(|| Error::internal("the target has no address"))?;
    let rng = runtime.rng.fork();
    let mut latencies = empty();
    while !stop.load(Ordering::Relaxed) {
        let (workload, row) = requests.draw(&rng);
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
