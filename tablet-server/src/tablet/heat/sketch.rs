//! The ranges of keys and the frequent rows of one tablet in one window, from samples. Bounded; a function of what was added.
//!
//! Boundaries follow the load: a range that has much more than its part is cut at the sampled row, and the two quietest adjacent ranges
//! are joined for it. So a writer that moves through the keys has boundaries where it is, and a hot row begins a range.
//!
//! Frequent rows are found as by Metwally, Agrawal and El Abbadi (*Space-Saving*, 2005): a row that is new replaces the one with the fewest
//! samples and inherits their number as its error, so a row with more than one eighth of the samples is among eight rows.

use ebla_model::heat::{HeatCounts, HeatWindow, KEY_BYTES_MAX, RangeHeat, RowHeat, TABLET_RANGES_MAX, boundary, fold};
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};

use super::RowAccess;

/// Ranges while samples are added; they are folded to [`TABLET_RANGES_MAX`] afterwards.
const RANGES_MAX: usize = 32;
/// A range with more than this number of parts of `RANGES_MAX` is cut.
const CUT_FACTOR: u64 = 2;
/// Rows that are counted, of reads and of writes.
const ROWS_COUNTED: usize = 8;
/// A row with less than one in this number of the samples is not frequent.
const FREQUENT: u64 = 10;
/// A row that was sampled less often is not frequent: a late sample counts as many rows.
const FREQUENT_SAMPLES_MIN: u32 = 4;

/// What samples say about the keys of a tablet.
#[derive(Clone, Debug)]
pub(crate) struct RangeSketch {
    /// By start; the first one starts at the empty key. A range ends where the next one starts.
    ranges: Vec<Sampled>,
    /// The samples of all ranges.
    total: Samples,
    reads: FrequentRows,
    writes: FrequentRows,
}

#[derive(Clone, Debug)]
struct Sampled {
    start: RowKey,
    samples: Samples,
}

