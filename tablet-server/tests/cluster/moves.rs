//! Tablets move between groups while they are in use, and while servers fail.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::RowWrite;
use ebla_model::Reason;
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::command::NewTablet;
use ebla_model::id::{GroupId, OperationId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::tablet_event::TabletEventCause;
use ebla_runtime::Clock;
use ebla_tablet_server::tablet::lifecycle::manager::InitialState;
use ebla_tablet_server::tablet::{Failure, TabletGroup};

use super::fixture::{Fixture, GROUP, TABLE, TABLET, TIMEOUT, schema, until};
use super::rows::{expect_rows, increment, key, scan, set, token, write};

/// Two groups with a tablet each: that of [`TABLET`], and the one of the tablet with the rows from 200 on, which is returned too.
async fn two_groups(fixture: &Fixture) -> (Arc<TabletGroup>, Arc<TabletGroup>, TabletId) {
    let group = fixture.led_group(GROUP).await;
    let tablet = group.tablet(TABLET).unwrap();
    let (_lower, upper) = tablet.split(Some(key(200)), TIMEOUT).await.unwrap();
    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    let child = fixture.led_group(division.right.group).await;
    let (first, second) = if division.moved.contains(&TABLET) { (child, group) } else { (group, child) };
    (first, second, upper.tablet)
}

/// Two groups: that of [`TABLET`], which has all rows, and another one.
async fn separate(fixture: &Fixture) -> (GroupId, GroupId) {
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(RowKey::new("z")), TIMEOUT).await.unwrap();
    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    if division.moved.contains(&TABLET) {
        (division.right.group, division.left.group)
    } else {
        (division.left.group, division.right.group)
    }
}

