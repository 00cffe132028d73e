//! `table FAMILY...`, `row KEY`, `now T`, `holds CELL...` (states as numbers), then mutations as a request has them: the
//! changes as the log has them. An input is a number, `bytes(...)` or `string(...)`. `many FAMILY COUNT` adds to COUNT
//! columns. A sketch of some numbers is written `sketch(1,2,3)`, also in the output.

use bytes::Bytes;
use ebla_model::aggregate::{AggregateInput, InputKind, Sketch, encode_state};
use ebla_model::cell::Row;
use ebla_model::mutation::{Change, Mutation, WriteTime, resolve, validate};
use ebla_model::time::Micros;

use crate::notation::{bytes, cell, column, error_text, key, millis, millis_text, table, text};
use crate::runner;

#[test]
fn mutations_resolve() {
    runner::run("mutation", |input| {
        let mut schema = table("f g");
        let mut row = key("k");
        let mut now = Micros::from_millis(1000);
        let mut cells = Vec::new();
        let mut mutations = Vec::new();
        for line in input {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("table", families) => schema = table(families),
                ("row", name) => row = key(name),
                ("now", time) => now = millis(time),
                ("long", length) => row = key(&"k".repeat(length.parse().unwrap())),
                ("set", rest) => mutations.push(set(rest)),
                ("delete", rest) => mutations.push(delete(rest)),
                ("add", rest) => mutations.push(add(rest)),
                ("merge", rest) => mutations.push(merge(rest)),
                ("many", rest) => mutations.extend(many(rest)),
                ("holds", rest) => cells.extend(rest.split_whitespace().map(holds)),
                _ => panic!("not a line of a mutation script: {line}"),
            }
        }
        let current = Row { key: row.clone(), cells };
        let resolved = validate(&row, &mutations).and_then(|()| resolve(&schema, &mutations, now));
        let resolved = resolved.and_then(|resolution| resolution.merge(&schema, &current));
        match resolved {
            Ok(changes) => changes.iter().map(change_text).collect(),
            Err(error) => vec![error_text(&error)],
        }
    });
}

/// `family:qualifier@TIME=value`, where TIME may be `server`.
fn set(line: &str) -> Mutation {
    let (place, value) = line.split_once('=').unwrap();
    let (place, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = column(place);
    let timestamp = if time == "server" { WriteTime::Server } else { WriteTime::At(millis(time)) };
    Mutation::SetCell { family, qualifier, timestamp, value: bytes(value) }
}

/// `family:qualifier@TIME=INPUT`.
fn add(line: &str) -> Mutation {
    let (place, input) = line.split_once('=').unwrap();
    let (place, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = column(place);
    Mutation::AddToCell { family, qualifier, timestamp: millis(time), input: input_of(input) }
}

fn input_of(text: &str) -> AggregateInput {
    let inside = |word: &str| text.strip_prefix(word).and_then(|rest| rest.strip_suffix(')'));
    match (inside("bytes("), inside("string(")) {
        (Some(text), _) => AggregateInput::Bytes(bytes(text)),
        (_, Some(text)) => AggregateInput::String(text.to_owned()),
        _ => AggregateInput::Int64(text.parse().unwrap()),
    }
}

/// `FAMILY COUNT`.
fn many(line: &str) -> impl Iterator<Item = Mutation> {
    let (family, count) = line.split_once(' ').unwrap();
    let count: u32 = count.parse().unwrap();
    (0..count).map(move |n| Mutation::AddToCell {
        family: family.to_owned(),
        qualifier: n.to_be_bytes().to_vec().into(),
        timestamp: Micros::ZERO,
        input: AggregateInput::Int64(n.into()),
    })
}

/// The bytes of a state for a number or a sketch; other bytes unchanged.
fn state_of(text: &str) -> Bytes {
    match text.strip_prefix("sketch(").and_then(|rest| rest.strip_suffix(')')) {
        Some(numbers) => sketch(numbers.split(',').map(|number| number.parse().unwrap())).encode(),
        None => text.parse().map_or_else(|_text| bytes(text), encode_state),
    }
}

fn sketch(numbers: impl Iterator<Item = i64>) -> Sketch {
    let sketch = numbers.map(Sketch::of_integer).reduce(|mut all, one| {
        all.merge(&one);
        all
    });
    sketch.unwrap()
}

/// `family:qualifier@TIME=STATE`, or `=null`.
fn merge(line: &str) -> Mutation {
    let (place, state) = line.split_once('=').unwrap();
    let (place, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = column(place);
    let state = (state != "null").then(|| state_of(state));
    Mutation::MergeToCell { family, qualifier, timestamp: millis(time), state }
}

/// A cell with its value as a state, if it is one.
fn holds(text: &str) -> ebla_model::Cell {
    let mut cell = cell(text);
    cell.value = state_of(std::str::from_utf8(&cell.value).unwrap());
    cell
}

/// `row`, `family FAMILY`, or `family:qualifier [from] [to]`.
fn delete(line: &str) -> Mutation {
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["row"] => Mutation::DeleteRow,
        ["family", family] => Mutation::DeleteFamily { family: (*family).to_owned() },
        [place, times @ ..] => {
            let (family, qualifier) = column(place);
            let start = times.first().map_or(Micros::ZERO, |time| millis(time));
            Mutation::DeleteColumn { family, qualifier, start, end: times.get(1).map(|time| millis(time)) }
        }
        [] => panic!("delete what?"),
    }
}

/// A change with its family's id.
pub(crate) fn change_text(change: &Change) -> String {
    match change {
        Change::SetCell { family, qualifier, timestamp, value } => {
            format!("set {family}:{}@{}={}", text(qualifier), millis_text(*timestamp), value_text(value))
        }
        Change::DeleteColumn { family, qualifier, start, end } => {
            let end = end.map_or("-".into(), millis_text);
            format!("delete {family}:{} [{}, {end})", text(qualifier), millis_text(*start))
        }
        Change::DeleteFamily(family) => format!("delete family {family}"),
        Change::DeleteRow => "delete row".into(),
    }
}

/// A sketch of numbers from 0 to 99 as these numbers, other bytes unchanged.
fn value_text(value: &Bytes) -> String {
    let Ok(whole) = Sketch::decode(value, InputKind::Integers) else { return text(value) };
    let is_in = |number: &i64| !whole.clone().merge(&Sketch::of_integer(*number));
    let numbers: Vec<_> = (0..100).filter(is_in).collect();
    assert_eq!(sketch(numbers.iter().copied()), whole, "it holds more");
    format!("sketch({})", numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(","))
}
