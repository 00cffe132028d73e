//! Replicas that cannot run: their cores ended by an error, or their stores could not be opened. `recovery` decides.
//!
//! ```text
//!   the core of a running replica ends   the replica is stopped and its store closed
//!     or a store cannot be opened          recovery(stage, reason)
//!                                            Reopen         it waits, and is opened again and again
//!                                            ReopenDamaged  the same; then it votes, and serves what is readable
//!                                            Quarantine     the registry records it; the master replaces it
//!                                            EndProcess     TabletManager::failed returns
//! ```
//!
//! Meanwhile all other replicas serve. A replica that waits is among [`TabletManager::idle`].

use std::sync::{Arc, Weak};

use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use ebla_storage::registry::ReplicaState;
use tracing::{error, info, warn};

use super::start::StartMode;
use super::{CLOSE_CHECK_INTERVAL, TabletManager, stop};
use crate::raft::{Fault, GroupReplica};
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::recovery::{Recovery, ReplicaFailure, Stage, membership_with, reopen_pause};

/// The outcome of an attempt to open a replica again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// It runs, or must not run any more.
    Done,
    /// It could not be opened.
    Failed,
}

impl TabletManager {
    /// Returns why the process must end: the core of a replica ended by an unexpected failure, or the commit log of a simulation could not be
    /// written. Cancel-safe.
    pub async fn failed(&self) -> Error {
        let mut failure = self.parts.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match failed {
            Some(error) => error,
            // Without the sender nothing can fail any more.
            None => std::future::pending().await,
        }
    }

    /// Reacts when the core of a running replica ends by an error. `runtime`: that of the replica.
    pub(super) fn watch_core(&self, id: GroupReplica, group: &TabletGroup, runtime: &Runtime) {
        let (manager, raft) = (Weak::clone(&self.me), Arc::clone(group.raft()));
        runtime.tasks.spawn_until_stopped("watch-core", async move {
            let fault = raft.failed().await;
            drop(raft);
            if let Some(manager) = manager.upgrade() {
                manager.on_core_end(id, fault);
            }
        });
    }

    fn on_core_end(&self, id: GroupReplica, fault: Fault) {
        error!(group = %id.group, replica = %id.replica, error = %fault, "raft core ended by an error; replica stopped");
        let group = self.group(id.group).filter(|group| group.replica() == id.replica);
        let membership = group.and_then(|group| membership_with(&group.descriptor().membership, id.replica));
        let failure = ReplicaFailure { part: fault.part(), error: fault.into(), membership };
        if failure.error.reason == Reason::DataDamaged {
            // Before the others are asked.
            self.scrub_results().add_damaged(id);
        }
        self.stop_and_recover(id, failure);
    }

    /// Stops a running replica and recovers from its failure. The tasks of the replica are about to be stopped, so this is done by
    /// a task of the server.
    pub(super) fn stop_and_recover(&self, id: GroupReplica, failure: ReplicaFailure) {
        let Some(manager) = self.me.upgrade() else { return };
        self.parts.runtime.tasks.spawn_until_stopped("recover-replica", async move {
            let mut waiting = manager.begin_waiting(id);
            if let Some(replica) = manager.take(id) {
                stop(replica).await;
            }
            // The task that has opened the replica is just about to end.
            let waiting = loop {
                match waiting.take().or_else(|| manager.begin_waiting(id)) {
                    Some(waiting) => break waiting,
                    None => tokio::time::sleep(CLOSE_CHECK_INTERVAL).await,
                }
            };
            if manager.group(id.group).is_none() {
                manager.recover(waiting, Stage::Running, failure).await;
            }
        });
    }

    /// Recovers from a failure to open a replica.
    pub(super) async fn recover_later(&self, id: GroupReplica, failure: ReplicaFailure) {
        // If it waits already, the task for which it waits tries again.
        if let Some(waiting) = self.begin_waiting(id) {
            self.recover(waiting, Stage::Opening, failure).await;
        }
    }

