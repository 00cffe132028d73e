//! Tablets split and merge, and groups divide, while they are in use.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Counter, Write, paths, raise_counter, read_counters};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ReplicaId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_runtime::{Clock, Step};
use ebla_storage::log::GroupReplica;
use ebla_storage::registry::ReplicaOrigin;
use ebla_storage::store::{StoreFault, StoreOperation};
use ebla_tablet_server::tablet::lifecycle::manager::{InitialState, TabletManager};

use super::fixture::{Fixture, GROUP, TABLE, TABLET, TIMEOUT, purge_logs, until};
use super::rows::{expect_rows, key, scan, write};

/// The first replica of a group.
const FIRST: ReplicaId = ReplicaId::new(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tablet_splits_on_request_and_metadata_is_updated() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 400, 200).await;
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    let (left, right) = tablet.split(None, TIMEOUT).await.unwrap();
    assert_eq!(left.range.end(), Some(right.range.start()));
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 400, 200);
    }
    // Writes go to both halves, and METADATA finally lists both.
    write(cluster, 0, 400, 300).await;
    expect_rows(&scan(cluster).await, 400, 300);
    let deadline = cluster.deadline(TIMEOUT);
    loop {
        let listed = cluster.read_metadata(ebla_model::metadata::table_range(TABLE), deadline).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|entry| entry.descriptor).collect();
        if listed == [left.clone(), right.clone()] {
            break;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for at in 0..3 {
        let manager = fixture.server(at).tablet_manager();
        until("the child on every server", || manager.tablet(right.tablet).is_some()).await;
    }
    fixture.stop().await;
}

/// The table's descriptors in METADATA, once they are those of the group.
async fn wait_for_rows(fixture: &Fixture, expected: &[TabletDescriptor]) {
    let cluster = fixture.server(0).cluster();
    let deadline = cluster.deadline(TIMEOUT);
    loop {
        let listed = cluster.read_metadata(ebla_model::metadata::table_range(TABLE), deadline).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|entry| entry.descriptor).collect();
        if listed == expected {
            return;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tablets_merge_during_reads_and_writes() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 400, 200).await;
    let group = fixture.led_group(GROUP).await;
    let first = group.tablet(TABLET).unwrap();
    let (_, b) = first.split(Some(key(200)), TIMEOUT).await.unwrap();
    let (a, c) = first.split(Some(key(100)), TIMEOUT).await.unwrap();
    assert_eq!((a.tablet, fixture.tablets().len()), (TABLET, 3));
    let membership = group.descriptor().membership_log_id;
    let refused = group.merge(membership, (a.tablet, b.tablet), TIMEOUT).await.unwrap_err();
    assert_eq!(refused.error.reason, ebla_model::Reason::FailedPrecondition);

    // One server writes and another scans while the tablets merge.
    let writes = async {
        for _round in 0..20 {
            write(fixture.server(1).cluster(), 0, 400, 200).await;
        }
    };
    let scans = async {
        for _round in 0..20 {
            expect_rows(&scan(fixture.server(2).cluster()).await, 400, 200);
        }
    };
    let merges = async {
        let merged = group.merge(membership, (a.tablet, c.tablet), TIMEOUT).await.unwrap();
        assert_eq!((merged.tablet, merged.generation), (c.tablet, c.generation.next()));
        group.merge(membership, (c.tablet, b.tablet), TIMEOUT).await.unwrap()
    };
    let ((), (), whole) = tokio::join!(writes, scans, merges);
    assert_eq!((whole.tablet, &whole.range), (b.tablet, &ebla_model::key::KeyRange::all()));

    write(cluster, 0, 400, 300).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 400, 300);
        let manager = fixture.server(at).tablet_manager();
        until("the merge on every server", || manager.tablet(TABLET).is_none() && manager.tablet(c.tablet).is_none())
            .await;
    }
    wait_for_rows(&fixture, std::slice::from_ref(&whole)).await;
    // The merged tablet splits again where a tablet ended before, and elsewhere.
    let tablet = group.tablet(whole.tablet).unwrap();
    let (left, right) = tablet.split(Some(key(100)), TIMEOUT).await.unwrap();
    wait_for_rows(&fixture, &[left, right]).await;
    write(cluster, 0, 400, 400).await;
    expect_rows(&scan(cluster).await, 400, 400);
    fixture.stop().await;
}

