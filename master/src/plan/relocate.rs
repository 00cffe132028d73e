//! The check of a move that an operator requests: where the tablet is, and whether it can move to the other group.
//!
//! Tablet and groups are those of the servers' reports. The leader of the tablet's group checks again, and the states of the two
//! groups decide.

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};

use super::merge::find;
use crate::cluster::ClusterSnapshot;

/// A move that can be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The tablet in its present group.
    pub tablet: TabletDescriptor,
    /// The group to move it to.
    pub target: GroupDescriptor,
}

/// Where a tablet is that must be in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relocated {
    /// It is there.
    Already(TabletDescriptor),
    /// It must be moved.
    Needed(Relocation),
}

/// What is needed for `tablet` to be in `group`. Needs the servers' reports and the tables of the snapshot.
///
/// # Errors
/// `NotFound` when no server reports the tablet or the group; `FailedPrecondition` for METADATA and its group, and for a tablet of a
/// table that is being created or deleted.
pub fn relocate(cluster: &ClusterSnapshot, tablet: TabletId, group: GroupId) -> Result<Relocated, Error> {
    let tablet = find(cluster, tablet)?;
    if tablet.table == TableId::METADATA {
        let message = format!("tablet {} belongs to METADATA, whose tablets stay in group 1", tablet.tablet);
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    if group == GroupId::METADATA {
        let message = "group 1 holds METADATA and no other tablets: choose another group; ebla group list shows all";
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    if tablet.group == group {
        return Ok(Relocated::Already(tablet.clone()));
    }
    let target = cluster.groups().remove(&group).ok_or_else(|| {
        Error::new(Reason::NotFound, format!("group {group} does not exist; ebla group list shows all groups"))
    })?;
    Ok(Relocated::Needed(Relocation { tablet: tablet.clone(), target }))
}
