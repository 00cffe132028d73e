//! A schedule of faults, drawn from a seed: each begins after the cluster has recovered from the one before.

use std::time::Duration;

use ebla_runtime::Rng;

use crate::faults::draw::between;
use crate::faults::fault::{Fault, FaultKind, Target};

/// One kind of fault in a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleItem {
    /// Its kind.
    pub kind: FaultKind,
    /// The targets, in turn.
    pub targets: Vec<Target>,
    /// Minimum and maximum duration.
    pub lasts: (Duration, Duration),
    /// Total number of faults.
    pub times: usize,
}

/// All items with their number of faults, targets in turn, in random order and with random durations from `seed`: the same seed
/// gives the same schedule.
#[must_use]
pub fn schedule(seed: u64, items: &[ScheduleItem]) -> Vec<Fault> {
    let rng = Rng::seeded(seed);
    let mut left: Vec<_> = items.iter().map(|item| (item, item.targets.iter().cycle(), item.times)).collect();
    let mut drawn = Vec::new();
    loop {
        left.retain(|(item, _, times)| *times > 0 && !item.targets.is_empty());
        let total: usize = left.iter().map(|(_, _, times)| times).sum();
        // One draw among all remaining faults, so that the position of a rare kind is uniform.
        let mut at = rng.below(u64::try_from(total).unwrap_or(u64::MAX));
        let Some((item, targets, times)) = left.iter_mut().find(|(_, _, times)| {
            let times = u64::try_from(*times).unwrap_or(u64::MAX);
            let here = at < times;
            at = at.saturating_sub(times);
            here
        }) else {
            return drawn;
        };
        *times -= 1;
        let Some(target) = targets.next() else { continue };
        drawn.push(Fault::new(item.kind, target.clone(), between(&rng, item.lasts)));
    }
}
