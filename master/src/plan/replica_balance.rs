//! Replica balance: moves of replicas between healthy servers, so that every server has about as many bytes, tablets, replicas and writes
//! as every other; and divisions of groups while they are too few or too large for that.
//!
//! A server has four **shares** (`shares`): of the bytes, of the tablets and of the replicas that all servers have, and of the writes per
//! second, which every replica of a group applies. The move with the largest gain is planned first. Reads are the load of leaderships
//! (`leader_balance`).
//!
//! When no move is worth it, two servers may **exchange** two replicas of followers: a large one for a smaller one. The same holds then for
//! the difference of the two, which must be at least an eighth of what is copied.
//!
//! A small cluster with few bytes is not balanced by them: their mean counts as at least 64 MiB (`BYTES_MIN`), that of the writes as
//! at least 1,000 per second. Tablets and replicas count half. A follower's replica is preferred to that of a leader, whose leadership must move too.
//!
//! Nothing moves unless the cluster is **at rest**: all servers respond, every group has a leader and all its members run, no replica is on a
//! drained server, nothing is created or repaired, no change is in progress, and all leaders have measured their loads (`load_settling`). The moves of one plan are bounded by
//! the budget of all changes (`change_budget`). Groups with one replica do not move: it could not replace itself at once.
//! METADATA's group does not count: it has little work.
//!
//! **Zones** come before all: a replica that shares a zone with another one of its group moves to a server where it shares it with fewer, or
//! none ([`super::zones`]); METADATA's too. No move makes zones worse.
//!
//! **Division**: there should be a group for each server (`placement::missing_groups`), because a group has one leader. While there are
//! fewer, the largest group with several tablets is divided, one in a plan; its halves move apart afterwards. A group is also divided when
//! nothing can be moved any more and still a server is more than 12 % from the mean of bytes, of writes or of the load of leaderships
//! (`refine`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::Action;
use super::capacity::check_room_for_division;
use super::change_budget::{ChangeBudget, others};
use super::leader_balance::led_work;
use super::load_settling::Loads;
use super::placement::missing_groups;
use super::repair::{Addition, ChangeReason, PlanContext, ReplicaChange};
use super::shares::{LOAD_MARGIN, MARGIN, MEAN, Shares};
use crate::cluster::{ClusterSnapshot, ReplicaReport};

/// The mean of bytes below which bytes hardly count.
const BYTES_MIN: u64 = 64 << 20;
/// The mean of writes per second below which writes hardly count.
const WRITES_MIN: u64 = 1_000;
/// What an exchange changes is at least this fraction of what it copies.
const EXCHANGE_FRACTION: i64 = 8;
/// The difference from the mean from which groups are divided to become smaller. The goal is 15 %, and loads vary.
const TOLERANCE: i64 = MEAN * 12 / 100;
/// The maximum number of groups for each server, beyond which none is divided to become smaller: each costs heartbeats and a log.
const GROUPS_PER_SERVER_MAX: usize = 6;
/// A part of a group above a quarter of the mean is large: a server should have several parts of different sizes.
const LARGE_PART: i64 = MEAN / 4;
/// Of tablets and replicas this fraction counts: bytes and writes are what a server runs out of.
const COUNT_FRACTION: u64 = 2;
/// The margins of the shares of replicas.
const MARGINS: [i64; 4] = [MARGIN, MARGIN / 2, MARGIN / 2, LOAD_MARGIN];

/// Whether replicas are moved between healthy servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaBalance {
    /// They are.
    On,
    /// They stay where they are, unless they must be replaced.
    Off,
}

/// The moves that may start now, or a division. Nothing unless the cluster is at rest.
pub(super) fn balance_replicas(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    if ctx.balance == ReplicaBalance::Off || !is_at_rest(cluster, ctx) {
        return Vec::new();
    }
    let mut budget = ChangeBudget::new(cluster, ctx);
    let apart = zone_moves(cluster, &mut budget);
    if !apart.is_empty() {
        return apart;
    }
    if let Some(group) = division(cluster) {
        return vec![Action::DivideGroup(group.clone())];
    }
    if ctx.loads == Loads::New {
        return Vec::new();
    }
    let mut shares = ServerShares::of(cluster);
    let mut moves = Vec::new();
    loop {
        let chosen = shares.take_best(&budget);
        if chosen.is_empty() {
            return moves;
        }
        for (replica_move, group) in chosen {
            budget.start(replica_move.to, group.descriptor.group);
            shares.apply(&replica_move, &group);
            moves.push(change(group.descriptor, group.leader, &replica_move));
        }
    }
}

