//! Whatever a read leaves out, its answer is that of a read of everything.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::id::FamilyId;
use ebla_model::time::Micros;
use ebla_storage::tablet::{Batch, Direction, Shared, StoreOptions, TabletStore};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;

use super::*;
use crate::tablet::rows::{Families, testing};

/// Row, family, column, version. Columns stand close enough to be stepped over and far enough to be jumped over.
type Place = (u8, u32, u8, i64);

/// 3 was dropped.
fn families() -> Families {
    testing::families(&[(1, "z", None), (2, "a", Some(GcRule::MaxVersions(2)))])
}

struct Store {
    store: TabletStore,
    families: Families,
    _folder: TempDir,
}

impl Store {
    fn new(cells: &BTreeSet<Place>) -> Self {
        let folder = TempDir::new().unwrap();
        let shared = Shared::new(StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::up() }).unwrap();
        let store = TabletStore::create(&folder.path().join("store"), &shared).unwrap();
        let mut batch = Batch::new();
        for (row, family, column, version) in cells {
            let key = codec::encode_parts(&[*row], FamilyId::new(*family), &name(*column), Micros::new(*version));
            batch.put(key, codec::encode_value(format!("v{version}").as_bytes()));
        }
        store.write(&batch).unwrap();
        Self { store, families: families(), _folder: folder }
    }

    fn rows(&self, direction: Direction, wanted: &Wanted, filter: Option<&CompiledFilter>) -> Vec<Row> {
        let view = self.store.view();
        let order = if direction == Direction::Reverse { CellOrder::Falling } else { CellOrder::Rising };
        let gatherer = Gatherer::new(&self.families, Micros::ZERO, order);
        let scan = view.cells(b"", None, direction).unwrap();
        let mut cursor = Cursor::new(scan, gatherer, wanted).picking(filter);
        let mut rows = Vec::new();
        while let Some(found) = cursor.next_row().unwrap_or_else(|_| panic!("the store is sound")) {
            rows.push(found.row);
        }
        rows
    }

    /// The cells that were stepped on to find the first row.
    fn looked_at(&self, filter: &CompiledFilter) -> u64 {
        let view = self.store.view();
        let wanted = Wanted::by_filter(Some(filter), &self.families);
        let gatherer = Gatherer::new(&self.families, Micros::ZERO, CellOrder::Rising);
        let mut cursor = Cursor::new(view.cells(b"", None, Direction::Forward).unwrap(), gatherer, &wanted);
        assert!(cursor.next_row().is_ok());
        cursor.take_looked().cells
    }
}

/// Zero bytes are escaped in keys, which must not matter.
fn name(column: u8) -> Bytes {
    Bytes::from(if column.is_multiple_of(5) { vec![column, 0] } else { vec![column] })
}

fn cells() -> impl Strategy<Value = BTreeSet<Place>> {
    btree_set((select(vec![0_u8, 1, 7]), 1_u32..4, 0_u8..40, 1_i64..4), 0..250)
}

fn bound() -> impl Strategy<Value = Bound<Bytes>> {
    prop_oneof![
        Just(Bound::Unbounded),
        (0_u8..40).prop_map(|column| Bound::Included(name(column))),
        (0_u8..40).prop_map(|column| Bound::Excluded(name(column))),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let column = || (1_u8..40).prop_filter("a byte that patterns quote", |column| column % 5 > 0 && *column != b'$');
    let leaf = prop_oneof![
        Just(Filter::PassAll),
        Just(Filter::BlockAll),
        Just(Filter::StripValue),
        select(vec!["a", "z", "[az]"]).prop_map(|name| Filter::FamilyNameRegex(name.into())),
        column().prop_map(|column| Filter::ColumnQualifierRegex(Bytes::from(format!("\\x{column:02x}")))),
        select(vec!["\x01", "\x07", "[\x01\x07]"]).prop_map(|key| Filter::RowKeyRegex(key.into())),
        (select(vec!["a", "z"]), bound(), bound()).prop_map(|(family, start, end)| Filter::ColumnRange {
            family: family.to_owned(),
            start,
            end
        }),
        (0_i32..4).prop_map(Filter::CellsPerRowOffset),
        (1_i32..6).prop_map(Filter::CellsPerRowLimit),
        (1_i32..3).prop_map(Filter::CellsPerColumnLimit),
        select(vec!["v1", "v[23]"]).prop_map(|value| Filter::ValueRegex(value.into())),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let branch = || proptest::option::of(inner.clone().prop_map(Box::new));
        prop_oneof![
            3 => vec(inner.clone(), 2..4).prop_map(Filter::Chain),
            2 => vec(inner.clone(), 2..4).prop_map(Filter::Interleave),
            1 => (inner.clone().prop_map(Box::new), branch(), branch())
                .prop_map(|(predicate, then, otherwise)| Filter::Condition { predicate, then, otherwise }),
        ]
    })
}

