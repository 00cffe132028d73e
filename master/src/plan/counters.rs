//! Id counters that are too low: an id above a counter is in use, so Chubby has lost what it knew when it gave that id.

use std::collections::BTreeMap;

use ebla_chubby::Counter;
use ebla_model::highest_ids::HighestIds;

use super::Action;
use crate::cluster::ClusterSnapshot;

/// The counters that would give an id again that is in use, each with the first id above all of these. None when the counters
/// are not known.
#[must_use]
pub fn low_counters(cluster: &ClusterSnapshot) -> BTreeMap<Counter, u64> {
    cluster.counters.as_ref().map(|counters| lower_than(counters, &cluster.highest_ids())).unwrap_or_default()
}

/// Those of `counters` that would give one of the `highest` ids again, each with the first id above it.
pub(super) fn lower_than(counters: &BTreeMap<Counter, u64>, highest: &HighestIds) -> BTreeMap<Counter, u64> {
    let used = Counter::ALL.map(|counter| (counter, highest_of(highest, counter)));
    let is_low =
        |(counter, used): &(Counter, u64)| *used >= counters.get(counter).copied().unwrap_or_else(|| counter.first());
    used.into_iter().filter(is_low).map(|(counter, used)| (counter, used.saturating_add(1))).collect()
}

/// The highest of these ids that the counter gives.
pub(crate) const fn highest_of(highest: &HighestIds, counter: Counter) -> u64 {
    match counter {
        Counter::Servers => highest.server.get(),
        Counter::Tables => highest.table.get(),
        Counter::Groups => highest.group.get(),
        Counter::Tablets => highest.tablet.get(),
        Counter::Operations => highest.operation.get(),
        // First replicas have lower numbers than those that the counter gives.
        Counter::Replicas => highest.replica.get(),
    }
}

pub(super) fn raises(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    low_counters(cluster).into_iter().map(|(counter, next)| Action::RaiseCounter { counter, next })
}
