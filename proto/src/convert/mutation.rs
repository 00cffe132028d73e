//! Mutations and read-modify-write rules of public requests.

use bytes::Bytes;
use ebla_model::{
    Error, Micros,
    aggregate::encode_state,
    mutation::{Mutation, WriteTime},
    rmw::{Operation, Rule},
};
use prost::Message;

use super::{filter::open_end, known};
use crate::data::{
    self, Value,
    mutation::{Mutation as Wire, TimestampOrigin},
    read_modify_write_rule::Rule as WireRule,
    value::Kind,
};

/// Timestamp of a cell whose time the server sets.
const SERVER_TIME: i64 = -1;

/// The mutation of an encoded `Mutation`. Limits are left to the model's `validate`.
///
/// # Errors
/// `Unimplemented` when it holds anything that this release does not know or serve, `InvalidArgument` when it is not
/// legal.
pub fn mutation_from_bytes(bytes: &Bytes) -> Result<Mutation, Error> {
    known::check(&known::MUTATION, bytes)?;
    let message = data::Mutation::decode(bytes.clone())
        .map_err(|error| Error::invalid(format!("mutation does not decode: {error}")))?;
    mutation_from_proto(message)
}

/// The encoding of a mutation.
pub fn mutation_to_bytes(mutation: &Mutation) -> Bytes {
    mutation_to_proto(mutation).encode_to_vec().into()
}

