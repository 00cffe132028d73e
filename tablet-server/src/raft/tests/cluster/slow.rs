//! A disk whose writes, or reads, can be blocked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_storage::disk::{Disk, DiskFile, Durability};

/// Blocks and unblocks operations of a disk. Clones share the state.
#[derive(Clone, Default)]
pub(super) struct Blocker(Arc<AtomicBool>);

impl Blocker {
    pub(super) fn block(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn unblock(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    fn wait(&self) {
        while self.0.load(Ordering::SeqCst) {
            #[expect(clippy::disallowed_methods, reason = "a thread that a slow disk blocks")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What can be blocked on a disk. Clones share the state.
#[derive(Clone, Default)]
pub(super) struct Blockers {
    pub(super) writes: Blocker,
    pub(super) reads: Blocker,
}

/// Wraps another disk; its operations wait while they are blocked.
pub(super) struct SlowDisk<D> {
    disk: D,
    blockers: Blockers,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    blockers: Blockers,
}

impl<D> SlowDisk<D> {
    pub(super) fn new(disk: D, blockers: &Blockers) -> Self {
        Self { disk, blockers: blockers.clone() }
    }

    fn slow(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, blockers: self.blockers.clone() })
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

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

impl DiskFile for SlowFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.blockers.writes.wait();
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.blockers.reads.wait();
        self.file.read_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.blockers.writes.wait();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
