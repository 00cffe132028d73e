//! The descriptors against the Rust types: what those encode, the descriptors decode, by the names of the API.

use std::collections::HashMap;
use std::fmt::Debug;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as published;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MapKey, ReflectMessage, Value};

use super::DESCRIPTORS;
use crate::services::CATALOGUE;
use crate::{admin, data};

fn pool() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).unwrap()
}

/// The message as a client reads it that has only the descriptors. It knows all fields, and what it encodes is the same message.
fn described<M: Message + Default + PartialEq + Debug>(name: &str, message: &M) -> DynamicMessage {
    let descriptor = pool().get_message_by_name(name).unwrap();
    let decoded = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).unwrap();
    assert_known(&Value::Message(decoded.clone()));
    assert_eq!(&M::decode(decoded.encode_to_vec().as_slice()).unwrap(), message);
    decoded
}

/// Asserts that no message in `value` has a field without a descriptor.
fn assert_known(value: &Value) {
    match value {
        Value::Message(message) => {
            let unknown: Vec<_> = message.unknown_fields().map(|field| field.number()).collect();
            assert!(unknown.is_empty(), "{}: unknown fields {unknown:?}", message.descriptor().full_name());
            message.fields().for_each(|(_, value)| assert_known(value));
        }
        Value::List(values) => values.iter().for_each(assert_known),
        Value::Map(entries) => entries.values().for_each(assert_known),
        _ => {}
    }
}

/// The value at a path of names of fields, indices in lists and keys of maps.
fn at(message: &DynamicMessage, path: &str) -> Value {
    path.split('.').fold(Value::Message(message.clone()), |value, part| match value {
        Value::Message(message) => message.get_field_by_name(part).unwrap_or_else(|| panic!("no {part}")).into_owned(),
        Value::List(values) => values[part.parse::<usize>().unwrap()].clone(),
        Value::Map(entries) => entries[&MapKey::String(part.to_owned())].clone(),
        other => panic!("{part} of {other:?}"),
    })
}

/// The name of the value of an enum at a path.
fn enum_at(message: &DynamicMessage, field: &str) -> String {
    let Kind::Enum(kind) = message.descriptor().get_field_by_name(field).unwrap().kind() else { panic!("{field}") };
    kind.get_value(at(message, field).as_enum_number().unwrap()).unwrap().name().to_owned()
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from(text)
}

#[test]
fn every_method_of_the_catalogue_is_described_with_its_messages() {
    let pool = pool();
    for public in CATALOGUE {
        let service = pool.get_service_by_name(public.name).unwrap_or_else(|| panic!("no {}", public.name));
        let described: Vec<_> = service.methods().map(|method| method.name().to_owned()).collect();
        let expected: Vec<_> = public.calls.iter().map(|call| call.name).collect();
        assert_eq!(described, expected);
        for method in service.methods() {
            let request = method.input().full_name().to_owned();
            // Some requests of instances are the instance or cluster itself.
            let expected = match method.name() {
                "UpdateInstance" => "Instance".to_owned(),
                "UpdateCluster" => "Cluster".to_owned(),
                name => format!("{name}Request"),
            };
            assert!(request.ends_with(&format!(".{expected}")), "{}: {request}", method.full_name());
        }
    }
    let bigtable = pool.get_service_by_name("google.bigtable.v2.Bigtable").unwrap();
    let streams = |name: &str| bigtable.methods().find(|method| method.name() == name).unwrap().is_server_streaming();
    assert!(streams("ReadRows") && streams("MutateRows") && !streams("MutateRow"));
    let operations = pool.get_service_by_name("google.longrunning.Operations").unwrap();
    let deleted = operations.methods().find(|method| method.name() == "DeleteOperation").unwrap();
    assert_eq!(deleted.output().full_name(), "google.protobuf.Empty");
}

