//! Chubby as keys of an etcd (3.4 or newer), for clusters of several processes.
//!
//! ```text
//!   file   servers/3  =  key  /ebla/servers/3         lists and watches are ranges of keys
//!   compare, write    =  one etcd transaction         read, list: linearizable ranges
//!   session           =  a lease, renewed here (session.rs)
//!   members.rs        =  one connection (member.rs) a member; attempts of 1 s go from one to the next, 5 s a call
//! ```
//!
//! What is decided is decided by transaction. An attempt at one whose answer is missing is not repeated: it may have been
//! made, and the caller is told `Unavailable`. Everything else is repeated elsewhere. Nothing is connected before the first
//! call, so a process starts, and goes on, while etcd is away.
//!
//! etcd allows 128 operations and 1.5 MiB in a transaction; more errs as `Invalid`. What it does not do: TLS and login.

mod files;
mod member;
mod members;
mod session;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::Runtime;
use futures::future::BoxFuture;

use self::files::Keys;
use self::members::Members;
use crate::{Chubby, Compare, Error, File, Outcome, Revision, Session, SharedChubby, WatchStream, Write, validate};

/// What all keys begin with.
const PREFIX: &str = "/ebla/";
/// How long a call may take, all attempts together.
const BOUND: Duration = Duration::from_secs(5);

/// The service.
#[derive(Debug)]
pub struct Etcd {
    members: Arc<Members>,
    keys: Keys,
}

impl Etcd {
    /// The service behind `endpoints`, each `http://host:port`. Connects at the first call; what runs in the background is
    /// a child of the runtime's tasks.
    ///
    /// # Errors
    /// `Invalid` when an endpoint is malformed or there is none.
    pub fn new(endpoints: &[String], runtime: &Runtime) -> Result<Arc<Self>, Error> {
        Self::under(PREFIX, endpoints, runtime)
    }

    /// The same with another prefix of keys, so that several clusters (or tests) share an etcd.
    ///
    /// # Errors
    /// As [`Etcd::new`].
    pub fn under(prefix: &str, endpoints: &[String], runtime: &Runtime) -> Result<Arc<Self>, Error> {
        let members = Arc::new(Members::new(endpoints, runtime.child("etcd"))?);
        Ok(Arc::new(Self { members, keys: Keys::new(prefix) }))
    }

    /// The service as components take it.
    #[must_use]
    pub fn shared(self: &Arc<Self>) -> SharedChubby {
        Arc::clone(self) as SharedChubby
    }
}

impl Chubby for Etcd {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        Box::pin(files::read(&self.members, &self.keys, path))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        Box::pin(files::list(&self.members, &self.keys, prefix))
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            validate(&writes)?;
            files::transact(&self.members, &self.keys, &compares, writes).await
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        Box::pin(watch::begin(&self.members, &self.keys, prefix, after))
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(session::open(&self.members, ttl))
    }
}

/// As etcd writes numbers that are never negative.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// See [`signed`].
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
