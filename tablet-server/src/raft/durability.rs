//! Which entries of a group are on this machine's disk, so that apply never runs ahead of them.
//!
//! openraft applies what a majority holds, whether or not the local log has been synced by then. If such an entry were
//! applied and the tablet flushed before the log's sync, a crash would leave a tablet that knows more than its log.
//! So apply waits here.
//!
//! Every submission is a ticket with the first index that it touches. An entry is durable when no open ticket starts at or
//! below it: an older ticket may be about an entry that a truncation has removed since, and then waiting for it is
//! merely cautious.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::fault::Fault;

/// One submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// What of a group's log has been submitted and not synced.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Held for a few instructions.
    open: Mutex<Open>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// (ticket, first index), in order of submission.
    tickets: VecDeque<(u64, u64)>,
    failed: Option<String>,
}

impl Open {
    fn covers(&self, index: u64) -> bool {
        self.tickets.iter().all(|(_, first)| *first > index)
    }
}

impl Durability {
    /// Notes a submission whose records touch `first` and later indexes.
    pub(super) fn submitted(&self, first: u64) -> Ticket {
        let mut open = self.held();
        let ticket = open.next;
        open.next += 1;
        open.tickets.push_back((ticket, first));
        Ticket(ticket)
    }

    /// Notes that a submission is on disk, or never will be.
    pub(super) fn synced(&self, ticket: Ticket, outcome: Result<(), String>) {
        let mut open = self.held();
        match outcome {
            Ok(()) => open.tickets.retain(|(number, _)| *number != ticket.0),
            Err(reason) => open.failed = Some(reason),
        }
        drop(open);
        self.changed.notify_waiters();
    }

    /// Waits until the entry at `index` and all before it are on disk. Cancel-safe.
    pub(super) async fn covers(&self, index: u64) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the check, so that a sync in between is not missed.
            changed.as_mut().enable();
            if self.state(index)? {
                return Ok(());
            }
            changed.await;
        }
    }

    fn state(&self, index: u64) -> Result<bool, Fault> {
        let open = self.held();
        match &open.failed {
            Some(reason) => Err(Fault::new(format!("commit log: {reason}"))),
            None => Ok(open.covers(index)),
        }
    }

    fn held(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_covered(durability: &Durability, index: u64) -> bool {
        durability.covers(index).now_or_never().is_some_and(|outcome| outcome.is_ok())
    }

    #[test]
    fn an_entry_is_covered_when_its_ticket_is_synced() {
        let durability = Durability::default();
        assert!(is_covered(&durability, 99));
        let first = durability.submitted(11);
        let second = durability.submitted(20);
        assert!(is_covered(&durability, 10));
        assert!(!is_covered(&durability, 11));
        durability.synced(first, Ok(()));
        assert!(is_covered(&durability, 19));
        assert!(!is_covered(&durability, 20));
        durability.synced(second, Ok(()));
        assert!(is_covered(&durability, 1000));
    }

    #[test]
    fn an_entry_written_again_after_a_truncation_waits_for_its_new_ticket() {
        let durability = Durability::default();
        let old = durability.submitted(51);
        durability.synced(old, Ok(()));
        let cut = durability.submitted(51);
        let again = durability.submitted(51);
        durability.synced(cut, Ok(()));
        assert!(!is_covered(&durability, 55));
        durability.synced(again, Ok(()));
        assert!(is_covered(&durability, 55));
    }

    #[test]
    fn a_failed_log_is_told_to_all_who_wait() {
        let durability = Durability::default();
        let ticket = durability.submitted(1);
        durability.synced(ticket, Err("no disk".to_owned()));
        assert!(durability.covers(0).now_or_never().unwrap().is_err());
    }
}
