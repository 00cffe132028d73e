//! What writes the commit log: a thread, or in a simulation a task that waits as long as a disk would take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::time::whole_micros;
use ebla_runtime::{Rng, Runtime};
use ebla_storage::log::{CommitLog, LogError, LogOptions, LogStep};
use tokio::sync::Notify;
use tracing::error;

use crate::config::Threads;

/// The task looks at least this often whether the latency has changed.
const LATENCY_CHECK: Duration = Duration::from_millis(50);
/// What the random duration of one sync is a multiple of.
const UNIT: Duration = Duration::from_secs(1);

/// How long a sync of a simulated disk takes on average. It may change at any time; clones share it.
#[derive(Clone, Debug)]
pub struct SyncLatency(Arc<AtomicU64>);

impl SyncLatency {
    /// A disk whose syncs take this time.
    #[must_use]
    pub fn new(latency: Duration) -> Self {
        let shared = Self(Arc::default());
        shared.set(latency);
        shared
    }

    /// Changes the latency, also of the sync in progress.
    pub fn set(&self, latency: Duration) {
        self.0.store(whole_micros(latency), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Returns after the time of one sync, from half of the latency to one and a half.
    async fn wait(&self, rng: &Rng) {
        let factor = rng.jitter(UNIT).as_secs_f64() / UNIT.as_secs_f64();
        let mut waited = Duration::ZERO;
        loop {
            let left = self.get().mul_f64(factor).saturating_sub(waited);
            if left.is_zero() {
                return;
            }
            let pause = left.min(LATENCY_CHECK);
            tokio::time::sleep(pause).await;
            waited += pause;
        }
    }
}

/// Starts the log's writer.
pub(crate) fn start(log: &CommitLog, threads: &Threads, runtime: &Runtime) -> Result<(), Error> {
    let Threads::Inline { sync } = threads else {
        return log.start_writer().map_err(|error| Error::internal(format!("start the log's writer: {error}")));
    };
    let (queued, work, sync) = (Arc::new(Notify::new()), log.clone(), sync.clone());
    let signal = Arc::clone(&queued);
    log.set_wake_callback(move || signal.notify_one());
    // For records that were queued before the task could be woken.
    queued.notify_one();
    let rng = runtime.rng.fork();
    runtime.tasks.spawn_until_stopped("commit-log", async move {
        if let Err(failure) = write_batches(&work, &queued, &sync, &rng).await {
            error!(%failure, "commit log writer failed");
        }
    });
    Ok(())
}

/// The loop of the log's writer. The disk does not block, so the latency of a sync passes before the write, which makes the batch durable at
/// once.
async fn write_batches(log: &CommitLog, queued: &Notify, sync: &SyncLatency, rng: &Rng) -> Result<(), LogError> {
    let commit_marker_delay = LogOptions::default().commit_marker_delay;
    loop {
        queued.notified().await;
        loop {
            log.begin_sync();
            sync.wait(rng).await;
            if log.step()? == LogStep::Idle
                && tokio::time::timeout(commit_marker_delay, queued.notified()).await.is_err()
            {
                log.begin_sync();
                sync.wait(rng).await;
                log.write_commit_marker()?;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sync_takes_about_its_latency_and_ends_sooner_if_that_is_shortened() {
        let (latency, rng) = (SyncLatency::new(Duration::from_secs(4)), Rng::seeded(1));
        for _ in 0..20 {
            let started = tokio::time::Instant::now();
            latency.wait(&rng).await;
            let took = started.elapsed();
            assert!((Duration::from_secs(2)..=Duration::from_millis(6_100)).contains(&took), "{took:?}");
        }
        let shared = latency.clone();
        let shortened = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            shared.set(Duration::from_millis(2));
        };
        let started = tokio::time::Instant::now();
        tokio::join!(latency.wait(&rng), shortened);
        assert!(started.elapsed() < Duration::from_millis(1_200), "{:?}", started.elapsed());
    }
}
