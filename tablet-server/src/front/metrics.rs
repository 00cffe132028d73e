//! The metrics of the front: calls by method and code, how long they take, and what is refused.
//!
//! A call is counted when its response has been sent: the status of a stream is at its end. A caller that gives up counts as `CANCELLED`. The
//! series of a method are resolved when the call arrives, by its position in a list of a few names; recording is a few atomic additions.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::call_times::{CallCounts, CallTimes, CallWindow};
use ebla_model::id::ServerId;
use ebla_proto::status::{CANCELLED_NUMBER, CODE_NAMES};
use ebla_runtime::Clock;
use ebla_runtime::metrics::{Counter, Family, Histogram, Sample};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use super::admission::CallAdmission;
use crate::middleware::{CallFuture, CallRequest, GrpcService, Middleware};

static CALLS: Family = Family::counter(
    "ebla_front_calls_total",
    &["server", "service", "method", "code"],
    "Calls of the public API that have ended, by gRPC code; CANCELLED also when the caller gave up",
);
static LATENCY: Family = Family::histogram(
    "ebla_front_call_seconds",
    &["server", "service", "method"],
    "Time from the arrival of a call to the end of its response; of a scan, with the time in which its client reads",
);
static IN_PROGRESS: Family = Family::gauge(
    "ebla_front_calls_in_progress",
    &["server", "service", "method"],
    "Calls and streams that have arrived and have not ended",
);
static RESPONSE_BYTES: Family = Family::counter(
    "ebla_front_response_bytes_total",
    &["server", "service", "method"],
    "Bytes of response messages passed to the transport",
);
static REQUEST_BYTES: Family =
    Family::counter("ebla_front_request_bytes_total", &["server", "service"], "Bytes of request messages accepted");
static REFUSALS: Family = Family::counter(
    "ebla_front_refusals_total",
    &["server", "cause"],
    "Calls that the front refused before they reached a tablet: overload (no place was or became free in time), table_share (overload, and \
     the table is beyond its share), request_memory (too many bytes of requests in flight). Refusals for lack of rights or of quota \
     are in ebla_front_calls_total by their codes",
);
static WAITING: Family =
    Family::gauge("ebla_front_calls_waiting", &["server"], "Data calls that wait for a place because of the limit");
static LIMIT: Family = Family::gauge(
    "ebla_front_call_limit",
    &["server"],
    "How many data calls the server works on at once; it falls while calls are slow",
);

/// The metrics of the front.
pub(crate) static FAMILIES: &[&Family] =
    &[&CALLS, &LATENCY, &IN_PROGRESS, &RESPONSE_BYTES, &REQUEST_BYTES, &REFUSALS, &WAITING, &LIMIT];

/// The methods of the data API that have series of their own; the others share one.
const DATA_METHODS: &[&str] =
    &["ReadRows", "MutateRow", "MutateRows", "CheckAndMutateRow", "ReadModifyWriteRow", "SampleRowKeys", "PingAndWarm"];
/// The series of all methods that are not listed.
const OTHER: &str = "other";

/// A part of the public API, as the label `service` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontService {
    /// `google.bigtable.v2.Bigtable`.
    Data,
    /// The admin APIs and long-running operations, which the master carries out.
    Admin,
}

impl FrontService {
    const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Admin => "admin",
        }
    }
}

/// The figures of a front. Cheap to clone; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontMetrics(Arc<Figures>);

#[derive(Debug)]
struct Figures {
    data: ServiceFigures,
    admin: ServiceFigures,
    overloaded: Counter,
    beyond_table_share: Counter,
    out_of_memory: Counter,
    /// The admission of data calls, once the front is built.
    admission: OnceLock<CallAdmission>,
    /// The calls of the last seconds. Locked to add one state of the counters.
    window: Mutex<CallWindow>,
}

#[derive(Debug)]
struct ServiceFigures {
    service: FrontService,
    methods: Vec<Arc<MethodFigures>>,
    other: Arc<MethodFigures>,
    request_bytes: Counter,
}

