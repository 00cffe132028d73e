//! Reads of one gRPC method and their response bodies, with the bytes that the transport holds.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::time::whole_micros;
use ebla_proto::status::to_status;
use ebla_runtime::{ConnectionInfo, Reservation};
use futures::task::AtomicWaker;
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tonic::Status;
use tonic::codegen::http;

use super::{ReadAccount, ResponseBudget};
use crate::middleware::{CallFuture, CallRequest, GrpcService, Middleware};

/// A larger chunk is passed to the transport in pieces of this size in bytes, so that a slow client is seen to make progress.
const PIECE_BYTES: usize = 256 << 10;

/// A read in progress. It lives until the transport has written its last chunk.
#[derive(Debug)]
pub(super) struct ResponseStream {
    number: u64,
    budget: ResponseBudget,
    connection: ConnectionInfo,
    /// The bytes of its chunks.
    unsent: AtomicUsize,
    /// What the tablet holds for it, charged to the connection. Guarded for one replacement; the number tells whether there is one.
    held_bytes: AtomicUsize,
    held: Mutex<Option<Reservation>>,
    /// When a chunk was written or passed to the transport for the last time, in microseconds of the monotonic clock.
    progress_micros: AtomicU64,
    /// Polled by the transport, dropped by the sweep.
    source: Mutex<Source>,
    /// Wakes the transport's task when all chunks are written.
    waker: AtomicWaker,
    service: ReadService,
}

/// Where the next frame comes from.
#[derive(Debug)]
enum Source {
    /// The response: the rest of a large chunk, then the body.
    Response { rest: Bytes, body: tonic::body::Body },
    /// The read was ended; the error comes next.
    Ended,
    /// Nothing follows.
    Done,
}

impl ResponseStream {
    pub(super) fn new(number: u64, budget: ResponseBudget, connection: ConnectionInfo, service: ReadService) -> Self {
        let stream = Self {
            number,
            budget,
            connection,
            unsent: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            held: Mutex::default(),
            progress_micros: AtomicU64::new(0),
            source: Mutex::new(Source::Done),
            waker: AtomicWaker::new(),
            service,
        };
        stream.record_progress();
        stream
    }

    pub(super) const fn connection(&self) -> &ConnectionInfo {
        &self.connection
    }

    pub(super) fn connection_has_room(&self) -> bool {
        self.connection.unsent.in_use() < self.budget.share()
    }

    /// Charges this number of bytes to the connection, instead of those before.
    pub(super) fn hold(&self, bytes: usize) {
        if self.held_bytes.swap(bytes, Ordering::Relaxed) != bytes {
            let mut held = self.held.lock();
            *held = None;
            *held = self.connection.unsent.try_reserve(bytes, usize::MAX);
        }
    }

    /// For how long the client has taken nothing, although there was something to take.
    pub(super) fn stalled(&self, now: Duration) -> Duration {
        if self.unsent.load(Ordering::Relaxed) == 0 {
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_micros(self.progress_micros.load(Ordering::Relaxed)))
    }

    /// Ends the read: drops its source, and with it the tablet's batch.
    pub(super) fn end(&self) {
        let mut source = self.source.lock();
        if matches!(*source, Source::Response { .. }) {
            let ended = mem::replace(&mut *source, Source::Ended);
            drop(source);
            drop(ended);
            self.hold(0);
        }
    }

    fn record_progress(&self) {
        self.progress_micros.store(whole_micros(self.budget.0.clock.monotonic()), Ordering::Relaxed);
    }

    fn respond(&self, body: tonic::body::Body) {
        *self.source.lock() = Source::Response { rest: Bytes::new(), body };
    }

    /// Whether the next message may be prepared. If not, the task is woken when the transport has written all chunks.
    fn may_prepare(&self, context: &Context<'_>) -> bool {
        let may = || {
            self.unsent.load(Ordering::Acquire) == 0 || self.connection_has_room() && self.budget.0.memory.has_room()
        };
        may() || {
            self.waker.register(context.waker());
            may()
        }
    }