#[test]
fn every_field_of_the_public_services_has_a_type_and_a_number_of_its_own() {
    let pool = pool();
    let mut fields = 0;
    for message in pool.all_messages() {
        let mut numbers: Vec<_> = message.fields().map(|field| field.number()).collect();
        fields += numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), message.fields().len(), "{}", message.full_name());
    }
    assert!(fields > 1_000, "only {fields} fields are described");
    let first_values =
        pool.all_enums().map(|kind| (kind.full_name().to_owned(), kind.values().next().unwrap().number()));
    for (name, number) in first_values {
        assert_eq!(number, 0, "{name}: proto3 wants zero first");
    }
}

#[test]
fn a_write_with_a_oneof_bytes_and_a_well_known_type() {
    use published::mutation::{DeleteFromColumn, Mutation, SetCell};
    let set = SetCell {
        family_name: "f".into(),
        column_qualifier: bytes("q"),
        timestamp_micros: -1,
        value: bytes("\u{0}value"),
    };
    let time_range = Some(published::TimestampRange { start_timestamp_micros: 5, end_timestamp_micros: 6 });
    let delete = DeleteFromColumn { family_name: "g".into(), column_qualifier: bytes("r"), time_range };
    let mutations = [Mutation::SetCell(set), Mutation::DeleteFromColumn(delete)];
    let request = published::MutateRowRequest {
        table_name: "t".into(),
        authorized_view_name: "v".into(),
        app_profile_id: "p".into(),
        row_key: bytes("key"),
        mutations: mutations.map(|mutation| published::Mutation { mutation: Some(mutation) }).into(),
        idempotency: Some(published::Idempotency {
            token: bytes("12345678"),
            start_time: Some(prost_types::Timestamp { seconds: 5, nanos: 6 }),
        }),
    };
    let described = described("google.bigtable.v2.MutateRowRequest", &request);
    assert_eq!(at(&described, "table_name"), Value::String("t".to_owned()));
    assert_eq!(at(&described, "authorized_view_name"), Value::String("v".to_owned()));
    assert_eq!(at(&described, "row_key"), Value::Bytes(bytes("key")));
    assert_eq!(at(&described, "mutations.0.set_cell.value"), Value::Bytes(bytes("\u{0}value")));
    assert_eq!(at(&described, "mutations.0.set_cell.timestamp_micros"), Value::I64(-1));
    assert_eq!(at(&described, "mutations.1.delete_from_column.time_range.end_timestamp_micros"), Value::I64(6));
    assert_eq!(at(&described, "idempotency.start_time.seconds"), Value::I64(5));
    let mutation = pool().get_message_by_name("google.bigtable.v2.Mutation").unwrap();
    let oneofs: Vec<_> = mutation.oneofs().map(|oneof| (oneof.name().to_owned(), oneof.fields().len())).collect();
    assert_eq!(oneofs, [("mutation".to_owned(), 6)]);
}

#[test]
fn a_table_with_a_map_of_families_and_nested_rules() {
    use admin::gc_rule::{Intersection, Rule};
    let rule = |rule| admin::GcRule { rule: Some(rule) };
    let age = rule(Rule::MaxAge(prost_types::Duration { seconds: 60, nanos: 0 }));
    let both = rule(Rule::Intersection(Intersection { rules: vec![rule(Rule::MaxNumVersions(3)), age] }));
    let family = admin::ColumnFamily { gc_rule: Some(both), ..Default::default() };
    let table = admin::Table {
        name: "t".into(),
        column_families: HashMap::from([("cf".to_owned(), family)]),
        granularity: admin::table::TimestampGranularity::Millis.into(),
        deletion_protection: true,
        ..Default::default()
    };
    let described = described("google.bigtable.admin.v2.Table", &table);
    let rules = "column_families.cf.gc_rule.intersection.rules";
    assert_eq!(at(&described, &format!("{rules}.0.max_num_versions")), Value::I32(3));
    assert_eq!(at(&described, &format!("{rules}.1.max_age.seconds")), Value::I64(60));
    assert_eq!(at(&described, "deletion_protection"), Value::Bool(true));
    assert_eq!(enum_at(&described, "granularity"), "MILLIS");
}

