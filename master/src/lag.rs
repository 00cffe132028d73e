//! Replicas that are far behind their leaders. Pure.
//!
//! The reports of the servers are of slightly different moments, so a distance in entries alone says nothing while there are many writes, and
//! one in time says nothing after a pause of the writes: a replica lags when both are large.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::id::{GroupId, ServerId};

use crate::cluster::{ClusterSnapshot, ReplicaReport, Role};

/// The fewest entries by which a lagging replica is behind.
pub(crate) const ENTRIES_MIN: u64 = 1_000;
/// The least time by which the commands that it has applied are older than those of its leader.
pub(crate) const TIME_MIN: Duration = Duration::from_secs(10);

/// The lagging replicas on a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerLag {
    /// Their groups, ascending.
    pub(crate) groups: Vec<GroupId>,
    /// The largest number of entries that one has not applied.
    pub(crate) entries_max: u64,
    /// The largest difference in the times of the last applied commands.
    pub(crate) time_max: Duration,
}

/// The lagging replicas, by server; servers without one are absent.
#[must_use]
pub(crate) fn lagging_servers(cluster: &ClusterSnapshot) -> BTreeMap<ServerId, ServerLag> {
    let leaders = cluster.leader_reports();
    let mut servers: BTreeMap<ServerId, ServerLag> = BTreeMap::new();
    for (server, report) in cluster.reports() {
        let leader = leaders.get(&report.group.group).map(|(_server, leader)| *leader);
        if let Some((entries, time)) = leader.and_then(|leader| lag(leader, report)) {
            let of_server = servers.entry(server).or_default();
            of_server.groups.push(report.group.group);
            of_server.entries_max = of_server.entries_max.max(entries);
            of_server.time_max = of_server.time_max.max(time);
        }
    }
    servers.values_mut().for_each(|lag| lag.groups.sort_unstable());
    servers
}

/// By how much a replica lags behind its leader; `None` when it does not. A replica that is still empty is being filled and does not lag.
fn lag(leader: &ReplicaReport, report: &ReplicaReport) -> Option<(u64, Duration)> {
    if report.role == Role::Leader || report.group.membership.replicas.is_empty() {
        return None;
    }
    let entries = leader.applied.index.get().saturating_sub(report.applied.index.get());
    let micros = u64::try_from(leader.time.get().saturating_sub(report.time.get())).unwrap_or_default();
    let time = Duration::from_micros(micros);
    (entries >= ENTRIES_MIN && time >= TIME_MIN).then_some((entries, time))
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{LogId, LogIndex, ReplicaId, Term};
    use ebla_model::metadata::GroupDescriptor;
    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{Server, ServerReport};

    const SECOND: i64 = 1_000_000;

    /// Group 7 on servers 1, 2, …: how far each has applied its log, and the second of its last command. Server 1 leads.
    fn cluster(replicas: &[(u64, i64)]) -> ClusterSnapshot {
        let ids: Vec<ServerId> = (1..).take(replicas.len()).map(ServerId::new).collect();
        let group = GroupDescriptor::initial(GroupId::new(7), &ids);
        let mut cluster = ClusterSnapshot::default();
        for ((index, second), id) in replicas.iter().zip(&ids) {
            let applied = LogId { term: Term::new(1), index: LogIndex::new(*index) };
            let replica = ReplicaReport {
                group: group.clone(),
                replica: ReplicaId::new(id.get()),
                role: if id.get() == 1 { Role::Leader } else { Role::Follower },
                term: Term::new(1),
                tablets: Vec::new(),
                applied,
                last: applied,
                time: Micros::new(second * SECOND),
                settled: true,
                heard: [].into(),
                division: None,
            };
            let server = Server::registered(Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }));
            cluster.servers.insert(*id, server);
        }
        cluster
    }

    #[test]
    fn a_replica_lags_when_it_is_behind_in_entries_and_in_time() {
        let cluster = cluster(&[(5_000, 100), (4_001, 50), (4_990, 50), (1_000, 91), (4_000, 90)]);
        let lag = |seconds, entries_max| ServerLag {
            groups: vec![GroupId::new(7)],
            entries_max,
            time_max: Duration::from_secs(seconds),
        };
        assert_eq!(lagging_servers(&cluster), [(ServerId::new(5), lag(10, 1_000))].into());
    }

    #[test]
    fn without_a_leader_and_while_it_is_empty_a_replica_does_not_lag() {
        let mut cluster = cluster(&[(5_000, 100), (0, 0)]);
        assert_eq!(lagging_servers(&cluster).len(), 1);
        let replicas = |cluster: &mut ClusterSnapshot, server: u64, change: &dyn Fn(&mut ReplicaReport)| {
            let found = cluster.servers.get_mut(&ServerId::new(server)).unwrap();
            found.report.iter_mut().flat_map(|report| &mut report.replicas).for_each(change);
        };
        let mut empty = cluster.clone();
        replicas(&mut empty, 2, &|replica| replica.group.membership.replicas.clear());
        assert!(lagging_servers(&empty).is_empty());
        replicas(&mut cluster, 1, &|replica| replica.role = Role::Follower);
        assert!(lagging_servers(&cluster).is_empty());
    }
}
