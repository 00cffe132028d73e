//! Publishers.

use std::time::Duration;

use ebla_mounttable_namespace::publisher::schedule::SLACK;
use ebla_mounttable_namespace::publisher::{PERIOD, PairState, Publisher, PublisherStatus};
use ebla_mounttable_namespace::{Caching, Namespace, Roots};
use ebla_mounttable_server::testing::FakeMountTable;
use ebla_mounttable_tree::{Reason, Target};
use futures::StreamExt;

use crate::secured;
use crate::world::{World, address, builder};

/// Waits for a status, at most 30 s.
async fn wait(publisher: &Publisher, is_so: impl FnMut(&PublisherStatus) -> bool) -> PublisherStatus {
    let mut status = publisher.status();
    let seen = tokio::time::timeout(Duration::from_secs(30), status.wait_for(is_so)).await;
    seen.unwrap().unwrap().clone()
}

fn all_mounted(count: usize) -> impl FnMut(&PublisherStatus) -> bool {
    move |status| status.pairs.len() == count && status.pairs.iter().all(|pair| pair.state == PairState::Mounted)
}

/// T104, and T105 on a whole publisher.
#[tokio::test]
async fn every_server_is_mounted_under_every_name_until_it_is_removed() {
    let world = World::new(&[]).await;
    world.names.set_caching(Caching::Off);
    let publisher = Publisher::start(&world.names, PERIOD);
    publisher.add_name("a/one", Target::Object).await;
    publisher.add_server(address("/h:1")).await;
    wait(&publisher, all_mounted(1)).await;
    assert_eq!(world.resolve("a/one").await.unwrap(), ["/h:1"]);
    publisher.add_server(address("/h:2")).await;
    wait(&publisher, all_mounted(2)).await;
    assert_eq!(world.resolve("a/one").await.unwrap(), ["/h:1", "/h:2"]);
    publisher.add_name("a/two", Target::Leaf).await;
    let status = wait(&publisher, all_mounted(4)).await;
    assert_eq!((status.names.len(), status.servers.len()), (2, 2));
    assert_eq!(world.names.resolve("a/two").await.unwrap().target, Target::Leaf);
    publisher.remove_name("a/one").await;
    wait(&publisher, all_mounted(2)).await;
    assert_eq!(world.resolve("a/one").await.unwrap_err().reason, Reason::NoSuchName);
    publisher.remove_server(address("/h:1")).await;
    wait(&publisher, all_mounted(1)).await;
    assert_eq!(world.resolve("a/two").await.unwrap(), ["/h:2"]);
    publisher.shutdown().await;
    assert_eq!(world.resolve("a/two").await.unwrap_err().reason, Reason::NoSuchName);
}

/// T106
#[tokio::test]
async fn without_roots_nothing_is_mounted_or_unmounted() {
    let names = Namespace::builder(secured::runtime()).build().unwrap();
    let publisher = Publisher::start(&names, PERIOD);
    publisher.add_name("a", Target::Object).await;
    publisher.add_server(address("/h:1")).await;
    let status = wait(&publisher, |status| status.pairs.first().is_some_and(|pair| pair.error.is_some())).await;
    assert_eq!(status.pairs[0].state, PairState::Mounting);
    assert_eq!(status.pairs[0].error.as_ref().unwrap().reason, Reason::NoMountTable);
    publisher.remove_name("a").await;
    wait(&publisher, |status| status.names.is_empty() && status.pairs.is_empty()).await;
    publisher.shutdown().await;
}

/// T107
#[tokio::test]
async fn mounts_of_a_killed_publisher_expire() {
    let world = World::new(&[]).await;
    let runtime = world.runtime.child("killed");
    let names = Namespace::builder(runtime.clone()).roots(world.names.roots()).identity("test").build().unwrap();
    world.names.set_caching(Caching::Off);
    let publisher = Publisher::start(&names, PERIOD);
    publisher.add_name("a", Target::Object).await;
    publisher.add_server(address("/h:1")).await;
    wait(&publisher, all_mounted(1)).await;
    runtime.tasks.stop(Duration::ZERO).await;
    world.runtime.clock.advance(SLACK - Duration::from_secs(1));
    assert_eq!(world.resolve("a").await.unwrap(), ["/h:1"]);
    world.runtime.clock.advance(PERIOD + Duration::from_secs(2));
    assert_eq!(world.resolve("a").await.unwrap_err().reason, Reason::NoSuchName);
}

/// T108, as far as it goes without a manual clock; the rest is in the tests of the schedule.
#[tokio::test]
async fn a_table_that_comes_back_empty_gets_its_mounts_again() {
    let world = World::new(&[]).await;
    let runtime = secured::runtime();
    let names = Namespace::builder(runtime.clone()).roots(world.names.roots()).identity("test").build().unwrap();
    let publisher = Publisher::start(&names, Duration::from_secs(1));
    publisher.add_name("a", Target::Object).await;
    publisher.add_server(address("/h:1")).await;
    wait(&publisher, all_mounted(1)).await;
    world.tables["root"].stop().await;
    let has_failed = |status: &PublisherStatus| status.pairs.iter().any(|pair| pair.error.is_some());
    wait(&publisher, has_failed).await;
    let again = FakeMountTable::listen(&world.runtime, world.tables["root"].address()).await.unwrap();
    let fresh = builder(&again, &world.runtime).build().unwrap();
    wait(&publisher, |status| !has_failed(status)).await;
    assert_eq!(fresh.resolve("a").await.unwrap().names(), ["/h:1"]);
    publisher.shutdown().await;
}

/// One of two servers of the table accepts connections and never replies.
#[tokio::test]
async fn a_frozen_server_of_the_table_does_not_delay_many_mounts() {
    let world = World::new(&[]).await;
    let mut frozen = world.runtime.net.listen("127.0.0.1:0").await.unwrap();
    let place = format!("/{}", frozen.local_addr());
    world.runtime.tasks.spawn_until_stopped("frozen", async move {
        let mut connections = Vec::new();
        while let Some(connection) = frozen.next().await {
            connections.push(connection);
        }
    });
    let roots = [place, world.at("root")];
    let names = world.builder("root").roots(Roots::new(roots.iter().map(String::as_str)).unwrap()).build().unwrap();
    let publisher = Publisher::start(&names, PERIOD);
    publisher.add_server(address("/h:1")).await;
    for number in 0..200 {
        publisher.add_name(&format!("a/{number}"), Target::Object).await;
    }
    // A call that waits for the frozen server takes 30 s.
    wait(&publisher, all_mounted(200)).await;
    assert_eq!(world.resolve("a/199").await.unwrap(), ["/h:1"]);
}
