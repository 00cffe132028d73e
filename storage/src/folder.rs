//! Folders whose entries survive a power cut: sync a folder, replace a file in one step.
//!
//! A new or renamed entry is durable only after its folder is synced. All code of this crate that creates or renames
//! entries uses this module, so that the sync is not forgotten. Nothing here retries: after a failed sync a second one
//! proves nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Makes the entries of `dir` durable.
///
/// # Errors
/// When the folder cannot be opened or synced. The caller must not continue as if it had been.
pub(crate) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes the entry of `path` in its parent durable.
///
/// # Errors
/// As [`sync`].
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => sync(Path::new(".")),
    }
}

/// Replaces the file at `path` atomically; durable on return.
///
/// # Errors
/// When a step fails; `path` then has the old or the new content, never a mixture.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Renames and makes the new name durable; both names must be in one folder.
///
/// # Errors
/// When the rename or the sync fails.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Deletes a folder with its content and makes that durable. A missing folder is not an error.
///
/// # Errors
/// When some of its content cannot be deleted.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_parent(dir),
    }
}
