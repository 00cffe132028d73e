//! Replica balance: moves of replicas between healthy servers, so that every server has about as many bytes, tablets and replicas as
//! every other; and divisions of groups while there are fewer groups than servers.
//!
//! A server has three **shares**: of the bytes, of the tablets and of the replicas that all servers have, each in millionths of the mean. A
//! move of a replica with the shares `d` from server `s` to server `t` changes the sum of the squares of all shares by
//!
//! ```text
//!   -2 · gain        gain = Σ d·(s - t - d)    over the three shares
//! ```
//!
//! The move with the largest gain is planned first. It must gain more than a twentieth of the mean (`MARGIN`) for each of its own shares: then the server that gets the replica
//! has clearly less than the other one had, also afterwards. So each move lowers the sum of squares, which cannot go on for ever, and a move
//! is not reversed unless sizes change by more than the margin.
//!
//! When no move is worth it, two servers may **exchange** two replicas of followers: a large one for a smaller one. The same holds then for
//! the difference of the two, which must be at least an eighth of what is copied.
//!
//! A small cluster with few bytes is not balanced by them: their mean counts as at least 64 MiB (`BYTES_MIN`). A follower's replica is preferred to that of a
//! leader, whose leadership must move too. Load in requests does not count.
//!
//! Nothing moves unless the cluster is **at rest**: all servers respond, every group has a leader and all its members run, no replica is on a
//! drained server, nothing is created or repaired, and no change is in progress. The moves of one plan are bounded by
//! the budget of all changes (`change_budget`). Groups with one replica do not move: it could not replace itself at once.
//! METADATA's group does not count: it has little work.
//!
//! **Zones** come before all: a replica that shares a zone with another one of its group moves to a server where it shares it with fewer, or
//! none ([`super::zones`]); METADATA's too. No move makes zones worse.
//!
//! **Division**: there should be a group for each server (`placement::missing_groups`), because a group has one leader. While there are
//! fewer, the largest group with several tablets is divided, one in a plan; its halves move apart afterwards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::Action;
use super::capacity::check_room_for_division;
use super::change_budget::{ChangeBudget, others};
use super::placement::missing_groups;
use super::repair::{Addition, ChangeReason, PlanContext, ReplicaChange};
use crate::cluster::{ClusterSnapshot, ReplicaReport};

/// The unit of shares: the mean of all servers.
const MEAN: i64 = 1_000_000;
/// The smallest difference that is worth a move, as a share: a twentieth of the mean.
const MARGIN: i64 = MEAN / 20;
/// The mean of bytes below which bytes hardly count.
const BYTES_MIN: u64 = 64 << 20;
/// What an exchange changes is at least this fraction of what it copies.
const EXCHANGE_FRACTION: i64 = 8;

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

/// Amounts of bytes, tablets and replicas.
type Amounts = [u64; 3];
/// The same as shares of their means.
type Shares = [i64; 3];

fn plus(left: Shares, right: Shares, sign: i64) -> Shares {
    let mut sum = left;
    sum.iter_mut().zip(right).for_each(|(sum, right)| *sum = sum.saturating_add(sign.saturating_mul(right)));
    sum
}

/// `amount` as a share of `mean`.
fn share(amount: u64, mean: u64) -> i64 {
    let share = u128::from(amount) * u128::from(MEAN.unsigned_abs()) / u128::from(mean.max(1));
    i64::try_from(share).unwrap_or(i64::MAX)
}

/// What a move, or an exchange that moves the difference of two replicas, gains: see the [module](self). `None` when it is not worth it.
fn gain(from: Shares, to: Shares, moved: Shares) -> Option<i128> {
    let mut gain = 0_i128;
    let mut worth = 0_i128;
    for ((from, to), moved) in from.into_iter().zip(to).zip(moved) {
        let (from, to, moved) = (i128::from(from), i128::from(to), i128::from(moved));
        gain += moved * (from - to - moved);
        worth += moved.abs() * i128::from(MARGIN);
    }
    (gain > worth).then_some(gain)
}

/// A group whose replicas may move.
struct MovableGroup<'a> {
    descriptor: &'a GroupDescriptor,
    leader: ServerId,
    /// Those of one replica.
    shares: Shares,
}

/// A move of a replica.
struct ReplicaMove {
    replica: ReplicaId,
    from: ServerId,
    to: ServerId,
}

/// The shares of all servers that may get replicas, and the groups that have not been moved.
struct ServerShares<'a> {
    servers: BTreeMap<ServerId, Shares>,
    groups: Vec<MovableGroup<'a>>,
}

