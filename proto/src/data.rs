//! Messages of `google.bigtable.v2` that carry data, written by hand.
//!
//! Reasons against the published crate: it lags the API (an unknown filter would decode as "no filter" and return every
//! cell), and it decodes content that a front only forwards. Here
//!
//! - every byte string is a [`Bytes`](bytes::Bytes), a slice of the bytes from the socket;
//! - filters, mutations and rules *inside a request* stay encoded. The front inspects them for limits only; the tablet
//!   decodes them, after [`crate::convert`] has checked that they have no unknown fields. The encoding matches the published
//!   types: a message field and a byte string are the same on the wire.
//! - [`Encoded`] is a response that was encoded at the tablet and is not decoded again.
//!
//! Names and tags are those of the API, whose documentation is not repeated. Tests compare each type with the published
//! one. Rarely used messages are the published crate's own.

mod encoded;
mod filters;
mod mutations;
mod requests;
mod rows;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as published;

pub use self::{encoded::Encoded, filters::*, mutations::*, requests::*, rows::*};
pub use published::{
    ExecuteQueryRequest, ExecuteQueryResponse, FeatureFlags, FullReadStatsView,
    GenerateInitialChangeStreamPartitionsRequest, GenerateInitialChangeStreamPartitionsResponse, Idempotency,
    PingAndWarmRequest, PingAndWarmResponse, PrepareQueryRequest, PrepareQueryResponse, RateLimitInfo,
    ReadChangeStreamRequest, ReadChangeStreamResponse, ReadIterationStats, RequestLatencyStats, RequestStats,
    ResponseParams, Value, request_stats, value,
};

#[cfg(test)]
mod tests;
