//! Encoding of cells in a tablet's store: keys whose byte order is the order of cells.
//!
//! ```text
//!   cell key    escape(row)  family id (u32, big endian)  escape(qualifier)  !timestamp (u64, big endian)
//!   escape      every 00 becomes 00 FF; the end is 00 01
//!   cell value  tag, bytes      tag 1: plain
//! ```
//!
//! Escaping preserves the order of byte strings, and no escaped string is a prefix of another, so a row, a family of a row
//! and a column each are one contiguous range of keys. The timestamp is inverted: the newest version comes first. Keys have
//! family ids: a family that is dropped and created again shares nothing with its predecessor. Note that the order by id
//! differs from that of the public API, which is by name.
//!
//! Timestamps are never negative: keys with a negative one would sort wrongly, and decoding rejects them.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Error;
use crate::id::FamilyId;
use crate::key::{KeyRange, RowKey};
use crate::time::Micros;

/// Tag of a value that is the cell's plain content.
pub const TAG_PLAIN: u8 = 1;

const ESCAPED_ZERO: [u8; 2] = [0x00, 0xff];
const TERMINATOR: [u8; 2] = [0x00, 0x01];
const FAMILY_BYTES: usize = size_of::<u32>();
const TIMESTAMP_BYTES: usize = size_of::<u64>();

/// Bytes that are not a key or value of a cell: damage, or another release's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// A zero byte that is neither escaped nor the end.
    #[error("a zero byte is followed by neither ff nor 01")]
    BadEscape,
    /// The bytes end too early.
    #[error("the key is truncated")]
    Truncated,
    /// Bytes are left over.
    #[error("the key has trailing bytes")]
    TrailingBytes,
    /// A timestamp before the epoch.
    #[error("the timestamp is negative")]
    NegativeTimestamp,
    /// A value of a kind that this release does not know.
    #[error("the value has the unknown tag {0}")]
    UnknownTag(u8),
    /// A value without even a tag.
    #[error("the value is empty")]
    NoTag,
}

impl From<CodecError> for Error {
    fn from(error: CodecError) -> Self {
        Self::damaged(error.to_string())
    }
}

/// Appends `bytes`, escaped and terminated, to `out`.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + TERMINATOR.len());
    let mut parts = bytes.split(|byte| *byte == 0);
    if let Some(first) = parts.next() {
        out.extend_from_slice(first);
    }
    for part in parts {
        out.extend_from_slice(&ESCAPED_ZERO);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&TERMINATOR);
}

/// Reads one escaped string from the front of `bytes`: the string, and what follows it.
///
/// # Errors
/// When a zero byte is followed by anything but `ff` or `01`, or no terminator comes.
pub fn unescape(bytes: &[u8]) -> Result<(Bytes, &[u8]), CodecError> {
    let (first, end, mut rest) = next_piece(bytes)?;
    if end == Piece::Last {
        return Ok((Bytes::copy_from_slice(first), rest));
    }
    let mut plain = BytesMut::with_capacity(bytes.len());
    plain.extend_from_slice(first);
    loop {
        plain.put_u8(0);
        let (piece, end, tail) = next_piece(rest)?;
        plain.extend_from_slice(piece);
        rest = tail;
        if end == Piece::Last {
            return Ok((plain.freeze(), rest));
        }
    }
}

/// The length in bytes of the escaped string at the front of `bytes`, its terminator included.
///
/// The keys of one row share this prefix: a scan compares it and decodes the row key once per row.
///
/// # Errors
/// As [`unescape`].
pub fn escaped_len(bytes: &[u8]) -> Result<usize, CodecError> {
    let mut rest = bytes;
    loop {
        let (_, end, tail) = next_piece(rest)?;
        rest = tail;
        if end == Piece::Last {
            return Ok(bytes.len() - rest.len());
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// A zero byte follows it in the plain string.
    Inner,
    /// The string ends after it.
    Last,
}

/// The bytes before the next zero byte, the meaning of that zero byte, and the rest.
fn next_piece(bytes: &[u8]) -> Result<(&[u8], Piece, &[u8]), CodecError> {
    let at = bytes.iter().position(|byte| *byte == 0).ok_or(CodecError::Truncated)?;
    let (piece, rest) = bytes.split_at_checked(at).ok_or(CodecError::Truncated)?;
    match rest {
        [0x00, 0x01, rest @ ..] => Ok((piece, Piece::Last, rest)),
        [0x00, 0xff, rest @ ..] => Ok((piece, Piece::Inner, rest)),
        [_] => Err(CodecError::Truncated),
        _ => Err(CodecError::BadEscape),
    }
}

/// The key of a cell in its tablet's store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CellKey {
    /// The row.
    pub row: RowKey,
    /// The family, by id.
    pub family: FamilyId,
    /// The column within the family.
    pub qualifier: Bytes,
    /// The version; not negative.
    pub timestamp: Micros,
}

impl CellKey {
    /// Its bytes, which order as row, family id, qualifier ascending and timestamp descending.
    pub fn encode(&self) -> Vec<u8> {
        encode_parts(self.row.as_bytes(), self.family, &self.qualifier, self.timestamp)
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// When `bytes` are no cell key.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (row, rest) = unescape(bytes)?;
        let column = ColumnKey::decode(rest)?;
        Ok(Self {
            row: RowKey::new(row),
            family: column.family,
            qualifier: column.qualifier,
            timestamp: column.timestamp,
        })
    }
}

/// The part of a cell's key after the row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ColumnKey {
    /// The family, by id.
    pub family: FamilyId,
    /// The column within the family.
    pub qualifier: Bytes,
    /// The version.
    pub timestamp: Micros,
}

