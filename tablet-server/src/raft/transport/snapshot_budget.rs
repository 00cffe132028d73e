//! The budget of snapshots: how many of them a server sends and receives at the same time.
//!
//! A snapshot is a copy of a whole group. A server that was down for long needs one for each of its groups; without a bound they would
//! all arrive at once, and need twice the space of its data. So a sender waits for its turn, and a receiver without a free place
//! refuses: openraft sends the snapshot again after a pause. A receiver does not wait, because two servers that hold a place as senders
//! and wait for one as receivers would block each other until the deadlines.
//!
//! METADATA is exempt on both sides: its group is small, and requests for all others depend on it.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::GroupId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::message::Unreachable;

/// The largest number of snapshots that a server sends at once, without those of METADATA.
const SENT_MAX: usize = 2;
/// The largest number of snapshots that a server receives and installs at once, without those of METADATA.
const RECEIVED_MAX: usize = 2;

/// How long the receiver may take from the last part to its reply, besides reading the files: it syncs them and opens the store.
pub(super) const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The least speed at which the receiver reads the files as a whole, in bytes per second.
const VERIFIED_BYTES_PER_SECOND: u64 = 32 << 20;

/// How long the receiver may take from the last part of a snapshot of this size to its reply.
pub(super) const fn install_timeout(size_bytes: u64) -> Duration {
    INSTALL_TIMEOUT.saturating_add(Duration::from_secs(size_bytes / VERIFIED_BYTES_PER_SECOND))
}

/// The places for snapshots of one server.
#[derive(Debug)]
pub(in crate::raft) struct SnapshotBudget {
    sending: Arc<Semaphore>,
    receiving: Arc<Semaphore>,
}

impl Default for SnapshotBudget {
    fn default() -> Self {
        Self { sending: Arc::new(Semaphore::new(SENT_MAX)), receiving: Arc::new(Semaphore::new(RECEIVED_MAX)) }
    }
}

/// A place in the budget, which is free again when this value is dropped. Empty for METADATA.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub(in crate::raft) struct SnapshotPermit {
    _place: Option<OwnedSemaphorePermit>,
}

impl SnapshotBudget {
    /// A place for a snapshot to send, in the order of the calls. Cancel-safe.
    ///
    /// # Errors
    /// When the budget is closed, which never happens.
    pub(in crate::raft) async fn send_permit(&self, group: GroupId) -> Result<SnapshotPermit, Unreachable> {
        if group == GroupId::METADATA {
            return Ok(SnapshotPermit { _place: None });
        }
        let place = Arc::clone(&self.sending).acquire_owned().await;
        let place = place.map_err(|closed| Unreachable(closed.to_string()))?;
        Ok(SnapshotPermit { _place: Some(place) })
    }

    /// The number of free places for snapshots that arrive.
    #[cfg(test)]
    pub(in crate::raft) fn free_to_receive(&self) -> usize {
        self.receiving.available_permits()
    }

    /// A place for a snapshot that arrives.
    ///
    /// # Errors
    /// When there is no free place: the sender tries again later.
    pub(in crate::raft) fn receive_permit(&self, group: GroupId) -> Result<SnapshotPermit, Unreachable> {
        if group == GroupId::METADATA {
            return Ok(SnapshotPermit { _place: None });
        }
        match Arc::clone(&self.receiving).try_acquire_owned() {
            Ok(place) => Ok(SnapshotPermit { _place: Some(place) }),
            Err(_full) => Err(Unreachable(format!(
                "the server receives {RECEIVED_MAX} other snapshots at the moment; retry later"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const GROUP: GroupId = GroupId::new(7);

    #[test]
    fn a_sender_waits_for_its_turn() {
        let budget = SnapshotBudget::default();
        let send = |group| budget.send_permit(group).now_or_never().map(Result::unwrap);
        let mut sent: Vec<SnapshotPermit> = (0..SENT_MAX).map(|_| send(GROUP).unwrap()).collect();
        assert!(send(GROUP).is_none(), "all places are taken");
        assert!(send(GroupId::METADATA).is_some());
        let mut waiting = Box::pin(budget.send_permit(GROUP));
        assert!((&mut waiting).now_or_never().is_none());
        sent.pop();
        assert!(send(GROUP).is_none(), "the place belongs to the one that waits");
        assert!(waiting.now_or_never().is_some());
        assert!(send(GROUP).is_some(), "the place is free again");
    }

    #[test]
    fn a_receiver_without_a_free_place_refuses() {
        let budget = SnapshotBudget::default();
        let mut received: Vec<_> = (0..RECEIVED_MAX).map(|_| budget.receive_permit(GROUP).unwrap()).collect();
        let refused = budget.receive_permit(GROUP).unwrap_err();
        assert!(refused.to_string().contains("receives 2 other snapshots"), "{refused}");
        assert!(budget.receive_permit(GroupId::METADATA).is_ok());
        assert!(budget.send_permit(GROUP).now_or_never().is_some(), "the places of senders are others");
        received.pop();
        assert!(budget.receive_permit(GROUP).is_ok());
    }
}