fn change(group: &GroupDescriptor, leader: ServerId, replica_move: &ReplicaMove) -> Action {
    Action::ChangeReplicas(ReplicaChange {
        group: group.clone(),
        leader,
        add: Some(Addition::New(replica_move.to)),
        remove: Some(replica_move.replica),
        reason: ChangeReason::Balance,
    })
}

/// The moves of replicas that share a zone with others of their group, one for each group.
fn zone_moves(cluster: &ClusterSnapshot, budget: &mut ChangeBudget<'_>) -> Vec<Action> {
    let loads = cluster.loads();
    let mut moves = Vec::new();
    for (leader, report) in cluster.leader_reports().into_values() {
        let group = &report.group;
        let Some(replica_move) = zone_move(&loads, budget, leader, group) else { continue };
        budget.start(replica_move.to, group.group);
        moves.push(change(group, leader, &replica_move));
    }
    moves
}

/// The move that makes the zones of a group's members more different, if there is one: of a follower if possible, to the zone with the
/// fewest members, from the most and to the least loaded server.
fn zone_move(
    loads: &BTreeMap<ServerId, u64>,
    budget: &ChangeBudget<'_>,
    leader: ServerId,
    group: &GroupDescriptor,
) -> Option<ReplicaMove> {
    let members = group.membership.replicas.len();
    if members < 2 {
        return None;
    }
    let mut possible = Vec::new();
    for member in group.membership.replicas() {
        let others = others(group, Some(member));
        let own = budget.zones().occupancy(member.server, &others);
        for (to, load) in loads.iter().filter(|_server| own > 0) {
            let occupancy = budget.zones().occupancy(*to, &others);
            if occupancy < own && budget.admits(group, member, *to) {
                let from_load = Reverse(loads.get(&member.server).copied());
                possible.push((member.server == leader, occupancy, from_load, *load, *to, member));
            }
        }
    }
    let best = possible
        .into_iter()
        .min_by_key(|(leads, occupancy, from, load, to, _member)| (*leads, *occupancy, *from, *load, *to));
    best.map(|(.., to, member)| ReplicaMove { replica: member.replica, from: member.server, to })
}

/// Whether everything is as it should be, so that a move is not in the way of anything.
fn is_at_rest(cluster: &ClusterSnapshot, ctx: &PlanContext) -> bool {
    let leaders = cluster.leader_reports();
    let running: BTreeSet<(ServerId, GroupId, ReplicaId)> =
        cluster.reports().map(|(server, report)| (server, report.group.group, report.replica)).collect();
    let has_its_members = |group: GroupId| {
        leaders.get(&group).is_some_and(|(_leader, report)| {
            let membership = &report.group.membership;
            let mut members = membership.replicas();
            membership.is_uniform()
                && members.all(|member| {
                    membership.is_voter(member.replica)
                        && !cluster.drained.contains(&member.server)
                        && running.contains(&(member.server, group, member.replica))
                })
        })
    };
    ctx.in_progress.is_empty()
        && cluster.new_groups.is_empty()
        && cluster.servers.values().all(|server| server.report.is_some())
        && cluster.known_groups().into_keys().all(has_its_members)
}

/// The group to divide, if there are fewer groups than servers: the largest of those that have several tablets and whose servers have
/// room for another group.
fn division(cluster: &ClusterSnapshot) -> Option<&GroupDescriptor> {
    let mut groups = cluster.leader_reports();
    groups.remove(&GroupId::METADATA);
    if missing_groups(cluster.loads().len(), groups.len()) == 0 {
        return None;
    }
    let divisible = groups
        .into_values()
        .map(|(_leader, report)| report)
        .filter(|report| report.tablets.len() >= 2 && check_room_for_division(cluster, &report.group).is_ok());
    let size = |report: &&ReplicaReport| (report.size_bytes(), report.tablets.len(), Reverse(report.group.group));
    divisible.max_by_key(size).map(|report| &report.group)
}

