//! The functions of `fuzz/targets.rs` on random bytes, and on valid examples with some bytes changed.
//!
//! `cargo fuzz` searches deeper; this test keeps the functions correct and needs no unstable compiler flags.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use bytes::Bytes;
use ebla_model::codec::CellKey;
use ebla_model::command::{Command, CommandKind};
use ebla_model::filter::Filter;
use ebla_model::id::{FamilyId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{TabletDescriptor, row_key};
use ebla_model::mutation::Mutation;
use ebla_model::rmw::{Operation, Rule};
use ebla_model::time::Micros;
use ebla_proto::{convert, data};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::{Index, select};
use prost::Message;

#[path = "../../fuzz/targets.rs"]
#[expect(clippy::expect_used, reason = "a target fails by a panic")]
mod targets;

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

/// Replaces, inserts and takes away single bytes.
fn changed(mut bytes: Vec<u8>, changes: &[(Index, u8, u8)]) -> Vec<u8> {
    for (at, byte, what) in changes {
        let at = at.index(bytes.len() + 1);
        match what % 3 {
            0 => bytes.insert(at, *byte),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            _ if at < bytes.len() => bytes[at] = *byte,
            _ => bytes.push(*byte),
        }
    }
    bytes
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
    fn random_bytes_break_nothing(bytes in vec(any::<u8>(), 0..96)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    #[test]
    fn changed_examples_break_nothing(
        example in select(examples()),
        changes in vec((any::<Index>(), prop_byte(), any::<u8>()), 1..6),
    ) {
        let bytes = changed(example.1, &changes);
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }
}

/// Bytes that mean something in one of the formats, and any others.
fn prop_byte() -> impl Strategy<Value = u8> {
    proptest::prop_oneof![
        select(vec![0, 1, 2, 0x08, 0x0a, 0x12, 0x1a, 0x7f, 0x80, 0xfe, 0xff, b'*', b'(', b'{', b'\\']),
        any::<u8>()
    ]
}
