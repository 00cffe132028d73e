//! The sweep: removes orphaned rows and abandoned intents, finishes deletions, and collects what no request came
//! across. Safe while the table serves, and so is the maintenance, which corrects the counters of quotas too.

use crate::error::{Error, Reason};
use crate::name::NodeName;
use crate::node::{Epoch, Node, Reference};
use crate::store::{Change, ChildSelection, Environment, Store};
use crate::table::Table;
use crate::table::check::Correction;
use crate::table::remove::DeletionBudget;

/// The number of rows in one read.
const PAGE: usize = 1_000;

/// The counts of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Orphaned rows, removed.
    pub orphans: usize,
    /// Abandoned intents, removed.
    pub intents: usize,
    /// Deletions, finished.
    pub deletions: usize,
    /// Expired servers, removed.
    pub expired: usize,
    /// Damaged rows, skipped.
    pub damaged: usize,
}

/// The results of maintenance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Maintained {
    /// Those of the sweep.
    pub swept: Swept,
    /// The counters of quotas that were wrong.
    pub corrections: Vec<Correction>,
}

impl<S: Store + Environment> Table<S> {
    /// A sweep, then a recount. A process that ends between a change and its update of the quota leaves a wrong counter, which could refuse
    /// a user later. Nothing is counted during a restore.
    ///
    /// # Errors
    /// Those of [`Self::sweep`] and [`Self::recount`].
    pub async fn maintain(&self) -> Result<Maintained, Error> {
        let swept = self.sweep().await?;
        let corrections = if self.is_restoring().await? { Vec::new() } else { self.recount().await? };
        Ok(Maintained { swept, corrections })
    }

    /// Goes through the whole table once, if it has a root.
    ///
    /// # Errors
    /// `UNAVAILABLE`, `CONTENTION`: the rest was not swept.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        // Without a root there are no references, and the rows may belong to a restore in progress.
        if self.is_restoring().await? || self.node(&NodeName::root(), &ChildSelection::none()).await?.is_none() {
            return Ok(swept);
        }
        let mut after: Option<String> = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last().cloned() else { return Ok(swept) };
            for key in keys {
                match self.sweep_row(&key, &mut swept).await {
                    // One damaged row must not stop the sweep.
                    Err(error) if error.reason == Reason::Damaged => swept.damaged = swept.damaged.saturating_add(1),
                    outcome => outcome?,
                }
            }
            after = Some(last);
        }
    }

    async fn sweep_row(&self, key: &str, swept: &mut Swept) -> Result<(), Error> {
        let name = crate::key::name_of(key)?;
        let Some(mut node) = self.node(&name, &ChildSelection::none()).await? else { return Ok(()) };
        if !name.is_root() {
            if self.is_orphan(&node).await? {
                if self.store.change_if(key, node.unchanged(), vec![Change::DeleteRow]).await? {
                    self.refund_row(&node).await;
                    swept.orphans = swept.orphans.saturating_add(1);
                }
                return Ok(());
            }
            if node.epoch == Epoch::Dead {
                swept.deletions = swept.deletions.saturating_add(1);
                let mut budget = DeletionBudget::unlimited();
                return self.finish_deletion(&name, node.incarnation, &mut budget).await.map(drop);
            }
        }
        let servers = node.servers.len();
        self.expire(&mut node).await?;
        swept.expired = swept.expired.saturating_add(servers.saturating_sub(node.servers.len()));
        self.sweep_intents(&name, swept).await?;
        if self.may_go(&node) { self.collect(&name).await } else { Ok(()) }
    }

    /// Whether a row as read is an orphan and will stay one: the parent was read later, and a row of a later intent has
    /// another incarnation.
    async fn is_orphan(&self, node: &Node) -> Result<bool, Error> {
        if self.is_referred_to(node).await? {
            return Ok(false);
        }
        // A table without a root is being restored, and a row may come before its parent. The root is written last: if
        // it is there, so is the parent, on a second read.
        let has_root = self.node(&NodeName::root(), &ChildSelection::none()).await?.is_some();
        Ok(has_root && !self.is_restoring().await? && !self.is_referred_to(node).await?)
    }

    /// Whether the parent, as it is now, refers to this incarnation of a row; always true for the root.
    pub(super) async fn is_referred_to(&self, node: &Node) -> Result<bool, Error> {
        let Some((parent, element)) = node.name.split_last() else { return Ok(true) };
        let parent = self.parent(&parent, element).await?.filter(|parent| parent.incarnation == node.parent);
        let reference = parent.and_then(|parent| parent.reference(element));
        Ok(reference.is_some_and(|reference| reference.incarnation() == node.incarnation))
    }

    async fn sweep_intents(&self, name: &NodeName, swept: &mut Swept) -> Result<(), Error> {
        let now = self.store.now();
        let mut after = None;
        loop {
            let children = ChildSelection::Page { prefix: String::new(), after, limit: PAGE };
            let Some(node) = self.node(name, &children).await? else { return Ok(()) };
            for (element, (reference, since)) in &node.children {
                if matches!(reference, Reference::Pending(_)) && now.since(*since) >= self.options.grace {
                    self.remove_reference(&node.name, element, *reference).await?;
                    swept.intents = swept.intents.saturating_add(1);
                }
            }
            after = node.children.into_keys().next_back();
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
