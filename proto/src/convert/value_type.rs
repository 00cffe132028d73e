//! Types of column families in the public admin API: aggregator and input type.

use ebla_model::{Aggregator, Error, aggregate::InputType};

use crate::admin::{
    Type,
    r#type::{
        Aggregate, Bytes, Int64, Kind, String as Text,
        aggregate::{Aggregator as Wire, HyperLogLogPlusPlusUniqueCount, Max, Min, Sum},
        bytes, int64, string,
    },
};

/// The aggregator of a family of this type. An empty type means a plain family. The state type follows from the rest and is
/// ignored in requests, as the API specifies.
///
/// # Errors
/// `InvalidArgument` for a type that is not an aggregate, without an aggregator, or with an unsupported input type.
pub fn value_type_from_admin(value_type: &Type) -> Result<Option<Aggregator>, Error> {
    let aggregate = match &value_type.kind {
        None => return Ok(None),
        Some(Kind::AggregateType(aggregate)) => aggregate,
        Some(_) => return Err(Error::invalid("the value_type of a column family must be an aggregate, or not set")),
    };
    let input = aggregate.input_type.as_deref();
    let of_integers = |aggregator: Aggregator| match input.and_then(input_type) {
        Some(InputType::Int64) => Ok(Some(aggregator)),
        _ => Err(Error::invalid(format!(
            "the input_type of a {aggregator} must be int64_type with the encoding big_endian_bytes"
        ))),
    };
    match aggregate.aggregator {
        Some(Wire::Sum(_)) => of_integers(Aggregator::Sum),
        Some(Wire::Min(_)) => of_integers(Aggregator::Min),
        Some(Wire::Max(_)) => of_integers(Aggregator::Max),
        Some(Wire::HllppUniqueCount(_)) => match input.map_or(Some(InputType::Bytes), input_type) {
            Some(input) => Ok(Some(Aggregator::UniqueCount(input))),
            None => Err(Error::invalid(
                "the input_type of a hllpp_unique_count must be int64_type with the encoding big_endian_bytes, bytes_type, \
                 string_type, or not set",
            )),
        },
        None => Err(Error::invalid("an aggregate requires an aggregator: sum, min, max or hllpp_unique_count")),
    }
}

/// The input type, if supported. Clients omit an encoding when there is only one; an empty type means bytes.
fn input_type(input: &Type) -> Option<InputType> {
    match &input.kind {
        None | Some(Kind::BytesType(_)) => Some(InputType::Bytes),
        Some(Kind::StringType(_)) => Some(InputType::String),
        Some(Kind::Int64Type(integer)) => match integer.encoding.and_then(|encoding| encoding.encoding) {
            None | Some(int64::encoding::Encoding::BigEndianBytes(_)) => Some(InputType::Int64),
            Some(int64::encoding::Encoding::OrderedCodeBytes(_)) => None,
        },
        Some(_) => None,
    }
}

/// A value type as a message, with its state type.
pub(super) fn value_type_to_admin(aggregator: Aggregator) -> Type {
    let (input, state, aggregator) = match aggregator {
        Aggregator::Sum => (integer(), integer(), Wire::Sum(Sum {})),
        Aggregator::Min => (integer(), integer(), Wire::Min(Min {})),
        Aggregator::Max => (integer(), integer(), Wire::Max(Max {})),
        Aggregator::UniqueCount(input) => {
            let input = match input {
                InputType::Int64 => integer(),
                InputType::Bytes => raw_bytes(),
                InputType::String => text(),
            };
            (input, raw_bytes(), Wire::HllppUniqueCount(HyperLogLogPlusPlusUniqueCount {}))
        }
    };
    let (input_type, state_type) = (Some(Box::new(input)), Some(Box::new(state)));
    let aggregate = Aggregate { input_type, state_type, aggregator: Some(aggregator) };
    Type { kind: Some(Kind::AggregateType(Box::new(aggregate))) }
}

fn integer() -> Type {
    let big_endian = int64::encoding::Encoding::BigEndianBytes(int64::encoding::BigEndianBytes::default());
    let encoding = Some(int64::Encoding { encoding: Some(big_endian) });
    Type { kind: Some(Kind::Int64Type(Int64 { encoding })) }
}

