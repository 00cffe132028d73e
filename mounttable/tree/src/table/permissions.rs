//! Reads and replaces a node's permissions. They have a version of their own: mounts do not change it.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::name::NodeName;
use crate::node::{self, Epoch, Node};
use crate::rules::{self, Action};
use crate::store::{Environment, Store};
use crate::table::Table;
use crate::table::quota::QuotaReservation;
use crate::table::serve::missing;

impl<S: Store + Environment> Table<S> {
    /// A node's permissions and their version.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn permissions(&self, caller: &Caller, name: &NodeName) -> Result<(Permissions, String), Error> {
        let node = self.find_node(caller, name).await?;
        rules::check(Action::GetPermissions, caller, &node.permissions)?;
        let version = node.epoch_text();
        Ok((node.permissions, version))
    }

    /// Replaces a node's permissions, if `version` is their version or `None`. A missing node is created; the node is
    /// sticky afterwards. Writes that were authorised by the old permissions and are not yet applied will fail.
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
        let mut reservation = QuotaReservation::of(caller.user_id());
        let outcome = self.set_from(&mut reservation, caller, name, permissions, version).await;
        self.release(reservation, &outcome).await;
        outcome
    }

    async fn set_from(
        &self,
        reservation: &mut QuotaReservation,
        caller: &Caller,
        name: &NodeName,
        permissions: &Permissions,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            let path = self.visit(name).await?;
            let child = self.authorise(caller, name, &path, Action::SetPermissions)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            if let Some(child) = child {
                if version.is_some() {
                    return Err(bad_version());
                }
                // Before anything is created.
                rules::check_largest_replacement(caller, permissions)?;
                self.reserve(reservation, missing(name, node), 0).await?;
                self.create(node, child, reservation).await?;
            } else if version.is_some_and(|version| version != node.epoch_text()) {
                return Err(bad_version());
            } else if self.replace(caller, node, permissions).await? {
                return Ok(());
            }
            self.back_off(&mut attempts).await?;
        }
    }

    /// One attempt on a node as read.
    async fn replace(&self, caller: &Caller, node: &Node, permissions: &Permissions) -> Result<bool, Error> {
        let permissions = rules::replacement(caller, Some(&node.permissions), permissions.clone())?;
        self.write_permissions(node, permissions).await
    }

    /// One attempt at writing exactly these permissions to a node as read; it is sticky afterwards.
    pub(super) async fn write_permissions(&self, node: &Node, permissions: Permissions) -> Result<bool, Error> {
        let Epoch::Alive(generation) = node.epoch else { return Ok(false) };
        let next = Node { epoch: Epoch::Alive(generation.saturating_add(1)), permissions, ..node.clone() };
        let steps = self.with_new_version(node::permission_changes(&next, self.store.now()));
        self.store.change_if(&node.key(), node.alive(), steps).await
    }
}

fn bad_version() -> Error {
    Error::new(Reason::BadVersion, "the permissions have another version now")
}
