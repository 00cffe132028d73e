//! Many small calls on one gRPC stream, each with one reply.
//!
//! A gRPC call has a stream of its own with headers, trailers and tasks on both sides. Between two servers that is most of the
//! cost of a small call. Here the calls to one server are messages of one stream; replies arrive in any order and are matched by
//! call number. Messages that queue while the socket is busy are sent together.
//!
//! [`CallStream`] is the side of the caller, [`replies`] that of the server. A caller that gives up cancels its call, as in a gRPC call
//! of its own: it is not sent any more, or a message tells the server.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use crate::resource_counter::{Reservation, ResourceCounter};
use crate::{Clock, Runtime};

/// Opens the stream: sends the calls to the server, and returns its replies.
pub type OpenStream<C, R> = Box<dyn Fn(CallQueue<C>) -> BoxFuture<'static, Result<Streaming<R>, Status>> + Send + Sync>;

/// The calls that wait for the socket. A call whose caller has gone, or whose deadline has passed, is not sent: it would only delay
/// the others.
pub struct CallQueue<C> {
    calls: mpsc::Receiver<QueuedCall<C>>,
    clock: Clock,
    shorten_timeout: fn(&mut C, Duration) -> TimeLeft,
    /// Weak: the connection owns the queue. With a strong reference the queue would keep its own sender, and the stream would never end.
    callers: Weak<dyn Callers>,
}

/// A message that waits for the socket.
struct QueuedCall<C> {
    call: C,
    /// `None`: it is a cancellation, for which no caller waits.
    waiting: Option<WaitingCall>,
}

/// The number of a call, when it was queued, and its bytes in the bound of its queue.
struct WaitingCall {
    number: u64,
    queued_at: Duration,
    _bytes: Reservation,
}

/// Whether a call has time left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLeft {
    /// It has, or it has no timeout.
    Some,
    /// Its deadline has passed.
    None,
}

/// The callers that wait for replies.
trait Callers: Send + Sync {
    /// The call is about to be sent. Returns whether a caller waits for its reply.
    fn begin_send(&self, number: u64) -> bool;
    /// Ends a call that is not sent.
    fn refuse(&self, number: u64, reason: &'static str);
}

impl<C> fmt::Debug for CallQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallQueue").field("length", &self.calls.len()).finish_non_exhaustive()
    }
}

