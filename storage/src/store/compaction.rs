//! Garbage collection in compactions: the compaction filter and its rules.
//!
//! A compaction filter runs *before* range tombstones are applied and ignores snapshots: it sees a value without the
//! tombstone above it. So its decisions use one key alone, and only rules that every replica has agreed on:
//!
//! - the cell's family was removed from the schema of its table;
//! - the cell is in no tablet of the group (a dropped table or a divided group left it here);
//! - its timestamp is below the family's age floor, which is replicated and never falls.
//!
//! Rules must include a new tablet before its first cell is written: a compaction that reads the cell then has them.
//!
//! Rules that count versions are not applied here: `Collect` log entries delete those cells on every replica alike.
//!
//! A store and its compaction filters share one value, which is replaced as a whole. Each replacement raises an epoch. A
//! view of an older epoch creates no further iterators ([`super::scan::View`]), because a compaction under newer rules may
//! have dropped cells that the view should see.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::KeyRange;
use ebla_model::stored_row::stored_range;
use ebla_model::time::Micros;
use parking_lot::Mutex;
use rocksdb::CompactionDecision;
use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use super::scan::row_prefix_of;

/// Rules that identify garbage cells of a group's store by their key alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcRules {
    /// The cells of the tablets, ascending, adjacent ranges of one table joined.
    ranges: Vec<CellRange>,
}

/// The rules of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableGcRules {
    /// The table.
    pub table: TableId,
    /// Its families.
    pub families: BTreeSet<FamilyId>,
    /// Cells with ids from this one on are retained, so that a compaction under slightly older rules cannot drop cells of a
    /// family that was just created.
    pub next_family: FamilyId,
    /// Cells older than this are garbage.
    pub floors: BTreeMap<FamilyId, Micros>,
}

/// The cells of adjacent tablets of one table: `lower <= key < upper`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CellRange {
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    rules: Arc<TableGcRules>,
}

impl TableGcRules {
    fn is_dropped(&self, family: FamilyId) -> bool {
        family < self.next_family && !self.families.contains(&family)
    }

    fn is_garbage(&self, family: FamilyId, timestamp: Micros) -> bool {
        self.is_dropped(family) || self.floors.get(&family).is_some_and(|floor| timestamp < *floor)
    }
}

impl CellRange {
    fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_slice() <= key && self.upper.as_deref().is_none_or(|upper| key < upper)
    }
}

impl GcRules {
    /// The rules of a group with these tablets: the rules of each table, and the ranges of its tablets, which do not overlap.
    pub fn new(tables: impl IntoIterator<Item = (TableGcRules, Vec<KeyRange>)>) -> Self {
        let mut ranges: Vec<CellRange> = Vec::new();
        for (rules, tablets) in tables {
            let rules = Arc::new(rules);
            ranges.extend(tablets.iter().map(|range| {
                let (lower, upper) = codec::range_bounds(&stored_range(rules.table, range));
                CellRange { lower, upper, rules: Arc::clone(&rules) }
            }));
        }
        ranges.sort_by(|a, b| a.lower.cmp(&b.lower));
        ranges.dedup_by(|next, last| {
            let is_adjacent = Arc::ptr_eq(&next.rules, &last.rules) && last.upper.as_ref() == Some(&next.lower);
            if is_adjacent {
                last.upper = next.upper.take();
            }
            is_adjacent
        });
        Self { ranges }
    }

    /// Whether the cell at this key is garbage. Bytes that are not a cell key are retained.
    #[must_use]
    pub fn is_garbage(&self, key: &[u8]) -> bool {
        self.is_garbage_near(key, &mut 0)
    }

    /// As [`Self::is_garbage`]; `near`: the number of the range of the last key, which probably holds the next one too.
    fn is_garbage_near(&self, key: &[u8], near: &mut usize) -> bool {
        let Some((family, timestamp)) = family_and_time(key) else { return false };
        let rules = match self.ranges.get(*near) {
            Some(range) if range.contains(key) => Some(&range.rules),
            _ => {
                *near = self.ranges.partition_point(|range| range.lower.as_slice() <= key).saturating_sub(1);
                self.ranges.get(*near).filter(|range| range.contains(key)).map(|range| &range.rules)
            }
        };
        rules.is_none_or(|rules| rules.is_garbage(family, timestamp))
    }

