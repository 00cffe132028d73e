//! A connection whose client has to begin in time.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::Protocol;
use crate::net::Connection;

/// How long a connection may take until its client has sent the preface of HTTP/2 (RFC 9113, section 3.4), or the first byte of HTTP/1.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of the preface of HTTP/2.
const PREFACE_BYTES: usize = 24;

/// A connection that fails when its client does not begin within [`PREFACE_TIMEOUT`].
pub(super) struct WithPreface {
    connection: Connection,
    /// `None`: it has begun.
    preface: Option<Preface>,
}

/// What a client has to send in time.
struct Preface {
    late: Pin<Box<Sleep>>,
    missing_bytes: usize,
}

impl WithPreface {
    pub(super) fn new(connection: Connection, protocol: Protocol) -> Self {
        let late = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        let missing_bytes = if protocol == Protocol::Http2 { PREFACE_BYTES } else { 1 };
        Self { connection, preface: Some(Preface { late, missing_bytes }) }
    }
}

impl Preface {
    /// Counts bytes that were read; whether the preface is complete.
    const fn has_arrived(&mut self, bytes: usize) -> bool {
        self.missing_bytes = self.missing_bytes.saturating_sub(bytes);
        self.missing_bytes == 0
    }
}

impl AsyncRead for WithPreface {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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

impl AsyncWrite for WithPreface {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}
