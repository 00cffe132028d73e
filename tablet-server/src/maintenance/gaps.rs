//! The policy for gaps: when the space of rows is freed that no tablet of a group has any more (`storage::store::gaps`).
//!
//! A tablet that moves or is dropped, and a division of the group, leave files behind that no read needs. Each replica frees them by
//! itself, one group at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::id::GroupId;
use ebla_runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::GroupProbe;
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// The gaps of a group are collected when they have grown by this number of bytes. At each end of a gap two files of 16 MiB at most are
/// written again for it.
const GROWTH_BYTES_MIN: u64 = 4 << 20;

/// Starts collections.
pub(super) struct GapCollector {
    manager: Arc<TabletManager>,
    /// Locked for a calculation.
    collections: Arc<Mutex<Collections>>,
    permit: Arc<Semaphore>,
    runtime: Runtime,
}

impl GapCollector {
    pub(super) fn new(manager: &Arc<TabletManager>, runtime: &Runtime) -> Self {
        Self {
            manager: Arc::clone(manager),
            collections: Arc::default(),
            permit: Arc::new(Semaphore::new(1)),
            runtime: runtime.clone(),
        }
    }

    /// Starts the collection of the group whose gaps have grown most, if one is due.
    pub(super) fn apply(&self, groups: &[Arc<TabletGroup>], probes: &[GroupProbe]) {
        let bytes = probes.iter().map(|probe| (probe.load.group, probe.bytes_in_gaps)).collect();
        let Some(due) = self.collections.lock().due(&bytes) else { return };
        let Some(group) = groups.iter().find(|group| group.id() == due).map(Arc::clone) else { return };
        if group.state_machine().store().tolerates_damage() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() else { return };
        let (pool, collections) = (self.manager.maintenance().clone(), Arc::clone(&self.collections));
        self.runtime.tasks.spawn_until_stopped("collect-gaps", async move {
            let _permit = permit;
            let state_machine = Arc::clone(group.state_machine());
            let collect = move || {
                let before = state_machine.bytes_in_gaps();
                let collected = state_machine.store().collect_gaps();
                (collected, before, state_machine.bytes_in_gaps())
            };
            // The pool is full or stopped: the next tick tries again.
            let Ok((collected, before, left)) = pool.run(collect).await else { return };
            // A failed one is due again when the gaps have grown, or after a restart.
            collections.lock().collected(group.id(), left);
            match collected {
                Ok(()) => info!(group = %group.id(), before, left, "space outside of the tablets freed, in bytes"),
                Err(error) => warn!(group = %group.id(), %error, "space outside of the tablets not freed"),
            }
        });
    }
}

/// What earlier collections have left, in bytes: it is not collected again and again.
#[derive(Debug, Default)]
struct Collections {
    left: BTreeMap<GroupId, u64>,
}

impl Collections {
    /// The group whose gaps have grown most since its last collection, if that is enough. `bytes`: of the gaps of all groups.
    fn due(&mut self, bytes: &BTreeMap<GroupId, u64>) -> Option<GroupId> {
        self.left.retain(|group, left| {
            let now = bytes.get(group).copied();
            // Other compactions make gaps smaller too.
            *left = (*left).min(now.unwrap_or_default());
            now.is_some()
        });
        let growth = |(group, bytes): (&GroupId, &u64)| {
            (bytes.saturating_sub(self.left.get(group).copied().unwrap_or_default()), *group)
        };
        let (growth, group) = bytes.iter().map(growth).max()?;
        (growth >= GROWTH_BYTES_MIN).then_some(group)
    }

    fn collected(&mut self, group: GroupId, left: u64) {
        self.left.insert(group, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn due(collections: &mut Collections, mebibytes: &[(u64, u64)]) -> Option<u64> {
        let bytes = mebibytes.iter().map(|(group, mebibytes)| (GroupId::new(*group), mebibytes * MIB));
        collections.due(&bytes.collect()).map(GroupId::get)
    }

    #[test]
    fn the_largest_gaps_are_due_from_some_mebibytes_on() {
        let mut collections = Collections::default();
        assert_eq!(due(&mut collections, &[]), None);
        assert_eq!(due(&mut collections, &[(1, 3), (2, 0)]), None);
        assert_eq!(due(&mut collections, &[(1, 4), (2, 9), (3, 5)]), Some(2));
    }

    #[test]
    fn what_a_collection_leaves_is_not_due_until_it_has_grown() {
        let mut collections = Collections::default();
        collections.collected(GroupId::new(2), 9 * MIB);
        assert_eq!(due(&mut collections, &[(1, 4), (2, 9)]), Some(1));
        assert_eq!(due(&mut collections, &[(2, 12)]), None);
        assert_eq!(due(&mut collections, &[(2, 13)]), Some(2));
        assert_eq!(due(&mut collections, &[(2, 1)]), None);
        assert_eq!(due(&mut collections, &[(2, 5)]), Some(2), "since the smallest size");
    }

    #[test]
    fn a_group_that_left_and_returned_starts_again() {
        let mut collections = Collections::default();
        collections.collected(GroupId::new(2), 9 * MIB);
        assert_eq!(due(&mut collections, &[]), None);
        assert_eq!(due(&mut collections, &[(2, 9)]), Some(2));
    }
}
