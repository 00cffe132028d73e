//! Changing the tables: mounts, deletions, permissions.
//!
//! The table that holds a name may be served at several places, which may or may not keep the same tree: what makes or
//! takes a mount goes to all of them, at the same time, and each says what came of it. Permissions have versions, which
//! trees do not share: they are read and written at one place.

use std::future::Future;
use std::time::Duration;

use ebla_mounttable::service::messages;
use ebla_mounttable::table::Subtree;
use ebla_mounttable::{Deadline, Error, MountMode, Permissions, Reason, ServerAddress, Target};
use ebla_proto::mounttable as wire;
use futures::StreamExt;
use futures::stream;

use crate::ask::{Answered, first, told};
use crate::entry::Place;
use crate::namespace::Namespace;

/// Places that are told of a change at the same time.
const TOGETHER: usize = 32;

/// How often new permissions are worked out anew because others changed them meanwhile.
const TRIES_MAX: u32 = 20;

/// Before another try, so that those who change the same do not meet again.
const PAUSE: Duration = Duration::from_millis(20);

/// How a server is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// For how long; zero is for ever.
    pub ttl: Duration,
    /// What it is.
    pub target: Target,
    /// Whether those that are mounted there stay.
    pub mode: MountMode,
}

impl MountOptions {
    /// Beside others, for `ttl`, as an object of which nothing else is known.
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, target: Target::Object, mode: MountMode::Add }
    }

    /// As something else.
    #[must_use]
    pub const fn target(self, target: Target) -> Self {
        Self { target, ..self }
    }
}

/// A mount that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Until when.
    pub deadline: Deadline,
    /// How many nodes were made on the way.
    pub created: u32,
    /// The name has children, which nobody reaches while a server is mounted on it.
    pub hides_children: bool,
}

/// What came of a change at each place that serves the table.
#[derive(Clone, Debug)]
pub struct Outcomes<T>(Vec<(String, Result<T, Error>)>);

impl<T> Outcomes<T> {
    /// The address of each place, and what it answered.
    pub fn each(&self) -> impl Iterator<Item = (&str, &Result<T, Error>)> {
        self.0.iter().map(|(address, outcome)| (address.as_str(), outcome))
    }

