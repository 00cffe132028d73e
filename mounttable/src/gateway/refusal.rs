//! Refusals: the reasons that gRPC answers carry, as HTTP statuses, with what to do next.

use axum::response::{IntoResponse, Response};
use ebla_model::ErrorKind;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tonic::Status;

use crate::error::{Error, Reason};
use crate::gateway::json::Json;
use crate::service::messages;

/// How long a caller should wait who may ask again, in seconds.
const PAUSE: HeaderValue = HeaderValue::from_static("1");

/// An answer that says why not.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    error: Error,
}

/// What stands in its body.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    reason: &'static str,
    message: String,
    next_step: &'static str,
}

impl Refusal {
    /// One that has another status than its reason alone would give.
    pub(super) fn new(status: StatusCode, reason: Reason, message: impl Into<String>) -> Self {
        Self { status, error: Error::new(reason, message) }
    }

    /// What stands in its body.
    pub(super) fn told(self) -> Told {
        let (_, next_step) = meaning(self.error.reason);
        Told { reason: self.error.reason.name(), message: self.error.message, next_step }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { status: meaning(error.reason).0, error }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        messages::error(&status).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, kind) = (self.status, self.error.kind());
        let mut response = (status, Json(self.told())).into_response();
        if kind == ErrorKind::Wait {
            response.headers_mut().insert(header::RETRY_AFTER, PAUSE);
        }
        if status == StatusCode::UNAUTHORIZED {
            // A client is to be told how it could be let in (RFC 9110, section 11.6.1).
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A reason as an HTTP status, and what its caller can do.
const fn meaning(reason: Reason) -> (StatusCode, &'static str) {
    match reason {
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => {
            (StatusCode::BAD_REQUEST, "correct the request; /v1/openapi.json says what is expected")
        }
        Reason::NotAuthenticated => {
            (StatusCode::UNAUTHORIZED, "send a token that is valid here: Authorization: Bearer TOKEN")
        }
        Reason::NoAccess | Reason::MatchesOmitted => {
            (StatusCode::FORBIDDEN, "ask as somebody else, or ask those who have Admin there for the right")
        }
        Reason::NoSuchName | Reason::NoSuchNameRoot => {
            (StatusCode::NOT_FOUND, "mount a server there, or list what is there with ?glob=*")
        }
        Reason::NotEmpty => (StatusCode::CONFLICT, "delete what is below it first, or everything with ?subtree=1"),
        Reason::Root => (StatusCode::CONFLICT, "delete what is below the root instead"),
        Reason::FlagsConflict => {
            (StatusCode::CONFLICT, "mount with the flags of the servers that are there, or with replace")
        }
        Reason::ShadowedByMount => (StatusCode::CONFLICT, "unmount the servers above, or ask them for the name"),
        Reason::NoMountTable | Reason::DepthExceeded => (StatusCode::CONFLICT, "ask for another name"),
        Reason::BadVersion => {
            (StatusCode::PRECONDITION_FAILED, "read it again, and repeat the change with its new version")
        }
        Reason::NodeQuota | Reason::ServerQuota => {
            (StatusCode::TOO_MANY_REQUESTS, "remove what is not needed, or have an operator raise the limit")
        }
        Reason::NotAMountTable => (StatusCode::NOT_IMPLEMENTED, "ask a mounttable"),
        Reason::Damaged => (StatusCode::INTERNAL_SERVER_ERROR, "tell an operator"),
        Reason::ReadOnly => {
            (StatusCode::SERVICE_UNAVAILABLE, "ask another server of the table, or wait for an operator")
        }
        Reason::Contention | Reason::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "ask again in a second"),
        Reason::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "ask again"),
    }
}
