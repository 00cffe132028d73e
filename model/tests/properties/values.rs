//! Small values that collide often: few bytes, including those that codecs treat specially.

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;

pub(crate) fn bytes() -> impl Strategy<Value = Bytes> {
    vec(select(vec![0x00, 0x01, b'a', b'b', 0xfe, 0xff]), 0..5).prop_map(Bytes::from)
}

pub(crate) fn key() -> impl Strategy<Value = RowKey> {
    bytes().prop_map(RowKey::new)
}

pub(crate) fn range() -> impl Strategy<Value = KeyRange> {
    let end = prop_oneof![1 => Just(None), 4 => key().prop_map(Some)];
    (key(), end).prop_map(|(start, end)| match end {
        Some(end) if end < start => KeyRange::new(end, Some(start)).unwrap(),
        Some(end) if end == start => KeyRange::single(start),
        end => KeyRange::new(start, end).unwrap(),
    })
}

/// Milliseconds in a small range.
pub(crate) fn time() -> impl Strategy<Value = Micros> {
    (0_i64..6).prop_map(Micros::from_millis)
}

/// A row as a reader builds it: ordered, each version once, cells of a family share its name.
pub(crate) fn row() -> impl Strategy<Value = Row> {
    let names = ["f", "g", "h"].map(|name| FamilyName::new(name).unwrap());
    let cell = (select(names.to_vec()), text(), time(), text())
        .prop_map(|(family, qualifier, timestamp, value)| Cell::new(family, qualifier, timestamp, value));
    (text(), vec(cell, 0..12)).prop_map(|(key, mut cells)| {
        cells.sort_by(Cell::order);
        cells.dedup_by(|a, b| a.order(b).is_eq());
        Row { key: RowKey::new(key), cells }
    })
}

pub(crate) fn text() -> impl Strategy<Value = Bytes> {
    vec(select(vec![b'a', b'b']), 0..3).prop_map(Bytes::from)
}