impl<C> Stream for CallQueue<C> {
    type Item = C;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<C>> {
        while let Some(mut queued) = ready!(self.calls.poll_recv(context)) {
            let Some(WaitingCall { number, queued_at, .. }) = queued.waiting else {
                return Poll::Ready(Some(queued.call));
            };
            let Some(callers) = self.callers.upgrade() else { continue };
            if !callers.begin_send(number) {
                continue;
            }
            let waited = self.clock.monotonic().saturating_sub(queued_at);
            match (self.shorten_timeout)(&mut queued.call, waited) {
                TimeLeft::Some => return Poll::Ready(Some(queued.call)),
                TimeLeft::None => callers.refuse(number, "its deadline passed while it waited for the socket"),
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
    /// Shortens the timeout that a call carries by the time that it has waited for the socket: its receiver does not know that time.
    pub shorten_timeout: fn(&mut C, Duration) -> TimeLeft,
    /// The message that cancels the call with this number, for a server that knows it. Without it calls are not cancelled once they
    /// are sent.
    pub cancellation: Option<fn(u64) -> C>,
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
    /// By call number.
    pending: HashMap<u64, PendingCall<R>>,
    /// The stream is not opened before this time since boot.
    reconnect_at: Duration,
}

/// A call without a reply.
struct PendingCall<R> {
    sender: oneshot::Sender<Result<R, CallStreamError>>,
    is_sent: bool,
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
    /// reply; dropping it cancels the call.
    ///
    /// # Errors
    /// `Refused` when the queue is full in number or bytes, or the stream is closing or broke less than the reconnect delay ago. So is
    /// the reply when the call's deadline passes before it is sent.
    pub fn send(self: &Arc<Self>, call: impl FnOnce(u64) -> C) -> Result<Reply<C, R>, CallStreamError> {
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
        let queued_at = self.runtime.clock.monotonic();
        let waiting = Some(WaitingCall { number, queued_at, _bytes: bytes });
        outgoing.try_send(QueuedCall { call, waiting }).map_err(|refused| {
            CallStreamError::Refused(match refused {
                TrySendError::Full(_) => "too many calls wait for the socket",
                TrySendError::Closed(_) => "the stream has just been closed",
            })
        })?;
        let (sender, reply) = oneshot::channel();
        state.pending.insert(number, PendingCall { sender, is_sent: false });
        drop(state);
        Ok(Reply { reply, number, stream: Some(Arc::clone(self)) })
    }

    fn start(self: &Arc<Self>, state: &mut State<C, R>) -> Result<mpsc::Sender<QueuedCall<C>>, CallStreamError> {
        if self.runtime.clock.monotonic() < state.reconnect_at {
            return Err(CallStreamError::Refused("the last attempt failed; waiting before the next one"));
        }
        let (outgoing, calls) = mpsc::channel(self.options.queued_max);
        state.outgoing = Some(outgoing.clone());
        let stream = Arc::clone(self);
        let callers: Weak<Self> = Arc::downgrade(self);
        let (clock, shorten_timeout) = (self.runtime.clock.clone(), self.options.shorten_timeout);
        let queue = CallQueue { calls, clock, shorten_timeout, callers };
        self.runtime.tasks.spawn_until_stopped(self.options.name, async move {
            let status = stream.exchange(queue).await.err();
            tracing::debug!(stream = stream.options.name, ?status, "call stream closed");
            stream.close(status);
        });
        Ok(outgoing)
    }

    /// Runs until the stream closes.
    async fn exchange(&self, calls: CallQueue<C>) -> Result<(), Status> {
        let mut replies = (self.open)(calls).await?;
        while let Some(reply) = replies.message().await? {
            let pending = self.state.lock().pending.remove(&(self.options.call_number)(&reply));
            if let Some(pending) = pending {
                // The caller may have given up meanwhile.
                let _receiver_dropped = pending.sender.send(Ok(reply));
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
        for pending in pending.into_values() {
            let _receiver_dropped = pending.sender.send(Err(CallStreamError::Closed(status.clone())));
        }
    }
}

impl<C: Send + 'static, R: Send + 'static> Callers for CallStream<C, R> {
    fn begin_send(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let pending = state.pending.get_mut(&number);
        pending.map(|pending| pending.is_sent = true).is_some()
    }

    fn refuse(&self, number: u64, reason: &'static str) {
        let pending = self.state.lock().pending.remove(&number);
        // The caller may have given up meanwhile.
        let _receiver_dropped = pending.map(|pending| pending.sender.send(Err(CallStreamError::Refused(reason))));
    }
}

impl<C, R> CallStream<C, R> {
    /// The caller of this call has gone: it is not sent any more, or cancelled.
    fn abandon(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(pending) = state.pending.remove(&number) else { return };
        if let (true, Some(cancellation), Some(outgoing)) =
            (pending.is_sent, self.options.cancellation, &state.outgoing)
        {
            // Without room the server works on the call until its timeout.
            let _full = outgoing.try_send(QueuedCall { call: cancellation(number), waiting: None });
        }
    }
}

/// The reply to a call.
#[derive(Debug)]
pub struct Reply<C, R> {
    reply: oneshot::Receiver<Result<R, CallStreamError>>,
    number: u64,
    /// Until the reply is there.
    stream: Option<Arc<CallStream<C, R>>>,
}

impl<C, R> Future for Reply<C, R> {
    type Output = Result<R, CallStreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.reply.poll_unpin(context));
        self.stream = None;
        // The sender is dropped when the task is stopped.
        Poll::Ready(reply.unwrap_or(Err(CallStreamError::Closed(None))))
    }
}

impl<C, R> Drop for Reply<C, R> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.abandon(self.number);
        }
    }
}

