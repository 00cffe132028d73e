//! Read-modify-write: appends and increments, evaluated by the leader under the row's latch.
//!
//! The log contains only the results, plain writes. Rules are evaluated in order and see the results of earlier ones. The
//! new version of a column is `max(now, newest version)`: a version from the future is replaced in place, so that the
//! result of a rule is always the newest version of its column.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::cell::{Cell, FamilyName, Row};
use crate::error::{Error, Reason};
use crate::id::FamilyId;
use crate::key::RowKey;
use crate::mutation::{Change, MUTATIONS_MAX, VALUE_BYTES_MAX, plain, too_large, validate_qualifier, validate_row_key};
use crate::schema::TableSchema;
use crate::time::Micros;

/// An operation on the newest value of one column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The family's name.
    pub family: String,
    /// The column.
    pub qualifier: Bytes,
    /// The operation.
    pub operation: Operation,
}

/// Operation of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Appends these bytes; a missing value is empty.
    Append(Bytes),
    /// Adds to the counter, 8 bytes big endian, wrapping around; a missing value is zero.
    Increment(i64),
}

/// Validates rules as far as possible without a schema.
///
/// # Errors
/// `InvalidArgument` when the row key is empty, there is no rule, or a limit is exceeded.
pub fn validate(row: &RowKey, rules: &[Rule]) -> Result<(), Error> {
    validate_row_key(row)?;
    validate_rules(rules)
}

/// Validates rules of a row whose key is valid.
///
/// # Errors
/// As [`validate`].
pub fn validate_rules(rules: &[Rule]) -> Result<(), Error> {
    if rules.is_empty() {
        return Err(Error::invalid("No rules provided"));
    }
    if rules.len() > MUTATIONS_MAX {
        let message = format!("too many rules: {}, the limit is {MUTATIONS_MAX}", rules.len());
        return Err(Error::invalid(message));
    }
    rules.iter().try_for_each(|rule| validate_qualifier(&rule.qualifier))
}

/// A column during the evaluation.
struct Column {
    family: FamilyId,
    timestamp: Micros,
    /// Grows in place: the cost of an append is proportional to its bytes.
    value: BytesMut,
}

/// Evaluates the rules: returns the writes for the log, and the cells for the response. Each changed column occurs once in
/// both, in the order of a row's cells.
///
/// `current`: the visible cells of the columns that the rules name (other cells are ignored).
/// `now` is truncated to whole milliseconds.
///
/// # Errors
/// `NotFoundFamily`; `FailedPrecondition` when a counter is not 8 bytes long; `InvalidArgument` when a value grows too
/// large or a family is an aggregate. Then nothing may be applied.
pub fn evaluate(
    schema: &TableSchema,
    current: &Row,
    rules: &[Rule],
    now: Micros,
) -> Result<(Vec<Change>, Vec<Cell>), Error> {
    let mut columns: BTreeMap<(FamilyName, Bytes), Column> = BTreeMap::new();
    for rule in rules {
        let family = schema.require_family(&rule.family)?;
        plain(family)?;
        let column = columns
            .entry((family.name.clone(), rule.qualifier.clone()))
            .or_insert_with(|| present(current, family.id, rule, now.truncate_to_millis()));
        operate(&mut column.value, rule)?;
    }
    Ok(columns.into_iter().map(|((name, qualifier), column)| outcome(name, qualifier, column)).unzip())
}

/// A column before the first rule, already with the timestamp of the new version.
fn present(current: &Row, family: FamilyId, rule: &Rule, now: Micros) -> Column {
    match current.newest(&rule.family, &rule.qualifier) {
        Some(cell) => Column { family, timestamp: now.max(cell.timestamp), value: cell.value.as_ref().into() },
        None => Column { family, timestamp: now, value: missing(&rule.operation) },
    }
}

/// The default of a missing value.
fn missing(operation: &Operation) -> BytesMut {
    match operation {
        Operation::Append(_) => BytesMut::new(),
        Operation::Increment(_) => BytesMut::zeroed(8),
    }
}

fn operate(value: &mut BytesMut, rule: &Rule) -> Result<(), Error> {
    match &rule.operation {
        Operation::Append(suffix) => {
            let length = value.len().saturating_add(suffix.len());
            if length > VALUE_BYTES_MAX {
                return Err(too_large(length));
            }
            value.extend_from_slice(suffix);
        }
        Operation::Increment(amount) => {
            let counter = <[u8; 8]>::try_from(value.as_ref()).map_err(|_| not_a_counter(value, rule))?;
            let sum = i64::from_be_bytes(counter).wrapping_add(*amount);
            value.copy_from_slice(&sum.to_be_bytes());
        }
    }
    Ok(())
}

fn not_a_counter(value: &[u8], rule: &Rule) -> Error {
    let message = format!(
        "Increment operations can only be performed on 64-bit values: column {}:{} holds {} bytes",
        rule.family,
        rule.qualifier.escape_ascii(),
        value.len()
    );
    Error::new(Reason::FailedPrecondition, message)
}

fn outcome(name: FamilyName, qualifier: Bytes, column: Column) -> (Change, Cell) {
    let Column { family, timestamp, value } = column;
    let value = value.freeze();
    let change = Change::SetCell { family, qualifier: qualifier.clone(), timestamp, value: value.clone() };
    (change, Cell::new(name, qualifier, timestamp, value))
}
