//! The scan cache of a store: what a hit returns is what a view would read.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use ebla_model::codec::CellKey;
use ebla_model::id::TableId;
use ebla_model::key::KeyRange;
use ebla_model::stored_row::{stored_range, stored_row};
use ebla_model::time::Micros;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::store::{CellFamily, SharedResources, StoreFault, StoreOperation, StoreOptions, WantedFamilies};

const TABLE: TableId = TableId::new(7);
/// In locality groups of their own.
const FAMILIES: [FamilyId; 2] = [FamilyId::new(1), FamilyId::new(2)];

struct Fixture {
    store: GroupStore,
    shared: Arc<SharedResources>,
    _folder: TempDir,
}

impl Fixture {
    fn new(scan_cache_bytes: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let options = StoreOptions { cache_bytes: 1 << 20, scan_cache_bytes, ..StoreOptions::up() };
        let shared = SharedResources::new(options).unwrap();
        let store = GroupStore::create(&folder.path().join("store"), &shared).unwrap();
        let groups = [CellFamily::lg0(), CellFamily { group: 1, options: "".parse().unwrap() }];
        let families: WantedFamilies = FAMILIES.into_iter().zip(groups).collect();
        store.place_tables(BTreeMap::from([(TABLE, families)])).unwrap();
        Self { store, shared, _folder: folder }
    }

    fn put(&self, row: &str, value: &[u8]) {
        self.store.write(&put(row, FAMILIES[0], value)).unwrap();
    }

    fn look_up(&self, row: &str) -> RowLookup {
        self.store.look_up(&stored(row)).unwrap()
    }

    /// Reads the row until it is cached.
    fn warm(&self, row: &str) {
        for _ in 0..2 {
            let lookup = self.look_up(row);
            self.store.view().fill(&lookup, None, ReadTier::All).unwrap();
        }
        assert!(self.look_up(row).is_cached());
    }

    /// The cells of a row in these families as a reader sees them, through the cache if it has them.
    fn read(&self, row: &str, families: Option<&BTreeSet<FamilyId>>) -> Vec<(CellKey, Vec<u8>)> {
        let lookup = self.look_up(row);
        if let Some(cached) = lookup.cached(families) {
            return cells_of(&lookup, cached, families);
        }
        let view = self.store.view();
        if let Some(filled) = view.fill(&lookup, families, ReadTier::All).unwrap() {
            return cells_of(&lookup, &filled, families);
        }
        let (lower, upper) = codec::range_bounds(&KeyRange::single(stored(row)));
        let plan = ScanPlan::new(&lower, upper.as_deref());
        let plan = families.map_or(plan, |families| plan.of_families(families));
        let cells = view.scan(&plan).unwrap().map(|cell| cell.unwrap());
        wanted(cells.map(|(key, value)| (key.to_vec(), value.to_vec())), families)
    }

    fn state(&self) -> ScanCacheState {
        self.shared.scan_cache_state()
    }
}

fn stored(row: &str) -> RowKey {
    stored_row(TABLE, &RowKey::copy_from_slice(row.as_bytes()))
}

fn key(row: &str, family: FamilyId, qualifier: &str, version: i64) -> Vec<u8> {
    codec::encode_parts(stored(row).as_bytes(), family, qualifier.as_bytes(), Micros::new(version))
}

fn put(row: &str, family: FamilyId, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key(row, family, "q", 1), value.to_vec());
    batch
}

fn delete_rows(from: &str, to: &str) -> Batch {
    let mut batch = Batch::new();
    let range = KeyRange::new(RowKey::copy_from_slice(from.as_bytes()), Some(RowKey::copy_from_slice(to.as_bytes())));
    let (from, to) = codec::range_bounds(&stored_range(TABLE, &range.unwrap()));
    batch.delete_range(from, to);
    batch
}

fn wanted(
    cells: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    families: Option<&BTreeSet<FamilyId>>,
) -> Vec<(CellKey, Vec<u8>)> {
    let decoded = cells.map(|(key, value)| (CellKey::decode(&key).unwrap(), value));
    decoded.filter(|(key, _value)| families.is_none_or(|families| families.contains(&key.family))).collect()
}

fn cells_of(lookup: &RowLookup, row: &CachedRow, families: Option<&BTreeSet<FamilyId>>) -> Vec<(CellKey, Vec<u8>)> {
    let whole = |cell: &[u8]| [lookup.row_prefix(), cell].concat();
    wanted(row.cells().map(|(cell, value)| (whole(cell), value.to_vec())), families)
}

