//! Where replicas come from: folders made, named and registered for the state machines, children started.
//!
//! The set of replicas (`hosted`) owns what is here; the machines reach it through [`Nursery`] without keeping it alive.

use std::path::Path;
use std::sync::{Arc, Weak};

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_storage::log::{CommitLog, LogError, Record};
use ebla_storage::registry::ReplicaState;
use ebla_storage::tablet::TabletStore;

use crate::raft::{GroupId, Origin};
use crate::tablet::hosted::Hosted;
use crate::tablet::machine::Nursery;
use crate::tablet::state::TabletState;

/// What the state machines need of the set, without keeping it alive.
pub(super) struct Cradle {
    pub(super) hosted: Weak<Hosted>,
}

impl Cradle {
    fn hosted(&self) -> Result<Arc<Hosted>, Error> {
        self.hosted.upgrade().ok_or_else(|| Error::new(Reason::Cancelled, "the server stops"))
    }
}

impl Nursery for Cradle {
    fn knows(&self, replica: GroupId) -> bool {
        let Ok(hosted) = self.hosted() else { return false };
        let registry = hosted.registry();
        let is_here = registry.replica(replica).is_some_and(|record| record.state != ReplicaState::Creating);
        is_here || registry.is_removed(replica)
    }

    fn build(&self, replica: GroupId, fill: &mut dyn FnMut(&Path) -> Result<(), Error>) -> Result<(), Error> {
        let hosted = self.hosted()?;
        let registry = hosted.registry();
        let folder = registry.begin_create(replica)?;
        fill(&folder)?;
        begin_log(hosted.log(), replica)?;
        registry.finish_create(replica)?;
        Ok(())
    }

    fn start_child(&self, parent: GroupId, split_index: u64, child: GroupId) {
        let Ok(hosted) = self.hosted() else { return };
        let is_live = hosted.registry().replica(child).is_some_and(|record| record.state == ReplicaState::Live);
        if is_live {
            hosted.start_later(child, Origin { parent: parent.tablet, split_index });
        }
    }

    fn replace(&self, replica: GroupId, folder: &Path, old: Arc<TabletStore>) -> Result<TabletStore, Error> {
        let hosted = self.hosted()?;
        let registry = hosted.registry();
        let proof = TabletStore::open(folder, hosted.shared())?;
        let last = TabletState::load(proof.meta_scan(&[])?)?.applied;
        drop(proof);
        let target = registry.begin_install(replica)?;
        std::fs::rename(folder, &target)
            .map_err(|error| Error::internal(format!("move snapshot to {}: {error}", target.display())))?;
        // Readers that still hold the old store go on reading files that have no name any more.
        drop(old);
        let path = registry.finish_install(replica, last)?;
        Ok(TabletStore::open(&path, hosted.shared())?)
    }
}

/// Makes the log remember a new group, durably, before the registry calls its replica live: a live replica that the log
/// does not know has lost what it promised. Blocking.
pub(super) fn begin_log(log: &CommitLog, id: GroupId) -> Result<(), Error> {
    let failed = |error: LogError| Error::internal(format!("begin the log of {id}: {error}"));
    log.add_group(id).map_err(failed)?;
    // There is nothing to truncate: any first record will do.
    log.submit_and_wait(vec![Record::Truncate { group: id, after: 0 }]).map_err(failed)
}
