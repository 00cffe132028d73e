//! Limits of what one identity may use: requests per second, bytes per second, and calls at once.
//!
//! Rates have a burst of one second: an identity that was idle may use a second's worth at once. Bytes are those of requests and responses.
//! They are known only when they arrive or are sent, so they are charged afterwards: a call that exceeds the rate is carried out, its response is
//! sent no faster than the rate after its first [`PACED_AFTER`] bytes, and the next calls are refused until the rate is met again. Administrators by configuration have no limits.
//!
//! The decision is [`Usage`], a pure function of times. The shell keeps one for each identity with calls in the last seconds.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::access::Member;
use ebla_model::{Error, Reason};
use ebla_runtime::Clock;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::Status;

/// What an idle identity may use at once, as time at its rate.
const BURST: Duration = Duration::from_secs(1);
/// The bytes of a response that are sent at once: small ones are never delayed.
const PACED_AFTER: usize = 1 << 20;
/// When a call beyond the limit of concurrent calls may be repeated.
const STREAMS_DELAY: Duration = Duration::from_secs(1);
/// Identities that are counted one by one; further ones share a count.
const IDENTITIES_MAX: usize = 10_000;
/// The time between two searches for idle identities.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What one identity may use on one tablet server; 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdentityLimits {
    /// Calls per second.
    pub requests: u64,
    /// Bytes of requests and responses per second.
    pub bytes: u64,
    /// Calls at once.
    pub streams: u64,
}

impl IdentityLimits {
    /// Whether there is no limit.
    #[must_use]
    pub const fn are_none(&self) -> bool {
        self.requests == 0 && self.bytes == 0 && self.streams == 0
    }
}

/// A limit that is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Excess {
    what: &'static str,
    /// When the call may be repeated.
    delay: Duration,
}

/// What an identity has used. Times are since boot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Usage {
    /// When the calls so far are paid at the rate of calls.
    calls_paid: Duration,
    /// When the bytes so far are paid at the rate of bytes.
    bytes_paid: Duration,
    /// Calls in progress.
    streams: u64,
}

impl Usage {
    /// Counts a call that begins, unless a limit is reached.
    fn begin(&mut self, limits: &IdentityLimits, now: Duration) -> Result<(), Excess> {
        if limits.streams > 0 && self.streams >= limits.streams {
            return Err(Excess { what: "calls at once", delay: STREAMS_DELAY });
        }
        let call = cost(1, limits.requests);
        let debt = self.calls_paid.saturating_sub(now);
        let room = BURST.saturating_sub(call);
        if limits.requests > 0 && debt > room {
            return Err(Excess { what: "calls per second", delay: debt.saturating_sub(room) });
        }
        if let Some(delay) = self.delay_of_bytes(limits, now) {
            return Err(Excess { what: "bytes per second", delay });
        }
        self.calls_paid = self.calls_paid.max(now).saturating_add(call);
        self.streams += 1;
        Ok(())
    }

    /// After which time further bytes are within the rate; `None`: they are now.
    fn delay_of_bytes(&self, limits: &IdentityLimits, now: Duration) -> Option<Duration> {
        let debt = self.bytes_paid.saturating_sub(now);
        (limits.bytes > 0 && debt > BURST).then(|| debt.saturating_sub(BURST))
    }

    fn charge_bytes(&mut self, limits: &IdentityLimits, now: Duration, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes_paid = self.bytes_paid.max(now).saturating_add(cost(bytes, limits.bytes));
    }

    fn end(&mut self) {
        self.streams = self.streams.saturating_sub(1);
    }

    /// Whether it is the same as that of an identity that has not called yet.
    fn is_idle(&self, now: Duration) -> bool {
        self.streams == 0 && self.calls_paid <= now && self.bytes_paid <= now
    }
}

/// The time that `units` take at `rate` units per second; a rate of 0 is no limit.
fn cost(units: u64, rate: u64) -> Duration {
    if rate == 0 {
        return Duration::ZERO;
    }
    let nanos = u128::from(units) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The usage of all identities. `None`: of those that share a count.
#[derive(Debug, Default)]
struct Identities {
    usage: HashMap<Option<Member>, Usage>,
    swept: Duration,
}

impl Identities {
    /// The key under which an identity is counted.
    fn key(&mut self, identity: &Member, now: Duration) -> Option<Member> {
        let key = Some(identity.clone());
        if self.usage.contains_key(&key) {
            return key;
        }
        if self.usage.len() >= IDENTITIES_MAX && now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.usage.retain(|_identity, usage| !usage.is_idle(now));
            self.swept = now;
        }
        if self.usage.len() >= IDENTITIES_MAX { None } else { key }
    }
}

