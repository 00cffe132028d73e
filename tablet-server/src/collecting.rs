//! When versions beyond a count are looked for: where a tablet has grown.
//!
//! Such versions take room and make rows slower to read, but nobody sees them (`tablet::collect`). A pass reads the whole
//! tablet, so it is made where much may have come together since the last one; a workload that only overwrites makes its
//! tablet grow like any other, because each version is a cell of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::id::TabletId;
use ebla_runtime::Runtime;
use tokio::sync::Semaphore;
use tracing::{debug, info};

use crate::tablet::Tablet;

/// A pass is due when a tablet has grown by this part of its size since the last one; the first one when it has grown large enough.
const GROWN_PART: u64 = 8;
/// And by at least so many bytes.
const GROWN_BYTES_MIN: u64 = 4 << 20;

/// Begins passes, one at a time for the whole server.
pub(crate) struct Collector {
    runtime: Runtime,
    sizes: Sizes,
    turn: Arc<Semaphore>,
}

impl Collector {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone(), sizes: Sizes::default(), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Looks at the sizes of all replicas of the server, and begins a pass where one is due.
    pub(crate) fn look<'a>(&mut self, replicas: impl Iterator<Item = (&'a Arc<Tablet>, u64)> + Clone) {
        let grown = self.sizes.grown(replicas.clone().map(|(tablet, bytes)| (tablet.id(), bytes)));
        let due = replicas
            .filter(|(tablet, _bytes)| grown.contains(&tablet.id()) && tablet.leads() && tablet.counts_versions())
            .max_by_key(|(_tablet, bytes)| *bytes);
        let Some((tablet, bytes)) = due else { return };
        let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() else { return };
        self.sizes.passed(tablet.id(), bytes);
        let tablet = Arc::clone(tablet);
        self.runtime.tasks.spawn_until_stopped("collect", async move {
            let outcome = tablet.collect().await;
            drop(turn);
            match outcome {
                Ok(done) => {
                    info!(tablet = %tablet.id(), cells = done.cells, removed = done.removed, "versions collected")
                }
                Err(failure) if failure.error.reason == Reason::NotLeader => {}
                Err(failure) => debug!(tablet = %tablet.id(), error = %failure.error, "collection broken off"),
            }
        });
    }
}

/// How large each replica was when it was smallest since its last pass. Of what was before nobody here knows, so a replica
/// that has had no pass counts from nothing: a new leader begins with one.
#[derive(Debug, Default)]
struct Sizes(BTreeMap<TabletId, u64>);

impl Sizes {
    /// The replicas that have grown enough; forgets those that are not there any more.
    fn grown(&mut self, now: impl Iterator<Item = (TabletId, u64)>) -> Vec<TabletId> {
        let mut smallest = BTreeMap::new();
        let mut grown = Vec::new();
        for (tablet, bytes) in now {
            let least = self.0.get(&tablet).copied().unwrap_or(0).min(bytes);
            smallest.insert(tablet, least);
            if bytes - least >= GROWN_BYTES_MIN.max(least / GROWN_PART) {
                grown.push(tablet);
            }
        }
        self.0 = smallest;
        grown
    }

    /// A pass begins: growth counts from here.
    fn passed(&mut self, tablet: TabletId, bytes: u64) {
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
        assert_eq!(due(4 * MIB, 100 * MIB), [A, B], "until it is made");
    }

    #[test]
    fn the_next_pass_is_due_when_a_tablet_has_grown_by_an_eighth() {
        let mut sizes = Sizes::default();
        sizes.passed(A, 100 * MIB);
        let mut due = |bytes: u64| !sizes.grown([(A, bytes)].into_iter()).is_empty();
        assert!(!due(112 * MIB));
        assert!(due(113 * MIB));
        assert!(!due(80 * MIB), "it has shrunk");
        assert!(due(90 * MIB), "and grows from there");
    }

    #[test]
    fn a_small_tablet_grows_by_some_mebibytes_at_least() {
        let mut sizes = Sizes::default();
        sizes.passed(A, 5 * MIB);
        assert_eq!(sizes.grown([(A, 9 * MIB - 1)].into_iter()), []);
        assert_eq!(sizes.grown([(A, 9 * MIB)].into_iter()), [A]);
    }

    #[test]
    fn a_tablet_that_went_and_came_back_begins_anew() {
        let mut sizes = Sizes::default();
        sizes.passed(A, 50 * MIB);
        assert_eq!(sizes.grown(std::iter::empty()), []);
        assert_eq!(sizes.grown([(A, 50 * MIB)].into_iter()), [A]);
    }
}
