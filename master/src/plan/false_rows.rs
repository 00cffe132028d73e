//! Rows of METADATA that describe a state that no tablet has had: with a generation above that of all its replicas, or of a tablet that no group
//! has. Such a row stays, because writers take it for a newer one, and requests that carry its generation are refused.
//!
//! It can be left when a group is recovered without its last changes (`ebla tablet recover`), or by damage. The reconciler does not
//! repair it: a row that was written after the servers reported looks the same. `ebla check` reads the rows first, then asks all servers
//! again. A leader writes a row after the change that it describes, so one of these reports has that change, if it exists.

use std::collections::BTreeMap;

use ebla_model::id::TabletId;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;

use super::{Action, is_live};
use crate::cluster::ClusterSnapshot;

/// The repairs of such rows. `cluster.servers` must have been observed after `cluster.metadata` was read. Empty while a server or a voter has not
/// reported, because it may have what the row describes. A row whose keys no reported tablet has stays.
#[must_use]
pub fn false_rows(cluster: &ClusterSnapshot) -> Vec<Action> {
    if !has_reported(cluster) {
        return Vec::new();
    }
    let tablets = cluster.tablets();
    let rows = cluster.metadata.iter().filter(|(_row, present)| is_live(cluster, present.table));
    let of_nothing = rows.filter(|(_row, present)| !is_known(cluster, present));
    let (replaced, others): (Vec<_>, Vec<_>) = of_nothing
        .map(|(row, present)| (row, present, owner(&tablets, row, present)))
        .partition(|(_row, _present, owner)| owner.is_some());
    // A row is removed only where another row lists its keys: those that are replaced come first.
    let lists = |tablet: &TabletDescriptor| {
        let row = tablet.row_key();
        let is_listed = cluster.metadata.get(&row).is_some_and(|present| present.tablet == tablet.tablet);
        is_listed || replaced.iter().any(|(replaced, _present, _owner)| **replaced == row)
    };
    let removed = others.iter().filter(|(_row, present, _owner)| {
        let mut overlapping = tablets.values().filter(|tablet| overlaps(tablet, present)).peekable();
        overlapping.peek().is_some() && overlapping.all(|tablet| lists(tablet))
    });
    let action = |present: &TabletDescriptor, to: Option<&TabletDescriptor>| Action::ReplaceFalseRow {
        present: present.clone(),
        to: to.cloned(),
    };
    let replacements = replaced.iter().map(|(_row, present, owner)| action(present, *owner));
    replacements.chain(removed.map(|(_row, present, _owner)| action(present, None))).collect()
}

/// Whether all servers and all voters of all groups have reported, and no replica is stopped.
fn has_reported(cluster: &ClusterSnapshot) -> bool {
    let are_all_there = cluster.servers.values().all(|server| server.report.is_some());
    let has_replica = |group, replica| {
        cluster.reports().any(|(_server, report)| report.group.group == group && report.replica == replica)
    };
    let groups = cluster.groups();
    let mut members =
        groups.values().flat_map(|group| group.membership.replicas().map(|member| (group.group, member.replica)));
    are_all_there
        && cluster.stopped_replicas().next().is_none()
        && members.all(|(group, replica)| has_replica(group, replica))
}

/// Whether a replica, also one that lags behind, has this state of the tablet or a later one.
fn is_known(cluster: &ClusterSnapshot, present: &TabletDescriptor) -> bool {
    let mut reports = cluster.tablet_reports().map(|report| &report.descriptor);
    reports.any(|reported| reported.tablet == present.tablet && reported.fence() >= present.fence())
}

/// The tablet that this row belongs to.
fn owner<'a>(
    tablets: &BTreeMap<TabletId, &'a TabletDescriptor>,
    row: &RowKey,
    present: &TabletDescriptor,
) -> Option<&'a TabletDescriptor> {
    tablets.values().find(|tablet| tablet.table == present.table && tablet.row_key() == *row).copied()
}

fn overlaps(one: &TabletDescriptor, other: &TabletDescriptor) -> bool {
    let ends_after = |tablet: &TabletDescriptor, start: &RowKey| tablet.range.end().is_none_or(|end| end > start);
    one.table == other.table && ends_after(one, other.range.start()) && ends_after(other, one.range.start())
}

#[cfg(test)]
mod tests;
