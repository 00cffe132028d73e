//! Servers on real connections of both sorts; their number in [`connections`], with TLS in [`tls`].

mod connections;
mod tls;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use super::*;
use crate::net::Net;
use crate::peer::PREAMBLE;

/// A service whose calls are answered when they are released.
#[derive(Clone)]
struct Held {
    arrived: Arc<Semaphore>,
    released: Arc<Semaphore>,
    in_progress: ResourceCounter,
    /// The highest number of calls in progress.
    peak: Arc<AtomicUsize>,
}

impl NamedService for Held {
    const NAME: &'static str = "test.Held";
}

impl Service<http::Request<Body>> for Held {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        let held = self.clone();
        Box::pin(async move {
            let in_progress = held.in_progress.try_reserve(1, usize::MAX).unwrap();
            held.peak.fetch_max(held.in_progress.in_use(), Ordering::Relaxed);
            held.arrived.add_permits(1);
            held.released.acquire().await.unwrap().forget();
            drop(in_progress);
            let response = http::Response::builder().header("grpc-status", "0").body(Body::empty());
            Ok(response.unwrap())
        })
    }
}

struct Fixture {
    tasks: Tasks,
    held: Held,
    address: String,
}

impl Fixture {
    async fn start(options: ServeOptions) -> Self {
        Self::start_on(Net::tcp(), options).await
    }

    async fn start_on(net: Net, options: ServeOptions) -> Self {
        let tasks = Tasks::new("test");
        let held = Held {
            arrived: Arc::new(Semaphore::new(0)),
            released: Arc::new(Semaphore::new(0)),
            in_progress: ResourceCounter::default(),
            peak: Arc::default(),
        };
        let listener = net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&tasks, listener, Routes::new(held.clone()), options);
        Self { tasks, held, address }
    }

    async fn connect(&self) -> Connection {
        Net::tcp().connect(&self.address).await.unwrap()
    }

    /// A client that knows nothing of this system.
    async fn foreign_client(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        timely(endpoint.connect()).await.unwrap()
    }

    /// Makes this number of calls on one channel at once, and releases them when `arrived` of them have arrived. Returns the highest number in
    /// progress.
    async fn call_at_once(&self, channel: &Channel, calls: usize, arrived: u32) -> usize {
        self.held.peak.store(0, Ordering::Relaxed);
        let mut answers = JoinSet::new();
        for _ in 0..calls {
            answers.spawn(call(channel.clone(), "test.Held/Any"));
        }
        timely(self.held.arrived.acquire_many(arrived)).await.unwrap().forget();
        self.held.released.add_permits(calls);
        for status in timely(answers.join_all()).await {
            assert_eq!(status, "0");
        }
        self.held.peak.load(Ordering::Relaxed)
    }
}

async fn timely<T>(waited_for: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), waited_for).await.expect("within a generous time")
}

/// The `grpc-status` of a call.
async fn call(mut channel: Channel, method: &str) -> String {
    let request = http::Request::post(format!("http://server/{method}")).header("content-type", "application/grpc");
    poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = timely(channel.call(request.body(Body::empty()).unwrap())).await.unwrap();
    response.headers().get("grpc-status").unwrap().to_str().unwrap().to_owned()
}

/// The first frame that the server sends (RFC 9113, section 6.5) to a client that begins with these bytes, then with HTTP/2: its limit of
/// concurrent streams. Each piece is written alone.
async fn streams_max(mut connection: Connection, pieces: &[&[u8]]) -> Option<u32> {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    for piece in pieces {
        connection.write_all(piece).await.unwrap();
    }
    begin_http2(&mut connection).await;
    let Frame { kind, payload, .. } = next_frame(&mut connection).await;
    assert_eq!(kind, SETTINGS);
    let mut settings = payload.chunks_exact(6).map(|setting| {
        let [first, second, value @ ..] = <[u8; 6]>::try_from(setting).unwrap();
        (u16::from_be_bytes([first, second]), u32::from_be_bytes(value))
    });
    settings.find(|(id, _)| *id == MAX_CONCURRENT_STREAMS).map(|(_, value)| value)
}