/// The leader dies after a merge: the next one finds the row of the tablet that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_leader_removes_the_row_of_a_merged_tablet() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    let (left, right) = group.tablet(TABLET).unwrap().split(Some(key(20)), TIMEOUT).await.unwrap();
    wait_for_rows(&fixture, &[left.clone(), right.clone()]).await;
    let membership = group.descriptor().membership_log_id;
    let merged = group.merge(membership, (left.tablet, right.tablet), TIMEOUT).await.unwrap();
    wait_for_rows(&fixture, std::slice::from_ref(&merged)).await;
    // As if the first leader had not written yet.
    let metadata = ebla_routing::Metadata::new(cluster.clone());
    metadata.put_descriptor(&left, &Default::default(), cluster.deadline(TIMEOUT)).await.unwrap();
    let next = merged.membership.replicas().map(|replica| replica.replica).find(|replica| *replica != group.replica());
    let next = next.unwrap();
    // The target may lag behind at first.
    let deadline = cluster.deadline(TIMEOUT);
    while group.raft().transfer_leadership(next).await.is_err() {
        assert!(!deadline.has_passed(&Clock::system()), "the leadership is not transferred");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    wait_for_rows(&fixture, &[merged]).await;
    expect_rows(&scan(cluster).await, 40, 200);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_divides_during_reads_and_writes() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 400, 200).await;
    let group = fixture.led_group(GROUP).await;
    for at in [100, 200, 300] {
        let tablets = group.tablets();
        let tablet = tablets
            .iter()
            .find(|tablet| tablet.table() == TABLE && tablet.descriptor().unwrap().range.contains(key(at).as_bytes()));
        tablet.unwrap().split(Some(key(at)), TIMEOUT).await.unwrap();
    }
    let before = fixture.tablets();
    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    assert_eq!((before.len(), division.moved.len()), (4, 2));
    assert_eq!(group.tablet_ids().len(), 2);
    let child = fixture.led_group(division.right.group).await;
    assert_eq!(child.tablet_ids(), division.moved);
    write(cluster, 0, 400, 300).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 400, 300);
    }
    // Each group divides again until it has one tablet.
    let again = child.divide(child.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    assert_eq!(again.moved.len(), 1);
    let last = child.divide(child.descriptor().membership_log_id, TIMEOUT).await.unwrap_err();
    assert_eq!(last.error.reason, ebla_model::Reason::FailedPrecondition);
    write(cluster, 0, 400, 400).await;
    expect_rows(&scan(cluster).await, 400, 400);
    // METADATA finally lists each tablet in its group.
    let deadline = cluster.deadline(TIMEOUT);
    loop {
        let listed = cluster.read_metadata(ebla_model::metadata::table_range(TABLE), deadline).await.unwrap();
        let groups: std::collections::BTreeSet<_> = listed.iter().map(|entry| entry.descriptor.group).collect();
        if (listed.len(), groups.len()) == (4, 3) {
            break;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fixture.stop().await;
}

/// Its server gets the division as a part of a snapshot, so only messages of the child's other replicas can create it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_missing_child_of_a_division_is_created_by_replicas_that_have_restarted() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(key(20)), TIMEOUT).await.unwrap();
    let leader = fixture.leader(TABLET).await;
    let (absent, present) = ((leader + 1) % 3, [leader, (leader + 2) % 3]);
    fixture.servers[absent].take().unwrap().stop().await;

    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    let child = division.right.group;
    drop(group);
    for at in present {
        let manager = fixture.server(at).tablet_manager();
        until("the child", || manager.group(child).is_some()).await;
    }
    purge_logs(&fixture).await;
    for at in present {
        fixture.servers[at].take().unwrap().stop().await;
        fixture.servers[at] = Some(fixture.open(at, 1 << 20).await);
    }
    fixture.servers[absent] = Some(fixture.open(absent, 1 << 20).await);
    let manager = fixture.server(absent).tablet_manager();
    until("the missing child", || manager.group(child).is_some_and(|child| child.tablet_ids() == division.moved)).await;
    expect_rows(&scan(fixture.server(absent).cluster()).await, 40, 200);
    fixture.stop().await;
}

/// Makes the commit logs of the servers larger than those of [`Fixture::start_with_small_logs`] may be, by rows of METADATA.
async fn fill_logs(fixture: &Fixture, rows: std::ops::Range<u64>) {
    let cluster = fixture.server(0).cluster();
    let metadata = ebla_routing::Metadata::new(cluster.clone());
    let long_key = |n: u64| RowKey::new(format!("{n:03000}"));
    for n in rows {
        let range = KeyRange::new(long_key(n), Some(long_key(n + 1))).unwrap();
        let tablet = TabletDescriptor::initial(TABLE.next(), TabletId::new(10_000 + n), range, &fixture.ids());
        metadata.put_descriptor(&tablet, &Default::default(), cluster.deadline(TIMEOUT)).await.unwrap();
    }
}

/// Only the leader has applied the division, and the others cannot for a while: they find it in the log, although the log is above its budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_replica_of_a_divided_group_makes_its_child_of_its_own_rows() {
    let fixture = Fixture::start_with_small_logs().await;
    write(fixture.server(0).cluster(), 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(key(20)), TIMEOUT).await.unwrap();
    let leader = fixture.leader(TABLET).await;
    let others = [(leader + 1) % 3, (leader + 2) % 3].map(|at| Arc::clone(fixture.server(at).tablet_manager()));
    for manager in &others {
        let dir = manager.group(GROUP).unwrap().state_machine().store().dir().to_owned();
        let message = "IO error: No space left on device: While link file".to_owned();
        manager.shared().inject_faults(vec![StoreFault { dir, operation: StoreOperation::Checkpoint, message }]);
    }

    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    let (child, manager) = (division.right.group, fixture.server(leader).tablet_manager());
    until("the child", || manager.group(child).is_some()).await;
    let id = |manager: &TabletManager, group: GroupId| {
        let replica = division.right.membership.replicas().find(|replica| replica.server == manager.server()).unwrap();
        GroupReplica { group, replica: replica.replica }
    };
    let ReplicaOrigin::Division { index, .. } = manager.registry().replica(id(manager, child)).unwrap().origin else {
        panic!("the child was not created by the division")
    };
    // It asks the others for their votes, again and again.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let is_here = |manager: &Arc<TabletManager>| manager.group(child).is_some();
        assert!(!others.iter().any(is_here), "an empty child was created");
    }
    let purged = || manager.log().purged(id(manager, GROUP)).unwrap_or_default().index;
    // Several times: the segments that METADATA has left are released with the next record, and only then the group holds the oldest one.
    for round in 0.. {
        fill_logs(&fixture, round * 40..(round + 1) * 40).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if purged() >= index.previous() {
            break;
        }
        let log = manager.log();
        assert!(round < 30, "no purge of a log of {} bytes, pinned by {:?}", log.bytes(), log.oldest_pins());
    }
    purge_logs(&fixture).await;
    assert_eq!(purged(), index.previous());

    others.iter().for_each(|manager| manager.shared().inject_faults(Vec::new()));
    for manager in &others {
        until("the child of the others", || manager.group(child).is_some()).await;
        assert_eq!(manager.registry().replica(id(manager, child)).unwrap().installed, None, "filled by a snapshot");
    }
    fixture.led_group(child).await;
    write(fixture.server(0).cluster(), 0, 40, 300).await;
    purge_logs(&fixture).await;
    // openraft purges when it sends no follower these entries.
    until("the purge of the division", || purged() >= index).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 40, 300);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_growing_table_splits_automatically_during_writes() {
    let fixture = Fixture::start(512).await;
    let cluster = fixture.server(0).cluster();
    let mut written = 0;
    while written < 4000 {
        write(cluster, written, written + 200, 1000).await;
        written += 200;
    }
    until("the table split", || fixture.tablets().len() >= 4).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, written, 1000);
    }
    fixture.stop().await;
}

