//! Reading and replacing a node's permissions, which have a version of their own: mounts do not change it.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::name::NodeName;
use crate::node::{self, Epoch, Node};
use crate::rules::{self, Action};
use crate::store::{Store, Surroundings};
use crate::table::Table;
use crate::table::quota::Purse;
use crate::table::serve::missing;

impl<S: Store + Surroundings> Table<S> {
    /// A node's permissions and their version.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn permissions(&self, caller: &Caller, name: &NodeName) -> Result<(Permissions, String), Error> {
        let node = self.reached(caller, name).await?;
        rules::check(Action::GetPermissions, caller, &node.permissions)?;
        let version = node.epoch_text();
        Ok((node.permissions, version))
    }

    /// Replaces a node's permissions, if `version` is theirs or `None`. The node is made if it is missing, and is
    /// sticky from here on. Whatever is conditional on the permissions before does not take effect any more.
    ///
    /// # Errors
    /// `BAD_VERSION`, `NO_ACCESS`, `BAD_PERMISSIONS`, `NODE_QUOTA`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn set_permissions(
        &self,
        caller: &Caller,
        name: &NodeName,
        permissions: &Permissions,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let mut purse = Purse::of(caller.user_id());
        let outcome = self.set_from(&mut purse, caller, name, permissions, version).await;
        self.empty(purse, &outcome).await;
        outcome
    }

    async fn set_from(
        &self,
        purse: &mut Purse,
        caller: &Caller,
        name: &NodeName,
        permissions: &Permissions,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let path = self.visit(name).await?;
            let child = self.authorise(caller, name, &path, Action::SetPermissions)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            if let Some(child) = child {
                if version.is_some() {
                    return Err(bad_version());
                }
                self.fill(purse, missing(name, node), 0).await?;
                self.create(node, child, purse).await?;
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
        let permissions = rules::replaced(caller, Some(&node.permissions), permissions.clone())?;
        self.permit(node, permissions).await
    }

    /// One try at giving a node as read exactly these permissions; it is sticky then.
    pub(super) async fn permit(&self, node: &Node, permissions: Permissions) -> Result<bool, Error> {
        let Epoch::Alive(generation) = node.epoch else { return Ok(false) };
        let next = Node { epoch: Epoch::Alive(generation.saturating_add(1)), permissions, ..node.clone() };
        let steps = self.stamped(node::permit(&next, self.store.now()));
        self.store.change_if(&node.key(), node.alive(), steps).await
    }
}

fn bad_version() -> Error {
    Error::new(Reason::BadVersion, "the permissions are not those of this version")
}
