//! Writes batches, one at a time, and turns to a new segment when one is full.
//!
//! The writer works for [`super::CommitLog`], which gathers submissions while the disk is busy. It owns the ledger,
//! because only what is written may decide what a header carries and which segment can go.

use ebla_runtime::Rng;

use bytes::Bytes;

use super::batch::{BatchPlan, Position};
use super::error::LogError;
use super::files::{Active, Files};
use super::index::Place;
use super::ledger::Ledger;
use super::record::Record;
use super::segment::SegmentHeader;

/// See the module.
pub(crate) struct Writer {
    pub(crate) files: Files,
    pub(crate) ledger: Ledger,
    pub(crate) active: Active,
    pub(crate) rng: Rng,
    /// Number of the next batch.
    pub(crate) next: u64,
    /// Stored CRC of the last batch.
    pub(crate) chain: u32,
    /// The first needed segment, as the last durable batch or header says.
    pub(crate) told_oldest: u64,
    /// Whether a batch with records has no mark yet that it is durable.
    pub(crate) unmarked: bool,
}

/// A batch that is durable.
pub(crate) struct Written {
    pub(crate) segment: u64,
    pub(crate) offset: u32,
    pub(crate) bytes: Bytes,
    /// Where each record starts, from the start of the batch.
    starts: Vec<usize>,
    /// Whether it is the first of its segment.
    pub(crate) begins_segment: bool,
}

impl Written {
    /// The places of the records, which must be those that were written.
    pub(crate) fn places<'a>(&'a self, records: impl Iterator<Item = &'a Record>) -> impl Iterator<Item = Place> {
        self.starts.iter().zip(records).map(|(start, record)| Place {
            segment: self.segment,
            offset: self.offset.saturating_add(small(*start)),
            len: small(record.encoded_len()),
        })
    }
}

/// A length or offset within a segment. Both stay below 2^32: see [`super::SUBMISSION_MAX_BYTES`].
pub(crate) fn small(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Writer {
    /// Writes one batch of `records` (none: only the mark for the batch before); durable on return.
    ///
    /// # Errors
    /// When the disk or the witness fails. The writer must not be used again.
    pub(crate) fn write<'a>(&mut self, records: impl Iterator<Item = &'a Record> + Clone) -> Result<Written, LogError> {
        self.files.release(self.told_oldest)?;
        let mut plan = BatchPlan::new();
        records.clone().for_each(|record| plan.add(record));
        let begins_segment = !self.active.has_room(plan.len());
        if begins_segment {
            self.turn_over(plan.len())?;
        }
        let position = self.position();
        let encoded = plan.encode(position, records.clone());
        let offset = small(self.active.end);
        self.active.append(&encoded.bytes)?;
        self.files.note_end(&self.active);
        self.chain = encoded.crc;
        self.next += 1;
        self.told_oldest = position.oldest;
        self.unmarked = !encoded.starts.is_empty();
        let segment = self.active.sequence;
        records.for_each(|record| self.ledger.apply(record, segment));
        Ok(Written { segment, offset, bytes: encoded.bytes, starts: encoded.starts, begins_segment })
    }

    fn position(&mut self) -> Position {
        Position {
            segment: self.active.sequence,
            salt: self.active.salt,
            number: self.next,
            previous: self.chain,
            // One batch is in flight at a time, so all before this one are durable.
            synced: self.next - 1,
            oldest: self.ledger.oldest(self.active.sequence),
        }
    }

    /// Begins a new segment with room for at least `room` bytes. All batches before are durable by now.
    fn turn_over(&mut self, room: usize) -> Result<(), LogError> {
        let sequence = self.files.next_sequence();
        let header = SegmentHeader {
            sequence,
            salt: self.rng.u64(),
            previous: self.active.sequence,
            previous_end: self.next,
            first_batch: self.next,
            chain: self.chain,
            synced: 0,
            oldest: self.ledger.oldest(sequence),
            all_quarantined: self.ledger.all_quarantined,
            groups: self.ledger.carried(),
        };
        self.active = self.files.begin(&header, &[], room)?;
        self.told_oldest = header.oldest;
        Ok(())
    }
}
