//! Collection: what has expired or is empty is removed by who comes by.
//!
//! A request that sees such a thing treats it as absent, whether or not its removal succeeds. Either is tried once in
//! [`PERIOD`] for each node by one table, so that many requests for a name that has expired are not as many writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebla_model::Micros;

use crate::error::Error;
use crate::file::Stickiness;
use crate::mount::live;
use crate::name::NodeName;
use crate::node::{self, Epoch, Node};
use crate::store::{Change, Children, Family, Servers, Store, Surroundings};
use crate::table::Table;

/// How long a node is left alone after somebody has seen to it.
const PERIOD: Duration = Duration::from_secs(1);

/// How many nodes are remembered; when there are more, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Whether a server of the node is there no more, and only its cell is.
pub(super) fn has_expired(node: &Node, now: Micros) -> bool {
    node.servers.iter().any(|server| server.deadline.is_over(now))
}

/// When nodes were last seen to.
#[derive(Clone, Debug, Default)]
pub(super) struct Visits {
    /// Held for a look, never while anybody waits.
    last: Arc<Mutex<BTreeMap<NodeName, Micros>>>,
}

impl Visits {
    /// Whether a node is to be seen to now; then it is not for a while.
    fn is_due(&self, name: &NodeName, now: Micros) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that went back must not stop collection.
        if last.get(name).is_some_and(|at| now >= *at && now.since(*at) < PERIOD) {
            return false;
        }
        if last.len() >= REMEMBERED_MAX {
            last.clear();
        }
        last.insert(name.clone(), now);
        true
    }
}

impl<S: Store + Surroundings> Table<S> {
    /// [`Self::walk`], and takes the expired servers from what it comes by.
    pub(super) async fn visit(&self, name: &NodeName) -> Result<Vec<Node>, Error> {
        self.visit_with(name, &Servers::All).await
    }

    /// The same, with no more servers than are wanted: of the others those that have expired stay.
    pub(super) async fn visit_with(&self, name: &NodeName, servers: &Servers) -> Result<Vec<Node>, Error> {
        let mut path = self.walk_with(name, servers).await?;
        self.expire_due(&mut path).await?;
        Ok(path)
    }

    /// Takes the expired servers from nodes as read, if nobody has done so just now.
    pub(super) async fn expire_due(&self, path: &mut [Node]) -> Result<(), Error> {
        let now = self.store.now();
        for node in path {
            if has_expired(node, now) && self.expiries.is_due(&node.name, now) {
                self.expire(node).await?;
            }
        }
        Ok(())
    }

    /// Removes the expired servers of a node as read, unless anything has changed: a refresh must not be lost.
    pub(super) async fn expire(&self, node: &mut Node) -> Result<(), Error> {
        let now = self.store.now();
        let (over, rest): (Vec<_>, Vec<_>) = node.servers.iter().cloned().partition(|one| one.deadline.is_over(now));
        let column = |server: &crate::mount::MountedServer| {
            Change::DeleteColumn(Family::Servers, server.address.as_str().to_owned())
        };
        let mut steps: Vec<_> = over.iter().map(column).collect();
        let version = self.store.fresh();
        steps.extend(node::new_version(version, now));
        if !over.is_empty() && self.store.change_if(&node.key(), node.unchanged(), steps).await? {
            self.give_back_servers(&over).await;
            (node.version, node.servers) = (version, rest);
        }
        Ok(())
    }

    /// Collects the last node of a path if it looks empty.
    pub(super) async fn tidy(&self, path: &[Node]) -> Result<(), Error> {
        let now = self.store.now();
        match path.last().filter(|node| self.may_go(node) && self.collections.is_due(&node.name, now)) {
            Some(node) => self.collect(&node.name).await,
            None => Ok(()),
        }
    }

    /// Collects the node if it is empty, then its parent, and so on upwards.
    ///
    /// # Errors
    /// `CONTENTION`, `UNAVAILABLE`: then it is left to whoever comes by next.
    pub async fn collect(&self, name: &NodeName) -> Result<(), Error> {
        let mut name = name.clone();
        while let Some((parent, _)) = name.split_last() {
            let walked = self.walk_with(&name, &Servers::None).await?;
            let Some(walked) = walked.last().filter(|node| node.name == name) else { return Ok(()) };
            let node = self.node_with(&name, &Children::first(1), &Servers::First).await?;
            // Another creation of the row may be one that is just being made. Taken now, its maker would still refer to it.
            let is_the_same = |node: &Node| node.incarnation == walked.incarnation;
            let Some(node) = node.filter(|node| is_the_same(node) && self.is_empty(node)) else { return Ok(()) };
            if !self.kill(&node).await? {
                return Ok(());
            }
            self.finish(&name, node.incarnation).await?;
            name = parent;
        }
        Ok(())
    }

    /// Whether nobody would miss the node, as read with the first of its children.
    pub(super) fn is_empty(&self, node: &Node) -> bool {
        self.may_go(node) && node.children.is_empty()
    }

    /// Whether nobody would miss the node if it had no children.
    pub(super) fn may_go(&self, node: &Node) -> bool {
        let now = self.store.now();
        !node.name.is_root()
            && node.epoch != Epoch::Dead
            && node.stickiness == Stickiness::Collected
            && live(&node.servers, now).next().is_none()
            && now.since(node.created) >= self.options.grace
    }
}
