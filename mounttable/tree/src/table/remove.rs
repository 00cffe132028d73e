//! Deletion: mark, empty, unlink, erase.

use std::future::Future;
use std::pin::Pin;

use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::key::row_key;
use crate::name::NodeName;
use crate::node::{self, Epoch, Incarnation, Node, Reference};
use crate::rules;
use crate::store::{Change, ChildSelection, Condition, Environment, ServerSelection, Store};
use crate::table::Table;

/// The extent of a deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subtree {
    /// Only the node; fails if it has children.
    Refuse,
    /// The node and everything below it, regardless of ownership.
    Delete,
}

/// The number of children that one step of a deletion reads.
const PAGE: usize = 256;

/// The number of rows that a deletion may visit, and the number that it has removed.
#[derive(Debug)]
pub(super) struct DeletionBudget {
    left: usize,
    removed: usize,
}

impl DeletionBudget {
    /// Of this number of rows.
    pub(super) const fn rows(left: usize) -> Self {
        Self { left, removed: 0 }
    }

    /// Without a limit.
    pub(super) const fn unlimited() -> Self {
        Self::rows(usize::MAX)
    }

    /// Whether one more row may be visited.
    const fn spend(&mut self) -> bool {
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }

    const fn add_removed(&mut self) {
        self.removed = self.removed.saturating_add(1);
    }
}

/// How far a deletion has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeletionProgress {
    /// It is finished.
    Finished,
    /// The budget is spent: other requests or the sweep must continue it.
    Interrupted,
}

/// The outcome of one attempt at removing a child.
enum Removal {
    Done,
    /// The child has changed meanwhile.
    Conflict,
    Interrupted,
}

