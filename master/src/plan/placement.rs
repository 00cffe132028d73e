//! Placement of new groups and tablets. The replicas of new groups go to the least loaded servers with room, each in a zone of its own if
//! there are enough zones, and each server comes first equally often. The tablets of a new table go to all groups with room in turn.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::capacity::{Demand, Resources};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::metadata::GroupDescriptor;

use super::capacity;
use super::zones::Zones;
use crate::cluster::{ClusterSnapshot, GroupPlan};
use crate::health::groups_with_quorum;

/// The maximum number of tablets in a group when new ones are created.
pub const TABLETS_PER_GROUP_MAX: u64 = 20_000;
/// The maximum number of new groups that a server is asked for at once.
const NEW_GROUPS_MAX: u64 = 1_000;

/// A server that may get replicas of new groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLoad {
    /// The replicas that it has.
    pub replicas: u64,
    /// How many more it has room for.
    pub room: u64,
}

/// The servers that may get replicas of new groups.
#[must_use]
pub fn server_loads(cluster: &ClusterSnapshot) -> BTreeMap<ServerId, ServerLoad> {
    let load = |(server, replicas)| {
        let resources = capacity::resources(cluster, server).copied().unwrap_or_default();
        let room = resources.room_for(Demand::default(), Demand::group(0, 0), NEW_GROUPS_MAX);
        (server, ServerLoad { replicas, room })
    };
    cluster.loads().into_iter().map(load).collect()
}

/// Chooses servers for up to `groups` new groups: for each as many different ones as `replicas`, or all if there are fewer.
/// There are fewer groups when servers have no room, or not in enough zones.
///
/// `loads`: the possible servers. Ties go to the lower id. The replicas elect their leader, but the first one of a new group
/// tends to win, so first positions are assigned round-robin.
#[must_use]
pub fn assign(
    loads: &BTreeMap<ServerId, ServerLoad>,
    zones: &Zones,
    groups: usize,
    replicas: usize,
) -> Vec<Vec<ServerId>> {
    let mut loads = loads.clone();
    let mut first_counts: BTreeMap<ServerId, u64> = BTreeMap::new();
    (0..groups).map_while(|_| assign_one(&mut loads, zones, &mut first_counts, replicas)).collect()
}

fn assign_one(
    loads: &mut BTreeMap<ServerId, ServerLoad>,
    zones: &Zones,
    first_counts: &mut BTreeMap<ServerId, u64>,
    replicas: usize,
) -> Option<Vec<ServerId>> {
    let replicas = replicas.min(loads.len());
    let mut chosen: Vec<ServerId> = Vec::with_capacity(replicas);
    while chosen.len() < replicas {
        let with_room = loads.iter().filter(|(server, load)| load.room > 0 && !chosen.contains(server));
        let possible = with_room.filter(|(server, _load)| zones.allows(**server, &chosen, replicas));
        let key =
            |(server, load): (&ServerId, &ServerLoad)| (zones.occupancy(*server, &chosen), load.replicas, *server);
        let (_occupancy, _load, server) = possible.map(key).min()?;
        chosen.push(server);
    }
    if chosen.is_empty() {
        return None;
    }
    for (_server, load) in loads.iter_mut().filter(|(server, _load)| chosen.contains(server)) {
        load.replicas += 1;
        load.room -= 1;
    }
    chosen.sort_by_key(|server| (first_counts.get(server).copied().unwrap_or(0), *server));
    if let Some(first) = chosen.first() {
        *first_counts.entry(*first).or_default() += 1;
    }
    Some(chosen)
}

/// A group that may get tablets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// Its newest descriptor.
    pub group: GroupDescriptor,
    /// The number of its tablets, planned ones included.
    pub tablets: u64,
    /// How many more it may get: up to [`TABLETS_PER_GROUP_MAX`], and as far as its servers have room.
    pub room: u64,
}

