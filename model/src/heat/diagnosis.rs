//! What the windows of a table say about its schema and its clients, in words.

use std::collections::BTreeMap;
use std::fmt;

use crate::heat::{HeatCounts, HeatWindow, scale};
use crate::id::TabletId;
use crate::key::RowKey;
use crate::time::Micros;

/// A row with at least this part of the reads or writes is hot, in percent.
const ROW_PERCENT: u64 = 20;
/// Fewer requests say nothing.
const REQUESTS_MIN: u64 = 50;
/// A writer is sequential if the keys behind nearly all writes of a step of time have this much more of the writes of the next step, in
/// percentage points.
const MOVED_PERCENT: u64 = 40;
/// Nearly all: this part, in percent.
const NEARLY_ALL_PERCENT: u64 = 90;
/// In how many of the steps of time that must be so, in percent, and the fewest of them.
const STEPS_PERCENT: u64 = 75;
const STEPS_MIN: usize = 3;
/// A table of fewer tablets is not examined for how requests are spread.
const TABLETS_MIN: usize = 4;
/// Reads hit few tablets if a tenth of the tablets has this part of them, in percent.
const FEW_TABLETS_PERCENT: u64 = 80;

/// What kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
}

impl Access {
    const fn of(self, counts: &HeatCounts) -> u64 {
        match self {
            Self::Reads => counts.reads,
            Self::Writes => counts.writes,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
        })
    }
}

/// What the windows show. Its text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// One row has much of the load: no split helps.
    HotRow {
        /// The row.
        row: RowKey,
        /// What it has much of.
        access: Access,
        /// How much of it, in percent.
        percent: u64,
    },
    /// Writes move through the keys in order: one tablet at a time has all of them.
    Sequential,
    /// Few tablets have most of the reads or writes.
    FewTablets {
        /// What.
        access: Access,
        /// How many tablets.
        few: usize,
        /// Of how many.
        of: usize,
        /// How much they have, in percent.
        percent: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HotRow { row, access, percent } => write!(
                f,
                "one row takes {percent} % of the {access}: {row}. A row is in one tablet, so no split helps: divide what the row \
                 contains among several rows"
            ),
            Self::Sequential => f.write_str(
                "writes move through keys in order (sequential writer): one tablet at a time takes all of them. Let keys begin with \
                 something that does not grow, such as a hash or the id of the writer",
            ),
            Self::FewTablets { access, few, of, percent } => {
                let verb = if *few == 1 { "takes" } else { "take" };
                write!(f, "{access} hit few tablets: {few} of {of} tablets {verb} {percent} % of them")
            }
        }
    }
}

/// What these windows show, one for each step of time, ascending. `tablets`: how many tablets the table has.
#[must_use]
pub fn diagnose(windows: &[(Micros, HeatWindow)], tablets: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(hot_row(windows, Access::Writes));
    findings.extend(hot_row(windows, Access::Reads));
    if is_sequential(windows) {
        findings.push(Finding::Sequential);
    }
    findings.extend(few_tablets(windows, tablets, Access::Reads));
    findings.extend(few_tablets(windows, tablets, Access::Writes));
    findings
}

fn total(windows: &[(Micros, HeatWindow)], access: Access) -> u64 {
    windows.iter().fold(0, |sum: u64, (_start, window)| sum.saturating_add(access.of(&window.total())))
}

fn hot_row(windows: &[(Micros, HeatWindow)], access: Access) -> Option<Finding> {
    let total = total(windows, access);
    let mut rows: BTreeMap<&RowKey, u64> = BTreeMap::new();
    for row in windows.iter().flat_map(|(_start, window)| &window.rows) {
        let count = match access {
            Access::Reads => row.reads,
            Access::Writes => row.writes,
        };
        *rows.entry(&row.row).or_default() += count;
    }
    let (row, count) = rows.into_iter().max_by_key(|(_row, count)| *count)?;
    let percent = scale(100, count, total).min(100);
    let is_hot = total >= REQUESTS_MIN && percent >= ROW_PERCENT;
    is_hot.then(|| Finding::HotRow { row: row.clone(), access, percent })
}

/// Whether the writes of each step of time are at keys behind nearly all writes of the step before it, or all at keys before them.
fn is_sequential(windows: &[(Micros, HeatWindow)]) -> bool {
    let written: Vec<&HeatWindow> =
        windows.iter().map(|(_start, window)| window).filter(|window| window.total().writes >= REQUESTS_MIN).collect();
    let steps = || written.iter().zip(written.iter().skip(1));
    let count = steps().count();
    if count < STEPS_MIN {
        return false;
    }
    // A window with one range says nothing: both parts are the same.
    let in_order = steps().filter(|(before, after)| {
        let key = write_key(before, NEARLY_ALL_PERCENT);
        key.is_some_and(|key| written_from(after, key) >= written_from(before, key) + MOVED_PERCENT)
    });
    let in_reverse = steps().filter(|(before, after)| {
        let key = write_key(before, 100 - NEARLY_ALL_PERCENT);
        key.is_some_and(|key| written_from(before, key) >= written_from(after, key) + MOVED_PERCENT)
    });
    let most = in_order.count().max(in_reverse.count());
    scale(100, most as u64, count as u64) >= STEPS_PERCENT
}

/// The start of the first range up to whose end this part of the writes are.
fn write_key(window: &HeatWindow, percent: u64) -> Option<&RowKey> {
    let wanted = scale(window.ranges.iter().map(|range| range.counts.writes).sum(), percent, 100);
    let mut ranges: Vec<_> = window.ranges.iter().filter(|range| range.counts.writes > 0).collect();
    ranges.sort_by(|one, other| one.range.start().cmp(other.range.start()));
    let mut seen: u64 = 0;
    for range in ranges {
        seen = seen.saturating_add(range.counts.writes);
        if seen >= wanted {
            return Some(range.range.start());
        }
    }
    None
}

/// The part of the writes that is in ranges from this key on, in percent.
fn written_from(window: &HeatWindow, key: &RowKey) -> u64 {
    let writes = |from: Option<&RowKey>| {
        let ranges = window.ranges.iter().filter(|range| from.is_none_or(|key| range.range.start() >= key));
        ranges.map(|range| range.counts.writes).sum()
    };
    scale(100, writes(Some(key)), writes(None)).min(100)
}

fn few_tablets(windows: &[(Micros, HeatWindow)], tablets: usize, access: Access) -> Option<Finding> {
    let total = total(windows, access);
    let mut by_tablet: BTreeMap<TabletId, u64> = BTreeMap::new();
    for range in windows.iter().flat_map(|(_start, window)| &window.ranges) {
        *by_tablet.entry(range.tablet).or_default() += access.of(&range.counts);
    }
    let of = tablets.max(by_tablet.len());
    if of < TABLETS_MIN || total < REQUESTS_MIN {
        return None;
    }
    let mut counts: Vec<u64> = by_tablet.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(*count));
    let few = of.div_ceil(10);
    let percent = scale(100, counts.iter().take(few).sum(), total).min(100);
    (percent >= FEW_TABLETS_PERCENT).then_some(Finding::FewTablets { access, few, of, percent })
}
