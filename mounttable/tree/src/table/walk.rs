//! Walks: one read for a whole path, and the live nodes on it.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::error::{Error, Reason};
use crate::key::path_keys;
use crate::mount::live;
use crate::name::NodeName;
use crate::node::{Epoch, Node, Reference};
use crate::store::{ChildSelection, Environment, Freshness, Row, SERVERS_SAMPLE, ServerSelection, Store};
use crate::table::Table;
use crate::table::remove::{DeletionBudget, DeletionProgress};

/// The number of rows that one walk removes of a deletion that another request has begun. The sweep removes the rest.
pub(super) const HELP_ROWS_MAX: usize = 64;

impl<S: Store + Environment> Table<S> {
    /// The live nodes from the root towards `name`, as far as they exist. Only references on the path are read.
    ///
    /// Costs one read, and more only when it comes across an unfinished deletion: it continues that for
    /// [`HELP_ROWS_MAX`] rows.
    pub(super) async fn walk(&self, name: &NodeName) -> Result<Vec<Node>, Error> {
        self.walk_with(name, &ServerSelection::All).await
    }

    /// The same, reading only the selected servers, unless these do not show whether any is live.
    pub(super) async fn walk_with(&self, name: &NodeName, servers: &ServerSelection) -> Result<Vec<Node>, Error> {
        let path = name.path();
        let keys: Vec<_> = path_keys(name).collect();
        let children = ChildSelection::Named(name.elements().map(str::to_owned).collect());
        let (mut servers, mut attempts, mut budget) = (servers, 0, DeletionBudget::rows(HELP_ROWS_MAX));
        loop {
            let rows = self.store.read_with(&keys, &children, servers).await?;
            let next = name.elements().map(Some).chain([None]);
            let there = path.iter().zip(next).zip(rows).map_while(|(place, row)| Some((place, row?)));
            let Walked { live, dead } = walked(there.map(|((name, next), row)| {
                let node = self.decode(name, &row)?;
                let reference = next.and_then(|next| node.reference(next));
                Ok((node, reference))
            }))?;
            if !live.iter().all(|node| self.has_enough_servers(node, servers)) {
                servers = &ServerSelection::All;
                continue;
            }
            let Some(node) = dead else { return Ok(live) };
            match self.finish_deletion(&node.name, node.incarnation, &mut budget).await? {
                DeletionProgress::Finished => self.back_off(&mut attempts).await?,
                // The node is deleted; other requests or the sweep remove its remaining rows.
                DeletionProgress::Interrupted => return Ok(live),
            }
        }
    }

    /// [`Self::walk`] for callers that base no change on it: the nodes may come from the cache. Nodes below one with
    /// live servers may be missing.
    pub(super) async fn walk_cached(&self, name: &NodeName) -> Result<(Vec<Arc<Node>>, Freshness), Error> {
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

    /// One row, live or not.
    pub(super) async fn node(&self, name: &NodeName, children: &ChildSelection) -> Result<Option<Node>, Error> {
        self.node_with(name, children, &ServerSelection::All).await
    }

    /// The same, reading only the selected servers, unless these do not show whether any is live.
    pub(super) async fn node_with(
        &self,
        name: &NodeName,
        children: &ChildSelection,
        mut servers: &ServerSelection,
    ) -> Result<Option<Node>, Error> {
        loop {
            let rows = self.store.read_with(&[crate::key::row_key(name)], children, servers).await?;
            let node = rows.into_iter().next().flatten().map(|row| self.decode(name, &row)).transpose()?;
            if node.iter().all(|node| self.has_enough_servers(node, servers)) {
                return Ok(node);
            }
            servers = &ServerSelection::All;
        }
    }

    /// Whether the servers that were read show whether any is live: one of them is, or there are no others.
    fn has_enough_servers(&self, node: &Node, servers: &ServerSelection) -> bool {
        match servers {
            ServerSelection::All | ServerSelection::None => true,
            ServerSelection::First | ServerSelection::FirstAnd(_) => {
                node.servers.len() < SERVERS_SAMPLE || live(&node.servers, self.store.now()).next().is_some()
            }
        }
    }

    /// One row with the reference to the child `element`, without servers.
    pub(super) async fn parent(&self, name: &NodeName, element: &str) -> Result<Option<Node>, Error> {
        self.node_with(name, &ChildSelection::Named(vec![element.to_owned()]), &ServerSelection::None).await
    }

    /// The live children of the node `name`, in order, without a check of rights; none if the node does not exist. For
    /// operators: the result holds the whole directory.
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

    /// The next page of the live children of a node as read, each with its first reference; `None` after the last, and
    /// when the node no longer exists. A child that cannot be decoded is an error of its own.
    pub(super) async fn page(&self, node: &Node, page: &mut Page) -> Result<Option<Vec<Listed>>, Error> {
        let Some(children) = page.next.take() else { return Ok(None) };
        let parent = self.node(&node.name, &children).await?;
        let Some(parent) = parent.filter(|it| it.incarnation == node.incarnation && it.epoch != Epoch::Dead) else {
            return Ok(None);
        };
        if let ChildSelection::Page { prefix, limit, .. } = children
            && parent.children.len() >= limit
        {
            let after = parent.children.keys().next_back().cloned();
            page.next = Some(ChildSelection::Page { prefix, after, limit });
        }
        let names = parent.children.keys().map(|element| parent.name.child(element)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<_> = names.iter().map(crate::key::row_key).collect();
        let rows = self.store.read(&keys, &ChildSelection::first(1)).await?;
        let listed = |(name, row): (NodeName, Option<Row>)| {
            let child = row.map(|row| self.decode(&name, &row)).transpose();
            let child = child.map(|child| child.filter(|it| it.is_child_of(&parent) && it.epoch != Epoch::Dead));
            (name, child)
        };
        Ok(Some(names.into_iter().zip(rows).map(listed).collect()))
    }
}

/// The outcome of a walk.
struct Walked<N> {
    /// The live nodes from the root down.
    live: Vec<N>,
    /// The node below them whose deletion must be finished.
    dead: Option<N>,
}

/// The live nodes of a path, each with its reference to the next, as far as their rows exist.
fn walked<N: Borrow<Node>>(
    mut there: impl Iterator<Item = Result<(N, Option<Reference>), Error>>,
) -> Result<Walked<N>, Error> {
    let (mut live, mut dead) = (Vec::new(), None);
    let mut above = None;
    // A row without a committed reference is not decoded: it is absent, damaged or not.
    while above.is_none_or(|(_, wanted)| matches!(wanted, Some(Reference::Committed(_))))
        && let Some(found) = there.next()
    {
        let (node, reference) = found?;
        let it: &Node = node.borrow();
        if let Some((parent, wanted)) = above {
            if !it.is_referenced_by(parent, wanted) {
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

/// The number of children in one read.
const PAGE: usize = 256;

/// The position of a listing of a node's children.
#[derive(Debug)]
pub(super) struct Page {
    next: Option<ChildSelection>,
}

impl Page {
    /// Before the first child.
    pub(super) fn of_all() -> Self {
        Self::of_prefix(String::new())
    }

    /// Before the first child whose name begins with `prefix`.
    pub(super) const fn of_prefix(prefix: String) -> Self {
        Self { next: Some(ChildSelection::Page { prefix, after: None, limit: PAGE }) }
    }

    /// Before the child with this name.
    pub(super) fn of_one(element: String) -> Self {
        Self { next: Some(ChildSelection::Named(vec![element])) }
    }
}