/// The mutation of a message that was decoded. Unknown fields are lost by then: for what comes from a client, use
/// [`mutation_from_bytes`].
///
/// # Errors
/// As [`mutation_from_bytes`].
pub fn mutation_from_proto(message: data::Mutation) -> Result<Mutation, Error> {
    let origin = TimestampOrigin::try_from(message.timestamp_origin).map_err(|_| {
        Error::unimplemented(format!("timestamp_origin {} is not known to this release", message.timestamp_origin))
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
            input: Some(value(Kind::IntValue(*input))),
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

/// A client library's own clock runs in microseconds; what it stamped is cut to the table's milliseconds. A user's
/// timestamp is left as it is, for validation to refuse when it is too fine.
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

/// The server's clock is none of the choices: which cell is added to must not depend on when the request arrives.
fn aggregate_timestamp(timestamp: Option<Value>, origin: TimestampOrigin) -> Result<Micros, Error> {
    match timestamp {
        Some(Value { r#type: None, kind: Some(Kind::RawTimestampMicros(micros)) }) => Ok(given_time(micros, origin)),
        _ => Err(Error::invalid("timestamp of an aggregate's mutation must be raw_timestamp_micros without a type")),
    }
}

fn added(input: Option<Value>) -> Result<i64, Error> {
    match input.and_then(|input| input.kind) {
        Some(Kind::IntValue(input)) => Ok(input),
        _ => Err(Error::invalid("input of AddToCell must be an int_value")),
    }
}

/// A state comes as bytes, typed or not, as clients differ in; as the integer that it encodes; or as NULL.
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

/// The rule of an encoded `ReadModifyWriteRule`. Limits are left to the model's `validate`.
///
/// # Errors
/// `Unimplemented` when it holds anything that this release does not know, `InvalidArgument` when it is not legal.
pub fn rule_from_bytes(bytes: &Bytes) -> Result<Rule, Error> {
    known::check(&known::READ_MODIFY_WRITE_RULE, bytes)?;
    let message = data::ReadModifyWriteRule::decode(bytes.clone())
        .map_err(|error| Error::invalid(format!("read-modify-write rule does not decode: {error}")))?;
    rule_from_proto(message)
}

/// The encoding of a rule.
pub fn rule_to_bytes(rule: &Rule) -> Bytes {
    rule_to_proto(rule).encode_to_vec().into()
}

/// The rule of a message that was decoded; for what comes from a client, use [`rule_from_bytes`].
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
mod tests {
    use ebla_model::Reason;

    use super::*;

    fn set_cell(micros: i64, origin: TimestampOrigin) -> Result<Mutation, Error> {
        let set = data::mutation::SetCell { timestamp_micros: micros, ..Default::default() };
        let message = data::Mutation { mutation: Some(Wire::SetCell(set)), timestamp_origin: origin.into() };
        mutation_from_bytes(&Bytes::from(message.encode_to_vec()))
    }

    fn time_of(mutation: Result<Mutation, Error>) -> WriteTime {
        match mutation.unwrap() {
            Mutation::SetCell { timestamp, .. } => timestamp,
            other => panic!("not a SetCell: {other:?}"),
        }
    }

    #[test]
    fn every_mutation_comes_back() {
        let (family, qualifier) = ("anchor".to_owned(), Bytes::from_static(b"\0q"));
        let mutations = [
            Mutation::SetCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp: WriteTime::Server,
                value: Bytes::from("v"),
            },
            Mutation::SetCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp: WriteTime::At(Micros::new(7000)),
                value: Bytes::new(),
            },
            Mutation::AddToCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp: Micros::new(7000),
                input: -1,
            },
            Mutation::MergeToCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp: Micros::new(7000),
                state: Some(Bytes::from("state")),
            },
            Mutation::MergeToCell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp: Micros::ZERO,
                state: None,
            },
            Mutation::DeleteColumn {
                family: family.clone(),
                qualifier: qualifier.clone(),
                start: Micros::ZERO,
                end: None,
            },
            Mutation::DeleteColumn {
                family: family.clone(),
                qualifier,
                start: Micros::new(1000),
                end: Some(Micros::new(2000)),
            },
            Mutation::DeleteFamily { family },
            Mutation::DeleteRow,
        ];
        for sent in mutations {
            assert_eq!(mutation_from_bytes(&mutation_to_bytes(&sent)), Ok(sent));
        }
    }

    #[test]
    fn a_client_librarys_stamp_is_cut_to_milliseconds() {
        assert_eq!(
            time_of(set_cell(1_234_567, TimestampOrigin::ClientAutoGenerated)),
            WriteTime::At(Micros::new(1_234_000))
        );
        assert_eq!(
            time_of(set_cell(1_234_567, TimestampOrigin::UserSpecified)),
            WriteTime::At(Micros::new(1_234_567)),
            "left for validation to refuse"
        );
        assert_eq!(time_of(set_cell(-1, TimestampOrigin::Unspecified)), WriteTime::Server);
    }

    #[test]
    fn unknown_or_empty_mutations_are_refused() {
        assert_eq!(mutation_from_bytes(&Bytes::new()).unwrap_err().reason, Reason::InvalidArgument);
        // Field 9, empty message.
        assert_eq!(mutation_from_bytes(&Bytes::from_static(&[0x4a, 0])).unwrap_err().reason, Reason::Unimplemented);
        // A timestamp origin of the future.
        let message = data::Mutation { mutation: Some(Wire::DeleteFromRow(Default::default())), timestamp_origin: 9 };
        assert_eq!(
            mutation_from_bytes(&Bytes::from(message.encode_to_vec())).unwrap_err().reason,
            Reason::Unimplemented
        );
    }

    fn add(
        qualifier: Option<Kind>,
        timestamp: Option<Kind>,
        input: Option<Kind>,
        origin: TimestampOrigin,
    ) -> Result<Mutation, Error> {
        let add = data::mutation::AddToCell {
            family_name: "s".into(),
            column_qualifier: qualifier.map(value),
            timestamp: timestamp.map(value),
            input: input.map(value),
        };
        let message = data::Mutation { mutation: Some(Wire::AddToCell(add)), timestamp_origin: origin.into() };
        mutation_from_bytes(&Bytes::from(message.encode_to_vec()))
    }

    fn merge(input: Option<Value>) -> Result<Mutation, Error> {
        let merge = data::mutation::MergeToCell {
            family_name: "s".into(),
            column_qualifier: Some(value(Kind::RawValue("q".into()))),
            timestamp: Some(value(Kind::RawTimestampMicros(1000))),
            input,
        };
        let message = data::Mutation { mutation: Some(Wire::MergeToCell(merge)), ..Default::default() };
        mutation_from_bytes(&Bytes::from(message.encode_to_vec()))
    }

    #[test]
    fn additions_say_where_when_and_how_much() {
        let (qualifier, time, input) =
            (Some(Kind::RawValue("q".into())), Some(Kind::RawTimestampMicros(1_234_567)), Some(Kind::IntValue(5)));
        let micros = |mutation| match mutation {
            Ok(Mutation::AddToCell { timestamp, input: 5, .. }) => timestamp.get(),
            other => panic!("not an addition: {other:?}"),
        };
        let by = |origin| add(qualifier.clone(), time.clone(), input.clone(), origin);
        assert_eq!(micros(by(TimestampOrigin::ClientAutoGenerated)), 1_234_000);
        assert_eq!(micros(by(TimestampOrigin::Unspecified)), 1_234_567, "left for validation to refuse");
        let bad = [
            add(None, time.clone(), input.clone(), TimestampOrigin::Unspecified),
            add(Some(Kind::BytesValue("q".into())), time.clone(), input.clone(), TimestampOrigin::Unspecified),
            add(qualifier.clone(), None, input.clone(), TimestampOrigin::Unspecified),
            add(qualifier.clone(), Some(Kind::IntValue(1000)), input, TimestampOrigin::Unspecified),
            add(qualifier.clone(), time.clone(), None, TimestampOrigin::Unspecified),
            add(qualifier, time, Some(Kind::StringValue("5".into())), TimestampOrigin::Unspecified),
        ];
        for bad in bad {
            assert_eq!(bad.unwrap_err().reason, Reason::InvalidArgument);
        }
    }

    #[test]
    fn states_come_as_bytes_integers_or_nothing() {
        let state = |input| match merge(input) {
            Ok(Mutation::MergeToCell { state, .. }) => state,
            other => panic!("not a merge: {other:?}"),
        };
        let five = encode_state(5);
        assert_eq!(state(Some(value(Kind::BytesValue(five.clone())))), Some(five.clone()));
        assert_eq!(state(Some(value(Kind::RawValue(five.clone())))), Some(five.clone()));
        assert_eq!(state(Some(value(Kind::IntValue(5)))), Some(five));
        assert_eq!(state(Some(Value::default())), None);
        assert_eq!(state(None), None);
        assert_eq!(merge(Some(value(Kind::BoolValue(true)))).unwrap_err().reason, Reason::InvalidArgument);
    }

    #[test]
    fn rules_come_back() {
        let rule = |operation| Rule { family: "f".into(), qualifier: Bytes::from("q"), operation };
        for sent in
            [rule(Operation::Append(Bytes::new())), rule(Operation::Increment(-3)), rule(Operation::Increment(0))]
        {
            assert_eq!(rule_from_bytes(&rule_to_bytes(&sent)), Ok(sent));
        }
        assert_eq!(rule_from_bytes(&Bytes::new()).unwrap_err().reason, Reason::InvalidArgument);
    }
}
