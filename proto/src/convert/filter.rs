//! Filters of public requests.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::{Error, Filter, Micros, filter::FILTER_BYTES_MAX};
use prost::Message;

use super::unknown_fields;
use crate::data::{
    self,
    column_range::{EndQualifier, StartQualifier},
    row_filter::{self, Filter as Wire},
    value_range::{EndValue, StartValue},
};

/// Decodes and validates a `RowFilter`.
///
/// # Errors
/// `Unimplemented` when it has an unknown field, `InvalidArgument` when it is invalid.
pub fn filter_from_bytes(bytes: &Bytes) -> Result<Filter, Error> {
    check_filter_size(bytes)?;
    unknown_fields::check(&unknown_fields::ROW_FILTER, bytes)?;
    let message = data::RowFilter::decode(bytes.clone())
        .map_err(|error| Error::invalid(format!("row filter does not decode: {error}")))?;
    let filter = filter_from_proto(message)?;
    filter.validate()?;
    Ok(filter)
}

/// Checks the size of an encoded filter.
///
/// # Errors
/// `InvalidArgument` when it is too large.
pub fn check_filter_size(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() <= FILTER_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "Row filter exceeds maximum size: {} bytes, the limit is {FILTER_BYTES_MAX}",
        bytes.len()
    )))
}

/// The encoding of a filter.
pub fn filter_to_bytes(filter: &Filter) -> Bytes {
    filter_to_proto(filter).encode_to_vec().into()
}

/// The encoding of a chain of encoded filters, which are not decoded.
pub fn chain_to_bytes(filters: &[Bytes]) -> Bytes {
    /// The field `chain` of a filter and the field `filters` of a chain: number 1, with a length.
    const FIELD: u8 = 1 << 3 | 2;
    let with_field = |out: &mut Vec<u8>, content: &[u8]| {
        out.push(FIELD);
        prost::encoding::encode_varint(content.len() as u64, out);
        out.extend_from_slice(content);
    };
    let (mut members, mut chain) = (Vec::new(), Vec::new());
    filters.iter().for_each(|filter| with_field(&mut members, filter));
    with_field(&mut chain, &members);
    chain.into()
}

/// The filter of a decoded message. Decoding drops unknown fields: for requests of clients use [`filter_from_bytes`].
///
/// # Errors
/// `InvalidArgument` when a flag is false or a condition has no predicate. The rest is left to `Filter::validate`.
pub fn filter_from_proto(message: data::RowFilter) -> Result<Filter, Error> {
    let Some(filter) = message.filter else { return Ok(Filter::PassAll) };
    Ok(match filter {
        Wire::Chain(chain) => Filter::Chain(members(chain.filters)?),
        Wire::Interleave(interleave) => Filter::Interleave(members(interleave.filters)?),
        Wire::Condition(condition) => condition_from_proto(*condition)?,
        Wire::Sink(set) => flag(set, "sink", Filter::Sink)?,
        Wire::PassAllFilter(set) => flag(set, "pass_all_filter", Filter::PassAll)?,
        Wire::BlockAllFilter(set) => flag(set, "block_all_filter", Filter::BlockAll)?,
        Wire::RowKeyRegexFilter(pattern) => Filter::RowKeyRegex(pattern),
        Wire::RowSampleFilter(share) => Filter::RowSample(share),
        Wire::FamilyNameRegexFilter(pattern) => Filter::FamilyNameRegex(pattern.into()),
        Wire::ColumnQualifierRegexFilter(pattern) => Filter::ColumnQualifierRegex(pattern),
        Wire::ColumnRangeFilter(range) => column_range_from_proto(range),
        Wire::TimestampRangeFilter(range) => timestamp_range_from_proto(range),
        Wire::ValueRegexFilter(pattern) => Filter::ValueRegex(pattern),
        Wire::ValueRangeFilter(range) => value_range_from_proto(range),
        Wire::CellsPerRowOffsetFilter(count) => Filter::CellsPerRowOffset(count),
        Wire::CellsPerRowLimitFilter(count) => Filter::CellsPerRowLimit(count),
        Wire::CellsPerColumnLimitFilter(count) => Filter::CellsPerColumnLimit(count),
        Wire::StripValueTransformer(set) => flag(set, "strip_value_transformer", Filter::StripValue)?,
        Wire::ApplyLabelTransformer(label) => Filter::ApplyLabel(label),
        Wire::ValueBitmaskFilter(bitmask) => Filter::ValueBitmask(bitmask.mask),
    })
}

