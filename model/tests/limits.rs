//! Every limit of a write: the maximum is accepted, one more is refused. Source: the API's documentation.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use bytes::Bytes;
use ebla_model::aggregate::AggregateInput;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::RowKey;
use ebla_model::mutation::{self, Mutation, WriteTime};
use ebla_model::rmw::{self, Operation, Rule};
use ebla_model::schema::{TableName, TableSchema};
use ebla_model::time::Micros;

fn zeros(length: usize) -> Bytes {
    Bytes::from(vec![0; length])
}

fn row(length: usize) -> RowKey {
    RowKey::new(zeros(length))
}

fn set(qualifier: usize, value: usize) -> Mutation {
    let timestamp = WriteTime::Server;
    Mutation::SetCell { family: "f".into(), qualifier: zeros(qualifier), timestamp, value: zeros(value) }
}

fn append(qualifier: usize, suffix: usize) -> Rule {
    Rule { family: "f".into(), qualifier: zeros(qualifier), operation: Operation::Append(zeros(suffix)) }
}

fn written(row: &RowKey, mutations: &[Mutation]) -> Option<Reason> {
    mutation::validate(row, mutations).err().map(|error| error.reason)
}

fn computed(row: &RowKey, rules: &[Rule]) -> Option<Reason> {
    rmw::validate(row, rules).err().map(|error| error.reason)
}

const REFUSED: Option<Reason> = Some(Reason::InvalidArgument);

#[test]
fn row_keys_have_1_to_4096_bytes() {
    for (length, outcome) in [(0, REFUSED), (1, None), (4096, None), (4097, REFUSED)] {
        assert_eq!(written(&row(length), &[set(1, 1)]), outcome, "{length} bytes");
        assert_eq!(computed(&row(length), &[append(1, 1)]), outcome, "{length} bytes");
    }
}

#[test]
fn qualifiers_have_at_most_16_kib_in_every_mutation_and_rule() {
    for (length, outcome) in [(0, None), (16_384, None), (16_385, REFUSED)] {
        let (family, qualifier, timestamp) = ("f".to_owned(), zeros(length), Micros::ZERO);
        let (add, merge) = (
            Mutation::AddToCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp,
                input: AggregateInput::Int64(1),
            },
            Mutation::MergeToCell { family: family.clone(), qualifier: qualifier.clone(), timestamp, state: None },
        );
        let delete = Mutation::DeleteColumn { family, qualifier, start: Micros::ZERO, end: None };
        for mutation in [set(length, 1), add, merge, delete] {
            assert_eq!(written(&row(1), &[mutation]), outcome, "{length} bytes");
        }
        assert_eq!(computed(&row(1), &[append(length, 1)]), outcome, "{length} bytes");
    }
}

#[test]
fn values_have_at_most_100_mib() {
    assert_eq!(written(&row(1), &[set(1, 100 << 20)]), None);
    assert_eq!(written(&row(1), &[set(1, (100 << 20) + 1)]), REFUSED);
}

#[test]
fn a_row_takes_1_to_100_000_mutations_or_rules() {
    for (count, outcome) in [(0, REFUSED), (1, None), (100_000, None), (100_001, REFUSED)] {
        assert_eq!(written(&row(1), &vec![Mutation::DeleteRow; count]), outcome, "{count} mutations");
        assert_eq!(computed(&row(1), &vec![append(1, 1); count]), outcome, "{count} rules");
    }
    assert_eq!(mutation::validate_mutations(&[]), Ok(()), "a branch may be empty");
}

fn appended(held: usize, rules: &[Rule]) -> Result<usize, Error> {
    let family = FamilyName::new("f").unwrap();
    let name = TableName::from_parts("p", "i", "t").unwrap();
    let schema = TableSchema::new(TableId::new(1), name, [(family.clone(), None)]).unwrap();
    let cell = Cell::new(family, zeros(1), Micros::ZERO, zeros(held));
    let current = Row { key: row(1), cells: vec![cell] };
    let (_changes, cells) = rmw::evaluate(&schema, &current, rules, Micros::ZERO)?;
    Ok(cells.iter().map(|cell| cell.value.len()).sum())
}

#[test]
fn values_do_not_grow_beyond_100_mib_either() {
    assert_eq!(appended((100 << 20) - 3, &[append(1, 1), append(1, 2)]), Ok(100 << 20));
    let error = appended((100 << 20) - 3, &[append(1, 1), append(1, 3)]).unwrap_err();
    assert_eq!(error.reason, Reason::InvalidArgument);
}

/// If each append copied the value so far, this would copy 50 GB.
#[test]
fn many_appends_to_one_value_cost_what_they_append() {
    assert_eq!(appended(0, &vec![append(1, 1000); 10_000]), Ok(10_000_000));
}
