//! Deleting: mark, empty, unlink, erase; and collecting what is empty.

use std::future::Future;
use std::pin::Pin;

use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::Caller;
use crate::mount::live;
use crate::name::NodeName;
use crate::node::{self, Epoch, Incarnation, Node, Reference};
use crate::rules;
use crate::store::{Change, Children, Predicate, Store, Surroundings};
use crate::table::Table;

/// What a deletion takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subtree {
    /// The node, if it has no children.
    Refuse,
    /// The node and everything below it, whoever it belongs to.
    Delete,
}

impl<S: Store + Surroundings> Table<S> {
    /// Deletes a node. One that is not there is deleted already.
    ///
    /// # Errors
    /// `ROOT`, `NO_ACCESS`, `NOT_EMPTY`, `CONTENTION`, `UNAVAILABLE`: then it may be deleted in part, and whoever comes
    /// by goes on.
    pub async fn delete(&self, caller: &Caller, name: &NodeName, subtree: Subtree) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let path = self.walk(name).await?;
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(rules::Action::Traverse, caller, &above.permissions)?;
            }
            let Some([parent, node]) = path.last_chunk::<2>().filter(|[_, node]| node.name == *name) else {
                let wrong = || Error::new(Reason::Root, "the root cannot be deleted");
                return if name.is_root() { Err(wrong()) } else { Ok(()) };
            };
            rules::check_delete(caller, &node.permissions, &parent.permissions)?;
            if self.mark(node, subtree).await? {
                return self.finish(name, node.incarnation).await;
            }
            self.again(&mut tries).await?;
        }
    }

    /// Marks the node dead, if it is as it was read. Its version fences children that come meanwhile.
    async fn mark(&self, node: &Node, subtree: Subtree) -> Result<bool, Error> {
        let Some(whole) = self.node(&node.name, &Children::All).await? else { return Ok(false) };
        if whole.version != node.version || whole.epoch == Epoch::Dead {
            return Ok(false);
        }
        if subtree == Subtree::Refuse && !whole.children.is_empty() {
            return Err(Error::new(Reason::NotEmpty, format!("{:?} has children", node.name)));
        }
        self.kill(&whole).await
    }

    async fn kill(&self, node: &Node) -> Result<bool, Error> {
        let steps = self.stamped(node::die(self.store.now()));
        self.store.change_if(&node.key(), node.unchanged(), steps).await
    }

    /// Goes on with the deletion of a node that is dead, from wherever it was left.
    ///
    /// Boxed, because it deletes what is below in the same way.
    pub(super) fn finish<'a>(
        &'a self,
        name: &'a NodeName,
        incarnation: Incarnation,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>> {
        Box::pin(async move {
            let Some((parent, element)) = name.split_last() else { return Ok(()) };
            let mut tries = 0;
            while let Some(node) = self.node(name, &Children::All).await? {
                if node.incarnation != incarnation || node.epoch != Epoch::Dead || node.children.is_empty() {
                    break;
                }
                for (element, (reference, _)) in &node.children {
                    self.remove_child(name, element, *reference).await?;
                }
                self.again(&mut tries).await?;
            }
            self.unrefer(&parent, element, Reference::Committed(incarnation)).await?;
            let mine = Predicate::All(vec![node::is_incarnation(incarnation), node::is_dead()]);
            self.store.change_if(&crate::key::row_key(name), mine, vec![Change::DeleteRow]).await?;
            Ok(())
        })
    }

    /// One try at removing a child of a dead node.
    async fn remove_child(&self, parent: &NodeName, element: &str, reference: Reference) -> Result<(), Error> {
        let name = parent.child(element)?;
        let Reference::Committed(child) = reference else {
            // Its creator's commit fails from here on.
            return self.unrefer(parent, element, reference).await;
        };
        match self.node(&name, &Children::Named(Vec::new())).await?.filter(|node| node.incarnation == child) {
            Some(node) if node.epoch != Epoch::Dead && !self.kill(&node).await? => Ok(()),
            Some(_) => self.finish(&name, child).await,
            None => self.unrefer(parent, element, reference).await,
        }
    }

    /// Collects the node if it is empty, then its parent, and so on upwards.
    ///
    /// # Errors
    /// `CONTENTION`, `UNAVAILABLE`: then it is left to whoever comes by next.
    pub async fn collect(&self, name: &NodeName) -> Result<(), Error> {
        let mut name = name.clone();
        while let Some((parent, _)) = name.split_last() {
            let is_there = self.walk(&name).await?.last().is_some_and(|node| node.name == name);
            let node = self.node(&name, &Children::All).await?.filter(|node| is_there && self.is_empty(node));
            let Some(node) = node else { return Ok(()) };
            if !self.kill(&node).await? {
                return Ok(());
            }
            self.finish(&name, node.incarnation).await?;
            name = parent;
        }
        Ok(())
    }

    fn is_empty(&self, node: &Node) -> bool {
        let now = self.store.now();
        node.epoch != Epoch::Dead
            && node.stickiness == Stickiness::Collected
            && node.children.is_empty()
            && live(&node.servers, now).next().is_none()
            && now.since(node.created) >= self.options.grace
    }
}
