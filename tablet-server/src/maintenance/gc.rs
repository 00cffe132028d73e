//! The garbage collection (GC) policy: when excess versions are removed from which tablet.
//!
//! Versions beyond a family's limit use space and slow reads down, but no reader sees them (`tablet::lifecycle::gc`). A GC
//! pass reads the whole tablet, so it runs only where the tablet has changed enough since its last pass. Two measures tell
//! that: its size in bytes, and the cells that were written. The size alone would miss excess versions that are written while a
//! compaction removes earlier ones, and the cells alone those of a replica that has just started.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::id::TabletId;
use ebla_runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{debug, info};

use crate::tablet::Tablet;

/// A pass is due when a tablet has grown by this fraction of its size since the last one (the first one when it is large
/// enough), or when as large a fraction of the cells that the last pass left was written.
const CHANGE_FRACTION: u64 = 8;
/// The minimum growth in bytes.
const GROWTH_BYTES_MIN: u64 = 4 << 20;
/// The minimum number of written cells.
const WRITTEN_CELLS_MIN: u64 = 4_096;
/// After this many checks a pass that was aborted is due again: a minute. Meanwhile other tablets have theirs.
const CHECKS_BEFORE_RETRY: u32 = 30;

/// Starts GC passes, one at a time for the whole server.
pub(super) struct GcScheduler {
    runtime: Runtime,
    /// Locked for a calculation.
    passes: Arc<Mutex<Passes>>,
    permit: Arc<Semaphore>,
}

impl GcScheduler {
    pub(super) fn new(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone(), passes: Arc::default(), permit: Arc::new(Semaphore::new(1)) }
    }

    /// Checks the sizes of all replicas of the server, and starts a pass where one is due.
    pub(super) fn apply<'a>(&mut self, replicas: impl Iterator<Item = &'a (Tablet, u64)> + Clone) {
        let volume = |tablet: &Tablet, bytes| Volume { bytes, cells_written: tablet.cells_written() };
        let volumes = replicas.clone().map(|(tablet, bytes)| (tablet.id(), volume(tablet, *bytes)));
        let changed = self.passes.lock().changed(volumes);
        let due = replicas
            .filter_map(|(tablet, _bytes)| Some((tablet, *changed.get(&tablet.id())?)))
            .filter(|(tablet, _volume)| tablet.is_leader() && tablet.has_version_limits())
            .max_by_key(|(_tablet, volume)| volume.bytes);
        let Some((tablet, volume)) = due else { return };
        let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() else { return };
        let (tablet, passes) = (tablet.clone(), Arc::clone(&self.passes));
        self.runtime.tasks.spawn_until_stopped("gc", async move {
            let outcome = tablet.collect_garbage().await;
            match outcome {
                Ok(done) => {
                    passes.lock().completed(tablet.id(), volume, done.cells - done.removed);
                    info!(tablet = %tablet.id(), cells = done.cells, removed = done.removed, "garbage collection pass finished");
                }
                Err(failure) if failure.error.reason == Reason::NotLeader => {}
                Err(failure) => {
                    passes.lock().aborted(tablet.id());
                    debug!(tablet = %tablet.id(), error = %failure.error, "garbage collection pass aborted");
                }
            }
            drop(permit);
        });
    }
}

/// How much data a replica has, and has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Volume {
    bytes: u64,
    /// Since the replica started here.
    cells_written: u64,
}

/// What is known of the last pass over a replica.
#[derive(Clone, Copy, Debug, Default)]
struct LastPass {
    /// The smallest size since its start.
    least_bytes: u64,
    /// The cells that were written before it.
    cells_written: u64,
    /// The cells that it left.
    cells_left: u64,
    /// The checks to wait for after a pass that was aborted.
    checks_before_retry: u32,
}

impl LastPass {
    const fn is_next_due(&self, now: Volume) -> bool {
        let growth_bytes = now.bytes.saturating_sub(self.least_bytes);
        let written = now.cells_written.saturating_sub(self.cells_written);
        self.checks_before_retry == 0
            && (is_change_large(growth_bytes, self.least_bytes, GROWTH_BYTES_MIN)
                || is_change_large(written, self.cells_left, WRITTEN_CELLS_MIN))
    }
}

const fn is_change_large(change: u64, of: u64, least: u64) -> bool {
    change >= least && change >= of / CHANGE_FRACTION
}

/// The last pass of each replica. Changes before the first one are not known, so a replica without a pass counts from zero: a new
/// leader starts with a pass.
#[derive(Debug, Default)]
struct Passes(BTreeMap<TabletId, LastPass>);

