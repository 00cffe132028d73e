//! The way through one row, cell by cell.

use ebla_model::filter::Filter;
use ebla_model::time::Micros;

use super::*;
use crate::tablet::rows::testing;

fn families() -> Families {
    testing::families(&[(1, "m", None), (2, "c", None)])
}

fn cell(family: u32, qualifier: &str, timestamp: i64) -> Vec<u8> {
    let key = codec::encode_parts(b"", FamilyId::new(family), qualifier.as_bytes(), Micros::new(timestamp));
    let row = codec::row_prefix(&ebla_model::key::RowKey::EMPTY);
    key.strip_prefix(row.as_slice()).unwrap().to_vec()
}

/// The newest version of the columns of `c` from `k` on, the first two of them.
fn page() -> Wanted {
    let start = std::ops::Bound::Included(Bytes::from_static(b"k"));
    let filter = Filter::Chain(vec![
        Filter::ColumnRange { family: "c".to_owned(), start, end: std::ops::Bound::Unbounded },
        Filter::CellsPerColumnLimit(1),
        Filter::CellsPerRowLimit(2),
    ]);
    let filter = CompiledFilter::compile(filter).unwrap();
    Wanted::by_filter(Some(&filter), &families())
}

fn to(family: u32, qualifier: &str) -> Look<'static> {
    Look::GoTo(Target::Column(codec::column_part(FamilyId::new(family), qualifier.as_bytes()).into()))
}

#[test]
fn a_page_of_a_family_is_its_first_columns_from_a_name_on() {
    let wanted = page();
    let mut progress = Progress::new(&wanted, false);
    assert_eq!(progress.look(&cell(1, "x", 9)), to(2, "k"));
    assert_eq!(progress.look(&cell(2, "a", 9)), to(2, "k"));
    assert_eq!(progress.look(&cell(2, "k", 9)), Look::Take);
    progress.saw();
    let after_k = codec::prefix_end(&codec::column_part(FamilyId::new(2), b"k"));
    assert_eq!(progress.look(&cell(2, "k", 8)), Look::GoTo(Target::Column(after_k.unwrap().into())));
    // A column of which nobody sees a version is none.
    assert_eq!(progress.look(&cell(2, "l", 9)), Look::Take);
    assert_eq!(progress.look(&cell(2, "m", 9)), Look::Take);
    progress.saw();
    assert_eq!(progress.look(&cell(2, "n", 9)), Look::GoTo(Target::Column(vec![0, 0, 0, 3].into())));
    assert_eq!(progress.look(&cell(3, "x", 9)), Look::GoTo(Target::NextRow));
}

#[test]
fn falling_cells_are_wanted_between_the_same_bounds_and_nothing_is_counted() {
    let wanted = page();
    let mut progress = Progress::new(&wanted, true);
    assert_eq!(progress.look(&cell(3, "x", 9)), Look::GoTo(Target::Column(vec![0, 0, 0, 3].into())));
    for name in ["z", "y", "x", "k"] {
        assert_eq!(progress.look(&cell(2, name, 9)), Look::Take);
        progress.saw();
    }
    assert_eq!(progress.look(&cell(2, "a", 9)), Look::GoTo(Target::NextRow));
}

#[test]
fn a_check_without_predicate_wants_any_cell_and_what_its_mutations_add_to() {
    let counter = BTreeSet::from([(FamilyId::new(2), Bytes::from_static(b"n"))]);
    let wanted = Wanted::by_predicate(None, &counter, &families());
    let mut progress = Progress::new(&wanted, false);
    assert_eq!(progress.look(&cell(1, "x", 9)), Look::Take);
    progress.saw();
    assert_eq!(progress.look(&cell(1, "y", 9)), Look::GoTo(Target::Column(vec![0, 0, 0, 2].into())));
    // The two wishes overlap: all of both.
    assert_eq!(progress.look(&cell(2, "a", 9)), Look::Take);
    progress.saw();
    assert_eq!(progress.look(&cell(2, "n", 9)), Look::Take);
}

#[test]
fn without_a_filter_all_is_wanted_and_of_nothing_nothing() {
    let all = Wanted::by_filter(None, &families());
    assert_eq!(Progress::new(&all, false).look(&cell(9, "x", 9)), Look::Take);
    assert_eq!(Progress::new(&Wanted::NOTHING, false).look(&cell(1, "x", 9)), Look::GoTo(Target::NextRow));
    assert_eq!(Progress::new(&Wanted::NOTHING, true).look(&cell(1, "x", 9)), Look::GoTo(Target::NextRow));
}
