//! Each hand-written message against the published one: each decodes the other's encoding to the same message.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;

use super::*;
use crate::admin::rpc;

/// Asserts that `ours` and `theirs` have the same encoding.
fn same<O, T>(ours: &O, theirs: &T)
where
    O: Message + Default + PartialEq + Debug,
    T: Message + Default + PartialEq + Debug,
{
    let (our_bytes, their_bytes) = (ours.encode_to_vec(), theirs.encode_to_vec());
    assert_eq!(&O::decode(their_bytes.as_slice()).unwrap(), ours, "we read theirs");
    assert_eq!(&T::decode(our_bytes.as_slice()).unwrap(), theirs, "they read ours");
    assert_eq!(our_bytes.len(), their_bytes.len(), "nothing is left over on either side");
}

fn key(text: &'static str) -> Bytes {
    Bytes::from(text)
}

fn idempotency() -> Option<Idempotency> {
    Some(Idempotency { token: key("12345678"), start_time: Some(prost_types::Timestamp { seconds: 5, nanos: 6 }) })
}

#[test]
fn rows_and_ranges() {
    let cell = |labels: &[&str]| (7, key("value"), labels.iter().map(ToString::to_string).collect::<Vec<_>>());
    let (timestamp_micros, value, labels) = cell(&["a", "b"]);
    same(
        &Row {
            key: key("k"),
            families: vec![Family {
                name: "f".into(),
                columns: vec![Column {
                    qualifier: key("q"),
                    cells: vec![Cell { timestamp_micros, value: value.clone(), labels: labels.clone() }],
                }],
            }],
        },
        &published::Row {
            key: key("k"),
            families: vec![published::Family {
                name: "f".into(),
                columns: vec![published::Column {
                    qualifier: key("q"),
                    cells: vec![published::Cell { timestamp_micros, value, labels }],
                }],
            }],
        },
    );

    use published::row_range as theirs;
    let ranges = [
        (row_range::StartKey::StartKeyClosed(key("a")), theirs::StartKey::StartKeyClosed(key("a"))),
        (row_range::StartKey::StartKeyOpen(key("b")), theirs::StartKey::StartKeyOpen(key("b"))),
    ];
    let ends = [
        (row_range::EndKey::EndKeyClosed(key("c")), theirs::EndKey::EndKeyClosed(key("c"))),
        (row_range::EndKey::EndKeyOpen(key("d")), theirs::EndKey::EndKeyOpen(key("d"))),
    ];
    for ((our_start, their_start), (our_end, their_end)) in ranges.into_iter().zip(ends) {
        same(
            &RowSet {
                row_keys: vec![key("x"), key("")],
                row_ranges: vec![RowRange { start_key: Some(our_start), end_key: Some(our_end) }],
            },
            &published::RowSet {
                row_keys: vec![key("x"), key("")],
                row_ranges: vec![published::RowRange { start_key: Some(their_start), end_key: Some(their_end) }],
            },
        );
    }
}

