//! Restoring what a dump told, and destroying a table.
//!
//! Rows of a dump come in the order of their keys, so a child may come before its parent, and for a while rows are there
//! that nobody refers to. They are safe because what the root says of itself is written last: until then nobody walks, and
//! a sweep removes nothing ([`super::sweep`]).

use crate::error::{Error, Reason};
use crate::key::row_key;
use crate::name::NodeName;
use crate::outage;
use crate::store::{Change, Children, Family, Predicate, Row, Store, Surroundings};
use crate::table::Table;

/// How many rows or counters are listed at a time.
const PAGE: usize = 256;

/// How many rows and counters there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rows.
    pub rows: usize,
    /// Counters.
    pub counters: usize,
}

/// A restoration on its way.
#[derive(Debug, Default)]
pub struct Restoration {
    /// What the root says of itself.
    root: Row,
    /// The row that came last: a large one comes in pieces.
    last: String,
    tally: Tally,
}

impl<S: Store + Surroundings> Table<S> {
    /// Begins to restore, if there is nothing but a root. From here on the table serves nobody until it is restored.
    ///
    /// # Errors
    /// `NOT_EMPTY`, `CONTENTION` when somebody changes the root, `UNAVAILABLE`.
    pub async fn begin_restoration(&self) -> Result<Restoration, Error> {
        let root = NodeName::root();
        let keys = self.store.keys(None, 2).await?;
        let Some(key) = keys.first() else { return Ok(Restoration::default()) };
        let not_empty = || Error::new(Reason::NotEmpty, "the table is not empty: destroy it first");
        if keys.len() > 1 || *key != row_key(&root) {
            return Err(not_empty());
        }
        let Some(node) = self.node(&root, &Children::first(1)).await? else { return Ok(Restoration::default()) };
        if !node.children.is_empty() || !node.servers.is_empty() {
            return Err(not_empty());
        }
        if self.store.change_if(key, node.unchanged(), vec![Change::DeleteRow]).await? {
            Ok(Restoration::default())
        } else {
            Err(Error::new(Reason::Contention, "somebody changes the table"))
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
        self.put(key, Predicate::All(Vec::new()), written).await.map(drop)
    }

    /// Writes a counter of a dump. What servers of that table had noted of themselves is not true of this one.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn restore_counter(&self, restoration: &mut Restoration, name: &str, value: i64) -> Result<(), Error> {
        if name.starts_with(outage::BEATS) || name.starts_with(outage::OUTAGES) {
            return Ok(());
        }
        restoration.tally.counters = restoration.tally.counters.saturating_add(1);
        self.store.set_counter(name, Some(value)).await
    }

    /// Ends the restoration: from here on the table serves.
    ///
    /// # Errors
    /// `BAD_REQUEST` when no root has come, `CONTENTION` when somebody has set up the table meanwhile, `UNAVAILABLE`.
    pub async fn end_restoration(&self, restoration: Restoration) -> Result<Tally, Error> {
        if restoration.root.is_empty() {
            return Err(Error::new(Reason::BadRequest, "what was to be restored has no root"));
        }
        let key = row_key(&NodeName::root());
        let nobodys = Predicate::HasNot(Family::Meta, "i".to_owned());
        if self.put(&key, nobodys, restoration.root).await? {
            Ok(restoration.tally)
        } else {
            Err(Error::new(Reason::Contention, "somebody has set up the table meanwhile"))
        }
    }

    async fn put(&self, key: &str, when: Predicate, row: Row) -> Result<bool, Error> {
        let set = |((family, column), cell)| Change::Set(family, column, cell);
        let changes: Vec<_> = row.into_iter().map(set).collect();
        if changes.is_empty() { Ok(true) } else { self.store.change_if(key, when, changes).await }
    }

    /// Removes every row and every counter. The root goes first, so that nobody walks any more; what others were just
    /// making may be left, and is an orphan when the table is set up again.
    ///
    /// # Errors
    /// `UNAVAILABLE`: then some are gone, and it may be called again.
    pub async fn destroy(&self) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        let any = || Predicate::All(Vec::new());
        let root = row_key(&NodeName::root());
        let had_root =
            self.store.change_if(&root, Predicate::Has(Family::Meta, "i".to_owned()), vec![Change::DeleteRow]);
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
            tally.counters = tally.counters.saturating_add(1);
        }
        Ok(tally)
    }
}
