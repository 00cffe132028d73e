//! The split policy: the automatic split of a tablet above a size or a load, and division of a group above a size, if this server has room for it. The
//! resources of the followers are not known here; the master checks those for what it orders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::capacity::Demand;
use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::tablet_event::TabletEventCause;
use ebla_runtime::Runtime;
use tracing::{info, warn};

use super::hot_tablets::{HotTablet, HotTablets, LedTablet};
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
    hot: HotTablets,
    /// Tablets with a hot row, as logged.
    hot_rows: BTreeSet<TabletId>,
    room: RoomCheck,
    runtime: Runtime,
}

/// Why a tablet is split.
#[derive(Clone, Debug)]
enum SplitCause {
    /// It is too large.
    Size,
    /// It is hot; this key halves its load.
    Load(RowKey),
}

/// Checks whether this server has room for a split or a division.
#[derive(Clone)]
struct RoomCheck {
    manager: Arc<TabletManager>,
    /// Whether the last check found none, so that it is logged once.
    is_reported: Arc<AtomicBool>,
}

impl RoomCheck {
    /// Whether there is room; logs why there is none.
    async fn passes(&self, demand: Demand) -> bool {
        let capacity = Arc::clone(self.manager.capacity());
        // A full pool: the split is tried again later.
        let Ok(shortage) = self.manager.maintenance().run(move || capacity.shortage(demand)).await else {
            return false;
        };
        let was_reported = self.is_reported.swap(shortage.is_some(), Ordering::Relaxed);
        if let (Some(shortage), false) = (&shortage, was_reported) {
            let server = self.manager.server();
            let reason = shortage.refusal("automatic splits and divisions", server).message;
            warn!(%server, reason, "automatic splits and divisions wait: the server has no room");
        }
        shortage.is_none()
    }
}

