//! The replica factory: creates and registers the folders of replicas for the state machines, and starts children of divided groups.
//!
//! The [`TabletManager`] owns the replicas; the state machines reach it through [`ReplicaFactory`] without keeping it alive.

use std::path::Path;
use std::sync::{Arc, Weak};

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::LogIndex;
use ebla_storage::log::{CommitLog, LogError, Record};
use ebla_storage::registry::{ReplicaOrigin, ReplicaRecord, ReplicaState};
use ebla_storage::store::GroupStore;

use crate::raft::{GroupOrigin, GroupReplica};
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::{ChildLookup, ReplicaFactory};
use crate::tablet::lifecycle::manager::TabletManager;

/// The manager as the state machines see it, without keeping it alive.
pub(super) struct LocalReplicaFactory {
    pub(super) manager: Weak<TabletManager>,
}

impl LocalReplicaFactory {
    fn manager(&self) -> Result<Arc<TabletManager>, Error> {
        self.manager.upgrade().ok_or_else(|| Error::new(Reason::Cancelled, "the server is stopping"))
    }
}

impl ReplicaFactory for LocalReplicaFactory {
    fn find_child(&self, replica: GroupReplica, origin: GroupOrigin) -> ChildLookup {
        let Ok(manager) = self.manager() else { return ChildLookup::Missing };
        let registry = manager.registry();
        match find_child(&registry.replicas(), replica, division(origin)) {
            ChildLookup::Missing if registry.is_removed(replica) => ChildLookup::Known,
            found => found,
        }
    }

    fn create_store(
        &self,
        replica: GroupReplica,
        origin: GroupOrigin,
        fill: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let manager = self.manager()?;
        let registry = manager.registry();
        let folder = registry.begin_create(replica, division(origin))?;
        fill(&folder)?;
        register_group(manager.log(), replica)?;
        registry.finish_create(replica)?;
        Ok(())
    }

    fn start_child(&self, parent: GroupReplica, divide_index: LogIndex, child: GroupReplica) {
        let Ok(manager) = self.manager() else { return };
        let is_live = manager.registry().replica(child).is_some_and(|record| record.state == ReplicaState::Live);
        if is_live {
            manager.start_in_background(child, GroupOrigin { parent: parent.group, divide_index });
        }
    }

    fn install_store(&self, replica: GroupReplica, folder: &Path, old: Arc<GroupStore>) -> Result<GroupStore, Error> {
        let manager = self.manager()?;
        let registry = manager.registry();
        let opened = GroupStore::open(folder, manager.shared())?;
        let last = GroupState::load(opened.meta_scan(&[])?)?.applied;
        drop(opened);
        let target = registry.begin_install(replica)?;
        std::fs::rename(folder, &target)
            .map_err(|error| Error::internal(format!("move snapshot to {}: {error}", target.display())))?;
        // Readers that still hold the old store keep reading its unlinked files.
        drop(old);
        let path = registry.finish_install(replica, last)?;
        Ok(GroupStore::open(&path, manager.shared())?)
    }
}

/// Looks for the child `replica` of a division among the replicas of the server.
fn find_child(here: &[(GroupReplica, ReplicaRecord)], replica: GroupReplica, division: ReplicaOrigin) -> ChildLookup {
    let of_group =
        here.iter().filter(|(id, record)| id.group == replica.group && record.state != ReplicaState::Creating);
    // One that was created empty is filled by the leader of its group.
    let is_child = |(id, record): &(GroupReplica, ReplicaRecord)| {
        *id == replica && (record.origin == ReplicaOrigin::Empty || record.origin == division)
    };
    let mut found = of_group.peekable();
    if found.peek().is_none() {
        return ChildLookup::Missing;
    }
    if found.all(is_child) { ChildLookup::Known } else { ChildLookup::Unrelated }
}

/// The origin of a child, as the registry records it.
pub(super) const fn division(origin: GroupOrigin) -> ReplicaOrigin {
    ReplicaOrigin::Division { parent: origin.parent, index: origin.divide_index }
}

/// The origin that the messages of a replica carry, from its record.
pub(super) fn origin_of(record: &ReplicaRecord) -> GroupOrigin {
    match record.origin {
        ReplicaOrigin::Division { parent, index } => GroupOrigin { parent, divide_index: index },
        ReplicaOrigin::Empty | ReplicaOrigin::Seed => GroupOrigin::default(),
    }
}

/// Registers a new group in the log, durably, before the registry calls its replica live: a live replica that the log
/// does not know counts as having lost its promises. Blocking.
pub(super) fn register_group(log: &CommitLog, id: GroupReplica) -> Result<(), Error> {
    let failed = |error: LogError| Error::internal(format!("register {id} in the commit log: {error}"));
    log.add_group(id).map_err(failed)?;
    // There is nothing to truncate; any first record registers the group.
    log.submit_and_wait(vec![Record::Truncate { group: id, after: LogIndex::default() }]).map_err(failed)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{GroupId, ReplicaId};

    use super::*;

    #[test]
    fn only_a_replica_that_the_same_division_has_created_is_its_child() {
        let id = |group, replica| GroupReplica { group: GroupId::new(group), replica: ReplicaId::new(replica) };
        let of = |parent, index| ReplicaOrigin::Division { parent: GroupId::new(parent), index: LogIndex::new(index) };
        let found = |here: GroupReplica, state, origin| {
            let record = ReplicaRecord { folder: String::new(), state, installed: None, origin };
            find_child(&[(here, record)], id(7, 2), of(3, 40))
        };
        let live = ReplicaState::Live;
        assert_eq!(find_child(&[], id(7, 2), of(3, 40)), ChildLookup::Missing);
        assert_eq!(found(id(8, 2), live, ReplicaOrigin::Seed), ChildLookup::Missing, "another group");
        assert_eq!(found(id(7, 2), ReplicaState::Creating, of(3, 40)), ChildLookup::Missing, "a crash interrupted it");
        assert_eq!(found(id(7, 2), live, of(3, 40)), ChildLookup::Known);
        assert_eq!(found(id(7, 2), ReplicaState::Quarantined, of(3, 40)), ChildLookup::Known);
        assert_eq!(found(id(7, 2), live, ReplicaOrigin::Empty), ChildLookup::Known);
        for other in [of(3, 41), of(4, 40), ReplicaOrigin::Seed] {
            assert_eq!(found(id(7, 2), live, other), ChildLookup::Unrelated, "{other:?}");
        }
        assert_eq!(found(id(7, 1), live, of(3, 40)), ChildLookup::Unrelated, "another replica of such a group");
    }
}
