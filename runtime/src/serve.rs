//! A gRPC or HTTP server on a listener, owned by a task group.
//!
//! When the group is stopped, the server accepts no new connections and completes running calls. After the grace period
//! it closes all connections, so a server that is stopped without grace looks like a power failure to its clients.

use std::net::SocketAddr;
use std::pin::pin;

use futures::StreamExt;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::debug;

use crate::connection_limit::ConnectionLimit;
use crate::net::{CONNECTION_WINDOW_BYTES, Connection, KeepAlive, Listener, Origin, STREAM_WINDOW_BYTES};
use crate::peer::{Entrance, Openings, Refusals};
use crate::resource_counter::ResourceCounter;
use crate::tasks::Tasks;
use crate::tls::Security;

mod calls;
mod load_shed;
mod preface;
mod streams;

use calls::Calls;
pub use load_shed::LoadShed;
use preface::WithPreface;
use streams::{Streams, WithStreams};

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
    /// Hyper's server for connections of this origin.
    fn connections(&self, origin: Origin, streams: Streams) -> auto::Builder<Streams> {
        let (streams_max, keep_alive) = match origin {
            Origin::Public => (self.public_streams_max, self.public_keep_alive),
            Origin::Peer => (self.peer_streams_max, KeepAlive::CLUSTER),
        };
        let mut connections = auto::Builder::new(streams);
        if self.protocol == Protocol::Http2 {
            connections = connections.http2_only();
        }
        // Without a timer there is no timeout for the headers of a request.
        connections.http1().timer(TokioTimer::new());
        connections
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams_max)
            .max_pending_accept_reset_streams(CANCELLED_MAX)
            // Without a bound: it would hold for the life of a connection, and a message that arrives after its call was refused can count.
            .max_local_error_reset_streams(None)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout);
        connections
    }
}

/// Serves `routes` on `listener` until `tasks` is stopped; returns immediately. With TLS, if the listener's network has it.
pub fn serve(tasks: &Tasks, listener: Listener, routes: Routes, options: ServeOptions) {
    let limit = listener.connections().clone();
    let entrance = Entrance { tls: listener.tls().cloned(), protocol: options.protocol, refusals: Refusals::default() };
    // Otherwise the router clones all its routes for each call.
    let server = Server { tasks: tasks.clone(), limit, routes: routes.prepare(), options };
    tasks.spawn_until_stopped("accept", accept(listener, entrance, server));
}

/// Accepts connections, and serves each once its origin is known.
async fn accept(mut listener: Listener, entrance: Entrance, server: Server) {
    let mut openings = Openings::new(OPENINGS_MAX, entrance);
    loop {
        tokio::select! {
            biased;
            Some((origin, connection)) = openings.next() => server.start(origin, connection),
            accepted = listener.next() => match accepted {
                Some(Ok(connection)) => openings.push(connection),
                Some(Err(error)) => debug!(%error, "accept failed"),
                None => return,
            }
        }
    }
}

/// What serves each connection of a listener.
struct Server {
    tasks: Tasks,
    limit: ConnectionLimit,
    routes: Routes,
    options: ServeOptions,
}

impl Server {
    /// Serves a connection, if there is a slot for it.
    fn start(&self, origin: Origin, connection: Connection) {
        let Some(slot) = self.limit.admit(connection.peer(), connection.security()) else { return };
        let info = ConnectionInfo {
            peer: connection.peer(),
            security: connection.security().clone(),
            ..ConnectionInfo::default()
        };
        let stopped = self.tasks.token();
        let (closed, peer, streams) = (info.close.clone(), info.peer, Streams::default());
        let calls = Calls::new(self.options.load_shed.clone(), self.routes.clone(), info, streams.clone());
        let connections = self.options.connections(origin, streams.clone());
        let connection = TokioIo::new(WithPreface::new(connection, self.options.protocol));
        self.tasks.spawn("connection", async move {
            let mut serving = pin!(connections.serve_connection(connection, calls));
            let served = async {
                tokio::select! {
                    biased;
                    served = WithStreams::new(serving.as_mut(), &streams) => return served,
                    () = stopped.cancelled() => serving.as_mut().graceful_shutdown(),
                }
                WithStreams::new(serving, &streams).await
            };
            if let Some(Err(error)) = closed.run_until_cancelled(served).await {
                debug!(%error, ?peer, "connection ended");
            }
            drop(slot);
        });
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

#[cfg(test)]
mod tests;
