//! The network interface: TCP here, a simulated network through the same [`Network`] trait.
//!
//! Addresses are `host:port` text, resolved by the network at each connect. A [`Connection`] is a boxed byte stream: one
//! virtual call per read or write, far below the cost of the system call. With [`Tls`] a channel opens it on each connection, and a listener
//! requires it.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tracing::warn;

use crate::connection_limit::ConnectionLimit;
use crate::peer::PREAMBLE;
use crate::tls::{self, PEER_HANDSHAKE_TIMEOUT, Security, Tls};

/// Timeout of a connect attempt.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// HTTP/2 windows. The default of 64 KiB would stall a scan every few rows.
pub const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// See [`STREAM_WINDOW_BYTES`]; shared by all streams of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// When an HTTP/2 connection is closed because its other side is silent (RFC 9113, section 6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Interval of probes on a connection on which nothing is received.
    pub interval: Duration,
    /// Time without a response to a probe after which the connection is closed, with its calls.
    pub timeout: Duration,
}

impl KeepAlive {
    /// For callers that send the same request to another server when a connection is lost: a frozen server is abandoned after eight seconds.
    pub const CLUSTER: Self = Self { interval: Duration::from_secs(5), timeout: Duration::from_secs(3) };
    /// For public clients and their servers, with the timeout that is gRPC's default. A program that collects garbage or occupies its only thread is
    /// silent for seconds, and so is every process of a machine that is suspended or overloaded; the calls of a closed connection would fail.
    pub const PUBLIC: Self = Self { interval: Duration::from_secs(5), timeout: Duration::from_secs(20) };
}

/// The HTTP/2 windows of a channel, in bytes: what the other side may send before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Of each call.
    pub stream: u32,
    /// Of all calls together. Responses that are not read take it from the other calls.
    pub connection: u32,
}

impl Windows {
    /// For calls whose responses are read at once.
    pub const CALLS: Self = Self { stream: STREAM_WINDOW_BYTES, connection: CONNECTION_WINDOW_BYTES };
    /// For scans, which may wait for their reader: 512 of them before they block others.
    pub const SCANS: Self = Self { stream: 512 * 1024, connection: 256 * 1024 * 1024 };
}

/// Which sort of process opens a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Any client of a public API. Its server allows few concurrent calls on a connection.
    Public,
    /// A process that sends the calls of many callers to a server of its own cluster, on one connection. Its server allows many concurrent calls.
    /// Only servers of this system understand such a connection ([`crate::peer`]).
    Peer,
}

/// A byte stream of a [`Network`].
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Creates listeners and connections. One implementation is TCP; a simulation has its own.
pub trait Network: Send + Sync + fmt::Debug {
    /// Binds `address` (`host:port`, port 0: any free one).
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>>;
    /// Opens a connection to `address`. It has no timeout: callers must set one.
    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>>;
}

/// A network, with TLS on it or without; cheap to clone.
#[derive(Clone, Debug)]
pub struct Net {
    network: Arc<dyn Network>,
    tls: Option<Tls>,
    connections: ConnectionLimit,
}

impl Net {
    /// The machine's TCP.
    #[must_use]
    pub fn tcp() -> Self {
        Self::custom(Arc::new(Tcp))
    }

    /// Any other network, such as a simulated one.
    #[must_use]
    pub fn custom(network: Arc<dyn Network>) -> Self {
        Self { network, tls: None, connections: ConnectionLimit::default() }
    }

    /// The same network: its listeners and channels use TLS. [`Self::connect`] does not.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// The same network, whose listeners accept as many connections together as the limit permits.
    #[must_use]
    pub fn with_connections(self, connections: ConnectionLimit) -> Self {
        Self { connections, ..self }
    }

    /// The limit of the connections of its listeners, which counts them.
    #[must_use]
    pub const fn connection_limit(&self) -> &ConnectionLimit {
        &self.connections
    }

    /// The same network without TLS.
    #[must_use]
    pub fn without_tls(&self) -> Self {
        Self { tls: None, ..self.clone() }
    }

