//! The maintenance loop: one tick, four policies.
//!
//! One task probes all replicas four times a second and applies the policies to them:
//! - `flush`: which memtables are flushed, and when writes stall because memtables use too much memory;
//! - `purge`: how far Raft logs are truncated below the flushed entries;
//! - `split`: the automatic tablet split above a size;
//! - `gc`: the garbage collection of excess cell versions.

mod flush;
mod gc;
mod purge;
mod split;

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::LogIndex;
use ebla_runtime::Runtime;
use ebla_storage::flush::TabletLoad;
use tracing::debug;

use self::flush::Flusher;
use self::gc::GcScheduler;
use self::purge::{LogPurger, LogRetention};
use self::split::AutoSplitter;
use crate::tablet::Tablet;
use crate::tablet::lifecycle::manager::TabletManager;

/// The period of the loop.
const TICK: Duration = Duration::from_millis(250);
/// Every this many ticks, a full probe also reads sizes and flushed positions.
const TICKS_PER_FULL_PROBE: u64 = 8;

/// The limits that the maintenance loop enforces.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceLimits {
    /// Memory of the memtables of all tablets, in bytes.
    pub memtable_bytes: u64,
    /// The commit log on disk, in bytes.
    pub log_bytes: u64,
    /// A tablet above this size is split, in bytes.
    pub split_bytes: u64,
}

/// Starts the loop; it ends with `runtime.tasks`.
pub fn start(manager: &Arc<TabletManager>, limits: MaintenanceLimits, runtime: &Runtime) {
    let retention = LogRetention::new(manager.log().clone(), limits.log_bytes);
    let maintenance = MaintenanceLoop {
        manager: Arc::clone(manager),
        flusher: Flusher::new(manager, limits, retention.clone(), runtime),
        purger: LogPurger::new(retention, runtime),
        splitter: AutoSplitter::new(manager, limits.split_bytes, runtime),
        gc: GcScheduler::new(runtime),
    };
    runtime.tasks.spawn_until_stopped("maintenance", maintenance.run());
}

struct MaintenanceLoop {
    manager: Arc<TabletManager>,
    flusher: Flusher,
    purger: LogPurger,
    splitter: AutoSplitter,
    gc: GcScheduler,
}

/// How much a probe reads from the stores: sizes come from file indexes, and change slowly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeLevel {
    Cheap,
    Full,
}

/// The result of probing one tablet; size and position are zero in a cheap probe.
struct TabletProbe {
    load: TabletLoad,
    size_bytes: u64,
    flushed_index: LogIndex,
}

impl MaintenanceLoop {
    async fn run(mut self) {
        let mut ticks = 0_u64;
        loop {
            tokio::time::sleep(TICK).await;
            ticks += 1;
            let level = if ticks.is_multiple_of(TICKS_PER_FULL_PROBE) { ProbeLevel::Full } else { ProbeLevel::Cheap };
            let tablets = self.manager.tablets();
            let Some(probes) = self.probe(&tablets, level).await else { continue };
            self.flusher.apply(&tablets, probes.iter().map(|probe| probe.load).collect());
            if level == ProbeLevel::Full {
                log_sizes(&tablets, &probes);
                self.purger.apply(&tablets, &probes);
                self.splitter.apply(&tablets, &probes);
                self.gc.apply(tablets.iter().zip(probes.iter().map(|probe| probe.size_bytes)));
            }
        }
    }

    /// Probes all stores, on a thread that may block. `None` when the pool is full: the next tick probes again.
    async fn probe(&self, tablets: &[Arc<Tablet>], level: ProbeLevel) -> Option<Vec<TabletProbe>> {
        let tablets = tablets.to_vec();
        let probe = move || tablets.iter().map(|tablet| probe_tablet(tablet, level)).collect();
        self.manager.maintenance().run(probe).await.ok()
    }
}

fn probe_tablet(tablet: &Tablet, level: ProbeLevel) -> TabletProbe {
    let state_machine = tablet.state_machine();
    let store = state_machine.store();
    let load = TabletLoad {
        tablet: tablet.id(),
        unflushed_bytes: store.unflushed_bytes().unwrap_or_default(),
        range_tombstones: store.unflushed_range_tombstones(),
    };
    if level == ProbeLevel::Cheap {
        return TabletProbe { load, size_bytes: 0, flushed_index: LogIndex::default() };
    }
    let flushed_index = state_machine.flushed_id().ok().flatten().unwrap_or_default().index;
    TabletProbe { load, size_bytes: state_machine.size_bytes(), flushed_index }
}

fn log_sizes(tablets: &[Arc<Tablet>], probes: &[TabletProbe]) {
    for (tablet, probe) in tablets.iter().zip(probes) {
        let (size_bytes, flushed) = (probe.size_bytes, probe.flushed_index.get());
        debug!(tablet = %tablet.id(), size_bytes, flushed, "tablet sizes sampled");
    }
}
