//! A gRPC service whose calls are operations: from the arrival of the headers to the end of the response.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::context::{TRACEPARENT, TraceContext};
use super::current::{OpenOperation, enter};
use super::operation::{Origin, Outcome};
use super::recorder::Recorder;
use super::stage::Stage;

/// The methods of the data API, whose names need no memory.
const DATA_METHODS: [&str; 7] =
    ["ReadRows", "MutateRow", "MutateRows", "CheckAndMutateRow", "ReadModifyWriteRow", "SampleRowKeys", "PingAndWarm"];
/// The longest name of a method that is recorded, in bytes: a client may send any.
const METHOD_BYTES_MAX: usize = 64;
/// The name that is recorded for one that is longer, or is not made of ASCII letters and digits.
const UNKNOWN_METHOD: &str = "unknown";

/// See the module.
#[derive(Clone, Debug)]
pub struct WithTrace<S> {
    service: S,
    recorder: Arc<Recorder>,
    origin: Origin,
}

impl<S> WithTrace<S> {
    /// Records the calls of `service` as those of this origin.
    pub const fn new(service: S, recorder: Arc<Recorder>, origin: Origin) -> Self {
        Self { service, recorder, origin }
    }
}

impl<S: NamedService> NamedService for WithTrace<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, Q> Service<http::Request<Q>> for WithTrace<S>
where
    S: Service<
            http::Request<Q>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            // A boxed future, in all services of gRPC.
            Future: Unpin,
        >,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = TracedCall<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Q>) -> Self::Future {
        let operation = self.recorder.begin(method(request.uri().path()), self.origin, received(request.headers()));
        let call = enter(&operation, || self.service.call(request));
        TracedCall { call, open: Some(OpenOperation(operation)) }
    }
}

/// A call until its response begins, polled for its operation.
#[derive(Debug)]
pub struct TracedCall<F> {
    call: F,
    /// Goes on to the body of the response.
    open: Option<OpenOperation>,
}

impl<F> Future for TracedCall<F>
where
    F: Future<Output = Result<http::Response<tonic::body::Body>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, open } = &mut *self;
        let response = match open {
            Some(open) => ready!(enter(&open.0, || Pin::new(call).poll(context))),
            None => ready!(Pin::new(call).poll(context)),
        };
        Poll::Ready(response.map(|response| match open.take() {
            Some(open) => {
                end_by(&open, response.headers());
                response.map(|body| tonic::body::Body::new(TracedBody { body, open, idle_since: None }))
            }
            None => response,
        }))
    }
}

/// The method that a path such as `/google.bigtable.v2.Bigtable/ReadRows` names.
fn method(path: &str) -> Cow<'static, str> {
    let name = path.rsplit('/').next().unwrap_or_default();
    match DATA_METHODS.iter().find(|known| **known == name) {
        Some(known) => Cow::Borrowed(*known),
        None if name.is_empty() || name.len() > METHOD_BYTES_MAX => Cow::Borrowed(UNKNOWN_METHOD),
        // A path may contain anything, also control characters of terminals.
        None if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Cow::Owned(name.to_owned()),
        None => Cow::Borrowed(UNKNOWN_METHOD),
    }
}

/// The context that a caller sends. Two headers are as bad as a malformed one.
fn received(headers: &HeaderMap) -> Option<TraceContext> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let (first, second) = (given.next()?, given.next());
    if second.is_some() { None } else { TraceContext::parse(first.to_str().ok()?) }
}

/// Ends the operation if these headers or trailers have a status.
fn end_by(open: &OpenOperation, headers: &HeaderMap) {
    if let Some(status) = headers.get("grpc-status") {
        let code = status.to_str().ok().and_then(|code| code.parse().ok());
        open.0.end(code.map_or(Outcome::UNKNOWN, Outcome::of_code));
    }
}

/// The body of a response, which is polled for its operation; its trailers have the status.
struct TracedBody {
    body: tonic::body::Body,
    open: OpenOperation,
    /// Since when the transport has not asked for more.
    idle_since: Option<Duration>,
}

impl Drop for TracedBody {
    fn drop(&mut self) {
        // As for streams of messages: the time of a client that gives up is not the server's.
        if let Some(since) = self.idle_since.take() {
            let operation = &self.open.0;
            operation.add_if_any(Stage::Client, since, operation.now());
        }
    }
}

impl Body for TracedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let operation = &this.open.0;
        if let Some(since) = this.idle_since.take() {
            operation.add_if_any(Stage::Client, since, operation.now());
        }
        let body = &mut this.body;
        let frame = ready!(enter(operation, || Pin::new(body).poll_frame(context)));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    operation.add_response_bytes(data.len());
                    this.idle_since = Some(operation.now());
                } else if let Some(trailers) = frame.trailers_ref() {
                    end_by(&this.open, trailers);
                }
            }
            Some(Err(status)) => operation.end(Outcome::of_code(status.code().into())),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;
    use futures::FutureExt as _;
    use tonic::codegen::BoxFuture;

    use super::*;
    use crate::Clock;
    use crate::trace::{Record, TraceOptions, stage};

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// Takes some time in a stage, and refuses.
    #[derive(Clone)]
    struct Refuses(Clock);

    impl Service<http::Request<()>> for Refuses {
        type Response = http::Response<tonic::body::Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: http::Request<()>) -> Self::Future {
            let clock = self.0.clone();
            async move {
                let _admission = stage(Stage::Admission);
                clock.advance(Duration::from_millis(30));
                Ok(Status::unavailable("busy").into_http())
            }
            .boxed()
        }
    }

    async fn record(headers: &[&str]) -> Arc<Record> {
        let clock = Clock::manual();
        let recorder = Recorder::new(ServerId::new(1), TraceOptions::default(), clock.clone());
        let mut service = WithTrace::new(Refuses(clock), Arc::clone(&recorder), Origin::Data);
        let request = http::Request::builder().uri("/google.bigtable.v2.Bigtable/MutateRow");
        let request = headers.iter().fold(request, |request, value| request.header(TRACEPARENT, *value));
        drop(service.call(request.body(()).unwrap()).await);
        recorder.records().pop().unwrap()
    }

    #[tokio::test]
    async fn a_call_is_recorded_with_its_stages_and_the_context_of_its_client() {
        let record = record(&[HEADER]).await;
        assert_eq!((record.method.as_ref(), record.outcome.code()), ("MutateRow", 14));
        assert_eq!(record.stages.iter().map(|time| time.total.as_millis()).collect::<Vec<_>>(), [30]);
        assert_eq!(record.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(record.parent.map(|span| span.to_string()).as_deref(), Some("00f067aa0ba902b7"));
    }

    #[tokio::test]
    async fn two_headers_or_a_malformed_one_begin_a_new_trace() {
        for headers in [&[HEADER, HEADER][..], &["00-0"], &[]] {
            let record = record(headers).await;
            assert_eq!(record.parent, None);
            assert_ne!(record.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        }
    }

    #[test]
    fn names_of_methods_are_bounded_and_contain_no_control_characters() {
        assert_eq!(method("/google.bigtable.v2.Bigtable/ReadRows"), "ReadRows");
        let longest = "a".repeat(METHOD_BYTES_MAX);
        assert_eq!(method(&format!("/x/{longest}")), longest);
        for path in [format!("/x/{longest}a").as_str(), "/x/é", "/x/\u{1b}[2J", "/x/Create\u{7}", "/x/a-b", "/x/", ""]
        {
            assert_eq!(method(path), UNKNOWN_METHOD, "{path:?}");
        }
        assert_eq!(method("/x/CreateTable"), "CreateTable");
    }
}
