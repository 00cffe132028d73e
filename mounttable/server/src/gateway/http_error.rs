//! Errors: the reasons of gRPC replies as HTTP statuses, with advice for the caller.

use axum::response::{IntoResponse, Response};
use ebla_model::ErrorKind;
use ebla_mounttable_tree::error::{Error, Reason};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tonic::Status;

use crate::gateway::json::Json;
use crate::service::messages;

/// The advised delay before a retry, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// An error response.
#[derive(Clone, Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    error: Error,
}

/// Its body.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    reason: &'static str,
    message: String,
    next_step: &'static str,
}

impl HttpError {
    /// An error with another status than its reason implies.
    pub(super) fn new(status: StatusCode, reason: Reason, message: impl Into<String>) -> Self {
        Self { status, error: Error::new(reason, message) }
    }

    /// Its body.
    pub(super) fn into_body(self) -> ErrorBody {
        let (_, next_step) = status_and_advice(self.error.reason);
        ErrorBody { reason: self.error.reason.name(), message: self.error.message, next_step }
    }
}

impl From<Error> for HttpError {
    fn from(error: Error) -> Self {
        Self { status: status_and_advice(error.reason).0, error }
    }
}

impl From<Status> for HttpError {
    fn from(status: Status) -> Self {
        messages::error(&status).into()
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let (status, kind) = (self.status, self.error.kind());
        let mut response = (status, Json(self.into_body())).into_response();
        if kind == ErrorKind::Wait {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 11.6.1, requires the authentication scheme in the response.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The HTTP status of a reason, and the advice for the caller.
const fn status_and_advice(reason: Reason) -> (StatusCode, &'static str) {
    match reason {
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => {
            (StatusCode::BAD_REQUEST, "correct the request; /v1/openapi.json describes it")
        }
        Reason::NotAuthenticated => (StatusCode::UNAUTHORIZED, "send a valid token: Authorization: Bearer TOKEN"),
        Reason::NoAccess | Reason::MatchesOmitted => {
            (StatusCode::FORBIDDEN, "use another identity, or request the right from an administrator of the node")
        }
        Reason::NoSuchName | Reason::NoSuchNameRoot => {
            (StatusCode::NOT_FOUND, "mount a server there, or list existing names with ?glob=*")
        }
        Reason::NotEmpty => (StatusCode::CONFLICT, "delete its children first, or the whole subtree with ?subtree=1"),
        Reason::Root => (StatusCode::CONFLICT, "delete the children of the root instead"),
        Reason::FlagsConflict => (StatusCode::CONFLICT, "mount with the flags of the mounted servers, or with replace"),
        Reason::ShadowedByMount => (StatusCode::CONFLICT, "unmount the servers above, or send the request to them"),
        Reason::NoMountTable | Reason::DepthExceeded => (StatusCode::CONFLICT, "use another name"),
        Reason::BadVersion => {
            (StatusCode::PRECONDITION_FAILED, "read it again, and repeat the change with the new version")
        }
        Reason::NodeQuota | Reason::ServerQuota => {
            (StatusCode::TOO_MANY_REQUESTS, "remove unused entries, or ask an operator to raise the limit")
        }
        Reason::NotAMountTable => (StatusCode::NOT_IMPLEMENTED, "send the request to a mounttable"),
        Reason::Damaged | Reason::StorageRefused => (StatusCode::INTERNAL_SERVER_ERROR, "report it to an operator"),
        Reason::ReadOnly => (
            StatusCode::SERVICE_UNAVAILABLE,
            "use another server of the table, or wait until the server accepts changes",
        ),
        Reason::Contention | Reason::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "retry after a second"),
        Reason::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "retry"),
    }
}