impl Passes {
    /// The replicas that have changed enough, with their volumes; forgets those that are gone.
    fn changed(&mut self, now: impl Iterator<Item = (TabletId, Volume)>) -> BTreeMap<TabletId, Volume> {
        let mut known = BTreeMap::new();
        let mut changed = BTreeMap::new();
        for (tablet, volume) in now {
            let mut last = self.0.get(&tablet).copied().unwrap_or_default();
            last.least_bytes = last.least_bytes.min(volume.bytes);
            // A replica that started again counts from zero.
            last.cells_written = last.cells_written.min(volume.cells_written);
            last.checks_before_retry = last.checks_before_retry.saturating_sub(1);
            known.insert(tablet, last);
            if last.is_next_due(volume) {
                changed.insert(tablet, volume);
            }
        }
        self.0 = known;
        changed
    }

    /// A pass that started at this volume has completed: changes count from there.
    fn completed(&mut self, tablet: TabletId, start: Volume, cells_left: u64) {
        let (least_bytes, cells_written) = (start.bytes, start.cells_written);
        self.0.insert(tablet, LastPass { least_bytes, cells_written, cells_left, checks_before_retry: 0 });
    }

    /// A pass was aborted: it is due again, but later.
    fn aborted(&mut self, tablet: TabletId) {
        self.0.entry(tablet).or_default().checks_before_retry = CHECKS_BEFORE_RETRY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const A: TabletId = TabletId::new(1);
    const B: TabletId = TabletId::new(2);

    const fn sized(bytes: u64) -> Volume {
        Volume { bytes, cells_written: 0 }
    }

    fn is_due(passes: &mut Passes, volume: Volume) -> bool {
        !passes.changed([(A, volume)].into_iter()).is_empty()
    }

    #[test]
    fn the_first_pass_is_due_at_some_mebibytes() {
        let mut passes = Passes::default();
        let mut due = |a: u64, b: u64| {
            let changed = passes.changed([(A, sized(a)), (B, sized(b))].into_iter());
            changed.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(due(4 * MIB - 1, 0), []);
        assert_eq!(due(4 * MIB, 100 * MIB), [A, B]);
        assert_eq!(due(4 * MIB, 100 * MIB), [A, B], "until it completes");
    }

    #[test]
    fn the_next_pass_is_due_when_a_tablet_has_grown_by_an_eighth() {
        let mut passes = Passes::default();
        passes.completed(A, sized(100 * MIB), 0);
        assert!(!is_due(&mut passes, sized(112 * MIB)));
        assert!(is_due(&mut passes, sized(113 * MIB)));
        assert!(!is_due(&mut passes, sized(80 * MIB)), "it has shrunk");
        assert!(is_due(&mut passes, sized(90 * MIB)), "and grows from there");
    }

    #[test]
    fn a_small_tablet_grows_by_some_mebibytes_at_least() {
        let mut passes = Passes::default();
        passes.completed(A, sized(5 * MIB), 0);
        assert!(!is_due(&mut passes, sized(9 * MIB - 1)));
        assert!(is_due(&mut passes, sized(9 * MIB)));
    }

    #[test]
    fn cells_that_are_written_while_compactions_remove_others_count() {
        let mut passes = Passes::default();
        passes.completed(A, Volume { bytes: 20 * MIB, cells_written: 20_000 }, 20);
        assert!(!is_due(&mut passes, Volume { bytes: 10 * MIB, cells_written: 24_095 }));
        assert!(is_due(&mut passes, Volume { bytes: 10 * MIB, cells_written: 24_096 }));
        passes.completed(A, Volume { bytes: 20 * MIB, cells_written: 20_000 }, 80_000);
        assert!(!is_due(&mut passes, Volume { bytes: 20 * MIB, cells_written: 29_999 }));
        assert!(
            is_due(&mut passes, Volume { bytes: 20 * MIB, cells_written: 30_000 }),
            "an eighth of those that were left"
        );
    }

    #[test]
    fn an_aborted_pass_is_due_again_later() {
        let mut passes = Passes::default();
        passes.aborted(A);
        assert_eq!((1..CHECKS_BEFORE_RETRY).find(|_| is_due(&mut passes, sized(5 * MIB))), None);
        assert!(is_due(&mut passes, sized(5 * MIB)));
    }

    #[test]
    fn a_replica_that_started_again_counts_its_cells_from_zero() {
        let mut passes = Passes::default();
        passes.completed(A, Volume { bytes: MIB, cells_written: 50_000 }, 20);
        assert!(!is_due(&mut passes, Volume { bytes: MIB, cells_written: 0 }));
        assert!(is_due(&mut passes, Volume { bytes: MIB, cells_written: 5_000 }));
    }

    #[test]
    fn a_tablet_that_left_and_returned_counts_from_zero() {
        let mut passes = Passes::default();
        passes.completed(A, sized(50 * MIB), 0);
        assert!(passes.changed(std::iter::empty()).is_empty());
        assert!(is_due(&mut passes, sized(50 * MIB)));
    }
}
