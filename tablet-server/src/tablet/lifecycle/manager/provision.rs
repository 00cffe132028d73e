//! Creating and removing replicas on request of the master.
//!
//! A request is executed to its end even if its caller goes away, and is safe to repeat.

use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, LogId, ReplicaId, ServerId};
use ebla_model::metadata::GroupDescriptor;
use ebla_runtime::Step;
use ebla_storage::log::Record;
use ebla_storage::registry::{ReplicaOrigin, ReplicaRecord, ReplicaState};
use ebla_storage::store::GroupStore;
use tracing::info;

use super::start::StartMode;
use super::{TabletManager, stop};
use crate::raft::GroupReplica;
use crate::tablet::core::state::GroupState;

/// The initial state of a replica that is created on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// The seed that all first replicas of a group share, if the membership has never changed; else empty.
    Seed,
    /// Empty: the group's leader sends a snapshot.
    Empty,
}

/// The outcome of [`TabletManager::create_replica`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The replica was created and runs.
    Created,
    /// It existed already.
    AlreadyExists,
    /// It was permanently removed from this server.
    Removed,
}

impl TabletManager {
    /// Creates a replica of a group and starts it. A first replica of a new group starts from the seed; any other replica starts
    /// empty and is filled by the leader. Safe to repeat; completes even if the caller goes.
    ///
    /// # Errors
    /// When the disk fails, the replica is damaged, it is a member on another server, or this server has another replica of the group.
    pub async fn create_replica(
        self: &Arc<Self>,
        descriptor: GroupDescriptor,
        replica: ReplicaId,
        initial_state: InitialState,
    ) -> Result<CreateOutcome, Error> {
        let manager = Arc::clone(self);
        let create = async move { manager.create_replica_now(descriptor, replica, initial_state).await };
        self.run_to_completion("create-replica", create).await
    }

    async fn create_replica_now(
        &self,
        descriptor: GroupDescriptor,
        replica: ReplicaId,
        initial_state: InitialState,
    ) -> Result<CreateOutcome, Error> {
        let id = GroupReplica { group: descriptor.group, replica };
        if self.parts.registry.is_removed(id) {
            return Ok(CreateOutcome::Removed);
        }
        if let Some(server) = descriptor.membership.server_of(replica).filter(|server| *server != self.parts.server) {
            // This server has the address of that one, whose folder was emptied: the replica would have forgotten its votes.
            return Err(is_elsewhere(self.parts.server, server));
        }
        if let Some(present) = self.group(id.group) {
            if present.replica() == replica {
                return Ok(CreateOutcome::AlreadyExists);
            }
            return Err(other_replica_exists());
        }
        if self.parts.registry.identity().is_none() {
            // Without a persisted identity a restart would lose the server's id, and with it the owner of these replicas.
            return Err(Error::new(Reason::FailedPrecondition, "the server does not know its cluster yet; retry"));
        }
        let Some(_guard) = self.try_begin_start(id) else { return Err(replica_is_starting()) };
        let is_other = |(other, record): &(GroupReplica, ReplicaRecord)| {
            other.group == id.group && *other != id && record.state == ReplicaState::Live
        };
        let has_other = self.parts.registry.replicas().iter().any(is_other);
        match self.parts.registry.replica(id).map(|record| record.state) {
            _ if has_other => return Err(other_replica_exists()),
            Some(ReplicaState::Quarantined) => return Err(Error::damaged("the replica is damaged and quarantined")),
            Some(ReplicaState::Live) => {
                // An earlier start has failed.
                self.reopen(id).await?;
                return Ok(CreateOutcome::AlreadyExists);
            }
            Some(ReplicaState::Creating | ReplicaState::Removing) | None => {}
        }
        // A replica that is not in the seed was added later: it cannot have the entries applied since.
        let is_new = initial_state == InitialState::Seed
            && descriptor.membership_log_id == LogId::SEED
            && descriptor.membership.server_of(replica) == Some(self.parts.server);
        let path = if is_new {
            self.create_store(id, GroupState::fresh(descriptor), ReplicaOrigin::Seed).await?
        } else {
            self.create_store(id, GroupState::empty(id.group), ReplicaOrigin::Empty).await?
        };
        self.start(id, path, StartMode::New).await.map_err(|failure| failure.error)?;
        info!(group = %id.group, %replica, "replica created");
        Ok(CreateOutcome::Created)
    }

