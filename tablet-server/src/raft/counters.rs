//! Counters of a server's replication since its start, for measurements. One set per server, shared by its groups and links.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_runtime::metrics::{Histogram, HistogramCounts};

/// The counters. They are read while others write them: no reader needs them to agree with each other.
#[derive(Debug, Default)]
pub struct RaftCounters {
    frames: AtomicU64,
    frame_bytes: AtomicU64,
    entry_frames: AtomicU64,
    entries: AtomicU64,
    proposals: AtomicU64,
    transfers: AtomicU64,
    commit: Histogram,
}

/// Values of [`RaftCounters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftCounts {
    /// Frames sent on the streams to other processes: appends and heartbeats. Messages to a server in the same process are not
    /// encoded, and not counted.
    pub frames: u64,
    /// Their encoded size, without the headers of gRPC and HTTP/2.
    pub frame_bytes: u64,
    /// Frames with at least one log entry.
    pub entry_frames: u64,
    /// Log entries in frames.
    pub entries: u64,
    /// Commands proposed to groups that this server may lead.
    pub proposals: u64,
    /// Leaderships that this server has transferred to another one.
    pub transfers: u64,
}

impl RaftCounters {
    /// Values now.
    pub fn read(&self) -> RaftCounts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RaftCounts {
            frames: value(&self.frames),
            frame_bytes: value(&self.frame_bytes),
            entry_frames: value(&self.entry_frames),
            entries: value(&self.entries),
            proposals: value(&self.proposals),
            transfers: value(&self.transfers),
        }
    }

    /// How long proposals took until they were applied here: on disk at a majority, and in the store.
    pub fn commit_latency(&self) -> HistogramCounts {
        self.commit.counts()
    }

    /// Counts proposals that were made together and are applied after this time.
    pub(super) fn record_commit(&self, duration: Duration) {
        self.commit.record(duration);
    }

    /// Counts a frame of `bytes` bytes with this number of log entries.
    pub(super) fn count_frame(&self, bytes: usize, entries: usize) {
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        add(&self.frames, 1);
        add(&self.frame_bytes, bytes);
        if entries > 0 {
            add(&self.entry_frames, 1);
            add(&self.entries, entries);
        }
    }

    pub(super) fn count_proposal(&self) {
        self.proposals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_transfer(&self) {
        self.transfers.fetch_add(1, Ordering::Relaxed);
    }
}
