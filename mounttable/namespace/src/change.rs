//! Changes: mounts, deletions, permissions.
//!
//! Several servers may hold the table of a name, with the same tree or with trees of their own: mounts, unmounts and
//! deletions go to all of them concurrently, and each returns a result. Permissions have versions, which differ between
//! trees: they are read and written at one server.
//!
//! A deletion or a change of permissions applies to the table that the caller names: that of the roots, or of the server of a
//! rooted name. It follows no mounted table unless the caller asks for that ([`ChangeScope`]): a user who may mount a server could
//! otherwise redirect the deletion of a subtree to any other place, with the caller's rights there. Mounts follow: a program
//! publishes its name in a federation of tables.

use std::future::Future;
use std::time::Duration;

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{Deadline, Error, MountMode, Permissions, Reason, ServerAddress, Target};
use ebla_proto::mounttable as wire;
use futures::StreamExt;
use futures::stream;

use crate::entry::{MountEntry, ObjectLocation};
use crate::namespace::Namespace;
use crate::roots::with_hint;
use crate::rpc::{FirstReply, first_reply, first_success};

/// The number of servers that a change is sent to concurrently.
const CONCURRENCY: usize = 32;

/// The time that the other servers of a table have after the first one has accepted a mount.
const STRAGGLER_TIME: Duration = Duration::from_millis(500);

/// The number of attempts to update permissions that others change.
const ATTEMPTS_MAX: u32 = 20;

/// The delay before the next attempt, which spreads concurrent callers.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// A part of the message of a change that was refused because it would follow a mount.
pub const MOUNTS_NOT_FOLLOWED: &str = "deletions and permissions do not follow mounts";

/// The tables that deletions and changes of permissions apply to. Mounts and unmounts always go to the table that holds the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChangeScope {
    /// The table of the roots, or of the server of a rooted name. Such a change of a name behind a mounted table fails with
    /// `SHADOWED_BY_MOUNT`.
    #[default]
    NamedTable,
    /// The table that holds the name, through any number of mounted tables.
    MountedTables,
}

/// The options of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// The time to live; zero: no deadline.
    pub ttl: Duration,
    /// The kind of the server.
    pub target: Target,
    /// Whether other servers stay.
    pub mode: MountMode,
}

impl MountOptions {
    /// Adds a server of unspecified kind, for `ttl`.
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, target: Target::Object, mode: MountMode::Add }
    }

    /// The same, with another kind.
    #[must_use]
    pub const fn target(self, target: Target) -> Self {
        Self { target, ..self }
    }
}

/// A completed mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Its deadline.
    pub deadline: Deadline,
    /// The number of created nodes.
    pub created: u32,
    /// Whether the name has children, which the mount hides.
    pub hides_children: bool,
}

/// The results of a change, one for each server of the table.
#[derive(Clone, Debug)]
pub struct ServerResults<T>(Vec<(String, Result<T, Error>)>);

impl<T> ServerResults<T> {
    /// The address of each server, and its result.
    pub fn each(&self) -> impl Iterator<Item = (&str, &Result<T, Error>)> {
        self.0.iter().map(|(address, outcome)| (address.as_str(), outcome))
    }

