//! Chubby inside this process: for one-process clusters, tests and simulation.
//!
//! ```text
//!   transact: compare -> journal (append, fsync) -> files (memory) -> watches       one at a time, under `journal`
//!   read, list, watch: files                                                        never wait for the disk
//!   a tick: renew the leases whose sessions exist, expire the others after their TTL   by the runtime's clock
//! ```
//!
//! Sessions live in memory: a folder that is opened again has none. So leased files are deleted at open, in the same
//! way as when their leases expire, and every process registers again under a new session.
//!
//! It does not survive its machine, and serves one process (the folder is locked).

mod journal;
mod leases;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::{Blocking, Clock, Tasks};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use self::journal::Journal;
use self::leases::Leases;
use self::state::Files;
use crate::{
    Chubby, Compare, Error, File, LeaseId, Revision, Session, SharedChubby, TransactionOutcome, WatchEvent,
    WatchStream, Write, validate,
};

/// How often leases are renewed and checked. Far below any TTL.
const TICK: Duration = Duration::from_millis(100);
/// Events that a slow watcher may be behind before it receives a gap.
const WATCH_EVENTS_MAX: usize = 1_024;

/// The service; clones are the same one.
#[derive(Clone, Debug)]
pub struct Embedded(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// Runs transactions, so that no async worker waits for a sync.
    blocking: Blocking,
    /// Locked from the comparison to the last watcher: orders transactions. `None` in memory.
    journal: Mutex<Option<Journal>>,
    /// Short sections, never locked across a call. Changed only under the lock of `journal`.
    files: Mutex<Files>,
    /// Short sections. Leases are removed only under the lock of `journal`, so a lease seen under it stays until it
    /// is released.
    leases: Mutex<Leases>,
}

impl Embedded {
    /// Opens the service in the folder `dir`, which is created if it does not exist. Its ticks run under `tasks`.
    /// Blocks for a moment.
    ///
    /// # Errors
    /// `Unavailable` when the folder cannot be used or another process has locked it; `Damaged` when its bytes are
    /// not what was written (a torn tail is no damage: it was never acknowledged).
    pub fn open(dir: &Path, clock: Clock, tasks: &Tasks) -> Result<Self, Error> {
        let (journal, files) = Journal::open(dir)?;
        let blocking = Blocking::pool("chubby", 1, 4_096).map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Self::start(Some(journal), files, blocking, clock, tasks))
    }

    /// A service in memory, lost with its last clone.
    #[must_use]
    pub fn in_memory(clock: Clock, tasks: &Tasks) -> Self {
        Self::start(None, Files::default(), Blocking::inline(), clock, tasks)
    }

    /// As [`Self::in_memory`], with the files of a backup as of this revision: those of leases are left out. For tests.
    #[must_use]
    pub fn in_memory_with(revision: Revision, files: Vec<File>, clock: Clock, tasks: &Tasks) -> Self {
        let lasting = files.into_iter().filter(|file| file.lease.is_none());
        let files = lasting.map(|file| (file.path.clone(), file)).collect();
        Self::start(None, Files::restored(revision, files), Blocking::inline(), clock, tasks)
    }

    fn start(journal: Option<Journal>, files: Files, blocking: Blocking, clock: Clock, tasks: &Tasks) -> Self {
        let (journal, files, leases) = (Mutex::new(journal), Mutex::new(files), Mutex::default());
        let service = Self(Arc::new(Inner { clock, blocking, journal, files, leases }));
        // The tick must not keep the service alive: the folder is unlocked with the last handle.
        let weak = Arc::downgrade(&service.0);
        tasks.spawn_until_stopped("chubby leases", async move {
            loop {
                tokio::time::sleep(TICK).await;
                let Some(inner) = weak.upgrade() else { return };
                inner.tick().await;
            }
        });
        service
    }

    /// A shared handle to the service.
    #[must_use]
    pub fn shared(&self) -> SharedChubby {
        Arc::new(self.clone())
    }

    /// Stops renewing the lease, as if its holder were paused or partitioned: it expires after its TTL. For tests.
    pub fn stop_renewing(&self, lease: LeaseId) {
        self.0.leases.lock().stop_renewing(lease);
    }
}

