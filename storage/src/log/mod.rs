//! The commit log: one write-ahead log per server, shared by the Raft logs of all its tablets, with group commit (paper,
//! section 6, "Commit-log implementation": one log per tablet would mean many files and small commit groups).
//!
//! ```text
//!   submit ─► index (readable now) ─► queue ─► writer: one batch, one write, one sync ─► completion
//!                                                 │
//!            segment 7: header header │ batch 41 │ batch 42 │ marker │ batch 44 │ …    64 MiB, then recycled
//! ```
//!
//! - Group commit: all submissions that are queued while the disk is busy go into the next batch, with one sync.
//! - Each batch names the last batch that was durable before it. Recovery uses this to distinguish a torn tail, which it
//!   truncates, from damage (corruption). Groups with damage are *quarantined*: they never vote or acknowledge again under
//!   their id.
//! - After [`LogOptions::commit_marker_delay`] without work the writer appends an empty batch: the commit marker of the last
//!   batch. One case remains: if the last batch is corrupted before its commit marker is written, and the server then
//!   crashes, recovery treats the damage as a torn tail.
//! - Log compaction: a [`Record::Purge`] discards the entries that a replica has applied and flushed. A segment without
//!   live entries is recycled.
//! - A failed write or sync is final: all waiting submissions fail, the log accepts nothing more, and the process should
//!   exit.
//!
//! Files of this folder, from bytes to behaviour: `record`, `batch`, `segment` (formats, see `docs/reference/formats.md`),
//! `scan` (segment validation), `files` (segment files and recycling), `durable_state` (each group as written), `index` and
//! `cache` (each group as readable), `state` (index, cache and queue under one lock), `writer`, `sync_times`, `recover`,
//! `manifest`, `options`.
//!
//! This module knows no Raft (terms are opaque numbers), no async code and no retries.

mod batch;
mod cache;
mod durable_state;
mod error;
mod files;
mod index;
mod manifest;
mod options;
mod record;
mod recover;
mod scan;
mod segment;
mod state;
mod sync_times;
mod writer;

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod power_cut_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex as StdMutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex};
use ebla_model::sync_delay::Syncs;
use ebla_runtime::metrics::HistogramCounts;
use ebla_runtime::{Failpoint, Thread, spawn_thread};
use parking_lot::Mutex;

pub use self::error::LogError;
pub use self::manifest::{MemoryManifest, SegmentManifest};
pub use self::options::{LogOptions, LogStats, OnFailure, Recovered, RecoveredGroup};
pub use self::record::{GroupReplica, Record};
use self::state::{LogPhase, LogState, PlannedRead, Submission};
use self::sync_times::SyncTimes;
use self::writer::Writer;
use crate::disk::Disk;

/// Maximum size of one submission, in bytes of encoded records. Keeps offsets and lengths within 32 bits.
pub const SUBMISSION_MAX_BYTES: usize = 512 << 20;

/// The next segment is prepared when this part of the current one is used: an idle log takes no space.
const PREPARE_DIVISOR: usize = 16;

/// Called once with the result of a submission: on the writer's thread, or on the caller's thread when the submission is
/// rejected. It must be short and must not call [`CommitLog::step`]. It may submit.
pub type Completion = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// Failpoint: reports success before the records are durable. Returns a completion that does nothing.
fn complete_early(done: Completion) -> Completion {
    done(Ok(()));
    Box::new(|_too_late| ())
}

/// The pause before a batch that the disk had no space for is written again.
pub const NO_SPACE_PAUSE: Duration = Duration::from_millis(500);

/// Result of [`CommitLog::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// A batch is durable and its submissions are complete.
    Wrote,
    /// Nothing was queued.
    Idle,
    /// The disk has no space for the batch. Its submissions are queued as before: repeat the call after [`NO_SPACE_PAUSE`].
    NoSpace,
}

/// The log; clones are the same log.
#[derive(Clone)]
pub struct CommitLog {
    inner: Arc<Inner>,
}