fn passed(filter: &CompiledFilter, rows: Vec<Row>) -> Vec<Row> {
    let rows = rows.into_iter().map(|row| filter.apply(row, &|| false).unwrap());
    rows.filter(|row| !row.is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_read_that_leaves_out_answers_like_one_that_does_not(cells in cells(), filters in vec(filter(), 24)) {
        let store = Store::new(&cells);
        for filter in filters {
            // An inverted range is refused, and so are others.
            let Ok(filter) = CompiledFilter::compile(filter) else { continue };
            let wanted = Wanted::by_filter(Some(&filter), &store.families);
            let all = store.rows(Direction::Forward, &Wanted::ALL, None);
            let some = store.rows(Direction::Forward, &wanted, Some(&filter));
            prop_assert_eq!(all.len(), some.len());

            let matching = Wanted::by_predicate(Some(&filter), &BTreeSet::new(), &store.families);
            let matching = store.rows(Direction::Forward, &matching, None);
            for (all, some) in all.iter().zip(matching) {
                prop_assert_eq!(filter.matches(all, &|| false).unwrap(), filter.matches(&some, &|| false).unwrap());
            }

            let mut expected = passed(&filter, all);
            prop_assert_eq!(&passed(&filter, some), &expected);
            expected.reverse();
            prop_assert_eq!(passed(&filter, store.rows(Direction::Reverse, &Wanted::ALL, None)), expected.clone());
            prop_assert_eq!(passed(&filter, store.rows(Direction::Reverse, &wanted, Some(&filter))), expected);
        }
    }
}

#[test]
fn one_column_of_many_is_found_without_looking_at_the_others() {
    let wide: BTreeSet<Place> =
        (0..250).flat_map(|column| (1..4).map(move |version| (1, 1, column, version))).collect();
    let store = Store::new(&wide);
    let looked = |filter| store.looked_at(&CompiledFilter::compile(filter).unwrap());
    assert_eq!(looked(Filter::PassAll), 750);
    let column = || Filter::ColumnQualifierRegex(Bytes::from_static(b"\x7b"));
    assert_eq!(store.rows(Direction::Forward, &Wanted::ALL, None)[0].cells.len(), 750);
    // Eight steps, the cell that is jumped from, the column, and where to find its end.
    assert!(looked(column()) <= 8 + 1 + 3 + 9, "{}", looked(column()));
    assert!(looked(Filter::Chain(vec![column(), Filter::CellsPerColumnLimit(1)])) <= 8 + 1 + 1 + 9);
    assert_eq!(looked(Filter::CellsPerRowLimit(2)), 2 * 3 + 9);
}

#[test]
fn a_row_comes_once_though_cells_of_it_are_left() {
    let row: BTreeSet<Place> = (0..9).map(|column| (1, 1, column, 1)).collect();
    let store = Store::new(&row);
    let filter = CompiledFilter::compile(Filter::ColumnQualifierRegex(Bytes::from_static(b"\x03"))).unwrap();
    let wanted = Wanted::by_filter(Some(&filter), &store.families);
    let view = store.store.view();
    for one_row in [true, false] {
        for (direction, order) in [(Direction::Forward, CellOrder::Rising), (Direction::Reverse, CellOrder::Falling)] {
            let scan = view.cells(b"", None, direction).unwrap();
            let gatherer = Gatherer::new(&store.families, Micros::ZERO, order);
            let mut cursor = Cursor::new(scan, gatherer, &wanted).in_one_row(one_row);
            let mut next = || cursor.next_row().unwrap_or_else(|_| panic!("the store is sound"));
            assert_eq!(next().map(|found| found.row.cells.len()), Some(1), "{one_row} {order:?}");
            assert!(next().is_none(), "{one_row} {order:?}");
        }
    }
}
