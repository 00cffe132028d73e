//! Which tablets count ranges of keys, and the windows of a server's tables from those of its tablets. Functions of values, with bounds
//! for a whole server.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::heat::{HeatWindow, ROWS_MAX, RangeHeat, SERVER_RANGES_MAX};
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::KeyRange;

/// The tablets of a server that count ranges at once.
pub(super) const DETAILED_MAX: usize = 64;

/// Ranges that busy tablets leave for tables that have none yet, one for each.
const TABLES_RESERVED: usize = 512;
/// The most tables of a server that are counted in a window.
pub(super) const TABLES_MAX: usize = 1_024;

/// What was counted of one tablet.
#[derive(Clone, Debug)]
pub(super) struct CountedTablet {
    /// Its table.
    pub(super) table: TableId,
    /// With ranges of this tablet alone.
    pub(super) window: HeatWindow,
}

/// The busiest tablets, at most [`DETAILED_MAX`]. `loads`: reads and writes per second.
pub(super) fn busiest(mut loads: Vec<(TabletId, u64)>) -> BTreeSet<TabletId> {
    loads.sort_by_key(|(tablet, per_second)| (std::cmp::Reverse(*per_second), *tablet));
    loads.into_iter().take(DETAILED_MAX).map(|(tablet, _per_second)| tablet).collect()
}

/// The windows of a server's tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    /// By table.
    pub(super) windows: BTreeMap<TableId, HeatWindow>,
    /// How many tablets were not counted: their tables are beyond [`TABLES_MAX`].
    pub(super) dropped: usize,
}

/// The windows of the tables. All together have at most [`SERVER_RANGES_MAX`] ranges, which busy tablets get first. The busiest tablet of
/// each table has at least one, as long as there are any; a tablet without ranges is counted in the rest of its table.
pub(super) fn windows(mut tablets: Vec<CountedTablet>) -> Collected {
    tablets.retain(|tablet| !tablet.window.ranges.is_empty());
    tablets.sort_by_key(|tablet| std::cmp::Reverse(tablet.window.total().requests()));
    let tables = tablets.iter().map(|tablet| tablet.table).collect::<BTreeSet<_>>().len();
    let mut reserved = tables.min(TABLES_RESERVED);
    let mut collected = Collected::default();
    let windows = &mut collected.windows;
    let mut room = SERVER_RANGES_MAX;
    for CountedTablet { table, window } in tablets {
        let is_first = !windows.contains_key(&table);
        if is_first && windows.len() >= TABLES_MAX {
            collected.dropped += 1;
            continue;
        }
        if is_first {
            reserved = reserved.saturating_sub(1);
        }
        let free = room.saturating_sub(reserved);
        let of_table = windows.entry(table).or_default();
        let total = window.total();
        let ranges = if window.ranges.len() <= free {
            window.ranges
        } else {
            joined(&window.ranges).filter(|_joined| is_first && free > 0).into_iter().collect()
        };
        if ranges.is_empty() {
            of_table.other.add(&total);
            continue;
        }
        room = room.saturating_sub(ranges.len());
        of_table.ranges.extend(ranges);
        of_table.rows.extend(window.rows);
    }
    for window in windows.values_mut() {
        window.ranges.sort_by(|one, other| one.range.start().cmp(other.range.start()));
        window.rows.sort_by_key(|row| std::cmp::Reverse(row.reads.saturating_add(row.writes)));
        window.rows.truncate(ROWS_MAX);
    }
    collected
}

/// One range with the counts of these, which are ascending ranges of one tablet.
fn joined(ranges: &[RangeHeat]) -> Option<RangeHeat> {
    let (first, last) = (ranges.first()?, ranges.last()?);
    let range = KeyRange::new(first.range.start().clone(), last.range.end().cloned())?;
    let mut joined = RangeHeat { range, tablet: first.tablet, counts: first.counts };
    ranges.iter().skip(1).for_each(|range| joined.counts.add(&range.counts));
    Some(joined)
}

#[cfg(test)]
mod tests {
    use ebla_model::heat::{HeatCounts, RangeHeat, RowHeat, TABLET_RANGES_MAX};
    use ebla_model::key::{KeyRange, RowKey};

    use super::*;

    fn tablet(table: u64, id: u64, reads: u64, ranges: usize) -> CountedTablet {
        let range = |at: usize| RangeHeat {
            range: KeyRange::single(RowKey::new(format!("{id:05}-{at:05}"))),
            tablet: TabletId::new(id),
            counts: HeatCounts { reads, ..HeatCounts::default() },
        };
        let row = RowHeat { row: RowKey::new(format!("{id:05}")), reads, writes: 0 };
        let window = HeatWindow { ranges: (0..ranges).map(range).collect(), rows: vec![row], ..HeatWindow::default() };
        CountedTablet { table: TableId::new(table), window }
    }

