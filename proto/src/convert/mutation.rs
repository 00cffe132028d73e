//! Mutations and read-modify-write rules of public requests.

use bytes::Bytes;
use ebla_model::{
    Error, Micros,
    aggregate::{AggregateInput, encode_state},
    mutation::{Mutation, WriteTime},
    rmw::{Operation, Rule},
};
use prost::Message;

use super::{filter::open_end, unknown_fields};
use crate::data::{
    self, Value,
    mutation::{Mutation as Wire, TimestampOrigin},
    read_modify_write_rule::Rule as WireRule,
    value::Kind,
};

/// Timestamp of a cell whose time the server sets.
const SERVER_TIME: i64 = -1;

/// Decodes a `Mutation`. The model's `validate` checks limits.
///
/// # Errors
/// `Unimplemented` when it has unknown or unsupported content, `InvalidArgument` when it is invalid.
pub fn mutation_from_bytes(bytes: &Bytes) -> Result<Mutation, Error> {
    unknown_fields::check(&unknown_fields::MUTATION, bytes)?;
    let message = data::Mutation::decode(bytes.clone())
        .map_err(|error| Error::invalid(format!("mutation does not decode: {error}")))?;
    mutation_from_proto(message)
}

/// The encoding of a mutation.
pub fn mutation_to_bytes(mutation: &Mutation) -> Bytes {
    mutation_to_proto(mutation).encode_to_vec().into()
}

/// The mutation of a decoded message. Decoding drops unknown fields: for requests of clients use [`mutation_from_bytes`].
///
/// # Errors
/// As [`mutation_from_bytes`].
pub fn mutation_from_proto(message: data::Mutation) -> Result<Mutation, Error> {
    let origin = TimestampOrigin::try_from(message.timestamp_origin).map_err(|_| {
        Error::unimplemented(format!("timestamp_origin {} is not supported by this release", message.timestamp_origin))
    })?;
    Ok(match message.mutation.ok_or_else(|| Error::invalid("mutation is not set"))? {
        Wire::SetCell(set) => Mutation::SetCell {
            family: set.family_name,
            qualifier: set.column_qualifier,
            timestamp: write_time(set.timestamp_micros, origin),
            value: set.value,
        },
        Wire::DeleteFromColumn(delete) => {
            let range = delete.time_range.unwrap_or_default();
            Mutation::DeleteColumn {
                family: delete.family_name,
                qualifier: delete.column_qualifier,
                start: Micros::new(range.start_timestamp_micros),
                end: open_end(range.end_timestamp_micros),
            }
        }
        Wire::DeleteFromFamily(delete) => Mutation::DeleteFamily { family: delete.family_name },
        Wire::DeleteFromRow(data::mutation::DeleteFromRow {}) => Mutation::DeleteRow,
        Wire::AddToCell(add) => Mutation::AddToCell {
            family: add.family_name,
            qualifier: aggregate_qualifier(add.column_qualifier)?,
            timestamp: aggregate_timestamp(add.timestamp, origin)?,
            input: added(add.input)?,
        },
        Wire::MergeToCell(merge) => Mutation::MergeToCell {
            family: merge.family_name,
            qualifier: aggregate_qualifier(merge.column_qualifier)?,
            timestamp: aggregate_timestamp(merge.timestamp, origin)?,
            state: merged(merge.input)?,
        },
    })
}

/// The message of a mutation.
pub fn mutation_to_proto(mutation: &Mutation) -> data::Mutation {
    let mutation = match mutation {
        Mutation::SetCell { family, qualifier, timestamp, value } => Wire::SetCell(data::mutation::SetCell {
            family_name: family.clone(),
            column_qualifier: qualifier.clone(),
            timestamp_micros: match timestamp {
                WriteTime::Server => SERVER_TIME,
                WriteTime::At(timestamp) => timestamp.get(),
            },
            value: value.clone(),
        }),
        Mutation::AddToCell { family, qualifier, timestamp, input } => Wire::AddToCell(data::mutation::AddToCell {
            family_name: family.clone(),
            column_qualifier: Some(value(Kind::RawValue(qualifier.clone()))),
            timestamp: Some(value(Kind::RawTimestampMicros(timestamp.get()))),
            input: Some(value(input_value(input))),
        }),
        Mutation::MergeToCell { family, qualifier, timestamp, state } => {
            Wire::MergeToCell(data::mutation::MergeToCell {
                family_name: family.clone(),
                column_qualifier: Some(value(Kind::RawValue(qualifier.clone()))),
                timestamp: Some(value(Kind::RawTimestampMicros(timestamp.get()))),
                input: state.clone().map(|state| value(Kind::BytesValue(state))),
            })
        }
        Mutation::DeleteColumn { family, qualifier, start, end } => {
            Wire::DeleteFromColumn(data::mutation::DeleteFromColumn {
                family_name: family.clone(),
                column_qualifier: qualifier.clone(),
                time_range: Some(data::TimestampRange {
                    start_timestamp_micros: start.get(),
                    end_timestamp_micros: end.map_or(0, Micros::get),
                }),
            })
        }
        Mutation::DeleteFamily { family } => {
            Wire::DeleteFromFamily(data::mutation::DeleteFromFamily { family_name: family.clone() })
        }
        Mutation::DeleteRow => Wire::DeleteFromRow(data::mutation::DeleteFromRow {}),
    };
    data::Mutation { mutation: Some(mutation), timestamp_origin: TimestampOrigin::Unspecified.into() }
}

