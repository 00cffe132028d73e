//! Reads against a plain map: ranges, rows, columns, both directions, memtable and files mixed.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::super::cells::{DeletePlan, SINGLE_DELETES_MAX, plan_delete, version_bounds};
use super::*;

/// Row, family, qualifier and timestamp, inverted, so that the map's order is the store's.
type Place = (Vec<u8>, u32, Vec<u8>, Reverse<i64>);
/// The expected cells.
type Model = BTreeMap<Place, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u32, Vec<u8>, i64, u8),
    DeleteRow(Vec<u8>),
    Flush,
}

/// Names that are prefixes of each other and contain bytes that need escapes.
fn name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff), Just(b'a'), Just(b'b')], 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (name(), 1u32..4, name(), 0i64..4, any::<u8>()).prop_map(|(r, f, q, t, v)| Step::Put(r, f, q, t, v)),
        1 => name().prop_map(Step::DeleteRow),
        1 => Just(Step::Flush),
    ]
}

fn carry_out(store: &GroupStore, steps: Vec<Step>) -> Model {
    let mut model = Model::new();
    for step in steps {
        let mut batch = Batch::new();
        match step {
            Step::Put(row, family, qualifier, micros, value) => {
                let key = codec::encode_parts(&row, FamilyId::new(family), &qualifier, Micros::new(micros));
                batch.put(key, codec::encode_value(&[value]));
                model.insert((row, family, qualifier, Reverse(micros)), vec![value]);
            }
            Step::DeleteRow(row) => {
                let prefix = codec::row_prefix(&RowKey::new(row.clone()));
                let end = codec::prefix_end(&prefix);
                batch.delete_range(prefix, end);
                model.retain(|(there, ..), _| *there != row);
            }
            Step::Flush => store.flush().unwrap(),
        }
        store.write(&batch).unwrap();
    }
    model
}

/// The cells of the model that are such.
fn expected(model: &Model, is_such: impl Fn(&Place) -> bool) -> Vec<(Place, Vec<u8>)> {
    let such = model.iter().filter(|(place, _)| is_such(place));
    such.map(|(place, value)| (place.clone(), value.clone())).collect()
}

/// The cells of the store between some bounds, rising whatever the direction.
fn found(store: &GroupStore, (lower, upper): &Bounds, direction: Direction) -> Vec<(Place, Vec<u8>)> {
    let view = store.view();
    let cells = view.cells(lower, upper.as_deref(), direction).unwrap();
    let mut found: Vec<_> = cells.map(|cell| cell.unwrap()).map(|(key, value)| (place(&key), content(value))).collect();
    if direction == Direction::Reverse {
        found.reverse();
    }
    found
}

/// As `codec::range_bounds` gives them.
type Bounds = (Vec<u8>, Option<Vec<u8>>);

/// Bounds of all keys with this prefix.
fn below(prefix: Vec<u8>) -> Bounds {
    let end = codec::prefix_end(&prefix);
    (prefix, end)
}

fn place(key: &[u8]) -> Place {
    let CellKey { row, family, qualifier, timestamp } = CellKey::decode(key).unwrap();
    (row.as_bytes().to_vec(), family.get(), qualifier.to_vec(), Reverse(timestamp.get()))
}

fn content(stored: Bytes) -> Vec<u8> {
    codec::decode_value(stored).unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scans_and_gets_agree_with_a_map(
        steps in proptest::collection::vec(step(), 1..120),
        start in name(),
        end in name(),
    ) {
        let dir = TempDir::new().unwrap();
        let store = new_store(&dir);
        let model = carry_out(&store, steps);
        let bounded = KeyRange::new(RowKey::new(start), Some(RowKey::new(end)));
        for range in bounded.into_iter().chain([KeyRange::all()]) {
            let cells = expected(&model, |(row, ..)| range.contains(row));
            for direction in [Direction::Forward, Direction::Reverse] {
                prop_assert_eq!(&found(&store, &codec::range_bounds(&range), direction), &cells);
            }
        }
        for (row, family, qualifier, _) in model.keys() {
            let key = RowKey::new(row.clone());
            let of_row = expected(&model, |(there, ..)| there == row);
            let of_column = expected(&model, |(r, f, q, _)| (r, f, q) == (row, family, qualifier));
            let column = codec::column_prefix(&key, FamilyId::new(*family), qualifier);
            for direction in [Direction::Forward, Direction::Reverse] {
                prop_assert_eq!(&found(&store, &below(codec::row_prefix(&key)), direction), &of_row);
                prop_assert_eq!(&found(&store, &codec::range_bounds(&KeyRange::single(key.clone())), direction), &of_row);
                prop_assert_eq!(&found(&store, &below(column.clone()), direction), &of_column);
            }
        }
    }
}

/// The cells of one row, where the reach lets them be read.
fn read_row(store: &GroupStore, row: &str, reach: ReadTier) -> Result<usize, StoreError> {
    let (lower, upper) = codec::range_bounds(&KeyRange::single(RowKey::copy_from_slice(row.as_bytes())));
    let view = store.view();
    let cells: Result<Vec<_>, _> = view.scan(&ScanPlan::new(&lower, upper.as_deref()).with_read_tier(reach))?.collect();
    cells.map(|cells| cells.len())
}

