//! Crash images: copies of a folder while the storage engine's background threads may be writing to it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Attempts to copy; a flush or compaction takes milliseconds.
const ATTEMPTS: u32 = 1_000;

/// Copies `folder` to `image`, repeatedly until nothing has changed meanwhile.
pub(crate) fn take(folder: &Path, image: &Path) {
    let taken = (0..ATTEMPTS).any(|_| is_taken(folder, image));
    assert!(taken, "{} changes all the time", folder.display());
}

/// Copies once; when something changed under it the copy is removed again.
fn is_taken(folder: &Path, image: &Path) -> bool {
    let before = sizes(folder);
    match copy(&before, folder, image) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        copied => {
            copied.unwrap();
            if sizes(folder) == before {
                return true;
            }
        }
    }
    fs::remove_dir_all(image).unwrap();
    false
}

/// All files with their sizes, and all folders, by their path below `folder`.
fn sizes(folder: &Path) -> BTreeMap<PathBuf, Option<u64>> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        // What is removed meanwhile is not there.
        for entry in fs::read_dir(folder.join(&below)).into_iter().flatten().flatten() {
            let path = below.join(entry.file_name());
            match entry.metadata() {
                Ok(data) if data.is_dir() => {
                    found.insert(path.clone(), None);
                    open.push(path);
                }
                // The engine's own log says when it was written.
                Ok(data) if !entry.file_name().to_string_lossy().starts_with("LOG") => {
                    found.insert(path, Some(data.len()));
                }
                _left_out => {}
            }
        }
    }
    found
}

/// Tables never change, so a second name for them will do.
fn copy(files: &BTreeMap<PathBuf, Option<u64>>, folder: &Path, image: &Path) -> io::Result<()> {
    fs::create_dir(image)?;
    for (path, size) in files {
        let (from, to) = (folder.join(path), image.join(path));
        match size {
            None => fs::create_dir(&to)?,
            Some(_) if path.extension().is_some_and(|extension| extension == "sst") => fs::hard_link(&from, &to)?,
            Some(_) => fs::copy(&from, &to).map(drop)?,
        }
    }
    Ok(())
}
