//! Read-modify-write: appends and increments, decided by the leader under the row's latch.
//!
//! What goes into the log is only the outcome, plain writes. Rules are taken in order and see what earlier ones did.
//! The new version of a column is `max(now, newest version)`: a version from the future is replaced in place, so that
//! the result of a rule is always the newest version of its column.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::cell::{Cell, FamilyName, Row};
use crate::error::{Error, Reason};
use crate::id::FamilyId;
use crate::key::RowKey;
use crate::mutation::{Change, MUTATIONS_MAX, VALUE_BYTES_MAX, plain, too_large, validate_qualifier, validate_row_key};
use crate::schema::TableSchema;
use crate::time::Micros;

/// What to do to the newest value of one column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The family's name.
    pub family: String,
    /// The column.
    pub qualifier: Bytes,
    /// The operation.
    pub operation: Operation,
}

/// What a rule does to a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Puts these bytes behind it; a missing value is empty.
    Append(Bytes),
    /// Adds to the counter in it, 8 bytes big endian, wrapping around; a missing value is zero.
    Increment(i64),
}

/// Checks rules as far as no table is needed.
///
/// # Errors
/// `InvalidArgument` when the row key is empty, there is no rule, or a limit is exceeded.
pub fn validate(row: &RowKey, rules: &[Rule]) -> Result<(), Error> {
    validate_row_key(row)?;
    validate_rules(rules)
}

/// Checks rules of a row whose key was checked, as [`validate`] does.
///
/// # Errors
/// As [`validate`].
pub fn validate_rules(rules: &[Rule]) -> Result<(), Error> {
    if rules.is_empty() {
        return Err(Error::invalid("No rules provided"));
    }
    if rules.len() > MUTATIONS_MAX {
        let message = format!("too many rules: {}, of which at most {MUTATIONS_MAX} are allowed", rules.len());
        return Err(Error::invalid(message));
    }
    rules.iter().try_for_each(|rule| validate_qualifier(&rule.qualifier))
}

/// A column while rules are at work on it.
struct Column {
    family: FamilyId,
    timestamp: Micros,
    /// Grows in place: appends cost what they append, however many there are.
    value: BytesMut,
}

/// What the rules make of a row: the writes for the log, and the cells for the answer. Each column that was touched
/// stands once in both, in the order of a row's cells.
///
/// `current`: what is to be seen of the columns that the rules name (other cells do not matter).
/// `now` is cut to whole milliseconds.
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

/// A column before the first rule, its timestamp already that of the version to be written.
fn present(current: &Row, family: FamilyId, rule: &Rule, now: Micros) -> Column {
    match current.newest(&rule.family, &rule.qualifier) {
        Some(cell) => Column { family, timestamp: now.max(cell.timestamp), value: cell.value.as_ref().into() },
        None => Column { family, timestamp: now, value: missing(&rule.operation) },
    }
}

/// What stands for a value that is not there.
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
