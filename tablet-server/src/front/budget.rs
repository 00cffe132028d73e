//! The memory budget for requests, for each connection and for the whole front.
//!
//! A message is read into memory as a whole before it is decoded, so its bytes are charged when its length prefix arrives,
//! before the first byte of its content is read, and released when its call is answered. A message that exceeds the budget
//! is refused at once with `ResourceExhausted`: admitting part of it could deadlock with other calls that wait.
//! Large messages cannot use the whole budget, so that a burst of large writes does not block small requests. The bytes
//! of writes in flight in a tablet are limited by `tablet::write::admission`.
//!
//! Calls that carry no rows have a smaller limit for their message ([`message_bytes_max`]): an encoded list of many short elements takes many times
//! its size in memory once it is decoded, which is before the rights of the caller for the table are known.
//!
//! A message must arrive within a time that depends on its size ([`arrival_timeout`]): a client that announces a large one and sends a byte
//! a second would keep its charge, and the place of its call, for as long as it likes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use ebla_model::{Error, Reason};
use ebla_proto::status::to_status;
use ebla_runtime::{ConnectionInfo, Reservation, ResourceCounter, metrics::Counter, trace};
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tonic::Status;

use super::{
    MESSAGE_BYTES_MAX,
    metrics::{FrontMetrics, FrontService},
};
use crate::middleware::{CallFuture, CallRequest, GrpcService, Middleware};

/// The largest size of a small message, in bytes.
const SMALL_BYTES: usize = 64 * 1024;
/// Large messages leave this fraction of the total to small ones.
const RESERVED_FRACTION: usize = 8;
/// gRPC's prefix of a message: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// The time for a request without content to arrive, after its headers.
const ARRIVAL_MIN: Duration = Duration::from_secs(30);
/// The least rate at which the content arrives, in bytes per second: 256 MiB may take four minutes more.
const ARRIVAL_RATE: usize = 1 << 20;

/// The time for a request with content of this size in bytes to arrive.
fn arrival_timeout(bytes: usize) -> Duration {
    let seconds = u64::try_from(bytes / ARRIVAL_RATE).unwrap_or(u64::MAX);
    ARRIVAL_MIN.saturating_add(Duration::from_secs(seconds))
}

/// The largest request of a read: the keys and ranges that it asks for, and its filter.
const READ_BYTES_MAX: usize = 4 << 20;
/// The largest request that names a table, a view or an instance alone.
const NAME_BYTES_MAX: usize = 64 << 10;

/// The largest message that a call of this path may have, in bytes.
fn message_bytes_max(path: &str) -> usize {
    match path {
        "/google.bigtable.v2.Bigtable/ReadRows" => READ_BYTES_MAX,
        "/google.bigtable.v2.Bigtable/SampleRowKeys" | "/google.bigtable.v2.Bigtable/PingAndWarm" => NAME_BYTES_MAX,
        _ => MESSAGE_BYTES_MAX,
    }
}

/// The limits of a front's memory for requests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBytes {
    /// All connections together; large messages may use seven eighths of it.
    pub total: usize,
    /// One connection.
    pub connection: usize,
}

impl Default for RequestBytes {
    /// Room for two messages of the largest size in total, and for one on each connection.
    fn default() -> Self {
        Self { total: 2 * MESSAGE_BYTES_MAX + (64 << 20), connection: MESSAGE_BYTES_MAX + (1 << 20) }
    }
}

/// The bytes of requests of one sort that a front holds. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RequestBudget {
    bounds: RequestBytes,
    used: ResourceCounter,
    /// Bytes of messages that were charged, and messages that were refused.
    accepted_bytes: Counter,
    refused: Counter,
}

/// The bytes charged for one message, until it is dropped.
#[derive(Debug)]
struct Charge {
    _total: Reservation,
    _connection: Reservation,
}

impl RequestBudget {
    /// An unused budget.
    pub(super) fn new(bounds: RequestBytes) -> Self {
        Self {
            bounds,
            used: ResourceCounter::default(),
            accepted_bytes: Counter::default(),
            refused: Counter::default(),
        }
    }

    /// The same, counted by these metrics as a part of the API.
    pub(super) fn counted_by(self, metrics: &FrontMetrics, part: FrontService) -> Self {
        Self { accepted_bytes: metrics.request_bytes(part), refused: metrics.out_of_memory(), ..self }
    }

