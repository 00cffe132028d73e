//! Linearizable reads: from the leader lease, or with a read index.

use std::time::Duration;

use ebla_model::id::Term;
use ebla_runtime::Failpoint;
use futures::FutureExt as _;
use futures::future::select;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{RaftMetrics, ReadPolicy, ServerState};

use super::{Group, leader_hint};
use crate::raft::error::ReadIndexError;
use crate::raft::lease::leader_lease::{LeaderLease, LeaseSuspension};
use crate::raft::types::{TypeConfig, current_term, log_id};

impl Group {
    /// Lease read: whether a read that has arrived may be answered at once from this replica's state, because the leader lease is
    /// valid. `now`: time since boot, taken after the read arrived. Pin the view after this call. If `false`, use
    /// [`Group::wait_for_read_index`].
    pub fn can_lease_read(&self, now: Duration) -> bool {
        let lease = self.leader_lease();
        lease.is_some_and(|lease| {
            !self.lease_suspensions.is_suspended(lease.term) && lease.is_valid(now, self.config.timings.election_max)
        })
    }

    fn leader_lease(&self) -> Option<LeaderLease> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        let term = current_term(&metrics);
        Some(LeaderLease {
            term,
            applied_term: metrics.last_applied.as_ref().map(|id| log_id(id).term),
            acknowledged: self.quorum_acknowledged_at(&metrics, term),
        })
    }

    /// Read index: a quorum confirms the leadership, and this replica applies everything that was committed by then. Afterwards a
    /// read that arrived before the call may be answered.
    ///
    /// # Errors
    /// `Timeout` when that was not reached by `deadline`, a time since boot.
    pub async fn wait_for_read_index(&self, deadline: Duration) -> Result<(), ReadIndexError> {
        let timeout = deadline.saturating_sub(self.clock.monotonic());
        let confirmed = async {
            let linearizer = loop {
                let requested = self.clock.monotonic();
                let linearizer =
                    self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|e| self.read_index_error(e))?;
                // The term of the read index. openraft alone may count too much as acknowledged (see `quorum`).
                let term = log_id(linearizer.read_log_id().log_id()).term;
                if self.quorum_acknowledged_at(&self.metrics.borrow_watched(), term) >= Some(requested) {
                    break linearizer;
                }
            };
            if Failpoint::ReadIndexUnapplied.is_enabled() {
                return Ok(());
            }
            match linearizer.try_await_ready(&self.raft, Some(timeout)).await {
                Ok(Ok(_ready)) => Ok(()),
                Ok(Err(_behind)) => Err(ReadIndexError::Timeout),
                Err(_fatal) => Err(ReadIndexError::Stopped),
            }
        };
        let given_up = async {
            self.leadership_given_up().await;
            Err(ReadIndexError::NotLeader { hint: self.status().leader })
        };
        let outcome = select(confirmed.boxed(), given_up.boxed());
        match tokio::time::timeout(timeout, outcome).await {
            Ok(outcome) => outcome.factor_first().0,
            Err(_elapsed) => Err(ReadIndexError::Timeout),
        }
    }

    /// The latest time such that a quorum has acknowledged a message of this term sent then or later.
    fn quorum_acknowledged_at(&self, metrics: &RaftMetrics<TypeConfig>, term: Term) -> Option<Duration> {
        let voters = metrics.membership_config.membership().get_joint_config();
        self.quorum.acknowledged_by_quorum(term, voters, self.replica().get())
    }

    fn read_index_error(&self, error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>) -> ReadIndexError {
        match error {
            RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
                ReadIndexError::NotLeader { hint: self.not_self(leader_hint(&forward)) }
            }
            RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => ReadIndexError::Timeout,
            RaftError::Fatal(_) => ReadIndexError::Stopped,
        }
    }

    /// Suspends lease reads until the guard is dropped; see [`LeaseSuspension`].
    pub fn suspend_lease_reads(&self) -> LeaseSuspension {
        self.lease_suspensions.suspend()
    }
}
