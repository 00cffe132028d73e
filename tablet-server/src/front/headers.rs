//! Response headers: how long the call took on this server, and which cluster and zone served it.
//!
//! - `server-timing: gfet4t7; dur=N`, in milliseconds: Google's Java and Go clients subtract it from the latency that they
//!   measure and attribute the rest to the network. It covers the time up to the header: a stream continues after it.
//! - `x-goog-ext-425905942-bin`, a `ResponseParams`: clients label their metrics by cluster and zone. A server does not know
//!   the cluster names that creators of instances chose, so it reports one default name.

use ebla_proto::convert::instance::CLUSTER_NAME;
use ebla_proto::data::ResponseParams;
use ebla_runtime::Clock;
use prost::Message;
use tonic::{
    codegen::http::{HeaderName, HeaderValue},
    metadata::BinaryMetadataValue,
};

use crate::middleware::{CallFuture, CallRequest, GrpcService, Middleware};

const TIMING: HeaderName = HeaderName::from_static("server-timing");
const SERVED_BY: HeaderName = HeaderName::from_static("x-goog-ext-425905942-bin");
/// The zone of every server: zones are not supported.
const ZONE: &str = "local";

/// Adds these headers to the responses of a service.
#[derive(Clone, Debug)]
pub(super) struct ResponseHeaders {
    clock: Clock,
    served_by: Option<HeaderValue>,
}

impl ResponseHeaders {
    /// Calls are timed by this clock.
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, served_by: served_by() }
    }
}

fn served_by() -> Option<HeaderValue> {
    let served_by = ResponseParams {
        cluster_id: Some(CLUSTER_NAME.to_owned()),
        zone_id: Some(ZONE.to_owned()),
        ..Default::default()
    };
    let encoded = BinaryMetadataValue::from_bytes(&served_by.encode_to_vec());
    HeaderValue::from_bytes(encoded.as_encoded_bytes()).ok()
}

impl Middleware for ResponseHeaders {
    fn call(&self, service: &mut impl GrpcService, request: CallRequest) -> CallFuture {
        let clock = self.clock.clone();
        let served_by = self.served_by.clone();
        let started = clock.monotonic();
        let response = service.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            let elapsed = clock.monotonic().saturating_sub(started).as_millis();
            if let Ok(value) = HeaderValue::try_from(format!("gfet4t7; dur={elapsed}")) {
                response.headers_mut().insert(TIMING, value);
            }
            if let Some(served_by) = served_by {
                response.headers_mut().insert(SERVED_BY, served_by);
            }
            Ok(response)
        })
    }
}
