//! The memory policy: holds locality groups in memory up to date. What flushes and compactions write is in memory at once; this determines what all of it
//! needs, loads groups that fit again, and logs when the budget does not suffice any more.

use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_runtime::Runtime;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// Loads groups in memory, one store at a time.
pub(super) struct MemoryLoader {
    manager: Arc<TabletManager>,
    permit: Arc<Semaphore>,
    runtime: Runtime,
    /// Whether the last look found groups that do not fit.
    had_excess: bool,
}

impl MemoryLoader {
    pub(super) fn new(manager: &Arc<TabletManager>, runtime: &Runtime) -> Self {
        Self {
            manager: Arc::clone(manager),
            permit: Arc::new(Semaphore::new(1)),
            runtime: runtime.clone(),
            had_excess: false,
        }
    }

    /// Logs a change of what fits, and starts a pass over the stores unless one runs.
    pub(super) fn apply(&mut self, groups: &[Arc<TabletGroup>]) {
        self.log_excess();
        let in_memory = |group: &&Arc<TabletGroup>| {
            let store = group.state_machine().store();
            store.has_memory_groups() && !store.tolerates_damage()
        };
        let groups: Vec<_> = groups.iter().filter(in_memory).map(Arc::clone).collect();
        if groups.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() else { return };
        let pool = self.manager.maintenance().clone();
        self.runtime.tasks.spawn_until_stopped("load-memory-groups", async move {
            let _permit = permit;
            for group in groups {
                let state_machine = Arc::clone(group.state_machine());
                let store = state_machine.store();
                match pool.run(move || store.load_memory_groups()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let error = Error::from(error);
                        if error.reason == Reason::DataDamaged {
                            state_machine.damage().report();
                        }
                        warn!(group = %group.id(), %error, "locality groups in memory not loaded; will retry");
                    }
                    // The pool is full or stopped: the next pass tries again.
                    Err(_postponed) => return,
                }
            }
        });
    }

    fn log_excess(&mut self) {
        let groups = self.manager.shared().memory_groups();
        let has_excess = groups.excess_bytes > 0;
        if has_excess != self.had_excess {
            let (needed, limit, excess) = (groups.needed_bytes, groups.limit_bytes, groups.excess_bytes);
            if has_excess {
                warn!(
                    needed,
                    limit, excess, "locality groups in memory exceed their budget: the largest are served from files"
                );
            } else {
                info!(needed, limit, "all locality groups in memory fit into their budget again");
            }
        }
        self.had_excess = has_excess;
    }
}
