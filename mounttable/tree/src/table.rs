//! The tree of nodes over a store that changes one row at a time: the fenced protocol between parents and children.
//!
//! ```text
//!   create   parent: c:name = P<x>     intent; x is new, and the parent is alive and unchanged there
//!            child:  whole row, i = x  if absent, or stale while the intent is still there
//!            parent: c:name = C<x>     commit, if the same parent is alive and the intent is still there: the child is live
//!   delete   child:  e = dead          mark: from here on mounts on it and creations below it fail
//!            child's references        remove pending ones, delete committed ones, until none is left
//!            parent: no c:name         unlink, if it is C<x>
//!            child:  no row            erase, if it is x, and dead
//! ```
//!
//! Why it is correct: an incarnation is never reused, so "still `P<x>`" after a row was read proves that the row was
//! not live under another incarnation; only the commit makes a row live, under a condition that only its own intent
//! fulfils; and the reference is removed before the row, so no reader follows a reference to a successor's row.
//!
//! A request that finds a dead node with a reference continues its deletion, and an intent older than
//! [`TableOptions::takeover`] may be replaced: a crashed request does not block others. Mounts do not conflict with
//! each other: their condition is the epoch, which only deletion and new permissions change.
//!
//! What is absent: quota reservations in blocks, a rate limit per user, and repair of rows that this protocol cannot
//! have written.

mod check;
mod collect;
mod create;
mod dump;
mod glob;
mod heartbeat;
mod inspect;
mod permissions;
mod quota;
mod remove;
mod repair;
mod restore;
mod serve;
mod setup;
mod sweep;
mod walk;

use std::time::Duration;

use crate::error::{Error, Reason};
use crate::outage::Credit;
use crate::store::{Environment, Store};
use crate::table::collect::AttemptTimes;
use crate::table::heartbeat::Outages;

pub use check::{Correction, Finding, Problem};
pub use glob::{GlobMatch, GlobSink, GlobSummary};
pub use inspect::{CHILDREN_COUNTED_MAX, NodeInfo};
pub use quota::{Limits, QuotaKind, Usage};
pub use remove::Subtree;
pub use restore::{Restoration, Tally};
pub use serve::{Mount, Mounted, PathVersion, Resolved};
pub use setup::NodeChange;
pub use sweep::{Maintained, Swept};

/// The number of attempts before a call fails with `CONTENTION`.
const ATTEMPTS_MAX: u32 = 200;

/// The number of counters in one read.
const PAGE: usize = 256;

/// Settings for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOptions {
    /// The age from which other requests may replace an intent.
    pub takeover: Duration,
    /// The age from which an empty node is collected, and an abandoned intent is swept.
    pub grace: Duration,
    /// The default limit of nodes per user; 0: no limit.
    pub nodes_per_user: i64,
    /// The default limit of mounted servers per user; 0: no limit.
    pub servers_per_user: i64,
    /// Whether outages extend deadlines. If so, [`Table::heartbeat`] must be called regularly.
    pub credit: Credit,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            takeover: Duration::from_secs(2),
            grace: Duration::from_secs(60),
            nodes_per_user: 10_000,
            servers_per_user: 10_000,
            credit: Credit::Off,
        }
    }
}

/// The mounttable's tree in a storage.
#[derive(Clone, Debug)]
pub struct Table<S> {
    store: S,
    options: TableOptions,
    /// The last removals of expired servers, by node.
    expiries: AttemptTimes,
    /// The last collections, by node.
    collections: AttemptTimes,
    outages: Outages,
}

impl<S: Store + Environment> Table<S> {
    /// The tree in `store`.
    pub fn new(store: S, options: TableOptions) -> Self {
        let (expiries, collections) = (AttemptTimes::default(), AttemptTimes::default());
        Self { store, options, expiries, collections, outages: Outages::default() }
    }

    /// All counters whose names begin with `prefix`, in order. No counter has the prefix itself as its name.
    async fn counters_of(&self, prefix: &str) -> Result<Vec<(String, i64)>, Error> {
        let mut found = Vec::new();
        let mut after = prefix.to_owned();
        loop {
            let counters = self.store.counters(Some(&after), PAGE).await?;
            let Some((last, _)) = counters.last() else { return Ok(found) };
            after = last.clone();
            let is_last = !after.starts_with(prefix);
            found.extend(counters.into_iter().take_while(|(name, _)| name.starts_with(prefix)));
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Backs off before the next attempt, or fails with `CONTENTION`.
    async fn back_off(&self, attempts: &mut u32) -> Result<(), Error> {
        *attempts = attempts.saturating_add(1);
        if *attempts > ATTEMPTS_MAX {
            return Err(Error::new(Reason::Contention, "too much contention on these nodes; retry"));
        }
        self.store.back_off(*attempts).await;
        Ok(())
    }
}
