//! The row merger: assembles rows from the cell chunks of the public API. Pure.
//!
//! A server may split a row, or a value, anywhere. A chunk omits the row, the family or the qualifier if it is that of
//! the chunk before.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_model::time::Micros;
use ebla_proto::data::ReadRowsResponse;
use ebla_proto::data::read_rows_response::CellChunk;
use ebla_proto::data::read_rows_response::cell_chunk::RowStatus;
use prost::Message;

/// Assembles rows from cell chunks. Each stream of responses has its own merger.
#[derive(Debug, Default)]
pub struct RowMerger {
    row: Option<Row>,
    family: Option<FamilyName>,
    qualifier: Option<Bytes>,
    /// The value that is not complete yet.
    value: Option<Partial>,
    empty_keys: EmptyKeys,
}

/// Whether a row may have the empty key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EmptyKeys {
    /// The public API has no such row.
    #[default]
    Rejected,
    /// Tablets return such a row, which an older release accepted, so that it can be deleted.
    Accepted,
}

#[derive(Debug)]
struct Partial {
    timestamp: Micros,
    labels: Vec<Arc<str>>,
    value: BytesMut,
}

impl RowMerger {
    /// For the messages of `ebla.tablet`, where a row may have the empty key.
    #[must_use]
    pub fn of_tablets() -> Self {
        Self { empty_keys: EmptyKeys::Accepted, ..Self::default() }
    }

    /// Drops the open row; returns the previous state.
    fn reset(&mut self) -> Self {
        let fresh = Self { empty_keys: self.empty_keys, ..Self::default() };
        std::mem::replace(self, fresh)
    }

    /// Adds the next message; returns the rows that it completes.
    ///
    /// # Errors
    /// `Internal` when the chunks violate the API.
    pub fn merge(&mut self, response: ReadRowsResponse) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for chunk in response.chunks {
            rows.extend(self.push(chunk)?);
        }
        Ok(rows)
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// `Internal` if a row is open.
    pub fn finish(&self) -> Result<(), Error> {
        match self.row {
            Some(_) => Err(malformed("the stream ended inside a row")),
            None => Ok(()),
        }
    }

    fn push(&mut self, chunk: CellChunk) -> Result<Option<Row>, Error> {
        if let Some(RowStatus::ResetRow(true)) = chunk.row_status {
            self.reset();
            return Ok(None);
        }
        self.set_column(&chunk)?;
        let status = chunk.row_status;
        if chunk.value_size > 0 {
            self.append_partial_value(chunk);
            return if status.is_some() { Err(malformed("a row ended inside a value")) } else { Ok(None) };
        }
        self.add_cell(chunk)?;
        match status {
            Some(RowStatus::CommitRow(true)) => self.commit().map(Some),
            _open => Ok(None),
        }
    }

    /// Sets the row, family and qualifier of the chunk.
    fn set_column(&mut self, chunk: &CellChunk) -> Result<(), Error> {
        match &self.row {
            None if chunk.row_key.is_empty() && self.empty_keys == EmptyKeys::Rejected => {
                return Err(malformed("a row began without a key"));
            }
            None => self.row = Some(Row { key: RowKey::new(chunk.row_key.clone()), cells: Vec::new() }),
            Some(row) if !chunk.row_key.is_empty() && row.key.as_bytes() != chunk.row_key.as_ref() => {
                return Err(malformed("a row began inside another"));
            }
            Some(_) => {}
        }
        if let Some(family) = &chunk.family_name
            && self.family.as_ref().is_none_or(|known| known.as_str() != family.value)
        {
            self.family = Some(FamilyName::new(&family.value)?);
            self.qualifier = None;
        }
        if let Some(qualifier) = &chunk.qualifier {
            self.qualifier = Some(qualifier.value.clone());
        }
        Ok(())
    }

    /// Appends a part of a value.
    fn append_partial_value(&mut self, chunk: CellChunk) {
        let partial = self.value.get_or_insert_with(|| Partial {
            timestamp: Micros::new(chunk.timestamp_micros),
            labels: labels(&chunk),
            value: BytesMut::with_capacity(usize::try_from(chunk.value_size).unwrap_or(0).min(1 << 20)),
        });
        partial.value.extend_from_slice(&chunk.value);
    }

