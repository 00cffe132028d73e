//! Deleted tables, and tables that Chubby does not know.
//!
//! ```text
//!   Chubby has the table, active or being created        its rows are maintained
//!   Chubby has the table, being deleted                  its deletion continues
//!   Chubby has a record that it was deleted              its rows are removed; the record goes when nothing of it can return
//!   Chubby has neither                                   unknown: nothing of it is removed, and it is reported
//! ```
//!
//! That a file is absent proves nothing: Chubby may have been restored from a backup that is older than the table. So
//! nothing is removed without the record of a deletion.
//!
//! The record of a deletion names the groups that have dropped the tablets, each with a position of its log after that. A
//! replica that was down meanwhile still has the tablets until it has applied its group's log up to there.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{GroupId, LogId, ReplicaId, ServerId, TableId};
use ebla_model::metadata::parse_row_key;

use super::Action;
use crate::cluster::{ClusterSnapshot, DeletedTable};

/// The rows of METADATA that belong to deleted tables.
pub(super) fn orphan_rows(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let is_orphan = |table| cluster.deleted.contains_key(&table);
    let orphans =
        cluster.metadata.iter().filter(move |(row, _tablet)| parse_row_key(row).is_ok_and(|(id, _end)| is_orphan(id)));
    orphans.map(|(row, tablet)| Action::RemoveRow { row: row.clone(), tablet: tablet.tablet })
}

/// The tables of which servers or METADATA have tablets, and Chubby neither the table nor the record of its deletion.
pub(super) fn unknown_tables(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let mut unknown: BTreeMap<TableId, usize> = BTreeMap::new();
    for tablet in cluster.known_tablets().into_values().filter(|tablet| is_unknown(cluster, tablet.table)) {
        *unknown.entry(tablet.table).or_default() += 1;
    }
    unknown.into_iter().map(|(table, tablets)| Action::ReportUnknownTable { table, tablets })
}

fn is_unknown(cluster: &ClusterSnapshot, table: TableId) -> bool {
    table != TableId::METADATA && !cluster.tables.contains_key(&table) && !cluster.deleted.contains_key(&table)
}

/// The records of deletions that are needed no more: no row and no replica has a tablet of the table, and none can
/// return.
pub(super) fn obsolete_records(cluster: &ClusterSnapshot) -> Vec<Action> {
    if cluster.deleted.is_empty() {
        return Vec::new();
    }
    let listed = cluster.metadata.values().map(|row| row.table);
    let left: BTreeSet<TableId> =
        listed.chain(cluster.tablet_reports().map(|tablet| tablet.descriptor.table)).collect();
    let applied = applied_by_all(cluster);
    let has_passed =
        |(group, position): (&GroupId, &LogId)| applied.get(group).is_some_and(|applied| applied >= position);
    let is_gone =
        |(table, deleted): &(&TableId, &DeletedTable)| !left.contains(table) && deleted.groups.iter().all(has_passed);
    cluster.deleted.iter().filter(is_gone).map(|(table, _deleted)| Action::RemoveDeletionRecord(*table)).collect()
}

/// How far all replicas of each group have applied its log. A group with a member that does not report is missing.
fn applied_by_all(cluster: &ClusterSnapshot) -> BTreeMap<GroupId, LogId> {
    let reported: BTreeMap<(GroupId, ReplicaId, ServerId), LogId> = cluster
        .reports()
        .map(|(server, report)| ((report.group.group, report.replica, server), report.applied))
        .collect();
    let groups = cluster.groups().into_values();
    groups
        .filter_map(|group| {
            let members = group.membership.replicas();
            let applied = members.map(|member| reported.get(&(group.group, member.replica, member.server)).copied());
            Some((group.group, applied.collect::<Option<Vec<_>>>()?.into_iter().min()?))
        })
        .collect()
}
