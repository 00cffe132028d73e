//! Notation of values in scripts: byte strings with `\xHH`, cells as `family:qualifier@millis=value#label`.

use bytes::Bytes;
use ebla_model::aggregate::{Aggregator, InputType};
use ebla_model::cell::{Cell, FamilyName};
use ebla_model::error::Error;
use ebla_model::gc::GcRule;
use ebla_model::id::TableId;
use ebla_model::key::RowKey;
use ebla_model::schema::{NewFamily, TableName, TableSchema};
use ebla_model::time::Micros;
use std::time::Duration;

/// A byte string; `-` is the empty one.
pub(crate) fn bytes(text: &str) -> Bytes {
    key(text).bytes().clone()
}

/// A row key; `-` is the empty one.
pub(crate) fn key(text: &str) -> RowKey {
    if text == "-" { RowKey::EMPTY } else { RowKey::parse_escaped(text).unwrap() }
}

/// The reverse of [`bytes`], except that the empty string is empty.
pub(crate) fn text(bytes: &[u8]) -> String {
    RowKey::copy_from_slice(bytes).to_string()
}

/// Milliseconds, with three decimals if they are not whole.
pub(crate) fn millis(text: &str) -> Micros {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let micros = format!("{whole}{part:0<3}");
    Micros::new(micros.parse().unwrap_or_else(|_| panic!("not milliseconds: {text}")))
}

/// The reverse of [`millis`].
pub(crate) fn millis_text(time: Micros) -> String {
    if time.is_whole_millis() {
        (time.get() / 1000).to_string()
    } else {
        format!("{}.{:03}", time.get() / 1000, time.get() % 1000)
    }
}

/// `family:qualifier`, then the rest.
pub(crate) fn column(text: &str) -> (String, Bytes) {
    let (family, qualifier) = text.split_once(':').unwrap_or_else(|| panic!("not a column: {text}"));
    (family.to_owned(), bytes(qualifier))
}

/// `family:qualifier@millis=value`.
pub(crate) fn cell(text: &str) -> Cell {
    let (place, value) = text.split_once('=').unwrap_or_else(|| panic!("not a cell: {text}"));
    let (place, time) = place.rsplit_once('@').unwrap_or_else(|| panic!("not a cell: {text}"));
    let (family, qualifier) = column(place);
    Cell::new(FamilyName::new(&family).unwrap(), qualifier, millis(time), bytes(value))
}

/// The reverse of [`cell`], with each label that it has.
pub(crate) fn cell_text(cell: &Cell) -> String {
    let Cell { family, qualifier, timestamp, value, labels } = cell;
    let labels: String = labels.iter().map(|label| format!("#{label}")).collect();
    format!("{family}:{}@{}={}{labels}", text(qualifier), millis_text(*timestamp), text(value))
}

/// Cells in a line, or `nothing`.
pub(crate) fn cells_text(cells: &[Cell]) -> String {
    let line = cells.iter().map(cell_text).collect::<Vec<_>>().join(" ");
    if line.is_empty() { "nothing".into() } else { line }
}

pub(crate) fn error_text(error: &Error) -> String {
    format!("{}: {}", error.reason, error.message)
}

/// A table with families of these names and no rules; `name:sum`, `name:min`, `name:max`, and counts of distinct inputs
/// (`name:integers`, `name:bytes`, `name:strings`) are aggregates.
pub(crate) fn table(families: &str) -> TableSchema {
    let name = TableName::from_parts("p", "i", "t").unwrap();
    let families = families.split_whitespace().map(|family| new_family(family, None));
    TableSchema::with_families(TableId::new(1), name, families).unwrap()
}

/// A family as [`table`] writes it, with this rule.
pub(crate) fn new_family(text: &str, gc: Option<GcRule>) -> NewFamily {
    let (name, aggregator) = text.split_once(':').map_or((text, None), |(name, kind)| (name, Some(aggregator(kind))));
    NewFamily { name: FamilyName::new(name).unwrap(), gc, aggregator }
}

fn aggregator(text: &str) -> Aggregator {
    match text {
        "sum" => Aggregator::Sum,
        "min" => Aggregator::Min,
        "max" => Aggregator::Max,
        "integers" => Aggregator::UniqueCount(InputType::Int64),
        "bytes" => Aggregator::UniqueCount(InputType::Bytes),
        "strings" => Aggregator::UniqueCount(InputType::String),
        _ => panic!("not an aggregator: {text}"),
    }
}

/// The numbers and words after `name=` in a line, if it is there.
pub(crate) fn option<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// `max_versions=N`, `max_age=MILLIS`, joined by `or` or `and`, with parentheses; `none` is no rule.
pub(crate) fn rule(text: &str) -> Option<GcRule> {
    if text.trim() == "none" {
        return None;
    }
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let (rule, rest) = rule_of(&words);
    assert!(rest.is_empty(), "left over: {rest:?}");
    Some(rule)
}

fn rule_of<'a>(words: &'a [&'a str]) -> (GcRule, &'a [&'a str]) {
    let (first, mut rest) = term(words);
    let mut members = vec![first];
    let joint = rest.first().copied();
    while let Some(word @ ("or" | "and")) = rest.first().copied() {
        assert_eq!(Some(word), joint, "or and and want parentheses");
        let (member, tail) = term(&rest[1..]);
        members.push(member);
        rest = tail;
    }
    let rule = match joint {
        Some("or") => GcRule::Any(members),
        Some("and") => GcRule::All(members),
        _ => members.remove(0),
    };
    (rule, rest)
}

fn term<'a>(words: &'a [&'a str]) -> (GcRule, &'a [&'a str]) {
    match words {
        ["(", "any", ")", rest @ ..] => (GcRule::Any(Vec::new()), rest),
        ["(", "all", ")", rest @ ..] => (GcRule::All(Vec::new()), rest),
        ["(", rest @ ..] => {
            let (rule, rest) = rule_of(rest);
            assert_eq!(rest.first(), Some(&")"));
            (rule, &rest[1..])
        }
        [word, rest @ ..] => {
            let (name, number) = word.split_once('=').unwrap_or_else(|| panic!("not a rule: {word}"));
            let rule = match name {
                "max_versions" => GcRule::MaxVersions(number.parse().unwrap()),
                "max_age" => GcRule::MaxAge(Duration::from_micros(u64::try_from(millis(number).get()).unwrap())),
                _ => panic!("not a rule: {word}"),
            };
            (rule, rest)
        }
        [] => panic!("a rule is missing"),
    }
}
