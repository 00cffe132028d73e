//! What submitters, readers and the writer share: the index, the cache and the queue.
//!
//! All of it lies under one lock, held for moments and never while the disk is waited for.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::id::LogId;

use super::cache::BatchCache;
use super::error::LogError;
use super::index::{Found, Index, Place};
use super::options::LogStats;
use super::record::{ENTRY_OVERHEAD, GroupId, Record};
use super::recover::FIRST_LIVE_SERIAL;
use super::writer::{Writer, Written};
use super::{Done, SUBMISSION_MAX_BYTES};
use crate::disk::DiskFile;

/// See the module.
pub(super) struct Shared {
    pub(super) index: Index,
    pub(super) cache: BatchCache,
    pub(super) files: BTreeMap<u64, Arc<dyn DiskFile>>,
    /// Bounded by those who submit: admission counts bytes on the way in.
    pub(super) queue: VecDeque<Submission>,
    pub(super) queued_bytes: usize,
    pub(super) next_serial: u64,
    pub(super) state: State,
    pub(super) stats: LogStats,
    pub(super) disk_bytes: u64,
    pub(super) unmarked: bool,
    pub(super) writer_sleeps: bool,
}

pub(super) enum State {
    Open,
    /// Refuses; what is queued is still written.
    Stopping,
    Ended(LogError),
}

pub(super) struct Submission {
    pub(super) records: Vec<Record>,
    pub(super) first_serial: u64,
    pub(super) bytes: usize,
    pub(super) done: Done,
}

/// An entry to be handed out.
pub(super) enum Planned {
    Ready(LogId, Bytes),
    Stored(LogId, Place, Arc<dyn DiskFile>),
}

impl Shared {
    /// Nothing accepted yet; `files` are those of the segments that recovery found needed.
    pub(super) fn new(index: Index, cache_bytes: usize, writer: &Writer) -> Self {
        Self {
            index,
            cache: BatchCache::new(cache_bytes),
            files: writer.files.handles(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            next_serial: FIRST_LIVE_SERIAL,
            state: State::Open,
            stats: LogStats::default(),
            disk_bytes: writer.files.bytes(),
            unmarked: false,
            writer_sleeps: false,
        }
    }

    pub(super) fn alive(&self) -> Result<(), LogError> {
        match &self.state {
            State::Ended(reason) => Err(reason.clone()),
            State::Open | State::Stopping => Ok(()),
        }
    }

    /// Checks and accepts a submission: its first serial number and its size.
    pub(super) fn admit(&mut self, records: &[Record]) -> Result<(u64, usize), LogError> {
        self.alive()?;
        if matches!(self.state, State::Stopping) {
            return Err(LogError::Stopped);
        }
        let bytes = records.iter().map(Record::encoded_len).sum();
        if bytes > SUBMISSION_MAX_BYTES {
            return Err(LogError::TooLarge(bytes));
        }
        self.index.check(records)?;
        let first_serial = self.next_serial;
        for record in records {
            self.index.accept(record, self.next_serial);
            self.next_serial += 1;
        }
        self.queued_bytes += bytes;
        Ok((first_serial, bytes))
    }

    /// Takes submissions off the queue until a batch holds `bytes_max`; at least one if there is one.
    pub(super) fn take(&mut self, bytes_max: usize) -> Result<Vec<Submission>, LogError> {
        self.alive()?;
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max
            && let Some(submission) =
                self.queue.pop_front_if(|next| bytes == 0 || bytes + next.bytes <= SUBMISSION_MAX_BYTES)
        {
            bytes += submission.bytes;
            taken.push(submission);
        }
        self.queued_bytes -= bytes;
        Ok(taken)
    }

    /// A batch is durable: its entries have places now.
    pub(super) fn land(&mut self, writer: &Writer, taken: &[Submission], written: Written) {
        let records = taken.iter().flat_map(|submission| &submission.records);
        let serials = taken.iter().flat_map(|submission| (submission.first_serial..).take(submission.records.len()));
        let mut count = 0;
        for ((record, serial), place) in records.clone().zip(serials).zip(written.places(records)) {
            self.index.place(record.group(), serial, place);
            count += 1;
        }
        self.count(&written, count);
        if written.begins_segment {
            self.stats.segments += 1;
            self.stats.syncs += 2;
        }
        // The writer released segments before it wrote this batch, and may have begun one.
        if written.begins_segment || self.files.len() != writer.files.len() {
            self.files = writer.files.handles();
            self.cache.release(self.files.keys().next().copied().unwrap_or(0));
        }
        self.disk_bytes = writer.files.bytes();
        self.unmarked = writer.unmarked;
        self.cache.insert(written.segment, written.offset, written.bytes);
    }

    fn count(&mut self, written: &Written, records: u64) {
        self.stats.batches += 1;
        self.stats.syncs += 1;
        self.stats.marks += u64::from(records == 0);
        self.stats.records += records;
        self.stats.bytes += written.bytes.len() as u64;
    }

    pub(super) fn plan(&self, group: GroupId, range: Range<u64>, bytes_max: u64) -> Result<Vec<Planned>, LogError> {
        let found = self.index.find(group, range, bytes_max)?;
        found.into_iter().map(|entry| self.plan_one(group, entry)).collect()
    }

    fn plan_one(&self, group: GroupId, entry: Found) -> Result<Planned, LogError> {
        let (id, place) = match entry {
            Found::Pending(id, payload) => return Ok(Planned::Ready(id, payload)),
            Found::Placed(id, place) => (id, place),
        };
        if let Some(record) = self.cache.get(place) {
            return Ok(Planned::Ready(id, record.slice(ENTRY_OVERHEAD.min(record.len())..)));
        }
        let file = self.files.get(&place.segment).ok_or(LogError::Damaged { group, index: id.index })?;
        Ok(Planned::Stored(id, place, Arc::clone(file)))
    }

    /// Whether the entry is still where it was.
    pub(super) fn is_at(&self, group: GroupId, id: LogId, place: Place) -> bool {
        let found = self.index.find(group, id.index..id.index + 1, u64::MAX);
        found.is_ok_and(|found| found == [Found::Placed(id, place)])
    }

    pub(super) fn stop(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Stopping;
        }
    }
}
