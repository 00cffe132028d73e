//! Crashes and damage. A crash is a copy of the folder taken while the store is open; a close leaves the same.

use super::*;

/// What the disk would hold if the process died now.
pub(super) fn crashed_copy(store: &GroupStore, to: &Path) -> GroupStore {
    store.database().disable_file_deletions().unwrap();
    fs::create_dir(to).unwrap();
    // The folder is listed again after the manifest was copied: a flush in between would add a file to the manifest that an
    // older list lacks.
    copy_files(store.dir(), to, |name| name.starts_with("MANIFEST"));
    copy_files(store.dir(), to, |name| !name.starts_with("MANIFEST") && name != "LOCK");
    store.database().enable_file_deletions().unwrap();
    GroupStore::open(to, &shared()).unwrap()
}

fn copy_files(from: &Path, to: &Path, is_selected: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        if !is_selected(&name.to_string_lossy()) {
            continue;
        }
        match fs::copy(from.join(&name), to.join(&name)) {
            // RocksDB renames its temporary files, and ends what it had begun to remove. What the manifest names and is
            // not there is missed when the copy is opened.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
}

/// The rows are exactly those up to the applied index.
fn assert_agrees(store: &GroupStore) -> u64 {
    let last = applied_in(store).map_or(0, |id| id.index.get());
    let expected: Vec<_> = (1..=last).map(|index| format!("row{index:08}")).collect();
    assert_eq!(row_names(store), expected, "applied index {last}");
    last
}

#[test]
fn after_a_crash_data_and_applied_index_agree() {
    let dir = TempDir::new().unwrap();
    // Small memtables: RocksDB flushes by itself too, in the middle of everything.
    let small = SharedResources::new(StoreOptions { write_buffer_bytes: 128 << 10, ..StoreOptions::up() }).unwrap();
    let store = GroupStore::create(&dir.path().join("store"), &small).unwrap();
    let mut lasts = Vec::new();
    for index in 1..=600 {
        store.write(&numbered(index, &[3; 2000])).unwrap();
        if index % 170 == 0 {
            store.flush().unwrap();
        }
        if index % 50 == 0 {
            let copy = crashed_copy(&store, &dir.path().join(format!("copy{index}")));
            lasts.push(assert_agrees(&copy));
        }
    }
    assert!(lasts.windows(2).all(|pair| pair[0] <= pair[1]), "{lasts:?}");
    assert!(lasts.iter().any(|last| last % 170 != 0), "the engine flushed by itself: {lasts:?}");
    assert!(*lasts.last().unwrap() >= 510 && lasts[0] < 50, "{lasts:?}");
}

#[test]
fn persisted_meta_is_what_a_crash_would_leave() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    store.write(&numbered(1, b"v")).unwrap();
    assert_eq!(store.persisted_meta(MetaKey::Applied).unwrap(), None);
    store.flush().unwrap();
    store.write(&numbered(2, b"v")).unwrap();
    assert_eq!(store.persisted_meta(MetaKey::Applied).unwrap(), Some(encode_log_id(applied(1))));
    assert_eq!(applied_in(&store), Some(applied(2)));
    let copy = crashed_copy(&store, &dir.path().join("copy"));
    assert_eq!(assert_agrees(&copy), 1);
    assert_eq!(copy.persisted_meta(MetaKey::Applied).unwrap(), Some(encode_log_id(applied(1))));
}

#[test]
fn a_close_keeps_what_was_flushed_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=20).for_each(|index| store.write(&numbered(index, b"v")).unwrap());
    store.flush().unwrap();
    (21..=25).for_each(|index| store.write(&numbered(index, b"v")).unwrap());
    assert_eq!(assert_agrees(&reopened(store)), 20);
}

