//! The budget of replica changes: how many may start, and on which servers: those with room for the group. Repairs take from it first,
//! then drains, then replica balance.

use std::collections::BTreeMap;

use ebla_model::capacity::{Demand, ResourceShortage};
use ebla_model::id::{GroupId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::capacity::{RepairWithoutRoom, replica_demand, resources};
use super::repair::{Addition, GroupRepair, PlanContext, RepairAction, ReplicaChange};
use super::zones::Zones;
use crate::cluster::{ClusterSnapshot, ReplicaReport};

/// The maximum number of concurrent replica changes.
const CONCURRENT_CHANGES_MAX: usize = 4;
/// The maximum number of new replicas on their way to one server.
const INCOMING_MAX: usize = 2;

/// Limits the changes that may start, and chooses their servers.
pub(super) struct ChangeBudget<'a> {
    cluster: &'a ClusterSnapshot,
    left: usize,
    /// How many more replicas may be on their way to one server.
    incoming_max: usize,
    incoming: BTreeMap<ServerId, usize>,
    /// What the replicas on their way need.
    reserved: BTreeMap<ServerId, Demand>,
    loads: BTreeMap<ServerId, u64>,
    leaders: BTreeMap<GroupId, (ServerId, &'a ReplicaReport)>,
    zones: Zones,
    without_room: Vec<RepairWithoutRoom>,
}

/// How a replica counts that is on a server but no longer a member of its group: a replaced one is there until it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// The server gets no other replica of the group now.
    CountsAsReplica,
    /// The server can get another one later.
    WillBeDropped,
}

impl<'a> ChangeBudget<'a> {
    pub(super) fn new(cluster: &'a ClusterSnapshot, ctx: &PlanContext) -> Self {
        let left = CONCURRENT_CHANGES_MAX.saturating_sub(ctx.in_progress.len());
        let mut budget = Self { left, incoming_max: INCOMING_MAX, ..Self::unlimited(cluster) };
        for (group, server) in &ctx.in_progress {
            if let Some(server) = server {
                budget.reserve(*server, *group);
            }
        }
        budget
    }

