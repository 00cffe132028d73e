//! The groups that servers report, for operators; of one group also how far each replica is in its log. Pure.

use std::collections::BTreeMap;

use ebla_model::id::{GroupId, ReplicaId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};
use ebla_proto::{convert, operate};

use crate::cluster::{ClusterSnapshot, ReplicaReport, Role};

/// The groups that servers report, by id; with `only`, this one if it is reported, with its replicas.
pub(crate) fn statuses(snapshot: &ClusterSnapshot, only: Option<GroupId>) -> Vec<operate::GroupStatus> {
    let leaders = snapshot.leader_reports();
    let latest: BTreeMap<GroupId, &ReplicaReport> =
        snapshot.latest_reports().map(|report| (report.group.group, report)).collect();
    let status = |group: GroupDescriptor| {
        let leader = leaders.get(&group.group).copied();
        let report = leader.map(|(_server, report)| report).or_else(|| latest.get(&group.group).copied());
        operate::GroupStatus {
            group: Some(convert::group_to_proto(&group)),
            leader: leader.map_or(0, |(server, _report)| server.get()),
            tablets: report.map_or(0, |report| report.tablets.len() as u64),
            size_bytes: report.map_or(0, ReplicaReport::size_bytes),
            replicas: if only.is_some() { replicas(snapshot, &group) } else { Vec::new() },
        }
    };
    let groups = snapshot.groups().into_values();
    groups.filter(|group| only.is_none_or(|only| group.group == only)).map(status).collect()
}

/// The members of a group, and other replicas of it that run: those to be removed, or not yet members.
fn replicas(snapshot: &ClusterSnapshot, group: &GroupDescriptor) -> Vec<operate::ReplicaStatus> {
    let members = group.membership.replicas().map(|Replica { replica, server }| (server, replica));
    let mut known: BTreeMap<_, Option<&ReplicaReport>> = members.map(|member| (member, None)).collect();
    let reports = snapshot.reports().filter(|(_server, report)| report.group.group == group.group);
    known.extend(reports.map(|(server, report)| ((server, report.replica), Some(report))));
    let status = |((server, replica), report): ((ServerId, ReplicaId), Option<&ReplicaReport>)| {
        let known = operate::ReplicaStatus { replica: replica.get(), server: server.get(), ..Default::default() };
        let Some(report) = report else { return known };
        let of_server = snapshot.servers.get(&server).and_then(|server| server.report.as_ref());
        let positions = of_server.and_then(|one| one.log_positions.get(&(group.group, replica)).copied());
        let positions = positions.unwrap_or_default();
        operate::ReplicaStatus {
            runs: true,
            leads: report.role == Role::Leader,
            term: report.term.get(),
            last: Some(convert::log_id_to_proto(report.last)),
            applied: Some(convert::log_id_to_proto(report.applied)),
            committed: positions.committed.map(convert::log_id_to_proto),
            snapshot: positions.snapshot.map(convert::log_id_to_proto),
            ..known
        }
    };
    known.into_iter().map(status).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ebla_model::id::{LogId, LogIndex, Term};
    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{LogPositions, Server, ServerReport};

    fn at(index: u64) -> LogId {
        LogId { term: Term::new(2), index: LogIndex::new(index) }
    }

    /// Group 7 on servers 1 to 3, group 8 on server 1. Server 1 leads, server 2 lags, server 3 does not respond.
    fn cluster() -> ClusterSnapshot {
        let ids = [1, 2, 3].map(ServerId::new);
        let report = |group: &GroupDescriptor, replica: u64, role, applied| ReplicaReport {
            group: group.clone(),
            replica: ReplicaId::new(replica),
            role,
            term: Term::new(2),
            tablets: Vec::new(),
            applied: at(applied),
            last: at(100),
            time: Micros::new(0),
            settled: true,
            heard: BTreeSet::new(),
            division: None,
        };
        let (group, other) =
            (GroupDescriptor::initial(GroupId::new(7), &ids), GroupDescriptor::initial(GroupId::new(8), &ids[..1]));
        let mut cluster = ClusterSnapshot::default();
        let reports = [
            Some(vec![report(&group, 1, Role::Leader, 100), report(&other, 1, Role::Leader, 3)]),
            Some(vec![report(&group, 2, Role::Follower, 40)]),
            None,
        ];
        for (id, replicas) in ids.into_iter().zip(reports) {
            let positions = LogPositions { committed: Some(at(90)), snapshot: None };
            let report = replicas.map(|replicas| ServerReport {
                log_positions: [((GroupId::new(7), ReplicaId::new(id.get())), positions)].into(),
                replicas,
                ..ServerReport::default()
            });
            cluster.servers.insert(id, Server::registered(report));
        }
        cluster
    }

    #[test]
    fn only_a_named_group_has_the_positions_of_its_replicas() {
        let all = statuses(&cluster(), None);
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|one| one.replicas.is_empty() && one.leader == 1));
        assert!(statuses(&cluster(), Some(GroupId::new(9))).is_empty());
        let one = statuses(&cluster(), Some(GroupId::new(7)));
        let shown = |replica: &operate::ReplicaStatus| {
            let index = |at: &Option<ebla_proto::record::LogId>| at.as_ref().map(|at| at.index);
            (
                replica.server,
                replica.runs,
                replica.leads,
                [&replica.last, &replica.applied, &replica.committed].map(index),
            )
        };
        assert_eq!(
            one[0].replicas.iter().map(shown).collect::<Vec<_>>(),
            [
                (1, true, true, [Some(100), Some(100), Some(90)]),
                (2, true, false, [Some(100), Some(40), Some(90)]),
                (3, false, false, [None, None, None]),
            ]
        );
        assert!(one[0].replicas.iter().all(|replica| replica.snapshot.is_none()));
    }
}