    /// The TLS of its listeners and channels, if they use it.
    #[must_use]
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Binds `address` (`host:port`, port 0: any free one).
    ///
    /// # Errors
    /// The network's error, such as an address in use; `InvalidInput` when there is TLS without the certificate of a server.
    pub async fn listen(&self, address: &str) -> io::Result<Listener> {
        if let Some(tls) = &self.tls {
            tls.check_server().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        }
        let listener = self.network.listen(address.to_owned()).await?;
        Ok(Listener { tls: self.tls.clone(), connections: self.connections.clone(), ..listener })
    }

    /// Opens a connection to `address` (`host:port`), never with TLS.
    ///
    /// # Errors
    /// The network's error; `TimedOut` after [`CONNECT_TIMEOUT`].
    pub async fn connect(&self, address: &str) -> io::Result<Connection> {
        let attempt = self.network.connect(address.to_owned());
        tokio::time::timeout(CONNECT_TIMEOUT, attempt)
            .await
            .unwrap_or_else(|_elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, "connect timed out")))
    }

    /// As [`Self::connect`], to the HTTP port of a process: with TLS if this network has it.
    ///
    /// # Errors
    /// As [`Self::connect`]; what is wrong with the certificate of the other side, or with this one's.
    pub async fn connect_http(&self, address: &str) -> io::Result<Connection> {
        let connection = self.connect(address).await?;
        match &self.tls {
            Some(tls) => tls::connect_http1(tls, address, connection).await,
            None => Ok(connection),
        }
    }

    /// A gRPC channel to `address`, of a public client, that connects at its first call and reconnects after a disconnect. The other side may be
    /// any server.
    ///
    /// If `address` is not `host:port`, every call of the channel fails as unavailable: addresses come from the wire, and a
    /// bad one looks like an unavailable server to the caller.
    #[must_use]
    pub fn channel(&self, address: &str) -> Channel {
        self.open(Origin::Public, address, Windows::CALLS, KeepAlive::PUBLIC)
    }

    /// As [`Self::channel`], to a server of this process's own cluster, which then allows many concurrent calls.
    #[must_use]
    pub fn peer_channel(&self, address: &str) -> Channel {
        self.channel_of(Origin::Peer, address, Windows::CALLS)
    }

    /// As [`Self::channel`], of this origin and with these windows, for callers that have other servers to use: [`KeepAlive::CLUSTER`].
    #[must_use]
    pub fn channel_of(&self, origin: Origin, address: &str, windows: Windows) -> Channel {
        self.open(origin, address, windows, KeepAlive::CLUSTER)
    }

    fn open(&self, origin: Origin, address: &str, windows: Windows, keep_alive: KeepAlive) -> Channel {
        let connector = Connector { net: self.clone(), address: address.to_owned(), origin };
        let (scheme, timeout) = match &self.tls {
            Some(_tls) => ("https", CONNECT_TIMEOUT.saturating_add(PEER_HANDSHAKE_TIMEOUT)),
            None => ("http", CONNECT_TIMEOUT),
        };
        // The connector ignores the URI and uses `address`; the URI is only the `:scheme` and the `:authority` of requests.
        Endpoint::from_shared(format!("{scheme}://{address}"))
            .unwrap_or_else(|_invalid| Endpoint::from_static("http://invalid.invalid"))
            .connect_timeout(timeout)
            .http2_keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(windows.stream)
            .initial_connection_window_size(windows.connection)
            .tcp_nodelay(true)
            .connect_with_connector_lazy(connector)
    }
}

/// Opens connections for tonic.
struct Connector {
    net: Net,
    address: String,
    origin: Origin,
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Connection>>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let (net, address, origin) = (self.net.clone(), self.address.clone(), self.origin);
        Box::pin(async move {
            let mut connection = net.connect(&address).await?;
            if let Some(tls) = &net.tls {
                connection = tls::connect(tls, &address, origin, connection).await?;
            }
            if origin == Origin::Peer {
                connection.write_all(PREAMBLE).await?;
                connection.flush().await?;
            }
            Ok(TokioIo::new(connection))
        })
    }
}

