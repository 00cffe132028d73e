//! The budget of replica repair: how many replica changes may start, and on which servers.

use std::collections::BTreeMap;

use ebla_model::id::ServerId;
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::repair::{Addition, GroupRepair, PlanContext, RepairAction, ReplicaChange};
use crate::cluster::ClusterSnapshot;

/// The maximum number of concurrent replica changes.
const CONCURRENT_CHANGES_MAX: usize = 4;
/// The maximum number of new replicas on their way to one server.
const INCOMING_MAX: usize = 2;

/// Limits the changes that may start, and chooses their servers.
pub(super) struct ChangeBudget<'a> {
    cluster: &'a ClusterSnapshot,
    left: usize,
    incoming: BTreeMap<ServerId, usize>,
    loads: BTreeMap<ServerId, u64>,
}

impl<'a> ChangeBudget<'a> {
    pub(super) fn new(cluster: &'a ClusterSnapshot, ctx: &PlanContext) -> Self {
        let mut budget = Self {
            cluster,
            left: CONCURRENT_CHANGES_MAX.saturating_sub(ctx.in_progress.len()),
            incoming: BTreeMap::new(),
            loads: cluster.loads(),
        };
        for server in ctx.in_progress.values().flatten() {
            budget.reserve(*server);
        }
        budget
    }

    /// The change for a repair, if it may start now.
    pub(super) fn change(&mut self, repair: &GroupRepair<'_>) -> Option<ReplicaChange> {
        if self.left == 0 {
            return None;
        }
        let (add, remove) = match &repair.action {
            RepairAction::LeaveJoint => (None, None),
            RepairAction::Promote(learner, replaced_voter) => (Some(Addition::Learner(*learner)), *replaced_voter),
            RepairAction::Remove(member) => (None, Some(*member)),
            RepairAction::Replace(dead) => {
                (Some(Addition::New(self.choose_server(repair.group, Some(*dead))?)), Some(dead.replica))
            }
            RepairAction::Add => (Some(Addition::New(self.choose_server(repair.group, None)?)), None),
        };
        self.left -= 1;
        if let Some(add) = add {
            self.reserve(add.server());
        }
        Some(ReplicaChange { group: repair.group.clone(), leader: repair.leader, add, remove })
    }

    /// The least loaded server without a replica of the group; if there is none, the server of the dead replica, if
    /// it is up. `None` also when all possible servers receive the maximum of replicas.
    fn choose_server(&self, group: &GroupDescriptor, dead: Option<Replica>) -> Option<ServerId> {
        let mut free: Vec<(u64, ServerId)> = Vec::new();
        for (server, load) in &self.loads {
            if !self.has_replica(*server, group) {
                free.push((*load, *server));
            }
        }
        if free.is_empty() {
            free.extend(dead.and_then(|dead| Some((*self.loads.get(&dead.server)?, dead.server))));
        }
        free.retain(|(_load, server)| self.incoming.get(server).is_none_or(|count| *count < INCOMING_MAX));
        free.into_iter().min().map(|(_load, server)| server)
    }

    /// Whether a server has a replica of the group: a member, or an extra one.
    fn has_replica(&self, server: ServerId, group: &GroupDescriptor) -> bool {
        let report = self.cluster.servers.get(&server).and_then(|server| server.report.as_ref());
        group.membership.replica_on(server).is_some()
            || report.is_some_and(|report| {
                report.replicas.iter().any(|replica| replica.group.group == group.group)
                    || report.damaged.iter().chain(&report.idle).any(|(stopped, _replica)| *stopped == group.group)
            })
    }

    fn reserve(&mut self, server: ServerId) {
        *self.incoming.entry(server).or_default() += 1;
        if let Some(load) = self.loads.get_mut(&server) {
            *load += 1;
        }
    }
}
