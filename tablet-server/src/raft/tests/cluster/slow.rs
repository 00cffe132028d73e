//! A disk whose writes can be blocked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_storage::disk::{Disk, DiskFile, Durability};

/// Blocks and unblocks writes. Clones share the state.
#[derive(Clone, Default)]
pub(super) struct WriteBlocker(Arc<AtomicBool>);

impl WriteBlocker {
    pub(super) fn block(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn unblock(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    fn wait(&self) {
        while self.0.load(Ordering::SeqCst) {
            #[expect(clippy::disallowed_methods, reason = "the thread of a commit log, which a slow disk blocks")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Wraps another disk; its writes wait while they are blocked.
pub(super) struct SlowDisk<D> {
    disk: D,
    blocker: WriteBlocker,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    blocker: WriteBlocker,
}

impl<D> SlowDisk<D> {
    pub(super) fn new(disk: D, blocker: &WriteBlocker) -> Self {
        Self { disk, blocker: blocker.clone() }
    }

    fn slow(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, blocker: self.blocker.clone() })
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
        self.blocker.wait();
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.blocker.wait();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
