//! The admin call for one group: how far each of its replicas is in its log.

use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_proto::operate;
use ebla_proto::status::from_status;
use tonic::Response;

use crate::admin::{Admin, GroupStatus};
use crate::operate::group_status;

/// A group with its replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReplicas {
    /// The group.
    pub status: GroupStatus,
    /// Its members and other replicas of it that run, by server; empty from a master of an earlier release.
    pub replicas: Vec<operate::ReplicaStatus>,
}

impl Admin {
    /// A group with how far each of its replicas is in its log, as their servers report it at this time.
    ///
    /// # Errors
    /// `NotFound` when no server reports the group; `Unavailable` when no master is active; `PermissionDenied` for a caller who is no
    /// administrator.
    pub async fn group_replicas(&self, group: GroupId) -> Result<GroupReplicas, Error> {
        let message = operate::GroupsRequest { group: group.get() };
        let reply = self.operate().groups(self.request(message)).await;
        let reply = reply.map(Response::into_inner).map_err(|status| from_status(&status).0)?;
        // A master of an earlier release returns all groups.
        let is_wanted = |one: &operate::GroupStatus| one.group.as_ref().is_some_and(|one| one.group == group.get());
        let found = reply.groups.into_iter().find(is_wanted);
        let mut found =
            found.ok_or_else(|| Error::new(Reason::NotFound, format!("no server has a replica of group {group}")))?;
        let replicas = std::mem::take(&mut found.replicas);
        Ok(GroupReplicas { status: group_status(found)?, replicas })
    }
}
