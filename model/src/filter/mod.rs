//! Row filters.
//!
//! A [`Filter`] is the tree of a request. [`Filter::validate`] checks all of it before any row is read;
//! [`CompiledFilter::compile`] converts it to a program. Leaves pass or drop cells; `Chain` feeds one filter's output to the
//! next; `Interleave` combines the outputs of several; `Condition` takes one of two branches; `Sink` moves cells directly to
//! the output. Push-down (`pushdown.rs`) tells a reader which rows and columns a filter needs.

mod budget;
mod byte_set;
mod compile;
mod eval;
mod pushdown;
mod regex;
mod sample;
mod translate;

use std::ops::Bound;

use bytes::Bytes;

pub use self::compile::CompiledFilter;
pub use self::pushdown::ColumnRange;

use crate::error::Error;
use crate::time::Micros;

/// Maximum size of an encoded filter in the public API, in bytes.
pub const FILTER_BYTES_MAX: usize = 20_480;
/// Maximum nesting of filters; a filter without children has depth 1.
pub const FILTER_DEPTH_MAX: usize = 20;

/// A filter of a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Filter {
    /// Passes every cell.
    PassAll,
    /// Passes no cell.
    BlockAll,
    /// Applies its members one after the other; at least two, of which at most one holds an `ApplyLabel`.
    Chain(Vec<Self>),
    /// Applies each member to the same input and combines their outputs, duplicates included; at least two.
    Interleave(Vec<Self>),
    /// Applies `then` to the row if any cell of it passes the predicate, else `otherwise`. A missing branch passes nothing.
    Condition {
        /// The predicate.
        predicate: Box<Self>,
        /// Applied when a cell passes the predicate.
        then: Option<Box<Self>>,
        /// Applied when no cell passes it.
        otherwise: Option<Box<Self>>,
    },
    /// Moves cells directly to the final output and passes none to later filters. Not inside a `Condition`.
    Sink,
    /// All cells of rows whose key matches as a whole; not empty.
    RowKeyRegex(Bytes),
    /// All cells of a deterministic sample of the rows with this probability: more than 0, less than 1.
    RowSample(f64),
    /// Cells whose family's name matches as a whole.
    FamilyNameRegex(Bytes),
    /// Cells whose qualifier matches as a whole.
    ColumnQualifierRegex(Bytes),
    /// Cells of one family's columns between two qualifiers.
    ColumnRange {
        /// The family's name; not empty.
        family: String,
        /// The lower bound.
        start: Bound<Bytes>,
        /// The upper bound.
        end: Bound<Bytes>,
    },
    /// Cells with `start <= timestamp < end`.
    TimestampRange {
        /// Whole milliseconds.
        start: Micros,
        /// Whole milliseconds; `None`: open above.
        end: Option<Micros>,
    },
    /// Cells whose value matches as a whole.
    ValueRegex(Bytes),
    /// Cells whose value lies between two.
    ValueRange {
        /// The lower bound.
        start: Bound<Bytes>,
        /// The upper bound.
        end: Bound<Bytes>,
    },
    /// Cells whose value has the mask's length and all of its bits set. An empty mask matches empty values only.
    ValueBitmask(Bytes),
    /// All cells of the row but this many, from the first.
    CellsPerRowOffset(i32),
    /// Only this many cells of the row, from the first; positive.
    CellsPerRowLimit(i32),
    /// Only this many cells of each column, the newest; positive.
    CellsPerColumnLimit(i32),
    /// Every cell, with an empty value.
    StripValue,
    /// Every cell, with this label only: 1 to 15 characters of `a-z`, `0-9` and `-`.
    ApplyLabel(String),
}

