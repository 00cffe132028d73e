//! The garbage collection (GC) policy: when excess versions are removed from which tablet.
//!
//! Versions beyond a family's limit use space and slow reads down, but no reader sees them (`tablet::lifecycle::gc`). A GC
//! pass reads the whole tablet, so it runs only where the tablet has grown enough since its last pass; a workload that only
//! overwrites grows its tablet like any other, because each version is a cell of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::id::TabletId;
use ebla_runtime::Runtime;
use tokio::sync::Semaphore;
use tracing::{debug, info};

use crate::tablet::Tablet;

/// A pass is due when a tablet has grown by this fraction of its size since the last one; the first one when it is large enough.
const GROWTH_FRACTION: u64 = 8;
/// The minimum growth in bytes.
const GROWTH_BYTES_MIN: u64 = 4 << 20;

/// Starts GC passes, one at a time for the whole server.
pub(super) struct GcScheduler {
    runtime: Runtime,
    sizes: Sizes,
    permit: Arc<Semaphore>,
}

impl GcScheduler {
    pub(super) fn new(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone(), sizes: Sizes::default(), permit: Arc::new(Semaphore::new(1)) }
    }

    /// Checks the sizes of all replicas of the server, and starts a pass where one is due.
    pub(super) fn apply<'a>(&mut self, replicas: impl Iterator<Item = &'a (Tablet, u64)> + Clone) {
        let grown = self.sizes.grown(replicas.clone().map(|(tablet, bytes)| (tablet.id(), *bytes)));
        let due = replicas
            .filter(|(tablet, _bytes)| {
                grown.contains(&tablet.id()) && tablet.is_leader() && tablet.has_version_limits()
            })
            .max_by_key(|(_tablet, bytes)| *bytes);
        let Some((tablet, bytes)) = due else { return };
        let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() else { return };
        self.sizes.pass_started(tablet.id(), *bytes);
        let tablet = tablet.clone();
        self.runtime.tasks.spawn_until_stopped("gc", async move {
            let outcome = tablet.collect_garbage().await;
            drop(permit);
            match outcome {
                Ok(done) => {
                    info!(tablet = %tablet.id(), cells = done.cells, removed = done.removed, "garbage collection pass finished")
                }
                Err(failure) if failure.error.reason == Reason::NotLeader => {}
                Err(failure) => debug!(tablet = %tablet.id(), error = %failure.error, "garbage collection pass aborted"),
            }
        });
    }
}

/// The smallest size of each replica since its last pass. Growth before that is not known here, so a replica without a pass
/// counts from zero: a new leader starts with a pass.
#[derive(Debug, Default)]
struct Sizes(BTreeMap<TabletId, u64>);

impl Sizes {
    /// The replicas that have grown enough; forgets those that are gone.
    fn grown(&mut self, now: impl Iterator<Item = (TabletId, u64)>) -> Vec<TabletId> {
        let mut smallest = BTreeMap::new();
        let mut grown = Vec::new();
        for (tablet, bytes) in now {
            let least = self.0.get(&tablet).copied().unwrap_or(0).min(bytes);
            smallest.insert(tablet, least);
            if bytes - least >= GROWTH_BYTES_MIN.max(least / GROWTH_FRACTION) {
                grown.push(tablet);
            }
        }
        self.0 = smallest;
        grown
    }

    /// A pass starts: growth counts from here.
    fn pass_started(&mut self, tablet: TabletId, bytes: u64) {
        self.0.insert(tablet, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const A: TabletId = TabletId::new(1);
    const B: TabletId = TabletId::new(2);

    #[test]
    fn the_first_pass_is_due_at_some_mebibytes() {
        let mut sizes = Sizes::default();
        let mut due = |a: u64, b: u64| sizes.grown([(A, a), (B, b)].into_iter());
        assert_eq!(due(4 * MIB - 1, 0), []);
        assert_eq!(due(4 * MIB, 100 * MIB), [A, B]);
        assert_eq!(due(4 * MIB, 100 * MIB), [A, B], "until it runs");
    }

    #[test]
    fn the_next_pass_is_due_when_a_tablet_has_grown_by_an_eighth() {
        let mut sizes = Sizes::default();
        sizes.pass_started(A, 100 * MIB);
        let mut due = |bytes: u64| !sizes.grown([(A, bytes)].into_iter()).is_empty();
        assert!(!due(112 * MIB));
        assert!(due(113 * MIB));
        assert!(!due(80 * MIB), "it has shrunk");
        assert!(due(90 * MIB), "and grows from there");
    }

    #[test]
    fn a_small_tablet_grows_by_some_mebibytes_at_least() {
        let mut sizes = Sizes::default();
        sizes.pass_started(A, 5 * MIB);
        assert_eq!(sizes.grown([(A, 9 * MIB - 1)].into_iter()), []);
        assert_eq!(sizes.grown([(A, 9 * MIB)].into_iter()), [A]);
    }

    #[test]
    fn a_tablet_that_left_and_returned_counts_from_zero() {
        let mut sizes = Sizes::default();
        sizes.pass_started(A, 50 * MIB);
        assert_eq!(sizes.grown(std::iter::empty()), []);
        assert_eq!(sizes.grown([(A, 50 * MIB)].into_iter()), [A]);
    }
}