/// The group to divide because the groups are too large to be balanced: nothing can be moved or transferred, and still a server is far
/// from the mean.
///
/// It is the group of which half would gain most if it moved, by the amount whose distribution is worst.
pub(super) fn refine<'a>(cluster: &'a ClusterSnapshot, ctx: &PlanContext) -> Option<&'a GroupDescriptor> {
    let shares = ServerShares::of(cluster);
    if ctx.balance == ReplicaBalance::Off
        || ctx.loads == Loads::New
        || shares.all.len() >= shares.servers.len().saturating_mul(GROUPS_PER_SERVER_MAX)
        || !is_at_rest(cluster, ctx)
    {
        return None;
    }
    let of_replicas = [BYTES, WRITES].map(|position| shares.distribution(position));
    let distributions = of_replicas.into_iter().chain([led_work(cluster)]);
    let mut uneven: Vec<(i64, Distribution)> = distributions.map(|one| (one.deviation(), one)).collect();
    uneven.retain(|(deviation, _one)| *deviation > TOLERANCE);
    uneven.sort_by_key(|(deviation, _one)| Reverse(*deviation));
    let divisible = |(worth, id): (i128, GroupId)| {
        let group = shares.all.iter().find(|one| one.descriptor.group == id)?;
        let is_divisible = group.tablets >= 2 && check_room_for_division(cluster, group.descriptor).is_ok();
        is_divisible.then_some((worth, Reverse(id), group.descriptor))
    };
    let largest = |candidates: Vec<(i128, GroupId)>| {
        let candidates = candidates.into_iter().filter_map(divisible);
        candidates.max_by_key(|(worth, id, _descriptor)| (*worth, *id)).map(|(_worth, _id, descriptor)| descriptor)
    };
    uneven.into_iter().find_map(|(_deviation, distribution)| {
        largest(distribution.gains_of_halves()).or_else(|| largest(distribution.large_parts()))
    })
}

/// How an amount is distributed among the servers.
pub(super) struct Distribution {
    /// The shares of all servers that may have some.
    pub(super) servers: BTreeMap<ServerId, i64>,
    /// The parts of groups.
    pub(super) parts: Vec<Part>,
}

/// What a server has of an amount because of one group.
pub(super) struct Part {
    /// The group.
    pub(super) group: GroupId,
    /// The server.
    pub(super) server: ServerId,
    /// The share.
    pub(super) share: i64,
    /// The servers that could have it instead.
    pub(super) targets: Vec<ServerId>,
}

impl Distribution {
    /// The largest difference of a server from the mean.
    fn deviation(&self) -> i64 {
        let count = i64::try_from(self.servers.len().max(1)).unwrap_or(i64::MAX);
        // Less than the unit where the amount is so small that it hardly counts.
        let mean = self.servers.values().copied().fold(0, i64::saturating_add).checked_div(count).unwrap_or_default();
        self.servers.values().map(|share| share.saturating_sub(mean).saturating_abs()).max().unwrap_or_default()
    }

    /// For each group: what the move of half of its part to the best target gains, if that is worth it. Not only for groups of the server
    /// that has most: a server may be far below the mean while no other one is far above it.
    fn gains_of_halves(&self) -> Vec<(i128, GroupId)> {
        let gain = |part: &Part| {
            let from = self.servers.get(&part.server)?;
            let least = part.targets.iter().filter_map(|target| self.servers.get(target)).min()?;
            let half = Shares::new(part.share.checked_div(2)?);
            let gain = Shares::gain(Shares::new(*from), Shares::new(*least), half, &[LOAD_MARGIN])?;
            Some((gain, part.group))
        };
        self.parts.iter().filter_map(gain).collect()
    }

    /// The groups whose parts are so large that few ways to distribute them exist.
    fn large_parts(&self) -> Vec<(i128, GroupId)> {
        let large = self.parts.iter().filter(|part| part.share > LARGE_PART);
        large.map(|part| (i128::from(part.share), part.group)).collect()
    }
}

