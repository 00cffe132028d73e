//! Changes of who belongs to a group.
//!
//! A change of voters goes through a membership with two sets of voters, old and new; a leader that finds one whose author
//! is gone makes it one set. An order names the membership it was made for, so that two orders never mix.

use std::collections::BTreeSet;

use ebla_model::id::{LogId, ReplicaId};
use ebla_model::metadata::Replica;
use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::{ClientWriteResponse, Precondition};
use tracing::warn;

use super::fault::ChangeError;
use super::types::{Host, Raft, TypeConfig, log_id, raft_log_id, replica};

/// A change of who belongs to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// Adds a replica that receives everything and does not vote.
    AddLearner(Replica),
    /// Makes exactly these the voters, all of whom must be members; voters that are left out are no members any more.
    Voters(BTreeSet<ReplicaId>),
    /// Takes learners out.
    RemoveLearners(BTreeSet<ReplicaId>),
}

/// Carries a change out, in two steps where it needs two.
pub(super) async fn change(
    raft: &Raft,
    change: MembershipChange,
    expected: Option<LogId>,
) -> Result<LogId, ChangeError> {
    let members: ChangeMembers<u64, Host> = match change {
        MembershipChange::AddLearner(learner) => {
            ChangeMembers::AddNodes([(learner.replica.get(), Host(learner.server.get()))].into())
        }
        MembershipChange::Voters(voters) => ChangeMembers::ReplaceAllVoters(voters.iter().map(|id| id.get()).collect()),
        MembershipChange::RemoveLearners(ids) => ChangeMembers::RemoveNodes(ids.iter().map(|id| id.get()).collect()),
    };
    match raft.change_membership_if(members, false, unchanged(expected)).await {
        Ok(ClientWriteResponse { log_id: id, .. }) => Ok(log_id(&id)),
        Err(RaftError::APIError(error)) => Err(change_error(error)),
        Err(RaftError::Fatal(_)) => Err(ChangeError::Unknown),
    }
}

fn change_error(error: ClientWriteError<TypeConfig>) -> ChangeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => {
            let leader = forward.leader_id.zip(forward.leader_node);
            ChangeError::NotLeader { hint: leader.map(|(id, host)| replica(id, host)) }
        }
        ClientWriteError::LogEntryDiscarded(_) => ChangeError::Unknown,
        ClientWriteError::PreconditionFailed(failed) => ChangeError::Stale(failed.to_string()),
        ClientWriteError::ChangeMembershipError(refused) => match refused {
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => ChangeError::Busy,
            other => ChangeError::Refused(other.to_string()),
        },
    }
}

/// The condition of a change: the membership is still the one of this entry.
fn unchanged(expected: Option<LogId>) -> Option<Precondition<TypeConfig>> {
    let at = raft_log_id(expected?);
    Some(Precondition::LastMembershipLogId { last_membership_log_id: Some(at) })
}

/// A leader that finds two sets of voters makes it one: whoever began the change is gone.
pub(super) async fn finish_change(raft: Raft) {
    let uniform = ChangeMembers::AddVoterIds(BTreeSet::new());
    if let Err(error) = raft.change_membership(uniform, false).await {
        warn!(%error, "a change of membership stays unfinished until the next leader");
    }
}
