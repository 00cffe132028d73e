//! Reads against a plain map: rows, columns, both directions, memtable and files mixed.

use proptest::prelude::*;

use super::super::cells::{Probe, SINGLE_DELETES_MAX, StoredCell, probe, read_column, read_row, version_bounds};
use super::*;

/// Row, family, qualifier, timestamp (inverted, so that the map's order is the store's) and value.
type Model = BTreeMap<(Vec<u8>, u32, Vec<u8>, std::cmp::Reverse<i64>), Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u32, Vec<u8>, i64, u8),
    DeleteRow(Vec<u8>),
    Flush,
}

/// Names that are prefixes of each other and hold what the escape is about.
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

fn carry_out(store: &TabletStore, steps: Vec<Step>) -> Model {
    let mut model = Model::new();
    for step in steps {
        let mut batch = Batch::new();
        match step {
            Step::Put(row, family, qualifier, micros, value) => {
                let key = codec::encode_parts(&row, FamilyId::new(family), &qualifier, Micros::new(micros));
                batch.put(key, codec::encode_value(&[value]));
                model.insert((row, family, qualifier, std::cmp::Reverse(micros)), vec![value]);
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

fn expected(model: &Model, range: &KeyRange, families: &Families) -> Vec<StoredRow> {
    let mut rows: Vec<StoredRow> = Vec::new();
    for ((row, family, qualifier, time), value) in model {
        let family = FamilyId::new(*family);
        if !range.contains(row) || !wants(families, family) {
            continue;
        }
        let cell = StoredCell {
            family,
            qualifier: qualifier.clone().into(),
            timestamp: Micros::new(time.0),
            value: value.clone().into(),
        };
        match rows.last_mut() {
            Some(last) if last.key.as_bytes() == row.as_slice() => last.cells.push(cell),
            _ => rows.push(StoredRow { key: RowKey::new(row.clone()), cells: vec![cell] }),
        }
    }
    rows
}

fn wants(families: &Families, family: FamilyId) -> bool {
    match families {
        Families::All => true,
        Families::Only(wanted) => wanted.contains(&family),
    }
}

fn only(families: &[u32]) -> Families {
    Families::Only(families.iter().copied().map(FamilyId::new).collect())
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
            for families in [Families::All, only(&[2]), only(&[1, 3])] {
                let rows = expected(&model, &range, &families);
                prop_assert_eq!(&rows_of(&store, &range, Direction::Forward, families.clone()), &rows);
                let mut backward = rows_of(&store, &range, Direction::Reverse, families);
                backward.reverse();
                prop_assert_eq!(&backward, &rows);
            }
        }
        let view = store.view();
        for row in expected(&model, &KeyRange::all(), &Families::All) {
            let single = KeyRange::single(row.key.clone());
            prop_assert_eq!(&rows_of(&store, &single, Direction::Forward, Families::All), &vec![row.clone()]);
            prop_assert_eq!(&read_row(&view, &row.key, &Families::All, Reach::Disk).unwrap(), &row.cells);
            let first = &row.cells[0];
            let versions: Vec<_> = row.cells.iter()
                .filter(|cell| (cell.family, &cell.qualifier) == (first.family, &first.qualifier))
                .take(2).cloned().collect();
            prop_assert_eq!(read_column(&view, &row.key, (first.family, &first.qualifier), 2).unwrap(), versions);
        }
    }
}

#[test]
fn a_row_that_does_not_exist_is_empty() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=50).for_each(|index| store.write(&numbered(index, b"v")).unwrap());
    store.flush().unwrap();
    let view = store.view();
    for name in ["row", "row0000000", "row000000011", "zzz", "row00000001\0"] {
        let row = RowKey::new(name);
        assert!(read_row(&view, &row, &Families::All, Reach::Disk).unwrap().is_empty(), "{name:?}");
        assert!(read_column(&view, &row, (FamilyId::new(1), &Bytes::from("q")), 1).unwrap().is_empty());
    }
    assert_eq!(read_row(&view, &RowKey::new("row00000007"), &Families::All, Reach::Disk).unwrap().len(), 1);
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
fn a_family_of_many_cells_that_nobody_wants_is_passed() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut batch = Batch::new();
    for row in ["a", "b"] {
        for n in 0..100 {
            put(&mut batch, row, 2, &format!("q{n}"), 1, b"wide");
        }
        put(&mut batch, row, 1, "q", 1, b"first");
        put(&mut batch, row, 3, "q", 1, b"last");
    }
    put(&mut batch, "c", 2, "q", 1, b"nothing else");
    store.write(&batch).unwrap();
    for direction in [Direction::Forward, Direction::Reverse] {
        let rows = rows_of(&store, &KeyRange::all(), direction, only(&[1, 3]));
        assert_eq!(rows.len(), 2, "{direction:?}");
        assert!(rows.iter().all(|row| row.cells.len() == 2 && &row.cells[0].value[..] == b"first"));
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
        probe(&store.view(), &prefix, codec::prefix_end(&prefix).as_deref()).unwrap()
    };
    assert_eq!(probe_row("many"), Probe::Many);
    assert_eq!(probe_row("none"), Probe::Few(Vec::new()));
    let Probe::Few(keys) = probe_row("some") else { panic!("sixteen are few") };
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
    assert_eq!(probe(&store.view(), &prefix, codec::prefix_end(&prefix).as_deref()).unwrap(), Probe::Many);
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
fn a_read_within_the_cache_says_when_it_is_not_there() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=200).for_each(|index| store.write(&numbered(index, &[9; 1000])).unwrap());
    let row = RowKey::new("row00000100");
    let cached = |store: &TabletStore| read_row(&store.view(), &row, &Families::All, Reach::Cache);
    assert_eq!(cached(&store).unwrap().len(), 1, "a memtable is memory");
    let store = reopened(store);
    assert!(matches!(cached(&store), Err(StoreError::NotCached)));
    assert_eq!(read_row(&store.view(), &row, &Families::All, Reach::Disk).unwrap().len(), 1);
    assert_eq!(cached(&store).unwrap().len(), 1, "now it is cached");
}

#[test]
fn bytes_that_are_no_cell_are_damage() {
    let dir = TempDir::new().unwrap();
    let stored = [
        (b"no terminator".to_vec(), codec::encode_value(b"v")),
        (b"r\0\x01\0\0".to_vec(), codec::encode_value(b"v")),
        (cell("r", 1, "q", 1), vec![77, 1]),
        (cell("r", 1, "q", 1), Vec::new()),
    ];
    for (number, (key, value)) in stored.into_iter().enumerate() {
        let store = TabletStore::create(&dir.path().join(number.to_string()), &shared()).unwrap();
        let mut batch = Batch::new();
        batch.put(key.clone(), value);
        store.write(&batch).unwrap();
        let view = store.view();
        let mut scan = RowScan::new(&view, &KeyRange::all(), Direction::Forward, Families::All).unwrap();
        assert!(matches!(scan.next_row(), Err(StoreError::Damaged { .. })), "{key:?}");
    }
}
