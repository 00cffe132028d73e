//! Replica repair: which replicas to replace, which to create again in place, and which extra replicas to remove.
//!
//! ```text
//!   member of a tablet     its server responds and runs it        healthy
//!                          ... and reports it as damaged          dead, at once
//!                          ... and does not have it               created again (empty) after a third of the grace,
//!                                                                 dead after the grace
//!                          its server is missing                  suspect, dead after the grace (`failure_detector`)
//!
//!   two voter sets         leave joint consensus
//!   a learner              promote it if a voter is needed, otherwise remove it
//!   a dead voter           replace it by one on the least loaded server without the tablet
//!   too few voters         add one, if an odd number can be reached
//!   no quorum              report the quorum loss: a group that cannot commit cannot change its membership
//! ```
//!
//! Urgency: the root tablet, METADATA, then tablets by how many more replicas they can lose. Concurrent changes are
//! limited for the cluster and for each receiving server, because each new replica copies a tablet.
//!
//! An **extra replica** is one that its tablet's leader does not list as a member, if a quorum has just confirmed
//! that leader and its membership is committed, has one voter set, and is the last in its log. Nothing less proves
//! it: a follower may lag behind, and a former leader may not know a replica that was added since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ebla_model::id::{ReplicaId, ServerId, TableId, TabletId};
use ebla_model::metadata::{Replica, TabletDescriptor};

use super::change_budget::ChangeBudget;
use super::failure_detector::{Component, FailureDetector};
use super::{Action, is_live};
use crate::cluster::{ClusterSnapshot, ReplicaReport};

/// A member that its server does not have is created again after this fraction of the grace: a split may be about to
/// create it.
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
    /// Replicas that a tablet should have.
    pub replicas: usize,
    /// Since when which components have been missing.
    pub failures: FailureDetector,
    /// The tablets whose replicas are being changed, and the server that gets one.
    pub in_progress: BTreeMap<TabletId, Option<ServerId>>,
}

/// A change of a tablet's replicas, executed by its leader. With neither addition nor removal an incomplete change is
/// finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The descriptor as the leader reported it.
    pub tablet: TabletDescriptor,
    /// Its leader.
    pub leader: ServerId,
    /// The replica to add.
    pub add: Option<Addition>,
    /// The replica to remove.
    pub remove: Option<ReplicaId>,
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
        write!(f, "change-replicas table={} tablet={}", self.tablet.table, self.tablet.tablet)?;
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
    let mut repairs: Vec<TabletRepair<'_>> = planner.repairs().collect();
    repairs.sort_by_key(TabletRepair::urgency);
    let mut budget = ChangeBudget::new(cluster, ctx);
    actions.extend(repairs.iter().filter_map(|repair| Some(Action::ChangeReplicas(budget.change(repair)?))));
    actions.extend(planner.extra_replicas());
    actions
}

/// The health of a tablet's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplicaHealth {
    Healthy,
    /// Missing, for less than the grace.
    Suspect,
    Dead,
}

/// The repair that a tablet needs.
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

/// A tablet that needs a repair.
pub(super) struct TabletRepair<'a> {
    pub(super) leader: ServerId,
    pub(super) tablet: &'a TabletDescriptor,
    pub(super) action: RepairAction,
    healthy: usize,
}

impl TabletRepair<'_> {
    /// Sort key, most urgent first: METADATA, then tablets that can lose the fewest replicas.
    fn urgency(&self) -> (u8, usize, usize, TabletId) {
        let class = match (self.tablet.tablet, self.tablet.table) {
            (TabletId::ROOT, _) => 0,
            (_, TableId::METADATA) => 1,
            _ => 2,
        };
        let majority = voters(self.tablet).len() / 2 + 1;
        (class, self.healthy.saturating_sub(majority), self.healthy, self.tablet.tablet)
    }
}

/// Plans the repairs of all tablets.
struct RepairPlanner<'a> {
    cluster: &'a ClusterSnapshot,
    ctx: &'a PlanContext,
    leaders: BTreeMap<TabletId, (ServerId, &'a ReplicaReport)>,
}

impl<'a> RepairPlanner<'a> {
    fn new(cluster: &'a ClusterSnapshot, ctx: &'a PlanContext) -> Self {
        Self { cluster, ctx, leaders: cluster.leader_reports() }
    }

