//! Requests and responses. Content of a request for the tablet stays encoded.

use bytes::Bytes;
use prost::Message;

use super::{Idempotency, RateLimitInfo, RequestStats, Row, RowRange, RowSet, published};
use crate::admin::rpc;

/// A read of rows.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRowsRequest {
    /// The table; or one of the two views.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "9")]
    pub authorized_view_name: String,
    /// A materialized view.
    #[prost(string, tag = "11")]
    pub materialized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "5")]
    pub app_profile_id: String,
    /// The row set; absent: all rows.
    #[prost(message, optional, tag = "2")]
    pub rows: Option<RowSet>,
    /// An encoded [`RowFilter`](crate::data::RowFilter).
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub filter: Option<Bytes>,
    /// Row limit: rows after the filter; 0: no limit.
    #[prost(int64, tag = "4")]
    pub rows_limit: i64,
    /// Requested statistics.
    #[prost(enumeration = "read_rows_request::RequestStatsView", tag = "6")]
    pub request_stats_view: i32,
    /// From the last row to the first.
    #[prost(bool, tag = "7")]
    pub reversed: bool,
}

pub use published::read_rows_request;

/// Some whole rows.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRowsResponse {
    /// Cells in order.
    #[prost(message, repeated, tag = "1")]
    pub chunks: Vec<read_rows_response::CellChunk>,
    /// The last scanned row, if it is after the last row sent.
    #[prost(bytes = "bytes", tag = "2")]
    pub last_scanned_row_key: Bytes,
    /// Statistics, in the last message.
    #[prost(message, optional, tag = "3")]
    pub request_stats: Option<RequestStats>,
}

/// Parts of a [`ReadRowsResponse`].
pub mod read_rows_response {
    use bytes::Bytes;

    /// A cell, or a part of one.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
    pub struct CellChunk {
        /// The row, in its first chunk; later empty.
        #[prost(bytes = "bytes", tag = "1")]
        pub row_key: Bytes,
        /// The family, if it has changed.
        #[prost(message, optional, tag = "2")]
        pub family_name: Option<StringValue>,
        /// The qualifier, if it or the family has changed.
        #[prost(message, optional, tag = "3")]
        pub qualifier: Option<BytesValue>,
        /// Microseconds.
        #[prost(int64, tag = "4")]
        pub timestamp_micros: i64,
        /// Labels given by filters.
        #[prost(string, repeated, tag = "5")]
        pub labels: Vec<String>,
        /// The value, or a part of it.
        #[prost(bytes = "bytes", tag = "6")]
        pub value: Bytes,
        /// The whole value's size, when more parts follow.
        #[prost(int32, tag = "7")]
        pub value_size: i32,
        /// Whether the row ends here.
        #[prost(oneof = "cell_chunk::RowStatus", tags = "8, 9")]
        pub row_status: Option<cell_chunk::RowStatus>,
    }

    /// The end of a row.
    pub mod cell_chunk {
        /// What to do with the chunks since the last end.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Oneof)]
        pub enum RowStatus {
            /// Discard them.
            #[prost(bool, tag = "8")]
            ResetRow(bool),
            /// Commit them as a row.
            #[prost(bool, tag = "9")]
            CommitRow(bool),
        }
    }

    /// `google.protobuf.StringValue`, as our own message: presence matters.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
    pub struct StringValue {
        /// The string.
        #[prost(string, tag = "1")]
        pub value: String,
    }

    /// `google.protobuf.BytesValue` without the copy that `prost-types` makes.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
    pub struct BytesValue {
        /// The bytes.
        #[prost(bytes = "bytes", tag = "1")]
        pub value: Bytes,
    }
}

/// Possible split points of a table.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct SampleRowKeysRequest {
    /// The table; or one of the two views.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "4")]
    pub authorized_view_name: String,
    /// A materialized view.
    #[prost(string, tag = "5")]
    pub materialized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "2")]
    pub app_profile_id: String,
    /// Only keys inside. Not in the published crate.
    #[prost(message, optional, tag = "6")]
    pub row_range: Option<RowRange>,
}

/// A possible split point.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct SampleRowKeysResponse {
    /// The key, the exclusive end of the rows before; empty: the table's end.
    #[prost(bytes = "bytes", tag = "1")]
    pub row_key: Bytes,
    /// Approximate bytes of the table before the key.
    #[prost(int64, tag = "2")]
    pub offset_bytes: i64,
}

