//! Repair of what a check finds.

use crate::error::{Error, Reason};
use crate::key::{name_of, row_key};
use crate::name::{DEPTH_MAX, NodeName};
use crate::node::{self, Node, Reference};
use crate::store::{ChildSelection, Environment, Family, Store};
use crate::table::Table;
use crate::table::check::ChildReference;

/// The number of rows in one read.
const PAGE: usize = 256;

impl<S: Store + Environment> Table<S> {
    /// Repairs what [`Self::check`] finds, while the table serves: removes invalid cells, sweeps, removes dangling
    /// references, and recounts. Rows with a damaged identity stay.
    ///
    /// # Errors
    /// `NOT_EMPTY` during a restore, when a reference may be there before its child; `DAMAGED` when the root has a damaged
    /// identity; `UNAVAILABLE`, `CONTENTION`: a part of the repair is done.
    pub async fn repair(&self) -> Result<(), Error> {
        self.check_not_restoring().await?;
        // A sweep needs a valid root, and skips damaged rows.
        let mut last = None;
        while let Some(names) = self.next_names(&mut last).await? {
            for name in names {
                self.repair_row(&name).await?;
            }
        }
        // A row below an orphan becomes an orphan when that is removed: each round handles one more level.
        for _ in 0..=DEPTH_MAX {
            let swept = self.sweep().await?;
            if swept.orphans.saturating_add(swept.deletions) == 0 {
                break;
            }
        }
        let mut last = None;
        while let Some(names) = self.next_names(&mut last).await? {
            for name in names {
                match self.repair_references(&name).await {
                    Err(error) if error.reason == Reason::Damaged => {}
                    outcome => outcome?,
                }
            }
        }
        self.recount().await.map(drop)
    }

    /// The names of the next rows after the key `last`; `None` after the last row.
    async fn next_names(&self, last: &mut Option<String>) -> Result<Option<Vec<NodeName>>, Error> {
        let keys = self.store.keys(last.as_deref(), PAGE).await?;
        *last = keys.last().cloned();
        Ok(last.is_some().then(|| keys.iter().filter_map(|key| name_of(key).ok()).collect()))
    }

    /// Makes a damaged row valid again, page by page of its references, if its identity is intact. Otherwise it stays, and
    /// [`Self::delete`] of it or of its parent removes it.
    async fn repair_row(&self, name: &NodeName) -> Result<(), Error> {
        let mut after = None;
        loop {
            let children = ChildSelection::Page { prefix: String::new(), after, limit: PAGE };
            let rows = self.store.read(&[row_key(name)], &children).await?;
            let Some(row) = rows.into_iter().next().flatten() else { return Ok(()) };
            if Node::decode(name, &row).is_err()
                && let Some(changes) = node::repair_changes(&row, self.store.now())
            {
                let changes = self.with_new_version(changes);
                self.store.change_if(&row_key(name), node::same_identity(&row), changes).await?;
            }
            let references: Vec<_> = row.into_keys().filter(|(family, _)| *family == Family::Children).collect();
            after = references.into_iter().next_back().map(|(_, element)| element);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes committed references to rows that do not exist. Such a row cannot appear later: a row is written before
    /// its commit, and its reference is removed first.
    async fn repair_references(&self, name: &NodeName) -> Result<(), Error> {
        let mut after = None;
        while let Some(references) = self.references(name, &mut after).await? {
            let is_wrong = |it: &ChildReference| matches!(it.reference, Reference::Committed(_)) && !it.is_there;
            for wrong in references.into_iter().filter(is_wrong) {
                if let Some((_, element)) = wrong.child.split_last() {
                    self.remove_reference(name, element, wrong.reference).await?;
                }
            }
        }
        Ok(())
    }
}