impl ColumnKey {
    /// Reads the part of a cell's key that follows the escaped row (see [`escaped_len`]).
    ///
    /// # Errors
    /// When `bytes` are no such part.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (family, rest) = bytes.split_first_chunk::<FAMILY_BYTES>().ok_or(CodecError::Truncated)?;
        let (qualifier, rest) = unescape(rest)?;
        let (timestamp, rest) = rest.split_first_chunk::<TIMESTAMP_BYTES>().ok_or(CodecError::Truncated)?;
        if !rest.is_empty() {
            return Err(CodecError::TrailingBytes);
        }
        Ok(Self {
            family: FamilyId::new(u32::from_be_bytes(*family)),
            qualifier,
            timestamp: decode_timestamp(*timestamp)?,
        })
    }
}

/// The bytes of a [`CellKey`], without constructing one.
pub fn encode_parts(row: &[u8], family: FamilyId, qualifier: &[u8], timestamp: Micros) -> Vec<u8> {
    let strings = row.len() + qualifier.len() + 2 * TERMINATOR.len();
    let mut out = Vec::with_capacity(strings + FAMILY_BYTES + TIMESTAMP_BYTES);
    escape(row, &mut out);
    out.extend_from_slice(&family.get().to_be_bytes());
    escape(qualifier, &mut out);
    out.extend_from_slice(&encode_timestamp(timestamp));
    out
}

fn encode_timestamp(timestamp: Micros) -> [u8; TIMESTAMP_BYTES] {
    (!timestamp.get().cast_unsigned()).to_be_bytes()
}

fn decode_timestamp(bytes: [u8; TIMESTAMP_BYTES]) -> Result<Micros, CodecError> {
    let micros = i64::try_from(!u64::from_be_bytes(bytes)).map_err(|_| CodecError::NegativeTimestamp)?;
    Ok(Micros::new(micros))
}

/// Common prefix of the keys of a row.
pub fn row_prefix(row: &RowKey) -> Vec<u8> {
    let mut out = Vec::new();
    escape(row.as_bytes(), &mut out);
    out
}

/// Common prefix of the keys of a row in one family.
pub fn family_prefix(row: &RowKey, family: FamilyId) -> Vec<u8> {
    let mut out = row_prefix(row);
    out.extend_from_slice(&family.get().to_be_bytes());
    out
}

/// The part after the row in the keys of all versions of a column. These parts sort like the columns.
pub fn column_part(family: FamilyId, qualifier: &[u8]) -> Vec<u8> {
    let mut out = family.get().to_be_bytes().to_vec();
    escape(qualifier, &mut out);
    out
}

/// Common prefix of the keys of a column's versions.
pub fn column_prefix(row: &RowKey, family: FamilyId, qualifier: &[u8]) -> Vec<u8> {
    let mut out = row_prefix(row);
    out.extend(column_part(family, qualifier));
    out
}

/// A cell's key, or its part after the row, without the timestamp: the same for all versions of a column.
pub fn without_timestamp(key: &[u8]) -> &[u8] {
    key.get(..key.len().saturating_sub(TIMESTAMP_BYTES)).unwrap_or_default()
}

/// The first key after all keys with this prefix; `None` when there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

/// Bounds of the keys of all rows in `range`: lower inclusive, upper exclusive.
pub fn range_bounds(range: &KeyRange) -> (Vec<u8>, Option<Vec<u8>>) {
    (row_prefix(range.start()), range.end().map(row_prefix))
}

/// The stored form of a cell's plain content.
pub fn encode_value(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + value.len());
    out.push(TAG_PLAIN);
    out.extend_from_slice(value);
    out
}

/// The content of a stored cell, sharing its memory.
///
/// # Errors
/// When it has no tag, or one that this release does not know.
pub fn decode_value(mut stored: Bytes) -> Result<Bytes, CodecError> {
    match stored.first() {
        Some(&TAG_PLAIN) => Ok(stored.split_off(1)),
        Some(&tag) => Err(CodecError::UnknownTag(tag)),
        None => Err(CodecError::NoTag),
    }
}
