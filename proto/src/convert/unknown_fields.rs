//! Detects unknown fields of messages.
//!
//! Decoding silently drops unknown fields, and an unknown filter would become "no filter", which passes all cells. So the
//! fields of filters, mutations and rules are checked against the tables below before decoding.

use ebla_model::Error;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The known fields of a message.
pub(super) struct KnownFields {
    name: &'static str,
    fields: &'static [(u32, FieldContent)],
}

/// The content of a field.
enum FieldContent {
    /// No nested message.
    Leaf,
    /// A message.
    Message(&'static KnownFields),
}

/// More than the nesting of any valid filter: each of its 20 levels is two messages.
const DEPTH_MAX: usize = 50;

/// Refuses `bytes` if they have a field that `known` does not list.
///
/// # Errors
/// `Unimplemented` with the field's number; `InvalidArgument` when the bytes are not a message, or nested too deeply.
pub(super) fn check(known: &KnownFields, bytes: &[u8]) -> Result<(), Error> {
    check_at(known, bytes, 0)
}

fn check_at(known: &KnownFields, mut bytes: &[u8], depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid(format!("{} is nested too deeply", known.name)));
    }
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes).map_err(|_| malformed(known))?;
        match (known.field(tag), wire_type) {
            (None, _) => return Err(unknown(known, tag)),
            (Some(FieldContent::Message(inner)), WireType::LengthDelimited) => {
                let (inside, rest) = split_field(bytes).ok_or_else(|| malformed(known))?;
                check_at(inner, inside, depth + 1)?;
                bytes = rest;
            }
            _ => skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).map_err(|_| malformed(known))?,
        }
    }
    Ok(())
}

/// A length-delimited field's content, and the rest.
fn split_field(mut bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = decode_varint(&mut bytes).ok()?;
    bytes.split_at_checked(usize::try_from(length).ok()?)
}

impl KnownFields {
    fn field(&self, tag: u32) -> Option<&FieldContent> {
        self.fields.iter().find(|(known, _)| *known == tag).map(|(_, inside)| inside)
    }
}

fn malformed(known: &KnownFields) -> Error {
    Error::invalid(format!("{} does not decode", known.name))
}

fn unknown(known: &KnownFields, tag: u32) -> Error {
    Error::unimplemented(format!("{} has field {tag}, which this release of Ebla does not support", known.name))
}

use FieldContent::{Leaf, Message};

pub(super) static ROW_FILTER: KnownFields = KnownFields {
    name: "RowFilter",
    fields: &[
        (1, Message(&FILTERS)),
        (2, Message(&FILTERS)),
        (3, Message(&CONDITION)),
        (4, Leaf),
        (5, Leaf),
        (6, Leaf),
        (7, Message(&COLUMN_RANGE)),
        (8, Message(&TIMESTAMP_RANGE)),
        (9, Leaf),
        (10, Leaf),
        (11, Leaf),
        (12, Leaf),
        (13, Leaf),
        (14, Leaf),
        (15, Message(&VALUE_RANGE)),
        (16, Leaf),
        (17, Leaf),
        (18, Leaf),
        (19, Leaf),
        (20, Message(&VALUE_BITMASK)),
    ],
};

/// `RowFilter.Chain` and `RowFilter.Interleave`.
static FILTERS: KnownFields = KnownFields { name: "RowFilter.Chain", fields: &[(1, Message(&ROW_FILTER))] };

static CONDITION: KnownFields = KnownFields {
    name: "RowFilter.Condition",
    fields: &[(1, Message(&ROW_FILTER)), (2, Message(&ROW_FILTER)), (3, Message(&ROW_FILTER))],
};

static COLUMN_RANGE: KnownFields =
    KnownFields { name: "ColumnRange", fields: &[(1, Leaf), (2, Leaf), (3, Leaf), (4, Leaf), (5, Leaf)] };

static TIMESTAMP_RANGE: KnownFields = KnownFields { name: "TimestampRange", fields: &[(1, Leaf), (2, Leaf)] };

static VALUE_RANGE: KnownFields =
    KnownFields { name: "ValueRange", fields: &[(1, Leaf), (2, Leaf), (3, Leaf), (4, Leaf)] };

static VALUE_BITMASK: KnownFields = KnownFields { name: "ValueBitmask", fields: &[(1, Leaf)] };

