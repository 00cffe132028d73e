//! The split policy: the automatic split of a tablet, and division of a group, above a size.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{GroupId, TabletId};
use ebla_runtime::Runtime;
use tracing::{info, warn};

use super::{GroupProbe, MaintenanceLimits};
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::{Tablet, TabletGroup};

/// Timeout of a split or a division.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before a failed split or division is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Splits the tablets and divides the groups led here that are above their size thresholds.
pub(super) struct AutoSplitter {
    manager: Arc<TabletManager>,
    limits: MaintenanceLimits,
    /// When a split of each tablet was last attempted.
    splits: BTreeMap<TabletId, Duration>,
    /// When a division of each group was last attempted.
    divisions: BTreeMap<GroupId, Duration>,
    runtime: Runtime,
}

impl AutoSplitter {
    pub(super) fn new(manager: &Arc<TabletManager>, limits: MaintenanceLimits, runtime: &Runtime) -> Self {
        Self {
            manager: Arc::clone(manager),
            limits,
            splits: BTreeMap::new(),
            divisions: BTreeMap::new(),
            runtime: runtime.clone(),
        }
    }

    /// Starts the splits and divisions that are due.
    pub(super) fn apply(&mut self, groups: &[Arc<TabletGroup>], probes: &[GroupProbe]) {
        if self.manager.is_draining() {
            return;
        }
        let now = self.runtime.clock.monotonic();
        self.splits.retain(|_, at| now.saturating_sub(*at) < RETRY_AFTER);
        self.divisions.retain(|_, at| now.saturating_sub(*at) < RETRY_AFTER);
        for (group, probe) in groups.iter().zip(probes).filter(|(group, _probe)| group.is_leader()) {
            if self.must_divide(group, probe) {
                self.divisions.insert(group.id(), now);
                self.start_division(Arc::clone(group));
                continue;
            }
            // One at a time in a group; the others follow.
            let is_due = |(tablet, bytes): &&(Tablet, u64)| {
                *bytes > self.limits.split_bytes
                    && tablet.id() != TabletId::ROOT
                    && !self.splits.contains_key(&tablet.id())
            };
            if let Some((tablet, _bytes)) = probe.tablets.iter().filter(is_due).max_by_key(|(_tablet, bytes)| *bytes) {
                self.splits.insert(tablet.id(), now);
                self.start_split(tablet.clone());
            }
        }
    }

    fn must_divide(&self, group: &TabletGroup, probe: &GroupProbe) -> bool {
        let bytes: u64 = probe.tablets.iter().map(|(_tablet, bytes)| bytes).sum();
        bytes > self.limits.divide_bytes
            && probe.tablets.len() > 1
            && group.id() != GroupId::METADATA
            && !self.divisions.contains_key(&group.id())
    }

    fn start_split(&self, tablet: Tablet) {
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

    fn start_division(&self, group: Arc<TabletGroup>) {
        self.runtime.tasks.spawn_until_stopped("divide", async move {
            match group.divide(group.descriptor().membership_log_id, SPLIT_TIMEOUT).await {
                Ok(division) => {
                    info!(group = %group.id(), child = %division.right.group, "group divided (size threshold)");
                }
                Err(failure) => {
                    warn!(group = %group.id(), error = %failure.error, "automatic group division failed; retrying later");
                }
            }
        });
    }
}
