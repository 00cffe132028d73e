//! Membership changes: which replicas belong to a group, and which of them vote.
//!
//! A change of voters passes through a joint configuration, with the old and the new set of voters. A new leader that finds a
//! joint configuration completes it, because the leader that began the change is gone. A change names the membership that it
//! expects, so that two concurrent changes never mix.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{LogId, ReplicaId};
use ebla_model::metadata::Replica;
use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::{ClientWriteResponse, Precondition};
use tracing::warn;

use super::Group;
use crate::raft::error::MembershipError;
use crate::raft::status::has_reached;
use crate::raft::storage::adapter::Raft;
use crate::raft::types::{Host, TypeConfig, log_id, raft_log_id, replica};

/// A change of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// Adds a learner: a replica that receives the log and does not vote.
    AddLearner(Replica),
    /// Makes exactly these replicas the voters. All must be members; a voter that is left out leaves the group.
    Voters(BTreeSet<ReplicaId>),
    /// Removes learners.
    RemoveLearners(BTreeSet<ReplicaId>),
}

impl Group {
    /// Changes the membership of the group; returns the entry of the new membership. The change continues when the future
    /// is dropped.
    ///
    /// `expected`: the entry of the membership that the change was requested for.
    ///
    /// # Errors
    /// See [`MembershipError`]. Removing the leader is refused: transfer first.
    pub async fn change_membership(
        self: &Arc<Self>,
        membership_change: MembershipChange,
        expected: Option<LogId>,
    ) -> Result<LogId, MembershipError> {
        if let MembershipChange::Voters(voters) = &membership_change
            && !voters.contains(&self.replica())
        {
            return Err(MembershipError::Refused("it would remove the leader; transfer leadership first".to_owned()));
        }
        let group = Arc::clone(self);
        // A task of its own: a change that is cancelled halfway would leave the group in a joint configuration.
        let work = async move { change(&group.raft, membership_change, expected).await };
        let outcome = self.tasks.start_until_stopped("raft-change", work);
        outcome.await.unwrap_or(Err(MembershipError::Unknown))
    }

    /// Waits until a learner holds the log as it is now, and then the entries that were appended meanwhile, so that little is
    /// left to catch up on as a voter. Cancel-safe.
    ///
    /// # Errors
    /// `LearnerBehind` when that takes longer than `timeout`, `NotLeader` when this replica loses the leadership.
    pub async fn catch_up(&self, learner: ReplicaId, timeout: Duration) -> Result<(), MembershipError> {
        let deadline = self.clock.monotonic().saturating_add(timeout);
        for _round in 0..2 {
            let upto = self.status().last.unwrap_or_default().index;
            let remaining = deadline.saturating_sub(self.clock.monotonic());
            match self.wait_for(remaining, |m| has_reached(m, learner, upto)).await {
                Some(true) => {}
                Some(false) => return Err(MembershipError::NotLeader { hint: self.not_self(self.status().leader) }),
                None => return Err(MembershipError::LearnerBehind),
            }
        }
        Ok(())
    }
}

/// Executes a change: in two steps where it needs a joint configuration.
async fn change(raft: &Raft, change: MembershipChange, expected: Option<LogId>) -> Result<LogId, MembershipError> {
    let members: ChangeMembers<u64, Host> = match change {
        MembershipChange::AddLearner(learner) => {
            ChangeMembers::AddNodes([(learner.replica.get(), Host(learner.server.get()))].into())
        }
        MembershipChange::Voters(voters) => ChangeMembers::ReplaceAllVoters(voters.iter().map(|id| id.get()).collect()),
        MembershipChange::RemoveLearners(ids) => ChangeMembers::RemoveNodes(ids.iter().map(|id| id.get()).collect()),
    };
    match raft.change_membership_if(members, false, expected_membership(expected)).await {
        Ok(ClientWriteResponse { log_id: id, .. }) => Ok(log_id(&id)),
        Err(RaftError::APIError(error)) => Err(change_error(error)),
        Err(RaftError::Fatal(_)) => Err(MembershipError::Unknown),
    }
}

fn change_error(error: ClientWriteError<TypeConfig>) -> MembershipError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => {
            let leader = forward.leader_id.zip(forward.leader_node);
            MembershipError::NotLeader { hint: leader.map(|(id, host)| replica(id, host)) }
        }
        ClientWriteError::LogEntryDiscarded(_) => MembershipError::Unknown,
        ClientWriteError::PreconditionFailed(failed) => MembershipError::Stale(failed.to_string()),
        ClientWriteError::ChangeMembershipError(refused) => match refused {
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => {
                MembershipError::Busy
            }
            other => MembershipError::Refused(other.to_string()),
        },
    }
}

/// The precondition of a change: the membership is still the one of this entry.
fn expected_membership(expected: Option<LogId>) -> Option<Precondition<TypeConfig>> {
    let at = raft_log_id(expected?);
    Some(Precondition::LastMembershipLogId { last_membership_log_id: Some(at) })
}

/// Completes a joint configuration that an earlier leader began.
pub(super) async fn finish_change(raft: Raft) {
    let uniform = ChangeMembers::AddVoterIds(BTreeSet::new());
    if let Err(error) = raft.change_membership(uniform, false).await {
        warn!(%error, "cannot finish the membership change; the next leader will retry");
    }
}
