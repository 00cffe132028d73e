//! Chubby inside this process: for clusters that are one process, for tests and for simulation.
//!
//! ```text
//!   transact: compare -> journal (append, fsync) -> files (memory) -> watches       one at a time, under `journal`
//!   read, list, watch: files                                                        never wait for the disk
//!   a tick: renew the leases whose handles are held, end those whose time is over   by the runtime's clock
//! ```
//!
//! Sessions live in memory: a folder that is opened again has none, so files that were leased are removed then, in the
//! same way as when their leases end. Whoever registers again is someone new.
//!
//! What it does not do: survive its machine, or serve another process (the folder is locked).

mod journal;
mod leases;
mod state;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_runtime::{Blocking, Clock, Tasks};
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use self::journal::Journal;
use self::leases::Leases;
use self::state::Files;
use crate::{
    Chubby, Compare, Error, Event, File, LeaseId, Outcome, Revision, Session, SharedChubby, WatchStream, Write,
    validate,
};

/// How often leases are renewed and judged. Far below any lease's time.
const TICK: Duration = Duration::from_millis(100);
/// Events that a slow watcher may be behind before it is told of a gap.
const WATCH_EVENTS_MAX: usize = 1_024;

/// The service; clones are the same one.
#[derive(Clone, Debug)]
pub struct Embedded(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// Where transactions run, so that no async worker waits for a sync.
    blocking: Blocking,
    /// Held from the comparison to the last watcher: orders transactions. `None` in memory.
    journal: Mutex<Option<Journal>>,
    /// Short sections, never held over a call. Changed only by who holds `journal`.
    files: Mutex<Files>,
    /// Short sections. Leases are removed only by who holds `journal`, so a lease seen there stays until its release.
    leases: Mutex<Leases>,
}

impl Embedded {
    /// The service of the folder `dir`, made if there is none. Its ticks run under `tasks`. Blocks for a moment.
    ///
    /// # Errors
    /// `Unavailable` when the folder cannot be used or another process has it; `Damaged` when its bytes are not what was
    /// written (a torn end is no damage: it was never acknowledged).
    pub fn open(dir: &Path, clock: Clock, tasks: &Tasks) -> Result<Self, Error> {
        let (journal, files) = Journal::open(dir)?;
        let blocking = Blocking::pool("chubby", 1, 4_096).map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Self::start(Some(journal), files, blocking, clock, tasks))
    }

    /// A service that forgets everything with its last clone.
    #[must_use]
    pub fn in_memory(clock: Clock, tasks: &Tasks) -> Self {
        Self::start(None, Files::default(), Blocking::inline(), clock, tasks)
    }

    fn start(journal: Option<Journal>, files: Files, blocking: Blocking, clock: Clock, tasks: &Tasks) -> Self {
        let (journal, files, leases) = (Mutex::new(journal), Mutex::new(files), Mutex::default());
        let service = Self(Arc::new(Inner { clock, blocking, journal, files, leases }));
        // The tick must not keep the service alive: the folder's lock goes with the last handle.
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

    /// The service as components take it.
    #[must_use]
    pub fn shared(&self) -> SharedChubby {
        Arc::new(self.clone())
    }

    /// Stops renewing the lease, as if its holder were paused or cut off: it ends when its time is over. For tests.
    pub fn cut_off(&self, lease: LeaseId) {
        held(&self.0.leases).cut_off(lease);
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Renews, and ends what is over.
    async fn tick(self: &Arc<Self>) {
        let over = held(&self.leases).tick(self.clock.monotonic());
        if !over.is_empty() {
            tracing::info!(?over, "leases ended");
            self.end(over).await;
        }
    }

    /// Ends the leases and removes their files. A failure of the journal is met by everyone at the next transaction.
    async fn end(self: &Arc<Self>, over: Vec<LeaseId>) {
        let inner = Arc::clone(self);
        let ended = self.blocking.run(move || inner.end_now(&over)).await;
        if let Ok(Err(error)) = ended {
            tracing::error!(%error, "cannot remove the files of ended leases");
        }
    }

    fn end_now(&self, over: &[LeaseId]) -> Result<(), Error> {
        let mut journal = held(&self.journal);
        held(&self.leases).end(over);
        let writes = held(&self.files).deletes_of_leases(|lease| over.contains(&lease));
        if !writes.is_empty() {
            self.commit(&mut journal, &[], &writes)?;
        }
        Ok(())
    }

    fn transact_now(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, Error> {
        validate(writes)?;
        self.commit(&mut held(&self.journal), compares, writes)
    }

    fn commit(&self, journal: &mut Option<Journal>, compares: &[Compare], writes: &[Write]) -> Result<Outcome, Error> {
        let revision = {
            let files = held(&self.files);
            if !files.holds(compares) {
                return Ok(Outcome::Conflict);
            }
            if writes.is_empty() {
                return Ok(Outcome::Done(files.revision()));
            }
            files.next_revision()
        };
        self.require_leases(writes)?;
        if let Some(journal) = journal {
            journal.append(revision, writes, || held(&self.files).clone_files())?;
        }
        held(&self.files).commit(revision, writes);
        Ok(Outcome::Done(revision))
    }

    fn require_leases(&self, writes: &[Write]) -> Result<(), Error> {
        let leases = held(&self.leases);
        let lost = writes.iter().any(|write| match write {
            Write::Put { lease: Some(lease), .. } => !leases.has(*lease),
            Write::Put { lease: None, .. } | Write::Delete { .. } => false,
        });
        if lost { Err(Error::LeaseLost) } else { Ok(()) }
    }
}

impl Chubby for Embedded {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        Box::pin(async move { Ok(held(&self.0.files).get(path)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        Box::pin(async move {
            let files = held(&self.0.files);
            Ok((files.list(prefix), files.revision()))
        })
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<Outcome, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let run = self.0.blocking.run(move || inner.transact_now(&compares, &writes));
            run.await.map_err(|error| Error::Unavailable(error.to_string()))?
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel::<Event>(WATCH_EVENTS_MAX);
            held(&self.0.files).watch(prefix, after, sender);
            Ok(WatchStream::new(receiver))
        })
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            let holder = Arc::new(());
            let now = self.0.clock.monotonic();
            let (lease, lost) = held(&self.0.leases).grant(now, ttl, Arc::downgrade(&holder));
            Ok(Arc::new(EmbeddedSession { service: self.clone(), lease, lost, _holder: holder }) as Arc<dyn Session>)
        })
    }
}

/// A lease, and the proof that someone still wants it.
#[derive(Debug)]
struct EmbeddedSession {
    service: Embedded,
    lease: LeaseId,
    /// Closed when the lease ends.
    lost: watch::Receiver<()>,
    /// The lease table holds it weakly and renews while it can be found.
    _holder: Arc<()>,
}

impl Session for EmbeddedSession {
    fn lease(&self) -> LeaseId {
        self.lease
    }

    fn is_alive(&self) -> bool {
        let inner = &self.service.0;
        held(&inner.leases).is_alive(self.lease, inner.clock.monotonic())
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
