//! Filters: what of a row a read wants to see.
//!
//! A [`Filter`] is the tree that a request carries. [`Filter::validate`] checks all of it before any row is read;
//! [`CompiledFilter::compile`] makes of it what runs. Leaves let cells pass or not; `Chain` feeds one filter's output
//! to the next; `Interleave` pools the outputs of several; `Condition` takes one of two ways; `Sink` sends cells past all
//! that comes after it into the answer.

mod byte_set;
mod compile;
mod effort;
mod eval;
mod hint;
mod regex;
mod sample;
mod translate;

use std::ops::Bound;

use bytes::Bytes;

pub use self::compile::CompiledFilter;
pub use self::hint::Stretch;

use crate::error::Error;
use crate::time::Micros;

/// Largest encoded filter that the public API takes, in bytes.
pub const FILTER_BYTES_MAX: usize = 20_480;
/// Deepest nesting of filters; a filter alone has depth 1.
pub const FILTER_DEPTH_MAX: usize = 20;

/// A filter as a request states it.
#[derive(Clone, PartialEq, Debug)]
pub enum Filter {
    /// Lets every cell pass.
    PassAll,
    /// Lets none pass.
    BlockAll,
    /// Applies its members one after the other; at least two, of which at most one holds an `ApplyLabel`.
    Chain(Vec<Self>),
    /// Applies each member to the same input and pools what they let pass, duplicates included; at least two.
    Interleave(Vec<Self>),
    /// Applies `then` to the row if the predicate lets any cell of it pass, else `otherwise`. A missing branch lets
    /// nothing pass.
    Condition {
        /// Decides.
        predicate: Box<Self>,
        /// When it lets a cell pass.
        then: Option<Box<Self>>,
        /// When it lets none pass.
        otherwise: Option<Box<Self>>,
    },
    /// Sends cells straight to the final output and lets none pass to what comes after it. Not inside a `Condition`.
    Sink,
    /// All cells of rows whose key matches as a whole; not empty.
    RowKeyRegex(Bytes),
    /// All cells of a part of the rows, always the same ones, as if drawn with this probability: more than 0, less than 1.
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
    /// Cells whose value has the mask's length and all of its bits set. An empty mask is met by empty values only.
    ValueBitmask(Bytes),
    /// All but the first so many cells of the row.
    CellsPerRowOffset(i32),
    /// The first so many cells of the row; positive.
    CellsPerRowLimit(i32),
    /// The newest so many cells of each column; positive.
    CellsPerColumnLimit(i32),
    /// Every cell, with an empty value.
    StripValue,
    /// Every cell, with this label only: 1 to 15 of `a-z`, `0-9` and `-`.
    ApplyLabel(String),
}

impl Filter {
    /// Checks the whole tree: depth, numbers of members, arguments of leaves.
    ///
    /// Patterns are checked when compiled.
    ///
    /// # Errors
    /// `InvalidArgument`, with what is wrong.
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
                Err(Error::invalid(format!("invalid label {label:?}: 1 to 15 of a-z, 0-9 and -")))
            }
            _ => Ok(()),
        }
    }

    /// Whether it or any filter inside it is such a one.
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

/// No cell meets two labels: an interleave gives each of its members copies of their own, a chain would not.
fn validate_labels(chain: &[Filter]) -> Result<(), Error> {
    if chain.iter().filter(|member| member.contains(Filter::is_label)).count() > 1 {
        return Err(Error::invalid("Chain must not contain more than one filter that applies a label"));
    }
    Ok(())
}

/// Refuses a range that is inverted. One that is merely empty lets nothing pass.
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
