//! Reading: one call for a whole path, and what of it is live.

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::UserId;
use crate::name::NodeName;
use crate::node::{Epoch, Incarnation, Node};
use crate::store::{Children, Predicate, Store, Surroundings};
use crate::table::Table;

impl<S: Store + Surroundings> Table<S> {
    /// Makes the root with these permissions, if there is none; whether it did.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn setup(&self, permissions: Permissions) -> Result<bool, Error> {
        let incarnation = Incarnation::new(self.store.fresh());
        let root = Node {
            name: NodeName::root(),
            incarnation,
            version: self.store.fresh(),
            epoch: Epoch::Alive(0),
            parent: incarnation,
            creator: UserId::server(),
            created: self.store.now(),
            stickiness: Stickiness::Sticky,
            permissions,
            servers: Vec::new(),
            children: [].into(),
        };
        self.store.change_if(&root.key(), Predicate::RowAbsent, root.write()).await
    }

    /// The live nodes from the root towards `name`: as many as there are. Only references on the path are read.
    ///
    /// Costs one read, and more only where a deletion has to be finished.
    pub(super) async fn walk(&self, name: &NodeName) -> Result<Vec<Node>, Error> {
        let path = name.path();
        let keys: Vec<_> = path.iter().map(crate::key::row_key).collect();
        let children = Children::Named(name.elements().map(str::to_owned).collect());
        let mut tries = 0;
        loop {
            let rows = self.store.read(&keys, &children).await?;
            let mut live: Vec<Node> = Vec::new();
            let mut dead = None;
            for (name, row) in path.iter().zip(rows) {
                let Some(row) = row else { break };
                let node = Node::decode(name, &row)?;
                match live.last() {
                    Some(parent) if !node.is_child_of(parent) => break,
                    Some(_) if node.epoch == Epoch::Dead => {
                        dead = Some(node);
                        break;
                    }
                    _ => live.push(node),
                }
            }
            if let Some(node) = dead {
                self.finish(&node.name, node.incarnation).await?;
                self.again(&mut tries).await?;
            } else if live.is_empty() {
                return Err(Error::new(Reason::NoSuchNameRoot, "the table was never set up"));
            } else {
                return Ok(live);
            }
        }
    }

    /// One row as it is, live or not.
    pub(super) async fn node(&self, name: &NodeName, children: &Children) -> Result<Option<Node>, Error> {
        let rows = self.store.read(&[crate::key::row_key(name)], children).await?;
        rows.into_iter().next().flatten().map(|row| Node::decode(name, &row)).transpose()
    }

    /// One row with the reference to the child `element`.
    pub(super) async fn parent(&self, name: &NodeName, element: &str) -> Result<Option<Node>, Error> {
        self.node(name, &Children::Named(vec![element.to_owned()])).await
    }

    /// The live children of the node `name`, in order; none if it is not there. Reads the whole directory at once.
    ///
    /// # Errors
    /// `UNAVAILABLE`, `DAMAGED`, `NO_SUCH_NAME_ROOT`, `CONTENTION`.
    pub async fn children(&self, name: &NodeName) -> Result<Vec<NodeName>, Error> {
        let live = self.walk(name).await?;
        if live.last().is_none_or(|node| node.name != *name) {
            return Ok(Vec::new());
        }
        let Some(node) = self.node(name, &Children::All).await? else { return Ok(Vec::new()) };
        let names = node.children.keys().map(|element| name.child(element)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<_> = names.iter().map(crate::key::row_key).collect();
        let rows = self.store.read(&keys, &Children::Named(Vec::new())).await?;
        let mut found = Vec::new();
        for (name, row) in names.into_iter().zip(rows) {
            let child = row.map(|row| Node::decode(&name, &row)).transpose()?;
            found.extend(child.filter(|child| child.is_child_of(&node) && child.epoch != Epoch::Dead).map(|_| name));
        }
        Ok(found)
    }
}
