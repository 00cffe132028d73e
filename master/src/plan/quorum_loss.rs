//! Recovery of groups that have lost their majorities permanently, from the replicas of one server, as a pure function.
//!
//! ```text
//!   a voter's server         registered or responding, and runs the replica        it counts
//!                            ... and the replica is starting, or no report yet      it may return, so it counts
//!                            ... and will make it when it applies a division        it has the rows, so it counts
//!                            ... and has it as damaged, or does not have it         lost
//!                            neither registered nor responding                      lost
//! ```
//!
//! A group whose remaining voters may be a majority is never recovered: the majority can elect a leader, and would then diverge from
//! the recovered replica. Of several remaining replicas the one with the longest log must be taken: it has everything that the others
//! have.

use std::collections::BTreeSet;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, LogId, ReplicaId, ServerId, TabletId};
use ebla_model::metadata::{GroupDescriptor, Replica, TabletDescriptor};
use ebla_model::time::Micros;

use crate::cluster::{ClusterSnapshot, ReplicaReport, ServerReport};

/// The recovery of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecovery {
    /// The group as the surviving replica has applied it.
    pub group: GroupDescriptor,
    /// The replica that becomes the only voter.
    pub survivor: ReplicaId,
    /// All other members: lost, or left behind with a shorter log.
    pub given_up: Vec<Replica>,
    /// Those of them on servers that live: damaged, or not existing.
    pub lost_on_live_servers: BTreeSet<ReplicaId>,
    /// The last entry of the survivor's log. It has every acknowledged write up to this one.
    pub last: LogId,
    /// The time of the last command that the survivor has applied.
    pub time: Micros,
    /// The tablets of the group.
    pub tablets: Vec<TabletDescriptor>,
}

/// What a recovery does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuorumLossRecovery {
    /// The groups to recover, in this order: METADATA's comes first, because the leaders of the others write their rows there.
    pub groups: Vec<GroupRecovery>,
    /// Groups that were being created on lost servers, and have neither a replica nor a tablet yet.
    pub plans: Vec<GroupDescriptor>,
    /// The servers of lost replicas that neither are registered nor respond. They must never run again.
    pub lost_servers: BTreeSet<ServerId>,
}

/// The recovery from the replicas on the server `from`: of the tablet's group, or of all groups that have lost their majorities.
///
/// # Errors
/// `Unavailable` when the server, or one that must be known to be lost, gives no report; `NotFound` when it has no replica of the tablet;
/// `FailedPrecondition` when a majority may exist or another replica knows more.
pub fn quorum_loss_recovery(
    cluster: &ClusterSnapshot,
    from: ServerId,
    tablet: Option<TabletId>,
) -> Result<QuorumLossRecovery, Error> {
    let report = cluster.servers.get(&from).and_then(|server| server.report.as_ref());
    let report = report.ok_or_else(|| {
        let message = format!(
            "tablet server {from} does not respond; start it, and give its number as ebla server list shows it"
        );
        Error::new(Reason::Unavailable, message)
    })?;
    let has_tablet =
        |replica: &ReplicaReport, tablet| replica.tablets.iter().any(|one| one.descriptor.tablet == tablet);
    let mut candidates: Vec<&ReplicaReport> = match tablet {
        None => report.replicas.iter().filter(|replica| !may_have_majority(cluster, &replica.group)).collect(),
        Some(tablet) => report.replicas.iter().filter(|replica| has_tablet(replica, tablet)).collect(),
    };
    candidates.sort_by_key(|replica| replica.group.group);
    let plans = if tablet.is_none() { unborn_groups(cluster) } else { Vec::new() };
    if candidates.is_empty() && plans.is_empty() {
        return Err(nothing_lost(from, tablet));
    }
    let groups: Vec<GroupRecovery> =
        candidates.into_iter().map(|replica| group_recovery(cluster, from, replica)).collect::<Result<_, Error>>()?;
    let lost = groups.iter().flat_map(|group| group.given_up.iter().copied());
    let planned = plans.iter().flat_map(|group| group.membership.replicas());
    let servers = lost.chain(planned).map(|replica| replica.server);
    let lost_servers = servers.filter(|server| !cluster.servers.contains_key(server)).collect();
    Ok(QuorumLossRecovery { groups, plans, lost_servers })
}

/// The groups that were being created, of which no server has a replica, no table expects tablets, and no majority can be created.
fn unborn_groups(cluster: &ClusterSnapshot) -> Vec<GroupDescriptor> {
    let reported: BTreeSet<GroupId> = cluster.reports().map(|(_server, report)| report.group.group).collect();
    let expected: BTreeSet<GroupId> =
        cluster.plans.values().flat_map(|plan| &plan.tablets).map(|tablet| tablet.group).collect();
    let planned = cluster.new_groups.values().map(|plan| &plan.group);
    let unborn = planned.filter(|group| !reported.contains(&group.group) && !expected.contains(&group.group));
    let lives = |replica: Replica| cluster.servers.contains_key(&replica.server);
    unborn.filter(|group| !group.membership.has_majority(lives)).cloned().collect()
}

