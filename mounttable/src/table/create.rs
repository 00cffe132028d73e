//! Making a child: intent, row, commit.

use crate::access::Permissions;
use crate::error::Error;
use crate::file::Stickiness;
use crate::identity::UserId;
use crate::name::NodeName;
use crate::node::{self, Epoch, Incarnation, Node, Reference};
use crate::store::{Change, Children, Family, Predicate, Store, Surroundings};
use crate::table::Table;

impl<S: Store + Surroundings> Table<S> {
    /// One try at making the child `element` of `parent`, as read, with these permissions. Whoever calls walks again:
    /// the child may be there, made by this call or another's, or not.
    pub(super) async fn create(
        &self,
        parent: &Node,
        element: &str,
        permissions: Permissions,
        creator: UserId,
    ) -> Result<(), Error> {
        let name = parent.name.child(element)?;
        let now = self.store.now();
        let held = parent.children.get(element).copied();
        match held {
            Some((Reference::Pending(other), since)) if now.since(since) < self.options.takeover => {
                return self.help(&parent.name, &name, element, parent.incarnation, other).await;
            }
            // The rows that were read are of different moments, or the child has gone just now.
            Some((Reference::Committed(_), _)) => return Ok(()),
            _ => {}
        }
        let child = Node {
            name,
            incarnation: Incarnation::new(self.store.fresh()),
            version: self.store.fresh(),
            epoch: Epoch::Alive(0),
            parent: parent.incarnation,
            creator,
            created: now,
            stickiness: Stickiness::Collected,
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
            return Ok(());
        }
        self.commit(&parent.name, element, parent.incarnation, child.incarnation).await?;
        // Whether or not it was this commit: if the reference is not there now, it never will be, and the row is
        // litter.
        let reread = self.parent(&parent.name, element).await?;
        if reread.is_none_or(|parent| parent.reference(element) != Some(Reference::Committed(child.incarnation))) {
            let mine = node::is_incarnation(child.incarnation);
            self.store.change_if(&child.key(), mine, vec![Change::DeleteRow]).await?;
        }
        Ok(())
    }

    /// Writes the child's row, over a stale one if the intent still stands after that was read; whether it did.
    async fn write_row(&self, parent: &NodeName, element: &str, child: &Node) -> Result<bool, Error> {
        let intent = Reference::Pending(child.incarnation);
        let mut when = Predicate::RowAbsent;
        if let Some(stale) = self.node(&child.name, &Children::Named(Vec::new())).await? {
            let reread = self.parent(parent, element).await?;
            if reread.is_none_or(|parent| parent.reference(element) != Some(intent)) {
                return Ok(false);
            }
            when = node::is_incarnation(stale.incarnation);
        }
        let is_written = self.store.change_if(&child.key(), when, child.write()).await?;
        if !is_written {
            self.unrefer(parent, element, intent).await?;
        }
        Ok(is_written)
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
        let row = self.node(name, &Children::Named(Vec::new())).await?;
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
