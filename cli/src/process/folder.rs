//! The data folder of a process: created, locked, and removed if it is temporary or unused.
//!
//! ```text
//!   LOCK                      locked while the process runs; the kernel releases the lock when the process is killed
//!   ebla-ephemeral-PID-XXXX/  a temporary folder; one that is not locked was left by a killed process
//! ```

use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ebla_model::error::{Error, Reason};

/// The lock file of a folder that is in use.
const LOCK: &str = "LOCK";
/// Prefix of the names of temporary folders.
const EPHEMERAL: &str = "ebla-ephemeral-";
/// Attempts to create a temporary folder: another process may remove it before it is locked.
const EPHEMERAL_TRIES: usize = 10;
/// Files that a killed start can leave before there is a journal, and those that file systems create.
const HARMLESS: [&str; 3] = [LOCK, "chubby", "lost+found"];

/// A data folder locked by this process: no other process can claim it until this is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// The folders that were created for it, the deepest first.
    created: Vec<PathBuf>,
    kind: Kind,
    lock: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Persistent,
    Ephemeral,
}

impl DataFolder {
    /// Claims the folder for a whole cluster in one process; creates it if it is missing.
    ///
    /// # Errors
    /// `FailedPrecondition` when the folder contains files of another program, cannot be used, or is locked by another process.
    /// The folder is unchanged then.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        refuse_foreign(path)?;
        let absent = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let created: Vec<_> = path.ancestors().take_while(absent).map(Path::to_path_buf).collect();
        match lock(path) {
            Ok(lock) => Ok(Self { path: path.to_path_buf(), created, kind: Kind::Persistent, lock }),
            Err(error) => {
                // Removes a created folder that cannot be used; one that another process has filled meanwhile stays.
                remove_empty(&created);
                Err(error)
            }
        }
    }

    /// Creates and claims a temporary folder, which is removed when this is dropped. Also removes temporary folders of killed
    /// processes.
    ///
    /// # Errors
    /// `FailedPrecondition` when none can be created.
    pub fn ephemeral() -> Result<Self, Error> {
        Self::ephemeral_in(&std::env::temp_dir())
    }

    fn ephemeral_in(parent: &Path) -> Result<Self, Error> {
        remove_leftovers(parent);
        let mut failed = None;
        for _ in 0..EPHEMERAL_TRIES {
            let folder = tempfile::Builder::new()
                .prefix(&format!("{EPHEMERAL}{}-", std::process::id()))
                .tempdir_in(parent)
                .map_err(|error| unusable(parent, &error))?;
            match lock_existing(folder.path()) {
                Ok(lock) => {
                    return Ok(Self { path: folder.keep(), created: Vec::new(), kind: Kind::Ephemeral, lock });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::internal("no temporary folder was tried")))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is temporary.
    pub fn is_ephemeral(&self) -> bool {
        self.kind == Kind::Ephemeral
    }

    /// Releases a folder that was never served from; it is removed if this process created it.
    pub fn discard(self) {
        if !self.created.is_empty() {
            drop(std::fs::remove_dir_all(&self.path));
            remove_empty(&self.created);
        }
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        if self.kind == Kind::Ephemeral {
            // If this fails, the next ephemeral start removes the folder.
            drop(std::fs::remove_dir_all(&self.path));
        }
        // Not only by closing the file: a child that another thread has just forked has a copy of it until it executes its program.
        let _released = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
    }
}

/// Creates the folder if it is missing and locks it until the file is dropped; the kernel releases the lock of a killed process.
///
/// # Errors
/// `FailedPrecondition` when the folder cannot be used or is locked by another process.
pub fn lock(data: &Path) -> Result<File, Error> {
    std::fs::create_dir_all(data).map_err(|error| unusable(data, &error))?;
    lock_existing(data)
}

fn lock_existing(data: &Path) -> Result<File, Error> {
    let failed = |error: io::Error| unusable(data, &error);
    let file = open_lock(data).map_err(failed)?;
    let in_use = |_held| {
        let folder = data.display();
        let next = "stop it, or choose another folder with --data";
        Error::new(Reason::FailedPrecondition, format!("another ebla process uses {folder}: {next}"))
    };
    try_lock(&file).map_err(in_use)?;
    // The previous owner of the lock may have removed the folder.
    if file.metadata().map_err(failed)?.nlink() == 0 {
        return Err(failed(io::Error::other("another process has just removed the folder; start again")));
    }
    Ok(file)
}

fn open_lock(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

fn try_lock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?)
}

