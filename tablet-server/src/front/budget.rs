//! How many bytes of requests a front holds, for each connection and over all.
//!
//! A message is read into memory as a whole before anybody looks at it, so it is counted when it announces its length,
//! before its first byte is taken in, until its call is answered. One that finds no room is refused at once with
//! `ResourceExhausted`: a caller who is let in with a part of it would wait for others who wait for him.
//!
//! Small messages may use a part of the whole that large ones leave free, so that a burst of large writes does not lock
//! out those who read. How many bytes of writes a tablet takes on is bounded further in (`tablet::admission`).

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use ebla_model::{Error, Reason};
use ebla_proto::status::to_status;
use ebla_runtime::{Held, Meter, Origin};
use hyper::body::{Body, Frame};
use tonic::{
    Status,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
};

use super::limits::MESSAGE_BYTES_MAX;

/// A message of at most so many bytes is a small one.
const SMALL_BYTES: usize = 64 * 1024;
/// Large messages leave this part of the whole to small ones.
const RESERVE: usize = 8;
/// What gRPC puts before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// How many bytes of requests a front may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBytes {
    /// On all connections together; large messages get seven eighths of it.
    pub total: usize,
    /// On one connection.
    pub connection: usize,
}

impl Default for RequestBytes {
    /// Room for the largest message twice over, and on each connection for one.
    fn default() -> Self {
        Self { total: 2 * MESSAGE_BYTES_MAX + (64 << 20), connection: MESSAGE_BYTES_MAX + (1 << 20) }
    }
}

/// The bytes of requests that a front holds. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    bounds: RequestBytes,
    held: Meter,
}

/// What a message holds until it is dropped.
#[derive(Debug)]
struct Charge {
    _total: Held,
    _connection: Held,
}

impl Budget {
    /// A budget of which nothing is used.
    pub(super) fn new(bounds: RequestBytes) -> Self {
        Self { bounds, held: Meter::default() }
    }

    fn charge(&self, connection: &Meter, bytes: usize) -> Result<Charge, Error> {
        let RequestBytes { total, connection: each } = self.bounds;
        let bound = if bytes <= SMALL_BYTES { total } else { total - total / RESERVE };
        let full = |place: &str| {
            let message = format!("the requests under way on {place} leave no room for {bytes} bytes more");
            Error::new(Reason::ResourceExhausted, message)
        };
        Ok(Charge {
            _connection: connection.take(bytes, each).ok_or_else(|| full("this connection"))?,
            _total: self.held.take(bytes, bound).ok_or_else(|| full("this server"))?,
        })
    }
}

/// A service whose requests are counted.
#[derive(Clone, Debug)]
pub(super) struct Budgeted<S> {
    service: S,
    budget: Budget,
}

impl<S> Budgeted<S> {
    /// Counts the requests of `service`.
    pub(super) const fn new(service: S, budget: Budget) -> Self {
        Self { service, budget }
    }
}

impl<S: NamedService> NamedService for Budgeted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<tonic::body::Body>> for Budgeted<S>
where
    S: Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let connection = request.extensions().get::<Origin>().map(|origin| origin.held.clone()).unwrap_or_default();
        let charges = Charges { budget: self.budget.clone(), connection, held: Arc::default() };
        let until_answered = Arc::clone(&charges.held);
        let counted = |body| tonic::body::Body::new(Counted { body, reader: Reader::default(), charges });
        let answer = self.service.call(request.map(counted));
        Box::pin(async move {
            let answer = answer.await;
            drop(until_answered);
            answer
        })
    }
}

/// What one call holds.
struct Charges {
    budget: Budget,
    connection: Meter,
    /// Guards a list: one message for all calls but streams. Shared by the body, which adds to it and ends early, and the
    /// call, which ends when it is answered.
    held: Arc<Mutex<Vec<Charge>>>,
}

/// A request's body, each of its messages counted when it begins.
struct Counted {
    body: tonic::body::Body,
    reader: Reader,
    charges: Charges,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let begun = self.reader.read(data);
            if begun > 0 {
                match self.charges.budget.charge(&self.charges.connection, begun) {
                    Ok(charge) => {
                        self.charges.held.lock().unwrap_or_else(PoisonError::into_inner).push(charge);
                    }
                    Err(error) => return Poll::Ready(Some(Err(to_status(&error)))),
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Follows the messages of a body through its pieces.
#[derive(Debug, Default)]
struct Reader {
    /// What has come of the next message's prefix.
    prefix: [u8; PREFIX_BYTES],
    prefix_read: usize,
    /// What is still to come of the message that has begun.
    left: usize,
}

impl Reader {
    /// Reads on; the lengths in bytes of the messages that begin in this piece.
    fn read(&mut self, mut piece: &[u8]) -> usize {
        let mut begun = 0_usize;
        while !piece.is_empty() {
            if self.left > 0 {
                let inside = self.left.min(piece.len());
                self.left -= inside;
                piece = piece.get(inside..).unwrap_or_default();
                continue;
            }
            let Some((byte, rest)) = piece.split_first() else { break };
            piece = rest;
            if let Some(place) = self.prefix.get_mut(self.prefix_read) {
                *place = *byte;
            }
            self.prefix_read += 1;
            if self.prefix_read == PREFIX_BYTES {
                let [_compressed, length @ ..] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.prefix_read = 0;
                begun = begun.saturating_add(self.left);
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests;
