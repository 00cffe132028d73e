//! Starting replicas: opening or creating the store, starting the Raft group, registering the replica.
//!
//! A replica is started at most once at a time, whatever requests it: the start of the server, a request of the master, or a
//! message from a leader whose replica does not exist here yet.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, LogId, ReplicaId};
use ebla_model::metadata::Membership;
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_runtime::{Failpoint, Runtime};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::{ReplicaOrigin, ReplicaState};
use ebla_storage::store::{GroupStore, SharedResources, StoreError};
use tracing::warn;

use super::{Replica, TabletManager};
use crate::raft::{FaultPart, GroupConfig, GroupDirectory, GroupLookup, GroupOrigin, GroupReplica};
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::{self, GroupStateMachine, ReplicaFactory};
use crate::tablet::lifecycle::recovery::{ReplicaFailure, membership_with};
use crate::tablet::lifecycle::replica_factory::{LocalReplicaFactory, division, origin_of, register_group};
use crate::tablet::lifecycle::split::TabletHost;
use crate::tablet::{TabletGroup, TabletGroupParts};

/// The origin of a replica, which decides how its group starts.
#[derive(Clone, Copy)]
pub(super) enum StartMode {
    /// It existed before the start of the server.
    Restarted,
    /// It may have run since the start of the server, with others.
    Reopened,
    /// It is new: from a seed that all replicas share, or empty.
    New,
    /// It has just become the only voter of its group.
    OnlyVoter,
    /// It is the child of a divided group; on the server that leads the parent it campaigns at once.
    Child(GroupOrigin),
}

impl TabletManager {
    /// Starts an existing replica when the server starts.
    pub(super) async fn open_at_start(&self, id: GroupReplica) {
        let Some(path) = self.parts.registry.path(id) else { return };
        if let Err(failure) = self.start(id, path, StartMode::Restarted).await {
            self.recover_later(id, failure).await;
        }
    }

    pub(super) async fn start(&self, id: GroupReplica, path: PathBuf, mode: StartMode) -> Result<(), ReplicaFailure> {
        let state_machine = self.open_state_machine(id, &path).await?;
        let membership = membership_of(&state_machine);
        let installed = self.parts.registry.replica(id).and_then(|record| record.installed);
        check_log_covers(&self.parts.log, id, state_machine.applied_state().applied, installed)
            .map_err(|error| ReplicaFailure { error, part: FaultPart::Log, membership: membership.clone() })?;
        let runtime = self.parts.runtime.child(&format!("group-{}", id.group));
        let log = self.parts.log.clone();
        let raft_state_machine = Arc::clone(&state_machine) as Arc<dyn crate::raft::StateMachine>;
        let config = self.group_config(id, mode, &state_machine);
        let raft = self.parts.network.start_group(config, log, raft_state_machine, &runtime).await;
        let raft = raft.map_err(|error| ReplicaFailure { part: error.part(), error: error.into(), membership })?;
        let group = TabletGroup::start(TabletGroupParts {
            id,
            state_machine,
            raft,
            runtime: runtime.clone(),
            reads: self.parts.reads.clone(),
            maintenance: self.parts.pools.maintenance.clone(),
            admission: self.admission.clone(),
            host: Arc::clone(&self.parts.host),
            server: self.parts.server,
            capacity: Arc::clone(&self.parts.capacity),
            clocks: Arc::clone(&self.clocks),
        });
        watch_leadership(&group, &runtime, &self.parts.host);
        let replica = Replica { group: Arc::clone(&group), runtime: runtime.clone() };
        self.replicas.write().insert(id.group, replica);
        // Only now: the reactions remove the replica.
        self.watch_core(id, &group, &runtime);
        self.watch_damage(id, &group, &runtime);
        self.watch_spare(id, &group, &runtime);
        Ok(())
    }

    /// Opens the store of a replica. A damaged one of a voter is opened as far as possible: whether its group can go on without it is
    /// found out while it runs.
    async fn open_state_machine(
        &self,
        id: GroupReplica,
        path: &Path,
    ) -> Result<Arc<GroupStateMachine>, ReplicaFailure> {
        if let Some(membership) = self.scrub_results().kept_membership(id) {
            let opened = self.open_store(id, path, GroupStore::open_damaged).await;
            let failed = |error| ReplicaFailure { membership: Some(membership), ..ReplicaFailure::unknown(error) };
            let opened = opened.map_err(failed)?;
            return match membership_of(&opened) {
                Some(_voter) => Ok(opened),
                None => Err(ReplicaFailure::unknown(found_damaged())),
            };
        }
        let error = match self.open_store(id, path, GroupStore::open).await {
            Err(error) if error.reason == Reason::DataDamaged => error,
            other => return other.map_err(ReplicaFailure::unknown),
        };
        let Ok(opened) = self.open_store(id, path, GroupStore::open_damaged).await else {
            return Err(ReplicaFailure::unknown(error));
        };
        let failure = ReplicaFailure { membership: membership_of(&opened), ..ReplicaFailure::unknown(error) };
        if failure.membership.is_none() {
            return Err(failure);
        }
        self.keep_damaged(id, &failure);
        Ok(opened)
    }