/// The message of a filter.
pub fn filter_to_proto(filter: &Filter) -> data::RowFilter {
    let members = |members: &[Filter]| members.iter().map(filter_to_proto).collect();
    let filter = match filter {
        Filter::PassAll => Wire::PassAllFilter(true),
        Filter::BlockAll => Wire::BlockAllFilter(true),
        Filter::Chain(filters) => Wire::Chain(row_filter::Chain { filters: members(filters) }),
        Filter::Interleave(filters) => Wire::Interleave(row_filter::Interleave { filters: members(filters) }),
        Filter::Condition { predicate, then, otherwise } => Wire::Condition(Box::new(row_filter::Condition {
            predicate_filter: Some(Box::new(filter_to_proto(predicate))),
            true_filter: then.as_deref().map(filter_to_proto).map(Box::new),
            false_filter: otherwise.as_deref().map(filter_to_proto).map(Box::new),
        })),
        Filter::Sink => Wire::Sink(true),
        Filter::RowKeyRegex(pattern) => Wire::RowKeyRegexFilter(pattern.clone()),
        Filter::RowSample(share) => Wire::RowSampleFilter(*share),
        // The message has a string. A pattern with non-ASCII raw bytes cannot come from one.
        Filter::FamilyNameRegex(pattern) => Wire::FamilyNameRegexFilter(String::from_utf8_lossy(pattern).into_owned()),
        Filter::ColumnQualifierRegex(pattern) => Wire::ColumnQualifierRegexFilter(pattern.clone()),
        Filter::ColumnRange { family, start, end } => Wire::ColumnRangeFilter(data::ColumnRange {
            family_name: family.clone(),
            start_qualifier: either(start, StartQualifier::StartQualifierClosed, StartQualifier::StartQualifierOpen),
            end_qualifier: either(end, EndQualifier::EndQualifierClosed, EndQualifier::EndQualifierOpen),
        }),
        Filter::TimestampRange { start, end } => Wire::TimestampRangeFilter(data::TimestampRange {
            start_timestamp_micros: start.get(),
            end_timestamp_micros: end.map_or(0, Micros::get),
        }),
        Filter::ValueRegex(pattern) => Wire::ValueRegexFilter(pattern.clone()),
        Filter::ValueRange { start, end } => Wire::ValueRangeFilter(data::ValueRange {
            start_value: either(start, StartValue::StartValueClosed, StartValue::StartValueOpen),
            end_value: either(end, EndValue::EndValueClosed, EndValue::EndValueOpen),
        }),
        Filter::ValueBitmask(mask) => Wire::ValueBitmaskFilter(data::ValueBitmask { mask: mask.clone() }),
        Filter::CellsPerRowOffset(count) => Wire::CellsPerRowOffsetFilter(*count),
        Filter::CellsPerRowLimit(count) => Wire::CellsPerRowLimitFilter(*count),
        Filter::CellsPerColumnLimit(count) => Wire::CellsPerColumnLimitFilter(*count),
        Filter::StripValue => Wire::StripValueTransformer(true),
        Filter::ApplyLabel(label) => Wire::ApplyLabelTransformer(label.clone()),
    };
    data::RowFilter { filter: Some(filter) }
}

fn members(filters: Vec<data::RowFilter>) -> Result<Vec<Filter>, Error> {
    filters.into_iter().map(filter_from_proto).collect()
}

/// A flag selects its filter; `false` is invalid.
fn flag(set: bool, name: &str, filter: Filter) -> Result<Filter, Error> {
    if set { Ok(filter) } else { Err(Error::invalid(format!("{name} must be true if set"))) }
}

fn condition_from_proto(condition: row_filter::Condition) -> Result<Filter, Error> {
    let branch = |filter: Option<Box<data::RowFilter>>| -> Result<_, Error> {
        filter.map(|filter| filter_from_proto(*filter)).transpose().map(|filter| filter.map(Box::new))
    };
    Ok(Filter::Condition {
        predicate: branch(condition.predicate_filter)?
            .ok_or_else(|| Error::invalid("Condition must have a predicate filter"))?,
        then: branch(condition.true_filter)?,
        otherwise: branch(condition.false_filter)?,
    })
}

