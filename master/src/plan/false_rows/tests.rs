//! Which rows of METADATA are false, and what replaces them.

use std::collections::BTreeSet;

use ebla_model::id::{Generation, LogId, ReplicaId, SchemaVersion, ServerId, TableId, Term};
use ebla_model::key::KeyRange;
use ebla_model::metadata::GroupDescriptor;
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;

use super::*;
use crate::cluster::{ReplicaReport, Role, Server, ServerReport, TabletReport};

/// Tablets of METADATA, which is live without a schema.
fn tablet(id: u64, generation: u64, start: &'static str, end: Option<&'static str>) -> TabletDescriptor {
    let range = KeyRange::new(RowKey::new(start), end.map(RowKey::new)).unwrap();
    let initial = TabletDescriptor::initial(TableId::METADATA, TabletId::new(id), range, &[ServerId::new(1)]);
    TabletDescriptor { generation: Generation::new(generation), ..initial }
}

fn report(descriptor: TabletDescriptor) -> TabletReport {
    TabletReport { descriptor, size_bytes: 0, schema_version: SchemaVersion::new(1), load: TabletLoad::default() }
}

/// A server with one group that has these tablets.
fn server(tablets: &[TabletDescriptor]) -> Server {
    let first = tablets.first().unwrap();
    let group = GroupDescriptor {
        group: first.group,
        membership: first.membership.clone(),
        membership_log_id: first.membership_log_id,
    };
    let replica = ReplicaReport {
        replica: ReplicaId::new(1),
        role: Role::Leader,
        term: Term::new(1),
        tablets: tablets.iter().cloned().map(report).collect(),
        applied: LogId::default(),
        last: LogId::default(),
        time: Micros::ZERO,
        settled: true,
        heard: BTreeSet::new(),
        division: None,
        group,
    };
    Server::registered(Some(ServerReport { replicas: vec![replica], ..ServerReport::default() }))
}

/// The repairs, as text, of these rows and these reported tablets.
fn repairs(rows: &[TabletDescriptor], reported: &[TabletDescriptor]) -> Vec<String> {
    let metadata = rows.iter().map(|row| (row.row_key(), row.clone())).collect();
    let servers = [(ServerId::new(1), server(reported))].into();
    let cluster = ClusterSnapshot { servers, metadata, ..ClusterSnapshot::default() };
    false_rows(&cluster).iter().map(describe).collect()
}

fn describe(action: &Action) -> String {
    let Action::ReplaceFalseRow { present, to } = action else { panic!("{action}") };
    let state = |tablet: &TabletDescriptor| format!("{}.{}", tablet.tablet, tablet.generation);
    format!("{} -> {}", state(present), to.as_ref().map_or_else(|| "none".to_owned(), state))
}

#[test]
fn a_row_that_a_replica_knows_is_right() {
    let whole = tablet(5, 3, "", None);
    let reported = std::slice::from_ref(&whole);
    assert_eq!(repairs(reported, reported), [""; 0]);
    assert_eq!(repairs(&[tablet(5, 2, "", None)], reported), [""; 0], "an old row is not false");
}

#[test]
fn a_generation_that_no_replica_has_is_replaced() {
    assert_eq!(repairs(&[tablet(5, 9, "", None)], &[tablet(5, 3, "", None)]), ["5.9 -> 5.3"]);
}

#[test]
fn a_split_that_was_lost_leaves_one_row() {
    let (left, right) = (tablet(5, 4, "", Some("m")), tablet(6, 4, "m", None));
    assert_eq!(repairs(&[left, right], &[tablet(5, 3, "", None)]), ["6.4 -> 5.3", "5.4 -> none"]);
}

#[test]
fn a_row_whose_keys_no_tablet_has_stays() {
    let lost = tablet(5, 4, "", Some("m"));
    assert_eq!(repairs(&[lost, tablet(6, 1, "m", None)], &[tablet(6, 1, "m", None)]), [""; 0]);
}

#[test]
fn nothing_is_replaced_before_everything_has_reported() {
    let row = tablet(5, 9, "", None);
    let mut other = server(&[tablet(5, 3, "", None)]);
    other.report = None;
    let servers = [(ServerId::new(1), server(&[tablet(5, 3, "", None)])), (ServerId::new(2), other)].into();
    let cluster = ClusterSnapshot { servers, metadata: [(row.row_key(), row)].into(), ..ClusterSnapshot::default() };
    assert_eq!(false_rows(&cluster), []);
}