impl<'a> ServerShares<'a> {
    fn of(cluster: &'a ClusterSnapshot) -> Self {
        let mut leaders = cluster.leader_reports();
        leaders.remove(&GroupId::METADATA);
        let amounts = |report: &ReplicaReport| -> Amounts { [report.size_bytes(), report.tablets.len() as u64, 1] };
        let mut servers: BTreeMap<ServerId, Shares> =
            cluster.loads().into_keys().map(|server| (server, Shares::default())).collect();
        let mut sums = Amounts::default();
        for (_leader, report) in leaders.values() {
            let replicas = report.group.membership.replicas.len() as u64;
            let of_one = amounts(report);
            sums.iter_mut().zip(of_one).for_each(|(sum, one)| *sum = sum.saturating_add(one.saturating_mul(replicas)));
        }
        let count = (servers.len() as u64).max(1);
        let [bytes, tablets, replicas] = sums.map(|sum| sum / count);
        let means = [bytes.max(BYTES_MIN), tablets, replicas];
        let mut groups = Vec::new();
        for (leader, report) in leaders.into_values() {
            let mut shares = Shares::default();
            shares.iter_mut().zip(amounts(report)).zip(means).for_each(|((to, of), mean)| *to = share(of, mean));
            for member in report.group.membership.replicas() {
                if let Some(of_server) = servers.get_mut(&member.server) {
                    *of_server = plus(*of_server, shares, 1);
                }
            }
            if report.group.membership.replicas.len() > 1 {
                groups.push(MovableGroup { descriptor: &report.group, leader, shares });
            }
        }
        Self { servers, groups }
    }

    /// Takes out the group with the best move: of a follower, or if none is worth it, of a leader; or the two groups of the best
    /// exchange. Nothing when nothing is worth it, or the budget is used up.
    fn take_best(&mut self, budget: &ChangeBudget<'_>) -> Vec<(ReplicaMove, MovableGroup<'a>)> {
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
                let difference = plus(*of_from, *of_to, -1);
                if difference.iter().all(|one| one.abs() <= MARGIN) {
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
    fn exchange_gain(&self, difference: Shares, here: usize, there: usize) -> Option<i128> {
        let (here, there) = (self.groups.get(here)?.shares, self.groups.get(there)?.shares);
        let moved = plus(here, there, -1);
        let size = |shares: Shares| shares.iter().map(|share| share.abs()).fold(0, i64::saturating_add);
        let is_enough = size(moved).saturating_mul(EXCHANGE_FRACTION) >= size(plus(here, there, 1));
        gain(difference, Shares::default(), moved).filter(|_gain| is_enough)
    }

    fn may_move(&self, budget: &ChangeBudget<'_>, at: usize, member: Replica, to: ServerId) -> bool {
        self.groups.get(at).is_some_and(|group| budget.admits(group.descriptor, member, to))
    }

    /// The move with the largest gain of a replica that `selects` selects, with the position of its group. Among equal ones the first.
    fn best(
        &self,
        budget: &ChangeBudget<'_>,
        selects: impl Fn(&MovableGroup<'_>, ServerId) -> bool,
    ) -> Option<(usize, ReplicaMove)> {
        let mut best: Option<(i128, usize, ReplicaMove)> = None;
        for (at, group) in self.groups.iter().enumerate() {
            for member in group.descriptor.membership.replicas().filter(|member| selects(group, member.server)) {
                let Some(from) = self.servers.get(&member.server) else { continue };
                for (server, to) in &self.servers {
                    let Some(gain) = gain(*from, *to, group.shares) else { continue };
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

    fn apply(&mut self, replica_move: &ReplicaMove, group: &MovableGroup<'_>) {
        for (server, sign) in [(replica_move.from, -1), (replica_move.to, 1)] {
            if let Some(shares) = self.servers.get_mut(&server) {
                *shares = plus(*shares, group.shares, sign);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_must_leave_a_clear_difference() {
        // One of three replicas: the mean has two.
        let moved = [0, 0, MEAN / 2];
        let gains = |from: i64, to: i64| gain([0, 0, from * MEAN / 2], [0, 0, to * MEAN / 2], moved).is_some();
        assert!(gains(3, 1) && gains(2, 0));
        assert!(!gains(2, 1), "it would only reverse the difference");
        assert!(!gains(2, 2) && !gains(1, 2));
    }

    #[test]
    fn no_move_is_worth_its_own_reversal() {
        for (from, to, moved) in [(900, 100, 300), (700, 500, 90), (1_000, 0, 10), (5, 0, 2)] {
            let [from, to, moved] = [from, to, moved].map(|thousandth: i64| [thousandth * MEAN / 1_000; 3]);
            if gain(from, to, moved).is_some() {
                let (after_from, after_to) = (plus(from, moved, -1), plus(to, moved, 1));
                assert_eq!(gain(after_to, after_from, moved), None);
            }
        }
    }

    #[test]
    fn an_exchange_moves_the_difference() {
        // Two servers with as many replicas and tablets, and one with twice the bytes.
        let (large, small) = ([MEAN, MEAN / 2, MEAN / 2], [MEAN / 2, MEAN / 2, MEAN / 2]);
        let difference = [MEAN, 0, 0];
        let moved = plus(large, small, -1);
        assert!(gain(difference, Shares::default(), moved).is_some());
        assert_eq!(gain(difference, Shares::default(), plus(small, large, -1)), None, "the other direction");
    }

    #[test]
    fn small_replicas_move_only_for_a_difference_above_the_margin() {
        let small = [MEAN / 1_000; 3];
        assert_eq!(gain([MEAN + MARGIN / 2; 3], [MEAN; 3], small), None);
        assert!(gain([MEAN + 2 * MARGIN; 3], [MEAN; 3], small).is_some());
    }
}
