//! The replica factory: creates and registers the folders of replicas for the state machines, and starts children of divided groups.
//!
//! The [`TabletManager`] owns the replicas; the state machines reach it through [`ReplicaFactory`] without keeping it alive.

use std::path::Path;
use std::sync::{Arc, Weak};

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::LogIndex;
use ebla_storage::log::{CommitLog, LogError, Record};
use ebla_storage::registry::ReplicaState;
use ebla_storage::store::GroupStore;

use crate::raft::{GroupOrigin, GroupReplica};
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::ReplicaFactory;
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
    fn is_known(&self, replica: GroupReplica) -> bool {
        let Ok(manager) = self.manager() else { return false };
        let registry = manager.registry();
        let is_here = registry.replica(replica).is_some_and(|record| record.state != ReplicaState::Creating);
        is_here || registry.is_removed(replica)
    }

    fn create_store(
        &self,
        replica: GroupReplica,
        fill: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let manager = self.manager()?;
        let registry = manager.registry();
        let folder = registry.begin_create(replica)?;
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

/// Registers a new group in the log, durably, before the registry calls its replica live: a live replica that the log
/// does not know counts as having lost its promises. Blocking.
pub(super) fn register_group(log: &CommitLog, id: GroupReplica) -> Result<(), Error> {
    let failed = |error: LogError| Error::internal(format!("register {id} in the commit log: {error}"));
    log.add_group(id).map_err(failed)?;
    // There is nothing to truncate; any first record registers the group.
    log.submit_and_wait(vec![Record::Truncate { group: id, after: LogIndex::default() }]).map_err(failed)
}
