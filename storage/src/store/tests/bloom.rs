//! Bloom filters: most reads of what does not exist read no block.

use ebla_model::id::TableId;
use ebla_model::stored_row::stored_row;

use super::super::cursor::blocks_read;
use super::super::placement::WantedFamilies;
use super::*;

const TABLE: TableId = TableId::new(5);
const FAMILY: FamilyId = FamilyId::new(1);
const ROWS: u64 = 1000;
/// Of [`ROWS`] reads: more than the filters' one in a hundred, and far from all.
const FEW: u64 = ROWS / 20;

fn row(number: u64) -> RowKey {
    stored_row(TABLE, &RowKey::new(format!("row{number:08}")))
}

/// A store with one file whose group has these options: the even rows up to twice [`ROWS`], with the column `q`.
fn filled(options: &str) -> (TempDir, GroupStore) {
    let dir = TempDir::new().unwrap();
    let store = new_store(&dir);
    let family = CellFamily { group: 1, options: options.parse().unwrap() };
    store.place_tables(BTreeMap::from([(TABLE, WantedFamilies::from([(FAMILY, family)]))])).unwrap();
    let mut batch = Batch::new();
    for number in 0..ROWS {
        let key = codec::encode_parts(row(2 * number).as_bytes(), FAMILY, b"q", Micros::new(1));
        batch.put(key, vec![7; 100]);
    }
    store.write(&batch).unwrap();
    store.flush().unwrap();
    // A read behind all rows puts index and filter into the cache, and no block of cells.
    let store = restarted(store);
    let behind = column(4 * ROWS, b"q");
    let upper = codec::prefix_end(&behind);
    assert_eq!(store.view().scan(&ScanPlan::new(&behind, upper.as_deref())).unwrap().count(), 0);
    (dir, store)
}

fn whole_row(number: u64) -> Vec<u8> {
    codec::row_prefix(&row(number))
}

fn column(number: u64, qualifier: &[u8]) -> Vec<u8> {
    codec::column_prefix(&row(number), FAMILY, qualifier)
}

/// The number of cells whose keys begin with `prefix`. Leaves the cache as it is.
fn read(store: &GroupStore, prefix: &[u8]) -> usize {
    let upper = codec::prefix_end(prefix);
    let plan = ScanPlan::new(prefix, upper.as_deref()).without_filling_cache();
    store.view().scan(&plan).unwrap().map(Result::unwrap).count()
}

/// The blocks that reads of what does not exist read.
fn blocks_of_absent(store: &GroupStore, prefix: impl Fn(u64) -> Vec<u8>) -> u64 {
    let before = blocks_read();
    for number in 0..ROWS {
        assert_eq!(read(store, &prefix(number)), 0);
    }
    blocks_read() - before
}

/// Whole rows, columns of rows, and other columns of existing rows, none of which exist.
fn blocks(store: &GroupStore) -> [u64; 3] {
    [
        blocks_of_absent(store, |number| whole_row(2 * number + 1)),
        blocks_of_absent(store, |number| column(2 * number + 1, b"q")),
        blocks_of_absent(store, |number| column(2 * number, b"z")),
    ]
}

#[test]
fn without_filters_each_read_reads_a_block() {
    let (_dir, store) = filled("bloom=none");
    // The last key has no block after it.
    assert!(blocks(&store).into_iter().all(|blocks| blocks > ROWS - FEW));
}

#[test]
fn filters_of_rows_answer_reads_of_absent_rows() {
    let (_dir, store) = filled("bloom=rows");
    let [rows, columns_of_absent_rows, other_columns] = blocks(&store);
    assert!(rows < FEW && columns_of_absent_rows < FEW, "{rows} {columns_of_absent_rows}");
    assert!(other_columns > ROWS - FEW, "{other_columns}");
}

#[test]
fn filters_of_columns_answer_reads_of_absent_columns() {
    let (_dir, store) = filled("bloom=columns");
    let [rows, columns_of_absent_rows, other_columns] = blocks(&store);
    assert!(rows > ROWS - FEW, "{rows}: a read of a whole row does not know which columns to ask for");
    assert!(columns_of_absent_rows < FEW && other_columns < FEW, "{columns_of_absent_rows} {other_columns}");
}

#[test]
fn what_exists_is_found_with_all_filters() {
    for options in ["bloom=none", "bloom=rows", "bloom=columns"] {
        let (_dir, store) = filled(options);
        for number in 0..ROWS {
            assert_eq!(read(&store, &whole_row(2 * number)), 1, "{options} {number}");
            assert_eq!(read(&store, &column(2 * number, b"q")), 1, "{options} {number}");
        }
    }
}
