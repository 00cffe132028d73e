//! Which incoming connections are those of peers: processes of a cluster, each with the calls of many callers on one connection.
//!
//! A server allows few concurrent calls on a public connection, and many on that of a peer ([`crate::ServeOptions`]): a slow reader of one
//! front must not block the other calls of that front. Both use the same port. A peer therefore writes a [`PREAMBLE`] before its
//! HTTP/2 preface, and the listener reads and removes it. A connection that begins with anything else is public. It gets back what was read of
//! it, so every HTTP client is served.
//!
//! ```text
//!   accepted --> (handshake) --> Openings: first bytes
//!                                        +-- the preamble --------------------------------------------> peer
//!                                        +-- other bytes, silence, too many connections that wait ----> public
//!                                        +-- end of the stream ---------------------------------------> dropped
//! ```
//!
//! The preamble proves nothing, any program can write it, and it gives no right. Limits of calls and of memory count connections of both
//! sorts alike. With TLS the handshake comes first, and the preamble is inside; rights come from the certificate ([`crate::tls`]). A
//! handshake that fails, takes too long, or is displaced by newer connections ends its connection. No handshake waits for another one.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::net::{Connection, Origin};
use crate::serve::Protocol;
use crate::tls::{HANDSHAKE_RECORD, Refusal, Tls, end_tls};

/// The first bytes of a connection of a peer. No HTTP/2 preface (RFC 9113, section 3.4), no TLS record and no usual HTTP/1 method begins like it.
/// A server that does not know it refuses the connection at once.
pub const PREAMBLE: &[u8; 13] = b"ebla peer 1\r\n";

/// A connection without the preamble after this time counts as public.
const SILENCE: Duration = Duration::from_secs(5);

/// A connection whose origin is not known yet.
struct Opening {
    connection: Connection,
    /// What has been read.
    seen: [u8; PREAMBLE.len()],
    length: usize,
}

impl Opening {
    /// Reads until the origin is known. Cancel-safe: what has been read is kept.
    async fn origin(&mut self) -> io::Result<Origin> {
        while let Some(rest) = self.seen.get_mut(self.length..).filter(|rest| !rest.is_empty()) {
            let read = self.connection.read(rest).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.length += read;
            if !PREAMBLE.starts_with(self.bytes()) {
                return Ok(Origin::Public);
            }
        }
        Ok(Origin::Peer)
    }

    fn bytes(&self) -> &[u8] {
        self.seen.get(..self.length).unwrap_or_default()
    }

    /// The connection as its server reads it.
    fn into_connection(self, origin: Origin) -> Connection {
        match origin {
            Origin::Peer => self.connection,
            Origin::Public => {
                let unread = Bytes::copy_from_slice(self.bytes());
                self.connection.with_unread(unread)
            }
        }
    }
}

/// What connections must begin with: the TLS of their port, and its HTTP versions.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    /// `None`: there is no TLS.
    pub(crate) tls: Option<Tls>,
    pub(crate) protocol: Protocol,
    pub(crate) refusals: Refusals,
}

impl Entrance {
    /// The connection inside of TLS, if the port has it; `None` when it has ended or was refused.
    async fn secure(&self, connection: Connection, displaced: &CancellationToken) -> Option<Connection> {
        let Some(tls) = &self.tls else { return Some(connection) };
        let peer = connection.peer();
        let accepted = tokio::select! {
            biased;
            accepted = tls.accept(self.protocol, connection) => accepted,
            () = displaced.cancelled() => {
                let error = io::Error::other("too many handshakes at once: this one was the oldest");
                Err(Refusal::Failed(error))
            }
        };
        match accepted {
            Ok(connection) => Some(connection),
            Err(Refusal::Ended) => None,
            Err(refusal) => {
                self.refusals.report(peer, &refusal);
                None
            }
        }
    }