    /// A budget for a forecast: only room limits it.
    pub(super) fn unlimited(cluster: &'a ClusterSnapshot) -> Self {
        Self {
            cluster,
            left: usize::MAX,
            incoming_max: usize::MAX,
            incoming: BTreeMap::new(),
            reserved: BTreeMap::new(),
            loads: cluster.loads(),
            leaders: cluster.leader_reports(),
            zones: Zones::of(cluster),
            without_room: Vec::new(),
        }
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
            RepairAction::Replace(dead) => (
                Some(Addition::New(self.choose_server(repair.group, Some(*dead), Extra::CountsAsReplica)?)),
                Some(dead.replica),
            ),
            RepairAction::Add => {
                (Some(Addition::New(self.choose_server(repair.group, None, Extra::CountsAsReplica)?)), None)
            }
        };
        self.left -= 1;
        if let Some(add) = add {
            self.reserve(add.server(), repair.group.group);
        }
        let (leader, reason) = (repair.leader, repair.reason);
        Some(ReplicaChange { group: repair.group.clone(), leader, add, remove, reason })
    }

    /// Whether a replica of the group may move from a member's server to this one now.
    pub(super) fn admits(&self, group: &GroupDescriptor, replaced: Replica, to: ServerId) -> bool {
        self.left > 0
            && to != replaced.server
            && self.has_free_slot(to)
            && !self.has_replica(to, group)
            && self.keeps_zones(group, replaced, to)
            && self.shortage(to, self.demand(group.group)).is_none()
    }

    /// Whether the zones of the group's members are at least as different after the move.
    fn keeps_zones(&self, group: &GroupDescriptor, replaced: Replica, to: ServerId) -> bool {
        let others = others(group, Some(replaced));
        let occupancy = |server| self.zones.occupancy(server, &others);
        self.zones.allows(to, &others, others.len() + 1) && occupancy(to) <= occupancy(replaced.server)
    }

    /// The zones of the servers.
    pub(super) const fn zones(&self) -> &Zones {
        &self.zones
    }

    /// How many more changes may start.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Counts a change that gives this server a replica of the group.
    pub(super) fn start(&mut self, to: ServerId, group: GroupId) {
        self.left = self.left.saturating_sub(1);
        self.reserve(to, group);
    }

    /// The server for a new replica of the group in place of `replaced`, which gets it from now on; `None` as for a repair that may not
    /// start.
    pub(super) fn replace(&mut self, group: &GroupDescriptor, replaced: Replica, extra: Extra) -> Option<ServerId> {
        let server = self.choose_server(group, Some(replaced), extra)?;
        self.start(server, group.group);
        Some(server)
    }

    /// The repairs for which no server has room.
    pub(super) fn into_repairs_without_room(self) -> Vec<RepairWithoutRoom> {
        self.without_room
    }

    /// The least loaded server without a replica of the group, in a zone without one and with room for it; if there is none, the server of the dead
    /// replica, if it is up. `None` also when all possible servers receive the maximum of replicas.
    fn choose_server(&mut self, group: &GroupDescriptor, dead: Option<Replica>, extra: Extra) -> Option<ServerId> {
        let others = others(group, dead);
        // By the number of other members in the same zone, then by load.
        let mut free: Vec<(usize, u64, ServerId)> = Vec::new();
        for (server, load) in &self.loads {
            let has_replica = match extra {
                Extra::CountsAsReplica => self.has_replica(*server, group),
                Extra::WillBeDropped => group.membership.replica_on(*server).is_some(),
            };
            if !has_replica && self.zones.allows(*server, &others, others.len() + 1) {
                free.push((self.zones.occupancy(*server, &others), *load, *server));
            }
        }
        if free.is_empty() {
            free.extend(dead.and_then(|dead| Some((0, *self.loads.get(&dead.server)?, dead.server))));
        }
        let demand = self.demand(group.group);
        let without_room = free.iter().min().and_then(|(_occupancy, _load, server)| {
            let shortage = self.shortage(*server, demand)?;
            Some(RepairWithoutRoom { group: group.group, server: *server, shortage })
        });
        free.retain(|(_occupancy, _load, server)| self.shortage(*server, demand).is_none());
        if free.is_empty() {
            self.without_room.extend(without_room);
        }
        free.retain(|(_occupancy, _load, server)| self.has_free_slot(*server));
        free.into_iter().min().map(|(_occupancy, _load, server)| server)
    }

    /// What the server lacks for the demand beside the replicas that are on their way to it.
    fn shortage(&self, server: ServerId, demand: Demand) -> Option<ResourceShortage> {
        let reserved = self.reserved.get(&server).copied().unwrap_or_default();
        resources(self.cluster, server)?.shortage(demand.plus(reserved))
    }

    /// Whether another replica may be on its way to the server.
    fn has_free_slot(&self, server: ServerId) -> bool {
        self.incoming.get(&server).is_none_or(|count| *count < self.incoming_max)
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

    /// What a new replica of the group needs.
    fn demand(&self, group: GroupId) -> Demand {
        self.leaders.get(&group).map(|(_server, leader)| replica_demand(leader)).unwrap_or_default()
    }

    fn reserve(&mut self, server: ServerId, group: GroupId) {
        let demand = self.demand(group);
        let reserved = self.reserved.entry(server).or_default();
        *reserved = reserved.plus(demand);
        *self.incoming.entry(server).or_default() += 1;
        if let Some(load) = self.loads.get_mut(&server) {
            *load += 1;
        }
    }
}

/// The servers of the members beside the one that is replaced.
pub(super) fn others(group: &GroupDescriptor, replaced: Option<Replica>) -> Vec<ServerId> {
    let others = group.membership.replicas().filter(|member| Some(*member) != replaced);
    others.map(|member| member.server).collect()
}
