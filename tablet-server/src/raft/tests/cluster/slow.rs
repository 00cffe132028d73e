//! A disk whose writes, or reads, can be blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ebla_storage::disk::Disk;
use ebla_storage::disk::delayed::{DelayedDisk, FileOperation};

/// Blocks and unblocks operations of a disk. Clones share the state.
#[derive(Clone, Default)]
pub(super) struct Blocker(Arc<BlockerState>);

#[derive(Default)]
struct BlockerState {
    is_blocked: AtomicBool,
    /// The operations that wait.
    waiting: AtomicUsize,
}

impl Blocker {
    pub(super) fn block(&self) {
        self.0.is_blocked.store(true, Ordering::SeqCst);
    }

    pub(super) fn unblock(&self) {
        self.0.is_blocked.store(false, Ordering::SeqCst);
    }

    /// The number of operations that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::SeqCst)
    }

    fn wait(&self) {
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        while self.0.is_blocked.load(Ordering::SeqCst) {
            #[expect(clippy::disallowed_methods, reason = "a thread that a slow disk blocks")]
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
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