    /// Determines the origin of a connection; `None` when it has ended or was refused.
    async fn admit(&self, connection: Connection, displaced: &CancellationToken) -> Option<(Origin, Connection)> {
        let connection = self.secure(connection, displaced).await?;
        let (origin, connection) = identify(connection, displaced).await?;
        if self.tls.is_none() && connection.unread().first() == Some(&HANDSHAKE_RECORD) {
            tokio::select! {
                () = end_tls(connection) => {}
                () = displaced.cancelled() => {}
            }
            return None;
        }
        Some((origin, connection))
    }
}

/// The log of refused connections: anybody can cause one, so it has a line per [`REPORT_INTERVAL`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Arc<Mutex<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    last: Option<Instant>,
    /// Refusals since then without a line.
    unreported: u64,
}

/// See [`Refusals`].
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl Refusals {
    fn report(&self, peer: Option<SocketAddr>, refusal: &Refusal) {
        let now = Instant::now();
        let mut reported = self.0.lock();
        if reported.last.is_some_and(|last| now.saturating_duration_since(last) < REPORT_INTERVAL) {
            reported.unreported = reported.unreported.saturating_add(1);
            return;
        }
        let others = std::mem::take(&mut reported.unreported);
        reported.last = Some(now);
        drop(reported);
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        warn!(peer, others, error = %refusal, "TLS connection refused");
    }
}

/// Determines the origin of a connection; `None` when it ends before. It counts as public after [`SILENCE`], and when `displaced` is
/// cancelled.
async fn identify(connection: Connection, displaced: &CancellationToken) -> Option<(Origin, Connection)> {
    let mut opening = Opening { connection, seen: [0; PREAMBLE.len()], length: 0 };
    let origin = tokio::select! {
        biased;
        origin = opening.origin() => origin.ok()?,
        () = displaced.cancelled() => Origin::Public,
        () = tokio::time::sleep(SILENCE) => Origin::Public,
    };
    Some((origin, opening.into_connection(origin)))
}

/// Connections whose origins are not known yet, at most `max` of them. When there are more, the one that has waited longest counts as
/// public, so that silent connections cannot keep peers out. In a handshake of TLS, it ends instead.
pub(crate) struct Openings {
    max: usize,
    entrance: Entrance,
    waiting: FuturesUnordered<BoxFuture<'static, Option<(Origin, Connection)>>>,
    /// One for each in the order of their arrival, and some of those whose origin is known meanwhile. Cancelled: it is known, or shall not be waited for.
    displaced: VecDeque<CancellationToken>,
}

impl Openings {
    /// No connections.
    pub(crate) fn new(max: usize, entrance: Entrance) -> Self {
        Self { max, entrance, waiting: FuturesUnordered::new(), displaced: VecDeque::new() }
    }

    /// Adds a connection that was accepted.
    pub(crate) fn push(&mut self, connection: Connection) {
        while self.displaced.front().is_some_and(CancellationToken::is_cancelled) {
            self.displaced.pop_front();
        }
        if self.waiting.len() >= self.max
            && let Some(oldest) = self.displaced.pop_front()
        {
            oldest.cancel();
        }
        let displaced = CancellationToken::new();
        self.displaced.push_back(displaced.clone());
        let entrance = self.entrance.clone();
        self.waiting.push(Box::pin(async move {
            let _known = displaced.clone().drop_guard();
            entrance.admit(connection, &displaced).await
        }));
    }

