//! Merges of a simulated table until nothing is left to merge, and what a master knows of its merges.

use ebla_model::id::{Generation, LogId, ReplicaId, SchemaVersion, ServerId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;

use super::*;
use crate::cluster::{ReplicaReport, Role, Server, ServerReport};
use crate::plan::failure_detector::FailureDetector;
use crate::plan::load_settling::Loads;
use crate::plan::replica_balance::ReplicaBalance;

const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3_600);
const TABLE: TableId = TableId::new(5);

/// A tablet of the simulated table.
#[derive(Clone, Debug)]
struct Simulated {
    id: u64,
    /// It begins at this row and ends where the next one begins.
    start: usize,
    group: u64,
    generation: u64,
    bytes: u64,
    /// Since when its leader has measured it as quiet.
    quiet_since: Duration,
}

/// A table on one server, with its groups in turn.
struct Simulation {
    tablets: Vec<Simulated>,
    ctx: PlanContext,
}

impl Simulation {
    fn new(bytes: impl Iterator<Item = u64>, groups: u64) -> Self {
        let tablet = |(at, bytes): (usize, u64)| Simulated {
            id: at as u64 + 100,
            start: at,
            group: at as u64 % groups + 2,
            generation: 1,
            bytes,
            quiet_since: Duration::ZERO,
        };
        let ctx = PlanContext {
            now: HOUR,
            grace: Duration::from_secs(30),
            replicas: 1,
            failures: FailureDetector::default(),
            balance: ReplicaBalance::Off,
            loads: Loads::Measured,
            in_progress: BTreeMap::new(),
            merges: MergeContext { rules: MergeRules::default(), memory: MergeMemory::default() },
        };
        Self { tablets: bytes.enumerate().map(tablet).collect(), ctx }
    }

    fn snapshot(&self) -> ClusterSnapshot {
        let server = ServerId::new(1);
        let key = |at: usize| if at == 0 { RowKey::EMPTY } else { RowKey::new(format!("{at:05}")) };
        let ends = self.tablets.iter().skip(1).map(|next| Some(key(next.start))).chain([None]);
        let mut replicas: BTreeMap<u64, ReplicaReport> = BTreeMap::new();
        for (tablet, end) in self.tablets.iter().zip(ends) {
            let group = GroupDescriptor::initial(GroupId::new(tablet.group), &[server]);
            let range = KeyRange::new(key(tablet.start), end).unwrap();
            let descriptor = group.tablet(TABLE, TabletId::new(tablet.id), range, Generation::new(tablet.generation));
            let quiet_for = self.ctx.now.saturating_sub(tablet.quiet_since);
            let report = TabletReport {
                descriptor,
                size_bytes: tablet.bytes,
                schema_version: SchemaVersion::new(1),
                load: TabletLoad { quiet_for, ..TabletLoad::default() },
            };
            let replica = replicas.entry(tablet.group).or_insert_with(|| ReplicaReport {
                group,
                replica: ReplicaId::new(1),
                role: Role::Leader,
                term: Term::new(1),
                tablets: Vec::new(),
                applied: LogId::SEED,
                last: LogId::SEED,
                time: Micros::ZERO,
                settled: true,
                heard: BTreeSet::new(),
                division: None,
            });
            replica.tablets.push(report);
        }
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let schema = TableSchema::new(TABLE, name, []).unwrap();
        let report = ServerReport { replicas: replicas.into_values().collect(), ..ServerReport::default() };
        let server_entry = Server::registered(Some(report));
        ClusterSnapshot {
            servers: [(server, server_entry)].into(),
            tables: [(TABLE, TableSchema { state: TableState::Active, ..schema })].into(),
            ..ClusterSnapshot::default()
        }
    }

    fn plan(&self) -> Vec<PlannedMerge> {
        let merge = |action| match action {
            Action::MergeTablets(merge) => merge,
            other => panic!("unexpected action {other}"),
        };
        merges(&self.snapshot(), &self.ctx).into_iter().map(merge).collect()
    }

    fn find(&self, tablet: TabletId) -> usize {
        self.tablets.iter().position(|one| one.id == tablet.get()).unwrap()
    }

    /// What the servers do: the tablet that moves is measured again from then on, and so is the merged one.
    fn execute(&mut self, merge: &PlannedMerge) {
        if let Some((moved, group)) = merge.moved {
            let at = self.find(moved);
            let moved = &mut self.tablets[at];
            (moved.group, moved.generation, moved.quiet_since) = (group.get(), moved.generation + 1, self.ctx.now);
        }
        let at = self.find(merge.pair.left.tablet);
        assert_eq!(at + 1, self.find(merge.pair.right.tablet), "they are adjacent");
        let left = self.tablets.remove(at);
        let right = &mut self.tablets[at];
        assert_eq!(left.group, right.group, "they are in one group");
        right.start = left.start;
        right.bytes += left.bytes;
        right.generation = left.generation.max(right.generation) + 1;
        right.quiet_since = left.quiet_since.max(right.quiet_since);
    }

