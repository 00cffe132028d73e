//! The times of two groups when a tablet moves between them: no cell becomes older than it is, whatever clocks say.

use ebla_model::cell::FamilyName;
use ebla_model::error::Error;
use ebla_model::gc::GcRule;
use ebla_model::id::{FamilyId, Generation, SchemaVersion, ServerId, TableId};
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::time::Micros;

use super::*;
use crate::tablet::core::state::GroupState;

const TABLE: TableId = TableId::new(5);
const TABLET: TabletId = TabletId::new(7);
const FAMILY: FamilyId = FamilyId::new(1);
/// The clock of a leader is ahead by this number of seconds, more than the maximum age of cells.
const AHEAD: i64 = 3600;

struct NoCells;

impl CellReader for NoCells {
    fn keys_if_few(&self, _lower: &[u8], _upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        Ok(Some(Vec::new()))
    }

    fn keys(&self, _lower: &[u8], _upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        Ok(Vec::new())
    }
}

fn at(second: i64) -> Micros {
    Micros::from_millis(second * 1000)
}

/// Cells live for half an hour.
fn schema() -> TableSchema {
    TableSchema {
        table: TABLE,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(1),
        families: vec![Family {
            id: FAMILY,
            name: FamilyName::new("f").unwrap(),
            gc: Some(GcRule::MaxAge(std::time::Duration::from_secs(1800))),
            locality_group: 0,
            aggregator: None,
        }],
        locality_groups: Vec::new(),
        quotas: Default::default(),
        next_family: FamilyId::new(2),
        deletion_protection: false,
        state: TableState::Active,
    }
}

fn group(id: u64) -> GroupState {
    GroupState::fresh(GroupDescriptor::initial(GroupId::new(id), &[1, 2, 3].map(ServerId::new)))
}

/// A group with a tablet of rows that begin with `a`, in use at 10,000 s.
fn source() -> GroupState {
    let mut source = group(10);
    source.advance_time(at(10_000), None, None);
    source.add_tablet(schema(), TABLET, KeyRange::prefix(b"a"));
    source
}

/// The source's tablet arrives in `target` at `now`, by the clock of the target's leader.
fn begin(source: &GroupState, target: &mut GroupState, now: Micros) -> ImportStatus {
    target.advance_time(now, None, None);
    let start = ImportStart {
        source: source.descriptor.group,
        ticket: target.applied.index,
        range: KeyRange::prefix(b"a"),
        schema: schema(),
        time: source.time,
        gc_time: source.gc_time,
        drops: Vec::new(),
        drops_known_from: OperationId::new(0),
        copy: None,
        floors: Some(source.raised_floors(TABLE)),
    };
    let id = MoveId { tablet: TABLET, generation: Generation::new(1) };
    match Applier::new(target, &NoCells).move_step(id, MoveStep::Begin(Box::new(start))) {
        Reply::Import(status) => status,
        other => panic!("{other:?}"),
    }
}

fn floor(state: &GroupState) -> Micros {
    let canonical = state.canonical();
    canonical.tables[&TABLE].floors.get(&FAMILY).copied().unwrap_or_default()
}

#[test]
fn a_new_group_whose_first_leader_is_ahead_ages_no_cells_that_arrive() {
    let (source, mut target) = (source(), group(11));
    let arrived = begin(&source, &mut target, at(10_000 + AHEAD));
    assert!(matches!(arrived, ImportStatus::Importing(_)), "{arrived:?}");
    assert_eq!(target.time, at(10_000 + AHEAD), "timestamps ascend");
    assert_eq!(target.gc_time, at(10_000));
    assert_eq!(floor(&target), floor(&source));
}

/// The group had a tablet of the table under the wrong clock, so that the table has a floor already.
#[test]
fn a_group_that_became_empty_is_as_a_new_one() {
    let (source, mut target) = (source(), group(11));
    target.advance_time(at(10_000 + AHEAD), None, None);
    target.add_tablet(schema(), TabletId::new(8), KeyRange::prefix(b"b"));
    target.advance_time(at(10_000 + AHEAD + 120), Some(std::time::Duration::from_secs(120)), None);
    assert!(floor(&target) > floor(&source));
    target.remove_tablets(&[TabletId::new(8)]);
    // The ticket of the move is later.
    target.applied.index = target.applied.index.next();
    let arrived = begin(&source, &mut target, at(10_100));
    assert!(matches!(arrived, ImportStatus::Importing(_)), "{arrived:?}");
    assert_eq!((target.gc_time, floor(&target)), (at(10_000), floor(&source)));
}

#[test]
fn a_group_with_tablets_takes_none_from_a_group_with_another_time() {
    let source = source();
    let with_tablet = |first: Micros| {
        let mut target = group(11);
        target.advance_time(first, None, None);
        target.add_tablet(schema(), TabletId::new(8), KeyRange::prefix(b"b"));
        target
    };
    let refused = |status: ImportStatus| matches!(status, ImportStatus::Refused(why) if why.contains("the clock of a server is or was wrong"));
    let mut ahead = with_tablet(at(10_000 + AHEAD));
    assert!(refused(begin(&source, &mut ahead, at(10_000))), "its cells would be too old there");
    let mut present = with_tablet(at(9_000));
    assert!(matches!(begin(&source, &mut present, at(10_010)), ImportStatus::Importing(_)));
    assert_eq!(present.gc_time, at(10_000), "no dead cell comes back");
    // The other direction: the cells of the target would become too old.
    let mut wrong = group(12);
    wrong.advance_time(at(10_000 + AHEAD), None, None);
    wrong.add_tablet(schema(), TABLET, KeyRange::prefix(b"a"));
    let mut target = with_tablet(at(10_000));
    assert!(refused(begin(&wrong, &mut target, at(10_000))));
    assert_eq!(target.gc_time, at(10_000));
    // A target that was idle for a day.
    let mut idle = with_tablet(at(10_000 - 86_400));
    assert!(matches!(begin(&source, &mut idle, at(10_000)), ImportStatus::Importing(_)));
}