    /// The next connection whose origin is known; `None` when there are no connections. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<(Origin, Connection)> {
        while let Some(identified) = self.waiting.next().await {
            if identified.is_some() {
                return identified;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream};

    use super::*;

    fn plain() -> Entrance {
        Entrance { tls: None, protocol: Protocol::Http2, refusals: Refusals::default() }
    }

    /// The two ends of a connection, of which at most `bytes` are under way.
    fn pipe(bytes: usize) -> (DuplexStream, Connection) {
        let (client, server) = tokio::io::duplex(bytes);
        (client, Connection::new(server, None))
    }

    /// Sends `bytes` in pieces of at most `piece`, then the end of the stream. Returns the origin, and what the server reads.
    async fn sent(bytes: &[u8], piece: usize) -> Option<(Origin, Vec<u8>)> {
        let (mut client, connection) = pipe(piece);
        let send = async move { client.write_all(bytes).await.unwrap() };
        let receive = async {
            let (origin, mut connection) = identify(connection, &CancellationToken::new()).await?;
            let mut read = Vec::new();
            connection.read_to_end(&mut read).await.unwrap();
            Some((origin, read))
        };
        futures::join!(send, receive).1
    }

    #[tokio::test]
    async fn the_preamble_of_a_peer_is_removed_however_it_is_cut() {
        for piece in [1, 5, PREAMBLE.len(), 64] {
            let bytes = [&PREAMBLE[..], b"PRI * HTTP/2.0"].concat();
            assert_eq!(sent(&bytes, piece).await, Some((Origin::Peer, b"PRI * HTTP/2.0".to_vec())), "{piece}");
            let twice = [&PREAMBLE[..], &PREAMBLE[..]].concat();
            assert_eq!(sent(&twice, piece).await, Some((Origin::Peer, PREAMBLE.to_vec())), "{piece}");
        }
    }

    #[tokio::test]
    async fn a_public_connection_gets_back_what_was_read() {
        let almost = [&PREAMBLE[..12], b"\0 and more"].concat();
        for bytes in [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"e",
            b"ebla",
            &almost[..],
        ] {
            let wanted = if PREAMBLE.starts_with(bytes) { None } else { Some((Origin::Public, bytes.to_vec())) };
            for piece in [1, 5, 64] {
                assert_eq!(sent(bytes, piece).await, wanted, "{}", bytes.escape_ascii());
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_its_origin_is_known_is_dropped() {
        assert_eq!(sent(b"", 64).await, None);
        assert_eq!(sent(&PREAMBLE[..12], 1).await, None);
        let mut openings = Openings::new(4, plain());
        let (client, connection) = pipe(64);
        openings.push(connection);
        drop(client);
        assert!(openings.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_public_after_a_while() {
        for bytes in [&b""[..], &PREAMBLE[..7]] {
            let started = Instant::now();
            let (mut client, connection) = pipe(64);
            client.write_all(bytes).await.unwrap();
            let (origin, mut connection) = identify(connection, &CancellationToken::new()).await.unwrap();
            assert_eq!((origin, started.elapsed().as_secs()), (Origin::Public, SILENCE.as_secs()));
            client.write_all(b" late").await.unwrap();
            drop(client);
            let mut read = Vec::new();
            connection.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, [bytes, b" late"].concat());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_are_bounded_and_keep_no_peer_out() {
        let started = Instant::now();
        let mut openings = Openings::new(2, plain());
        let mut silent = Vec::new();
        for number in 0..4 {
            let (client, connection) = tokio::io::duplex(64);
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], number));
            openings.push(Connection::new(connection, Some(address)));
            silent.push(client);
        }
        for number in 0..2 {
            let (origin, connection) = openings.next().await.unwrap();
            assert_eq!(
                (origin, connection.peer().unwrap().port()),
                (Origin::Public, number),
                "the oldest is displaced"
            );
        }
        let (mut client, connection) = pipe(64);
        client.write_all(PREAMBLE).await.unwrap();
        openings.push(connection);
        let mut origins = Vec::new();
        for _ in 0..2 {
            origins.push(openings.next().await.unwrap().0);
        }
        assert!(origins.contains(&Origin::Peer) && origins.contains(&Origin::Public), "{origins:?}");
        assert_eq!(started.elapsed(), Duration::ZERO, "no connection waited for the silent ones");
        assert_eq!(openings.next().await.unwrap().0, Origin::Public);
        assert_eq!(started.elapsed().as_secs(), SILENCE.as_secs());
        assert!(openings.next().await.is_none());
    }
}
