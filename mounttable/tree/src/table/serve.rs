//! Mount, unmount, refresh, resolve.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;
use ebla_runtime::Failpoint;
use futures::future::try_join;

use crate::address::ServerAddress;
use crate::error::{Error, Reason};
use crate::file::Stickiness;
use crate::identity::{Caller, Privilege};
use crate::mount::{Deadline, MountMode, MountedServer, Target, check_target, live};
use crate::name::NodeName;
use crate::node::{self, Incarnation, Node, Reference};
use crate::rules::{self, Action};
use crate::store::{Change, ChildSelection, Condition, Environment, Family, Freshness, ServerSelection, Store};
use crate::table::Table;
use crate::table::collect::has_expired;
use crate::table::create::NewNode;
use crate::table::quota::QuotaReservation;

/// A mount to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The server.
    pub address: ServerAddress,
    /// Its kind.
    pub target: Target,
    /// The time to live; zero: no expiry.
    pub ttl: Duration,
    /// Whether other servers stay.
    pub mode: MountMode,
}

/// A completed mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Its deadline.
    pub deadline: Deadline,
    /// The node without permissions, servers and children, for [`Table::refresh`].
    pub node: Node,
    /// The number of nodes that this call created.
    pub created: usize,
    /// Whether the node has children, which the mount hides. Not determined when the server was mounted before.
    pub hides_children: bool,
}

/// The number of attempts that require all servers of a node to be unchanged. Later attempts also remove servers that
/// they have not read, whose charges are then wrong until a recount.
const EXACT_ATTEMPTS: u32 = 10;

/// The servers that a name resolves to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The servers, all live, in the order of their addresses.
    pub servers: Vec<MountedServer>,
    /// The rest of the name, below each of the servers.
    pub suffix: String,
    /// Whether the result may be minutes old.
    pub freshness: Freshness,
}

/// The versions of the nodes on the path to a name. The default differs from that of every existing table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathVersion(Vec<(Incarnation, u64)>);

