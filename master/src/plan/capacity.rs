//! Whether servers have room for something new, by their reports. A server that does not report bounds nothing: it is not chosen
//! for anything new, and a group with it must not be blocked by it.

use ebla_model::capacity::{Demand, ResourceShortage, Resources};
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};

use crate::cluster::{ClusterSnapshot, ReplicaReport};

/// What a server reports about its resources.
#[must_use]
pub fn resources(cluster: &ClusterSnapshot, server: ServerId) -> Option<&Resources> {
    cluster.servers.get(&server)?.report.as_ref().map(|report| &report.resources)
}

/// The first server of a group on which the demand does not fit.
#[must_use]
pub fn group_shortage(
    cluster: &ClusterSnapshot,
    group: &GroupDescriptor,
    demand: Demand,
) -> Option<(ServerId, ResourceShortage)> {
    let mut servers = group.membership.replicas().map(|replica| replica.server);
    servers.find_map(|server| Some((server, resources(cluster, server)?.shortage(demand)?)))
}

/// What a new replica of a group needs, by the report of its leader.
#[must_use]
pub fn replica_demand(leader: &ReplicaReport) -> Demand {
    Demand::group(leader.tablets.len() as u64, leader.size_bytes())
}

/// Checks that a tablet can be split: its group gets one more on each of its servers.
///
/// # Errors
/// `ResourceExhausted` with the server, the resource, what is needed and what is left.
pub fn check_room_for_split(cluster: &ClusterSnapshot, tablet: &TabletDescriptor) -> Result<(), Error> {
    let short = group_shortage(cluster, &tablet.group_descriptor(), Demand::tablets(1));
    refuse(short, &format!("a split of tablet {}", tablet.tablet))
}

/// Checks that a group can be divided: each of its servers gets a replica of one more group. The files of both are shared until
/// compactions rewrite those with rows of both, so no data is copied.
///
/// # Errors
/// As [`check_room_for_split`].
pub fn check_room_for_division(cluster: &ClusterSnapshot, group: &GroupDescriptor) -> Result<(), Error> {
    let GroupDescriptor { group: id, .. } = group;
    refuse(group_shortage(cluster, group, Demand::group(0, 0)), &format!("a division of group {id}"))
}

/// Checks that a tablet can be moved to another group: each of that group's servers gets a copy of its rows.
///
/// # Errors
/// As [`check_room_for_split`].
pub fn check_room_for_move(cluster: &ClusterSnapshot, tablet: TabletId, target: &GroupDescriptor) -> Result<(), Error> {
    let demand = Demand { data_bytes: cluster.tablet_size(tablet).unwrap_or_default(), ..Demand::tablets(1) };
    let GroupDescriptor { group: id, .. } = target;
    refuse(group_shortage(cluster, target, demand), &format!("a move of tablet {tablet} to group {id}"))
}

fn refuse(short: Option<(ServerId, ResourceShortage)>, what: &str) -> Result<(), Error> {
    short.map_or(Ok(()), |(server, shortage)| Err(shortage.refusal(what, server)))
}

/// A repair that does not start, because no server has room for the new replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairWithoutRoom {
    /// The group.
    pub group: GroupId,
    /// A server that could get the replica if it had room.
    pub server: ServerId,
    /// What that server lacks.
    pub shortage: ResourceShortage,
}

impl RepairWithoutRoom {
    /// The reason, with the next step.
    #[must_use]
    pub fn message(&self) -> String {
        self.shortage.refusal(&format!("a replica of group {}", self.group), self.server).message
    }
}

/// The event of the groups whose repair waits for room since this round; `None` without groups. It is one event for all of them: the loss of
/// one server may concern hundreds of groups, and their events would replace all others.
#[must_use]
pub fn repairs_wait_event(waiting: &[&RepairWithoutRoom]) -> Option<NewClusterEvent> {
    let first = waiting.first()?;
    let groups = if waiting.len() == 1 { "1 group".to_owned() } else { format!("{} groups", waiting.len()) };
    let detail = format!("{groups}: {}", first.message());
    Some(NewClusterEvent::new(ClusterEventKind::RepairWaits, detail).of_server(first.server))
}

#[cfg(test)]
mod tests {
    use ebla_model::capacity::ResourceKind;

    use super::*;

    #[test]
    fn the_repairs_of_a_round_that_wait_are_one_event() {
        let shortage =
            ResourceShortage { kind: ResourceKind::Disk, needed: 9, left: 1, resources: Resources::default() };
        let waiting =
            [4, 5].map(|group| RepairWithoutRoom { group: GroupId::new(group), server: ServerId::new(3), shortage });
        let event = repairs_wait_event(&waiting.iter().collect::<Vec<_>>()).unwrap();
        assert!(event.detail().starts_with("2 groups: no room for a replica of group 4"), "{}", event.detail());
        assert_eq!((event.kind, event.server), (ClusterEventKind::RepairWaits, Some(ServerId::new(3))));
        assert!(repairs_wait_event(&[&waiting[0]]).unwrap().detail().starts_with("1 group: no room"));
        assert_eq!(repairs_wait_event(&[]), None);
    }
}
