//! Hot tablets: what `ListHotTablets` of the admin API lists.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::heat::{HeatCounts, HeatWindow};
use crate::id::TabletId;
use crate::schema::TableName;
use crate::time::Micros;

/// Of a tablet that was hot several times within this time, the hottest is listed.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// The most tablets that are listed.
const LISTED_MAX: usize = 1_000;
/// A tablet that uses less of a node is not listed, in thousandths of a percent: four reads or writes in a second.
pub const HOT_TABLET_MILLI_PERCENT_MIN: u64 = 10;
/// The estimate: one read or write costs this much processor time, in nanoseconds.
const REQUEST_NANOS: u64 = 25_000;
/// The estimate: one kilobyte that is read or written costs this much, in nanoseconds.
const KILOBYTE_NANOS: u64 = 1_000;

/// A tablet in a time in which it was busy. Without keys: those that were counted are keys of rows, boundaries of tablets are in METADATA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotTablet {
    /// Its table.
    pub table: TableName,
    /// The tablet.
    pub tablet: TabletId,
    /// The beginning of the time.
    pub start: Micros,
    /// Its length.
    pub length: Duration,
    /// How much of one processor of its server it used, in thousandths of a percent. An estimate from its reads, writes and bytes.
    pub milli_percent: u64,
}

/// Collects hot tablets. Bounded: the hottest that fit are kept.
#[derive(Clone, Debug, Default)]
pub struct HotTablets {
    /// By tablet and interval of time.
    hottest: BTreeMap<(TabletId, i64), HotTablet>,
}

impl HotTablets {
    /// Adds the window of a table that began at `start` and took `length`.
    pub fn add(&mut self, table: &TableName, start: Micros, length: Duration, window: &HeatWindow) {
        let mut tablets: BTreeMap<TabletId, HeatCounts> = BTreeMap::new();
        for range in &window.ranges {
            tablets.entry(range.tablet).or_default().add(&range.counts);
        }
        let interval = i64::try_from(INTERVAL.as_micros()).unwrap_or(i64::MAX);
        for (tablet, counts) in tablets {
            let milli_percent = milli_percent(&counts, length);
            if milli_percent < HOT_TABLET_MILLI_PERCENT_MIN {
                continue;
            }
            let found = HotTablet { table: table.clone(), tablet, start, length, milli_percent };
            let place = self.hottest.entry((tablet, start.get().div_euclid(interval)));
            let kept = place.or_insert_with(|| found.clone());
            if kept.milli_percent < found.milli_percent {
                *kept = found;
            }
        }
        while self.hottest.len() > LISTED_MAX {
            let coolest = self.hottest.iter().min_by_key(|(_key, tablet)| tablet.milli_percent);
            let Some(key) = coolest.map(|(key, _tablet)| *key) else { break };
            self.hottest.remove(&key);
        }
    }

    /// The hottest first.
    #[must_use]
    pub fn into_list(self) -> Vec<HotTablet> {
        let mut list: Vec<HotTablet> = self.hottest.into_values().collect();
        list.sort_by_key(|tablet| (std::cmp::Reverse(tablet.milli_percent), tablet.start, tablet.tablet));
        list
    }
}

/// The estimated use of a processor, in thousandths of a percent, at most 100 %.
fn milli_percent(counts: &HeatCounts, length: Duration) -> u64 {
    let kilobytes = counts.read_bytes.saturating_add(counts.written_bytes) / 1_000;
    let requests = u128::from(counts.requests()) * u128::from(REQUEST_NANOS);
    let nanos = requests + u128::from(kilobytes) * u128::from(KILOBYTE_NANOS);
    let part = (nanos * 100_000).checked_div(length.as_nanos()).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX).min(100_000)
}
