//! The flush policy: which memtables are flushed (`storage::flush` decides), and when writes stall.

use std::sync::Arc;

use ebla_runtime::Runtime;
use ebla_storage::flush::{Budgets, FlushInputs, FlushScheduler, GroupLoad, IdleGroups, LogPin, WriteStall};
use tracing::{error, warn};

use super::MaintenanceLimits;
use super::purge::LogRetention;
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::write::admission::Gate;

/// Flushes memtables within the budgets for memory and log.
pub(super) struct Flusher {
    manager: Arc<TabletManager>,
    scheduler: Arc<FlushScheduler>,
    retention: LogRetention,
    idle: IdleGroups,
    runtime: Runtime,
}

impl Flusher {
    pub(super) fn new(
        manager: &Arc<TabletManager>,
        limits: MaintenanceLimits,
        retention: LogRetention,
        runtime: &Runtime,
    ) -> Self {
        let budgets = Budgets { memtable_bytes: limits.memtable_bytes, log_bytes: limits.log_bytes };
        Self {
            manager: Arc::clone(manager),
            scheduler: Arc::new(FlushScheduler::new(budgets)),
            retention,
            idle: IdleGroups::default(),
            runtime: runtime.clone(),
        }
    }

    /// Opens or closes the admission gate (write stall), and starts the flushes that are due.
    pub(super) fn apply(&mut self, groups: &[Arc<TabletGroup>], loads: Vec<GroupLoad>) {
        let memtable_bytes = self.manager.shared().usage().memtable_bytes as u64;
        let gate = match self.scheduler.write_stall(memtable_bytes) {
            WriteStall::None => Gate::Open,
            WriteStall::Stopped => Gate::Closed,
        };
        self.manager.admission().set_gate(gate);
        let inputs = FlushInputs {
            memtable_bytes,
            idle: self.idle.update(self.runtime.clock.monotonic(), &loads),
            groups: loads,
            log_bytes: self.manager.log().bytes(),
            log_pins: self.log_pins(),
            ..FlushInputs::default()
        };
        for id in self.scheduler.begin(inputs) {
            match groups.iter().find(|group| group.id() == id) {
                Some(group) => self.start_flush(Arc::clone(group)),
                None => self.scheduler.finished(id),
            }
        }
    }

    /// The groups that pin the oldest segment. It is released only when all of them are flushed; then the next pins show.
    fn log_pins(&self) -> Vec<LogPin> {
        let mut before = 0;
        let pins = self.manager.log().oldest_pins().into_iter().map(|(group, bytes)| {
            before += bytes;
            LogPin { group: group.group, bytes: before }
        });
        pins.collect()
    }

    fn start_flush(&self, group: Arc<TabletGroup>) {
        let (scheduler, manager) = (Arc::clone(&self.scheduler), Arc::clone(&self.manager));
        let must_purge = self.retention.is_exceeded();
        self.runtime.tasks.spawn_until_stopped("flush", async move {
            let state_machine = Arc::clone(group.state_machine());
            let flush = move || state_machine.flush().and_then(|()| state_machine.flushed_id());
            match manager.maintenance().run(flush).await {
                Ok(Ok(Some(flushed))) if must_purge => {
                    group.raft().purge(manager.purgeable(&group, flushed.index)).await;
                }
                Ok(Ok(_)) => {}
                // The engine refuses all writes from now on; apply fails in the same way and stops the replica.
                Ok(Err(error)) => error!(group = %group.id(), %error, "flush failed"),
                Err(error) => warn!(group = %group.id(), %error, "flush postponed: maintenance pool unavailable"),
            }
            scheduler.finished(group.id());
        });
    }
}