/// Samples by their weights.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Samples {
    fn add(&mut self, other: &Self) {
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }

    const fn requests(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

impl Default for RangeSketch {
    fn default() -> Self {
        Self {
            ranges: vec![Sampled { start: RowKey::EMPTY, samples: Samples::default() }],
            total: Samples::default(),
            reads: FrequentRows::default(),
            writes: FrequentRows::default(),
        }
    }
}

impl RangeSketch {
    /// Adds a sampled row that counts as `weight` rows of `bytes` bytes each.
    pub(crate) fn add(&mut self, access: RowAccess, row: &RowKey, weight: u64, bytes: u64) {
        let all_bytes = bytes.saturating_mul(weight);
        let (samples, frequent) = match access {
            RowAccess::Read => {
                (Samples { reads: weight, read_bytes: all_bytes, ..Samples::default() }, &mut self.reads)
            }
            RowAccess::Write => {
                (Samples { writes: weight, written_bytes: all_bytes, ..Samples::default() }, &mut self.writes)
            }
        };
        self.total.add(&samples);
        frequent.add(row, weight);
        let key = row.as_bytes().get(..KEY_BYTES_MAX).unwrap_or(row.as_bytes());
        let at = self.position(key);
        let starts_here = self.ranges.get(at).is_some_and(|range| range.start.as_bytes() == key);
        if !starts_here && self.must_cut(at) {
            self.insert(row, samples);
        } else if let Some(range) = self.ranges.get_mut(at) {
            range.samples.add(&samples);
        }
    }

    /// The range that a key is in.
    fn position(&self, key: &[u8]) -> usize {
        self.ranges.partition_point(|range| range.start.as_bytes() <= key).saturating_sub(1)
    }

    /// Whether a range is cut at the next row in it: there is room, or it has much more than its part.
    fn must_cut(&self, at: usize) -> bool {
        let requests = self.ranges.get(at).map_or(0, |range| range.samples.requests());
        self.ranges.len() < RANGES_MAX
            || requests.saturating_mul(RANGES_MAX as u64) > self.total.requests().saturating_mul(CUT_FACTOR)
    }

    /// Cuts a range at this row. What was counted in it stays in its lower part.
    fn insert(&mut self, row: &RowKey, samples: Samples) {
        if self.ranges.len() >= RANGES_MAX {
            self.join_quietest();
        }
        let start = boundary(row);
        let at = self.position(start.as_bytes());
        self.ranges.insert((at + 1).min(self.ranges.len()), Sampled { start, samples });
    }

    /// Joins the two adjacent ranges that have the fewest samples together.
    fn join_quietest(&mut self) {
        let pairs = self.ranges.iter().zip(self.ranges.iter().skip(1));
        let sums = pairs.map(|(left, right)| left.samples.requests().saturating_add(right.samples.requests()));
        // What is before the first row stays apart: otherwise the first range would seem to begin where the tablet begins.
        let unused = self.ranges.iter().take_while(|range| range.samples.requests() == 0).take(1).count();
        let Some((at, _sum)) = sums.enumerate().skip(unused).min_by_key(|(_at, sum)| *sum) else { return };
        let joined = self.ranges.remove(at + 1);
        if let Some(range) = self.ranges.get_mut(at) {
            range.samples.add(&joined.samples);
        }
    }

    /// The window of a tablet with these keys, of which this was counted: divided among ranges as the samples are.
    pub(crate) fn window(&self, tablet: TabletId, keys: &KeyRange, counts: &HeatCounts) -> HeatWindow {
        let starts = self.ranges.iter().map(|range| range.start.clone());
        let ends = starts.clone().skip(1).map(Some).chain(std::iter::once(None));
        let ranges = starts.zip(ends).zip(&self.ranges).filter_map(|((start, end), range)| {
            let range_keys = KeyRange::new(start, end)?.intersect(keys)?;
            Some(RangeHeat { range: range_keys, tablet, counts: self.share(counts, &range.samples) })
        });
        let mut ranges: Vec<RangeHeat> = ranges.collect();
        // What rounding has left, to the busiest range, or to the whole tablet if it has none.
        let mut rest = *counts;
        ranges.iter().for_each(|range| rest = rest.without(&range.counts));
        match ranges.iter_mut().max_by_key(|range| range.counts.requests()) {
            Some(busiest) => busiest.counts.add(&rest),
            None => ranges.push(RangeHeat { range: keys.clone(), tablet, counts: *counts }),
        }
        let window = HeatWindow { ranges, rows: self.rows(counts), other: HeatCounts::default() };
        bounded(window)
    }

    /// The part of the counts that these samples are. Latencies are not sampled: all ranges have the same mean.
    fn share(&self, counts: &HeatCounts, samples: &Samples) -> HeatCounts {
        let part = |own: u64, all: u64| counts.scaled(own, all);
        let calls = part(samples.requests(), self.total.requests());
        HeatCounts {
            reads: part(samples.reads, self.total.reads).reads,
            writes: part(samples.writes, self.total.writes).writes,
            read_bytes: part(samples.read_bytes, self.total.read_bytes).read_bytes,
            written_bytes: part(samples.written_bytes, self.total.written_bytes).written_bytes,
            calls: calls.calls,
            call_micros: calls.call_micros,
        }
    }

    /// The frequent rows.
    fn rows(&self, counts: &HeatCounts) -> Vec<RowHeat> {
        let mut rows: Vec<RowHeat> = Vec::new();
        for (row, samples) in self.reads.frequent(self.total.reads) {
            let reads = HeatCounts { reads: counts.reads, ..HeatCounts::default() }.scaled(samples, self.total.reads);
            rows.push(RowHeat { row, reads: reads.reads, writes: 0 });
        }
        for (row, samples) in self.writes.frequent(self.total.writes) {
            let all = HeatCounts { writes: counts.writes, ..HeatCounts::default() };
            let writes = all.scaled(samples, self.total.writes).writes;
            match rows.iter_mut().find(|known| known.row == row) {
                Some(known) => known.writes = writes,
                None => rows.push(RowHeat { row, reads: 0, writes }),
            }
        }
        rows
    }
}

/// The same with at most [`TABLET_RANGES_MAX`] ranges.
fn bounded(mut window: HeatWindow) -> HeatWindow {
    window.ranges.retain(|range| !range.counts.is_zero());
    if window.ranges.len() <= TABLET_RANGES_MAX {
        return window;
    }
    let ranges = std::mem::take(&mut window.ranges);
    let mut joined: Vec<RangeHeat> = Vec::with_capacity(TABLET_RANGES_MAX);
    let total: u64 = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.counts.requests()));
    // Two adjacent ranges together have more than this: there are at most TABLET_RANGES_MAX.
    let part = total.div_ceil(TABLET_RANGES_MAX as u64 / 2).max(1);
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.counts.requests().saturating_add(range.counts.requests()) <= part => {
                if let Some(keys) = KeyRange::new(last.range.start().clone(), range.range.end().cloned()) {
                    last.range = keys;
                }
                last.counts.add(&range.counts);
            }
            _ => joined.push(range),
        }
    }
    window.ranges = joined;
    // Ranges without requests, only bytes or latencies, cannot be many.
    if window.ranges.len() > TABLET_RANGES_MAX { fold(&[window]) } else { window }
}

