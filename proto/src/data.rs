//! Messages of `google.bigtable.v2` that carry data, written by hand.
//!
//! Why not the published crate: it lags the API (a filter it does not know would decode as "no filter" and return
//! every cell), and it decodes what a front only hands on. Here
//!
//! - every byte string is a [`Bytes`](bytes::Bytes), a slice of what came from the socket;
//! - filters, mutations and rules *inside a request* are kept encoded. The front looks into them for limits only; the
//!   tablet decodes them, with [`crate::convert`]'s check that nothing in them is unknown. The bytes agree with the
//!   published types: a message field and a byte string are the same on the wire.
//! - [`Encoded`] is an answer that was encoded at the tablet and is not looked into again.
//!
//! Names and tags are those of the API, whose documentation is not repeated. Tests compare each type with the
//! published one. Messages that are rarely used are the published crate's own.

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