/// Client libraries generate timestamps in microseconds, which are truncated to the table's milliseconds. A user's timestamp
/// is not changed: validation refuses it if it is not a whole millisecond.
fn write_time(micros: i64, origin: TimestampOrigin) -> WriteTime {
    match (micros, origin) {
        (SERVER_TIME, _) => WriteTime::Server,
        (micros, origin) => WriteTime::At(given_time(micros, origin)),
    }
}

fn given_time(micros: i64, origin: TimestampOrigin) -> Micros {
    match origin {
        TimestampOrigin::ClientAutoGenerated => Micros::new(micros).truncate_to_millis(),
        TimestampOrigin::Unspecified | TimestampOrigin::UserSpecified => Micros::new(micros),
    }
}

fn aggregate_qualifier(qualifier: Option<Value>) -> Result<Bytes, Error> {
    match qualifier {
        Some(Value { r#type: None, kind: Some(Kind::RawValue(qualifier)) }) => Ok(qualifier),
        _ => Err(Error::invalid("column_qualifier of an aggregate's mutation must be a raw_value without a type")),
    }
}

/// The server's clock is not allowed: the cell of an addition must not depend on the time of the request.
fn aggregate_timestamp(timestamp: Option<Value>, origin: TimestampOrigin) -> Result<Micros, Error> {
    match timestamp {
        Some(Value { r#type: None, kind: Some(Kind::RawTimestampMicros(micros)) }) => Ok(given_time(micros, origin)),
        _ => Err(Error::invalid("timestamp of an aggregate's mutation must be raw_timestamp_micros without a type")),
    }
}

/// The type is checked when the family is known.
fn added(input: Option<Value>) -> Result<AggregateInput, Error> {
    match input.and_then(|input| input.kind) {
        Some(Kind::IntValue(input)) => Ok(AggregateInput::Int64(input)),
        Some(Kind::BytesValue(input) | Kind::RawValue(input)) => Ok(AggregateInput::Bytes(input)),
        Some(Kind::StringValue(input)) => Ok(AggregateInput::String(input)),
        _ => {
            Err(Error::invalid("input of AddToCell must be an int_value, a bytes_value, a raw_value or a string_value"))
        }
    }
}

fn input_value(input: &AggregateInput) -> Kind {
    match input {
        AggregateInput::Int64(input) => Kind::IntValue(*input),
        AggregateInput::Bytes(input) => Kind::BytesValue(input.clone()),
        AggregateInput::String(input) => Kind::StringValue(input.clone()),
    }
}

/// A state is bytes, with or without a type, depending on the client; the integer that it encodes; or NULL.
fn merged(input: Option<Value>) -> Result<Option<Bytes>, Error> {
    match input.and_then(|input| input.kind) {
        None => Ok(None),
        Some(Kind::BytesValue(state) | Kind::RawValue(state)) => Ok(Some(state)),
        Some(Kind::IntValue(state)) => Ok(Some(encode_state(state))),
        Some(_) => Err(Error::invalid("input of MergeToCell must be a state: a bytes_value, or NULL")),
    }
}

const fn value(kind: Kind) -> Value {
    Value { r#type: None, kind: Some(kind) }
}

/// Decodes a `ReadModifyWriteRule`. The model's `validate` checks limits.
///
/// # Errors
/// `Unimplemented` when it has unknown content, `InvalidArgument` when it is invalid.
pub fn rule_from_bytes(bytes: &Bytes) -> Result<Rule, Error> {
    unknown_fields::check(&unknown_fields::READ_MODIFY_WRITE_RULE, bytes)?;
    let message = data::ReadModifyWriteRule::decode(bytes.clone())
        .map_err(|error| Error::invalid(format!("read-modify-write rule does not decode: {error}")))?;
    rule_from_proto(message)
}

/// The encoding of a rule.
pub fn rule_to_bytes(rule: &Rule) -> Bytes {
    rule_to_proto(rule).encode_to_vec().into()
}

/// The rule of a decoded message; for requests of clients use [`rule_from_bytes`].
///
/// # Errors
/// `InvalidArgument` when the rule is not set.
pub fn rule_from_proto(message: data::ReadModifyWriteRule) -> Result<Rule, Error> {
    let operation = match message.rule.ok_or_else(|| Error::invalid("read-modify-write rule is not set"))? {
        WireRule::AppendValue(suffix) => Operation::Append(suffix),
        WireRule::IncrementAmount(amount) => Operation::Increment(amount),
    };
    Ok(Rule { family: message.family_name, qualifier: message.column_qualifier, operation })
}

/// The message of a rule.
pub fn rule_to_proto(rule: &Rule) -> data::ReadModifyWriteRule {
    let operation = match &rule.operation {
        Operation::Append(suffix) => WireRule::AppendValue(suffix.clone()),
        Operation::Increment(amount) => WireRule::IncrementAmount(*amount),
    };
    data::ReadModifyWriteRule {
        family_name: rule.family.clone(),
        column_qualifier: rule.qualifier.clone(),
        rule: Some(operation),
    }
}

#[cfg(test)]
mod tests;