    fn charge(&self, connection: &ResourceCounter, bytes: usize) -> Result<Charge, Error> {
        let RequestBytes { total, connection: each } = self.bounds;
        let bound = if bytes <= SMALL_BYTES { total } else { total - total / RESERVED_FRACTION };
        let full = |scope: &str| {
            let message = format!("requests in flight on {scope} leave no room for {bytes} more bytes; retry later");
            Error::new(Reason::ResourceExhausted, message)
        };
        Ok(Charge {
            _connection: connection.try_reserve(bytes, each).ok_or_else(|| full("this connection"))?,
            _total: self.used.try_reserve(bytes, bound).ok_or_else(|| full("this server"))?,
        })
    }
}

/// Charges the requests of a service.
impl Middleware for RequestBudget {
    fn call(&self, service: &mut impl GrpcService, request: CallRequest) -> CallFuture {
        let connection =
            request.extensions().get::<ConnectionInfo>().map(|origin| origin.usage.clone()).unwrap_or_default();
        let bytes_max = message_bytes_max(request.uri().path());
        let charges = Charges { budget: self.clone(), connection, bytes_max, used: Arc::default() };
        let until_response = Arc::clone(&charges.used);
        let counted = |body| tonic::body::Body::new(CountedBody::new(body, charges));
        let response = service.call(request.map(counted));
        Box::pin(async move {
            let response = response.await;
            drop(until_response);
            response
        })
    }
}

/// The charges of one call.
struct Charges {
    budget: RequestBudget,
    connection: ResourceCounter,
    /// The largest message.
    bytes_max: usize,
    /// Guards a list: one message except in client streams. Shared by the body, which adds to it and ends early, and the
    /// call, which ends when it is answered.
    used: Arc<Mutex<Vec<Charge>>>,
}

impl Charges {
    /// Charges messages of this size together, which begin.
    fn begin(&self, bytes: usize) -> Result<(), Error> {
        if bytes > self.bytes_max {
            let message = format!("the request has {bytes} bytes, the limit of this call is {}", self.bytes_max);
            return Err(Error::invalid(message));
        }
        let charge =
            self.budget.charge(&self.connection, bytes).inspect_err(|_refused| self.budget.refused.increment())?;
        trace::with_current(|operation| operation.add_request_bytes(bytes));
        self.budget.accepted_bytes.add(u64::try_from(bytes).unwrap_or(u64::MAX));
        self.used.lock().push(charge);
        Ok(())
    }
}

/// A request's body that charges each message when it begins, and fails when it arrives too slowly.
struct CountedBody {
    body: tonic::body::Body,
    reader: MessageReader,
    charges: Charges,
    /// The length in bytes of all messages so far.
    announced: usize,
    /// The end of the time to arrive. Most requests have arrived before it is needed.
    late: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl CountedBody {
    fn new(body: tonic::body::Body, charges: Charges) -> Self {
        Self { body, reader: MessageReader::default(), charges, announced: 0, late: None }
    }

    fn announce(&mut self, bytes: usize) {
        let before = arrival_timeout(self.announced);
        self.announced = self.announced.saturating_add(bytes);
        if let Some(late) = &mut self.late {
            let end = late.deadline() + arrival_timeout(self.announced).saturating_sub(before);
            late.as_mut().reset(end);
        }
    }

    /// The error when the time has passed; until then the task waits for it too.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let timeout = arrival_timeout(self.announced);
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(late.as_mut().poll(context));
        let message = format!("the request did not arrive within {timeout:?}: {} bytes were announced", self.announced);
        Poll::Ready(to_status(&Error::new(Reason::Deadline, message)))
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return self.poll_late(context).map(|status| Some(Err(status)));
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let started = self.reader.read(data);
            if started > 0 {
                self.announce(started);
                if let Err(error) = self.charges.begin(started) {
                    return Poll::Ready(Some(Err(to_status(&error))));
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Finds the messages of a body in its chunks.
#[derive(Debug, Default)]
struct MessageReader {
    /// The part of the next message's prefix that has arrived.
    prefix: [u8; PREFIX_BYTES],
    prefix_length: usize,
    /// Bytes of the current message that have not arrived.
    left: usize,
}

impl MessageReader {
    /// Reads a chunk. Returns the total length in bytes of the messages that begin in it.
    fn read(&mut self, mut piece: &[u8]) -> usize {
        let mut started = 0_usize;
        while !piece.is_empty() {
            if self.left > 0 {
                let inside = self.left.min(piece.len());
                self.left -= inside;
                piece = piece.get(inside..).unwrap_or_default();
                continue;
            }
            let Some((byte, rest)) = piece.split_first() else { break };
            piece = rest;
            if let Some(slot) = self.prefix.get_mut(self.prefix_length) {
                *slot = *byte;
            }
            self.prefix_length += 1;
            if self.prefix_length == PREFIX_BYTES {
                let [_compressed, length @ ..] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.prefix_length = 0;
                started = started.saturating_add(self.left);
            }
        }
        started
    }
}

#[cfg(test)]
mod tests;
