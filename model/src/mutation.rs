//! Changes to one row: mutations of a request, and resolved changes of a tablet's log.
//!
//! A [`Mutation`] names families and may leave the timestamp to the server. A [`Change`] is resolved: families are ids and
//! every timestamp is set, so that apply is equal on each replica. [`validate`] needs no table; [`resolve`] is called by the
//! leader; additions to aggregates are then merged with the row's current states ([`Resolution`]). A row's mutations are
//! resolved all or not at all.

use bytes::Bytes;

use crate::aggregate::{AggregateInput, Aggregator, Resolution, ResolvedMutation};
use crate::error::Error;
use crate::id::FamilyId;
use crate::key::RowKey;
use crate::schema::{Family, TableSchema};
use crate::time::Micros;

/// Longest row key of a user's table, in bytes.
pub const ROW_KEY_BYTES_MAX: usize = 4096;
/// Longest column qualifier, in bytes.
pub const QUALIFIER_BYTES_MAX: usize = 16_384;
/// Largest value of a cell, in bytes.
pub const VALUE_BYTES_MAX: usize = 100 << 20;
/// Maximum number of mutations of one request, or of one branch of a conditional one.
pub const MUTATIONS_MAX: usize = 100_000;

/// Timestamp of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteTime {
    /// The server's time at the write.
    Server,
    /// This one: not negative, whole milliseconds.
    At(Micros),
}

/// One mutation of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Writes a cell; a cell of the same column and timestamp is replaced.
    SetCell {
        /// The family's name.
        family: String,
        /// The column.
        qualifier: Bytes,
        /// The version.
        timestamp: WriteTime,
        /// The content.
        value: Bytes,
    },
    /// Adds to a cell of an aggregate family.
    AddToCell {
        /// The family's name.
        family: String,
        /// The column.
        qualifier: Bytes,
        /// The version: not negative, whole milliseconds.
        timestamp: Micros,
        /// The input.
        input: AggregateInput,
    },
    /// Merges the state of another aggregate into a cell of an aggregate family.
    MergeToCell {
        /// The family's name.
        family: String,
        /// The column.
        qualifier: Bytes,
        /// The version: not negative, whole milliseconds.
        timestamp: Micros,
        /// The encoded state; `None` has no effect.
        state: Option<Bytes>,
    },
    /// Deletes the versions of a column with `start <= timestamp < end`.
    DeleteColumn {
        /// The family's name.
        family: String,
        /// The column.
        qualifier: Bytes,
        /// Whole milliseconds; zero deletes from the beginning.
        start: Micros,
        /// Whole milliseconds; `None` deletes to the end.
        end: Option<Micros>,
    },
    /// Deletes a row's cells in a family.
    DeleteFamily {
        /// The family's name.
        family: String,
    },
    /// Deletes a row's cells.
    DeleteRow,
}

/// One resolved change of a log. Deletes act on the cells that exist at apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Writes a cell; a cell of the same column and timestamp is replaced.
    SetCell {
        /// The family.
        family: FamilyId,
        /// The column.
        qualifier: Bytes,
        /// The version; not negative.
        timestamp: Micros,
        /// The content.
        value: Bytes,
    },
    /// Deletes the versions of a column with `start <= timestamp < end`.
    DeleteColumn {
        /// The family.
        family: FamilyId,
        /// The column.
        qualifier: Bytes,
        /// From this version on.
        start: Micros,
        /// Up to but not including this version; `None` to the newest.
        end: Option<Micros>,
    },
    /// Deletes a row's cells in a family.
    DeleteFamily(FamilyId),
    /// Deletes a row's cells.
    DeleteRow,
}

impl Mutation {
    /// Whether it adds to an aggregate.
    pub const fn is_aggregation(&self) -> bool {
        matches!(self, Self::AddToCell { .. } | Self::MergeToCell { .. })
    }

    /// Whether it stores a cell: all others delete.
    pub const fn stores_cells(&self) -> bool {
        self.stored_family().is_some()
    }