impl<S: Store + Environment> Table<S> {
    /// Resolves a name: follows it to the first node with live servers. One read, whatever the depth, unless there is
    /// garbage to collect.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NO_SUCH_NAME`, `NO_SUCH_NAME_ROOT`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn resolve(&self, caller: &Caller, name: &NodeName) -> Result<Resolved, Error> {
        let path = self.visit(name).await?;
        if let Some(found) = follow(caller, name, &path, self.store.now())? {
            return Ok(found);
        }
        self.collect_if_empty(&path).await?;
        Err(not_mounted(name))
    }

    /// Resolves from the cache, if the store has one; from entries that are minutes old while the storage is
    /// unavailable. Changes through this table's store are visible.
    ///
    /// # Errors
    /// As [`Self::resolve`]. `UNAVAILABLE` also when all cached entries of a name have expired.
    pub async fn resolve_recent(&self, caller: &Caller, name: &NodeName) -> Result<Resolved, Error> {
        let (path, freshness) = self.walk_cached(name).await?;
        let now = self.store.now();
        let found = follow(caller, name, &path, now)?;
        if freshness == Freshness::Stale {
            let unknown = || {
                Error::new(
                    Reason::Unavailable,
                    format!("cannot resolve {name:?}: storage unavailable and no cached entry"),
                )
            };
            return found.map(|found| Resolved { freshness, ..found }).ok_or_else(unknown);
        }
        if found.is_none() || path.iter().any(|node| has_expired(node, now)) {
            let mut path: Vec<_> = path.into_iter().map(Arc::unwrap_or_clone).collect();
            // The result does not depend on whether this succeeds.
            drop(Box::pin(self.expire_due(&mut path)).await);
            if found.is_none() {
                drop(Box::pin(self.collect_if_empty(&path)).await);
            }
        }
        found.ok_or_else(|| not_mounted(name))
    }

    /// The versions of the nodes on the path to a name, without their servers. While they are the same, [`Self::resolve`]
    /// returns the same for every caller until a server expires.
    ///
    /// # Errors
    /// `NO_SUCH_NAME_ROOT`, `CONTENTION`, `UNAVAILABLE`, `DAMAGED`.
    pub async fn path_version(&self, name: &NodeName) -> Result<PathVersion, Error> {
        let path = self.walk_with(name, &ServerSelection::None).await?;
        Ok(PathVersion(path.iter().map(|node| (node.incarnation, node.version)).collect()))
    }

    /// The time that deadlines are compared to.
    pub fn now(&self) -> Micros {
        self.store.now()
    }

    /// Mounts a server, and creates missing nodes.
    ///
    /// # Errors
    /// `NO_ACCESS`, `NODE_QUOTA`, `SERVER_QUOTA` before anything is created; `SHADOWED_BY_MOUNT`, `FLAGS_CONFLICT`,
    /// `CONTENTION`, `UNAVAILABLE`.
    pub async fn mount(&self, caller: &Caller, name: &NodeName, mount: &Mount) -> Result<Mounted, Error> {
        // A server on the root answers for every name.
        if name.is_root() && caller.privilege != Privilege::Superuser {
            return Err(rules::no_access());
        }
        let mut reservation = QuotaReservation::of(caller.user_id());
        let outcome = self.mount_from(&mut reservation, caller, name, mount).await;
        self.release(reservation, &outcome).await;
        outcome
    }

    async fn mount_from(
        &self,
        reservation: &mut QuotaReservation,
        caller: &Caller,
        name: &NodeName,
        mount: &Mount,
    ) -> Result<Mounted, Error> {
        let (mut attempts, mut created) = (0, 0_usize);
        loop {
            let path = self.visit_with(name, &servers_to_read(mount)).await?;
            let child = self.authorise(caller, name, &path, Action::Mount)?;
            let Some(node) = path.last() else { return Err(rules::no_access()) };
            let is_charged =
                |server: &MountedServer| server.address == mount.address && server.mounter == reservation.user;
            let servers = i64::from(child.is_some() || !node.servers.iter().any(is_charged));
            self.reserve(reservation, missing(name, node), servers).await?;
            if let Some(child) = child {
                created = created.saturating_add(self.create(node, child, reservation).await?.into());
            } else if let Some(deadline) = self.mount_on(reservation, node, mount, attempts).await? {
                let done = |hides_children| Mounted { deadline, node: node.bare(), created, hides_children };
                if node.servers.iter().any(|server| server.address == mount.address) {
                    return Ok(done(false));
                }
                let children = async { Ok(created == 0 && self.has_children(name).await?) };
                let (is_still_referenced, hides_children) = try_join(self.is_still_referenced(node), children).await?;
                if is_still_referenced {
                    return Ok(done(hides_children));
                }
            }
            self.back_off(&mut attempts).await?;
        }
    }

    async fn has_children(&self, name: &NodeName) -> Result<bool, Error> {
        let node = self.node_with(name, &ChildSelection::first(1), &ServerSelection::None).await?;
        Ok(node.is_some_and(|node| !node.children.is_empty()))
    }

    /// Checks the rights on the whole path before anything is created; returns the next child to create, if one is
    /// missing.
    pub(super) fn authorise(
        &self,
        caller: &Caller,
        name: &NodeName,
        path: &[Node],
        action: Action,
    ) -> Result<Option<NewNode>, Error> {
        let now = self.store.now();
        for above in path.iter().filter(|node| node.name != *name) {
            rules::check(Action::Traverse, caller, &above.permissions)?;
            if live(&above.servers, now).next().is_some() {
                let wrong = format!("servers mounted on {:?} hide the nodes below it", above.name);
                return Err(Error::new(Reason::ShadowedByMount, wrong));
            }
        }
        let Some(deepest) = path.last() else { return Err(rules::no_access()) };
        let mut permissions = deepest.permissions.clone();
        let mut next = None;
        for element in name.elements().skip(deepest.name.depth()) {
            permissions = rules::create_child(caller, &permissions, element)?;
            next.get_or_insert_with(|| NewNode {
                element: element.to_owned(),
                permissions: permissions.clone(),
                stickiness: Stickiness::Collected,
            });
        }
        rules::check(action, caller, &permissions)?;
        Ok(next)
    }

    /// One attempt at mounting on a node as read; returns the deadline if it succeeded. Mounts of different servers do
    /// not conflict.
    async fn mount_on(
        &self,
        reservation: &mut QuotaReservation,
        node: &Node,
        mount: &Mount,
        attempts: u32,
    ) -> Result<Option<Deadline>, Error> {
        let now = self.store.now();
        check_target(&node.servers, &mount.address, mount.target, mount.mode, now)?;
        let deadline = Deadline::after(now, mount.ttl);
        let (address, mounter) = (mount.address.clone(), reservation.user.clone());
        let server = MountedServer { address, target: mount.target, deadline, ttl: mount.ttl, mounter };
        let old = node.servers.iter().find(|server| server.address == mount.address);
        let (mut steps, when) = match mount.mode {
            MountMode::Add if Failpoint::MountOnDeletedNode.is_enabled() => (
                Vec::new(),
                Condition::All(vec![node::is_incarnation(node.incarnation), node::server_is(&mount.address, old)]),
            ),
            MountMode::Add => (Vec::new(), Condition::All(vec![node.alive(), node::server_is(&mount.address, old)])),
            MountMode::Replace => (vec![Change::DeleteFamily(Family::Servers)], all_servers(node, attempts)),
        };
        steps.extend(node::mount_changes(&server));
        if !self.store.change_if(&node.key(), when, self.with_new_version(steps)).await? {
            return Ok(None);
        }
        // From here on the server carries the charge; that of the replaced one returns to the reservation if it was the
        // same user's.
        let replaced: Vec<_> = match mount.mode {
            MountMode::Add => old.into_iter().collect(),
            MountMode::Replace => node.servers.iter().collect(),
        };
        let is_kept = |one: &MountedServer| one.address == mount.address && one.mounter == reservation.user;
        self.refund_servers(replaced.into_iter().filter(|one| !is_kept(one))).await;
        if !old.is_some_and(is_kept) {
            reservation.servers = reservation.servers.saturating_sub(1);
        }
        Ok(Some(deadline))
    }

    /// Whether the parent still refers to a node as read. If a row was unlinked between the walk and the write, the
    /// written mount is invisible.
    async fn is_still_referenced(&self, node: &Node) -> Result<bool, Error> {
        let Some((parent, element)) = node.name.split_last() else { return Ok(true) };
        let parent = self.parent(&parent, element).await?;
        let wanted = Some(Reference::Committed(node.incarnation));
        Ok(parent.is_some_and(|parent| parent.reference(element) == wanted))
    }

    /// Extends the deadline of a server on a node that was read earlier: one call, regardless of other mounts. `None`
    /// when the node or the server is gone, or the permissions have changed: mount again.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn refresh(&self, node: &Node, server: &MountedServer, ttl: Duration) -> Result<Option<Deadline>, Error> {
        let deadline = Deadline::after(self.store.now(), ttl);
        let is_there = Condition::All(vec![node.alive(), node::server_is(&server.address, Some(server))]);
        let steps = self.with_new_version(node::mount_changes(&MountedServer { deadline, ttl, ..server.clone() }));
        let is_done = self.store.change_if(&node.key(), is_there, steps).await?;
        Ok(is_done.then_some(deadline))
    }

    /// Removes a server from a node, or all of them, and collects the node if it is then empty; returns the number of
    /// live servers removed.
    ///
    /// # Errors
    /// `NO_ACCESS`, `CONTENTION`, `UNAVAILABLE`. A missing name or server is not an error.
    pub async fn unmount(
        &self,
        caller: &Caller,
        name: &NodeName,
        server: Option<&ServerAddress>,
    ) -> Result<usize, Error> {
        let mut attempts = 0;
        let wanted =
            server.map_or(ServerSelection::All, |address| ServerSelection::FirstAnd(address.as_str().to_owned()));
        loop {
            let path = self.visit_with(name, &wanted).await?;
            for above in path.iter().filter(|node| node.name != *name) {
                rules::check(Action::Traverse, caller, &above.permissions)?;
            }
            let Some(node) = path.last().filter(|node| node.name == *name) else {
                self.collect_if_empty(&path).await?;
                return Ok(0);
            };
            rules::check(Action::Mount, caller, &node.permissions)?;
            let gone: Vec<_> = node.servers.iter().filter(|one| server.is_none_or(|it| one.address == *it)).collect();
            let column = |one: &&MountedServer| Change::DeleteColumn(Family::Servers, one.address.as_str().to_owned());
            let steps: Vec<_> = gone.iter().map(column).collect();
            let when = match gone.as_slice() {
                [one] => Condition::All(vec![node.alive(), node::server_is(&one.address, Some(*one))]),
                _ => all_servers(node, attempts),
            };
            if steps.is_empty() || self.store.change_if(&node.key(), when, self.with_new_version(steps)).await? {
                let now = self.store.now();
                self.refund_servers(gone.iter().copied()).await;
                self.collect(name).await?;
                return Ok(gone.iter().filter(|one| !one.deadline.is_over(now)).count());
            }
            self.back_off(&mut attempts).await?;
        }
    }
}

