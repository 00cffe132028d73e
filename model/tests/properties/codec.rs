//! Cell keys: order, round trips, contiguous rows, and no panic on damage.

use std::cmp::Reverse;

use bytes::Bytes;
use ebla_model::codec::{
    CellKey, ColumnKey, column_prefix, decode_value, encode_value, escaped_len, family_prefix, prefix_end,
    range_bounds, row_prefix,
};
use ebla_model::id::FamilyId;
use ebla_model::time::Micros;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::{collection::vec, sample::select};

use crate::values::{bytes, key, range};

fn cell_key() -> impl Strategy<Value = CellKey> {
    let timestamp = select(vec![0, 1, 255, 256, i64::MAX - 1, i64::MAX]).prop_map(Micros::new);
    let family = select(vec![0, 1, 2, 255, 256, u32::MAX]).prop_map(FamilyId::new);
    (key(), family, bytes(), timestamp).prop_map(|(row, family, qualifier, timestamp)| CellKey {
        row,
        family,
        qualifier,
        timestamp,
    })
}

proptest! {
    #[test]
    fn cell_keys_order_as_cells(a in cell_key(), b in cell_key()) {
        let parts = |key: &CellKey| (key.row.clone(), key.family, key.qualifier.clone(), Reverse(key.timestamp));
        prop_assert_eq!(a.encode().cmp(&b.encode()), parts(&a).cmp(&parts(&b)));
        prop_assert!(a == b || !a.encode().starts_with(&b.encode()));
    }

    #[test]
    fn cell_keys_come_back(cell in cell_key()) {
        let encoded = cell.encode();
        prop_assert_eq!(CellKey::decode(&encoded), Ok(cell.clone()));
        let row = escaped_len(&encoded).unwrap();
        prop_assert_eq!(encoded[..row].to_vec(), row_prefix(&cell.row));
        let CellKey { family, qualifier, timestamp, .. } = cell;
        prop_assert_eq!(ColumnKey::decode(&encoded[row..]), Ok(ColumnKey { family, qualifier, timestamp }));
    }

    #[test]
    fn prefixes_hold_exactly_their_cells(cell in cell_key(), other in cell_key()) {
        let encoded = cell.encode();
        let in_row = encoded.starts_with(&row_prefix(&other.row));
        let in_family = encoded.starts_with(&family_prefix(&other.row, other.family));
        let in_column = encoded.starts_with(&column_prefix(&other.row, other.family, &other.qualifier));
        prop_assert_eq!(in_row, cell.row == other.row);
        prop_assert_eq!(in_family, in_row && cell.family == other.family);
        prop_assert_eq!(in_column, in_family && cell.qualifier == other.qualifier);
    }

    #[test]
    fn ranges_of_rows_are_ranges_of_cells(range in range(), cell in cell_key()) {
        let (lower, upper) = range_bounds(&range);
        let encoded = cell.encode();
        let inside = lower <= encoded && upper.is_none_or(|upper| encoded < upper);
        prop_assert_eq!(inside, range.contains(cell.row.as_bytes()));
    }

    #[test]
    fn a_prefix_ends_where_it_ends(prefix in bytes(), other in bytes()) {
        let inside = prefix <= other && prefix_end(&prefix).is_none_or(|end| other < end);
        prop_assert_eq!(inside, other.starts_with(&prefix));
    }

    #[test]
    fn damage_is_refused_or_was_no_damage(encoded in vec(select(vec![0x00, 0x01, 0x7f, b'a', 0xff]), 0..30)) {
        if let Ok(cell) = CellKey::decode(&encoded) {
            prop_assert_eq!(cell.encode(), encoded);
        }
    }

    #[test]
    fn values_come_back(value in vec(any::<u8>(), 0..20)) {
        prop_assert_eq!(decode_value(Bytes::from(encode_value(&value))).unwrap(), value);
    }
}
