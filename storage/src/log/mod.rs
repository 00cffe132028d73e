//! The commit log: one a server, shared by the Raft logs of all its tablets (paper, section 6, "Commit-log
//! implementation": one log per tablet would mean many files and small groups of commits).
//!
//! ```text
//!   submit ─► index (readable now) ─► queue ─► writer: one batch, one write, one sync ─► done
//!                                                 │
//!            segment 7: header header │ batch 41 │ batch 42 │ mark │ batch 44 │ …    64 MiB, then recycled
//! ```
//!
//! - Whatever is queued while the disk is busy goes into the next batch: one sync for all groups that wrote.
//! - A batch names the one known to be durable before it. So recovery can tell a torn tail, which is cut, from damage,
//!   whose groups are *quarantined*: they never vote or acknowledge again under their id.
//! - After [`LogOptions::mark_after`] without work the writer adds an empty batch, the mark for the last one. What remains
//!   exposed: rot of the last batch before its mark, followed by a crash, is taken for a torn tail.
//! - A failed write or sync is final: everything waiting is told, nothing more is accepted, and the process should end.
//!
//! Files of this folder, from bytes to behaviour: `record`, `batch`, `segment` (formats, see `docs/reference/formats.md`), `scan`
//! (what the bytes of a segment mean), `files` (recycling), `ledger` (what is written), `index` and `cache` (what can be
//! read), `shared` (index, cache and queue under one lock), `writer`, `recover`, `witness`, `options`.
//!
//! Absent on purpose: Raft (terms are opaque numbers here), async, retries.

mod batch;
mod cache;
mod error;
mod files;
mod index;
mod ledger;
mod options;
mod record;
mod recover;
mod scan;
mod segment;
mod shared;
mod witness;
mod writer;

#[cfg(test)]
mod damage;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use ebla_model::id::LogId;
use ebla_runtime::{Bug, Thread, planted, spawn_thread};

pub use self::error::LogError;
pub use self::options::{LogOptions, LogStats, OnFailure, Recovered, RecoveredGroup};
pub use self::record::{GroupId, Record};
use self::shared::{Planned, Shared, State, Submission};
pub use self::witness::{MemoryWitness, SegmentWitness};
use self::writer::Writer;
use crate::disk::Disk;

/// The most that one submission may hold, in bytes of encoded records. Keeps places and lengths within 32 bits.
pub const SUBMISSION_MAX_BYTES: usize = 512 << 20;

/// Called once with the fate of a submission, on the thread that writes (or that of the caller when it is refused).
/// It must be short and must not call [`CommitLog::step`]; it may submit.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// Tells at once what is not true yet; in place of `done`.
fn told_now(done: Done) -> Done {
    done(Ok(()));
    Box::new(|_too_late| ())
}

/// What [`CommitLog::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A batch is durable and its submissions are done.
    Wrote,
    /// There was nothing to do.
    Idle,
}

/// The log; clones are the same log.
#[derive(Clone)]
pub struct CommitLog {
    inner: Arc<Inner>,
}

struct Inner {
    options: LogOptions,
    /// Guards what can be read and what is queued. Never held while the disk is waited for.
    shared: Mutex<Shared>,
    /// Signalled when the writer's thread sleeps and should not.
    work: Condvar,
    /// Held while a batch is written. Gone when the log has stopped, and with it the folder's lock: another may open it.
    writer: Mutex<Option<Writer>>,
    thread: Mutex<Option<Thread>>,
    /// Called when something is queued, for who drives the log without a thread.
    wake: OnceLock<Wake>,
}

/// See [`CommitLog::wake_by`].
type Wake = Box<dyn Fn() + Send + Sync>;