/// The servers that a mount must read: those that it replaces, or a sample to detect conflicts. All live servers of a
/// node have the same kind, so adding one to ten thousand reads only a few.
fn servers_to_read(mount: &Mount) -> ServerSelection {
    match mount.mode {
        MountMode::Replace => ServerSelection::All,
        MountMode::Add => ServerSelection::FirstAnd(mount.address.as_str().to_owned()),
    }
}

/// Follows a path as read to its first live servers, and checks the caller's rights.
fn follow(
    caller: &Caller,
    name: &NodeName,
    path: &[impl Borrow<Node>],
    now: Micros,
) -> Result<Option<Resolved>, Error> {
    for node in path.iter().map(Borrow::<Node>::borrow) {
        let is_returned =
            |server: &&MountedServer| !server.deadline.is_over(now) || Failpoint::ExpiredServerReturned.is_enabled();
        let servers: Vec<_> = node.servers.iter().filter(is_returned).cloned().collect();
        let is_end = !servers.is_empty() || node.name == *name;
        rules::check(if is_end { Action::Resolve } else { Action::Traverse }, caller, &node.permissions)?;
        if !servers.is_empty() {
            let suffix = name.suffix_below(&node.name).unwrap_or_default().to_owned();
            return Ok(Some(Resolved { servers, suffix, freshness: Freshness::Recent }));
        }
    }
    Ok(None)
}

fn not_mounted(name: &NodeName) -> Error {
    let reason = if name.is_root() { Reason::NoSuchNameRoot } else { Reason::NoSuchName };
    Error::new(reason, format!("nothing is mounted under {name:?}"))
}

/// The number of missing nodes when `node` is the deepest existing one.
pub(super) fn missing(name: &NodeName, node: &Node) -> i64 {
    i64::try_from(name.depth().saturating_sub(node.name.depth())).unwrap_or(i64::MAX)
}

/// The condition for a change of all servers of a node as read.
fn all_servers(node: &Node, attempts: u32) -> Condition {
    if attempts < EXACT_ATTEMPTS { node.unchanged() } else { node.alive() }
}
