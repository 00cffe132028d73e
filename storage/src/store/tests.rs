//! The store as a whole: crashes, checkpoints, damaged files.

mod bloom;
mod crash;
mod damaged;
mod garbage;
mod memory;
mod placement;
mod reads;
mod scrub;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use ebla_model::codec::{self, CellKey};
use ebla_model::id::{FamilyId, LogId, LogIndex, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;
use tempfile::TempDir;

use super::layout::{decode_log_id, encode_log_id};
use super::*;

fn shared() -> Arc<SharedResources> {
    SharedResources::new(StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::up() }).unwrap()
}

fn new_store(dir: &TempDir) -> GroupStore {
    GroupStore::create(&dir.path().join("store"), &shared()).unwrap()
}

fn reopened(store: GroupStore) -> GroupStore {
    let dir = store.dir().to_owned();
    drop(store);
    GroupStore::open(&dir, &shared()).unwrap()
}

/// After a graceful stop, which flushes.
fn restarted(store: GroupStore) -> GroupStore {
    store.flush().unwrap();
    reopened(store)
}

fn cell(row: &str, family: u32, qualifier: &str, micros: i64) -> Vec<u8> {
    codec::encode_parts(row.as_bytes(), FamilyId::new(family), qualifier.as_bytes(), Micros::new(micros))
}

fn put(batch: &mut Batch, row: &str, family: u32, qualifier: &str, micros: i64, value: &[u8]) {
    batch.put(cell(row, family, qualifier, micros), codec::encode_value(value));
}

fn applied(index: u64) -> LogId {
    LogId { term: Term::new(1), index: LogIndex::new(index) }
}

/// Row number `index`, with the applied index in the same batch.
fn numbered(index: u64, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    put(&mut batch, &format!("row{index:08}"), 1, "q", 1, value);
    batch.put_meta(MetaKey::Applied, encode_log_id(applied(index)));
    batch
}

fn applied_in(store: &GroupStore) -> Option<LogId> {
    store.meta(MetaKey::Applied).unwrap().map(|value| decode_log_id(&value).unwrap())
}

/// The keys of the cells of some rows.
fn cells_of(store: &GroupStore, range: &KeyRange) -> Vec<CellKey> {
    let (lower, upper) = codec::range_bounds(range);
    let view = store.view();
    let cells = view.cells(&lower, upper.as_deref(), Direction::Forward).unwrap();
    cells.map(|cell| CellKey::decode(&cell.unwrap().0).unwrap()).collect()
}

/// The names of all rows, each once.
fn row_names(store: &GroupStore) -> Vec<String> {
    let mut names: Vec<_> =
        cells_of(store, &KeyRange::all()).into_iter().map(|cell| text(cell.row.as_bytes())).collect();
    names.dedup();
    names
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_folder_holds_one_store_and_one_owner() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    assert!(matches!(GroupStore::open(&path, &shared()), Err(StoreError::Missing(_))));
    let store = GroupStore::create(&path, &shared()).unwrap();
    assert!(matches!(GroupStore::create(&path, &shared()), Err(StoreError::Exists(_))));
    assert!(matches!(GroupStore::open(&path, &shared()), Err(StoreError::Locked(_))));
    assert!(matches!(GroupStore::destroy(&path), Err(StoreError::Locked(_))));
    drop(store);
    GroupStore::open(&path, &shared()).unwrap();
    GroupStore::destroy(&path).unwrap();
    assert!(!path.exists());
    GroupStore::destroy(&path).unwrap();
}

#[test]
fn a_store_without_a_file_that_it_needs_is_damaged() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    store.write(&numbered(1, b"v")).unwrap();
    store.flush().unwrap();
    let path = store.dir().to_owned();
    drop(store);
    let files = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let is_manifest = |file: &std::path::PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("MANIFEST");
    std::fs::remove_file(files.into_iter().find(is_manifest).unwrap()).unwrap();
    assert!(matches!(GroupStore::open(&path, &shared()), Err(StoreError::Damaged { .. })));
    std::fs::remove_file(path.join("CURRENT")).unwrap();
    let missing = GroupStore::open(&path, &shared()).err().unwrap();
    assert_eq!(ebla_model::error::Error::from(missing).reason, ebla_model::Reason::DataDamaged);
}