#[test]
fn filters() {
    use published::{column_range as cr, row_filter::Filter as Theirs, value_range as vr};
    use row_filter::Filter as Ours;

    fn pair(ours: Ours, theirs: Theirs) -> (RowFilter, published::RowFilter) {
        (RowFilter { filter: Some(ours) }, published::RowFilter { filter: Some(theirs) })
    }
    let column_range = |closed| {
        let (ours, theirs) = if closed {
            (
                (
                    column_range::StartQualifier::StartQualifierClosed(key("a")),
                    column_range::EndQualifier::EndQualifierClosed(key("b")),
                ),
                (cr::StartQualifier::StartQualifierClosed(key("a")), cr::EndQualifier::EndQualifierClosed(key("b"))),
            )
        } else {
            (
                (
                    column_range::StartQualifier::StartQualifierOpen(key("a")),
                    column_range::EndQualifier::EndQualifierOpen(key("b")),
                ),
                (cr::StartQualifier::StartQualifierOpen(key("a")), cr::EndQualifier::EndQualifierOpen(key("b"))),
            )
        };
        pair(
            Ours::ColumnRangeFilter(ColumnRange {
                family_name: "f".into(),
                start_qualifier: Some(ours.0),
                end_qualifier: Some(ours.1),
            }),
            Theirs::ColumnRangeFilter(published::ColumnRange {
                family_name: "f".into(),
                start_qualifier: Some(theirs.0),
                end_qualifier: Some(theirs.1),
            }),
        )
    };
    let value_range = |closed| {
        let (ours, theirs) = if closed {
            (
                (value_range::StartValue::StartValueClosed(key("a")), value_range::EndValue::EndValueClosed(key("b"))),
                (vr::StartValue::StartValueClosed(key("a")), vr::EndValue::EndValueClosed(key("b"))),
            )
        } else {
            (
                (value_range::StartValue::StartValueOpen(key("a")), value_range::EndValue::EndValueOpen(key("b"))),
                (vr::StartValue::StartValueOpen(key("a")), vr::EndValue::EndValueOpen(key("b"))),
            )
        };
        pair(
            Ours::ValueRangeFilter(ValueRange { start_value: Some(ours.0), end_value: Some(ours.1) }),
            Theirs::ValueRangeFilter(published::ValueRange { start_value: Some(theirs.0), end_value: Some(theirs.1) }),
        )
    };
    let leaves = vec![
        pair(Ours::Sink(true), Theirs::Sink(true)),
        pair(Ours::PassAllFilter(true), Theirs::PassAllFilter(true)),
        pair(Ours::BlockAllFilter(false), Theirs::BlockAllFilter(false)),
        pair(Ours::RowKeyRegexFilter(key("r")), Theirs::RowKeyRegexFilter(key("r"))),
        pair(Ours::RowSampleFilter(0.5), Theirs::RowSampleFilter(0.5)),
        pair(Ours::FamilyNameRegexFilter("f".into()), Theirs::FamilyNameRegexFilter("f".into())),
        pair(Ours::ColumnQualifierRegexFilter(key("c")), Theirs::ColumnQualifierRegexFilter(key("c"))),
        column_range(true),
        column_range(false),
        pair(
            Ours::TimestampRangeFilter(TimestampRange { start_timestamp_micros: 1, end_timestamp_micros: 2 }),
            Theirs::TimestampRangeFilter(published::TimestampRange {
                start_timestamp_micros: 1,
                end_timestamp_micros: 2,
            }),
        ),
        pair(Ours::ValueRegexFilter(key("v")), Theirs::ValueRegexFilter(key("v"))),
        value_range(true),
        value_range(false),
        pair(Ours::CellsPerRowOffsetFilter(1), Theirs::CellsPerRowOffsetFilter(1)),
        pair(Ours::CellsPerRowLimitFilter(2), Theirs::CellsPerRowLimitFilter(2)),
        pair(Ours::CellsPerColumnLimitFilter(-3), Theirs::CellsPerColumnLimitFilter(-3)),
        pair(Ours::StripValueTransformer(true), Theirs::StripValueTransformer(true)),
        pair(Ours::ApplyLabelTransformer("l".into()), Theirs::ApplyLabelTransformer("l".into())),
    ];
    for (ours, theirs) in &leaves {
        same(ours, theirs);
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = leaves.into_iter().unzip();
    let (chain, their_chain) = pair(
        Ours::Chain(row_filter::Chain { filters: ours.clone() }),
        Theirs::Chain(published::row_filter::Chain { filters: theirs.clone() }),
    );
    same(&chain, &their_chain);
    let (interleave, their_interleave) = pair(
        Ours::Interleave(row_filter::Interleave { filters: ours }),
        Theirs::Interleave(published::row_filter::Interleave { filters: theirs }),
    );
    same(&interleave, &their_interleave);
    let (condition, their_condition) = pair(
        Ours::Condition(Box::new(row_filter::Condition {
            predicate_filter: Some(Box::new(chain)),
            true_filter: Some(Box::new(interleave)),
            false_filter: Some(Box::default()),
        })),
        Theirs::Condition(Box::new(published::row_filter::Condition {
            predicate_filter: Some(Box::new(their_chain)),
            true_filter: Some(Box::new(their_interleave)),
            false_filter: Some(Box::default()),
        })),
    );
    same(&condition, &their_condition);
}

#[test]
fn mutations_and_rules() {
    use mutation::Mutation as Ours;
    use published::mutation::{self as theirs, Mutation as Theirs};

    let aggregate = published::Value { kind: Some(published::value::Kind::IntValue(4)), ..Default::default() };
    let add = theirs::AddToCell {
        family_name: "f".into(),
        column_qualifier: Some(aggregate.clone()),
        timestamp: None,
        input: Some(aggregate.clone()),
    };
    let merge = theirs::MergeToCell { family_name: "f".into(), input: Some(aggregate), ..Default::default() };
    let pairs = [
        (
            Ours::SetCell(mutation::SetCell {
                family_name: "f".into(),
                column_qualifier: key("q"),
                timestamp_micros: -1,
                value: key("v"),
            }),
            Theirs::SetCell(theirs::SetCell {
                family_name: "f".into(),
                column_qualifier: key("q"),
                timestamp_micros: -1,
                value: key("v"),
            }),
        ),
        (Ours::AddToCell(add.clone()), Theirs::AddToCell(add)),
        (Ours::MergeToCell(merge.clone()), Theirs::MergeToCell(merge)),
        (
            Ours::DeleteFromColumn(mutation::DeleteFromColumn {
                family_name: "f".into(),
                column_qualifier: key("q"),
                time_range: Some(TimestampRange { start_timestamp_micros: 3, end_timestamp_micros: 4 }),
            }),
            Theirs::DeleteFromColumn(theirs::DeleteFromColumn {
                family_name: "f".into(),
                column_qualifier: key("q"),
                time_range: Some(published::TimestampRange { start_timestamp_micros: 3, end_timestamp_micros: 4 }),
            }),
        ),
        (
            Ours::DeleteFromFamily(mutation::DeleteFromFamily { family_name: "f".into() }),
            Theirs::DeleteFromFamily(theirs::DeleteFromFamily { family_name: "f".into() }),
        ),
        (Ours::DeleteFromRow(mutation::DeleteFromRow {}), Theirs::DeleteFromRow(theirs::DeleteFromRow {})),
    ];
    for (ours, theirs) in pairs {
        same(&Mutation { mutation: Some(ours), timestamp_origin: 0 }, &published::Mutation { mutation: Some(theirs) });
    }

    use published::read_modify_write_rule::Rule as TheirRule;
    use read_modify_write_rule::Rule;
    let rules = [
        (Rule::AppendValue(key("a")), TheirRule::AppendValue(key("a"))),
        (Rule::IncrementAmount(-9), TheirRule::IncrementAmount(-9)),
    ];
    for (ours, theirs) in rules {
        same(
            &ReadModifyWriteRule { family_name: "f".into(), column_qualifier: key("q"), rule: Some(ours) },
            &published::ReadModifyWriteRule { family_name: "f".into(), column_qualifier: key("q"), rule: Some(theirs) },
        );
    }
}

#[test]
fn reads() {
    let filter = published::RowFilter { filter: Some(published::row_filter::Filter::PassAllFilter(true)) };
    same(
        &ReadRowsRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            materialized_view_name: "m".into(),
            app_profile_id: "p".into(),
            rows: Some(RowSet { row_keys: vec![key("k")], row_ranges: Vec::new() }),
            filter: Some(filter.encode_to_vec().into()),
            rows_limit: 5,
            request_stats_view: 2,
            reversed: true,
        },
        &published::ReadRowsRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            materialized_view_name: "m".into(),
            app_profile_id: "p".into(),
            rows: Some(published::RowSet { row_keys: vec![key("k")], row_ranges: Vec::new() }),
            filter: Some(filter),
            rows_limit: 5,
            request_stats_view: 2,
            reversed: true,
        },
    );

    use published::read_rows_response as theirs;
    use read_rows_response as ours;
    let stats = Some(RequestStats {
        stats_view: Some(request_stats::StatsView::FullReadStatsView(FullReadStatsView {
            read_iteration_stats: Some(ReadIterationStats { rows_seen_count: 4, ..Default::default() }),
            request_latency_stats: Some(RequestLatencyStats::default()),
        })),
    });
    let statuses = [
        (ours::cell_chunk::RowStatus::CommitRow(true), theirs::cell_chunk::RowStatus::CommitRow(true)),
        (ours::cell_chunk::RowStatus::ResetRow(true), theirs::cell_chunk::RowStatus::ResetRow(true)),
    ];
    for (our_status, their_status) in statuses {
        same(
            &ReadRowsResponse {
                chunks: vec![
                    ours::CellChunk {
                        row_key: key("k"),
                        family_name: Some(ours::StringValue { value: "f".into() }),
                        qualifier: Some(ours::BytesValue { value: key("") }),
                        timestamp_micros: 9,
                        labels: vec!["l".into()],
                        value: key("v"),
                        value_size: 3,
                        row_status: Some(our_status),
                    },
                    ours::CellChunk::default(),
                ],
                last_scanned_row_key: key("z"),
                request_stats: stats,
            },
            &published::ReadRowsResponse {
                chunks: vec![
                    theirs::CellChunk {
                        row_key: key("k"),
                        family_name: Some("f".into()),
                        qualifier: Some(Vec::new()),
                        timestamp_micros: 9,
                        labels: vec!["l".into()],
                        value: key("v"),
                        value_size: 3,
                        row_status: Some(their_status),
                    },
                    theirs::CellChunk::default(),
                ],
                last_scanned_row_key: key("z"),
                request_stats: stats,
            },
        );
    }

    same(
        &SampleRowKeysRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            materialized_view_name: "m".into(),
            app_profile_id: "p".into(),
            row_range: None,
        },
        &published::SampleRowKeysRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            materialized_view_name: "m".into(),
            app_profile_id: "p".into(),
        },
    );
    same(
        &SampleRowKeysResponse { row_key: key("k"), offset_bytes: 8 },
        &published::SampleRowKeysResponse { row_key: key("k"), offset_bytes: 8 },
    );
}

