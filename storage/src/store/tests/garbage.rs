//! Garbage collection by compactions, and that reads never see part of it.

use ebla_model::id::TableId;
use ebla_model::stored_row::stored_range;

use super::*;
use crate::store::compaction::TableGcRules;

/// The table of all rows here; [`row`] has its prefix.
const TABLE: TableId = TableId::new(3);

/// A row of [`TABLE`] as stored.
fn row(name: &str) -> String {
    format!("\u{2}\u{3}{name}")
}

fn rules(range: &KeyRange, floor: i64) -> GcRules {
    let rules = TableGcRules {
        table: TABLE,
        families: [FamilyId::new(1), FamilyId::new(2)].into(),
        next_family: FamilyId::new(4),
        floors: BTreeMap::from([(FamilyId::new(1), Micros::new(floor))]),
    };
    GcRules::new([(rules, vec![range.clone()])])
}

fn range(start: &'static str, end: &'static str) -> KeyRange {
    KeyRange::new(RowKey::new(start), Some(RowKey::new(end))).unwrap()
}

fn filled(dir: &TempDir) -> GroupStore {
    let store = new_store(dir);
    let mut batch = Batch::new();
    for row in ["a", "m", "z"].map(row) {
        put(&mut batch, &row, 1, "old", 10, b"v");
        put(&mut batch, &row, 1, "new", 90, b"v");
        put(&mut batch, &row, 2, "q", 10, b"v");
        put(&mut batch, &row, 3, "dropped", 90, b"v");
    }
    store.write(&batch).unwrap();
    store.flush().unwrap();
    store
}

fn qualifiers(store: &GroupStore) -> Vec<(String, String)> {
    let cells = cells_of(store, &KeyRange::all()).into_iter();
    cells.map(|cell| (text(cell.row.as_bytes()), text(&cell.qualifier))).collect()
}

#[test]
fn without_rules_nothing_is_dropped() {
    let dir = TempDir::new().unwrap();
    let store = filled(&dir);
    store.compact().unwrap();
    assert_eq!(qualifiers(&store).len(), 12);
}

#[test]
fn compaction_drops_what_the_rules_say() {
    let dir = TempDir::new().unwrap();
    let store = filled(&dir);
    store.set_gc_rules(rules(&range("b", "y"), 50));
    assert_eq!(qualifiers(&store).len(), 12, "not before a compaction");
    store.compact().unwrap();
    let left = qualifiers(&store);
    assert_eq!(left, [(row("m"), "new".to_owned()), (row("m"), "q".to_owned())]);
}

#[test]
fn an_iterator_made_before_sees_all_and_a_view_makes_no_more_after() {
    let dir = TempDir::new().unwrap();
    let store = filled(&dir);
    let view = store.view();
    let scan = view.cells(b"", None, Direction::Forward).unwrap();
    store.set_gc_rules(rules(&range("b", "y"), 50));
    store.compact().unwrap();
    assert_eq!(scan.collect::<Result<Vec<_>, _>>().unwrap().len(), 12);
    assert!(matches!(view.cells(b"", None, Direction::Forward), Err(StoreError::Expired)));
    assert!(matches!(view.get_cell(&cell(&row("m"), 1, "new", 90)), Err(StoreError::Expired)));
    assert!(view.get_meta(MetaKey::Applied).unwrap().is_none(), "meta keys are never collected");
}

#[test]
fn with_view_takes_a_new_view_when_the_first_expires() {
    let dir = TempDir::new().unwrap();
    let store = filled(&dir);
    let mut attempts = 0;
    let count = store.with_view(|view| {
        attempts += 1;
        if attempts == 1 {
            store.set_gc_rules(rules(&range("b", "y"), 50));
        }
        Ok(view.cells(b"", None, Direction::Forward)?.count())
    });
    assert_eq!((count.unwrap(), attempts), (12, 2));
}

/// Writes rows `row00000001` to `rows`, each with 16 KiB that do not shrink.
fn fill_with_noise(store: &GroupStore, rows: u64) {
    let mut state = 7u64;
    for index in 1..=rows {
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()
        })
        .take(2048)
        .flatten()
        .collect();
        let mut batch = Batch::new();
        put(&mut batch, &row(&format!("row{index:08}")), 1, "q", 90, &value);
        store.write(&batch).unwrap();
    }
}

#[test]
fn files_outside_the_range_go_at_once() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    // Three times the file size, and nothing that shrinks.
    fill_with_noise(&store, 3000);
    store.flush().unwrap();
    store.compact().unwrap();
    let before = store.size_bytes().unwrap();
    let right = KeyRange::new(RowKey::new("row00001500"), None).unwrap();
    store.drop_outside(rules(&right, 0)).unwrap();
    let after = store.size_bytes().unwrap();
    assert!(after < before, "{after} of {before}");
    assert_eq!(cells_of(&store, &stored_range(TABLE, &right)).len(), 1501);
    let left = range("row00001500", "row00002000");
    store.drop_outside(rules(&left, 0)).unwrap();
    assert!(store.size_bytes().unwrap() < after);
    assert_eq!(cells_of(&store, &stored_range(TABLE, &left)).len(), 500);
}

#[test]
fn a_deleted_cell_does_not_come_back_when_collected() {
    let dir = TempDir::new().unwrap();
    let store = filled(&dir);
    store.compact().unwrap();
    let mut batch = Batch::new();
    let prefix = codec::row_prefix(&RowKey::new(row("m")));
    batch.delete_range(prefix.clone(), codec::prefix_end(&prefix));
    store.write(&batch).unwrap();
    store.flush().unwrap();
    store.set_gc_rules(rules(&KeyRange::all(), 50));
    store.compact().unwrap();
    assert!(qualifiers(&store).iter().all(|(found, _)| *found != row("m")));
}

#[test]
fn gaps_are_collected_in_files_of_every_level() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    fill_with_noise(&store, 3000);
    store.flush().unwrap();
    store.compact().unwrap();
    // In level 0, over the whole range.
    fill_with_noise(&store, 300);
    let mut batch = Batch::new();
    put(&mut batch, &row("row00002999"), 1, "new", 90, b"v");
    store.write(&batch).unwrap();
    store.flush().unwrap();
    assert_eq!(store.bytes_in_gaps().unwrap(), 0, "no rules yet");
    store.collect_gaps().unwrap();
    assert_eq!(row_names(&store).len(), 3000);

    // In the middle of a file at both ends.
    store.set_gc_rules(rules(&range("row00001400", "row00001500"), 0));
    let garbage = store.bytes_in_gaps().unwrap();
    assert!(garbage > 2900 * (16 << 10), "{garbage}");
    store.collect_gaps().unwrap();
    let left = store.bytes_in_gaps().unwrap();
    assert!(left < 512 << 10, "{left} of {garbage}");
    let kept = store.size_bytes().unwrap();
    assert!(kept < 110 * (16 << 10), "{kept}");
    assert_eq!(row_names(&store).len(), 100);

    // A tablet in a former gap keeps its cells.
    store.set_gc_rules(rules(&range("row00001400", "row00001600"), 0));
    let mut batch = Batch::new();
    put(&mut batch, &row("row00001550"), 1, "q", 90, b"v");
    store.write(&batch).unwrap();
    store.flush().unwrap();
    store.collect_gaps().unwrap();
    assert_eq!(row_names(&store).len(), 101);
}