fn column_range_from_proto(range: data::ColumnRange) -> Filter {
    Filter::ColumnRange {
        family: range.family_name,
        start: match range.start_qualifier {
            None => Bound::Unbounded,
            Some(StartQualifier::StartQualifierClosed(key)) => Bound::Included(key),
            Some(StartQualifier::StartQualifierOpen(key)) => Bound::Excluded(key),
        },
        end: match range.end_qualifier {
            None => Bound::Unbounded,
            Some(EndQualifier::EndQualifierClosed(key)) => Bound::Included(key),
            Some(EndQualifier::EndQualifierOpen(key)) => Bound::Excluded(key),
        },
    }
}

fn value_range_from_proto(range: data::ValueRange) -> Filter {
    Filter::ValueRange {
        start: match range.start_value {
            None => Bound::Unbounded,
            Some(StartValue::StartValueClosed(value)) => Bound::Included(value),
            Some(StartValue::StartValueOpen(value)) => Bound::Excluded(value),
        },
        end: match range.end_value {
            None => Bound::Unbounded,
            Some(EndValue::EndValueClosed(value)) => Bound::Included(value),
            Some(EndValue::EndValueOpen(value)) => Bound::Excluded(value),
        },
    }
}

fn timestamp_range_from_proto(range: data::TimestampRange) -> Filter {
    Filter::TimestampRange {
        start: Micros::new(range.start_timestamp_micros),
        end: open_end(range.end_timestamp_micros),
    }
}

/// An end of 0 means unbounded.
pub(super) const fn open_end(micros: i64) -> Option<Micros> {
    if micros == 0 { None } else { Some(Micros::new(micros)) }
}

