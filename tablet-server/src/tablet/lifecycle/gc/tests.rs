//! Replicas that collect and compact at different times: no reader may see a difference.

use std::path::Path;

use bytes::Bytes;
use ebla_model::cell::{FamilyName, Row};
use ebla_model::command::{Command, RowWrite};
use ebla_model::gc::GcRule;
use ebla_model::id::{
    FamilyId, GroupId, LogId, LogIndex, ReplicaId, SchemaVersion, Sequence, ServerId, SessionId, TableId, TabletId,
    Term,
};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::mutation::Change;
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_storage::store::{GroupStore, SharedResources, StoreOptions};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::raft::{CommittedEntry, GroupOrigin, GroupReplica, Payload, StateMachine};
use crate::tablet::core::command;
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::{ChildLookup, ReplicaFactory, initialize_store};
use crate::tablet::read::points;
use crate::tablet::read::projection::Projection;
use crate::tablet::read::scan::read_row;

const TABLET: TabletId = TabletId::new(7);
const SECOND: i64 = 1_000_000;
const ROWS: [&str; 3] = ["a", "b", "c"];
const QUALIFIERS: [&str; 2] = ["p", "q"];

/// For groups that are never divided and receive no snapshots.
struct NoReplicas;

impl ReplicaFactory for NoReplicas {
    fn find_child(&self, _replica: GroupReplica, _origin: GroupOrigin) -> ChildLookup {
        ChildLookup::Missing
    }

    fn create_store(
        &self,
        _replica: GroupReplica,
        _origin: GroupOrigin,
        _fill: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        Err(Error::internal("this replica is never divided"))
    }

    fn start_child(&self, _parent: GroupReplica, _divide_index: LogIndex, _child: GroupReplica) {}

    fn install_store(
        &self,
        _replica: GroupReplica,
        _folder: &Path,
        _old: Arc<GroupStore>,
    ) -> Result<GroupStore, Error> {
        Err(Error::internal("this replica receives no snapshots"))
    }
}

/// Families 1 to 5: no rule, a count, an age, either, both.
fn schema() -> TableSchema {
    let age = || GcRule::MaxAge(Duration::from_secs(20));
    let rules = [
        None,
        Some(GcRule::MaxVersions(2)),
        Some(age()),
        Some(GcRule::Any(vec![GcRule::MaxVersions(3), age()])),
        Some(GcRule::All(vec![GcRule::MaxVersions(1), age()])),
    ];
    let family = |(id, gc): (u32, Option<GcRule>)| Family {
        id: FamilyId::new(id),
        name: FamilyName::new(&format!("f{id}")).unwrap(),
        gc,
        locality_group: 0,
        aggregator: None,
    };
    TableSchema {
        table: TableId::new(5),
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(1),
        families: (1..).zip(rules).map(family).collect(),
        locality_groups: Vec::new(),
        quotas: Default::default(),
        next_family: FamilyId::new(6),
        deletion_protection: false,
        state: TableState::Active,
    }
}

/// A replica and its folder.
struct Replica {
    state_machine: GroupStateMachine,
    _folder: TempDir,
}

impl Replica {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let shared = SharedResources::new(StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::up() }).unwrap();
        let store = GroupStore::create(&folder.path().join("store"), &shared).unwrap();
        let mut state = GroupState::fresh(GroupDescriptor::initial(GroupId::new(3), &[ServerId::new(1)]));
        state.add_tablet(schema(), TABLET, KeyRange::all());
        initialize_store(&store, &state).unwrap();
        let id = GroupReplica { group: GroupId::new(3), replica: ReplicaId::new(1) };
        let state_machine = GroupStateMachine::open(id, store, shared, Arc::new(NoReplicas)).unwrap();
        Self { state_machine, _folder: folder }
    }

    fn apply(&self, index: u64, time: i64, kind: CommandKind) {
        let command = Command { time: Micros::new(time), elapsed: None, clock: None, kind };
        let id = LogId { term: Term::new(1), index: LogIndex::new(index) };
        let entry = CommittedEntry { id, payload: Payload::Command(command::encode(&command)) };
        self.state_machine.apply(&[entry]).unwrap();
    }

    /// The rows as readers and conditions see them: the same with the scan cache and without it.
    fn rows(&self) -> Vec<Row> {
        let tablet = self.state_machine.applied_state().tablet(TABLET).cloned().unwrap();
        let row = |name: &&'static str| {
            let key = RowKey::new(*name);
            let row = read_row(&self.state_machine, &tablet, &key, |_| Projection::ALL).unwrap();
            assert_eq!(points::testing::read_row(&self.state_machine, TABLET, &key).0, row, "through the scan cache");
            row
        };
        ROWS.iter().map(row).collect()
    }

    /// The number of stored cells, dead or not.
    fn cells(&self) -> u64 {
        let gc_range = next_range(&self.state_machine, TABLET, &RowKey::EMPTY).unwrap().unwrap();
        gc_range.cells
    }

    fn compact(&self) {
        self.state_machine.flush().unwrap();
        self.state_machine.store().compact().unwrap();
    }

    /// The range that a pass would propose.
    fn proposed_range(&self) -> Option<GcRange> {
        next_range(&self.state_machine, TABLET, &RowKey::EMPTY).unwrap().filter(GcRange::is_worth_collecting)
    }
}

