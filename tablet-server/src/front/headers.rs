//! What the headers of an answer say: how long the call took here, and where it was served.
//!
//! - `server-timing: gfet4t7; dur=N`, in milliseconds: Google's Java and Go clients subtract it from what they measure and
//!   call the rest the network's. The time is up to the header: a stream goes on after it.
//! - `x-goog-ext-425905942-bin`, a `ResponseParams`: clients label their figures by cluster and zone. A server does not know what the
//!   creators of instances called their clusters, so all is served by the one that nobody named.

use std::task::{Context, Poll};

use ebla_proto::convert::instance::CLUSTER_NAME;
use ebla_proto::data::ResponseParams;
use ebla_runtime::Clock;
use prost::Message;
use tonic::{
    codegen::{
        BoxFuture, Service,
        http::{self, HeaderName, HeaderValue},
    },
    metadata::BinaryMetadataValue,
    server::NamedService,
};

const TIMING: HeaderName = HeaderName::from_static("server-timing");
const PLACE: HeaderName = HeaderName::from_static("x-goog-ext-425905942-bin");
/// The zone of every server: no release places servers.
const ZONE: &str = "local";

/// A service whose answers have these headers.
#[derive(Clone, Debug)]
pub(super) struct Headed<S> {
    service: S,
    clock: Clock,
    place: Option<HeaderValue>,
}

impl<S> Headed<S> {
    /// The same service, timed by this clock.
    pub(super) fn new(service: S, clock: Clock) -> Self {
        Self { service, clock, place: place() }
    }
}

fn place() -> Option<HeaderValue> {
    let place = ResponseParams {
        cluster_id: Some(CLUSTER_NAME.to_owned()),
        zone_id: Some(ZONE.to_owned()),
        ..Default::default()
    };
    let encoded = BinaryMetadataValue::from_bytes(&place.encode_to_vec());
    HeaderValue::from_bytes(encoded.as_encoded_bytes()).ok()
}

impl<S: NamedService> NamedService for Headed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, Q, A> Service<http::Request<Q>> for Headed<S>
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
        let place = self.place.clone();
        let begun = clock.monotonic();
        let answer = self.service.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            let took = clock.monotonic().saturating_sub(begun).as_millis();
            if let Ok(value) = HeaderValue::try_from(format!("gfet4t7; dur={took}")) {
                answer.headers_mut().insert(TIMING, value);
            }
            if let Some(place) = place {
                answer.headers_mut().insert(PLACE, place);
            }
            Ok(answer)
        })
    }
}
