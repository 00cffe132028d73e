//! Details of one node, for operators.

use ebla_model::Micros;

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::{Caller, UserId};
use crate::mount::live;
use crate::name::NodeName;
use crate::node::Node;
use crate::rules::{self, Action};
use crate::store::{Environment, Store};
use crate::table::Table;
use crate::table::walk::Page;

/// The number of children after which counting stops.
pub const CHILDREN_COUNTED_MAX: usize = 10_000;

/// Details of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeInfo {
    /// The user who created the node, and is charged for it.
    pub creator: UserId,
    /// The time of its creation.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// The row's version, for [`Table::delete`]: every change of the row changes it.
    pub version: String,
    /// The permissions' version: only a change of the permissions changes it.
    pub permissions_version: String,
    /// The number of live servers.
    pub servers: usize,
    /// The number of live children, up to [`CHILDREN_COUNTED_MAX`] and a page.
    pub children: usize,
}

impl<S: Store + Environment> Table<S> {
    /// The details of a node, for callers who may read its permissions.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn node_info(&self, caller: &Caller, name: &NodeName) -> Result<NodeInfo, Error> {
        let node = self.find_node(caller, name).await?;
        rules::check(Action::GetPermissions, caller, &node.permissions)?;
        let mut children = 0_usize;
        let mut page = Page::of_all();
        while children < CHILDREN_COUNTED_MAX
            && let Some(listed) = self.page(&node, &mut page).await?
        {
            let are_there = listed.iter().filter(|(_, child)| !matches!(child, Ok(None))).count();
            children = children.saturating_add(are_there);
        }
        Ok(NodeInfo {
            created: node.created,
            stickiness: node.stickiness,
            version: node.version_text(),
            permissions_version: node.epoch_text(),
            servers: live(&node.servers, self.store.now()).count(),
            children,
            creator: node.creator,
        })
    }

    /// The permissions of a node, for any caller who can reach it: the calling code decides what it reveals.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn effective_permissions(&self, caller: &Caller, name: &NodeName) -> Result<Permissions, Error> {
        self.find_node(caller, name).await.map(|node| node.permissions)
    }

    /// The node, if the caller may traverse all its ancestors.
    pub(super) async fn find_node(&self, caller: &Caller, name: &NodeName) -> Result<Node, Error> {
        let path = self.visit(name).await?;
        for above in path.iter().filter(|node| node.name != *name) {
            rules::check(Action::Traverse, caller, &above.permissions)?;
        }
        let node = path.into_iter().next_back().filter(|node| node.name == *name);
        node.ok_or_else(|| Error::new(Reason::NoSuchName, format!("no such node: {name:?}")))
    }
}
