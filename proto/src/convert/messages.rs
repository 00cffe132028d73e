//! Divides rows into ReadRows messages. Pure.
//!
//! ```text
//!   a message   whole rows, or a part of one row that is too large for a message
//!   a part      its first chunk names the row; a cell that starts in it names family and qualifier too
//!   a value     in pieces: each but the last has the whole value's size in `value_size`, only the first has a timestamp
//!               and labels
//!   a row       ends with `commit_row` on its last chunk, whatever the number of messages
//! ```
//!
//! The form of a part suits Google's clients: the Python client refuses a message whose first chunk does not name
//! the row, the Java client refuses a later piece that names a column or another size. The Go client refuses every
//! message that does not end with a row, so large rows stay whole for it.

use std::{iter::Peekable, vec};

use bytes::Bytes;
use ebla_model::{Cell, Row, RowKey};
use prost::Message;

use super::rows::{chunk, push_row};
use crate::data::{
    self,
    read_rows_response::{CellChunk, cell_chunk::RowStatus},
};

/// Approximate size of a chunk without names, labels and value, in bytes.
const CHUNK_BYTES: usize = 64;

/// How to send a row that is too large for a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LargeRows {
    /// As one message of any size.
    #[default]
    Whole,
    /// In several messages.
    Split,
}

/// Sizes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSizes {
    /// Approximate maximum size of a message of whole rows, in bytes. A larger row is a large row.
    pub rows_max: usize,
    /// Approximate size of each part of a split row, in bytes.
    pub part: usize,
}

impl MessageSizes {
    /// Sizes that every client accepts: by default most refuse messages above 4 MiB.
    pub const STANDARD: Self = Self { rows_max: 3 << 20, part: 1 << 20 };
}

/// A message, and the rows that end in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMessage {
    /// An encoded `ReadRowsResponse`.
    pub response: Bytes,
    /// Number of rows that end in it.
    pub rows: u64,
    /// The last of them.
    pub last_row: Option<RowKey>,
    /// It ends inside a row, which continues in the next message.
    pub is_open: bool,
}

/// An iterator over the messages of rows. Rows without cells are omitted: the API cannot represent them.
#[derive(Debug)]
pub struct RowMessages {
    rows: Peekable<vec::IntoIter<Row>>,
    /// The row that is being split.
    open: Option<OpenRow>,
    large: LargeRows,
    sizes: MessageSizes,
}

impl RowMessages {
    /// The messages of these rows.
    pub fn new(mut rows: Vec<Row>, large: LargeRows, sizes: MessageSizes) -> Self {
        rows.retain(|row| !row.is_empty());
        Self { rows: rows.into_iter().peekable(), open: None, large, sizes }
    }

    /// Whether all messages were produced.
    pub fn is_done(&self) -> bool {
        self.open.is_none() && self.rows.len() == 0
    }

    fn is_large(&self, row: &Row) -> bool {
        encoded_bytes(row) > self.sizes.rows_max
    }

    /// As many whole rows as fit, at least one.
    fn whole_rows(&mut self, first: Row) -> RowMessage {
        let mut chunks = Vec::with_capacity(first.cells.len());
        let mut size_bytes = encoded_bytes(&first);
        let mut rows = 1;
        push_row(&mut chunks, &first);
        let mut last_row = first.key;
        let rows_max = self.sizes.rows_max;
        while let Some(row) = self.rows.next_if(|row| size_bytes + encoded_bytes(row) <= rows_max) {
            size_bytes += encoded_bytes(&row);
            rows += 1;
            push_row(&mut chunks, &row);
            last_row = row.key;
        }
        RowMessage { response: encode(chunks), rows, last_row: Some(last_row), is_open: false }
    }
}

impl Iterator for RowMessages {
    type Item = RowMessage;

    fn next(&mut self) -> Option<RowMessage> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let row = self.rows.next()?;
                if self.large == LargeRows::Whole || !self.is_large(&row) {
                    return Some(self.whole_rows(row));
                }
                OpenRow { row, cell: 0, offset: 0 }
            }
        };
        let response = encode(open.part(self.sizes.part));
        if open.is_at_end() {
            return Some(RowMessage { response, rows: 1, last_row: Some(open.row.key), is_open: false });
        }
        self.open = Some(open);
        Some(RowMessage { response, rows: 0, last_row: None, is_open: true })
    }
}

