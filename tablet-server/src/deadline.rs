//! Deadlines of calls, from gRPC's `grpc-timeout` header.
//!
//! Every call has a deadline: the caller's, else a default. It is determined once, where the call enters the server, and
//! passed down. It counts from the arrival of the call's headers (`WithArrival`): the body of a large request, or of a slow sender,
//! comes later.

use std::task::{Context, Poll};
use std::time::Duration;

use ebla_runtime::{Clock, call_timeout};
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Extensions, Request};

/// Timeout of a call without `grpc-timeout`.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a public read without `grpc-timeout`: the scan of a large table is one call.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// The largest timeout: work for a caller that is gone ends by itself.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// A public call is answered this long before its caller's deadline, or a twentieth of a short timeout.
const MARGIN: Duration = Duration::from_millis(100);

/// When a call arrived; in the extensions of its request.
#[derive(Clone, Debug)]
struct Arrival {
    clock: Clock,
    at: Duration,
}

/// A service whose requests carry the time of their arrival.
#[derive(Clone, Debug)]
pub(crate) struct WithArrival<S> {
    service: S,
    clock: Clock,
}

impl<S> WithArrival<S> {
    /// The same service; the time is that of `clock`.
    pub(crate) const fn new(service: S, clock: Clock) -> Self {
        Self { service, clock }
    }
}

impl<S: NamedService> NamedService for WithArrival<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<B>>, B> Service<http::Request<B>> for WithArrival<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> S::Future {
        request.extensions_mut().insert(Arrival { clock: self.clock.clone(), at: self.clock.monotonic() });
        self.service.call(request)
    }
}

/// The time since a call arrived; zero for one that did not come through [`WithArrival`].
fn since_arrival(extensions: &Extensions) -> Duration {
    let since = |arrival: &Arrival| arrival.clock.monotonic().saturating_sub(arrival.at);
    extensions.get().map(since).unwrap_or_default()
}

/// What is left of the timeout of an internal call whose message has been read.
pub(crate) fn time_left<T>(request: &Request<T>) -> Duration {
    timeout(request.metadata()).saturating_sub(since_arrival(request.extensions()))
}

/// What is left of the timeout of a public call whose message has been read; `default`: its timeout if its caller gives none.
pub(crate) fn public_time_left<T>(request: &Request<T>, default: Duration) -> Duration {
    public_timeout(request.metadata(), default).saturating_sub(since_arrival(request.extensions()))
}

/// What is left of the timeout of a public call whose headers have been read.
pub(crate) fn time_left_at_arrival<B>(request: &http::Request<B>) -> Duration {
    public(call_timeout::requested(request.headers()), CALL_TIMEOUT).saturating_sub(since_arrival(request.extensions()))
}

/// The timeout of an internal call: the caller's `grpc-timeout` (digits and a unit), or the default.
#[must_use]
pub fn timeout(metadata: &MetadataMap) -> Duration {
    call_timeout::requested(metadata.as_ref()).unwrap_or(CALL_TIMEOUT).min(TIMEOUT_MAX)
}

/// The timeout of a public call; `default` if its caller gives none.
///
/// It ends a little before the caller's, so that the caller receives the reason of a failure. A header that cannot be
/// parsed is ignored: refusing the call would not help the caller.
#[must_use]
pub fn public_timeout(metadata: &MetadataMap, default: Duration) -> Duration {
    public(call_timeout::requested(metadata.as_ref()), default)
}

fn public(requested: Option<Duration>, default: Duration) -> Duration {
    let with_margin = |timeout: Duration| timeout.saturating_sub(MARGIN.min(timeout / 20));
    requested.map(with_margin).unwrap_or(default).min(TIMEOUT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_invalid_values_give_the_default() {
        let with = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", tonic::metadata::MetadataValue::from_static(text));
            timeout(&metadata)
        };
        assert_eq!(with("250m"), Duration::from_millis(250));
        assert_eq!(with("3S"), Duration::from_secs(3));
        assert_eq!(with("99999999H"), TIMEOUT_MAX);
        assert_eq!(with("soon"), CALL_TIMEOUT);
        assert_eq!(timeout(&MetadataMap::new()), CALL_TIMEOUT);
    }

    #[test]
    fn public_timeouts_have_a_margin_and_a_maximum() {
        let mut metadata = MetadataMap::new();
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), CALL_TIMEOUT);
        metadata.insert("grpc-timeout", "99999999H".parse().unwrap());
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), TIMEOUT_MAX);
        metadata.insert("grpc-timeout", "10S".parse().unwrap());
        assert_eq!(public_timeout(&metadata, CALL_TIMEOUT), Duration::from_millis(9900));
        metadata.insert("grpc-timeout", "soon".parse().unwrap());
        assert_eq!(public_timeout(&metadata, READ_TIMEOUT), READ_TIMEOUT);
    }

    /// Returns the request that it is called with.
    #[derive(Clone)]
    struct Echo;

    impl Service<http::Request<()>> for Echo {
        type Response = Request<()>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<()>) -> Self::Future {
            std::future::ready(Ok(Request::from_http(request)))
        }
    }

    #[tokio::test]
    async fn the_time_since_the_arrival_of_a_call_counts() {
        let clock = Clock::manual();
        let mut service = WithArrival::new(Echo, clock.clone());
        let request = http::Request::builder().header("grpc-timeout", "10S").body(()).unwrap();
        assert_eq!(time_left_at_arrival(&request), Duration::from_millis(9900));
        let request = service.call(request).await.unwrap();
        assert_eq!(time_left(&request), Duration::from_secs(10));
        clock.advance(Duration::from_secs(4));
        assert_eq!(time_left(&request), Duration::from_secs(6));
        assert_eq!(public_time_left(&request, CALL_TIMEOUT), Duration::from_millis(5900));
        clock.advance(Duration::from_secs(7));
        assert_eq!((time_left(&request), public_time_left(&request, CALL_TIMEOUT)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(time_left(&Request::new(())), CALL_TIMEOUT, "without the service only the default counts");
    }
}