    fn poll_frame(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut source = self.source.lock();
        match &mut *source {
            Source::Response { rest, body } => {
                if rest.is_empty() {
                    if !self.may_prepare(context) {
                        return Poll::Pending;
                    }
                    let frame = ready!(Pin::new(body).poll_frame(context));
                    match frame.map(|frame| frame.map(Frame::into_data)) {
                        Some(Ok(Ok(data))) => *rest = self.chunk(data),
                        Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                        Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                        None => {
                            *source = Source::Done;
                            return Poll::Ready(None);
                        }
                    }
                }
                self.record_progress();
                let piece = rest.split_to(PIECE_BYTES.min(rest.len()));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Source::Ended => {
                *source = Source::Done;
                let (mut trailers, timeout) = (http::HeaderMap::new(), self.budget.0.limits.stall_timeout);
                let status = to_status(&self.service.stall_error(timeout));
                Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
            }
            Source::Done => Poll::Ready(None),
        }
    }

    /// The data, counted until the transport drops it.
    fn chunk(self: &Arc<Self>, data: Bytes) -> Bytes {
        let length = data.len();
        self.unsent.fetch_add(length, Ordering::Relaxed);
        Bytes::from_owner(Chunk {
            data,
            stream: Arc::clone(self),
            _connection: self.connection.unsent.try_reserve(length, usize::MAX),
            _total: self.budget.0.memory.charge(length),
        })
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.budget.0.streams.lock().remove(&self.number);
    }
}

/// Encoded messages that the transport holds.
struct Chunk {
    data: Bytes,
    stream: Arc<ResponseStream>,
    _connection: Option<Reservation>,
    _total: Option<Reservation>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.stream.record_progress();
        let length = self.data.len();
        if self.stream.unsent.fetch_sub(length, Ordering::Release) == length {
            self.stream.waker.wake();
        }
    }
}

/// The body of a read's response.
struct ResponseBody(Arc<ResponseStream>);

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_frame(context)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // The transport may hold chunks for longer; they keep the stream, and must not keep the tablet's batch.
        let source = mem::replace(&mut *self.0.source.lock(), Source::Done);
        drop(source);
        self.0.hold(0);
    }
}

/// A gRPC method that reads rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadService {
    /// `google.bigtable.v2.Bigtable/ReadRows`.
    Public,
    /// `ebla.tablet.Tablets/Read`.
    Tablets,
}

impl ReadService {
    const fn method(self) -> &'static str {
        match self {
            Self::Public => "/ReadRows",
            Self::Tablets => "/Read",
        }
    }

    /// The error of a read whose client takes nothing. Google's clients repeat a read after `DEADLINE_EXCEEDED`, from the last row on; the
    /// servers' own scans do after `Busy`.
    fn stall_error(self, timeout: Duration) -> Error {
        let reason = match self {
            Self::Public => Reason::Deadline,
            Self::Tablets => Reason::Busy,
        };
        let message = format!("the response was not read for {timeout:?}; read again, starting after the last row");
        Error::new(reason, message)
    }
}

/// Charges the reads of a service to a budget.
#[derive(Clone, Debug)]
pub(crate) struct ReadBudget {
    read: ReadService,
    budget: ResponseBudget,
}

impl ReadBudget {
    /// Charges calls of `read`.
    pub(crate) const fn new(read: ReadService, budget: ResponseBudget) -> Self {
        Self { read, budget }
    }
}

impl Middleware for ReadBudget {
    fn call(&self, service: &mut impl GrpcService, mut request: CallRequest) -> CallFuture {
        if !request.uri().path().ends_with(self.read.method()) {
            return Box::pin(service.call(request));
        }
        let connection = request.extensions().get::<ConnectionInfo>().cloned().unwrap_or_default();
        let stream = match self.budget.open(&connection, self.read) {
            Ok(stream) => stream,
            Err(error) => return Box::pin(async move { Ok(to_status(&error).into_http()) }),
        };
        request.extensions_mut().insert(ReadAccount(Arc::clone(&stream)));
        let response = service.call(request);
        Box::pin(async move {
            Ok(response.await?.map(|body| {
                // The response is an error, and its headers end the stream.
                if body.is_end_stream() {
                    return body;
                }
                stream.respond(body);
                tonic::body::Body::new(ResponseBody(stream))
            }))
        })
    }
}
