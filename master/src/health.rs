//! How well the tablets are: how many of their replicas live, which of them can commit, which are led. Pure.
//!
//! A replica lives when its server reports that it runs, or when its tablet's leader has heard of it lately. A tablet should
//! have as many replicas as the master was told, or as it has voters if those are more. It has a quorum when a majority of
//! each of its sets of voters lives.
//!
//! Tablets of tables that are being created or deleted do not count.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{ReplicaId, TabletId};
use ebla_model::metadata::{Replica, TabletDescriptor};

use crate::cluster::{Cluster, ReplicaReport};

/// How the tablets of a picture are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The tablets that are known and should serve.
    pub tablets: usize,
    /// How many tablets have so many live replicas, fewer than they should have.
    pub shortages: BTreeMap<Shortage, usize>,
    /// The tablets that cannot commit.
    pub without_quorum: BTreeSet<TabletId>,
    /// The tablets that could commit and have no leader.
    pub without_leader: BTreeSet<TabletId>,
    /// Live replicas, at most as many for each tablet as it should have.
    pub replicas_live: usize,
    /// Replicas that there should be.
    pub replicas_wanted: usize,
    /// The fewest voters that a tablet has; `None` without tablets.
    pub voters_min: Option<usize>,
    /// Tablets with fewer voters than they should have: no server has been found for the others, or they are being copied.
    pub growing: usize,
}

/// So many replicas live of those that a tablet should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shortage {
    /// Those that live.
    pub live: usize,
    /// Those that there should be.
    pub wanted: usize,
}

impl Health {
    /// Judges a picture. `replicas`: how many a tablet should have.
    #[must_use]
    pub fn of(cluster: &Cluster, replicas: usize) -> Self {
        let led = cluster.led();
        let running = running(cluster);
        let mut health = Self::default();
        for known in cluster.known_tablets().into_values().filter(|tablet| cluster.is_served(tablet.table)) {
            let leader = led.get(&known.tablet).map(|(_server, report)| *report);
            let tablet = leader.map_or(known, |report| &report.descriptor);
            let lives = |replica: &Replica| {
                running.contains(&(tablet.tablet, replica.replica))
                    || leader.is_some_and(|report| report.heard.contains(&replica.replica))
            };
            let live: BTreeSet<ReplicaId> =
                tablet.membership.replicas().filter(lives).map(|replica| replica.replica).collect();
            health.add(tablet, leader, &live, replicas);
        }
        health
    }

    fn add(
        &mut self,
        tablet: &TabletDescriptor,
        leader: Option<&ReplicaReport>,
        live: &BTreeSet<ReplicaId>,
        replicas: usize,
    ) {
        let sets = &tablet.membership.voters;
        let voters = sets.last().map_or(0, BTreeSet::len);
        let live_voters = sets.last().map_or(0, |set| set.intersection(live).count());
        let wanted = replicas.max(voters);
        self.tablets += 1;
        self.replicas_live += live_voters;
        self.replicas_wanted += wanted;
        self.voters_min = Some(self.voters_min.map_or(voters, |min| min.min(voters)));
        self.growing += usize::from(voters < wanted);
        if live_voters < wanted {
            *self.shortages.entry(Shortage { live: live_voters, wanted }).or_default() += 1;
        }
        if !sets.iter().all(|set| 2 * set.intersection(live).count() > set.len()) {
            self.without_quorum.insert(tablet.tablet);
        } else if leader.is_none() {
            self.without_leader.insert(tablet.tablet);
        }
    }

    /// How many tablets have fewer live replicas than they should have.
    #[must_use]
    pub fn short(&self) -> usize {
        self.shortages.values().sum()
    }
}

/// The replicas that run, wherever.
fn running(cluster: &Cluster) -> BTreeSet<(TabletId, ReplicaId)> {
    cluster.reports().map(|(_server, report)| (report.descriptor.tablet, report.replica)).collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{Incarnation, LogId, SchemaVersion, ServerId, TableId};
    use ebla_model::key::KeyRange;

    use super::*;
    use crate::cluster::{Presence, Role, Server, ServerReport};

    /// A tablet of METADATA with a replica on each of three servers; `answering` of them answer, the first of which leads.
    fn picture(answering: &[u64], heard: &[u64]) -> Cluster {
        let servers = [1, 2, 3].map(ServerId::new);
        let tablet = TabletDescriptor::fresh(TableId::METADATA, TabletId::new(7), KeyRange::all(), &servers);
        let mut cluster = Cluster::default();
        cluster.metadata.insert(tablet.row_key(), tablet.clone());
        for (number, place) in answering.iter().zip(0..) {
            let replica = ReplicaReport {
                descriptor: tablet.clone(),
                replica: ReplicaId::new(*number),
                role: if place == 0 { Role::Leader } else { Role::Follower },
                term: 1,
                size_bytes: 0,
                schema_version: SchemaVersion::new(1),
                applied: LogId::SEED,
                settled: true,
                heard: heard.iter().copied().map(ReplicaId::new).collect(),
            };
            let server = Server {
                address: String::new(),
                incarnation: Incarnation::new(1),
                release: String::new(),
                presence: Presence::Registered,
                report: Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }),
            };
            cluster.servers.insert(ServerId::new(*number), server);
        }
        cluster
    }

    fn shortages(health: &Health) -> Vec<(usize, usize, usize)> {
        health.shortages.iter().map(|(short, tablets)| (short.live, short.wanted, *tablets)).collect()
    }

    #[test]
    fn all_replicas_live() {
        let health = Health::of(&picture(&[1, 2, 3], &[]), 3);
        assert_eq!((health.tablets, health.short(), health.replicas_live, health.replicas_wanted), (1, 0, 3, 3));
        assert!(health.without_quorum.is_empty() && health.without_leader.is_empty());
    }

    #[test]
    fn a_tablet_with_two_of_three_replicas_is_short_and_can_commit() {
        let health = Health::of(&picture(&[1, 2], &[]), 3);
        assert_eq!(shortages(&health), [(2, 3, 1)]);
        assert!(health.without_quorum.is_empty() && health.without_leader.is_empty());
        assert_eq!((health.voters_min, health.growing), (Some(3), 0));
    }

    #[test]
    fn what_the_leader_hears_lives_although_the_master_gets_no_answer() {
        assert_eq!(Health::of(&picture(&[1, 2], &[2, 3]), 3).short(), 0);
    }

    #[test]
    fn without_a_majority_there_is_no_quorum_even_if_somebody_still_leads() {
        let health = Health::of(&picture(&[1], &[]), 3);
        assert_eq!(shortages(&health), [(1, 3, 1)]);
        assert_eq!((health.without_quorum.len(), health.without_leader.len()), (1, 0));
        assert_eq!(Health::of(&picture(&[], &[]), 3).without_quorum.len(), 1);
    }

    #[test]
    fn a_majority_without_a_leader_is_told() {
        let mut cluster = picture(&[1, 2], &[]);
        for server in cluster.servers.values_mut() {
            for replica in server.report.iter_mut().flat_map(|report| &mut report.replicas) {
                replica.role = Role::Follower;
            }
        }
        let health = Health::of(&cluster, 3);
        assert_eq!((health.without_quorum.len(), health.without_leader.len()), (0, 1));
    }

    #[test]
    fn a_tablet_that_was_made_with_too_few_servers_is_short_too() {
        let health = Health::of(&picture(&[1, 2, 3], &[]), 5);
        assert_eq!(shortages(&health), [(3, 5, 1)]);
        assert_eq!((health.voters_min, health.growing), (Some(3), 1));
    }
}