    /// The gaps between the tablets, whose cells are garbage: lower bound, and upper bound (none: unbounded).
    pub(super) fn gaps(&self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut gaps = Vec::new();
        let mut from = Some(Vec::new());
        for range in &self.ranges {
            if let Some(from) = from.filter(|from| *from < range.lower) {
                gaps.push((from, Some(range.lower.clone())));
            }
            from = range.upper.clone();
        }
        gaps.extend(from.map(|from| (from, None)));
        gaps
    }
}

/// Family and timestamp without decoding the rest: this runs for every cell that is compacted.
fn family_and_time(key: &[u8]) -> Option<(FamilyId, Micros)> {
    let rest = key.strip_prefix(row_prefix_of(key)?)?;
    let (family, rest) = rest.split_first_chunk::<4>()?;
    let (_, inverted) = rest.split_last_chunk::<8>()?;
    let micros = i64::try_from(!u64::from_be_bytes(*inverted)).ok()?;
    Some((FamilyId::new(u32::from_be_bytes(*family)), Micros::new(micros)))
}

/// The current rules of one open store, shared with its compactions.
#[derive(Default)]
pub(super) struct CurrentGcRules {
    /// Locked only to copy or swap the pointer. `None` until the group has set its rules: all cells are retained.
    current: Mutex<Option<Arc<GcRules>>>,
    epoch: AtomicU64,
    /// Held while the rules are replaced, and while files are deleted by them. Not `current`: a compaction takes that one while it begins.
    replacing: Mutex<()>,
}

impl CurrentGcRules {
    pub(super) fn set(&self, rules: GcRules) {
        let _replacing = self.replacing.lock();
        // The epoch first: a view that still sees the old one was created, with its iterators, before any compaction could
        // apply the new rules.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        *self.current.lock() = Some(Arc::new(rules));
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Reads the rules, which are not replaced before `read` returns. `None` when there are none yet.
    pub(super) fn while_unchanged<T>(&self, read: impl FnOnce(&GcRules) -> T) -> Option<T> {
        let _replacing = self.replacing.lock();
        self.current().map(|rules| read(&rules))
    }

    fn current(&self) -> Option<Arc<GcRules>> {
        self.current.lock().clone()
    }
}

/// Creates a [`GcFilter`] for each compaction of one store.
pub(super) struct GcFilterFactory {
    rules: Arc<CurrentGcRules>,
}

impl GcFilterFactory {
    pub(super) fn new(rules: Arc<CurrentGcRules>) -> Self {
        Self { rules }
    }
}

impl CompactionFilterFactory for GcFilterFactory {
    type Filter = GcFilter;

    fn create(&mut self, _context: CompactionFilterContext) -> GcFilter {
        GcFilter { rules: self.rules.current(), near: 0 }
    }

    fn name(&self) -> &CStr {
        c"ebla.collector.factory"
    }
}

/// One compaction's filter. The rules are those of its start: newer ones wait for the next compaction.
pub(super) struct GcFilter {
    rules: Option<Arc<GcRules>>,
    /// The range of the last key.
    near: usize,
}

impl CompactionFilter for GcFilter {
    fn filter(&mut self, _level: u32, key: &[u8], _value: &[u8]) -> CompactionDecision {
        match &self.rules {
            Some(rules) if rules.is_garbage_near(key, &mut self.near) => CompactionDecision::Remove,
            _ => CompactionDecision::Keep,
        }
    }

    fn name(&self) -> &CStr {
        c"ebla.collector"
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::key::RowKey;
    use ebla_model::stored_row::stored_row;

    use super::*;

    /// A key of table 3.
    fn key(row: &'static str, family: u32, micros: i64) -> Vec<u8> {
        key_of(3, row, family, micros)
    }

    fn key_of(table: u64, row: &'static str, family: u32, micros: i64) -> Vec<u8> {
        let row = stored_row(TableId::new(table), &RowKey::new(row));
        codec::encode_parts(row.as_bytes(), FamilyId::new(family), b"q", Micros::new(micros))
    }

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange::new(RowKey::new(start), Some(RowKey::new(end)).filter(|end| !end.is_empty())).unwrap()
    }

