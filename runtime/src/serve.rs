//! A server of gRPC, or of anything else over HTTP, on a listener, owned by a group of tasks.
//!
//! When the group is told to end, the server takes no new connections and lets running calls finish. When its grace is
//! over, connections are cut, so that a server stopped without warning looks like one that lost its power.

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

use crate::meter::Meter;
use crate::net::{
    CONNECTION_WINDOW_BYTES, Connection, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, Listener, STREAM_WINDOW_BYTES,
};
use crate::tasks::Tasks;

/// What connections may speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// HTTP/2 from its first byte, as gRPC does.
    #[default]
    Http2,
    /// HTTP/1.1 too, as scripts and browsers do without TLS.
    Http1Too,
}

/// How a server treats its connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Calls at once on one connection; more wait.
    pub concurrent_streams_max: u32,
    /// What it understands.
    pub protocol: Protocol,
    /// A silent connection is probed this often.
    pub keep_alive_interval: Duration,
    /// A probe without an answer closes the connection after this.
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

/// Serves `routes` on `listener` until `tasks` is told to end; returns at once.
pub fn serve(tasks: &Tasks, listener: Listener, routes: Routes, options: ServeOptions) {
    let (token, killed) = (tasks.token(), tasks.killed());
    let incoming = listener.map(move |connection| connection.map(|it| Guarded::new(it, killed.clone())));
    let server = Server::builder()
        .accept_http1(options.protocol == Protocol::Http1Too)
        .max_concurrent_streams(options.concurrent_streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(options.keep_alive_interval))
        .http2_keepalive_timeout(Some(options.keep_alive_timeout))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, token.cancelled_owned());
    tasks.spawn("serve", async move {
        if let Err(error) = server.await {
            warn!(%error, "server ended");
        }
    });
}

/// Where a request came in: stands in the extensions of each.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The address of the other side, for logs.
    pub peer: Option<SocketAddr>,
    /// What the requests of this connection hold; who counts what is up to the services.
    pub held: Meter,
}

/// A connection that breaks when the server is killed: tonic's own tasks hold it, and nobody else can end them.
struct Guarded {
    connection: Connection,
    killed: Pin<Box<WaitForCancellationFutureOwned>>,
    token: CancellationToken,
    held: Meter,
}

impl Guarded {
    fn new(connection: Connection, token: CancellationToken) -> Self {
        Self { connection, killed: Box::pin(token.clone().cancelled_owned()), token, held: Meter::default() }
    }

    fn broken() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, "the server was stopped")
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // A connection always waits to read, so this is where it is woken by the kill.
        if self.killed.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(Self::broken()));
        }
        Pin::new(&mut self.connection).poll_read(context, into)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.token.is_cancelled() {
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
        if self.token.is_cancelled() {
            return Poll::Ready(Err(Self::broken()));
        }
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

impl Connected for Guarded {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Origin {
        Origin { peer: self.connection.connect_info(), held: self.held.clone() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::net::Net;

    #[tokio::test]
    async fn a_killed_server_cuts_its_connections() {
        let tasks = Tasks::new("test");
        let listener = Net::tcp().listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&tasks, listener, Routes::default(), ServeOptions::default());
        let mut connection = Net::tcp().connect(&address).await.unwrap();
        // The server speaks first in HTTP/2 only after the client's preface; a read just waits for the cut.
        tasks.stop(Duration::ZERO).await;
        let mut seen = Vec::new();
        let _cut = connection.read_to_end(&mut seen).await;
        assert!(Net::tcp().connect(&address).await.is_err());
    }
}
