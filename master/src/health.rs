//! The health of the tablets: live replicas, quorum, leaders. Pure.
//!
//! A tablet has the replicas and the leader of its group. A replica is live when its server reports it as running, or
//! when its group's leader has heard from it recently. A tablet should have as many replicas as the master is configured for, or as many as it has voters if those are
//! more. It has a quorum when a majority of each of its voter sets is live.
//!
//! Tablets of tables that are being created or deleted do not count.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{GroupId, ReplicaId, TabletId};
use ebla_model::metadata::{GroupDescriptor, Membership, Replica};

use crate::cluster::ClusterSnapshot;

/// The health of all tablets in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The known tablets that should serve.
    pub tablets: usize,
    /// Under-replicated tablets, by how many live replicas they have.
    pub shortages: BTreeMap<Shortage, usize>,
    /// The tablets that cannot commit.
    pub without_quorum: BTreeSet<TabletId>,
    /// The tablets that have a quorum but no leader.
    pub without_leader: BTreeSet<TabletId>,
    /// Live replicas; for each tablet at most the number that it should have.
    pub replicas_live: usize,
    /// The replicas that all tablets should have.
    pub replicas_wanted: usize,
    /// The smallest number of voters of a tablet; `None` without tablets.
    pub voters_min: Option<usize>,
    /// Tablets with fewer voters than they should have: there is no server for the others, or they are being copied.
    pub missing_voters: usize,
}

/// The live replicas of an under-replicated tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shortage {
    /// Live replicas.
    pub live: usize,
    /// The replicas that it should have.
    pub wanted: usize,
}

impl Health {
    /// The health in a snapshot. `replicas`: how many a tablet should have.
    #[must_use]
    pub fn of(cluster: &ClusterSnapshot, replicas: usize) -> Self {
        let groups = group_health(cluster);
        let mut health = Self::default();
        for tablet in cluster.known_tablets().into_values().filter(|tablet| cluster.is_served(tablet.table)) {
            if let Some(group) = groups.get(&tablet.group) {
                health.add(tablet.tablet, group, replicas);
            }
        }
        health
    }

    fn add(&mut self, tablet: TabletId, group: &GroupHealth, replicas: usize) {
        let sets = &group.membership.voters;
        let voters = sets.last().map_or(0, BTreeSet::len);
        let live_voters = sets.last().map_or(0, |set| set.intersection(&group.live).count());
        let wanted = replicas.max(voters);
        self.tablets += 1;
        self.replicas_live += live_voters;
        self.replicas_wanted += wanted;
        self.voters_min = Some(self.voters_min.map_or(voters, |min| min.min(voters)));
        self.missing_voters += usize::from(voters < wanted);
        if live_voters < wanted {
            *self.shortages.entry(Shortage { live: live_voters, wanted }).or_default() += 1;
        }
        if !group.has_quorum() {
            self.without_quorum.insert(tablet);
        } else if group.leadership == Leadership::None {
            self.without_leader.insert(tablet);
        }
    }

    /// The number of tablets with fewer live replicas than they should have.
    #[must_use]
    pub fn under_replicated(&self) -> usize {
        self.shortages.values().sum()
    }
}

/// The state of a group, which all its tablets share.
struct GroupHealth {
    membership: Membership,
    live: BTreeSet<ReplicaId>,
    leadership: Leadership,
}

impl GroupHealth {
    /// Whether a majority of each voter set is live.
    fn has_quorum(&self) -> bool {
        self.membership.has_majority(|replica| self.live.contains(&replica.replica))
    }
}

/// The known groups that can commit.
#[must_use]
pub fn groups_with_quorum(cluster: &ClusterSnapshot) -> BTreeSet<GroupId> {
    let groups = group_health(cluster).into_iter();
    groups.filter(|(_group, health)| health.has_quorum()).map(|(group, _health)| group).collect()
}

/// Whether each known group can commit, apart from new ones, of which not all replicas may exist. Then the servers that have responded know all ids
/// that are in use, and so whether Chubby is [behind](crate::plan::behind): after a restoration no server is registered at first.
#[must_use]
pub fn all_groups_have_quorum(cluster: &ClusterSnapshot) -> bool {
    let with_quorum = groups_with_quorum(cluster);
    let is_new = |group: GroupId| cluster.new_groups.contains_key(&group);
    cluster.known_tablets().values().all(|tablet| with_quorum.contains(&tablet.group) || is_new(tablet.group))
}

/// Whether a group has no leader although it can commit. What it needs cannot be planned before it has elected one, which no event reports:
/// worth another round soon.
#[must_use]
pub fn awaits_leader(cluster: &ClusterSnapshot) -> bool {
    group_health(cluster).values().any(|group| group.has_quorum() && group.leadership == Leadership::None)
}

/// Whether a replica of a group leads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leadership {
    Present,
    None,
}

