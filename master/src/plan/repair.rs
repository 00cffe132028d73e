//! Replica repair: which replicas to replace, which to create again in place, and which extra replicas to remove. A
//! replica is one of a group and holds all tablets of the group, so one change moves them all.
//!
//! ```text
//!   member of a group      its server responds and runs it        healthy
//!                          ... and reports it as damaged          dead, at once
//!                          ... and does not have it               created again (empty) after a third of the grace,
//!                                                                 dead after the grace
//!                          its server is missing                  suspect, dead after the grace (`failure_detector`)
//!
//!   two voter sets         leave joint consensus
//!   a learner              promote it if a voter is needed, otherwise remove it
//!   a dead voter           replace it by one on the least loaded server without the group
//!   too few voters         add one, if an odd number can be reached
//!   a drained voter        as a dead one, when all voters are healthy and its leadership has left
//!   no quorum              report the quorum loss: a group that cannot commit cannot change its membership
//! ```
//!
//! A group that is being created is not repaired until it has a majority of its first replicas.
//!
//! A new replica is created only on a server that has room for it (`plan::capacity`); a repair without such a server waits and is
//! reported.
//!
//! A **drained** server is alive, and its replicas are replaced: one is removed only together with the addition of another, so a group
//! never has fewer voters meanwhile. Leaderships leave the server first (`plan::leader_balance`).
//!
//! Urgency: repairs before drains, METADATA's group, then groups by how many more replicas they can lose. Concurrent changes are limited for
//! the cluster and for each receiving server, because each new replica copies a group.
//!
//! An **extra replica** is one that its group's leader does not list as a member, if a quorum has just confirmed
//! that leader and its membership is committed, has one voter set, and is the last in its log. Nothing less proves
//! it: a follower may lag behind, and a former leader may not know a replica that was added since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::Action;
use super::auto_merge::MergeContext;
use super::change_budget::ChangeBudget;
use super::failure_detector::{Component, FailureDetector};
use super::leader_balance::can_leave;
use super::load_settling::Loads;
use super::replica_balance::ReplicaBalance;
use crate::cluster::{ClusterSnapshot, GroupProgress, ReplicaReport};

/// A member that its server does not have is created again after this fraction of the grace: a divide may be about
/// to create it.
const RECREATE_FRACTION: u32 = 3;

/// The durations after which a missing component must be checked again.
#[must_use]
pub fn detection_timeouts(grace: Duration) -> [Duration; 2] {
    [grace / RECREATE_FRACTION, grace]
}

/// The input of a plan beside the snapshot.
#[derive(Clone, Debug)]
pub struct PlanContext {
    /// Time since boot.
    pub now: Duration,
    /// How long a server may be down before its replicas are dead.
    pub grace: Duration,
    /// Replicas that a group should have.
    pub replicas: usize,
    /// Since when which components have been missing.
    pub failures: FailureDetector,
    /// Whether replicas are moved between healthy servers.
    pub balance: ReplicaBalance,
    /// Whether work is balanced by the loads of the snapshot.
    pub loads: Loads,
    /// The groups whose replicas are being changed, and the server that gets one.
    pub in_progress: BTreeMap<GroupId, Option<ServerId>>,
    /// When tablets are merged, and the merges of this master.
    pub merges: MergeContext,
}

/// Why a group's replicas change; the more urgent reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeReason {
    /// They are not as they should be.
    Repair,
    /// One is on a drained server.
    Drain,
    /// Another server has fewer.
    Balance,
}

impl fmt::Display for ChangeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Repair => "repair",
            Self::Drain => "drain",
            Self::Balance => "balance",
        })
    }
}

/// A change of a group's replicas, executed by its leader. With neither addition nor removal an incomplete change is
/// finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The descriptor as the leader reported it.
    pub group: GroupDescriptor,
    /// Its leader.
    pub leader: ServerId,
    /// The replica to add.
    pub add: Option<Addition>,
    /// The replica to remove.
    pub remove: Option<ReplicaId>,
    /// What it is for.
    pub reason: ChangeReason,
}

/// A replica that becomes a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addition {
    /// A new replica on this server.
    New(ServerId),
    /// An existing learner.
    Learner(Replica),
}

impl Addition {
    /// Its server.
    #[must_use]
    pub const fn server(self) -> ServerId {
        match self {
            Self::New(server) => server,
            Self::Learner(replica) => replica.server,
        }
    }
}

