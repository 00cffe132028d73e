//! Changing a group's replicas, from the leader's side: add a learner, copy the content, change the voters.
//!
//! ```text
//!   add a learner          one entry; the new, empty replica receives a snapshot and then the log's tail
//!   wait for it            bounded; a timeout does not lose the data that was already sent
//!   change the voters      two entries: joint consensus, then the new set; removed replicas are no members any more
//! ```
//!
//! Each entry is conditional on the previous membership, so two requests never mix, and the descriptor follows the entries
//! as they are applied. An interrupted request is sent again and continues where it stopped: replica ids are never reused,
//! so a member with the id to add can only come from the same request. A joint membership whose leader failed is completed
//! by the next leader (`raft::group::driver`), or by the next request.
//!
//! A leader that must be removed transfers leadership first: otherwise the group would have no leader until an election.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{LogId, ReplicaId};
use ebla_model::metadata::{GroupDescriptor, Membership, Replica};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_runtime::Step;
use tracing::info;

use crate::raft::{MembershipChange, MembershipError, TransferError};
use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;

/// The pause that `Busy` tells a caller to make while another change is in progress.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// A change of replicas. Without `add` and `remove`, an unfinished change is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The membership log id that the request was made for.
    pub expected: LogId,
    /// The replica to add, created empty on its server.
    pub add: Option<Replica>,
    /// The replica to remove.
    pub remove: Option<ReplicaId>,
}

impl ReplicaChange {
    /// Whether the replica to add is a member: then this request was started before.
    fn has_started(&self, membership: &Membership) -> bool {
        self.add.is_some_and(|add| membership.server_of(add.replica) == Some(add.server))
    }

    /// The voters after the change.
    fn target_voters(&self, voters: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
        let added = self.add.map(|add| add.replica);
        voters.iter().copied().chain(added).filter(|voter| Some(*voter) != self.remove).collect()
    }
}

/// A change in words, for the events of the tablets.
fn described(change: &ReplicaChange) -> String {
    let added = change.add.map(|add| format!("added replica {} on server {}", add.replica, add.server));
    let removed = change.remove.map(|removed| format!("removed replica {removed}"));
    let parts: Vec<String> = added.into_iter().chain(removed).collect();
    if parts.is_empty() { "completed a change".to_owned() } else { parts.join(", ") }
}

impl TabletGroup {
    /// Changes the group's replicas; returns the group with the new ones. Safe to repeat.
    ///
    /// # Errors
    /// `WrongTablet` when the request was made for another membership; `NotLeader`, also after a transfer of leadership
    /// because this replica must be removed; `Busy` while another change is in progress; `FailedPrecondition` for an id
    /// that is not new; `Deadline` when the new replica has not caught up in time: the same request, sent again, continues.
    pub async fn change_replicas(
        self: &Arc<Self>,
        change: ReplicaChange,
        timeout: Duration,
    ) -> Result<GroupDescriptor, Failure> {
        let Some(_token) = ExclusiveToken::try_acquire(&self.changing) else { return Err(Failure::busy(RETRY_AFTER)) };
        match tokio::time::timeout(timeout, self.change_exclusive(change, timeout)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(Failure::deadline()),
        }
    }

    async fn change_exclusive(&self, change: ReplicaChange, timeout: Duration) -> Result<GroupDescriptor, Failure> {
        self.leader_term()?;
        let before = self.descriptor();
        let has_started = change.has_started(&before.membership);
        if !has_started && before.membership_log_id != change.expected {
            return Err(stale_membership());
        }
        let voters = before.membership.voters.last().cloned().unwrap_or_default();
        let target_voters = change.target_voters(&voters);
        if !target_voters.contains(&self.replica()) {
            return Err(self.transfer_leadership_to_remaining(&target_voters).await);
        }
        let mut at = before.membership_log_id;
        if !before.membership.is_uniform() {
            at = self.change_members(MembershipChange::Voters(voters.clone()), at).await?;
        }
        if let Some(add) = change.add {
            if !has_started {
                check_id_is_new(add.replica, &before.membership)?;
                at = self.change_members(MembershipChange::AddLearner(add), at).await?;
                self.runtime.steps.reached(Step::LearnerAdded).await;
            }
            if !voters.contains(&add.replica) {
                self.raft.catch_up(add.replica, timeout).await.map_err(|error| self.change_failure(error))?;
                self.runtime.steps.reached(Step::LearnerCaughtUp).await;
            }
        }
        if target_voters != voters {
            self.change_members(MembershipChange::Voters(target_voters), at).await?;
            self.runtime.steps.reached(Step::VotersChanged).await;
        } else if let Some(learner) = change.remove.filter(|id| before.membership.server_of(*id).is_some()) {
            self.change_members(MembershipChange::RemoveLearners([learner].into()), at).await?;
        }
        info!(group = %self.id(), add = ?change.add, remove = ?change.remove, "replicas changed");
        let event = NewTabletEvent {
            kind: TabletEventKind::ReplicasChanged,
            cause: TabletEventCause::Master,
            detail: described(&change),
        };
        self.host.tablets_changed(self.tablet_ids(), Some(event));
        Ok(self.descriptor())
    }