    #[test]
    fn the_busiest_tablets_count_ranges() {
        let loads = (1..=5_000).map(|id| (TabletId::new(id), id % 1_000)).collect();
        let chosen = busiest(loads);
        assert_eq!(chosen.len(), DETAILED_MAX);
        assert!(chosen.iter().all(|tablet| tablet.get() % 1_000 >= 987), "{chosen:?}");
        assert!(busiest(Vec::new()).is_empty());
    }

    #[test]
    fn a_server_with_many_tablets_has_bounded_windows() {
        let busy = (1..=64).map(|id| tablet(1, id, 1_000 + id, TABLET_RANGES_MAX));
        let quiet = (65..=5_000).map(|id| tablet(1, id, 1, 1));
        let tablets: Vec<_> = busy.chain(quiet).collect();
        let all = windows(tablets);
        assert_eq!(all.dropped, 0);
        let window = &all.windows[&TableId::new(1)];
        assert_eq!((window.ranges.len(), window.rows.len()), (SERVER_RANGES_MAX, ROWS_MAX));
        assert_eq!(window.other.reads, 5_000 - 64, "quiet tablets are counted together");
        assert_eq!(window.rows[0].row, RowKey::new("00064"));
        assert!(window.ranges.windows(2).all(|pair| pair[0].range.start() < pair[1].range.start()));
    }

    #[test]
    fn a_quiet_table_has_a_range_although_busy_tablets_could_use_all() {
        let busy = (1..=64).map(|id| tablet(1, id, 1_000 + id, TABLET_RANGES_MAX));
        let quiet = (2..=100).map(|table| tablet(table, 1_000 + table, 2, 2));
        let counted: Vec<_> = busy.chain(quiet).collect();
        let sum =
            |windows: &BTreeMap<TableId, HeatWindow>| windows.values().map(|window| window.total().reads).sum::<u64>();
        let expected: u64 = counted.iter().map(|tablet| tablet.window.total().reads).sum();
        let all = windows(counted);
        assert_eq!((all.windows.len(), all.dropped, sum(&all.windows)), (100, 0, expected), "nothing is lost");
        let ranges: usize = all.windows.values().map(|window| window.ranges.len()).sum();
        assert!(ranges <= SERVER_RANGES_MAX, "{ranges}");
        let quiet = &all.windows[&TableId::new(100)];
        assert_eq!((quiet.ranges.len(), quiet.ranges[0].counts.reads, quiet.other.reads), (1, 4, 0));
        assert_eq!(quiet.ranges[0].range.start(), &RowKey::new("01100-00000"));
        assert_eq!(quiet.ranges[0].range.end(), KeyRange::single(RowKey::new("01100-00001")).end());
        let busy = &all.windows[&TableId::new(1)];
        assert!(busy.ranges.len() > 900 && !busy.other.is_zero(), "{}", busy.ranges.len());
    }

    #[test]
    fn tables_beyond_the_bound_are_dropped_and_said_to_be() {
        let all = windows((1..=2_000).map(|id| tablet(id, id, 3_000 - id, 1)).collect());
        assert_eq!((all.windows.len(), all.dropped), (TABLES_MAX, 2_000 - TABLES_MAX));
        assert!(all.windows.contains_key(&TableId::new(1)) && !all.windows.contains_key(&TableId::new(2_000)));
        // With more tables than ranges that are reserved, the rest of a table is counted without keys.
        let busy = (1..=512).map(|id| tablet(id, id, 1_000_000, TABLET_RANGES_MAX));
        let all = windows(busy.chain((513..=1_024).map(|id| tablet(id, id, 1, 1))).collect());
        let ranges: usize = all.windows.values().map(|window| window.ranges.len()).sum();
        assert_eq!((all.windows.len(), all.dropped), (1_024, 0));
        assert!(ranges <= SERVER_RANGES_MAX && !all.windows[&TableId::new(1_024)].total().is_zero());
    }

    #[test]
    fn tables_are_separate_and_those_without_requests_are_missing() {
        let idle = CountedTablet { table: TableId::new(9), window: HeatWindow::default() };
        let all = windows(vec![tablet(1, 1, 5, 2), tablet(2, 2, 7, 1), idle]);
        let ranges: Vec<_> = all.windows.iter().map(|(table, window)| (table.get(), window.ranges.len())).collect();
        assert_eq!(ranges, [(1, 2), (2, 1)]);
    }
}