#[derive(Debug)]
struct MethodFigures {
    name: &'static str,
    /// By the number of the code.
    codes: [Counter; CODE_NAMES.len()],
    latency: Histogram,
    in_progress: AtomicU64,
    response_bytes: Counter,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            data: ServiceFigures::new(FrontService::Data, DATA_METHODS),
            admin: ServiceFigures::new(FrontService::Admin, &[]),
            overloaded: Counter::default(),
            beyond_table_share: Counter::default(),
            out_of_memory: Counter::default(),
            admission: OnceLock::new(),
            window: Mutex::default(),
        }
    }
}

impl ServiceFigures {
    fn new(service: FrontService, methods: &[&'static str]) -> Self {
        let figures = |name: &'static str| {
            Arc::new(MethodFigures {
                name,
                codes: Default::default(),
                latency: Histogram::default(),
                in_progress: AtomicU64::new(0),
                response_bytes: Counter::default(),
            })
        };
        let methods = methods.iter().map(|name| figures(name)).collect();
        Self { service, methods, other: figures(OTHER), request_bytes: Counter::default() }
    }

    /// The figures of the method that a path such as `/google.bigtable.v2.Bigtable/ReadRows` names.
    fn method(&self, path: &str) -> &Arc<MethodFigures> {
        let method = path.rsplit('/').next().unwrap_or_default();
        self.methods.iter().find(|known| known.name == method).unwrap_or(&self.other)
    }
}

impl FrontMetrics {
    fn service(&self, service: FrontService) -> &ServiceFigures {
        match service {
            FrontService::Data => &self.0.data,
            FrontService::Admin => &self.0.admin,
        }
    }

    /// Shows the places of this admission. The first call has an effect.
    pub(super) fn observe(&self, admission: &CallAdmission) {
        let _first = self.0.admission.set(admission.clone());
    }

    /// Counts the bytes of accepted requests of a service.
    pub(super) fn request_bytes(&self, service: FrontService) -> Counter {
        self.service(service).request_bytes.clone()
    }

    /// Counts calls for which no place became free.
    pub(super) fn overloaded(&self) -> Counter {
        self.0.overloaded.clone()
    }

    /// Counts calls for a table that is beyond its share.
    pub(super) fn beyond_table_share(&self) -> Counter {
        self.0.beyond_table_share.clone()
    }

    /// Counts calls for which the budget of requests had no room.
    pub(super) fn out_of_memory(&self) -> Counter {
        self.0.out_of_memory.clone()
    }

    /// The data calls that have ended within about the last ten seconds, by now as time since boot; `None` at first.
    pub(crate) fn last_calls(&self, now: Duration) -> Option<CallTimes> {
        let mut counts = CallCounts::default();
        for method in &self.0.data.methods {
            let counts = match method.name {
                "ReadRows" | "SampleRowKeys" => &mut counts.reads,
                "MutateRow" | "MutateRows" | "CheckAndMutateRow" | "ReadModifyWriteRow" => &mut counts.writes,
                _ => continue,
            };
            let latency = method.latency.counts();
            let bounds = latency.bounds.iter().copied().map(Some).chain([None]);
            bounds.zip(latency.buckets).for_each(|(bound, calls)| counts.add_calls(bound, calls));
        }
        self.0.window.lock().observe(now, counts)
    }

    /// The samples of the front of `server`.
    pub(crate) fn samples(&self, server: ServerId) -> Vec<Sample> {
        let server = || Cow::Owned(server.to_string());
        let places = self.0.admission.get().map(CallAdmission::places).unwrap_or_default();
        let mut samples = vec![
            WAITING.sample([server()], places.waiting),
            LIMIT.sample([server()], places.limit),
            REFUSALS.sample([server(), "overload".into()], self.0.overloaded.get()),
            REFUSALS.sample([server(), "table_share".into()], self.0.beyond_table_share.get()),
            REFUSALS.sample([server(), "request_memory".into()], self.0.out_of_memory.get()),
        ];
        for service in [&self.0.data, &self.0.admin] {
            let name = service.service.name();
            samples.push(REQUEST_BYTES.sample([server(), name.into()], service.request_bytes.get()));
            for method in service.methods.iter().chain([&service.other]) {
                let labels = || [server(), Cow::Borrowed(name), Cow::Borrowed(method.name)];
                samples.push(LATENCY.sample(labels(), method.latency.counts()));
                samples.push(IN_PROGRESS.sample(labels(), method.in_progress.load(Ordering::Relaxed)));
                samples.push(RESPONSE_BYTES.sample(labels(), method.response_bytes.get()));
                for (code, count) in CODE_NAMES.into_iter().zip(&method.codes) {
                    // A series for each code that has ever occurred; rates begin at zero for the successes.
                    if count.get() > 0 || code == "OK" {
                        let labels = [server(), name.into(), method.name.into(), code.into()];
                        samples.push(CALLS.sample(labels, count.get()));
                    }
                }
            }
        }
        samples
    }
}