#[test]
fn the_second_read_of_a_row_fills_and_the_third_one_hits() {
    let fixture = Fixture::new(1 << 20);
    fixture.put("a", b"1");
    for reads in 0..2 {
        assert!(!fixture.look_up("other").is_cached());
        let lookup = fixture.look_up("a");
        let filled = fixture.store.view().fill(&lookup, None, ReadTier::All).unwrap();
        assert_eq!(filled.is_some(), reads == 1);
    }
    assert_eq!(fixture.read("a", None).len(), 1);
    assert_eq!(fixture.state().rows, 1);
    fixture.warm("missing");
    assert!(fixture.read("missing", None).is_empty(), "that a row does not exist is cached too");
}

#[test]
fn a_write_removes_its_row_and_no_other() {
    let fixture = Fixture::new(1 << 20);
    fixture.put("a", b"1");
    for change in [put("a", FAMILIES[0], b"2"), put("a", FAMILIES[1], b"3"), delete_rows("a", "a\0")] {
        fixture.warm("a");
        fixture.warm("b");
        fixture.store.write(&change).unwrap();
        assert!(!fixture.look_up("a").is_cached() && fixture.look_up("b").is_cached());
    }
    // It was in use, so the next read fills it.
    fixture.warm("a");
    fixture.put("a", b"4");
    let lookup = fixture.look_up("a");
    assert!(fixture.store.view().fill(&lookup, None, ReadTier::All).unwrap().is_some());
    fixture.warm("b");
    fixture.store.write(&delete_rows("c", "d")).unwrap();
    assert!(!fixture.look_up("b").is_cached(), "a deletion of a range of rows ends all entries of the store");
}

#[test]
fn a_fill_that_began_before_a_write_and_ends_after_it_is_dropped() {
    for change in
        [put("a", FAMILIES[0], b"2"), put("a", FAMILIES[1], b"2"), delete_rows("a", "a\0"), delete_rows("a", "z")]
    {
        let fixture = Fixture::new(1 << 20);
        fixture.put("a", b"1");
        fixture.read("a", None);
        let lookup = fixture.look_up("a");
        let view = fixture.store.view();
        fixture.store.write(&change).unwrap();
        let filled = view.fill(&lookup, None, ReadTier::All).unwrap().unwrap();
        assert_eq!(filled.cells().count(), 1, "the reader itself gets what its view shows");
        assert!(!fixture.look_up("a").is_cached(), "after {change:?}");
        assert_eq!((fixture.state().fills, fixture.state().refused_fills), (0, 1));
    }
}

#[test]
fn no_row_is_filled_while_it_is_written() {
    for change in [put("a", FAMILIES[0], b"2"), delete_rows("a", "z")] {
        let fixture = Fixture::new(1 << 20);
        fixture.put("a", b"1");
        fixture.read("a", None);
        let cache = fixture.shared.scan_cache().unwrap();
        let write = cache.begin_write(&fixture.store.cached, &change);
        let (early, late) = (fixture.look_up("a"), fixture.look_up("a"));
        let view = fixture.store.view();
        // As a write that is under way: it has removed the row, and the view does not have it yet.
        view.fill(&early, None, ReadTier::All).unwrap();
        assert!(!fixture.look_up("a").is_cached(), "a fill before the end of {change:?}");
        write.written();
        view.fill(&late, None, ReadTier::All).unwrap();
        assert!(!fixture.look_up("a").is_cached(), "a fill that began before the end of {change:?}");
        fixture.warm("a");
    }
}

#[test]
fn a_store_whose_write_failed_is_not_cached_any_more() {
    let fixture = Fixture::new(1 << 20);
    fixture.warm("b");
    for change in [put("a", FAMILIES[0], b"2"), delete_rows("a", "z")] {
        let cache = fixture.shared.scan_cache().unwrap();
        drop(cache.begin_write(&fixture.store.cached, &change));
        assert!(!fixture.look_up("b").is_cached());
    }
    for _ in 0..3 {
        assert!(fixture.store.view().fill(&fixture.look_up("b"), None, ReadTier::All).unwrap().is_none());
    }
    // A write that is refused before it begins is none.
    let other = Fixture::new(1 << 20);
    other.warm("b");
    let message = "IO error: No space left on device".to_owned();
    let dir = other.store.dir().to_owned();
    other.shared.inject_faults(vec![StoreFault { dir, operation: StoreOperation::Write, message }]);
    other.store.write(&put("b", FAMILIES[0], b"2")).unwrap_err();
    assert!(other.look_up("b").is_cached());
}

