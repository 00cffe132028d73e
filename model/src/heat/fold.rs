//! Folding: several windows of one table become one, with a bounded number of ranges.

use std::collections::{BTreeMap, BTreeSet};

use crate::heat::{FOLDED_RANGES_MAX, HeatCounts, HeatWindow, ROWS_MAX, RangeHeat, RowHeat};
use crate::id::TabletId;
use crate::key::{KeyRange, RowKey};

/// One window with the counts of all of them: of the servers of one time, or of successive times.
///
/// It has at most about [`FOLDED_RANGES_MAX`] ranges: quiet parts of the key space become one range, busy ones keep their boundaries. A
/// range that is divided gives each part an equal share. Sums are exact.
#[must_use]
pub fn fold(windows: &[HeatWindow]) -> HeatWindow {
    let ranges = windows.iter().flat_map(|window| &window.ranges);
    let buckets = Buckets::new(starts(ranges.clone(), HeatCounts::requests, FOLDED_RANGES_MAX));
    let mut sums: Vec<HeatCounts> = vec![HeatCounts::default(); buckets.len()];
    let mut tablets: Vec<BTreeMap<TabletId, u64>> = vec![BTreeMap::new(); buckets.len()];
    for range in ranges {
        buckets.spread(range, |bucket, counts| {
            if let Some(sum) = sums.get_mut(bucket) {
                sum.add(&counts);
            }
            if let Some(tablets) = tablets.get_mut(bucket) {
                *tablets.entry(range.tablet).or_default() += counts.requests().max(1);
            }
        });
    }
    let mut folded = HeatWindow { rows: fold_rows(windows), ..HeatWindow::default() };
    windows.iter().for_each(|window| folded.other.add(&window.other));
    for ((range, counts), tablets) in buckets.ranges().zip(sums).zip(tablets) {
        let busiest = tablets.into_iter().max_by_key(|(tablet, requests)| (*requests, *tablet));
        if let (false, Some((tablet, _requests))) = (counts.is_zero(), busiest) {
            folded.ranges.push(RangeHeat { range, tablet, counts });
        }
    }
    folded
}

/// The rows with the most requests.
fn fold_rows(windows: &[HeatWindow]) -> Vec<RowHeat> {
    let mut sums: BTreeMap<&RowKey, (u64, u64)> = BTreeMap::new();
    for row in windows.iter().flat_map(|window| &window.rows) {
        let (reads, writes) = sums.entry(&row.row).or_default();
        *reads = reads.saturating_add(row.reads);
        *writes = writes.saturating_add(row.writes);
    }
    let row = |(row, (reads, writes)): (&RowKey, (u64, u64))| RowHeat { row: row.clone(), reads, writes };
    let mut rows: Vec<RowHeat> = sums.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.reads.saturating_add(row.writes)));
    rows.truncate(ROWS_MAX);
    rows
}

/// Buckets that cover all keys.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    /// The first key of each, ascending; the first one is the empty key.
    starts: Vec<RowKey>,
}

impl Buckets {
    /// `starts`: ascending; the empty key is added.
    pub(super) fn new(mut starts: Vec<RowKey>) -> Self {
        if starts.first().is_none_or(|first| !first.is_empty()) {
            starts.insert(0, RowKey::EMPTY);
        }
        Self { starts }
    }

    pub(super) const fn len(&self) -> usize {
        self.starts.len()
    }

    /// The range of each bucket.
    pub(super) fn ranges(&self) -> impl Iterator<Item = KeyRange> + '_ {
        let ends = self.starts.iter().skip(1).cloned().map(Some).chain(std::iter::once(None));
        self.starts.iter().cloned().zip(ends).filter_map(|(start, end)| KeyRange::new(start, end))
    }

    /// Gives each bucket that a range overlaps an equal part of its counts.
    pub(super) fn spread(&self, range: &RangeHeat, mut give: impl FnMut(usize, HeatCounts)) {
        let first = self.starts.partition_point(|start| start <= range.range.start()).saturating_sub(1);
        let end = match range.range.end() {
            Some(end) => self.starts.partition_point(|start| start < end),
            None => self.starts.len(),
        };
        let parts = end.saturating_sub(first).max(1) as u64;
        for (at, bucket) in (first..end.max(first + 1)).enumerate() {
            give(bucket, range.counts.part(at as u64, parts));
        }
    }
}

/// Boundaries that divide the weight of these ranges into at most about `buckets_max` parts. Neither a boundary inside a busy range is
/// invented, nor is a quiet one kept for its own sake.
pub(super) fn starts<'a>(
    ranges: impl Iterator<Item = &'a RangeHeat> + Clone,
    weight: impl Fn(&HeatCounts) -> u64,
    buckets_max: usize,
) -> Vec<RowKey> {
    let bounds = |range: &'a RangeHeat| std::iter::once(range.range.start()).chain(range.range.end());
    let first = RowKey::EMPTY;
    let keys: BTreeSet<&RowKey> = std::iter::once(&first).chain(ranges.clone().flat_map(bounds)).collect();
    let keys: Vec<&RowKey> = keys.into_iter().collect();
    // What begins and what ends at each key: a range gives all parts between two keys the same weight.
    let mut changes: Vec<(u64, u64)> = vec![(0, 0); keys.len() + 1];
    for range in ranges {
        let first = keys.partition_point(|key| *key < range.range.start());
        let end = range.range.end().map_or(keys.len(), |end| keys.partition_point(|key| *key < end));
        let parts = end.saturating_sub(first).max(1) as u64;
        // In millionths, so that a range over many parts has some weight in each.
        let each = weight(&range.counts).saturating_mul(1_000_000).div_euclid(parts);
        if let Some((begins, _)) = changes.get_mut(first) {
            *begins = begins.saturating_add(each);
        }
        if let Some((_, ends)) = changes.get_mut(end) {
            *ends = ends.saturating_add(each);
        }
    }
    let mut weights = Vec::with_capacity(keys.len());
    let mut present: u64 = 0;
    for (begins, ends) in changes.into_iter().take(keys.len()) {
        present = present.saturating_sub(ends).saturating_add(begins);
        weights.push(present);
    }
    let total: u64 = weights.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
    let threshold = total.div_euclid((buckets_max as u64).div_euclid(2).max(1)).max(1);
    let mut starts: Vec<RowKey> = Vec::new();
    let mut filled: u64 = 0;
    for (key, weight) in keys.into_iter().zip(weights) {
        // What is before the first busy key has a bucket of its own.
        let is_first_busy = starts.len() == 1 && filled == 0 && weight > 0;
        if starts.is_empty() || is_first_busy || (filled > 0 && filled.saturating_add(weight) > threshold) {
            starts.push(key.clone());
            filled = 0;
        }
        filled = filled.saturating_add(weight);
    }
    starts
}
