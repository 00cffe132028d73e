//! Garbage collection: requests remove expired servers and empty nodes that they come across.
//!
//! A request treats such a server or node as absent, whether or not its removal succeeds. Each [`Table`] attempts a
//! removal at most once per [`ATTEMPT_INTERVAL`] and node, so that many requests for an expired name do not cause as
//! many writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;
use ebla_runtime::Failpoint;
use parking_lot::Mutex;

use crate::error::Error;
use crate::file::Stickiness;
use crate::mount::live;
use crate::name::NodeName;
use crate::node::{self, Epoch, Node};
use crate::store::{Change, ChildSelection, Environment, Family, ServerSelection, Store};
use crate::table::Table;
use crate::table::remove::DeletionBudget;

/// The minimum time between two attempts on one node.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

/// The number of nodes whose last attempt is recorded; when it is reached, all records are dropped.
const NODES_MAX: usize = 10_000;

/// Whether the node has an expired server whose cell is still there.
pub(super) fn has_expired(node: &Node, now: Micros) -> bool {
    node.servers.iter().any(|server| server.deadline.is_over(now))
}

/// The times of the last attempts, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct AttemptTimes {
    /// Held for one operation, never across an await.
    last: Arc<Mutex<BTreeMap<NodeName, Micros>>>,
}

impl AttemptTimes {
    /// Whether an attempt is due; if so, it is recorded.
    fn try_acquire(&self, name: &NodeName, now: Micros) -> bool {
        let mut last = self.last.lock();
        // A clock that went back must not stop collection.
        if last.get(name).is_some_and(|at| now >= *at && now.since(*at) < ATTEMPT_INTERVAL) {
            return false;
        }
        if last.len() >= NODES_MAX {
            last.clear();
        }
        last.insert(name.clone(), now);
        true
    }
}

impl<S: Store + Environment> Table<S> {
    /// [`Self::walk`], and removes the expired servers of the nodes on the path.
    pub(super) async fn visit(&self, name: &NodeName) -> Result<Vec<Node>, Error> {
        self.visit_with(name, &ServerSelection::All).await
    }

    /// The same, reading only the selected servers: others that have expired stay.
    pub(super) async fn visit_with(&self, name: &NodeName, servers: &ServerSelection) -> Result<Vec<Node>, Error> {
        let mut path = self.walk_with(name, servers).await?;
        self.expire_due(&mut path).await?;
        Ok(path)
    }

    /// Removes the expired servers of nodes as read, unless there was a recent attempt.
    pub(super) async fn expire_due(&self, path: &mut [Node]) -> Result<(), Error> {
        let now = self.store.now();
        for node in path {
            if has_expired(node, now) && self.expiries.try_acquire(&node.name, now) {
                self.expire(node).await?;
            }
        }
        Ok(())
    }

    /// Removes the expired servers of a node as read, unless the row has changed: a refresh must not be lost.
    pub(super) async fn expire(&self, node: &mut Node) -> Result<(), Error> {
        let now = self.store.now();
        let (over, rest): (Vec<_>, Vec<_>) = node.servers.iter().cloned().partition(|one| one.deadline.is_over(now));
        let column = |server: &crate::mount::MountedServer| {
            Change::DeleteColumn(Family::Servers, server.address.as_str().to_owned())
        };
        let mut steps: Vec<_> = over.iter().map(column).collect();
        let version = self.store.unique_u64();
        steps.extend(node::version_changes(version, now));
        let when = if Failpoint::ExpiryForgetsRefresh.is_enabled() { node.alive() } else { node.unchanged() };
        if !over.is_empty() && self.store.change_if(&node.key(), when, steps).await? {
            self.refund_servers(&over).await;
            (node.version, node.servers) = (version, rest);
        }
        Ok(())
    }

    /// Collects the last node of a path if it looks empty.
    pub(super) async fn collect_if_empty(&self, path: &[Node]) -> Result<(), Error> {
        let now = self.store.now();
        match path.last().filter(|node| self.may_go(node) && self.collections.try_acquire(&node.name, now)) {
            Some(node) => self.collect(&node.name).await,
            None => Ok(()),
        }
    }

    /// Collects the node if it is empty, then its parent, and so on upwards.
    ///
    /// # Errors
    /// `CONTENTION`, `UNAVAILABLE`: a later request will try again.
    pub async fn collect(&self, name: &NodeName) -> Result<(), Error> {
        let mut name = name.clone();
        while let Some((parent, _)) = name.split_last() {
            let walked = self.walk_with(&name, &ServerSelection::None).await?;
            let Some(walked) = walked.last().filter(|node| node.name == name) else { return Ok(()) };
            let node = self.node_with(&name, &ChildSelection::first(1), &ServerSelection::First).await?;
            // Another incarnation of the row may belong to a creation in progress, whose reference would then be left
            // dangling.
            let is_the_same = |node: &Node| node.incarnation == walked.incarnation;
            let Some(node) = node.filter(|node| is_the_same(node) && self.is_empty(node)) else { return Ok(()) };
            if !self.mark_dead(&node).await? {
                return Ok(());
            }
            self.finish_deletion(&name, node.incarnation, &mut DeletionBudget::unlimited()).await?;
            name = parent;
        }
        Ok(())
    }

    /// Whether the node, read with the first of its children, can be collected.
    pub(super) fn is_empty(&self, node: &Node) -> bool {
        self.may_go(node) && node.children.is_empty()
    }

    /// Whether the node could be collected if it had no children.
    pub(super) fn may_go(&self, node: &Node) -> bool {
        let now = self.store.now();
        !node.name.is_root()
            && node.epoch != Epoch::Dead
            && node.stickiness == Stickiness::Collected
            && live(&node.servers, now).next().is_none()
            && now.since(node.created) >= self.options.grace
    }
}
