//! Keeps a server whose disk is slow from leading.
//!
//! ```text
//!   every second    the last syncs of the commit log, and the one in progress, are evaluated (`model::sync_delay`)
//!   while slow      leaderships are transferred to servers whose disks are not slow and whose clocks are not off
//! ```
//!
//! A leader applies an entry, and acknowledges it, only when its own log has it on disk (`raft::storage::sync_tracker`). So with a
//! disk that hangs nothing is acknowledged, although two followers store everything; with another leader writes continue.

use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::{Failpoint, Runtime};
use tracing::{info, warn};

use crate::drain;
use crate::tablet::lifecycle::manager::TabletManager;

/// Between two evaluations.
const PERIOD: Duration = Duration::from_secs(1);

/// Starts the evaluations; they end with `runtime.tasks`.
pub(crate) fn start(manager: &Arc<TabletManager>, runtime: &Runtime) {
    runtime.tasks.spawn_until_stopped("slow-disk", watch(Arc::clone(manager)));
}

async fn watch(manager: Arc<TabletManager>) {
    let (server, speeds) = (manager.server(), manager.disk_speeds());
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = manager.clock().monotonic();
        if let Some(state) = speeds.evaluate(now, &manager.log().syncs()) {
            let delay_ms = state.delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
            if state.is_slow {
                warn!(%server, delay_ms, "disk is slow; leaderships are transferred to other servers");
            } else {
                info!(%server, delay_ms, "disk is not slow any more");
            }
        }
        if speeds.state().is_slow && !Failpoint::SlowDiskIgnored.is_enabled() {
            drain::release_leaderships(&manager, &manager.leadership_targets()).await;
        }
    }
}