/// Bytes, tablets, replicas and writes per second.
type ReplicaShares = Shares<4>;
/// The position of the bytes.
const BYTES: usize = 0;
/// The position of the writes.
const WRITES: usize = 3;

/// A group with what it costs.
#[derive(Clone, Copy)]
struct BalancedGroup<'a> {
    descriptor: &'a GroupDescriptor,
    leader: ServerId,
    tablets: usize,
    /// Those of one replica.
    shares: ReplicaShares,
}

/// A move of a replica.
struct ReplicaMove {
    replica: ReplicaId,
    from: ServerId,
    to: ServerId,
}

/// The shares of all servers that may get replicas, and the groups that have not been moved.
struct ServerShares<'a> {
    servers: BTreeMap<ServerId, ReplicaShares>,
    /// All groups of tables.
    all: Vec<BalancedGroup<'a>>,
    groups: Vec<BalancedGroup<'a>>,
}

/// What one replica of the group costs its server.
fn amounts(report: &ReplicaReport) -> [u64; 4] {
    let writes = report.tablets.iter().map(|tablet| tablet.load.writes_per_second).fold(0, u64::saturating_add);
    [report.size_bytes(), report.tablets.len() as u64, 1, writes]
}

impl<'a> ServerShares<'a> {
    fn of(cluster: &'a ClusterSnapshot) -> Self {
        let mut leaders = cluster.leader_reports();
        leaders.remove(&GroupId::METADATA);
        let mut servers: BTreeMap<ServerId, ReplicaShares> =
            cluster.loads().into_keys().map(|server| (server, Shares::NONE)).collect();
        let mut sums = [0_u64; 4];
        for (_leader, report) in leaders.values() {
            let replicas = report.group.membership.replicas.len() as u64;
            let of_one = amounts(report);
            sums.iter_mut().zip(of_one).for_each(|(sum, one)| *sum = sum.saturating_add(one.saturating_mul(replicas)));
        }
        let count = (servers.len() as u64).max(1);
        let [bytes, tablets, replicas, writes] = sums.map(|sum| sum / count);
        let means = [
            bytes.max(BYTES_MIN),
            tablets.saturating_mul(COUNT_FRACTION),
            replicas.saturating_mul(COUNT_FRACTION),
            writes.max(WRITES_MIN),
        ];
        let mut all = Vec::new();
        for (leader, report) in leaders.into_values() {
            let shares = Shares::of(amounts(report), means);
            for member in report.group.membership.replicas() {
                if let Some(of_server) = servers.get_mut(&member.server) {
                    *of_server = of_server.plus(shares);
                }
            }
            all.push(BalancedGroup { descriptor: &report.group, leader, tablets: report.tablets.len(), shares });
        }
        let groups = all.iter().filter(|group| group.descriptor.membership.replicas.len() > 1).copied().collect();
        Self { servers, all, groups }
    }

