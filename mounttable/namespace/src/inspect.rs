//! Details of nodes and of the caller.

use ebla_model::Micros;
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::table::Usage;
use ebla_mounttable_tree::{Error, Privilege};
use ebla_proto::mounttable as wire;

use crate::change::Etag;
use crate::entry::ObjectLocation;
use crate::namespace::Namespace;
use crate::rpc::first_reply;

/// The details of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The user who created it, and is charged for it.
    pub creator: String,
    /// The time of its creation.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// Every change of the node changes it.
    pub version: String,
    /// Only a change of the permissions changes it.
    pub etag: Etag,
    /// The number of mounted servers.
    pub servers: u64,
    /// The number of children; above 10,000 a lower bound.
    pub children: u64,
}

/// The caller as authenticated by a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// Their names, most important first.
    pub names: Vec<String>,
    /// The user that their resources are charged to.
    pub user: String,
    /// Whether they are a superuser.
    pub privilege: Privilege,
    /// Their quota of nodes.
    pub nodes: Usage,
    /// Their quota of servers.
    pub servers: Usage,
}

/// A right on a node, and its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The tag.
    pub tag: String,
    /// The tag that grants it: itself, or Admin.
    pub granted_by: String,
    /// The pattern that matched; empty for a superuser, and for a caller who may not read the permissions.
    pub pattern: String,
}

impl Namespace {
    /// The details of a node.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; `NO_ACCESS`, `NO_SUCH_NAME`.
    pub async fn node(&self, name: &str) -> Result<Node, Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        let ask = |location: ObjectLocation| async move {
            let request = self.request(&location, wire::GetNodeRequest { name: location.name.clone() });
            self.result(&location, self.client(&location).get_node(request).await)
        };
        let node = first_reply(&locations, ask).await?.outcome?;
        Ok(Node {
            creator: node.creator,
            created: Micros::new(node.created_micros),
            stickiness: if node.sticky { Stickiness::Sticky } else { Stickiness::Collected },
            version: node.version,
            etag: Etag::new(node.etag),
            servers: node.servers,
            children: node.children,
        })
    }

    /// The rights of the caller on a node, or those of a caller with `names` if there are any.
    ///
    /// # Errors
    /// As [`Self::node`]; `NO_ACCESS` when it is about another caller and this one is not an administrator of the node.
    pub async fn test_permissions(&self, name: &str, names: &[String]) -> Result<Vec<Allowed>, Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        let ask = |location: ObjectLocation| async move {
            let (name, names) = (location.name.clone(), names.to_vec());
            let request = self.request(&location, wire::TestPermissionsRequest { name, names, tags: Vec::new() });
            self.result(&location, self.client(&location).test_permissions(request).await)
        };
        let allowed = |it: wire::test_permissions_reply::Allowed| Allowed {
            tag: it.tag,
            granted_by: it.granted_by,
            pattern: it.pattern,
        };
        Ok(first_reply(&locations, ask).await?.outcome?.allowed.into_iter().map(allowed).collect())
    }

    /// The identity and quota of the caller, at the first root that answers.
    ///
    /// # Errors
    /// `NO_MOUNT_TABLE` without roots; `NO_ACCESS`, `BAD_NAME`.
    pub async fn who_am_i(&self) -> Result<Who, Error> {
        let locations = self.entry("")?.locations();
        let ask = |location: ObjectLocation| async move {
            let request = self.request(&location, wire::WhoAmIRequest {});
            self.result(&location, self.client(&location).who_am_i(request).await)
        };
        let who = first_reply(&locations, ask).await?.outcome?;
        let usage = |usage: Option<wire::Usage>| {
            let usage = usage.unwrap_or_default();
            Usage { used: usage.used, limit: usage.limit }
        };
        Ok(Who {
            names: who.names,
            user: who.user,
            privilege: if who.superuser { Privilege::Superuser } else { Privilege::Ordinary },
            nodes: usage(who.nodes),
            servers: usage(who.servers),
        })
    }
}
