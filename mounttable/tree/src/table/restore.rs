//! Restoring a dump, and destroying a table.
//!
//! A dump has its rows in key order, so a child may come before its parent, and meanwhile there are rows without a
//! reference. This is safe because the root's own cells are written last: until then no walk succeeds, and a sweep
//! removes nothing ([`super::sweep`]).

use crate::error::{Error, Reason};
use crate::key::row_key;
use crate::name::NodeName;
use crate::outage;
use crate::store::{Change, ChildSelection, Condition, Environment, Family, Row, Store};
use crate::table::Table;
use crate::table::setup::SEEDING;

/// The counter that exists while a table is being restored. It stays when a restore is aborted.
const RESTORING: &str = "setup:restoring";

/// The number of rows or counters in one read.
const PAGE: usize = 256;

/// Counts of rows and counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rows.
    pub rows: usize,
    /// Counters.
    pub counters: usize,
}

/// A restore in progress.
#[derive(Debug, Default)]
pub struct Restoration {
    /// The root's own cells.
    root: Row,
    /// The key of the last row: a large row comes in pieces.
    last: String,
    tally: Tally,
}

impl<S: Store + Environment> Table<S> {
    /// Starts a restore, if the table has no nodes besides a root. From here on the table does not serve until the
    /// restore is finished.
    ///
    /// # Errors
    /// `NOT_EMPTY`, `CONTENTION` when the root changes meanwhile, `UNAVAILABLE`.
    pub async fn begin_restore(&self) -> Result<Restoration, Error> {
        // The mark is set first and removed last: in between no server creates a root, and no sweep removes rows.
        if self.store.add(RESTORING, 1).await? != 1 {
            let wrong = "another restore is in progress, or was aborted; destroy the table first";
            return Err(Error::new(Reason::NotEmpty, wrong));
        }
        let outcome = self.remove_only_root().await;
        if matches!(&outcome, Err(error) if error.reason != Reason::Unavailable) {
            self.store.set_counter(RESTORING, None).await?;
        }
        outcome
    }

    /// Whether a restore is in progress or was aborted.
    pub(super) async fn is_restoring(&self) -> Result<bool, Error> {
        Ok(self.store.counter(RESTORING).await?.is_some())
    }

    async fn remove_only_root(&self) -> Result<Restoration, Error> {
        let root = NodeName::root();
        let keys = self.store.keys(None, 2).await?;
        let Some(key) = keys.first() else { return Ok(Restoration::default()) };
        let not_empty = || Error::new(Reason::NotEmpty, "the table is not empty; destroy it first");
        if keys.len() > 1 || *key != row_key(&root) {
            return Err(not_empty());
        }
        let Some(node) = self.node(&root, &ChildSelection::first(1)).await? else { return Ok(Restoration::default()) };
        if !node.children.is_empty() || !node.servers.is_empty() {
            return Err(not_empty());
        }
        if self.store.change_if(key, node.unchanged(), vec![Change::DeleteRow]).await? {
            Ok(Restoration::default())
        } else {
            Err(Error::new(Reason::Contention, "the table was changed concurrently; retry"))
        }
    }

    /// Writes a row of a dump, or the next piece of one.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn restore_row(&self, restoration: &mut Restoration, key: &str, row: Row) -> Result<(), Error> {
        if restoration.last != key {
            key.clone_into(&mut restoration.last);
            restoration.tally.rows = restoration.tally.rows.saturating_add(1);
        }
        let is_withheld = |family: Family| family == Family::Meta && key == row_key(&NodeName::root());
        let (withheld, written): (Row, Row) = row.into_iter().partition(|((family, _), _)| is_withheld(*family));
        restoration.root.extend(withheld);
        self.put(key, Condition::All(Vec::new()), written).await.map(drop)
    }

    /// Writes a counter of a dump, except heartbeats and outages, which describe the servers of the dumped table.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn restore_counter(&self, restoration: &mut Restoration, name: &str, value: i64) -> Result<(), Error> {
        let is_of_servers = name.starts_with(outage::HEARTBEAT_PREFIX) || name.starts_with(outage::OUTAGE_PREFIX);
        if is_of_servers || [RESTORING, SEEDING].contains(&name) {
            return Ok(());
        }
        restoration.tally.counters = restoration.tally.counters.saturating_add(1);
        self.store.set_counter(name, Some(value)).await
    }

    /// Finishes the restore: from here on the table serves.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the dump had no root, `CONTENTION` when another process has set up the table meanwhile,
    /// `UNAVAILABLE`.
    pub async fn finish_restore(&self, restoration: Restoration) -> Result<Tally, Error> {
        if restoration.root.is_empty() {
            return Err(Error::new(Reason::BadRequest, "the dump has no root"));
        }
        let key = row_key(&NodeName::root());
        let is_absent = Condition::HasNot(Family::Meta, "i".to_owned());
        if self.put(&key, is_absent, restoration.root).await? {
            // A seeding that was interrupted before the restore must not continue on the restored nodes.
            self.store.set_counter(SEEDING, None).await?;
            self.store.set_counter(RESTORING, None).await?;
            Ok(restoration.tally)
        } else {
            Err(Error::new(Reason::Contention, "the table was set up concurrently; destroy it and restore again"))
        }
    }

    async fn put(&self, key: &str, when: Condition, row: Row) -> Result<bool, Error> {
        let set = |((family, column), cell)| Change::Set(family, column, cell);
        let changes: Vec<_> = row.into_iter().map(set).collect();
        if changes.is_empty() { Ok(true) } else { self.store.change_if(key, when, changes).await }
    }

    /// Removes every row and every counter. The root is removed first, so that no walk succeeds any more; rows of
    /// creations in progress may be left, and are orphans when the table is set up again.
    ///
    /// # Errors
    /// `UNAVAILABLE`: a part is removed; call it again.
    pub async fn destroy(&self) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        let any = || Condition::All(Vec::new());
        let root = row_key(&NodeName::root());
        let had_root =
            self.store.change_if(&root, Condition::Has(Family::Meta, "i".to_owned()), vec![Change::DeleteRow]);
        tally.rows = tally.rows.saturating_add(had_root.await?.into());
        let mut after = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            for key in &keys {
                self.store.change_if(key, any(), vec![Change::DeleteRow]).await?;
            }
            tally.rows = tally.rows.saturating_add(keys.len());
            after = keys.into_iter().next_back();
            if after.is_none() {
                break;
            }
        }
        for (name, _) in self.counters_of("").await? {
            self.store.set_counter(&name, None).await?;
            let is_mark = [RESTORING, SEEDING].contains(&name.as_str());
            tally.counters = tally.counters.saturating_add((!is_mark).into());
        }
        Ok(tally)
    }
}