/// Rows that occur often among those that were added.
#[derive(Clone, Debug, Default)]
struct FrequentRows {
    rows: Vec<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    row: RowKey,
    count: u64,
    /// How often it was sampled since it is counted here.
    samples: u32,
    /// The count may be too high by this.
    error: u64,
}

impl FrequentRows {
    fn add(&mut self, row: &RowKey, weight: u64) {
        // Many rows have the same first bytes: a key that is cut is not one row.
        if row.as_bytes().len() > KEY_BYTES_MAX {
            return;
        }
        if let Some(known) = self.rows.iter_mut().find(|known| known.row == *row) {
            known.count = known.count.saturating_add(weight);
            known.samples = known.samples.saturating_add(1);
            return;
        }
        if self.rows.len() < ROWS_COUNTED {
            self.rows.push(Counted { row: boundary(row), count: weight, samples: 1, error: 0 });
            return;
        }
        if let Some(rarest) = self.rows.iter_mut().min_by_key(|known| known.count) {
            let error = rarest.count;
            *rarest = Counted { row: boundary(row), count: error.saturating_add(weight), samples: 1, error };
        }
    }

    /// The rows that were sampled several times and have at least one in [`FREQUENT`] of `total`, with the least that they have.
    fn frequent(&self, total: u64) -> impl Iterator<Item = (RowKey, u64)> + '_ {
        self.rows.iter().filter_map(move |known| {
            let least = known.count.saturating_sub(known.error);
            let is_frequent = known.samples >= FREQUENT_SAMPLES_MIN && least.saturating_mul(FREQUENT) >= total;
            is_frequent.then(|| (known.row.clone(), least))
        })
    }
}

#[cfg(test)]
mod tests {
    use ebla_runtime::Rng;

    use super::*;

    fn key(number: u64) -> RowKey {
        RowKey::new(format!("k{number:06}"))
    }

    /// The window of these writes, each sampled.
    fn window(writes: impl IntoIterator<Item = u64>) -> HeatWindow {
        let mut sketch = RangeSketch::default();
        let mut count = 0;
        for number in writes {
            sketch.add(RowAccess::Write, &key(number), 1, 10);
            count += 1;
            assert!(sketch.ranges.len() <= RANGES_MAX);
            assert!(sketch.ranges.windows(2).all(|pair| pair[0].start < pair[1].start));
        }
        let counts = HeatCounts { writes: count, written_bytes: count * 10, ..HeatCounts::default() };
        let window = sketch.window(TabletId::new(7), &KeyRange::all(), &counts);
        assert_eq!(window.total(), counts, "sums are exact");
        assert!((1..=TABLET_RANGES_MAX).contains(&window.ranges.len()), "{}", window.ranges.len());
        window
    }

