//! Permissions, and their version as ETag.

use axum::body::Body;
use ebla_mounttable_tree::Reason;
use http::{HeaderValue, Request, StatusCode, header};
use serde_json::json;

use crate::gateway::client::{ask, request, send};
use crate::world::World;

fn if_match(etag: &HeaderValue, caller: &str, body: &str) -> Request<Body> {
    let mut request = request(caller, "PUT", "/v1/perms/a", body.to_owned());
    request.headers_mut().insert(header::IF_MATCH, etag.clone());
    request
}

#[tokio::test]
async fn permissions_are_replaced_only_at_the_seen_version() {
    let world = World::start().await;
    let first = r#"{"Admin":{"In":["bob"]},"Read":{"In":["alice"],"NotIn":["alice:phone"]},"%%/Admin":{"In":["%%"]}}"#;
    let done = ask(&world, "bob", "PUT", "/v1/perms/a", first).await;
    assert_eq!(
        (done.status, done.body.as_str()),
        (StatusCode::NO_CONTENT, ""),
        "without a condition, and a node is made"
    );
    let seen = ask(&world, "alice", "GET", "/v1/perms/a", "").await;
    assert_eq!(seen.json(), serde_json::from_str::<serde_json::Value>(first).unwrap());
    let etag = &seen.headers[header::ETAG];
    let second = r#"{"Admin":{"In":["bob"]},"Read":{"In":["carol"]}}"#;
    assert_eq!(send(&world, if_match(etag, "bob", second)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(send(&world, if_match(etag, "bob", first)).await.refusal(), (412, Reason::BadVersion));
    let seen = ask(&world, "carol", "GET", "/v1/perms/a", "").await;
    assert_eq!(seen.json(), json!({"Admin": {"In": ["bob"]}, "Read": {"In": ["carol"]}}));
    assert_ne!(&seen.headers[header::ETAG], etag);
    assert_eq!(ask(&world, "alice", "GET", "/v1/perms/a", "").await.refusal(), (403, Reason::NoAccess));
    let now = &seen.headers[header::ETAG];
    assert_eq!(send(&world, if_match(now, "carol", second)).await.refusal(), (403, Reason::NoAccess));
    let any = HeaderValue::from_static("*");
    assert_eq!(send(&world, if_match(&any, "bob", second)).await.refusal(), (400, Reason::BadRequest));
}
