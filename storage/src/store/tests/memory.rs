//! Locality groups in memory: reads do not touch the disk, within the budget.

use std::time::{Duration, Instant};

use ebla_model::id::TableId;
use ebla_model::stored_row::{stored_range, stored_row};

use super::super::placement::WantedFamilies;
use super::*;

const TABLE: TableId = TableId::new(5);
const IN_FILES: FamilyId = FamilyId::new(1);
const IN_MEMORY: FamilyId = FamilyId::new(2);
const ROWS: u64 = 1000;
const CELL_BYTES: usize = 1000;

fn resources(memory_group_bytes: usize) -> Arc<SharedResources> {
    SharedResources::new(StoreOptions { cache_bytes: 4 << 20, memory_group_bytes, ..StoreOptions::up() }).unwrap()
}

fn key(number: u64, family: FamilyId) -> Vec<u8> {
    let row = stored_row(TABLE, &RowKey::new(format!("row{number:08}")));
    codec::encode_parts(row.as_bytes(), family, b"q", Micros::new(1))
}

fn placed() -> BTreeMap<TableId, WantedFamilies> {
    let family = |group, options: &str| CellFamily { group, options: options.parse().unwrap() };
    let families = [(IN_FILES, family(0, "")), (IN_MEMORY, family(1, "in-memory=yes"))];
    BTreeMap::from([(TABLE, WantedFamilies::from(families))])
}

/// The content of a cell, which no compression makes smaller.
fn noise(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..CELL_BYTES / 8).flat_map(|_| next()).collect()
}

fn fill(store: &GroupStore, rows: std::ops::Range<u64>) {
    let mut batch = Batch::new();
    for number in rows {
        for family in [IN_FILES, IN_MEMORY] {
            batch.put(key(number, family), noise(number));
        }
    }
    store.write(&batch).unwrap();
    store.flush().unwrap();
}

fn create(dir: &TempDir, name: &str, shared: &Arc<SharedResources>) -> GroupStore {
    let store = GroupStore::create(&dir.path().join(name), shared).unwrap();
    store.place_tables(placed()).unwrap();
    store
}

/// Reads all cells of a family: with a scan, with a scan for each row, and one by one.
fn read_all(store: &GroupStore, family: FamilyId, rows: u64) {
    let view = store.view();
    let families = std::collections::BTreeSet::from([family]);
    let (lower, upper) = codec::range_bounds(&stored_range(TABLE, &KeyRange::all()));
    let plan = ScanPlan::new(&lower, upper.as_deref()).of_families(&families);
    assert_eq!(view.scan(&plan).unwrap().map(Result::unwrap).count() as u64, rows);
    for number in 0..rows {
        let row = stored_row(TABLE, &RowKey::new(format!("row{number:08}")));
        let (lower, upper) = codec::range_bounds(&KeyRange::single(row));
        let plan = ScanPlan::new(&lower, upper.as_deref()).of_families(&families);
        assert_eq!(view.scan(&plan).unwrap().map(Result::unwrap).count(), 1);
        let value = view.get_cell(&key(number, family)).unwrap().unwrap();
        assert_eq!(value.len(), CELL_BYTES);
    }
}

#[test]
fn reads_of_groups_in_memory_never_touch_the_disk() {
    let dir = TempDir::new().unwrap();
    let shared = resources(64 << 20);
    let store = create(&dir, "store", &shared);
    for part in 0..5 {
        fill(&store, part * ROWS / 5..(part + 1) * ROWS / 5);
        read_all(&store, IN_MEMORY, (part + 1) * ROWS / 5);
    }
    assert_eq!(shared.memory_groups().disk_reads, 0, "files that a flush wrote");
    store.compact().unwrap();
    read_all(&store, IN_MEMORY, ROWS);
    assert_eq!(shared.memory_groups().disk_reads, 0, "files that a compaction wrote");

    let path = store.dir().to_owned();
    drop(store);
    let shared = resources(64 << 20);
    let store = GroupStore::open(&path, &shared).unwrap();
    store.place_tables(placed()).unwrap();
    read_all(&store, IN_MEMORY, ROWS);
    read_all(&store, IN_FILES, ROWS);
    let groups = shared.memory_groups();
    assert_eq!(groups.disk_reads, 0, "files of an earlier process");
    let payload = ROWS * CELL_BYTES as u64;
    assert!(groups.needed_bytes >= payload && groups.needed_bytes < 2 * payload, "{groups:?}");
    assert!(groups.cached_bytes >= payload, "{groups:?}");
    assert!(groups.cached_bytes <= groups.needed_bytes, "the estimate is an upper bound: {groups:?}");
    assert_eq!(groups.excess_bytes, 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "bounds the wait for a thread of RocksDB")]