pub(super) static MUTATION: KnownFields = KnownFields {
    name: "Mutation",
    fields: &[
        (1, Message(&SET_CELL)),
        (2, Message(&DELETE_FROM_COLUMN)),
        (3, Message(&DELETE_FROM_FAMILY)),
        (4, Message(&DELETE_FROM_ROW)),
        (5, Message(&AGGREGATE_TO_CELL)),
        (6, Message(&AGGREGATE_TO_CELL)),
        (7, Leaf),
    ],
};

static SET_CELL: KnownFields =
    KnownFields { name: "Mutation.SetCell", fields: &[(1, Leaf), (2, Leaf), (3, Leaf), (4, Leaf)] };

/// `Mutation.AddToCell` and `Mutation.MergeToCell`.
static AGGREGATE_TO_CELL: KnownFields = KnownFields {
    name: "Mutation.AddToCell",
    fields: &[(1, Leaf), (2, Message(&VALUE)), (3, Message(&VALUE)), (4, Message(&VALUE))],
};

/// Only plain kinds of values are accepted; the type is not needed.
static VALUE: KnownFields = KnownFields {
    name: "Value",
    fields: &[
        (2, Leaf),
        (3, Leaf),
        (4, Leaf),
        (6, Leaf),
        (7, Leaf),
        (8, Leaf),
        (9, Leaf),
        (10, Leaf),
        (11, Leaf),
        (12, Leaf),
        (13, Leaf),
    ],
};

static DELETE_FROM_COLUMN: KnownFields =
    KnownFields { name: "Mutation.DeleteFromColumn", fields: &[(1, Leaf), (2, Leaf), (3, Message(&TIMESTAMP_RANGE))] };

static DELETE_FROM_FAMILY: KnownFields = KnownFields { name: "Mutation.DeleteFromFamily", fields: &[(1, Leaf)] };

static DELETE_FROM_ROW: KnownFields = KnownFields { name: "Mutation.DeleteFromRow", fields: &[] };

pub(super) static READ_MODIFY_WRITE_RULE: KnownFields =
    KnownFields { name: "ReadModifyWriteRule", fields: &[(1, Leaf), (2, Leaf), (3, Leaf), (4, Leaf)] };

#[cfg(test)]
mod tests {
    use ebla_model::Reason;
    use prost::encoding::{encode_key, encode_varint};

    use super::*;

    fn reason(known: &KnownFields, bytes: &[u8]) -> Option<Reason> {
        check(known, bytes).err().map(|error| error.reason)
    }

    /// One length-delimited field.
    fn field(tag: u32, inside: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(inside.len().try_into().unwrap(), &mut bytes);
        bytes.extend_from_slice(inside);
        bytes
    }

    #[test]
    fn an_unknown_filter_is_found_at_any_depth() {
        // Field 21, a varint.
        let unknown = [0xa8, 0x01, 0x01];
        assert_eq!(reason(&ROW_FILTER, &unknown), Some(Reason::Unimplemented));
        let chained = field(1, &field(1, &field(2, &field(1, &unknown))));
        assert_eq!(reason(&ROW_FILTER, &chained), Some(Reason::Unimplemented));
        let condition = field(3, &field(2, &unknown));
        assert_eq!(reason(&ROW_FILTER, &condition), Some(Reason::Unimplemented));
    }

    #[test]
    fn known_filters_pass() {
        assert_eq!(reason(&ROW_FILTER, &[]), None);
        assert_eq!(reason(&ROW_FILTER, &field(1, &field(1, &field(20, &field(1, b"mask"))))), None);
    }

    #[test]
    fn malformed_messages_are_invalid() {
        assert_eq!(reason(&ROW_FILTER, &[0xff]), Some(Reason::InvalidArgument));
        assert_eq!(reason(&ROW_FILTER, &[0x0a, 9, 1]), Some(Reason::InvalidArgument));
        let mut deep = Vec::new();
        for _ in 0..60 {
            deep = field(1, &deep);
        }
        assert_eq!(reason(&ROW_FILTER, &deep), Some(Reason::InvalidArgument));
    }

    #[test]
    fn unknown_parts_of_mutations_and_rules_are_found() {
        assert_eq!(reason(&MUTATION, &field(8, b"")), Some(Reason::Unimplemented));
        assert_eq!(reason(&MUTATION, &field(1, &field(5, b""))), Some(Reason::Unimplemented));
        assert_eq!(reason(&MUTATION, &field(6, &field(4, &field(14, b"")))), Some(Reason::Unimplemented));
        assert_eq!(reason(&READ_MODIFY_WRITE_RULE, &field(5, b"")), Some(Reason::Unimplemented));
    }
}