impl Inner {
    /// Renews the leases whose sessions exist, and expires the others.
    async fn tick(self: &Arc<Self>) {
        let expired = self.leases.lock().tick(self.clock.monotonic());
        if !expired.is_empty() {
            tracing::info!(?expired, "leases expired");
            self.end(expired).await;
        }
    }

    /// Ends the leases and deletes their files. After a failure of the journal every later transaction fails too.
    async fn end(self: &Arc<Self>, expired: Vec<LeaseId>) {
        let inner = Arc::clone(self);
        let ended = self.blocking.run(move || inner.end_now(&expired)).await;
        if let Ok(Err(error)) = ended {
            tracing::error!(%error, "cannot delete the files of expired leases");
        }
    }

    fn end_now(&self, expired: &[LeaseId]) -> Result<(), Error> {
        let mut journal = self.journal.lock();
        self.leases.lock().end(expired);
        let writes = self.files.lock().deletes_of_leases(|lease| expired.contains(&lease));
        if !writes.is_empty() {
            self.commit(&mut journal, &[], &writes)?;
        }
        Ok(())
    }

    fn transact_now(&self, compares: &[Compare], writes: &[Write]) -> Result<TransactionOutcome, Error> {
        validate(writes)?;
        self.commit(&mut self.journal.lock(), compares, writes)
    }

    fn commit(
        &self,
        journal: &mut Option<Journal>,
        compares: &[Compare],
        writes: &[Write],
    ) -> Result<TransactionOutcome, Error> {
        let revision = {
            let files = self.files.lock();
            if !files.holds(compares) {
                return Ok(TransactionOutcome::Conflict);
            }
            if writes.is_empty() {
                return Ok(TransactionOutcome::Committed(files.revision()));
            }
            files.next_revision()
        };
        self.require_leases(writes)?;
        if let Some(journal) = journal {
            journal.append(revision, writes, || self.files.lock().clone_files())?;
        }
        self.files.lock().commit(revision, writes);
        Ok(TransactionOutcome::Committed(revision))
    }

    fn require_leases(&self, writes: &[Write]) -> Result<(), Error> {
        let leases = self.leases.lock();
        let lost = writes.iter().any(|write| match write {
            Write::Put { lease: Some(lease), .. } => !leases.has(*lease),
            Write::Put { lease: None, .. } | Write::Delete { .. } => false,
        });
        if lost { Err(Error::LeaseLost) } else { Ok(()) }
    }
}

impl Chubby for Embedded {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        Box::pin(async move { Ok(self.0.files.lock().get(path)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        Box::pin(async move {
            let files = self.0.files.lock();
            Ok((files.list(prefix), files.revision()))
        })
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let run = self.0.blocking.run(move || inner.transact_now(&compares, &writes));
            run.await.map_err(|error| Error::Unavailable(error.to_string()))?
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel::<WatchEvent>(WATCH_EVENTS_MAX);
            self.0.files.lock().watch(prefix, after, sender);
            Ok(WatchStream::new(receiver))
        })
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            let holder = Arc::new(());
            let now = self.0.clock.monotonic();
            let (lease, lost) = self.0.leases.lock().grant(now, ttl, Arc::downgrade(&holder));
            Ok(Arc::new(EmbeddedSession { service: self.clone(), lease, lost, _holder: holder }) as Arc<dyn Session>)
        })
    }
}

/// A lease, and the handle that keeps it alive.
#[derive(Debug)]
struct EmbeddedSession {
    service: Embedded,
    lease: LeaseId,
    /// Closed when the lease is lost.
    lost: watch::Receiver<()>,
    /// The lease table holds it weakly and renews the lease while it exists.
    _holder: Arc<()>,
}

impl Session for EmbeddedSession {
    fn lease(&self) -> LeaseId {
        self.lease
    }

    fn is_alive(&self) -> bool {
        let inner = &self.service.0;
        inner.leases.lock().is_alive(self.lease, inner.clock.monotonic())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        let mut lost = self.lost.clone();
        Box::pin(async move { while lost.changed().await.is_ok() {} })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.service.0.end(vec![self.lease]))
    }
}

#[cfg(test)]
mod tests;