/// A message that discards the parts of an open row.
pub fn reset_row() -> data::ReadRowsResponse {
    let chunk = CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..CellChunk::default() };
    data::ReadRowsResponse { chunks: vec![chunk], ..Default::default() }
}

/// A partially sent row.
#[derive(Debug)]
struct OpenRow {
    row: Row,
    /// The next cell.
    cell: usize,
    /// The bytes of its value that are already sent.
    offset: usize,
}

impl OpenRow {
    fn is_at_end(&self) -> bool {
        self.cell >= self.row.cells.len()
    }

    /// The next chunks, of about `size` bytes together, at least one.
    fn part(&mut self, size: usize) -> Vec<CellChunk> {
        let mut chunks: Vec<CellChunk> = Vec::new();
        let mut used = 0;
        while let Some(cell) = self.row.cells.get(self.cell) {
            let left = cell.value.len().saturating_sub(self.offset);
            let names = chunk_bytes(cell).saturating_sub(cell.value.len());
            let room = size.saturating_sub(used + names);
            // A value that fits into one part is not divided to fill the rest of this part.
            let fits_elsewhere = self.offset == 0 && names + left <= size;
            if !chunks.is_empty() && (room == 0 || left > room && fits_elsewhere) {
                break;
            }
            let take = left.min(room.max(1));
            chunks.push(self.piece(cell, chunks.is_empty(), take));
            used += names + take;
            if take < left {
                self.offset += take;
                break;
            }
            self.cell += 1;
            self.offset = 0;
        }
        if let (true, Some(last)) = (self.is_at_end(), chunks.last_mut()) {
            last.row_status = Some(RowStatus::CommitRow(true));
        }
        chunks
    }

    /// A chunk with the next `take` bytes of the cell's value.
    fn piece(&self, cell: &Cell, opens_message: bool, take: usize) -> CellChunk {
        let total = cell.value.len();
        let end = self.offset.saturating_add(take).min(total);
        let value = cell.value.slice(self.offset.min(end)..end);
        let value_size = if end < total { i32::try_from(total).unwrap_or(i32::MAX) } else { 0 };
        if self.offset > 0 {
            let row_key = if opens_message { self.row.key.bytes().clone() } else { Bytes::new() };
            return CellChunk { row_key, value, value_size, ..CellChunk::default() };
        }
        let before = if opens_message { None } else { self.cell.checked_sub(1) };
        let previous = before.and_then(|at| self.row.cells.get(at));
        CellChunk { value, value_size, ..chunk(&self.row, previous, cell) }
    }
}

fn encode(chunks: Vec<CellChunk>) -> Bytes {
    data::ReadRowsResponse { chunks, ..Default::default() }.encode_to_vec().into()
}

/// Estimated size of a row in a message, an upper bound.
fn encoded_bytes(row: &Row) -> usize {
    row.size_bytes() + row.cells.len() * CHUNK_BYTES
}

