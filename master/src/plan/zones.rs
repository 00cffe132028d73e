//! Zones: no two replicas of a group are in one zone while there are at least as many zones as replicas. With fewer zones they are spread over
//! all of them.
//!
//! A server without a zone is one of its own. Zones count as long as one of their servers may get replicas: when a whole zone has failed,
//! the rule yields, and replica balance restores it after the zone has returned.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::ServerId;
use ebla_model::zone::Zone;

use crate::cluster::ClusterSnapshot;

/// What fails together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FailureDomain {
    /// All servers of a zone.
    Zone(Zone),
    /// A server alone.
    Server(ServerId),
}

/// The zones of the servers.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    named: BTreeMap<ServerId, Zone>,
    /// Those with a server that may get replicas.
    usable: usize,
}

impl Zones {
    /// The zones in a snapshot.
    #[must_use]
    pub fn of(cluster: &ClusterSnapshot) -> Self {
        let named = cluster.servers.iter().filter_map(|(id, server)| Some((*id, server.zone.clone()?)));
        let zones = Self { named: named.collect(), usable: 0 };
        let usable: BTreeSet<FailureDomain> =
            cluster.loads().into_keys().map(|server| zones.failure_domain(server)).collect();
        Self { usable: usable.len(), ..zones }
    }

    fn failure_domain(&self, server: ServerId) -> FailureDomain {
        self.named.get(&server).cloned().map_or(FailureDomain::Server(server), FailureDomain::Zone)
    }

    /// How many of the `others` are in the zone of this server.
    #[must_use]
    pub fn occupancy(&self, server: ServerId, others: &[ServerId]) -> usize {
        let zone = self.named.get(&server);
        let is_same = |other: &&ServerId| match zone {
            Some(zone) => self.named.get(*other) == Some(zone),
            None => **other == server,
        };
        others.iter().filter(is_same).count()
    }

    /// Whether a group of `replicas` replicas, among them those on `others`, may have one on this server.
    #[must_use]
    pub fn allows(&self, server: ServerId, others: &[ServerId], replicas: usize) -> bool {
        self.usable < replicas || self.occupancy(server, others) == 0
    }

    /// The zones of these servers, all of which may get replicas.
    #[cfg(test)]
    pub(super) fn named(of: &[(u64, &str)]) -> Self {
        let named: BTreeMap<ServerId, Zone> =
            of.iter().map(|(server, zone)| (ServerId::new(*server), zone.parse().unwrap())).collect();
        let usable = named.values().collect::<BTreeSet<_>>().len();
        Self { named, usable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(numbers: &[u64]) -> Vec<ServerId> {
        numbers.iter().copied().map(ServerId::new).collect()
    }

    #[test]
    fn a_zone_has_one_replica_while_there_are_enough_zones() {
        let zones = Zones::named(&[(1, "a"), (2, "a"), (3, "b"), (4, "c")]);
        let allows = |server, others: &[u64], replicas| zones.allows(ServerId::new(server), &servers(others), replicas);
        assert!(allows(4, &[1, 3], 3) && !allows(2, &[1, 3], 3));
        assert!(allows(2, &[1, 3, 4], 5), "there are fewer zones than replicas");
        assert!(allows(9, &[1, 3], 3), "a server without a zone");
    }

    #[test]
    fn servers_without_a_zone_are_zones_of_their_own() {
        let zones = Zones::named(&[(1, "a"), (2, "a")]);
        let occupancy = |server, others: &[u64]| zones.occupancy(ServerId::new(server), &servers(others));
        assert_eq!((occupancy(1, &[2, 3]), occupancy(3, &[1, 2, 4]), occupancy(4, &[4])), (1, 0, 1));
    }
}
