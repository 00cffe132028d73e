//! Servers fail and restart.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Check, Modify, RowWrite};
use ebla_model::key::RowKey;
use ebla_model::rmw::{Operation, Rule};
use ebla_proto::convert;
use ebla_runtime::Tasks;

use super::fixture::{Fixture, TABLE, TABLET, TIMEOUT, purge_logs, until};
use super::rows::{add, expect_rows, increment, key, scan, set, sum, token, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_leader_is_replaced_and_rejoins() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 200, 100).await;
    let lost = fixture.leader(TABLET).await;
    fixture.servers[lost].take().unwrap().abort().await;
    let other = (lost + 1) % 3;
    let cluster = fixture.server(other).cluster().clone();
    write(&cluster, 200, 300, 100).await;
    expect_rows(&scan(&cluster).await, 300, 100);
    assert_eq!(increment(&cluster, &RowKey::new("counter")).await, 1);
    // The server restarts with its folder and catches up.
    let back = fixture.open(lost, 1 << 20).await;
    let ahead = fixture.server(other).tablet_manager().tablet(TABLET).unwrap().report().applied;
    until("the lost replica caught up", || {
        back.tablet_manager().tablet(TABLET).is_some_and(|tablet| tablet.report().applied >= ahead)
    })
    .await;
    fixture.servers[lost] = Some(back);
    write(fixture.server(lost).cluster(), 300, 320, 100).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_rows_survive_a_restart_of_all_servers() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 300, 100).await;
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    tablet.split(Some(key(150)), TIMEOUT).await.unwrap();
    write(fixture.server(1).cluster(), 0, 300, 120).await;
    drop(tablet);
    for server in &mut fixture.servers {
        server.take().unwrap().abort().await;
    }
    for at in 0..3 {
        let server = fixture.open(at, 1 << 20).await;
        fixture.servers[at] = Some(server);
    }
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 300, 120);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_missed_a_split_and_the_purged_log_gets_both_halves() {
    let mut fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 100, 100).await;
    let leader = fixture.leader(TABLET).await;
    let away = (leader + 1) % 3;
    fixture.servers[away].take().unwrap().abort().await;
    let cluster = fixture.server(leader).cluster().clone();
    write(&cluster, 0, 200, 100).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    let (_, right) = tablet.split(Some(key(120)), TIMEOUT).await.unwrap();
    write(&cluster, 0, 300, 100).await;
    purge_logs(&fixture).await;
    write(&cluster, 300, 320, 100).await;

    let back = fixture.open(away, 1 << 20).await;
    for id in [TABLET, right.tablet] {
        let at = fixture.leader(id).await;
        let ahead = fixture.server(at).tablet_manager().tablet(id).unwrap().report();
        until("the replica caught up", || {
            let report = back.tablet_manager().tablet(id).map(|tablet| tablet.report());
            report.is_some_and(|report| report.applied >= ahead.applied && report.descriptor == ahead.descriptor)
        })
        .await;
    }
    // It can continue with one of the others.
    fixture.servers[away] = Some(back);
    fixture.servers[leader].take().unwrap().abort().await;
    let cluster = fixture.server(away).cluster();
    expect_rows(&scan(cluster).await, 320, 100);
    write(cluster, 320, 330, 100).await;
    fixture.stop().await;
}

/// Each server has its own session: only the token identifies a repeated write.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_known_to_every_front_after_a_split_and_a_failover() {
    let mut fixture = Fixture::start(1 << 20).await;
    let rule =
        Rule { family: "cf".to_owned(), qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    let modify = Modify { row: key(300), rules: vec![convert::rule_to_bytes(&rule)], token: token("an increment") };
    let added = RowWrite { row: key(100), mutations: vec![add(7)], token: token("an addition") };
    let check = Check {
        row: key(300),
        predicate: None,
        then: vec![set("checked", "again")],
        otherwise: vec![set("checked", "once")],
        token: token("a condition"),
    };
    let first = {
        let cluster = fixture.server(0).cluster();
        let deadline = || cluster.deadline(TIMEOUT);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap());
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        cluster.modify(TABLE, &modify, deadline()).await.unwrap()
    };
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    tablet.split(Some(key(200)), TIMEOUT).await.unwrap();
    drop(tablet);
    let leader = fixture.leader(TABLET).await;
    fixture.servers[leader].take().unwrap().abort().await;
    for at in (0..3).filter(|at| *at != leader) {
        let cluster = fixture.server(at).cluster();
        let deadline = || cluster.deadline(TIMEOUT);
        assert_eq!(cluster.modify(TABLE, &modify, deadline()).await.unwrap(), first);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap(), "the row has cells by now");
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        assert_eq!(sum(cluster, 100).await, 7);
    }
    let cluster = fixture.server((leader + 1) % 3).cluster();
    let other = Modify { token: token("another increment"), ..modify };
    assert_ne!(cluster.modify(TABLE, &other, cluster.deadline(TIMEOUT)).await.unwrap(), first);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_write_is_lost_or_applied_twice_during_failovers_and_splits() {
    let mut fixture = Fixture::start(1 << 20).await;
    let tasks = Tasks::new("load");
    let (sender, mut done) = tokio::sync::mpsc::channel(16);
    // Server 0 keeps running: the writers use it. Each has its own counter, and all share one.
    for writer in 0..6_u32 {
        let (cluster, sender) = (fixture.server(0).cluster().clone(), sender.clone());
        tasks.spawn("writer", async move {
            for n in 1..=60 {
                let own = increment(&cluster, &RowKey::new(format!("row-{writer}"))).await;
                assert_eq!(own, n, "writer {writer}");
                increment(&cluster, &RowKey::new("row-shared")).await;
                let row = 1000 * (writer + 1) + u32::try_from(n).unwrap();
                write(&cluster, row, row + 1, 50).await;
            }
            sender.send(writer).await.unwrap();
        });
    }
    drop(sender);
    for (round, at) in [(0, "row-3"), (1, "row-1"), (2, "row-002000"), (3, "row-004000")] {
        tokio::time::timeout(TIMEOUT, async {
            loop {
                // The tablet that holds the key now, wherever it is led.
                let key = RowKey::new(at);
                let found = fixture.servers.iter().flatten().flat_map(|server| server.tablet_manager().tablets()).find(
                    |tablet| {
                        tablet.table() == TABLE
                            && tablet.is_leader()
                            && tablet.descriptor().is_ok_and(|now| now.range.contains(key.as_bytes()))
                    },
                );
                match found {
                    Some(tablet) if tablet.split(Some(key), TIMEOUT).await.is_ok() => break,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        })
        .await
        .unwrap();
        let fallen = 1 + round % 2;
        fixture.servers[fallen].take().unwrap().abort().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let back = fixture.open(fallen, 1 << 20).await;
        fixture.servers[fallen] = Some(back);
    }
    let mut ended = 0;
    while done.recv().await.is_some() {
        ended += 1;
    }
    assert_eq!(ended, 6);
    let cluster = fixture.server(0).cluster();
    assert_eq!(increment(cluster, &RowKey::new("row-shared")).await, 361);
    assert_eq!(scan(cluster).await.len(), 6 * 60 + 7);
    fixture.stop().await;
}