#[test]
fn a_checkpoint_outlives_its_parent() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=100).for_each(|index| store.write(&numbered(index, &[1; 500])).unwrap());
    store.flush().unwrap();
    (101..=200).for_each(|index| store.write(&numbered(index, &[1; 500])).unwrap());
    let child_dir = dir.path().join("child");
    store.checkpoint(&child_dir).unwrap();
    // The parent changes, compacts its files, and is deleted.
    (201..=300).for_each(|index| store.write(&numbered(index, &[1; 500])).unwrap());
    store.compact().unwrap();
    let child = GroupStore::open(&child_dir, &shared()).unwrap();
    assert_eq!(assert_agrees(&child), 200, "what was not flushed is in it too");
    let parent_dir = store.dir().to_owned();
    drop(store);
    GroupStore::destroy(&parent_dir).unwrap();
    assert_eq!(assert_agrees(&reopened(child)), 200);
}

#[test]
fn a_child_folder_can_be_changed_and_renamed() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=10).for_each(|index| store.write(&numbered(index, b"v")).unwrap());
    let (temporary, settled) = (dir.path().join("child.tmp"), dir.path().join("child"));
    store.checkpoint(&temporary).unwrap();
    let child = GroupStore::open(&temporary, &shared()).unwrap();
    let mut batch = Batch::new();
    batch.put_meta(MetaKey::Applied, encode_log_id(LogId::SEED));
    child.write(&batch).unwrap();
    child.flush().unwrap();
    drop(child);
    fs::rename(&temporary, &settled).unwrap();
    let child = GroupStore::open(&settled, &shared()).unwrap();
    assert_eq!(applied_in(&child), Some(LogId::SEED));
    assert_eq!(row_names(&child).len(), 10);
    assert_eq!(applied_in(&store), Some(applied(10)));
}

/// The largest file of cells.
fn table_file(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let tables = entries.filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
    tables.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

type Cells = Vec<(Bytes, Bytes)>;

fn read_all(store: &GroupStore, direction: Direction) -> Result<Cells, StoreError> {
    store.view().cells(b"", None, direction)?.collect()
}

#[test]
fn a_flipped_byte_is_an_error_and_never_an_early_end() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=400).for_each(|index| store.write(&numbered(index, &[u8::try_from(index % 251).unwrap(); 200])).unwrap());
    store.flush().unwrap();
    let path = store.dir().to_owned();
    drop(store);
    let whole = read_all(&GroupStore::open(&path, &shared()).unwrap(), Direction::Forward).unwrap();
    assert_eq!(whole.len(), 400);
    let table = table_file(&path);
    let content = fs::read(&table).unwrap();
    let (mut flips, mut errors) = (0, 0);
    for at in (0..content.len()).step_by(content.len() / 40) {
        let mut flipped = content.clone();
        flipped[at] ^= 0x40;
        fs::write(&table, &flipped).unwrap();
        flips += 1;
        let outcomes = match GroupStore::open(&path, &shared()) {
            Ok(store) => [Direction::Forward, Direction::Reverse].map(|direction| read_all(&store, direction)).into(),
            Err(error) => vec![Err(error)],
        };
        errors += i32::from(outcomes.iter().all(Result::is_err));
        // A byte that nothing depends on (properties) may flip unseen; cells may not.
        assert!(outcomes.iter().flatten().all(|cells| cells.len() == whole.len()), "byte {at}");
    }
    assert!(errors > flips / 2, "only {errors} errors");
    fs::write(&table, &content).unwrap();
    assert_eq!(read_all(&GroupStore::open(&path, &shared()).unwrap(), Direction::Forward).unwrap(), whole);
}

#[test]
fn rows_are_not_cut_short_by_a_damaged_block() {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    (1..=400).for_each(|index| store.write(&numbered(index, &[5; 300])).unwrap());
    store.flush().unwrap();
    let path = store.dir().to_owned();
    drop(store);
    let table = table_file(&path);
    let mut content = fs::read(&table).unwrap();
    let at = content.len() / 3;
    content[at] ^= 1;
    fs::write(&table, content).unwrap();
    let Ok(store) = GroupStore::open(&path, &shared()) else { return };
    let view = store.view();
    let outcome: Result<Vec<_>, _> = view.cells(b"", None, Direction::Forward).and_then(Iterator::collect);
    assert!(matches!(outcome, Err(StoreError::Damaged { .. })), "{outcome:?}");
}
