//! A disk on which writes can be made to wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_storage::disk::{Disk, DiskFile, Durability};

/// Whether writes wait; clones are the same.
#[derive(Clone, Default)]
pub(super) struct Stuck(Arc<AtomicBool>);

impl Stuck {
    pub(super) fn set(&self, stuck: bool) {
        self.0.store(stuck, Ordering::SeqCst);
    }

    fn wait(&self) {
        while self.0.load(Ordering::SeqCst) {
            #[expect(clippy::disallowed_methods, reason = "the thread of a commit log, which a slow disk blocks")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Another disk, whose writes wait while they are told to.
pub(super) struct SlowDisk<D> {
    disk: D,
    stuck: Stuck,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    stuck: Stuck,
}

impl<D> SlowDisk<D> {
    pub(super) fn new(disk: D, stuck: &Stuck) -> Self {
        Self { disk, stuck: stuck.clone() }
    }

    fn slow(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, stuck: self.stuck.clone() })
    }
}

impl<D: Disk> Disk for SlowDisk<D> {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.slow(self.disk.create(name)?))
    }

    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.slow(self.disk.open(name, durability)?))
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

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

impl DiskFile for SlowFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.stuck.wait();
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.stuck.wait();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
