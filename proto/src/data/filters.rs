//! Filters.

use bytes::Bytes;
use prost::Message;

/// Columns of one family between two qualifiers.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ColumnRange {
    /// The family.
    #[prost(string, tag = "1")]
    pub family_name: String,
    /// The start; absent: the first column.
    #[prost(oneof = "column_range::StartQualifier", tags = "2, 3")]
    pub start_qualifier: Option<column_range::StartQualifier>,
    /// The end; absent: after the last column.
    #[prost(oneof = "column_range::EndQualifier", tags = "4, 5")]
    pub end_qualifier: Option<column_range::EndQualifier>,
}

/// Bounds of a [`ColumnRange`].
pub mod column_range {
    use bytes::Bytes;

    /// The lower bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum StartQualifier {
        /// The qualifier is inside.
        #[prost(bytes, tag = "2")]
        StartQualifierClosed(Bytes),
        /// The qualifier is outside.
        #[prost(bytes, tag = "3")]
        StartQualifierOpen(Bytes),
    }

    /// The upper bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum EndQualifier {
        /// The qualifier is inside.
        #[prost(bytes, tag = "4")]
        EndQualifierClosed(Bytes),
        /// The qualifier is outside.
        #[prost(bytes, tag = "5")]
        EndQualifierOpen(Bytes),
    }
}

/// Timestamps from start (inclusive) to end (exclusive); 0: unbounded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct TimestampRange {
    /// Inclusive lower bound.
    #[prost(int64, tag = "1")]
    pub start_timestamp_micros: i64,
    /// Exclusive upper bound; 0: none.
    #[prost(int64, tag = "2")]
    pub end_timestamp_micros: i64,
}

/// Values between two bounds.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ValueRange {
    /// The start; absent: the empty value.
    #[prost(oneof = "value_range::StartValue", tags = "1, 2")]
    pub start_value: Option<value_range::StartValue>,
    /// The end; absent: unbounded.
    #[prost(oneof = "value_range::EndValue", tags = "3, 4")]
    pub end_value: Option<value_range::EndValue>,
}

/// Bounds of a [`ValueRange`].
pub mod value_range {
    use bytes::Bytes;

    /// The lower bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum StartValue {
        /// The value is inside.
        #[prost(bytes, tag = "1")]
        StartValueClosed(Bytes),
        /// The value is outside.
        #[prost(bytes, tag = "2")]
        StartValueOpen(Bytes),
    }

    /// The upper bound.
    #[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
    pub enum EndValue {
        /// The value is inside.
        #[prost(bytes, tag = "3")]
        EndValueClosed(Bytes),
        /// The value is outside.
        #[prost(bytes, tag = "4")]
        EndValueOpen(Bytes),
    }
}

/// Values of the mask's length that have all of its bits. Not in the published crate.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ValueBitmask {
    /// The bits that must be set.
    #[prost(bytes = "bytes", tag = "1")]
    pub mask: Bytes,
}

/// A filter; unset passes everything.
#[derive(Clone, PartialEq, Message)]
pub struct RowFilter {
    /// The filter.
    #[prost(
        oneof = "row_filter::Filter",
        tags = "1, 2, 3, 16, 17, 18, 4, 14, 5, 6, 7, 8, 9, 15, 10, 11, 12, 13, 19, 20"
    )]
    pub filter: Option<row_filter::Filter>,
}

/// The kinds of [`RowFilter`].
pub mod row_filter {
    use bytes::Bytes;

    use super::{ColumnRange, RowFilter, TimestampRange, ValueBitmask, ValueRange};

    /// A chain of filters.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Chain {
        /// In order; at least two.
        #[prost(message, repeated, tag = "1")]
        pub filters: Vec<RowFilter>,
    }

    /// Filters on the same input, with combined outputs.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Interleave {
        /// At least two.
        #[prost(message, repeated, tag = "1")]
        pub filters: Vec<RowFilter>,
    }

    /// One of two filters, selected by a predicate.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Condition {
        /// The predicate: true if a cell passes.
        #[prost(message, optional, boxed, tag = "1")]
        pub predicate_filter: Option<Box<RowFilter>>,
        /// Applied when true; absent: nothing passes.
        #[prost(message, optional, boxed, tag = "2")]
        pub true_filter: Option<Box<RowFilter>>,
        /// Applied when false; absent: nothing passes.
        #[prost(message, optional, boxed, tag = "3")]
        pub false_filter: Option<Box<RowFilter>>,
    }

    /// The filter itself.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Filter {
        /// A chain.
        #[prost(message, tag = "1")]
        Chain(Chain),
        /// An interleave.
        #[prost(message, tag = "2")]
        Interleave(Interleave),
        /// A condition.
        #[prost(message, tag = "3")]
        Condition(Box<Condition>),
        /// A sink: directly to the final output.
        #[prost(bool, tag = "16")]
        Sink(bool),
        /// Everything.
        #[prost(bool, tag = "17")]
        PassAllFilter(bool),
        /// Nothing.
        #[prost(bool, tag = "18")]
        BlockAllFilter(bool),
        /// Rows whose key matches.
        #[prost(bytes, tag = "4")]
        RowKeyRegexFilter(Bytes),
        /// A sample of rows with this probability.
        #[prost(double, tag = "14")]
        RowSampleFilter(f64),
        /// Families whose name matches.
        #[prost(string, tag = "5")]
        FamilyNameRegexFilter(String),
        /// Columns whose qualifier matches.
        #[prost(bytes, tag = "6")]
        ColumnQualifierRegexFilter(Bytes),
        /// Columns in a range.
        #[prost(message, tag = "7")]
        ColumnRangeFilter(ColumnRange),
        /// Cells in a range of time.
        #[prost(message, tag = "8")]
        TimestampRangeFilter(TimestampRange),
        /// Cells whose value matches.
        #[prost(bytes, tag = "9")]
        ValueRegexFilter(Bytes),
        /// Cells whose value is in a range.
        #[prost(message, tag = "15")]
        ValueRangeFilter(ValueRange),
        /// All but the first cells of the row.
        #[prost(int32, tag = "10")]
        CellsPerRowOffsetFilter(i32),
        /// The first cells of the row.
        #[prost(int32, tag = "11")]
        CellsPerRowLimitFilter(i32),
        /// The newest cells of each column.
        #[prost(int32, tag = "12")]
        CellsPerColumnLimitFilter(i32),
        /// Values become empty.
        #[prost(bool, tag = "13")]
        StripValueTransformer(bool),
        /// Cells get this label.
        #[prost(string, tag = "19")]
        ApplyLabelTransformer(String),
        /// Cells whose value has the bits of a mask. Not in the published crate.
        #[prost(message, tag = "20")]
        ValueBitmaskFilter(ValueBitmask),
    }
}