    /// Plans and executes until nothing is left to do; returns the number of rounds.
    fn run(&mut self) -> usize {
        for round in 0.. {
            let planned = self.plan();
            if planned.is_empty() {
                return round;
            }
            assert!(planned.len() <= MERGES_MAX);
            assert!(planned.iter().filter(|merge| merge.moved.is_some()).count() <= MOVES_MAX);
            for merge in &planned {
                self.ctx.merges.memory.begin(merge);
            }
            for merge in &planned {
                self.execute(merge);
                self.ctx.merges.memory.succeed(merge, self.ctx.now);
            }
            self.ctx.now += Duration::from_secs(2);
        }
        unreachable!("the rounds end")
    }
}

#[test]
fn a_table_of_1000_tablets_that_was_mostly_emptied_shrinks_to_a_few() {
    for groups in [1, 3, 9] {
        // 95 % of the tablets are empty, the others have 2 MiB each: 100 MiB.
        let bytes = |at: u64| if at.is_multiple_of(20) { 2 * MIB } else { 0 };
        let mut simulation = Simulation::new((0..1_000).map(bytes), groups);
        let rounds = simulation.run();
        let left: Vec<u64> = simulation.tablets.iter().map(|tablet| tablet.bytes / MIB).collect();
        assert_eq!(left.iter().sum::<u64>(), 100, "nothing is lost");
        assert!(left.windows(2).all(|pair| pair[0] + pair[1] >= 64 || pair.iter().all(|one| *one > 8)), "{left:?}");
        assert!(left.len() <= 12, "{groups} groups: {left:?}");
        // Four moves at a time: 1,000 tablets take a while, and the order of the merges does not matter for the number.
        assert!(rounds < 400, "{groups} groups: {rounds} rounds");
        // Nothing more happens, and nothing is split again: no server splits what is so small.
        assert!(simulation.plan().is_empty());
    }
}

#[test]
fn a_new_table_stays_as_it_is_for_an_hour() {
    let mut simulation = Simulation::new((0..10).map(|_at| 0), 1);
    simulation.tablets.iter_mut().for_each(|tablet| tablet.quiet_since = Duration::from_secs(1));
    assert_eq!(simulation.run(), 0, "a second is missing");
    simulation.ctx.now += Duration::from_secs(1);
    simulation.run();
    assert_eq!(simulation.tablets.len(), 1);
}

#[test]
fn a_merge_that_runs_excludes_others_of_its_tablets() {
    let mut simulation = Simulation::new((0..4).map(|_at| 0), 1);
    let first = simulation.plan();
    assert_eq!(first.len(), 2);
    simulation.ctx.merges.memory.begin(&first[0]);
    assert_eq!(simulation.plan(), first[1..]);
    simulation.ctx.merges.memory.begin(&first[1]);
    assert_eq!(simulation.plan(), []);
}

#[test]
fn a_failed_merge_is_tried_again_after_a_growing_pause() {
    let mut simulation = Simulation::new([0, 0].into_iter(), 1);
    let merge = simulation.plan().remove(0);
    for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
        simulation.ctx.merges.memory.begin(&merge);
        simulation.ctx.merges.memory.fail(&merge, simulation.ctx.now);
        simulation.ctx.now += Duration::from_secs(seconds - 1);
        assert_eq!(simulation.plan(), [], "{seconds}");
        simulation.ctx.now += Duration::from_secs(1);
        assert_eq!(simulation.plan().len(), 1, "{seconds}");
    }
    simulation.ctx.merges.memory.succeed(&merge, simulation.ctx.now);
    simulation.ctx.merges.memory.begin(&merge);
    simulation.ctx.merges.memory.fail(&merge, simulation.ctx.now);
    simulation.ctx.now += Duration::from_secs(10);
    assert_eq!(simulation.plan().len(), 1, "a success makes the pause short again");
}

#[test]
fn a_merged_tablet_that_was_used_since_waits_again() {
    let mut simulation = Simulation::new([0, 0, 0].into_iter(), 3);
    let merge = simulation.plan().remove(0);
    simulation.ctx.merges.memory.begin(&merge);
    simulation.execute(&merge);
    simulation.ctx.merges.memory.succeed(&merge, simulation.ctx.now);
    simulation.ctx.now += Duration::from_secs(100);
    assert_eq!(simulation.plan().len(), 1, "both parts were quiet for an hour");
    let used = simulation.ctx.now - Duration::from_secs(50);
    simulation.tablets[0].quiet_since = used;
    assert_eq!(simulation.plan(), [], "it was used 50 seconds after the merge");
    simulation.ctx.now = used + HOUR;
    assert_eq!(simulation.plan().len(), 1);
    let empty = ClusterSnapshot::default();
    simulation.ctx.merges.memory.retain(&empty);
    assert_eq!(simulation.ctx.merges.memory, MergeMemory::default(), "it knows nothing of tablets that are gone");
}