#[test]
fn stores_of_one_server_and_a_store_that_is_opened_again_have_their_own_entries() {
    let fixture = Fixture::new(1 << 20);
    fixture.warm("a");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("other");
    let other = GroupStore::create(&path, &fixture.shared).unwrap();
    other.write(&put("a", FAMILIES[0], b"1")).unwrap();
    assert!(!other.look_up(&stored("a")).unwrap().is_cached() && fixture.look_up("a").is_cached());
    for _ in 0..2 {
        other.view().fill(&other.look_up(&stored("a")).unwrap(), None, ReadTier::All).unwrap();
    }
    assert!(other.look_up(&stored("a")).unwrap().is_cached());
    drop(other);
    let opened = GroupStore::open(&path, &fixture.shared).unwrap();
    assert!(!opened.look_up(&stored("a")).unwrap().is_cached());
}

#[test]
fn only_the_families_that_are_read_are_kept() {
    let fixture = Fixture::new(1 << 20);
    let only = |at: usize| BTreeSet::from([FAMILIES[at]]);
    fixture.put("a", b"1");
    fixture.store.write(&put("a", FAMILIES[1], b"2")).unwrap();
    fixture.read("a", Some(&only(0)));
    assert_eq!(fixture.read("a", Some(&only(0))).len(), 1);
    let lookup = fixture.look_up("a");
    assert!(lookup.cached(Some(&only(0))).is_some_and(|row| row.cells().count() == 1));
    assert!(lookup.cached(Some(&only(1))).is_none() && lookup.cached(None).is_none());
    // A read of the other family adds it.
    assert_eq!(fixture.read("a", Some(&only(1))).len(), 1);
    let lookup = fixture.look_up("a");
    assert!(lookup.cached(Some(&FAMILIES.into())).is_some_and(|row| row.cells().count() == 2));
}

#[test]
fn large_rows_are_not_cached_and_are_not_tried_again() {
    let fixture = Fixture::new(16 << 20);
    fixture.put("a", &[1; 1_000]);
    fixture.store.write(&put("a", FAMILIES[1], &[2; ROW_BYTES_MAX])).unwrap();
    for _ in 0..2 {
        assert!(fixture.store.view().fill(&fixture.look_up("a"), None, ReadTier::All).unwrap().is_none());
    }
    let fills = fixture.state().fills;
    assert!(fixture.store.view().fill(&fixture.look_up("a"), None, ReadTier::All).unwrap().is_none());
    assert_eq!(fixture.state().fills, fills);
    // The small family is.
    let small = BTreeSet::from([FAMILIES[0]]);
    assert!(fixture.store.view().fill(&fixture.look_up("a"), Some(&small), ReadTier::All).unwrap().is_some());
    assert!(fixture.look_up("a").cached(Some(&small)).is_some());
    assert!(fixture.store.view().fill(&fixture.look_up("a"), None, ReadTier::All).unwrap().is_none());
}

#[test]
fn the_cache_is_bounded_and_reads_that_do_not_come_again_evict_nothing() {
    let fixture = Fixture::new(1 << 20);
    let value = [7; 500];
    (0..4_000).for_each(|row| fixture.put(&format!("{row:04}"), &value));
    (0..100).for_each(|row| fixture.warm(&format!("{row:04}")));
    let hot = || (0..100).filter(|row| fixture.look_up(&format!("{row:04}")).is_cached()).count();
    assert_eq!(hot(), 100);
    for row in 1_000..4_000 {
        fixture.read(&format!("{row:04}"), None);
    }
    assert_eq!(hot(), 100, "rows that were read once have evicted rows in use");
    for _ in 0..3 {
        for row in 0..4_000 {
            fixture.read(&format!("{row:04}"), None);
            fixture.read(&format!("{row:04}"), None);
        }
    }
    let state = fixture.state();
    assert!(state.bytes <= 1 << 20 && state.bytes > 1 << 19 && state.evictions > 1_000, "{state:?}");
    assert_eq!(state.capacity_bytes, 1 << 20);
}

#[test]
fn without_memory_for_it_there_is_no_cache() {
    let fixture = Fixture::new(0);
    assert!(fixture.store.look_up(&stored("a")).is_none());
    fixture.put("a", b"1");
    assert_eq!(fixture.state(), ScanCacheState::default());
}

