//! The reports on replicas as messages of `ebla.control`.

use ebla_proto::control as wire;
use ebla_proto::{convert, record};

use crate::raft::GroupReplica;
use crate::tablet::{ReplicaReport, TabletReport};

/// The report on a replica that runs.
pub(crate) fn replica_report(report: &ReplicaReport) -> wire::ReplicaReport {
    wire::ReplicaReport {
        group: Some(convert::group_to_proto(&report.descriptor)),
        replica: report.replica.get(),
        leads: report.is_leader,
        term: report.term.get(),
        tablets: report.tablets.iter().map(tablet_report).collect(),
        applied: Some(convert::log_id_to_proto(report.applied)),
        quarantined: false,
        idle: false,
        settled: report.settled,
        heard: report.heard.iter().map(|replica| replica.get()).collect(),
        last: Some(convert::log_id_to_proto(report.last)),
        time_micros: report.time.get(),
        committed: report.committed.map(convert::log_id_to_proto),
        snapshot: report.snapshot.map(convert::log_id_to_proto),
        parent: report.origin.parent.get(),
        divide_index: report.origin.divide_index.get(),
    }
}

fn tablet_report(tablet: &TabletReport) -> wire::TabletReport {
    wire::TabletReport {
        tablet: Some(convert::tablet_record_to_proto(&tablet.descriptor)),
        size_bytes: tablet.size_bytes,
        schema_version: tablet.schema_version.get(),
        load: Some(convert::tablet_load_to_proto(&tablet.load)),
    }
}

/// The report on a replica that does not run.
pub(crate) fn not_running_report(id: GroupReplica) -> wire::ReplicaReport {
    let group = record::GroupDescriptor { group: id.group.get(), ..Default::default() };
    wire::ReplicaReport { group: Some(group), replica: id.replica.get(), ..Default::default() }
}