fn raw_bytes() -> Type {
    let raw = bytes::encoding::Encoding::Raw(bytes::encoding::Raw {});
    Type { kind: Some(Kind::BytesType(Bytes { encoding: Some(bytes::Encoding { encoding: Some(raw) }) })) }
}

fn text() -> Type {
    let utf8 = string::encoding::Encoding::Utf8Bytes(string::encoding::Utf8Bytes {});
    Type { kind: Some(Kind::StringType(Text { encoding: Some(string::Encoding { encoding: Some(utf8) }) })) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::r#type::Bool;

    const COUNT: Wire = Wire::HllppUniqueCount(HyperLogLogPlusPlusUniqueCount {});

    fn aggregate(input_type: Option<Type>, aggregator: Option<Wire>) -> Type {
        let aggregate = Aggregate { input_type: input_type.map(Box::new), state_type: None, aggregator };
        Type { kind: Some(Kind::AggregateType(Box::new(aggregate))) }
    }

    fn typed(kind: Kind) -> Option<Type> {
        Some(Type { kind: Some(kind) })
    }

    fn bare_integer() -> Option<Type> {
        typed(Kind::Int64Type(Int64 { encoding: None }))
    }

    fn ordered() -> Option<Type> {
        let ordered = int64::encoding::Encoding::OrderedCodeBytes(Default::default());
        typed(Kind::Int64Type(Int64 { encoding: Some(int64::Encoding { encoding: Some(ordered) }) }))
    }

    #[test]
    fn value_types_come_back() {
        let inputs = [InputType::Int64, InputType::Bytes, InputType::String];
        let all = [Aggregator::Sum, Aggregator::Min, Aggregator::Max].into_iter();
        for aggregator in all.chain(inputs.map(Aggregator::UniqueCount)) {
            assert_eq!(value_type_from_admin(&value_type_to_admin(aggregator)), Ok(Some(aggregator)));
        }
        assert_eq!(value_type_from_admin(&Type::default()), Ok(None));
    }

    /// The types of cbt's `intsum` and `inthll`, Java's `Type.int64Hll()` and of a request without an input type.
    #[test]
    fn what_clients_leave_out_is_filled_in() {
        let counts = |input| value_type_from_admin(&aggregate(input, Some(COUNT))).unwrap().unwrap();
        let sum = value_type_from_admin(&aggregate(bare_integer(), Some(Wire::Sum(Sum {}))));
        assert_eq!(sum, Ok(Some(Aggregator::Sum)));
        assert_eq!(counts(bare_integer()), Aggregator::UniqueCount(InputType::Int64));
        assert_eq!(counts(Some(integer())), Aggregator::UniqueCount(InputType::Int64));
        for bytes in [None, Some(Type::default()), typed(Kind::BytesType(Bytes::default()))] {
            assert_eq!(counts(bytes), Aggregator::UniqueCount(InputType::Bytes));
        }
        assert_eq!(counts(typed(Kind::StringType(Text::default()))), Aggregator::UniqueCount(InputType::String));
    }

    #[test]
    fn the_state_of_a_count_is_shown_as_bytes() {
        let Some(Kind::AggregateType(shown)) = value_type_to_admin(Aggregator::UniqueCount(InputType::Int64)).kind
        else {
            panic!("not an aggregate");
        };
        assert_eq!(shown.input_type.as_deref(), Some(&integer()));
        assert_eq!(shown.state_type.as_deref(), Some(&raw_bytes()));
    }

    #[test]
    fn value_types_that_are_not_served_are_refused_by_name() {
        let sum = Some(Wire::Sum(Sum {}));
        let refused = [
            Type { kind: Some(Kind::BoolType(Bool {})) },
            aggregate(None, sum),
            aggregate(Some(Type::default()), sum),
            aggregate(typed(Kind::BoolType(Bool {})), sum),
            aggregate(Some(raw_bytes()), sum),
            aggregate(ordered(), sum),
            aggregate(bare_integer(), None),
            aggregate(ordered(), Some(COUNT)),
            aggregate(typed(Kind::BoolType(Bool {})), Some(COUNT)),
        ];
        for value_type in refused {
            assert_eq!(value_type_from_admin(&value_type).unwrap_err().reason, ebla_model::Reason::InvalidArgument);
        }
        let error = value_type_from_admin(&aggregate(ordered(), Some(COUNT))).unwrap_err();
        assert!(error.message.contains("hllpp_unique_count"), "{error}");
    }
}
