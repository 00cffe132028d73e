//! From the chunks of the public API to rows: the row merger. Pure.
//!
//! A server of this system sends whole rows in each message; others may cut a row, or a value, anywhere. What a chunk
//! leaves out is as in the chunk before: the row, the family, the qualifier.

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

/// Puts rows together from chunks. One merger for one stream of answers.
#[derive(Debug, Default)]
pub struct RowMerger {
    row: Option<Row>,
    family: Option<FamilyName>,
    qualifier: Option<Bytes>,
    /// A value of which more is to come.
    value: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    timestamp: Micros,
    labels: Vec<Arc<str>>,
    value: BytesMut,
}

impl RowMerger {
    /// Takes the next message; answers the rows that it completed.
    ///
    /// # Errors
    /// `Internal` when the chunks do not fit together: the other side does not speak this API.
    pub fn merge(&mut self, response: ReadRowsResponse) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for chunk in response.chunks {
            rows.extend(self.push(chunk)?);
        }
        Ok(rows)
    }

    /// Says whether the stream may end here.
    ///
    /// # Errors
    /// `Internal` in the middle of a row.
    pub fn finish(&self) -> Result<(), Error> {
        match self.row {
            Some(_) => Err(bad("the stream ended inside a row")),
            None => Ok(()),
        }
    }

    fn push(&mut self, chunk: CellChunk) -> Result<Option<Row>, Error> {
        if let Some(RowStatus::ResetRow(true)) = chunk.row_status {
            *self = Self::default();
            return Ok(None);
        }
        self.place(&chunk)?;
        let status = chunk.row_status;
        if chunk.value_size > 0 {
            self.hold(chunk);
            return if status.is_some() { Err(bad("a row ended inside a value")) } else { Ok(None) };
        }
        self.cell(chunk)?;
        match status {
            Some(RowStatus::CommitRow(true)) => self.commit().map(Some),
            _open => Ok(None),
        }
    }

    /// Moves to the row, family and qualifier that the chunk names.
    fn place(&mut self, chunk: &CellChunk) -> Result<(), Error> {
        match &self.row {
            None if chunk.row_key.is_empty() => return Err(bad("a row began without a key")),
            None => self.row = Some(Row { key: RowKey::new(chunk.row_key.clone()), cells: Vec::new() }),
            Some(row) if !chunk.row_key.is_empty() && row.key.as_bytes() != chunk.row_key.as_ref() => {
                return Err(bad("a row began inside another"));
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

    /// Keeps a part of a value.
    fn hold(&mut self, chunk: CellChunk) {
        let partial = self.value.get_or_insert_with(|| Partial {
            timestamp: Micros::new(chunk.timestamp_micros),
            labels: labels(&chunk),
            value: BytesMut::with_capacity(usize::try_from(chunk.value_size).unwrap_or(0).min(1 << 20)),
        });
        partial.value.extend_from_slice(&chunk.value);
    }

    fn cell(&mut self, chunk: CellChunk) -> Result<(), Error> {
        let (Some(row), Some(family), Some(qualifier)) = (&mut self.row, &self.family, &self.qualifier) else {
            return Err(bad("a cell without family or qualifier"));
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
        let whole = std::mem::take(self);
        whole.row.ok_or_else(|| bad("a row ended that had not begun"))
    }
}

fn labels(chunk: &CellChunk) -> Vec<Arc<str>> {
    chunk.labels.iter().map(|label| Arc::from(label.as_str())).collect()
}

fn bad(what: &str) -> Error {
    Error::internal(format!("malformed answer to a read: {what}"))
}

/// The rows of an encoded message of whole rows, as `ebla.tablet` carries them.
///
/// # Errors
/// `Internal` when it is no such message.
pub fn whole_rows(encoded: Bytes) -> Result<Vec<Row>, Error> {
    let response = ReadRowsResponse::decode(encoded).map_err(|error| bad(&error.to_string()))?;
    let mut merger = RowMerger::default();
    let rows = merger.merge(response)?;
    merger.finish()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use ebla_proto::data::read_rows_response::{BytesValue, StringValue};

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
    fn what_a_chunk_leaves_out_is_as_before() {
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
    fn a_value_may_come_in_parts() {
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
    fn a_reset_row_is_forgotten() {
        let reset = CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..CellChunk::default() };
        let rows = merge(vec![chunk("a", Some(("f", "q")), "1"), reset, commit(chunk("a", Some(("f", "q")), "2"))]);
        assert_eq!(text(&rows.unwrap()), ["a f:q 2"]);
    }

    #[test]
    fn chunks_that_do_not_fit_are_refused() {
        assert!(merge(vec![commit(chunk("", Some(("f", "q")), "1"))]).is_err());
        assert!(merge(vec![chunk("a", Some(("f", "q")), "1")]).is_err());
        assert!(merge(vec![commit(chunk("a", Some(("f", "q")), "1")), commit(chunk("b", None, "2"))]).is_err());
        let other = commit(chunk("b", None, "2"));
        assert!(merge(vec![chunk("a", Some(("f", "q")), "1"), other]).is_err());
    }
}