/// `cargo test --release -p ebla-tablet-server --test tablet_server a_large -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes half a minute"]
async fn a_large_table_splits_while_it_is_loaded_and_scanned() {
    const ROWS: u32 = 320_000;
    const WRITERS: u32 = 8;
    let fixture = Fixture::start(32 * 1024).await;
    let clock = Clock::system();
    let started = clock.monotonic();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let cluster = fixture.server(usize::try_from(writer % 3).unwrap()).cluster().clone();
        writers.spawn(async move {
            for batch in 0..(ROWS / WRITERS / 250) {
                let from = writer * (ROWS / WRITERS) + batch * 250;
                write(&cluster, from, from + 250, 1000).await;
            }
        });
    }
    let reader = fixture.server(1).cluster().clone();
    let mut scans = 0;
    while writers.join_next().await.is_some() {
        let rows = scan(&reader).await;
        assert!(rows.is_sorted_by(|(a, _), (b, _)| a < b), "a row was returned twice or out of order");
        scans += 1;
    }
    println!("loaded in {:?} beside {scans} scans", clock.monotonic() - started);
    until("the table split", || fixture.tablets().len() >= 8).await;
    let before = clock.monotonic();
    expect_rows(&scan(&reader).await, ROWS, 1000);
    println!("scanned in {:?}, {} tablets", clock.monotonic() - before, fixture.tablets().len());
    fixture.stop().await;
}

