//! What the server does so that each replica of a divided group makes its child of its own rows.
//!
//! A replica that has not applied a division has the rows of the new group in its own store. They are lost there if the replica gets the later
//! state of its group as a snapshot, or if the child exists already and is empty. The other replicas may have lost theirs, so both wait.

use ebla_model::id::{GroupId, LogId, LogIndex};
use ebla_storage::registry::ReplicaState;

use super::TabletManager;
use crate::raft::{GroupOrigin, GroupReplica};
use crate::tablet::TabletGroup;

impl TabletManager {
    /// Up to which entry the log of a group may be purged, of those up to `upto`: not beyond a division whose new group has committed nothing.
    ///
    /// A majority of the new group has its rows when it has committed an entry, because a replica without them accepts no entry. Before that
    /// the group's other replicas must find the division in the log.
    #[must_use]
    pub fn purgeable(&self, group: &TabletGroup, upto: LogIndex) -> LogIndex {
        let id = GroupReplica { group: group.id(), replica: group.replica() };
        let purged = self.parts.log.purged(id).unwrap_or_default().index;
        let children = self.parts.registry.children(group.id()).into_iter();
        let unconfirmed = children.filter(|(child, index)| *index > purged && !self.has_committed(*child));
        unconfirmed.map(|(_child, index)| index.previous()).fold(upto, LogIndex::min)
    }

    /// Whether a replica of this server is known to have applied an entry of its group's log.
    fn has_committed(&self, id: GroupReplica) -> bool {
        let group = self.group(id.group).filter(|group| group.replica() == id.replica);
        group.is_some_and(|group| group.state_machine().applied_state().applied.index > LogId::SEED.index)
    }

    /// Whether the log of the parent's replica here will create the child. A parent that is not open now is opened again.
    pub(super) fn awaits_division(&self, origin: GroupOrigin) -> bool {
        match self.group(origin.parent) {
            Some(parent) => parent.state_machine().applied_state().applied.index < origin.divide_index,
            None => self.has_live(origin.parent),
        }
    }

    fn has_live(&self, group: GroupId) -> bool {
        let replicas = self.parts.registry.replicas();
        replicas.iter().any(|(id, record)| id.group == group && record.state == ReplicaState::Live)
    }
}