/// The groups that may get tablets: those with a quorum and those that are being created, without METADATA's; and the groups of
/// `new`, which are needed for them.
#[must_use]
pub fn group_loads(cluster: &ClusterSnapshot, new: &[GroupDescriptor]) -> BTreeMap<GroupId, GroupLoad> {
    let mut groups: BTreeMap<GroupId, GroupDescriptor> =
        cluster.new_groups.iter().map(|(id, GroupPlan { group, .. })| (*id, group.clone())).collect();
    let with_quorum = groups_with_quorum(cluster);
    groups.extend(cluster.groups().into_iter().filter(|(group, _known)| with_quorum.contains(group)));
    groups.extend(new.iter().map(|group| (group.group, group.clone())));
    groups.remove(&GroupId::METADATA);
    let mut tablets: BTreeMap<GroupId, BTreeSet<TabletId>> = BTreeMap::new();
    let planned = cluster.plans.values().flat_map(|plan| &plan.tablets);
    for tablet in cluster.tablets().into_values().chain(planned) {
        tablets.entry(tablet.group).or_default().insert(tablet.tablet);
    }
    let parts = server_parts(cluster, &groups, new);
    let load = |(id, group): (GroupId, GroupDescriptor)| {
        let tablets = tablets.get(&id).map_or(0, |of| of.len() as u64);
        let of_servers = group.membership.replicas().filter_map(|replica| parts.get(&replica.server).copied()).min();
        let room = TABLETS_PER_GROUP_MAX.saturating_sub(tablets).min(of_servers.unwrap_or(u64::MAX));
        (id, GroupLoad { group, tablets, room })
    };
    groups.into_iter().map(load).collect()
}

/// How many more tablets each server has room for in each of its groups, which share it equally.
fn server_parts(
    cluster: &ClusterSnapshot,
    groups: &BTreeMap<GroupId, GroupDescriptor>,
    new: &[GroupDescriptor],
) -> BTreeMap<ServerId, u64> {
    let of_server = |server: &ServerId| {
        let is_on = |group: &&GroupDescriptor| group.membership.replica_on(*server).is_some();
        let count = groups.values().filter(is_on).count() as u64;
        let base = Demand::group(0, 0).times(new.iter().filter(is_on).count() as u64);
        let resources = capacity::resources(cluster, *server)?;
        let room = resources.room_for(base, Demand::tablets(1), count.saturating_mul(TABLETS_PER_GROUP_MAX));
        Some((*server, room.checked_div(count)?))
    };
    cluster.servers.keys().filter_map(of_server).collect()
}

/// How many groups to create beside `groups` existing ones: there should be one for each server, and at least one.
#[must_use]
pub fn missing_groups(servers: usize, groups: usize) -> usize {
    servers.max(1).saturating_sub(groups)
}

/// How many more tablets the groups may get.
#[must_use]
pub fn room(loads: &BTreeMap<GroupId, GroupLoad>) -> u64 {
    loads.values().fold(0, |sum, load| sum.saturating_add(load.room))
}

/// Chooses groups for the new tablets of a table, in key order: all groups in turn, so that adjacent tablets have
/// different leaders; the group with the fewest tablets comes first. `None` when there is not enough [`room`].
#[must_use]
pub fn distribute(loads: &BTreeMap<GroupId, GroupLoad>, tablets: usize) -> Option<Vec<GroupId>> {
    if room(loads) < tablets as u64 {
        return None;
    }
    let mut order: Vec<(u64, GroupId, u64)> =
        loads.iter().map(|(group, load)| (load.tablets, *group, load.room)).collect();
    order.sort_unstable();
    let mut chosen = Vec::with_capacity(tablets);
    while chosen.len() < tablets {
        order.retain(|(_count, _group, room)| *room > 0);
        let left = tablets - chosen.len();
        for (_count, group, room) in order.iter_mut().take(left) {
            *room -= 1;
            chosen.push(*group);
        }
    }
    Some(chosen)
}

