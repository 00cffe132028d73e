//! What scripts write, as parts of requests: families, mutations, rules. See [`crate::conformance::examples`] for the words.

use bytes::Bytes;
use ebla_proto::admin::{self, r#type};
use ebla_proto::data::{self, mutation, read_modify_write_rule, value::Kind};
use prost::Message;

use crate::conformance::notation;

pub(crate) fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split("; ").map(str::trim).filter(|part| !part.is_empty() && *part != "-")
}

pub(crate) fn mutations(text: &str) -> Vec<Bytes> {
    let (times, text) = match text.strip_prefix("times=").and_then(|rest| rest.split_once(' ')) {
        Some((times, rest)) => (times.parse().unwrap(), rest),
        None => (1, text),
    };
    let once: Vec<_> = parts(text).map(change).collect();
    once.iter().cycle().take(times * once.len()).cloned().collect()
}

fn change(text: &str) -> Bytes {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mutation = match word {
        "set" => {
            let (place, value) = rest.split_once('=').unwrap();
            let (column, time) = place.rsplit_once('@').unwrap();
            let (family_name, column_qualifier) = notation::column(column);
            let timestamp_micros = if time == "now" { -1 } else { notation::millis(time).get() };
            let value = notation::bytes(value);
            Some(mutation::Mutation::SetCell(mutation::SetCell {
                family_name,
                column_qualifier,
                timestamp_micros,
                value,
            }))
        }
        "add" => {
            let (family_name, column_qualifier, timestamp, input) = aggregated(rest);
            Some(mutation::Mutation::AddToCell(mutation::AddToCell {
                family_name,
                column_qualifier,
                timestamp,
                input: Some(input_of(input)),
            }))
        }
        "merge" => {
            let (family_name, column_qualifier, timestamp, state) = aggregated(rest);
            let input = (state != "null").then(|| value(Kind::BytesValue(notation::bytes(state))));
            let merge = mutation::MergeToCell { family_name, column_qualifier, timestamp, input };
            Some(mutation::Mutation::MergeToCell(merge))
        }
        "delete" => {
            let (column, times) = rest.split_once(' ').unwrap_or((rest, "[0, 0)"));
            let (family_name, column_qualifier) = notation::column(column);
            let (start, end) = times.trim_matches(['[', ')']).split_once(", ").unwrap();
            let time_range = Some(data::TimestampRange {
                start_timestamp_micros: notation::millis(start).get(),
                end_timestamp_micros: notation::millis(end).get(),
            });
            let delete = mutation::DeleteFromColumn { family_name, column_qualifier, time_range };
            Some(mutation::Mutation::DeleteFromColumn(delete))
        }
        "delete-family" => {
            Some(mutation::Mutation::DeleteFromFamily(mutation::DeleteFromFamily { family_name: rest.to_owned() }))
        }
        "delete-row" => Some(mutation::Mutation::DeleteFromRow(mutation::DeleteFromRow {})),
        "unset" => None,
        _ => panic!("not a mutation: {text}"),
    };
    data::Mutation { mutation, ..Default::default() }.encode_to_vec().into()
}

/// `f:q@1=REST`.
fn aggregated(text: &str) -> (String, Option<data::Value>, Option<data::Value>, &str) {
    let (place, rest) = text.split_once('=').unwrap();
    let (column, time) = place.rsplit_once('@').unwrap();
    let (family, qualifier) = notation::column(column);
    let micros = notation::millis(time).get();
    (family, Some(value(Kind::RawValue(qualifier))), Some(value(Kind::RawTimestampMicros(micros))), rest)
}

fn input_of(text: &str) -> data::Value {
    let inside = |word: &str| text.strip_prefix(word).and_then(|rest| rest.strip_suffix(')'));
    value(match (inside("bytes("), inside("string(")) {
        (Some(text), _) => Kind::BytesValue(notation::bytes(text)),
        (_, Some(text)) => Kind::StringValue(text.to_owned()),
        _ => Kind::IntValue(text.parse().unwrap()),
    })
}

const fn value(kind: Kind) -> data::Value {
    data::Value { r#type: None, kind: Some(kind) }
}

/// `NAME` or `NAME:TYPE`.
pub(crate) fn family(text: &str) -> (String, admin::ColumnFamily) {
    use r#type::aggregate::Aggregator;
    let (name, kind) = text.split_once(':').unwrap_or((text, ""));
    let integer = || Some(r#type::Kind::Int64Type(Default::default()));
    let (input, aggregator) = match kind {
        "" => return (name.to_owned(), admin::ColumnFamily::default()),
        "intsum" => (integer(), Aggregator::Sum(Default::default())),
        "intmin" => (integer(), Aggregator::Min(Default::default())),
        "intmax" => (integer(), Aggregator::Max(Default::default())),
        "inthll" => (integer(), Aggregator::HllppUniqueCount(Default::default())),
        "hll" => (None, Aggregator::HllppUniqueCount(Default::default())),
        "stringhll" => {
            (Some(r#type::Kind::StringType(Default::default())), Aggregator::HllppUniqueCount(Default::default()))
        }
        _ => panic!("not a type: {kind}"),
    };
    let input_type = input.map(|kind| Box::new(admin::Type { kind: Some(kind) }));
    let aggregate = r#type::Aggregate { input_type, state_type: None, aggregator: Some(aggregator) };
    let value_type = Some(admin::Type { kind: Some(r#type::Kind::AggregateType(Box::new(aggregate))) });
    (name.to_owned(), admin::ColumnFamily { value_type, ..Default::default() })
}

pub(crate) fn rule(text: &str) -> Bytes {
    let (word, rest) = text.split_once(' ').unwrap_or((text, "f:q=-"));
    let (column, value) = rest.split_once('=').unwrap();
    let (family_name, column_qualifier) = notation::column(column);
    let rule = match word {
        "append" => Some(read_modify_write_rule::Rule::AppendValue(notation::bytes(value))),
        "add" => Some(read_modify_write_rule::Rule::IncrementAmount(value.parse().unwrap())),
        "unset" => None,
        _ => panic!("not a rule: {text}"),
    };
    data::ReadModifyWriteRule { family_name, column_qualifier, rule }.encode_to_vec().into()
}
