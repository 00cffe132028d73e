//! State that submitters, readers and the writer share: the index, the cache and the queue.
//!
//! One lock guards all of it. It is held briefly and never during disk IO.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex};

use super::cache::BatchCache;
use super::error::LogError;
use super::index::{Index, IndexEntry, RecordLocation};
use super::options::LogStats;
use super::record::{ENTRY_OVERHEAD, GroupReplica, Record};
use super::recover::FIRST_LIVE_SERIAL;
use super::writer::{Writer, Written};
use super::{Completion, SUBMISSION_MAX_BYTES};
use crate::disk::DiskFile;

/// See the module.
pub(super) struct LogState {
    pub(super) index: Index,
    pub(super) cache: BatchCache,
    pub(super) files: BTreeMap<u64, Arc<dyn DiskFile>>,
    /// Bounded by the submitters: admission control counts bytes.
    pub(super) queue: VecDeque<Submission>,
    pub(super) queued_bytes: usize,
    pub(super) next_serial: u64,
    /// Records with lower serial numbers are durable.
    pub(super) durable_serial: u64,
    pub(super) phase: LogPhase,
    pub(super) stats: LogStats,
    pub(super) disk_bytes: u64,
    pub(super) needs_commit_marker: bool,
    pub(super) is_writer_asleep: bool,
    /// When it was last logged that the disk has no space; `None` while it has.
    no_space_logged: Option<Duration>,
}

/// Between two messages that the disk has no space.
const NO_SPACE_LOGGED_EVERY: Duration = Duration::from_secs(10);

pub(super) enum LogPhase {
    Open,
    /// Rejects new submissions; queued ones are still written.
    Stopping,
    Closed(LogError),
}

pub(super) struct Submission {
    pub(super) records: Vec<Record>,
    pub(super) first_serial: u64,
    pub(super) bytes: usize,
    pub(super) done: Completion,
}

/// How to read one entry.
pub(super) enum PlannedRead {
    Ready(LogId, Bytes),
    OnDisk(LogId, RecordLocation, Arc<dyn DiskFile>),
}

impl LogState {
    /// The state after recovery: nothing submitted yet.
    pub(super) fn new(index: Index, cache_bytes: usize, writer: &Writer) -> Self {
        Self {
            index,
            cache: BatchCache::new(cache_bytes),
            files: writer.files.handles(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            next_serial: FIRST_LIVE_SERIAL,
            durable_serial: FIRST_LIVE_SERIAL,
            phase: LogPhase::Open,
            stats: LogStats::default(),
            disk_bytes: writer.files.bytes(),
            needs_commit_marker: false,
            is_writer_asleep: false,
            no_space_logged: None,
        }
    }

    pub(super) fn check_open(&self) -> Result<(), LogError> {
        match &self.phase {
            LogPhase::Closed(reason) => Err(reason.clone()),
            LogPhase::Open | LogPhase::Stopping => Ok(()),
        }
    }

    /// Checks and accepts a submission. Returns its first serial number and its size.
    pub(super) fn admit(&mut self, records: &[Record]) -> Result<(u64, usize), LogError> {
        self.check_open()?;
        if matches!(self.phase, LogPhase::Stopping) {
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

    /// Whether all accepted records of the group are durable.
    pub(super) fn is_durable(&self, group: GroupReplica) -> bool {
        self.index.last_serial(group).is_none_or(|last| last < self.durable_serial)
    }

    /// Takes submissions off the queue until the batch holds `bytes_max`; at least one if there is one.
    pub(super) fn take_batch(&mut self, bytes_max: usize) -> Result<Vec<Submission>, LogError> {
        self.check_open()?;
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

    /// Queues a batch again that the disk had no space for. Returns whether that should be logged.
    pub(super) fn put_back(&mut self, taken: Vec<Submission>, now: Duration) -> bool {
        self.queued_bytes += taken.iter().map(|submission| submission.bytes).sum::<usize>();
        for submission in taken.into_iter().rev() {
            self.queue.push_front(submission);
        }
        let is_due = self.no_space_logged.is_none_or(|logged| now.saturating_sub(logged) >= NO_SPACE_LOGGED_EVERY);
        if is_due {
            self.no_space_logged = Some(now);
        }
        is_due
    }

    /// Publishes a durable batch: records the location of its entries.
    pub(super) fn publish(&mut self, writer: &Writer, taken: &[Submission], written: Written) {
        let records = taken.iter().flat_map(|submission| &submission.records);
        let serials = taken.iter().flat_map(|submission| (submission.first_serial..).take(submission.records.len()));
        if self.no_space_logged.take().is_some() {
            tracing::info!("the disk has space for the commit log again");
        }
        let mut count = 0;
        for ((record, serial), location) in records.clone().zip(serials).zip(written.locations(records)) {
            self.index.mark_durable(record.group(), serial, location);
            count += 1;
        }
        if let Some(last) = taken.last() {
            self.durable_serial = last.first_serial + last.records.len() as u64;
        }
        self.count(&written, count);
        if written.starts_segment {
            self.stats.segments += 1;
            self.stats.syncs += 2;
        }
        // The writer released segments before it wrote this batch, and may have started one.
        if written.starts_segment || self.files.len() != writer.files.len() {
            self.files = writer.files.handles();
            self.cache.release(self.files.keys().next().copied().unwrap_or(0));
        }
        self.disk_bytes = writer.files.bytes();
        self.needs_commit_marker = writer.needs_commit_marker;
        self.cache.insert(written.segment, written.offset, written.bytes);
    }

    fn count(&mut self, written: &Written, records: u64) {
        self.stats.batches += 1;
        self.stats.syncs += 1;
        self.stats.commit_markers += u64::from(records == 0);
        self.stats.records += records;
        self.stats.bytes += written.bytes.len() as u64;
    }

    pub(super) fn plan_reads(
        &self,
        group: GroupReplica,
        range: Range<LogIndex>,
        bytes_max: u64,
    ) -> Result<Vec<PlannedRead>, LogError> {
        let found = self.index.find(group, range, bytes_max)?;
        found.into_iter().map(|entry| self.plan_read(group, entry)).collect()
    }

    fn plan_read(&self, group: GroupReplica, entry: IndexEntry) -> Result<PlannedRead, LogError> {
        let (id, location) = match entry {
            IndexEntry::Pending(id, payload) => return Ok(PlannedRead::Ready(id, payload)),
            IndexEntry::Durable(id, location) => (id, location),
        };
        if let Some(record) = self.cache.get(location) {
            return Ok(PlannedRead::Ready(id, record.slice(ENTRY_OVERHEAD.min(record.len())..)));
        }
        let file = self.files.get(&location.segment).ok_or(LogError::Damaged { group, index: id.index })?;
        Ok(PlannedRead::OnDisk(id, location, Arc::clone(file)))
    }

    /// Whether the entry is still at `location`.
    pub(super) fn is_at(&self, group: GroupReplica, id: LogId, location: RecordLocation) -> bool {
        let found = self.index.find(group, id.index..id.index.next(), u64::MAX);
        found.is_ok_and(|found| found == [IndexEntry::Durable(id, location)])
    }

    pub(super) fn stop(&mut self) {
        if matches!(self.phase, LogPhase::Open) {
            self.phase = LogPhase::Stopping;
        }
    }
}