/// Counts what identities use. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct IdentityMeter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: IdentityLimits,
    clock: Clock,
    /// Guards numbers; sections are short, but for one in a while that searches for idle identities.
    identities: Mutex<Identities>,
}

/// A call that is refused by a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exceeded {
    pub(super) error: Error,
    /// When the caller may repeat it.
    pub(super) delay: Duration,
}

impl IdentityMeter {
    pub(super) fn new(limits: IdentityLimits, clock: Clock) -> Self {
        Self(Arc::new(Inner { limits, clock, identities: Mutex::default() }))
    }

    /// Counts a call of this identity until the result is dropped; `None`: there are no limits.
    ///
    /// # Errors
    /// `ResourceExhausted` when a limit is reached.
    pub(super) fn begin(&self, identity: &Member) -> Result<Option<CallMeter>, Exceeded> {
        if self.0.limits.are_none() {
            return Ok(None);
        }
        let now = self.0.clock.monotonic();
        let mut identities = self.0.identities.lock();
        let key = identities.key(identity, now);
        match identities.usage.entry(key.clone()).or_default().begin(&self.0.limits, now) {
            Ok(()) => Ok(Some(CallMeter(Arc::new(Counted { meter: self.clone(), key })))),
            Err(Excess { what, delay }) => {
                let message = format!("the caller's limit of {what} on this server is reached: repeat the call later");
                Err(Exceeded { error: Error::new(Reason::ResourceExhausted, message), delay })
            }
        }
    }
}

/// A call that is counted until the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct CallMeter(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    meter: IdentityMeter,
    key: Option<Member>,
}

impl CallMeter {
    /// The body of the request: its bytes are charged, and the call is counted while it exists.
    pub(super) fn request(&self, body: tonic::body::Body) -> tonic::body::Body {
        tonic::body::Body::new(MeteredBody { body, call: self.clone(), pace: None })
    }

    /// The body of the response, in the same way: beyond [`PACED_AFTER`] bytes it waits while the caller has used more bytes than its rate
    /// permits. The calls of a caller that wait continue together, each with a message. It waits before it polls `body`: what polls the result
    /// must not take a response that waits for one that is not read.
    pub(super) fn response(&self, body: tonic::body::Body) -> tonic::body::Body {
        tonic::body::Body::new(MeteredBody { body, call: self.clone(), pace: Some(Pace::default()) })
    }

    fn delay_of_bytes(&self) -> Option<Duration> {
        let Counted { meter, key } = &*self.0;
        let now = meter.0.clock.monotonic();
        meter.0.identities.lock().usage.get(key)?.delay_of_bytes(&meter.0.limits, now)
    }

    fn charge_bytes(&self, bytes: usize) {
        let Counted { meter, key } = &*self.0;
        let now = meter.0.clock.monotonic();
        if let Some(usage) = meter.0.identities.lock().usage.get_mut(key) {
            usage.charge_bytes(&meter.0.limits, now, bytes);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(usage) = self.meter.0.identities.lock().usage.get_mut(&self.key) {
            usage.end();
        }
    }
}

/// A body whose bytes are charged.
struct MeteredBody {
    body: tonic::body::Body,
    call: CallMeter,
    /// That of a response; the body of a request, which has room in memory already, does not wait.
    pace: Option<Pace>,
}

/// Keeps a response within the rate of its caller.
#[derive(Default)]
struct Pace {
    sent: usize,
    wait: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Pace {
    /// Ready when the caller may receive more.
    fn poll(&mut self, call: &CallMeter, context: &mut Context<'_>) -> Poll<()> {
        while self.sent > PACED_AFTER {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(context));
                self.wait = None;
            }
            match call.delay_of_bytes() {
                Some(delay) => self.wait = Some(Box::pin(tokio::time::sleep(delay))),
                None => break,
            }
        }
        Poll::Ready(())
    }
}