/// A call in progress; counted once, at the latest when it is dropped.
#[derive(Debug)]
struct OpenCall {
    method: Arc<MethodFigures>,
    clock: Clock,
    began: Duration,
    has_ended: bool,
}

impl OpenCall {
    fn begin(method: Arc<MethodFigures>, clock: Clock) -> Self {
        method.in_progress.fetch_add(1, Ordering::Relaxed);
        let began = clock.monotonic();
        Self { method, clock, began, has_ended: false }
    }

    /// The call ends with this code.
    fn end(&mut self, code: usize) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.method.in_progress.fetch_sub(1, Ordering::Relaxed);
        self.method.latency.record(self.clock.monotonic().saturating_sub(self.began));
        if let Some(count) = self.method.codes.get(code) {
            count.increment();
        }
    }

    /// The call ends if these headers or trailers have its status.
    fn end_by(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.end(code_number(&status));
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.end(CANCELLED_NUMBER);
    }
}

fn code_number(status: &Status) -> usize {
    usize::try_from(i32::from(status.code())).unwrap_or(CODE_NAMES.len())
}

/// Counts calls as those of a part of the API.
#[derive(Clone, Debug)]
pub(super) struct CallMetrics {
    figures: FrontMetrics,
    part: FrontService,
    clock: Clock,
}

impl CallMetrics {
    /// Counts in `figures` what calls of `part` take by this clock.
    pub(super) const fn new(figures: FrontMetrics, part: FrontService, clock: Clock) -> Self {
        Self { figures, part, clock }
    }
}

impl Middleware for CallMetrics {
    fn call(&self, service: &mut impl GrpcService, request: CallRequest) -> CallFuture {
        let method = Arc::clone(self.figures.service(self.part).method(request.uri().path()));
        let mut call = OpenCall::begin(method, self.clock.clone());
        let response = service.call(request);
        Box::pin(async move {
            let response = response.await?;
            call.end_by(response.headers());
            Ok(response.map(|body| tonic::body::Body::new(CountedBody { body, call })))
        })
    }
}

