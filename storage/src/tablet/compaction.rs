//! Garbage collection in compactions: the compaction filter and its rules.
//!
//! A compaction filter runs *before* range tombstones are applied and ignores snapshots: it sees a value without the
//! tombstone above it. So its decisions use one key alone, and only rules that every replica has agreed on:
//!
//! - the cell's family was removed from the schema;
//! - the cell is outside the tablet's range (a split left it here);
//! - its timestamp is below the family's age floor, which is replicated and never falls.
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
use ebla_model::id::FamilyId;
use ebla_model::key::KeyRange;
use ebla_model::time::Micros;
use parking_lot::Mutex;
use rocksdb::CompactionDecision;
use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use super::scan::row_prefix_of;

/// Rules that identify garbage cells by their key alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRules {
    families: BTreeSet<FamilyId>,
    next_family: FamilyId,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    floors: BTreeMap<FamilyId, Micros>,
}

impl GcRules {
    /// The rules of a tablet with this range and schema.
    ///
    /// `families` exist. Cells with ids from `next_family` on are retained, so that a compaction under slightly older rules
    /// cannot drop cells of a family that was just created. `floors`: cells older than this are garbage.
    pub fn new(
        range: &KeyRange,
        families: impl IntoIterator<Item = FamilyId>,
        next_family: FamilyId,
        floors: BTreeMap<FamilyId, Micros>,
    ) -> Self {
        let (lower, upper) = codec::range_bounds(range);
        Self { families: families.into_iter().collect(), next_family, lower, upper, floors }
    }

    /// Whether the cell at this key is garbage. Bytes that are not a cell key are retained.
    #[must_use]
    pub fn is_garbage(&self, key: &[u8]) -> bool {
        let Some((family, timestamp)) = family_and_time(key) else { return false };
        self.is_outside(key)
            || self.is_dropped(family)
            || self.floors.get(&family).is_some_and(|floor| timestamp < *floor)
    }

    /// Lower bound of the tablet's cells.
    pub(super) fn lower(&self) -> &[u8] {
        &self.lower
    }

    /// Upper bound of the tablet's cells; none: unbounded.
    pub(super) fn upper(&self) -> Option<&[u8]> {
        self.upper.as_deref()
    }

    fn is_outside(&self, key: &[u8]) -> bool {
        key < self.lower.as_slice() || self.upper.as_ref().is_some_and(|upper| key >= upper.as_slice())
    }

    fn is_dropped(&self, family: FamilyId) -> bool {
        family < self.next_family && !self.families.contains(&family)
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
    /// Locked only to copy or swap the pointer. `None` until the tablet has set its rules: all cells are retained.
    current: Mutex<Option<Arc<GcRules>>>,
    epoch: AtomicU64,
}

impl CurrentGcRules {
    pub(super) fn set(&self, rules: GcRules) {
        // The epoch first: a view that still sees the old one was created, with its iterators, before any compaction could
        // apply the new rules.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        *self.current.lock() = Some(Arc::new(rules));
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
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
        GcFilter { rules: self.rules.current() }
    }

    fn name(&self) -> &CStr {
        c"ebla.collector.factory"
    }
}

/// One compaction's filter. The rules are those of its start: newer ones wait for the next compaction.
pub(super) struct GcFilter {
    rules: Option<Arc<GcRules>>,
}

impl CompactionFilter for GcFilter {
    fn filter(&mut self, _level: u32, key: &[u8], _value: &[u8]) -> CompactionDecision {
        match &self.rules {
            Some(rules) if rules.is_garbage(key) => CompactionDecision::Remove,
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

    use super::*;

    fn key(row: &'static str, family: u32, micros: i64) -> Vec<u8> {
        codec::encode_parts(row.as_bytes(), FamilyId::new(family), b"q", Micros::new(micros))
    }

    fn rules() -> GcRules {
        let range = KeyRange::new(RowKey::new("b"), Some(RowKey::new("m"))).unwrap();
        let floors = BTreeMap::from([(FamilyId::new(2), Micros::new(100))]);
        GcRules::new(&range, [FamilyId::new(1), FamilyId::new(2)], FamilyId::new(4), floors)
    }

    #[test]
    fn cells_outside_the_range_are_garbage() {
        let rules = rules();
        assert!(rules.is_garbage(&key("a", 1, 5)));
        assert!(!rules.is_garbage(&key("b", 1, 5)), "the start belongs to the tablet");
        assert!(!rules.is_garbage(&key("lzz", 1, 5)));
        assert!(rules.is_garbage(&key("m", 1, 5)), "the end does not");
        assert!(rules.is_garbage(&key("z", 1, 5)));
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
