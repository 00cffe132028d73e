//! The heat map: a matrix of key buckets and times.

use crate::heat::fold::{Buckets, starts};
use crate::heat::{HeatCounts, HeatMetric, HeatWindow};
use crate::id::TabletId;
use crate::key::{KeyRange, RowKey};
use crate::time::Micros;

/// What was counted in one step of time, by key bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatColumn {
    /// The beginning of the step.
    pub start: Micros,
    /// One for each bucket.
    pub cells: Vec<HeatCounts>,
    /// What was counted of tablets without ranges.
    pub other: HeatCounts,
}

/// A matrix of key buckets and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatMap {
    /// The keys of each bucket, ascending, without gaps.
    pub buckets: Vec<KeyRange>,
    /// The tablet that had the most requests of each bucket, as of the last time it had any; `None`: it had none.
    pub tablets: Vec<Option<TabletId>>,
    /// By time, ascending. Steps of which nothing is stored are missing.
    pub columns: Vec<HeatColumn>,
}

/// The heat map of these windows, one for each step of time, ascending.
///
/// The keys are those of `range`, in at most about `buckets_max` buckets (at least 1) that divide `metric` evenly, as far as the boundaries
/// in the windows allow. A window's range that reaches beyond a bucket gives each bucket an equal part.
#[must_use]
pub fn heat_map(windows: &[(Micros, HeatWindow)], range: &KeyRange, buckets_max: usize, metric: HeatMetric) -> HeatMap {
    let is_inside = |of: &KeyRange| of.intersect(range).is_some();
    let ranges = windows.iter().flat_map(|(_start, window)| &window.ranges).filter(|one| is_inside(&one.range));
    let mut keys = starts(ranges, |counts| metric.weight(counts), buckets_max);
    keys.retain(|key| key.is_empty() || range.contains(key.as_bytes()));
    let bounds = [Some(range.start()), range.end()].into_iter().flatten();
    keys.extend(bounds.filter(|key| !key.is_empty()).cloned());
    keys.sort();
    keys.dedup();
    let buckets = Buckets::new(keys);
    let all: Vec<KeyRange> = buckets.ranges().collect();
    let shown: Vec<usize> =
        all.iter().enumerate().filter(|(_at, bucket)| range.covers(bucket)).map(|(at, _bucket)| at).collect();
    let mut tablets: Vec<Option<TabletId>> = vec![None; all.len()];
    let columns = windows.iter().map(|(start, window)| {
        let mut cells = vec![HeatCounts::default(); all.len()];
        let mut busiest: Vec<Option<(u64, TabletId)>> = vec![None; all.len()];
        for one in &window.ranges {
            buckets.spread(one, |bucket, counts| {
                if let Some(cell) = cells.get_mut(bucket) {
                    cell.add(&counts);
                }
                if let Some(most) = busiest.get_mut(bucket) {
                    *most = (*most).max(Some((counts.requests(), one.tablet)));
                }
            });
        }
        for (last, most) in tablets.iter_mut().zip(busiest) {
            *last = most.map(|(_requests, tablet)| tablet).or(*last);
        }
        HeatColumn { start: *start, cells: select(&cells, &shown), other: window.other }
    });
    let columns = columns.collect();
    HeatMap { buckets: select(&all, &shown), tablets: select(&tablets, &shown), columns }
}

fn select<T: Clone>(all: &[T], shown: &[usize]) -> Vec<T> {
    shown.iter().filter_map(|at| all.get(*at)).cloned().collect()
}

impl HeatMap {
    /// The largest value of the metric in a cell.
    #[must_use]
    pub fn max(&self, metric: HeatMetric) -> u64 {
        self.columns.iter().flat_map(|column| &column.cells).map(|cell| metric.of(cell)).max().unwrap_or(0)
    }

    /// The first key of each bucket.
    pub fn starts(&self) -> impl Iterator<Item = &RowKey> {
        self.buckets.iter().map(KeyRange::start)
    }
}
