//! Row sets of requests, and rows of responses.
//!
//! A row's first chunk names row, family and qualifier; later chunks name only changes, a new family with its qualifier;
//! the last one commits the row. `messages.rs` divides rows into messages.

use bytes::Bytes;
use ebla_model::{Cell, Error, FamilyName, KeyRange, Micros, Row, RowKey, RowSet, mutation::validate_row_key};

use crate::data::{
    self,
    read_rows_response::{BytesValue, CellChunk, StringValue, cell_chunk::RowStatus},
    row_range::{EndKey, StartKey},
};

/// The row set of a request. No keys and no ranges mean all rows.
///
/// # Errors
/// `InvalidArgument` when a key is empty or too long, or a range is empty.
pub fn row_set_from_proto(rows: Option<&data::RowSet>) -> Result<RowSet, Error> {
    let Some(rows) = rows.filter(|rows| !rows.row_keys.is_empty() || !rows.row_ranges.is_empty()) else {
        return Ok(RowSet::all());
    };
    let keys = rows.row_keys.iter().map(|key| {
        let key = RowKey::new(key.clone());
        validate_row_key(&key)?;
        Ok(KeyRange::single(key))
    });
    let ranges = rows.row_ranges.iter().map(row_range_from_proto);
    keys.chain(ranges).collect::<Result<Vec<_>, Error>>().map(RowSet::from_ranges)
}

/// A row range. Without an end, or with an empty one, it is unbounded.
///
/// # Errors
/// `InvalidArgument` when it is empty.
pub fn row_range_from_proto(range: &data::RowRange) -> Result<KeyRange, Error> {
    let start = match &range.start_key {
        None => RowKey::EMPTY,
        Some(StartKey::StartKeyClosed(key)) => RowKey::new(key.clone()),
        Some(StartKey::StartKeyOpen(key)) => RowKey::new(key.clone()).successor(),
    };
    let end = match &range.end_key {
        None => None,
        Some(EndKey::EndKeyOpen(key) | EndKey::EndKeyClosed(key)) if key.is_empty() => None,
        Some(EndKey::EndKeyOpen(key)) => Some(RowKey::new(key.clone())),
        Some(EndKey::EndKeyClosed(key)) => Some(RowKey::new(key.clone()).successor()),
    };
    KeyRange::new(start, end).ok_or_else(|| Error::invalid("start_key must be less than end_key"))
}

/// The response with these rows. Rows without cells are omitted: the API cannot represent them.
pub fn rows_to_response(rows: &[Row]) -> data::ReadRowsResponse {
    let mut chunks = Vec::with_capacity(rows.iter().map(|row| row.cells.len()).sum());
    for row in rows {
        push_row(&mut chunks, row);
    }
    data::ReadRowsResponse { chunks, ..Default::default() }
}

pub(super) fn push_row(chunks: &mut Vec<CellChunk>, row: &Row) {
    let mut previous: Option<&Cell> = None;
    for cell in &row.cells {
        chunks.push(chunk(row, previous, cell));
        previous = Some(cell);
    }
    if let (Some(_), Some(last)) = (previous, chunks.last_mut()) {
        last.row_status = Some(RowStatus::CommitRow(true));
    }
}

/// The chunk of a cell that follows `previous` in its row.
pub(super) fn chunk(row: &Row, previous: Option<&Cell>, cell: &Cell) -> CellChunk {
    let same_family = previous.is_some_and(|previous| previous.family.is_same(&cell.family));
    let same_column = previous.is_some_and(|previous| previous.is_same_column(cell));
    CellChunk {
        row_key: if previous.is_none() { row.key.bytes().clone() } else { Bytes::new() },
        family_name: (!same_family).then(|| StringValue { value: cell.family.to_string() }),
        qualifier: (!same_column).then(|| BytesValue { value: cell.qualifier.clone() }),
        timestamp_micros: cell.timestamp.get(),
        labels: cell.labels.iter().map(ToString::to_string).collect(),
        value: cell.value.clone(),
        value_size: 0,
        row_status: None,
    }
}

/// A row of a ReadModifyWriteRow response.
pub fn row_to_proto(row: &Row) -> data::Row {
    let families = row
        .cells
        .chunk_by(|a, b| a.family.is_same(&b.family))
        .filter_map(|cells| {
            let name = cells.first()?.family.to_string();
            Some(data::Family { name, columns: columns_to_proto(cells) })
        })
        .collect();
    data::Row { key: row.key.bytes().clone(), families }
}

fn columns_to_proto(cells: &[Cell]) -> Vec<data::Column> {
    cells
        .chunk_by(Cell::is_same_column)
        .filter_map(|cells| {
            let qualifier = cells.first()?.qualifier.clone();
            Some(data::Column { qualifier, cells: cells.iter().map(cell_to_proto).collect() })
        })
        .collect()
}

fn cell_to_proto(cell: &Cell) -> data::Cell {
    data::Cell {
        timestamp_micros: cell.timestamp.get(),
        value: cell.value.clone(),
        labels: cell.labels.iter().map(ToString::to_string).collect(),
    }
}