    fn add_cell(&mut self, chunk: CellChunk) -> Result<(), Error> {
        let (Some(row), Some(family), Some(qualifier)) = (&mut self.row, &self.family, &self.qualifier) else {
            return Err(malformed("a cell without family or qualifier"));
        };
        let mut cell =
            Cell::new(family.clone(), qualifier.clone(), Micros::new(chunk.timestamp_micros), chunk.value.clone());
        cell.labels = labels(&chunk);
        if let Some(mut partial) = self.value.take() {
            partial.value.extend_from_slice(&chunk.value);
            cell.value = partial.value.freeze();
            cell.timestamp = partial.timestamp;
            cell.labels = partial.labels;
        }
        row.cells.push(cell);
        Ok(())
    }

    fn commit(&mut self) -> Result<Row, Error> {
        let complete = self.reset();
        complete.row.ok_or_else(|| malformed("a commit without a row"))
    }
}

fn labels(chunk: &CellChunk) -> Vec<Arc<str>> {
    chunk.labels.iter().map(|label| Arc::from(label.as_str())).collect()
}

fn malformed(what: &str) -> Error {
    Error::internal(format!("malformed read response: {what}"))
}

/// The rows of an encoded message of whole rows, as `ebla.tablet` carries them.
///
/// # Errors
/// `Internal` when the message is invalid.
pub fn whole_rows(encoded: Bytes) -> Result<Vec<Row>, Error> {
    let response = ReadRowsResponse::decode(encoded).map_err(|error| malformed(&error.to_string()))?;
    let mut merger = RowMerger::of_tablets();
    let rows = merger.merge(response)?;
    merger.finish()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use ebla_proto::convert::{LargeRows, MessageSizes, RowMessages};
    use ebla_proto::data::read_rows_response::{BytesValue, StringValue};
    use proptest::prelude::*;

    use super::*;

    fn chunk(row: &'static str, column: Option<(&str, &'static str)>, value: &'static str) -> CellChunk {
        CellChunk {
            row_key: Bytes::from_static(row.as_bytes()),
            family_name: column.map(|(family, _)| StringValue { value: family.to_owned() }),
            qualifier: column.map(|(_, qualifier)| BytesValue { value: Bytes::from_static(qualifier.as_bytes()) }),
            timestamp_micros: 1_000,
            value: Bytes::from_static(value.as_bytes()),
            ..CellChunk::default()
        }
    }

    fn commit(chunk: CellChunk) -> CellChunk {
        CellChunk { row_status: Some(RowStatus::CommitRow(true)), ..chunk }
    }

    fn merge(chunks: Vec<CellChunk>) -> Result<Vec<Row>, Error> {
        let mut merger = RowMerger::default();
        let rows = merger.merge(ReadRowsResponse { chunks, ..Default::default() })?;
        merger.finish()?;
        Ok(rows)
    }

    fn text(rows: &[Row]) -> Vec<String> {
        let cell = |row: &Row, cell: &Cell| {
            let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{} {}:{} {}", row.key, cell.family, part(&cell.qualifier), part(&cell.value))
        };
        rows.iter().flat_map(|row| row.cells.iter().map(move |one| cell(row, one))).collect()
    }

    #[test]
    fn omitted_fields_are_those_of_the_chunk_before() {
        let rows = merge(vec![
            chunk("a", Some(("f", "q")), "1"),
            chunk("", None, "2"),
            commit(chunk("", Some(("g", "")), "3")),
            commit(chunk("b", Some(("f", "q")), "4")),
        ])
        .unwrap();
        assert_eq!(text(&rows), ["a f:q 1", "a f:q 2", "a g: 3", "b f:q 4"]);
    }

    #[test]
    fn a_split_value_is_assembled() {
        let first = CellChunk { value_size: 6, ..chunk("a", Some(("f", "q")), "one") };
        let last = CellChunk { timestamp_micros: 0, ..commit(chunk("", None, "two")) };
        let rows = merge(vec![first, last]).unwrap();
        assert_eq!(text(&rows), ["a f:q onetwo"]);
        assert_eq!(rows[0].cells[0].timestamp, Micros::new(1_000));
    }

    #[test]
    fn labels_stay_with_their_cells() {
        let labelled = |chunk: CellChunk, label: &str| CellChunk { labels: vec![label.to_owned()], ..chunk };
        let whole = labelled(chunk("a", Some(("f", "q")), "1"), "one");
        let first = labelled(CellChunk { value_size: 6, ..chunk("", None, "two") }, "two");
        let rows = merge(vec![whole, first, chunk("", None, "two"), commit(chunk("", None, "3"))]).unwrap();
        let labels: Vec<_> = rows[0].cells.iter().map(|cell| cell.labels.join(",")).collect();
        assert_eq!(labels, ["one", "two", ""]);
    }

    #[test]
    fn a_reset_row_is_dropped() {
        let reset = CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..CellChunk::default() };
        let rows = merge(vec![chunk("a", Some(("f", "q")), "1"), reset, commit(chunk("a", Some(("f", "q")), "2"))]);
        assert_eq!(text(&rows.unwrap()), ["a f:q 2"]);
    }

    #[test]
    fn invalid_chunks_are_rejected() {
        assert!(merge(vec![commit(chunk("", Some(("f", "q")), "1"))]).is_err());
        assert!(merge(vec![chunk("a", Some(("f", "q")), "1")]).is_err());
        assert!(merge(vec![commit(chunk("a", Some(("f", "q")), "1")), commit(chunk("b", None, "2"))]).is_err());
        let other = commit(chunk("b", None, "2"));
        assert!(merge(vec![chunk("a", Some(("f", "q")), "1"), other]).is_err());
    }

    fn any_cell() -> impl Strategy<Value = Cell> {
        let value = prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..20),
            1 => prop::collection::vec(any::<u8>(), 0..400),
        ];
        ("[ab]", "[a-c]{0,2}", 0..4_i64, value, prop::collection::vec("[a-z]{1,3}", 0..2)).prop_map(
            |(family, qualifier, milliseconds, value, labels)| Cell {
                family: FamilyName::new(&family).unwrap(),
                qualifier: qualifier.into(),
                timestamp: Micros::new(milliseconds * 1000),
                value: value.into(),
                labels: labels.into_iter().map(Arc::from).collect(),
            },
        )
    }

    fn any_rows() -> impl Strategy<Value = Vec<Row>> {
        let cells = prop::collection::vec(any_cell(), 1..8).prop_map(|mut cells| {
            cells.sort_by(Cell::order);
            cells
        });
        prop::collection::btree_map("[a-d]{0,3}", cells, 0..8)
            .prop_map(|rows| rows.into_iter().map(|(key, cells)| Row { key: RowKey::new(key), cells }).collect())
    }

    proptest! {
        #[test]
        fn rows_survive_the_split_into_messages(
            rows in any_rows(),
            rows_max in 1..1_000_usize,
            part in 1..500_usize,
            large in prop_oneof![Just(LargeRows::Split), Just(LargeRows::Whole)],
        ) {
            let mut merger = RowMerger::of_tablets();
            let mut merged: Vec<Row> = Vec::new();
            for message in RowMessages::new(rows.clone(), large, MessageSizes { rows_max, part }) {
                let response = ReadRowsResponse::decode(message.response).unwrap();
                for (at, chunk) in response.chunks.iter().enumerate() {
                    // Google's clients require this.
                    let of_row = rows.iter().find(|row| row.key.bytes() == &chunk.row_key);
                    prop_assert!(at > 0 || of_row.is_some(), "a message begins with a row's key");
                    prop_assert!(chunk.value_size == 0 || !chunk.value.is_empty() && chunk.row_status.is_none());
                }
                let before = merged.len();
                merged.extend(merger.merge(response).unwrap());
                prop_assert_eq!(message.rows, (merged.len() - before) as u64);
                prop_assert_eq!(message.last_row.as_ref(), merged[before..].last().map(|row| &row.key));
                prop_assert_eq!(message.is_open, merger.finish().is_err());
                prop_assert!(large == LargeRows::Split || !message.is_open);
            }
            prop_assert!(merger.finish().is_ok());
            prop_assert_eq!(merged, rows);
        }
    }
}
