//! Reading: one call for a whole path, and what of it is live.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::key::path_keys;
use crate::mount::live;
use crate::name::NodeName;
use crate::node::{Epoch, Node, Reference};
use crate::store::{Children, Freshness, Row, Servers, Store, Surroundings, TELLING};
use crate::table::Table;

impl<S: Store + Surroundings> Table<S> {
    /// The live nodes from the root towards `name`: as many as there are. Only references on the path are read.
    ///
    /// Costs one read, and more only where a deletion has to be finished.
    pub(super) async fn walk(&self, name: &NodeName) -> Result<Vec<Node>, Error> {
        self.walk_with(name, &Servers::All).await
    }

    /// The same, with no more servers than are wanted, unless these do not tell whether any is live.
    pub(super) async fn walk_with(&self, name: &NodeName, servers: &Servers) -> Result<Vec<Node>, Error> {
        let path = name.path();
        let keys: Vec<_> = path_keys(name).collect();
        let children = Children::Named(name.elements().map(str::to_owned).collect());
        let (mut servers, mut tries) = (servers, 0);
        loop {
            let rows = self.store.read_with(&keys, &children, servers).await?;
            let next = name.elements().map(Some).chain([None]);
            let there = path.iter().zip(next).zip(rows).map_while(|(place, row)| Some((place, row?)));
            let Walked { live, dead } = walked(there.map(|((name, next), row)| {
                let node = self.decode(name, &row)?;
                let reference = next.and_then(|next| node.reference(next));
                Ok((node, reference))
            }))?;
            if !live.iter().all(|node| self.is_told(node, servers)) {
                servers = &Servers::All;
                continue;
            }
            let Some(node) = dead else { return Ok(live) };
            self.finish(&node.name, node.incarnation).await?;
            self.again(&mut tries).await?;
        }
    }

    /// [`Self::walk`] for who decides no change by it: the nodes may be of a moment ago. Below one with live servers there
    /// need not be any.
    pub(super) async fn glance(&self, name: &NodeName) -> Result<(Vec<Arc<Node>>, Freshness), Error> {
        let recent = self.store.read_recent(name).await?;
        let there = name.prefixes().zip(&*recent.rows).map_while(|(name, row)| Some((name, row.as_ref()?)));
        let Walked { live, dead } =
            walked(there.map(|(name, row)| Ok((self.credited(row.own.node(name)?), row.reference(name)?))))?;
        match (dead, recent.freshness) {
            (Some(_), Freshness::Recent) => {
                let live = Box::pin(self.walk(name)).await?;
                Ok((live.into_iter().map(Arc::new).collect(), Freshness::Recent))
            }
            (_, freshness) => Ok((live, freshness)),
        }
    }

    /// One row as it is, live or not.
    pub(super) async fn node(&self, name: &NodeName, children: &Children) -> Result<Option<Node>, Error> {
        self.node_with(name, children, &Servers::All).await
    }

    /// The same, with no more servers than are wanted, unless these do not tell whether any is live.
    pub(super) async fn node_with(
        &self,
        name: &NodeName,
        children: &Children,
        mut servers: &Servers,
    ) -> Result<Option<Node>, Error> {
        loop {
            let rows = self.store.read_with(&[crate::key::row_key(name)], children, servers).await?;
            let node = rows.into_iter().next().flatten().map(|row| self.decode(name, &row)).transpose()?;
            if node.iter().all(|node| self.is_told(node, servers)) {
                return Ok(node);
            }
            servers = &Servers::All;
        }
    }

    /// Whether these of a node's servers tell whether any is live: one of them is, or there are no others.
    fn is_told(&self, node: &Node, servers: &Servers) -> bool {
        match servers {
            Servers::All | Servers::None => true,
            Servers::First | Servers::FirstAnd(_) => {
                node.servers.len() < TELLING || live(&node.servers, self.store.now()).next().is_some()
            }
        }
    }

    /// One row with the reference to the child `element`, and without servers.
    pub(super) async fn parent(&self, name: &NodeName, element: &str) -> Result<Option<Node>, Error> {
        self.node_with(name, &Children::Named(vec![element.to_owned()]), &Servers::None).await
    }

