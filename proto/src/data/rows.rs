//! Rows of responses, and row sets of requests.

use bytes::Bytes;
use prost::Message;

/// A row with its cells, of a ReadModifyWriteRow response.
#[derive(Clone, PartialEq, Message)]
pub struct Row {
    /// The row's key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Families, in a stable order.
    #[prost(message, repeated, tag = "2")]
    pub families: Vec<Family>,
}

/// The cells of one family in a row.
#[derive(Clone, PartialEq, Message)]
pub struct Family {
    /// The family's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Columns, ascending by qualifier.
    #[prost(message, repeated, tag = "2")]
    pub columns: Vec<Column>,
}

/// The cells of one column in a row.
#[derive(Clone, PartialEq, Message)]
pub struct Column {
    /// The qualifier, perhaps empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub qualifier: Bytes,
    /// Cells, newest first.
    #[prost(message, repeated, tag = "2")]
    pub cells: Vec<Cell>,
}

/// One version of a column.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Cell {
    /// Microseconds since the Unix epoch.
    #[prost(int64, tag = "1")]
    pub timestamp_micros: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// Labels given by filters.
    #[prost(string, repeated, tag = "3")]
    pub labels: Vec<String>,
}

/// Rows between two bounds, each closed, open or absent.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RowRange {
    /// The start; absent: the first row.
    #[prost(oneof = "row_range::StartKey", tags = "1, 2")]
    pub start_key: Option<row_range::StartKey>,
    /// The end; absent or empty: after the last row.
    #[prost(oneof = "row_range::EndKey", tags = "3, 4")]
    pub end_key: Option<row_range::EndKey>,
}

/// Bounds of a [`RowRange`].
pub mod row_range {
    use bytes::Bytes;

    /// The lower bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum StartKey {
        /// The key is inside.
        #[prost(bytes, tag = "1")]
        StartKeyClosed(Bytes),
        /// The key is outside.
        #[prost(bytes, tag = "2")]
        StartKeyOpen(Bytes),
    }

    /// The upper bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum EndKey {
        /// The key is outside.
        #[prost(bytes, tag = "3")]
        EndKeyOpen(Bytes),
        /// The key is inside.
        #[prost(bytes, tag = "4")]
        EndKeyClosed(Bytes),
    }
}

/// The union of keys and ranges; empty means the whole table.
#[derive(Clone, PartialEq, Message)]
pub struct RowSet {
    /// Single rows.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub row_keys: Vec<Bytes>,
    /// Ranges.
    #[prost(message, repeated, tag = "2")]
    pub row_ranges: Vec<RowRange>,
}