    /// The name of the family that it stores a cell in; `None` for deletions.
    pub const fn stored_family(&self) -> Option<&String> {
        match self {
            Self::SetCell { family, .. } | Self::AddToCell { family, .. } | Self::MergeToCell { family, .. } => {
                Some(family)
            }
            Self::DeleteColumn { .. } | Self::DeleteFamily { .. } | Self::DeleteRow => None,
        }
    }
}

impl Change {
    /// The family that it stores a cell in; `None` for deletions.
    pub const fn stored_family(&self) -> Option<FamilyId> {
        match self {
            Self::SetCell { family, .. } => Some(*family),
            Self::DeleteColumn { .. } | Self::DeleteFamily(_) | Self::DeleteRow => None,
        }
    }

    /// Approximate memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        let content = match self {
            Self::SetCell { qualifier, value, .. } => qualifier.len() + value.len(),
            Self::DeleteColumn { qualifier, .. } => qualifier.len(),
            Self::DeleteFamily(_) | Self::DeleteRow => 0,
        };
        content + 32
    }
}

/// Validates a row's mutations as far as possible without a schema.
///
/// # Errors
/// `InvalidArgument` when the row key or the list is empty, a limit is exceeded, or a timestamp or timestamp range is
/// invalid for a table with millisecond granularity.
pub fn validate(row: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
    validate_row_key(row)?;
    if mutations.is_empty() {
        return Err(Error::invalid("No mutations provided"));
    }
    validate_mutations(mutations)
}

/// Validates a list of mutations that may be empty, such as a branch of a conditional request.
///
/// # Errors
/// As [`validate`].
pub fn validate_mutations(mutations: &[Mutation]) -> Result<(), Error> {
    if mutations.len() > MUTATIONS_MAX {
        let message = format!("too many mutations: {}, the limit is {MUTATIONS_MAX}", mutations.len());
        return Err(Error::invalid(message));
    }
    mutations.iter().try_for_each(validate_one)
}