/// A server that follows in the group; its replica there is not the first one.
fn follower(fixture: &Fixture) -> usize {
    let replica = |at: &usize| fixture.server(*at).tablet_manager().group(GROUP).unwrap();
    (0..3).find(|at| !replica(at).is_leader() && replica(at).replica() != FIRST).unwrap()
}

/// Creates another group on a server, with the id that the counter gives next: as after a restore of Chubby from an older backup.
async fn create_other_group(fixture: &Fixture, at: usize) {
    let server = fixture.server(at);
    let other = GroupDescriptor::initial(GROUP.next(), &[server.id()]);
    server.tablet_manager().create_replica(other, FIRST, InitialState::Seed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_division_takes_no_id_that_another_server_knows() {
    let fixture = Fixture::start(1 << 20).await;
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(key(20)), TIMEOUT).await.unwrap();
    create_other_group(&fixture, follower(&fixture)).await;
    let refused = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap_err().error;
    expect_id_refused(&refused, "the counter groups is not above");
    let chubby = fixture.shared();
    let next = read_counters(chubby.as_ref()).await.unwrap().remove(&Counter::Groups);
    assert_eq!(next, Some(GROUP.next().get()), "the counter still shows that Chubby is behind");

    let later = GROUP.next().next();
    raise_counter(chubby.as_ref(), Counter::Groups, later.get()).await.unwrap();
    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    assert_eq!(division.right.group, later);
    fixture.stop().await;
}

/// An id is given twice although the others were asked for those that they know.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_division_deletes_nothing_where_another_group_has_the_new_id() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(key(20)), TIMEOUT).await.unwrap();
    let follower = follower(&fixture);
    let stopped = fixture.server(follower).tablet_manager().group(GROUP).unwrap();

    fixture.pause.begin(Step::DivideId);
    let other_group = async {
        fixture.pause.until_reached().await;
        create_other_group(&fixture, follower).await;
        fixture.pause.end();
    };
    let (division, ()) = tokio::join!(group.divide(group.descriptor().membership_log_id, TIMEOUT), other_group);
    assert_eq!(division.unwrap().right.group, GROUP.next());
    let deadline = cluster.deadline(TIMEOUT);
    while stopped.raft().is_running() {
        assert!(!deadline.has_passed(&Clock::system()), "the replica has not stopped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(stopped.tablet_ids().len(), 2, "both tablets are still there");
    expect_rows(&scan(cluster).await, 40, 200);
    fixture.stop().await;
}

/// An error that refuses an id, with this in its message.
fn expect_id_refused(error: &Error, message: &str) {
    assert_eq!(error.reason, Reason::FailedPrecondition, "{error}");
    assert!(error.message.contains(message), "{error}");
}

/// As after a restore of Chubby from an older backup: it would give the ids of the tablet and of the group again, which the leader knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ids_in_use_are_refused_until_the_counters_are_above_them() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    let tablet = group.tablet(TABLET).unwrap();
    let membership = group.descriptor().membership_log_id;
    let chubby = fixture.shared();
    let again = vec![
        Write::put(Counter::Tablets.path(), TABLET.to_string()),
        Write::put(Counter::Groups.path(), GROUP.to_string()),
    ];
    chubby.transact(Vec::new(), again).await.unwrap();

    for _ in 0..2 {
        let refused = tablet.split(Some(key(20)), TIMEOUT).await.unwrap_err();
        expect_id_refused(&refused.error, "the counter tablets is not above 100");
        assert_eq!(group.tablet_ids(), [TABLET]);
    }
    raise_counter(chubby.as_ref(), Counter::Tablets, TABLET.next().get()).await.unwrap();
    let (_, right) = tablet.split(Some(key(20)), TIMEOUT).await.unwrap();
    assert_eq!(right.tablet, TABLET.next());

    let refused = group.divide(membership, TIMEOUT).await.unwrap_err();
    expect_id_refused(&refused.error, "the counter groups is not above 1000");
    assert_eq!(group.tablet_ids(), [TABLET, right.tablet]);
    raise_counter(chubby.as_ref(), Counter::Groups, GROUP.next().get()).await.unwrap();
    let division = group.divide(membership, TIMEOUT).await.unwrap();
    assert_eq!(division.right.group, GROUP.next());
    expect_rows(&scan(cluster).await, 40, 200);
    fixture.stop().await;
}

/// The counters may be low although no id has been given twice yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_id_is_taken_while_chubby_lacks_changes() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 40, 200).await;
    let group = fixture.led_group(GROUP).await;
    let tablet = group.tablet(TABLET).unwrap();
    fixture.shared().transact(Vec::new(), vec![Write::put(paths::BEHIND, "restored")]).await.unwrap();
    let refused = tablet.split(Some(key(20)), TIMEOUT).await.unwrap_err();
    expect_id_refused(&refused.error, "ebla recover");
    fixture.shared().transact(Vec::new(), vec![Write::delete(paths::BEHIND)]).await.unwrap();
    let (_, right) = tablet.split(Some(key(20)), TIMEOUT).await.unwrap();
    assert_eq!(right.tablet, TABLET.next(), "the refused split has taken no id");
    fixture.stop().await;
}