    #[test]
    fn a_hot_row_is_found_among_others() {
        let rng = Rng::seeded(1);
        let writes: Vec<u64> =
            (0..4_000).map(|_| if rng.below(100) < 40 { 777 } else { rng.below(1_000_000) }).collect();
        let window = window(writes);
        let hot = &window.rows[0];
        assert_eq!((window.rows.len(), &hot.row), (1, &key(777)));
        assert!((1_000..=1_700).contains(&hot.writes), "{hot:?}");
        let hottest = window.ranges.iter().max_by_key(|range| range.counts.writes).unwrap();
        assert!(hottest.range.contains(key(777).as_bytes()), "{hottest:?}");
    }

    #[test]
    fn uniform_rows_make_ranges_of_about_the_same_load() {
        let rng = Rng::seeded(2);
        let window = window((0..6_400).map(|_| rng.below(1_000_000)).collect::<Vec<_>>());
        assert!(window.rows.is_empty(), "{:?}", window.rows);
        let largest = window.ranges.iter().map(|range| range.counts.writes).max().unwrap();
        assert!(window.ranges.len() >= 5 && largest < 6_400 / 3, "{largest} of {} ranges", window.ranges.len());
    }

    #[test]
    fn a_sequential_writer_has_boundaries_where_it_is() {
        let window = window(1_000..9_000);
        assert!(window.rows.is_empty());
        assert!(window.ranges.len() >= 4, "{}", window.ranges.len());
        assert!(window.ranges[0].range.start() >= &key(1_000), "nothing is before its first row");
        let last = window.ranges.last().unwrap();
        assert!(last.range.start() > &key(5_000), "{last:?}");
    }

    #[test]
    fn long_keys_are_cut_and_keys_outside_the_tablet_count_too() {
        let mut sketch = RangeSketch::default();
        let long = RowKey::new(vec![b'k'; 1_000]);
        sketch.add(RowAccess::Read, &long, 1, 1);
        sketch.add(RowAccess::Read, &RowKey::new("z"), 1, 1);
        let keys = KeyRange::new(RowKey::new("a"), Some(RowKey::new("m"))).unwrap();
        let counts = HeatCounts { reads: 2, ..HeatCounts::default() };
        let window = sketch.window(TabletId::new(7), &keys, &counts);
        assert_eq!(window.total(), counts);
        assert!(window.ranges.iter().all(|range| keys.covers(&range.range)));
        assert!(window.ranges.iter().all(|range| range.range.start().as_bytes().len() <= KEY_BYTES_MAX));
    }

    #[test]
    fn rows_with_the_same_long_beginning_are_not_one_row() {
        let mut rows = FrequentRows::default();
        for number in 0..100 {
            rows.add(&RowKey::new(format!("{}{number}", "k".repeat(KEY_BYTES_MAX))), 1);
        }
        assert_eq!(rows.frequent(100).count(), 0);
        let longest = RowKey::new("k".repeat(KEY_BYTES_MAX));
        (0..100).for_each(|_| rows.add(&longest, 1));
        assert_eq!(rows.frequent(200).collect::<Vec<_>>(), [(longest, 100)], "it is not cut");
    }

    #[test]
    fn a_few_samples_are_not_a_frequent_row() {
        let mut rows = FrequentRows::default();
        (0..3).for_each(|_| rows.add(&key(1), 64));
        assert_eq!(rows.frequent(64 * 4).count(), 0);
        rows.add(&key(1), 64);
        assert_eq!(rows.frequent(64 * 5).collect::<Vec<_>>(), [(key(1), 64 * 4)]);
    }
}
