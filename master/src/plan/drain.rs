//! Drained servers: the checks of an operator's requests, and how far a drain is.
//!
//! A drained server is recorded in Chubby. Its replicas are replaced like those of a dead one, but while it serves ([`super::repair`]), and it
//! gets no new ones. It is empty when it is no member of any group and reports no replica.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};

use super::change_budget::{ChangeBudget, Extra};
use crate::cluster::{ClusterSnapshot, Registration, ReplicaReport};

/// A replica that must leave a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainedReplica {
    /// Its group.
    pub group: GroupId,
    /// Its id.
    pub replica: ReplicaId,
    /// The tablets of the group, by its leader's report.
    pub tablets: u64,
    /// Their size.
    pub size_bytes: u64,
    /// The server that leads the group, if one does.
    pub leader: Option<ServerId>,
    /// The server that would get it if nothing changed meanwhile; `None` for a replica that is only removed, and while no server can
    /// have it.
    pub to: Option<ServerId>,
}

/// The replicas on a server: members of groups, and others that it reports and that are going to be removed. By group.
#[must_use]
pub fn replicas_on(cluster: &ClusterSnapshot, server: ServerId) -> Vec<DrainedReplica> {
    let groups = newest_groups(cluster);
    let leaders = cluster.leader_reports();
    let reported = cluster.reports().filter(|(on, _report)| *on == server);
    let reported = reported.map(|(_on, report)| (report.group.group, report.replica));
    let stopped = cluster.stopped_replicas().filter(|(on, _group, _replica)| *on == server);
    let members = groups.values().flat_map(|group| {
        let here = group.membership.replicas().filter(|member| member.server == server);
        here.map(|member| (group.group, member.replica))
    });
    let stopped = stopped.map(|(_on, group, replica)| (group, replica));
    let all: BTreeSet<(GroupId, ReplicaId)> = reported.chain(stopped).chain(members).collect();
    let replica = |(group, replica): (GroupId, ReplicaId)| {
        let leader = leaders.get(&group).copied();
        DrainedReplica {
            group,
            replica,
            tablets: leader.map_or(0, |(_server, report)| report.tablets.len() as u64),
            size_bytes: leader.map_or(0, |(_server, report)| ReplicaReport::size_bytes(report)),
            leader: leader.map(|(server, _report)| server),
            to: None,
        }
    };
    all.into_iter().map(replica).collect()
}

/// What a drain of the server moves, and where the replicas would go.
///
/// # Errors
/// `NotFound` for an unknown server; `FailedPrecondition` when the other servers are fewer than the replicas of a group;
/// `ResourceExhausted` when they have no room.
pub fn check_drain(cluster: &ClusterSnapshot, server: ServerId) -> Result<Vec<DrainedReplica>, Error> {
    check_known(cluster, server)?;
    let mut without = cluster.clone();
    without.drained.insert(server);
    let mut replicas = replicas_on(cluster, server);
    let groups = newest_groups(cluster);
    let mut budget = ChangeBudget::unlimited(&without);
    // The largest first: what is left afterwards is easier to place.
    let mut order: Vec<&mut DrainedReplica> = replicas.iter_mut().collect();
    order.sort_by_key(|replica| (Reverse(replica.size_bytes), replica.group));
    for replica in order {
        let member = Replica { replica: replica.replica, server };
        let Some(group) = groups.get(&replica.group) else { continue };
        if group.membership.server_of(replica.replica) != Some(server) {
            continue;
        }
        // While a change adds a replica there is one more than there will be, and where this one goes is not known yet.
        if is_changing(group) && wanted_replicas(group) <= without.loads().len() {
            continue;
        }
        // A server that still has a replaced replica of the group can have this one once the replaced one is dropped.
        let extras = [Extra::CountsAsReplica, Extra::WillBeDropped];
        replica.to = extras.into_iter().find_map(|extra| budget.replace(group, member, extra));
        if replica.to.is_none() {
            return Err(refusal(&without, server, group, budget));
        }
    }
    Ok(replicas)
}

/// Whether a change of the group's replicas is in progress.
fn is_changing(group: &GroupDescriptor) -> bool {
    let membership = &group.membership;
    !membership.is_uniform() || membership.replicas().any(|member| !membership.is_voter(member.replica))
}

/// The number of replicas that the group has when the change is complete.
fn wanted_replicas(group: &GroupDescriptor) -> usize {
    group.membership.voters.last().map_or(0, BTreeSet::len)
}

/// Why no other server can have a replica of the group.
fn refusal(without: &ClusterSnapshot, server: ServerId, group: &GroupDescriptor, budget: ChangeBudget<'_>) -> Error {
    let full = budget.into_repairs_without_room().into_iter().find(|full| full.group == group.group);
    if let Some(full) = full {
        let message = format!("server {server} cannot be drained: {}", full.message());
        return Error::new(Reason::ResourceExhausted, message);
    }
    let (replicas, others) = (wanted_replicas(group), without.loads().len());
    let message = format!(
        "server {server} cannot be drained: group {} has {replicas} replicas, each on a server of its own, and {others} other servers \
         can have replicas (registered, responding, not drained); start another tablet server first",
        group.group
    );
    Error::new(Reason::FailedPrecondition, message)
}

