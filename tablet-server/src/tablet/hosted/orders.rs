//! Replicas that are made and removed by order.
//!
//! An order is carried through when its caller goes, and is safe to repeat.

use std::sync::{Arc, PoisonError};

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{Generation, LogId, ReplicaId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_storage::log::Record;
use ebla_storage::registry::{ReplicaRecord, ReplicaState};
use tracing::info;

use super::starting::Birth;
use super::{Hosted, stop};
use crate::raft::GroupId;
use crate::tablet::state::TabletState;

/// What a replica that is made by order begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With the seed that all first replicas of a tablet share, if the tablet has never changed; else with nothing.
    Seed,
    /// With nothing: its leader fills it.
    Empty,
}

/// What [`Hosted::create_replica`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The replica was made and runs.
    Made,
    /// It was here already.
    Here,
    /// It was removed from this server for ever.
    Removed,
}

impl Hosted {
    /// Makes a replica of a tablet and starts its group. A tablet that has never changed begins from its seed; a
    /// replica of any other begins empty and is filled by the leader. Safe to repeat; done to its end when the caller goes.
    ///
    /// # Errors
    /// When the disk fails, the replica is damaged, or another replica of the tablet lives here.
    pub async fn create_replica(
        self: &Arc<Self>,
        descriptor: TabletDescriptor,
        schema: TableSchema,
        replica: ReplicaId,
        beginning: Beginning,
    ) -> Result<Created, Error> {
        let hosted = Arc::clone(self);
        let make = async move { hosted.create_now(descriptor, schema, replica, beginning).await };
        self.carry_through("create-replica", make).await
    }

    async fn create_now(
        &self,
        descriptor: TabletDescriptor,
        schema: TableSchema,
        replica: ReplicaId,
        beginning: Beginning,
    ) -> Result<Created, Error> {
        let id = GroupId { tablet: descriptor.tablet, replica };
        if self.parts.registry.is_removed(id) {
            return Ok(Created::Removed);
        }
        if let Some(present) = self.tablet(id.tablet) {
            if present.replica() == replica {
                return Ok(Created::Here);
            }
            return Err(rival());
        }
        if self.parts.registry.identity().is_none() {
            // Its name would be forgotten at a restart, and with it whose replicas these are.
            return Err(Error::new(Reason::FailedPrecondition, "the server has not been told its cluster yet"));
        }
        let Some(_turn) = self.begin_start(id) else { return Err(being_started()) };
        let is_rival = |(other, record): &(GroupId, ReplicaRecord)| {
            other.tablet == id.tablet && *other != id && record.state == ReplicaState::Live
        };
        let has_rival = self.parts.registry.replicas().iter().any(is_rival);
        match self.parts.registry.replica(id).map(|record| record.state) {
            _ if has_rival => return Err(rival()),
            Some(ReplicaState::Quarantined) => return Err(Error::damaged("the replica is damaged")),
            Some(ReplicaState::Live) => {
                // It could not be started before.
                self.reopen(id).await?;
                return Ok(Created::Here);
            }
            Some(ReplicaState::Creating | ReplicaState::Removing) | None => {}
        }
        // A replica that the seed does not name was added later: it cannot know what was applied since.
        let is_new = beginning == Beginning::Seed
            && descriptor.generation == Generation::new(1)
            && descriptor.membership_log_id == LogId::SEED
            && descriptor.membership.server_of(replica) == Some(self.parts.server);
        let state = if is_new {
            TabletState::fresh(descriptor, schema)
        } else {
            TabletState::empty(descriptor.table, id.tablet)
        };
        let path = self.build_store(id, state).await?;
        self.start(id, path, Birth::New).await?;
        info!(tablet = %id.tablet, %replica, "replica made");
        Ok(Created::Made)
    }

    /// Ends a replica for ever: stops its group, deletes its folder, leaves a tombstone. Safe to repeat; done to its end
    /// when the caller goes.
    ///
    /// # Errors
    /// When the disk fails; `Busy` while the replica is being started.
    pub async fn drop_replica(self: &Arc<Self>, tablet: TabletId, replica: ReplicaId) -> Result<(), Error> {
        let (hosted, id) = (Arc::clone(self), GroupId { tablet, replica });
        self.carry_through("drop-replica", async move { hosted.drop_now(id).await }).await
    }

    async fn drop_now(&self, id: GroupId) -> Result<(), Error> {
        let GroupId { tablet, replica } = id;
        let Some(_turn) = self.begin_start(id) else { return Err(being_started()) };
        let removed = {
            let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
            let is_meant = replicas.get(&tablet).is_some_and(|present| present.tablet.replica() == replica);
            if is_meant { replicas.remove(&tablet) } else { None }
        };
        if let Some(present) = removed {
            stop(present).await;
        }
        if self.parts.registry.is_removed(id) {
            return Ok(());
        }
        // The log may forget it in its own time: after the tombstone nobody asks for it again.
        self.parts.log.submit(vec![Record::Removed { group: id }], Box::new(|_outcome| ()));
        let registry = Arc::clone(&self.parts.registry);
        self.maintain(move || Ok(registry.remove(id)?)).await?;
        info!(%tablet, %replica, "replica removed");
        Ok(())
    }

    /// Runs an order on a task of its own. Cut off half way, with the connection that it came by, it would leave a replica that is on
    /// disk and does not run.
    async fn carry_through<T: Send + 'static>(
        &self,
        name: &'static str,
        order: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.runtime.tasks.start_until_stopped(name, order).await;
        outcome.unwrap_or_else(|_gone| Err(Error::new(Reason::Unavailable, "the server stops")))
    }
}

fn rival() -> Error {
    Error::new(Reason::FailedPrecondition, "another replica of the tablet lives here")
}

fn being_started() -> Error {
    Error::new(Reason::Busy, "the replica is being started")
}
