//! What a table knows of a node, and of who calls.

use ebla_model::Micros;
use ebla_mounttable::file::Stickiness;
use ebla_mounttable::table::Usage;
use ebla_mounttable::{Error, Standing};
use ebla_proto::mounttable as wire;

use crate::ask::{first, told};
use crate::change::Etag;
use crate::entry::Place;
use crate::namespace::Namespace;

/// A node as its table knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Who made it, and is charged for it.
    pub creator: String,
    /// When it was made.
    pub created: Micros,
    /// Whether it stays when it is empty.
    pub stickiness: Stickiness,
    /// Changes with everything.
    pub version: String,
    /// Changes with the permissions alone.
    pub etag: Etag,
    /// How many servers are mounted on it.
    pub servers: u64,
    /// How many children it has; above 10,000 a lower bound.
    pub children: u64,
}

/// The caller as a table knows him.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// His names, most important first.
    pub names: Vec<String>,
    /// Whom things are charged to that he makes.
    pub user: String,
    /// Whether he is a superuser.
    pub standing: Standing,
    /// Nodes that he is charged for.
    pub nodes: Usage,
    /// Servers that he is charged for.
    pub servers: Usage,
}

/// Something that somebody may do with a node, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The tag of what he may do.
    pub tag: String,
    /// The tag that says so: itself, or Admin.
    pub granted_by: String,
    /// The pattern that lets him in; empty for a superuser, and for a caller who may not read the permissions.
    pub pattern: String,
}

impl Namespace {
    /// A node's creator, age and versions.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; `NO_ACCESS`, `NO_SUCH_NAME`.
    pub async fn node(&self, name: &str) -> Result<Node, Error> {
        let places = self.resolve_to_mount_table(name).await?.places();
        let ask = |place: Place| async move {
            let request = self.request(wire::GetNodeRequest { name: place.name.clone() });
            told(&place, self.client(&place).get_node(request).await)
        };
        let node = first(&places, ask).await?.outcome?;
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

    /// What the caller may do with a node, or else, when `names` are given, whoever is called so.
    ///
    /// # Errors
    /// As [`Self::node`]; `NO_ACCESS` when it is about somebody else and the caller is no administrator of the node.
    pub async fn test_permissions(&self, name: &str, names: &[String]) -> Result<Vec<Allowed>, Error> {
        let places = self.resolve_to_mount_table(name).await?.places();
        let ask = |place: Place| async move {
            let (name, names) = (place.name.clone(), names.to_vec());
            let request = self.request(wire::TestPermissionsRequest { name, names, tags: Vec::new() });
            told(&place, self.client(&place).test_permissions(request).await)
        };
        let allowed = |it: wire::test_permissions_reply::Allowed| Allowed {
            tag: it.tag,
            granted_by: it.granted_by,
            pattern: it.pattern,
        };
        Ok(first(&places, ask).await?.outcome?.allowed.into_iter().map(allowed).collect())
    }

    /// Who the first root that answers takes the caller for, and what he is charged for there.
    ///
    /// # Errors
    /// `NO_MOUNT_TABLE` without roots; `NO_ACCESS`, `BAD_NAME`.
    pub async fn who_am_i(&self) -> Result<Who, Error> {
        let places = self.roots().entry("")?.places();
        let ask = |place: Place| async move {
            let request = self.request(wire::WhoAmIRequest {});
            told(&place, self.client(&place).who_am_i(request).await)
        };
        let who = first(&places, ask).await?.outcome?;
        let usage = |usage: Option<wire::Usage>| {
            let usage = usage.unwrap_or_default();
            Usage { used: usage.used, limit: usage.limit }
        };
        Ok(Who {
            names: who.names,
            user: who.user,
            standing: if who.superuser { Standing::Superuser } else { Standing::Ordinary },
            nodes: usage(who.nodes),
            servers: usage(who.servers),
        })
    }
}
