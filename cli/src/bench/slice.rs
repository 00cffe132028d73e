//! One slice: so many clients, so long, against one target.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_proto::status;
use ebla_runtime::Runtime;
use futures::future::join_all;
use hdrhistogram::Histogram;

use super::target::{Target, Values};
use super::{Plan, Workload};

/// What one slice gave.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Rows a second.
    pub rows_per_second: f64,
    /// Latencies of requests, in microseconds.
    pub latencies: Histogram<u64>,
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
    let stop = Arc::new(AtomicBool::new(false));
    let started = runtime.clock.monotonic();
    let timer = async {
        tokio::time::sleep(plan.slice).await;
        stop.store(true, Ordering::Relaxed);
    };
    // Each client is a task of its own, so that the generator uses both cores as programs would.
    let mut tasks = Vec::with_capacity(clients);
    for number in 0..clients {
        let (done, result) = tokio::sync::oneshot::channel();
        let client =
            one_client(runtime.clone(), target.clone(), workload, number, plan.rows, values.clone(), stop.clone());
        runtime.tasks.spawn_until_stopped("bench client", async move {
            drop(done.send(client.await));
        });
        tasks.push(result);
    }
    let (results, ()) = futures::join!(join_all(tasks), timer);
    let elapsed = runtime.clock.monotonic().saturating_sub(started);
    let mut latencies = empty();
    for result in results {
        let one = result.map_err(|_| Error::internal("a bench client ended early"))??;
        latencies.add(one).map_err(|error| Error::internal(error.to_string()))?;
    }
    Ok(Slice { rows_per_second: rate(latencies.len() * workload.rows_per_request(), elapsed), latencies })
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
    let mut client = target.client(number);
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

#[expect(clippy::expect_used, reason = "three digits up to a minute are bounds that the histogram accepts")]
fn empty() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000, 3).expect("bounds are constant")
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn rate(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64().max(1e-9)
}