/// Validates the key of a row to write or read.
///
/// # Errors
/// `InvalidArgument` when it is empty or too long.
pub fn validate_row_key(row: &RowKey) -> Result<(), Error> {
    match row.as_bytes().len() {
        0 => Err(Error::invalid("Row keys must be non-empty")),
        length if length > ROW_KEY_BYTES_MAX => {
            Err(Error::invalid(format!("Row key has {length} bytes, the limit is {ROW_KEY_BYTES_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Validates the key of a row that these mutations change. A row with an invalid key, written by an older release, can
/// only be deleted as a whole.
///
/// # Errors
/// As [`validate_row_key`].
pub fn validate_written_key(row: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
    if mutations == [Mutation::DeleteRow] { Ok(()) } else { validate_row_key(row) }
}

fn validate_one(mutation: &Mutation) -> Result<(), Error> {
    match mutation {
        Mutation::SetCell { qualifier, timestamp, value, .. } => {
            validate_qualifier(qualifier)?;
            validate_value(value)?;
            match timestamp {
                WriteTime::Server => Ok(()),
                WriteTime::At(timestamp) => validate_timestamp(*timestamp),
            }
        }
        Mutation::AddToCell { qualifier, timestamp, .. } | Mutation::MergeToCell { qualifier, timestamp, .. } => {
            validate_qualifier(qualifier)?;
            validate_timestamp(*timestamp)
        }
        Mutation::DeleteColumn { qualifier, start, end, .. } => {
            validate_qualifier(qualifier)?;
            validate_timestamp(*start)?;
            end.map_or(Ok(()), validate_timestamp)?;
            match end {
                Some(end) if start >= end => {
                    Err(Error::invalid(format!("inverted or empty timestamp range [{start}, {end})")))
                }
                _ => Ok(()),
            }
        }
        Mutation::DeleteFamily { .. } | Mutation::DeleteRow => Ok(()),
    }
}

/// Validates a column qualifier.
///
/// # Errors
/// `InvalidArgument` when it is too long.
pub fn validate_qualifier(qualifier: &[u8]) -> Result<(), Error> {
    if qualifier.len() > QUALIFIER_BYTES_MAX {
        return Err(Error::invalid(format!(
            "Column qualifier has {} bytes, the limit is {QUALIFIER_BYTES_MAX}",
            qualifier.len()
        )));
    }
    Ok(())
}

/// Validates a cell's value.
///
/// # Errors
/// `InvalidArgument` when it is too large.
pub fn validate_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(too_large(value.len()));
    }
    Ok(())
}

/// The error for a value that is too large.
pub(crate) fn too_large(length: usize) -> Error {
    Error::invalid(format!("Cell value has {length} bytes, the limit is {VALUE_BYTES_MAX}"))
}

fn validate_timestamp(timestamp: Micros) -> Result<(), Error> {
    if timestamp < Micros::ZERO {
        return Err(Error::invalid(format!("Timestamp {timestamp} is negative")));
    }
    if !timestamp.is_whole_millis() {
        let message = format!(
            "Timestamp granularity mismatch. Expected a multiple of 1000 (millisecond granularity), but got {timestamp}"
        );
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Resolves a row's mutations with this schema.
///
/// `now` is the timestamp of writes that leave it to the server; it is truncated to whole milliseconds.
///
/// # Errors
/// `NotFoundFamily` when a named family does not exist, also for a delete; `InvalidArgument` when the mutation does not fit
/// the type of the family, an input or a state is not the family's, or the mutations add to too many sketches. Then
/// nothing may be applied.
pub fn resolve(schema: &TableSchema, mutations: &[Mutation], now: Micros) -> Result<Resolution, Error> {
    let steps: Result<_, _> =
        mutations.iter().filter_map(|mutation| resolve_one(schema, mutation, now).transpose()).collect();
    Resolution::new(steps?)
}

/// `None` for a mutation without effect.
fn resolve_one(schema: &TableSchema, mutation: &Mutation, now: Micros) -> Result<Option<ResolvedMutation>, Error> {
    let change = match mutation {
        Mutation::SetCell { family, qualifier, timestamp, value } => Change::SetCell {
            family: plain(schema.require_family(family)?)?,
            qualifier: qualifier.clone(),
            timestamp: match timestamp {
                WriteTime::Server => now.truncate_to_millis(),
                WriteTime::At(timestamp) => *timestamp,
            },
            value: value.clone(),
        },
        Mutation::AddToCell { family, qualifier, timestamp, input } => {
            let (family, aggregator) = aggregate(schema.require_family(family)?)?;
            let operand = aggregator.state_of(input)?;
            let (qualifier, timestamp) = (qualifier.clone(), *timestamp);
            return Ok(Some(ResolvedMutation::Merge { family, aggregator, qualifier, timestamp, operand }));
        }
        Mutation::MergeToCell { family, qualifier, timestamp, state } => {
            let (family, aggregator) = aggregate(schema.require_family(family)?)?;
            let Some(state) = state else { return Ok(None) };
            let operand = aggregator.decode(state).map_err(|reason| not_a_state(&reason))?;
            let (qualifier, timestamp) = (qualifier.clone(), *timestamp);
            return Ok(Some(ResolvedMutation::Merge { family, aggregator, qualifier, timestamp, operand }));
        }
        Mutation::DeleteColumn { family, qualifier, start, end } => Change::DeleteColumn {
            family: schema.require_family(family)?.id,
            qualifier: qualifier.clone(),
            start: *start,
            end: *end,
        },
        Mutation::DeleteFamily { family } => Change::DeleteFamily(schema.require_family(family)?.id),
        Mutation::DeleteRow => Change::DeleteRow,
    };
    Ok(Some(ResolvedMutation::Change(change)))
}

/// The id of a family that is not an aggregate.
///
/// # Errors
/// `InvalidArgument` when it is an aggregate family.
pub(crate) fn plain(family: &Family) -> Result<FamilyId, Error> {
    match family.aggregator {
        None => Ok(family.id),
        Some(aggregator) => Err(Error::invalid(format!(
            "column family {} is an aggregate ({aggregator}): use AddToCell or MergeToCell",
            family.name
        ))),
    }
}

fn aggregate(family: &Family) -> Result<(FamilyId, Aggregator), Error> {
    let not_one = || Error::invalid(format!("column family {} is not an aggregate: use SetCell", family.name));
    Ok((family.id, family.aggregator.ok_or_else(not_one)?))
}

fn not_a_state(reason: &str) -> Error {
    Error::invalid(format!("the state to merge {reason}"))
}