/// The refusal of a table of `tablets` tablets for which the groups have too little room: the server that is short of a
/// resource if there is one, else the maximum of the groups. `new_groups`: how many of the groups would have been created.
#[must_use]
pub fn refusal(
    cluster: &ClusterSnapshot,
    loads: &BTreeMap<GroupId, GroupLoad>,
    table: &str,
    tablets: usize,
    new_groups: usize,
) -> Error {
    let what = format!("table {table} with {tablets} tablets");
    // Without a group the first one did not fit.
    let new_groups = new_groups.max(usize::from(loads.is_empty()));
    let short = cluster.loads().into_keys().find_map(|server| {
        let on_server = loads.values().filter(|load| load.group.membership.replica_on(server).is_some()).count() as u64;
        // Its part of the tablets; all of them if it would get the first group.
        let part = (tablets as u64).saturating_mul(on_server.max(1)).div_ceil(loads.len().max(1) as u64);
        let demand = Demand::group(0, 0).times(new_groups as u64).plus(Demand::tablets(part));
        let resources: &Resources = capacity::resources(cluster, server)?;
        Some((server, resources.shortage(demand)?))
    });
    if let Some((server, shortage)) = short {
        return shortage.refusal(&what, server);
    }
    let (room, groups, max) = (room(loads), loads.len(), TABLETS_PER_GROUP_MAX);
    let message = format!(
        "table {table} needs {tablets} tablets, but the cluster has room for {room}: {groups} groups of at most {max} \
         tablets; use fewer split keys, delete tables, or add tablet servers"
    );
    Error::new(Reason::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(u64, u64)]) -> BTreeMap<ServerId, ServerLoad> {
        let load =
            |(server, replicas): &(u64, u64)| (ServerId::new(*server), ServerLoad { replicas: *replicas, room: 9 });
        of.iter().map(load).collect()
    }

    fn numbers(assigned: &[Vec<ServerId>]) -> Vec<Vec<u64>> {
        assigned.iter().map(|servers| servers.iter().map(|server| server.get()).collect()).collect()
    }

    /// Without zones.
    fn assign_all(loads: &BTreeMap<ServerId, ServerLoad>, groups: usize, replicas: usize) -> Vec<Vec<ServerId>> {
        assign(loads, &Zones::default(), groups, replicas)
    }

    #[test]
    fn first_positions_are_assigned_round_robin() {
        let assigned = assign_all(&loads(&[(1, 0), (2, 0), (3, 0)]), 4, 3);
        assert_eq!(numbers(&assigned), [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn the_least_loaded_servers_are_chosen_and_loads_are_balanced() {
        let assigned = assign_all(&loads(&[(1, 5), (2, 0), (3, 0), (4, 1)]), 3, 2);
        assert_eq!(numbers(&assigned), [[2, 3], [3, 2], [4, 2]]);
    }

    #[test]
    fn too_few_servers_give_fewer_replicas() {
        assert_eq!(numbers(&assign_all(&loads(&[(7, 0)]), 1, 3)), [[7]]);
        assert_eq!(numbers(&assign_all(&loads(&[]), 1, 3)), [[0; 0]; 0]);
    }

    #[test]
    fn servers_without_room_get_no_replica() {
        let with_room = |rooms: &[u64]| {
            let mut loads = loads(&[(1, 0), (2, 0), (3, 0), (4, 5)]);
            loads.values_mut().zip(rooms).for_each(|(load, room)| load.room = *room);
            numbers(&assign_all(&loads, 3, 3))
        };
        assert_eq!(with_room(&[9, 9, 0, 9]), [[1, 2, 4], [2, 4, 1], [4, 1, 2]]);
        assert_eq!(with_room(&[1, 9, 2, 9]), [[1, 2, 3], [2, 3, 4]], "there is room for two groups");
        assert_eq!(with_room(&[9, 9, 0, 0]), [[0; 0]; 0], "never with fewer replicas than servers allow");
    }

    #[test]
    fn replicas_are_in_different_zones_while_there_are_enough() {
        let place = |zones: &[(u64, &str)], rooms: &[u64]| {
            let mut loads = loads(&[(1, 0), (2, 0), (3, 0), (4, 5), (5, 5)]);
            loads.values_mut().zip(rooms).for_each(|(load, room)| load.room = *room);
            numbers(&assign(&loads, &Zones::named(zones), 2, 3))
        };
        let three = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c")];
        assert_eq!(place(&three, &[9; 5]), [[1, 4, 5], [2, 4, 5]]);
        assert_eq!(place(&three, &[9, 9, 9, 9, 0]), [[0; 0]; 0], "zone c has no room");
        let two = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")];
        assert_eq!(place(&two, &[9; 5]), [[1, 2, 4], [3, 5, 1]], "not all in one zone");
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
            let room = TABLETS_PER_GROUP_MAX.saturating_sub(*tablets);
            (group.group, GroupLoad { group, tablets: *tablets, room })
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
