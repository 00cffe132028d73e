//! Leader balance: every server should lead about as many tablets as every other.
//!
//! A leader does most of a tablet's work, and elections place leaders at random: a restarted server leads nothing at
//! first, and after some restarts one server leads nearly everything. Its next crash would then affect every table.
//!
//! A leadership is transferred to another voter whose server leads at least two tablets fewer: only then are the two
//! servers more even afterwards, so the transfers end by themselves. Each costs the tablet some milliseconds without
//! writes. A target must be able to take over at once:
//!
//! - its server is registered and responds (a server that is stopping is not registered any more),
//! - its replica is running and has applied nearly all that the leader has,
//! - the leader has heard from it recently, is confirmed by a quorum, and no replica change is in progress.
//!
//! The load of a tablet is ignored: leaderships are counted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;

use super::repair::PlanContext;
use super::{Action, is_live};
use crate::cluster::{ClusterSnapshot, Registration, ReplicaReport};

/// The maximum number of transfers in one round: the next round takes a new snapshot.
const MOVES_MAX: usize = 16;
/// The maximum lag of a target, in log entries. Its leader rejects writes until it has caught up.
const LAG_MAX: u64 = 1_000;

/// The report of each tablet's leader.
type Leaders<'a> = BTreeMap<TabletId, (ServerId, &'a ReplicaReport)>;

/// A leadership that may be transferred.
struct Transfer<'a> {
    tablet: &'a TabletDescriptor,
    leader: ServerId,
    targets: Vec<ServerId>,
}

/// The transfers that reduce the largest imbalances, in order.
pub(super) fn balance_leaders(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    let leaders = cluster.leader_reports();
    let mut counts = counts(cluster, &leaders);
    let mut transfers = transfers(cluster, ctx, &leaders);
    let mut moves = Vec::new();
    while moves.len() < MOVES_MAX {
        let best = transfers.iter().enumerate().filter_map(|(at, one)| Some((imbalance(&counts, one)?, at)));
        // Among equal ones the first, which is the tablet with the lowest id.
        let Some(((_imbalance, to), at)) = best.min_by_key(|((imbalance, _to), at)| (Reverse(*imbalance), *at)) else {
            break;
        };
        let Transfer { tablet, leader, .. } = transfers.remove(at);
        *counts.entry(leader).or_default() -= 1;
        *counts.entry(to).or_default() += 1;
        moves.push(Action::TransferLeader { tablet: tablet.clone(), from: leader, to });
    }
    moves
}

/// How many tablets each possible target server leads.
fn counts(cluster: &ClusterSnapshot, leaders: &Leaders<'_>) -> BTreeMap<ServerId, u64> {
    let mut counts: BTreeMap<ServerId, u64> = cluster.loads().into_keys().map(|server| (server, 0)).collect();
    for (leader, _report) in leaders.values() {
        if let Some(count) = counts.get_mut(leader) {
            *count += 1;
        }
    }
    counts
}

/// All possible transfers, tables of users first: METADATA is transferred last.
fn transfers<'a>(cluster: &ClusterSnapshot, ctx: &PlanContext, leaders: &Leaders<'a>) -> Vec<Transfer<'a>> {
    let stable = leaders.values().filter(|(_leader, report)| {
        let tablet = &report.descriptor;
        report.settled && is_live(cluster, tablet.table) && !ctx.in_progress.contains_key(&tablet.tablet)
    });
    let mut transfers: Vec<Transfer<'a>> = stable
        .map(|&(leader, report)| Transfer {
            tablet: &report.descriptor,
            leader,
            targets: targets(cluster, leader, report),
        })
        .collect();
    transfers.sort_by_key(|one| (one.tablet.table == TableId::METADATA, one.tablet.tablet));
    transfers
}

/// The servers that could lead the tablet at once.
fn targets(cluster: &ClusterSnapshot, leader: ServerId, report: &ReplicaReport) -> Vec<ServerId> {
    let members = &report.descriptor.membership;
    let others = members.replicas().filter(|member| member.server != leader && members.is_voter(member.replica));
    let heard = others.filter(|member| report.heard.contains(&member.replica));
    let ready = heard.filter(|member| {
        let Some(server) = cluster.servers.get(&member.server) else { return false };
        let mut replicas = server.report.iter().flat_map(|report| &report.replicas);
        server.registration == Registration::Registered
            && replicas.any(|own| own.replica == member.replica && is_caught_up(own, report))
    });
    ready.map(|member| member.server).collect()
}

/// Whether a replica of the tablet has applied nearly all that its leader has.
fn is_caught_up(own: &ReplicaReport, leader: &ReplicaReport) -> bool {
    own.descriptor.tablet == leader.descriptor.tablet && leader.applied.index.since(own.applied.index) <= LAG_MAX
}

/// The difference between the leader's count and the smallest count of a target, and that target; `None` when a
/// transfer would not help.
fn imbalance(counts: &BTreeMap<ServerId, u64>, one: &Transfer<'_>) -> Option<(u64, ServerId)> {
    let own = counts.get(&one.leader)?;
    let least = one.targets.iter().filter_map(|target| Some((*counts.get(target)?, *target))).min()?;
    let imbalance = own.checked_sub(least.0)?;
    (imbalance >= 2).then_some((imbalance, least.1))
}
