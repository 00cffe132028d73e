//! With push-down, a read returns the same as a read of all cells.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::filter::Filter;
use ebla_model::gc::GcRule;
use ebla_model::id::FamilyId;
use ebla_model::key::RowKey;
use ebla_model::stored_row::stored_row;
use ebla_model::time::Micros;
use ebla_storage::store::{Batch, Direction, GroupStore, ReadTier, SharedResources, StoreOptions};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;

use super::*;
use crate::tablet::read::points;
use crate::tablet::read::row_assembler::{CellOrder, Families, testing};

const ROWS: [u8; 3] = [0, 1, 7];

/// Row, family, column, version. Columns are close enough to be stepped over and far enough apart to be seeked over.
type CellId = (u8, u32, u8, i64);

/// 3 was dropped.
fn families() -> Families {
    testing::families(&[(1, "z", None), (2, "a", Some(GcRule::MaxVersions(2)))])
}

struct Store {
    store: GroupStore,
    families: Families,
    _folder: TempDir,
}

impl Store {
    fn new(cells: &BTreeSet<CellId>) -> Self {
        let folder = TempDir::new().unwrap();
        let shared = SharedResources::new(StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::up() }).unwrap();
        let store = GroupStore::create(&folder.path().join("store"), &shared).unwrap();
        let mut batch = Batch::new();
        for (row, family, column, version) in cells {
            let row = stored_row(testing::TABLE, &RowKey::new(vec![*row]));
            let key =
                codec::encode_parts(row.as_bytes(), FamilyId::new(*family), &name(*column), Micros::new(*version));
            batch.put(key, codec::encode_value(format!("v{version}").as_bytes()));
        }
        store.write(&batch).unwrap();
        Self { store, families: families(), _folder: folder }
    }

    fn rows(&self, direction: Direction, projection: &Projection, filter: Option<&CompiledFilter>) -> Vec<Row> {
        let view = self.store.view();
        let order = if direction == Direction::Reverse { CellOrder::Descending } else { CellOrder::Ascending };
        let assembler = RowAssembler::new(&self.families, Micros::ZERO, order);
        let scan = view.cells(b"", None, direction).unwrap();
        let mut iterator = RowIterator::new(scan, assembler, projection).with_row_filter(filter);
        let mut rows = Vec::new();
        while let Some(found) = iterator.next_row().unwrap_or_else(|_| panic!("the store is sound")) {
            rows.push(found.row);
        }
        rows
    }

    /// The rows that have cells, each one from the scan cache.
    fn cached_rows(&self, projection: &Projection, filter: Option<&CompiledFilter>) -> Vec<Row> {
        let families = projection.families();
        let row = |row: &u8| {
            let stored = stored_row(testing::TABLE, &RowKey::new(vec![*row]));
            for _ in 0..2 {
                let lookup = self.store.look_up(&stored).unwrap();
                self.store.view().fill(&lookup, families, ReadTier::All).unwrap();
            }
            let lookup = self.store.look_up(&stored).unwrap();
            let assembler = RowAssembler::new(&self.families, Micros::ZERO, CellOrder::Ascending);
            let cached = lookup.cached(families).expect("it was read twice");
            points::assemble((&lookup, cached), assembler, projection, filter).unwrap().0
        };
        ROWS.iter().filter_map(row).map(|found| found.row).collect()
    }

    /// The cells that were read or stepped over to find the first row.
    fn scanned_cells(&self, filter: &CompiledFilter) -> u64 {
        let view = self.store.view();
        let projection = Projection::for_filter(Some(filter), &self.families);
        let assembler = RowAssembler::new(&self.families, Micros::ZERO, CellOrder::Ascending);
        let mut iterator = RowIterator::new(view.cells(b"", None, Direction::Forward).unwrap(), assembler, &projection);
        assert!(iterator.next_row().is_ok());
        iterator.take_stats().cells
    }
}

/// Zero bytes are escaped in keys, which must not matter.
fn name(column: u8) -> Bytes {
    Bytes::from(if column.is_multiple_of(5) { vec![column, 0] } else { vec![column] })
}

