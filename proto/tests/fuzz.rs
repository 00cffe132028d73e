//! The functions of `fuzz/targets.rs` on arbitrary bytes, and on valid examples with some bytes changed.
//!
//! `cargo fuzz` searches deeper; this test keeps the functions correct and needs no unstable compiler flags.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::time::Duration;

use bytes::Bytes;
use ebla_model::admin::instance::{ClusterDescription, Instance, InstanceKind, StorageKind};
use ebla_model::cell::FamilyName;
use ebla_model::cluster_version::SupportedVersions;
use ebla_model::codec::CellKey;
use ebla_model::command::{Command, CommandKind};
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::id::{
    CopyId, FamilyId, Generation, GroupId, LogIndex, Sequence, ServerId, SessionId, TableId, TabletId,
};
use ebla_model::idempotency::TokenRecord;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor, row_key};
use ebla_model::mutation::Mutation;
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableSchema;
use ebla_model::session::SessionWindow;
use ebla_model::tablet_move::{Arrival, ArrivalProgress, Departure, DeparturePhase, DroppedRows, ImportPosition};
use ebla_model::time::Micros;
use ebla_proto::convert::{instance, operation, tablet_move};
use ebla_proto::{admin, convert, data, record};
use proptest::prelude::{ProptestConfig, proptest};
use prost::Message;

#[path = "../../fuzz/inputs.rs"]
mod inputs;
#[path = "../../fuzz/targets.rs"]
#[expect(clippy::expect_used, reason = "a target fails by a panic")]
mod targets;

use inputs::inputs;
use targets::{InputOutcome, TARGETS};

/// Valid inputs of the targets, by name.
fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let filter = convert::filter_to_bytes(&filter());
    let rows = data::RowSet {
        row_keys: vec!["b".into(), "a".into()],
        row_ranges: vec![data::RowRange {
            start_key: Some(data::row_range::StartKey::StartKeyOpen("c".into())),
            end_key: Some(data::row_range::EndKey::EndKeyClosed("d".into())),
        }],
    };
    let read = data::ReadRowsRequest { rows: Some(rows.clone()), filter: Some(filter.clone()), ..Default::default() };
    let mutations = [Mutation::DeleteRow, Mutation::DeleteFamily { family: "f".into() }];
    let write = data::MutateRowRequest {
        row_key: "k".into(),
        mutations: mutations.iter().map(convert::mutation_to_bytes).collect(),
        ..Default::default()
    };
    let rule = Rule { family: "f".into(), qualifier: "q".into(), operation: Operation::Increment(-1) };
    let modify = data::ReadModifyWriteRowRequest {
        row_key: "k".into(),
        rules: vec![convert::rule_to_bytes(&rule)],
        ..Default::default()
    };
    let cell = CellKey {
        row: RowKey::new(&b"a\0b"[..]),
        family: FamilyId::new(7),
        qualifier: Bytes::from_static(b"\0q"),
        timestamp: Micros::new(1_000),
    };
    let range = KeyRange::new(RowKey::new("a"), Some(RowKey::new("m"))).unwrap();
    let servers = [1, 2, 3].map(ServerId::new);
    let descriptor = TabletDescriptor::initial(TableId::new(3), TabletId::new(4), range.clone(), &servers);
    let split = Command {
        time: Micros::new(5_000),
        elapsed: None,
        clock: Some(Micros::new(4_000)),
        kind: CommandKind::Split { tablet: TabletId::new(4), at: RowKey::new("g"), child: TabletId::new(9) },
    };
    vec![
        ("filter_tree", filter.to_vec()),
        ("pattern", b"(?i)a+|[^\\x00-b]{2,3}\\C\\Q.\\E$".to_vec()),
        ("row_set", rows.encode_to_vec()),
        ("cell_codec", cell.encode()),
        ("metadata_row", convert::descriptor_to_bytes(&descriptor).to_vec()),
        ("metadata_row", row_key(TableId::new(3), range.end()).as_bytes().to_vec()),
        ("request", read.encode_to_vec()),
        ("request", write.encode_to_vec()),
        ("request", modify.encode_to_vec()),
        ("log_command", convert::command::encode(&split).to_vec()),
    ]
    .into_iter()
    .chain(chubby_files().into_iter().map(|bytes| ("chubby_file", bytes.to_vec())))
    .chain(group_records(&descriptor).into_iter().map(|bytes| ("group_record", bytes.to_vec())))
    .collect()
}

