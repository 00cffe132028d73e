//! The scrubber: reads all stores of the server once a week, slowly, and reports damaged blocks before a read meets them.
//!
//! Damage of a block that is not read stays unnoticed otherwise, until the other copies are damaged or lost too. The first pass begins
//! a while after the start, at a random time, so that servers that start together do not read together.

use std::sync::Arc;

use ebla_model::Reason;
use ebla_runtime::Runtime;
use tracing::{debug, info};

use crate::config::ScrubOptions;
use crate::tablet::lifecycle::manager::{ScrubRate, TabletManager};

/// Starts the scrubber; it ends with `runtime.tasks`.
pub(super) fn start(manager: &Arc<TabletManager>, options: ScrubOptions, runtime: &Runtime) {
    let (manager, clock, rng) = (Arc::clone(manager), runtime.clock.clone(), runtime.rng.clone());
    runtime.tasks.spawn_until_stopped("scrub", async move {
        manager.scrub_results().set_rate(options.bytes_per_second);
        tokio::time::sleep(rng.jitter(options.first_after)).await;
        loop {
            let started = clock.monotonic();
            pass(&manager, options.bytes_per_second).await;
            let took = clock.monotonic().saturating_sub(started);
            tokio::time::sleep(rng.jitter(options.period).saturating_sub(took)).await;
        }
    });
}

/// Reads the stores of all groups.
async fn pass(manager: &TabletManager, bytes_per_second: u64) {
    let results = manager.scrub_results();
    results.begin();
    for group in manager.groups() {
        match manager.scrub(&group, ScrubRate::BytesPerSecond(bytes_per_second)).await {
            Ok(bytes) => results.add(bytes),
            Err(error) if error.reason == Reason::DataDamaged => group.state_machine().damage().report(),
            // The store is closed or replaced, or there is no room for a copy: the next pass reads it.
            Err(error) => debug!(group = %group.id(), %error, "store not scrubbed"),
        }
    }
    let bytes = results.finish(manager.clock().monotonic());
    info!(server = %manager.server(), bytes, "all stores were scrubbed");
}
