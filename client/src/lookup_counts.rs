//! Counts of lookups by their round trips.
//!
//! The paper (section 5.1) gives the bound that this shows: three round trips with an empty cache, one for each of the root's location, the
//! root tablet and a METADATA tablet; at most six when what is cached of each level is stale. Replicas add a round trip for each
//! one that does not lead or does not respond.

use std::collections::BTreeMap;

/// The lookups of a cluster handle that have ended, by their round trips. A position that is found in the cache is no lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// At most as many entries as a lookup may have requests.
    by_round_trips: BTreeMap<u32, u64>,
    failed: u64,
}

impl LookupCounts {
    /// A lookup has found its tablet after this many round trips.
    pub(crate) fn record_found(&mut self, round_trips: u32) {
        *self.by_round_trips.entry(round_trips).or_default() += 1;
    }

    /// A lookup has ended with an error.
    pub(crate) fn record_failed(&mut self) {
        self.failed += 1;
    }

    /// The lookups that found their tablets, by their round trips.
    pub const fn found(&self) -> &BTreeMap<u32, u64> {
        &self.by_round_trips
    }

    /// The lookups that ended with an error, which their callers repeat.
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    /// The most round trips of a lookup that found its tablet; 0 if there was none.
    pub fn most(&self) -> u32 {
        self.by_round_trips.last_key_value().map_or(0, |(round_trips, _lookups)| *round_trips)
    }

    /// Those that have ended since `earlier`, which was taken from the same handle.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |round_trips: &u32| earlier.by_round_trips.get(round_trips).copied().unwrap_or_default();
        let added = self.by_round_trips.iter().map(|(trips, lookups)| (*trips, lookups.saturating_sub(before(trips))));
        Self {
            by_round_trips: added.filter(|(_trips, lookups)| *lookups > 0).collect(),
            failed: self.failed.saturating_sub(earlier.failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_two_counts_has_what_ended_between_them() {
        let mut counts = LookupCounts::default();
        counts.record_found(3);
        counts.record_failed();
        let earlier = counts.clone();
        assert_eq!(counts.since(&earlier), LookupCounts::default());
        counts.record_found(3);
        counts.record_found(1);
        let since = counts.since(&earlier);
        assert_eq!((since.found(), since.failed(), since.most()), (&BTreeMap::from([(1, 1), (3, 1)]), 0, 3));
    }
}