fn either<T>(bound: &Bound<Bytes>, closed: fn(Bytes) -> T, open: fn(Bytes) -> T) -> Option<T> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(closed(key.clone())),
        Bound::Excluded(key) => Some(open(key.clone())),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::Reason;

    use super::*;

    fn refusal(message: data::RowFilter) -> Reason {
        filter_from_bytes(&Bytes::from(message.encode_to_vec())).unwrap_err().reason
    }

    fn wire(filter: Wire) -> data::RowFilter {
        data::RowFilter { filter: Some(filter) }
    }

    #[test]
    fn every_filter_comes_back() {
        let key = |key: &'static str| Bytes::from(key);
        let leaves = vec![
            Filter::PassAll,
            Filter::BlockAll,
            Filter::RowKeyRegex(key("com\\..*")),
            Filter::RowSample(0.25),
            Filter::FamilyNameRegex(key("anchor")),
            Filter::ColumnQualifierRegex(Bytes::from_static(b"\x00\xff")),
            Filter::ColumnRange {
                family: "anchor".into(),
                start: Bound::Included(key("a")),
                end: Bound::Excluded(key("m")),
            },
            Filter::ColumnRange { family: "anchor".into(), start: Bound::Excluded(key("")), end: Bound::Unbounded },
            Filter::TimestampRange { start: Micros::new(1000), end: None },
            Filter::TimestampRange { start: Micros::ZERO, end: Some(Micros::new(5000)) },
            Filter::ValueRegex(key("")),
            Filter::ValueRange { start: Bound::Unbounded, end: Bound::Included(key("z")) },
            Filter::ValueBitmask(key("\x01")),
            Filter::CellsPerRowOffset(0),
            Filter::CellsPerRowLimit(3),
            Filter::CellsPerColumnLimit(1),
            Filter::StripValue,
            Filter::ApplyLabel("seen".into()),
        ];
        let condition = Filter::Condition {
            predicate: Box::new(Filter::PassAll),
            then: None,
            otherwise: Some(Box::new(Filter::Interleave(leaves.clone()))),
        };
        let chain = Filter::Chain(vec![condition.clone(), Filter::Sink]);
        for sent in leaves.into_iter().chain([condition, Filter::Sink, chain]) {
            assert_eq!(filter_from_bytes(&filter_to_bytes(&sent)), Ok(sent));
        }
    }

    #[test]
    fn an_empty_message_passes_everything() {
        assert_eq!(filter_from_bytes(&Bytes::new()), Ok(Filter::PassAll));
    }

    #[test]
    fn flags_must_be_true() {
        for filter in [
            Wire::PassAllFilter(false),
            Wire::BlockAllFilter(false),
            Wire::StripValueTransformer(false),
            Wire::Sink(false),
        ] {
            assert_eq!(refusal(wire(filter)), Reason::InvalidArgument);
        }
    }

    #[test]
    fn a_condition_needs_a_predicate() {
        assert_eq!(refusal(wire(Wire::Condition(Box::default()))), Reason::InvalidArgument);
    }

    #[test]
    fn size_and_depth_are_limited() {
        let large = Filter::RowKeyRegex(vec![b'a'; FILTER_BYTES_MAX].into());
        assert_eq!(refusal(filter_to_proto(&large)), Reason::InvalidArgument);
        let mut deep = Filter::PassAll;
        for _ in 0..20 {
            deep = Filter::Chain(vec![deep, Filter::PassAll]);
        }
        assert_eq!(refusal(filter_to_proto(&deep)), Reason::InvalidArgument);
    }

    #[test]
    fn a_filter_of_the_largest_size_is_taken() {
        let of_pattern = |length| filter_to_bytes(&Filter::ValueRegex(vec![b'a'; length].into()));
        let overhead = of_pattern(FILTER_BYTES_MAX).len() - FILTER_BYTES_MAX;
        let largest = of_pattern(FILTER_BYTES_MAX - overhead);
        assert_eq!(largest.len(), FILTER_BYTES_MAX);
        assert!(filter_from_bytes(&largest).is_ok());
        let error = filter_from_bytes(&of_pattern(FILTER_BYTES_MAX - overhead + 1)).unwrap_err();
        assert!(error.message.starts_with("Row filter exceeds maximum size"), "{error}");
    }

    #[test]
    fn nesting_beyond_any_decoder_is_refused() {
        // Encoded from the inside out, because encoders are recursive.
        let mut deep = filter_to_bytes(&Filter::PassAll).to_vec();
        for _ in 0..2000 {
            let chain = field(1, &field(1, &deep));
            if chain.len() > FILTER_BYTES_MAX {
                break;
            }
            deep = chain;
        }
        let error = filter_from_bytes(&Bytes::from(deep)).unwrap_err();
        assert_eq!(error.reason, Reason::InvalidArgument);
        assert!(error.message.contains("nested too deeply"), "{error}");
    }

    /// A field that holds a message.
    fn field(tag: u8, inside: &[u8]) -> Vec<u8> {
        let mut out = vec![tag << 3 | 2];
        prost::encoding::encode_varint(inside.len() as u64, &mut out);
        out.extend(inside);
        out
    }

    #[test]
    fn an_unset_member_passes_everything() {
        let chain = row_filter::Chain { filters: vec![data::RowFilter::default(), wire(Wire::BlockAllFilter(true))] };
        let taken = filter_from_bytes(&Bytes::from(wire(Wire::Chain(chain)).encode_to_vec()));
        assert_eq!(taken, Ok(Filter::Chain(vec![Filter::PassAll, Filter::BlockAll])));
    }

    #[test]
    fn a_time_of_zero_is_an_open_end() {
        let range = data::TimestampRange { start_timestamp_micros: 5000, end_timestamp_micros: 0 };
        let taken = filter_from_bytes(&Bytes::from(wire(Wire::TimestampRangeFilter(range)).encode_to_vec()));
        assert_eq!(taken, Ok(Filter::TimestampRange { start: Micros::new(5000), end: None }));
        for (start, end) in [(5001, 0), (0, 1), (5000, 4000), (-1000, 0), (0, -1000)] {
            let range = data::TimestampRange { start_timestamp_micros: start, end_timestamp_micros: end };
            assert_eq!(refusal(wire(Wire::TimestampRangeFilter(range))), Reason::InvalidArgument, "[{start}, {end})");
        }
    }

    #[test]
    fn an_unknown_filter_is_refused() {
        // RowFilter { field 21: true }
        let error = filter_from_bytes(&Bytes::from_static(&[0xa8, 0x01, 0x01])).unwrap_err();
        assert_eq!(error.reason, Reason::Unimplemented);
        assert!(error.message.contains("field 21"), "{error}");
    }
}
