//! A Chubby that can go away and come back, around any other one: for tests of those who use it.
//!
//! While it is away every call errs as one that nobody answered. Sessions and watches that stand stay as they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::{Chubby, Compare, Error, File, Outcome, Revision, Session, SharedChubby, WatchStream, Write};

/// The service, there or away.
#[derive(Debug)]
pub struct Fleeting {
    chubby: SharedChubby,
    away: AtomicBool,
    /// Of the next transaction that writes below this prefix the answer is lost, and the service goes away.
    last_words: Mutex<Option<String>>,
}

type Reply<'a, T> = BoxFuture<'a, Result<T, Error>>;

impl Fleeting {
    /// A service that is there.
    #[must_use]
    pub fn new(chubby: SharedChubby) -> Arc<Self> {
        Arc::new(Self { chubby, away: AtomicBool::new(false), last_words: Mutex::default() })
    }

    /// The service as components take it.
    #[must_use]
    pub fn shared(self: &Arc<Self>) -> SharedChubby {
        Arc::clone(self) as SharedChubby
    }

    /// Answers nobody from now on.
    pub fn leave(&self) {
        self.away.store(true, Ordering::Relaxed);
    }

    /// Carries out the next transaction that writes below `prefix`, tells nobody, and is away.
    pub fn leave_after(&self, prefix: &str) {
        *self.last_words.lock().unwrap_or_else(PoisonError::into_inner) = Some(prefix.to_owned());
    }

    /// Answers again.
    pub fn come_back(&self) {
        self.away.store(false, Ordering::Relaxed);
    }

    /// Whether it is away.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    fn answer<'a, T: Send + 'a>(&self, reply: Reply<'a, T>) -> Reply<'a, T> {
        if self.is_away() { Box::pin(std::future::ready(Err(gone()))) } else { reply }
    }

    /// Whether this transaction is the last one that is heard.
    fn is_last(&self, writes: &[Write]) -> bool {
        let mut last_words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |prefix: &String| {
            writes.iter().any(|write| {
                let (Write::Put { path, .. } | Write::Delete { path }) = write;
                path.starts_with(prefix)
            })
        };
        last_words.take_if(|prefix| is_meant(prefix)).is_some()
    }
}

fn gone() -> Error {
    Error::Unavailable("nobody answers".to_owned())
}

impl Chubby for Fleeting {
    fn read<'a>(&'a self, path: &'a str) -> Reply<'a, Option<File>> {
        self.answer(self.chubby.read(path))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Reply<'a, (Vec<File>, Revision)> {
        self.answer(self.chubby.list(prefix))
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> Reply<'_, Outcome> {
        if self.is_away() || !self.is_last(&writes) {
            return self.answer(self.chubby.transact(compares, writes));
        }
        Box::pin(async move {
            let made = self.chubby.transact(compares, writes).await;
            self.leave();
            made.and(Err(gone()))
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Reply<'a, WatchStream> {
        self.answer(self.chubby.watch(prefix, after))
    }

    fn open_session(&self, ttl: Duration) -> Reply<'_, Arc<dyn Session>> {
        self.answer(self.chubby.open_session(ttl))
    }
}

#[cfg(test)]
mod tests {
    use ebla_runtime::{Clock, Tasks};

    use super::*;
    use crate::embedded::Embedded;

    #[tokio::test]
    async fn it_goes_and_comes_back_and_its_last_words_are_carried_out() {
        let chubby = Fleeting::new(Embedded::in_memory(Clock::system(), &Tasks::new("test")).shared());
        let write = |path: &str| chubby.transact(Vec::new(), vec![Write::put(path.to_owned(), "x")]);
        chubby.leave();
        assert_eq!(write("a/1").await, Err(gone()));
        chubby.come_back();
        assert_eq!(chubby.read("a/1").await, Ok(None));
        chubby.leave_after("b/");
        assert!(write("a/1").await.is_ok() && !chubby.is_away());
        assert_eq!(write("b/1").await, Err(gone()));
        assert!(chubby.is_away());
        chubby.come_back();
        assert!(chubby.read("b/1").await.unwrap().is_some());
    }
}
