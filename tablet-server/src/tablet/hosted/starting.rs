//! How a replica comes to run: its store is opened or made, its group started, its tablet told of.
//!
//! A replica is started once at a time, whoever wants it: the server at its start, an order, or a message from a leader whose
//! replica is not here yet.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{LogId, ReplicaId, TableId, TabletId};
use ebla_runtime::{Bug, Runtime, planted};
use ebla_storage::log::CommitLog;
use ebla_storage::registry::ReplicaState;
use ebla_storage::tablet::TabletStore;
use tracing::{error, warn};

use super::{Hosted, Replica};
use crate::raft::{Group, GroupConfig, GroupDirectory, GroupId, Lookup, Origin};
use crate::tablet::cradle::{Cradle, begin_log};
use crate::tablet::machine::{self, Machine, Nursery};
use crate::tablet::split::SplitHelp;
use crate::tablet::state::TabletState;
use crate::tablet::{Parts, Tablet};

/// How a replica came to be, which decides how its group starts.
#[derive(Clone, Copy)]
pub(super) enum Birth {
    /// It ran before.
    Reopened,
    /// It begins from a seed that all replicas share, or empty.
    New,
    /// It is the child of a split; where the parent led, it stands for election at once.
    Child(Origin),
}

impl Hosted {
    /// Starts a replica that ran before; one that is damaged is quarantined.
    pub(super) async fn reopen(&self, id: GroupId) -> Result<(), Error> {
        let Some(path) = self.parts.registry.path(id) else { return Ok(()) };
        match self.start(id, path, Birth::Reopened).await {
            Err(error) if error.reason == Reason::DataDamaged => {
                error!(tablet = %id.tablet, replica = %id.replica, %error, "replica is damaged: quarantined");
                Ok(self.parts.registry.quarantine(id)?)
            }
            outcome => outcome,
        }
    }

    pub(super) async fn start(&self, id: GroupId, path: PathBuf, birth: Birth) -> Result<(), Error> {
        let nursery: Arc<dyn Nursery> = Arc::new(Cradle { hosted: Weak::clone(&self.me) });
        let shared = Arc::clone(&self.parts.shared);
        let open = move || {
            let store = TabletStore::open(&path, &shared)?;
            Machine::open(id, store, shared, nursery)
        };
        let machine = Arc::new(self.maintain(open).await?);
        let installed = self.parts.registry.replica(id).and_then(|record| record.installed);
        check_log(&self.parts.log, id, machine.published().applied, installed)?;
        let runtime = self.parts.runtime.child(&format!("tablet-{}", id.tablet));
        let log = self.parts.log.clone();
        let state_machine = Arc::clone(&machine) as Arc<dyn crate::raft::StateMachine>;
        let config = self.group_config(id, birth, &machine);
        let group = Group::start(config, log, state_machine, &self.parts.network, &runtime).await;
        let group = group.map_err(|error| Error::damaged(error.to_string()))?;
        let tablet = Tablet::start(Parts {
            id,
            machine,
            group,
            runtime: runtime.clone(),
            reads: self.parts.reads.clone(),
            maintenance: self.parts.pools.maintenance.clone(),
            admission: self.admission.clone(),
            help: Arc::clone(&self.parts.help),
        });
        announce_changes(&tablet, &runtime, &self.parts.help);
        let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
        replicas.insert(id.tablet, Replica { tablet, runtime });
        Ok(())
    }

    fn group_config(&self, id: GroupId, birth: Birth, machine: &Machine) -> GroupConfig {
        let parts = &self.parts;
        let mut config = GroupConfig::new(id, parts.server, parts.scratch.clone(), parts.pools.clone());
        config.timings = parts.timings;
        match birth {
            Birth::Reopened if parts.wait_before_voting && !planted(Bug::VoteAfterRestart) => {
                config.wait_before_voting = Some(parts.timings.election_max);
            }
            // One of the replicas need not wait for a silence that proves nothing: no leader can be alive.
            Birth::Reopened | Birth::New => {
                let state = machine.published();
                let first = state.shape.descriptor.membership.replicas().next();
                config.elect_now = first.is_some_and(|first| first.replica == id.replica);
            }
            Birth::Child(origin) => {
                config.origin = origin;
                config.elect_now = self.tablet(origin.parent).is_some_and(|parent| parent.leads());
            }
        }
        config
    }

