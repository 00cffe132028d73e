//! METADATA finds every key's tablet, through any number of splits.

use std::collections::BTreeMap;

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{TabletDescriptor, lookup_key, lookup_range, parse_row_key, table_range};
use proptest::collection::vec;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use crate::values::key;

/// The tablets of a table that was split at these keys, one after the other.
fn split_at(table: TableId, keys: &[RowKey]) -> Vec<TabletDescriptor> {
    let first = TabletDescriptor::initial(table, TabletId::new(100), KeyRange::all(), &[ServerId::new(1)]);
    let mut tablets = vec![first];
    for (key, child) in keys.iter().zip(101..) {
        let halves = |tablet: &TabletDescriptor| tablet.split(key, TabletId::new(child));
        if let Some((at, (left, right))) =
            tablets.iter().enumerate().find_map(|(at, tablet)| Some((at, halves(tablet)?)))
        {
            tablets.splice(at..=at, [left, right]);
        }
    }
    tablets
}

proptest! {
    #[test]
    fn the_first_row_beyond_a_key_is_its_tablets(a in vec(key(), 0..6), b in vec(key(), 0..6), wanted in key()) {
        let tables = [TableId::new(7), TableId::new(8)];
        let tablets = split_at(tables[0], &a).into_iter().chain(split_at(tables[1], &b));
        let rows: BTreeMap<_, _> = tablets.map(|tablet| (tablet.row_key(), tablet)).collect();
        for table in tables {
            let lookup = lookup_key(table, &wanted);
            let (row, tablet) = rows.iter().find(|(row, _)| **row > lookup).unwrap();
            prop_assert_eq!(tablet.table, table);
            prop_assert!(tablet.range.contains(wanted.as_bytes()));
            prop_assert!(table_range(table).contains(row.as_bytes()));
            prop_assert!(lookup_range(table, &wanted).contains(row.as_bytes()));
            prop_assert_eq!(parse_row_key(row), Ok((table, tablet.range.end().cloned())));
        }
    }

    #[test]
    fn splits_leave_no_gap_and_grow_the_fence(keys in vec(key(), 0..8)) {
        let tablets = split_at(TableId::new(7), &keys);
        prop_assert_eq!(tablets[0].range.start(), &RowKey::EMPTY);
        prop_assert_eq!(tablets.last().unwrap().range.end(), None);
        for pair in tablets.windows(2) {
            prop_assert_eq!(pair[0].range.end(), Some(pair[1].range.start()));
        }
        for tablet in &tablets {
            if let Some((left, right)) = tablet.split(&tablet.range.start().successor(), TabletId::new(999)) {
                prop_assert!(left.fence() > tablet.fence());
                prop_assert!(right.generation == left.generation && left.tablet == tablet.tablet);
            }
        }
    }
}
