//! A folder on the machine's file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{Disk, DiskFile, Durability};

/// Name of the lock file that excludes a second process. It is not listed.
const LOCK: &str = "LOCK";

/// A folder of the file system. It holds a lock on the folder until it is dropped: two writers would destroy the log.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
    /// Open, so that a sync needs no further open file: it must not fail for lack of one.
    opened: File,
    /// Locked until dropped.
    lock: File,
}

impl RealDisk {
    /// Opens `folder`, creating it (and its parents) when it is missing, and locks it.
    ///
    /// # Errors
    /// `WouldBlock` when another process, or another `RealDisk` of this one, has it open; else the system's error.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
        lock.try_lock()?;
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self { folder: folder.to_owned(), opened: File::open(folder)?, lock })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for RealDisk {
    fn drop(&mut self) {
        // Not only by closing the file: a child that another thread has just forked has a copy of it until it executes its program.
        let _released = self.lock.unlock();
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if durability == Durability::OnWrite {
            options.custom_flags(OFlags::DSYNC.bits().cast_signed());
        }
        Ok(Arc::new(RealFile(options.open(self.path(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<Option<String>>> = names.collect();
        Ok(names?.into_iter().flatten().filter(|name| name != LOCK).collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let free = rustix::fs::statvfs(&self.folder)?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.opened.sync_all()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_read_renamed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(&dir.path().join("log")).unwrap();
        let file = disk.create("a").unwrap();
        file.write_at(4, b"late").unwrap();
        file.sync().unwrap();
        assert_eq!(disk.create("a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        disk.rename("a", "b").unwrap();
        disk.sync_dir().unwrap();
        assert_eq!(disk.list().unwrap(), ["b"]);
        assert!(disk.free_bytes().unwrap() > 0);
        let again = disk.open("b", Durability::OnWrite).unwrap();
        again.write_at(0, b"soon").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 8);
        assert_eq!(&buffer[..8], b"soonlate");
        assert_eq!(again.len().unwrap(), 8);
        disk.remove("b").unwrap();
        assert!(disk.list().unwrap().is_empty());
    }

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = RealDisk::open(dir.path()).unwrap();
        assert_eq!(RealDisk::open(dir.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        RealDisk::open(dir.path()).unwrap();
    }
}