struct Inner {
    options: LogOptions,
    /// Guards the index, the cache and the queue. Never held during disk IO.
    /// std's lock and condition variable: with those of `parking_lot` the writer wakes sooner, batches are smaller, and a row
    /// costs 1.57 fsyncs instead of 1.37.
    state: StdMutex<LogState>,
    /// Wakes the writer's thread.
    work: Condvar,
    /// Held while a batch is written. `None` after the log has stopped: the folder's lock is released, and another log may
    /// open the folder.
    writer: Mutex<Option<Writer>>,
    sync_times: SyncTimes,
    thread: Mutex<Option<Thread>>,
    /// Called when a submission is queued, when the log runs without its own thread.
    wake: OnceLock<WakeCallback>,
}

/// See [`CommitLog::set_wake_callback`].
type WakeCallback = Box<dyn Fn() + Send + Sync>;

/// Why the writer's thread woke up.
enum WakeReason {
    Work,
    Idle,
    Stop,
}

impl Inner {
    fn lock_state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommitLog {
    /// Opens the log in the folder of `disk`, recovers its content and starts its next segment. Blocking: reads every segment
    /// once.
    ///
    /// # Errors
    /// When the disk or the manifest fails, or a later release wrote the log. Damage is not an error: it is reported in
    /// [`Recovered`].
    pub fn open(
        disk: Arc<dyn Disk>,
        manifest: Arc<dyn SegmentManifest>,
        options: LogOptions,
    ) -> Result<(Self, Recovered), LogError> {
        let rebuilt = recover::recover(disk, manifest, &options)?;
        let state = LogState::new(rebuilt.index, options.cache_bytes, &rebuilt.writer);
        let inner = Inner {
            options,
            state: StdMutex::new(state),
            work: Condvar::new(),
            writer: Mutex::new(Some(rebuilt.writer)),
            sync_times: SyncTimes::default(),
            thread: Mutex::new(None),
            wake: OnceLock::new(),
        };
        Ok((Self { inner: Arc::new(inner) }, rebuilt.recovered))
    }

    /// Adds a group; no effect when it exists. The addition itself is not durable, its first record is. Never call it for a
    /// replica that existed on this server before and is missing in [`Recovered::groups`]: that replica has lost its vote.
    ///
    /// # Errors
    /// When the group is quarantined.
    pub fn add_group(&self, group: GroupReplica) -> Result<(), LogError> {
        self.inner.lock_state().index.add(group)
    }

    /// Submits `records`, all or none. They are readable on return and durable when `done` is called with `Ok`. Submissions
    /// become durable in order: when one is, so are all before it. Never waits for the disk.
    ///
    /// `done` gets an error when the records do not follow the group's log (nothing was accepted) or when the log is closed.
    pub fn submit(&self, records: Vec<Record>, done: Completion) {
        let mut state = self.inner.lock_state();
        match state.admit(&records) {
            Ok((first_serial, bytes)) => {
                let done = if Failpoint::AckBeforeSync.is_enabled() { complete_early(done) } else { done };
                state.queue.push_back(Submission { records, first_serial, bytes, done });
                if std::mem::take(&mut state.is_writer_asleep) {
                    self.inner.work.notify_one();
                }
                drop(state);
                if let Some(wake) = self.inner.wake.get() {
                    wake();
                }
            }
            Err(reason) => {
                drop(state);
                done(Err(reason));
            }
        }
    }

    /// Calls `done` when all records of the group that were submitted before are durable, at once if they are. For a replica that starts
    /// again in a running server: it reads what its former run has submitted, and must not answer for it before.
    ///
    /// `done` gets an error when the log is closed.
    pub fn when_durable(&self, group: GroupReplica, done: Completion) {
        let state = self.inner.lock_state();
        let known = state.check_open().map(|()| state.is_durable(group));
        drop(state);
        match known {
            // Submissions become durable in order.
            Ok(false) => self.submit(Vec::new(), done),
            known => done(known.map(|_durable| ())),
        }
    }

    /// As [`Self::submit`], and returns when the records are durable. Blocking; must not be called from a completion. If the
    /// log has no writer thread, this call writes it.
    ///
    /// # Errors
    /// When the records do not follow the group's log, or the log is closed.
    pub fn submit_and_wait(&self, records: Vec<Record>) -> Result<(), LogError> {
        let (sender, durable) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |outcome| {
            let _unwanted = sender.send(outcome);
        });
        self.submit(records, done);
        if self.inner.thread.lock().is_none() {
            loop {
                match self.step()? {
                    LogStep::Wrote => {}
                    LogStep::Idle => break,
                    LogStep::NoSpace => return Err(LogError::write("write batch")(io::ErrorKind::StorageFull.into())),
                }
            }
        }
        durable.recv().unwrap_or(Err(LogError::Stopped))
    }

