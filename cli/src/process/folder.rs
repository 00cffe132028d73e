//! The data folder of a process: made, locked, and removed where nothing was kept in it.
//!
//! ```text
//!   LOCK                      held while the process runs; the system releases it when the process is killed
//!   ebla-ephemeral-PID-XXXX/  a temporary folder; one whose lock is free was left by a process that was killed
//! ```

use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ebla_model::error::{Error, Reason};

/// The file whose lock says that a process runs on the folder.
const LOCK: &str = "LOCK";
/// What the names of temporary folders begin with.
const EPHEMERAL: &str = "ebla-ephemeral-";
/// A temporary folder may be removed by another process before its lock is held: then another one is made.
const EPHEMERAL_TRIES: usize = 10;
/// What of a cluster in one process a killed start can leave before there is a journal, and what file systems put there.
const HARMLESS: [&str; 3] = [LOCK, "chubby", "lost+found"];

/// A data folder that this process holds: no other process can claim it until this is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// The folders that were made for it, the deepest first.
    made: Vec<PathBuf>,
    kind: Kind,
    _lock: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kept,
    Ephemeral,
}

impl DataFolder {
    /// Claims the folder for a whole cluster in one process; makes it when it is absent.
    ///
    /// # Errors
    /// `FailedPrecondition` when it holds files of another program, when it cannot be used, or when another process holds it.
    /// Nothing in it has been changed then.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        refuse_foreign(path)?;
        let absent = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made: Vec<_> = path.ancestors().take_while(absent).map(Path::to_path_buf).collect();
        match lock(path) {
            Ok(lock) => Ok(Self { path: path.to_path_buf(), made, kind: Kind::Kept, _lock: lock }),
            Err(error) => {
                // A folder that was made and cannot be used; one that another process has filled meanwhile stays.
                remove_empty(&made);
                Err(error)
            }
        }
    }

    /// Makes and claims a temporary folder, which is removed when this is dropped. Removes those of processes that were
    /// killed.
    ///
    /// # Errors
    /// `FailedPrecondition` when none can be made.
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
                    return Ok(Self { path: folder.keep(), made: Vec::new(), kind: Kind::Ephemeral, _lock: lock });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::internal("no temporary folder was tried")))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is removed at the end.
    pub fn is_ephemeral(&self) -> bool {
        self.kind == Kind::Ephemeral
    }

    /// Gives the folder up before anything was served from it: when this process made it, it is removed.
    pub fn discard(self) {
        if !self.made.is_empty() {
            drop(std::fs::remove_dir_all(&self.path));
            remove_empty(&self.made);
        }
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        if self.kind == Kind::Ephemeral {
            // What cannot be removed is removed at the next ephemeral start.
            drop(std::fs::remove_dir_all(&self.path));
        }
    }
}

/// Makes the folder and holds its lock until the file is dropped; the system releases it when a process is killed.
///
/// # Errors
/// `FailedPrecondition` when the folder cannot be used or another process holds it.
pub fn lock(data: &Path) -> Result<File, Error> {
    std::fs::create_dir_all(data).map_err(|error| unusable(data, &error))?;
    lock_existing(data)
}

fn lock_existing(data: &Path) -> Result<File, Error> {
    let failed = |error: io::Error| unusable(data, &error);
    let file = open_lock(data).map_err(failed)?;
    let in_use = |_held| {
        let folder = data.display();
        let next = "stop it, or give --data another folder";
        Error::new(Reason::FailedPrecondition, format!("another ebla runs on {folder}: {next}"))
    };
    try_lock(&file).map_err(in_use)?;
    // The process that held the lock before may have removed the folder.
    if file.metadata().map_err(failed)?.nlink() == 0 {
        return Err(failed(io::Error::other("another process has just removed it; start again")));
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
    Error::new(Reason::FailedPrecondition, format!("use {} as the data folder: {error}", folder.display()))
}

/// Refuses a folder that holds files, but no cluster's.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let names: Vec<String> = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(path, &error)),
    };
    // A folder that holds a cluster may hold what people put beside it, such as a log or a ready file.
    if path.join("chubby").join("journal").is_file() {
        return Ok(());
    }
    match foreign(&names) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Reason::FailedPrecondition,
            format!(
                "{} holds files that do not belong to a cluster, such as {name}: give --data an empty or a new folder",
                path.display()
            ),
        )),
    }
}

/// The first name that no start of a cluster makes.
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

/// Removes temporary folders whose processes have ended without doing so.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten().filter(is_ephemeral_of_this_user) {
        let Ok(lock) = open_lock(&entry.path()) else { continue };
        if try_lock(&lock).is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// A real folder, no link: whoever may write to the parent could have made one.
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
    fn a_folder_serves_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        assert_eq!(lock(folder.path()).unwrap_err().reason, Reason::FailedPrecondition);
        drop(held);
        assert!(lock(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_with_files_of_another_program_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let refused = DataFolder::claim(folder.path()).unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(refused.message.contains("notes.txt"), "{}", refused.message);
        assert_eq!(names(folder.path()), ["notes.txt"]);
        // With a cluster in it the same file is none of our business.
        std::fs::create_dir(folder.path().join("chubby")).unwrap();
        assert!(DataFolder::claim(folder.path()).is_err(), "a folder of that name alone is no cluster");
        std::fs::write(folder.path().join("chubby").join("journal"), "").unwrap();
        assert!(DataFolder::claim(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_that_was_made_for_nothing_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("a").join("b");
        let claimed = DataFolder::claim(&data).unwrap();
        std::fs::create_dir(data.join("chubby")).unwrap();
        claimed.discard();
        assert!(names(parent.path()).is_empty());
        // One that was there stays, and so does one that is dropped after it was used.
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
