//! Changing a tablet's replicas, from the leader's side: a learner, the tablet's content, the new set of voters.
//!
//! ```text
//!   add a learner          one entry; the new replica, empty so far, is sent a snapshot and then the log's tail
//!   wait for it            bounded; what has been sent is not lost when the time is over
//!   change the voters      two entries: both sets, then the new one; who is left out is no member any more
//! ```
//!
//! Each entry is made for the membership that it finds, so two orders never mix, and the descriptor follows the entries as
//! they are applied. An order that was cut off is sent again and goes on where it stands: the id of a replica is never given twice,
//! so a member with the id that is to be added can only come from the same order. Two sets of voters without
//! their author are made one by the next leader (`raft::driver`), or by the next order.
//!
//! A leader that is to go hands over first: a removed one would leave the tablet without a leader for an election.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{Generation, LogId, ReplicaId};
use ebla_model::metadata::{Membership, Replica, TabletDescriptor};
use tracing::info;

use crate::raft::{ChangeError, MembershipChange, TransferError};
use crate::tablet::Tablet;
use crate::tablet::failure::Failure;

/// How long whoever meets a change under way should wait.
const BUSY: Duration = Duration::from_millis(500);

/// What is to change. With neither of the two, a change that was left half way is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The descriptor's fence that the order was made for.
    pub expected: (Generation, LogId),
    /// The replica to add, made empty on its server.
    pub add: Option<Replica>,
    /// The replica to remove.
    pub remove: Option<ReplicaId>,
}

impl ReplicaChange {
    /// Whether the replica to add is a member: then this order was begun before.
    fn has_begun(&self, membership: &Membership) -> bool {
        self.add.is_some_and(|add| membership.server_of(add.replica) == Some(add.server))
    }

    /// Who is to vote in the end.
    fn goal(&self, voters: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
        let added = self.add.map(|add| add.replica);
        voters.iter().copied().chain(added).filter(|voter| Some(*voter) != self.remove).collect()
    }
}

impl Tablet {
    /// Changes the tablet's replicas; returns the tablet with the new ones. Safe to repeat.
    ///
    /// # Errors
    /// `WrongTablet` when the order was made for another membership; `NotLeader`, also after leadership was handed over
    /// because this replica is the one to go; `Busy` while another change is under way; `FailedPrecondition` for an id
    /// that is not new; `Deadline` when the new replica has not caught up in time: the same order goes on.
    pub async fn change_replicas(
        self: &Arc<Self>,
        change: ReplicaChange,
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        let Some(_turn) = Turn::take(&self.changing) else { return Err(Failure::busy(BUSY)) };
        match tokio::time::timeout(timeout, self.change_alone(change, timeout)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(Failure::deadline()),
        }
    }

    async fn change_alone(&self, change: ReplicaChange, timeout: Duration) -> Result<TabletDescriptor, Failure> {
        self.leading()?;
        let before = self.descriptor();
        let has_begun = change.has_begun(&before.membership);
        if !has_begun && before.fence() != change.expected {
            return Err(Failure::wrong_tablet(before));
        }
        let voters = before.membership.voters.last().cloned().unwrap_or_default();
        let goal = change.goal(&voters);
        if !goal.contains(&self.replica()) {
            return Err(self.hand_over(&goal).await);
        }
        let mut at = before.membership_log_id;
        if !before.membership.is_uniform() {
            at = self.change_members(MembershipChange::Voters(voters.clone()), at).await?;
        }
        if let Some(add) = change.add {
            if !has_begun {
                expect_new(add.replica, &before.membership)?;
                at = self.change_members(MembershipChange::AddLearner(add), at).await?;
            }
            if !voters.contains(&add.replica) {
                self.group().catch_up(add.replica, timeout).await.map_err(|error| self.change_failure(error))?;
            }
        }
        if goal != voters {
            self.change_members(MembershipChange::Voters(goal), at).await?;
        } else if let Some(learner) = change.remove.filter(|id| before.membership.server_of(*id).is_some()) {
            self.change_members(MembershipChange::RemoveLearners([learner].into()), at).await?;
        }
        info!(tablet = %self.id(), add = ?change.add, remove = ?change.remove, "replicas changed");
        self.help.changed(self.id());
        Ok(self.descriptor())
    }

