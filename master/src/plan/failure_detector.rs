//! The failure detector: since when servers and replicas have been missing, as the active master has observed it.
//!
//! A server is missing when it is not registered, does not respond to the master, *and* no leader has heard from a
//! replica on it. A lease alone says little: it expires late when Chubby changes its leader, and early when Chubby
//! cannot be reached. A replica is missing when its server responds and does not have it. A component is no longer
//! missing with the first snapshot that contains it. A new master starts to count again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::id::{GroupId, ReplicaId, ServerId};

use crate::cluster::ClusterSnapshot;

/// A component that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// A server that should hold replicas.
    Server(ServerId),
    /// A replica of a group on a server that is up.
    Replica(ServerId, GroupId, ReplicaId),
}

/// Since when components have been missing, as time since boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureDetector {
    missing_since: BTreeMap<Component, Duration>,
    /// The time of the last snapshot.
    observed_at: Duration,
}

impl FailureDetector {
    /// Takes a new snapshot, of the time `now`.
    pub fn observe(&mut self, cluster: &ClusterSnapshot, now: Duration) {
        let missing = missing_components(cluster);
        self.observed_at = now;
        self.missing_since.retain(|component, _since| missing.contains(component));
        for component in missing {
            self.missing_since.entry(component).or_insert(now);
        }
    }

    /// Whether it has been missing for at least `timeout`.
    #[must_use]
    pub fn is_missing_for(&self, component: Component, now: Duration, timeout: Duration) -> bool {
        self.missing_since.get(&component).is_some_and(|since| now.saturating_sub(*since) >= timeout)
    }

    /// The time until a missing component reaches one of these timeouts; zero if one was reached after the last snapshot, `None` if all were
    /// reached before it, or nothing is missing.
    #[must_use]
    pub fn next_timeout(&self, now: Duration, timeouts: &[Duration]) -> Option<Duration> {
        let due =
            self.missing_since.values().flat_map(|since| timeouts.iter().map(|timeout| since.saturating_add(*timeout)));
        due.filter(|due| *due > self.observed_at).map(|due| due.saturating_sub(now)).min()
    }

    /// Adds a component that has been missing since then.
    #[cfg(test)]
    pub(crate) fn with(mut self, component: Component, since: Duration) -> Self {
        self.missing_since.insert(component, since);
        self
    }
}

/// Whether a server that should hold replicas is neither registered nor responds, and counts as up only because a leader
/// has heard from it. No event tells when the leader has heard nothing for long enough, so the caller must observe again.
#[must_use]
pub fn is_only_heard(cluster: &ClusterSnapshot) -> bool {
    let heard = heard_servers(cluster);
    cluster.assigned_servers().iter().any(|server| !cluster.servers.contains_key(server) && heard.contains(server))
}

/// The servers with a replica from which its group's leader has heard recently.
fn heard_servers(cluster: &ClusterSnapshot) -> BTreeSet<ServerId> {
    let mut heard = BTreeSet::new();
    for (_server, report) in cluster.leader_reports().values() {
        let members = &report.group.membership;
        heard.extend(report.heard.iter().filter_map(|replica| members.server_of(*replica)));
    }
    heard
}

fn missing_components(cluster: &ClusterSnapshot) -> BTreeSet<Component> {
    let (leaders, heard) = (cluster.leader_reports(), heard_servers(cluster));
    let mut missing = BTreeSet::new();
    for group in cluster.known_groups().into_values() {
        let newest = leaders.get(&group.group).map_or(&group, |(_server, report)| &report.group);
        for member in newest.membership.replicas() {
            match cluster.servers.get(&member.server) {
                None if heard.contains(&member.server) => {}
                None => _ = missing.insert(Component::Server(member.server)),
                Some(server) => {
                    let has = |report| has_replica(report, group.group, member.replica);
                    if server.report.as_ref().is_some_and(|report| !has(report)) {
                        missing.insert(Component::Replica(member.server, group.group, member.replica));
                    }
                }
            }
        }
    }
    missing
}

