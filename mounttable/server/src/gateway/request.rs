//! Requests: name, query and body, all bounded, and the headers that identify the caller.

use std::time::Duration;

use axum::RequestExt as _;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, OptionalFromRequestParts, Path, Query, Request};
use ebla_mounttable_tree::error::{Error, Reason};
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tonic::metadata::MetadataMap;

use crate::gateway::http_error::HttpError;
use crate::service::RpcResult;

/// The largest body, in bytes: larger than the largest permissions.
pub const BODY_BYTES_MAX: usize = 128 << 10;

/// The time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for a unary reply: HTTP has no deadlines.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits bodies to [`BODY_BYTES_MAX`].
pub(super) fn limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(BODY_BYTES_MAX)
}

/// `1` or `true`, `0` or `false`, in a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) enum Flag {
    #[default]
    #[serde(rename = "0", alias = "false")]
    No,
    #[serde(rename = "1", alias = "true")]
    Yes,
}

/// An empty query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// A request without its body.
#[derive(Debug)]
pub(super) struct ParsedRequest<Q> {
    /// The name in the path, percent-decoded.
    pub(super) name: String,
    pub(super) query: Q,
    pub(super) headers: HeaderMap,
}

impl<Q> ParsedRequest<Q> {
    /// The gRPC request with this message and the headers of this request, which identify the caller.
    pub(super) fn call<M>(&self, message: M) -> tonic::Request<M> {
        let mut call = tonic::Request::new(message);
        *call.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        call
    }
}

impl<S: Send + Sync, Q: DeserializeOwned> FromRequestParts<S> for ParsedRequest<Q> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpError> {
        let path = <Path<String> as OptionalFromRequestParts<S>>::from_request_parts(parts, state).await;
        let path = path.map_err(|error| Error::new(Reason::BadName, error.body_text()))?;
        let query = Query::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| Error::new(Reason::BadRequest, error.body_text()))?;
        let name = path.map_or_else(String::new, |Path(name)| name);
        Ok(Self { name, query, headers: parts.headers.clone() })
    }
}

/// A body.
#[derive(Debug)]
pub(super) struct RequestBody(Bytes);

impl RequestBody {
    /// Its text.
    pub(super) fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.0).map_err(|_| Error::new(Reason::BadRequest, "the body is not UTF-8"))
    }

    /// Its value, parsed as JSON.
    pub(super) fn value<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let wrong = |error| Error::new(Reason::BadRequest, format!("invalid JSON in the body: {error}"));
        serde_json::from_slice(&self.0).map_err(wrong)
    }
}

impl<S: Send + Sync> FromRequest<S> for RequestBody {
    type Rejection = HttpError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, HttpError> {
        let late = |_| Error::new(Reason::BadRequest, format!("the body did not arrive within {BODY_TIMEOUT:?}"));
        let body = tokio::time::timeout(BODY_TIMEOUT, request.extract::<Bytes, _>()).await.map_err(late)?;
        let body = body.map_err(|error| {
            let wrong = format!("{}; the limit is {BODY_BYTES_MAX} bytes", error.body_text());
            HttpError::new(error.status(), Reason::BadRequest, wrong)
        })?;
        Ok(Self(body))
    }
}

/// The reply of a call, within [`REPLY_TIMEOUT`].
pub(super) async fn await_reply<T>(call: impl Future<Output = RpcResult<T>>) -> Result<T, HttpError> {
    let late = |_| {
        let wrong = format!("no reply within {REPLY_TIMEOUT:?}; a change may or may not have been applied");
        Error::new(Reason::Unavailable, wrong)
    };
    Ok(tokio::time::timeout(REPLY_TIMEOUT, call).await.map_err(late)??.into_inner())
}
