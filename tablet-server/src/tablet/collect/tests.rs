//! Replicas that collect and compact at different times: nobody who reads them may see a difference.

use std::path::Path;

use bytes::Bytes;
use ebla_model::cell::{FamilyName, Row};
use ebla_model::command::{Command, RowWrite};
use ebla_model::gc::GcRule;
use ebla_model::id::{FamilyId, LogId, ReplicaId, SchemaVersion, Sequence, ServerId, SessionId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::Change;
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_storage::tablet::{Shared, StoreOptions, TabletStore};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::raft::{CommittedEntry, GroupId, Payload, StateMachine};
use crate::tablet::command;
use crate::tablet::machine::{Nursery, initialise};
use crate::tablet::read::read_row;
use crate::tablet::state::TabletState;
use crate::tablet::wanted::Wanted;

const SECOND: i64 = 1_000_000;
const ROWS: [&str; 3] = ["a", "b", "c"];
const QUALIFIERS: [&str; 2] = ["p", "q"];

/// For tablets that are never split, and take no snapshots.
struct Childless;

impl Nursery for Childless {
    fn knows(&self, _replica: GroupId) -> bool {
        false
    }

    fn build(&self, _replica: GroupId, _fill: &mut dyn FnMut(&Path) -> Result<(), Error>) -> Result<(), Error> {
        Err(Error::internal("no children here"))
    }

    fn start_child(&self, _parent: GroupId, _split_index: u64, _child: GroupId) {}

    fn replace(&self, _replica: GroupId, _folder: &Path, _old: Arc<TabletStore>) -> Result<TabletStore, Error> {
        Err(Error::internal("no snapshots here"))
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
        next_family: FamilyId::new(6),
        deletion_protection: false,
        state: TableState::Active,
    }
}

/// A replica, and the folder that it lives in.
struct Replica {
    machine: Machine,
    _folder: TempDir,
}

impl Replica {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let shared = Shared::new(StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::up() }).unwrap();
        let store = TabletStore::create(&folder.path().join("store"), &shared).unwrap();
        let range = KeyRange::all();
        let descriptor = TabletDescriptor::fresh(TableId::new(5), TabletId::new(7), range, &[ServerId::new(1)]);
        initialise(&store, &TabletState::fresh(descriptor, schema())).unwrap();
        let id = GroupId { tablet: TabletId::new(7), replica: ReplicaId::new(1) };
        let machine = Machine::open(id, store, shared, Arc::new(Childless)).unwrap();
        Self { machine, _folder: folder }
    }

    fn apply(&self, index: u64, time: i64, kind: CommandKind) {
        let command = Command { time: Micros::new(time), kind };
        let id = LogId { term: 1, index };
        let entry = CommittedEntry { id, payload: Payload::Command(command::encode(&command)) };
        self.machine.apply(&[entry]).unwrap();
    }

    /// What readers and conditions see.
    fn rows(&self) -> Vec<Row> {
        ROWS.iter().map(|row| read_row(&self.machine, &RowKey::new(*row), |_| Wanted::ALL).unwrap()).collect()
    }

    /// Cells that are there, dead or not.
    fn cells(&self) -> u64 {
        let stretch = stretch(&self.machine, &RowKey::EMPTY).unwrap().unwrap();
        stretch.cells
    }

    fn compact(&self) {
        self.machine.flush().unwrap();
        self.machine.store().compact().unwrap();
    }

    /// What a pass would propose.
    fn worth_it(&self) -> Option<Stretch> {
        stretch(&self.machine, &RowKey::EMPTY).unwrap().filter(Stretch::is_worth_it)
    }
}

fn write(index: u64, row: &'static str, change: Change) -> CommandKind {
    CommandKind::Write(vec![RowWrite {
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
    /// A pass, by what the first replica has.
    Collect,
    /// Of the first replica alone.
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
    fn no_reader_sees_what_was_collected_or_compacted(steps in proptest::collection::vec(step(), 1..80)) {
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
                (Step::Collect, _) => match replicas[0].worth_it() {
                    Some(Stretch { range, time: judged, .. }) => {
                        let collect = CommandKind::Collect { range, time: judged };
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
fn a_pass_finds_what_counts_and_leaves_what_grows_old() {
    let replica = Replica::new();
    let versions = (1..).zip([1, 2, 3, 4, 5].into_iter().cycle()).take(50);
    for (index, family) in versions {
        replica.apply(index, 60 * SECOND, write(index, "a", set(family, "q", i64::try_from(index).unwrap())));
    }
    let found = replica.worth_it().unwrap();
    // Ten versions of each. Of family 2 two stay, of 4 three at most, none older than 20 seconds, and of 5 one and the young.
    let young = |family: u64| (1..=50).filter(|second| second % 5 == family % 5 && *second >= 40).count() as u64;
    let counted = 2 + young(4).min(3) + young(5).max(1);
    assert_eq!((found.cells, found.dead), (50, 30 - counted));
    replica.apply(51, 60 * SECOND, CommandKind::Collect { range: found.range, time: found.time });
    // On its way it takes what is too old, which no entry is proposed for.
    assert_eq!(replica.cells(), 10 + young(3) + counted);
    assert_eq!(replica.worth_it(), None);
}

#[test]
fn a_stretch_ends_behind_a_row() {
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
    let first = stretch(&replica.machine, &RowKey::EMPTY).unwrap().unwrap();
    assert_eq!((first.cells, first.dead), (6_000, 5_996));
    assert_eq!(first.range, KeyRange::new(RowKey::EMPTY, Some(RowKey::new("c"))).unwrap());
    let second = stretch(&replica.machine, first.range.end().unwrap()).unwrap().unwrap();
    assert_eq!((second.cells, second.dead, second.range.end()), (10, 8, None));
}