    /// The live children of the node `name`, in order, whoever asks; none if it is not there. For those who look after the
    /// table: holds the whole directory.
    ///
    /// # Errors
    /// `UNAVAILABLE`, `DAMAGED`, `NO_SUCH_NAME_ROOT`, `CONTENTION`.
    pub async fn children(&self, name: &NodeName) -> Result<Vec<NodeName>, Error> {
        let live = self.walk(name).await?;
        let Some(node) = live.last().filter(|node| node.name == *name) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut page = Page::of_all();
        while let Some(children) = self.page(node, &mut page).await? {
            for (name, child) in children {
                found.extend(child?.map(|_| name));
            }
        }
        Ok(found)
    }

    /// The next page of the live children of a node as read, each with its first reference; `None` behind the last, and
    /// when the node is not there any more. A child that cannot be read is an error of its own.
    pub(super) async fn page(&self, node: &Node, page: &mut Page) -> Result<Option<Vec<Listed>>, Error> {
        let Some(children) = page.next.take() else { return Ok(None) };
        let parent = self.node(&node.name, &children).await?;
        let Some(parent) = parent.filter(|it| it.incarnation == node.incarnation && it.epoch != Epoch::Dead) else {
            return Ok(None);
        };
        if let Children::Page { prefix, limit, .. } = children
            && parent.children.len() >= limit
        {
            let after = parent.children.keys().next_back().cloned();
            page.next = Some(Children::Page { prefix, after, limit });
        }
        let names = parent.children.keys().map(|element| parent.name.child(element)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<_> = names.iter().map(crate::key::row_key).collect();
        let rows = self.store.read(&keys, &Children::first(1)).await?;
        let listed = |(name, row): (NodeName, Option<Row>)| {
            let child = row.map(|row| self.decode(&name, &row)).transpose();
            let child = child.map(|child| child.filter(|it| it.is_child_of(&parent) && it.epoch != Epoch::Dead));
            (name, child)
        };
        Ok(Some(names.into_iter().zip(rows).map(listed).collect()))
    }
}

/// What the rows of a path say.
struct Walked<N> {
    /// The live nodes from the root down, at least that.
    live: Vec<N>,
    /// The one below them, if its deletion has to be finished.
    dead: Option<N>,
}

/// What is live of the nodes of a path, each with its reference to the next, as far as their rows are there.
fn walked<N: Borrow<Node>>(
    there: impl Iterator<Item = Result<(N, Option<Reference>), Error>>,
) -> Result<Walked<N>, Error> {
    let (mut live, mut dead) = (Vec::new(), None);
    let mut above = None;
    for found in there {
        let (node, reference) = found?;
        let it: &Node = node.borrow();
        if let Some((parent, wanted)) = above {
            if !it.is_meant_by(parent, wanted) {
                break;
            }
            if it.epoch == Epoch::Dead {
                dead = Some(node);
                break;
            }
        }
        above = Some((it.incarnation, reference));
        live.push(node);
    }
    if live.is_empty() {
        return Err(Error::new(Reason::NoSuchNameRoot, "the table was never set up"));
    }
    Ok(Walked { live, dead })
}

/// A child's name, and the child if it is live.
pub(super) type Listed = (NodeName, Result<Option<Node>, Error>);

/// How many children are listed at a time.
const PAGE: usize = 256;

/// How far a listing of a node's children has come.
#[derive(Debug)]
pub(super) struct Page {
    next: Option<Children>,
}

impl Page {
    /// Before the first of all children.
    pub(super) fn of_all() -> Self {
        Self::of_prefix(String::new())
    }

    /// Before the first of those whose names begin with `prefix`.
    pub(super) const fn of_prefix(prefix: String) -> Self {
        Self { next: Some(Children::Page { prefix, after: None, limit: PAGE }) }
    }

    /// Before the one of this name.
    pub(super) fn of_one(element: String) -> Self {
        Self { next: Some(Children::Named(vec![element])) }
    }
}