/// Moves a tablet as a master would: with the leaders' present views, again and again until the reports show it there.
async fn move_to(fixture: &Fixture, tablet: TabletId, source: GroupId, target: GroupId) -> TabletDescriptor {
    let clock = Clock::system();
    let end = clock.monotonic() + TIMEOUT;
    loop {
        let to = fixture.led_group(target).await;
        if let Some(there) = to.tablet(tablet).and_then(|tablet| tablet.descriptor().ok()) {
            return there;
        }
        let from = fixture.led_group(source).await;
        if let Err(failure) = order(&from, tablet, to.descriptor()).await {
            assert!(clock.monotonic() < end, "not moved: {}", failure.error);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn order(from: &Arc<TabletGroup>, tablet: TabletId, target: GroupDescriptor) -> Result<(), Failure> {
    let missing = || Failure::new(Reason::WrongTablet, "the group does not have the tablet");
    let fence = from.tablet(tablet).ok_or_else(missing)?.descriptor()?.fence();
    from.move_tablet(tablet, fence, target, TabletEventCause::Operator, Duration::from_secs(10)).await
}

async fn wait_for_rows(fixture: &Fixture, expected: &[(TabletId, GroupId)]) {
    let cluster = fixture.server(0).cluster();
    let deadline = cluster.deadline(TIMEOUT);
    loop {
        let listed = cluster.read_metadata(ebla_model::metadata::table_range(TABLE), deadline).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|row| (row.descriptor.tablet, row.descriptor.group)).collect();
        if listed == expected {
            return;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tablet_moves_there_and_back_during_reads_and_writes() {
    move_there_and_back(ClusterVersion::NEWEST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tablet_moves_there_and_back_without_copies_ahead() {
    move_there_and_back(ClusterVersion::FIRST).await;
}

async fn move_there_and_back(version: ClusterVersion) {
    let fixture = Fixture::start_in_version(version).await;
    write(fixture.server(0).cluster(), 0, 400, 200).await;
    let (group, child, upper) = two_groups(&fixture).await;
    // Before all other rows.
    let counter = RowKey::new("counter");
    assert_eq!(increment(fixture.server(0).cluster(), &counter).await, 1);
    let writes = async {
        for _round in 0..40 {
            write(fixture.server(1).cluster(), 0, 400, 200).await;
        }
    };
    let increments = async {
        for expected in 2..=60 {
            let server = usize::try_from(expected % 3).unwrap();
            assert_eq!(increment(fixture.server(server).cluster(), &counter).await, expected);
        }
    };
    let scans = async {
        for _round in 0..20 {
            let rows = scan(fixture.server(2).cluster()).await;
            assert_eq!(rows.len(), 401, "a scan misses rows");
        }
    };
    let moves = async {
        for _round in 0..3 {
            move_to(&fixture, TABLET, group.id(), child.id()).await;
            move_to(&fixture, upper, child.id(), group.id()).await;
            move_to(&fixture, TABLET, child.id(), group.id()).await;
            move_to(&fixture, upper, group.id(), child.id()).await;
        }
        move_to(&fixture, TABLET, group.id(), child.id()).await
    };
    let ((), (), (), moved) = tokio::join!(writes, increments, scans, moves);
    assert_eq!((moved.tablet, moved.group), (TABLET, child.id()));
    assert_eq!(increment(fixture.server(0).cluster(), &counter).await, 61);
    wait_for_rows(&fixture, &[(TABLET, child.id()), (upper, child.id())]).await;
    until("the moves forgotten", || {
        [&group, &child].iter().all(|group| {
            let metadata = Arc::clone(&group.state_machine().applied_state().metadata);
            metadata.departures.is_empty()
        })
    })
    .await;
    // The tablets are in one group now, and merge.
    let merged = child.merge(child.descriptor().membership_log_id, (TABLET, upper), TIMEOUT).await.unwrap();
    write(fixture.server(0).cluster(), 0, 400, 300).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await[1..], 400, 300);
    }
    wait_for_rows(&fixture, &[(merged.tablet, child.id())]).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_known_after_a_move() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 400, 200).await;
    let (group, child, _upper) = two_groups(&fixture).await;
    let send = |at: usize, value: &'static str| {
        let cluster = fixture.server(at).cluster();
        let row =
            RowWrite { row: key(7), mutations: vec![set("q", Bytes::from(value))], token: token("the-only-token") };
        async move { cluster.mutate_rows(TABLE, vec![row], cluster.deadline(TIMEOUT)).await }
    };
    send(0, "first").await.remove(0).unwrap();
    move_to(&fixture, TABLET, group.id(), child.id()).await;
    send(1, "second").await.remove(0).unwrap();
    let rows = scan(fixture.server(2).cluster()).await;
    assert_eq!(rows[7].1, Bytes::from("first"));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_that_make_no_sense_are_refused() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 400, 200).await;
    let (group, child, _upper) = two_groups(&fixture).await;
    let refusal = async |tablet, target: GroupDescriptor| order(&group, tablet, target).await.unwrap_err().error;
    let same = refusal(TABLET, group.descriptor()).await;
    assert_eq!(same.reason, Reason::FailedPrecondition, "{same}");
    let metadata = fixture.led_group(GroupId::METADATA).await;
    let metadata = refusal(TABLET, metadata.descriptor()).await;
    assert_eq!(metadata.reason, Reason::FailedPrecondition, "{metadata}");
    // The group does not exist: the tablet does not depart.
    let unknown = GroupDescriptor { group: GroupId::new(77), ..child.descriptor() };
    let unknown = refusal(TABLET, unknown).await;
    assert_eq!(unknown.kind, ebla_model::ErrorKind::RefreshAndRetry, "{unknown}");
    write(fixture.server(0).cluster(), 0, 400, 200).await;
    // The master's view is stale.
    let stale = group.tablet(TABLET).unwrap().descriptor().unwrap();
    let fence = (ebla_model::id::Generation::new(stale.generation.get() - 1), stale.membership_log_id);
    let stale = group.move_tablet(TABLET, fence, child.descriptor(), TabletEventCause::Operator, TIMEOUT).await;
    let stale = stale.unwrap_err().error;
    assert_eq!(stale.reason, Reason::WrongTablet);
    fixture.stop().await;
}

/// Both groups have had a leader whose clock was an hour ahead: one when it was in use, which ages nothing, the other one when it was new.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_that_was_new_under_a_clock_ahead_takes_no_tablet() {
    let fixture = Fixture::start(1 << 20).await;
    let source = fixture.led_group(GROUP).await;
    let at = fixture.leader(TABLET).await;
    fixture.set_ahead(at, 3_600);
    write(fixture.server(at).cluster(), 0, 50, 100).await;
    let ids = [fixture.server(at).id()];
    let new = GroupDescriptor::initial(GROUP.next(), &ids);
    let replica = new.membership.replica_on(ids[0]).unwrap();
    fixture.server(at).tablet_manager().create_replica(new.clone(), replica, InitialState::Seed).await.unwrap();
    let target = fixture.led_group(new.group).await;
    let other = TableSchema { table: TABLE.next(), ..schema() };
    let tablet = NewTablet { tablet: TABLET.next(), range: KeyRange::all() };
    target.create_tablets(OperationId::new(1_001), other, vec![tablet], TIMEOUT).await.unwrap();
    fixture.set_ahead(at, 0);
    let [source_times, target_times] = [&source, &target].map(|group| group.state_machine().applied_state());
    assert!(target_times.gc_time.since(source_times.gc_time) > Duration::from_secs(3_000));
    assert!(source_times.time.since(source_times.gc_time) > Duration::from_secs(3_000), "only the time of its log");
    let refused = order(&fixture.led_group(GROUP).await, TABLET, new).await.unwrap_err().error;
    assert!(
        refused.reason == Reason::Busy && refused.message.contains("the clock of a server is or was wrong"),
        "{refused}"
    );
    expect_rows(&scan(fixture.server(0).cluster()).await, 50, 100);
    fixture.stop().await;
}

/// Writes are acknowledged, and read afterwards, while a tablet of 24 MB is copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_tablet_is_served_while_it_is_copied() {
    const ROWS: u32 = 1_200;
    const BYTES: usize = 20_000;
    let fixture = Fixture::start(1 << 20).await;
    for from in (0..ROWS).step_by(100) {
        write(fixture.server(0).cluster(), from, from + 100, BYTES).await;
    }
    let (full, empty) = separate(&fixture).await;
    let target = fixture.led_group(empty).await;
    let is_copied = || !target.state_machine().applied_state().metadata.copies.is_empty();
    let has_moved = Cell::new(false);
    let moved = async {
        move_to(&fixture, TABLET, full, empty).await;
        has_moved.set(true);
    };
    // Rows before and behind the position of the copy are rewritten, with other contents.
    let writes = async {
        let (mut during, mut round) = (0, 0);
        while !has_moved.get() {
            let from = (round * 37) % (ROWS - 3);
            let began = is_copied();
            write(fixture.server(1).cluster(), from, from + 3, 300 + usize::try_from(round % 5).unwrap()).await;
            during += u32::from(began && is_copied());
            round += 1;
        }
        (during, round)
    };
    let ((), (during, rounds)) = tokio::join!(moved, writes);
    assert!(during > 3, "{during} of {rounds} writes were acknowledged while the tablet was copied");
    let mut expected = vec![BYTES; usize::try_from(ROWS).unwrap()];
    for round in 0..rounds {
        let from = usize::try_from((round * 37) % (ROWS - 3)).unwrap();
        expected[from..from + 3].fill(300 + usize::try_from(round % 5).unwrap());
    }
    let rows = scan(fixture.server(2).cluster()).await;
    let found: Vec<usize> = rows.iter().map(|(_key, value)| value.len()).collect();
    assert_eq!(found, expected);
    fixture.stop().await;
}

