//! What writes the commit log: a thread, or in a simulation a task that waits as long as a disk would take.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::time::whole_micros;
use ebla_runtime::{Rng, Runtime};
use ebla_storage::log::{CommitLog, LogError, LogOptions, LogStep, NO_SPACE_PAUSE};
use tokio::sync::{Notify, watch};
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

/// Starts the log's writer. A failed write ends the process: the thread aborts it, the task reports `failure`.
pub(crate) fn start(
    log: &CommitLog,
    threads: &Threads,
    runtime: &Runtime,
    failure: watch::Sender<Option<Error>>,
) -> Result<(), Error> {
    let Threads::Inline { sync, .. } = threads else {
        return log.start_writer().map_err(|error| Error::internal(format!("start the log's writer: {error}")));
    };
    let (queued, work, sync) = (Arc::new(Notify::new()), log.clone(), sync.clone());
    let signal = Arc::clone(&queued);
    log.set_wake_callback(move || signal.notify_one());
    // For records that were queued before the task could be woken.
    queued.notify_one();
    let rng = runtime.rng.fork();
    runtime.tasks.spawn_until_stopped("commit-log", async move {
        let Err(error) = write_batches(&work, &queued, &sync, &rng).await;
        if matches!(error, LogError::Disk { .. }) {
            error!(%error, "commit log failed");
            failure.send_replace(Some(Error::internal(error.to_string())));
        }
    });
    Ok(())
}

/// The loop of the log's writer. The disk does not block, so the latency of a sync passes before the write, which makes the batch durable at
/// once.
async fn write_batches(
    log: &CommitLog,
    queued: &Notify,
    sync: &SyncLatency,
    rng: &Rng,
) -> Result<Infallible, LogError> {
    let commit_marker_delay = LogOptions::default().commit_marker_delay;
    loop {
        queued.notified().await;
        loop {
            log.begin_sync();
            sync.wait(rng).await;
            match log.step()? {
                LogStep::Wrote => {}
                LogStep::NoSpace => tokio::time::sleep(NO_SPACE_PAUSE).await,
                LogStep::Idle => {
                    if tokio::time::timeout(commit_marker_delay, queued.notified()).await.is_err() {
                        log.begin_sync();
                        sync.wait(rng).await;
                        log.write_commit_marker()?;
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{GroupId, ReplicaId};
    use ebla_runtime::Blocking;
    use ebla_storage::disk::SimDisk;
    use ebla_storage::disk::sim::Fault;
    use ebla_storage::log::{GroupReplica, MemoryManifest, Record};

    use super::*;

    const GROUP: GroupReplica = GroupReplica { group: GroupId::new(1), replica: ReplicaId::new(1) };

    /// A log with a group, and the task that writes it.
    struct Fixture {
        disk: SimDisk,
        log: CommitLog,
        failure: watch::Sender<Option<Error>>,
        _runtime: Runtime,
    }

    impl Fixture {
        fn new() -> Self {
            let (disk, manifest) = (SimDisk::new(), Arc::new(MemoryManifest::default()));
            let (log, _recovered) = CommitLog::open(Arc::new(disk.clone()), manifest, LogOptions::default()).unwrap();
            log.add_group(GROUP).unwrap();
            let threads =
                Threads::Inline { sync: SyncLatency::new(Duration::from_millis(1)), apply: Blocking::inline() };
            let (runtime, failure) = (Runtime::system("log"), watch::Sender::new(None));
            start(&log, &threads, &runtime, failure.clone()).unwrap();
            Self { disk, log, failure, _runtime: runtime }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_of_the_task_is_reported() {
        let Fixture { disk, log, failure, _runtime } = Fixture::new();
        let written = async |vote: &'static [u8]| {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let records = vec![Record::Vote { group: GROUP, vote: vote.into() }];
            log.submit(records, Box::new(move |outcome| drop(sender.send(outcome))));
            receiver.await.unwrap()
        };
        written(b"first").await.unwrap();
        assert_eq!(*failure.borrow(), None);
        disk.arm(1, Fault::SyncFails);
        assert!(matches!(written(b"second").await, Err(LogError::Disk { .. })));
        let mut failures = failure.subscribe();
        let reported = failures.wait_for(Option::is_some).await.unwrap().clone();
        assert!(reported.unwrap().message.contains("sync batch"), "{failure:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_waits_while_the_disk_is_full() {
        let Fixture { disk, log, failure, _runtime } = Fixture::new();
        let (sender, mut written) = tokio::sync::oneshot::channel();
        disk.fill();
        let records = vec![Record::Vote { group: GROUP, vote: b"vote".as_slice().into() }];
        log.submit(records, Box::new(move |outcome| drop(sender.send(outcome))));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut written).await.is_err(), "it waits");
        assert!(log.syncs().running_since.is_some(), "the disk counts as one that hangs");
        disk.make_room();
        tokio::time::timeout(2 * NO_SPACE_PAUSE, written).await.unwrap().unwrap().unwrap();
        assert_eq!(*failure.borrow(), None);
    }

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
