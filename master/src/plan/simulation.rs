//! A simulated cluster under the real planner: servers join, are drained and are lost, and the plan of each round is applied to a model of
//! the cluster, a snapshot. Nothing but the planner decides.
//!
//! In every round: at most four changes at once and two for each receiving server; no group with fewer voters than replicas because of a
//! move. In each phase at most two moves, or every eighth, bring a replica back to a server that the group has left, which would be oscillation, and it
//! must end with an empty plan.

use std::time::Duration;

use ebla_model::id::{Generation, LogIndex, SchemaVersion, Term};
use ebla_model::key::KeyRange;
use ebla_model::schema::{TableName, TableSchema};
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;
use ebla_runtime::Rng;

use super::auto_merge::{MergeContext, MergeMemory, MergeRules};
use super::failure_detector::FailureDetector;
use super::load_settling::Loads;
use super::placement::{assign, server_loads};
use super::repair::Addition;
use super::replica_balance::ReplicaBalance;
use super::zones::Zones;
use super::*;
use crate::cluster::{ReplicaReport, Server, ServerReport, TabletReport};

const TABLE: TableId = TableId::new(5);
const REPLICAS: usize = 3;
/// The simulated time of a round.
const ROUND: Duration = Duration::from_secs(5);
/// The rounds that a change takes.
const CHANGE_ROUNDS: u32 = 2;
/// More rounds than any phase may take.
const ROUNDS_MAX: usize = 3_000;

/// A change of replicas in progress.
struct RunningChange {
    change: ReplicaChange,
    rounds_left: u32,
}

/// What a phase has done.
#[derive(Debug, Default)]
struct Phase {
    rounds: usize,
    changes: usize,
    transfers: usize,
    divisions: usize,
    /// Replicas that were moved to a server that their group had left.
    returns: usize,
    /// The servers that a group has left.
    left: BTreeSet<(GroupId, ServerId)>,
}

struct Simulation {
    cluster: ClusterSnapshot,
    ctx: PlanContext,
    running: Vec<RunningChange>,
    next_replica: u64,
    next_group: u64,
    rng: Rng,
}

impl Simulation {
    /// Servers from 1 on, and groups with these numbers of tablets, placed as new groups are.
    fn new(servers: u64, groups: &[u64], rng: Rng) -> Self {
        let name: TableName = "projects/p/instances/i/tables/t".parse().unwrap();
        let (state, version) = (TableState::Active, SchemaVersion::new(1));
        let schema = TableSchema { state, version, ..TableSchema::new(TABLE, name, []).unwrap() };
        let cluster = ClusterSnapshot { tables: BTreeMap::from([(TABLE, schema)]), ..ClusterSnapshot::default() };
        let ctx = PlanContext {
            now: Duration::ZERO,
            grace: Duration::from_secs(30),
            replicas: REPLICAS,
            failures: FailureDetector::default(),
            balance: ReplicaBalance::On,
            loads: Loads::Measured,
            in_progress: BTreeMap::new(),
            merges: MergeContext { rules: MergeRules::OFF, memory: MergeMemory::default() },
        };
        let mut simulation = Self { cluster, ctx, running: Vec::new(), next_replica: 1_001, next_group: 2, rng };
        (1..=servers).for_each(|server| simulation.join(server));
        let zones = Zones::of(&simulation.cluster);
        let assigned = assign(&server_loads(&simulation.cluster), &zones, groups.len(), REPLICAS);
        let all: u64 = groups.iter().sum();
        let mut tablet = 0;
        for (servers, count) in assigned.iter().zip(groups) {
            let group = GroupDescriptor::initial(GroupId::new(simulation.next_group), servers);
            simulation.next_group += 1;
            // Every tenth group has large tablets.
            let factor = if simulation.rng.below(10) == 0 { 4 } else { 1 };
            let tablets = (tablet..tablet + count).map(|number| {
                let size_bytes = ((1 + simulation.rng.below(64)) * factor) << 20;
                let descriptor =
                    group.tablet(TABLE, TabletId::new(10 + number), range(number, all), Generation::new(1));
                let load = load(&simulation.rng);
                TabletReport { descriptor, size_bytes, schema_version: SchemaVersion::new(1), load }
            });
            let tablets: Vec<TabletReport> = tablets.collect();
            tablet += count;
            simulation.create_group(&group, &tablets);
        }
        simulation
    }

