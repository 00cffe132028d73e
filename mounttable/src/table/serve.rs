//! Mounting, unmounting, refreshing, resolving.

use std::time::Duration;

use crate::access::Permissions;
use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::identity::{Caller, Standing};
use crate::mount::{Deadline, MountMode, MountedServer, Target, check_target, live};
use crate::name::NodeName;
use crate::node::{self, Node, Reference};
use crate::rules::{self, Action};
use crate::store::{Change, Family, Predicate, Store, Surroundings};
use crate::table::Table;

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
    /// The node as it was read, for [`Table::refresh`].
    pub node: Node,
}

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The servers, all live.
    pub servers: Vec<MountedServer>,
    /// The name of what is asked for, below each of them.
    pub suffix: String,
}

impl<S: Store + Surroundings> Table<S> {
    /// Follows a name to the first node with live servers. One read, however deep.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `NO_SUCH_NAME_ROOT`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn resolve(&self, caller: &Caller, name: &NodeName) -> Result<Resolved, Error> {
        let now = self.store.now();
        for node in self.walk(name).await? {
            let servers: Vec<_> = live(&node.servers, now).cloned().collect();
            let is_end = !servers.is_empty() || node.name == *name;
            rules::check(if is_end { Action::Resolve } else { Action::Traverse }, caller, &node.permissions)?;
            if !servers.is_empty() {
                let suffix = name.suffix_below(&node.name).unwrap_or_default().to_owned();
                return Ok(Resolved { servers, suffix });
            }
        }
        let reason = if name.is_root() { Reason::NoSuchNameRoot } else { Reason::NoSuchName };
        Err(Error::new(reason, format!("nothing is mounted under {name:?}")))
    }

    /// Mounts a server, and makes the nodes that are missing.
    ///
    /// # Errors
    /// `NO_ACCESS` before anything is made, `SHADOWED_BY_MOUNT`, `FLAGS_CONFLICT`, `CONTENTION`, `UNAVAILABLE`.
    pub async fn mount(&self, caller: &Caller, name: &NodeName, mount: &Mount) -> Result<Mounted, Error> {
        // A server on the root answers for every name there is.
        if name.is_root() && caller.standing != Standing::Superuser {
            return Err(rules::no_access());
        }
        let mut tries = 0;
        loop {
            let path = self.walk(name).await?;
            let created = self.authorise(caller, name, &path, Action::Mount)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            if let Some((element, permissions)) = created {
                self.create(node, &element, permissions, caller.user_id()).await?;
            } else if let Some(deadline) = self.mount_on(caller, node, mount).await? {
                return Ok(Mounted { deadline, node: node.clone() });
            }
            self.again(&mut tries).await?;
        }
    }

    /// Checks the whole way before anything is made; the child that is to be made next, if one is missing.
    pub(super) fn authorise(
        &self,
        caller: &Caller,
        name: &NodeName,
        path: &[Node],
        action: Action,
    ) -> Result<Option<(String, Permissions)>, Error> {
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
            next.get_or_insert_with(|| (element.to_owned(), permissions.clone()));
        }
        rules::check(action, caller, &permissions)?;
        Ok(next)
    }

    /// One try at mounting on a node as read; until when, if it was done.
    async fn mount_on(&self, caller: &Caller, node: &Node, mount: &Mount) -> Result<Option<Deadline>, Error> {
        let now = self.store.now();
        check_target(&node.servers, &mount.address, mount.target, mount.mode, now)?;
        let deadline = Deadline::after(now, mount.ttl);
        let server =
            MountedServer { address: mount.address.clone(), target: mount.target, deadline, mounter: caller.user_id() };
        let mut steps = match mount.mode {
            MountMode::Add => Vec::new(),
            MountMode::Replace => vec![Change::DeleteFamily(Family::Servers)],
        };
        steps.extend(node::mount(&server));
        if !self.store.change_if(&node.key(), node.alive(), self.stamped(steps)).await? {
            return Ok(None);
        }
        let Some((parent, element)) = node.name.split_last() else { return Ok(Some(deadline)) };
        if node.servers.iter().any(|server| server.address == mount.address) {
            return Ok(Some(deadline));
        }
        // The row may have lost its place between the walk and the write; then nobody will ever find what was written.
        let parent = self.parent(&parent, element).await?;
        let wanted = Some(Reference::Committed(node.incarnation));
        Ok(parent.is_some_and(|parent| parent.reference(element) == wanted).then_some(deadline))
    }

    /// Moves the deadline of a server mounted on a node as read some time ago: one call, whatever others mount there.
    /// `None` when the node or the server has gone, or its permissions have changed: mount it again.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn refresh(&self, node: &Node, server: &MountedServer, ttl: Duration) -> Result<Option<Deadline>, Error> {
        let deadline = Deadline::after(self.store.now(), ttl);
        let column = server.address.as_str().to_owned();
        let is_there = Predicate::All(vec![node.alive(), Predicate::Has(Family::Servers, column)]);
        let steps = self.stamped(node::mount(&MountedServer { deadline, ..server.clone() }));
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
        loop {
            let path = self.walk(name).await?;
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(Action::Traverse, caller, &above.permissions)?;
            }
            let Some(node) = path.last().filter(|node| node.name == *name) else { return Ok(0) };
            rules::check(Action::Mount, caller, &node.permissions)?;
            let gone: Vec<_> = node.servers.iter().filter(|one| server.is_none_or(|it| one.address == *it)).collect();
            let column = |one: &&MountedServer| Change::DeleteColumn(Family::Servers, one.address.as_str().to_owned());
            let steps: Vec<_> = gone.iter().map(column).collect();
            if steps.is_empty() || self.store.change_if(&node.key(), node.alive(), self.stamped(steps)).await? {
                let now = self.store.now();
                self.collect(name).await?;
                return Ok(gone.iter().filter(|one| !one.deadline.is_over(now)).count());
            }
            self.again(&mut tries).await?;
        }
    }
}