/// What a message of an inbound stream is.
pub enum Received<R> {
    /// A call, and its reply. One with a number can be cancelled.
    Call(Option<u64>, BoxFuture<'static, R>),
    /// The caller of the call with this number has gone: its future is dropped, and it has no reply.
    Cancellation(u64),
}

/// The replies to the calls of one inbound stream. `receive` starts a call when it arrives; no call waits for another one's reply.
/// At most `in_flight_max` calls are in flight; further ones stay in the socket. After `closing` no further call is read; those
/// in flight are answered.
pub fn replies<C, R, S>(
    calls: impl Stream<Item = Result<C, Status>> + Send + 'static,
    in_flight_max: usize,
    closing: impl Future<Output = ()> + Send + 'static,
    receive: S,
) -> impl Stream<Item = Result<R, Status>> + Send
where
    C: Send + 'static,
    R: Send + 'static,
    S: FnMut(C) -> Received<R> + Send,
{
    let exchange = Exchange {
        calls: calls.take_until(closing).boxed(),
        is_open: true,
        in_flight_max,
        in_flight: FuturesUnordered::new(),
        abort_handles: HashMap::new(),
        receive,
    };
    stream::unfold(exchange, |mut exchange| async move { Some((exchange.next().await?, exchange)) })
}

/// One inbound stream, and its calls that have no reply yet.
struct Exchange<C, R, S> {
    calls: BoxStream<'static, Result<C, Status>>,
    is_open: bool,
    in_flight_max: usize,
    in_flight: FuturesUnordered<InFlightCall<R>>,
    /// Of the calls in flight that can be cancelled.
    abort_handles: HashMap<u64, AbortHandle>,
    receive: S,
}

/// A call without a reply, on the side of the server.
struct InFlightCall<R> {
    number: Option<u64>,
    call: Abortable<BoxFuture<'static, R>>,
}

impl<R> Future for InFlightCall<R> {
    /// Its number; and its reply, or `Aborted` if it was cancelled.
    type Output = (Option<u64>, Result<R, Aborted>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.call.poll_unpin(context));
        Poll::Ready((self.number, reply))
    }
}

