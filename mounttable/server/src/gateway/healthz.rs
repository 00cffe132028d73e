//! `/healthz`: 200 while the server can do its work, 503 otherwise, for load balancers and supervisors.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;

use crate::gateway::json::Json;
use crate::health::Health;

/// The health of the server.
#[derive(Debug, Serialize)]
struct Answer {
    /// As in gRPC's protocol.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The answer that reports this.
pub(super) fn answer(health: Health) -> Response {
    let (code, status, reason) = match health {
        Health::Serving => (StatusCode::OK, "SERVING", None),
        Health::NotServing(reason) => (StatusCode::SERVICE_UNAVAILABLE, "NOT_SERVING", Some(reason.name())),
        Health::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "NOT_SERVING", Some("STOPPING")),
    };
    (code, [(header::CACHE_CONTROL, "no-store")], Json(Answer { status, reason })).into_response()
}