/// Values of files in Chubby, one of each kind.
fn chubby_files() -> Vec<Bytes> {
    let rule = GcRule::Any(vec![GcRule::MaxVersions(3), GcRule::MaxAge(Duration::from_secs(5))]);
    let families = [("f", None), ("g", Some(rule))].map(|(name, gc)| (FamilyName::new(name).unwrap(), gc));
    let schema =
        TableSchema::new(TableId::new(7), "projects/p/instances/i/tables/t".parse().unwrap(), families).unwrap();
    let instance = Instance {
        name: "projects/p/instances/instance".parse().unwrap(),
        display_name: "An instance".to_owned(),
        labels: [("key".to_owned(), "value".to_owned())].into(),
        kind: InstanceKind::Production,
        cluster: ClusterDescription {
            id: "c".to_owned(),
            location: "projects/p/locations/z".to_owned(),
            serve_nodes: 3,
            storage: StorageKind::Ssd,
        },
        created: Micros::new(9),
    };
    let routing = record::SingleCluster { cluster: "c".to_owned(), transactions: true };
    let profile = record::AppProfile {
        name: "projects/p/instances/i/appProfiles/a".to_owned(),
        description: "d".to_owned(),
        routing: Some(record::app_profile::Routing::Single(routing)),
        priority: record::Priority::Low.into(),
        ..Default::default()
    };
    let table = admin::Table { name: "t".to_owned(), ..Default::default() };
    let operation =
        operation::finished_operation("operations/o".to_owned(), &admin::UpdateTableMetadata::default(), &table);
    let server = record::Server {
        server: 3,
        address: "host:1".to_owned(),
        incarnation: 4,
        release: "0.1.0".to_owned(),
        versions: Some(convert::supported_to_proto(SupportedVersions::OWN)),
        ..Default::default()
    };
    let cluster = record::Cluster {
        cluster: Bytes::from_static(&[7; 16]),
        state: record::ClusterState::Running.into(),
        active_version: 2,
        version_held: true,
        ..Default::default()
    };
    vec![
        convert::schema_to_bytes(&schema),
        instance::instance_to_bytes(&instance),
        convert::encode_record(profile),
        operation::finished_operation_to_bytes(&operation),
        convert::encode_record(server),
        convert::cluster_to_bytes(cluster),
    ]
}

/// Values in the state of a group, one of each kind.
fn group_records(tablet: &TabletDescriptor) -> Vec<Bytes> {
    let group = GroupDescriptor::initial(GroupId::new(5), &[1, 2, 3].map(ServerId::new));
    let session = SessionWindow {
        lowest_outstanding: Sequence::new(4),
        applied: [(Sequence::new(5), None), (Sequence::new(6), Some(Bytes::from_static(b"r")))].into(),
        last_used: Micros::new(8),
    };
    let departure = Departure {
        tablet: tablet.clone(),
        target: group.clone(),
        ticket: LogIndex::new(4),
        copy: Some(CopyId::new(7)),
        phase: DeparturePhase::Copying,
    };
    let arrival = Arrival {
        generation: Generation::new(2),
        table: tablet.table,
        range: tablet.range.clone(),
        source: GroupId::new(6),
        copy: None,
        progress: ArrivalProgress::Importing(ImportPosition::Session(SessionId::new(9))),
    };
    let dropped = DroppedRows { table: tablet.table, range: KeyRange::prefix(b"com.") };
    vec![
        convert::group_to_bytes(&group),
        convert::tablet_record_to_proto(tablet).encode_to_vec().into(),
        convert::session_to_proto(&session).encode_to_vec().into(),
        convert::token_record_to_bytes(&TokenRecord { expires_at: Micros::new(3), result: None }),
        tablet_move::departure_to_bytes(&departure),
        tablet_move::arrival_to_bytes(tablet.tablet, &arrival),
        tablet_move::dropped_rows_to_bytes(&dropped),
    ]
}

/// One filter of each kind that holds others, and some of those that do not.
fn filter() -> Filter {
    Filter::Chain(vec![
        Filter::Interleave(vec![Filter::ValueRegex(Bytes::from_static(b"a.*")), Filter::StripValue]),
        Filter::Condition {
            predicate: Box::new(Filter::FamilyNameRegex(Bytes::from_static(b"f|g"))),
            then: Some(Box::new(Filter::CellsPerColumnLimit(1))),
            otherwise: None,
        },
        Filter::TimestampRange { start: Micros::new(1_000), end: None },
        Filter::ApplyLabel("label".into()),
    ])
}

fn target(name: &str) -> fn(&[u8]) -> InputOutcome {
    TARGETS.iter().find(|(it, _)| *it == name).unwrap().1
}

#[test]
fn examples_make_sense_and_every_target_has_one() {
    for (name, bytes) in examples() {
        assert_eq!(target(name)(&bytes), InputOutcome::Accepted, "{name}: {}", bytes.escape_ascii());
    }
    for (name, target) in TARGETS {
        assert!(examples().iter().any(|(it, _)| *it == name), "{name} has no example");
        target(b"");
    }
}

#[test]
fn each_target_is_a_program_of_cargo_fuzz() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not in fuzz/Cargo.toml");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn bad_input_breaks_nothing(bytes in inputs(examples().into_iter().map(|(_, bytes)| bytes).collect())) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }
}
