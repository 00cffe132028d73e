//! Tablets move between groups while they are in use, and while servers fail.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::RowWrite;
use ebla_model::Reason;
use ebla_model::id::{GroupId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::tablet_event::TabletEventCause;
use ebla_runtime::Clock;
use ebla_tablet_server::tablet::{Failure, TabletGroup};

use super::fixture::{Fixture, GROUP, TABLE, TABLET, TIMEOUT, until};
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
    let fixture = Fixture::start(1 << 20).await;
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

/// The server that leads the source dies while the cells are copied, then the one that leads the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_leaders_continue_a_move() {
    const ROWS: u32 = 400;
    const BYTES: usize = 20_000;
    let mut fixture = Fixture::start(1 << 20).await;
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
                let departs = |group: Arc<TabletGroup>| {
                    group.state_machine().applied_state().metadata.departures.contains_key(&tablet)
                };
                found = fixture.servers.iter().position(|server| {
                    let manager = server.as_ref().map(|server| server.tablet_manager());
                    manager.and_then(|manager| manager.group(dies)).is_some_and(|group| group.is_leader())
                });
                // A fast machine may have moved it before anyone looks.
                found.is_some() && (groups.into_iter().any(departs) || has_ended.get())
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
#[ignore = "measures how long a tablet of 64 MiB is not available"]
async fn the_time_of_a_move() {
    const ROWS: u32 = 6_400;
    let fixture = Fixture::start(1 << 20).await;
    for from in (0..ROWS).step_by(200) {
        write(fixture.server(0).cluster(), from, from + 200, 10_486).await;
    }
    let group = fixture.led_group(GROUP).await;
    group.tablet(TABLET).unwrap().split(Some(RowKey::new("z")), TIMEOUT).await.unwrap();
    let division = group.divide(group.descriptor().membership_log_id, TIMEOUT).await.unwrap();
    let (full, empty) = if division.moved.contains(&TABLET) {
        (division.right.group, division.left.group)
    } else {
        (division.left.group, division.right.group)
    };
    let clock = Clock::system();
    for (from, to) in [(full, empty), (empty, full), (full, empty)] {
        let started = clock.monotonic();
        move_to(&fixture, TABLET, from, to).await;
        println!("64 MiB moved in {:?}", clock.monotonic() - started);
    }
    fixture.stop().await;
}
