//! Errors for programs: a status, and the reason of the gRPC error.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use ebla_mounttable_server::gateway::BODY_BYTES_MAX;
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::Reason;
use ebla_proto::mounttable as wire;
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::Value;

use crate::gateway::client::{ask, request, send};
use crate::world::{World, by, ok};

#[tokio::test]
async fn each_refusal_has_its_status_and_its_reason() {
    let world = World::start().await;
    world.mount("bob", "table", "h:1", 60).await;
    world.write_permissions("bob", "closed", r#"{"Admin":{"In":["bob"]}}"#).await;
    let (server, sorts) = (r#"{"server":"h:1"}"#, r#"{"server":"h:1","serves_mount_table":true,"is_leaf":true}"#);
    let refusals = [
        ("bob", "GET", "/v1/names/never", "", 404, Reason::NoSuchName),
        ("bob", "GET", "/v1/names/a/..", "", 400, Reason::BadName),
        ("bob", "GET", "/v1/names/%ff", "", 400, Reason::BadName),
        ("...", "GET", "/v1/names/table", "", 400, Reason::BadName),
        ("alice", "GET", "/v1/names/closed/x", "", 403, Reason::NoAccess),
        ("bob", "GET", "/v1/names/?glob=a//b", "", 400, Reason::BadPattern),
        ("bob", "GET", "/v1/names/?glob=*&limit=0", "", 400, Reason::BadRequest),
        ("bob", "GET", "/v1/names/?glob=*&limit=100001", "", 400, Reason::BadRequest),
        ("bob", "GET", "/v1/names/?glob=*&watch=1", "", 400, Reason::BadRequest),
        ("bob", "GET", "/v1/names/?limit=5", "", 400, Reason::BadRequest),
        ("bob", "GET", "/v1/names/?watch=perhaps", "", 400, Reason::BadRequest),
        ("bob", "GET", "/v1/names/?blog=*", "", 400, Reason::BadRequest),
        ("alice", "GET", "/v1/names/closed?watch=1", "", 403, Reason::NoAccess),
        ("bob", "PUT", "/v1/names/a?ttl=5", server, 400, Reason::BadRequest),
        ("bob", "PUT", "/v1/names/a", "", 400, Reason::BadRequest),
        ("bob", "PUT", "/v1/names/a", "h:1", 400, Reason::BadRequest),
        ("bob", "PUT", "/v1/names/a", r#"{"server":"h:1","ttl":5}"#, 400, Reason::BadRequest),
        ("bob", "PUT", "/v1/names/a", r#"{"server":"nowhere"}"#, 400, Reason::BadAddress),
        ("bob", "PUT", "/v1/names/a", sorts, 400, Reason::BadRequest),
        ("bob", "PUT", "/v1/names/table", r#"{"server":"h:2","is_leaf":true}"#, 409, Reason::FlagsConflict),
        ("bob", "PUT", "/v1/names/table/below", server, 409, Reason::ShadowedByMount),
        ("bob", "PUT", "/v1/names/", server, 403, Reason::NoAccess),
        ("bob", "PUT", "/v1/names/1/2/3/4/5/6/7/8/9/10/11", server, 429, Reason::NodeQuota),
        ("server", "DELETE", "/v1/names/?subtree=1", "", 409, Reason::Root),
        ("bob", "DELETE", "/v1/names/table", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?node=1&servers=all", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?server=", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?version=", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?servers=some", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?server=h:1&subtree=1", "", 400, Reason::BadRequest),
        ("bob", "DELETE", "/v1/names/table?server=nowhere", "", 400, Reason::BadAddress),
        ("bob", "GET", "/v1/perms/never", "", 404, Reason::NoSuchName),
        ("bob", "PUT", "/v1/perms/table", r#"{"Fly":{}}"#, 400, Reason::BadPermissions),
        ("bob", "PUT", "/v1/perms/table?etag=1", "{}", 400, Reason::BadRequest),
        ("bob", "GET", "/v2/names/table", "", 404, Reason::BadRequest),
        ("bob", "POST", "/v1/names/table", server, 405, Reason::BadRequest),
        ("bob", "DELETE", "/v1/perms/table", "", 405, Reason::BadRequest),
    ];
    for (caller, method, path, body, status, reason) in refusals {
        let answer = ask(&world, caller, method, path, body).await;
        assert_eq!(answer.refusal(), (status, reason), "{caller} {method} {path} {body}: {}", answer.body);
    }
    let allowed = ask(&world, "bob", "POST", "/v1/perms/table", "").await;
    assert_eq!(allowed.headers[header::ALLOW], "GET,HEAD,PUT");
    let wrong: Value = serde_json::from_str(&ask(&world, "bob", "GET", "/v1/names/?blog=*", "").await.body).unwrap();
    assert!(wrong["message"].as_str().unwrap().contains("blog"), "{wrong}");
    assert!(wrong["next_step"].as_str().unwrap().contains("/v1/openapi.json"), "{wrong}");
    assert_eq!(world.resolve("bob", "table").await.unwrap().0, ["h:1"], "none of it did anything");
}

#[tokio::test]
async fn unauthenticated_callers_are_refused_every_call() {
    let world = World::with(AuthMethod::RefuseAll).await;
    let paths =
        ["/v1/names/a", "/v1/names/a?glob=*", "/v1/names/a?watch=1", "/v1/names/a?permissions=1", "/v1/perms/a"];
    let gets = paths.map(|path| ("GET", path, ""));
    let deletes = ["/v1/names/a?node=1", "/v1/names/a?servers=all"].map(|path| ("DELETE", path, ""));
    let puts = [("PUT", "/v1/names/a", r#"{"server":"h:1"}"#), ("PUT", "/v1/perms/a", "{}")];
    for (method, path, body) in gets.into_iter().chain(deletes).chain(puts) {
        let answer = ask(&world, "server", method, path, body).await;
        assert_eq!(answer.refusal(), (403, Reason::NoAccess), "{method} {path}");
    }
    assert_eq!(ask(&world, "", "GET", "/v1/openapi.json", "").await.status, StatusCode::OK);
}

/// A body is read up to its limit and not a byte further, also without a content length.
#[tokio::test]
async fn a_body_that_is_too_large_is_refused_while_it_comes() {
    let world = World::start().await;
    let mount = r#"{"server":"h:1"}"#;
    let padded = |bytes: usize| Bytes::from(mount.to_owned() + &" ".repeat(bytes - mount.len()));
    ask(&world, "bob", "PUT", "/v1/names/a", padded(BODY_BYTES_MAX)).await.json();
    let first = stream::iter([Ok::<_, Infallible>(padded(BODY_BYTES_MAX + 1))]);
    let endless = Body::from_stream(first.chain(stream::pending()));
    let answer = send(&world, request("bob", "PUT", "/v1/names/b", endless)).await;
    assert_eq!(answer.refusal(), (413, Reason::BadRequest));
    assert!(answer.body.contains(&BODY_BYTES_MAX.to_string()), "{}", answer.body);
    assert_eq!(ask(&world, "bob", "GET", "/v1/names/b", "").await.refusal(), (404, Reason::NoSuchName));
}

#[tokio::test]
async fn a_server_that_is_read_only_says_so() {
    let world = World::start().await;
    world.mount("bob", "a", "h:1", 60).await;
    ok(world.admin().set_read_only(by("server", wire::SetReadOnlyRequest { read_only: true })).await);
    let changes = [
        ("PUT", "/v1/names/a", r#"{"server":"h:2"}"#),
        ("DELETE", "/v1/names/a?node=1", ""),
        ("PUT", "/v1/perms/a", "{}"),
    ];
    for (method, path, body) in changes {
        assert_eq!(ask(&world, "bob", method, path, body).await.refusal(), (503, Reason::ReadOnly), "{method} {path}");
    }
    assert_eq!(ask(&world, "bob", "GET", "/v1/names/a", "").await.json()["servers"][0]["address"], "h:1");
}
