//! Watched names, while servers and tables come and go.

use std::time::Duration;

use ebla_mounttable_namespace::Roots;
use ebla_mounttable_namespace::watch::WatchState;
use ebla_mounttable_server::testing::FakeMountTable;
use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{Error, Permissions, Reason, Target};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::world::{World, address};

/// Long enough for a table to notice a change, and for a watcher to reconnect.
const SOON: Duration = Duration::from_secs(20);

/// The next reported names; empty: the name does not resolve.
async fn next(states: &mut BoxStream<'static, Result<WatchState, Error>>) -> Result<Vec<String>, Reason> {
    let state = tokio::time::timeout(SOON, states.next()).await.unwrap().unwrap();
    let mut names = state.map(|it| it.map(|entry| entry.names()).unwrap_or_default()).map_err(|it| it.reason)?;
    names.sort();
    Ok(names)
}

/// T120
#[tokio::test]
async fn server_changes_are_reported_and_refreshes_are_not() {
    let world = World::new(&[]).await;
    let mut states = world.names.watch("a/web");
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
    world.mount("a/web", "/h:1", Target::Object).await.unwrap();
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"]);
    world.mount("a/web", "/h:1", Target::Object).await.unwrap();
    world.mount("a/web", "/h:2", Target::Object).await.unwrap();
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1", "/h:2"]);
    world.names.unmount("a/web", Some(&address("/h:1"))).await.unwrap().all().unwrap();
    assert_eq!(next(&mut states).await.unwrap(), ["/h:2"]);
    world.names.delete("a", Subtree::Delete).await.unwrap().all().unwrap();
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
}

/// T120
#[tokio::test]
async fn a_watcher_without_rights_gets_a_refusal_only() {
    let world = World::new(&[]).await;
    world.mount("a/web", "/h:1", Target::Object).await.unwrap();
    let mut states = world.names.watch("a/web");
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"]);
    let root = world.builder("root").identity("server").build().unwrap();
    let others = Permissions::from_json(r#"{"Admin":{"In":["others"]}}"#).unwrap();
    root.set_permissions("a", &others, None).await.unwrap();
    assert_eq!(next(&mut states).await.unwrap_err(), Reason::NoAccess);
    assert!(states.next().await.is_none());
}

/// A watcher reconnects to a table that was unavailable, and does not repeat an unchanged state.
#[tokio::test]
async fn a_watch_resumes_after_an_outage_of_its_table() {
    let mut world = World::new(&["lower"]).await;
    world.mount_table("to/lower", "lower").await;
    world.mount("to/lower/web", "/h:1", Target::Object).await.unwrap();
    let mut states = world.names.watch("to/lower/web");
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"], "where the name is held");
    let lower = world.tables.remove("lower").unwrap();
    let place = lower.address().to_owned();
    lower.stop().await;
    // The in-memory table has lost its contents.
    let again = FakeMountTable::listen(&world.runtime, &place).await.unwrap();
    world.tables.insert("lower", again);
    world.mount("to/lower/web", "/h:1", Target::Object).await.unwrap();
    world.mount("to/lower/web", "/h:2", Target::Object).await.unwrap();
    loop {
        match next(&mut states).await.unwrap().as_slice() {
            [one, two] => break assert_eq!((one.as_str(), two.as_str()), ("/h:1", "/h:2")),
            // A poll may happen between any two of these.
            fewer => assert!(fewer.is_empty() || *fewer == ["/h:1"], "{fewer:?}"),
        }
    }
}

/// A name that comes to lead into another table is watched there.
#[tokio::test]
async fn a_table_that_is_mounted_on_the_way_is_followed() {
    let world = World::new(&["lower"]).await;
    let mut states = world.names.watch("to/lower/web");
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
    let roots = Roots::new([world.at("lower").as_str()]).unwrap();
    let inside = world.builder("lower").roots(roots).build().unwrap();
    let options = ebla_mounttable_namespace::MountOptions::new(crate::world::HOUR);
    inside.mount("web", &address("/h:1"), options).await.unwrap().all().unwrap();
    world.mount_table("to/lower", "lower").await;
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"]);
    inside.unmount("web", None).await.unwrap().all().unwrap();
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
}

/// A server that was mounted as a table and is not one: the name resolves to it.
#[tokio::test]
async fn a_server_that_is_not_a_table_is_reported() {
    let world = World::new(&[]).await;
    let ordinary = world.ordinary().await;
    world.mount("to", &ordinary, Target::MountTable).await.unwrap();
    let mut states = world.names.watch("to/there");
    assert_eq!(next(&mut states).await.unwrap(), [format!("{ordinary}/there")]);
}

#[tokio::test]
async fn an_unreachable_first_server_is_an_error() {
    let world = World::new(&[]).await;
    world.names.set_roots(Roots::new([crate::world::NOBODY]).unwrap());
    assert_eq!(next(&mut world.names.watch("a")).await.unwrap_err(), Reason::Unavailable);
    world.names.set_roots(Roots::default());
    assert_eq!(next(&mut world.names.watch("a")).await.unwrap_err(), Reason::NoMountTable);
}
