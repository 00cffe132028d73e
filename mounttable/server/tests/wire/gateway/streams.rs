//! Listings as lines, watches as events.

use ebla_mounttable_tree::{Permissions, Reason};
use futures::StreamExt;
use http::{StatusCode, header};
use serde_json::{Value, json};

use crate::gateway::client::{Events, ask, begin, request};
use crate::world::World;

async fn glob(world: &World, caller: &str, path: &str) -> Vec<Value> {
    let answer = ask(world, caller, "GET", path, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/jsonl");
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_listing_is_sent_line_by_line() {
    let world = World::start().await;
    for name in ["open/a", "open/b", "open/c/d", "secret/e"] {
        world.mount("bob", name, "h:1", 0).await;
    }
    world.write_permissions("bob", "secret", r#"{"Admin":{"In":["bob"]}}"#).await;
    let server = json!({"address": "h:1", "serves_mount_table": false, "is_leaf": false});
    let entry = |name: &str| json!({"entry": {"name": name, "servers": [server], "has_children": false}});
    let directory = |name: &str| json!({"entry": {"name": name, "servers": [], "has_children": true}});
    let summary = |entries: u64, omitted: bool, truncated: bool| {
        let counts = json!({"entries": entries, "omitted": omitted, "truncated": truncated});
        json!({ "summary": counts })
    };
    let below = glob(&world, "alice", "/v1/names/open?glob=*").await;
    assert_eq!(below, [entry("a"), entry("b"), directory("c"), summary(3, false, false)]);
    let two = glob(&world, "alice", "/v1/names/open?glob=*&limit=2").await;
    assert_eq!(two, [entry("a"), entry("b"), summary(2, false, true)]);
    let three = glob(&world, "alice", "/v1/names/open?glob=*&limit=3").await;
    assert_eq!(three.last(), Some(&summary(3, false, false)), "as many as there are");
    assert_eq!(glob(&world, "alice", "/v1/names/open?glob=x*").await, [summary(0, false, false)]);
    let hidden = glob(&world, "alice", "/v1/names/?glob=*/e").await;
    assert_eq!((&hidden[0]["error"]["reason"], &hidden[1]), (&"MATCHES_OMITTED".into(), &summary(0, true, false)));
}

/// Lines are sent as matches are found; closing the response ends the listing.
#[tokio::test]
async fn a_long_listing_comes_in_pieces() {
    let world = World::start().await;
    world.unlimit("server").await;
    world.write_permissions("server", "d", &Permissions::open().to_json()).await;
    for at in 0..100 {
        world.mount("server", &format!("d/{at:03}"), "h:1", 60).await;
    }
    let answer = begin(&world, request("bob", "GET", "/v1/names/d?glob=*", "")).await;
    assert_eq!(answer.headers().get(header::CONTENT_LENGTH), None, "the length is not known in advance");
    let mut chunks = answer.into_body().into_data_stream();
    assert!(chunks.next().await.unwrap().unwrap().starts_with(b"{\"entry\""));
    drop(chunks);
    assert_eq!(glob(&world, "bob", "/v1/names/d?glob=*").await.len(), 101);
    world.server.stop().await;
}

/// T120
#[tokio::test]
async fn a_watcher_hears_what_happens_to_a_name() {
    let world = World::start().await;
    let mut events = Events::of(&world, "alice", "/v1/names/a/b?watch=1").await;
    assert_eq!(events.next().await, Some(("snapshot".to_owned(), json!({}))));
    world.mount("bob", "a/b", "h:1", 60).await;
    let (name, change) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &change["added"][0]["address"], &change["gone"]),
        ("change", &"h:1".into(), &false.into())
    );
    // This watcher does not get refreshes; the other one does.
    let mut refreshes = Events::of(&world, "alice", "/v1/names/a/b?watch=1&refreshes=1").await;
    assert_eq!(refreshes.next().await.unwrap().1["entry"]["servers"][0]["address"], "h:1");
    world.mount("bob", "a/b", "h:1", 600).await;
    assert_eq!(refreshes.next().await.unwrap().1["updated"][0]["deadline_micros"], world.micros_in(600));
    world.write_permissions("server", "a", r#"{"Admin":{"In":["bob"]}}"#).await;
    let (name, refusal) = events.next().await.unwrap();
    assert_eq!((name.as_str(), refusal["reason"].as_str()), ("refusal", Some(Reason::NoAccess.name())));
    assert_eq!(events.next().await, None, "and that is the end");
}
