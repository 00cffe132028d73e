//! Closed loops: clients that send their next request when the last one was answered, for a duration or until there is no more
//! work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_runtime::Runtime;
use futures::future::join_all;
use hdrhistogram::Histogram;

/// One client of a load.
pub trait Client: Send + 'static {
    /// Sends one request and waits for the response; returns the number of operations in it, or `None` when there is no more work.
    ///
    /// # Errors
    /// The error message. It is counted, and the client continues.
    fn request(&mut self) -> impl Future<Output = Result<Option<u64>, String>> + Send;
}

/// Result of a loop.
#[derive(Clone, Debug)]
pub struct LoopResult {
    /// Completed operations.
    pub operations: u64,
    /// Failed requests.
    pub errors: u64,
    /// The first error message.
    pub first_error: Option<String>,
    /// Duration.
    pub took: Duration,
    /// Latencies of successful requests, in microseconds.
    pub latencies: Histogram<u64>,
}

impl LoopResult {
    /// An empty result.
    #[must_use]
    pub fn none() -> Self {
        Self { operations: 0, errors: 0, first_error: None, took: Duration::ZERO, latencies: empty() }
    }

    /// Adds the result of another loop that ran before or after this one.
    pub fn add(&mut self, other: Self) {
        self.took += other.took;
        self.merge(other);
    }

    /// Operations per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of one loop are far below 2^52")]
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latencies, in microseconds; `None` when there were no operations.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52")]
    pub fn quantile_micros(&self, quantile: f64) -> Option<f64> {
        (!self.latencies.is_empty()).then(|| self.latencies.value_at_quantile(quantile) as f64)
    }

    /// Adds the result of a loop that ran concurrently with this one.
    fn merge(&mut self, other: Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        // Both histograms have the same bounds.
        let _same_bounds = self.latencies.add(other.latencies);
    }
}

/// Runs all clients, each as a separate task, so that the load uses all cores; for `length`, or without a length until no
/// client has more work.
///
/// # Errors
/// `Internal` when a client was dropped because the program stops.
pub async fn run<C: Client>(runtime: &Runtime, clients: Vec<C>, length: Option<Duration>) -> Result<LoopResult, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let started = runtime.clock.monotonic();
    let timer = async {
        if let Some(length) = length {
            tokio::time::sleep(length).await;
            stop.store(true, Ordering::Relaxed);
        }
    };
    let one = |client| {
        let client = one_client(runtime.clone(), client, stop.clone());
        runtime.tasks.start_until_stopped("closed loop", client)
    };
    let tasks: Vec<_> = clients.into_iter().map(one).collect();
    let (results, ()) = futures::join!(join_all(tasks), timer);
    let took = runtime.clock.monotonic().saturating_sub(started);
    let mut outcome = LoopResult { took, ..LoopResult::none() };
    for result in results {
        outcome.merge(result.map_err(|_| Error::internal("a client of the load was dropped"))?);
    }
    Ok(outcome)
}

async fn one_client<C: Client>(runtime: Runtime, mut client: C, stop: Arc<AtomicBool>) -> LoopResult {
    let mut outcome = LoopResult::none();
    while !stop.load(Ordering::Relaxed) {
        let sent = runtime.clock.monotonic();
        match client.request().await {
            Ok(None) => break,
            Ok(Some(operations)) => {
                let took = runtime.clock.monotonic().saturating_sub(sent);
                outcome.operations += operations;
                outcome.latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            }
            Err(error) => {
                outcome.errors += 1;
                outcome.first_error.get_or_insert(error);
            }
        }
    }
    outcome
}

/// For latencies in microseconds, up to a minute.
#[expect(clippy::expect_used, reason = "three digits up to a minute are bounds that the histogram accepts")]
pub(super) fn empty() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000, 3).expect("bounds are constant")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers this number of times, every third time with an error.
    struct Left(u64);

    impl Client for Left {
        async fn request(&mut self) -> Result<Option<u64>, String> {
            let Some(left) = self.0.checked_sub(1) else { return Ok(None) };
            self.0 = left;
            if left % 3 == 0 { Err(format!("{left} left")) } else { Ok(Some(10)) }
        }
    }

    #[tokio::test]
    async fn a_loop_ends_when_there_is_no_more_work_and_counts_errors_separately() {
        let runtime = Runtime::system("test");
        let outcome = run(&runtime, vec![Left(6), Left(3)], None).await.unwrap();
        assert_eq!((outcome.operations, outcome.errors), (60, 3));
        assert_eq!(outcome.latencies.len(), 6);
        assert!(outcome.first_error.is_some_and(|error| error.ends_with(" left")));
    }

    #[test]
    fn an_empty_result_has_no_latency() {
        assert_eq!(LoopResult::none().quantile_micros(0.5), None);
    }
}
