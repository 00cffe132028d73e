//! What the driver knows of the cluster when a fault begins.

use std::collections::BTreeMap;

use crate::cluster::{Node, Role};

/// A view of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Every node, running or not.
    pub nodes: Vec<Node>,
    /// The tablet servers that lead a tablet, as far as this is known.
    pub leaders: Vec<Node>,
    /// The nodes with a role; only the role that the driver's next event needs is necessary.
    pub roles: BTreeMap<Role, Node>,
}

impl View {
    pub(super) fn tablet_servers(&self) -> Vec<Node> {
        self.only(|node| matches!(node, Node::TabletServer(_)))
    }

    pub(super) fn masters(&self) -> Vec<Node> {
        self.only(|node| matches!(node, Node::Master(_)))
    }

    pub(super) fn etcd(&self) -> Vec<Node> {
        self.only(|node| matches!(node, Node::Etcd(_)))
    }

    pub(super) fn mounttables(&self) -> Vec<Node> {
        self.only(|node| matches!(node, Node::Mounttable(_)))
    }

    fn only(&self, is_wanted: impl Fn(&Node) -> bool) -> Vec<Node> {
        self.nodes.iter().copied().filter(|node| is_wanted(node)).collect()
    }
}
