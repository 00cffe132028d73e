//! The lock service, and the link from a host to it: slow, partitioned, or losing responses, controlled by the nemesis.
//!
//! The service keeps its files outside all hosts, like five replicas running elsewhere, and does not crash. It may have no space: then it
//! refuses writes and new leases, as etcd does. It may be [restored](LockService::restore) from a backup.
//!
//! A call during a partition fails after its timeout; whether it was executed before that is random. A watch
//! that is interrupted by a partition reports a gap when the link is back. Leases of a host that is partitioned for long
//! are no longer renewed and expire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{
    Chubby, Compare, Error, File, LeaseId, Revision, Session, SharedChubby, TransactionOutcome, WatchEvent,
    WatchStream, Write, paths,
};
use ebla_runtime::{Clock, Rng, Tasks};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// Timeout of a call.
const ATTEMPT: Duration = Duration::from_secs(1);
/// About how long a message takes one way.
const ONE_WAY: Duration = Duration::from_millis(1);
/// Queued events of a watch.
const WATCH_EVENTS: usize = 1_024;

/// The service; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct LockService {
    current: Arc<Mutex<Embedded>>,
    clock: Clock,
    tasks: Tasks,
}

/// A copy of the service's files, without those of leases.
#[derive(Debug)]
pub(crate) struct Backup {
    revision: Revision,
    files: Vec<File>,
}

impl LockService {
    pub(crate) fn start(clock: Clock, tasks: Tasks) -> Self {
        Self { current: Arc::new(Mutex::new(Embedded::in_memory(clock.clone(), &tasks))), clock, tasks }
    }

    pub(crate) async fn back_up(&self) -> Backup {
        let (files, revision) = self.current().list("").await.unwrap();
        Backup { revision, files }
    }

    /// Everything is as in the backup, and no lease exists. The links must be cut, and their leases must have been cut off.
    pub(crate) fn restore(&self, backup: Backup) {
        let Backup { revision, files } = backup;
        *self.current.lock() = Embedded::in_memory_with(revision, files, self.clock.clone(), &self.tasks);
    }

    /// What the service has, without a link.
    pub(crate) fn files(&self) -> Embedded {
        self.current()
    }

    fn current(&self) -> Embedded {
        self.current.lock().clone()
    }
}

/// The link of one host. It outlives the host's crashes; its leases do not.
#[derive(Debug)]
pub(crate) struct Link {
    rng: Rng,
    /// By how much the writes of the cluster record are late.
    record_delay: Duration,
    cut: watch::Sender<bool>,
    /// Lost responses, per mille.
    lost_per_mille: Mutex<u64>,
    leases: Mutex<Vec<LeaseId>>,
    /// Whether the service has no space.
    is_full: AtomicBool,
}

impl Link {
    /// `record_delay`: by how much the writes of the cluster record are late.
    pub(crate) fn new(rng: Rng, record_delay: Duration) -> Arc<Self> {
        let (cut, _) = watch::channel(false);
        Arc::new(Self {
            rng,
            record_delay,
            cut,
            lost_per_mille: Mutex::new(0),
            leases: Mutex::default(),
            is_full: AtomicBool::new(false),
        })
    }

    /// Cuts the link.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Heals the link.
    pub(crate) fn heal(&self) {
        self.cut.send_replace(false);
    }

    /// Sets the number of lost responses, per mille.
    pub(crate) fn set_lost(&self, per_mille: u64) {
        *self.lost_per_mille.lock() = per_mille;
    }

    /// Sets whether the service has no space for the host's writes.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Lets all leases of the host expire.
    pub(crate) fn cut_off(&self, service: &LockService) {
        let service = service.current();
        for lease in self.leases.lock().drain(..) {
            service.stop_renewing(lease);
        }
    }

    /// Forgets the leases of a process that has crashed.
    pub(crate) fn forget(&self) {
        self.leases.lock().clear();
    }

    fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    fn loses(&self) -> bool {
        self.rng.below(1_000) < *self.lost_per_mille.lock()
    }
}

/// The service as seen by one run of a host's process.
#[derive(Debug)]
pub(crate) struct LinkedChubby {
    service: LockService,
    link: Arc<Link>,
    tasks: Tasks,
}

impl LinkedChubby {
    /// `tasks`: the tasks of the host's process, for watches.
    pub(crate) fn shared(service: &LockService, link: &Arc<Link>, tasks: &Tasks) -> SharedChubby {
        Arc::new(Self { service: service.clone(), link: Arc::clone(link), tasks: tasks.clone() })
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
        tokio::time::sleep(self.link.rng.jitter(ONE_WAY)).await;
        if self.link.is_cut() || self.link.loses() {
            return Err(silence().await);
        }
        let answer = call.await;
        tokio::time::sleep(self.link.rng.jitter(ONE_WAY)).await;
        if self.link.is_cut() || self.link.loses() {
            return Err(silence().await);
        }
        answer
    }

    /// A full service refuses at once.
    fn check_space(&self) -> Result<(), Error> {
        if self.link.is_full.load(Ordering::Relaxed) {
            return Err(Error::Unavailable("no space".to_owned()));
        }
        Ok(())
    }
}

async fn silence() -> Error {
    tokio::time::sleep(ATTEMPT).await;
    Error::Unavailable("no answer".to_owned())
}

impl Chubby for LinkedChubby {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        Box::pin(self.call(async move { self.service.current().read(path).await }))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        Box::pin(self.call(async move { self.service.current().list(prefix).await }))
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
        Box::pin(self.call(async move {
            if writes.iter().any(|write| matches!(write, Write::Put { .. })) {
                self.check_space()?;
            }
            if writes.iter().any(|write| matches!(write, Write::Put { path, .. } if path == paths::CLUSTER)) {
                tokio::time::sleep(self.link.record_delay).await;
            }
            self.service.current().transact(compares, writes).await
        }))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        Box::pin(async move {
            let events = self.call(async move { self.service.current().watch(prefix, after).await }).await?;
            let (sender, receiver) = mpsc::channel(WATCH_EVENTS);
            let cut = self.link.cut.subscribe();
            self.tasks.spawn_until_stopped("chubby-watch", carry(events, sender, cut));
            Ok(WatchStream::new(receiver))
        })
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            let open = async move {
                self.check_space()?;
                self.service.current().open_session(ttl).await
            };
            let session = self.call(open).await?;
            self.link.leases.lock().push(session.lease());
            Ok(session)
        })
    }
}

/// Forwards events until the link is cut; reports a gap when the link is healed.
async fn carry(mut events: WatchStream, sender: mpsc::Sender<WatchEvent>, mut cut: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            () = reaches(&mut cut, true) => break,
            event = events.next() => {
                let Some(event) = event else { return };
                tokio::time::sleep(ONE_WAY).await;
                if sender.send(event).await.is_err() {
                    return;
                }
            }
            () = sender.closed() => return,
        }
    }
    reaches(&mut cut, false).await;
    let _gone = sender.send(WatchEvent::Gap).await;
}

/// Waits until the link has the wanted state.
async fn reaches(cut: &mut watch::Receiver<bool>, wanted: bool) {
    let _held = cut.wait_for(|cut| *cut == wanted).await.map(drop);
}