fn chunk_bytes(cell: &Cell) -> usize {
    cell.size_bytes() + CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    use ebla_model::{FamilyName, Micros};

    use super::*;

    fn cell(qualifier: &'static str, value: Vec<u8>) -> Cell {
        Cell::new(FamilyName::new("f").unwrap(), qualifier.into(), Micros::new(1000), value.into())
    }

    fn row(key: &'static str, sizes: &[(&'static str, usize)]) -> Row {
        let cells = sizes.iter().map(|(qualifier, size)| cell(qualifier, vec![7; *size])).collect();
        Row { key: RowKey::new(key), cells }
    }

    /// One line per message: names and values of its chunks, and its row count.
    fn transcript(rows: Vec<Row>, large: LargeRows, sizes: MessageSizes) -> Vec<String> {
        let line = |message: RowMessage| {
            let response = data::ReadRowsResponse::decode(message.response).unwrap();
            let chunks = response.chunks.iter().map(|chunk| {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let family = chunk.family_name.as_ref().map_or("-", |family| family.value.as_str());
                let qualifier = chunk.qualifier.as_ref().map_or("-".to_owned(), |name| text(&name.value));
                let end = if chunk.row_status.is_some() { "." } else { "" };
                let (key, value) = (text(&chunk.row_key), chunk.value.len());
                format!("[{key}] {family}:{qualifier}@{} {value}/{}{end}", chunk.timestamp_micros, chunk.value_size)
            });
            let last = message.last_row.map_or("-".to_owned(), |key| key.to_string());
            let state = if message.is_open { "open" } else { "whole" };
            format!("{} | {} to {last}, {state}", chunks.collect::<Vec<_>>().join(", "), message.rows)
        };
        RowMessages::new(rows, large, sizes).map(line).collect()
    }

    const SMALL: MessageSizes = MessageSizes { rows_max: 500, part: 200 };

    #[test]
    fn a_large_row_goes_over_several_messages() {
        let rows = vec![
            row("a", &[("q", 10)]),
            row("b", &[("q", 450), ("r", 10), ("s", 20), ("t", 100)]),
            row("c", &[("q", 1)]),
        ];
        assert_eq!(
            transcript(rows, LargeRows::Split, SMALL),
            [
                "[a] f:q@1000 10/0. | 1 to a, whole",
                "[b] f:q@1000 126/450 | 0 to -, open",
                "[b] -:-@0 126/450 | 0 to -, open",
                "[b] -:-@0 126/450 | 0 to -, open",
                "[b] -:-@0 72/0 | 0 to -, open",
                "[b] f:r@1000 10/0, [] -:s@1000 20/0 | 0 to -, open",
                "[b] f:t@1000 100/0. | 1 to b, whole",
                "[c] f:q@1000 1/0. | 1 to c, whole",
            ]
        );
    }

    #[test]
    fn a_large_row_stays_whole_where_it_must() {
        let rows = vec![row("a", &[("q", 10)]), row("b", &[("q", 450), ("r", 10)]), row("c", &[("q", 1)])];
        assert_eq!(
            transcript(rows, LargeRows::Whole, SMALL),
            [
                "[a] f:q@1000 10/0. | 1 to a, whole",
                "[b] f:q@1000 450/0, [] -:r@1000 10/0. | 1 to b, whole",
                "[c] f:q@1000 1/0. | 1 to c, whole",
            ]
        );
    }

    #[test]
    fn small_rows_share_a_message() {
        let rows = vec![row("a", &[("q", 10)]), row("empty", &[]), row("b", &[("q", 10), ("r", 0)])];
        assert_eq!(
            transcript(rows, LargeRows::Split, SMALL),
            ["[a] f:q@1000 10/0., [b] f:q@1000 10/0, [] -:r@1000 0/0. | 2 to b, whole"]
        );
        assert!(RowMessages::new(vec![row("empty", &[])], LargeRows::Split, SMALL).is_done());
    }

    #[test]
    fn no_message_is_much_larger_than_it_should_be() {
        let many = |key, count| Row { key: RowKey::new(key), cells: vec![cell("", Vec::new()); count] };
        let big = Row { key: RowKey::new("m"), cells: vec![cell("q", vec![7; 9 << 20]), cell("r", vec![7; 3 << 20])] };
        let almost = |key| row(key, &[("q", (3 << 20) - 1000)]);
        let rows = vec![many("a", 200_000), almost("b"), almost("c"), big, many("z", 10)];
        let sizes = MessageSizes::STANDARD;
        let messages: Vec<_> = RowMessages::new(rows, LargeRows::Split, sizes).collect();
        assert_eq!(messages.iter().map(|message| message.rows).sum::<u64>(), 5);
        for message in &messages {
            let whole = message.rows > 0 && !message.is_open;
            let limit = if whole { sizes.rows_max } else { sizes.part + 100 };
            assert!(message.response.len() <= limit, "{} bytes", message.response.len());
        }
    }
}