impl Filter {
    /// Validates the whole tree: depth, numbers of members, arguments of leaves.
    ///
    /// Patterns are validated by compilation.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn validate(&self) -> Result<(), Error> {
        self.validate_at(1)
    }

    fn validate_at(&self, depth: usize) -> Result<(), Error> {
        if depth > FILTER_DEPTH_MAX {
            return Err(Error::invalid(format!("Row filter is nested deeper than {FILTER_DEPTH_MAX}")));
        }
        match self {
            Self::Chain(members) => {
                validate_members("Chain", members, depth)?;
                validate_labels(members)
            }
            Self::Interleave(members) => validate_members("Interleave", members, depth),
            Self::Condition { predicate, then, otherwise } => {
                if self.contains(Self::is_sink) {
                    return Err(Error::invalid("Condition must not contain a sink"));
                }
                [Some(predicate), then.as_ref(), otherwise.as_ref()]
                    .into_iter()
                    .flatten()
                    .try_for_each(|member| member.validate_at(depth + 1))
            }
            leaf => leaf.validate_leaf(),
        }
    }

    fn validate_leaf(&self) -> Result<(), Error> {
        match self {
            Self::RowKeyRegex(pattern) if pattern.is_empty() => {
                Err(Error::invalid("row_key_regex_filter must not be empty"))
            }
            Self::RowSample(share) if !(*share > 0.0 && *share < 1.0) => {
                Err(Error::invalid("row_sample_filter must be more than 0.0 and less than 1.0"))
            }
            Self::FamilyNameRegex(pattern) if pattern.contains(&b':') => {
                Err(Error::invalid("family_name_regex_filter must not contain ':'"))
            }
            Self::ColumnRange { family, .. } if family.is_empty() => {
                Err(Error::invalid("column_range_filter must name a family"))
            }
            Self::ColumnRange { start, end, .. } => validate_bounds("column_range_filter", start, end),
            Self::ValueRange { start, end } => validate_bounds("value_range_filter", start, end),
            Self::TimestampRange { start, end } => validate_timestamps(*start, *end),
            Self::CellsPerRowOffset(count) if *count < 0 => {
                Err(Error::invalid("cells_per_row_offset_filter must not be negative"))
            }
            Self::CellsPerRowLimit(count) if *count <= 0 => {
                Err(Error::invalid("cells_per_row_limit_filter must be positive"))
            }
            Self::CellsPerColumnLimit(count) if *count <= 0 => {
                Err(Error::invalid("cells_per_column_limit_filter must be positive"))
            }
            Self::ApplyLabel(label) if !is_legal_label(label) => {
                Err(Error::invalid(format!("invalid label {label:?}: expected 1 to 15 characters of a-z, 0-9 and -")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the predicate is true for it or for any filter inside it.
    fn contains(&self, is_such: fn(&Self) -> bool) -> bool {
        match self {
            Self::Chain(members) | Self::Interleave(members) => members.iter().any(|member| member.contains(is_such)),
            Self::Condition { predicate, then, otherwise } => [Some(predicate), then.as_ref(), otherwise.as_ref()]
                .into_iter()
                .flatten()
                .any(|member| member.contains(is_such)),
            leaf => is_such(leaf),
        }
    }

    const fn is_sink(&self) -> bool {
        matches!(self, Self::Sink)
    }

    const fn is_label(&self) -> bool {
        matches!(self, Self::ApplyLabel(_))
    }
}

fn validate_members(name: &str, members: &[Filter], depth: usize) -> Result<(), Error> {
    if members.len() < 2 {
        return Err(Error::invalid(format!("{name} must contain at least two filters")));
    }
    members.iter().try_for_each(|member| member.validate_at(depth + 1))
}

/// Ensures that no cell gets two labels: the members of an interleave have separate copies, those of a chain do not.
fn validate_labels(chain: &[Filter]) -> Result<(), Error> {
    if chain.iter().filter(|member| member.contains(Filter::is_label)).count() > 1 {
        return Err(Error::invalid("Chain must not contain more than one filter that applies a label"));
    }
    Ok(())
}

/// Refuses an inverted range. An empty range is valid and passes nothing.
fn validate_bounds(name: &str, start: &Bound<Bytes>, end: &Bound<Bytes>) -> Result<(), Error> {
    let key = |bound: &Bound<Bytes>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    match (key(start), key(end)) {
        (Some(start), Some(end)) if start > end => Err(Error::invalid(format!("{name} is inverted"))),
        _ => Ok(()),
    }
}

fn validate_timestamps(start: Micros, end: Option<Micros>) -> Result<(), Error> {
    if !start.is_whole_millis() || !end.is_none_or(Micros::is_whole_millis) {
        return Err(Error::invalid("timestamp_range_filter: bounds must be whole milliseconds"));
    }
    if start < Micros::ZERO || end.is_some_and(|end| end < start) {
        let end = end.map_or_else(|| "-".to_owned(), |end| end.to_string());
        return Err(Error::invalid(format!("timestamp_range_filter [{start}, {end}) is inverted or negative")));
    }
    Ok(())
}

fn is_legal_label(label: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&label.len()) && label.bytes().all(legal)
}