/// Checks that a server can be removed: nothing depends on it, and it does not run.
///
/// # Errors
/// `FailedPrecondition` while it is registered or responds, or is a member of groups; `NotFound` for an unknown server.
pub fn check_removal(cluster: &ClusterSnapshot, server: ServerId) -> Result<(), Error> {
    check_known(cluster, server)?;
    let replicas = replicas_on(cluster, server).len();
    if replicas > 0 {
        let noun = if replicas == 1 { "replica" } else { "replicas" };
        let message = format!(
            "server {server} has {replicas} {noun}: move them to other servers first: ebla server drain {server}"
        );
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    let reason = match cluster.servers.get(&server).map(|server| server.registration) {
        None => return Ok(()),
        Some(Registration::Registered) => "is registered",
        Some(Registration::Unregistered) => "still responds",
    };
    let message = format!("server {server} {reason}: stop its process first, then remove it");
    Err(Error::new(Reason::FailedPrecondition, message))
}

fn check_known(cluster: &ClusterSnapshot, server: ServerId) -> Result<(), Error> {
    let is_known = cluster.servers.contains_key(&server)
        || cluster.drained.contains(&server)
        || cluster.assigned_servers().contains(&server);
    if is_known {
        return Ok(());
    }
    let message = format!("there is no tablet server {server}; ebla server list shows all");
    Err(Error::new(Reason::NotFound, message))
}

/// Why a drain does not go on, in words, as far as the snapshot shows it; `None` when it can go on.
#[must_use]
pub fn obstacle(cluster: &ClusterSnapshot, server: ServerId) -> Option<String> {
    let leaders = cluster.leader_reports();
    let replicas = replicas_on(cluster, server);
    if let Some(stuck) = replicas.iter().find(|replica| !leaders.contains_key(&replica.group)) {
        return Some(format!("group {} has no leader that responds", stuck.group));
    }
    check_drain(cluster, server).err().map(|error| error.message)
}

/// Whether a drained server has replicas.
#[must_use]
pub fn is_incomplete(cluster: &ClusterSnapshot) -> bool {
    cluster.drained.iter().any(|server| !replicas_on(cluster, *server).is_empty())
}

/// The drains that go on, to notice their ends. A new master starts without it: a drain that ended between two masters is not noticed.
#[derive(Clone, Debug, Default)]
pub struct RunningDrains {
    /// The drained servers without a replica, once the cluster was observed.
    finished: Option<BTreeSet<ServerId>>,
}

impl RunningDrains {
    /// The drained servers that have no replica any more since the last call; none at the first call.
    pub fn finished(&mut self, cluster: &ClusterSnapshot) -> Vec<ServerId> {
        let drained = cluster.drained.iter().copied();
        let now: BTreeSet<ServerId> = drained.filter(|server| replicas_on(cluster, *server).is_empty()).collect();
        let before = self.finished.replace(now.clone()).unwrap_or_else(|| now.clone());
        now.difference(&before).copied().collect()
    }
}

/// The newest descriptor of each group; that of its leader if one responds.
fn newest_groups(cluster: &ClusterSnapshot) -> BTreeMap<GroupId, GroupDescriptor> {
    let mut groups = cluster.known_groups();
    let leaders = cluster.leader_reports().into_values();
    groups.extend(leaders.map(|(_server, report)| (report.group.group, report.group.clone())));
    groups
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{TableId, TabletId};
    use ebla_model::key::KeyRange;

    use super::*;

    fn cluster(drained: &[u64], members: &[u64]) -> ClusterSnapshot {
        let servers: Vec<ServerId> = members.iter().copied().map(ServerId::new).collect();
        let group = GroupDescriptor::initial(GroupId::new(2), &servers);
        let tablet = group.new_tablet(TableId::new(5), TabletId::new(9), KeyRange::all());
        ClusterSnapshot {
            drained: drained.iter().copied().map(ServerId::new).collect(),
            root: Some(tablet),
            ..ClusterSnapshot::default()
        }
    }

    #[test]
    fn the_end_of_a_drain_is_noticed_once() {
        let mut drains = RunningDrains::default();
        let server = ServerId::new(3);
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2, 3])), [], "4 has none, and was drained before");
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2, 3])), []);
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2])), [server]);
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2])), []);
        // It gets replicas again, and is drained again.
        assert_eq!(drains.finished(&cluster(&[4], &[1, 2, 3])), []);
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2, 3])), []);
        assert_eq!(drains.finished(&cluster(&[3, 4], &[1, 2])), [server]);
        // One that has nothing is finished at once.
        assert_eq!(drains.finished(&cluster(&[3, 4, 5], &[1, 2])), [ServerId::new(5)]);
    }
}
