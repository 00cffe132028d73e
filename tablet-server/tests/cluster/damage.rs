//! Damaged blocks in the files of a running replica.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_storage::log::GroupReplica;
use ebla_tablet_server::tablet::TabletGroup;
use ebla_tablet_server::tablet::lifecycle::manager::ScrubRate;

use super::fixture::{Fixture, GROUP, TABLET, purge_logs, until};
use super::rows::{expect_rows, scan, write};

const ROWS: u32 = 400;
const BYTES: usize = 1_000;

fn group(fixture: &Fixture, at: usize) -> Arc<TabletGroup> {
    fixture.server(at).tablet_manager().group(GROUP).unwrap()
}

fn id(fixture: &Fixture, at: usize) -> GroupReplica {
    GroupReplica { group: GROUP, replica: group(fixture, at).replica() }
}

/// Flushes the store of the replica, and changes bytes in its largest file, where the rows are.
fn damage(fixture: &Fixture, at: usize) {
    let group = group(fixture, at);
    group.state_machine().flush().unwrap();
    let store = group.state_machine().store();
    let files = std::fs::read_dir(store.dir()).unwrap().map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|end| end == "sst"));
    let largest: PathBuf = tables.max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let half = largest.metadata().unwrap().len() / 2;
    let file = File::options().write(true).open(largest).unwrap();
    for offset in [half / 2, half, half + half / 4] {
        file.write_all_at(&[0xA5; 16], offset).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_block_is_damaged_is_replaced_and_the_reads_continue() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let leader = fixture.leader(TABLET).await;
    let (victim, manager) = (id(&fixture, leader), Arc::clone(fixture.server(leader).tablet_manager()));
    damage(&fixture, leader);
    let cluster = fixture.server((leader + 1) % 3).cluster().clone();
    expect_rows(&scan(&cluster).await, ROWS, BYTES);
    until("the quarantine", || manager.quarantined() == [victim]).await;
    assert_ne!(fixture.leader(TABLET).await, leader);
    assert_eq!(manager.scrub_results().state(manager.clock().monotonic()).damaged, 1);
    expect_rows(&scan(&cluster).await, ROWS, BYTES);
    write(&cluster, 0, ROWS, BYTES + 1).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_scrubber_finds_damage_that_nobody_reads() {
    let fixture = Fixture::start_scrubbing().await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let leader = fixture.leader(TABLET).await;
    let follower = (leader + 1) % 3;
    let (victim, manager) = (id(&fixture, follower), Arc::clone(fixture.server(follower).tablet_manager()));
    let state = || manager.scrub_results().state(manager.clock().monotonic());
    until("a complete pass", || state().finished_ago.is_some() && state().bytes > u64::from(ROWS) * BYTES as u64).await;
    assert_eq!((state().damaged, manager.quarantined()), (0, Vec::new()));
    damage(&fixture, follower);
    until("the quarantine", || manager.quarantined() == [victim]).await;
    expect_rows(&scan(fixture.server(follower).cluster()).await, ROWS, BYTES);
    fixture.stop().await;
}

/// No request reads the rows, so only the snapshot of the leader's files can find the damage. If another replica becomes the leader meanwhile, it
/// sends its own files, which are not damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_sends_no_snapshot_with_damaged_blocks() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let leader = fixture.leader(TABLET).await;
    let behind = (leader + 1) % 3;
    fixture.servers[behind].take().unwrap().stop().await;
    write(fixture.server(leader).cluster(), 0, ROWS, BYTES + 1).await;
    let (victim, manager) = (id(&fixture, leader), Arc::clone(fixture.server(leader).tablet_manager()));
    // A log that is just being sent is not purged.
    let written = manager.tablet(TABLET).unwrap().report().applied;
    while manager.log().purged(victim).unwrap_or_default() < written {
        purge_logs(&fixture).await;
    }
    damage(&fixture, leader);
    fixture.servers[behind] = Some(fixture.open(behind, 1 << 20).await);
    let leads = || manager.group(GROUP).is_some_and(|group| group.is_leader());
    until("the quarantine", || manager.quarantined() == [victim] || !leads()).await;
    expect_rows(&scan(fixture.server(behind).cluster()).await, ROWS, BYTES + 1);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_false_report_has_no_consequence() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let leader = fixture.leader(TABLET).await;
    let (reported, manager) = (group(&fixture, leader), Arc::clone(fixture.server(leader).tablet_manager()));
    reported.state_machine().damage().report();
    until("the examination", || reported.state_machine().damage().is_refuted()).await;
    assert!(manager.quarantined().is_empty());
    assert!(manager.scrub(&reported, ScrubRate::Unlimited).await.unwrap() > u64::from(ROWS) * BYTES as u64);
    expect_rows(&scan(fixture.server(leader).cluster()).await, ROWS, BYTES);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_replica_stays_while_the_others_do_not_respond() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let damaged = 0;
    let manager = Arc::clone(fixture.server(damaged).tablet_manager());
    // With one of the other two servers no majority is left without the damaged one.
    let lost = fixture.servers[2].take().unwrap();
    let lost_id = lost.id();
    lost.abort().await;
    until("the loss is noticed", || !manager.clocks().responding(manager.clock().monotonic()).contains(&lost_id)).await;
    damage(&fixture, damaged);
    let found = manager.scrub(&group(&fixture, damaged), ScrubRate::Unlimited).await.unwrap_err();
    assert_eq!(found.reason, Reason::DataDamaged);
    group(&fixture, damaged).state_machine().damage().report();
    until("the examination", || manager.scrub_results().state(manager.clock().monotonic()).damaged == 1).await;
    expect_rows(&scan(fixture.server(1).cluster()).await, ROWS, BYTES);
    assert!(manager.quarantined().is_empty(), "the group would have no quorum");
    fixture.stop().await;
}

