//! Closed loops: clients that send their next request when the last one was answered, for a while, or until nothing is
//! left to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_runtime::Runtime;
use futures::future::join_all;
use hdrhistogram::Histogram;

/// One client of a load.
pub trait Client: Send + 'static {
    /// Sends one request and waits for its answer: how many operations it was, or `None` when nothing is left to do.
    ///
    /// # Errors
    /// What was answered instead, in words. It is counted, and the client goes on.
    fn request(&mut self) -> impl Future<Output = Result<Option<u64>, String>> + Send;
}

/// What a loop came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Operations that were done.
    pub operations: u64,
    /// Requests that were refused or failed.
    pub errors: u64,
    /// The first of these, in words.
    pub first_error: Option<String>,
    /// How long it took.
    pub took: Duration,
    /// Latencies of requests that were done, in microseconds.
    pub latencies: Histogram<u64>,
}

impl Outcome {
    /// Nothing yet.
    #[must_use]
    pub fn none() -> Self {
        Self { operations: 0, errors: 0, first_error: None, took: Duration::ZERO, latencies: empty() }
    }

    /// Takes in what another loop came to, which ran before or after this one.
    pub fn add(&mut self, other: Self) {
        self.took += other.took;
        self.merge(other);
    }

    /// Operations a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of one loop are far below 2^52")]
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latencies, in microseconds; `None` when nothing was done.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52")]
    pub fn quantile_micros(&self, quantile: f64) -> Option<f64> {
        (!self.latencies.is_empty()).then(|| self.latencies.value_at_quantile(quantile) as f64)
    }

    /// Takes in what ran beside this one.
    fn merge(&mut self, other: Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        // Both have the same bounds.
        let _same_bounds = self.latencies.add(other.latencies);
    }
}

/// Runs all clients, each as a task of its own, so that the load uses all cores as programs would; until `length` is over,
/// or without one until all have nothing left to do.
///
/// # Errors
/// `Internal` when a client was dropped: the program ends.
pub async fn run<C: Client>(runtime: &Runtime, clients: Vec<C>, length: Option<Duration>) -> Result<Outcome, Error> {
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
    let mut outcome = Outcome { took, ..Outcome::none() };
    for result in results {
        outcome.merge(result.map_err(|_| Error::internal("a client of the load ended early"))?);
    }
    Ok(outcome)
}

async fn one_client<C: Client>(runtime: Runtime, mut client: C, stop: Arc<AtomicBool>) -> Outcome {
    let mut outcome = Outcome::none();
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

    /// Answers so often, every third time with an error.
    struct Left(u64);

    impl Client for Left {
        async fn request(&mut self) -> Result<Option<u64>, String> {
            let Some(left) = self.0.checked_sub(1) else { return Ok(None) };
            self.0 = left;
            if left % 3 == 0 { Err(format!("{left} left")) } else { Ok(Some(10)) }
        }
    }

    #[tokio::test]
    async fn a_loop_ends_when_nothing_is_left_and_counts_errors_apart() {
        let runtime = Runtime::system("test");
        let outcome = run(&runtime, vec![Left(6), Left(3)], None).await.unwrap();
        assert_eq!((outcome.operations, outcome.errors), (60, 3));
        assert_eq!(outcome.latencies.len(), 6);
        assert!(outcome.first_error.is_some_and(|error| error.ends_with(" left")));
    }

    #[test]
    fn nothing_has_no_latency() {
        assert_eq!(Outcome::none().quantile_micros(0.5), None);
    }
}
