//! Rows of many tables in one store: the store of a group holds the tablets of any tables.
//!
//! ```text
//!   stored row    prefix of the table, then the row
//!   prefix        number of significant bytes of the table id, plus one (1 byte); those bytes, big endian
//! ```
//!
//! Prefixes have the order of the ids, and none is a prefix of another. So the rows of a tablet, and of a table, are one
//! range of stored rows, in the order of the rows. A split inside a group therefore moves no data.

use bytes::Bytes;

use crate::codec;
use crate::error::Error;
use crate::id::TableId;
use crate::key::{KeyRange, RowKey};

/// Bytes of a table id.
const ID_BYTES: usize = size_of::<u64>();

/// The prefix of a table's rows: 1 to 9 bytes.
pub fn table_prefix(table: TableId) -> Vec<u8> {
    let bytes = table.get().to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut prefix = Vec::with_capacity(1 + ID_BYTES);
    prefix.push(u8::try_from(1 + ID_BYTES - zeros).unwrap_or(u8::MAX));
    prefix.extend(bytes.iter().skip(zeros));
    prefix
}

/// The row of a table as stored.
pub fn stored_row(table: TableId, row: &RowKey) -> RowKey {
    let mut stored = table_prefix(table);
    stored.extend_from_slice(row.as_bytes());
    RowKey::new(stored)
}

/// The stored rows of a range of a table.
pub fn stored_range(table: TableId, range: &KeyRange) -> KeyRange {
    let start = stored_row(table, range.start());
    let end = match range.end() {
        Some(end) => Some(stored_row(table, end)),
        None => codec::prefix_end(&table_prefix(table)).map(RowKey::new),
    };
    // Never empty: the range is not, and every prefix has an end.
    KeyRange::new(start.clone(), end).unwrap_or_else(|| KeyRange::single(start))
}

/// The table and the row of a stored row; the row shares its memory.
///
/// # Errors
/// `DataDamaged` when it has no valid prefix.
pub fn parse_stored_row(stored: &Bytes) -> Result<(TableId, RowKey), Error> {
    let damaged = || Error::damaged("a stored row has no valid table prefix");
    let (first, rest) = stored.split_first().ok_or_else(damaged)?;
    let length = usize::from(*first).checked_sub(1).filter(|length| *length <= ID_BYTES).ok_or_else(damaged)?;
    let significant = rest.get(..length).filter(|bytes| bytes.first() != Some(&0)).ok_or_else(damaged)?;
    let table = significant.iter().fold(0, |id: u64, byte| id << 8 | u64::from(*byte));
    Ok((TableId::new(table), RowKey::new(stored.slice(1 + length..))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [u64; 9] = [0, 1, 7, 255, 256, 65_535, 65_536, u64::MAX - 1, u64::MAX];

    #[test]
    fn stored_rows_come_back_and_have_the_order_of_tables_and_rows() {
        let rows = ["", "a", "a\0", "b", "\u{7f}"].map(RowKey::new);
        let mut previous: Option<RowKey> = None;
        for table in IDS.map(TableId::new) {
            for row in &rows {
                let stored = stored_row(table, row);
                assert_eq!(parse_stored_row(stored.bytes()), Ok((table, row.clone())));
                assert!(previous.as_ref().is_none_or(|previous| *previous < stored), "{table} {row}");
                previous = Some(stored);
            }
        }
    }

    #[test]
    fn the_range_of_a_table_holds_its_rows_only() {
        let all = stored_range(TableId::new(255), &KeyRange::all());
        let holds =
            |table, row: &'static [u8]| all.contains(stored_row(TableId::new(table), &RowKey::new(row)).as_bytes());
        assert!(holds(255, b"") && holds(255, &[0xff; 40]));
        assert!(!holds(254, &[0xff; 40]) && !holds(256, b"") && !holds(0, b"x"));
        let part = KeyRange::new(RowKey::new("b"), Some(RowKey::new("d"))).unwrap();
        let part = stored_range(TableId::new(1), &part);
        assert_eq!((part.start().as_bytes(), part.end().unwrap().as_bytes()), (&b"\x02\x01b"[..], &b"\x02\x01d"[..]));
    }

    #[test]
    fn bytes_without_a_table_are_refused() {
        for bytes in [&b""[..], b"\0", b"\x03\x01", b"\x03\0\x01row", b"\x0a12345678row"] {
            assert!(parse_stored_row(&Bytes::from_static(bytes)).is_err(), "{bytes:?}");
        }
    }
}
