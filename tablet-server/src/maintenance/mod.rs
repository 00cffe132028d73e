//! The maintenance loop: one tick, seven policies.
//!
//! One task probes all replicas four times a second and applies the policies to them:
//! - `flush`: which memtables are flushed, and when writes stall because memtables use too much memory;
//! - `purge`: how far Raft logs are truncated below the flushed entries;
//! - `split`: the automatic split of a tablet above a size or a load (`hot_tablets`), and division of a group above a size;
//! - `gc`: the garbage collection of excess cell versions;
//! - `gaps`: the space of cells that tablets which moved or were dropped have left behind;
//! - `relocate`: the move of cells whose locality group has changed;
//! - `memory`: loading of locality groups in memory, within their budget.
//!
//! A task of its own, `scrub`, reads all stores once a week.
//!
//! It also measures the loads of the tablets, has the next segment of the commit log prepared, samples the space on the disk (`capacity`), and has moves of tablets
//! continued.

mod flush;
mod gaps;
mod gc;
mod hot_tablets;
mod memory;
mod purge;
mod relocate;
mod scrub;
mod split;

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::LogIndex;
use ebla_runtime::Runtime;
use ebla_storage::flush::GroupLoad;
use tracing::{debug, warn};

use self::flush::Flusher;
use self::gaps::GapCollector;
use self::gc::GcScheduler;
use self::memory::MemoryLoader;
use self::purge::{LogPurger, LogRetention};
use self::relocate::Relocator;
use self::split::AutoSplitter;
use crate::config::ScrubOptions;
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::{Tablet, TabletGroup};

/// The period of the loop.
const TICK: Duration = Duration::from_millis(250);
/// Every this many ticks, a full probe also reads sizes and flushed positions.
const TICKS_PER_FULL_PROBE: u64 = 8;

/// The limits that the maintenance loop enforces.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceLimits {
    /// Memory of the memtables of all groups, in bytes.
    pub memtable_bytes: u64,
    /// The commit log on disk, in bytes.
    pub log_bytes: u64,
    /// A tablet above this size is split, in bytes.
    pub split_bytes: u64,
    /// A tablet of METADATA above this size is split, in bytes.
    pub metadata_split_bytes: u64,
    /// A tablet with more reads and writes per second is split, if it has much of the load of its server; 0: none.
    pub split_load: u64,
    /// A group above this size with several tablets is divided, in bytes.
    pub divide_bytes: u64,
}

/// Starts the loop; it ends with `runtime.tasks`.
pub fn start(manager: &Arc<TabletManager>, limits: MaintenanceLimits, runtime: &Runtime) {
    let retention = LogRetention::new(manager.log().clone(), limits.log_bytes);
    let maintenance = MaintenanceLoop {
        manager: Arc::clone(manager),
        flusher: Flusher::new(manager, limits, retention.clone(), runtime),
        purger: LogPurger::new(manager, retention, runtime),
        splitter: AutoSplitter::new(manager, limits, runtime),
        gc: GcScheduler::new(runtime),
        gap_collector: GapCollector::new(manager, runtime),
        relocator: Relocator::new(manager, runtime),
        memory_loader: MemoryLoader::new(manager, runtime),
        runtime: runtime.clone(),
    };
    runtime.tasks.spawn_until_stopped("maintenance", maintenance.run());
}

/// Starts the scrubber; it ends with `runtime.tasks`.
pub fn start_scrubber(manager: &Arc<TabletManager>, options: ScrubOptions, runtime: &Runtime) {
    scrub::start(manager, options, runtime);
}

struct MaintenanceLoop {
    manager: Arc<TabletManager>,
    flusher: Flusher,
    purger: LogPurger,
    splitter: AutoSplitter,
    gc: GcScheduler,
    gap_collector: GapCollector,
    relocator: Relocator,
    memory_loader: MemoryLoader,
    runtime: Runtime,
}

/// How much a probe reads from the stores: sizes come from file indexes, and change slowly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeLevel {
    Cheap,
    Full,
}

