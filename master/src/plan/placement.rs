//! Placement of new groups and tablets. The replicas of new groups go to the least loaded servers, and each server comes
//! first equally often. The tablets of a new table go to all groups in turn.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::metadata::GroupDescriptor;

use crate::cluster::{ClusterSnapshot, GroupPlan};
use crate::health::groups_with_quorum;

/// The maximum number of tablets in a group when new ones are created.
pub const TABLETS_PER_GROUP_MAX: u64 = 20_000;

/// Chooses servers for `groups` new groups: for each as many different ones as `replicas`, or all if there are fewer.
///
/// `loads`: the possible servers and the number of replicas that each has. Ties go to the lower id. The replicas
/// elect their leader, but the first one of a new group tends to win, so first positions are assigned round-robin.
#[must_use]
pub fn assign(loads: &BTreeMap<ServerId, u64>, groups: usize, replicas: usize) -> Vec<Vec<ServerId>> {
    let mut loads = loads.clone();
    let mut first_counts: BTreeMap<ServerId, u64> = BTreeMap::new();
    (0..groups).map(|_| assign_one(&mut loads, &mut first_counts, replicas)).collect()
}

fn assign_one(
    loads: &mut BTreeMap<ServerId, u64>,
    first_counts: &mut BTreeMap<ServerId, u64>,
    replicas: usize,
) -> Vec<ServerId> {
    let mut by_load: Vec<_> = loads.iter().map(|(server, load)| (*load, *server)).collect();
    by_load.sort_unstable();
    let mut chosen: Vec<_> = by_load.into_iter().take(replicas).map(|(_load, server)| server).collect();
    for server in &chosen {
        *loads.entry(*server).or_default() += 1;
    }
    chosen.sort_by_key(|server| (first_counts.get(server).copied().unwrap_or(0), *server));
    if let Some(first) = chosen.first() {
        *first_counts.entry(*first).or_default() += 1;
    }
    chosen
}

/// A group that may get tablets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// Its newest descriptor.
    pub group: GroupDescriptor,
    /// The number of its tablets, planned ones included.
    pub tablets: u64,
}

/// The groups that may get tablets: those with a quorum and those that are being created, without METADATA's.
#[must_use]
pub fn group_loads(cluster: &ClusterSnapshot) -> BTreeMap<GroupId, GroupLoad> {
    let mut groups: BTreeMap<GroupId, GroupDescriptor> =
        cluster.new_groups.iter().map(|(id, GroupPlan { group, .. })| (*id, group.clone())).collect();
    let with_quorum = groups_with_quorum(cluster);
    groups.extend(cluster.groups().into_iter().filter(|(group, _known)| with_quorum.contains(group)));
    groups.remove(&GroupId::METADATA);
    let mut tablets: BTreeMap<GroupId, BTreeSet<TabletId>> = BTreeMap::new();
    let planned = cluster.plans.values().flat_map(|plan| &plan.tablets);
    for tablet in cluster.tablets().into_values().chain(planned) {
        tablets.entry(tablet.group).or_default().insert(tablet.tablet);
    }
    let load = |(id, group)| (id, GroupLoad { group, tablets: tablets.get(&id).map_or(0, |of| of.len() as u64) });
    groups.into_iter().map(load).collect()
}

/// How many groups to create beside `groups` existing ones: there should be one for each server, and at least one.
#[must_use]
pub fn missing_groups(servers: usize, groups: usize) -> usize {
    servers.max(1).saturating_sub(groups)
}

/// How many more tablets the groups may get.
#[must_use]
pub fn room(loads: &BTreeMap<GroupId, GroupLoad>) -> u64 {
    loads.values().map(|load| TABLETS_PER_GROUP_MAX.saturating_sub(load.tablets)).sum()
}

/// Chooses groups for the new tablets of a table, in key order: all groups in turn, so that adjacent tablets have
/// different leaders; the group with the fewest tablets comes first. `None` when there is not enough [`room`].
#[must_use]
pub fn distribute(loads: &BTreeMap<GroupId, GroupLoad>, tablets: usize) -> Option<Vec<GroupId>> {
    if room(loads) < tablets as u64 {
        return None;
    }
    let mut order: Vec<(u64, GroupId)> = loads.iter().map(|(group, load)| (load.tablets, *group)).collect();
    order.sort_unstable();
    let mut chosen = Vec::with_capacity(tablets);
    while chosen.len() < tablets {
        order.retain(|(count, _group)| *count < TABLETS_PER_GROUP_MAX);
        let left = tablets - chosen.len();
        for (count, group) in order.iter_mut().take(left) {
            *count += 1;
            chosen.push(*group);
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(u64, u64)]) -> BTreeMap<ServerId, u64> {
        of.iter().map(|(server, load)| (ServerId::new(*server), *load)).collect()
    }

    fn numbers(assigned: &[Vec<ServerId>]) -> Vec<Vec<u64>> {
        assigned.iter().map(|servers| servers.iter().map(|server| server.get()).collect()).collect()
    }

    #[test]
    fn first_positions_are_assigned_round_robin() {
        let assigned = assign(&loads(&[(1, 0), (2, 0), (3, 0)]), 4, 3);
        assert_eq!(numbers(&assigned), [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn the_least_loaded_servers_are_chosen_and_loads_are_balanced() {
        let assigned = assign(&loads(&[(1, 5), (2, 0), (3, 0), (4, 1)]), 3, 2);
        assert_eq!(numbers(&assigned), [[2, 3], [3, 2], [4, 2]]);
    }

    #[test]
    fn too_few_servers_give_fewer_replicas() {
        assert_eq!(numbers(&assign(&loads(&[(7, 0)]), 1, 3)), [[7]]);
        assert_eq!(numbers(&assign(&loads(&[]), 1, 3)), [[0; 0]]);
    }

    #[test]
    fn there_is_a_group_for_each_server() {
        assert_eq!(
            [(0, 0), (3, 0), (3, 2), (3, 5)].map(|(servers, groups)| missing_groups(servers, groups)),
            [1, 3, 1, 0]
        );
    }

    fn groups(of: &[(u64, u64)]) -> BTreeMap<GroupId, GroupLoad> {
        let load = |(id, tablets): &(u64, u64)| {
            let group = GroupDescriptor::initial(GroupId::new(*id), &[ServerId::new(1)]);
            (group.group, GroupLoad { group, tablets: *tablets })
        };
        of.iter().map(load).collect()
    }

    fn chosen(loads: &[(u64, u64)], tablets: usize) -> Option<Vec<u64>> {
        distribute(&groups(loads), tablets).map(|chosen| chosen.into_iter().map(GroupId::get).collect())
    }

    #[test]
    fn adjacent_tablets_are_in_different_groups() {
        assert_eq!(chosen(&[(2, 0), (3, 0), (4, 0)], 7), Some(vec![2, 3, 4, 2, 3, 4, 2]));
        assert_eq!(chosen(&[(2, 5), (3, 0), (4, 9)], 4), Some(vec![3, 2, 4, 3]), "the emptiest comes first");
        assert_eq!(chosen(&[], 0), Some(vec![]));
    }

    #[test]
    fn a_full_group_gets_no_tablets() {
        let max = TABLETS_PER_GROUP_MAX;
        assert_eq!(chosen(&[(2, max), (3, max - 1), (4, max - 3)], 4), Some(vec![4, 3, 4, 4]));
        assert_eq!(chosen(&[(2, max), (3, max - 1), (4, max - 3)], 5), None);
        assert_eq!(chosen(&[], 1), None);
        assert_eq!(chosen(&[(2, max + 5)], 1), None, "splits may exceed the maximum");
    }
}