    /// Quarantines a damaged replica that was opened, as soon as its group can go on without it. `runtime`: that of the replica.
    fn watch_spare(&self, id: GroupReplica, group: &Arc<TabletGroup>, runtime: &Runtime) {
        if self.scrub_results().is_kept(id) {
            let (manager, group) = (Weak::clone(&self.me), Arc::clone(group));
            runtime.tasks.spawn_until_stopped("damaged-replica", async move {
                if let Some(manager) = manager.upgrade() {
                    manager.quarantine_when_spared(id, group, found_damaged()).await;
                }
            });
        }
    }

    async fn open_store(
        &self,
        id: GroupReplica,
        path: &Path,
        open: fn(&Path, &Arc<SharedResources>) -> Result<GroupStore, StoreError>,
    ) -> Result<Arc<GroupStateMachine>, Error> {
        let factory: Arc<dyn ReplicaFactory> = Arc::new(LocalReplicaFactory { manager: Weak::clone(&self.me) });
        let (shared, path) = (Arc::clone(&self.parts.shared), path.to_owned());
        let open = move || {
            let store = open(&path, &shared)?;
            GroupStateMachine::open(id, store, shared, factory)
        };
        Ok(Arc::new(self.run_maintenance(open).await?))
    }

    fn group_config(&self, id: GroupReplica, mode: StartMode, state_machine: &GroupStateMachine) -> GroupConfig {
        let parts = &self.parts;
        let mut config = GroupConfig::new(id, parts.server, parts.scratch.clone(), parts.pools.clone());
        config.timings = parts.timings;
        // Also after a restart: until the child of a division has a quorum, only messages with its origin create its other replicas.
        config.origin = parts.registry.replica(id).as_ref().map(origin_of).unwrap_or_default();
        match mode {
            // The replica may have promised a living leader not to vote.
            StartMode::Reopened => config.vote_holdoff = Some(parts.timings.election_max),
            StartMode::Restarted if parts.needs_vote_holdoff && !Failpoint::VoteAfterRestart.is_enabled() => {
                config.vote_holdoff = Some(parts.timings.election_max);
            }
            // One replica campaigns at once: no leader can be alive, so waiting for an election timeout is pointless.
            StartMode::Restarted | StartMode::New => {
                let state = state_machine.applied_state();
                let first = state.metadata.descriptor.membership.replicas().next();
                config.campaign_at_start = first.is_some_and(|first| first.replica == id.replica);
            }
            StartMode::OnlyVoter => config.campaign_at_start = true,
            StartMode::Child(origin) => {
                config.origin = origin;
                config.campaign_at_start = self.group(origin.parent).is_some_and(|parent| parent.is_leader());
            }
        }
        config
    }

    /// Creates the store of a replica with this initial state, and registers its group in the log.
    pub(super) async fn create_store(
        &self,
        id: GroupReplica,
        state: GroupState,
        origin: ReplicaOrigin,
    ) -> Result<PathBuf, Error> {
        let (registry, shared) = (Arc::clone(&self.parts.registry), Arc::clone(&self.parts.shared));
        let log = self.parts.log.clone();
        let build = move || {
            let folder = registry.begin_create(id, origin)?;
            let store = GroupStore::create(&folder, &shared)?;
            state_machine::initialize_store(&store, &state)?;
            drop(store);
            register_group(&log, id)?;
            Ok(registry.finish_create(id)?)
        };
        self.run_maintenance(build).await
    }

    /// The exclusive right to start this replica; `None` while another task holds it.
    pub(super) fn try_begin_start(&self, id: GroupReplica) -> Option<StartGuard> {
        let manager = self.me.upgrade()?;
        let is_first = self.starting.lock().insert(id);
        // Created only by the first task: dropping a guard takes the lock and releases the right.
        is_first.then(|| StartGuard { manager, id })
    }