impl AutoSplitter {
    pub(super) fn new(manager: &Arc<TabletManager>, limits: MaintenanceLimits, runtime: &Runtime) -> Self {
        Self {
            manager: Arc::clone(manager),
            limits,
            splits: BTreeMap::new(),
            divisions: BTreeMap::new(),
            hot: HotTablets::default(),
            hot_rows: BTreeSet::new(),
            room: RoomCheck { manager: Arc::clone(manager), is_reported: Arc::default() },
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
        let hot = self.hot_tablets(groups, probes);
        for (group, probe) in groups.iter().zip(probes).filter(|(group, _probe)| group.is_leader()) {
            if self.must_divide(group, probe) {
                self.divisions.insert(group.id(), now);
                self.start_division(Arc::clone(group));
                continue;
            }
            // One at a time in a group; the others follow.
            let may_split = |(tablet, _bytes): &&(Tablet, u64)| {
                tablet.id() != TabletId::ROOT
                    && !self.splits.contains_key(&tablet.id())
                    && tablet.metadata().is_ok_and(|tablet| tablet.moves_to.is_none())
            };
            let is_large = |(tablet, bytes): &&(Tablet, u64)| *bytes > self.limit(tablet);
            let tablets = probe.tablets.iter().filter(may_split);
            let largest = tablets.clone().filter(is_large).max_by_key(|(_tablet, bytes)| *bytes);
            let mut busy = tablets.filter_map(|(tablet, _bytes)| match hot.get(&tablet.id()) {
                Some(HotTablet::Split(at)) => Some((tablet, SplitCause::Load(at.clone()))),
                _ => None,
            });
            let due = largest.map(|(tablet, _bytes)| (tablet, SplitCause::Size)).or_else(|| busy.next());
            if let Some((tablet, cause)) = due {
                self.splits.insert(tablet.id(), now);
                self.start_split(tablet.clone(), cause);
            }
        }
    }

    /// The hot tablets that are led here. Those with a hot row are logged once.
    fn hot_tablets(&mut self, groups: &[Arc<TabletGroup>], probes: &[GroupProbe]) -> BTreeMap<TabletId, HotTablet> {
        let now = self.runtime.clock.monotonic();
        // A group of one replica can be led by no other server.
        let is_spreadable = |group: &TabletGroup| {
            group.is_leader() && group.id() != GroupId::METADATA && group.descriptor().membership.replicas.len() > 1
        };
        let led = groups.iter().zip(probes).filter(|(group, _probe)| is_spreadable(group));
        let metadata = led.flat_map(|(_group, probe)| &probe.tablets).filter_map(|(tablet, _)| tablet.metadata().ok());
        let metadata: BTreeMap<_, _> = metadata.map(|tablet| (tablet.descriptor.tablet, tablet)).collect();
        let tablets: Vec<LedTablet> = metadata
            .iter()
            .map(|(id, tablet)| LedTablet {
                tablet: *id,
                range: tablet.descriptor.range.clone(),
                per_second: tablet.load.load(now).per_second(),
            })
            .collect();
        let samples = |id| metadata.get(&id).map(|tablet| tablet.load.samples()).unwrap_or_default();
        let hot = self.hot.update(&tablets, self.limits.split_load, samples);
        let mut reported = BTreeSet::new();
        for (tablet, _row) in hot.iter().filter(|(_tablet, action)| **action == HotTablet::HotRow) {
            reported.insert(*tablet);
            if !self.hot_rows.contains(tablet) {
                warn!(%tablet, "most of the load of a tablet is on one row; a split would not help");
            }
        }
        // One that is not hot for a moment is not logged again.
        self.hot_rows.retain(|tablet| metadata.contains_key(tablet));
        self.hot_rows.extend(reported);
        hot
    }

    fn must_divide(&self, group: &TabletGroup, probe: &GroupProbe) -> bool {
        let bytes: u64 = probe.tablets.iter().map(|(_tablet, bytes)| bytes).sum();
        bytes > self.limits.divide_bytes
            && probe.tablets.len() > 1
            && group.id() != GroupId::METADATA
            && !self.divisions.contains_key(&group.id())
    }

    /// The size above which a tablet is split.
    fn limit(&self, tablet: &Tablet) -> u64 {
        if tablet.table() == TableId::METADATA { self.limits.metadata_split_bytes } else { self.limits.split_bytes }
    }

    fn start_split(&self, tablet: Tablet, cause: SplitCause) {
        let (room, limit) = (self.room.clone(), self.limit(&tablet));
        self.runtime.tasks.spawn_until_stopped("split", async move {
            if tablet.table() == TableId::METADATA && !is_above(&tablet, limit).await {
                return;
            }
            if !room.passes(Demand::tablets(1)).await {
                return;
            }
            let at = match &cause {
                SplitCause::Size => None,
                SplitCause::Load(at) => Some(at.clone()),
            };
            let why = match &cause {
                SplitCause::Size => TabletEventCause::Size,
                SplitCause::Load(_at) => TabletEventCause::Load,
            };
            match (tablet.split_because(why, at, SPLIT_TIMEOUT).await, cause) {
                (Ok((left, right)), SplitCause::Size) => {
                    info!(tablet = %left.tablet, child = %right.tablet, "tablet split (size threshold)");
                }
                (Ok((left, right)), SplitCause::Load(_at)) => {
                    info!(tablet = %left.tablet, child = %right.tablet, "tablet split (load threshold)");
                }
                (Err(failure), _cause) => {
                    warn!(tablet = %tablet.id(), error = %failure.error, "automatic tablet split failed; retrying later");
                }
            }
        });
    }

    fn start_division(&self, group: Arc<TabletGroup>) {
        let room = self.room.clone();
        self.runtime.tasks.spawn_until_stopped("divide", async move {
            if !room.passes(Demand::group(0, 0)).await {
                return;
            }
            let expected = group.descriptor().membership_log_id;
            match group.divide_because(TabletEventCause::Size, expected, SPLIT_TIMEOUT).await {
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

/// Whether a METADATA tablet has more than `limit` bytes and can be split. Its size as probed contains an equal share of the bytes that the group has not
/// flushed, which may all be in another tablet: without this check the tablets of a small METADATA would be split again and again.
async fn is_above(tablet: &Tablet, limit: u64) -> bool {
    match tablet.metadata_rows().await {
        Ok(rows) => rows.len() > 1 && rows.iter().map(|(_row, bytes)| bytes).sum::<u64>() > limit,
        Err(failure) => {
            warn!(tablet = %tablet.id(), error = %failure.error, "size of a METADATA tablet not determined; retrying later");
            false
        }
    }
}
