//! Which tablets are split because of their load: a function of what the last measurements say.
//!
//! A tablet is *hot* when it has at least the limit of reads and writes per second and more than a quarter of those of its
//! server. So a server with many busy tablets splits none of them: they can be spread as they are. A tablet that has been hot for a few
//! measurements is split at the key that halves its load, unless one row has most of it.

use std::collections::BTreeMap;

use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};

use crate::tablet::load::{LoadCenter, load_center};

/// A hot tablet has more than this part of the load of its server.
const SHARE: u64 = 4;
/// A tablet is split when it has been hot in this number of measurements, which are two seconds apart.
const MEASUREMENTS: u32 = 3;

/// A tablet that is led here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LedTablet {
    pub(super) tablet: TabletId,
    pub(super) range: KeyRange,
    /// Reads and writes per second.
    pub(super) per_second: u64,
}

/// What to do about a hot tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HotTablet {
    /// Split it at this key.
    Split(RowKey),
    /// Report that one row has most of its load.
    HotRow,
}

/// The hot tablets of a server.
#[derive(Debug, Default)]
pub(super) struct HotTablets {
    /// In how many measurements each has been hot, without a break.
    measurements: BTreeMap<TabletId, u32>,
}

impl HotTablets {
    /// Takes the measurements of all tablets that are led here. `limit`: reads and writes per second; 0: none is hot. `samples`: the
    /// sampled rows of a tablet.
    pub(super) fn update(
        &mut self,
        tablets: &[LedTablet],
        limit: u64,
        samples: impl Fn(TabletId) -> Vec<RowKey>,
    ) -> BTreeMap<TabletId, HotTablet> {
        let all: u64 = tablets.iter().map(|tablet| tablet.per_second).sum();
        let is_hot = |one: &&LedTablet| limit > 0 && one.per_second >= limit && one.per_second > all / SHARE;
        let before = std::mem::take(&mut self.measurements);
        let mut due = BTreeMap::new();
        for hot in tablets.iter().filter(is_hot) {
            let measurements = before.get(&hot.tablet).copied().unwrap_or_default().saturating_add(1);
            self.measurements.insert(hot.tablet, measurements);
            if measurements < MEASUREMENTS {
                continue;
            }
            let action = match load_center(&hot.range, &samples(hot.tablet)) {
                LoadCenter::Unknown => continue,
                LoadCenter::Key(key) => HotTablet::Split(key),
                LoadCenter::Row(_row) => HotTablet::HotRow,
            };
            due.insert(hot.tablet, action);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(tablet: u64, per_second: u64) -> LedTablet {
        LedTablet { tablet: TabletId::new(tablet), range: KeyRange::all(), per_second }
    }

    fn spread(_tablet: TabletId) -> Vec<RowKey> {
        (0..64).map(|number| RowKey::new(format!("{number:02}"))).collect()
    }

    fn one_row(_tablet: TabletId) -> Vec<RowKey> {
        vec![RowKey::new("k"); 64]
    }

    #[test]
    fn a_tablet_that_stays_hot_is_split_where_its_load_is_halved() {
        let mut hot = HotTablets::default();
        let tablets = [led(7, 2_500), led(8, 100)];
        assert!(hot.update(&tablets, 2_000, spread).is_empty());
        assert!(hot.update(&tablets, 2_000, spread).is_empty());
        let split = HotTablet::Split(RowKey::new("32"));
        assert_eq!(hot.update(&tablets, 2_000, spread), [(TabletId::new(7), split)].into());
        assert!(hot.update(&[led(7, 1_999)], 2_000, spread).is_empty());
        assert!(hot.update(&tablets, 2_000, spread).is_empty(), "the count begins again");
    }

    #[test]
    fn a_hot_row_is_reported_instead() {
        let mut hot = HotTablets::default();
        for _ in 1..MEASUREMENTS {
            hot.update(&[led(7, 9_000)], 2_000, one_row);
        }
        assert_eq!(hot.update(&[led(7, 9_000)], 2_000, one_row), [(TabletId::new(7), HotTablet::HotRow)].into());
        assert!(hot.update(&[led(7, 9_000)], 2_000, |_| Vec::new()).is_empty(), "too few samples");
    }

    #[test]
    fn a_server_with_many_busy_tablets_splits_none() {
        let mut hot = HotTablets::default();
        let tablets: Vec<LedTablet> = (1..=4).map(|tablet| led(tablet, 9_000)).collect();
        for _ in 0..10 {
            assert!(hot.update(&tablets, 2_000, spread).is_empty());
        }
        for _ in 0..10 {
            assert!(hot.update(&[led(1, 9_000)], 0, spread).is_empty(), "switched off");
        }
    }
}
