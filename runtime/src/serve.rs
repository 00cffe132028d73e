//! A gRPC or HTTP server on a listener, owned by a task group.
//!
//! When the group is stopped, the server accepts no new connections and completes running calls. After the grace period
//! it closes all connections, so a server that is stopped without grace looks like a power failure to its clients.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::connection_limit::{ConnectionLimit, Slot};
use crate::net::{CONNECTION_WINDOW_BYTES, Connection, KeepAlive, Listener, Origin, STREAM_WINDOW_BYTES};
use crate::peer::{Entrance, Openings, Refusals};
use crate::resource_counter::ResourceCounter;
use crate::tasks::Tasks;
use crate::tls::Security;

mod load_shed;

pub use load_shed::LoadShed;
use load_shed::SheddingRoutes;

/// HTTP versions that a server accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// HTTP/2 only, with prior knowledge, as gRPC uses it.
    #[default]
    Http2,
    /// HTTP/1.1 too, as scripts and browsers use it without TLS.
    Http1AndHttp2,
    /// HTTP/1.1 only ([`crate::http_port`]).
    Http1,
}

/// Connection options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Maximum number of concurrent calls on a public connection. Clients know it (HTTP/2 `SETTINGS_MAX_CONCURRENT_STREAMS`) and keep further calls,
    /// which then cost this server nothing.
    pub public_streams_max: u32,
    /// The same for the connection of a peer, which has the calls of many callers ([`crate::net::Origin::Peer`]).
    pub peer_streams_max: u32,
    /// Accepted HTTP versions.
    pub protocol: Protocol,
    /// When a silent public connection is closed. Those of peers: [`KeepAlive::CLUSTER`].
    pub public_keep_alive: KeepAlive,
    /// The calls that are refused before they reach their service.
    pub load_shed: LoadShed,
}

/// The streams of a public connection. Google's service allows 100. With so few, the calls of an overload would wait in the client, in their order, until their
/// deadlines are nearly over; a server that receives them can refuse those that are too many at once.
pub const PUBLIC_STREAMS_MAX: u32 = 1_000;
/// The streams of a peer's connection.
pub const PEER_STREAMS_MAX: u32 = 4_096;
/// Calls of a connection that are cancelled before the server has seen them; one more, and HTTP/2 closes the connection with all its calls
/// (CVE-2023-44487). The usual 20 are fewer than an overloaded server finds when it reads a connection again: its callers give up together.
const CANCELLED_MAX: usize = 1_024;
/// Connections that have been accepted and have not sent their first bytes, or are in a handshake. One more makes the oldest of them a public
/// one, or ends its handshake.
const OPENINGS_MAX: usize = 1_024;
/// How long a connection may take until its client has sent the preface of HTTP/2 (RFC 9113, section 3.4), or the first byte of HTTP/1.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of the preface of HTTP/2.
const PREFACE_BYTES: usize = 24;
/// Connections that wait to be taken by their server, which spawns a task for each at once.
const HANDED_OVER_MAX: usize = 64;

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            public_streams_max: PUBLIC_STREAMS_MAX,
            peer_streams_max: PEER_STREAMS_MAX,
            protocol: Protocol::default(),
            public_keep_alive: KeepAlive::PUBLIC,
            load_shed: LoadShed::default(),
        }
    }
}

impl ServeOptions {
    /// The bytes that every client sends first, at least.
    fn preface(&self) -> usize {
        if self.protocol == Protocol::Http2 { PREFACE_BYTES } else { 1 }
    }

    fn server(&self, streams_max: u32, keep_alive: KeepAlive) -> Server {
        Server::builder()
            .accept_http1(self.protocol == Protocol::Http1AndHttp2)
            .max_concurrent_streams(streams_max)
            .http2_max_pending_accept_reset_streams(Some(CANCELLED_MAX))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keepalive_interval(Some(keep_alive.interval))
            .http2_keepalive_timeout(Some(keep_alive.timeout))
    }
}