impl Body for MeteredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { call, pace, .. } = &mut *self;
        if let Some(pace) = pace {
            ready!(pace.poll(call, context));
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            let Self { call, pace, .. } = &mut *self;
            call.charge_bytes(data.len());
            if let Some(pace) = pace {
                pace.sent = pace.sent.saturating_add(data.len());
            }
        }
        frame
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
    use std::future::{Ready, ready};

    use tonic::codegen::{Service, http};

    use super::super::layer::Metering;
    use super::*;
    use crate::middleware::{CallRequest, CallResponse, GrpcService};
    use crate::response_budget::{ReadBudget, ReadService, ResponseBudget, ResponseBytes};

    const LIMITS: IdentityLimits = IdentityLimits { requests: 10, bytes: 1_000, streams: 3 };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(100_000 + millis)
    }

    fn begun(usage: &mut Usage, limits: &IdentityLimits, millis: u64) -> Result<(), Excess> {
        usage.begin(limits, at(millis)).inspect(|()| usage.end())
    }

    #[test]
    fn calls_have_a_rate_with_a_burst() {
        let mut usage = Usage::default();
        let begun_of = |usage: &mut Usage, count: usize, millis: u64| {
            (0..count).filter(|_call| begun(usage, &LIMITS, millis).is_ok()).count()
        };
        assert_eq!(begun_of(&mut usage, 30, 0), 10, "a second's worth at once");
        let refused = begun(&mut usage, &LIMITS, 0).unwrap_err();
        assert_eq!(refused, Excess { what: "calls per second", delay: Duration::from_millis(100) });
        assert_eq!(begun_of(&mut usage, 30, 100), 1, "the delay is right, and refused calls cost nothing");
        assert_eq!(begun_of(&mut usage, 30, 600), 5);
        assert!(!usage.is_idle(at(600)) && usage.is_idle(at(1_600)));
        assert_eq!(begun_of(&mut usage, 100, 100_000), 10, "idle time is saved for one second only");
        let one = IdentityLimits { requests: 1, ..IdentityLimits::default() };
        let mut usage = Usage::default();
        assert!(begun(&mut usage, &one, 0).is_ok() && begun(&mut usage, &one, 999).is_err());
        assert!(begun(&mut usage, &one, 1_000).is_ok());
    }

    #[test]
    fn bytes_are_charged_afterwards() {
        let mut usage = Usage::default();
        begun(&mut usage, &LIMITS, 0).unwrap();
        usage.charge_bytes(&LIMITS, at(0), 3_500);
        let refused = begun(&mut usage, &LIMITS, 0).unwrap_err();
        assert_eq!(refused, Excess { what: "bytes per second", delay: Duration::from_millis(2_500) });
        assert!(begun(&mut usage, &LIMITS, 2_499).is_err() && begun(&mut usage, &LIMITS, 2_500).is_ok());
    }

    #[test]
    fn calls_at_once_are_bounded() {
        let mut usage = Usage::default();
        for _call in 0..3 {
            usage.begin(&LIMITS, at(0)).unwrap();
        }
        assert_eq!(usage.begin(&LIMITS, at(0)).unwrap_err().what, "calls at once");
        usage.end();
        assert!(usage.begin(&LIMITS, at(0)).is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let mut usage = Usage::default();
        for _call in 0..10_000 {
            usage.begin(&IdentityLimits::default(), at(0)).unwrap();
            usage.charge_bytes(&IdentityLimits::default(), at(0), usize::MAX);
        }
        assert!(IdentityLimits::default().are_none() && !LIMITS.are_none());
    }

    fn member(number: usize) -> Member {
        Member::TokenSubject(number.to_string())
    }

    #[test]
    fn an_identity_does_not_use_the_limits_of_another_one() {
        let meter = IdentityMeter::new(IdentityLimits { streams: 1, ..IdentityLimits::default() }, Clock::manual());
        let first = meter.begin(&member(1)).unwrap().unwrap();
        assert_eq!(meter.begin(&member(1)).unwrap_err().error.reason, Reason::ResourceExhausted);
        assert!(meter.begin(&member(2)).is_ok());
        let body = first.response(tonic::body::Body::new("a response".to_owned()));
        drop(first);
        assert!(meter.begin(&member(1)).is_err(), "its response is not sent");
        drop(body);
        assert!(meter.begin(&member(1)).is_ok());
    }

    /// A body of these messages.
    struct Messages(Vec<usize>);

    impl Body for Messages {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop().map(|size| Ok(Frame::data(vec![0; size].into()))))
        }
    }

    async fn next(body: &mut tonic::body::Body) -> usize {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        frame.unwrap().unwrap().into_data().unwrap().len()
    }

    async fn waits(body: &mut tonic::body::Body) -> bool {
        std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context).is_pending())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_response_is_sent_at_the_rate_of_its_caller() {
        let limits = IdentityLimits { bytes: 1 << 20, ..IdentityLimits::default() };
        let clock = Clock::manual();
        let meter = IdentityMeter::new(limits, clock.clone());
        let call = meter.begin(&member(1)).unwrap().unwrap();
        // Bytes of six seconds, one of which is the burst.
        let large = PACED_AFTER * 6;
        let mut long = call.response(tonic::body::Body::new(Messages(vec![1, large])));
        let mut short = call.response(tonic::body::Body::new(Messages(vec![2, 2])));
        let mut request = call.request(tonic::body::Body::new(Messages(vec![3, 3])));
        assert_eq!(next(&mut long).await, large);
        assert!(waits(&mut long).await);
        assert_eq!([next(&mut short).await, next(&mut short).await], [2, 2], "it does not wait");
        assert_eq!([next(&mut request).await, next(&mut request).await], [3, 3], "nor does a request");
        assert!(meter.begin(&member(1)).is_err() && meter.begin(&member(2)).is_ok());
        clock.advance(Duration::from_millis(4_900));
        tokio::time::advance(Duration::from_millis(4_900)).await;
        assert!(waits(&mut long).await && meter.begin(&member(1)).is_err(), "five seconds have not passed");
        // The small messages took some microseconds of the rate.
        clock.advance(Duration::from_millis(101));
        assert_eq!(next(&mut long).await, 1);
        assert!(meter.begin(&member(1)).is_ok());
    }

    /// A ReadRows with a response of two messages.
    #[derive(Clone)]
    struct Rows;

    const FIRST_MESSAGE: usize = 2 * PACED_AFTER;

    impl Service<CallRequest> for Rows {
        type Response = CallResponse;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: CallRequest) -> Self::Future {
            ready(Ok(http::Response::new(tonic::body::Body::new(Messages(vec![1, FIRST_MESSAGE])))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_waits_for_its_rate_holds_no_message_and_is_not_ended() {
        let clock = Clock::manual();
        let limits = IdentityLimits { bytes: 1 << 14, ..IdentityLimits::default() };
        let meter = IdentityMeter::new(limits, clock.clone());
        let sizes = ResponseBytes::default();
        let budget = ResponseBudget::new(sizes, clock.clone());
        let mut service = Rows.with(Metering).with(ReadBudget::new(ReadService::Public, budget.clone()));
        let mut request = http::Request::new(tonic::body::Body::empty());
        *request.uri_mut() = http::Uri::from_static("/google.bigtable.v2.Bigtable/ReadRows");
        request.extensions_mut().insert(meter.begin(&member(1)).unwrap().unwrap());
        let mut body = service.call(request).await.unwrap().into_body();
        let mut received = 0;
        while received < FIRST_MESSAGE {
            received += next(&mut body).await;
        }
        assert!(waits(&mut body).await, "it has used two minutes of its rate");
        assert_eq!(budget.in_use(), 0);
        clock.advance(sizes.stall_timeout + Duration::from_secs(1));
        budget.sweep();
        assert!(waits(&mut body).await, "it is not ended");
        clock.advance(2 * sizes.stall_timeout);
        budget.sweep();
        assert_eq!(next(&mut body).await, 1);
    }

    #[test]
    fn many_identities_take_bounded_memory() {
        let meter = IdentityMeter::new(IdentityLimits { streams: 1, ..IdentityLimits::default() }, Clock::manual());
        let held: Vec<_> = (0..IDENTITIES_MAX).map(|number| meter.begin(&member(number)).unwrap()).collect();
        let shared = meter.begin(&member(IDENTITIES_MAX)).unwrap();
        assert!(meter.begin(&member(IDENTITIES_MAX + 1)).is_err(), "those beyond the bound share a count");
        assert_eq!(meter.0.identities.lock().usage.len(), IDENTITIES_MAX + 1);
        drop((held, shared));
        let mut identities = meter.0.identities.lock();
        let later = identities.swept + SWEEP_INTERVAL;
        assert_eq!(identities.key(&member(0), later), Some(member(0)), "its count is there");
        assert_eq!(identities.key(&member(IDENTITIES_MAX + 2), later), Some(member(IDENTITIES_MAX + 2)));
        assert_eq!(identities.usage.len(), 0, "idle ones are forgotten");
    }
}
