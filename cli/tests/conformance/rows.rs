//! The answer of `ReadRows`, put together from its chunks, and checked as the strictest client does.

use bytes::Bytes;
use ebla_proto::data::read_rows_response::CellChunk;
use ebla_proto::data::read_rows_response::cell_chunk::RowStatus;
use ebla_proto::data::{FullReadStatsView, ReadRowsResponse, request_stats};
use tonic::{Status, Streaming};

/// What Google's Go client announces: reversed reads, and keys of rows that were only looked at.
pub(crate) const FEATURES: &str = "CAEgAQ==";

/// A cell as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    pub(crate) family: String,
    pub(crate) qualifier: Bytes,
    pub(crate) timestamp_micros: i64,
    pub(crate) value: Bytes,
    pub(crate) labels: Vec<String>,
}

/// A whole read.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) rows: Vec<(Bytes, Vec<Cell>)>,
    pub(crate) scanned: Vec<Bytes>,
    pub(crate) stats: Option<FullReadStatsView>,
}

/// All rows of a response. Fails the test when a message has an incomplete row or lacks required fields.
pub(crate) async fn collect(mut answers: Streaming<ReadRowsResponse>) -> Result<Read, Status> {
    let mut read = Read::default();
    while let Some(message) = answers.message().await? {
        assert!(read.stats.is_none(), "something follows the statistics");
        assert!(message.chunks.is_empty() || message.last_scanned_row_key.is_empty(), "rows and a scanned key at once");
        if !message.last_scanned_row_key.is_empty() {
            read.scanned.push(message.last_scanned_row_key);
        }
        let mut open: Option<(Bytes, Vec<Cell>)> = None;
        for chunk in message.chunks {
            let ends = chunk.row_status == Some(RowStatus::CommitRow(true));
            take(&mut open, chunk);
            if ends {
                read.rows.extend(open.take());
            }
        }
        assert!(open.is_none(), "a message ends in the middle of a row");
        if let Some(stats) = message.request_stats {
            let Some(request_stats::StatsView::FullReadStatsView(full)) = stats.stats_view else {
                panic!("no statistics")
            };
            read.stats = Some(full);
        }
    }
    Ok(read)
}

/// Puts a chunk to the row that it belongs to.
fn take(open: &mut Option<(Bytes, Vec<Cell>)>, chunk: CellChunk) {
    assert_eq!(chunk.value_size, 0, "values are not split");
    if open.is_none() {
        assert!(
            !chunk.row_key.is_empty() && chunk.family_name.is_some() && chunk.qualifier.is_some(),
            "a row begins without its names"
        );
    }
    let (key, cells) = open.get_or_insert_with(|| (chunk.row_key.clone(), Vec::new()));
    assert!(chunk.row_key.is_empty() || chunk.row_key == *key, "a row begins before another ends");
    assert!(chunk.family_name.is_none() || chunk.qualifier.is_some(), "a family begins without a qualifier");
    let (family, qualifier) = match cells.last() {
        Some(last) => (last.family.clone(), last.qualifier.clone()),
        None => (String::new(), Bytes::new()),
    };
    cells.push(Cell {
        family: chunk.family_name.map_or(family, |name| name.value),
        qualifier: chunk.qualifier.map_or(qualifier, |name| name.value),
        timestamp_micros: chunk.timestamp_micros,
        value: chunk.value,
        labels: chunk.labels,
    });
}
