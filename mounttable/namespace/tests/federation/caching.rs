//! The cache of a namespace.

use std::time::Duration;

use ebla_mounttable_namespace::{Caching, Hop, MountOptions, Source};
use ebla_mounttable_tree::{Reason, Target};

use crate::world::{World, address};

fn sources(hops: &[Hop]) -> Vec<Source> {
    hops.iter().map(|hop| hop.source).collect()
}

/// T098, and T097 on a whole namespace.
#[tokio::test]
async fn a_second_resolution_is_answered_from_the_cache() {
    let world = World::new(&["mt"]).await;
    world.mount_table("mt", "mt").await;
    world.mount("mt/a", "/h:1", Target::Leaf).await.unwrap();
    let first = world.names.trace("mt/a").await;
    let second = world.names.trace("mt/a").await;
    assert_eq!(sources(&second.hops), [Source::Cache; 2]);
    let (first, second) = (first.outcome.unwrap(), second.outcome.unwrap());
    assert_eq!((first.target, &first), (Target::Leaf, &second));
    assert!(world.names.flush("mt/a"));
    assert!(!world.names.flush("mt/a"));
    assert_eq!(sources(&world.names.trace("mt/a").await.hops), [Source::Table; 2]);
    world.names.set_caching(Caching::Off);
    for _ in 0..2 {
        assert_eq!(sources(&world.names.trace("mt/a").await.hops), [Source::Table; 2]);
    }
}

#[tokio::test]
async fn a_mount_is_visible_at_once_to_its_caller() {
    let world = World::new(&[]).await;
    assert_eq!(world.resolve("a/b").await.unwrap_err().reason, Reason::NoSuchName);
    let again = world.names.trace("a/b").await;
    assert_eq!(sources(&again.hops), [Source::Cache], "absence is remembered too");
    world.mount("a", "/h:1", Target::Object).await.unwrap();
    assert_eq!(world.resolve("a/b").await.unwrap(), ["/h:1/b"]);
    world.names.unmount("a", None).await.unwrap().all().unwrap();
    assert_eq!(world.resolve("a/b").await.unwrap_err().reason, Reason::NoSuchName);
}

#[tokio::test]
async fn expired_servers_are_served_while_the_table_is_unavailable() {
    let world = World::new(&[]).await;
    let options = MountOptions::new(Duration::from_secs(60));
    world.names.mount("a", &address("/h:1"), options).await.unwrap().all().unwrap();
    assert_eq!(world.resolve("a").await.unwrap(), ["/h:1"]);
    world.runtime.clock.advance(Duration::from_secs(61));
    world.tables["root"].stop().await;
    let stale = world.names.trace("a").await;
    assert_eq!(sources(&stale.hops), [Source::Stale]);
    assert_eq!(stale.outcome.unwrap().names(), ["/h:1"]);
    world.runtime.clock.advance(Duration::from_secs(300));
    assert_eq!(world.resolve("a").await.unwrap_err().reason, Reason::Unavailable);
}
