//! Many small calls on one gRPC stream, each with one reply.
//!
//! A gRPC call has a stream of its own with headers, trailers and tasks on both sides. Between two servers that is most of the
//! cost of a small call. Here the calls to one server are messages of one stream; replies arrive in any order and are matched by
//! call number. Messages that queue while the socket is busy are sent together.
//!
//! [`CallStream`] is the side of the caller, [`replies`] that of the server.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use crate::Runtime;
use crate::resource_counter::{Reservation, ResourceCounter};

/// Opens the stream: sends the calls to the server, and returns its replies.
pub type OpenStream<C, R> = Box<dyn Fn(CallQueue<C>) -> BoxFuture<'static, Result<Streaming<R>, Status>> + Send + Sync>;

/// The calls that wait for the socket. A call whose caller has gone is not sent: it would only delay the others.
pub struct CallQueue<C> {
    calls: mpsc::Receiver<QueuedCall<C>>,
    /// Whether a caller waits for the reply to this call.
    has_caller: Box<dyn Fn(u64) -> bool + Send>,
}

/// A call, and its bytes in the bound of its queue.
struct QueuedCall<C> {
    number: u64,
    call: C,
    _bytes: Reservation,
}

impl<C> fmt::Debug for CallQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallQueue").field("length", &self.calls.len()).finish_non_exhaustive()
    }
}

impl<C> Stream for CallQueue<C> {
    type Item = C;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<C>> {
        while let Some(queued) = ready!(self.calls.poll_recv(context)) {
            if (self.has_caller)(queued.number) {
                return Poll::Ready(Some(queued.call));
            }
        }
        Poll::Ready(None)
    }
}

/// The parameters of a [`CallStream`].
#[derive(Clone, Copy, Debug)]
pub struct CallStreamOptions<C, R> {
    /// The name of its task.
    pub name: &'static str,
    /// The number of the call that a reply belongs to.
    pub call_number: fn(&R) -> u64,
    /// The size of a call, in bytes.
    pub call_bytes: fn(&C) -> usize,
    /// The largest number of calls that wait for the socket; more are refused.
    pub queued_max: usize,
    /// The largest sum of their sizes, in bytes; more are refused. A larger call waits alone.
    pub queued_bytes_max: usize,
    /// The delay, with jitter, before a broken stream is opened again. Calls fail meanwhile.
    pub reconnect_delay: Duration,
}

/// Why a call has no reply.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallStreamError {
    /// The call was not sent.
    #[error("not sent: {0}")]
    Refused(&'static str),
    /// The stream could not be opened, or it broke or ended; `None`: without an error. The call may have been received.
    #[error("the stream was closed{}", .0.as_ref().map(|status| format!(": {status}")).unwrap_or_default())]
    Closed(Option<Status>),
}

/// The calls to one server. The first call opens the stream. When it breaks, all pending calls fail at once, and the next call
/// opens another one.
pub struct CallStream<C, R> {
    runtime: Runtime,
    options: CallStreamOptions<C, R>,
    open: OpenStream<C, R>,
    next_call: AtomicU64,
    /// The bytes of the calls that wait for the socket.
    queued_bytes: ResourceCounter,
    /// Locked for one lookup or insertion.
    state: Mutex<State<C, R>>,
}

struct State<C, R> {
    /// The queue of calls, while the stream is open or being opened.
    outgoing: Option<mpsc::Sender<QueuedCall<C>>>,
    /// The senders of replies, by call number.
    pending: HashMap<u64, oneshot::Sender<Result<R, CallStreamError>>>,
    /// The stream is not opened before this time since boot.
    reconnect_at: Duration,
}

impl<C, R> fmt::Debug for CallStream<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStream").field("name", &self.options.name).finish_non_exhaustive()
    }
}

impl<C: Send + 'static, R: Send + 'static> CallStream<C, R> {
    /// A stream that is not open yet. Its task stops with those of `runtime`.
    pub fn new(runtime: Runtime, options: CallStreamOptions<C, R>, open: OpenStream<C, R>) -> Arc<Self> {
        let state = State { outgoing: None, pending: HashMap::new(), reconnect_at: Duration::ZERO };
        Arc::new(Self {
            runtime,
            options,
            open,
            next_call: AtomicU64::new(1),
            queued_bytes: ResourceCounter::default(),
            state: Mutex::new(state),
        })
    }

