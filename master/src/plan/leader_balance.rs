//! Leader balance: every server should have about as much work as every other by the groups that it leads.
//!
//! A leadership costs as much as 20 requests per second, and the reads and writes of the group are added. A server has a share of all
//! that ([`super::shares`]). A leadership is transferred to another voter if that gains enough. Without requests, that is a server that leads at
//! least two groups fewer: only then are the two servers more even afterwards, so the transfers end by themselves. METADATA's group does not
//! count when other groups are balanced; it is balanced last. Each transfer costs the
//! group some milliseconds without writes. A target must be able to take over at once:
//!
//! - its server is registered and responds (a server that is stopping is not registered any more), its clock is not off and its disk
//!   is not slow,
//! - its replica is running and has applied nearly all that the leader has,
//! - the leader has heard from it recently, is confirmed by a quorum, and no replica change is in progress.
//!
//! Nothing is balanced while a leader has not measured its load yet ([`super::load_settling`]).
//!
//! The leaderships of a **drained** server leave it before all others, whatever the numbers are, to the possible target that leads the
//! fewest groups. It gets none.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ebla_model::id::{GroupId, ServerId};
use ebla_model::metadata::GroupDescriptor;

use super::Action;
use super::load_settling::Loads;
use super::repair::{PlanContext, is_being_created};
use super::replica_balance::{Distribution, Part};
use super::shares::{MARGIN, Shares};
use crate::cluster::{ClusterSnapshot, Registration, ReplicaReport};

/// The maximum number of transfers in one round: the next round takes a new snapshot.
const MOVES_MAX: usize = 16;
/// The maximum lag of a target, in log entries. Its leader rejects writes until it has caught up.
const LAG_MAX: u64 = 1_000;

/// The report of each group's leader.
type Leaders<'a> = BTreeMap<GroupId, (ServerId, &'a ReplicaReport)>;

/// What a leadership costs besides its requests, in requests per second: heartbeats, elections, a queue of its own. A larger number would hide
/// differences in requests.
const LEADERSHIP: u64 = 20;
/// The mean of work per server below which requests hardly count. A single leadership must be more than a margin of it.
const WORK_MIN: u64 = 300;

/// The work of leaderships.
type LedShares = Shares<1>;

/// What each possible target server leads.
type Led = BTreeMap<ServerId, LedShares>;

/// A leadership that may be transferred.
struct Transfer<'a> {
    group: &'a GroupDescriptor,
    leader: ServerId,
    share: LedShares,
    targets: Vec<ServerId>,
}

/// How the work of leaderships is distributed among the servers, as the leaders report it.
pub(super) fn led_work(cluster: &ClusterSnapshot) -> Distribution {
    let mut leaders = cluster.leader_reports();
    leaders.remove(&GroupId::METADATA);
    let mean = mean(cluster, &leaders);
    let servers = led(cluster, &leaders, mean).into_iter().map(|(server, shares)| (server, shares.at(0)));
    let part = |(group, (server, report)): (&GroupId, &(ServerId, &ReplicaReport))| Part {
        group: *group,
        server: *server,
        share: share(report, mean).at(0),
        targets: targets(cluster, *server, report),
    };
    Distribution { servers: servers.collect(), parts: leaders.iter().map(part).collect() }
}

/// The work of leading this group, in requests per second.
fn work(report: &ReplicaReport) -> u64 {
    report.tablets.iter().map(|tablet| tablet.load.per_second()).fold(LEADERSHIP, u64::saturating_add)
}

fn share(report: &ReplicaReport, mean: u64) -> LedShares {
    LedShares::of([work(report)], [mean])
}

/// The mean of the servers that may lead, at least [`WORK_MIN`].
fn mean(cluster: &ClusterSnapshot, leaders: &Leaders<'_>) -> u64 {
    let servers = (cluster.loads().len() as u64).max(1);
    (leaders.values().map(|(_leader, report)| work(report)).fold(0, u64::saturating_add) / servers).max(WORK_MIN)
}

/// What each server that may lead leads.
fn led(cluster: &ClusterSnapshot, leaders: &Leaders<'_>, mean: u64) -> Led {
    let mut led: Led = cluster.loads().into_keys().map(|server| (server, LedShares::NONE)).collect();
    for (leader, report) in leaders.values() {
        if let Some(of_server) = led.get_mut(leader) {
            *of_server = of_server.plus(share(report, mean));
        }
    }
    led
}

/// The transfers from drained servers, then those that gain most, in order: METADATA is balanced last.
pub(super) fn balance_leaders(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    let mut leaders = cluster.leader_reports();
    let drained: Leaders<'_> =
        leaders.extract_if(.., |_group, (leader, _report)| cluster.drained.contains(leader)).collect();
    let (metadata, users): (Leaders<'_>, Leaders<'_>) =
        leaders.into_iter().partition(|(group, _leader)| *group == GroupId::METADATA);
    let of_users = mean(cluster, &users);
    let mut led_by = led(cluster, &users, of_users);
    let mut moves = leave_drained(&mut led_by, transfers(cluster, ctx, &drained, of_users));
    if ctx.loads == Loads::New {
        return moves;
    }
    balance(&mut moves, &mut led_by, transfers(cluster, ctx, &users, of_users));
    for (leader, report) in metadata.values() {
        if let Some(of_server) = led_by.get_mut(leader) {
            *of_server = of_server.plus(share(report, of_users));
        }
    }
    balance(&mut moves, &mut led_by, transfers(cluster, ctx, &metadata, of_users));
    moves
}

