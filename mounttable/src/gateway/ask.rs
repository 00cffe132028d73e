//! Requests: the name in the path, the query, the body, all of them bounded, and who calls.

use std::time::Duration;

use axum::RequestExt as _;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, OptionalFromRequestParts, Path, Query, Request};
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tonic::metadata::MetadataMap;

use crate::error::{Error, Reason};
use crate::gateway::refusal::Refusal;
use crate::service::Answer;

/// The largest body that is read, in bytes: more than the largest permissions have.
pub const BODY_BYTES_MAX: usize = 128 << 10;

/// A body must have come by then.
const BODY_WAIT: Duration = Duration::from_secs(30);

/// An answer that is not a stream must have come by then: HTTP has no deadline of its own.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Holds bodies to [`BODY_BYTES_MAX`].
pub(super) fn limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(BODY_BYTES_MAX)
}

/// `1` or `true`, or their opposites, in a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) enum Flag {
    #[default]
    #[serde(rename = "0", alias = "false")]
    No,
    #[serde(rename = "1", alias = "true")]
    Yes,
}

/// A query in which nothing may stand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// A request without its body.
#[derive(Debug)]
pub(super) struct Asked<Q> {
    /// The name in the path, as it was written but for percent signs.
    pub(super) name: String,
    pub(super) query: Q,
    pub(super) headers: HeaderMap,
}

impl<Q> Asked<Q> {
    /// The call of `message` by whoever sent this request: its headers say who that is.
    pub(super) fn call<M>(&self, message: M) -> tonic::Request<M> {
        let mut call = tonic::Request::new(message);
        *call.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        call
    }
}

impl<S: Send + Sync, Q: DeserializeOwned> FromRequestParts<S> for Asked<Q> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
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
pub(super) struct Sent(Bytes);

impl Sent {
    /// Its text.
    pub(super) fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.0).map_err(|_| Error::new(Reason::BadRequest, "the body is no UTF-8"))
    }

    /// The value that it is, in JSON.
    pub(super) fn value<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let wrong =
            |error| Error::new(Reason::BadRequest, format!("the body is not the JSON that is expected: {error}"));
        serde_json::from_slice(&self.0).map_err(wrong)
    }
}

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let late = |_| Error::new(Reason::BadRequest, format!("the body has not come in {BODY_WAIT:?}"));
        let body = tokio::time::timeout(BODY_WAIT, request.extract::<Bytes, _>()).await.map_err(late)?;
        let body = body.map_err(|error| {
            let wrong = format!("{}; a body has at most {BODY_BYTES_MAX} bytes", error.body_text());
            Refusal::new(error.status(), Reason::BadRequest, wrong)
        })?;
        Ok(Self(body))
    }
}

/// What a call answered, in time.
pub(super) async fn answered<T>(call: impl Future<Output = Answer<T>>) -> Result<T, Refusal> {
    let late = |_| {
        let wrong = format!("no answer in {ANSWER_WAIT:?}; a change may have been made or not");
        Error::new(Reason::Unavailable, wrong)
    };
    Ok(tokio::time::timeout(ANSWER_WAIT, call).await.map_err(late)??.into_inner())
}
