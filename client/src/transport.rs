//! The way a request takes to a tablet server: a trait, so that a server can serve its own tablets without a wire and
//! a test can stand in for a cluster.
//!
//! Requests and replies are the messages of `ebla.tablet` with their payloads as `Bytes`; a transport hands them on
//! and looks at none of them. It makes one attempt: retries and routing belong to [`crate::Cluster`].

use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::ServerId;
use ebla_proto::tablet;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server that is meant.
    pub server: ServerId,
    /// Its `host:port`.
    pub address: String,
}

/// Why a call to a tablet server failed, with what the server said about where to go instead.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallError {
    /// What happened and what to do about it.
    pub error: Error,
    /// What the server knows of the tablets around the key; absent when no server answered. Boxed: it is large and rare.
    pub detail: Option<Box<tablet::TabletError>>,
}

impl CallError {
    /// An error with what the answering server added.
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

/// One attempt at a tablet server. `limit` is how long the caller waits; for a read, for the whole stream.
///
/// No call is cancel-safe in the sense that it was not carried out: a write whose future is dropped may be applied.
pub trait Transport: Send + Sync + 'static {
    /// Rows of one tablet.
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::ReadRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>>;

    /// Mutations of rows of one tablet, each row atomic, one result for each.
    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::WriteRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>>;

    /// A conditional mutation of one row.
    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::CheckRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>>;

    /// A read-modify-write of one row.
    fn modify<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::ModifyRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>>;

    /// The size and descriptor of one tablet.
    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::SampleRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>>;
}
