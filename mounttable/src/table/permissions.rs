//! Reading and replacing a node's permissions, which have a version of their own: mounts do not change it.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::name::NodeName;
use crate::node::{self, Epoch, Node};
use crate::rules::{self, Action};
use crate::store::{Store, Surroundings};
use crate::table::Table;

impl<S: Store + Surroundings> Table<S> {
    /// A node's permissions and their version.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn permissions(&self, caller: &Caller, name: &NodeName) -> Result<(Permissions, String), Error> {
        let path = self.walk(name).await?;
        for above in path.iter().filter(|node| node.name != *name) {
            rules::check(Action::Traverse, caller, &above.permissions)?;
        }
        let node = path.into_iter().next_back().filter(|node| node.name == *name);
        let node = node.ok_or_else(|| Error::new(Reason::NoSuchName, format!("there is no node {name:?}")))?;
        rules::check(Action::GetPermissions, caller, &node.permissions)?;
        let version = node.epoch_text();
        Ok((node.permissions, version))
    }

    /// Replaces a node's permissions, if `version` is theirs or `None`. The node is made if it is missing, and is
    /// sticky from here on. Whatever is conditional on the permissions before does not take effect any more.
    ///
    /// # Errors
    /// `BAD_VERSION`, `NO_ACCESS`, `BAD_PERMISSIONS`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn set_permissions(
        &self,
        caller: &Caller,
        name: &NodeName,
        permissions: &Permissions,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let path = self.walk(name).await?;
            let created = self.authorise(caller, name, &path, Action::SetPermissions)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            if let Some((element, inherited)) = created {
                if version.is_some() {
                    return Err(bad_version());
                }
                self.create(node, &element, inherited, caller.user_id()).await?;
            } else if version.is_some_and(|version| version != node.epoch_text()) {
                return Err(bad_version());
            } else if self.replace(caller, node, permissions).await? {
                return Ok(());
            }
            self.again(&mut tries).await?;
        }
    }

    /// One try on a node as read.
    async fn replace(&self, caller: &Caller, node: &Node, permissions: &Permissions) -> Result<bool, Error> {
        let Epoch::Alive(generation) = node.epoch else { return Ok(false) };
        let permissions = rules::replaced(caller, Some(&node.permissions), permissions.clone())?;
        let next = Node { epoch: Epoch::Alive(generation.saturating_add(1)), permissions, ..node.clone() };
        let steps = self.stamped(node::permit(&next, self.store.now()));
        self.store.change_if(&node.key(), node.alive(), steps).await
    }
}

fn bad_version() -> Error {
    Error::new(Reason::BadVersion, "the permissions are not those of this version")
}