/// Serves `routes` on `listener` until `tasks` is stopped; returns immediately. With TLS, if the listener's network has it.
///
/// Public connections and those of peers have a server of their own, with the same routes: the limit of streams is sent when a connection begins.
pub fn serve(tasks: &Tasks, listener: Listener, routes: Routes, options: ServeOptions) {
    let start = |streams_max, keep_alive| {
        let (token, killed) = (tasks.token(), tasks.killed());
        let (sender, mut receiver) = mpsc::channel(HANDED_OVER_MAX);
        let incoming = stream::poll_fn(move |context| receiver.poll_recv(context));
        let preface = options.preface();
        let incoming = incoming.map(move |(connection, slot)| {
            Ok::<_, io::Error>(KillableConnection::new(connection, slot, preface, &killed))
        });
        let service = SheddingRoutes::new(options.load_shed.clone(), routes.clone());
        let server = options.server(streams_max, keep_alive);
        let serving = server.serve_with_incoming_shutdown(service, incoming, token.cancelled_owned());
        tasks.spawn("serve", async move {
            if let Err(error) = serving.await {
                warn!(%error, "server stopped with an error");
            }
        });
        sender
    };
    let limit = listener.connections().clone();
    let public = start(options.public_streams_max, options.public_keep_alive);
    let peers = start(options.peer_streams_max, KeepAlive::CLUSTER);
    let entrance = Entrance { tls: listener.tls().cloned(), protocol: options.protocol, refusals: Refusals::default() };
    tasks.spawn_until_stopped("accept", accept(listener, entrance, limit, public, peers));
}

/// Accepts connections, and hands each to the server of its sort once its sort is known.
async fn accept(
    mut listener: Listener,
    entrance: Entrance,
    limit: ConnectionLimit,
    public: mpsc::Sender<(Connection, Slot)>,
    peers: mpsc::Sender<(Connection, Slot)>,
) {
    let mut openings = Openings::new(OPENINGS_MAX, entrance);
    loop {
        let (origin, connection) = tokio::select! {
            biased;
            Some(identified) = openings.next() => identified,
            accepted = listener.next() => {
                match accepted {
                    Some(Ok(connection)) => openings.push(connection),
                    Some(Err(error)) => debug!(%error, "accept failed"),
                    None => return,
                }
                continue;
            }
        };
        let server = match origin {
            Origin::Public => &public,
            Origin::Peer => &peers,
        };
        let Some(slot) = limit.admit(connection.peer(), connection.security()) else { continue };
        if server.send((connection, slot)).await.is_err() {
            return;
        }
    }
}

/// The connection of a request, in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The peer's address, for logs.
    pub peer: Option<SocketAddr>,
    /// How the connection is secured, and who has been proved to be at its other end.
    pub security: Security,
    /// Resources that the requests of this connection use. The services define the unit.
    pub usage: ResourceCounter,
    /// Bytes of responses that are prepared for this connection and not sent, of the services that count them.
    pub unsent: ResourceCounter,
    /// Closes the connection, with all its calls, when cancelled.
    pub close: CancellationToken,
}

/// A connection that fails when it is closed or the server is killed, and when its client does not begin: tonic's own tasks own it, and nothing
/// else can stop them.
struct KillableConnection {
    connection: Connection,
    _slot: Slot,
    preface: Option<Preface>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    info: ConnectionInfo,
}

impl KillableConnection {
    fn new(connection: Connection, slot: Slot, preface_bytes: usize, killed: &CancellationToken) -> Self {
        let late = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        let preface = Some(Preface { late, missing_bytes: preface_bytes });
        let close = killed.child_token();
        let closed = Box::pin(close.clone().cancelled_owned());
        let info = ConnectionInfo {
            peer: connection.peer(),
            security: connection.security().clone(),
            close,
            ..ConnectionInfo::default()
        };
        Self { connection, _slot: slot, preface, closed, info }
    }

    fn broken() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, "connection closed by this server")
    }
}

impl AsyncRead for KillableConnection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // A connection always waits to read, so the cancellation wakes it up here.
        if self.closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(Self::broken()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(context, into);
        if self.preface.as_mut().is_some_and(|preface| preface.has_arrived(into.filled().len() - before)) {
            self.preface = None;
        }
        if let (Poll::Pending, Some(preface)) = (&read, &mut self.preface)
            && preface.late.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

/// What a client must send within [`PREFACE_TIMEOUT`].
struct Preface {
    late: Pin<Box<Sleep>>,
    missing_bytes: usize,
}

impl Preface {
    /// Counts bytes that were read; whether the preface is complete.
    const fn has_arrived(&mut self, bytes: usize) -> bool {
        self.missing_bytes = self.missing_bytes.saturating_sub(bytes);
        self.missing_bytes == 0
    }
}

impl AsyncWrite for KillableConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.info.close.is_cancelled() {
            return Poll::Ready(Err(Self::broken()));
        }
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.info.close.is_cancelled() {
            return Poll::Ready(Err(Self::broken()));
        }
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

impl Connected for KillableConnection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

#[cfg(test)]
mod tests;
