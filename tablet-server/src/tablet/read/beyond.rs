//! Lookups beyond the end of a METADATA tablet.
//!
//! A lookup reads the rows of METADATA from a key on, as many as it caches at once. They may be in several tablets. METADATA's tablets are
//! in one group, so the replica that serves the first one serves the next one too, and the caller needs no further round trip. What
//! is read beyond the tablet of the request is a hint, as all rows of a lookup are: a failure there only ends the batch.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{Generation, TableId};
use ebla_model::metadata::TabletDescriptor;

use crate::tablet::{ReadBatch, ReadPosition, ReadRequest, Tablet};

/// The number of tablets that are read beyond the first one. Tablets of METADATA usually have many more rows than a lookup reads; after
/// merges of user tablets one may have few or none.
const TABLETS_MAX: usize = 8;

impl Tablet {
    /// Adds rows of the METADATA tablets after this one to a batch that is finished, up to the row limit of the request.
    /// `returned_before`: the rows of earlier batches.
    pub(super) async fn read_beyond(
        &self,
        request: &Arc<ReadRequest>,
        returned_before: u64,
        mut batch: ReadBatch,
        timeout: Duration,
    ) -> ReadBatch {
        let deadline = self.runtime.clock.monotonic().saturating_add(timeout);
        let mut last = self.clone();
        let mut generation = request.generation;
        for _ in 0..TABLETS_MAX {
            let returned = returned_before.saturating_add(batch.rows.len() as u64);
            if !batch.finished || request.limit.is_reached(returned) {
                break;
            }
            let Some((next, descriptor)) = last.next_of_metadata(generation) else { break };
            if request.rows.clamp(&descriptor.range).ranges().is_empty() {
                break;
            }
            generation = descriptor.generation;
            let part = Arc::new(ReadRequest { generation, ..ReadRequest::clone(request) });
            let left = deadline.saturating_sub(self.runtime.clock.monotonic());
            let position = ReadPosition { after: None, rows: returned };
            let read = tokio::time::timeout(left, next.read_now(part, position, left, |batch| batch)).await;
            let Ok(Ok(more)) = read else { break };
            batch.rows.extend(more.rows);
            batch.last_row = more.last_row.or(batch.last_row);
            batch.rows_seen += more.rows_seen;
            batch.cells_seen += more.cells_seen;
            batch.cells_returned += more.cells_returned;
            batch.bytes += more.bytes;
            batch.charge = request.memory.charge(batch.bytes);
            if !more.finished {
                break;
            }
            last = next;
        }
        batch
    }

    /// The METADATA tablet after this one in its group; `None` for the last one, and when this one does not have this generation any more:
    /// then its end is another one too.
    fn next_of_metadata(&self, generation: Generation) -> Option<(Tablet, TabletDescriptor)> {
        let own = self.descriptor().ok().filter(|own| own.generation == generation)?;
        let end = own.range.end()?;
        let tablets = self.group().tablets().into_iter().filter(|tablet| tablet.table() == TableId::METADATA);
        let described = tablets.filter_map(|tablet| tablet.descriptor().ok().map(|descriptor| (tablet, descriptor)));
        described.into_iter().find(|(_tablet, descriptor)| descriptor.range.start() == end)
    }
}