impl<S: Store + Environment> Table<S> {
    /// Deletes a node, if `version` is the row's version or `None`; returns the number of nodes that this call removed.
    /// A missing node counts as deleted.
    ///
    /// # Errors
    /// `ROOT`, `NO_ACCESS`, `NOT_EMPTY`, `BAD_VERSION`, `CONTENTION`, `UNAVAILABLE`: after the last two it may be
    /// partly deleted, and other requests continue the deletion. `DAMAGED` when its row cannot be decoded; the
    /// parent's Admin can delete it as a subtree.
    pub async fn delete(
        &self,
        caller: &Caller,
        name: &NodeName,
        subtree: Subtree,
        version: Option<&str>,
    ) -> Result<usize, Error> {
        let mut attempts = 0;
        loop {
            let path = match self.visit(name).await {
                Err(error) if error.reason == Reason::Damaged && subtree == Subtree::Delete && version.is_none() => {
                    return self.delete_damaged(caller, name, error).await;
                }
                path => path?,
            };
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(rules::Action::Traverse, caller, &above.permissions)?;
            }
            let Some([parent, node]) = path.last_chunk::<2>().filter(|[_, node]| node.name == *name) else {
                let wrong = || Error::new(Reason::Root, "the root cannot be deleted");
                return if name.is_root() { Err(wrong()) } else { Ok(0) };
            };
            rules::check_delete(caller, &node.permissions, &parent.permissions)?;
            if version.is_some_and(|version| version != node.version_text()) {
                return Err(Error::new(Reason::BadVersion, "the node has another version now"));
            }
            if self.mark_for_deletion(node, subtree).await? {
                let mut budget = DeletionBudget::unlimited();
                self.finish_deletion(name, node.incarnation, &mut budget).await?;
                return Ok(budget.removed);
            }
            self.back_off(&mut attempts).await?;
        }
    }

    /// Marks the node dead, if it is unchanged. The version fences off concurrent creations of children.
    async fn mark_for_deletion(&self, node: &Node, subtree: Subtree) -> Result<bool, Error> {
        let Some(now) = self.node(&node.name, &ChildSelection::first(1)).await? else { return Ok(false) };
        if now.version != node.version || now.epoch == Epoch::Dead {
            return Ok(false);
        }
        if subtree == Subtree::Refuse && !now.children.is_empty() {
            return Err(Error::new(Reason::NotEmpty, format!("{:?} has children", node.name)));
        }
        self.mark_dead(&now).await
    }

    pub(super) async fn mark_dead(&self, node: &Node) -> Result<bool, Error> {
        let steps = self.with_new_version(node::death_changes(self.store.now()));
        self.store.change_if(&node.key(), node.unchanged(), steps).await
    }

    /// Continues the deletion of a dead node from wherever it stopped, within the budget.
    ///
    /// Boxed, because it is recursive.
    pub(super) fn finish_deletion<'a>(
        &'a self,
        name: &'a NodeName,
        incarnation: Incarnation,
        budget: &'a mut DeletionBudget,
    ) -> Pin<Box<dyn Future<Output = Result<DeletionProgress, Error>> + Send + 'a>> {
        Box::pin(async move {
            let Some((parent, element)) = name.split_last() else { return Ok(DeletionProgress::Finished) };
            let reference = Reference::Committed(incarnation);
            let mut attempts = 0;
            let rest = loop {
                let node = match self.node(name, &ChildSelection::first(PAGE)).await {
                    Err(error) if error.reason == Reason::Damaged => {
                        self.remove_damaged(&parent, element, reference, budget).await?;
                        return Ok(DeletionProgress::Finished);
                    }
                    node => node?,
                };
                let is_ours = |node: &Node| node.incarnation == incarnation && node.epoch == Epoch::Dead;
                let Some(node) = node.filter(is_ours) else { break None };
                if node.children.is_empty() {
                    break Some(node);
                }
                let mut has_changed = false;
                for (element, (reference, _)) in &node.children {
                    match self.remove_child(name, element, *reference, budget).await? {
                        Removal::Done => has_changed = true,
                        Removal::Conflict => {}
                        Removal::Interrupted => return Ok(DeletionProgress::Interrupted),
                    }
                }
                // A large directory is not contention.
                if has_changed { attempts = 0 } else { self.back_off(&mut attempts).await? }
            };
            self.remove_reference(&parent, element, reference).await?;
            if let Some(node) = rest {
                let is_ours_and_dead = Condition::All(vec![node::is_incarnation(incarnation), node::is_dead()]);
                if self.store.change_if(&node.key(), is_ours_and_dead, vec![Change::DeleteRow]).await? {
                    self.refund_row(&node).await;
                    budget.add_removed();
                }
            }
            Ok(DeletionProgress::Finished)
        })
    }

    /// One attempt at removing a child of a dead node.
    async fn remove_child(
        &self,
        parent: &NodeName,
        element: &str,
        reference: Reference,
        budget: &mut DeletionBudget,
    ) -> Result<Removal, Error> {
        if !budget.spend() {
            return Ok(Removal::Interrupted);
        }
        let (Reference::Committed(child), Ok(name)) = (reference, parent.child(element)) else {
            // The commit of its creator fails from here on.
            return self.remove_reference(parent, element, reference).await.map(|()| Removal::Done);
        };
        let node = match self.node(&name, &ChildSelection::none()).await {
            Err(error) if error.reason == Reason::Damaged => {
                return self.remove_damaged(parent, element, reference, budget).await.map(|()| Removal::Done);
            }
            node => node?,
        };
        match node.filter(|node| node.incarnation == child) {
            Some(node) if node.epoch != Epoch::Dead && !self.mark_dead(&node).await? => Ok(Removal::Conflict),
            Some(_) => Ok(match self.finish_deletion(&name, child, budget).await? {
                DeletionProgress::Finished => Removal::Done,
                DeletionProgress::Interrupted => Removal::Interrupted,
            }),
            None => self.remove_reference(parent, element, reference).await.map(|()| Removal::Done),
        }
    }

    /// Deletes a node whose row cannot be decoded, for the parent's Admin: `error` says so, of it or of an ancestor.
    async fn delete_damaged(&self, caller: &Caller, name: &NodeName, error: Error) -> Result<usize, Error> {
        let Some((parent, element)) = name.split_last() else { return Err(error) };
        let path = self.visit(&parent).await?;
        for above in &path {
            rules::check(rules::Action::Traverse, caller, &above.permissions)?;
        }
        let Some(above) = path.last().filter(|node| node.name == parent) else { return Ok(0) };
        // The permissions of the damaged node are unknown.
        rules::check_delete(caller, &above.permissions, &above.permissions)?;
        let reference = self.parent(&parent, element).await?.and_then(|parent| parent.reference(element));
        let mut budget = DeletionBudget::unlimited();
        if let Some(reference) = reference {
            self.remove_damaged(&parent, element, reference, &mut budget).await?;
        }
        Ok(budget.removed)
    }

    /// Removes a row that cannot be decoded, and the reference to it. The nodes below become orphans, which a sweep
    /// removes; a recount corrects the charges.
    async fn remove_damaged(
        &self,
        parent: &NodeName,
        element: &str,
        reference: Reference,
        budget: &mut DeletionBudget,
    ) -> Result<(), Error> {
        self.remove_reference(parent, element, reference).await?;
        if self.erase_damaged(&parent.child(element)?).await? {
            budget.add_removed();
        }
        Ok(())
    }

    /// Erases a row that cannot be decoded, if nothing refers to it and it has not changed; returns whether it did.
    pub(super) async fn erase_damaged(&self, name: &NodeName) -> Result<bool, Error> {
        let key = row_key(name);
        let keys = std::slice::from_ref(&key);
        let rows = self.store.read_with(keys, &ChildSelection::none(), &ServerSelection::None).await?;
        match rows.into_iter().next().flatten() {
            Some(row) => self.store.change_if(&key, node::same_identity(&row), vec![Change::DeleteRow]).await,
            None => Ok(false),
        }
    }
}