/// The body of a response, with its bytes counted; its trailers have the status of the call.
struct CountedBody {
    body: tonic::body::Body,
    call: OpenCall,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.call.method.response_bytes.add(u64::try_from(data.len()).unwrap_or(u64::MAX));
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.call.end_by(trailers);
                }
            }
            Some(Err(status)) => self.call.end(code_number(status)),
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
    use std::convert::Infallible;

    use ebla_runtime::metrics::{SampleValue, table_faults};
    use futures::FutureExt as _;
    use futures::StreamExt as _;
    use tonic::codegen::{Service, http};

    use super::*;
    use crate::middleware::{CallResponse, WithMiddleware};

    /// Answers with what a test has prepared.
    #[derive(Clone)]
    struct Answers(Arc<dyn Fn() -> CallResponse + Send + Sync>);

    impl Service<CallRequest> for Answers {
        type Response = CallResponse;
        type Error = Infallible;
        type Future = CallFuture;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: CallRequest) -> CallFuture {
            let answer = (self.0)();
            async { Ok(answer) }.boxed()
        }
    }

    /// A body of one message with these trailers.
    struct Message(Option<Bytes>, Option<HeaderMap>);

    impl Body for Message {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let data = self.0.take().map(Frame::data);
            let frame = data.or_else(|| self.1.take().map(Frame::trailers));
            Poll::Ready(frame.map(Ok))
        }
    }

    fn metrics_and(
        answer: impl Fn() -> CallResponse + Send + Sync + 'static,
    ) -> (FrontMetrics, WithMiddleware<Answers, CallMetrics>) {
        let metrics = FrontMetrics::default();
        let counting = CallMetrics::new(metrics.clone(), FrontService::Data, Clock::manual());
        (metrics, Answers(Arc::new(answer)).with(counting))
    }

    fn request(path: &str) -> CallRequest {
        http::Request::builder().uri(path).body(tonic::body::Body::empty()).unwrap()
    }

    fn value(metrics: &FrontMetrics, family: &Family, labels: &[&str]) -> Option<u64> {
        let samples = metrics.samples(ServerId::new(1));
        let found = samples.iter().find(|sample| sample.family == family && sample.labels[1..] == *labels)?;
        match &found.value {
            SampleValue::Integer(value) => Some(*value),
            SampleValue::Histogram(counts) => Some(counts.count()),
            SampleValue::Float(_) => None,
        }
    }

    #[tokio::test]
    async fn a_stream_is_counted_with_its_bytes_when_its_trailers_are_sent() {
        let (metrics, mut service) = metrics_and(|| {
            let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
            let body = Message(Some(Bytes::from_static(b"12345")), Some(trailers));
            http::Response::new(tonic::body::Body::new(body))
        });
        let response = service.call(request("/google.bigtable.v2.Bigtable/ReadRows")).await.unwrap();
        assert_eq!(value(&metrics, &IN_PROGRESS, &["data", "ReadRows"]), Some(1));
        assert_eq!(value(&metrics, &CALLS, &["data", "ReadRows", "OK"]), Some(0), "it has not ended");
        let mut body = response.into_body();
        let frames = futures::stream::poll_fn(move |context| Pin::new(&mut body).poll_frame(context));
        assert_eq!(frames.count().await, 2);
        assert_eq!(value(&metrics, &IN_PROGRESS, &["data", "ReadRows"]), Some(0));
        assert_eq!(value(&metrics, &CALLS, &["data", "ReadRows", "OK"]), Some(1));
        assert_eq!(value(&metrics, &LATENCY, &["data", "ReadRows"]), Some(1));
        assert_eq!(value(&metrics, &RESPONSE_BYTES, &["data", "ReadRows"]), Some(5));
        assert_eq!(value(&metrics, &CALLS, &["data", "ReadRows", "CANCELLED"]), None);
    }

    #[tokio::test]
    async fn a_refusal_is_counted_by_its_code_and_an_abandoned_call_as_cancelled() {
        let (metrics, mut service) = metrics_and(|| {
            ebla_proto::status::to_status(&ebla_model::Error::new(ebla_model::Reason::Busy, "full")).into_http()
        });
        drop(service.call(request("/google.bigtable.v2.Bigtable/MutateRow")).await.unwrap());
        assert_eq!(value(&metrics, &CALLS, &["data", "MutateRow", "UNAVAILABLE"]), Some(1));
        assert_eq!(value(&metrics, &CALLS, &["data", "MutateRow", "CANCELLED"]), None);
        drop(service.call(request("/google.bigtable.v2.Bigtable/NewMethod")));
        assert_eq!(value(&metrics, &CALLS, &["data", "other", "CANCELLED"]), Some(1));
        assert_eq!(value(&metrics, &IN_PROGRESS, &["data", "other"]), Some(0));
    }

    #[test]
    fn the_table_is_well_formed() {
        assert_eq!(table_faults(FAMILIES), Vec::<String>::new());
    }

    #[tokio::test]
    async fn the_last_calls_are_those_of_the_data_that_read_and_write() {
        let (metrics, mut service) = metrics_and(|| Status::not_found("x").into_http());
        assert_eq!(metrics.last_calls(Duration::from_secs(1)), None, "the first state of the counters");
        for method in ["ReadRows", "MutateRow", "MutateRow", "PingAndWarm", "Other"] {
            let response = service.call(request(&format!("/google.bigtable.v2.Bigtable/{method}"))).await.unwrap();
            drop(response);
        }
        let last = metrics.last_calls(Duration::from_secs(11)).unwrap();
        assert_eq!((last.period, last.calls.reads.count(), last.calls.writes.count()), (Duration::from_secs(10), 1, 2));
        let later = metrics.last_calls(Duration::from_secs(30)).unwrap();
        assert_eq!((later.period, later.calls.reads.count()), (Duration::from_secs(19), 0));
    }
}