/// A row of a response, with its cells sorted in the model's order.
///
/// # Errors
/// `InvalidArgument` when a family's name is invalid.
pub fn row_from_proto(row: &data::Row) -> Result<Row, Error> {
    let mut cells = Vec::new();
    for family in &row.families {
        let name = FamilyName::new(&family.name)?;
        for column in &family.columns {
            cells.extend(column.cells.iter().map(|cell| Cell {
                family: name.clone(),
                qualifier: column.qualifier.clone(),
                timestamp: Micros::new(cell.timestamp_micros),
                value: cell.value.clone(),
                labels: cell.labels.iter().map(|label| label.as_str().into()).collect(),
            }));
        }
    }
    cells.sort_by(Cell::order);
    Ok(Row { key: RowKey::new(row.key.clone()), cells })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(family: &str, qualifier: &'static str, micros: i64, value: &'static str) -> Cell {
        Cell::new(FamilyName::new(family).unwrap(), qualifier.into(), Micros::new(micros), value.into())
    }

    fn row() -> Row {
        let mut labelled = cell("b", "", 1000, "w");
        labelled.labels.push("seen".into());
        Row {
            key: RowKey::new("k"),
            cells: vec![
                cell("a", "", 9000, "x"),
                cell("a", "", 8000, ""),
                cell("a", "q", 8000, "y"),
                cell("b", "q", 1000, "z"),
                labelled,
            ],
        }
    }

    /// One line per chunk, as a client reads it.
    fn transcript(response: &data::ReadRowsResponse) -> Vec<String> {
        response
            .chunks
            .iter()
            .map(|chunk| {
                let key = String::from_utf8_lossy(&chunk.row_key).into_owned();
                let family = chunk.family_name.as_ref().map_or("-", |family| family.value.as_str()).to_owned();
                let qualifier =
                    chunk.qualifier.as_ref().map_or("-".into(), |qualifier| format!("{:?}", qualifier.value));
                let commit = if chunk.row_status == Some(RowStatus::CommitRow(true)) { " commit" } else { "" };
                let labels = chunk.labels.join(",");
                format!("[{key}] {family} {qualifier} {} {:?}{labels}{commit}", chunk.timestamp_micros, chunk.value)
            })
            .collect()
    }

    #[test]
    fn chunks_name_what_has_changed() {
        let response = rows_to_response(&[row(), Row::empty(RowKey::new("none")), row()]);
        let one_row = [
            r#"[k] a b"" 9000 b"x""#,
            r#"[] - - 8000 b"""#,
            r#"[] - b"q" 8000 b"y""#,
            r#"[] b b"q" 1000 b"z""#,
            r#"[] - b"" 1000 b"w"seen commit"#,
        ];
        assert_eq!(transcript(&response), [one_row, one_row].concat());
    }

    #[test]
    fn a_row_alone_commits_at_its_only_cell() {
        let single = Row { key: RowKey::new("k"), cells: vec![cell("a", "q", 0, "v")] };
        assert_eq!(transcript(&rows_to_response(&[single])), [r#"[k] a b"q" 0 b"v" commit"#]);
        assert_eq!(rows_to_response(&[]).chunks, []);
    }

    #[test]
    fn rows_come_back() {
        let mut sent = row();
        sent.cells.sort_by(Cell::order);
        assert_eq!(row_from_proto(&row_to_proto(&sent)), Ok(sent));
    }

    fn range(start: Option<StartKey>, end: Option<EndKey>) -> data::RowRange {
        data::RowRange { start_key: start, end_key: end }
    }

    #[test]
    fn bounds_become_half_open() {
        let closed = |key: &'static str| Some(StartKey::StartKeyClosed(key.into()));
        let open = |key: &'static str| Some(StartKey::StartKeyOpen(key.into()));
        let end_open = |key: &'static str| Some(EndKey::EndKeyOpen(key.into()));
        let end_closed = |key: &'static str| Some(EndKey::EndKeyClosed(key.into()));
        let legal = [
            (range(None, None), "[, -)"),
            (range(closed("a"), end_open("c")), "[a, c)"),
            (range(open("a"), end_closed("c")), "[a\\x00, c\\x00)"),
            (range(closed("k"), end_closed("k")), "[k, k\\x00)"),
            (range(closed("a"), end_open("")), "[a, -)"),
            (range(closed("a"), end_closed("")), "[a, -)"),
        ];
        for (range, expected) in legal {
            assert_eq!(row_range_from_proto(&range).unwrap().to_string(), expected);
        }
        let empty = [
            range(closed("k"), end_open("k")),
            range(open("k"), end_closed("k")),
            range(open("k"), end_open("k\0")),
            range(closed("z"), end_open("a")),
        ];
        for range in empty {
            let error = row_range_from_proto(&range).unwrap_err();
            assert_eq!(error.message, "start_key must be less than end_key");
        }
    }

    #[test]
    fn row_sets_are_unions() {
        assert_eq!(row_set_from_proto(None), Ok(RowSet::all()));
        assert_eq!(row_set_from_proto(Some(&data::RowSet::default())), Ok(RowSet::all()));
        let both = data::RowSet {
            row_keys: vec!["z".into(), "b".into(), "z".into()],
            row_ranges: vec![range(Some(StartKey::StartKeyClosed("a".into())), Some(EndKey::EndKeyOpen("c".into())))],
        };
        let ranges: Vec<_> =
            row_set_from_proto(Some(&both)).unwrap().ranges().iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["[a, c)", "[z, z\\x00)"]);
        for bad in [Bytes::new(), vec![1; 4097].into()] {
            let set = data::RowSet { row_keys: vec![bad], row_ranges: Vec::new() };
            assert!(row_set_from_proto(Some(&set)).is_err());
        }
    }
}