/// An open byte stream.
pub struct Connection {
    stream: Pin<Box<dyn ByteStream>>,
    peer: Option<SocketAddr>,
    /// What is read before the stream.
    unread: Bytes,
    security: Security,
}

impl Connection {
    /// Wraps a network's stream; `peer` is for logs.
    #[must_use]
    pub fn new(stream: impl ByteStream + 'static, peer: Option<SocketAddr>) -> Self {
        Self { stream: Box::pin(stream), peer, unread: Bytes::new(), security: Security::Plain }
    }

    /// The same connection, from which `unread` is read before anything else.
    pub(crate) fn with_unread(self, unread: Bytes) -> Self {
        Self { unread, ..self }
    }

    /// What has been read and will be read again.
    pub(crate) const fn unread(&self) -> &Bytes {
        &self.unread
    }

    /// The same connection, secured in this way.
    pub(crate) fn with_security(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// How it is secured, and who is at its other end.
    #[must_use]
    pub const fn security(&self) -> &Security {
        &self.security
    }

    /// The peer's address, if the network knows it.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread.split_to(length));
            return Poll::Ready(Ok(()));
        }
        self.stream.as_mut().poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Option<SocketAddr> {
        self.peer
    }
}

/// A bound address with its incoming connections: a stream that never ends and never fails. The connections are as the network accepts them:
/// [`crate::serve()`] completes the handshakes of TLS.
pub struct Listener {
    address: SocketAddr,
    tls: Option<Tls>,
    connections: ConnectionLimit,
    incoming: Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>>,
}

impl Listener {
    /// Wraps a network's listener. `incoming` must handle failed accepts itself.
    #[must_use]
    pub fn new(address: SocketAddr, incoming: impl Stream<Item = io::Result<Connection>> + Send + 'static) -> Self {
        Self { address, tls: None, connections: ConnectionLimit::default(), incoming: Box::pin(incoming) }
    }

    /// The TLS that its connections must use, if any.
    #[must_use]
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The limit of its open connections, which it may share with other listeners.
    #[must_use]
    pub const fn connections(&self) -> &ConnectionLimit {
        &self.connections
    }

    /// The bound address with the actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Stream for Listener {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.incoming.as_mut().poll_next(context)
    }
}

/// The machine's TCP.
#[derive(Debug)]
struct Tcp;

impl Network for Tcp {
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            let incoming = futures::stream::unfold(listener, |listener| async move {
                let connection = accepted(&listener).await;
                Some((Ok(connection), listener))
            });
            Ok(Listener::new(address, incoming))
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move { of_tcp(TcpStream::connect(address).await?) })
    }
}

/// Accepts the next connection. Failures (a peer that has already disconnected, no file descriptors) are retried after a
/// pause, so that a server does not stop accepting after a temporary failure.
async fn accepted(listener: &TcpListener) -> Connection {
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        match listener.accept().await.and_then(|(stream, _peer)| of_tcp(stream)) {
            Ok(connection) => return connection,
            Err(error) => {
                warn!(%error, "accept failed; retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn of_tcp(stream: TcpStream) -> io::Result<Connection> {
    // Small requests must not wait for the TCP acknowledgement of the previous one.
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr().ok();
    Ok(Connection::new(stream, peer))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_pass_between_the_two_ends() {
        let net = Net::tcp();
        let mut listener = net.listen("127.0.0.1:0").await.unwrap();
        let mut near = net.connect(&listener.local_addr().to_string()).await.unwrap();
        let mut far = listener.next().await.unwrap().unwrap();
        near.write_all(b"hello").await.unwrap();
        let mut seen = [0; 5];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"hello");
    }

    #[tokio::test]
    async fn a_channel_to_an_invalid_address_is_created_and_fails_when_used() {
        let _channel = Net::tcp().channel("no address at all");
        assert!(Net::tcp().connect("127.0.0.1:1").await.is_err());
    }
}