#[test]
fn an_injected_failure_meets_one_operation_of_one_store() {
    let dir = TempDir::new().unwrap();
    let shared = shared();
    let store = GroupStore::create(&dir.path().join("store"), &shared).unwrap();
    let other = GroupStore::create(&dir.path().join("other"), &shared).unwrap();
    let message = "IO error: No space left on device".to_owned();
    let fault = StoreFault { dir: store.dir().to_owned(), operation: StoreOperation::Write, message };
    shared.inject_faults(vec![fault]);
    assert!(matches!(store.write(&numbered(1, b"v")), Err(StoreError::Exhausted { .. })));
    other.write(&numbered(1, b"v")).unwrap();
    let path = store.dir().to_owned();
    drop(store);
    let store = GroupStore::open(&path, &shared).unwrap();
    shared.inject_faults(Vec::new());
    store.write(&numbered(1, b"v")).unwrap();
}

#[test]
fn cells_and_meta_are_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    store.write(&Batch::new()).unwrap();
    store.write(&numbered(1, b"v")).unwrap();
    let store = restarted(store);
    assert_eq!(applied_in(&store), Some(applied(1)));
    assert_eq!(store.view().get_cell(&cell("row00000001", 1, "q", 1)).unwrap().unwrap()[1..], b"v"[..]);
    let mut batch = Batch::new();
    batch.delete(cell("row00000001", 1, "q", 1));
    batch.delete_meta(MetaKey::Applied);
    store.write(&batch).unwrap();
    assert_eq!(applied_in(&store), None);
    assert!(row_names(&store).is_empty());
}

#[test]
fn a_view_does_not_see_what_is_written_later() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    store.write(&numbered(1, b"v")).unwrap();
    let view = store.view();
    store.write(&numbered(2, b"v")).unwrap();
    assert_eq!(view.get_meta(MetaKey::Applied).unwrap(), Some(encode_log_id(applied(1))));
    assert_eq!(view.cells(b"", None, Direction::Forward).unwrap().count(), 1);
    assert_eq!(view.get_cell(&cell("row00000002", 1, "q", 1)).unwrap(), None);
}

#[test]
fn meta_keys_are_listed_by_prefix() {
    use ebla_model::id::SessionId;
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut batch = Batch::new();
    batch.put_meta(MetaKey::Group, &b"group"[..]);
    batch.put_meta(MetaKey::Session(SessionId::new(2)), &b"two"[..]);
    batch.put_meta(MetaKey::Session(SessionId::new(1)), &b"one"[..]);
    store.write(&batch).unwrap();
    let sessions = store.meta_scan(MetaKey::SESSIONS).unwrap();
    let ids: Vec<_> = sessions.iter().filter_map(|(key, _)| MetaKey::decode(key)).collect();
    assert_eq!(ids, [MetaKey::Session(SessionId::new(1)), MetaKey::Session(SessionId::new(2))]);
    assert_eq!(store.meta_scan(b"").unwrap().len(), 3);
}

#[test]
fn unflushed_bytes_rise_with_writes_and_fall_with_flushes() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    assert_eq!(store.unflushed_bytes().unwrap(), 0);
    store.write(&numbered(1, &[7; 100_000])).unwrap();
    let mut batch = Batch::new();
    batch.delete_range(b"a".to_vec(), None);
    store.write(&batch).unwrap();
    assert!(store.unflushed_bytes().unwrap() > 100_000);
    assert_eq!(store.unflushed_range_tombstones(), 1);
    store.flush().unwrap();
    assert_eq!((store.unflushed_bytes().unwrap(), store.unflushed_range_tombstones()), (0, 0));
}

#[test]
fn flushes_at_once_count_once() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let mut batch = numbered(1, b"v");
    batch.delete_range(b"x".to_vec(), Some(b"y".to_vec()));
    for _ in 0..5 {
        store.write(&batch).unwrap();
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| store.flush().unwrap()))));
        assert_eq!((store.unflushed_bytes().unwrap(), store.unflushed_range_tombstones()), (0, 0));
    }
}

