//! The tree of nodes in a storage that changes one row at a time: the fenced protocol between parents and children.
//!
//! ```text
//!   create   parent: c:name = P<x>     intent; x is new, and the parent is alive and unchanged there
//!            child:  whole row, i = x  if absent, or stale while the intent still stands
//!            parent: c:name = C<x>     if the parent is the same and alive and the intent still stands: now it is live
//!   delete   child:  e = dead          from here on nobody mounts on it or creates below it
//!            child's references        pending ones are taken back, committed ones deleted, till none is left
//!            parent: no c:name         if it is C<x>
//!            child:  no row            if it is x, and dead
//! ```
//!
//! Why it is right: an incarnation is never used again, so "still `P<x>`" after a row was read proves that the row was
//! not live under another incarnation; only the commit makes a row live, under a condition that only its own intent
//! meets; and the reference goes before the row, so no reader finds one that leads to a successor's.
//!
//! Whoever comes upon a node that is dead and still referred to goes on with its deletion, and an intent that is older
//! than [`Options::takeover`] may be replaced: nobody who crashes blocks the others. Mounts do not conflict with each
//! other: their condition is the epoch, which only deletion and new permissions change.
//!
//! What is absent: charges in blocks, a rate limit for users, and repair of rows that this protocol cannot have written.

mod check;
mod collect;
mod create;
mod dump;
mod glob;
mod heartbeat;
mod inspect;
mod mend;
mod permissions;
mod quota;
mod remove;
mod restore;
mod serve;
mod setup;
mod sweep;
mod walk;

use std::time::Duration;

use crate::error::{Error, Reason};
use crate::outage::Credit;
use crate::store::{Store, Surroundings};
use crate::table::collect::Visits;
use crate::table::heartbeat::Outages;

pub use check::{Correction, Finding, Trouble};
pub use glob::{Found, Receive, Summary};
pub use inspect::{CHILDREN_COUNTED_MAX, Facts};
pub use quota::{Charge, Limits, Usage};
pub use remove::Subtree;
pub use restore::{Restoration, Tally};
pub use serve::{Mount, Mounted, Resolved};
pub use sweep::Swept;

/// How often a call begins anew because others changed what it had read.
const TRIES_MAX: u32 = 200;

/// How many counters are read at a time.
const PAGE: usize = 256;

/// What an operator may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How old an intent must be before others replace it.
    pub takeover: Duration,
    /// How old a node must be before it is collected when it is empty, and an intent before it is swept.
    pub grace: Duration,
    /// How many nodes a user may have made, unless he has a limit of his own; 0: any number.
    pub nodes_per_user: i64,
    /// How many servers a user may have mounted, unless he has a limit of his own; 0: any number.
    pub servers_per_user: i64,
    /// Whether outages put deadlines off. If they do, [`Table::beat`] is to be called.
    pub credit: Credit,
}

impl Default for Options {
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
    options: Options,
    /// When expired servers were last removed from nodes.
    expiries: Visits,
    /// When nodes were last collected.
    collections: Visits,
    outages: Outages,
}

impl<S: Store + Surroundings> Table<S> {
    /// The tree in `store`.
    pub fn new(store: S, options: Options) -> Self {
        let (expiries, collections) = (Visits::default(), Visits::default());
        Self { store, options, expiries, collections, outages: Outages::default() }
    }

    /// All counters whose names begin with `prefix`, in order; none is called as the prefix itself.
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

    /// Pauses before another try.
    async fn again(&self, tries: &mut u32) -> Result<(), Error> {
        *tries = tries.saturating_add(1);
        if *tries > TRIES_MAX {
            return Err(Error::new(Reason::Contention, "others changed the same nodes again and again"));
        }
        self.store.pause(*tries).await;
        Ok(())
    }
}
