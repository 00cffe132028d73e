//! The caller's token goes to the servers that the caller names, and to no others.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use ebla_mounttable_namespace::{MountOptions, Namespace, Roots};
use ebla_mounttable_tree::messages::{self, BEARER_HEADER};
use ebla_mounttable_tree::{Error, Reason, Target};
use ebla_runtime::{Net, Runtime, ServeOptions, serve};
use futures::StreamExt;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;

use crate::secured;
use crate::world::{HOUR, World, address, globbed};

/// A server that records the callers' tokens (empty: a call without one), and refuses all calls.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    /// The tokens of all calls since the last call of this function.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Serves; returns the rooted address.
    async fn serve(&self, world: &World) -> String {
        let listener = world.runtime.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&world.runtime.tasks, listener, Routes::new(self.clone()), ServeOptions::default());
        format!("/{address}")
    }
}

impl NamedService for Recorder {
    const NAME: &'static str = "mounttable.v1.MountTable";
}

impl Service<http::Request<Body>> for Recorder {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let token = request.headers().get(BEARER_HEADER).map_or("", |header| header.to_str().unwrap());
        self.0.lock().push(token.to_owned());
        ready(Ok(messages::status(&Error::new(Reason::NoAccess, "no access")).into_http()))
    }
}

/// A recorder that is mounted as a table under `a`, and a caller with a token whose root is the table above.
async fn world() -> (World, Recorder, String) {
    let world = World::new(&[]).await;
    let recorder = Recorder::default();
    let address = recorder.serve(&world).await;
    world.mount("a", &address, Target::MountTable).await.unwrap();
    (world, recorder, address)
}

async fn read_everything(names: &Namespace) -> Vec<Error> {
    let failures = [
        names.resolve("a/x").await.map(drop),
        names.node("a/x").await.map(drop),
        names.permissions("a/x").await.map(drop),
        names.watch("a/x").next().await.unwrap().map(drop),
    ];
    failures.into_iter().map(Result::unwrap_err).collect()
}

#[tokio::test]
async fn a_token_without_tls_needs_a_permission() {
    let plain = || Namespace::builder(Runtime { net: Net::tcp(), ..secured::runtime() });
    let refused = plain().token("secret").build().unwrap_err();
    assert!(refused.reason == Reason::BadRequest && refused.message.contains("--insecure-token"), "{refused:?}");
    assert!(!refused.message.contains("secret"));
    plain().token("secret").allow_plaintext_token().build().unwrap();
    plain().identity("claimed").build().unwrap();
}

#[tokio::test]
async fn a_mounted_server_does_not_receive_the_token() {
    let (world, recorder, address) = world().await;
    let names = world.builder("root").token("secret").allow_plaintext_token().build().unwrap();
    assert_eq!(globbed(&names, "*/*").await, ["a: NO_ACCESS"]);
    for error in read_everything(&names).await {
        assert!(error.message.contains("the token was not sent"), "{error:?}");
        assert_eq!(error.reason, Reason::NoAccess);
    }
    let received = recorder.take();
    assert!(received.len() >= 5 && received.iter().all(String::is_empty), "{received:?}");
    // The caller names the server, so it receives the token from now on.
    names.resolve(&format!("{address}/x")).await.unwrap_err();
    assert_eq!(recorder.take(), ["Bearer secret"]);
}

#[tokio::test]
async fn a_mounted_server_receives_the_token_if_the_caller_asks_for_that() {
    let (world, recorder, address) = world().await;
    let servers = Roots::new([address.as_str()]).unwrap();
    let names = world.builder("root").token("secret").allow_plaintext_token().token_servers(servers).build().unwrap();
    assert_eq!(globbed(&names, "*/*").await, ["a: NO_ACCESS"]);
    for error in read_everything(&names).await {
        assert!(!error.message.contains("token"), "{error:?}");
    }
    let received = recorder.take();
    assert!(received.len() >= 5 && received.iter().all(|token| token == "Bearer secret"), "{received:?}");
}

/// A claimed identity is no secret: every server receives it.
#[tokio::test]
async fn a_claimed_identity_goes_to_mounted_servers() {
    let world = World::new(&["mt"]).await;
    world.mount_table("mt", "mt").await;
    let names = world.builder("root").identity("alice").build().unwrap();
    let place = format!("{}/own", world.at("mt"));
    names.mount(&place, &address("/h:1"), MountOptions::new(HOUR)).await.unwrap().all().unwrap();
    assert_eq!(world.names.node("mt/own").await.unwrap().creator, "alice");
    assert_eq!(names.node("mt/own").await.unwrap().creator, "alice");
}
