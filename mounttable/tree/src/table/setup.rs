//! The initial content of a table: its root, and the nodes of a permissions file.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::file::{FileNode, Stickiness};
use crate::identity::UserId;
use crate::name::NodeName;
use crate::node::{Epoch, Incarnation, Node};
use crate::store::{ChildSelection, Condition, Environment, Store};
use crate::table::Table;
use crate::table::create::NewNode;
use crate::table::quota::QuotaReservation;
use crate::table::serve::missing;

/// The counter that exists while a new table is being seeded.
pub(super) const SEEDING: &str = "setup:seeding";

/// What [`Table::apply`] does to one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeChange {
    /// The node's name.
    pub name: NodeName,
    /// Its present permissions; `None`: it does not exist, and is created.
    pub before: Option<Permissions>,
    /// The permissions that it gets. Equal to `before` when it only becomes sticky.
    pub after: Permissions,
}

impl<S: Store + Environment> Table<S> {
    /// Seeds a new table with these nodes, or continues a seeding that was interrupted; returns the number of created
    /// nodes. An existing table stays as it is, and so does one that is being restored.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn seed(&self, nodes: &[FileNode]) -> Result<usize, Error> {
        if self.is_restoring().await? {
            return Ok(0);
        }
        let is_interrupted = self.store.counter(SEEDING).await?.is_some();
        let has_root = self.node(&NodeName::root(), &ChildSelection::none()).await?.is_some();
        if has_root && !is_interrupted {
            return Ok(0);
        }
        // The root is created first, so it does not show that the other nodes are there.
        self.store.set_counter(SEEDING, Some(1)).await?;
        let created = self.apply(nodes).await?;
        self.store.set_counter(SEEDING, None).await?;
        Ok(created)
    }

    /// Creates the root with these permissions, if there is none; returns whether it did.
    ///
    /// # Errors
    /// `BAD_PERMISSIONS` when they are too large, `NOT_EMPTY` during a restore, `UNAVAILABLE`.
    pub async fn setup(&self, permissions: Permissions) -> Result<bool, Error> {
        let permissions = permissions.checked()?;
        self.check_not_restoring().await?;
        let incarnation = Incarnation::new(self.store.unique_u64());
        let root = Node {
            name: NodeName::root(),
            incarnation,
            version: self.store.unique_u64(),
            epoch: Epoch::Alive(0),
            parent: incarnation,
            creator: UserId::server(),
            created: self.store.now(),
            stickiness: Stickiness::Sticky,
            permissions,
            servers: Vec::new(),
            children: [].into(),
        };
        self.store.change_if(&root.key(), Condition::RowAbsent, root.write()).await
    }

    pub(super) async fn check_not_restoring(&self) -> Result<(), Error> {
        if self.is_restoring().await? {
            let wrong = "a restore is in progress, or was aborted: wait for it, or destroy the table";
            return Err(Error::new(Reason::NotEmpty, wrong));
        }
        Ok(())
    }

    /// What [`Self::apply`] would change now, parents first; it changes nothing.
    ///
    /// # Errors
    /// `NOT_EMPTY` during a restore; `UNAVAILABLE`.
    pub async fn preview(&self, nodes: &[FileNode]) -> Result<Vec<NodeChange>, Error> {
        self.check_not_restoring().await?;
        let has_root = self.node(&NodeName::root(), &ChildSelection::none()).await?.is_some();
        let mut changes = Vec::new();
        for wanted in nodes {
            let path = if has_root { self.walk(&wanted.name).await? } else { Vec::new() };
            let existing = path.last().filter(|node| node.name == wanted.name);
            if existing.is_none_or(|node| is_changed_by(node, wanted)) {
                changes.push(NodeChange {
                    name: wanted.name.clone(),
                    before: existing.map(|node| node.permissions.clone()),
                    after: wanted.permissions.clone(),
                });
            }
        }
        Ok(changes)
    }

    /// Creates the nodes of a permissions file, parents first, and gives the listed ones exactly the listed
    /// permissions; returns the number of created or changed nodes. Idempotent.
    ///
    /// # Errors
    /// `NOT_EMPTY` during a restore; `CONTENTION`, `UNAVAILABLE`: a part of it is done.
    pub async fn apply(&self, nodes: &[FileNode]) -> Result<usize, Error> {
        let mut reservation = QuotaReservation::of(UserId::server());
        let mut outcome = Ok(0_usize);
        for node in nodes {
            match self.apply_one(&mut reservation, node).await {
                Ok(has_changed) => {
                    outcome = outcome.map(|count: usize| count.saturating_add(has_changed.into()));
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.release(reservation, &outcome).await;
        outcome
    }

    async fn apply_one(&self, reservation: &mut QuotaReservation, wanted: &FileNode) -> Result<bool, Error> {
        if wanted.name.is_root() && self.setup(wanted.permissions.clone()).await? {
            return Ok(true);
        }
        let (mut attempts, mut has_changed) = (0, false);
        loop {
            let path = self.walk(&wanted.name).await?;
            let (Some(node), Some((_, element))) =
                (path.last(), wanted.name.split_last().or(Some((NodeName::root(), ""))))
            else {
                return Ok(has_changed);
            };
            if node.name != wanted.name {
                self.reserve(reservation, missing(&wanted.name, node), 0).await?;
                let child = NewNode {
                    element: element.to_owned(),
                    permissions: wanted.permissions.clone(),
                    stickiness: wanted.stickiness,
                };
                has_changed |= self.create(node, child, reservation).await?;
            } else if !is_changed_by(node, wanted) {
                return Ok(has_changed);
            } else if self.write_permissions(node, wanted.permissions.clone()).await? {
                return Ok(true);
            }
            self.back_off(&mut attempts).await?;
        }
    }
}

/// Whether an existing node differs from the file. Ancestors that the file does not list stay as they are.
fn is_changed_by(node: &Node, wanted: &FileNode) -> bool {
    wanted.stickiness == Stickiness::Sticky
        && (node.permissions != wanted.permissions || node.stickiness != Stickiness::Sticky)
}