/// The result of probing one group; a cheap probe has neither tablets nor a position.
struct GroupProbe {
    load: GroupLoad,
    /// The tablets with their sizes in bytes.
    tablets: Vec<(Tablet, u64)>,
    flushed_index: LogIndex,
    /// Of rows that are in no tablet of the group.
    bytes_in_gaps: u64,
}

impl MaintenanceLoop {
    async fn run(mut self) {
        let mut ticks = 0_u64;
        loop {
            tokio::time::sleep(TICK).await;
            ticks += 1;
            self.sample_disk().await;
            let level = if ticks.is_multiple_of(TICKS_PER_FULL_PROBE) { ProbeLevel::Full } else { ProbeLevel::Cheap };
            let groups = self.manager.groups();
            groups.iter().for_each(TabletGroup::resume_moves);
            let Some(probes) = self.probe(&groups, level).await else { continue };
            self.flusher.apply(&groups, probes.iter().map(|probe| probe.load).collect());
            if level == ProbeLevel::Full {
                groups.iter().for_each(|group| group.measure_loads());
                log_sizes(&groups, &probes);
                self.purger.apply(&groups, &probes);
                self.splitter.apply(&groups, &probes);
                self.gc.apply(probes.iter().flat_map(|probe| &probe.tablets));
                self.gap_collector.apply(&groups, &probes);
                self.relocator.apply(&groups);
                self.memory_loader.apply(&groups);
                self.prepare_log_segment();
            }
        }
    }

    /// Samples the space on the disk. A full pool: the next sample tries again.
    async fn sample_disk(&self) {
        let (capacity, server) = (Arc::clone(self.manager.capacity()), self.manager.server());
        let _sampled = self.manager.maintenance().run(move || capacity.sample_disk(server)).await;
    }

    /// Prepares the next segment of the commit log if it is due, in the background.
    fn prepare_log_segment(&self) {
        let (log, pool) = (self.manager.log().clone(), self.manager.maintenance().clone());
        self.runtime.tasks.spawn_until_stopped("prepare-segment", async move {
            // A full pool: the next probe tries again.
            if let Ok(Err(error)) = pool.run(move || log.prepare_segment()).await {
                warn!(%error, "commit log segment not prepared; the log extends its files instead");
            }
        });
    }

    /// Probes all stores, on a thread that may block. `None` when the pool is full: the next tick probes again.
    async fn probe(&self, groups: &[Arc<TabletGroup>], level: ProbeLevel) -> Option<Vec<GroupProbe>> {
        let groups = groups.to_vec();
        let probe = move || groups.iter().map(|group| probe_group(group, level)).collect();
        self.manager.maintenance().run(probe).await.ok()
    }
}

fn probe_group(group: &Arc<TabletGroup>, level: ProbeLevel) -> GroupProbe {
    let state_machine = group.state_machine();
    let store = state_machine.store();
    let load = GroupLoad {
        group: group.id(),
        unflushed_bytes: store.unflushed_bytes().unwrap_or_default(),
        range_tombstones: store.unflushed_range_tombstones(),
    };
    if level == ProbeLevel::Cheap {
        return GroupProbe { load, tablets: Vec::new(), flushed_index: LogIndex::default(), bytes_in_gaps: 0 };
    }
    let flushed_index = state_machine.flushed_id().ok().flatten().unwrap_or_default().index;
    let sizes = state_machine.sizes();
    let sized = |tablet: Tablet| {
        let size_bytes = sizes.get(&tablet.id()).copied().unwrap_or_default();
        (tablet, size_bytes)
    };
    let tablets = group.tablets().into_iter().map(sized).collect();
    GroupProbe { load, tablets, flushed_index, bytes_in_gaps: state_machine.bytes_in_gaps() }
}

fn log_sizes(groups: &[Arc<TabletGroup>], probes: &[GroupProbe]) {
    for (group, probe) in groups.iter().zip(probes) {
        let size_bytes: u64 = probe.tablets.iter().map(|(_tablet, bytes)| bytes).sum();
        let (tablets, flushed) = (probe.tablets.len(), probe.flushed_index.get());
        debug!(group = %group.id(), tablets, size_bytes, flushed, "tablet sizes sampled");
    }
}