/// Whether a server has this replica, damaged or not.
fn has_replica(report: &crate::cluster::ServerReport, group: GroupId, replica: ReplicaId) -> bool {
    report.damaged.contains(&(group, replica))
        || report.replicas.iter().any(|here| here.group.group == group && here.replica == replica)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{Incarnation, LogId, Term};
    use ebla_model::metadata::GroupDescriptor;

    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{Registration, ReplicaReport, Role, Server, ServerReport};

    const DEAD_SERVER: Component = Component::Server(ServerId::new(3));
    const GRACE: Duration = Duration::from_secs(30);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Servers 1 and 2 with their replicas of a group that also has one on server 3, which is missing.
    fn snapshot(heard: &[u64]) -> ClusterSnapshot {
        let servers = [1, 2, 3].map(ServerId::new);
        let group = GroupDescriptor::initial(GroupId::new(7), &servers);
        let mut cluster = ClusterSnapshot::default();
        for (number, role) in [(1, Role::Leader), (2, Role::Follower)] {
            let replica = ReplicaReport {
                group: group.clone(),
                replica: ReplicaId::new(number),
                role,
                term: Term::new(1),
                tablets: Vec::new(),
                applied: LogId::SEED,
                last: LogId::SEED,
                time: Micros::ZERO,
                settled: role == Role::Leader,
                heard: heard.iter().copied().map(ReplicaId::new).collect(),
                division: None,
            };
            let report = Some(ServerReport { replicas: vec![replica], ..Default::default() });
            let (address, release, zone) = (String::new(), String::new(), None);
            let (registration, incarnation) = (Registration::Registered, Incarnation::new(1));
            let server = Server { address, incarnation, release, zone, registration, report, later_epoch: false };
            cluster.servers.insert(ServerId::new(number), server);
        }
        cluster
    }

    #[test]
    fn the_timeout_counts_from_the_first_snapshot_without_the_server() {
        let mut failures = FailureDetector::default();
        failures.observe(&snapshot(&[2]), seconds(10));
        failures.observe(&snapshot(&[2]), seconds(39));
        assert!(!failures.is_missing_for(DEAD_SERVER, seconds(39), GRACE));
        assert_eq!(failures.next_timeout(seconds(39), &[GRACE]), Some(seconds(1)));
        assert!(failures.is_missing_for(DEAD_SERVER, seconds(40), GRACE));
        assert_eq!(failures.next_timeout(seconds(45), &[GRACE]), Some(Duration::ZERO), "no plan knows it yet");
        failures.observe(&snapshot(&[2]), seconds(45));
        assert_eq!(failures.next_timeout(seconds(45), &[GRACE]), None);
    }

    #[test]
    fn a_server_that_a_leader_hears_is_not_missing_and_a_return_resets_the_timeout() {
        let mut failures = FailureDetector::default();
        failures.observe(&snapshot(&[2, 3]), seconds(10));
        assert!(failures.missing_since.is_empty());
        failures.observe(&snapshot(&[2]), seconds(20));
        failures.observe(&snapshot(&[2, 3]), seconds(30));
        failures.observe(&snapshot(&[2]), seconds(45));
        assert!(
            !failures.is_missing_for(DEAD_SERVER, seconds(60), GRACE),
            "the timeout counts from the last time it disappeared"
        );
    }

    #[test]
    fn a_server_that_only_a_leader_hears_must_be_observed_again() {
        let mut heard = snapshot(&[2, 3]);
        assert!(is_only_heard(&heard));
        assert!(!is_only_heard(&snapshot(&[2])), "it is missing, and the timeout counts");
        let responds = heard.servers.values().next().unwrap().clone();
        heard.servers.insert(ServerId::new(3), responds);
        assert!(!is_only_heard(&heard), "it responds");
    }

    #[test]
    fn a_replica_that_its_server_does_not_have_is_missing_and_a_damaged_one_is_not() {
        let component = Component::Replica(ServerId::new(2), GroupId::new(7), ReplicaId::new(2));
        let mut cluster = snapshot(&[2, 3]);
        let report = cluster.servers.get_mut(&ServerId::new(2)).unwrap().report.as_mut().unwrap();
        report.replicas.clear();
        let mut failures = FailureDetector::default();
        failures.observe(&cluster, seconds(1));
        assert!(failures.is_missing_for(component, seconds(2), seconds(1)));
        let report = cluster.servers.get_mut(&ServerId::new(2)).unwrap().report.as_mut().unwrap();
        report.damaged.insert((GroupId::new(7), ReplicaId::new(2)));
        failures.observe(&cluster, seconds(2));
        assert!(failures.missing_since.is_empty());
    }
}
