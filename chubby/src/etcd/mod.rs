//! Chubby as keys of an etcd (3.4 or newer), for clusters of several processes.
//!
//! ```text
//!   file   servers/3  =  key  /ebla/servers/3         lists and watches are ranges of keys
//!   compare, write    =  one etcd transaction         read, list: linearizable ranges
//!   session           =  a lease, renewed here (session.rs)
//!   members.rs        =  one connection (member.rs) for each member; attempts of 1 s, 5 s for a call
//! ```
//!
//! Decisions are made by transactions. A transaction whose response was lost is not retried: it may have been
//! committed, and the caller gets `Unavailable`. Every other call is retried at the next member. Nothing is connected
//! before the first call, so a process starts and continues while etcd is unavailable.
//!
//! etcd allows 128 operations and 1.5 MiB in a transaction; larger ones fail with `Invalid`. Not supported: TLS and
//! login.

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
use crate::{
    Chubby, Compare, Error, File, Revision, Session, SharedChubby, TransactionOutcome, WatchStream, Write, validate,
};

/// The prefix of all keys.
const PREFIX: &str = "/ebla/";
/// How long a call may take, all attempts together.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The service.
#[derive(Debug)]
pub struct Etcd {
    members: Arc<Members>,
    keys: Keys,
}

impl Etcd {
    /// The service at `endpoints`, each `http://host:port`. Connects at the first call; background work runs under
    /// the runtime's tasks.
    ///
    /// # Errors
    /// `Invalid` when an endpoint is malformed or there is none.
    pub fn new(endpoints: &[String], runtime: &Runtime) -> Result<Arc<Self>, Error> {
        Self::with_prefix(PREFIX, endpoints, runtime)
    }

    /// The same with another prefix of keys, so that several clusters (or tests) can share an etcd.
    ///
    /// # Errors
    /// As [`Etcd::new`].
    pub fn with_prefix(prefix: &str, endpoints: &[String], runtime: &Runtime) -> Result<Arc<Self>, Error> {
        let members = Arc::new(Members::new(endpoints, runtime.child("etcd"))?);
        Ok(Arc::new(Self { members, keys: Keys::new(prefix) }))
    }

    /// A shared handle to the service.
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

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
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

/// A number as etcd encodes it, signed although never negative.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// See [`signed`].
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
