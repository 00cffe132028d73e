//! Servers whose disks are slow, or hang.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::sync_delay::SyncState;
use ebla_runtime::Clock;
use ebla_storage::disk::delayed::{DelayedDisk, FileOperation};
use ebla_storage::disk::{Disk, Durability, RealDisk};

use super::fixture::{Fixture, GROUP, TABLET, until};
use super::rows::{expect_rows, scan, write};

/// By how much the syncs of a server's commit log are delayed. Clones share the delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncDelay(Arc<AtomicU64>);

/// So long that a sync hangs until the delay is changed.
const HANGS: Duration = Duration::from_secs(1 << 30);

impl SyncDelay {
    pub(crate) fn set(&self, delay: Duration) {
        self.0.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Blocks the thread; a delay that is shortened meanwhile ends sooner.
    fn wait(&self) {
        let started = Clock::system().monotonic();
        let elapsed = || Clock::system().monotonic() - started;
        while elapsed() < Duration::from_millis(self.0.load(Ordering::SeqCst)) {
            #[expect(clippy::disallowed_methods, reason = "a thread that a slow disk blocks")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The disk in `folder`, with this delay.
    pub(crate) fn open(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        let delay = self.clone();
        Ok(Arc::new(DelayedDisk::new(RealDisk::open(folder)?, move |operation| match operation {
            FileOperation::Sync | FileOperation::Write(Durability::OnWrite) => delay.wait(),
            FileOperation::Read | FileOperation::Write(Durability::OnSync) => {}
        })))
    }
}

fn state(fixture: &Fixture, at: usize) -> SyncState {
    fixture.server(at).tablet_manager().disk_speeds().state()
}

/// How many groups this server leads.
fn led(fixture: &Fixture, at: usize) -> usize {
    fixture.server(at).tablet_manager().groups().iter().filter(|group| group.is_leader()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_with_a_slow_disk_leads_nothing() {
    let fixture = Fixture::start(1 << 20).await;
    let slow = fixture.leader(TABLET).await;
    let other = (slow + 1) % 3;
    fixture.sync_delays[slow].set(Duration::from_millis(700));
    let mut rounds = 0;
    let writes = async {
        loop {
            write(fixture.server(other).cluster(), 0, 20, 100).await;
            rounds += 1;
        }
    };
    tokio::select! {
        () = writes => {}
        () = until("the leaderships are with other servers", || led(&fixture, slow) == 0) => {}
    }
    assert!(state(&fixture, slow).is_slow && !state(&fixture, other).is_slow, "after {rounds} rounds");
    let target = fixture.leader(TABLET).await;
    assert_ne!(target, slow);
    write(fixture.server(slow).cluster(), 0, 50, 120).await;
    expect_rows(&scan(fixture.server(other).cluster()).await, 50, 120);
    fixture.sync_delays[slow].set(Duration::ZERO);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_disk_hangs_is_replaced_while_it_hangs() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let slow = fixture.leader(TABLET).await;
    let others = [(slow + 1) % 3, (slow + 2) % 3];
    fixture.sync_delays[slow].set(HANGS);
    // It begins before the disk is known to hang, at the leader, through a server that is sound and through the slow one.
    futures::join!(
        write(fixture.server(others[0]).cluster(), 0, 30, 120),
        write(fixture.server(slow).cluster(), 30, 50, 120),
    );
    assert!(state(&fixture, slow).is_slow, "no other cause");
    assert_eq!(led(&fixture, slow), 0);
    let target = fixture.leader(TABLET).await;
    assert!(others.contains(&target));
    for at in 0..3 {
        write(fixture.server(at).cluster(), 0, 50, 140).await;
        expect_rows(&scan(fixture.server(at).cluster()).await, 50, 140);
    }
    fixture.sync_delays[slow].set(Duration::ZERO);
    let applied = |at: usize| fixture.server(at).tablet_manager().group(GROUP).unwrap().raft().status().applied;
    until("the server has caught up", || applied(slow) == applied(target)).await;
    fixture.stop().await;
}
