//! Aggregates against a definition: mutations act one by one on the cells after the previous ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::aggregate::{AggregateInput, Aggregator, decode_state, encode_state};
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::RowKey;
use ebla_model::mutation::{Change, Mutation, resolve};
use ebla_model::schema::{NewFamily, TableName, TableSchema};
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const KINDS: [(&str, Aggregator); 3] = [("n", Aggregator::Min), ("s", Aggregator::Sum), ("x", Aggregator::Max)];

/// The cells of a row: family, qualifier, timestamp and state.
type Cells = BTreeMap<(usize, u8, i64), i64>;

fn schema() -> TableSchema {
    let families = KINDS.map(|(name, aggregator)| NewFamily {
        name: FamilyName::new(name).unwrap(),
        gc: None,
        aggregator: Some(aggregator),
    });
    TableSchema::with_families(TableId::new(1), TableName::from_parts("p", "i", "t").unwrap(), families).unwrap()
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![-3..4_i64, Just(i64::MAX), Just(i64::MIN)]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let place = || (0..3_usize, 0..2_u8, 0..4_i64);
    let family = |at: usize| KINDS[at].0.to_owned();
    let qualifier = |byte: u8| Bytes::copy_from_slice(&[byte]);
    prop_oneof![
        4 => (place(), number()).prop_map(move |((at, byte, time), input)| Mutation::AddToCell {
            family: family(at),
            qualifier: qualifier(byte),
            timestamp: Micros::from_millis(time),
            input: AggregateInput::Int64(input),
        }),
        2 => (place(), option::of(number())).prop_map(move |((at, byte, time), state)| Mutation::MergeToCell {
            family: family(at),
            qualifier: qualifier(byte),
            timestamp: Micros::from_millis(time),
            state: state.map(encode_state),
        }),
        2 => (place(), option::of(1..3_i64)).prop_map(move |((at, byte, time), length)| Mutation::DeleteColumn {
            family: family(at),
            qualifier: qualifier(byte),
            start: Micros::from_millis(time),
            end: length.map(|length| Micros::from_millis(time + length)),
        }),
        1 => (0..3_usize).prop_map(move |at| Mutation::DeleteFamily { family: family(at) }),
        1 => Just(Mutation::DeleteRow),
    ]
}

fn place(family: &str, qualifier: &[u8], timestamp: Micros) -> (usize, u8, i64) {
    (KINDS.iter().position(|(name, _)| *name == family).unwrap(), qualifier[0], timestamp.get())
}

/// The definition.
fn act(cells: &mut Cells, mutation: &Mutation) {
    let mut merge = |at: (usize, u8, i64), operand: i64| {
        let state = match (cells.get(&at), KINDS[at.0].1) {
            (None, _) => operand,
            (Some(state), Aggregator::Sum) => state.wrapping_add(operand),
            (Some(state), Aggregator::Min) => operand.min(*state),
            (Some(state), Aggregator::Max) => operand.max(*state),
            (Some(_), Aggregator::UniqueCount(_)) => unreachable!("no family of this test"),
        };
        cells.insert(at, state);
    };
    match mutation {
        Mutation::AddToCell { family, qualifier, timestamp, input } => {
            let AggregateInput::Int64(input) = input else { unreachable!("only integers are added") };
            merge(place(family, qualifier, *timestamp), *input);
        }
        Mutation::MergeToCell { family, qualifier, timestamp, state: Some(state) } => {
            merge(place(family, qualifier, *timestamp), decode_state(state).unwrap());
        }
        Mutation::MergeToCell { state: None, .. } => {}
        Mutation::DeleteColumn { family, qualifier, start, end } => {
            let (at, byte, _) = place(family, qualifier, *start);
            cells.retain(|(family, qualifier, time), _| {
                let inside = *time >= start.get() && end.is_none_or(|end| *time < end.get());
                !((*family, *qualifier) == (at, byte) && inside)
            });
        }
        Mutation::DeleteFamily { family } => cells.retain(|(at, ..), _| KINDS[*at].0 != family.as_str()),
        Mutation::DeleteRow => cells.clear(),
        Mutation::SetCell { .. } => unreachable!("an aggregate family is not written to"),
    }
}

/// A store: plain writes and deletes.
fn store(cells: &mut Cells, change: &Change) {
    let index = |family: &FamilyId| usize::try_from(family.get()).unwrap() - 1;
    match change {
        Change::SetCell { family, qualifier, timestamp, value } => {
            cells.insert((index(family), qualifier[0], timestamp.get()), decode_state(value).unwrap());
        }
        Change::DeleteColumn { family, qualifier, start, end } => {
            cells.retain(|(at, byte, time), _| {
                let inside = *time >= start.get() && end.is_none_or(|end| *time < end.get());
                !((*at, *byte) == (index(family), qualifier[0]) && inside)
            });
        }
        Change::DeleteFamily(family) => cells.retain(|(at, ..), _| *at != index(family)),
        Change::DeleteRow => cells.clear(),
    }
}

fn row(cells: &Cells, wanted: impl Fn(usize, u8) -> bool) -> Row {
    let cell = |((at, byte, time), state): (&(usize, u8, i64), &i64)| {
        let family = FamilyName::new(KINDS[*at].0).unwrap();
        Cell::new(family, Bytes::copy_from_slice(&[*byte]), Micros::new(*time), encode_state(*state))
    };
    let mut cells: Vec<_> = cells.iter().filter(|((at, byte, _), _)| wanted(*at, *byte)).map(cell).collect();
    cells.sort_by(Cell::order);
    Row { key: RowKey::new("k"), cells }
}

proptest! {
    /// For any division of mutations into requests the stored cells match the definition, and a request needs only the
    /// columns that it names.
    #[test]
    fn requests_add_up_to_what_their_mutations_do_one_by_one(requests in vec(vec(mutation(), 1..8), 1..6)) {
        let schema = schema();
        let (mut defined, mut stored) = (Cells::new(), Cells::new());
        for request in &requests {
            request.iter().for_each(|mutation| act(&mut defined, mutation));
            let resolution = resolve(&schema, request, Micros::ZERO).unwrap();
            let columns = resolution.columns();
            let is_named = |at: usize, byte: u8| {
                let family = FamilyId::new(u32::try_from(at).unwrap() + 1);
                columns.contains(&(family, Bytes::copy_from_slice(&[byte])))
            };
            let current = row(&stored, is_named);
            for change in resolution.merge(&schema, &current).unwrap() {
                store(&mut stored, &change);
            }
            prop_assert_eq!(&stored, &defined);
        }
    }
}