/// Any published mutation, and its encoding.
fn some_mutation() -> (published::Mutation, Bytes) {
    let delete = published::mutation::DeleteFromFamily { family_name: "f".into() };
    let mutation = published::Mutation { mutation: Some(published::mutation::Mutation::DeleteFromFamily(delete)) };
    let bytes = mutation.encode_to_vec().into();
    (mutation, bytes)
}

#[test]
fn writes() {
    let (mutation, bytes) = some_mutation();
    same(
        &MutateRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            mutations: vec![bytes.clone(), Bytes::new()],
            idempotency: idempotency(),
        },
        &published::MutateRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            mutations: vec![mutation.clone(), published::Mutation::default()],
            idempotency: idempotency(),
        },
    );
    same(
        &MutateRowsRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            entries: vec![mutate_rows_request::Entry {
                row_key: key("k"),
                mutations: vec![bytes],
                idempotency: idempotency(),
            }],
        },
        &published::MutateRowsRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            entries: vec![published::mutate_rows_request::Entry {
                row_key: key("k"),
                mutations: vec![mutation],
                idempotency: idempotency(),
            }],
        },
    );
    let status = Some(rpc::Status { code: 5, message: "no".into(), details: Vec::new() });
    let rate_limit_info = Some(RateLimitInfo { period: None, factor: 0.5 });
    same(
        &MutateRowsResponse {
            entries: vec![mutate_rows_response::Entry { index: 3, status: status.clone() }],
            rate_limit_info,
        },
        &published::MutateRowsResponse {
            entries: vec![published::mutate_rows_response::Entry { index: 3, status }],
            rate_limit_info,
        },
    );
    same(&MutateRowResponse {}, &published::MutateRowResponse {});
}