    fn create_group(&mut self, group: &GroupDescriptor, tablets: &[TabletReport]) {
        for tablet in tablets {
            self.cluster.metadata.insert(tablet.descriptor.row_key(), tablet.descriptor.clone());
        }
        let leader = group.membership.replicas().next().unwrap().server;
        for member in group.membership.replicas() {
            let role = if member.server == leader { Role::Leader } else { Role::Follower };
            let report = replica_report(group, member.replica, role, tablets.to_vec());
            self.replicas_mut(member.server).push(report);
        }
        self.update_group(group);
    }

    /// Every tablet has at most this many reads per second, and as many writes; and at least a tenth of that.
    fn limit_loads(&mut self, per_second: u64) {
        let mut loads: BTreeMap<TabletId, TabletLoad> = BTreeMap::new();
        for tablet in self.cluster.tablets().into_keys() {
            let random = || per_second / 10 + self.rng.below((per_second * 9 / 10).max(1));
            let (reads_per_second, writes_per_second) = (random(), random());
            loads.insert(tablet, TabletLoad { reads_per_second, writes_per_second, ..TabletLoad::default() });
        }
        let servers = self.cluster.servers.values_mut();
        let reports = servers.filter_map(|server| server.report.as_mut()).flat_map(|report| &mut report.replicas);
        for tablet in reports.flat_map(|report| &mut report.tablets) {
            tablet.load.clone_from(&loads[&tablet.descriptor.tablet]);
        }
    }

    /// A server joins.
    fn join(&mut self, server: u64) {
        let server_entry = Server::registered(Some(ServerReport::default()));
        self.cluster.servers.insert(ServerId::new(server), server_entry);
    }

    /// A server is lost: other replicas are elected.
    fn lose(&mut self, server: u64) {
        let server = ServerId::new(server);
        let lost = self.cluster.servers.remove(&server).unwrap();
        self.running.retain(|running| running.change.add.is_none_or(|add| add.server() != server));
        for report in lost.report.unwrap().replicas {
            if report.role == Role::Leader {
                let live =
                    report.group.membership.replicas().find(|member| self.cluster.servers.contains_key(&member.server));
                self.lead(report.group.group, live.unwrap().server);
            } else {
                let descriptor = self.leader(report.group.group).1.group;
                self.update_group(&descriptor);
            }
        }
    }

    fn drain(&mut self, server: u64) {
        self.cluster.drained.insert(ServerId::new(server));
    }

    fn replicas_mut(&mut self, server: ServerId) -> &mut Vec<ReplicaReport> {
        &mut self.cluster.servers.get_mut(&server).unwrap().report.as_mut().unwrap().replicas
    }

    fn replica_mut(&mut self, server: ServerId, group: GroupId) -> Option<&mut ReplicaReport> {
        let report = self.cluster.servers.get_mut(&server)?.report.as_mut()?;
        report.replicas.iter_mut().find(|replica| replica.group.group == group)
    }

    fn leader(&self, group: GroupId) -> (ServerId, ReplicaReport) {
        let (server, report) = self.cluster.leader_reports()[&group];
        (server, report.clone())
    }

    /// All members apply the descriptor; the leader hears the live ones.
    fn update_group(&mut self, group: &GroupDescriptor) {
        let live = group.membership.replicas().filter(|member| self.cluster.servers.contains_key(&member.server));
        let live: Vec<Replica> = live.collect();
        for member in &live {
            let Some(replica) = self.replica_mut(member.server, group.group) else { continue };
            if replica.replica != member.replica {
                continue;
            }
            replica.group = group.clone();
            replica.heard = live.iter().map(|one| one.replica).filter(|one| *one != member.replica).collect();
            for tablet in &mut replica.tablets {
                let TabletDescriptor { table, tablet: id, range, generation, .. } = tablet.descriptor.clone();
                tablet.descriptor = group.tablet(table, id, range, generation);
            }
        }
    }

    /// The replica on this server becomes the leader.
    fn lead(&mut self, group: GroupId, server: ServerId) {
        let term =
            self.cluster.reports().filter(|(_on, one)| one.group.group == group).map(|(_on, one)| one.term).max();
        let servers: Vec<ServerId> = self.cluster.servers.keys().copied().collect();
        for other in servers {
            if let Some(replica) = self.replica_mut(other, group) {
                replica.role = if other == server { Role::Leader } else { Role::Follower };
                replica.term = Term::new(term.unwrap().get() + u64::from(other == server));
            }
        }
        let descriptor = self.leader(group).1.group;
        self.update_group(&descriptor);
    }