    async fn change_members(&self, change: MembershipChange, at: LogId) -> Result<LogId, Failure> {
        let changed = self.raft.change_membership(change, Some(at)).await;
        changed.map_err(|error| self.change_failure(error))
    }

    /// Transfers leadership to the best of the remaining replicas, and returns `NotLeader`.
    async fn transfer_leadership_to_remaining(&self, stay: &BTreeSet<ReplicaId>) -> Failure {
        let status = self.raft.status();
        let others = status.matched.iter().filter(|(id, _)| stay.contains(id) && status.membership.is_voter(**id));
        let Some((to, _)) = others.max_by_key(|(_, matched)| **matched) else {
            return Failure::new(Reason::FailedPrecondition, "no other voter can become the leader");
        };
        match self.raft.transfer_leadership(*to).await {
            Ok(()) => Failure::not_leader(self.leader()),
            Err(TransferError::NotLeader) => Failure::not_leader(self.leader()),
            Err(error) => Failure::new(Reason::Unavailable, error.to_string()),
        }
    }

    fn change_failure(&self, error: MembershipError) -> Failure {
        match error {
            MembershipError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            MembershipError::Stale(_) => stale_membership(),
            MembershipError::Busy => {
                Failure { retry_after: Some(RETRY_AFTER), ..Failure::new(Reason::Busy, error.to_string()) }
            }
            MembershipError::LearnerBehind => Failure::new(Reason::Deadline, error.to_string()),
            MembershipError::Refused(_) => Failure::new(Reason::FailedPrecondition, error.to_string()),
            MembershipError::Unknown => Failure::new(Reason::OutcomeUnknown, error.to_string()),
        }
    }
}

fn stale_membership() -> Failure {
    Failure::new(Reason::WrongTablet, "the replicas of the group have changed")
}

/// An id at or below a member's id could be that of a removed replica.
fn check_id_is_new(id: ReplicaId, membership: &Membership) -> Result<(), Error> {
    match membership.replicas.last_key_value() {
        Some((highest, _server)) if id <= *highest => Err(Error::new(
            Reason::FailedPrecondition,
            format!("replica id {id} is not new: it must be above all ids of the group's replicas"),
        )),
        _ => Ok(()),
    }
}

/// The exclusive right to an operation; released when dropped, also when the caller goes away.
pub(super) struct ExclusiveToken<'a>(&'a AtomicBool);

impl<'a> ExclusiveToken<'a> {
    /// `None` while another caller holds it.
    pub(super) fn try_acquire(taken: &'a AtomicBool) -> Option<Self> {
        (!taken.swap(true, Ordering::SeqCst)).then_some(Self(taken))
    }
}

impl Drop for ExclusiveToken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;

    use super::*;

    fn ids(numbers: &[u64]) -> BTreeSet<ReplicaId> {
        numbers.iter().copied().map(ReplicaId::new).collect()
    }

    fn change(add: Option<(u64, u64)>, remove: Option<u64>) -> ReplicaChange {
        let add =
            add.map(|(replica, server)| Replica { replica: ReplicaId::new(replica), server: ServerId::new(server) });
        ReplicaChange { expected: LogId::SEED, add, remove: remove.map(ReplicaId::new) }
    }

    #[test]
    fn the_target_voters_do_not_depend_on_the_progress() {
        let request = change(Some((1001, 4)), Some(2));
        for voters in [&[1, 2, 3][..], &[1, 2, 3, 1001], &[1, 3, 1001]] {
            assert_eq!(request.target_voters(&ids(voters)), ids(&[1, 3, 1001]));
        }
        assert_eq!(change(None, None).target_voters(&ids(&[1, 2])), ids(&[1, 2]));
    }

    #[test]
    fn a_request_has_started_when_its_replica_is_a_member_on_its_server() {
        let mut membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        let request = change(Some((1001, 4)), Some(2));
        assert!(!request.has_started(&membership));
        membership.replicas.insert(ReplicaId::new(1001), ServerId::new(5));
        assert!(!request.has_started(&membership), "a member on another server is a different one");
        membership.replicas.insert(ReplicaId::new(1001), ServerId::new(4));
        assert!(request.has_started(&membership));
    }

    #[test]
    fn only_ids_above_all_members_are_new() {
        let membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        assert!(check_id_is_new(ReplicaId::new(3), &membership).is_err());
        assert!(check_id_is_new(ReplicaId::new(4), &membership).is_ok());
    }

    #[test]
    fn an_exclusive_token_is_released_on_drop() {
        let taken = AtomicBool::new(false);
        let token = ExclusiveToken::try_acquire(&taken);
        assert!(token.is_some() && ExclusiveToken::try_acquire(&taken).is_none());
        drop(token);
        assert!(ExclusiveToken::try_acquire(&taken).is_some());
    }
}
