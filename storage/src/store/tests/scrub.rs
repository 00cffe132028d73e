//! Copies that are read as a whole: complete ones, and ones with damaged bytes.

use std::path::{Path, PathBuf};

use super::*;
use crate::store::scrub::{Scrub, ScrubProgress};

const VALUE: [u8; 500] = [7; 500];
const ROWS: u64 = 2_000;

/// A copy of a store with a megabyte of rows.
fn copy(dir: &TempDir) -> PathBuf {
    let store = new_store(dir);
    for index in 1..=ROWS {
        store.write(&numbered(index, &VALUE)).unwrap();
    }
    let copy = dir.path().join("copy");
    store.checkpoint(&copy).unwrap();
    copy
}

/// The table files of a copy, the largest last.
fn table_files(copy: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(copy).unwrap().map(|file| file.unwrap().path());
    let mut tables: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|end| end == "sst")).collect();
    tables.sort_by_key(|file| file.metadata().unwrap().len());
    tables
}

/// A file of its own with one changed byte in the place of a hard link.
fn damage(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_sound_copy_is_read_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let copy = copy(&dir);
    let whole = Scrub::check(&copy).unwrap();
    assert!(whole > ROWS * VALUE.len() as u64, "{whole}");
    let mut scrub = Scrub::open(&copy).unwrap();
    let mut steps = 1;
    while scrub.step(100_000).unwrap() == ScrubProgress::More {
        steps += 1;
    }
    assert!((8..=14).contains(&steps), "{steps}");
    assert!(scrub.bytes() >= whole, "the entry at the end of a step counts twice");
}

#[test]
fn each_damaged_block_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let copy = copy(&dir);
    let largest = table_files(&copy).pop().unwrap();
    let bytes = fs::read(&largest).unwrap();
    // Data blocks come first in the file.
    for at in [100, bytes.len() / 4, bytes.len() / 2] {
        damage(&largest, at);
        let found = Scrub::check(&copy);
        assert!(matches!(found, Err(StoreError::Damaged { .. })), "byte {at}: {found:?}");
        fs::write(&largest, &bytes).unwrap();
    }
    assert!(Scrub::check(&copy).is_ok());
}

#[test]
fn a_missing_file_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let copy = copy(&dir);
    fs::remove_file(table_files(&copy).pop().unwrap()).unwrap();
    assert!(Scrub::check(&copy).is_err());
}
