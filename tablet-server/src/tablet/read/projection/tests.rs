//! Projection of one row, cell by cell.

use ebla_model::filter::Filter;
use ebla_model::time::Micros;

use super::*;
use crate::tablet::read::row_assembler::testing;

fn families() -> Families {
    testing::families(&[(1, "m", None), (2, "c", None)])
}

fn cell(family: u32, qualifier: &str, timestamp: i64) -> Vec<u8> {
    let key = codec::encode_parts(b"", FamilyId::new(family), qualifier.as_bytes(), Micros::new(timestamp));
    let row = codec::row_prefix(&ebla_model::key::RowKey::EMPTY);
    key.strip_prefix(row.as_slice()).unwrap().to_vec()
}

/// The newest version of the columns of `c` from `k` on, the first two of them.
fn page() -> Projection {
    let start = std::ops::Bound::Included(Bytes::from_static(b"k"));
    let filter = Filter::Chain(vec![
        Filter::ColumnRange { family: "c".to_owned(), start, end: std::ops::Bound::Unbounded },
        Filter::CellsPerColumnLimit(1),
        Filter::CellsPerRowLimit(2),
    ]);
    let filter = CompiledFilter::compile(filter).unwrap();
    Projection::for_filter(Some(&filter), &families())
}

fn to(family: u32, qualifier: &str) -> CellAction<'static> {
    CellAction::Seek(SeekTarget::Column(codec::column_part(FamilyId::new(family), qualifier.as_bytes()).into()))
}

#[test]
fn a_page_of_a_family_is_its_first_columns_from_a_name() {
    let projection = page();
    let mut projector = RowProjector::new(&projection, CellOrder::Ascending);
    assert_eq!(projector.action(&cell(1, "x", 9)), to(2, "k"));
    assert_eq!(projector.action(&cell(2, "a", 9)), to(2, "k"));
    assert_eq!(projector.action(&cell(2, "k", 9)), CellAction::Read);
    projector.count_visible();
    let after_k = codec::prefix_end(&codec::column_part(FamilyId::new(2), b"k"));
    assert_eq!(projector.action(&cell(2, "k", 8)), CellAction::Seek(SeekTarget::Column(after_k.unwrap().into())));
    // A column without a visible version does not count.
    assert_eq!(projector.action(&cell(2, "l", 9)), CellAction::Read);
    assert_eq!(projector.action(&cell(2, "m", 9)), CellAction::Read);
    projector.count_visible();
    assert_eq!(projector.action(&cell(2, "n", 9)), CellAction::Seek(SeekTarget::Column(vec![0, 0, 0, 3].into())));
    assert_eq!(projector.action(&cell(3, "x", 9)), CellAction::Seek(SeekTarget::NextRow));
}

#[test]
fn descending_scans_use_the_same_bounds_and_count_nothing() {
    let projection = page();
    let mut projector = RowProjector::new(&projection, CellOrder::Descending);
    assert_eq!(projector.action(&cell(3, "x", 9)), CellAction::Seek(SeekTarget::Column(vec![0, 0, 0, 3].into())));
    for name in ["z", "y", "x", "k"] {
        assert_eq!(projector.action(&cell(2, name, 9)), CellAction::Read);
        projector.count_visible();
    }
    assert_eq!(projector.action(&cell(2, "a", 9)), CellAction::Seek(SeekTarget::NextRow));
}

#[test]
fn a_check_without_predicate_reads_one_cell_and_the_columns_its_mutations_add_to() {
    let counter = BTreeSet::from([(FamilyId::new(2), Bytes::from_static(b"n"))]);
    let projection = Projection::for_predicate(None, &counter, &families());
    let mut projector = RowProjector::new(&projection, CellOrder::Ascending);
    assert_eq!(projector.action(&cell(1, "x", 9)), CellAction::Read);
    projector.count_visible();
    assert_eq!(projector.action(&cell(1, "y", 9)), CellAction::Seek(SeekTarget::Column(vec![0, 0, 0, 2].into())));
    // The two ranges overlap: both are read completely.
    assert_eq!(projector.action(&cell(2, "a", 9)), CellAction::Read);
    projector.count_visible();
    assert_eq!(projector.action(&cell(2, "n", 9)), CellAction::Read);
}

#[test]
fn without_a_filter_all_cells_are_read_and_an_empty_projection_reads_none() {
    let all = Projection::for_filter(None, &families());
    assert_eq!(RowProjector::new(&all, CellOrder::Ascending).action(&cell(9, "x", 9)), CellAction::Read);
    assert_eq!(
        RowProjector::new(&Projection::NOTHING, CellOrder::Ascending).action(&cell(1, "x", 9)),
        CellAction::Seek(SeekTarget::NextRow)
    );
    assert_eq!(
        RowProjector::new(&Projection::NOTHING, CellOrder::Descending).action(&cell(1, "x", 9)),
        CellAction::Seek(SeekTarget::NextRow)
    );
}

#[test]
fn bounds_of_a_row_are_narrowed_to_a_column() {
    let bounds = || (b"row".to_vec(), Some(b"rox".to_vec()));
    let columns = |names: &[&'static str]| {
        let columns = names.iter().map(|name| (FamilyId::new(2), Bytes::from_static(name.as_bytes())));
        Projection::for_columns(&columns.collect(), &families())
    };
    let column = [&b"row"[..], &codec::column_part(FamilyId::new(2), b"k")].concat();
    let end = codec::prefix_end(&column);
    assert_eq!(columns(&["k"]).narrow(bounds()), (column, end));
    for wide in [columns(&["k", "l"]), page(), Projection::ALL, Projection::NOTHING] {
        assert_eq!(wide.narrow(bounds()), bounds());
    }
}