/// Why the writer's thread woke.
enum Woken {
    Work,
    Idle,
    Stop,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommitLog {
    /// Opens the log in the folder of `disk`, recovers what it holds and begins its next segment. Blocking: reads every
    /// segment once.
    ///
    /// # Errors
    /// When the disk or the witness fails. Damage is not an error, it is told in [`Recovered`].
    pub fn open(
        disk: Arc<dyn Disk>,
        witness: Arc<dyn SegmentWitness>,
        options: LogOptions,
    ) -> Result<(Self, Recovered), LogError> {
        let rebuilt = recover::recover(disk, witness, &options)?;
        let shared = Shared::new(rebuilt.index, options.cache_bytes, &rebuilt.writer);
        let inner = Inner {
            options,
            shared: Mutex::new(shared),
            work: Condvar::new(),
            writer: Mutex::new(Some(rebuilt.writer)),
            thread: Mutex::new(None),
            wake: OnceLock::new(),
        };
        Ok((Self { inner: Arc::new(inner) }, rebuilt.recovered))
    }

    /// Makes room for a new group; nothing happens when it is there. Not durable: its first record is. Never for a
    /// replica that lived here before and is missing in [`Recovered::groups`]: that one has lost its vote.
    ///
    /// # Errors
    /// When the group is quarantined.
    pub fn add_group(&self, group: GroupId) -> Result<(), LogError> {
        hold(&self.inner.shared).index.add(group)
    }

    /// Takes `records` in, all or none. On return they can be read; they are durable when `done` is called with `Ok`.
    /// Submissions become durable in order: when one is, so are all before it. Never waits for the disk.
    ///
    /// `done` gets an error when the records do not follow what the group has (nothing was accepted), or when the log
    /// has ended.
    pub fn submit(&self, records: Vec<Record>, done: Done) {
        let mut shared = hold(&self.inner.shared);
        match shared.admit(&records) {
            Ok((first_serial, bytes)) => {
                let done = if planted(Bug::AckBeforeSync) { told_now(done) } else { done };
                shared.queue.push_back(Submission { records, first_serial, bytes, done });
                if std::mem::take(&mut shared.writer_sleeps) {
                    self.inner.work.notify_one();
                }
                drop(shared);
                if let Some(wake) = self.inner.wake.get() {
                    wake();
                }
            }
            Err(reason) => {
                drop(shared);
                done(Err(reason));
            }
        }
    }

    /// As [`Self::submit`], and returns when the records are durable. Blocking; must not be called from a completion. Where
    /// no thread writes the log, it is written here.
    ///
    /// # Errors
    /// When the records do not follow what the group has, or the log has ended.
    pub fn submit_and_wait(&self, records: Vec<Record>) -> Result<(), LogError> {
        let (sender, durable) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |outcome| {
            let _unwanted = sender.send(outcome);
        });
        self.submit(records, done);
        if hold(&self.inner.thread).is_none() {
            while self.step()? == Step::Wrote {}
        }
        durable.recv().unwrap_or(Err(LogError::Stopped))
    }

    /// The entries of `range` (indexes) that exist, from the first on, until their payloads exceed `bytes_max`; at least
    /// one if there is one. What is not in memory is read from its segment: blocking.
    ///
    /// # Errors
    /// When the group is unknown or quarantined, when the disk cannot be read, or when what it gives is damaged.
    pub fn entries(&self, group: GroupId, range: Range<u64>, bytes_max: u64) -> Result<Vec<(LogId, Bytes)>, LogError> {
        let planned = hold(&self.inner.shared).plan(group, range, bytes_max)?;
        let fetched = planned.into_iter().map(|entry| self.fetch(group, entry));
        fetched.filter_map(Result::transpose).collect()
    }

    /// The last entry's id, or the last purged one when there is no entry.
    #[must_use]
    pub fn last(&self, group: GroupId) -> Option<LogId> {
        hold(&self.inner.shared).index.last(group)
    }

    /// The last purged id.
    #[must_use]
    pub fn purged(&self, group: GroupId) -> Option<LogId> {
        hold(&self.inner.shared).index.purged(group)
    }

    /// The last vote that was submitted.
    #[must_use]
    pub fn vote(&self, group: GroupId) -> Option<Bytes> {
        hold(&self.inner.shared).index.vote(group)
    }

    /// The id up to which the group's log is durable. Apply must not run ahead of it.
    #[must_use]
    pub fn synced(&self, group: GroupId) -> Option<LogId> {
        hold(&self.inner.shared).index.synced(group)
    }