    /// All results.
    ///
    /// # Errors
    /// The first error.
    pub fn all(self) -> Result<Vec<T>, Error> {
        self.0.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// One successful result.
    ///
    /// # Errors
    /// The last error, when the change failed everywhere.
    pub fn any(self) -> Result<T, Error> {
        let mut failure = Error::new(Reason::Unavailable, "no server to ask");
        for (_, outcome) in self.0 {
            match outcome {
                Ok(done) => return Ok(done),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The version of permissions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Etag(String);

impl Etag {
    /// The version as a table returned it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The version as a table returned it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Namespace {
    /// Mounts a server under a name; missing nodes are created. Mounting it again moves its deadline.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; a table's refusal is part of the results.
    pub async fn mount(
        &self,
        name: &str,
        server: &ServerAddress,
        options: MountOptions,
    ) -> Result<ServerResults<Mounted>, Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        self.on_all_servers(locations, |location| self.mount_at(location, server, options)).await
    }

    /// Mounts a server at all servers of a table, and returns soon after the first of them has accepted it: the others
    /// may be frozen, and get the mount with the next refresh.
    ///
    /// # Errors
    /// As [`Self::mount`]; an error of a server when none accepted it.
    pub(crate) async fn mount_somewhere(
        &self,
        name: &str,
        server: &ServerAddress,
        options: MountOptions,
    ) -> Result<(), Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        let calls = locations.iter().cloned().map(|location| self.mount_at(location, server, options));
        let outcome = first_success(calls, STRAGGLER_TIME).await;
        self.invalidate(&locations);
        outcome.map(drop)
    }

    async fn mount_at(
        &self,
        location: ObjectLocation,
        server: &ServerAddress,
        options: MountOptions,
    ) -> Result<Mounted, Error> {
        let message = wire::MountRequest {
            name: location.name.clone(),
            server: server.to_string(),
            ttl_millis: u64::try_from(options.ttl.as_millis()).unwrap_or(u64::MAX),
            replace: options.mode == MountMode::Replace,
            serves_mount_table: options.target == Target::MountTable,
            is_leaf: options.target == Target::Leaf,
        };
        let request = self.request(&location, message);
        let reply = self.result(&location, self.client(&location).mount(request).await)?;
        let at = |micros| Deadline::at(ebla_model::Micros::new(micros));
        let deadline = reply.deadline_micros.map_or(Deadline::FOREVER, at);
        Ok(Mounted { deadline, created: reply.created_nodes, hides_children: reply.shadowed_children })
    }

    /// Unmounts a server, or all servers, from a name; returns the number of unmounted ones.
    ///
    /// # Errors
    /// As [`Self::mount`]. A missing server is not an error.
    pub async fn unmount(&self, name: &str, server: Option<&ServerAddress>) -> Result<ServerResults<u32>, Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        self.on_all_servers(locations, |location| async move {
            let server = server.map(ToString::to_string).unwrap_or_default();
            let request = self.request(&location, wire::UnmountRequest { name: location.name.clone(), server });
            self.result(&location, self.client(&location).unmount(request).await).map(|reply| reply.removed)
        })
        .await
    }

    /// Deletes a node, or a subtree; returns the number of deleted nodes.
    /// Deleting a subtree has no timeout of its own: it takes as long as the subtree has nodes.
    ///
    /// # Errors
    /// As [`Self::mount`]; `SHADOWED_BY_MOUNT` for a name behind a mounted table, unless [`ChangeScope`] allows it. A missing
    /// node is not an error.
    pub async fn delete(&self, name: &str, subtree: Subtree) -> Result<ServerResults<u64>, Error> {
        let locations = self.change_locations(name).await?;
        self.on_all_servers(locations, |location| async move {
            let message = wire::DeleteRequest {
                name: location.name.clone(),
                subtree: subtree == Subtree::Delete,
                expected_version: String::new(),
            };
            // Deleting a subtree takes as long as it has nodes.
            let request = match subtree {
                Subtree::Delete => self.request_without_timeout(&location, message),
                Subtree::Refuse => self.request(&location, message),
            };
            self.result(&location, self.client(&location).delete(request).await).map(|reply| reply.deleted)
        })
        .await
    }

    /// The permissions of a node, and their version.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; `NO_ACCESS`, `NO_SUCH_NAME`.
    pub async fn permissions(&self, name: &str) -> Result<(Permissions, Etag), Error> {
        let locations = self.resolve_to_mount_table(name).await?.locations();
        self.permissions_at(&locations).await.map(|(_, permissions, etag)| (permissions, etag))
    }

    /// Replaces the permissions of a node, if their version is `seen`; unconditionally without `seen`. A missing node
    /// is created, and is sticky.
    ///
    /// # Errors
    /// As [`Self::delete`]; `BAD_VERSION`, `NO_ACCESS`. After `UNAVAILABLE` they may or may not be set.
    pub async fn set_permissions(
        &self,
        name: &str,
        permissions: &Permissions,
        seen: Option<&Etag>,
    ) -> Result<(), Error> {
        let locations = self.change_locations(name).await?;
        // The read selects a server that answers: a retry at another server would find its own change and fail.
        let location = self.first_permissions(&locations).await?.location;
        let outcome = self.set_at(location, permissions, seen).await;
        self.invalidate(&locations);
        outcome
    }

    /// Updates the permissions of a node with `change`, which is called again when others have changed them
    /// concurrently.
    ///
    /// # Errors
    /// As [`Self::set_permissions`]; `BAD_VERSION` when all attempts met concurrent changes.
    pub async fn update_permissions(
        &self,
        name: &str,
        mut change: impl FnMut(Permissions) -> Permissions,
    ) -> Result<(), Error> {
        let locations = self.change_locations(name).await?;
        let mut attempts = 1;
        loop {
            let (location, permissions, etag) = self.permissions_at(&locations).await?;
            let outcome = self.set_at(location, &change(permissions), Some(&etag)).await;
            match outcome {
                Err(error) if error.reason == Reason::BadVersion && attempts < ATTEMPTS_MAX => {
                    tokio::time::sleep(self.0.runtime.rng.jitter(RETRY_DELAY.saturating_mul(attempts))).await;
                    attempts = attempts.saturating_add(1);
                }
                outcome => {
                    self.invalidate(&locations);
                    return outcome;
                }
            }
        }
    }

    async fn first_permissions(
        &self,
        locations: &[ObjectLocation],
    ) -> Result<FirstReply<wire::GetPermissionsReply>, Error> {
        let read = |location: ObjectLocation| async move {
            let request = self.request(&location, wire::GetPermissionsRequest { name: location.name.clone() });
            self.result(&location, self.client(&location).get_permissions(request).await)
        };
        first_reply(locations, read).await
    }

    async fn permissions_at(&self, locations: &[ObjectLocation]) -> Result<(ObjectLocation, Permissions, Etag), Error> {
        let answered = self.first_permissions(locations).await?;
        let reply = answered.outcome?;
        let permissions = messages::permissions_from_wire(&reply.permissions.unwrap_or_default())?;
        Ok((answered.location, permissions, Etag(reply.etag)))
    }

    async fn set_at(
        &self,
        location: ObjectLocation,
        permissions: &Permissions,
        seen: Option<&Etag>,
    ) -> Result<(), Error> {
        let request = self.request(
            &location,
            wire::SetPermissionsRequest {
                name: location.name.clone(),
                permissions: Some(messages::permissions_to_wire(permissions)),
                etag: seen.map(|etag| etag.0.clone()).unwrap_or_default(),
            },
        );
        self.result(&location, self.client(&location).set_permissions(request).await).map(drop)
    }

    /// The locations of `name` in the table that a change applies to.
    async fn change_locations(&self, name: &str) -> Result<Vec<ObjectLocation>, Error> {
        if self.0.change_scope == ChangeScope::MountedTables {
            return Ok(self.resolve_to_mount_table(name).await?.locations());
        }
        let entry = self.entry(name).map_err(|error| with_hint(name, error))?;
        // This answer selects no server: it only explains why the change would have no effect. A cached one may be old.
        let leads_on = |entry: &MountEntry| entry.target == Target::MountTable && !entry.suffix.is_empty();
        if leads_on(&entry) && self.resolve_hop(&entry).await.answer.as_ref().is_ok_and(leads_on) {
            let answer = self.resolve_uncached(&entry).await;
            if let Ok(next) = answer.as_ref()
                && leads_on(next)
            {
                return Err(behind_mount(name, next));
            }
        }
        Ok(entry.locations())
    }

    /// Sends a change to every server of a table.
    async fn on_all_servers<T, F>(
        &self,
        locations: Vec<ObjectLocation>,
        change: impl Fn(ObjectLocation) -> F,
    ) -> Result<ServerResults<T>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let outcomes = stream::iter(locations.clone())
            .map(|location| {
                let address = location.address.clone();
                let outcome = change(location);
                async move { (address, outcome.await) }
            })
            .buffered(CONCURRENCY)
            .collect()
            .await;
        self.invalidate(&locations);
        Ok(ServerResults(outcomes))
    }
}

fn behind_mount(name: &str, next: &MountEntry) -> Error {
    let place = next.names().into_iter().next().unwrap_or_default();
    let wrong = format!("{name} is behind a mounted mount table, at {place}, and {MOUNTS_NOT_FOLLOWED} by default");
    Error::new(Reason::ShadowedByMount, wrong)
}