#[test]
fn a_row_that_does_not_exist_is_empty() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=50).for_each(|index| store.write(&numbered(index, b"v")).unwrap());
    store.flush().unwrap();
    for name in ["row", "row0000000", "row000000011", "zzz", "row00000001\0"] {
        assert_eq!(read_row(&store, name, ReadTier::All).unwrap(), 0, "{name:?}");
    }
    assert_eq!(read_row(&store, "row00000007", ReadTier::All).unwrap(), 1);
}

#[test]
fn crossed_bounds_are_an_empty_scan() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    store.write(&numbered(1, b"v")).unwrap();
    for direction in [Direction::Forward, Direction::Reverse] {
        assert_eq!(store.view().cells(b"z", Some(b"a"), direction).unwrap().count(), 0);
        assert_eq!(store.view().cells(b"a", Some(b"a"), direction).unwrap().count(), 0);
    }
}

#[test]
fn few_cells_are_named_and_many_are_not() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut batch = Batch::new();
    (0..=SINGLE_DELETES_MAX).for_each(|n| put(&mut batch, "many", 1, &format!("q{n}"), 1, b"v"));
    (0..SINGLE_DELETES_MAX).for_each(|n| put(&mut batch, "some", 1, &format!("q{n}"), 1, b"v"));
    store.write(&batch).unwrap();
    let probe_row = |row: &'static str| {
        let prefix = codec::row_prefix(&RowKey::new(row));
        plan_delete(&store.view(), &prefix, codec::prefix_end(&prefix).as_deref()).unwrap()
    };
    assert_eq!(probe_row("many"), DeletePlan::Range);
    assert_eq!(probe_row("none"), DeletePlan::Keys(Vec::new()));
    let DeletePlan::Keys(keys) = probe_row("some") else { panic!("sixteen are few") };
    assert_eq!(keys.len(), SINGLE_DELETES_MAX);
}

#[test]
fn a_probe_does_not_wade_through_deleted_cells() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let keys: Vec<_> = (0..1000).map(|n| cell("row", 1, &format!("q{n:04}"), 1)).collect();
    let mut batch = Batch::new();
    keys.iter().for_each(|key| batch.put(key.clone(), codec::encode_value(b"v")));
    store.write(&batch).unwrap();
    let mut batch = Batch::new();
    keys.iter().for_each(|key| batch.delete(key.clone()));
    store.write(&batch).unwrap();
    let prefix = codec::row_prefix(&RowKey::new("row"));
    assert_eq!(plan_delete(&store.view(), &prefix, codec::prefix_end(&prefix).as_deref()).unwrap(), DeletePlan::Range);
}

#[test]
fn version_bounds_hold_what_a_delete_of_a_column_means() {
    let row = RowKey::new("r");
    let column = (FamilyId::new(1), &b"q"[..]);
    let has = |start, end: Option<i64>, micros| {
        let (lower, upper) = version_bounds(&row, column, Micros::new(start), end.map(Micros::new));
        let key = cell("r", 1, "q", micros);
        lower <= key && key < upper
    };
    assert!(has(5, Some(8), 5) && has(5, Some(8), 7));
    assert!(!has(5, Some(8), 4) && !has(5, Some(8), 8));
    assert!(has(5, None, 5) && has(5, None, i64::MAX) && !has(5, None, 4));
    assert!(has(0, None, 0));
    assert!(!has(8, Some(5), 6), "crossed");
}

#[test]
fn a_cache_only_read_of_an_uncached_block_is_an_error() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=200).for_each(|index| store.write(&numbered(index, &[9; 1000])).unwrap());
    let row = "row00000100";
    assert_eq!(read_row(&store, row, ReadTier::BlockCache).unwrap(), 1, "a memtable is memory");
    let store = restarted(store);
    assert!(matches!(read_row(&store, row, ReadTier::BlockCache), Err(StoreError::NotCached)));
    assert_eq!(read_row(&store, row, ReadTier::All).unwrap(), 1);
    assert_eq!(read_row(&store, row, ReadTier::BlockCache).unwrap(), 1, "now it is cached");
}

#[test]
fn servers_share_a_block_cache_and_a_scan_made_once_leaves_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let cache = BlockCache::new(8 << 20);
    let server = || SharedResources::with_cache(StoreOptions::up(), cache.clone()).unwrap();
    let (used, other) = (server(), server());
    let store = GroupStore::create(&dir.path().join("store"), &used).unwrap();
    for index in 0..1_000 {
        store.write(&numbered(index, &[7; 1_000])).unwrap();
    }
    store.flush().unwrap();
    let read = |plan: ScanPlan<'_>| {
        let before = other.usage().cache_bytes;
        let cells = store.with_view(|view| Ok(view.scan(&plan)?.count())).unwrap();
        assert_eq!(cells, 1_000);
        other.usage().cache_bytes - before
    };
    let (once, kept) = (read(ScanPlan::new(b"", None).without_filling_cache()), read(ScanPlan::new(b"", None)));
    assert!(once < 100_000 && kept > 900_000, "{once} and {kept} bytes");
    assert_eq!(used.usage().cache_bytes, other.usage().cache_bytes);
}