/// Changes to one row, all or nothing.
#[derive(Clone, PartialEq, Message)]
pub struct MutateRowRequest {
    /// The table, or the view.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "6")]
    pub authorized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "4")]
    pub app_profile_id: String,
    /// The row.
    #[prost(bytes = "bytes", tag = "2")]
    pub row_key: Bytes,
    /// Encoded [`Mutation`](crate::data::Mutation)s, in order.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub mutations: Vec<Bytes>,
    /// Idempotency token of the request.
    #[prost(message, optional, tag = "8")]
    pub idempotency: Option<Idempotency>,
}

/// Applied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct MutateRowResponse {}

/// Changes to many rows, each row atomically.
#[derive(Clone, PartialEq, Message)]
pub struct MutateRowsRequest {
    /// The table, or the view.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "5")]
    pub authorized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "3")]
    pub app_profile_id: String,
    /// The rows.
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<mutate_rows_request::Entry>,
}

/// Parts of a [`MutateRowsRequest`].
pub mod mutate_rows_request {
    use bytes::Bytes;

    use super::Idempotency;

    /// Changes to one row.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Entry {
        /// The row.
        #[prost(bytes = "bytes", tag = "1")]
        pub row_key: Bytes,
        /// Encoded [`Mutation`](crate::data::Mutation)s, in order.
        #[prost(bytes = "bytes", repeated, tag = "2")]
        pub mutations: Vec<Bytes>,
        /// Idempotency token of the entry.
        #[prost(message, optional, tag = "3")]
        pub idempotency: Option<Idempotency>,
    }
}

/// Results of some entries.
#[derive(Clone, PartialEq, Message)]
pub struct MutateRowsResponse {
    /// Each index of the request once in the whole stream.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<mutate_rows_response::Entry>,
    /// Rate limit, for clients that requested it.
    #[prost(message, optional, tag = "3")]
    pub rate_limit_info: Option<RateLimitInfo>,
}

/// Parts of a [`MutateRowsResponse`].
pub mod mutate_rows_response {
    use super::rpc;

    /// The result of one entry.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Entry {
        /// Its index in the request.
        #[prost(int64, tag = "1")]
        pub index: i64,
        /// Code 0: applied.
        #[prost(message, optional, tag = "2")]
        pub status: Option<rpc::Status>,
    }
}

/// Changes that depend on a condition on the row.
#[derive(Clone, PartialEq, Message)]
pub struct CheckAndMutateRowRequest {
    /// The table, or the view.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "9")]
    pub authorized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "7")]
    pub app_profile_id: String,
    /// The row.
    #[prost(bytes = "bytes", tag = "2")]
    pub row_key: Bytes,
    /// An encoded [`RowFilter`](crate::data::RowFilter); absent: the condition is that the row exists.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub predicate_filter: Option<Bytes>,
    /// Encoded [`Mutation`](crate::data::Mutation)s when the filter yields a cell.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub true_mutations: Vec<Bytes>,
    /// Encoded [`Mutation`](crate::data::Mutation)s when it yields none.
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub false_mutations: Vec<Bytes>,
}

/// Which branch was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct CheckAndMutateRowResponse {
    /// The filter yielded a cell.
    #[prost(bool, tag = "1")]
    pub predicate_matched: bool,
}

/// Changes computed from the row.
#[derive(Clone, PartialEq, Message)]
pub struct ReadModifyWriteRowRequest {
    /// The table, or the view.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// An authorized view.
    #[prost(string, tag = "6")]
    pub authorized_view_name: String,
    /// The app profile; empty: the default one.
    #[prost(string, tag = "4")]
    pub app_profile_id: String,
    /// The row.
    #[prost(bytes = "bytes", tag = "2")]
    pub row_key: Bytes,
    /// Encoded [`ReadModifyWriteRule`](crate::data::ReadModifyWriteRule)s, in order.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub rules: Vec<Bytes>,
}

/// The cells that were written.
#[derive(Clone, PartialEq, Message)]
pub struct ReadModifyWriteRowResponse {
    /// Each changed cell once.
    #[prost(message, optional, tag = "1")]
    pub row: Option<Row>,
}
