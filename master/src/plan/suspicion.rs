//! Since when something has been missing: the memory of the repair, counted by the master in office alone.
//!
//! A server is suspected when it is not registered, does not answer the master, *and* no leader has heard of a replica on it: a lease
//! by itself says little, it ends late when Chubby changes leaders and early when Chubby is not reached. A replica is
//! suspected when its server answers and does not have it. A suspicion ends with the first picture that disproves it;
//! a new master begins to count anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::id::{ReplicaId, ServerId, TabletId};

use crate::cluster::Cluster;

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// A server that holds replicas, as far as is known.
    Server(ServerId),
    /// A replica on a server that lives.
    Replica(ServerId, TabletId, ReplicaId),
}

/// Since when who has been missing, as time since boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspicions {
    since: BTreeMap<Suspect, Duration>,
}

impl Suspicions {
    /// Takes a new picture, made at `now`.
    pub fn follow(&mut self, cluster: &Cluster, now: Duration) {
        let suspects = suspects(cluster);
        self.since.retain(|suspect, _since| suspects.contains(suspect));
        for suspect in suspects {
            self.since.entry(suspect).or_insert(now);
        }
    }

    /// Whether it has been missing for so long.
    #[must_use]
    pub fn is_gone(&self, suspect: Suspect, now: Duration, wait: Duration) -> bool {
        self.since.get(&suspect).is_some_and(|since| now.saturating_sub(*since) >= wait)
    }

    /// How long until the next one has been missing for one of these times; `None` when there is nothing to wait for.
    #[must_use]
    pub fn next(&self, now: Duration, waits: &[Duration]) -> Option<Duration> {
        let due = self.since.values().flat_map(|since| waits.iter().map(|wait| since.saturating_add(*wait)));
        due.filter(|due| *due > now).map(|due| due.saturating_sub(now)).min()
    }

    /// With this one missing since then.
    #[cfg(test)]
    pub(crate) fn with(mut self, suspect: Suspect, since: Duration) -> Self {
        self.since.insert(suspect, since);
        self
    }
}

fn suspects(cluster: &Cluster) -> BTreeSet<Suspect> {
    let led = cluster.led();
    let mut heard = BTreeSet::new();
    for (_server, report) in led.values() {
        let members = &report.descriptor.membership;
        heard.extend(report.heard.iter().filter_map(|replica| members.server_of(*replica)));
    }
    let mut suspects = BTreeSet::new();
    for tablet in cluster.known_tablets().into_values() {
        let members =
            led.get(&tablet.tablet).map_or(tablet, |(_server, report)| &report.descriptor).membership.replicas();
        for member in members {
            match cluster.servers.get(&member.server) {
                None if heard.contains(&member.server) => {}
                None => _ = suspects.insert(Suspect::Server(member.server)),
                Some(server) => {
                    let has = |report| has_replica(report, tablet.tablet, member.replica);
                    if server.report.as_ref().is_some_and(|report| !has(report)) {
                        suspects.insert(Suspect::Replica(member.server, tablet.tablet, member.replica));
                    }
                }
            }
        }
    }
    suspects
}

/// Whether a server has this replica, damaged or not.
fn has_replica(report: &crate::cluster::ServerReport, tablet: TabletId, replica: ReplicaId) -> bool {
    report.damaged.contains(&(tablet, replica))
        || report.replicas.iter().any(|here| here.descriptor.tablet == tablet && here.replica == replica)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{Incarnation, LogId, SchemaVersion, TableId};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::TabletDescriptor;

    use super::*;
    use crate::cluster::{Presence, ReplicaReport, Role, Server, ServerReport};

    const LOST: Suspect = Suspect::Server(ServerId::new(3));
    const GRACE: Duration = Duration::from_secs(30);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Servers 1 and 2 with their replicas of a tablet that also lives on server 3, which is gone.
    fn picture(heard: &[u64]) -> Cluster {
        let servers = [1, 2, 3].map(ServerId::new);
        let descriptor = TabletDescriptor::fresh(TableId::new(5), TabletId::new(7), KeyRange::all(), &servers);
        let mut cluster = Cluster::default();
        for (number, role) in [(1, Role::Leader), (2, Role::Follower)] {
            let replica = ReplicaReport {
                descriptor: descriptor.clone(),
                replica: ReplicaId::new(number),
                role,
                term: 1,
                size_bytes: 0,
                schema_version: SchemaVersion::new(1),
                applied: LogId::SEED,
                settled: role == Role::Leader,
                heard: heard.iter().copied().map(ReplicaId::new).collect(),
            };
            let report = Some(ServerReport { replicas: vec![replica], ..Default::default() });
            let (address, release) = (String::new(), String::new());
            let presence = Presence::Registered;
            let server = Server { address, incarnation: Incarnation::new(1), release, presence, report };
            cluster.servers.insert(ServerId::new(number), server);
        }
        cluster
    }

    #[test]
    fn the_time_counts_from_the_first_picture_without_the_server() {
        let mut suspicions = Suspicions::default();
        suspicions.follow(&picture(&[2]), seconds(10));
        suspicions.follow(&picture(&[2]), seconds(39));
        assert!(!suspicions.is_gone(LOST, seconds(39), GRACE));
        assert_eq!(suspicions.next(seconds(39), &[GRACE]), Some(seconds(1)));
        assert!(suspicions.is_gone(LOST, seconds(40), GRACE));
        assert_eq!(suspicions.next(seconds(40), &[GRACE]), None);
    }

    #[test]
    fn a_server_that_a_leader_hears_is_not_suspected_and_one_that_returned_is_forgiven() {
        let mut suspicions = Suspicions::default();
        suspicions.follow(&picture(&[2, 3]), seconds(10));
        assert_eq!(suspicions, Suspicions::default());
        suspicions.follow(&picture(&[2]), seconds(20));
        suspicions.follow(&picture(&[2, 3]), seconds(30));
        suspicions.follow(&picture(&[2]), seconds(45));
        assert!(!suspicions.is_gone(LOST, seconds(60), GRACE), "it counts from the last time it was gone");
    }

    #[test]
    fn a_replica_that_its_server_does_not_have_is_suspected_and_a_damaged_one_is_not() {
        let suspect = Suspect::Replica(ServerId::new(2), TabletId::new(7), ReplicaId::new(2));
        let mut cluster = picture(&[2, 3]);
        let report = cluster.servers.get_mut(&ServerId::new(2)).unwrap().report.as_mut().unwrap();
        report.replicas.clear();
        let mut suspicions = Suspicions::default();
        suspicions.follow(&cluster, seconds(1));
        assert!(suspicions.is_gone(suspect, seconds(2), seconds(1)));
        let report = cluster.servers.get_mut(&ServerId::new(2)).unwrap().report.as_mut().unwrap();
        report.damaged.insert((TabletId::new(7), ReplicaId::new(2)));
        suspicions.follow(&cluster, seconds(2));
        assert_eq!(suspicions, Suspicions::default());
    }
}
