//! Creation of a child: intent, row, commit.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::name::NodeName;
use crate::node::{self, Epoch, Incarnation, Node, Reference};
use crate::store::{Change, ChildSelection, Condition, Environment, Family, Store};
use crate::table::Table;
use crate::table::quota::QuotaReservation;

/// The specification of a child.
#[derive(Debug)]
pub(super) struct NewNode {
    pub(super) element: String,
    pub(super) permissions: Permissions,
    pub(super) stickiness: Stickiness,
}

impl<S: Store + Environment> Table<S> {
    /// One attempt at creating a child of `parent` as read, charged to the reservation; returns whether this call
    /// created it. The caller must walk again: another call may have created the child, or it is still missing.
    pub(super) async fn create(
        &self,
        parent: &Node,
        child: NewNode,
        reservation: &mut QuotaReservation,
    ) -> Result<bool, Error> {
        let NewNode { element, permissions, stickiness } = child;
        let element = element.as_str();
        let name = parent.name.child(element)?;
        let now = self.store.now();
        let held = parent.children.get(element).copied();
        match held {
            Some((Reference::Pending(other), since)) if now.since(since) < self.options.takeover => {
                self.complete_pending(&parent.name, &name, element, parent.incarnation, other).await?;
                return Ok(false);
            }
            // The rows are from different moments, or the child was deleted just now.
            Some((Reference::Committed(_), _)) => return Ok(false),
            _ => {}
        }
        let child = Node {
            name,
            incarnation: Incarnation::new(self.store.unique_u64()),
            version: self.store.unique_u64(),
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator: reservation.user.clone(),
            created: now,
            stickiness,
            permissions,
            servers: Vec::new(),
            children: [].into(),
        };
        let intent = Reference::Pending(child.incarnation);
        let unchanged =
            Condition::All(vec![parent.alive(), node::reference_is(element, held.map(|(reference, _)| reference))]);
        let steps = self.with_new_version(node::reference_changes(element, intent, now));
        if !self.store.change_if(&parent.key(), unchanged, steps).await?
            || !self.write_row(&parent.name, element, &child).await?
        {
            return Ok(false);
        }
        // From here on the row carries the charge.
        reservation.nodes = reservation.nodes.saturating_sub(1);
        self.commit(&parent.name, element, parent.incarnation, child.incarnation).await?;
        // Regardless of which call committed: if the reference is not there now, it never will be, and the row is
        // garbage.
        let reread = self.parent(&parent.name, element).await?;
        if reread.is_some_and(|parent| parent.reference(element) == Some(Reference::Committed(child.incarnation))) {
            return Ok(true);
        }
        // If the row has changed, the child was live for a moment, and its deleter removes the row.
        if self.store.change_if(&child.key(), child.unchanged(), vec![Change::DeleteRow]).await? {
            reservation.nodes = reservation.nodes.saturating_add(1);
        }
        Ok(false)
    }

    /// Writes the child's row, over a stale one if the intent is still there after the stale one was read; returns
    /// whether it did.
    async fn write_row(&self, parent: &NodeName, element: &str, child: &Node) -> Result<bool, Error> {
        let intent = Reference::Pending(child.incarnation);
        let stale = match self.node(&child.name, &ChildSelection::none()).await {
            // No reference leads to it, because the parent has this intent.
            Err(error) if error.reason == Reason::Damaged => {
                let reread = self.parent(parent, element).await?;
                if reread.is_some_and(|parent| parent.reference(element) == Some(intent)) {
                    self.erase_damaged(&child.name).await?;
                }
                None
            }
            stale => stale?,
        };
        let mut when = Condition::RowAbsent;
        if let Some(stale) = &stale {
            let reread = self.parent(parent, element).await?;
            if reread.is_none_or(|parent| parent.reference(element) != Some(intent)) {
                return Ok(false);
            }
            // The whole row, because its charges must be refunded.
            when = stale.unchanged();
        }
        if !self.store.change_if(&child.key(), when, child.write()).await? {
            self.remove_reference(parent, element, intent).await?;
            return Ok(false);
        }
        if let Some(stale) = &stale {
            self.refund_row(stale).await;
        }
        Ok(true)
    }

    /// Makes the child live, if its intent is still there and the parent has the same incarnation.
    async fn commit(
        &self,
        name: &NodeName,
        element: &str,
        parent: Incarnation,
        child: Incarnation,
    ) -> Result<(), Error> {
        let intent = node::reference_is(element, Some(Reference::Pending(child)));
        let when = Condition::All(vec![node::is_alive(parent), intent]);
        let steps = node::reference_changes(element, Reference::Committed(child), self.store.now());
        self.store.change_if(&crate::key::row_key(name), when, self.with_new_version(steps)).await?;
        Ok(())
    }

    /// Commits a creation that another call has begun, if its row is written.
    async fn complete_pending(
        &self,
        parent_name: &NodeName,
        name: &NodeName,
        element: &str,
        parent: Incarnation,
        other: Incarnation,
    ) -> Result<(), Error> {
        let row = self.node(name, &ChildSelection::none()).await?;
        if row.is_some_and(|row| row.incarnation == other && row.parent == parent && row.epoch != Epoch::Dead) {
            self.commit(parent_name, element, parent, other).await?;
        }
        Ok(())
    }

    /// Removes the reference to a child, if it is still this one.
    pub(super) async fn remove_reference(&self, parent: &NodeName, element: &str, to: Reference) -> Result<(), Error> {
        let steps = vec![Change::DeleteColumn(Family::Children, element.to_owned())];
        let when = node::reference_is(element, Some(to));
        self.store.change_if(&crate::key::row_key(parent), when, self.with_new_version(steps)).await?;
        Ok(())
    }

    /// The changes, together with a new version of the row.
    pub(super) fn with_new_version(&self, mut steps: Vec<Change>) -> Vec<Change> {
        steps.extend(node::version_changes(self.store.unique_u64(), self.store.now()));
        steps
    }
}