impl fmt::Display for ReplicaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change-replicas group={}", self.group.group)?;
        match self.add {
            Some(Addition::New(server)) => write!(f, " add-on={server}")?,
            Some(Addition::Learner(learner)) => write!(f, " promote={}@{}", learner.replica, learner.server)?,
            None => {}
        }
        match self.remove {
            Some(replica) => write!(f, " remove={replica}"),
            None => Ok(()),
        }
    }
}

/// The actions for all replicas: the most urgent changes first, removals last.
pub(super) fn repair(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    let planner = RepairPlanner::new(cluster, ctx);
    let mut actions = planner.quorum_losses();
    actions.extend(planner.missing_replicas());
    let mut repairs: Vec<GroupRepair<'_>> = planner.repairs().collect();
    repairs.sort_by_key(GroupRepair::urgency);
    let mut budget = ChangeBudget::new(cluster, ctx);
    actions.extend(repairs.iter().filter_map(|repair| Some(Action::ChangeReplicas(budget.change(repair)?))));
    actions.extend(budget.into_repairs_without_room().into_iter().map(Action::ReportNoRoom));
    actions.extend(planner.extra_replicas());
    actions
}

/// The health of a group's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplicaHealth {
    Healthy,
    /// Missing, for less than the grace.
    Suspect,
    Dead,
}

/// The repair that a group needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RepairAction {
    /// Leave joint consensus.
    LeaveJoint,
    /// Make a learner a voter, and perhaps remove a voter.
    Promote(Replica, Option<ReplicaId>),
    /// Remove a member.
    Remove(ReplicaId),
    /// Replace this replica by a new one; on the same server if there is no other.
    Replace(Replica),
    /// Add a voter.
    Add,
}

/// A group that needs a repair, or has a replica on a drained server.
pub(super) struct GroupRepair<'a> {
    pub(super) leader: ServerId,
    pub(super) group: &'a GroupDescriptor,
    pub(super) action: RepairAction,
    pub(super) reason: ChangeReason,
    healthy: usize,
}

impl GroupRepair<'_> {
    /// Sort key, most urgent first: repairs, METADATA, then groups that can lose the fewest replicas.
    fn urgency(&self) -> (ChangeReason, bool, usize, usize, GroupId) {
        let majority = voters(self.group).len() / 2 + 1;
        let is_user = self.group.group != GroupId::METADATA;
        (self.reason, is_user, self.healthy.saturating_sub(majority), self.healthy, self.group.group)
    }
}

/// Plans the repairs of all groups.
struct RepairPlanner<'a> {
    cluster: &'a ClusterSnapshot,
    ctx: &'a PlanContext,
    leaders: BTreeMap<GroupId, (ServerId, &'a ReplicaReport)>,
}

impl<'a> RepairPlanner<'a> {
    fn new(cluster: &'a ClusterSnapshot, ctx: &'a PlanContext) -> Self {
        Self { cluster, ctx, leaders: cluster.leader_reports() }
    }

    /// The groups that have a leader and are neither being created nor changed.
    fn candidates(&self) -> impl Iterator<Item = (ServerId, &'a ReplicaReport)> {
        let leaders = self.leaders.values().copied();
        leaders.filter(|(_leader, report)| self.is_repairable(report.group.group))
    }

    fn is_repairable(&self, group: GroupId) -> bool {
        !is_being_created(self.cluster, group) && !self.ctx.in_progress.contains_key(&group)
    }