    /// The distribution of the amount at this position.
    fn distribution(&self, position: usize) -> Distribution {
        let servers: BTreeMap<ServerId, i64> =
            self.servers.iter().map(|(server, shares)| (*server, shares.at(position))).collect();
        let parts = |group: &BalancedGroup<'a>| {
            let membership = &group.descriptor.membership;
            let others = servers.keys().copied().filter(|server| membership.replica_on(*server).is_none());
            let targets: Vec<ServerId> = others.collect();
            let (share, group) = (group.shares.at(position), group.descriptor.group);
            let part = |member: Replica| Part { group, server: member.server, share, targets: targets.clone() };
            membership.replicas().map(part).collect::<Vec<_>>()
        };
        let parts = self.all.iter().flat_map(parts).collect();
        Distribution { servers, parts }
    }

    /// Takes out the group with the best move: of a follower, or if none is worth it, of a leader; or the two groups of the best
    /// exchange. Nothing when nothing is worth it, or the budget is used up.
    fn take_best(&mut self, budget: &ChangeBudget<'_>) -> Vec<(ReplicaMove, BalancedGroup<'a>)> {
        let follower = self.best(budget, |group, server| group.leader != server);
        let best = follower.or_else(|| self.best(budget, |group, server| group.leader == server));
        let mut chosen = match best {
            Some(one) => vec![one],
            None => self.best_exchange(budget).map(Vec::from).unwrap_or_default(),
        };
        // From the end, so that positions stay valid.
        chosen.sort_by_key(|(at, _move)| Reverse(*at));
        chosen.into_iter().map(|(at, replica_move)| (replica_move, self.groups.remove(at))).collect()
    }

    /// The exchange with the largest gain, with the positions of its groups. Among equal ones the first.
    fn best_exchange(&self, budget: &ChangeBudget<'_>) -> Option<[(usize, ReplicaMove); 2]> {
        if budget.left() < 2 {
            return None;
        }
        let mut followers: BTreeMap<ServerId, Vec<(usize, Replica)>> = BTreeMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            let members = group.descriptor.membership.replicas().filter(|member| member.server != group.leader);
            members.for_each(|member| followers.entry(member.server).or_default().push((at, member)));
        }
        let mut best: Option<(i128, [(usize, ReplicaMove); 2])> = None;
        for (from, of_from) in &self.servers {
            for (to, of_to) in self.servers.range((Bound::Excluded(*from), Bound::Unbounded)) {
                let difference = of_from.minus(*of_to);
                if difference.is_within(&MARGINS) {
                    continue;
                }
                for (here, one) in followers.get(from).into_iter().flatten() {
                    for (there, other) in followers.get(to).into_iter().flatten() {
                        let most = best.as_ref().map_or(0, |(most, _moves)| *most);
                        let Some(gain) = self.exchange_gain(difference, *here, *there).filter(|gain| *gain > most)
                        else {
                            continue;
                        };
                        if self.may_move(budget, *here, *one, *to) && self.may_move(budget, *there, *other, *from) {
                            let forth = ReplicaMove { replica: one.replica, from: *from, to: *to };
                            let back = ReplicaMove { replica: other.replica, from: *to, to: *from };
                            best = Some((gain, [(*here, forth), (*there, back)]));
                        }
                    }
                }
            }
        }
        best.map(|(_gain, moves)| moves)
    }

    /// What an exchange of replicas of the groups at these positions gains, between servers with this difference.
    fn exchange_gain(&self, difference: ReplicaShares, here: usize, there: usize) -> Option<i128> {
        let (here, there) = (self.groups.get(here)?.shares, self.groups.get(there)?.shares);
        let moved = here.minus(there);
        let is_enough = moved.size().saturating_mul(EXCHANGE_FRACTION) >= here.plus(there).size();
        Shares::gain(difference, Shares::NONE, moved, &MARGINS).filter(|_gain| is_enough)
    }

    fn may_move(&self, budget: &ChangeBudget<'_>, at: usize, member: Replica, to: ServerId) -> bool {
        self.groups.get(at).is_some_and(|group| budget.admits(group.descriptor, member, to))
    }

    /// The move with the largest gain of a replica that `selects` selects, with the position of its group. Among equal ones the first.
    fn best(
        &self,
        budget: &ChangeBudget<'_>,
        selects: impl Fn(&BalancedGroup<'_>, ServerId) -> bool,
    ) -> Option<(usize, ReplicaMove)> {
        let mut best: Option<(i128, usize, ReplicaMove)> = None;
        for (at, group) in self.groups.iter().enumerate() {
            for member in group.descriptor.membership.replicas().filter(|member| selects(group, member.server)) {
                let Some(from) = self.servers.get(&member.server) else { continue };
                for (server, to) in &self.servers {
                    let Some(gain) = Shares::gain(*from, *to, group.shares, &MARGINS) else { continue };
                    if best.as_ref().is_none_or(|(most, _at, _move)| gain > *most)
                        && budget.admits(group.descriptor, member, *server)
                    {
                        let replica_move = ReplicaMove { replica: member.replica, from: member.server, to: *server };
                        best = Some((gain, at, replica_move));
                    }
                }
            }
        }
        best.map(|(_gain, at, replica_move)| (at, replica_move))
    }

    fn apply(&mut self, replica_move: &ReplicaMove, group: &BalancedGroup<'_>) {
        if let Some(from) = self.servers.get_mut(&replica_move.from) {
            *from = from.minus(group.shares);
        }
        if let Some(to) = self.servers.get_mut(&replica_move.to) {
            *to = to.plus(group.shares);
        }
    }
}