/// Nothing else makes the tablet split: it is small.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hot_tablet_is_split_between_its_busy_rows_and_not_for_a_single_one() {
    let fixture = Fixture::start_splitting_by_load(20).await;
    let cluster = fixture.server(0).cluster();
    let clock = Clock::system();
    let begun = clock.monotonic();
    let load = async || {
        let group = fixture.led_group(GROUP).await;
        group.tablet(TABLET).unwrap().metadata().unwrap().load.load(clock.monotonic())
    };
    let measured = loop {
        write(cluster, 7, 8, 20).await;
        let (measured, passed) = (load().await, clock.monotonic().saturating_sub(begun));
        // On a busy machine the writes of some seconds may be too few to name a row.
        if passed >= TIMEOUT || passed >= Duration::from_secs(15) && measured.hot_row.is_some() {
            break measured;
        }
    };
    assert!(measured.writes_per_second >= 20, "{measured:?}");
    assert_eq!((measured.hot_row, fixture.tablets().len()), (Some(key(7)), 1), "one row has all the load");
    let busy = [50, 150, 250, 350];
    let split = async {
        while fixture.tablets().len() == 1 {
            for number in busy {
                write(cluster, number, number + 1, 20).await;
            }
        }
    };
    tokio::time::timeout(TIMEOUT * 4, split).await.unwrap();
    let group = fixture.led_group(GROUP).await;
    let low = group.tablet(TABLET).unwrap().descriptor().unwrap();
    let end = low.range.end().unwrap();
    // Perhaps at the first of them: the row that had all the load before is below it.
    assert!(busy.iter().any(|number| key(*number) == *end), "split at {end}");
    // Its halves can be read and written.
    for number in busy {
        write(cluster, number, number + 1, 20).await;
    }
    assert_eq!(scan(cluster).await.len(), 5);
    fixture.stop().await;
}
