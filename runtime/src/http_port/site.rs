//! Further paths of the HTTP port, which a part above this crate serves: the console.
//!
//! The port reads the request, with a bounded body, and knows the place of the caller. The site decides who may see what.

use std::convert::Infallible;
use std::fmt;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::request;

use super::access::Caller;

/// The largest body of a request: a form with one cell.
pub const REQUEST_BODY_BYTES_MAX: usize = 256 << 10;

/// The place of a caller, as far as the connection proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A program on this machine without a certificate.
    Local,
    /// A part of the cluster, by its certificate.
    Member,
    /// A user or a program, by its certificate.
    Client,
    /// A program elsewhere, on a connection with TLS and without a certificate.
    Anonymous,
    /// A program elsewhere, on a connection without TLS.
    Unsecured,
}

impl From<Caller> for Place {
    fn from(caller: Caller) -> Self {
        match caller {
            Caller::Member => Self::Member,
            Caller::Client => Self::Client,
            Caller::Local => Self::Local,
            Caller::Unsecured => Self::Unsecured,
            Caller::Anonymous => Self::Anonymous,
        }
    }
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

/// A request for a path of the site.
#[derive(Debug)]
pub struct SiteRequest {
    /// Its method, path and headers.
    pub head: request::Parts,
    /// Its body, at most [`REQUEST_BODY_BYTES_MAX`].
    pub body: Bytes,
    /// Where it comes from.
    pub place: Place,
    /// Whether the connection is encrypted.
    pub scheme: Scheme,
}

/// The body of a response.
pub enum SiteBody {
    /// As a whole.
    Whole(Bytes),
    /// In parts, each sent as soon as it is there; it ends when the client goes away.
    Parts(BoxStream<'static, Bytes>),
}

impl fmt::Debug for SiteBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(body) => f.debug_tuple("Whole").field(&body.len()).finish(),
            Self::Parts(_) => f.write_str("Parts(…)"),
        }
    }
}

/// What serves the further paths. All paths that the port does not have itself are its, and `/`.
pub trait Site: Send + Sync + 'static {
    /// The response to a request.
    fn serve(&self, request: SiteRequest) -> BoxFuture<'_, http::Response<SiteBody>>;
}

/// A response of the site as one of the port.
pub(super) fn to_response(response: http::Response<SiteBody>) -> Response {
    let (head, body) = response.into_parts();
    let body = match body {
        SiteBody::Whole(bytes) => Body::from(bytes),
        SiteBody::Parts(parts) => Body::from_stream(parts.map(Ok::<_, Infallible>)),
    };
    Response::from_parts(head, body)
}

/// The request as the site gets it.
///
/// # Errors
/// Why its body cannot be read, for the caller.
pub(super) async fn to_request(
    request: axum::extract::Request,
    place: Place,
    scheme: Scheme,
) -> Result<SiteRequest, String> {
    let (head, body) = request.into_parts();
    match axum::body::to_bytes(body, REQUEST_BODY_BYTES_MAX).await {
        Ok(body) => Ok(SiteRequest { head, body, place, scheme }),
        Err(_incomplete) => {
            Err(format!("the body of the request is incomplete, or larger than {REQUEST_BODY_BYTES_MAX} bytes\n"))
        }
    }
}
