//! Chubby: small files that all of a cluster agrees on, with leases and locks. Paper section 4.
//!
//! The [`Chubby`] trait is what the cluster needs of such a service; [`embedded`] is an implementation inside this
//! process, durable in a folder, for clusters that are one process and for simulation; [`etcd`] is the one for clusters of
//! several. [`conformance`] is the one suite that every implementation passes; [`fleeting`] makes any of them go away, for
//! tests.
//!
//! How it is used, everywhere:
//! - What is decided is decided by a transaction that compares revisions, never by a read: a read may be old by the time
//!   it is acted on.
//! - A session may be lost at any time, also while its holder is paused. Its holder's acts are fenced by comparing
//!   the lock's create revision, and receivers check that revision themselves.
//! - A watch that cannot tell everything says [`Event::Gap`] and ends: list again, watch from there.
//!
//! Losing Chubby stops changes of the cluster's map, not reads and writes of loaded tablets.

pub mod conformance;
pub mod embedded;
mod error;
pub mod etcd;
pub mod fleeting;
mod helpers;
pub mod paths;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

pub use error::Error;
use helpers::validate;
pub use helpers::{Counter, acquire, next_ids, try_lock};

/// Counts the changes of the whole service; each transaction that writes has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// Before any change.
    pub const ZERO: Self = Self(0);

    /// The revision of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
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

/// Names a lease; files put under it go when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// The lease of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A file as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name, such as `servers/3`.
    pub path: String,
    /// Its content.
    pub value: Bytes,
    /// The revision of the transaction that made it; differs after it was deleted and made again.
    pub created: Revision,
    /// The revision of the transaction that wrote it last.
    pub modified: Revision,
    /// The lease it lives under.
    pub lease: Option<LeaseId>,
}

/// What must hold for a transaction to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There is no such file.
    Absent(String),
    /// The file exists.
    Exists(String),
    /// The file exists and was last written at that revision.
    Modified(String, Revision),
    /// The file exists and was made at that revision: the fence of a lock.
    Created(String, Revision),
}

/// One change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Makes or overwrites a file, and sets its lease (or none).
    Put {
        /// Its name.
        path: String,
        /// Its content.
        value: Bytes,
        /// The lease it lives under from now on.
        lease: Option<LeaseId>,
    },
    /// Removes a file; without effect if there is none.
    Delete {
        /// Its name.
        path: String,
    },
}

impl Write {
    /// A file that stays until it is deleted.
    #[must_use]
    pub fn put(path: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self::Put { path: path.into(), value: value.into(), lease: None }
    }

    /// A file that goes with the lease.
    #[must_use]
    pub fn put_leased(path: impl Into<String>, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        Self::Put { path: path.into(), value: value.into(), lease: Some(lease) }
    }

    /// No such file any more.
    #[must_use]
    pub fn delete(path: impl Into<String>) -> Self {
        Self::Delete { path: path.into() }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All comparisons held and all writes were made, durably, at this revision.
    Done(Revision),
    /// A comparison did not hold; nothing was written.
    Conflict,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file was made or written.
    Put(File),
    /// A file was deleted, or its lease ended.
    Deleted {
        /// Its name.
        path: String,
        /// When.
        revision: Revision,
    },
    /// Something was missed. The last event of its watch: list again and watch from there.
    Gap,
}

/// The events of a watch, in order of revision.
#[derive(Debug)]
pub struct WatchStream(mpsc::Receiver<Event>);

impl WatchStream {
    /// A watch that is fed through a bounded channel. The feeder sends [`Event::Gap`] last when it drops the watch.
    #[must_use]
    pub fn new(events: mpsc::Receiver<Event>) -> Self {
        Self(events)
    }

    /// The next event; `None` after a gap and when the service has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

/// A lease that is kept alive for as long as this handle is held.
///
/// Dropping all handles without [`Session::close`] is what a crash looks like: the lease ends when its time is over.
pub trait Session: Send + Sync + fmt::Debug {
    /// The lease to put files under.
    fn lease(&self) -> LeaseId;

    /// Whether the lease was alive when it was last heard of and its time, counted from when the renewal was *sent*, is
    /// not over. True is no proof: fence what depends on it.
    fn is_alive(&self) -> bool;

    /// Returns when the lease is lost or closed. Cancel-safe.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Ends the lease now: its files go at once.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The service. Calls are linearizable, bounded in time and safe to repeat after an error, except that a transaction that
/// failed may or may not have been made: read before deciding what to do next.
pub trait Chubby: Send + Sync + fmt::Debug {
    /// One file, if it exists.
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>>;

    /// All files whose names begin with `prefix`, by name, and the revision as of which.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>>;

    /// Makes all `writes`, if all of `compares` hold; durable when it returns.
    ///
    /// A put under a lease that has ended errs with [`Error::LeaseLost`] and writes nothing. A path is written at most once
    /// by a transaction.
    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<Outcome, Error>>;

    /// The changes under `prefix` with revisions greater than `after`.
    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>>;

    /// A new lease of `ttl`, renewed in the background while the handle is held.
    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>>;
}

/// How components hold it.
pub type SharedChubby = Arc<dyn Chubby>;