/// One of the other two servers has just been lost, and has not been missed yet. `find`: damage is found on the server that is given.
async fn a_damaged_replica_votes_until_the_others_respond(find: impl AsyncFn(&Fixture, usize)) {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let (damaged, other, lost) = (0, 1, 2);
    let (victim, manager) = (id(&fixture, damaged), Arc::clone(fixture.server(damaged).tablet_manager()));
    let kept = || manager.scrub_results().state(manager.clock().monotonic()).kept;
    until("all servers have responded", || manager.clocks().responding(manager.clock().monotonic()).len() == 2).await;
    fixture.servers[lost].take().unwrap().abort().await;
    damage(&fixture, damaged);
    find(&fixture, damaged).await;
    until("the damage is found", || kept() == 1).await;
    write(fixture.server(other).cluster(), 0, ROWS, BYTES + 2).await;
    expect_rows(&scan(fixture.server(other).cluster()).await, ROWS, BYTES + 2);
    assert!(manager.quarantined().is_empty(), "the group would have no majority");
    fixture.servers[lost] = Some(fixture.open(lost, 1 << 20).await);
    until("the quarantine", || manager.quarantined() == [victim]).await;
    assert_eq!(kept(), 0);
    write(fixture.server(other).cluster(), 0, ROWS, BYTES + 3).await;
    expect_rows(&scan(fixture.server(damaged).cluster()).await, ROWS, BYTES + 3);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_replica_that_a_read_meets_votes_until_the_others_respond() {
    let report = async |fixture: &Fixture, damaged: usize| group(fixture, damaged).state_machine().damage().report();
    Box::pin(a_damaged_replica_votes_until_the_others_respond(report)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_replica_that_a_write_meets_votes_until_the_others_respond() {
    let compact = async |fixture: &Fixture, damaged: usize| {
        for size in [BYTES, BYTES + 1] {
            write(fixture.server(1).cluster(), 0, ROWS, size).await;
            group(fixture, damaged).state_machine().flush().unwrap();
        }
        // RocksDB meets the damage in the background, and then refuses all writes.
        group(fixture, damaged).state_machine().store().compact().unwrap();
        write(fixture.server(1).cluster(), 0, 1, BYTES).await;
    };
    Box::pin(a_damaged_replica_votes_until_the_others_respond(compact)).await;
}
