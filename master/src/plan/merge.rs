//! The check of a merge that an operator requests: which of two tablets is the left one, and whether they can be merged.
//!
//! Tablets of METADATA are merged too, except the root tablet, and not while a server runs a release that cannot merge them: its replicas
//! would refuse the entry that others apply.
//!
//! The tablets are those of the servers' reports. The group's leader checks again, and the state of the group decides.

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;

use crate::cluster::ClusterSnapshot;

/// The other tablet of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeWith {
    /// This tablet, before or after the first one.
    Tablet(TabletId),
    /// The tablet after it.
    Next,
}

/// Two adjacent tablets that can be merged, when they are in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergePair {
    /// The tablet with the lower rows, which is gone after the merge.
    pub left: TabletDescriptor,
    /// The tablet with the higher rows, which keeps its id.
    pub right: TabletDescriptor,
}

/// The pair of a requested merge. Needs the servers' reports and the tables of the snapshot.
///
/// # Errors
/// `NotFound` when no server reports a tablet; `FailedPrecondition` for the root tablet, for tablets of METADATA while a server may run
/// an earlier release, for tablets of different tables, that are not adjacent, or of a table that is being created or deleted;
/// `InvalidArgument` for a tablet with itself.
pub fn merge_pair(cluster: &ClusterSnapshot, tablet: TabletId, with: MergeWith) -> Result<MergePair, Error> {
    let first = find_mergeable(cluster, tablet)?;
    let second = match with {
        MergeWith::Tablet(with) if with == tablet => {
            return Err(Error::invalid(format!("tablet {tablet} cannot be merged with itself: give two tablets")));
        }
        MergeWith::Tablet(with) => find_mergeable(cluster, with)?,
        MergeWith::Next => next(cluster, first)?,
    };
    if first.table != second.table {
        let tables = format!("table {} and table {}", first.table, second.table);
        return Err(refused(format!("tablets {tablet} and {} belong to {tables}", second.tablet)));
    }
    let (left, right) = if first.range.start() < second.range.start() { (first, second) } else { (second, first) };
    if left.range.end() != Some(right.range.start()) {
        let ranges = format!("{} has {} and {} has {}", left.tablet, left.range, right.tablet, right.range);
        return Err(refused(format!("tablets that are not adjacent cannot be merged: {ranges}")));
    }
    Ok(MergePair { left: left.clone(), right: right.clone() })
}

/// The move that brings the tablets of a pair into one group, if they are in different ones: the one with less data moves to the
/// group of the other.
#[must_use]
pub fn move_before_merge(cluster: &ClusterSnapshot, pair: &MergePair) -> Option<(TabletId, GroupId)> {
    if pair.left.group == pair.right.group {
        return None;
    }
    let size = |tablet: &TabletDescriptor| cluster.tablet_size(tablet.tablet).unwrap_or_default();
    Some(if size(&pair.left) <= size(&pair.right) {
        (pair.left.tablet, pair.right.group)
    } else {
        (pair.right.tablet, pair.left.group)
    })
}

/// Whether the pair has been merged: the right tablet has all rows of the left one. After an unknown outcome.
#[must_use]
pub fn merged(cluster: &ClusterSnapshot, pair: &MergePair) -> Option<TabletDescriptor> {
    let tablets = cluster.tablets();
    let right = tablets.get(&pair.right.tablet).filter(|_right| !tablets.contains_key(&pair.left.tablet))?;
    let has_left = right.range.start() <= pair.left.range.start() && right.generation > pair.right.generation;
    has_left.then(|| TabletDescriptor::clone(right))
}

/// A tablet that may be merged.
fn find_mergeable(cluster: &ClusterSnapshot, tablet: TabletId) -> Result<&TabletDescriptor, Error> {
    let found = find(cluster, tablet)?;
    if tablet == TabletId::ROOT {
        return Err(refused(format!("tablet {tablet} is the root tablet, which is never split or merged")));
    }
    if found.table == TableId::METADATA && metadata_split_bytes(cluster).is_none() {
        return Err(refused(format!(
            "tablet {tablet} belongs to METADATA, whose tablets can be merged only while all tablet servers respond and run a release that \
             can do it; ebla status shows the servers, ebla cluster upgrade status their releases"
        )));
    }
    Ok(found)
}

/// The size above which any server splits a tablet of METADATA. `None` while a server reports none, as one of an earlier release, or a
/// member of METADATA's group does not report at all.
pub(super) fn metadata_split_bytes(cluster: &ClusterSnapshot) -> Option<u64> {
    let group = cluster.groups().remove(&GroupId::METADATA)?;
    let responds = |server| cluster.servers.get(&server).is_some_and(|known| known.report.is_some());
    if !group.membership.replicas().all(|member| responds(member.server)) {
        return None;
    }
    let reports = cluster.servers.values().filter_map(|server| server.report.as_ref());
    reports.map(|report| report.metadata_split_bytes).min().filter(|bytes| *bytes > 0)
}

/// A tablet that serves.
pub(crate) fn find(cluster: &ClusterSnapshot, tablet: TabletId) -> Result<&TabletDescriptor, Error> {
    let found = cluster.tablets().remove(&tablet).ok_or_else(|| {
        let message =
            format!("no server reports a tablet {tablet}; ebla tablet list TABLE shows the tablets of a table");
        Error::new(Reason::NotFound, message)
    })?;
    if !cluster.is_served(found.table) {
        return Err(refused(format!("the table of tablet {tablet} is being created or deleted")));
    }
    Ok(found)
}

/// The tablet after `tablet` in its table.
fn next<'a>(cluster: &'a ClusterSnapshot, tablet: &TabletDescriptor) -> Result<&'a TabletDescriptor, Error> {
    let Some(end) = tablet.range.end() else {
        let message = format!(
            "tablet {0} is the last one of its table; ebla tablet merge TABLET {0} merges it with the one \
             before it",
            tablet.tablet
        );
        return Err(refused(message));
    };
    let mut tablets = cluster.tablets().into_values();
    let next = tablets.find(|other| other.table == tablet.table && other.range.start() == end);
    next.ok_or_else(|| Error::new(Reason::Unavailable, format!("no server reports the tablet after {}", tablet.tablet)))
}

fn refused(message: String) -> Error {
    Error::new(Reason::FailedPrecondition, message)
}
