//! Stores with damaged files: what is refused, and what can still be read and written when the damage is tolerated.

use std::path::{Path, PathBuf};

use super::*;

const ROWS: u64 = 2_000;
/// Files of level 0 that start a compaction.
const FILES: u64 = 4;

/// Bytes that no compression makes smaller, so that each row stays in a place of the file that its number predicts.
fn value(index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..60).flat_map(|_| next()).collect()
}

/// Writes rows into a file of their own.
fn fill(store: &GroupStore, rows: std::ops::Range<u64>) {
    for index in rows {
        store.write(&numbered(index, &value(index))).unwrap();
    }
    store.flush().unwrap();
}

fn largest_table(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|end| end == "sst"));
    tables.max_by_key(|file| file.metadata().unwrap().len()).unwrap()
}

fn flip(file: &Path, at: impl FnOnce(usize) -> usize) {
    let mut bytes = fs::read(file).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

fn read(store: &GroupStore, index: u64) -> Result<usize, StoreError> {
    let range = KeyRange::single(RowKey::new(format!("row{index:08}")));
    let (lower, upper) = codec::range_bounds(&range);
    let view = store.view();
    let mut scan = view.cells(&lower, upper.as_deref(), Direction::Forward)?;
    let mut cells = 0;
    while scan.entry().is_some() {
        cells += 1;
        scan.step()?;
    }
    Ok(cells)
}

/// A closed store with one file of rows in its cells; the folder of the store.
fn filled(dir: &TempDir) -> PathBuf {
    let store = new_store(dir);
    fill(&store, 0..ROWS);
    store.dir().to_owned()
}

/// A compaction meets the damage: what a write says after that.
fn write_after_compaction(store: &GroupStore) -> Result<(), StoreError> {
    for number in 1..=FILES {
        fill(store, ROWS..ROWS + number);
    }
    store.compact().unwrap();
    store.write(&numbered(ROWS, &[1]))
}

#[test]
fn a_compaction_that_meets_damage_ends_all_writes_unless_damage_is_tolerated() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir);
    flip(&largest_table(&path), |length| length / 2);
    let strict = GroupStore::open(&path, &shared()).unwrap();
    for number in 1..FILES {
        strict.write(&numbered(ROWS + number, &value(number))).unwrap();
        // The last file starts a compaction, which may end before the flush returns.
        let flushed = strict.flush();
        assert!(flushed.is_ok() || number == FILES - 1, "{flushed:?}");
    }
    strict.compact().unwrap();
    let refused = strict.write(&numbered(ROWS, &[1]));
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    drop(strict);

    let tolerant = GroupStore::open_damaged(&path, &shared()).unwrap();
    assert!(tolerant.tolerates_damage());
    write_after_compaction(&tolerant).unwrap();
    tolerant.flush().unwrap();
    assert_eq!(read(&tolerant, 0).unwrap(), 1);
    assert_eq!(read(&tolerant, ROWS - 1).unwrap(), 1);
    assert_eq!(read(&tolerant, ROWS).unwrap(), 1);
    let damaged = (0..ROWS).filter(|index| matches!(read(&tolerant, *index), Err(StoreError::Damaged { .. })));
    assert!((1..100).contains(&damaged.count()), "only the rows of one block cannot be read");
}

#[test]
fn a_running_store_that_begins_to_tolerate_damage_compacts_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir);
    flip(&largest_table(&path), |length| length / 2);
    let store = GroupStore::open(&path, &shared()).unwrap();
    store.tolerate_damage().unwrap();
    for number in 1..=2 * FILES {
        fill(&store, ROWS..ROWS + number);
    }
    store.write(&numbered(ROWS, &[1])).unwrap();
    assert_eq!(read(&store, 0).unwrap(), 1);
}

#[test]
fn a_file_without_its_end_or_a_lost_file_hides_its_own_rows_only() {
    for lose in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(&dir);
        let file = largest_table(&path);
        if lose {
            fs::remove_file(&file).unwrap();
        } else {
            flip(&file, |length| length - 1);
        }
        let strict = GroupStore::open(&path, &shared());
        assert!(matches!(strict, Err(StoreError::Damaged { .. })), "{:?}", strict.err());
        let tolerant = GroupStore::open_damaged(&path, &shared()).unwrap();
        assert_eq!(applied_in(&tolerant), Some(applied(ROWS - 1)), "the other family is read");
        fill(&tolerant, ROWS..ROWS + 1);
        assert!(matches!(read(&tolerant, 0), Err(StoreError::Damaged { .. })), "{:?}", read(&tolerant, 0));
    }
}

#[test]
fn a_damaged_manifest_is_not_tolerated() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir);
    let files = fs::read_dir(&path).unwrap().map(|file| file.unwrap().path());
    let is_manifest = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("MANIFEST");
    let manifest = files.filter(is_manifest).max().unwrap();
    flip(&manifest, |length| length / 2);
    for opened in [GroupStore::open(&path, &shared()), GroupStore::open_damaged(&path, &shared())] {
        assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{:?}", opened.err());
    }
}