    /// Queues a call now, which `call` builds from its number; calls are sent in the order of their queueing. The future is the
    /// reply; dropping it cancels the call only if it was not sent yet.
    ///
    /// # Errors
    /// `Refused` when the queue is full in number or bytes, or the stream is closing or broke less than the reconnect delay ago.
    pub fn send(self: &Arc<Self>, call: impl FnOnce(u64) -> C) -> Result<Reply<R>, CallStreamError> {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let call = call(number);
        let bytes_max = self.options.queued_bytes_max;
        // The size is capped, so that a call beyond the bound can be sent at all: when nothing else waits.
        let bytes = (self.options.call_bytes)(&call).min(bytes_max);
        let bytes = self.queued_bytes.try_reserve(bytes, bytes_max);
        let bytes = bytes.ok_or(CallStreamError::Refused("too many bytes wait for the socket"))?;
        let mut state = self.state.lock();
        let outgoing = match &state.outgoing {
            Some(outgoing) => outgoing.clone(),
            None => self.start(&mut state)?,
        };
        outgoing.try_send(QueuedCall { number, call, _bytes: bytes }).map_err(|refused| {
            CallStreamError::Refused(match refused {
                TrySendError::Full(_) => "too many calls wait for the socket",
                TrySendError::Closed(_) => "the stream has just been closed",
            })
        })?;
        let (sender, reply) = oneshot::channel();
        state.pending.insert(number, sender);
        Ok(Reply(reply))
    }

    fn start(self: &Arc<Self>, state: &mut State<C, R>) -> Result<mpsc::Sender<QueuedCall<C>>, CallStreamError> {
        if self.runtime.clock.monotonic() < state.reconnect_at {
            return Err(CallStreamError::Refused("the last attempt failed; waiting before the next one"));
        }
        let (outgoing, calls) = mpsc::channel(self.options.queued_max);
        state.outgoing = Some(outgoing.clone());
        // The connection owns the queue: with a strong reference the queue would keep its own sender, and the stream would never end.
        let (stream, callers) = (Arc::clone(self), Arc::downgrade(self));
        let has_caller = move |number| callers.upgrade().is_some_and(|callers| callers.has_caller(number));
        let queue = CallQueue { calls, has_caller: Box::new(has_caller) };
        self.runtime.tasks.spawn_until_stopped(self.options.name, async move {
            let status = stream.exchange(queue).await.err();
            tracing::debug!(stream = stream.options.name, ?status, "call stream closed");
            stream.close(status);
        });
        Ok(outgoing)
    }

    /// Whether a caller waits for the reply to this call. If not, the call is no longer pending.
    fn has_caller(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let has_caller = state.pending.get(&number).is_some_and(|sender| !sender.is_closed());
        if !has_caller {
            state.pending.remove(&number);
        }
        has_caller
    }

    /// Runs until the stream closes.
    async fn exchange(&self, calls: CallQueue<C>) -> Result<(), Status> {
        let mut replies = (self.open)(calls).await?;
        while let Some(reply) = replies.message().await? {
            let pending = self.state.lock().pending.remove(&(self.options.call_number)(&reply));
            if let Some(sender) = pending {
                // The caller may have given up meanwhile.
                let _receiver_dropped = sender.send(Ok(reply));
            }
        }
        Ok(())
    }

    /// Fails all pending calls, and lets a later call open another stream.
    fn close(&self, status: Option<Status>) {
        let delay = match self.options.reconnect_delay {
            Duration::ZERO => Duration::ZERO,
            delay => self.runtime.rng.jitter(delay),
        };
        let mut state = self.state.lock();
        state.outgoing = None;
        state.reconnect_at = self.runtime.clock.monotonic().saturating_add(delay);
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for sender in pending.into_values() {
            let _receiver_dropped = sender.send(Err(CallStreamError::Closed(status.clone())));
        }
    }
}

/// The reply to a call.
#[derive(Debug)]
pub struct Reply<R>(oneshot::Receiver<Result<R, CallStreamError>>);

impl<R> Future for Reply<R> {
    type Output = Result<R, CallStreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The sender is dropped when the task is stopped.
        self.0.poll_unpin(context).map(|reply| reply.unwrap_or(Err(CallStreamError::Closed(None))))
    }
}

/// The replies to the calls of one inbound stream. `serve` starts a call when it arrives; no call waits for another one's reply.
/// At most `in_flight_max` calls are in flight; further ones stay in the socket. After `closing` no further call is read; those
/// in flight are answered.
pub fn replies<C, R, S>(
    calls: Streaming<C>,
    in_flight_max: usize,
    closing: impl Future<Output = ()> + Send + 'static,
    serve: S,
) -> impl Stream<Item = Result<R, Status>> + Send
where
    C: Send + 'static,
    R: Send + 'static,
    S: FnMut(C) -> BoxFuture<'static, R> + Send,
{
    let calls = calls.take_until(closing).boxed();
    let exchange = Exchange { calls, is_open: true, in_flight_max, in_flight: FuturesUnordered::new(), serve };
    stream::unfold(exchange, |mut exchange| async move { Some((exchange.next().await?, exchange)) })
}

/// One inbound stream, and its calls that have no reply yet.
struct Exchange<C, R, S> {
    calls: BoxStream<'static, Result<C, Status>>,
    is_open: bool,
    in_flight_max: usize,
    in_flight: FuturesUnordered<BoxFuture<'static, R>>,
    serve: S,
}