    /// The tablets that have a leader, are not being deleted, and are not being changed.
    fn candidates(&self) -> impl Iterator<Item = (ServerId, &'a ReplicaReport)> {
        let leaders = self.leaders.values().copied();
        leaders.filter(|(_leader, report)| self.is_repairable(&report.descriptor))
    }

    fn is_repairable(&self, tablet: &TabletDescriptor) -> bool {
        is_live(self.cluster, tablet.table) && !self.ctx.in_progress.contains_key(&tablet.tablet)
    }

    fn repairs(&self) -> impl Iterator<Item = TabletRepair<'a>> {
        self.candidates().filter_map(|(leader, report)| {
            let tablet = &report.descriptor;
            let healthy = self.voters_with(tablet, ReplicaHealth::Healthy).len();
            Some(TabletRepair { leader, tablet, action: self.action(tablet)?, healthy })
        })
    }

    fn action(&self, tablet: &TabletDescriptor) -> Option<RepairAction> {
        if !tablet.membership.is_uniform() {
            return Some(RepairAction::LeaveJoint);
        }
        let (voters, dead) = (voters(tablet), self.voters_with(tablet, ReplicaHealth::Dead));
        let has_majority = 2 * self.voters_with(tablet, ReplicaHealth::Healthy).len() > voters.len();
        if let Some(learner) = tablet.membership.replicas().find(|replica| !voters.contains(&replica.replica)) {
            let is_needed = !dead.is_empty() || voters.len() < self.target_voters(tablet);
            return match self.health(tablet, learner) {
                ReplicaHealth::Suspect => None,
                ReplicaHealth::Healthy if is_needed => {
                    Some(RepairAction::Promote(learner, replaced_voter(&dead, learner)))
                }
                ReplicaHealth::Healthy | ReplicaHealth::Dead => Some(RepairAction::Remove(learner.replica)),
            };
        }
        match dead.first() {
            Some(_dead) if !has_majority => None,
            Some(dead) if voters.len() > self.ctx.replicas => Some(RepairAction::Remove(dead.replica)),
            Some(dead) => Some(RepairAction::Replace(*dead)),
            None if voters.len() < self.target_voters(tablet) && self.all_voters_healthy(tablet) => {
                Some(RepairAction::Add)
            }
            None => None,
        }
    }

    /// How many voters a tablet should have with the present servers. An even number tolerates no more failures than
    /// the odd one below it, so it is no target unless it was configured.
    fn target_voters(&self, tablet: &TabletDescriptor) -> usize {
        let members: BTreeSet<ServerId> = tablet.membership.replicas().map(|replica| replica.server).collect();
        let free = self.cluster.loads().into_keys().filter(|server| !members.contains(server)).count();
        let (wanted, possible) = (self.ctx.replicas, members.len() + free);
        if possible >= wanted { wanted } else { possible - usize::from(possible.is_multiple_of(2)) }
    }

    fn all_voters_healthy(&self, tablet: &TabletDescriptor) -> bool {
        self.voters_with(tablet, ReplicaHealth::Healthy).len() == voters(tablet).len()
    }

    /// The voters with this health; damaged ones first among the dead.
    fn voters_with(&self, tablet: &TabletDescriptor, health: ReplicaHealth) -> Vec<Replica> {
        let voters = voters(tablet);
        let members = tablet.membership.replicas().filter(|replica| voters.contains(&replica.replica));
        let mut found: Vec<Replica> = members.filter(|member| self.health(tablet, *member) == health).collect();
        found.sort_by_key(|member| !self.is_damaged(tablet.tablet, *member));
        found
    }

    fn health(&self, tablet: &TabletDescriptor, member: Replica) -> ReplicaHealth {
        let is_dead = |component| self.ctx.failures.is_missing_for(component, self.ctx.now, self.ctx.grace);
        let dead_or_suspect = |component| if is_dead(component) { ReplicaHealth::Dead } else { ReplicaHealth::Suspect };
        if self.is_damaged(tablet.tablet, member) {
            return ReplicaHealth::Dead;
        }
        let Some(server) = self.cluster.servers.get(&member.server) else {
            let component = Component::Server(member.server);
            // A server that responds to its leaders but not to the master is healthy.
            let is_missing = self.ctx.failures.is_missing_for(component, self.ctx.now, Duration::ZERO);
            return if is_missing { dead_or_suspect(component) } else { ReplicaHealth::Healthy };
        };
        let Some(report) = &server.report else { return ReplicaHealth::Suspect };
        let is_it = |here: &ReplicaReport| here.descriptor.tablet == tablet.tablet && here.replica == member.replica;
        if report.replicas.iter().any(is_it) {
            return ReplicaHealth::Healthy;
        }
        dead_or_suspect(Component::Replica(member.server, tablet.tablet, member.replica))
    }

    fn is_damaged(&self, tablet: TabletId, member: Replica) -> bool {
        let report = self.cluster.servers.get(&member.server).and_then(|server| server.report.as_ref());
        report.is_some_and(|report| report.damaged.contains(&(tablet, member.replica)))
    }

    /// Tablets that have lost their quorum: reported to operators, never repaired automatically.
    fn quorum_losses(&self) -> Vec<Action> {
        let known = self.cluster.known_tablets().into_values();
        let newest =
            known.map(|tablet| self.leaders.get(&tablet.tablet).map_or(tablet, |(_leader, report)| &report.descriptor));
        let dead = newest.filter(|tablet| self.is_repairable(tablet)).filter_map(|tablet| {
            let (dead, of) = (self.voters_with(tablet, ReplicaHealth::Dead).len(), voters(tablet).len());
            (2 * dead >= of).then_some(Action::ReportQuorumLoss {
                table: tablet.table,
                tablet: tablet.tablet,
                dead,
                of,
            })
        });
        dead.collect()
    }

    /// Members that their server does not have, for example because it missed the split that created them.
    fn missing_replicas(&self) -> Vec<Action> {
        let (now, timeout) = (self.ctx.now, self.ctx.grace / RECREATE_FRACTION);
        let mut actions = Vec::new();
        for (_leader, report) in self.candidates() {
            let tablet = &report.descriptor;
            if self.cluster.plans.contains_key(&tablet.table) {
                // The creation of the table creates them.
                continue;
            }
            let missing = tablet.membership.replicas().filter(|member| {
                let component = Component::Replica(member.server, tablet.tablet, member.replica);
                self.ctx.failures.is_missing_for(component, now, timeout)
            });
            actions.extend(missing.map(|replica| Action::CreateReplica { tablet: tablet.clone(), replica }));
        }
        actions
    }

    fn extra_replicas(&self) -> Vec<Action> {
        let confirmed = extra_replicas(self.cluster).into_iter().filter(|extra| extra.leader.settled);
        let drops = confirmed.filter(|extra| self.is_repairable(&extra.leader.descriptor));
        let drop = |ExtraReplica { server, tablet, replica, .. }| Action::DropReplica { server, tablet, replica };
        drops.map(drop).collect()
    }
}