    fn repairs(&self) -> impl Iterator<Item = GroupRepair<'a>> {
        self.candidates().filter_map(|(leader, report)| {
            let group = &report.group;
            let healthy = self.voters_with(group, ReplicaHealth::Healthy).len();
            let repair = |action| (ChangeReason::Repair, action);
            let drain = || Some((ChangeReason::Drain, self.drain(leader, report)?));
            let (reason, action) = self.action(group).map(repair).or_else(drain)?;
            Some(GroupRepair { leader, group, action, reason, healthy })
        })
    }

    /// The next step to empty a drained server of a group that needs no repair.
    fn drain(&self, leader: ServerId, report: &'a ReplicaReport) -> Option<RepairAction> {
        let group = &report.group;
        let (voters, drained) = (voters(group), *self.drained_voters(group).first()?);
        let is_uniform = group.membership.is_uniform() && group.membership.replicas.len() == voters.len();
        let leads = self.cluster.drained.contains(&leader);
        if !is_uniform || !self.all_voters_healthy(group) || leads && can_leave(self.cluster, leader, report) {
            return None;
        }
        Some(match voters.len() {
            // A leader cannot replace itself alone.
            1 => RepairAction::Add,
            count if count > self.ctx.replicas => RepairAction::Remove(drained.replica),
            2 if self.ctx.replicas > 2 && self.target_voters(group) == 1 => RepairAction::Remove(drained.replica),
            _ => RepairAction::Replace(drained),
        })
    }

    /// The healthy voters on drained servers.
    fn drained_voters(&self, group: &GroupDescriptor) -> Vec<Replica> {
        let mut voters = self.voters_with(group, ReplicaHealth::Healthy);
        voters.retain(|voter| self.cluster.drained.contains(&voter.server));
        voters
    }

    fn action(&self, group: &GroupDescriptor) -> Option<RepairAction> {
        if !group.membership.is_uniform() {
            return Some(RepairAction::LeaveJoint);
        }
        let (voters, dead) = (voters(group), self.voters_with(group, ReplicaHealth::Dead));
        let has_majority = 2 * self.voters_with(group, ReplicaHealth::Healthy).len() > voters.len();
        if let Some(learner) = group.membership.replicas().find(|replica| !voters.contains(&replica.replica)) {
            let leaving = if dead.is_empty() { self.drained_voters(group) } else { dead };
            let is_needed = !leaving.is_empty() || voters.len() < self.target_voters(group);
            let is_drained = self.cluster.drained.contains(&learner.server);
            return match self.health(group, learner) {
                ReplicaHealth::Suspect => None,
                ReplicaHealth::Healthy if is_needed && !is_drained => {
                    // A leader cannot replace itself alone.
                    let replaced = replaced_voter(&leaving, learner).filter(|_replaced| voters.len() > 1);
                    Some(RepairAction::Promote(learner, replaced))
                }
                ReplicaHealth::Healthy | ReplicaHealth::Dead => Some(RepairAction::Remove(learner.replica)),
            };
        }
        match dead.first() {
            Some(_dead) if !has_majority => None,
            Some(dead) if voters.len() > self.ctx.replicas => Some(RepairAction::Remove(dead.replica)),
            Some(dead) => Some(RepairAction::Replace(*dead)),
            None if voters.len() < self.target_voters(group) && self.all_voters_healthy(group) => {
                Some(RepairAction::Add)
            }
            None => None,
        }
    }

    /// How many voters a group should have with the present servers. An even number tolerates no more failures than
    /// the odd one below it, so it is no target unless it was configured.
    fn target_voters(&self, group: &GroupDescriptor) -> usize {
        let members: BTreeSet<ServerId> = group.membership.replicas().map(|replica| replica.server).collect();
        let free = self.cluster.loads().into_keys().filter(|server| !members.contains(server)).count();
        let stay = members.iter().filter(|server| !self.cluster.drained.contains(server)).count();
        let (wanted, possible) = (self.ctx.replicas, stay + free);
        if possible >= wanted { wanted } else { possible - usize::from(possible.is_multiple_of(2)) }
    }

    fn all_voters_healthy(&self, group: &GroupDescriptor) -> bool {
        self.voters_with(group, ReplicaHealth::Healthy).len() == voters(group).len()
    }

    /// The voters with this health; damaged ones first among the dead.
    fn voters_with(&self, group: &GroupDescriptor, health: ReplicaHealth) -> Vec<Replica> {
        let voters = voters(group);
        let members = group.membership.replicas().filter(|replica| voters.contains(&replica.replica));
        let mut found: Vec<Replica> = members.filter(|member| self.health(group, *member) == health).collect();
        found.sort_by_key(|member| !self.is_damaged(group.group, *member));
        found
    }

    fn health(&self, group: &GroupDescriptor, member: Replica) -> ReplicaHealth {
        let is_dead = |component| self.ctx.failures.is_missing_for(component, self.ctx.now, self.ctx.grace);
        let dead_or_suspect = |component| if is_dead(component) { ReplicaHealth::Dead } else { ReplicaHealth::Suspect };
        if self.is_damaged(group.group, member) {
            return ReplicaHealth::Dead;
        }
        let Some(server) = self.cluster.servers.get(&member.server) else {
            let component = Component::Server(member.server);
            // A server that responds to its leaders but not to the master is healthy.
            let is_missing = self.ctx.failures.is_missing_for(component, self.ctx.now, Duration::ZERO);
            return if is_missing { dead_or_suspect(component) } else { ReplicaHealth::Healthy };
        };
        let Some(report) = &server.report else { return ReplicaHealth::Suspect };
        let is_it = |here: &ReplicaReport| here.group.group == group.group && here.replica == member.replica;
        if report.replicas.iter().any(is_it) {
            return ReplicaHealth::Healthy;
        }
        dead_or_suspect(Component::Replica(member.server, group.group, member.replica))
    }

    fn is_damaged(&self, group: GroupId, member: Replica) -> bool {
        let report = self.cluster.servers.get(&member.server).and_then(|server| server.report.as_ref());
        report.is_some_and(|report| report.damaged.contains(&(group, member.replica)))
    }

    /// Groups that have lost their quorum: reported to operators, never repaired automatically.
    fn quorum_losses(&self) -> Vec<Action> {
        let mut losses = Vec::new();
        for known in self.cluster.known_groups().into_values().filter(|known| self.is_repairable(known.group)) {
            let newest = self.leaders.get(&known.group).map_or(&known, |(_leader, report)| &report.group);
            let (dead, of) = (self.voters_with(newest, ReplicaHealth::Dead).len(), voters(newest).len());
            if 2 * dead >= of {
                let tablets = self.cluster.known_tablets().into_values().filter(|tablet| tablet.group == known.group);
                let tablets = tablets.map(|tablet| tablet.tablet).collect();
                losses.push(Action::ReportQuorumLoss { group: known.group, tablets, dead, of });
            }
        }
        losses
    }

    /// Members that their server does not have, for example because it missed the divide that created them.
    fn missing_replicas(&self) -> Vec<Action> {
        let (now, timeout) = (self.ctx.now, self.ctx.grace / RECREATE_FRACTION);
        let mut actions = Vec::new();
        for (_leader, report) in self.candidates() {
            let group = &report.group;
            if self.cluster.new_groups.contains_key(&group.group) {
                // The creation of the group creates them.
                continue;
            }
            let missing = group.membership.replicas().filter(|member| {
                let component = Component::Replica(member.server, group.group, member.replica);
                self.ctx.failures.is_missing_for(component, now, timeout)
            });
            actions.extend(missing.map(|replica| Action::CreateReplica { group: group.clone(), replica }));
        }
        actions
    }

    fn extra_replicas(&self) -> Vec<Action> {
        let confirmed = extra_replicas(self.cluster).into_iter().filter(|extra| extra.leader.settled);
        let drops = confirmed.filter(|extra| self.is_repairable(extra.group));
        let drop = |ExtraReplica { server, group, replica, leader }| Action::DropReplica {
            server,
            group,
            replica,
            membership_log_id: leader.group.membership_log_id,
        };
        drops.map(drop).collect()
    }
}

