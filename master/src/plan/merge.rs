//! The check of a merge that an operator requests: which of two tablets is the left one, and whether they can be merged.
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
/// `NotFound` when no server reports a tablet; `FailedPrecondition` for tablets of METADATA, of different tables, that
/// are not adjacent, or of a table that is being created or deleted; `InvalidArgument` for a tablet with itself.
pub fn merge_pair(cluster: &ClusterSnapshot, tablet: TabletId, with: MergeWith) -> Result<MergePair, Error> {
    let first = find(cluster, tablet, "merged")?;
    let second = match with {
        MergeWith::Tablet(with) if with == tablet => {
            return Err(Error::invalid(format!("tablet {tablet} cannot be merged with itself: give two tablets")));
        }
        MergeWith::Tablet(with) => find(cluster, with, "merged")?,
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

/// A tablet of a user table that serves. `never`: what is never done to METADATA's tablets.
pub(super) fn find<'a>(
    cluster: &'a ClusterSnapshot,
    tablet: TabletId,
    never: &str,
) -> Result<&'a TabletDescriptor, Error> {
    let found = cluster.tablets().remove(&tablet).ok_or_else(|| {
        let message =
            format!("no server reports a tablet {tablet}; ebla tablet list TABLE shows the tablets of a table");
        Error::new(Reason::NotFound, message)
    })?;
    if found.table == TableId::METADATA {
        return Err(refused(format!("tablet {tablet} belongs to METADATA, whose tablets are never {never}")));
    }
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