    /// One round. Whether anything was done or is in progress.
    fn round(&mut self, phase: &mut Phase) -> bool {
        self.ctx.now += ROUND;
        let target = |running: &RunningChange| (running.change.group.group, running.change.add.map(|add| add.server()));
        self.ctx.in_progress = self.running.iter().map(target).collect();
        self.ctx.failures.observe(&self.cluster, self.ctx.now);
        let actions = plan(&self.cluster, &self.ctx);
        for action in &actions {
            self.execute(action, phase);
        }
        self.check_bounds();
        for running in &mut self.running {
            running.rounds_left -= 1;
        }
        let (finished, running) = std::mem::take(&mut self.running).into_iter().partition(|one| one.rounds_left == 0);
        self.running = running;
        let finished: Vec<RunningChange> = finished;
        let is_busy = !actions.is_empty() || !finished.is_empty() || !self.running.is_empty();
        for one in finished {
            self.finish(one.change, phase);
        }
        // The grace of a lost server passes without actions.
        is_busy || self.ctx.failures.next_timeout(self.ctx.now, &repair::detection_timeouts(self.ctx.grace)).is_some()
    }

    fn execute(&mut self, action: &Action, phase: &mut Phase) {
        match action {
            Action::WriteRow(tablet) => _ = self.cluster.metadata.insert(tablet.row_key(), tablet.clone()),
            Action::ChangeReplicas(change) => {
                phase.changes += 1;
                self.running.push(RunningChange { change: change.clone(), rounds_left: CHANGE_ROUNDS });
            }
            Action::TransferLeader { group, from, to } => {
                phase.transfers += 1;
                assert_eq!(self.leader(group.group).0, *from);
                self.lead(group.group, *to);
            }
            Action::DropReplica { server, group, replica, .. } => {
                self.replicas_mut(*server).retain(|one| (one.group.group, one.replica) != (*group, *replica));
            }
            Action::DivideGroup(group) => {
                phase.divisions += 1;
                self.divide(group, phase);
            }
            other => panic!("unexpected action: {other}"),
        }
    }

    /// The second half of the tablets moves to a new group.
    fn divide(&mut self, group: &GroupDescriptor, phase: &mut Phase) {
        let child = GroupId::new(self.next_group);
        self.next_group += 1;
        let child = GroupDescriptor { group: child, ..group.clone() };
        // It may return to where it was, because it is another group now.
        phase.left.retain(|(left, _server)| *left != group.group);
        let (leader, report) = self.leader(group.group);
        let half = report.tablets.len() / 2;
        for member in group.membership.replicas() {
            let replica = self.replica_mut(member.server, group.group).unwrap();
            let mut moved = replica.tablets.split_off(half);
            for tablet in &mut moved {
                let TabletDescriptor { table, tablet: id, range, generation, .. } = tablet.descriptor.clone();
                tablet.descriptor = child.tablet(table, id, range, Generation::new(generation.get() + 1));
            }
            let role = if member.server == leader { Role::Leader } else { Role::Follower };
            let report = replica_report(&child, member.replica, role, moved);
            self.replicas_mut(member.server).push(report);
        }
        self.update_group(&child);
    }

    fn finish(&mut self, change: ReplicaChange, phase: &mut Phase) {
        let group = change.group.group;
        let (leader, report) = self.leader(group);
        let mut descriptor = report.group.clone();
        let mut voters = descriptor.membership.voters.last().unwrap().clone();
        let added = change.add.map(|add| {
            let Addition::New(server) = add else { panic!("no change is interrupted here: {change}") };
            phase.returns += usize::from(phase.left.contains(&(group, server)));
            self.next_replica += 1;
            Replica { replica: ReplicaId::new(self.next_replica), server }
        });
        if let Some(added) = added {
            descriptor.membership.replicas.insert(added.replica, added.server);
            voters.insert(added.replica);
            let copy = replica_report(&descriptor, added.replica, Role::Follower, report.tablets);
            self.replicas_mut(added.server).push(copy);
        }
        let removed = change.remove.map(|removed| (removed, descriptor.membership.replicas.remove(&removed).unwrap()));
        if let Some((removed, server)) = removed {
            voters.remove(&removed);
            phase.left.insert((group, server));
            if server == leader {
                let live =
                    |member: &Replica| self.cluster.servers.contains_key(&member.server) && Some(*member) != added;
                let next = descriptor.membership.replicas().find(live).unwrap();
                self.lead(group, next.server);
            }
        }
        assert!(voters.len() >= REPLICAS, "group {group} has too few voters: {change}");
        descriptor.membership.voters = vec![voters];
        let index = LogIndex::new(descriptor.membership_log_id.index.get() + 1);
        descriptor.membership_log_id = LogId { index, ..descriptor.membership_log_id };
        self.update_group(&descriptor);
    }

