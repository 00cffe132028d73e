//! Which entries of a group are synced to the local disk, so that apply never runs ahead of them.
//!
//! openraft applies entries that a quorum holds, whether or not the local log has been synced by then. If such an entry were
//! applied and the store flushed before the log's sync, a crash would leave a store that is ahead of its log. So apply waits
//! here.
//!
//! Every submission gets a ticket with the first index that it touches. An entry is synced when no open ticket starts at or
//! below it. An older ticket may belong to an entry that a truncation has removed since; waiting for it is merely cautious.

use std::collections::VecDeque;

use ebla_model::id::LogIndex;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::raft::error::Fault;

/// Identifies one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::raft) struct SyncTicket(u64);

/// The submissions to a group's log that are not synced yet.
#[derive(Debug, Default)]
pub(in crate::raft) struct SyncTracker {
    /// Locked for a few instructions.
    open: Mutex<OpenTickets>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct OpenTickets {
    next: u64,
    /// (ticket, first index), in order of submission.
    tickets: VecDeque<(u64, LogIndex)>,
    failed: Option<Fault>,
}

impl OpenTickets {
    fn is_synced(&self, index: LogIndex) -> bool {
        self.tickets.iter().all(|(_, first)| *first > index)
    }
}

impl SyncTracker {
    /// Records a submission whose entries have the index `first` and later ones.
    pub(in crate::raft) fn submitted(&self, first: LogIndex) -> SyncTicket {
        let mut open = self.open.lock();
        let ticket = open.next;
        open.next += 1;
        open.tickets.push_back((ticket, first));
        SyncTicket(ticket)
    }

    /// Records that a submission is on disk, or never will be.
    pub(in crate::raft) fn synced(&self, ticket: SyncTicket, outcome: Result<(), Fault>) {
        let mut open = self.open.lock();
        match outcome {
            Ok(()) => open.tickets.retain(|(number, _)| *number != ticket.0),
            Err(fault) => open.failed = Some(fault),
        }
        drop(open);
        self.changed.notify_waiters();
    }

    /// Waits until the entry at `index` and all before it are on disk. Cancel-safe.
    pub(in crate::raft) async fn wait_synced(&self, index: LogIndex) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the check, so that a sync in between is not missed.
            changed.as_mut().enable();
            if self.is_synced(index)? {
                return Ok(());
            }
            changed.await;
        }
    }

    fn is_synced(&self, index: LogIndex) -> Result<bool, Fault> {
        let open = self.open.lock();
        match &open.failed {
            Some(fault) => Err(fault.clone()),
            None => Ok(open.is_synced(index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_synced(tracker: &SyncTracker, index: u64) -> bool {
        tracker.wait_synced(LogIndex::new(index)).now_or_never().is_some_and(|outcome| outcome.is_ok())
    }

    #[test]
    fn an_entry_is_synced_when_its_ticket_is() {
        let tracker = SyncTracker::default();
        assert!(is_synced(&tracker, 99));
        let first = tracker.submitted(LogIndex::new(11));
        let second = tracker.submitted(LogIndex::new(20));
        assert!(is_synced(&tracker, 10));
        assert!(!is_synced(&tracker, 11));
        tracker.synced(first, Ok(()));
        assert!(is_synced(&tracker, 19));
        assert!(!is_synced(&tracker, 20));
        tracker.synced(second, Ok(()));
        assert!(is_synced(&tracker, 1000));
    }

    #[test]
    fn an_entry_written_again_after_a_truncation_waits_for_its_new_ticket() {
        let tracker = SyncTracker::default();
        let old = tracker.submitted(LogIndex::new(51));
        tracker.synced(old, Ok(()));
        let cut = tracker.submitted(LogIndex::new(51));
        let again = tracker.submitted(LogIndex::new(51));
        tracker.synced(cut, Ok(()));
        assert!(!is_synced(&tracker, 55));
        tracker.synced(again, Ok(()));
        assert!(is_synced(&tracker, 55));
    }

    #[test]
    fn a_failed_log_fails_all_waits() {
        let tracker = SyncTracker::default();
        let ticket = tracker.submitted(LogIndex::new(1));
        tracker.synced(ticket, Err(Fault::new("no disk")));
        assert!(tracker.wait_synced(LogIndex::new(0)).now_or_never().unwrap().is_err());
    }
}