fn write(index: u64, row: &'static str, change: Change) -> CommandKind {
    CommandKind::Write(vec![RowWrite {
        tablet: TABLET,
        session: SessionId::new(1),
        sequence: Sequence::new(index),
        lowest_outstanding: Sequence::new(index),
        row: RowKey::new(row),
        changes: vec![change],
        result: None,
        token: None,
    }])
}

fn set(family: u32, qualifier: &'static str, second: i64) -> Change {
    Change::SetCell {
        family: FamilyId::new(family),
        qualifier: Bytes::from_static(qualifier.as_bytes()),
        timestamp: Micros::new(second * SECOND),
        value: Bytes::from(format!("{family}{qualifier}{second}")),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        row: usize,
        family: u32,
        qualifier: usize,
        second: i64,
    },
    Delete {
        row: usize,
        family: u32,
        qualifier: usize,
        from: i64,
        until: Option<i64>,
    },
    DeleteFamily {
        row: usize,
        family: u32,
    },
    DeleteRow {
        row: usize,
    },
    Later {
        seconds: i64,
    },
    /// A GC pass, led by the first replica.
    Collect,
    /// On the first replica only.
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    let (row, qualifier) = (0..ROWS.len(), 0..QUALIFIERS.len());
    let until = proptest::option::of(0..60_i64);
    prop_oneof![
        20 => (row.clone(), 1..6_u32, qualifier.clone(), 0..60_i64)
            .prop_map(|(row, family, qualifier, second)| Step::Set { row, family, qualifier, second }),
        4 => (row.clone(), 1..6_u32, qualifier, 0..60_i64, until)
            .prop_map(|(row, family, qualifier, from, until)| Step::Delete { row, family, qualifier, from, until }),
        1 => (row.clone(), 1..6_u32).prop_map(|(row, family)| Step::DeleteFamily { row, family }),
        1 => row.prop_map(|row| Step::DeleteRow { row }),
        3 => (0..15_i64).prop_map(|seconds| Step::Later { seconds }),
        3 => Just(Step::Collect),
        2 => Just(Step::Compact),
    ]
}