#[tokio::test]
async fn the_preamble_selects_the_limit_of_streams() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    assert_eq!(streams_max(fixture.connect().await, &[]).await, Some(PUBLIC_STREAMS_MAX));
    assert_eq!(streams_max(fixture.connect().await, &[&PREAMBLE[..]]).await, Some(PEER_STREAMS_MAX));
    let bytes: Vec<_> = PREAMBLE.chunks(1).collect();
    assert_eq!(streams_max(fixture.connect().await, &bytes).await, Some(PEER_STREAMS_MAX));
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_channel_has_as_many_calls_in_progress_as_its_origin_allows() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let limit = usize::try_from(PUBLIC_STREAMS_MAX).unwrap();
    let (calls, public) = (limit + 50, Net::tcp().channel(&fixture.address));
    assert_eq!(fixture.call_at_once(&public, calls, PUBLIC_STREAMS_MAX).await, limit);
    // Those that waited in the client have arrived later.
    fixture.held.arrived.acquire_many(50).await.unwrap().forget();
    let all = u32::try_from(calls).unwrap();
    assert_eq!(fixture.call_at_once(&Net::tcp().peer_channel(&fixture.address), calls, all).await, calls);
    fixture.tasks.stop(Duration::ZERO).await;
}

/// Refuses the calls of `test.Held/Shed`.
fn shed() -> LoadShed {
    LoadShed::new(|connection, path| {
        let is_refused = connection.peer.is_some() && path == "/test.Held/Shed";
        is_refused.then(|| http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "14".parse().unwrap())]))
    })
}

