//! Writes batches, one at a time, and starts a new segment when one is full.
//!
//! [`super::CommitLog`] collects submissions while the disk is busy (group commit) and hands them over here. The writer owns
//! the [`DurableState`]: only written records may decide the content of a segment header and which segment is released.

use ebla_runtime::Rng;

use bytes::Bytes;

use super::batch::{BatchPlan, Position, to_u32};
use super::durable_state::DurableState;
use super::error::LogError;
use super::files::{ActiveSegment, Files, SpareOrder};
use super::index::RecordLocation;
use super::record::Record;
use super::segment::SegmentHeader;

/// See the module.
pub(crate) struct Writer {
    pub(crate) files: Files,
    pub(crate) durable_state: DurableState,
    pub(crate) active: ActiveSegment,
    pub(crate) rng: Rng,
    /// Number of the next batch.
    pub(crate) next: u64,
    /// Stored CRC of the last batch.
    pub(crate) chain: u32,
    /// The oldest needed segment that the last durable batch or header has recorded.
    pub(crate) oldest_recorded: u64,
    /// Whether the last batch has records and no commit marker yet.
    pub(crate) needs_commit_marker: bool,
    /// Whether the active segment was started and no batch was written to it since.
    pub(crate) has_started: bool,
}

/// A batch that is durable.
pub(crate) struct Written {
    pub(crate) segment: u64,
    pub(crate) offset: u32,
    pub(crate) bytes: Bytes,
    /// Where each record starts, from the start of the batch.
    starts: Vec<usize>,
    /// Whether it is the first of its segment.
    pub(crate) starts_segment: bool,
}

impl Written {
    /// The locations of the records, which must be those that were written.
    pub(crate) fn locations<'a>(
        &'a self,
        records: impl Iterator<Item = &'a Record>,
    ) -> impl Iterator<Item = RecordLocation> {
        self.starts.iter().zip(records).map(|(start, record)| RecordLocation {
            segment: self.segment,
            offset: self.offset.saturating_add(to_u32(*start)),
            len: to_u32(record.encoded_len()),
        })
    }
}

impl Writer {
    /// Writes one batch of `records` (none: the commit marker of the batch before); durable on return.
    ///
    /// # Errors
    /// [`LogError::NoSpace`]: the batch was not written, and the call can be repeated. Otherwise the disk or the manifest has failed, and the
    /// writer must not be used again.
    pub(crate) fn write<'a>(&mut self, records: impl Iterator<Item = &'a Record> + Clone) -> Result<Written, LogError> {
        self.files.release(self.oldest_recorded)?;
        let mut plan = BatchPlan::new();
        records.clone().for_each(|record| plan.add(record));
        // Overwriting a prepared segment is cheaper than extending this one.
        let replaces = self.active.extends_file() && self.files.has_prepared_spare();
        if replaces || !self.active.has_room(plan.len()) {
            self.start_segment(plan.len())?;
        }
        let position = self.position();
        let encoded = plan.encode(position, records.clone());
        let offset = to_u32(self.active.end);
        self.active.append(&encoded.bytes)?;
        self.files.note_end(&self.active);
        self.chain = encoded.crc;
        self.next += 1;
        self.oldest_recorded = position.oldest;
        self.needs_commit_marker = !encoded.starts.is_empty();
        let starts_segment = std::mem::take(&mut self.has_started);
        let segment = self.active.sequence;
        records.for_each(|record| self.durable_state.apply(record, segment));
        Ok(Written { segment, offset, bytes: encoded.bytes, starts: encoded.starts, starts_segment })
    }

    /// Begins the preparation of the next segment, if the log is in use and has no spare.
    pub(crate) fn begin_spare(&mut self, used_bytes_min: usize) -> Option<SpareOrder> {
        if self.active.end < used_bytes_min { None } else { self.files.begin_spare() }
    }

    fn position(&mut self) -> Position {
        Position {
            segment: self.active.sequence,
            salt: self.active.salt,
            number: self.next,
            previous: self.chain,
            // One batch is in flight at a time, so all before this one are durable.
            synced: self.next - 1,
            oldest: self.durable_state.oldest(self.active.sequence),
        }
    }

    /// Starts a new segment with room for at least `room` bytes. All batches before are durable by now.
    fn start_segment(&mut self, room: usize) -> Result<(), LogError> {
        let sequence = self.files.next_sequence();
        let header = SegmentHeader {
            sequence,
            salt: self.rng.u64(),
            previous: self.active.sequence,
            previous_end: self.next,
            first_batch: self.next,
            chain: self.chain,
            synced: 0,
            oldest: self.durable_state.oldest(sequence),
            all_quarantined: self.durable_state.all_quarantined,
            groups: self.durable_state.header_groups(),
        };
        self.active = self.files.start(&header, &[], room)?;
        self.oldest_recorded = header.oldest;
        self.has_started = true;
        Ok(())
    }
}
