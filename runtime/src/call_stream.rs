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
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use crate::Runtime;

/// Opens the stream: sends the calls to the server, and returns its replies.
pub type OpenStream<C, R> = Box<dyn Fn(CallQueue<C>) -> BoxFuture<'static, Result<Streaming<R>, Status>> + Send + Sync>;

/// The calls that wait for the socket.
#[derive(Debug)]
pub struct CallQueue<C>(mpsc::Receiver<C>);

impl<C> Stream for CallQueue<C> {
    type Item = C;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<C>> {
        self.0.poll_recv(context)
    }
}

/// The parameters of a [`CallStream`].
#[derive(Clone, Copy, Debug)]
pub struct CallStreamOptions<R> {
    /// The name of its task.
    pub name: &'static str,
    /// The number of the call that a reply belongs to.
    pub call_number: fn(&R) -> u64,
    /// The largest number of calls that wait for the socket; more are refused.
    pub queued_max: usize,
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
    options: CallStreamOptions<R>,
    open: OpenStream<C, R>,
    next_call: AtomicU64,
    /// Locked for one lookup or insertion.
    state: Mutex<State<C, R>>,
}

struct State<C, R> {
    /// The queue of calls, while the stream is open or being opened.
    outgoing: Option<mpsc::Sender<C>>,
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
    pub fn new(runtime: Runtime, options: CallStreamOptions<R>, open: OpenStream<C, R>) -> Arc<Self> {
        let state = State { outgoing: None, pending: HashMap::new(), reconnect_at: Duration::ZERO };
        Arc::new(Self { runtime, options, open, next_call: AtomicU64::new(1), state: Mutex::new(state) })
    }

    /// Queues a call now, which `call` builds from its number; calls are sent in the order of their queueing. The future is the
    /// reply; dropping it does not cancel the call.
    ///
    /// # Errors
    /// `Refused` when the queue is full, or the stream is closing or broke less than the reconnect delay ago.
    pub fn send(self: &Arc<Self>, call: impl FnOnce(u64) -> C) -> Result<Reply<R>, CallStreamError> {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let call = call(number);
        let mut state = self.state.lock();
        let outgoing = match &state.outgoing {
            Some(outgoing) => outgoing.clone(),
            None => self.start(&mut state)?,
        };
        outgoing.try_send(call).map_err(|refused| {
            CallStreamError::Refused(match refused {
                TrySendError::Full(_) => "too many calls wait for the socket",
                TrySendError::Closed(_) => "the stream has just been closed",
            })
        })?;
        let (sender, reply) = oneshot::channel();
        state.pending.insert(number, sender);
        Ok(Reply(reply))
    }

    fn start(self: &Arc<Self>, state: &mut State<C, R>) -> Result<mpsc::Sender<C>, CallStreamError> {
        if self.runtime.clock.monotonic() < state.reconnect_at {
            return Err(CallStreamError::Refused("the last attempt failed; waiting before the next one"));
        }
        let (outgoing, queue) = mpsc::channel(self.options.queued_max);
        state.outgoing = Some(outgoing.clone());
        let stream = Arc::clone(self);
        self.runtime.tasks.spawn_until_stopped(self.options.name, async move {
            let status = stream.exchange(CallQueue(queue)).await.err();
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
