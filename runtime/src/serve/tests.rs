//! Servers on real connections of both sorts; their number in [`connections`], with TLS in [`tls`].

mod connections;
mod tls;

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    const SETTINGS: u8 = 4;
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let http2: [&[u8]; 2] = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]];
    for piece in pieces.iter().chain(&http2) {
        connection.write_all(piece).await.unwrap();
    }
    let mut header = [0; 9];
    timely(connection.read_exact(&mut header)).await.unwrap();
    let [high, middle, low, kind, ..] = header;
    assert_eq!(kind, SETTINGS);
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
    timely(connection.read_exact(&mut payload)).await.unwrap();
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

#[tokio::test]
async fn a_call_that_is_shed_does_not_reach_its_service() {
    let load_shed = LoadShed::new(|request| {
        let connection = request.extensions().get::<ConnectionInfo>().expect("each call has its connection");
        let is_refused = connection.peer.is_some() && request.uri().path() == "/test.Held/Shed";
        is_refused.then(|| http::Response::builder().header("grpc-status", "14").body(Body::empty()).unwrap())
    });
    let fixture = Fixture::start(ServeOptions { load_shed, ..ServeOptions::default() }).await;
    let unavailable = "14";
    assert_eq!(call(fixture.foreign_client().await, "test.Held/Shed").await, unavailable);
    assert_eq!(fixture.held.arrived.available_permits(), 0);
    fixture.held.released.add_permits(1);
    assert_eq!(call(fixture.foreign_client().await, "test.Held/Any").await, "0");
    fixture.tasks.stop(Duration::ZERO).await;
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

/// A frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn calls_that_are_cancelled_together_do_not_close_their_connection() {
    let [headers, rst_stream, settings, ping, goaway] = [1, 3, 4, 6, 7];
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut connection = fixture.connect().await;
    let mut bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(settings, 0, 0, &[])].concat();
    for call in 0..PUBLIC_STREAMS_MAX {
        // POST, http, / of HPACK's static table; then the reset, with CANCEL.
        bytes.extend(frame(headers, 4, 2 * call + 1, &[0x83, 0x86, 0x84]));
        bytes.extend(frame(rst_stream, 0, 2 * call + 1, &[0, 0, 0, 8]));
    }
    bytes.extend(frame(ping, 0, 0, &[7; 8]));
    connection.write_all(&bytes).await.unwrap();
    loop {
        let mut header = [0; 9];
        timely(connection.read_exact(&mut header)).await.unwrap();
        let [high, middle, low, kind, flags, ..] = header;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
        timely(connection.read_exact(&mut payload)).await.unwrap();
        assert_ne!(kind, goaway, "{}", payload.escape_ascii());
        if kind == ping && flags == 1 && payload == [7; 8] {
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
