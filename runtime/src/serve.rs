//! A gRPC or HTTP server on a listener, owned by a task group.
//!
//! When the group is stopped, the server accepts no new connections and completes running calls. After the grace period
//! it closes all connections, so a server that is stopped without grace looks like a power failure to its clients.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::net::{
    CONNECTION_WINDOW_BYTES, Connection, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, Listener, STREAM_WINDOW_BYTES,
};
use crate::resource_counter::ResourceCounter;
use crate::tasks::Tasks;

/// HTTP versions that a server accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// HTTP/2 only, with prior knowledge, as gRPC uses it.
    #[default]
    Http2,
    /// HTTP/1.1 too, as scripts and browsers use it without TLS.
    Http1AndHttp2,
}

/// Connection options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Maximum number of concurrent calls on one connection; more wait.
    pub concurrent_streams_max: u32,
    /// Accepted HTTP versions.
    pub protocol: Protocol,
    /// Interval of keep-alive probes on an idle connection.
    pub keep_alive_interval: Duration,
    /// Time without a response to a probe after which the connection is closed.
    pub keep_alive_timeout: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            concurrent_streams_max: 4_096,
            protocol: Protocol::default(),
            keep_alive_interval: KEEP_ALIVE_INTERVAL,
            keep_alive_timeout: KEEP_ALIVE_TIMEOUT,
        }
    }
}

/// Serves `routes` on `listener` until `tasks` is stopped; returns immediately.
pub fn serve(tasks: &Tasks, listener: Listener, routes: Routes, options: ServeOptions) {
    let (token, killed) = (tasks.token(), tasks.killed());
    let incoming = listener.map(move |connection| connection.map(|it| KillableConnection::new(it, &killed)));
    let server = Server::builder()
        .accept_http1(options.protocol == Protocol::Http1AndHttp2)
        .max_concurrent_streams(options.concurrent_streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(options.keep_alive_interval))
        .http2_keepalive_timeout(Some(options.keep_alive_timeout))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, token.cancelled_owned());
    tasks.spawn("serve", async move {
        if let Err(error) = server.await {
            warn!(%error, "server stopped with an error");
        }
    });
}

/// The connection of a request, in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The peer's address, for logs.
    pub peer: Option<SocketAddr>,
    /// Resources that the requests of this connection use. The services define the unit.
    pub usage: ResourceCounter,
    /// The calls in progress on this connection, of the services that count them.
    pub calls: ResourceCounter,
    /// Bytes of responses that are prepared for this connection and not sent, of the services that count them.
    pub unsent: ResourceCounter,
    /// Closes the connection, with all its calls, when cancelled.
    pub close: CancellationToken,
}

/// A connection that fails when it is closed or the server is killed: tonic's own tasks own it, and nothing else can stop them.
struct KillableConnection {
    connection: Connection,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    info: ConnectionInfo,
}

impl KillableConnection {
    fn new(connection: Connection, killed: &CancellationToken) -> Self {
        let close = killed.child_token();
        let closed = Box::pin(close.clone().cancelled_owned());
        let info = ConnectionInfo { peer: connection.peer(), close, ..ConnectionInfo::default() };
        Self { connection, closed, info }
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
        Pin::new(&mut self.connection).poll_read(context, into)
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
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::net::Net;

    #[tokio::test]
    async fn a_killed_server_closes_its_connections() {
        let tasks = Tasks::new("test");
        let listener = Net::tcp().listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&tasks, listener, Routes::default(), ServeOptions::default());
        let mut connection = Net::tcp().connect(&address).await.unwrap();
        // The server sends nothing before the client's HTTP/2 preface, so the read waits for the disconnect.
        tasks.stop(Duration::ZERO).await;
        let mut seen = Vec::new();
        let _cut = connection.read_to_end(&mut seen).await;
        assert!(Net::tcp().connect(&address).await.is_err());
    }
}
