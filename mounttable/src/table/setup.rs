//! What a table begins with: its root, and the nodes of a permissions file.

use crate::access::Permissions;
use crate::error::Error;
use crate::file::{FileNode, Stickiness};
use crate::identity::UserId;
use crate::name::NodeName;
use crate::node::{Epoch, Incarnation, Node};
use crate::store::{Predicate, Store, Surroundings};
use crate::table::Table;
use crate::table::create::Blueprint;
use crate::table::quota::Purse;
use crate::table::serve::missing;

impl<S: Store + Surroundings> Table<S> {
    /// Makes the root with these permissions, if there is none; whether it did.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn setup(&self, permissions: Permissions) -> Result<bool, Error> {
        let incarnation = Incarnation::new(self.store.fresh());
        let root = Node {
            name: NodeName::root(),
            incarnation,
            version: self.store.fresh(),
            epoch: Epoch::Alive(0),
            parent: incarnation,
            creator: UserId::server(),
            created: self.store.now(),
            stickiness: Stickiness::Sticky,
            permissions,
            servers: Vec::new(),
            children: [].into(),
        };
        self.store.change_if(&root.key(), Predicate::RowAbsent, root.write()).await
    }

    /// Makes the nodes of a permissions file, parents first, and gives those that it lists exactly what it lists; how many
    /// nodes were made or changed. Repeated, it changes nothing.
    ///
    /// # Errors
    /// `CONTENTION`, `UNAVAILABLE`: then a part of it is done.
    pub async fn apply(&self, nodes: &[FileNode]) -> Result<usize, Error> {
        let mut purse = Purse::of(UserId::server());
        let mut outcome = Ok(0_usize);
        for node in nodes {
            match self.apply_one(&mut purse, node).await {
                Ok(has_changed) => {
                    outcome = outcome.map(|count: usize| count.saturating_add(has_changed.into()));
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.empty(purse, &outcome).await;
        outcome
    }

    async fn apply_one(&self, purse: &mut Purse, wanted: &FileNode) -> Result<bool, Error> {
        if wanted.name.is_root() && self.setup(wanted.permissions.clone()).await? {
            return Ok(true);
        }
        let (mut tries, mut has_changed) = (0, false);
        loop {
            let path = self.walk(&wanted.name).await?;
            let (Some(node), Some((_, element))) =
                (path.last(), wanted.name.split_last().or(Some((NodeName::root(), ""))))
            else {
                return Ok(has_changed);
            };
            if node.name != wanted.name {
                self.fill(purse, missing(&wanted.name, node), 0).await?;
                let child = Blueprint {
                    element: element.to_owned(),
                    permissions: wanted.permissions.clone(),
                    stickiness: wanted.stickiness,
                };
                has_changed |= self.create(node, child, purse).await?;
            } else if wanted.stickiness == Stickiness::Collected
                || (node.permissions == wanted.permissions && node.stickiness == Stickiness::Sticky)
            {
                return Ok(has_changed);
            } else if self.permit(node, wanted.permissions.clone()).await? {
                return Ok(true);
            }
            self.again(&mut tries).await?;
        }
    }
}