#[test]
fn conditional_writes() {
    let (mutation, bytes) = some_mutation();
    let filter = published::RowFilter { filter: Some(published::row_filter::Filter::BlockAllFilter(true)) };
    same(
        &CheckAndMutateRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            predicate_filter: Some(filter.encode_to_vec().into()),
            true_mutations: vec![bytes.clone()],
            false_mutations: vec![bytes.clone(), bytes],
        },
        &published::CheckAndMutateRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            predicate_filter: Some(filter),
            true_mutations: vec![mutation.clone()],
            false_mutations: vec![mutation.clone(), mutation],
        },
    );
    same(
        &CheckAndMutateRowResponse { predicate_matched: true },
        &published::CheckAndMutateRowResponse { predicate_matched: true },
    );
    let rule = published::ReadModifyWriteRule {
        family_name: "f".into(),
        column_qualifier: key("q"),
        rule: Some(published::read_modify_write_rule::Rule::IncrementAmount(1)),
    };
    same(
        &ReadModifyWriteRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            rules: vec![rule.encode_to_vec().into()],
        },
        &published::ReadModifyWriteRowRequest {
            table_name: "t".into(),
            authorized_view_name: "a".into(),
            app_profile_id: "p".into(),
            row_key: key("k"),
            rules: vec![rule],
        },
    );
    same(
        &ReadModifyWriteRowResponse { row: Some(Row { key: key("k"), families: Vec::new() }) },
        &published::ReadModifyWriteRowResponse { row: Some(published::Row { key: key("k"), families: Vec::new() }) },
    );
}

/// The fields that no published type has, by their bytes.
#[test]
fn fields_beyond_the_published_crate() {
    let bitmask = RowFilter { filter: Some(row_filter::Filter::ValueBitmaskFilter(ValueBitmask { mask: key("m") })) };
    assert_eq!(bitmask.encode_to_vec(), [0xa2, 0x01, 3, 0x0a, 1, b'm'], "field 20, message, field 1, bytes");
    let stamped = Mutation {
        mutation: Some(mutation::Mutation::DeleteFromRow(mutation::DeleteFromRow {})),
        timestamp_origin: mutation::TimestampOrigin::ClientAutoGenerated.into(),
    };
    assert_eq!(stamped.encode_to_vec(), [0x22, 0, 0x38, 2], "field 4, empty message; field 7, varint 2");
    let end_key = Some(row_range::EndKey::EndKeyOpen(key("z")));
    let sample = SampleRowKeysRequest { row_range: Some(RowRange { start_key: None, end_key }), ..Default::default() };
    assert_eq!(sample.encode_to_vec(), [0x32, 3, 0x1a, 1, b'z'], "field 6, message");
}

#[test]
fn an_encoded_answer_is_written_as_it_is_and_never_read() {
    let answer = ReadRowsResponse { last_scanned_row_key: key("k"), ..Default::default() };
    let encoded = Encoded::new(&answer);
    assert_eq!(encoded.encode_to_vec(), answer.encode_to_vec());
    let mut target: Encoded<ReadRowsResponse> = Encoded::from_bytes(Bytes::new());
    assert!(target.merge(encoded.bytes().clone()).is_err());
}
