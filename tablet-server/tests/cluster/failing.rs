//! Servers fall and come back.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Check, Modify, RowWrite};
use ebla_model::key::RowKey;
use ebla_model::rmw::{Operation, Rule};
use ebla_proto::convert;
use ebla_runtime::Tasks;

use super::house::{House, LIVE, TABLE, TABLET, forget_logs, until};
use super::rows::{add, expect_rows, increment, key, scan, set, sum, token, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_leader_is_replaced_and_comes_back() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 200, 100).await;
    let lost = house.leader(TABLET).await;
    house.servers[lost].take().unwrap().abort().await;
    let other = (lost + 1) % 3;
    let cluster = house.server(other).cluster().clone();
    write(&cluster, 200, 300, 100).await;
    expect_rows(&scan(&cluster).await, 300, 100);
    assert_eq!(increment(&cluster, &RowKey::new("counter")).await, 1);
    // The server comes back with its folder and catches up.
    let back = house.open(lost, 1 << 20).await;
    let ahead = house.server(other).hosted().tablet(TABLET).unwrap().report().applied;
    until("the lost replica caught up", || {
        back.hosted().tablet(TABLET).is_some_and(|tablet| tablet.report().applied >= ahead)
    })
    .await;
    house.servers[lost] = Some(back);
    write(house.server(lost).cluster(), 300, 320, 100).await;
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_whole_house_that_stops_finds_everything_again() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 300, 100).await;
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    tablet.split(Some(key(150)), LIVE).await.unwrap();
    write(house.server(1).cluster(), 0, 300, 120).await;
    drop(tablet);
    for server in &mut house.servers {
        server.take().unwrap().abort().await;
    }
    for at in 0..3 {
        let server = house.open(at, 1 << 20).await;
        house.servers[at] = Some(server);
    }
    for at in 0..3 {
        expect_rows(&scan(house.server(at).cluster()).await, 300, 120);
    }
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_missed_a_split_and_the_log_gets_both_halves() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 100, 100).await;
    let leader = house.leader(TABLET).await;
    let away = (leader + 1) % 3;
    house.servers[away].take().unwrap().abort().await;
    let cluster = house.server(leader).cluster().clone();
    write(&cluster, 0, 200, 100).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    let (_, right) = tablet.split(Some(key(120)), LIVE).await.unwrap();
    write(&cluster, 0, 300, 100).await;
    forget_logs(&house).await;
    write(&cluster, 300, 320, 100).await;

    let back = house.open(away, 1 << 20).await;
    for id in [TABLET, right.tablet] {
        let at = house.leader(id).await;
        let ahead = house.server(at).hosted().tablet(id).unwrap().report();
        until("the replica caught up", || {
            let report = back.hosted().tablet(id).map(|tablet| tablet.report());
            report.is_some_and(|report| report.applied >= ahead.applied && report.descriptor == ahead.descriptor)
        })
        .await;
    }
    // It can carry on alone with one of the others.
    house.servers[away] = Some(back);
    house.servers[leader].take().unwrap().abort().await;
    let cluster = house.server(away).cluster();
    expect_rows(&scan(cluster).await, 320, 100);
    write(cluster, 320, 330, 100).await;
    house.stop().await;
}

/// Each server has a session of its own: only the token can tell that a write is the same again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_known_to_every_front_after_a_split_and_a_failover() {
    let mut house = House::start(1 << 20).await;
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
        let cluster = house.server(0).cluster();
        let deadline = || cluster.deadline(LIVE);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap());
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        cluster.modify(TABLE, &modify, deadline()).await.unwrap()
    };
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    tablet.split(Some(key(200)), LIVE).await.unwrap();
    drop(tablet);
    let leader = house.leader(TABLET).await;
    house.servers[leader].take().unwrap().abort().await;
    for at in (0..3).filter(|at| *at != leader) {
        let cluster = house.server(at).cluster();
        let deadline = || cluster.deadline(LIVE);
        assert_eq!(cluster.modify(TABLE, &modify, deadline()).await.unwrap(), first);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap(), "the row has cells by now");
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        assert_eq!(sum(cluster, 100).await, 7);
    }
    let cluster = house.server((leader + 1) % 3).cluster();
    let other = Modify { token: token("another increment"), ..modify };
    assert_ne!(cluster.modify(TABLE, &other, cluster.deadline(LIVE)).await.unwrap(), first);
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_applied_twice_while_leaders_fall_and_tablets_split() {
    let mut house = House::start(1 << 20).await;
    let tasks = Tasks::new("load");
    let (sender, mut done) = tokio::sync::mpsc::channel(16);
    // Server 0 stays: the writers' way in. Each has a counter of its own, and one that all share.
    for writer in 0..6_u32 {
        let (cluster, sender) = (house.server(0).cluster().clone(), sender.clone());
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
        tokio::time::timeout(LIVE, async {
            loop {
                // The tablet that holds the key now, wherever it is led.
                let key = RowKey::new(at);
                let found =
                    house.servers.iter().flatten().flat_map(|server| server.hosted().tablets()).find(|tablet| {
                        tablet.table() == TABLE && tablet.leads() && tablet.descriptor().range.contains(key.as_bytes())
                    });
                match found {
                    Some(tablet) if tablet.split(Some(key), LIVE).await.is_ok() => break,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        })
        .await
        .unwrap();
        let fallen = 1 + round % 2;
        house.servers[fallen].take().unwrap().abort().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let back = house.open(fallen, 1 << 20).await;
        house.servers[fallen] = Some(back);
    }
    let mut ended = 0;
    while done.recv().await.is_some() {
        ended += 1;
    }
    assert_eq!(ended, 6);
    let cluster = house.server(0).cluster();
    assert_eq!(increment(cluster, &RowKey::new("row-shared")).await, 361);
    assert_eq!(scan(cluster).await.len(), 6 * 60 + 7);
    house.stop().await;
}