/// The server that leads the source dies while the cells are copied, then the one that leads the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_leaders_continue_a_move() {
    lose_leaders(ClusterVersion::FIRST).await;
}

/// The same while the tablet is copied ahead of its move, or has just departed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tablet_moves_after_its_copy_has_lost_a_leader() {
    lose_leaders(ClusterVersion::NEWEST).await;
}

async fn lose_leaders(version: ClusterVersion) {
    const ROWS: u32 = 400;
    const BYTES: usize = 20_000;
    let mut fixture = Fixture::start_in_version(version).await;
    write(fixture.server(0).cluster(), 0, ROWS, BYTES).await;
    let (group, child, upper) = two_groups(&fixture).await;
    let (source, target) = (group.id(), child.id());
    drop((group, child));
    for (tablet, from, to, dies) in
        [(TABLET, source, target, source), (upper, target, source, target), (TABLET, target, source, source)]
    {
        let counter = key(1);
        let before = increment(fixture.server(0).cluster(), &counter).await;
        let group = fixture.led_group(from).await;
        let aim = fixture.led_group(to).await.descriptor();
        let has_ended = Cell::new(false);
        let ordered = async {
            // Not held longer: a server that is aborted waits for its groups.
            let group = group;
            let _outcome = order(&group, tablet, aim).await;
            has_ended.set(true);
        };
        let killed = async {
            let mut found = None;
            until("the departure of the tablet", || {
                let groups = fixture.servers.iter().flatten().filter_map(|one| one.tablet_manager().group(from));
                let targets = fixture.servers.iter().flatten().filter_map(|one| one.tablet_manager().group(to));
                let departs = |group: Arc<TabletGroup>| {
                    let metadata = Arc::clone(&group.state_machine().applied_state().metadata);
                    metadata.departures.contains_key(&tablet) || metadata.copies.keys().any(|id| id.tablet == tablet)
                };
                found = fixture.servers.iter().position(|server| {
                    let manager = server.as_ref().map(|server| server.tablet_manager());
                    manager.and_then(|manager| manager.group(dies)).is_some_and(|group| group.is_leader())
                });
                // A fast machine may have moved it before anyone looks.
                found.is_some() && (groups.chain(targets).any(departs) || has_ended.get())
            })
            .await;
            let lost = found.unwrap();
            fixture.servers[lost].take().unwrap().abort().await;
            lost
        };
        let ((), lost) = tokio::join!(ordered, killed);
        let other = (lost + 1) % 3;
        let rows = scan(fixture.server(other).cluster()).await;
        assert_eq!(rows.len(), usize::try_from(ROWS).unwrap());
        move_to(&fixture, tablet, from, to).await;
        assert_eq!(increment(fixture.server(other).cluster(), &counter).await, before + 1);
        let back = fixture.open(lost, 1 << 20).await;
        fixture.servers[lost] = Some(back);
    }
    for at in 0..3 {
        assert_eq!(scan(fixture.server(at).cluster()).await.len(), usize::try_from(ROWS).unwrap());
    }
    wait_for_rows(&fixture, &[(TABLET, source), (upper, source)]).await;
    fixture.stop().await;
}

