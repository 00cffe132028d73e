//! A disk whose writes, or reads, can be blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_storage::disk::Disk;
use ebla_storage::disk::delayed::{DelayedDisk, FileOperation};

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

impl Blockers {
    /// `disk`, whose operations wait while they are blocked.
    pub(super) fn wrap<D: Disk>(&self, disk: D) -> DelayedDisk<D> {
        let blockers = self.clone();
        DelayedDisk::new(disk, move |operation| match operation {
            FileOperation::Read => blockers.reads.wait(),
            FileOperation::Write(_) | FileOperation::Sync => blockers.writes.wait(),
        })
    }
}