    /// The existing entries of `range` (indexes), from the first on, until their payloads exceed `bytes_max`; at least one if
    /// there is one. Entries that are not in memory are read from their segment: blocking.
    ///
    /// # Errors
    /// When the group is unknown or quarantined, when the disk cannot be read, or when an entry is damaged.
    pub fn entries(
        &self,
        group: GroupReplica,
        range: Range<LogIndex>,
        bytes_max: u64,
    ) -> Result<Vec<(LogId, Bytes)>, LogError> {
        let planned = self.inner.lock_state().plan_reads(group, range, bytes_max)?;
        let fetched = planned.into_iter().map(|entry| self.fetch(group, entry));
        fetched.filter_map(Result::transpose).collect()
    }

    /// As [`Self::entries`] if all of them are in memory; `None` when one would have to be read from its segment. Does not block.
    ///
    /// # Errors
    /// As [`Self::entries`], but for the disk.
    pub fn entries_in_memory(
        &self,
        group: GroupReplica,
        range: Range<LogIndex>,
        bytes_max: u64,
    ) -> Result<Option<Vec<(LogId, Bytes)>>, LogError> {
        let planned = self.inner.lock_state().plan_reads(group, range, bytes_max)?;
        let ready = planned.into_iter().map(|entry| match entry {
            PlannedRead::Ready(id, payload) => Some((id, payload)),
            PlannedRead::OnDisk(..) => None,
        });
        Ok(ready.collect())
    }

    /// The last entry's id, or the last purged one when there is no entry.
    #[must_use]
    pub fn last(&self, group: GroupReplica) -> Option<LogId> {
        self.inner.lock_state().index.last(group)
    }

    /// The last purged id.
    #[must_use]
    pub fn purged(&self, group: GroupReplica) -> Option<LogId> {
        self.inner.lock_state().index.purged(group)
    }

    /// The last vote that was submitted.
    #[must_use]
    pub fn vote(&self, group: GroupReplica) -> Option<Bytes> {
        self.inner.lock_state().index.vote(group)
    }

    /// The id up to which the group's log is durable. Apply must not run ahead of it.
    #[must_use]
    pub fn synced(&self, group: GroupReplica) -> Option<LogId> {
        self.inner.lock_state().index.synced(group)
    }