/// A replica that the leader of its tablet does not list as a member, with that leader's report.
struct ExtraReplica<'a> {
    server: ServerId,
    tablet: TabletId,
    replica: ReplicaId,
    leader: &'a ReplicaReport,
}

fn extra_replicas(cluster: &ClusterSnapshot) -> Vec<ExtraReplica<'_>> {
    let leaders = cluster.leader_reports();
    let running = cluster.reports().map(|(server, report)| (server, report.descriptor.tablet, report.replica));
    let all: BTreeSet<_> = running.chain(cluster.stopped_replicas()).collect();
    let extra = |(server, tablet, replica)| {
        let (_leader, leader) = *leaders.get(&tablet)?;
        let is_member = leader.descriptor.membership.server_of(replica) == Some(server);
        (!is_member).then_some(ExtraReplica { server, tablet, replica, leader })
    };
    all.into_iter().filter_map(extra).collect()
}

/// Whether there seems to be an extra replica whose leader was not confirmed: worth another round soon.
#[must_use]
pub fn has_unconfirmed_extras(cluster: &ClusterSnapshot) -> bool {
    extra_replicas(cluster).iter().any(|extra| !extra.leader.settled)
}

/// The voter to remove when the learner becomes one: the one on the same server, or the first of the dead.
fn replaced_voter(dead: &[Replica], learner: Replica) -> Option<ReplicaId> {
    let same_server = dead.iter().find(|one| one.server == learner.server);
    same_server.or_else(|| dead.first()).map(|one| one.replica)
}

fn voters(tablet: &TabletDescriptor) -> BTreeSet<ReplicaId> {
    tablet.membership.voters.last().cloned().unwrap_or_default()
}