/// Whether the leadership of a group can be transferred from its server, as soon as a quorum confirms it.
pub(super) fn can_leave(cluster: &ClusterSnapshot, leader: ServerId, report: &ReplicaReport) -> bool {
    !targets(cluster, leader, report).is_empty()
}

/// The transfers of leaderships that must leave their servers.
fn leave_drained(led: &mut Led, transfers: Vec<Transfer<'_>>) -> Vec<Action> {
    let mut moves = Vec::new();
    for Transfer { group, leader, share, targets } in transfers {
        let least = targets.into_iter().filter_map(|target| Some((led.get(&target)?.size(), target))).min();
        let Some((_size, to)) = least.filter(|_least| moves.len() < MOVES_MAX) else { continue };
        add(led, to, share);
        moves.push(Action::TransferLeader { group: group.clone(), from: leader, to });
    }
    moves
}

/// Adds the transfers that gain most: single ones, and pairs when no single one is worth it.
fn balance(moves: &mut Vec<Action>, led: &mut Led, mut transfers: Vec<Transfer<'_>>) {
    while moves.len() < MOVES_MAX {
        let mut chosen = best(led, &transfers).map_or_else(|| best_pair(led, &transfers), |one| vec![one]);
        if chosen.is_empty() {
            break;
        }
        // From the end, so that positions stay valid.
        chosen.sort_by_key(|(at, _to)| Reverse(*at));
        for (at, to) in chosen {
            let Transfer { group, leader, share, .. } = transfers.remove(at);
            if let Some(of_leader) = led.get_mut(&leader) {
                *of_leader = of_leader.minus(share);
            }
            add(led, to, share);
            moves.push(Action::TransferLeader { group: group.clone(), from: leader, to });
        }
    }
}

fn add(led: &mut Led, server: ServerId, share: LedShares) {
    if let Some(of_server) = led.get_mut(&server) {
        *of_server = of_server.plus(share);
    }
}

/// The position of the transfer that gains most, with its target. Among equal ones the first, which is the
/// group with the lowest id.
fn best(led: &Led, transfers: &[Transfer<'_>]) -> Option<(usize, ServerId)> {
    let possible = transfers.iter().enumerate().filter_map(|(at, one)| Some((largest_gain(led, one)?, at)));
    let ((_gain, to), at) = possible.min_by_key(|((gain, _to), at)| (Reverse(*gain), *at))?;
    Some((at, to))
}

/// The pair of transfers that gains most: a server hands a group on to a second one, which hands another one on to a third one, or to
/// the first one. Empty when none is worth it.
fn best_pair(led: &Led, transfers: &[Transfer<'_>]) -> Vec<(usize, ServerId)> {
    let mut of_leaders: BTreeMap<ServerId, Vec<(usize, &Transfer<'_>)>> = BTreeMap::new();
    for (at, one) in transfers.iter().enumerate() {
        of_leaders.entry(one.leader).or_default().push((at, one));
    }
    let mut best: Option<(i128, [(usize, ServerId); 2])> = None;
    for (at, one) in transfers.iter().enumerate() {
        for over in &one.targets {
            for (next_at, next) in of_leaders.get(over).into_iter().flatten() {
                for to in &next.targets {
                    let most = best.as_ref().map_or(0, |(most, _pair)| *most);
                    let gain = pair_gain(led, (one.leader, one.share), (*over, next.share), *to);
                    if let Some(gain) = gain.filter(|gain| *gain > most) {
                        best = Some((gain, [(at, *over), (*next_at, *to)]));
                    }
                }
            }
        }
    }
    best.map(|(_gain, pair)| pair.to_vec()).unwrap_or_default()
}

/// What is gained when the first server hands a share on to the second one, and that one hands another share on to the third one.
fn pair_gain(
    led: &Led,
    (from, share): (ServerId, LedShares),
    (over, next): (ServerId, LedShares),
    to: ServerId,
) -> Option<i128> {
    let changes = [(from, -share.at(0)), (over, share.at(0).saturating_sub(next.at(0))), (to, next.at(0))];
    let mut of_servers: BTreeMap<ServerId, i64> = BTreeMap::new();
    for (server, change) in changes {
        *of_servers.entry(server).or_default() += change;
    }
    let (mut twice, mut moved) = (0_i128, 0_i128);
    for (server, change) in of_servers {
        let (own, change) = (i128::from(led.get(&server)?.at(0)), i128::from(change));
        twice -= change * (2 * own + change);
        moved += change.abs();
    }
    // Half of the changes are what is moved.
    (twice > moved * i128::from(MARGIN)).then_some(twice / 2)
}

/// All possible transfers, by group.
fn transfers<'a>(cluster: &ClusterSnapshot, ctx: &PlanContext, leaders: &Leaders<'a>, mean: u64) -> Vec<Transfer<'a>> {
    let stable = leaders.iter().filter(|(group, (_leader, report))| {
        report.settled && !ctx.in_progress.contains_key(group) && !is_being_created(cluster, **group)
    });
    let transfer = |(leader, report): (ServerId, &'a ReplicaReport)| Transfer {
        group: &report.group,
        leader,
        share: share(report, mean),
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

/// What the best transfer of a leadership gains, and its target; `None` when none is worth it. Among equal targets the first.
fn largest_gain(led: &Led, one: &Transfer<'_>) -> Option<(i128, ServerId)> {
    let own = led.get(&one.leader)?;
    let gain = |target: &ServerId| LedShares::gain(*own, *led.get(target)?, one.share, &[MARGIN]);
    let gains = one.targets.iter().filter_map(|target| Some((gain(target)?, Reverse(*target))));
    gains.max().map(|(gain, Reverse(target))| (gain, target))
}