fn nothing_lost(from: ServerId, tablet: Option<TabletId>) -> Error {
    match tablet {
        Some(tablet) => {
            let message = format!("tablet server {from} has no running replica of tablet {tablet}");
            Error::new(Reason::NotFound, message)
        }
        None => refused(format!(
            "no group with a replica on tablet server {from} has lost its majority: a server that is registered counts until its \
             registration ends, up to 10 s after its end"
        )),
    }
}

fn group_recovery(cluster: &ClusterSnapshot, from: ServerId, survivor: &ReplicaReport) -> Result<GroupRecovery, Error> {
    let ReplicaReport { group, replica, .. } = survivor;
    let id = group.group;
    if may_have_majority(cluster, group) {
        return Err(refused(format!(
            "a majority of the replicas of group {id} may exist: start their servers; a server that is registered counts until its \
             registration ends, up to 10 s after its end"
        )));
    }
    if !group.membership.is_voter(*replica) {
        return Err(refused(format!(
            "replica {replica} of group {id} on tablet server {from} is not a voter: it may be incomplete"
        )));
    }
    check_others(cluster, from, survivor)?;
    let is_lost_here =
        |other: &Replica| cluster.servers.contains_key(&other.server) && !may_return(cluster, id, *other);
    let given_up: Vec<Replica> = group.membership.replicas().filter(|other| other.replica != *replica).collect();
    Ok(GroupRecovery {
        lost_on_live_servers: given_up.iter().filter(|other| is_lost_here(other)).map(|other| other.replica).collect(),
        given_up,
        group: group.clone(),
        survivor: *replica,
        last: survivor.last,
        time: survivor.time,
        tablets: survivor.tablets.iter().map(|tablet| tablet.descriptor.clone()).collect(),
    })
}

/// Checks that no other replica that responds knows more, and that no later membership is known.
fn check_others(cluster: &ClusterSnapshot, from: ServerId, survivor: &ReplicaReport) -> Result<(), Error> {
    let id = survivor.group.group;
    let others = cluster.reports().filter(|(server, report)| *server != from && report.group.group == id);
    if let Some((server, _report)) =
        others.max_by_key(|(_server, report)| report.last).filter(|(_, report)| report.last > survivor.last)
    {
        return Err(refused(format!(
            "the replica of group {id} on tablet server {server} has a longer log: use --from {server}"
        )));
    }
    let newest = cluster.known_groups().remove(&id);
    if newest.is_some_and(|newest| newest.membership_log_id > survivor.group.membership_log_id) {
        return Err(refused(format!(
            "the replicas of group {id} have changed since the last entry that tablet server {from} has applied: its replica may not \
             be a member any more; recover from one that METADATA lists (ebla tablet list)"
        )));
    }
    Ok(())
}

fn refused(message: String) -> Error {
    Error::new(Reason::FailedPrecondition, message)
}

/// Whether the voters that may return contain a majority of each set of voters.
fn may_have_majority(cluster: &ClusterSnapshot, group: &GroupDescriptor) -> bool {
    let reports = cluster.reports().filter(|(_server, report)| report.group.group == group.group);
    let heard: BTreeSet<ReplicaId> = reports.flat_map(|(_server, report)| report.heard.iter().copied()).collect();
    let counts = |other: Replica| heard.contains(&other.replica) || may_return(cluster, group.group, other);
    group.membership.has_majority(counts)
}

/// Whether a replica runs, is starting, or is on a server whose state is not known.
fn may_return(cluster: &ClusterSnapshot, group: GroupId, replica: Replica) -> bool {
    let Some(server) = cluster.servers.get(&replica.server) else { return false };
    let Some(report) = &server.report else { return true };
    let runs = report.replicas.iter().any(|one| one.group.group == group && one.replica == replica.replica);
    runs || report.idle.contains(&(group, replica.replica)) || awaits_division(cluster, report, group)
}

/// Whether a server has a replica of the group whose division has created `group`, and it may not have applied the division: its own rows become
/// a replica of `group` then.
fn awaits_division(cluster: &ClusterSnapshot, on: &ServerReport, group: GroupId) -> bool {
    let of_group =
        |(_server, report): (ServerId, &ReplicaReport)| report.division.filter(|_| report.group.group == group);
    let Some(division) = cluster.reports().find_map(of_group) else { return false };
    let parent = on.replicas.iter().find(|one| one.group.group == division.parent);
    match parent {
        Some(parent) => parent.applied.index < division.index,
        None => on.idle.iter().any(|(idle, _replica)| *idle == division.parent),
    }
}