    fn check_bounds(&self) {
        assert!(self.running.len() <= 4, "{} changes at once", self.running.len());
        let mut incoming: BTreeMap<ServerId, usize> = BTreeMap::new();
        for add in self.running.iter().filter_map(|running| running.change.add) {
            *incoming.entry(add.server()).or_default() += 1;
        }
        assert!(incoming.values().all(|count| *count <= 2), "{incoming:?}");
        for (_leader, report) in self.cluster.leader_reports().values() {
            let members = &report.group.membership.replicas;
            let servers: BTreeSet<&ServerId> = members.values().collect();
            assert_eq!(servers.len(), members.len(), "two replicas on a server: {members:?}");
        }
    }

    /// Rounds until the plan is empty and nothing is in progress.
    fn settle(&mut self, what: &str) -> Phase {
        let mut phase = Phase::default();
        while self.round(&mut phase) {
            phase.rounds += 1;
            assert!(phase.rounds < ROUNDS_MAX, "{what} does not end: {phase:?}");
        }
        let Phase { rounds, changes, transfers, divisions, returns, .. } = phase;
        assert!(
            returns <= 2 || returns * 8 <= changes,
            "{what}: {returns} of {changes} changes bring a group back where it was"
        );
        println!(
            "{what}: {rounds} rounds, {changes} changes, {transfers} transfers, {divisions} divisions; {}",
            self.spread()
        );
        phase
    }

    /// For each server that may have replicas: its bytes, tablets, replicas, leaderships, writes, and requests as a leader.
    fn amounts(&self) -> BTreeMap<ServerId, [u64; 6]> {
        let loads = |report: &ReplicaReport, of: fn(&TabletLoad) -> u64| {
            report.tablets.iter().map(|tablet| of(&tablet.load)).sum::<u64>()
        };
        let mut amounts: BTreeMap<ServerId, [u64; 6]> =
            self.cluster.loads().into_keys().map(|id| (id, [0; 6])).collect();
        for (server, report) in self.cluster.reports() {
            let Some(of) = amounts.get_mut(&server) else { continue };
            let leads = u64::from(report.role == Role::Leader);
            let (writes, led) =
                (loads(report, |load| load.writes_per_second), loads(report, TabletLoad::per_second) * leads);
            for (sum, one) in
                of.iter_mut().zip([report.size_bytes(), report.tablets.len() as u64, 1, leads, writes, led])
            {
                *sum += one;
            }
        }
        amounts
    }

    /// The largest difference of a server from the mean, in percent, of each amount.
    fn spread(&self) -> Spread {
        let amounts = self.amounts();
        let count = amounts.len() as u64;
        let mut percent = [0; 6];
        for (at, percent) in percent.iter_mut().enumerate() {
            let mean = amounts.values().map(|of| of[at]).sum::<u64>() / count;
            *percent = amounts.values().map(|of| of[at].abs_diff(mean) * 100 / mean.max(1)).max().unwrap();
        }
        Spread(percent)
    }

    /// The tablets that are reported by a leader, to be sure that none is lost.
    fn tablets(&self) -> usize {
        self.cluster.leader_reports().values().map(|(_leader, report)| report.tablets.len()).sum()
    }
}

struct Spread([u64; 6]);

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, tablets, replicas, leads, writes, led] = self.0;
        write!(
            f,
            "from the mean: bytes {bytes} %, tablets {tablets} %, replicas {replicas} %, leaderships {leads} %, "
        )?;
        write!(f, "writes {writes} %, requests of leaders {led} %")
    }
}

/// Every tenth tablet is busy, some with twenty times the load of others.
fn load(rng: &Rng) -> TabletLoad {
    let per_second = |busy: bool| if busy { 50 + rng.below(950) } else { rng.below(20) };
    let busy = rng.below(10) == 0;
    TabletLoad {
        reads_per_second: per_second(busy),
        writes_per_second: per_second(busy && rng.below(2) == 0),
        ..TabletLoad::default()
    }
}

/// The range of a tablet of a table that is divided into `all`.
fn range(number: u64, all: u64) -> KeyRange {
    let key = |number: u64| RowKey::new(format!("{number:06}"));
    let start = if number == 0 { RowKey::EMPTY } else { key(number) };
    KeyRange::new(start, (number + 1 < all).then(|| key(number + 1))).unwrap()
}

