//! The file of the audit log: lines are appended, and a file that has reached its size is kept under another name.
//!
//! `audit.log` is the present file, `audit.log.1` the one before it, and so on. Blocking.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ebla_model::Error;
use tracing::warn;

/// When a file of the audit log is replaced, and how many are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditRotation {
    /// The size in bytes that a file does not exceed, unless the lines that are written at once do.
    pub file_bytes: u64,
    /// How many earlier files are kept; older ones are deleted. With 0 only the present one is.
    pub files_kept: u32,
}

/// The present file.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    rotation: Option<AuditRotation>,
    /// Whether the last replacement has failed, so that the next failure is not logged.
    is_failing: bool,
}

impl AuditFile {
    /// Opens the file, or creates it. `rotation`: `None`: it grows without a limit.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot be opened.
    pub(super) fn open(path: PathBuf, rotation: Option<AuditRotation>) -> Result<Self, Error> {
        let file =
            append(&path).map_err(|error| Error::invalid(format!("open audit log {}: {error}", path.display())))?;
        Ok(Self { path, file, rotation, is_failing: false })
    }

    /// Appends lines. A file that cannot be replaced grows on: records are worth more than the limit.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.make_room(lines.len()) {
            if !self.is_failing {
                warn!(%error, file = %self.path.display(), "cannot replace the audit log, which has reached its size; it grows on");
            }
            self.is_failing = true;
        } else {
            self.is_failing = false;
        }
        self.file.write_all(lines)
    }

    /// Replaces the file if it has no room for this number of bytes.
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        let Some(AuditRotation { file_bytes, files_kept }) = self.rotation else { return Ok(()) };
        // Asked each time: somebody else may have truncated it.
        let size = self.file.metadata()?.len();
        let added = u64::try_from(bytes).unwrap_or(u64::MAX);
        if size == 0 || size.saturating_add(added) <= file_bytes {
            return Ok(());
        }
        if files_kept == 0 {
            return self.file.set_len(0);
        }
        for number in (1..files_kept).rev() {
            rename_if_exists(&self.earlier(number), &self.earlier(number + 1))?;
        }
        rename_if_exists(&self.path, &self.earlier(1))?;
        self.file = append(&self.path)?;
        Ok(())
    }

    /// The name of an earlier file; 1 is the last one.
    fn earlier(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        PathBuf::from(name)
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes six lines of four bytes, and returns the contents of the present and the earlier files.
    fn files(rotation: Option<AuditRotation>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut file = AuditFile::open(path.clone(), rotation).unwrap();
        for line in 1..=6 {
            file.write(format!("-{line}-\n").as_bytes()).unwrap();
        }
        // A server that is started again continues the file.
        drop(file);
        AuditFile::open(path, rotation).unwrap().write(b"-7-\n").unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names.into_iter().map(|name| fs::read_to_string(name).unwrap().replace('\n', "")).collect()
    }

    #[test]
    fn so_many_earlier_files_are_kept() {
        let rotation = |file_bytes, files_kept| Some(AuditRotation { file_bytes, files_kept });
        assert_eq!(files(None), ["-1--2--3--4--5--6--7-"]);
        assert_eq!(files(rotation(100, 2)), ["-1--2--3--4--5--6--7-"]);
        assert_eq!(files(rotation(8, 2)), ["-7-", "-5--6-", "-3--4-"]);
        assert_eq!(files(rotation(11, 9)), ["-7-", "-5--6-", "-3--4-", "-1--2-"]);
        assert_eq!(files(rotation(8, 0)), ["-7-"]);
        assert_eq!(files(rotation(1, 1)), ["-7-", "-6-"], "a line that is larger than a file has its own");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_grows_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let rotation = Some(AuditRotation { file_bytes: 4, files_kept: 1 });
        let mut file = AuditFile::open(path.clone(), rotation).unwrap();
        // A folder with the name of the earlier file.
        fs::create_dir_all(folder.path().join("audit.log.1").join("full")).unwrap();
        for _line in 0..3 {
            file.write(b"----").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 12);
        fs::remove_dir_all(folder.path().join("audit.log.1")).unwrap();
        file.write(b"----").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 4);
    }
}
