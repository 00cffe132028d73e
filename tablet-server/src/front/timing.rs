//! How long a call took here, in the header of its answer: `server-timing: gfet4t7; dur=N`, in milliseconds.
//!
//! Google's Java and Go clients subtract it from what they measure and call the rest the network's. The time is up to the
//! header: a stream goes on after it.

use std::task::{Context, Poll};

use ebla_runtime::Clock;
use tonic::{
    codegen::{
        BoxFuture, Service,
        http::{self, HeaderName, HeaderValue},
    },
    server::NamedService,
};

/// The header.
const HEADER: HeaderName = HeaderName::from_static("server-timing");

/// A service whose answers say how long they took.
#[derive(Clone, Debug)]
pub(super) struct Timed<S> {
    service: S,
    clock: Clock,
}

impl<S> Timed<S> {
    /// The same service, timed by this clock.
    pub(super) const fn new(service: S, clock: Clock) -> Self {
        Self { service, clock }
    }
}

impl<S: NamedService> NamedService for Timed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, Q, A> Service<http::Request<Q>> for Timed<S>
where
    S: Service<http::Request<Q>, Response = http::Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Q>) -> Self::Future {
        let clock = self.clock.clone();
        let begun = clock.monotonic();
        let answer = self.service.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            let took = clock.monotonic().saturating_sub(begun).as_millis();
            if let Ok(value) = HeaderValue::try_from(format!("gfet4t7; dur={took}")) {
                answer.headers_mut().insert(HEADER, value);
            }
            Ok(answer)
        })
    }
}