fn unusable(folder: &Path, error: &io::Error) -> Error {
    Error::new(Reason::FailedPrecondition, format!("cannot use {} as the data folder: {error}", folder.display()))
}

/// Refuses a folder with files that do not belong to a cluster.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let names: Vec<String> = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(path, &error)),
    };
    // The folder of a cluster may also contain other files, such as a log or a ready file. One whose journal is lost has its tablet servers, from which
    // `ebla recover` writes a new one.
    if path.join("chubby").join("journal").is_file() || path.join("server-1").join("registry").is_file() {
        return Ok(());
    }
    match foreign(&names) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Reason::FailedPrecondition,
            format!(
                "{} contains files that do not belong to a cluster, such as {name}: choose an empty or a new folder with --data",
                path.display()
            ),
        )),
    }
}

/// The first name that does not belong to a cluster.
fn foreign(names: &[String]) -> Option<&str> {
    let mut foreign: Vec<_> = names.iter().map(String::as_str).filter(|name| !HARMLESS.contains(name)).collect();
    foreign.sort_unstable();
    foreign.first().copied()
}

/// Removes folders that are empty, in this order.
fn remove_empty(folders: &[PathBuf]) {
    for folder in folders {
        drop(std::fs::remove_dir(folder));
    }
}

/// Removes temporary folders of processes that were killed.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten().filter(is_ephemeral_of_this_user) {
        let Ok(lock) = open_lock(&entry.path()) else { continue };
        if try_lock(&lock).is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Whether the entry is a temporary folder of this user. Symbolic links are skipped: other users could have created them.
fn is_ephemeral_of_this_user(entry: &DirEntry) -> bool {
    let user = rustix::process::geteuid().as_raw();
    entry.file_name().to_string_lossy().starts_with(EPHEMERAL)
        && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_locked_by_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        assert_eq!(lock(folder.path()).unwrap_err().reason, Reason::FailedPrecondition);
        drop(held);
        assert!(lock(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_with_files_of_another_program_is_refused_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let refused = DataFolder::claim(folder.path()).unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(refused.message.contains("notes.txt"), "{}", refused.message);
        assert_eq!(names(folder.path()), ["notes.txt"]);
        // The same file is accepted in the folder of a cluster.
        std::fs::create_dir(folder.path().join("chubby")).unwrap();
        assert!(DataFolder::claim(folder.path()).is_err(), "a folder of that name alone is not a cluster");
        std::fs::write(folder.path().join("chubby").join("journal"), "").unwrap();
        assert!(DataFolder::claim(folder.path()).is_ok());
    }

    #[test]
    fn the_folder_of_a_cluster_without_its_journal_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let server = folder.path().join("server-1");
        std::fs::create_dir(&server).unwrap();
        assert!(DataFolder::claim(folder.path()).is_err());
        std::fs::write(server.join("registry"), "").unwrap();
        assert!(DataFolder::claim(folder.path()).is_ok());
    }

    #[test]
    fn an_unused_new_folder_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("a").join("b");
        let claimed = DataFolder::claim(&data).unwrap();
        std::fs::create_dir(data.join("chubby")).unwrap();
        claimed.discard();
        assert!(names(parent.path()).is_empty());
        // An existing folder stays, and so does one that is dropped after use.
        drop(DataFolder::claim(&data).unwrap());
        DataFolder::claim(&data).unwrap().discard();
        assert!(data.is_dir());
    }

    #[test]
    fn temporary_folders_of_killed_processes_are_removed_and_those_in_use_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let leftover = parent.path().join("ebla-ephemeral-1-abcdef");
        std::fs::create_dir_all(leftover.join("server-1")).unwrap();
        std::fs::create_dir(parent.path().join("somebody-elses")).unwrap();
        std::os::unix::fs::symlink(parent.path().join("somebody-elses"), parent.path().join("ebla-ephemeral-2-link"))
            .unwrap();
        let first = DataFolder::ephemeral_in(parent.path()).unwrap();
        let second = DataFolder::ephemeral_in(parent.path()).unwrap();
        assert!(!leftover.exists());
        assert!(first.path().is_dir() && second.path().is_dir());
        let name = first.path().file_name().unwrap().to_string_lossy();
        assert!(name.starts_with(&format!("ebla-ephemeral-{}-", std::process::id())), "{name}");
        drop((first, second));
        assert_eq!(names(parent.path()), ["ebla-ephemeral-2-link", "somebody-elses"]);
        assert!(names(&parent.path().join("somebody-elses")).is_empty());
    }
}
