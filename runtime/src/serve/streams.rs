//! The streams of HTTP/2 of a connection: one for each call, with a task, except for calls that are refused.
//!
//! An overloaded server refuses more calls than it answers. With a task for each, the refusals would take the processor from the calls that it has
//! admitted. The responses to all refused calls that have arrived together are written together.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::rt::Executor;
use parking_lot::Mutex;

/// The executor of the streams of a connection. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Refused>>);

#[derive(Default)]
struct Refused {
    /// The next stream is that of a call that was refused: hyper calls its service, then executes the stream.
    is_next: bool,
    /// Refused calls whose responses are ready. Not more than the connection may have streams.
    ready: Vec<BoxFuture<'static, ()>>,
}

impl Streams {
    /// The call whose stream is executed next is refused, with a response without a body.
    pub(super) fn refuse_next(&self) {
        self.0.lock().is_next = true;
    }

    /// Hands the responses of refused calls to HTTP/2, which wakes the task of the connection to write them.
    fn respond(&self) {
        let ready = mem::take(&mut self.0.lock().ready);
        for stream in ready {
            // A response without a body needs no second poll.
            stream.now_or_never();
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    #[expect(clippy::disallowed_methods, reason = "the task of a stream ends with its connection, which has an owner")]
    fn execute(&self, stream: F) {
        let mut refused = self.0.lock();
        if mem::take(&mut refused.is_next) {
            refused.ready.push(Box::pin(stream));
        } else {
            drop(refused);
            drop(tokio::spawn(stream));
        }
    }
}

/// Serves a connection, and responds to its refused calls when all that has arrived is read.
pub(super) struct WithStreams<'a, C> {
    connection: C,
    streams: &'a Streams,
}

impl<'a, C> WithStreams<'a, C> {
    pub(super) const fn new(connection: C, streams: &'a Streams) -> Self {
        Self { connection, streams }
    }
}

impl<C: Future + Unpin> Future for WithStreams<'_, C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let polled = self.connection.poll_unpin(context);
        self.streams.respond();
        polled
    }
}