    /// Makes the store of a replica that begins with this state, and its place in the log.
    pub(super) async fn build_store(&self, id: GroupId, state: TabletState) -> Result<PathBuf, Error> {
        let (registry, shared) = (Arc::clone(&self.parts.registry), Arc::clone(&self.parts.shared));
        let log = self.parts.log.clone();
        let build = move || {
            let folder = registry.begin_create(id)?;
            let store = TabletStore::create(&folder, &shared)?;
            machine::initialise(&store, &state)?;
            drop(store);
            begin_log(&log, id)?;
            Ok(registry.finish_create(id)?)
        };
        self.maintain(build).await
    }

    /// The right to start this replica; `None` while somebody else does.
    pub(super) fn begin_start(&self, id: GroupId) -> Option<StartTurn> {
        let hosted = self.me.upgrade()?;
        let is_first = self.starting().insert(id);
        // Made only by who is first: dropping a turn takes the lock and gives the place back.
        is_first.then(|| StartTurn { hosted, id })
    }

    fn starting(&self) -> MutexGuard<'_, BTreeSet<GroupId>> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a replica in the background: a registered child, or an empty one that a leader asked for.
    pub(in crate::tablet) fn start_later(&self, id: GroupId, origin: Origin) {
        let Some(turn) = self.begin_start(id) else { return };
        self.parts.runtime.tasks.spawn_until_stopped("start-replica", async move {
            let hosted = Arc::clone(&turn.hosted);
            if let Err(error) = hosted.start_missing(id, origin).await {
                warn!(tablet = %id.tablet, replica = %id.replica, %error, "replica not started");
            }
            drop(turn);
        });
    }

    async fn start_missing(&self, id: GroupId, origin: Origin) -> Result<(), Error> {
        if self.tablet(id.tablet).is_some() {
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
                warn!(tablet = %id.tablet, replica = %id.replica, "replica is made empty, for a snapshot");
                self.build_store(id, TabletState::empty(TableId::METADATA, id.tablet)).await?
            }
        };
        self.start(id, path, Birth::Child(origin)).await
    }
}

/// The right to start a replica, given back when dropped.
pub(super) struct StartTurn {
    hosted: Arc<Hosted>,
    id: GroupId,
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        self.hosted.starting().remove(&self.id);
    }
}

/// Fails when the log ends below what the store holds: then it has lost entries that were acknowledged.
fn check_log(log: &CommitLog, id: GroupId, applied: LogId, installed: Option<LogId>) -> Result<(), Error> {
    let known = log.last(id).max(installed).max(Some(LogId::SEED));
    if known.is_some_and(|last| applied.index > last.index) {
        let message = format!("the log of {id} ends before {applied}, which was applied");
        return Err(Error::damaged(message));
    }
    Ok(())
}

/// Tells whenever the replica comes to lead, or leads with other members: METADATA may have to follow.
fn announce_changes(tablet: &Arc<Tablet>, runtime: &Runtime, help: &Arc<dyn SplitHelp>) {
    let (id, help, group) = (tablet.id(), Arc::clone(help), Arc::clone(tablet.group()));
    runtime.tasks.spawn_until_stopped("announce", async move {
        let mut status = group.watch();
        let mut announced = None;
        loop {
            let now = {
                let status = status.borrow_and_update();
                status.is_leader.then_some((status.term, status.membership_log_id))
            };
            if now.is_some() && now != announced {
                help.changed(id);
            }
            announced = now;
            if status.changed().await.is_err() {
                return;
            }
        }
    });
}

impl GroupDirectory for Hosted {
    fn group(&self, tablet: TabletId, replica: ReplicaId, origin: Origin) -> Lookup {
        if let Some(present) = self.tablet(tablet) {
            return if present.replica() == replica {
                Lookup::Here(Arc::clone(present.group()))
            } else {
                Lookup::Unreachable(format!("replica {} of the tablet lives here", present.replica()))
            };
        }
        let id = GroupId { tablet, replica };
        if self.parts.registry.is_removed(id) {
            return Lookup::Unreachable("the replica was removed".to_owned());
        }
        if origin.parent == TabletId::default() {
            return Lookup::Unreachable("the replica is not here".to_owned());
        }
        // The parent's own log makes the child, unless the parent is past that entry or not here.
        let parent = self.tablet(origin.parent);
        let awaits_split = parent.is_some_and(|parent| parent.machine().published().applied.index < origin.split_index);
        if awaits_split {
            return Lookup::Unreachable("the parent has not reached the split".to_owned());
        }
        self.start_later(id, origin);
        Lookup::Unreachable("the replica is being made".to_owned())
    }
}
