//! Leader balance: every server should lead about as many groups as every other.
//!
//! A leader does most of a group's work, and elections place leaders at random: a restarted server leads nothing at
//! first, and after some restarts one server leads nearly everything. Its next crash would then affect every table.
//!
//! A leadership is transferred to another voter whose server leads at least two groups fewer: only then are the two
//! servers more even afterwards, so the transfers end by themselves. METADATA's group has little work, so it does not
//! count when other groups are balanced; it is balanced last, by the number of all groups. Each transfer costs the
//! group some milliseconds without writes. A target must be able to take over at once:
//!
//! - its server is registered and responds (a server that is stopping is not registered any more), its clock is not off and its disk
//!   is not slow,
//! - its replica is running and has applied nearly all that the leader has,
//! - the leader has heard from it recently, is confirmed by a quorum, and no replica change is in progress.
//!
//! The leaderships of a **drained** server leave it before all others, whatever the numbers are, to the possible target that leads the
//! fewest groups. It gets none.
//!
//! The load of a group is ignored: leaderships are counted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ebla_model::id::{GroupId, ServerId};
use ebla_model::metadata::GroupDescriptor;

use super::Action;
use super::repair::{PlanContext, is_being_created};
use crate::cluster::{ClusterSnapshot, Registration, ReplicaReport};

/// The maximum number of transfers in one round: the next round takes a new snapshot.
const MOVES_MAX: usize = 16;
/// The maximum lag of a target, in log entries. Its leader rejects writes until it has caught up.
const LAG_MAX: u64 = 1_000;

/// The report of each group's leader.
type Leaders<'a> = BTreeMap<GroupId, (ServerId, &'a ReplicaReport)>;

/// The number of groups that each possible target server leads.
type Counts = BTreeMap<ServerId, u64>;

/// A leadership that may be transferred.
struct Transfer<'a> {
    group: &'a GroupDescriptor,
    leader: ServerId,
    targets: Vec<ServerId>,
}

/// The transfers from drained servers, then those that reduce the largest imbalances, in order: METADATA is balanced last.
pub(super) fn balance_leaders(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    let mut leaders = cluster.leader_reports();
    let mut counts: Counts = cluster.loads().into_keys().map(|server| (server, 0)).collect();
    let drained: Leaders<'_> =
        leaders.extract_if(.., |_group, (leader, _report)| cluster.drained.contains(leader)).collect();
    let (metadata, users): (Leaders<'_>, Leaders<'_>) =
        leaders.into_iter().partition(|(group, _leader)| *group == GroupId::METADATA);
    count(&mut counts, &users);
    let mut moves = leave_drained(&mut counts, transfers(cluster, ctx, &drained));
    balance(&mut moves, &mut counts, transfers(cluster, ctx, &users));
    count(&mut counts, &metadata);
    balance(&mut moves, &mut counts, transfers(cluster, ctx, &metadata));
    moves
}

/// Whether the leadership of a group can be transferred from its server, as soon as a quorum confirms it.
pub(super) fn can_leave(cluster: &ClusterSnapshot, leader: ServerId, report: &ReplicaReport) -> bool {
    !targets(cluster, leader, report).is_empty()
}

/// The transfers of leaderships that must leave their servers.
fn leave_drained(counts: &mut Counts, transfers: Vec<Transfer<'_>>) -> Vec<Action> {
    let mut moves = Vec::new();
    for Transfer { group, leader, targets } in transfers {
        let least = targets.into_iter().filter_map(|target| Some((*counts.get(&target)?, target))).min();
        let Some((_count, to)) = least.filter(|_least| moves.len() < MOVES_MAX) else { continue };
        *counts.entry(to).or_default() += 1;
        moves.push(Action::TransferLeader { group: group.clone(), from: leader, to });
    }
    moves
}

/// Adds the transfers that reduce the largest imbalances.
fn balance(moves: &mut Vec<Action>, counts: &mut Counts, mut transfers: Vec<Transfer<'_>>) {
    while moves.len() < MOVES_MAX {
        let Some((Transfer { group, leader, .. }, to)) = best(counts, &mut transfers) else { break };
        *counts.entry(leader).or_default() -= 1;
        *counts.entry(to).or_default() += 1;
        moves.push(Action::TransferLeader { group: group.clone(), from: leader, to });
    }
}

/// Takes out the transfer that reduces the largest imbalance, with its target. Among equal ones the first, which is the
/// group with the lowest id.
fn best<'a>(counts: &Counts, transfers: &mut Vec<Transfer<'a>>) -> Option<(Transfer<'a>, ServerId)> {
    let possible = transfers.iter().enumerate().filter_map(|(at, one)| Some((imbalance(counts, one)?, at)));
    let ((_imbalance, to), at) = possible.min_by_key(|((imbalance, _to), at)| (Reverse(*imbalance), *at))?;
    Some((transfers.remove(at), to))
}

/// Adds the groups that each possible target server leads.
fn count(counts: &mut Counts, leaders: &Leaders<'_>) {
    for (leader, _report) in leaders.values() {
        if let Some(count) = counts.get_mut(leader) {
            *count += 1;
        }
    }
}

/// All possible transfers, by group.
fn transfers<'a>(cluster: &ClusterSnapshot, ctx: &PlanContext, leaders: &Leaders<'a>) -> Vec<Transfer<'a>> {
    let stable = leaders.iter().filter(|(group, (_leader, report))| {
        report.settled && !ctx.in_progress.contains_key(group) && !is_being_created(cluster, **group)
    });
    let transfer = |(leader, report): (ServerId, &'a ReplicaReport)| Transfer {
        group: &report.group,
        leader,
        targets: targets(cluster, leader, report),
    };
    stable.map(|(_group, leader)| transfer(*leader)).collect()
}

/// The servers that could lead the group at once.
fn targets(cluster: &ClusterSnapshot, leader: ServerId, report: &ReplicaReport) -> Vec<ServerId> {
    let members = &report.group.membership;
    let others = members.replicas().filter(|member| member.server != leader && members.is_voter(member.replica));
    let heard = others.filter(|member| report.heard.contains(&member.replica));
    let ready = heard.filter(|member| {
        let Some(server) = cluster.servers.get(&member.server) else { return false };
        let mut replicas = server.report.iter().flat_map(|report| &report.replicas);
        server.registration == Registration::Registered
            && !cluster.drained.contains(&member.server)
            && server.report.as_ref().is_some_and(|report| !report.clock.is_off && !report.sync.is_slow)
            && replicas.any(|own| own.replica == member.replica && is_caught_up(own, report))
    });
    ready.map(|member| member.server).collect()
}

/// Whether a replica of the group has applied nearly all that its leader has.
fn is_caught_up(own: &ReplicaReport, leader: &ReplicaReport) -> bool {
    own.group.group == leader.group.group && leader.applied.index.since(own.applied.index) <= LAG_MAX
}

/// The difference between the leader's count and the smallest count of a target, and that target; `None` when a
/// transfer would not help.
fn imbalance(counts: &Counts, one: &Transfer<'_>) -> Option<(u64, ServerId)> {
    let own = counts.get(&one.leader)?;
    let least = one.targets.iter().filter_map(|target| Some((*counts.get(target)?, *target))).min()?;
    let imbalance = own.checked_sub(least.0)?;
    (imbalance >= 2).then_some((imbalance, least.1))
}