fn blocks_of_deleted_files_leave_the_memory() {
    let dir = TempDir::new().unwrap();
    let shared = resources(64 << 20);
    let store = create(&dir, "store", &shared);
    for _again in 0..6 {
        fill(&store, 0..ROWS);
    }
    store.compact().unwrap();
    store.load_memory_groups().unwrap();
    // A background thread deletes the files.
    let started = Instant::now();
    while shared.memory_groups().cached_bytes > shared.memory_groups().needed_bytes {
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", shared.memory_groups());
        std::thread::yield_now();
    }
    read_all(&store, IN_MEMORY, ROWS);
    assert_eq!(shared.memory_groups().disk_reads, 0);
}

#[test]
fn what_exceeds_the_budget_is_served_from_files_and_loaded_when_it_fits() {
    let dir = TempDir::new().unwrap();
    // Room for one of two stores.
    let shared = resources(CELL_BYTES * usize::try_from(ROWS).unwrap() * 3 / 2);
    let small = create(&dir, "small", &shared);
    let large = create(&dir, "large", &shared);
    fill(&large, 0..ROWS);
    large.load_memory_groups().unwrap();
    assert_eq!(shared.memory_groups().excess_bytes, 0);
    fill(&small, 0..ROWS - 50);
    small.load_memory_groups().unwrap();
    let groups = shared.memory_groups();
    assert!(groups.excess_bytes > ROWS * CELL_BYTES as u64, "the larger one is out: {groups:?}");
    assert!(groups.cached_bytes <= groups.limit_bytes, "{groups:?}");
    read_all(&small, IN_MEMORY, ROWS - 50);
    assert_eq!(shared.memory_groups().disk_reads, 0);
    read_all(&large, IN_MEMORY, ROWS);
    assert!(shared.memory_groups().disk_reads > 0, "the counter counts");
    drop((small, large));
    assert_eq!(shared.memory_groups().needed_bytes, 0, "closed stores need nothing");
}

#[test]
fn a_store_is_loaded_when_another_one_leaves() {
    let dir = TempDir::new().unwrap();
    let shared = resources(CELL_BYTES * usize::try_from(ROWS).unwrap() * 3 / 2);
    let small = create(&dir, "small", &shared);
    let large = create(&dir, "large", &shared);
    fill(&small, 0..ROWS - 50);
    fill(&large, 0..ROWS);
    small.load_memory_groups().unwrap();
    large.load_memory_groups().unwrap();
    assert!(shared.memory_groups().excess_bytes > 0);
    drop(small);
    large.load_memory_groups().unwrap();
    assert_eq!(shared.memory_groups().excess_bytes, 0);
    let before = shared.memory_groups().disk_reads;
    read_all(&large, IN_MEMORY, ROWS);
    assert_eq!(shared.memory_groups().disk_reads, before);
}

#[test]
fn the_need_of_groups_is_estimated() {
    let dir = TempDir::new().unwrap();
    let store = create(&dir, "store", &resources(64 << 20));
    let all = [stored_range(TABLE, &KeyRange::all())];
    assert_eq!(store.group_memory_bytes(&all).unwrap(), BTreeMap::from([(0, 0), (1, 0)]));
    fill(&store, 0..ROWS);
    let payload = ROWS * CELL_BYTES as u64;
    for (group, bytes) in store.group_memory_bytes(&all).unwrap() {
        assert!(bytes >= payload / 2 && bytes < 2 * payload, "group {group}: {bytes} of {payload}");
    }
    let other = [stored_range(TableId::new(6), &KeyRange::all())];
    assert_eq!(store.group_memory_bytes(&other).unwrap(), BTreeMap::from([(0, 0)]));
}
