//! `table FAMILY...`, `row KEY`, `now T`, `holds CELL...` (states as numbers), then mutations as a request has them: the
//! changes as the log has them.

use ebla_model::aggregate::encode_state;
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
                ("holds", rest) => cells.extend(rest.split_whitespace().map(holds)),
                _ => panic!("not a line of a mutation script: {line}"),
            }
        }
        let current = Row { key: row.clone(), cells };
        let resolved = validate(&row, &mutations).and_then(|()| resolve(&schema, &mutations, now));
        let resolved = resolved.and_then(|resolution| resolution.settle(&schema, &current));
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

/// `family:qualifier@TIME=NUMBER`.
fn add(line: &str) -> Mutation {
    let (place, input) = line.split_once('=').unwrap();
    let (place, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = column(place);
    Mutation::AddToCell { family, qualifier, timestamp: millis(time), input: input.parse().unwrap() }
}

/// `family:qualifier@TIME=NUMBER`, or `=null`, or bytes that are no state.
fn merge(line: &str) -> Mutation {
    let (place, state) = line.split_once('=').unwrap();
    let (place, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = column(place);
    let state = (state != "null").then(|| state.parse().map_or_else(|_text| bytes(state), encode_state));
    Mutation::MergeToCell { family, qualifier, timestamp: millis(time), state }
}

/// A cell whose value, where it is a number, is a state.
fn holds(text: &str) -> ebla_model::Cell {
    let mut cell = cell(text);
    let number = std::str::from_utf8(&cell.value).unwrap().parse();
    cell.value = number.map_or(cell.value, encode_state);
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
            format!("set {family}:{}@{}={}", text(qualifier), millis_text(*timestamp), text(value))
        }
        Change::DeleteColumn { family, qualifier, start, end } => {
            let end = end.map_or("-".into(), millis_text);
            format!("delete {family}:{} [{}, {end})", text(qualifier), millis_text(*start))
        }
        Change::DeleteFamily(family) => format!("delete family {family}"),
        Change::DeleteRow => "delete row".into(),
    }
}