    /// Bytes of all segments that are needed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        hold(&self.inner.shared).disk_bytes
    }

    /// Bytes of the submissions that wait for the writer: what admission should look at.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        hold(&self.inner.shared).queued_bytes
    }

    /// The groups that keep the oldest segment from being released, with the bytes of all their entries, the largest
    /// first. Empty when the oldest segment is the one being written.
    #[must_use]
    pub fn oldest_pins(&self) -> Vec<(GroupId, u64)> {
        let shared = hold(&self.inner.shared);
        match shared.files.keys().next() {
            Some(oldest) if shared.files.len() > 1 => shared.index.pins(*oldest),
            _ => Vec::new(),
        }
    }

    /// Counters since the log was opened.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        hold(&self.inner.shared).stats
    }

    /// Writes one batch of what is queued and completes it. For who drives the log without a thread.
    ///
    /// # Errors
    /// When the log has ended, by the disk or by [`Self::stop`].
    pub fn step(&self) -> Result<Step, LogError> {
        let taken = {
            let mut shared = hold(&self.inner.shared);
            shared.take(self.inner.options.batch_bytes)?
        };
        if taken.is_empty() { Ok(Step::Idle) } else { self.write(taken) }
    }

    /// Writes the mark for the last batch, unless it has one. Called after [`LogOptions::mark_after`] without work.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn mark(&self) -> Result<Step, LogError> {
        let is_due = {
            let shared = hold(&self.inner.shared);
            shared.alive()?;
            shared.unmarked
        };
        if is_due { self.write(Vec::new()) } else { Ok(Step::Idle) }
    }

    /// Has `wake` called whenever something is queued, for who drives the log without a thread: it then calls
    /// [`Self::step`] until that is idle, and [`Self::mark`] after [`LogOptions::mark_after`]. `wake` must not block. Only
    /// the first call counts.
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _first_stays = self.inner.wake.set(Box::new(wake));
    }

    /// Starts the thread that drives the log.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start_writer(&self) -> std::io::Result<()> {
        let log = self.clone();
        let thread = spawn_thread("commit-log", move || log.run())?;
        *hold(&self.inner.thread) = Some(thread);
        Ok(())
    }

    /// Refuses what is new, writes what is queued and the last mark, ends the thread and lets the folder go. Entries can
    /// still be read. Blocking; must not be called from a completion.
    pub fn stop(&self) {
        hold(&self.inner.shared).stop();
        self.inner.work.notify_one();
        let thread = hold(&self.inner.thread).take();
        match thread {
            Some(thread) => thread.join(),
            None => self.drain(),
        }
        self.end(LogError::Stopped, Vec::new());
        *hold(&self.inner.writer) = None;
    }

    /// Ends at once, as a crash would: what is queued is told that the log has stopped and is not written. Otherwise as
    /// [`Self::stop`].
    pub fn abandon(&self) {
        self.end(LogError::Stopped, Vec::new());
        self.inner.work.notify_one();
        let thread = hold(&self.inner.thread).take();
        if let Some(thread) = thread {
            thread.join();
        }
        *hold(&self.inner.writer) = None;
    }

    fn write(&self, taken: Vec<Submission>) -> Result<Step, LogError> {
        let mut guard = hold(&self.inner.writer);
        let Some(writer) = guard.as_mut() else {
            drop(guard);
            self.end(LogError::Stopped, taken);
            return Err(LogError::Stopped);
        };
        let records = taken.iter().flat_map(|submission| &submission.records);
        match writer.write(records) {
            Ok(written) => {
                hold(&self.inner.shared).land(writer, &taken, written);
                drop(guard);
                taken.into_iter().for_each(|submission| (submission.done)(Ok(())));
                Ok(Step::Wrote)
            }
            Err(failure) => {
                drop(guard);
                self.end(failure.clone(), taken);
                Err(failure)
            }
        }
    }

    /// Nothing is accepted from here on; `taken` and all that is queued learn why.
    fn end(&self, reason: LogError, taken: Vec<Submission>) {
        let queued = {
            let mut shared = hold(&self.inner.shared);
            if !matches!(shared.state, State::Ended(_)) {
                shared.state = State::Ended(reason.clone());
            }
            shared.queued_bytes = 0;
            std::mem::take(&mut shared.queue)
        };
        taken.into_iter().chain(queued).for_each(|submission| (submission.done)(Err(reason.clone())));
    }

    fn run(&self) {
        let failure = loop {
            match self.turn() {
                Ok(Woken::Stop) => return,
                Ok(Woken::Work | Woken::Idle) => {}
                Err(failure) => break failure,
            }
        };
        if matches!(failure, LogError::Disk { .. }) {
            tracing::error!(%failure, "the commit log has failed");
            if self.inner.options.on_failure == OnFailure::EndProcess {
                std::process::abort();
            }
        }
    }

    fn turn(&self) -> Result<Woken, LogError> {
        while self.step()? == Step::Wrote {}
        let woken = self.sleep();
        if !matches!(woken, Woken::Work) {
            self.mark()?;
        }
        Ok(woken)
    }

    /// Waits for work, for the time of a mark, or for the end.
    fn sleep(&self) -> Woken {
        let mut shared = hold(&self.inner.shared);
        loop {
            if !shared.queue.is_empty() {
                return Woken::Work;
            }
            if !matches!(shared.state, State::Open) {
                return Woken::Stop;
            }
            shared.writer_sleeps = true;
            if shared.unmarked {
                let waited = self.inner.work.wait_timeout(shared, self.inner.options.mark_after);
                let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                shared = guard;
                if timeout.timed_out() && shared.queue.is_empty() {
                    return Woken::Idle;
                }
            } else {
                shared = self.inner.work.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// What the thread would do before it ends, for a log that has none. A failure has been told to those who wait.
    fn drain(&self) {
        while self.step().is_ok_and(|step| step == Step::Wrote) {}
        let _told = self.mark();
    }

    /// The entry's payload; `None` when it was purged while it was being read.
    fn fetch(&self, group: GroupId, entry: Planned) -> Result<Option<(LogId, Bytes)>, LogError> {
        let (id, place, file) = match entry {
            Planned::Ready(id, payload) => return Ok(Some((id, payload))),
            Planned::Stored(id, place, file) => (id, place, file),
        };
        let mut bytes = vec![0; usize::try_from(place.len).unwrap_or(usize::MAX)];
        file.read_at(u64::from(place.offset), &mut bytes).map_err(LogError::disk("read entry"))?;
        match Record::decode(&mut Bytes::from(bytes)) {
            Some(Record::Entry { group: of, id: read, payload }) if (of, read) == (group, id) => {
                Ok(Some((id, payload)))
            }
            _ if hold(&self.inner.shared).is_at(group, id, place) => Err(LogError::Damaged { group, index: id.index }),
            _ => Ok(None),
        }
    }
}

impl std::fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