fn group_health(cluster: &ClusterSnapshot) -> BTreeMap<GroupId, GroupHealth> {
    let leaders = cluster.leader_reports();
    let running: BTreeSet<(GroupId, ReplicaId)> =
        cluster.reports().map(|(_server, report)| (report.group.group, report.replica)).collect();
    let health = |(id, known): (GroupId, GroupDescriptor)| {
        let leader = leaders.get(&id).map(|(_server, report)| *report);
        let membership = leader.map_or(known.membership, |report| report.group.membership.clone());
        let lives = |replica: &Replica| {
            running.contains(&(id, replica.replica))
                || leader.is_some_and(|report| report.heard.contains(&replica.replica))
        };
        let live = membership.replicas().filter(lives).map(|replica| replica.replica).collect();
        let leadership = if leader.is_some() { Leadership::Present } else { Leadership::None };
        (id, GroupHealth { membership, live, leadership })
    };
    cluster.known_groups().into_iter().map(health).collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{LogId, SchemaVersion, ServerId, TableId, Term};
    use ebla_model::key::KeyRange;

    use ebla_model::metadata::TabletDescriptor;

    use ebla_model::tablet_load::TabletLoad;
    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{GroupPlan, GroupProgress, ReplicaReport, Role, Server, ServerReport, TabletReport};

    /// A tablet of METADATA with a replica on each of three servers; `responding` of them respond, the first one
    /// leads.
    fn snapshot(responding: &[u64], heard: &[u64]) -> ClusterSnapshot {
        let servers = [1, 2, 3].map(ServerId::new);
        let tablet = TabletDescriptor::initial(TableId::METADATA, TabletId::new(7), KeyRange::all(), &servers);
        let mut cluster = ClusterSnapshot::default();
        cluster.metadata.insert(tablet.row_key(), tablet.clone());
        for (number, place) in responding.iter().zip(0..) {
            let reported = TabletReport {
                descriptor: tablet.clone(),
                size_bytes: 0,
                schema_version: SchemaVersion::new(1),
                load: TabletLoad::default(),
            };
            let replica = ReplicaReport {
                group: tablet.group_descriptor(),
                replica: ReplicaId::new(*number),
                role: if place == 0 { Role::Leader } else { Role::Follower },
                term: Term::new(1),
                tablets: vec![reported],
                applied: LogId::SEED,
                last: LogId::SEED,
                time: Micros::ZERO,
                settled: true,
                heard: heard.iter().copied().map(ReplicaId::new).collect(),
                division: None,
            };
            let server = Server::registered(Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }));
            cluster.servers.insert(ServerId::new(*number), server);
        }
        cluster
    }

    fn shortages(health: &Health) -> Vec<(usize, usize, usize)> {
        health.shortages.iter().map(|(short, tablets)| (short.live, short.wanted, *tablets)).collect()
    }

    #[test]
    fn all_replicas_are_live() {
        let health = Health::of(&snapshot(&[1, 2, 3], &[]), 3);
        assert_eq!(
            (health.tablets, health.under_replicated(), health.replicas_live, health.replicas_wanted),
            (1, 0, 3, 3)
        );
        assert!(health.without_quorum.is_empty() && health.without_leader.is_empty());
    }

    #[test]
    fn a_tablet_with_two_of_three_replicas_is_under_replicated_and_can_commit() {
        let health = Health::of(&snapshot(&[1, 2], &[]), 3);
        assert_eq!(shortages(&health), [(2, 3, 1)]);
        assert!(health.without_quorum.is_empty() && health.without_leader.is_empty());
        assert_eq!((health.voters_min, health.missing_voters), (Some(3), 0));
    }

    #[test]
    fn a_replica_that_its_leader_hears_is_live_although_the_master_gets_no_response() {
        assert_eq!(Health::of(&snapshot(&[1, 2], &[2, 3]), 3).under_replicated(), 0);
    }

    #[test]
    fn without_a_majority_there_is_no_quorum_even_with_a_leader() {
        let health = Health::of(&snapshot(&[1], &[]), 3);
        assert_eq!(shortages(&health), [(1, 3, 1)]);
        assert_eq!((health.without_quorum.len(), health.without_leader.len()), (1, 0));
        assert_eq!(Health::of(&snapshot(&[], &[]), 3).without_quorum.len(), 1);
    }

    #[test]
    fn a_majority_without_a_leader_is_counted() {
        let mut cluster = snapshot(&[1, 2], &[]);
        for server in cluster.servers.values_mut() {
            for replica in server.report.iter_mut().flat_map(|report| &mut report.replicas) {
                replica.role = Role::Follower;
            }
        }
        let health = Health::of(&cluster, 3);
        assert_eq!((health.without_quorum.len(), health.without_leader.len()), (0, 1));
    }

    #[test]
    fn a_tablet_created_with_too_few_servers_is_under_replicated() {
        let health = Health::of(&snapshot(&[1, 2, 3], &[]), 5);
        assert_eq!(shortages(&health), [(3, 5, 1)]);
        assert_eq!((health.voters_min, health.missing_voters), (Some(3), 1));
    }

    #[test]
    fn servers_that_responded_know_all_ids_when_each_group_has_a_quorum() {
        assert!(all_groups_have_quorum(&ClusterSnapshot::default()));
        assert!(all_groups_have_quorum(&snapshot(&[1, 2], &[])));
        assert!(!all_groups_have_quorum(&snapshot(&[3], &[])));
        let mut none = snapshot(&[], &[]);
        assert!(!all_groups_have_quorum(&none), "no server is registered yet");
        let listed = none.metadata.values().next().unwrap().group_descriptor();
        let progress = GroupProgress::Creating;
        none.new_groups.insert(listed.group, GroupPlan { group: listed, progress });
        assert!(all_groups_have_quorum(&none), "a group that is being created");
    }

    #[test]
    fn a_group_awaits_its_leader_while_most_of_its_voters_run() {
        let without_leader = |responding: &[u64]| {
            let mut cluster = snapshot(responding, &[]);
            let reports = cluster.servers.values_mut().filter_map(|server| server.report.as_mut());
            reports.flat_map(|report| &mut report.replicas).for_each(|replica| replica.role = Role::Follower);
            cluster
        };
        assert!(awaits_leader(&without_leader(&[1, 2])));
        assert!(!awaits_leader(&snapshot(&[1, 2], &[])));
        assert!(!awaits_leader(&without_leader(&[1])), "it has lost its quorum, and a server that returns is an event");
        assert!(!awaits_leader(&ClusterSnapshot::default()));
    }
}