#[tokio::test]
async fn a_call_that_is_shed_does_not_reach_its_service() {
    let fixture = Fixture::start(ServeOptions { load_shed: shed(), ..ServeOptions::default() }).await;
    let unavailable = "14";
    assert_eq!(call(fixture.foreign_client().await, "test.Held/Shed").await, unavailable);
    assert_eq!(fixture.held.arrived.available_permits(), 0);
    fixture.held.released.add_permits(1);
    assert_eq!(call(fixture.foreign_client().await, "test.Held/Any").await, "0");
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn calls_that_are_shed_beside_others_are_all_answered_on_their_connection() {
    let fixture = Fixture::start(ServeOptions { load_shed: shed(), ..ServeOptions::default() }).await;
    let channel = fixture.foreign_client().await;
    let mut shed = JoinSet::new();
    let mut admitted = JoinSet::new();
    for _ in 0..300 {
        shed.spawn(call(channel.clone(), "test.Held/Shed"));
        shed.spawn(call(channel.clone(), "test.Held/Shed"));
        admitted.spawn(call(channel.clone(), "test.Held/Any"));
    }
    assert!(timely(shed.join_all()).await.iter().all(|status| status == "14"));
    timely(fixture.held.arrived.acquire_many(300)).await.unwrap().forget();
    fixture.held.released.add_permits(300);
    assert!(timely(admitted.join_all()).await.iter().all(|status| status == "0"));
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn messages_that_come_after_their_calls_were_shed_do_not_close_the_connection() {
    let fixture = Fixture::start(ServeOptions { load_shed: shed(), ..ServeOptions::default() }).await;
    let mut connection = fixture.connect().await;
    begin_http2(&mut connection).await;
    for call in 0..1_500 {
        let stream = 2 * call + 1;
        connection.write_all(&frame(HEADERS, 4, stream, &call_headers("/test.Held/Shed"))).await.unwrap();
        loop {
            let frame = next_frame(&mut connection).await;
            assert_ne!(frame.kind, GOAWAY, "call {call}: {}", frame.payload.escape_ascii());
            if frame.kind == HEADERS {
                assert_eq!(frame.stream, stream);
                break;
            }
        }
        connection.write_all(&frame(DATA, 1, stream, b"late")).await.unwrap();
    }
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_call_ends_with_the_timeout_of_its_caller() {
    const END_STREAM: u8 = 1;
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut connection = fixture.connect().await;
    // Not a client of tonic, which ends the call itself.
    let timeout = [&[0, 12][..], b"grpc-timeout", &[4], b"200m"].concat();
    begin_http2(&mut connection).await;
    connection.write_all(&frame(HEADERS, 4, 1, &[call_headers("/test.Held/Any"), timeout].concat())).await.unwrap();
    let response = loop {
        let frame = next_frame(&mut connection).await;
        if frame.kind == HEADERS {
            break frame;
        }
    };
    assert_eq!((response.stream, response.flags & END_STREAM), (1, END_STREAM));
    assert_eq!(fixture.held.in_progress.in_use(), 0, "the call does not go on");
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_stopped_server_completes_the_calls_that_it_has_begun() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let begun = call(fixture.foreign_client().await, "test.Held/Any");
    let stop = async {
        timely(fixture.held.arrived.acquire()).await.unwrap().forget();
        let release = async { fixture.held.released.add_permits(1) };
        futures::future::join(fixture.tasks.stop(Duration::from_secs(50)), release).await;
    };
    let (status, ()) = timely(futures::future::join(begun, stop)).await;
    assert_eq!(status, "0");
}

#[tokio::test]
async fn clients_without_the_preamble_are_served_beside_silent_and_broken_connections() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut silent = Vec::new();
    for number in 0..PREAMBLE.len() {
        let mut connection = fixture.connect().await;
        connection.write_all(&PREAMBLE[..number]).await.unwrap();
        match number % 2 {
            0 => silent.push(connection),
            _ => drop(connection),
        }
    }
    let unimplemented = "12";
    assert_eq!(call(fixture.foreign_client().await, "test.Nothing/Any").await, unimplemented);
    fixture.held.released.add_permits(2);
    assert_eq!(call(fixture.foreign_client().await, "test.Held/Any").await, "0");
    assert_eq!(call(Net::tcp().peer_channel(&fixture.address), "test.Held/Any").await, "0");
    fixture.tasks.stop(Duration::ZERO).await;
}

/// Sorts of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// The preface of a client, with settings that say nothing.
async fn begin_http2(connection: &mut Connection) {
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
    connection.write_all(&preface).await.unwrap();
}

/// POST and http of HPACK's static table (RFC 7541), and a path that is not entered in the dynamic one.
fn call_headers(path: &str) -> Vec<u8> {
    [&[0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()], path.as_bytes()].concat()
}

/// A frame that was received (RFC 9113, section 4.1).
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn next_frame(connection: &mut Connection) -> Frame {
    let mut header = [0; 9];
    timely(connection.read_exact(&mut header)).await.unwrap();
    let [high, middle, low, kind, flags, stream @ ..] = header;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
    timely(connection.read_exact(&mut payload)).await.unwrap();
    Frame { kind, flags, stream: u32::from_be_bytes(stream), payload }
}

/// The bytes of a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn calls_that_are_cancelled_together_do_not_close_their_connection() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut connection = fixture.connect().await;
    begin_http2(&mut connection).await;
    let mut bytes = Vec::new();
    for call in 0..PUBLIC_STREAMS_MAX {
        // POST, http, / of HPACK's static table; then the reset, with CANCEL.
        bytes.extend(frame(HEADERS, 4, 2 * call + 1, &[0x83, 0x86, 0x84]));
        bytes.extend(frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]));
    }
    bytes.extend(frame(PING, 0, 0, &[7; 8]));
    connection.write_all(&bytes).await.unwrap();
    loop {
        let frame = next_frame(&mut connection).await;
        assert_ne!(frame.kind, GOAWAY, "{}", frame.payload.escape_ascii());
        if frame.kind == PING && frame.flags == 1 && frame.payload == [7; 8] {
            break;
        }
    }
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn http_1_is_served_where_it_is_accepted() {
    let fixture = Fixture::start(ServeOptions { protocol: Protocol::Http1AndHttp2, ..ServeOptions::default() }).await;
    let mut connection = fixture.connect().await;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: server\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    timely(connection.read_to_end(&mut response)).await.unwrap();
    assert!(response.starts_with(b"HTTP/1.1 "), "{}", response.escape_ascii());
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_stopped_server_closes_its_port_and_the_connections_that_have_sent_nothing() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut silent = fixture.connect().await;
    // Accepted by now: connections are accepted in order.
    assert_eq!(streams_max(fixture.connect().await, &[]).await, Some(PUBLIC_STREAMS_MAX));
    timely(fixture.tasks.stop(Duration::from_secs(50))).await;
    let _end = timely(silent.read_to_end(&mut Vec::new())).await;
    assert!(Net::tcp().connect(&fixture.address).await.is_err());
}

#[tokio::test]
async fn a_killed_server_closes_its_connections() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let (mut silent, mut public) = (fixture.connect().await, fixture.connect().await);
    // It is a public one at once; then the server waits for the rest of the HTTP/2 preface.
    public.write_all(b"PRI").await.unwrap();
    fixture.tasks.stop(Duration::ZERO).await;
    for connection in [&mut silent, &mut public] {
        let _cut = timely(connection.read_to_end(&mut Vec::new())).await;
    }
    assert!(Net::tcp().connect(&fixture.address).await.is_err());
}