#[test]
fn automatic_flushes_of_rocksdb_reduce_the_count() {
    let dir = TempDir::new().unwrap();
    let small = SharedResources::new(StoreOptions { write_buffer_bytes: 256 << 10, ..StoreOptions::up() }).unwrap();
    let store = GroupStore::create(&dir.path().join("store"), &small).unwrap();
    for index in 1..=400 {
        store.write(&numbered(index, &[7; 10_000])).unwrap();
    }
    assert!(store.unflushed_bytes().unwrap() < 2 << 20, "of 4 MB written");
}

#[test]
fn an_idle_store_charges_little_to_the_memtables() {
    for options in [StoreOptions::up(), StoreOptions::server()] {
        let dir = TempDir::new().unwrap();
        let shared = SharedResources::new(StoreOptions { cache_bytes: 4 << 20, ..options }).unwrap();
        let before = shared.usage().memtable_bytes;
        let stores: Vec<_> =
            (0..10).map(|n| GroupStore::create(&dir.path().join(n.to_string()), &shared).unwrap()).collect();
        for store in &stores {
            store.write(&numbered(1, b"v")).unwrap();
        }
        let each = (shared.usage().memtable_bytes - before) / stores.len();
        // 5,000 idle stores take less than the 512 MiB of a server.
        assert!(each < 100 << 10, "{each} bytes each");
    }
}

mod sizes {
    use super::*;

    /// Incompressible bytes.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(2) + 1;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()
        });
        words.flatten().take(length).collect()
    }

    fn filled(dir: &TempDir, rows: u64, value_bytes: usize) -> GroupStore {
        let store = new_store(dir);
        for index in 0..rows {
            store.write(&numbered(index, &noise(index, value_bytes))).unwrap();
        }
        store
    }

    fn assert_even(sizes: &[(RowKey, u64)]) {
        let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        assert!(sizes.len() >= 30, "{} pieces", sizes.len());
        assert!(sizes.iter().all(|(_, bytes)| *bytes < total / 10), "no piece is a tenth of all");
        assert!(sizes.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn what_is_not_flushed_is_counted_by_reading() {
        let dir = TempDir::new().unwrap();
        let store = filled(&dir, 1000, 200);
        let sizes = store.row_sizes(&KeyRange::all()).unwrap();
        assert_even(&sizes);
        assert!(sizes.iter().map(|(_, bytes)| bytes).sum::<u64>() > 200_000);
        assert_eq!(store.row_range_bytes(&KeyRange::all()).unwrap(), 0, "nothing is in files");
    }

    #[test]
    fn what_is_in_files_is_estimated() {
        let dir = TempDir::new().unwrap();
        let store = filled(&dir, 800, 20_000);
        store.flush().unwrap();
        let all = store.row_range_bytes(&KeyRange::all()).unwrap();
        assert!(all > 8 << 20, "{all}");
        assert_even(&store.row_sizes(&KeyRange::all()).unwrap());
        let (_, upper) = KeyRange::all().split_at(&RowKey::new("row00000400")).unwrap();
        let half = store.row_range_bytes(&upper).unwrap();
        assert!(half > all / 3 && half < all * 2 / 3, "{half} of {all}");
        let sizes = store.row_sizes(&upper).unwrap();
        assert!(sizes[0].0 >= RowKey::new("row00000400"));
        assert!(store.size_bytes().unwrap() >= all);
    }

    #[test]
    fn clustered_keys_are_cut_too() {
        let dir = TempDir::new().unwrap();
        let store = new_store(&dir);
        let long = "x".repeat(300);
        for index in 0..400u64 {
            let mut batch = Batch::new();
            put(&mut batch, &format!("a{long}{index:06}"), 1, "q", 1, &noise(index, 20_000));
            store.write(&batch).unwrap();
        }
        let mut batch = Batch::new();
        put(&mut batch, "zzz", 1, "q", 1, b"far away");
        store.write(&batch).unwrap();
        store.flush().unwrap();
        assert_even(&store.row_sizes(&KeyRange::all()).unwrap());
    }

    #[test]
    fn an_empty_range_has_no_pieces() {
        let dir = TempDir::new().unwrap();
        let store = filled(&dir, 10, 1);
        assert!(store.row_sizes(&KeyRange::prefix(b"zzz")).unwrap().is_empty());
        assert_eq!(store.row_sizes(&KeyRange::all()).unwrap().len(), 10);
    }
}