/// Readers that have seen a value, or know that it was acknowledged, never see an older one.
#[test]
fn concurrent_readers_never_go_back_in_time() {
    const WRITES: u64 = 20_000;
    let fixture = Fixture::new(1 << 20);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let value = |number: u64| number.to_be_bytes();
    fixture.put("a", &value(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let before = acknowledged.load(Ordering::SeqCst);
                    let cells = fixture.read("a", None);
                    let seen = u64::from_be_bytes(cells[0].1.as_slice().try_into().unwrap());
                    assert!(seen >= before, "{seen} was read after {before}");
                    // What one has seen, all others must see.
                    acknowledged.fetch_max(seen, Ordering::SeqCst);
                }
            });
        }
        for number in 1..=WRITES {
            fixture.put("a", &value(number));
            acknowledged.fetch_max(number, Ordering::SeqCst);
            if number % 16 == 0 {
                // No write is in progress, so this fills.
                fixture.read("a", None);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(fixture.state().fills > 0);
}

#[derive(Clone, Debug)]
enum Step {
    Put { row: u8, family: usize, qualifier: u8, version: i64 },
    Delete { row: u8, family: usize, qualifier: u8, version: i64 },
    DeleteRow(u8),
    DeleteFamily(u8, usize),
    DeleteRows(u8, u8),
    Flush,
    Compact,
    Relocate,
    Read { row: u8, families: Option<BTreeSet<FamilyId>> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (row, family, qualifier, version) = (0_u8..4, 0_usize..2, 0_u8..3, 1_i64..3);
    let cell = (row.clone(), family.clone(), qualifier, version);
    let families = prop_oneof![
        Just(None),
        Just(Some(BTreeSet::from([FAMILIES[0]]))),
        Just(Some(BTreeSet::from([FAMILIES[1]]))),
        Just(Some(BTreeSet::from(FAMILIES))),
    ];
    let step = prop_oneof![
        4 => cell.clone().prop_map(|(row, family, qualifier, version)| Step::Put { row, family, qualifier, version }),
        2 => cell.prop_map(|(row, family, qualifier, version)| Step::Delete { row, family, qualifier, version }),
        1 => row.clone().prop_map(Step::DeleteRow),
        1 => (row.clone(), family).prop_map(|(row, family)| Step::DeleteFamily(row, family)),
        1 => (row.clone(), row.clone()).prop_map(|(one, other)| Step::DeleteRows(one.min(other), one.max(other) + 1)),
        1 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Relocate),
        12 => (row, families).prop_map(|(row, families)| Step::Read { row, families }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// One row has zero bytes in its key, and one key is a prefix of another.
fn name(row: u8) -> &'static str {
    ["a", "a\0", "a\0b", "c", "z"][usize::from(row)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn reads_through_the_cache_return_what_was_written(steps in steps()) {
        let fixture = Fixture::new(1 << 20);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut hits = 0;
        for (number, step) in (0_u32..).zip(steps) {
            let mut batch = Batch::new();
            match step {
                Step::Put { row, family, qualifier, version } => {
                    let (key, value) = (key(name(row), FAMILIES[family], &qualifier.to_string(), version), number.to_be_bytes().to_vec());
                    batch.put(key.clone(), value.clone());
                    model.insert(key, value);
                }
                Step::Delete { row, family, qualifier, version } => {
                    let key = key(name(row), FAMILIES[family], &qualifier.to_string(), version);
                    batch.delete(key.clone());
                    model.remove(&key);
                }
                Step::DeleteRow(row) => {
                    let prefix = codec::row_prefix(&stored(name(row)));
                    batch.delete_range(prefix.clone(), codec::prefix_end(&prefix));
                    model.retain(|key, _value| !key.starts_with(&prefix));
                }
                Step::DeleteFamily(row, family) => {
                    let prefix = codec::family_prefix(&stored(name(row)), FAMILIES[family]);
                    batch.delete_range(prefix.clone(), codec::prefix_end(&prefix));
                    model.retain(|key, _value| !key.starts_with(&prefix));
                }
                Step::DeleteRows(from, to) => {
                    batch = delete_rows(name(from), name(to));
                    let (lower, upper) = (codec::row_prefix(&stored(name(from))), codec::row_prefix(&stored(name(to))));
                    model.retain(|key, _value| *key < lower || *key >= upper);
                }
                Step::Flush => fixture.store.flush().unwrap(),
                Step::Compact => fixture.store.compact().unwrap(),
                Step::Relocate => {
                    // The second family changes its place, and its cells follow.
                    let group = 1 + number % 2;
                    let groups = [CellFamily::lg0(), CellFamily { group, options: "".parse().unwrap() }];
                    let families: WantedFamilies = FAMILIES.into_iter().zip(groups).collect();
                    fixture.store.place_tables(BTreeMap::from([(TABLE, families)])).unwrap();
                    fixture.store.relocate(1 << 10).unwrap();
                }
                Step::Read { row, families } => {
                    let row = name(row);
                    hits += usize::from(fixture.look_up(row).cached(families.as_ref()).is_some());
                    let prefix = codec::row_prefix(&stored(row));
                    let cells = model.iter().filter(|(key, _value)| key.starts_with(&prefix));
                    let expected = wanted(cells.map(|(key, value)| (key.clone(), value.clone())), families.as_ref());
                    prop_assert_eq!(fixture.read(row, families.as_ref()), expected, "step {}, hits {}", number, hits);
                }
            }
            fixture.store.write(&batch).unwrap();
        }
    }
}