fn cells() -> impl Strategy<Value = BTreeSet<CellId>> {
    btree_set((select(ROWS.to_vec()), 1_u32..4, 0_u8..40, 1_i64..4), 0..250)
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
    fn pushdown_does_not_change_results(cells in cells(), filters in vec(filter(), 24)) {
        let store = Store::new(&cells);
        for filter in filters {
            // An inverted range is refused, and so are others.
            let Ok(filter) = CompiledFilter::compile(filter) else { continue };
            let projection = Projection::for_filter(Some(&filter), &store.families);
            let all = store.rows(Direction::Forward, &Projection::ALL, None);
            let some = store.rows(Direction::Forward, &projection, Some(&filter));
            prop_assert_eq!(all.len(), some.len());

            let matching = Projection::for_predicate(Some(&filter), &BTreeSet::new(), &store.families);
            let matching = store.rows(Direction::Forward, &matching, None);
            for (all, some) in all.iter().zip(matching) {
                prop_assert_eq!(filter.matches(all, &|| false).unwrap(), filter.matches(&some, &|| false).unwrap());
            }

            let mut expected = passed(&filter, all);
            prop_assert_eq!(&passed(&filter, some), &expected);
            if !projection.families().is_some_and(BTreeSet::is_empty) {
                prop_assert_eq!(&passed(&filter, store.cached_rows(&projection, Some(&filter))), &expected);
            }
            expected.reverse();
            prop_assert_eq!(passed(&filter, store.rows(Direction::Reverse, &Projection::ALL, None)), expected.clone());
            prop_assert_eq!(passed(&filter, store.rows(Direction::Reverse, &projection, Some(&filter))), expected);
        }
    }
}

#[test]
fn one_column_of_many_is_found_without_reading_the_others() {
    let wide: BTreeSet<CellId> =
        (0..250).flat_map(|column| (1..4).map(move |version| (1, 1, column, version))).collect();
    let store = Store::new(&wide);
    let scanned = |filter| store.scanned_cells(&CompiledFilter::compile(filter).unwrap());
    assert_eq!(scanned(Filter::PassAll), 750);
    let column = || Filter::ColumnQualifierRegex(Bytes::from_static(b"\x7b"));
    assert_eq!(store.rows(Direction::Forward, &Projection::ALL, None)[0].cells.len(), 750);
    // Eight steps, the cell that is seeked from, the column's cells, and the seeks after it.
    assert!(scanned(column()) <= 8 + 1 + 3 + 9, "{}", scanned(column()));
    assert!(scanned(Filter::Chain(vec![column(), Filter::CellsPerColumnLimit(1)])) <= 8 + 1 + 1 + 9);
    assert_eq!(scanned(Filter::CellsPerRowLimit(2)), 2 * 3 + 9);
}

#[test]
fn a_row_is_returned_once_although_cells_of_it_remain() {
    let row: BTreeSet<CellId> = (0..9).map(|column| (1, 1, column, 1)).collect();
    let store = Store::new(&row);
    let filter = CompiledFilter::compile(Filter::ColumnQualifierRegex(Bytes::from_static(b"\x03"))).unwrap();
    let projection = Projection::for_filter(Some(&filter), &store.families);
    let view = store.store.view();
    for extent in [ScanExtent::OneRow, ScanExtent::ManyRows] {
        for (direction, order) in
            [(Direction::Forward, CellOrder::Ascending), (Direction::Reverse, CellOrder::Descending)]
        {
            let scan = view.cells(b"", None, direction).unwrap();
            let assembler = RowAssembler::new(&store.families, Micros::ZERO, order);
            let mut iterator = RowIterator::new(scan, assembler, &projection).with_extent(extent);
            let mut next = || iterator.next_row().unwrap_or_else(|_| panic!("the store is sound"));
            assert_eq!(next().map(|found| found.row.cells.len()), Some(1), "{extent:?} {order:?}");
            assert!(next().is_none(), "{extent:?} {order:?}");
        }
    }
}
