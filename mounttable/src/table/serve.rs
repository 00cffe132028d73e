//! Mounting, unmounting, refreshing, resolving.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;
use futures::future::try_join;

use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::{Caller, Standing};
use crate::mount::{Deadline, MountMode, MountedServer, Target, check_target, live};
use crate::name::NodeName;
use crate::node::{self, Node, Reference};
use crate::rules::{self, Action};
use crate::store::{Change, Children, Family, Freshness, Predicate, Servers, Store, Surroundings};
use crate::table::Table;
use crate::table::collect::has_expired;
use crate::table::create::Blueprint;
use crate::table::quota::Purse;

/// What is to be mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The server.
    pub address: ServerAddress,
    /// What it is.
    pub target: Target,
    /// For how long; zero is for ever.
    pub ttl: Duration,
    /// Whether the others stay.
    pub mode: MountMode,
}

/// A mount that is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Until when.
    pub deadline: Deadline,
    /// The node as it was read, not with all of its servers, for [`Table::refresh`].
    pub node: Node,
    /// How many nodes this call made on the way.
    pub created: usize,
    /// Whether the node has children, which the mount hides. Not looked for when the server was there before.
    pub hides_children: bool,
}

/// Tries after which a change of all servers of a node does not wait any more for a moment in which nobody else changes
/// one: what it then removes besides those it has read is not given back to who was charged, until a recount.
const EXACT_TRIES: u32 = 10;

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The servers, all live.
    pub servers: Vec<MountedServer>,
    /// The name of what is asked for, below each of them.
    pub suffix: String,
    /// Whether that may have changed minutes ago.
    pub freshness: Freshness,
}

