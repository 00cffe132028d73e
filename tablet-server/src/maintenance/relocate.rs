//! The relocation policy: moves the cells of families whose locality group or options have changed into other column families.
//!
//! Each replica does it by itself. A step holds up the replica's apply, so steps are small, and between two of them apply has at
//! least as much time as the last one took.

use std::sync::Arc;

use ebla_model::Reason;
use ebla_runtime::Runtime;
use ebla_storage::store::Relocation;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// Cells moved in one step, in bytes.
const STEP_BYTES: usize = 256 << 10;

/// Relocates the cells of one group at a time.
pub(super) struct Relocator {
    manager: Arc<TabletManager>,
    permit: Arc<Semaphore>,
    runtime: Runtime,
}

impl Relocator {
    pub(super) fn new(manager: &Arc<TabletManager>, runtime: &Runtime) -> Self {
        Self { manager: Arc::clone(manager), permit: Arc::new(Semaphore::new(1)), runtime: runtime.clone() }
    }

    /// Starts the relocation of the first group that needs one.
    pub(super) fn apply(&self, groups: &[Arc<TabletGroup>]) {
        let needs = |group: &&Arc<TabletGroup>| {
            let store = group.state_machine().store();
            store.is_relocating() && !store.tolerates_damage()
        };
        let Some(group) = groups.iter().find(needs).map(Arc::clone) else { return };
        let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() else { return };
        let (pool, clock) = (self.manager.maintenance().clone(), self.runtime.clock.clone());
        self.runtime.tasks.spawn_until_stopped("relocate", async move {
            let _permit = permit;
            loop {
                let state_machine = Arc::clone(group.state_machine());
                let started = clock.monotonic();
                match pool.run(move || state_machine.relocate(STEP_BYTES)).await {
                    Ok(Ok(Relocation::More)) => {}
                    Ok(Ok(Relocation::Complete)) => {
                        info!(group = %group.id(), "cells of changed locality groups moved");
                        return;
                    }
                    Ok(Err(error)) => {
                        if error.reason == Reason::DataDamaged {
                            group.state_machine().damage().report();
                        }
                        // The next tick tries again: the store may have been replaced.
                        warn!(group = %group.id(), %error, "cells of changed locality groups not moved; will retry");
                        return;
                    }
                    // The pool is full or stopped: the next tick tries again.
                    Err(_postponed) => return,
                }
                tokio::time::sleep(clock.monotonic().saturating_sub(started)).await;
            }
        });
    }
}