impl<C, R, S> Exchange<C, R, S>
where
    S: FnMut(C) -> Received<R>,
{
    /// The next reply; reads calls meanwhile. `None` when the stream is closed and every call has its reply.
    async fn next(&mut self) -> Option<Result<R, Status>> {
        loop {
            let can_read = self.is_open && self.in_flight.len() < self.in_flight_max;
            tokio::select! {
                biased;
                Some((number, reply)) = self.in_flight.next() => {
                    if let Some(number) = number {
                        self.abort_handles.remove(&number);
                    }
                    if let Ok(reply) = reply {
                        return Some(Ok(reply));
                    }
                }
                call = self.calls.next(), if can_read => match call {
                    Some(Ok(call)) => match (self.receive)(call) {
                        Received::Call(number, mut reply) => {
                            // Most calls end at once, or must at least be started in the order of their arrival.
                            match (&mut reply).now_or_never() {
                                Some(reply) => return Some(Ok(reply)),
                                None => self.push(number, reply),
                            }
                        }
                        // It may have its reply already.
                        Received::Cancellation(number) => drop(self.abort_handles.remove(&number).map(|call| call.abort())),
                    },
                    Some(Err(status)) => return Some(Err(status)),
                    None => self.is_open = false,
                },
                else => return None,
            }
        }
    }

    fn push(&mut self, number: Option<u64>, reply: BoxFuture<'static, R>) {
        let (handle, registration) = AbortHandle::new_pair();
        if let Some(number) = number {
            self.abort_handles.insert(number, handle);
        }
        self.in_flight.push(InFlightCall { number, call: Abortable::new(reply, registration) });
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
        timeout: Duration,
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    const OPTIONS: CallStreamOptions<Call, u64> = CallStreamOptions {
        name: "test",
        call_number: |reply| *reply,
        call_bytes: |call| call.bytes,
        shorten_timeout: |call, waited| {
            call.timeout = call.timeout.saturating_sub(waited);
            if call.timeout.is_zero() { TimeLeft::None } else { TimeLeft::Some }
        },
        cancellation: Some(|number| Call { number, bytes: 0, timeout: Duration::ZERO }),
        queued_max: 4,
        queued_bytes_max: BYTES_MAX,
        reconnect_delay: Duration::ZERO,
    };

    /// A stream whose server never replies, and the queue of its calls.
    async fn open() -> (Arc<CallStream<Call, u64>>, CallQueue<Call>) {
        open_at(Clock::system()).await
    }

    /// As [`open`], with this clock.
    async fn open_at(clock: Clock) -> (Arc<CallStream<Call, u64>>, CallQueue<Call>) {
        let (queues, mut opened) = mpsc::channel(1);
        let open = Box::new(move |calls: CallQueue<Call>| {
            queues.try_send(calls).unwrap();
            futures::future::pending().boxed()
        });
        let stream = CallStream::new(Runtime { clock, ..Runtime::system("test") }, OPTIONS, open);
        drop(send(&stream, 1).unwrap());
        let mut queue = opened.recv().await.unwrap();
        assert!(queue.next().now_or_never().is_none(), "its caller has gone");
        (stream, queue)
    }

    fn send(stream: &Arc<CallStream<Call, u64>>, bytes: usize) -> Result<Reply<Call, u64>, CallStreamError> {
        stream.send(|number| Call { number, bytes, timeout: TIMEOUT })
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

    #[tokio::test]
    async fn the_time_that_a_call_waits_for_the_socket_counts() {
        let clock = Clock::manual();
        let (stream, mut queue) = open_at(clock.clone()).await;
        let late = send(&stream, 10).unwrap();
        clock.advance(TIMEOUT * 2 / 5);
        let _in_time = send(&stream, 20).unwrap();
        clock.advance(TIMEOUT * 3 / 5);
        let sent = queue.next().now_or_never().unwrap().unwrap();
        assert_eq!((sent.bytes, sent.timeout), (20, TIMEOUT * 2 / 5));
        assert_eq!(next_bytes(&mut queue), None);
        let refused = late.await.unwrap_err().to_string();
        assert_eq!(refused, "not sent: its deadline passed while it waited for the socket");
        assert_eq!(stream.state.lock().pending.len(), 1);
    }

    #[tokio::test]
    async fn a_call_that_was_sent_is_cancelled_when_its_caller_gives_up() {
        let (stream, mut queue) = open().await;
        let abandoned = send(&stream, 10).unwrap();
        let number = queue.next().now_or_never().unwrap().unwrap().number;
        drop(abandoned);
        let cancellation = queue.next().now_or_never().unwrap().unwrap();
        assert_eq!((cancellation.number, cancellation.bytes), (number, 0));
        let replied = send(&stream, 20).unwrap();
        assert_eq!(next_bytes(&mut queue), Some(20));
        let pending = stream.state.lock().pending.drain().next().unwrap().1;
        pending.sender.send(Ok(7)).unwrap();
        assert_eq!(replied.await.unwrap(), 7);
        assert_eq!(next_bytes(&mut queue), None, "a call with a reply is not cancelled");
    }

    #[tokio::test]
    async fn a_cancelled_call_has_no_reply_and_its_work_ends() {
        let (calls, inbound) = futures::channel::mpsc::unbounded();
        let (working, mut worked) = mpsc::channel::<()>(1);
        let mut working = Some(working);
        let receive = move |call: Call| match call.bytes {
            0 => Received::Cancellation(call.number),
            1 => {
                let working = working.take();
                let work = async move {
                    std::future::pending::<()>().await;
                    drop(working);
                    call.number
                };
                Received::Call(Some(call.number), work.boxed())
            }
            _ => Received::Call(Some(call.number), std::future::ready(call.number).boxed()),
        };
        let mut replies = std::pin::pin!(replies(inbound, 8, std::future::pending(), receive));
        for (number, bytes) in [(1, 1), (2, 1), (1, 0), (1, 0), (3, 2)] {
            calls.unbounded_send(Ok(Call { number, bytes, timeout: TIMEOUT })).unwrap();
        }
        assert_eq!(replies.next().await.unwrap().unwrap(), 3);
        // The second call still works; the first one is polled once more, and dropped.
        assert!(replies.next().now_or_never().is_none());
        let dropped = tokio::time::timeout(Duration::from_secs(60), worked.recv()).await;
        assert_eq!(dropped, Ok(None), "the work of the first call was dropped");
    }
}
