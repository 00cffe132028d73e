//! Making a child: intent, row, commit.

use crate::access::Permissions;
use crate::error::Error;
use crate::file::Stickiness;
use crate::name::NodeName;
use crate::node::{self, Epoch, Incarnation, Node, Reference};
use crate::store::{Change, Children, Family, Predicate, Store, Surroundings};
use crate::table::Table;
use crate::table::quota::Purse;

/// A child that is to be made.
#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) element: String,
    pub(super) permissions: Permissions,
    pub(super) stickiness: Stickiness,
}

impl<S: Store + Surroundings> Table<S> {
    /// One try at making a child of `parent`, as read, paid from the purse; whether this call made it. Whoever calls walks
    /// again: the child may be there all the same, made by another, or not at all.
    pub(super) async fn create(&self, parent: &Node, child: Blueprint, purse: &mut Purse) -> Result<bool, Error> {
        let Blueprint { element, permissions, stickiness } = child;
        let element = element.as_str();
        let name = parent.name.child(element)?;
        let now = self.store.now();
        let held = parent.children.get(element).copied();
        match held {
            Some((Reference::Pending(other), since)) if now.since(since) < self.options.takeover => {
                self.help(&parent.name, &name, element, parent.incarnation, other).await?;
                return Ok(false);
            }
            // The rows that were read are of different moments, or the child has gone just now.
            Some((Reference::Committed(_), _)) => return Ok(false),
            _ => {}
        }
        let child = Node {
            name,
            incarnation: Incarnation::new(self.store.fresh()),
            version: self.store.fresh(),
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator: purse.user.clone(),
            created: now,
            stickiness,
            permissions,
            servers: Vec::new(),
            children: [].into(),
        };
        let intent = Reference::Pending(child.incarnation);
        let mine = Predicate::All(vec![parent.alive(), node::refers(element, held.map(|(reference, _)| reference))]);
        let steps = self.stamped(node::refer(element, intent, now));
        if !self.store.change_if(&parent.key(), mine, steps).await?
            || !self.write_row(&parent.name, element, &child).await?
        {
            return Ok(false);
        }
        // From here on the charge is the row's.
        purse.nodes = purse.nodes.saturating_sub(1);
        self.commit(&parent.name, element, parent.incarnation, child.incarnation).await?;
        // Whether or not it was this commit: if the reference is not there now, it never will be, and the row is
        // litter.
        let reread = self.parent(&parent.name, element).await?;
        if reread.is_some_and(|parent| parent.reference(element) == Some(Reference::Committed(child.incarnation))) {
            return Ok(true);
        }
        // If it is not as it was written it was live for a moment, and is its deleter's business.
        if self.store.change_if(&child.key(), child.unchanged(), vec![Change::DeleteRow]).await? {
            purse.nodes = purse.nodes.saturating_add(1);
        }
        Ok(false)
    }

    /// Writes the child's row, over a stale one if the intent still stands after that was read; whether it did.
    async fn write_row(&self, parent: &NodeName, element: &str, child: &Node) -> Result<bool, Error> {
        let intent = Reference::Pending(child.incarnation);
        let stale = self.node(&child.name, &Children::none()).await?;
        let mut when = Predicate::RowAbsent;
        if let Some(stale) = &stale {
            let reread = self.parent(parent, element).await?;
            if reread.is_none_or(|parent| parent.reference(element) != Some(intent)) {
                return Ok(false);
            }
            // All of it, so that what it was charged for is known.
            when = stale.unchanged();
        }
        if !self.store.change_if(&child.key(), when, child.write()).await? {
            self.unrefer(parent, element, intent).await?;
            return Ok(false);
        }
        if let Some(stale) = &stale {
            self.give_back_row(stale).await;
        }
        Ok(true)
    }

    /// Makes the child live, if its intent stands and the parent is the one it was made under.
    async fn commit(
        &self,
        name: &NodeName,
        element: &str,
        parent: Incarnation,
        child: Incarnation,
    ) -> Result<(), Error> {
        let intent = node::refers(element, Some(Reference::Pending(child)));
        let when = Predicate::All(vec![node::is_alive(parent), intent]);
        let steps = node::refer(element, Reference::Committed(child), self.store.now());
        self.store.change_if(&crate::key::row_key(name), when, self.stamped(steps)).await?;
        Ok(())
    }

    /// Finishes what another began a moment ago, if that is far enough.
    async fn help(
        &self,
        parent_name: &NodeName,
        name: &NodeName,
        element: &str,
        parent: Incarnation,
        other: Incarnation,
    ) -> Result<(), Error> {
        let row = self.node(name, &Children::none()).await?;
        if row.is_some_and(|row| row.incarnation == other && row.parent == parent && row.epoch != Epoch::Dead) {
            self.commit(parent_name, element, parent, other).await?;
        }
        Ok(())
    }

    /// Removes the reference to a child, if it is still this one.
    pub(super) async fn unrefer(&self, parent: &NodeName, element: &str, to: Reference) -> Result<(), Error> {
        let steps = vec![Change::DeleteColumn(Family::Children, element.to_owned())];
        let when = node::refers(element, Some(to));
        self.store.change_if(&crate::key::row_key(parent), when, self.stamped(steps)).await?;
        Ok(())
    }

    /// The steps, and a version that the row never had.
    pub(super) fn stamped(&self, mut steps: Vec<Change>) -> Vec<Change> {
        steps.extend(node::new_version(self.store.fresh(), self.store.now()));
        steps
    }
}
