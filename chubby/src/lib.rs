//! Chubby: small files with leases and locks, shared by the whole cluster. Paper section 4.
//!
//! The [`Chubby`] trait is the interface that the cluster needs. [`embedded`] implements it inside one process,
//! durable in a folder: for clusters that are one process and for simulation. [`etcd`] implements it for clusters of
//! several processes. [`testing`] has the conformance suite that every implementation passes, and a test double that
//! injects outages.
//!
//! Rules for all users:
//! - Decide by a transaction that compares revisions, never by a read: a read may be stale when it is acted on.
//! - A session may be lost at any time, also while its holder is paused. The holder's actions are fenced:
//!   transactions compare the lock's create revision, and receivers check that revision themselves.
//! - A watch that has missed events sends [`WatchEvent::Gap`] and stops: list again, and watch from there.
//!
//! Without Chubby the cluster's metadata cannot change; reads and writes of loaded tablets continue.

mod counter;
pub mod embedded;
mod error;
pub mod etcd;
#[cfg(test)]
#[path = "../../fuzz/inputs.rs"]
mod inputs;
mod lock;
pub mod paths;
pub mod testing;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

pub use counter::{Counter, next_id_above, next_ids, next_ids_above, raise_counter, read_counters};
pub use error::Error;
pub use lock::{acquire, try_lock};
use transaction::validate;

/// Counts the changes of the whole service. Each transaction that writes has its own revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision before any change.
    pub const ZERO: Self = Self(0);

    /// The revision with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a lease. Files under a lease are deleted when it expires or is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// The lease with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A file as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path, such as `servers/3`.
    pub path: String,
    /// The content.
    pub value: Bytes,
    /// The revision of the transaction that created it. A file that is deleted and created again has a new one.
    pub created: Revision,
    /// The revision of the transaction that last wrote it.
    pub modified: Revision,
    /// The lease that it belongs to.
    pub lease: Option<LeaseId>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The file does not exist.
    Absent(String),
    /// The file exists.
    Exists(String),
    /// The file exists and was last written at this revision.
    Modified(String, Revision),
    /// The file exists and was created at this revision: the fence of a lock.
    Created(String, Revision),
    /// No file whose path begins with this was written after this revision, as a list of them has it. Deleted files do not count.
    Unchanged(String, Revision),
}

/// One change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Creates or overwrites a file, and sets its lease (or none).
    Put {
        /// The path.
        path: String,
        /// The content.
        value: Bytes,
        /// The lease that the file belongs to from now on.
        lease: Option<LeaseId>,
    },
    /// Deletes a file; no effect if it does not exist.
    Delete {
        /// The path.
        path: String,
    },
}

impl Write {
    /// Writes a file that stays until it is deleted.
    #[must_use]
    pub fn put(path: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self::Put { path: path.into(), value: value.into(), lease: None }
    }

    /// Writes a file that is deleted with its lease.
    #[must_use]
    pub fn put_leased(path: impl Into<String>, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        Self::Put { path: path.into(), value: value.into(), lease: Some(lease) }
    }

    /// Deletes a file.
    #[must_use]
    pub fn delete(path: impl Into<String>) -> Self {
        Self::Delete { path: path.into() }
    }
}

/// The result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// All comparisons held; all writes are durable at this revision.
    Committed(Revision),
    /// A comparison failed; nothing was written.
    Conflict,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A file was created or overwritten.
    Put(File),
    /// A file was deleted, or its lease expired.
    Deleted {
        /// The path.
        path: String,
        /// The revision of the deletion.
        revision: Revision,
    },
    /// Events were missed. This is the last event of the watch: list again and watch from there.
    Gap,
}

/// The events of a watch, ascending by revision.
#[derive(Debug)]
pub struct WatchStream(mpsc::Receiver<WatchEvent>);

impl WatchStream {
    /// A watch that reads a bounded channel. The sender sends [`WatchEvent::Gap`] last when it drops the watch.
    #[must_use]
    pub fn new(events: mpsc::Receiver<WatchEvent>) -> Self {
        Self(events)
    }

    /// The next event; `None` after a gap and when the service has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.0.recv().await
    }
}

/// A lease that is renewed as long as this handle exists.
///
/// Dropping all handles without [`Session::close`] looks like a crash: the lease expires after its TTL.
pub trait Session: Send + Sync + fmt::Debug {
    /// The lease to write files under.
    fn lease(&self) -> LeaseId;

    /// Whether the lease was alive at the last renewal and its TTL, counted from when the renewal was *sent*, has not
    /// passed. True proves nothing: fence all that depends on it.
    fn is_alive(&self) -> bool;

    /// Returns when the lease is lost or closed. Cancel-safe.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Revokes the lease: its files are deleted at once.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The lock service. Calls are linearizable, have a timeout, and are safe to retry, with one exception: a transaction
/// that failed may or may not have been committed, so read before deciding what to do next.
pub trait Chubby: Send + Sync + fmt::Debug {
    /// Reads one file, if it exists.
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>>;

    /// Lists all files whose paths begin with `prefix`, sorted by path, and the revision of the list.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>>;

    /// Makes all `writes` if all `compares` hold; they are durable when it returns.
    ///
    /// A put under a lease that has expired returns [`Error::LeaseLost`] and writes nothing. A transaction writes
    /// each path at most once.
    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>>;

    /// Watches the changes under `prefix` with revisions greater than `after`.
    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>>;

    /// Opens a session with a new lease of `ttl`, renewed in the background while the handle exists.
    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>>;
}

/// A shared handle to the service.
pub type SharedChubby = Arc<dyn Chubby>;