impl<C, R, S> Exchange<C, R, S>
where
    S: FnMut(C) -> BoxFuture<'static, R>,
{
    /// The next reply; reads calls meanwhile. `None` when the stream is closed and every call has its reply.
    async fn next(&mut self) -> Option<Result<R, Status>> {
        loop {
            let can_read = self.is_open && self.in_flight.len() < self.in_flight_max;
            tokio::select! {
                biased;
                Some(reply) = self.in_flight.next() => return Some(Ok(reply)),
                call = self.calls.next(), if can_read => match call {
                    Some(Ok(call)) => {
                        let mut reply = (self.serve)(call);
                        // Most calls end at once, or must at least be started in the order of their arrival.
                        match (&mut reply).now_or_never() {
                            Some(reply) => return Some(Ok(reply)),
                            None => self.in_flight.push(reply),
                        }
                    }
                    Some(Err(status)) => return Some(Err(status)),
                    None => self.is_open = false,
                },
                else => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 100;

    /// A call, of this many bytes.
    #[derive(Debug, PartialEq)]
    struct Call {
        number: u64,
        bytes: usize,
    }

    const OPTIONS: CallStreamOptions<Call, u64> = CallStreamOptions {
        name: "test",
        call_number: |reply| *reply,
        call_bytes: |call| call.bytes,
        queued_max: 4,
        queued_bytes_max: BYTES_MAX,
        reconnect_delay: Duration::ZERO,
    };

    /// A stream whose server never replies, and the queue of its calls.
    async fn open() -> (Arc<CallStream<Call, u64>>, CallQueue<Call>) {
        let (queues, mut opened) = mpsc::channel(1);
        let open = Box::new(move |calls: CallQueue<Call>| {
            queues.try_send(calls).unwrap();
            futures::future::pending().boxed()
        });
        let stream = CallStream::new(Runtime::system("test"), OPTIONS, open);
        drop(stream.send(|number| Call { number, bytes: 1 }).unwrap());
        let mut queue = opened.recv().await.unwrap();
        assert!(queue.next().now_or_never().is_none(), "its caller has gone");
        (stream, queue)
    }

    fn send(stream: &Arc<CallStream<Call, u64>>, bytes: usize) -> Result<Reply<u64>, CallStreamError> {
        stream.send(|number| Call { number, bytes })
    }

    fn next_bytes(queue: &mut CallQueue<Call>) -> Option<usize> {
        queue.next().now_or_never().map(|call| call.unwrap().bytes)
    }

    #[tokio::test]
    async fn the_queue_is_bounded_by_bytes_and_by_number() {
        let (stream, mut queue) = open().await;
        let _one = send(&stream, 60).unwrap();
        let refused = send(&stream, 41).unwrap_err();
        assert_eq!(refused.to_string(), "not sent: too many bytes wait for the socket");
        let _other = send(&stream, 40).unwrap();
        assert_eq!(next_bytes(&mut queue), Some(60));
        let _third = send(&stream, 60).unwrap();
        assert_eq!(
            [next_bytes(&mut queue), next_bytes(&mut queue), next_bytes(&mut queue)],
            [Some(40), Some(60), None]
        );
        let _small: Vec<_> = (0..OPTIONS.queued_max).map(|_| send(&stream, 1).unwrap()).collect();
        let refused = send(&stream, 1).unwrap_err();
        assert_eq!(refused.to_string(), "not sent: too many calls wait for the socket");
        assert_eq!(stream.state.lock().pending.len(), 3 + OPTIONS.queued_max, "a refused call is not pending");
    }

    #[tokio::test]
    async fn a_call_above_the_bound_is_sent_when_nothing_else_waits() {
        let (stream, mut queue) = open().await;
        let _small = send(&stream, 1).unwrap();
        assert!(send(&stream, 5 * BYTES_MAX).is_err());
        assert_eq!(next_bytes(&mut queue), Some(1));
        let _large = send(&stream, 5 * BYTES_MAX).unwrap();
        assert!(send(&stream, 1).is_err());
        assert_eq!(next_bytes(&mut queue), Some(5 * BYTES_MAX));
        assert!(send(&stream, 1).is_ok());
    }

    #[tokio::test]
    async fn a_call_whose_caller_has_gone_is_not_sent() {
        let (stream, mut queue) = open().await;
        let _first = send(&stream, 10).unwrap();
        drop(send(&stream, 20).unwrap());
        let _third = send(&stream, 30).unwrap();
        assert_eq!(
            [next_bytes(&mut queue), next_bytes(&mut queue), next_bytes(&mut queue)],
            [Some(10), Some(30), None]
        );
        assert_eq!(stream.state.lock().pending.len(), 2);
        assert!(stream.queued_bytes.try_reserve(BYTES_MAX, BYTES_MAX).is_some(), "all bytes are free again");
    }
}