    async fn change_members(&self, change: MembershipChange, at: LogId) -> Result<LogId, Failure> {
        let changed = self.group().change_membership(change, Some(at)).await;
        changed.map_err(|error| self.change_failure(error))
    }

    /// Has the best of the replicas that stay lead, and says that this one does not.
    async fn hand_over(&self, stay: &BTreeSet<ReplicaId>) -> Failure {
        let status = self.group().status();
        let others = status.matched.iter().filter(|(id, _)| stay.contains(id) && status.membership.is_voter(**id));
        let Some((to, _)) = others.max_by_key(|(_, matched)| **matched) else {
            return Failure::new(Reason::FailedPrecondition, "no other replica could lead");
        };
        match self.group().transfer(*to).await {
            Ok(()) => Failure::not_leader(self.leader()),
            Err(TransferError::NotLeader) => Failure::not_leader(self.leader()),
            Err(error) => Failure::new(Reason::Unavailable, error.to_string()),
        }
    }

    fn change_failure(&self, error: ChangeError) -> Failure {
        match error {
            ChangeError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            ChangeError::Stale(_) => Failure::wrong_tablet(self.descriptor()),
            ChangeError::Busy => Failure { retry_after: Some(BUSY), ..Failure::new(Reason::Busy, error.to_string()) },
            ChangeError::Behind => Failure::new(Reason::Deadline, error.to_string()),
            ChangeError::Refused(_) => Failure::new(Reason::FailedPrecondition, error.to_string()),
            ChangeError::Unknown => Failure::new(Reason::OutcomeUnknown, error.to_string()),
        }
    }
}

/// An id at or below one that the tablet has could be that of a replica which was removed.
fn expect_new(id: ReplicaId, membership: &Membership) -> Result<(), Error> {
    match membership.replicas.last_key_value() {
        Some((highest, _server)) if id <= *highest => {
            Err(Error::new(Reason::FailedPrecondition, format!("replica {id} is no new one")))
        }
        _ => Ok(()),
    }
}

/// The right to do what only one may do at a time; given back when dropped, also with a caller that has gone.
pub(super) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// `None` while somebody else has it.
    pub(super) fn take(taken: &'a AtomicBool) -> Option<Self> {
        (!taken.swap(true, Ordering::SeqCst)).then_some(Self(taken))
    }
}

impl Drop for Turn<'_> {
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
        ReplicaChange { expected: (Generation::new(1), LogId::SEED), add, remove: remove.map(ReplicaId::new) }
    }

    #[test]
    fn the_goal_is_the_same_however_far_the_order_has_come() {
        let order = change(Some((1001, 4)), Some(2));
        for voters in [&[1, 2, 3][..], &[1, 2, 3, 1001], &[1, 3, 1001]] {
            assert_eq!(order.goal(&ids(voters)), ids(&[1, 3, 1001]));
        }
        assert_eq!(change(None, None).goal(&ids(&[1, 2])), ids(&[1, 2]));
    }

    #[test]
    fn an_order_has_begun_when_its_replica_is_a_member_on_its_server() {
        let mut membership = Membership::fresh(&[1, 2, 3].map(ServerId::new));
        let order = change(Some((1001, 4)), Some(2));
        assert!(!order.has_begun(&membership));
        membership.replicas.insert(ReplicaId::new(1001), ServerId::new(5));
        assert!(!order.has_begun(&membership), "on another server it is another's");
        membership.replicas.insert(ReplicaId::new(1001), ServerId::new(4));
        assert!(order.has_begun(&membership));
    }

    #[test]
    fn only_ids_above_all_members_are_new() {
        let membership = Membership::fresh(&[1, 2, 3].map(ServerId::new));
        assert!(expect_new(ReplicaId::new(3), &membership).is_err());
        assert!(expect_new(ReplicaId::new(4), &membership).is_ok());
    }

    #[test]
    fn a_turn_is_given_back() {
        let taken = AtomicBool::new(false);
        let turn = Turn::take(&taken);
        assert!(turn.is_some() && Turn::take(&taken).is_none());
        drop(turn);
        assert!(Turn::take(&taken).is_some());
    }
}
