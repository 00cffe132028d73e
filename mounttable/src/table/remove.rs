//! Deleting: mark, empty, unlink, erase.

use std::future::Future;
use std::pin::Pin;

use crate::error::{Error, Reason};
use crate::identity::Caller;
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

/// How many children one step of a deletion looks at.
const PAGE: usize = 256;

impl<S: Store + Surroundings> Table<S> {
    /// Deletes a node, if `version` is the row's or `None`; how many nodes this call removed. One that is not there is
    /// deleted already.
    ///
    /// # Errors
    /// `ROOT`, `NO_ACCESS`, `NOT_EMPTY`, `BAD_VERSION`, `CONTENTION`, `UNAVAILABLE`: with the last two it may be deleted in
    /// part, and whoever comes by goes on.
    pub async fn delete(
        &self,
        caller: &Caller,
        name: &NodeName,
        subtree: Subtree,
        version: Option<&str>,
    ) -> Result<usize, Error> {
        let mut tries = 0;
        loop {
            let path = self.visit(name).await?;
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(rules::Action::Traverse, caller, &above.permissions)?;
            }
            let Some([parent, node]) = path.last_chunk::<2>().filter(|[_, node]| node.name == *name) else {
                let wrong = || Error::new(Reason::Root, "the root cannot be deleted");
                return if name.is_root() { Err(wrong()) } else { Ok(0) };
            };
            rules::check_delete(caller, &node.permissions, &parent.permissions)?;
            if version.is_some_and(|version| version != node.version_text()) {
                return Err(Error::new(Reason::BadVersion, "the node is not as it was at this version"));
            }
            if self.mark(node, subtree).await? {
                return self.finish(name, node.incarnation).await;
            }
            self.again(&mut tries).await?;
        }
    }

    /// Marks the node dead, if it is as it was read. Its version fences children that come meanwhile.
    async fn mark(&self, node: &Node, subtree: Subtree) -> Result<bool, Error> {
        let Some(now) = self.node(&node.name, &Children::first(1)).await? else { return Ok(false) };
        if now.version != node.version || now.epoch == Epoch::Dead {
            return Ok(false);
        }
        if subtree == Subtree::Refuse && !now.children.is_empty() {
            return Err(Error::new(Reason::NotEmpty, format!("{:?} has children", node.name)));
        }
        self.kill(&now).await
    }

    pub(super) async fn kill(&self, node: &Node) -> Result<bool, Error> {
        let steps = self.stamped(node::die(self.store.now()));
        self.store.change_if(&node.key(), node.unchanged(), steps).await
    }

    /// Goes on with the deletion of a node that is dead, from wherever it was left; how many nodes this call removed.
    ///
    /// Boxed, because it deletes what is below in the same way.
    pub(super) fn finish<'a>(
        &'a self,
        name: &'a NodeName,
        incarnation: Incarnation,
    ) -> Pin<Box<dyn Future<Output = Result<usize, Error>> + Send + 'a>> {
        Box::pin(async move {
            let Some((parent, element)) = name.split_last() else { return Ok(0) };
            let (mut tries, mut removed) = (0, 0_usize);
            let mut rest = None;
            while let Some(node) = self.node(name, &Children::first(PAGE)).await? {
                if node.incarnation != incarnation || node.epoch != Epoch::Dead {
                    break;
                }
                if node.children.is_empty() {
                    rest = Some(node);
                    break;
                }
                let mut has_changed = false;
                for (element, (reference, _)) in &node.children {
                    let below = self.remove_child(name, element, *reference).await?;
                    has_changed |= below.is_some();
                    removed = removed.saturating_add(below.unwrap_or_default());
                }
                // A large directory is no contention.
                if has_changed { tries = 0 } else { self.again(&mut tries).await? }
            }
            self.unrefer(&parent, element, Reference::Committed(incarnation)).await?;
            if let Some(node) = rest {
                let mine = Predicate::All(vec![node::is_incarnation(incarnation), node::is_dead()]);
                if self.store.change_if(&node.key(), mine, vec![Change::DeleteRow]).await? {
                    self.give_back_row(&node).await;
                    removed = removed.saturating_add(1);
                }
            }
            Ok(removed)
        })
    }

    /// One try at removing a child of a dead node; how many nodes went, or `None` if it was in vain.
    async fn remove_child(
        &self,
        parent: &NodeName,
        element: &str,
        reference: Reference,
    ) -> Result<Option<usize>, Error> {
        let name = parent.child(element)?;
        let Reference::Committed(child) = reference else {
            // Its creator's commit fails from here on.
            return self.unrefer(parent, element, reference).await.map(|()| Some(0));
        };
        match self.node(&name, &Children::none()).await?.filter(|node| node.incarnation == child) {
            Some(node) if node.epoch != Epoch::Dead && !self.kill(&node).await? => Ok(None),
            Some(_) => self.finish(&name, child).await.map(Some),
            None => self.unrefer(parent, element, reference).await.map(|()| Some(0)),
        }
    }
}
