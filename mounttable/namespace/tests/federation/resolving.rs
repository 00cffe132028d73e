//! Resolution of names.

use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::{Reason, Target};

use crate::secured;
use crate::world::{NOBODY, World};

const TABLES: [&str; 5] = ["mt1", "mt2", "mt3", "mt4", "mt5"];

/// T085: the table of a name is found, whether or not the name exists.
#[tokio::test]
async fn a_name_is_held_by_the_last_table_on_its_way() {
    let world = World::new(&TABLES).await;
    for table in TABLES {
        world.mount_table(table, table).await;
    }
    for joke in ["joke1", "joke2", "joke3"] {
        world.mount(joke, "/h:1", Target::Object).await.unwrap();
    }
    let root = world.at("root");
    assert_eq!(world.table_of("").await, std::slice::from_ref(&root));
    for table in TABLES {
        assert_eq!(world.table_of(table).await, [format!("{root}/{table}")]);
        assert_eq!(world.table_of(&format!("{table}/bar")).await, [format!("{}/bar", world.at(table))]);
        assert_eq!(world.names.shallow_resolve(table).await.unwrap().names(), [world.at(table)]);
    }
    assert_eq!(world.names.shallow_resolve("joke1").await.unwrap().names(), ["/h:1"]);
    assert_eq!(world.table_of("new").await, [format!("{root}/new")]);
}

/// T086: servers mounted under one name are equivalent, whatever its spelling.
#[tokio::test]
async fn all_servers_of_a_name_are_returned() {
    let world = World::new(&TABLES).await;
    world.mount_table("mt2", "mt2").await;
    world.mount_table("mt2/a", "mt3").await;
    world.mount_table("mt2", "mt4").await;
    world.mount_table("mt2//", "mt5").await;
    let mut tables = ["mt2", "mt4", "mt5"].map(|table| world.at(table));
    tables.sort();
    assert_eq!(world.resolve("mt2").await.unwrap(), tables);
    assert_eq!(world.table_of("mt2/a").await, tables.map(|table| format!("{table}/a")));
}

/// T087: nested tables, the lower ones mounted by rooted names.
#[tokio::test]
async fn a_name_leads_through_three_tables() {
    let world = World::new(&["mt4", "foo", "bar"]).await;
    world.mount_table("mt4", "mt4").await;
    world.mount_table(&format!("{}/foo", world.at("mt4")), "foo").await;
    world.mount_table("mt4/foo/bar", "bar").await;
    world.mount(&format!("{}/baz", world.at("bar")), "/h:1/in", Target::Object).await.unwrap();
    assert_eq!(world.resolve("mt4/foo/bar/baz/x").await.unwrap(), ["/h:1/in/x"]);
    assert_eq!(world.resolve(&format!("{}/bar/baz", world.at("foo"))).await.unwrap(), ["/h:1/in"]);
    let trace = world.names.trace("mt4/foo/bar/baz/x/y").await;
    assert_eq!(trace.hops.len(), 4);
    let absent = world.resolve("mt4/foo/bar/other").await.unwrap_err();
    assert_eq!(absent.reason, Reason::NoSuchName);
}

/// T088: resolution ends at a server that is not a mount table, however it was mounted.
#[tokio::test]
async fn an_ordinary_server_gets_the_rest_of_the_name() {
    let world = World::new(&["mt4"]).await;
    let server = world.ordinary().await;
    world.mount_table("mt4", "mt4").await;
    world.mount("mt4/joke1", &server, Target::Object).await.unwrap();
    world.mount("mt4/joke2", &server, Target::MountTable).await.unwrap();
    for joke in ["mt4/joke1", "mt4/joke2"] {
        let below = format!("{joke}/garbage");
        assert_eq!(world.resolve(joke).await.unwrap(), std::slice::from_ref(&server));
        assert_eq!(world.resolve(&below).await.unwrap(), [format!("{server}/garbage")]);
        let held = below.replacen("mt4", &world.at("mt4"), 1);
        assert_eq!(world.table_of(&below).await, [held], "{joke}");
    }
    assert_eq!(world.resolve(&format!("{server}/a")).await.unwrap(), [format!("{server}/a")]);
}

/// T091: cycles are legal and bounded. The name in the second case is short enough for a table.
#[tokio::test]
async fn a_circle_is_followed_for_32_steps() {
    let world = World::new(&["c1"]).await;
    for name in ["c1", "c1/c2", "c1/c3/c4"] {
        world.mount_table(name, "c1").await;
    }
    assert_eq!(world.resolve("c1/c3/c4/c3/c4").await.unwrap(), [world.at("c1")]);
    let endless = format!("c1{}", "/c2".repeat(41));
    assert_eq!(world.resolve(&endless).await.unwrap_err().reason, Reason::DepthExceeded);
    assert_eq!(world.glob("c1/...").await, ["c1", "c1/c2", "c1/c3", "c1/c3/c4"]);
}

/// T092: without roots only rooted names resolve.
#[tokio::test]
async fn roots_may_be_none_and_may_change() {
    let world = World::new(&["other"]).await;
    world.mount("a", "/h:1", Target::Object).await.unwrap();
    world.names.set_roots(Roots::default());
    assert_eq!(world.resolve("a").await.unwrap_err().reason, Reason::NoSuchName);
    let refused = world.names.resolve_to_mount_table("a").await.unwrap_err();
    assert_eq!(refused.reason, Reason::NoMountTable);
    assert_eq!(world.mount("a", "/h:1", Target::Object).await.unwrap_err().reason, Reason::NoMountTable);
    assert_eq!(world.resolve(&format!("{}/a", world.at("root"))).await.unwrap(), ["/h:1"]);
    world.names.set_roots(Roots::new([world.at("other").as_str()]).unwrap());
    world.mount("a", "/h:2", Target::Object).await.unwrap();
    assert_eq!(world.resolve("a").await.unwrap(), ["/h:2"]);
    let hint = world.resolve("h:80/a").await.unwrap_err().message;
    assert!(hint.ends_with("was /h:80/a meant?"), "{hint}");
}

/// An unavailable server among equivalent ones causes no error.
#[tokio::test]
async fn dead_roots_are_skipped() {
    let world = World::new(&[]).await;
    world.mount("a", "/h:1", Target::Object).await.unwrap();
    let root = world.at("root");
    let builder = || Namespace::builder(secured::runtime()).identity("test");
    let names = builder().roots(Roots::new([NOBODY, root.as_str()]).unwrap()).build().unwrap();
    assert_eq!(names.resolve("a").await.unwrap().names(), ["/h:1"]);
    let names = builder().roots(Roots::new([NOBODY]).unwrap()).build().unwrap();
    assert_eq!(names.resolve("a").await.unwrap_err().reason, Reason::Unavailable);
}
