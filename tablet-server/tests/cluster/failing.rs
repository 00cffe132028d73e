//! The store of one replica fails, while the server and its other replicas are sound.

use std::path::PathBuf;
use std::sync::Arc;

use ebla_model::id::GroupId;
use ebla_storage::log::GroupReplica;
use ebla_storage::store::{StoreFault, StoreOperation};
use ebla_tablet_server::tablet::lifecycle::manager::TabletManager;

use super::fixture::{Fixture, GROUP, TABLET, TIMEOUT, until};
use super::rows::{expect_rows, scan, write};

const NO_SPACE: &str = "IO error: No space left on device: While appending to file: No space left on device";
const NO_FILES: &str = "IO error: While open a file for lock: LOCK: Too many open files";
const DAMAGED: &str = "Corruption: block checksum mismatch";
const BROKEN: &str = "IO error: While fsync: Input/output error";

/// The replica of [`GROUP`] on a server, and the folder of its store.
struct Victim {
    manager: Arc<TabletManager>,
    id: GroupReplica,
    dir: PathBuf,
}

impl Victim {
    fn of(fixture: &Fixture, at: usize) -> Self {
        let manager = Arc::clone(fixture.server(at).tablet_manager());
        let group = manager.group(GROUP).unwrap();
        let id = GroupReplica { group: GROUP, replica: group.replica() };
        let dir = group.state_machine().store().dir().to_owned();
        Self { manager, id, dir }
    }

    /// Lets these operations of its store fail.
    fn fail(&self, faults: &[(StoreOperation, &str)]) {
        let fault = |(operation, message): &(StoreOperation, &str)| StoreFault {
            dir: self.dir.clone(),
            operation: *operation,
            message: (*message).to_owned(),
        };
        self.manager.shared().inject_faults(faults.iter().map(fault).collect());
    }

    /// Whether the server reports that the replica does not run, and nothing else about it.
    fn is_idle(&self) -> bool {
        self.manager.idle().contains(&self.id) && !self.is_reported()
    }

    fn is_reported(&self) -> bool {
        self.manager.report().iter().any(|report| report.descriptor.group == GROUP)
    }

    /// Returns when it runs with everything that `other` has.
    async fn caught_up(&self, fixture: &Fixture, other: usize) {
        let ahead = fixture.server(other).tablet_manager().tablet(TABLET).unwrap().report().applied;
        let has_caught_up = || self.manager.tablet(TABLET).is_some_and(|tablet| tablet.report().applied >= ahead);
        until("the replica caught up", has_caught_up).await;
        assert!(self.manager.idle().is_empty());
    }
}

/// Lets a leader fail that has no `resource`, and serves without it until it has some again.
async fn a_leader_without_a_resource_waits(message: &str) {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let leader = fixture.leader(TABLET).await;
    let (victim, other) = (Victim::of(&fixture, leader), (leader + 1) % 3);
    victim.fail(&[(StoreOperation::Write, message), (StoreOperation::Open, message)]);
    let cluster = fixture.server(other).cluster().clone();
    write(&cluster, 50, 100, 100).await;
    until("the replica is reported as one that does not run", || victim.is_idle()).await;
    assert_ne!(fixture.leader(TABLET).await, leader);
    expect_rows(&scan(&cluster).await, 100, 100);
    assert!(victim.manager.group(GroupId::METADATA).is_some(), "the other replicas of the server run");
    assert!(victim.manager.quarantined().is_empty());
    victim.fail(&[]);
    victim.caught_up(&fixture, other).await;
    write(fixture.server(leader).cluster(), 100, 120, 100).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_disk_is_full_is_replaced_and_returns() {
    a_leader_without_a_resource_waits(NO_SPACE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_leader_is_quarantined_and_the_others_serve() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let leader = fixture.leader(TABLET).await;
    let victim = Victim::of(&fixture, leader);
    victim.fail(&[(StoreOperation::Write, DAMAGED)]);
    let cluster = fixture.server((leader + 1) % 3).cluster().clone();
    write(&cluster, 50, 100, 100).await;
    until("the quarantine", || victim.manager.quarantined() == [victim.id]).await;
    assert!(!victim.is_reported() && victim.manager.idle().is_empty());
    expect_rows(&scan(&cluster).await, 100, 100);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_unexpected_failure_of_a_core_ends_the_server() {
    let fixture = Fixture::start(1 << 20).await;
    let leader = fixture.leader(TABLET).await;
    let victim = Victim::of(&fixture, leader);
    victim.fail(&[(StoreOperation::Write, BROKEN)]);
    write(fixture.server((leader + 1) % 3).cluster(), 0, 50, 100).await;
    let failed = tokio::time::timeout(TIMEOUT, fixture.server(leader).failed()).await.unwrap();
    assert!(failed.message.contains("Input/output error") && failed.message.contains("group 1000"), "{failed}");
    assert!(!victim.is_reported() && victim.manager.quarantined().is_empty());
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_without_its_current_file_keeps_no_other_replica_from_serving() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let Victim { id, dir, .. } = Victim::of(&fixture, 0);
    fixture.servers[0].take().unwrap().abort().await;
    std::fs::remove_file(dir.join("CURRENT")).unwrap();
    let back = fixture.open(0, 1 << 20).await;
    assert_eq!(back.tablet_manager().quarantined(), [id]);
    assert!(back.tablet_manager().group(GroupId::METADATA).is_some());
    expect_rows(&scan(back.cluster()).await, 50, 100);
    fixture.servers[0] = Some(back);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_cannot_be_opened_waits_while_the_other_replicas_serve() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 50, 100).await;
    let dir = Victim::of(&fixture, 0).dir;
    fixture.servers[0].take().unwrap().abort().await;
    // RocksDB cannot lock a folder: an IO error that has nothing to do with the data.
    let lock = dir.join("LOCK");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let back = fixture.open(0, 1 << 20).await;
    let manager = Arc::clone(back.tablet_manager());
    assert!(manager.group(GROUP).is_none() && manager.quarantined().is_empty());
    assert_eq!(manager.idle().len(), 1);
    assert!(manager.group(GroupId::METADATA).is_some());
    fixture.servers[0] = Some(back);
    write(fixture.server(0).cluster(), 50, 100, 100).await;
    std::fs::remove_dir(&lock).unwrap();
    until("the replica runs", || manager.group(GROUP).is_some()).await;
    Victim::of(&fixture, 0).caught_up(&fixture, 1).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_for_which_there_are_no_open_files_waits() {
    a_leader_without_a_resource_waits(NO_FILES).await;
}