    /// Removes a replica permanently: stops its group, deletes its folder, leaves a tombstone. Safe to repeat; completes even if
    /// the caller goes. `without`: the membership of the group that does not contain the replica; `None`: whatever it has applied.
    ///
    /// # Errors
    /// `WrongTablet` when the replica has applied a later membership than `without`; when the disk fails; `Busy` while the replica
    /// is being started.
    pub async fn drop_replica(
        self: &Arc<Self>,
        group: GroupId,
        replica: ReplicaId,
        without: Option<LogId>,
    ) -> Result<(), Error> {
        let (manager, id) = (Arc::clone(self), GroupReplica { group, replica });
        self.run_to_completion("drop-replica", async move { manager.drop_replica_now(id, without).await }).await
    }

    async fn drop_replica_now(&self, id: GroupReplica, without: Option<LogId>) -> Result<(), Error> {
        let GroupReplica { group, replica } = id;
        let Some(_guard) = self.try_begin_start(id) else { return Err(replica_is_starting()) };
        if let Some(without) = without
            && self.applied_membership(id).await?.is_some_and(|applied| applied > without)
        {
            return Err(Error::new(Reason::WrongTablet, "the replica knows a later membership of its group"));
        }
        if let Some(present) = self.take(id) {
            stop(present).await;
            self.parts.runtime.steps.reached(Step::ReplicaStopped).await;
        }
        if self.parts.registry.is_removed(id) {
            return Ok(());
        }
        // The log may drop the group later: after the tombstone it is never read again.
        self.parts.log.submit(vec![Record::Removed { group: id }], Box::new(|_outcome| ()));
        let registry = Arc::clone(&self.parts.registry);
        self.run_maintenance(move || Ok(registry.remove(id)?)).await?;
        self.parts.runtime.steps.reached(Step::ReplicaRemoved).await;
        self.scrub_results().forget(id);
        info!(%group, %replica, "replica removed");
        Ok(())
    }

    /// The last membership that a replica has applied. `None` for one that is not here, or is damaged: that one never votes
    /// again.
    async fn applied_membership(&self, id: GroupReplica) -> Result<Option<LogId>, Error> {
        if let Some(present) = self.group(id.group).filter(|present| present.replica() == id.replica) {
            return Ok(Some(present.descriptor().membership_log_id));
        }
        let is_live = self.parts.registry.replica(id).is_some_and(|record| record.state == ReplicaState::Live);
        let Some(path) = self.parts.registry.path(id).filter(|_path| is_live) else { return Ok(None) };
        // It could not be started, so its store is not open.
        let shared = Arc::clone(&self.parts.shared);
        let load = move || GroupState::load(GroupStore::open(&path, &shared)?.meta_scan(&[])?);
        Ok(Some(self.run_maintenance(load).await?.descriptor.membership_log_id))
    }

    /// Runs a request on a task of its own. If it were cancelled half way, together with its connection, it would leave a
    /// replica that is on disk and does not run.
    pub(super) async fn run_to_completion<T: Send + 'static>(
        &self,
        name: &'static str,
        request: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.runtime.tasks.start_until_stopped(name, request).await;
        outcome.unwrap_or_else(|_gone| Err(Error::new(Reason::Unavailable, "the server is stopping")))
    }
}

fn is_elsewhere(own: ServerId, server: ServerId) -> Error {
    let message = format!("stale address: this is server {own}, and the replica is a member on server {server}");
    Error::new(Reason::FailedPrecondition, message)
}

fn other_replica_exists() -> Error {
    Error::new(Reason::FailedPrecondition, "this server already has another replica of the group")
}

pub(super) fn replica_is_starting() -> Error {
    Error::new(Reason::Busy, "the replica is being started")
}