    fn table(table: u64) -> TableGcRules {
        TableGcRules {
            table: TableId::new(table),
            families: [FamilyId::new(1), FamilyId::new(2)].into(),
            next_family: FamilyId::new(4),
            floors: BTreeMap::from([(FamilyId::new(2), Micros::new(100))]),
        }
    }

    /// Table 3 with the tablets [b, f) and [f, m).
    fn rules() -> GcRules {
        GcRules::new([(table(3), vec![range("f", "m"), range("b", "f")])])
    }

    #[test]
    fn cells_outside_the_ranges_are_garbage() {
        let rules = rules();
        assert!(rules.is_garbage(&key("a", 1, 5)));
        assert!(!rules.is_garbage(&key("b", 1, 5)), "the start belongs to the tablet");
        assert!(!rules.is_garbage(&key("f", 1, 5)), "adjacent tablets have no gap");
        assert!(!rules.is_garbage(&key("lzz", 1, 5)));
        assert!(rules.is_garbage(&key("m", 1, 5)), "the end does not");
        assert!(rules.is_garbage(&key("z", 1, 5)));
        assert!(GcRules::default().is_garbage(&key("c", 1, 5)), "a group without tablets");
    }

    #[test]
    fn the_tables_of_a_group_have_their_own_rules() {
        let other = TableGcRules { floors: BTreeMap::new(), ..table(300) };
        let rules = GcRules::new([(other, vec![range("k", "")]), (table(3), vec![range("b", "m")])]);
        let mut near = 0;
        for (at, row, family, micros, garbage) in [
            (3, "c", 2, 99, true),
            (300, "z", 2, 99, false),
            (3, "c", 2, 100, false),
            (300, "a", 1, 5, true),
            (299, "z", 1, 5, true),
            (301, "a", 1, 5, true),
        ] {
            let key = key_of(at, row, family, micros);
            assert_eq!(rules.is_garbage_near(&key, &mut near), garbage, "{at} {row}");
            assert_eq!(rules.is_garbage(&key), garbage, "{at} {row}");
        }
    }

    #[test]
    fn gaps_are_what_the_ranges_leave() {
        let bound = |at, row| codec::row_prefix(&stored_row(TableId::new(at), &RowKey::new(row)));
        let rules =
            GcRules::new([(table(3), vec![range("b", "d"), range("f", "m")]), (table(4), vec![KeyRange::all()])]);
        let expected = [
            (Vec::new(), Some(bound(3, "b"))),
            (bound(3, "d"), Some(bound(3, "f"))),
            (bound(3, "m"), Some(bound(4, ""))),
            (bound(5, ""), None),
        ];
        assert_eq!(rules.gaps(), expected);
        assert_eq!(GcRules::default().gaps(), [(Vec::new(), None)]);
    }

    #[test]
    fn cells_of_a_removed_family_are_garbage_and_of_an_unknown_one_are_not() {
        let rules = rules();
        assert!(rules.is_garbage(&key("c", 3, 5)));
        assert!(!rules.is_garbage(&key("c", 4, 5)));
    }

    #[test]
    fn cells_below_the_age_floor_are_garbage() {
        let rules = rules();
        assert!(rules.is_garbage(&key("c", 2, 99)));
        assert!(!rules.is_garbage(&key("c", 2, 100)));
        assert!(!rules.is_garbage(&key("c", 1, 1)), "no floor for this family");
    }

    #[test]
    fn invalid_cell_keys_are_retained() {
        let rules = rules();
        assert!(!rules.is_garbage(b"zzz"));
        assert!(!rules.is_garbage(b"z\0\x01"));
        assert!(!rules.is_garbage(b"z\0\x01\0\0"));
        assert!(!rules.is_garbage(b""));
    }

    #[test]
    fn family_and_time_agree_with_the_codec() {
        for (row, qualifier, micros) in [("", "", 0), ("a\0b", "q\0", 7), ("zz", "long qualifier", i64::MAX)] {
            let family = FamilyId::new(70_000);
            let key = codec::encode_parts(row.as_bytes(), family, qualifier.as_bytes(), Micros::new(micros));
            assert_eq!(family_and_time(&key), Some((family, Micros::new(micros))));
        }
    }
}