impl<S: Store + Surroundings> Table<S> {
    /// Follows a name to the first node with live servers. One read, however deep, unless something is to be collected.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `NO_SUCH_NAME_ROOT`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn resolve(&self, caller: &Caller, name: &NodeName) -> Result<Resolved, Error> {
        let path = self.visit(name).await?;
        if let Some(found) = follow(caller, name, &path, self.store.now())? {
            return Ok(found);
        }
        self.tidy(&path).await?;
        Err(nowhere(name))
    }

    /// The same from what was read a moment ago, if the storage remembers that, or some minutes ago while it does not
    /// answer. What was done through this table's storage is seen.
    ///
    /// # Errors
    /// As [`Self::resolve`]. `UNAVAILABLE` also when all that is known of a name is over.
    pub async fn resolve_recent(&self, caller: &Caller, name: &NodeName) -> Result<Resolved, Error> {
        let (path, freshness) = self.glance(name).await?;
        let now = self.store.now();
        let found = follow(caller, name, &path, now)?;
        if freshness == Freshness::Stale {
            let unknown = || Error::new(Reason::Unavailable, format!("what {name:?} leads to cannot be read now"));
            return found.map(|found| Resolved { freshness, ..found }).ok_or_else(unknown);
        }
        if found.is_none() || path.iter().any(|node| has_expired(node, now)) {
            let mut path: Vec<_> = path.into_iter().map(Arc::unwrap_or_clone).collect();
            // The answer is the same whether or not this can be done now.
            drop(Box::pin(self.expire_due(&mut path)).await);
            if found.is_none() {
                drop(Box::pin(self.tidy(&path)).await);
            }
        }
        found.ok_or_else(|| nowhere(name))
    }

    /// Mounts a server, and makes the nodes that are missing.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NODE_QUOTA`, `SERVER_QUOTA` before anything is made; `SHADOWED_BY_MOUNT`, `FLAGS_CONFLICT`,
    /// `CONTENTION`, `UNAVAILABLE`.
    pub async fn mount(&self, caller: &Caller, name: &NodeName, mount: &Mount) -> Result<Mounted, Error> {
        // A server on the root answers for every name there is.
        if name.is_root() && caller.standing != Standing::Superuser {
            return Err(rules::no_access());
        }
        let mut purse = Purse::of(caller.user_id());
        let outcome = self.mount_from(&mut purse, caller, name, mount).await;
        self.empty(purse, &outcome).await;
        outcome
    }

    async fn mount_from(
        &self,
        purse: &mut Purse,
        caller: &Caller,
        name: &NodeName,
        mount: &Mount,
    ) -> Result<Mounted, Error> {
        let (mut tries, mut created) = (0, 0_usize);
        loop {
            let path = self.visit_with(name, &beside(mount)).await?;
            let child = self.authorise(caller, name, &path, Action::Mount)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            let is_charged = |server: &MountedServer| server.address == mount.address && server.mounter == purse.user;
            let servers = i64::from(child.is_some() || !node.servers.iter().any(is_charged));
            self.fill(purse, missing(name, node), servers).await?;
            if let Some(child) = child {
                created = created.saturating_add(self.create(node, child, purse).await?.into());
            } else if let Some(deadline) = self.mount_on(purse, node, mount, tries).await? {
                let done = |hides_children| Mounted { deadline, node: node.clone(), created, hides_children };
                if node.servers.iter().any(|server| server.address == mount.address) {
                    return Ok(done(false));
                }
                let children = async { Ok(created == 0 && self.has_children(name).await?) };
                let (has_place, hides_children) = try_join(self.has_place(node), children).await?;
                if has_place {
                    return Ok(done(hides_children));
                }
            }
            self.again(&mut tries).await?;
        }
    }

    async fn has_children(&self, name: &NodeName) -> Result<bool, Error> {
        let node = self.node_with(name, &Children::first(1), &Servers::None).await?;
        Ok(node.is_some_and(|node| !node.children.is_empty()))
    }

    /// Checks the whole way before anything is made; the child that is to be made next, if one is missing.
    pub(super) fn authorise(
        &self,
        caller: &Caller,
        name: &NodeName,
        path: &[Node],
        action: Action,
    ) -> Result<Option<Blueprint>, Error> {
        let now = self.store.now();
        for above in path.iter().filter(|node| node.name != *name) {
            rules::check(Action::Traverse, caller, &above.permissions)?;
            if live(&above.servers, now).next().is_some() {
                let wrong = format!("servers mounted on {:?} hide what is below it", above.name);
                return Err(Error::new(Reason::ShadowedByMount, wrong));
            }
        }
        let Some(deepest) = path.last() else { return Err(rules::no_access()) };
        let mut permissions = deepest.permissions.clone();
        let mut next = None;
        for element in name.elements().skip(deepest.name.depth()) {
            permissions = rules::create_child(caller, &permissions, element)?;
            next.get_or_insert_with(|| Blueprint {
                element: element.to_owned(),
                permissions: permissions.clone(),
                stickiness: Stickiness::Collected,
            });
        }
        rules::check(action, caller, &permissions)?;
        Ok(next)
    }

    /// One try at mounting on a node as read; until when, if it was done. Mounts of different servers do not conflict.
    async fn mount_on(
        &self,
        purse: &mut Purse,
        node: &Node,
        mount: &Mount,
        tries: u32,
    ) -> Result<Option<Deadline>, Error> {
        let now = self.store.now();
        check_target(&node.servers, &mount.address, mount.target, mount.mode, now)?;
        let deadline = Deadline::after(now, mount.ttl);
        let (address, mounter) = (mount.address.clone(), purse.user.clone());
        let server = MountedServer { address, target: mount.target, deadline, ttl: mount.ttl, mounter };
        let old = node.servers.iter().find(|server| server.address == mount.address);
        let (mut steps, when) = match mount.mode {
            MountMode::Add => (Vec::new(), Predicate::All(vec![node.alive(), node::holds(&mount.address, old)])),
            MountMode::Replace => (vec![Change::DeleteFamily(Family::Servers)], all_servers(node, tries)),
        };
        steps.extend(node::mount(&server));
        if !self.store.change_if(&node.key(), when, self.stamped(steps)).await? {
            return Ok(None);
        }
        // From here on the charge is the server's; that of the one it replaces is the purse's, if it was the same user's.
        let replaced: Vec<_> = match mount.mode {
            MountMode::Add => old.into_iter().collect(),
            MountMode::Replace => node.servers.iter().collect(),
        };
        let is_kept = |one: &MountedServer| one.address == mount.address && one.mounter == purse.user;
        self.give_back_servers(replaced.into_iter().filter(|one| !is_kept(one))).await;
        if !old.is_some_and(is_kept) {
            purse.servers = purse.servers.saturating_sub(1);
        }
        Ok(Some(deadline))
    }

    /// Whether its parent still refers to a node as read. A row may lose its place between a walk and a write; then nobody
    /// will ever find what was written.
    async fn has_place(&self, node: &Node) -> Result<bool, Error> {
        let Some((parent, element)) = node.name.split_last() else { return Ok(true) };
        let parent = self.parent(&parent, element).await?;
        let wanted = Some(Reference::Committed(node.incarnation));
        Ok(parent.is_some_and(|parent| parent.reference(element) == wanted))
    }

    /// Moves the deadline of a server mounted on a node as read some time ago: one call, whatever others mount there.
    /// `None` when the node or the server has gone, or its permissions have changed: mount it again.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn refresh(&self, node: &Node, server: &MountedServer, ttl: Duration) -> Result<Option<Deadline>, Error> {
        let deadline = Deadline::after(self.store.now(), ttl);
        let is_there = Predicate::All(vec![node.alive(), node::holds(&server.address, Some(server))]);
        let steps = self.stamped(node::mount(&MountedServer { deadline, ttl, ..server.clone() }));
        let is_done = self.store.change_if(&node.key(), is_there, steps).await?;
        Ok(is_done.then_some(deadline))
    }

    /// Takes a server from a node, or all of them, and collects the node if it is empty then; how many were live.
    ///
    /// # Errors
    /// `NO_ACCESS`, `CONTENTION`, `UNAVAILABLE`. A name or server that is not there is no error.
    pub async fn unmount(
        &self,
        caller: &Caller,
        name: &NodeName,
        server: Option<&ServerAddress>,
    ) -> Result<usize, Error> {
        let mut tries = 0;
        let wanted = server.map_or(Servers::All, |address| Servers::FirstAnd(address.as_str().to_owned()));
        loop {
            let path = self.visit_with(name, &wanted).await?;
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(Action::Traverse, caller, &above.permissions)?;
            }
            let Some(node) = path.last().filter(|node| node.name == *name) else {
                self.tidy(&path).await?;
                return Ok(0);
            };
            rules::check(Action::Mount, caller, &node.permissions)?;
            let gone: Vec<_> = node.servers.iter().filter(|one| server.is_none_or(|it| one.address == *it)).collect();
            let column = |one: &&MountedServer| Change::DeleteColumn(Family::Servers, one.address.as_str().to_owned());
            let steps: Vec<_> = gone.iter().map(column).collect();
            let when = match gone.as_slice() {
                [one] => Predicate::All(vec![node.alive(), node::holds(&one.address, Some(*one))]),
                _ => all_servers(node, tries),
            };
            if steps.is_empty() || self.store.change_if(&node.key(), when, self.stamped(steps)).await? {
                let now = self.store.now();
                self.give_back_servers(gone.iter().copied()).await;
                self.collect(name).await?;
                return Ok(gone.iter().filter(|one| !one.deadline.is_over(now)).count());
            }
            self.again(&mut tries).await?;
        }
    }
}