/// `cargo test --release -p ebla-tablet-server --test tablet_server the_time_of -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures how long moves take, and how long writes to the tablet wait meanwhile"]
async fn the_time_of_a_move() {
    for (version, mebibytes) in
        [(ClusterVersion::FIRST, 64), (ClusterVersion::NEWEST, 64), (ClusterVersion::NEWEST, 256)]
    {
        measure(version, mebibytes).await;
    }
}

#[expect(clippy::print_stdout, reason = "the figures of a measurement")]
async fn measure(version: ClusterVersion, mebibytes: u32) {
    let fixture = Fixture::start_in_version(version).await;
    for from in (0..100 * mebibytes).step_by(200) {
        write(fixture.server(0).cluster(), from, from + 200, 10_486).await;
    }
    let (full, empty) = separate(&fixture).await;
    let clock = Clock::system();
    for (from, to) in [(full, empty), (empty, full), (full, empty)] {
        let started = clock.monotonic();
        let has_moved = Cell::new(false);
        let moved = async {
            move_to(&fixture, TABLET, from, to).await;
            has_moved.set(true);
        };
        let writes = async {
            let (mut longest, mut row) = (Duration::ZERO, 0);
            while !has_moved.get() {
                let began = clock.monotonic();
                write(fixture.server(1).cluster(), row, row + 1, 10_486).await;
                longest = longest.max(clock.monotonic() - began);
                row = (row + 1_009) % (100 * mebibytes);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            longest
        };
        let ((), longest) = tokio::join!(moved, writes);
        let took = clock.monotonic() - started;
        println!("cluster version {version}: {mebibytes} MiB moved in {took:?}, the longest write took {longest:?}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_space_of_a_tablet_that_moved_is_freed_without_a_write() {
    let fixture = Fixture::start_in_version(ClusterVersion::NEWEST).await;
    write(fixture.server(0).cluster(), 0, 400, 40_000).await;
    let (source, target) = separate(&fixture).await;
    // What is still in a memtable would not be in a file later either.
    let replicas = |group: GroupId| (0..3).map(move |at| (at, group));
    let of =
        |(at, group)| fixture.server(at).tablet_manager().group(group).map(|group| Arc::clone(group.state_machine()));
    for replica in replicas(source).filter_map(of) {
        replica.flush().unwrap();
        let bytes = replica.store().size_bytes().unwrap();
        assert!(bytes > 12_000_000, "{bytes} bytes in files");
    }
    move_to(&fixture, TABLET, source, target).await;
    until("the source is small", || {
        let sizes = replicas(source).filter_map(of).map(|replica| replica.store().size_bytes().unwrap());
        sizes.clone().count() == 3 && sizes.max() < Some(2_000_000)
    })
    .await;
    expect_rows(&scan(fixture.server(0).cluster()).await, 400, 40_000);
    fixture.stop().await;
}