    /// Starts a replica in the background: a registered child, or an empty one that a leader requested.
    pub(in crate::tablet) fn start_in_background(&self, id: GroupReplica, origin: GroupOrigin) {
        let Some(guard) = self.try_begin_start(id) else { return };
        self.parts.runtime.tasks.spawn_until_stopped("start-replica", async move {
            let manager = Arc::clone(&guard.manager);
            let started = manager.start_missing(id, origin).await;
            drop(guard);
            if let Err(failure) = started {
                warn!(group = %id.group, replica = %id.replica, error = %failure.error, "starting a replica failed");
                let record = manager.parts.registry.replica(id);
                // One that could not even be created is created by the leader's next message.
                if record.is_some_and(|record| record.state == ReplicaState::Live) {
                    manager.recover_later(id, failure).await;
                }
            }
        });
    }

    async fn start_missing(&self, id: GroupReplica, origin: GroupOrigin) -> Result<(), ReplicaFailure> {
        if self.group(id.group).is_some() {
            return Ok(());
        }
        let path = match self.parts.registry.replica(id) {
            Some(record) if record.state == ReplicaState::Live => self.parts.registry.path(id),
            Some(record) if record.state != ReplicaState::Creating => return Ok(()),
            _ => None,
        };
        let path = match path {
            Some(path) => path,
            None => {
                warn!(group = %id.group, replica = %id.replica, "creating an empty replica; waiting for a snapshot");
                let created = self.create_store(id, GroupState::empty(id.group), division(origin)).await;
                created.map_err(ReplicaFailure::unknown)?
            }
        };
        self.start(id, path, StartMode::Child(origin)).await
    }
}

/// The exclusive right to start a replica, released on drop.
pub(super) struct StartGuard {
    manager: Arc<TabletManager>,
    id: GroupReplica,
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.manager.starting.lock().remove(&self.id);
    }
}

/// The members of its group, if the replica is a voter.
fn membership_of(state_machine: &GroupStateMachine) -> Option<Membership> {
    let metadata = Arc::clone(&state_machine.applied_state().metadata);
    membership_with(&metadata.descriptor.membership, state_machine.id().replica)
}

/// The failure of a replica whose store was found damaged before.
fn found_damaged() -> Error {
    Error::damaged("the store of the replica was found damaged")
}

/// Fails when the log ends before the store's applied entry: then it has lost acknowledged entries.
fn check_log_covers(log: &CommitLog, id: GroupReplica, applied: LogId, installed: Option<LogId>) -> Result<(), Error> {
    let known = log.last(id).max(installed).max(Some(LogId::SEED));
    if known.is_some_and(|last| applied.index > last.index) {
        let message = format!("the log of {id} ends before the applied entry {applied}");
        return Err(Error::damaged(message));
    }
    Ok(())
}

/// Reports each time the replica becomes leader, or leads with a new membership: METADATA may have to be updated.
fn watch_leadership(group: &Arc<TabletGroup>, runtime: &Runtime, host: &Arc<dyn TabletHost>) {
    let (host, group) = (Arc::clone(host), Arc::clone(group));
    runtime.tasks.spawn_until_stopped("leadership", async move {
        let mut status = group.raft().watch();
        let mut reported = None;
        loop {
            let now = {
                let status = status.borrow_and_update();
                status.is_leader.then_some((status.term, status.membership_log_id))
            };
            if let Some((term, _membership)) = now.filter(|_leads| now != reported) {
                let is_elected = reported.is_none_or(|(before, _membership)| before != term);
                let event = is_elected.then(|| NewTabletEvent {
                    kind: TabletEventKind::LeaderElected,
                    cause: TabletEventCause::Election,
                    detail: format!("server {} leads group {} in term {term}", host.server(), group.id()),
                });
                host.tablets_changed(group.tablet_ids(), event);
            }
            reported = now;
            if status.changed().await.is_err() {
                return;
            }
        }
    });
}

impl GroupDirectory for TabletManager {
    fn group(&self, group: GroupId, replica: ReplicaId, origin: GroupOrigin) -> GroupLookup {
        if let Some(present) = Self::group(self, group) {
            return if present.replica() == replica {
                GroupLookup::Local(Arc::clone(present.raft()))
            } else {
                GroupLookup::Unreachable(format!("this server has replica {} of the group", present.replica()))
            };
        }
        let id = GroupReplica { group, replica };
        if self.parts.registry.is_removed(id) {
            return GroupLookup::Unreachable("the replica was removed".to_owned());
        }
        if self.waiting.lock().contains(&id) {
            return GroupLookup::Unreachable("the replica cannot run; it is opened again later".to_owned());
        }
        if origin.parent == GroupId::default() {
            return GroupLookup::Unreachable("the replica does not exist on this server".to_owned());
        }
        if self.awaits_division(origin) {
            return GroupLookup::Unreachable("the parent group has not applied the division yet".to_owned());
        }
        self.start_in_background(id, origin);
        GroupLookup::Unreachable("the replica is being created".to_owned())
    }
}