    /// Bytes of all segments that are needed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.lock_state().disk_bytes
    }

    /// Bytes of the submissions that wait for the writer. Admission control should use this number.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.inner.lock_state().queued_bytes
    }

    /// The groups that pin the oldest segment, with the bytes of all their entries, the largest first. Empty when the oldest
    /// segment is the active one.
    #[must_use]
    pub fn oldest_pins(&self) -> Vec<(GroupReplica, u64)> {
        let state = self.inner.lock_state();
        match state.files.keys().next() {
            Some(oldest) if state.files.len() > 1 => state.index.pins(*oldest),
            _ => Vec::new(),
        }
    }

    /// Counters since the log was opened.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.inner.lock_state().stats
    }

    /// The last syncs, and the one in progress.
    #[must_use]
    pub fn syncs(&self) -> Syncs {
        self.inner.sync_times.syncs()
    }

    /// How long the syncs took since the log was opened.
    #[must_use]
    pub fn sync_latency(&self) -> HistogramCounts {
        self.inner.sync_times.latency()
    }

    /// Begins the sync of the next batch or commit marker: the time from now on is a part of it ([`Self::syncs`]). For callers that run the
    /// log without its own thread, on a disk whose latency passes before [`Self::step`].
    pub fn begin_sync(&self) {
        self.inner.sync_times.begin(self.inner.options.clock.monotonic());
    }

    /// Writes one batch of the queued submissions and completes them. For callers that run the log without its own thread.
    ///
    /// # Errors
    /// When the log is closed, by a disk failure or by [`Self::stop`].
    pub fn step(&self) -> Result<LogStep, LogError> {
        let taken = {
            let mut state = self.inner.lock_state();
            state.take_batch(self.inner.options.batch_bytes)?
        };
        if taken.is_empty() {
            self.inner.sync_times.cancel();
            return Ok(LogStep::Idle);
        }
        self.write(taken)
    }

    /// Writes the commit marker of the last batch, unless it has one. Called after [`LogOptions::commit_marker_delay`] without
    /// work.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn write_commit_marker(&self) -> Result<LogStep, LogError> {
        let is_due = {
            let state = self.inner.lock_state();
            state.check_open()?;
            state.needs_commit_marker
        };
        if is_due {
            let step = self.write(Vec::new())?;
            if step == LogStep::NoSpace {
                // No submission waits for a commit marker.
                self.inner.sync_times.cancel();
            }
            return Ok(step);
        }
        self.inner.sync_times.cancel();
        Ok(LogStep::Idle)
    }

    /// Prepares a file for the next segment if the log is in use and has none, and the disk has room for many: its blocks are allocated, so that a sync does not
    /// have to update the file system. The next batch then starts this segment. Returns whether a file was prepared. Blocking:
    /// writes [`LogOptions::segment_bytes`]; batches are written meanwhile.
    ///
    /// # Errors
    /// When the disk refuses. The log goes on without the file, and prepares none before the next start.
    pub fn prepare_segment(&self) -> Result<bool, LogError> {
        let used_bytes_min = self.inner.options.segment_bytes / PREPARE_DIVISOR;
        let order = self.inner.writer.lock().as_mut().and_then(|writer| writer.begin_spare(used_bytes_min));
        let Some(order) = order else { return Ok(false) };
        let written = order.write();
        if let Some(writer) = self.inner.writer.lock().as_mut() {
            writer.files.finish_spare(order, &written);
        }
        written.map(|()| true)
    }

    /// Registers `wake`, which the log calls whenever a submission is queued. For callers that run the log without its own
    /// thread: after a wake-up they call [`Self::step`] until it is idle, and [`Self::write_commit_marker`] after
    /// [`LogOptions::commit_marker_delay`]. `wake` must not block. Only the first registration has an effect.
    pub fn set_wake_callback(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _first_stays = self.inner.wake.set(Box::new(wake));
    }

    /// Starts the writer's thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start_writer(&self) -> std::io::Result<()> {
        let log = self.clone();
        let thread = spawn_thread("commit-log", move || log.run())?;
        *self.inner.thread.lock() = Some(thread);
        Ok(())
    }

    /// Graceful stop: rejects new submissions, writes the queued ones and the last commit marker, stops the thread and
    /// releases the folder. Entries can still be read. Blocking; must not be called from a completion.
    pub fn stop(&self) {
        self.inner.lock_state().stop();
        self.inner.work.notify_one();
        let thread = self.inner.thread.lock().take();
        match thread {
            Some(thread) => thread.join(),
            None => self.drain(),
        }
        self.close(LogError::Stopped, Vec::new());
        *self.inner.writer.lock() = None;
    }

    /// Stops immediately, like a crash: queued submissions are not written and fail with [`LogError::Stopped`]. Otherwise as
    /// [`Self::stop`].
    pub fn abort(&self) {
        self.close(LogError::Stopped, Vec::new());
        self.inner.work.notify_one();
        let thread = self.inner.thread.lock().take();
        if let Some(thread) = thread {
            thread.join();
        }
        *self.inner.writer.lock() = None;
    }

    fn write(&self, taken: Vec<Submission>) -> Result<LogStep, LogError> {
        let mut guard = self.inner.writer.lock();
        let Some(writer) = guard.as_mut() else {
            drop(guard);
            self.close(LogError::Stopped, taken);
            return Err(LogError::Stopped);
        };
        let records = taken.iter().flat_map(|submission| &submission.records);
        self.inner.sync_times.begin(self.inner.options.clock.monotonic());
        let written = writer.write(records);
        if let Err(error @ LogError::NoSpace { .. }) = written {
            // The sync goes on: others see that this disk hangs.
            if self.inner.lock_state().put_back(taken, self.inner.options.clock.monotonic()) {
                tracing::warn!(%error, "the disk has no space for the commit log; its replicas wait until there is");
            }
            return Ok(LogStep::NoSpace);
        }
        self.inner.sync_times.end(self.inner.options.clock.monotonic());
        match written {
            Ok(written) => {
                self.inner.lock_state().publish(writer, &taken, written);
                drop(guard);
                taken.into_iter().for_each(|submission| (submission.done)(Ok(())));
                Ok(LogStep::Wrote)
            }
            Err(failure) => {
                drop(guard);
                self.close(failure.clone(), taken);
                Err(failure)
            }
        }
    }

    /// Closes the log: `taken` and all queued submissions fail with `reason`.
    fn close(&self, reason: LogError, taken: Vec<Submission>) {
        let queued = {
            let mut state = self.inner.lock_state();
            if !matches!(state.phase, LogPhase::Closed(_)) {
                state.phase = LogPhase::Closed(reason.clone());
            }
            state.queued_bytes = 0;
            std::mem::take(&mut state.queue)
        };
        taken.into_iter().chain(queued).for_each(|submission| (submission.done)(Err(reason.clone())));
    }

    fn run(&self) {
        let failure = loop {
            match self.run_once() {
                Ok(WakeReason::Stop) => return,
                Ok(WakeReason::Work | WakeReason::Idle) => {}
                Err(failure) => break failure,
            }
        };
        if matches!(failure, LogError::Disk { .. }) {
            tracing::error!(error = %failure, "commit log failed");
            if self.inner.options.on_failure == OnFailure::AbortProcess {
                std::process::abort();
            }
        }
    }

    fn run_once(&self) -> Result<WakeReason, LogError> {
        loop {
            match self.step()? {
                LogStep::Wrote => {}
                LogStep::Idle => break,
                LogStep::NoSpace => {
                    if let WakeReason::Stop = self.wait_for_space() {
                        return Ok(WakeReason::Stop);
                    }
                }
            }
        }
        let reason = self.sleep();
        if !matches!(reason, WakeReason::Work) {
            self.write_commit_marker()?;
        }
        Ok(reason)
    }

    /// Waits before a batch that the disk had no space for is written again, or for the stop.
    fn wait_for_space(&self) -> WakeReason {
        let state = self.inner.lock_state();
        let waited = self.inner.work.wait_timeout(state, NO_SPACE_PAUSE);
        let (state, _wait) = waited.unwrap_or_else(PoisonError::into_inner);
        if matches!(state.phase, LogPhase::Open) { WakeReason::Work } else { WakeReason::Stop }
    }

    /// Waits for work, for the delay of a commit marker, or for the stop.
    fn sleep(&self) -> WakeReason {
        let mut state = self.inner.lock_state();
        loop {
            if !state.queue.is_empty() {
                return WakeReason::Work;
            }
            if !matches!(state.phase, LogPhase::Open) {
                return WakeReason::Stop;
            }
            state.is_writer_asleep = true;
            if state.needs_commit_marker {
                let waited = self.inner.work.wait_timeout(state, self.inner.options.commit_marker_delay);
                let (guard, wait) = waited.unwrap_or_else(PoisonError::into_inner);
                state = guard;
                if wait.timed_out() && state.queue.is_empty() {
                    return WakeReason::Idle;
                }
            } else {
                state = self.inner.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The thread's last work, for a log without a thread. Failures are reported to the submitters.
    fn drain(&self) {
        while self.step().is_ok_and(|step| step == LogStep::Wrote) {}
        let _reported = self.write_commit_marker();
    }

    /// The entry's payload; `None` when it was purged while it was being read.
    fn fetch(&self, group: GroupReplica, entry: PlannedRead) -> Result<Option<(LogId, Bytes)>, LogError> {
        let (id, location, file) = match entry {
            PlannedRead::Ready(id, payload) => return Ok(Some((id, payload))),
            PlannedRead::OnDisk(id, location, file) => (id, location, file),
        };
        let mut bytes = vec![0; usize::try_from(location.len).unwrap_or(usize::MAX)];
        file.read_at(u64::from(location.offset), &mut bytes).map_err(LogError::disk("read entry"))?;
        match Record::decode(&mut Bytes::from(bytes)) {
            Some(Record::Entry { group: of, id: read, payload }) if (of, read) == (group, id) => {
                Ok(Some((id, payload)))
            }
            _ if self.inner.lock_state().is_at(group, id, location) => {
                Err(LogError::Damaged { group, index: id.index })
            }
            _ => Ok(None),
        }
    }
}

impl std::fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