fn change(step: &Step) -> Option<(&'static str, Change)> {
    let micros = |second: i64| Micros::new(second * SECOND);
    match *step {
        Step::Set { row, family, qualifier, second } => Some((ROWS[row], set(family, QUALIFIERS[qualifier], second))),
        Step::Delete { row, family, qualifier, from, until } => {
            let qualifier = Bytes::from_static(QUALIFIERS[qualifier].as_bytes());
            let (family, start, end) = (FamilyId::new(family), micros(from), until.map(micros));
            Some((ROWS[row], Change::DeleteColumn { family, qualifier, start, end }))
        }
        Step::DeleteFamily { row, family } => Some((ROWS[row], Change::DeleteFamily(FamilyId::new(family)))),
        Step::DeleteRow { row } => Some((ROWS[row], Change::DeleteRow)),
        Step::Later { .. } | Step::Collect | Step::Compact => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// The first replica collects and compacts, the second only collects, the third does neither.
    #[test]
    fn collection_and_compaction_are_invisible_to_readers(steps in proptest::collection::vec(step(), 1..80)) {
        let replicas = [Replica::new(), Replica::new(), Replica::new()];
        let mut time = 10 * SECOND;
        for (index, step) in (1..).zip(&steps) {
            let everywhere = |kind: CommandKind| replicas.iter().for_each(|it| it.apply(index, time, kind.clone()));
            match (step, change(step)) {
                (_, Some((row, change))) => everywhere(write(index, row, change)),
                (Step::Later { seconds }, _) => {
                    time += seconds * SECOND;
                    replicas.iter().for_each(|it| it.apply(index, time, CommandKind::Tick));
                }
                (Step::Collect, _) => match replicas[0].proposed_range() {
                    Some(GcRange { range, time: judged, .. }) => {
                        let collect = CommandKind::Collect { tablet: TABLET, range, time: judged };
                        replicas[..2].iter().for_each(|it| it.apply(index, time, collect.clone()));
                        replicas[2].apply(index, time, CommandKind::Tick);
                    }
                    None => everywhere(CommandKind::Tick),
                },
                _ => {
                    everywhere(CommandKind::Tick);
                    replicas[0].compact();
                }
            }
            let seen = replicas[0].rows();
            prop_assert_eq!(&seen, &replicas[1].rows(), "after step {} of {:?}", index, steps);
            prop_assert_eq!(&seen, &replicas[2].rows(), "after step {} of {:?}", index, steps);
        }
    }
}

#[test]
fn a_cached_row_loses_its_cells_when_they_expire_without_a_write() {
    let replica = Replica::new();
    // Family 1 keeps everything, 3 for 20 seconds.
    replica.apply(1, 10 * SECOND, write(1, "a", set(1, "q", 10)));
    replica.apply(2, 10 * SECOND, write(2, "a", set(3, "q", 10)));
    let read = || points::testing::read_row(&replica.state_machine, TABLET, &RowKey::new("a"));
    assert_eq!(read().0.cells.len(), 2);
    for (index, second) in [(3, 20), (4, 29), (5, 100)] {
        replica.apply(index, second * SECOND, CommandKind::Tick);
    }
    let (row, was_cached) = read();
    assert_eq!((row.cells.len(), was_cached), (1, true));
}

#[test]
fn a_pass_finds_excess_versions_and_ignores_expired_ones() {
    let replica = Replica::new();
    let versions = (1..).zip([1, 2, 3, 4, 5].into_iter().cycle()).take(50);
    for (index, family) in versions {
        replica.apply(index, 60 * SECOND, write(index, "a", set(family, "q", i64::try_from(index).unwrap())));
    }
    let found = replica.proposed_range().unwrap();
    // Ten versions of each. Of family 2 two stay, of 4 at most three, none older than 20 seconds, of 5 one and the young ones.
    let young = |family: u64| (1..=50).filter(|second| second % 5 == family % 5 && *second >= 40).count() as u64;
    let counted = 2 + young(4).min(3) + young(5).max(1);
    assert_eq!((found.cells, found.dead), (50, 30 - counted));
    replica.apply(51, 60 * SECOND, CommandKind::Collect { tablet: TABLET, range: found.range, time: found.time });
    // The entry also removes expired cells, for which alone no entry would be proposed.
    assert_eq!(replica.cells(), 10 + young(3) + counted);
    assert_eq!(replica.proposed_range(), None);
}

#[test]
fn a_range_ends_after_a_row() {
    let replica = Replica::new();
    let wide = |row: &'static str, index: u64, count: u64| {
        let mut rows = Vec::new();
        for at in 0..count {
            let CommandKind::Write(row) = write(index + at, row, set(2, "q", i64::try_from(at).unwrap())) else {
                panic!()
            };
            rows.extend(row);
        }
        replica.apply(index, 100_000 * SECOND, CommandKind::Write(rows));
    };
    wide("a", 1, 3_000);
    wide("b", 4_000, 3_000);
    wide("c", 8_000, 10);
    let first = next_range(&replica.state_machine, TABLET, &RowKey::EMPTY).unwrap().unwrap();
    assert_eq!((first.cells, first.dead), (6_000, 5_996));
    assert_eq!(first.range, KeyRange::new(RowKey::EMPTY, Some(RowKey::new("c"))).unwrap());
    let second = next_range(&replica.state_machine, TABLET, first.range.end().unwrap()).unwrap().unwrap();
    assert_eq!((second.cells, second.dead, second.range.end()), (10, 8, None));
}