    async fn recover(&self, waiting: Waiting, stage: Stage, failure: ReplicaFailure) {
        let (id, error) = (waiting.id, &failure.error);
        match self.decide(stage, id, &failure).await {
            Recovery::Reopen => {
                warn!(group = %id.group, replica = %id.replica, %error, "replica cannot run; it is opened again later");
                self.parts.runtime.tasks.spawn_until_stopped("reopen-replica", reopen_until_it_runs(waiting, 0));
            }
            Recovery::ReopenDamaged => {
                let earlier = self.keep_damaged(id, &failure);
                self.parts.runtime.tasks.spawn_until_stopped("reopen-replica", reopen_until_it_runs(waiting, earlier));
            }
            Recovery::Quarantine => self.quarantine(id, failure.error).await,
            Recovery::EndProcess => self.end_process(id, error),
        }
    }

    /// Records that a replica with a damaged store stays, because its group cannot go on without it. Returns how often that was
    /// recorded before.
    pub(super) fn keep_damaged(&self, id: GroupReplica, failure: &ReplicaFailure) -> u32 {
        error!(
            group = %id.group, replica = %id.replica, error = %failure.error,
            "the store of a replica is damaged, and its group may have no majority without it: it serves what is readable"
        );
        self.scrub_results().keep(id, failure.membership.clone().unwrap_or_default())
    }

    /// Quarantines a damaged replica. The process ends if the registry cannot record that.
    async fn quarantine(&self, id: GroupReplica, damage: Error) {
        error!(group = %id.group, replica = %id.replica, error = %damage, "replica quarantined: its store is damaged");
        self.scrub_results().add_damaged(id);
        self.scrub_results().forget(id);
        let registry = Arc::clone(&self.parts.registry);
        if let Err(error) = self.run_maintenance(move || Ok(registry.quarantine(id)?)).await {
            self.end_process(id, &error.context("quarantine a damaged replica"));
        }
    }

    fn end_process(&self, id: GroupReplica, failure: &Error) {
        let doing = format!("replica {} of group {} failed", id.replica, id.group);
        self.parts.failure.send_replace(Some(failure.clone().context(&doing)));
    }

    /// Starts a replica that does not run, if it may; a damaged one is quarantined.
    ///
    /// # Errors
    /// When it cannot be opened now; it may be tried again.
    pub(super) async fn reopen(&self, id: GroupReplica) -> Result<(), Error> {
        let Some(path) = self.parts.registry.path(id) else { return Ok(()) };
        match self.start(id, path, StartMode::Reopened).await {
            Ok(()) => info!(group = %id.group, replica = %id.replica, "replica opened again"),
            Err(failure) if self.decide(Stage::Opening, id, &failure).await == Recovery::Quarantine => {
                self.quarantine(id, failure.error).await;
            }
            Err(failure) => return Err(failure.error),
        }
        Ok(())
    }

    async fn try_reopen(&self, id: GroupReplica) -> Attempt {
        let Some(_guard) = self.try_begin_start(id) else { return Attempt::Failed };
        let is_live = self.parts.registry.replica(id).is_some_and(|record| record.state == ReplicaState::Live);
        if !is_live || self.group(id.group).is_some() {
            return Attempt::Done;
        }
        match self.reopen(id).await {
            Ok(()) => Attempt::Done,
            Err(failure) => {
                warn!(group = %id.group, replica = %id.replica, error = %failure, "replica cannot be opened yet");
                Attempt::Failed
            }
        }
    }

    /// Marks a replica as waiting: no message starts it. `None` when it waits already.
    fn begin_waiting(&self, id: GroupReplica) -> Option<Waiting> {
        let manager = self.me.upgrade()?;
        let is_first = self.waiting.lock().insert(id);
        // Created only by the first task: dropping it takes the lock.
        is_first.then(|| Waiting { manager, id })
    }
}

/// Opens the replica again and again, with growing pauses, until it runs or must not run any more. `earlier`: the attempts that
/// have failed before, or after which it failed again.
async fn reopen_until_it_runs(waiting: Waiting, earlier: u32) {
    let Waiting { manager, id } = &waiting;
    for attempt in earlier.. {
        tokio::time::sleep(manager.parts.runtime.rng.jitter(reopen_pause(attempt))).await;
        if manager.try_reopen(*id).await == Attempt::Done {
            return;
        }
    }
}

/// A replica that waits until it is opened again, until this is dropped.
struct Waiting {
    manager: Arc<TabletManager>,
    id: GroupReplica,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.manager.waiting.lock().remove(&self.id);
    }
}
