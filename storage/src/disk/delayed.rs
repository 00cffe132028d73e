//! A disk whose operations can be delayed, for tests of slow disks.

use std::io;
use std::sync::Arc;

use super::{Disk, DiskFile, Durability};

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// [`DiskFile::read_at`].
    Read,
    /// [`DiskFile::write_at`] of a file that was opened so.
    Write(Durability),
    /// [`DiskFile::sync`].
    Sync,
}

/// Called before each operation; it blocks the thread for as long as the operation shall be delayed.
type Delay = Arc<dyn Fn(FileOperation) + Send + Sync>;

/// Another disk whose reads, writes and syncs can be delayed.
pub struct DelayedDisk<D> {
    disk: D,
    delay: Delay,
}

struct DelayedFile {
    file: Arc<dyn DiskFile>,
    durability: Durability,
    delay: Delay,
}

impl<D> DelayedDisk<D> {
    /// Wraps `disk`. `delay` is called before each operation on a file of it, on the thread of the operation.
    #[must_use]
    pub fn new(disk: D, delay: impl Fn(FileOperation) + Send + Sync + 'static) -> Self {
        Self { disk, delay: Arc::new(delay) }
    }

    fn file(&self, file: Arc<dyn DiskFile>, durability: Durability) -> Arc<dyn DiskFile> {
        Arc::new(DelayedFile { file, durability, delay: Arc::clone(&self.delay) })
    }
}

impl<D: Disk> Disk for DelayedDisk<D> {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.create(name)?, Durability::OnSync))
    }

    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name, durability)?, durability))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

impl DiskFile for DelayedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (self.delay)(FileOperation::Write(self.durability));
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (self.delay)(FileOperation::Read);
        self.file.read_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        (self.delay)(FileOperation::Sync);
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
