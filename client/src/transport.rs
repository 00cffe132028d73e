//! The transport of requests to tablet servers: a trait, so that a server can serve its own tablets in process and a
//! test can replace the cluster.
//!
//! Requests and replies are the messages of `ebla.tablet` with their payloads as `Bytes`; a transport passes them on
//! without decoding. It makes one attempt: [`crate::Cluster`] routes and retries.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::tablet;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// The destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The id of the server.
    pub server: ServerId,
    /// Its `host:port`.
    pub address: String,
}

/// The error of a call to a tablet server, with the redirect hints of the server.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallError {
    /// The error.
    pub error: Error,
    /// The tablets near the key as the server knows them; `None` when no server responded. Boxed: it is large and rare.
    pub detail: Option<Box<tablet::TabletError>>,
}

impl CallError {
    /// An error with the detail of the server that responded.
    pub fn new(error: Error, detail: Option<tablet::TabletError>) -> Self {
        Self { error, detail: detail.map(Box::new) }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self { error, detail: None }
    }
}

/// The messages of one read at one tablet. Dropping it ends the read.
pub type ReadStream = BoxStream<'static, Result<tablet::ReadReply, CallError>>;

/// One attempt at a tablet server. `timeout` bounds the call; for a read, the whole stream.
///
/// No call is cancel-safe: a write whose future is dropped may be applied.
pub trait Transport: Send + Sync + 'static {
    /// Rows of one tablet.
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::ReadRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>>;

    /// Mutations of rows of one tablet, each row atomic; one result for each row.
    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::WriteRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>>;

    /// A conditional mutation of one row.
    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::CheckRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>>;

    /// A read-modify-write of one row.
    fn modify<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::ModifyRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>>;

    /// The size and descriptor of one tablet.
    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::SampleRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>>;
}

/// Ends an attempt after `timeout`.
pub(crate) async fn with_timeout<T>(
    timeout: Duration,
    attempt: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let timed_out = |_elapsed| CallError::from(Error::new(Reason::Deadline, "the server did not respond in time"));
    tokio::time::timeout(timeout, attempt).await.map_err(timed_out)?
}
