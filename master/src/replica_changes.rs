//! Executes replica changes in the background: repairs, drains and replica balance. Each copies a group with all its tablets, so the reconciler must
//! not wait for it.
//!
//! Only this master knows the changes in progress. A new master finds incomplete ones in the groups themselves, as a
//! learner or as two voter sets (joint consensus), and finishes them. A replica that was created and never became a
//! member is an extra replica, which the new master's plan removes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_chubby::Counter;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};
use ebla_runtime::Step;
use ebla_runtime::trace::TabletIds;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::plan::repair::{Addition, ChangeReason, ReplicaChange};
use crate::server_client::InitialState;

/// How many times a hint to another leader is followed.
const LEADER_HINTS_MAX: usize = 3;

/// A change in progress: the server that gets a replica, and what it is for.
type RunningChange = (Option<ServerId>, ChangeReason);

/// The replica changes in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaChanges {
    /// By group. Locked for a lookup; at most as many entries as a plan
    /// starts.
    in_progress: Arc<Mutex<BTreeMap<GroupId, RunningChange>>>,
}

impl ReplicaChanges {
    /// The groups whose replicas are being changed, and the servers that get one.
    pub(crate) fn in_progress(&self) -> BTreeMap<GroupId, Option<ServerId>> {
        self.in_progress.lock().iter().map(|(group, (server, _reason))| (*group, *server)).collect()
    }

    /// The number of repairs among them.
    pub(crate) fn repairs(&self) -> usize {
        self.running(ChangeReason::Repair)
    }

    /// The number of changes for this reason.
    pub(crate) fn running(&self, wanted: ChangeReason) -> usize {
        self.in_progress.lock().values().filter(|(_server, reason)| *reason == wanted).count()
    }

    /// Starts a change. When it ends, with or without success, it requests a round of the reconciler.
    pub(crate) fn start(&self, master: &ActiveMaster, change: ReplicaChange) {
        let group = change.group.group;
        let reason = change.reason;
        self.in_progress.lock().insert(group, (change.add.map(Addition::server), reason));
        info!(%change, %reason, "replica change started");
        let guard = InProgressGuard { changes: self.clone(), master: master.clone(), group };
        let master = master.clone();
        master.runtime().tasks.clone().spawn_until_stopped("repair", async move {
            let shown = change.to_string();
            let ids = TabletIds { group, ..TabletIds::default() };
            match master.traced("ChangeReplicas", ids, run_change(&master, change)).await {
                Ok(group) => info!(change = shown, membership = ?group.membership, "replica change finished"),
                Err(error) => warn!(change = shown, %error, "replica change failed; retrying"),
            }
            drop(guard);
        });
    }
}

/// A change in progress; removes itself when it is dropped.
struct InProgressGuard {
    changes: ReplicaChanges,
    master: ActiveMaster,
    group: GroupId,
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        self.changes.in_progress.lock().remove(&self.group);
        self.master.request_reconcile();
    }
}

async fn run_change(master: &ActiveMaster, change: ReplicaChange) -> Result<GroupDescriptor, Error> {
    let add = match change.add {
        Some(Addition::New(server)) => Some(create_replica(master, &change.group, server).await?),
        Some(Addition::Learner(learner)) => Some(learner),
        None => None,
    };
    let mut leader = change.leader;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let outcome = master.servers().change_replicas(leader, &change.group, add, change.remove).await;
        let failed = match outcome {
            Ok(changed) => return Ok(changed),
            Err(failed) => failed,
        };
        match failed.detail.leader.map(|hint| ServerId::new(hint.server)) {
            Some(other) if other != leader && attempts < LEADER_HINTS_MAX => leader = other,
            _ => return Err(failed.error),
        }
    }
}

/// Creates an empty replica with a new id. It must exist before the leader sends to it.
async fn create_replica(master: &ActiveMaster, group: &GroupDescriptor, server: ServerId) -> Result<Replica, Error> {
    let replica = ReplicaId::new(master.allocate(Counter::Replicas, 1).await?.start);
    master.runtime().steps.reached(Step::ReplicaId).await;
    let created = master.servers().create_replica(server, group, replica, InitialState::Empty).await;
    let created = created.map_err(|failed| failed.error)?;
    master.runtime().steps.reached(Step::ReplicaCreated).await;
    match created.as_str() {
        "removed" => Err(Error::new(Reason::Conflict, format!("replica {replica} was removed from server {server}"))),
        _ => Ok(Replica { replica, server }),
    }
}