#[test]
fn a_read_with_nested_filters_and_its_response() {
    use data::row_filter::{Chain, Condition, Filter};
    let filter = |filter| data::RowFilter { filter: Some(filter) };
    let family = filter(Filter::FamilyNameRegexFilter("f.*".into()));
    let mask = filter(Filter::ValueBitmaskFilter(data::ValueBitmask { mask: bytes("m") }));
    let condition =
        Condition { predicate_filter: Some(Box::new(family)), true_filter: Some(Box::new(mask)), false_filter: None };
    let last = filter(Filter::CellsPerColumnLimitFilter(1));
    let chain = filter(Filter::Chain(Chain { filters: vec![filter(Filter::Condition(Box::new(condition))), last] }));
    let range =
        data::RowRange { start_key: Some(data::row_range::StartKey::StartKeyClosed(bytes("a"))), end_key: None };
    let request = data::ReadRowsRequest {
        table_name: "t".into(),
        rows: Some(data::RowSet { row_keys: vec![bytes("k")], row_ranges: vec![range.clone()] }),
        filter: Some(chain.encode_to_vec().into()),
        rows_limit: 7,
        request_stats_view: 2,
        reversed: true,
        ..Default::default()
    };
    let described_request = described("google.bigtable.v2.ReadRowsRequest", &request);
    assert_eq!(at(&described_request, "rows.row_ranges.0.start_key_closed"), Value::Bytes(bytes("a")));
    let condition = "filter.chain.filters.0.condition";
    let predicate = format!("{condition}.predicate_filter.family_name_regex_filter");
    assert_eq!(at(&described_request, &predicate), Value::String("f.*".to_owned()));
    let mask = format!("{condition}.true_filter.value_bitmask_filter.mask");
    assert_eq!(at(&described_request, &mask), Value::Bytes(bytes("m")));
    assert_eq!(enum_at(&described_request, "request_stats_view"), "REQUEST_STATS_FULL");

    let chunk = data::read_rows_response::CellChunk {
        row_key: bytes("k"),
        family_name: Some(data::read_rows_response::StringValue { value: "f".into() }),
        row_status: Some(data::read_rows_response::cell_chunk::RowStatus::CommitRow(true)),
        ..Default::default()
    };
    let response = data::ReadRowsResponse { chunks: vec![chunk], ..Default::default() };
    let response = described("google.bigtable.v2.ReadRowsResponse", &response);
    assert_eq!(at(&response, "chunks.0.family_name.value"), Value::String("f".to_owned()));
    assert_eq!(at(&response, "chunks.0.commit_row"), Value::Bool(true));
    // A field that the published crate lacks.
    let request = data::SampleRowKeysRequest { row_range: Some(range), ..Default::default() };
    let request = described("google.bigtable.v2.SampleRowKeysRequest", &request);
    assert_eq!(at(&request, "row_range.start_key_closed"), Value::Bytes(bytes("a")));
}

#[test]
fn an_enum_of_ours_has_the_names_of_the_api() {
    let mutation = data::Mutation {
        mutation: Some(data::mutation::Mutation::DeleteFromRow(data::mutation::DeleteFromRow {})),
        timestamp_origin: data::mutation::TimestampOrigin::ClientAutoGenerated.into(),
    };
    let described = described("google.bigtable.v2.Mutation", &mutation);
    assert_eq!(enum_at(&described, "timestamp_origin"), "CLIENT_AUTO_GENERATED");
}

#[test]
fn an_optional_field_has_presence() {
    let instance = pool().get_message_by_name("google.bigtable.admin.v2.Instance").unwrap();
    let field = instance.get_field_by_name("satisfies_pzs").unwrap();
    assert!(field.supports_presence() && field.containing_oneof().is_some_and(|oneof| oneof.is_synthetic()));
    assert!(!instance.get_field_by_name("display_name").unwrap().supports_presence());
}

#[test]
fn messages_that_responses_carry_in_an_any_are_described() {
    for name in [
        "google.bigtable.admin.v2.CreateInstanceMetadata",
        "google.bigtable.admin.v2.UpdateTableMetadata",
        "google.rpc.ErrorInfo",
        "google.rpc.RetryInfo",
    ] {
        assert!(pool().get_message_by_name(name).is_some(), "{name}");
    }
}