/// Whether a group has no majority of its first replicas yet: its creation is responsible for it.
pub(super) fn is_being_created(cluster: &ClusterSnapshot, group: GroupId) -> bool {
    cluster.new_groups.get(&group).is_some_and(|plan| plan.progress == GroupProgress::Creating)
}

/// A replica that the leader of its group does not list as a member, with that leader's report.
struct ExtraReplica<'a> {
    server: ServerId,
    group: GroupId,
    replica: ReplicaId,
    leader: &'a ReplicaReport,
}

fn extra_replicas(cluster: &ClusterSnapshot) -> Vec<ExtraReplica<'_>> {
    let leaders = cluster.leader_reports();
    let running = cluster.reports().map(|(server, report)| (server, report.group.group, report.replica));
    let all: BTreeSet<_> = running.chain(cluster.stopped_replicas()).collect();
    let extra = |(server, group, replica)| {
        let (_leader, leader) = *leaders.get(&group)?;
        let is_member = leader.group.membership.server_of(replica) == Some(server);
        (!is_member).then_some(ExtraReplica { server, group, replica, leader })
    };
    all.into_iter().filter_map(extra).collect()
}

/// Whether there seems to be an extra replica whose leader was not confirmed: worth another round soon.
#[must_use]
pub fn has_unconfirmed_extras(cluster: &ClusterSnapshot) -> bool {
    extra_replicas(cluster).iter().any(|extra| !extra.leader.settled)
}

/// The voter to remove when the learner becomes one: the one on the same server, or the first of those that leave.
fn replaced_voter(leaving: &[Replica], learner: Replica) -> Option<ReplicaId> {
    let same_server = leaving.iter().find(|one| one.server == learner.server);
    same_server.or_else(|| leaving.first()).map(|one| one.replica)
}

fn voters(group: &GroupDescriptor) -> BTreeSet<ReplicaId> {
    group.membership.voters.last().cloned().unwrap_or_default()
}