    /// What all answered.
    ///
    /// # Errors
    /// The first that is none.
    pub fn all(self) -> Result<Vec<T>, Error> {
        self.0.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// What one of them answered.
    ///
    /// # Errors
    /// The last, when it was done nowhere.
    pub fn any(self) -> Result<T, Error> {
        let mut failure = Error::new(Reason::Unavailable, "there is no server to ask");
        for (_, outcome) in self.0 {
            match outcome {
                Ok(done) => return Ok(done),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// Which permissions were seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Etag(String);

impl Etag {
    /// The version as a table tells it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The version as a table tells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Namespace {
    /// Mounts a server under a name; nodes on the way are made. Mounted again, its deadline moves.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; what the table refuses is an outcome.
    pub async fn mount(
        &self,
        name: &str,
        server: &ServerAddress,
        options: MountOptions,
    ) -> Result<Outcomes<Mounted>, Error> {
        self.everywhere(name, |place| async move {
            let request = self.request(wire::MountRequest {
                name: place.name.clone(),
                server: server.to_string(),
                ttl_millis: u64::try_from(options.ttl.as_millis()).unwrap_or(u64::MAX),
                replace: options.mode == MountMode::Replace,
                serves_mount_table: options.target == Target::MountTable,
                is_leaf: options.target == Target::Leaf,
            });
            let reply = told(&place, self.client(&place).mount(request).await)?;
            let at = |micros| Deadline::at(ebla_model::Micros::new(micros));
            let deadline = reply.deadline_micros.map_or(Deadline::FOREVER, at);
            Ok(Mounted { deadline, created: reply.created_nodes, hides_children: reply.shadowed_children })
        })
        .await
    }

    /// Takes a server away from a name, or all of them; how many were there.
    ///
    /// # Errors
    /// As [`Self::mount`]. Nothing to take away is none.
    pub async fn unmount(&self, name: &str, server: Option<&ServerAddress>) -> Result<Outcomes<u32>, Error> {
        self.everywhere(name, |place| async move {
            let server = server.map(ToString::to_string).unwrap_or_default();
            let request = self.request(wire::UnmountRequest { name: place.name.clone(), server });
            told(&place, self.client(&place).unmount(request).await).map(|reply| reply.removed)
        })
        .await
    }

    /// Deletes a node, with what is below it if told so; how many nodes were deleted.
    ///
    /// # Errors
    /// As [`Self::mount`]. A node that is not there is none.
    pub async fn delete(&self, name: &str, subtree: Subtree) -> Result<Outcomes<u64>, Error> {
        self.everywhere(name, |place| async move {
            let request = self.request(wire::DeleteRequest {
                name: place.name.clone(),
                subtree: subtree == Subtree::Delete,
                expected_version: String::new(),
            });
            told(&place, self.client(&place).delete(request).await).map(|reply| reply.deleted)
        })
        .await
    }

    /// Who may do what with a node, and the version of that.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; `NO_ACCESS`, `NO_SUCH_NAME`.
    pub async fn permissions(&self, name: &str) -> Result<(Permissions, Etag), Error> {
        let places = self.resolve_to_mount_table(name).await?.places();
        self.permissions_at(&places).await.map(|(_, permissions, etag)| (permissions, etag))
    }

    /// Replaces the permissions of a node, if they still are those that were seen; with nothing seen, whatever they
    /// are. The node is made if it is not there, and stays.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`]; `BAD_VERSION`, `NO_ACCESS`. After `UNAVAILABLE` they may be set
    /// nevertheless.
    pub async fn set_permissions(
        &self,
        name: &str,
        permissions: &Permissions,
        seen: Option<&Etag>,
    ) -> Result<(), Error> {
        let places = self.resolve_to_mount_table(name).await?.places();
        // Reading finds a place that answers: what was set there and is then asked of another would be refused as old.
        let place = self.first_permissions(&places).await?.place;
        let outcome = self.set_at(place, permissions, seen).await;
        self.forget(&places);
        outcome
    }

    /// Changes the permissions of a node: what `change` makes of them, worked out anew when others were quicker.
    ///
    /// # Errors
    /// As [`Self::set_permissions`]; `BAD_VERSION` when others were quicker again and again.
    pub async fn update_permissions(
        &self,
        name: &str,
        mut change: impl FnMut(Permissions) -> Permissions,
    ) -> Result<(), Error> {
        let places = self.resolve_to_mount_table(name).await?.places();
        let mut tries = 1;
        loop {
            let (place, permissions, etag) = self.permissions_at(&places).await?;
            let outcome = self.set_at(place, &change(permissions), Some(&etag)).await;
            match outcome {
                Err(error) if error.reason == Reason::BadVersion && tries < TRIES_MAX => {
                    tokio::time::sleep(self.0.runtime.rng.jitter(PAUSE.saturating_mul(tries))).await;
                    tries = tries.saturating_add(1);
                }
                outcome => {
                    self.forget(&places);
                    return outcome;
                }
            }
        }
    }

    async fn first_permissions(&self, places: &[Place]) -> Result<Answered<wire::GetPermissionsReply>, Error> {
        let read = |place: Place| async move {
            let request = self.request(wire::GetPermissionsRequest { name: place.name.clone() });
            told(&place, self.client(&place).get_permissions(request).await)
        };
        first(places, read).await
    }

    async fn permissions_at(&self, places: &[Place]) -> Result<(Place, Permissions, Etag), Error> {
        let answered = self.first_permissions(places).await?;
        let reply = answered.outcome?;
        let permissions = messages::permissions_from_wire(&reply.permissions.unwrap_or_default())?;
        Ok((answered.place, permissions, Etag(reply.etag)))
    }

    async fn set_at(&self, place: Place, permissions: &Permissions, seen: Option<&Etag>) -> Result<(), Error> {
        let request = self.request(wire::SetPermissionsRequest {
            name: place.name.clone(),
            permissions: Some(messages::permissions_to_wire(permissions)),
            etag: seen.map(|etag| etag.0.clone()).unwrap_or_default(),
        });
        told(&place, self.client(&place).set_permissions(request).await).map(drop)
    }

    /// Makes a change at every place that serves the table which holds `name`.
    async fn everywhere<T, F>(&self, name: &str, change: impl Fn(Place) -> F) -> Result<Outcomes<T>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let places = self.resolve_to_mount_table(name).await?.places();
        let outcomes = stream::iter(places.clone())
            .map(|place| {
                let address = place.address.clone();
                let outcome = change(place);
                async move { (address, outcome.await) }
            })
            .buffered(TOGETHER)
            .collect()
            .await;
        self.forget(&places);
        Ok(Outcomes(outcomes))
    }
}
