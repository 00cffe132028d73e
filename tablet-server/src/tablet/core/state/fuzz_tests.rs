//! Meta keys and values of arbitrary bytes: the state is refused as damaged, or loads and is saved again as it was loaded.

use ebla_model::error::Reason;
use ebla_model::id::{CopyId, Generation, Sequence, ServerId};
use ebla_model::schema::TableName;
use ebla_model::tablet_move::{ArrivalProgress, DeparturePhase, ImportPosition};
use proptest::prelude::{ProptestConfig, proptest};
use proptest::sample::select;

use super::*;
use crate::inputs::inputs;

type Stored = BTreeMap<Vec<u8>, Bytes>;

fn stored(state: &GroupState) -> Stored {
    let put = |edit| match edit {
        MetaEdit::Put(key, value) => Some((key.encode(), value)),
        MetaEdit::Delete(_) => None,
    };
    state.save().into_iter().filter_map(put).collect()
}

fn load(stored: &Stored) -> Result<GroupState, Error> {
    GroupState::load(stored.iter().map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())))
}

/// A state with a value of every kind.
fn example() -> GroupState {
    let group = |id| GroupDescriptor::initial(GroupId::new(id), &[1, 2, 3].map(ServerId::new));
    let mut state = GroupState::fresh(group(4));
    let schema =
        TableSchema::with_families(TableId::new(2), TableName::from_parts("p", "i", "t").unwrap(), []).unwrap();
    state.add_tablet(schema, TabletId::new(7), KeyRange::prefix(b"a"));
    let rows = DroppedRows { table: TableId::new(2), range: KeyRange::prefix(b"x") };
    state.operations.extend([(OperationId::new(3), Some(rows)), (OperationId::new(4), None)]);
    state.dropped.insert(TableId::new(1));
    let window = SessionWindow {
        lowest_outstanding: Sequence::new(4),
        applied: BTreeMap::from([(Sequence::new(5), Some(Bytes::from_static(b"r")))]),
        last_used: Micros::new(8),
    };
    state.sessions.insert(SessionId::new(9), window);
    let token = TokenRecord { expires_at: Micros::new(3), result: None };
    state.tokens.restore(Bytes::from_static(b"row\0\x01\x01token"), token);
    let tablet = state.tablets[&TabletId::new(7)].clone();
    let moved = TabletDescriptor { tablet: TabletId::new(8), ..tablet.clone() };
    let phase = DeparturePhase::Copying;
    let departure = Departure { tablet: moved, target: group(5), ticket: LogIndex::new(20), copy: None, phase };
    state.departures.insert(TabletId::new(8), departure);
    let arrival = Arrival {
        generation: Generation::new(2),
        table: tablet.table,
        range: tablet.range,
        source: GroupId::new(6),
        copy: Some(CopyId::new(7)),
        progress: ArrivalProgress::Importing(ImportPosition::Session(SessionId::new(9))),
    };
    state.arrivals.insert(TabletId::new(10), arrival);
    state.ticket_floor = LogIndex::new(12);
    state.jumped = Duration::from_secs(5);
    state
}

fn keys() -> Vec<Vec<u8>> {
    stored(&example()).into_keys().collect()
}

/// A state that is accepted survives a restart.
fn check(changed: &Stored) {
    match load(changed) {
        Ok(state) => {
            let saved = stored(&state);
            assert_eq!(stored(&load(&saved).unwrap()), saved);
        }
        Err(error) => assert_eq!(error.reason, Reason::DataDamaged, "{error}"),
    }
}

#[test]
fn the_example_is_loaded_as_it_was_saved() {
    let saved = stored(&example());
    assert_eq!(saved.len(), 16, "a value of every kind: {:?}", saved.keys());
    assert_eq!(stored(&load(&saved).unwrap()), saved);
}

#[test]
fn a_value_under_another_id_is_damage() {
    for key in
        [MetaKey::Tablet(TabletId::new(7)), MetaKey::Table(TableId::new(2)), MetaKey::Departure(TabletId::new(8))]
    {
        let mut changed = stored(&example());
        let value = changed.remove(&key.encode()).unwrap();
        let other = match key {
            MetaKey::Tablet(_) => MetaKey::Tablet(TabletId::new(70)),
            MetaKey::Table(_) => MetaKey::Table(TableId::new(20)),
            _ => MetaKey::Departure(TabletId::new(80)),
        };
        changed.insert(other.encode(), value);
        assert!(load(&changed).unwrap_err().message.contains("is stored under"), "{other:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn a_changed_value_is_damage_or_loads(
        key in select(keys()),
        value in inputs(stored(&example()).into_values().map(Vec::from).collect()),
    ) {
        let mut changed = stored(&example());
        changed.insert(key, value.into());
        check(&changed);
    }

    #[test]
    fn a_changed_key_is_damage_or_loads(key in select(keys()), other in inputs(keys())) {
        let mut changed = stored(&example());
        let value = changed.remove(&key).unwrap();
        changed.insert(other, value);
        check(&changed);
    }
}
