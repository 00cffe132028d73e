//! Leadership transfer: the leader has another voter elected.

use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::id::ReplicaId;
use ebla_model::metadata::Replica;
use ebla_runtime::Step;

use super::Group;
use crate::raft::error::TransferError;
use crate::raft::status::{Leadership, is_matched};
use crate::raft::types::current_term;

impl Group {
    /// Transfers leadership to another voter. Proposals are refused meanwhile and are certainly not in the log; lease reads are
    /// suspended. As soon as the target is asked to campaign, this replica leads no more, whether or not its own log, and so
    /// openraft's core, learns of a later term.
    ///
    /// # Errors
    /// After `TargetBehind` this replica still leads; after `TargetNotElected` there is no leader until the next election.
    pub async fn transfer_leadership(&self, to: ReplicaId) -> Result<(), TransferError> {
        let Leadership { term } = self.leadership().ok_or(TransferError::NotLeader)?;
        let status = self.status();
        if to == self.replica() || !status.membership.is_voter(to) {
            return Err(TransferError::NotVoter(to));
        }
        let _suspended = self.lease_suspensions.suspend();
        let _pending = PendingTransfer::begin(&self.transfer_target, to);
        let matched = self.wait_for(self.config.timings.election_min / 2, |m| is_matched(m, to, term)).await;
        match matched {
            Some(true) => {}
            Some(false) => return Err(TransferError::NotLeader),
            None => return Err(TransferError::TargetBehind),
        }
        // From here on the target may be elected even while the lease is valid.
        self.lease_suspensions.suspend_term(term);
        self.raft.trigger().transfer_leader(to.get()).await.map_err(|_fatal| TransferError::Stopped)?;
        self.relinquished.record(term);
        self.steps.reached(Step::TransferRequested).await;
        let elected = self.wait_for(self.config.timings.election_max, |m| (current_term(m) > term).then_some(())).await;
        elected.ok_or(TransferError::TargetNotElected)?;
        self.counters.count_transfer();
        Ok(())
    }

    /// The target of the leadership transfer in progress.
    #[expect(
        clippy::option_option,
        reason = "whether a transfer is in progress, and whether the target's server is known"
    )]
    pub(super) fn pending_transfer(&self) -> Option<Option<Replica>> {
        let to = self.transfer_target.load(Ordering::SeqCst);
        if to == 0 {
            return None;
        }
        let to = ReplicaId::new(to);
        let server = self.status.borrow().membership.server_of(to);
        Some(server.map(|server| Replica { replica: to, server }))
    }
}

/// Marks a leadership transfer as in progress until it is dropped: proposals are refused.
struct PendingTransfer<'a>(&'a AtomicU64);

impl<'a> PendingTransfer<'a> {
    fn begin(transfer_target: &'a AtomicU64, to: ReplicaId) -> Self {
        transfer_target.store(to.get(), Ordering::SeqCst);
        Self(transfer_target)
    }
}

impl Drop for PendingTransfer<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
