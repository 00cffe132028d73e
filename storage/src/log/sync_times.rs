//! How long the last writes of batches took, each of which contains a sync: what shows that the disk is slow.
//!
//! The first batch of a segment also writes and syncs the segment's header.

use std::collections::VecDeque;
use std::time::Duration;

use ebla_model::sync_delay::{SYNCS_MAX, Syncs};
use ebla_runtime::metrics::{Histogram, HistogramCounts};
use parking_lot::Mutex;

/// The times of the last syncs. Written by the thread that holds the writer, read by others at any time.
#[derive(Debug, Default)]
pub(super) struct SyncTimes {
    last: Mutex<Times>,
    /// Of all syncs since the log was opened.
    all: Histogram,
}

/// Locked for a few instructions: never while a sync is in progress.
#[derive(Debug, Default)]
struct Times {
    /// When each ended, and how long it lasted.
    ended: VecDeque<(Duration, Duration)>,
    running_since: Option<Duration>,
}

impl SyncTimes {
    /// A sync begins, unless one has begun that has not ended.
    pub(super) fn begin(&self, now: Duration) {
        self.last.lock().running_since.get_or_insert(now);
    }

    /// There was nothing to sync.
    pub(super) fn cancel(&self) {
        self.last.lock().running_since = None;
    }

    /// The sync has ended, also by an error.
    pub(super) fn end(&self, now: Duration) {
        let mut times = self.last.lock();
        let Some(since) = times.running_since.take() else { return };
        if times.ended.len() == SYNCS_MAX {
            times.ended.pop_front();
        }
        let duration = now.saturating_sub(since);
        times.ended.push_back((now, duration));
        self.all.record(duration);
    }

    /// How long all syncs took since the log was opened.
    pub(super) fn latency(&self) -> HistogramCounts {
        self.all.counts()
    }

    pub(super) fn syncs(&self) -> Syncs {
        let times = self.last.lock();
        Syncs { ended: times.ended.iter().copied().collect(), running_since: times.running_since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_syncs_and_the_one_in_progress_are_known() {
        let (times, second) = (SyncTimes::default(), Duration::from_secs(1));
        assert_eq!(times.syncs(), Syncs::default());
        for at in (0..100).step_by(2) {
            times.begin(second * at);
            times.end(second * at + second / 4);
        }
        times.begin(second * 100);
        let syncs = times.syncs();
        assert_eq!((syncs.ended.len(), syncs.running_since), (SYNCS_MAX, Some(second * 100)));
        assert_eq!(syncs.ended.last(), Some(&(second * 98 + second / 4, second / 4)));
        assert_eq!((times.latency().count(), times.latency().sum_micros), (50, 12_500_000), "all that have ended");
    }

    #[test]
    fn a_sync_lasts_from_its_first_beginning_and_counts_only_if_it_ends() {
        let (times, second) = (SyncTimes::default(), Duration::from_secs(1));
        times.begin(second);
        times.begin(second * 3);
        times.end(second * 4);
        times.begin(second * 5);
        times.cancel();
        times.end(second * 6);
        assert_eq!(times.syncs(), Syncs { ended: vec![(second * 4, second * 3)], running_since: None });
    }
}
