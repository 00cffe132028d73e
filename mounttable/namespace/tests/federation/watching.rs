//! Names that are watched while servers come and go, and tables too.

use std::time::Duration;

use ebla_mounttable::table::Subtree;
use ebla_mounttable::{Error, Permissions, Reason, Target};
use ebla_mounttable_namespace::Roots;
use ebla_mounttable_namespace::testing::FakeMountTable;
use ebla_mounttable_namespace::watch::State;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::world::{World, address};

/// Longer than a table takes to notice, and a watcher to come back to one that was away.
const SOON: Duration = Duration::from_secs(20);

/// The names that are told next; none is nowhere.
async fn next(states: &mut BoxStream<'static, Result<State, Error>>) -> Result<Vec<String>, Reason> {
    let told = tokio::time::timeout(SOON, states.next()).await.unwrap().unwrap();
    let mut names = told.map(|state| state.map(|entry| entry.names()).unwrap_or_default()).map_err(|it| it.reason)?;
    names.sort();
    Ok(names)
}

/// T120
#[tokio::test]
async fn servers_that_come_and_go_are_told_and_refreshes_are_not() {
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
async fn who_may_not_know_any_more_is_told_that_and_nothing_else() {
    let world = World::new(&[]).await;
    world.mount("a/web", "/h:1", Target::Object).await.unwrap();
    let mut states = world.names.watch("a/web");
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"]);
    let root = world.tables["root"].namespace().unwrap().identity("server").build().unwrap();
    let others = Permissions::from_json(r#"{"Admin":{"In":["others"]}}"#).unwrap();
    root.set_permissions("a", &others, None).await.unwrap();
    assert_eq!(next(&mut states).await.unwrap_err(), Reason::NoAccess);
    assert!(states.next().await.is_none());
}

/// A table that ends is asked for again until it is back, and what has not changed meanwhile is not told twice.
#[tokio::test]
async fn a_table_that_was_away_is_watched_again() {
    let mut world = World::new(&["lower"]).await;
    world.mount_table("to/lower", "lower").await;
    world.mount("to/lower/web", "/h:1", Target::Object).await.unwrap();
    let mut states = world.names.watch("to/lower/web");
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"], "where the name is held");
    let lower = world.tables.remove("lower").unwrap();
    let place = lower.address().to_owned();
    lower.stop().await;
    // What it knew is forgotten, as that of any server in memory.
    let again = FakeMountTable::listen(&world.runtime, &place).await.unwrap();
    world.tables.insert("lower", again);
    world.mount("to/lower/web", "/h:1", Target::Object).await.unwrap();
    world.mount("to/lower/web", "/h:2", Target::Object).await.unwrap();
    loop {
        match next(&mut states).await.unwrap().as_slice() {
            [one, two] => break assert_eq!((one.as_str(), two.as_str()), ("/h:1", "/h:2")),
            // It may look between any two of these.
            fewer => assert!(fewer.is_empty() || *fewer == ["/h:1"], "{fewer:?}"),
        }
    }
}

/// A name that begins to lead into another table is watched there from then on.
#[tokio::test]
async fn a_table_that_is_mounted_on_the_way_is_followed() {
    let world = World::new(&["lower"]).await;
    let mut states = world.names.watch("to/lower/web");
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
    let roots = Roots::new([world.at("lower").as_str()]).unwrap();
    let inside = world.tables["lower"].namespace().unwrap().roots(roots).build().unwrap();
    let options = ebla_mounttable_namespace::MountOptions::new(crate::world::HOUR);
    inside.mount("web", &address("/h:1"), options).await.unwrap().all().unwrap();
    world.mount_table("to/lower", "lower").await;
    assert_eq!(next(&mut states).await.unwrap(), ["/h:1"]);
    inside.unmount("web", None).await.unwrap().all().unwrap();
    assert_eq!(next(&mut states).await.unwrap(), [""; 0]);
}

/// A server that was mounted as a table and is none: the name leads there all the same.
#[tokio::test]
async fn a_server_that_is_no_table_after_all_is_told() {
    let world = World::new(&[]).await;
    let ordinary = world.ordinary().await;
    world.mount("to", &ordinary, Target::MountTable).await.unwrap();
    let mut states = world.names.watch("to/there");
    assert_eq!(next(&mut states).await.unwrap(), [format!("{ordinary}/there")]);
}

#[tokio::test]
async fn where_nobody_answers_at_first_that_is_said() {
    let world = World::new(&[]).await;
    world.names.set_roots(Roots::new([crate::world::NOBODY]).unwrap());
    assert_eq!(next(&mut world.names.watch("a")).await.unwrap_err(), Reason::Unavailable);
    world.names.set_roots(Roots::default());
    assert_eq!(next(&mut world.names.watch("a")).await.unwrap_err(), Reason::NoMountTable);
}
