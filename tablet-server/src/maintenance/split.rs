//! The split policy: the automatic tablet split above a size.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::TabletId;
use ebla_runtime::Runtime;
use tracing::{info, warn};

use super::TabletProbe;
use crate::tablet::Tablet;
use crate::tablet::lifecycle::manager::TabletManager;

/// Timeout of a tablet split.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before a failed tablet split is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Splits the tablets led here that are above the size threshold.
pub(super) struct AutoSplitter {
    manager: Arc<TabletManager>,
    split_bytes: u64,
    /// When a split of each tablet was last attempted.
    attempts: BTreeMap<TabletId, Duration>,
    runtime: Runtime,
}

impl AutoSplitter {
    pub(super) fn new(manager: &Arc<TabletManager>, split_bytes: u64, runtime: &Runtime) -> Self {
        Self { manager: Arc::clone(manager), split_bytes, attempts: BTreeMap::new(), runtime: runtime.clone() }
    }

    /// Starts the tablet splits that are due.
    pub(super) fn apply(&mut self, tablets: &[Arc<Tablet>], probes: &[TabletProbe]) {
        if self.manager.is_draining() {
            return;
        }
        let now = self.runtime.clock.monotonic();
        self.attempts.retain(|_, at| now.saturating_sub(*at) < RETRY_AFTER);
        for (tablet, probe) in tablets.iter().zip(probes) {
            let is_due = probe.size_bytes > self.split_bytes && tablet.id() != TabletId::ROOT && tablet.is_leader();
            if is_due && !self.attempts.contains_key(&tablet.id()) {
                self.attempts.insert(tablet.id(), now);
                self.start_split(Arc::clone(tablet));
            }
        }
    }

    fn start_split(&self, tablet: Arc<Tablet>) {
        self.runtime.tasks.spawn_until_stopped("split", async move {
            match tablet.split(None, SPLIT_TIMEOUT).await {
                Ok((left, right)) => {
                    info!(tablet = %left.tablet, child = %right.tablet, "tablet split (size threshold)");
                }
                Err(failure) => {
                    warn!(tablet = %tablet.id(), error = %failure.error, "automatic tablet split failed; retrying later");
                }
            }
        });
    }
}
