//! Resolving, mounting, deleting.

use std::time::Duration;

use ebla_mounttable_tree::Reason;
use ebla_proto::mounttable as wire;
use serde_json::json;

use crate::gateway::client::ask;
use crate::world::{World, by, ok};

#[tokio::test]
async fn mounts_are_visible_on_other_servers() {
    let world = World::start().await;
    let body = json!({"server": "h:1", "ttl_millis": 60_000, "is_leaf": true}).to_string();
    let mounted = ask(&world, "bob", "PUT", "/v1/names/a/b", body).await.json();
    let until = world.micros_in(60);
    assert_eq!(mounted, json!({"deadline_micros": until, "created_nodes": 2, "shadowed_children": false}));
    assert_eq!(world.resolve("alice", "a/b").await.unwrap().0, ["h:1"]);
    let server = json!({"address": "h:1", "deadline_micros": until, "serves_mount_table": false, "is_leaf": true});
    let found = ask(&world, "alice", "GET", "/v1/names/a/b/c%20d/e", "").await.json();
    assert_eq!(found, json!({"suffix": "c d/e", "servers": [server], "stale": false}));
    world.mount("bob", "x", "h:2", 0).await;
    world.mount("bob", "x", "h:3", 0).await;
    let found = ask(&world, "alice", "GET", "/v1/names/x?max_servers=1", "").await.json();
    assert_eq!(found["servers"].as_array().unwrap().len(), 1);
    assert_eq!(found["servers"][0].get("deadline_micros"), None, "for ever");
    let body = json!({"server": "h:4", "replace": true, "serves_mount_table": true}).to_string();
    let mounted = ask(&world, "bob", "PUT", "/v1/names/x", body).await.json();
    assert_eq!(mounted, json!({"created_nodes": 0, "shadowed_children": false}));
    assert_eq!(world.resolve("alice", "x").await.unwrap().0, ["h:4"]);
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(ask(&world, "alice", "GET", "/v1/names/a/b", "").await.refusal(), (404, Reason::NoSuchName));
}

#[tokio::test]
async fn the_root_has_the_empty_name() {
    let world = World::start().await;
    assert_eq!(ask(&world, "bob", "GET", "/v1/names/", "").await.refusal(), (404, Reason::NoSuchNameRoot));
    assert_eq!(ask(&world, "bob", "GET", "/v1/perms/", "").await.json()["Admin"]["In"], json!(["..."]));
    ask(&world, "server", "PUT", "/v1/names/", r#"{"server":"h:1"}"#).await.json();
    assert_eq!(ask(&world, "bob", "GET", "/v1/names/a/b", "").await.json()["suffix"], "a/b");
}

#[tokio::test]
async fn permissions_are_returned_with_a_name_on_request() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 60).await;
    world.write_permissions("bob", "a", r#"{"Admin":{"In":["bob"]},"Resolve":{"In":["alice"]}}"#).await;
    let found = ask(&world, "bob", "GET", "/v1/names/a?permissions=1", "").await.json();
    assert_eq!(found["permissions"], json!({"Admin": {"In": ["bob"]}, "Resolve": {"In": ["alice"]}}));
    let seen = ok(world.names().get_permissions(by("bob", wire::GetPermissionsRequest { name: "a".to_owned() })).await);
    assert_eq!(found["etag"], seen.etag);
    assert_eq!(
        ask(&world, "alice", "GET", "/v1/names/a?permissions=0", "").await.json()["servers"][0]["address"],
        "h:1"
    );
    let refused = ask(&world, "alice", "GET", "/v1/names/a?permissions=1", "").await;
    assert_eq!(refused.refusal(), (403, Reason::NoAccess), "Resolve does not permit a read of the permissions");
}

#[tokio::test]
async fn servers_are_unmounted_and_nodes_deleted() {
    let world = World::start().await;
    for (name, server) in [("a/b", "h:1"), ("a/b", "h:2"), ("a/b", "h:3"), ("a/c/d", "h:1"), ("e", "h:1")] {
        world.mount("bob", name, server, 60).await;
    }
    let delete = |path: &'static str| ask(&world, "bob", "DELETE", path, "");
    assert_eq!(delete("/v1/names/a/b?server=h:2").await.json(), json!({"removed": 1}));
    assert_eq!(delete("/v1/names/a/b?server=h:2").await.json(), json!({"removed": 0}));
    assert_eq!(world.resolve("bob", "a/b").await.unwrap().0, ["h:1", "h:3"]);
    assert_eq!(delete("/v1/names/a/b?servers=all").await.json(), json!({"removed": 2}));
    assert_eq!(delete("/v1/names/a?node=1").await.refusal(), (409, Reason::NotEmpty));
    assert_eq!(delete("/v1/names/e?version=xyzzy").await.refusal(), (412, Reason::BadVersion));
    let node = ok(world.names().get_node(by("bob", wire::GetNodeRequest { name: "e".to_owned() })).await);
    let path = format!("/v1/names/e?version={}", node.version);
    assert_eq!(ask(&world, "bob", "DELETE", &path, "").await.json(), json!({"deleted": 1}));
    assert_eq!(delete("/v1/names/a?subtree=true").await.json(), json!({"deleted": 3}));
    assert_eq!(delete("/v1/names/a?node=1").await.json(), json!({"deleted": 0}));
}
