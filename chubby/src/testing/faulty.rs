//! A test double that injects outages into another Chubby, for tests of its users.
//!
//! During an outage every call fails as if the service did not respond. Open sessions and watches continue unchanged. One
//! transaction can be held, as that of a client that sends it again until the service responds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Chubby, Compare, Error, File, Revision, Session, SharedChubby, TransactionOutcome, WatchStream, Write};

/// A service with injected outages.
#[derive(Debug)]
pub struct FaultyChubby {
    chubby: SharedChubby,
    unavailable: AtomicBool,
    /// The next transaction that writes below this prefix is committed, its answer is lost, and an outage starts.
    fail_after: Mutex<Option<String>>,
    /// The next transaction that writes below this prefix is held.
    hold: Mutex<Option<Hold>>,
}

/// A transaction to hold: it says that it is there, and waits until it may continue.
#[derive(Debug)]
struct Hold {
    prefix: String,
    reached: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
}

/// A transaction that is held until this is released or dropped.
#[derive(Debug)]
pub struct HeldTransaction {
    reached: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl HeldTransaction {
    /// Waits until the transaction is there.
    pub async fn reached(&mut self) {
        drop((&mut self.reached).await);
    }

    /// Lets the transaction continue.
    pub fn release(self) {
        drop(self.release);
    }
}

type Reply<'a, T> = BoxFuture<'a, Result<T, Error>>;

impl FaultyChubby {
    /// A service without an outage.
    #[must_use]
    pub fn new(chubby: SharedChubby) -> Arc<Self> {
        Arc::new(Self {
            chubby,
            unavailable: AtomicBool::new(false),
            fail_after: Mutex::default(),
            hold: Mutex::default(),
        })
    }

    /// The service as components take it.
    #[must_use]
    pub fn shared(self: &Arc<Self>) -> SharedChubby {
        Arc::clone(self) as SharedChubby
    }

    /// Starts an outage: every call fails from now on.
    pub fn start_outage(&self) {
        self.unavailable.store(true, Ordering::Relaxed);
    }

    /// Commits the next transaction that writes below `prefix`, loses its answer, and starts an outage.
    pub fn start_outage_after(&self, prefix: &str) {
        *self.fail_after.lock() = Some(prefix.to_owned());
    }

    /// Holds the next transaction that writes below `prefix`.
    pub fn hold_before(&self, prefix: &str) -> HeldTransaction {
        let ((reached, is_reached), (release, released)) = (oneshot::channel(), oneshot::channel());
        *self.hold.lock() = Some(Hold { prefix: prefix.to_owned(), reached, released });
        HeldTransaction { reached: is_reached, release }
    }

    /// Ends the outage.
    pub fn end_outage(&self) {
        self.unavailable.store(false, Ordering::Relaxed);
    }

    /// Whether there is an outage.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.unavailable.load(Ordering::Relaxed)
    }

    fn respond<'a, T: Send + 'a>(&self, reply: Reply<'a, T>) -> Reply<'a, T> {
        if self.is_unavailable() { Box::pin(std::future::ready(Err(unavailable()))) } else { reply }
    }

    /// Whether the outage starts after this transaction.
    fn is_last_before_outage(&self, writes: &[Write]) -> bool {
        self.fail_after.lock().take_if(|prefix| writes_below(prefix, writes)).is_some()
    }
}

fn writes_below(prefix: &str, writes: &[Write]) -> bool {
    writes.iter().any(|write| {
        let (Write::Put { path, .. } | Write::Delete { path }) = write;
        path.starts_with(prefix)
    })
}

fn unavailable() -> Error {
    Error::Unavailable("injected outage".to_owned())
}

impl Chubby for FaultyChubby {
    fn read<'a>(&'a self, path: &'a str) -> Reply<'a, Option<File>> {
        self.respond(self.chubby.read(path))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Reply<'a, (Vec<File>, Revision)> {
        self.respond(self.chubby.list(prefix))
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> Reply<'_, TransactionOutcome> {
        if let Some(hold) = self.hold.lock().take_if(|hold| writes_below(&hold.prefix, &writes)) {
            return Box::pin(async move {
                let _is_awaited = hold.reached.send(());
                drop(hold.released.await);
                self.transact(compares, writes).await
            });
        }
        if self.is_unavailable() || !self.is_last_before_outage(&writes) {
            return self.respond(self.chubby.transact(compares, writes));
        }
        Box::pin(async move {
            let committed = self.chubby.transact(compares, writes).await;
            self.start_outage();
            committed.and(Err(unavailable()))
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Reply<'a, WatchStream> {
        self.respond(self.chubby.watch(prefix, after))
    }

    fn open_session(&self, ttl: Duration) -> Reply<'_, Arc<dyn Session>> {
        self.respond(self.chubby.open_session(ttl))
    }
}

#[cfg(test)]
mod tests {
    use ebla_runtime::{Clock, Tasks};

    use super::*;
    use crate::embedded::Embedded;

    #[tokio::test]
    async fn an_outage_starts_and_ends_and_the_last_transaction_is_committed() {
        let chubby = FaultyChubby::new(Embedded::in_memory(Clock::system(), &Tasks::new("test")).shared());
        let write = |path: &str| chubby.transact(Vec::new(), vec![Write::put(path.to_owned(), "x")]);
        chubby.start_outage();
        assert_eq!(write("a/1").await, Err(unavailable()));
        chubby.end_outage();
        assert_eq!(chubby.read("a/1").await, Ok(None));
        chubby.start_outage_after("b/");
        assert!(write("a/1").await.is_ok() && !chubby.is_unavailable());
        assert_eq!(write("b/1").await, Err(unavailable()));
        assert!(chubby.is_unavailable());
        chubby.end_outage();
        assert!(chubby.read("b/1").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_transaction_is_held_until_it_is_released() {
        let chubby = FaultyChubby::new(Embedded::in_memory(Clock::system(), &Tasks::new("test")).shared());
        let mut held = chubby.hold_before("b/");
        let write = |path: &str| chubby.transact(Vec::new(), vec![Write::put(path.to_owned(), "x")]);
        assert!(write("a/1").await.is_ok());
        let (written, ()) = tokio::join!(write("b/1"), async {
            held.reached().await;
            assert_eq!(chubby.read("b/1").await, Ok(None));
            held.release();
        });
        assert!(written.is_ok() && chubby.read("b/1").await.unwrap().is_some());
    }
}