fn replica_report(
    group: &GroupDescriptor,
    replica: ReplicaId,
    role: Role,
    tablets: Vec<TabletReport>,
) -> ReplicaReport {
    ReplicaReport {
        group: group.clone(),
        replica,
        role,
        term: Term::new(1),
        tablets,
        applied: LogId::SEED,
        last: LogId::SEED,
        time: Micros::ZERO,
        settled: true,
        heard: BTreeSet::new(),
        division: None,
    }
}

#[test]
fn a_hundred_servers_with_ten_thousand_tablets_become_balanced_and_stay_so() {
    let rng = Rng::seeded(7);
    let mut groups = Vec::new();
    let mut left: u64 = 10_000;
    while left > 0 {
        groups.push((1 + rng.below(60)).min(left));
        left -= groups.last().unwrap();
    }
    let mut simulation = Simulation::new(90, &groups, rng);
    println!("{} groups", groups.len());
    simulation.settle("new groups");

    (91..=100).for_each(|server| simulation.join(server));
    let joined = simulation.settle("ten servers join");
    assert!(joined.changes > 0);
    let Spread([bytes, _tablets, replicas, _leads, writes, led]) = simulation.spread();
    assert!(bytes <= 15 && writes <= 15 && led <= 15 && replicas <= 25, "{}", simulation.spread());

    for server in [3, 50, 97] {
        simulation.drain(server);
    }
    simulation.settle("three servers are drained");
    for server in [3, 50, 97].map(ServerId::new) {
        assert!(drain::replicas_on(&simulation.cluster, server).is_empty(), "server {server} has replicas");
        simulation.cluster.servers.remove(&server);
    }

    for server in 101..=105 {
        simulation.join(server);
    }
    simulation.drain(20);
    [10, 60].into_iter().for_each(|server| simulation.lose(server));
    simulation.settle("servers join, are drained and are lost at once");
    let Spread([bytes, _tablets, _replicas, _leads, writes, led]) = simulation.spread();
    assert!(bytes <= 15 && writes <= 15 && led <= 15, "{}", simulation.spread());
    assert_eq!(simulation.tablets(), 10_000);

    // Sizes that vary a little do not make replicas move again.
    let replicas = simulation.cluster.reports().count();
    let servers: Vec<ServerId> = simulation.cluster.servers.keys().copied().collect();
    let percent: BTreeMap<TabletId, u64> =
        simulation.cluster.tablets().into_keys().map(|tablet| (tablet, 98 + simulation.rng.below(5))).collect();
    for server in servers {
        for tablet in simulation.replicas_mut(server).iter_mut().flat_map(|replica| &mut replica.tablets) {
            tablet.size_bytes = tablet.size_bytes * percent[&tablet.descriptor.tablet] / 100;
        }
    }
    let varied = simulation.settle("sizes vary by two percent");
    assert!(varied.changes * 100 <= replicas, "{} of {replicas} replicas move", varied.changes);
}

#[test]
fn two_servers_that_join_five_get_their_part_of_two_hundred_tablets() {
    for seed in 1..=5 {
        let mut simulation = Simulation::new(5, &[40; 5], Rng::seeded(seed));
        simulation.limit_loads(200);
        simulation.settle("five servers");
        (6..=7).for_each(|server| simulation.join(server));
        let joined = simulation.settle("two servers join five");
        assert!(joined.changes > 0);
        let Spread([bytes, _tablets, _replicas, _leads, writes, led]) = simulation.spread();
        assert!(bytes <= 15 && writes <= 15 && led <= 15, "{}", simulation.spread());
        assert_eq!(simulation.tablets(), 200);
    }
}

#[test]
fn groups_divide_until_every_server_leads_one() {
    let mut simulation = Simulation::new(3, &[100, 100, 100], Rng::seeded(11));
    // Without requests, groups are too few only by number.
    simulation.limit_loads(0);
    let settled = simulation.settle("three servers");
    assert_eq!((settled.changes, settled.divisions), (0, 0));
    (4..=12).for_each(|server| simulation.join(server));
    let grown = simulation.settle("nine servers join three");
    assert!(grown.divisions >= 9, "{grown:?}");
    // Leaderships are balanced among the voters of each group, so a server may lead more than others.
    let amounts = simulation.amounts();
    assert!(
        amounts.values().all(|[_bytes, _tablets, replicas, leads, ..]| *replicas >= 3 && *leads <= 4),
        "{amounts:?}"
    );
    let Spread([bytes, tablets, ..]) = simulation.spread();
    assert!(bytes <= 15 && tablets <= 15, "{}", simulation.spread());
    assert_eq!(simulation.tablets(), 300);
}