/// What a mount has to know of the servers that are there: which it replaces, which it may conflict with. All that are live
/// are of one sort, so that one which is added to ten thousand looks at a few of them.
fn beside(mount: &Mount) -> Servers {
    match mount.mode {
        MountMode::Replace => Servers::All,
        MountMode::Add => Servers::FirstAnd(mount.address.as_str().to_owned()),
    }
}

/// Follows a path as read to its first live servers, if the caller may.
fn follow(
    caller: &Caller,
    name: &NodeName,
    path: &[impl Borrow<Node>],
    now: Micros,
) -> Result<Option<Resolved>, Error> {
    for node in path.iter().map(Borrow::<Node>::borrow) {
        let servers: Vec<_> = live(&node.servers, now).cloned().collect();
        let is_end = !servers.is_empty() || node.name == *name;
        rules::check(if is_end { Action::Resolve } else { Action::Traverse }, caller, &node.permissions)?;
        if !servers.is_empty() {
            let suffix = name.suffix_below(&node.name).unwrap_or_default().to_owned();
            return Ok(Some(Resolved { servers, suffix, freshness: Freshness::Recent }));
        }
    }
    Ok(None)
}

fn nowhere(name: &NodeName) -> Error {
    let reason = if name.is_root() { Reason::NoSuchNameRoot } else { Reason::NoSuchName };
    Error::new(reason, format!("nothing is mounted under {name:?}"))
}

/// How many nodes are not there yet when `node` is the last one that is.
pub(super) fn missing(name: &NodeName, node: &Node) -> i64 {
    i64::try_from(name.depth().saturating_sub(node.name.depth())).unwrap_or(i64::MAX)
}

/// The condition for a change of all servers of a node as read.
fn all_servers(node: &Node, tries: u32) -> Predicate {
    if tries < EXACT_TRIES { node.unchanged() } else { node.alive() }
}
