//! What is known of one node, for people who look after it.

use ebla_model::Micros;

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::{Caller, UserId};
use crate::mount::live;
use crate::name::NodeName;
use crate::node::Node;
use crate::rules::{self, Action};
use crate::store::{Store, Surroundings};
use crate::table::Table;
use crate::table::walk::Page;

/// How many children are counted; a larger directory has at least so many.
pub const CHILDREN_COUNTED_MAX: usize = 10_000;

/// What is known of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Who made it, and is charged for it.
    pub creator: UserId,
    /// When.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// The row's version, for [`Table::delete`]: changes with everything.
    pub version: String,
    /// The permissions' version: changes with them alone.
    pub permissions_version: String,
    /// How many live servers it has.
    pub servers: usize,
    /// How many live children it has, up to [`CHILDREN_COUNTED_MAX`] and a page.
    pub children: usize,
}

impl<S: Store + Surroundings> Table<S> {
    /// What is known of a node, to who may read its permissions.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn facts(&self, caller: &Caller, name: &NodeName) -> Result<Facts, Error> {
        let node = self.reached(caller, name).await?;
        rules::check(Action::GetPermissions, caller, &node.permissions)?;
        let mut children = 0_usize;
        let mut page = Page::of_all();
        while children < CHILDREN_COUNTED_MAX
            && let Some(listed) = self.page(&node, &mut page).await?
        {
            let are_there = listed.iter().filter(|(_, child)| !matches!(child, Ok(None))).count();
            children = children.saturating_add(are_there);
        }
        Ok(Facts {
            created: node.created,
            stickiness: node.stickiness,
            version: node.version_text(),
            permissions_version: node.epoch_text(),
            servers: live(&node.servers, self.store.now()).count(),
            children,
            creator: node.creator,
        })
    }

    /// The permissions of a node, to whoever may come there: what he is told of them is the caller's business.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn effective(&self, caller: &Caller, name: &NodeName) -> Result<Permissions, Error> {
        self.reached(caller, name).await.map(|node| node.permissions)
    }

    /// The node, if the caller may pass through all above it.
    pub(super) async fn reached(&self, caller: &Caller, name: &NodeName) -> Result<Node, Error> {
        let path = self.visit(name).await?;
        for above in path.iter().filter(|node| node.name != *name) {
            rules::check(Action::Traverse, caller, &above.permissions)?;
        }
        let node = path.into_iter().next_back().filter(|node| node.name == *name);
        node.ok_or_else(|| Error::new(Reason::NoSuchName, format!("there is no node {name:?}")))
    }
}
