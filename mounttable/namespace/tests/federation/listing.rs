//! Listings of patterns.

use std::sync::Arc;

use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::{Reason, Target};
use ebla_runtime::{Net, Runtime};
use futures::StreamExt;

use crate::secured;
use crate::world::{NOBODY, Noted, World, globbed};

/// Nested tables, and other servers.
async fn world() -> World {
    let world = World::new(&["mt1", "mt2", "mt3", "mt4", "bar"]).await;
    for table in ["mt1", "mt2", "mt3", "mt4"] {
        world.mount_table(table, table).await;
    }
    let server = world.ordinary().await;
    for joke in ["joke1", "joke2"] {
        world.mount(joke, &server, Target::Object).await.unwrap();
    }
    world.mount_table("mt4/foo/bar", "bar").await;
    world.mount("mt4/foo/baz", "/h:1", Target::Leaf).await.unwrap();
    world.mount("mt4/foo/bar/biz", "/h:1", Target::Leaf).await.unwrap();
    world
}

/// T089
#[tokio::test]
async fn patterns_are_followed_from_table_to_table() {
    let world = world().await;
    let root = world.at("root");
    let all = "joke1 joke2 mt1 mt2 mt3 mt4 mt4/foo mt4/foo/bar mt4/foo/bar/biz mt4/foo/baz";
    let everything = format!(" {all}");
    for (pattern, expected) in [
        ("*", "joke1 joke2 mt1 mt2 mt3 mt4"),
        ("x", ""),
        ("m*", "mt1 mt2 mt3 mt4"),
        ("mt[2,3]", "mt2 mt3"),
        ("*z", ""),
        ("joke1/*", ""),
        ("j?ke1/level1/*", ""),
        ("joke1/...", "joke1"),
        ("...", everything.as_str()),
        ("*/...", all),
        ("*/foo/*", "mt4/foo/bar mt4/foo/baz"),
        ("*/*/*z", "mt4/foo/baz"),
        ("*/f??/*z", "mt4/foo/baz"),
        ("mt4/foo/baz", "mt4/foo/baz"),
        ("mt4/foo/bar/*", "mt4/foo/bar/biz"),
    ] {
        assert_eq!(world.glob(pattern).await.join(" "), expected, "{pattern}");
        let rooted: Vec<_> = expected.split(' ').map(|name| format!("{root}/{name}")).collect();
        let rooted = if expected.is_empty() { String::new() } else { rooted.join(" ").replace("/ ", " ") };
        assert_eq!(world.glob(&format!("{root}/{pattern}")).await.join(" "), rooted, "{pattern}, rooted");
    }
    assert_eq!(world.names.glob("a//b").err().unwrap().reason, Reason::BadPattern);
}

/// T090: only servers that may have matches are asked.
#[tokio::test]
async fn a_server_that_cannot_have_more_is_not_asked() {
    let world = world().await;
    for (pattern, is_asked) in [
        ("mt4/foo/bar/glob", false),
        ("mt4/foo/bar/glob/...", true),
        ("mt4/foo/bar/glob/*", true),
        ("mt4/foo/bar/***", false),
        ("mt4/foo/bar/...", true),
        ("mt4/foo/bar/*", false),
        ("mt4/***/bar/***", false),
        ("mt4/*/bar/***", false),
    ] {
        let server = world.ordinary().await;
        world.names.unmount("mt4/foo/bar/glob", None).await.unwrap().all().unwrap();
        world.mount("mt4/foo/bar/glob", &server, Target::Object).await.unwrap();
        let noted = Noted::new();
        let net = Net::custom(Arc::new(noted.clone()));
        let net = secured::secured().map_or(net.clone(), |secured| net.with_tls(secured.tls));
        let runtime = Runtime { net, ..Runtime::system("test") };
        let roots = Roots::new([world.at("root").as_str()]).unwrap();
        let names = Namespace::builder(runtime).roots(roots).identity("test").build().unwrap();
        let listed = globbed(&names, pattern).await;
        assert!(
            listed.contains(&"mt4/foo/bar/glob".to_owned()) || pattern.ends_with("glob/*"),
            "{pattern}: {listed:?}"
        );
        assert_eq!(noted.has_connected(&server), is_asked, "{pattern}");
        assert!(noted.has_connected(&world.at("bar")), "{pattern}");
    }
}

/// T109, with real tables: each contains the next.
#[tokio::test]
async fn a_chain_of_tables_ends_where_the_pattern_does_or_after_ten() {
    let chain = ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11", "t12"];
    let world = World::new(&chain).await;
    let mut above = world.at("root");
    for table in chain {
        world.mount_table(&format!("{above}/x"), table).await;
        above = world.at(table);
    }
    let name = |depth: usize| vec!["x"; depth].join("/");
    let ten: Vec<_> = (0..=11).map(name).chain([format!("{}: DEPTH_EXCEEDED", name(11))]).collect();
    assert_eq!(world.glob("...").await, ten);
    assert_eq!(world.glob(&["*"; 12].join("/")).await, [name(12)]);
}

/// T100
#[tokio::test]
async fn a_leaf_is_reported_by_resolve_and_glob() {
    let world = World::new(&[]).await;
    world.mount("a", "/h:1", Target::Leaf).await.unwrap();
    assert_eq!(world.names.resolve("a").await.unwrap().target, Target::Leaf);
    let entries: Vec<_> = world.names.glob("*").unwrap().collect().await;
    assert_eq!(entries.into_iter().map(|entry| entry.unwrap().target).collect::<Vec<_>>(), [Target::Leaf]);
}

#[tokio::test]
async fn errors_of_parts_do_not_end_a_listing() {
    let world = World::new(&["mt1"]).await;
    world.mount_table("mt1", "mt1").await;
    world.mount("mt1/a", "/h:1", Target::Leaf).await.unwrap();
    world.mount("mt2", NOBODY, Target::MountTable).await.unwrap();
    assert_eq!(world.glob("*/*").await, ["mt1/a", "mt2: UNAVAILABLE"]);
}
