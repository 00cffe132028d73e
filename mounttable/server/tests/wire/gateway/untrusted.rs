//! Requests of arbitrary content, whole ones and raw bytes: each is answered or refused as `openapi.json` says, never with a status of
//! the server's own failure (5xx: the storage of these tests never fails), and the server goes on. An endless request is not read to its
//! end.
//!
//! In these tests a panic of the server would close the connection without a response.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use ebla_mounttable_server::gateway::OPENAPI;
use ebla_mounttable_tree::messages::DEVELOPMENT_HEADER;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use proptest::sample::select;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::gateway::client::{Answer, open};
use crate::gateway::contract;
use crate::inputs::inputs;
use crate::world::World;

/// The largest response of these tests, in bytes: the tree is small.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// No request of these tests may take longer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most that the server and the buffers of a connection take of an endless request, in bytes.
const ENDLESS_BYTES_MAX: usize = 32 << 20;

/// Method, target and body of valid requests.
const EXAMPLES: [(&str, &str, &str); 12] = [
    ("GET", "/v1/names/a/b", ""),
    ("GET", "/v1/names/a?max_servers=1&permissions=1", ""),
    ("GET", "/v1/names/?glob=*/...&limit=10", ""),
    ("GET", "/v1/names/a?watch=1&refreshes=0", ""),
    ("PUT", "/v1/names/a/b", r#"{"server":"h:1","ttl_millis":60000,"replace":true}"#),
    ("PUT", "/v1/names/%E2%82%AC", r#"{"server":"h:2","serves_mount_table":true,"is_leaf":false}"#),
    ("DELETE", "/v1/names/a/b?server=h:1", ""),
    ("DELETE", "/v1/names/a?subtree=1&version=7", ""),
    ("GET", "/v1/perms/a", ""),
    ("PUT", "/v1/perms/a", r#"{"Admin":{"In":["bob","a:b"],"NotIn":["bob:guest"]},"Read":{"In":["..."]}}"#),
    ("POST", "/v1/names/a", ""),
    ("GET", "/v1/openapi.json", ""),
];

#[derive(Clone, Debug)]
struct Input {
    method: &'static str,
    target: Vec<u8>,
    body: Vec<u8>,
    caller: Vec<u8>,
}

/// The example, or something else.
fn changed(example: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let example = example.as_bytes().to_vec();
    prop_oneof![1 => Just(example.clone()), 2 => inputs(vec![example])]
}

fn input() -> impl Strategy<Value = Input> {
    let caller = || prop_oneof![3 => Just(b"bob".to_vec()), 1 => Just(b"server".to_vec()), 1 => changed("bob:a")];
    select(EXAMPLES.to_vec()).prop_flat_map(move |(method, target, body)| {
        // Other methods do not read a body, and the server may close a connection on which it comes.
        let body = if method == "PUT" { changed(body).boxed() } else { Just(Vec::new()).boxed() };
        (changed(target), body, caller()).prop_map(move |(target, body, caller)| Input { method, target, body, caller })
    })
}

/// The target as it is, or else what it says as a name: a client can send any byte percent-encoded.
fn uri(target: &[u8]) -> Uri {
    let as_it_is = Uri::try_from(target).ok().filter(|uri| uri.path().starts_with('/') && uri.authority().is_none());
    as_it_is.unwrap_or_else(|| {
        let encoded: String = target.iter().map(|byte| format!("%{byte:02X}")).collect();
        format!("/v1/names/{encoded}").parse().unwrap()
    })
}

fn request(input: &Input) -> Request<Body> {
    let caller = HeaderValue::from_bytes(&input.caller).unwrap_or_else(|_| HeaderValue::from_static("bob"));
    let request = Request::builder().method(input.method).uri(uri(&input.target)).header(header::HOST, "names");
    request.header(DEVELOPMENT_HEADER, caller).body(Body::from(input.body.clone())).unwrap()
}

/// A connection to the server.
async fn connect(world: &World) -> SendRequest<Body> {
    let connection = open(world).await;
    let (sender, connection) = http1::handshake(TokioIo::new(connection)).await.unwrap();
    world.runtime.tasks.spawn_until_stopped("connection", async move { drop(connection.await) });
    sender
}

async fn send(connection: &mut SendRequest<Body>, request: Request<Body>) -> Response<Body> {
    let response = async {
        connection.ready().await.unwrap();
        connection.send_request(request).await.unwrap().map(Body::new)
    };
    tokio::time::timeout(TIMEOUT, response).await.unwrap()
}

/// Reads the response, which must be as described. Whether it has an end: a watch has none.
async fn check(method: &str, path: &str, response: Response<Body>) -> bool {
    let (head, body) = response.into_parts();
    assert!(head.status.as_u16() < 500, "{method} {path}: {}", head.status);
    if head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == contract::EVENTS) {
        return false;
    }
    let body = tokio::time::timeout(TIMEOUT, to_bytes(body, RESPONSE_BYTES_MAX)).await.unwrap().unwrap();
    let answer = Answer { status: head.status, headers: head.headers, body: String::from_utf8(body.into()).unwrap() };
    contract::check(&method.to_lowercase(), path, &answer);
    true
}

/// The server and this connection work.
async fn check_description(connection: &mut SendRequest<Body>) {
    let request = Request::get("/v1/openapi.json").header(header::HOST, "names").body(Body::empty()).unwrap();
    let body = to_bytes(send(connection, request).await.into_body(), RESPONSE_BYTES_MAX).await.unwrap();
    assert_eq!(body, OPENAPI);
}

async fn check_requests(inputs: &[Input]) {
    let world = World::start().await;
    let mut connection = connect(&world).await;
    for input in inputs {
        let request = request(input);
        let path = request.uri().path().to_owned();
        let has_end = check(input.method, &path, send(&mut connection, request).await).await;
        // A refusal need not read the body: what follows on that connection is not defined.
        if !has_end || !input.body.is_empty() {
            connection = connect(&world).await;
        }
        check_description(&mut connection).await;
    }
}

/// Requests as bytes: of both versions of HTTP, with bodies of known and of unknown length, and two on one connection.
fn raw_examples() -> Vec<Vec<u8>> {
    let head = |line: &str| format!("{line} HTTP/1.1\r\nhost: names\r\n{DEVELOPMENT_HEADER}: bob\r\n");
    let get = head("GET /v1/names/a?permissions=1") + "\r\n";
    let mount = r#"{"server":"h:1"}"#;
    let put = format!("{}content-length: {}\r\n\r\n{mount}", head("PUT /v1/names/a"), mount.len());
    let chunked = head("PUT /v1/names/a");
    let chunked = format!("{chunked}transfer-encoding: chunked\r\n\r\n{:x}\r\n{mount}\r\n0\r\n\r\n", mount.len());
    let expecting = format!("{}expect: 100-continue\r\ncontent-length: 16\r\n\r\n{mount}", head("PUT /v1/names/a"));
    let two = get.clone() + &put;
    let mut http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings without entries, and a ping.
    http2.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    http2.extend([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let mut examples: Vec<_> = [get, put, chunked, expecting, two].into_iter().map(String::into_bytes).collect();
    examples.push(http2);
    examples
}

async fn check_bytes(bytes: &[u8]) {
    let world = World::start().await;
    let connection = open(&world).await;
    let (read, mut write) = tokio::io::split(connection);
    // The server may close before it has read everything.
    let _sent = write.write_all(bytes).await;
    let _shut = write.shutdown().await;
    let mut response = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, read.take(RESPONSE_BYTES_MAX as u64).read_to_end(&mut response)).await;
    drop(read.expect("the connection ends"));
    assert!(response.len() < RESPONSE_BYTES_MAX);
    if let Some(status) = response.strip_prefix(b"HTTP/1.1 ") {
        assert_ne!(status[0], b'5', "{}", String::from_utf8_lossy(&response));
    }
    check_description(&mut connect(&world).await).await;
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_request_of_any_content_is_answered_or_refused(inputs in vec(input(), 1..8)) {
        block_on(check_requests(&inputs));
    }

    #[test]
    fn any_bytes_on_a_connection_leave_the_server_as_it_was(bytes in inputs(raw_examples())) {
        block_on(check_bytes(&bytes));
    }
}

/// Sends `piece` again and again. Returns the bytes that were taken: until the server closed the connection, or read nothing for a second.
async fn send_endlessly(world: &World, head: &str, piece: &[u8]) -> usize {
    let mut connection = open(world).await;
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut sent = 0;
    while sent <= ENDLESS_BYTES_MAX {
        match tokio::time::timeout(Duration::from_secs(1), connection.write_all(piece)).await {
            Ok(Ok(())) => sent += piece.len(),
            Ok(Err(_closed)) => break,
            Err(_not_read) => break,
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_request_is_not_read_to_its_end() {
    let world = World::start().await;
    let chunked = |line: &str| format!("{line} HTTP/1.1\r\nhost: names\r\ntransfer-encoding: chunked\r\n\r\n");
    let letters = vec![b'a'; 16 << 10];
    let headers = b"name: value\r\n".repeat(1_000);
    let chunks = [b"4000\r\n".as_slice(), &vec![b' '; 16 << 10], b"\r\n"].concat();
    let requests = [
        ("a path", "GET /v1/names/".to_owned(), &letters),
        ("a header", "GET /v1/names/a HTTP/1.1\r\nname: ".to_owned(), &letters),
        ("headers", "GET /v1/names/a HTTP/1.1\r\n".to_owned(), &headers),
        ("a chunk extension", chunked("PUT /v1/names/a") + "1;", &letters),
        ("a body", chunked("PUT /v1/names/a"), &chunks),
        ("a body that nothing reads", chunked("GET /v1/names/a"), &chunks),
        ("trailers", chunked("PUT /v1/names/a") + "0\r\n", &headers),
    ];
    for (what, head, piece) in requests {
        let taken = send_endlessly(&world, &head, piece).await;
        assert!(taken <= ENDLESS_BYTES_MAX, "{what}: {taken} bytes were taken");
        check_description(&mut connect(&world).await).await;
    }
}
