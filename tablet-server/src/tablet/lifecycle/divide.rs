//! Division of a group, from the leader's side: some of its tablets move to a new group on the same servers.
//!
//! The apply on each replica is in `tablet::core::state_machine`. The leader chooses the tablets, allocates an unused group
//! id, requests a flush from every replica (so that the flush inside apply finds little), disables lease reads (the new group
//! may serve elsewhere before this replica has applied the division) and proposes. METADATA is updated after the fact by the
//! new group's leader.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::CommandKind;
use ebla_model::id::{LogId, TabletId};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_runtime::Step;
use tracing::info;

use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;
use crate::tablet::lifecycle::replica_change::ExclusiveToken;
use crate::tablet::lifecycle::split::RETRY_AFTER;
use crate::tablet::read::scan::pool_failure;

/// A group that was divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The group, which keeps the other tablets.
    pub left: GroupDescriptor,
    /// The new group.
    pub right: GroupDescriptor,
    /// The tablets of the new group.
    pub moved: Vec<TabletId>,
}

impl TabletGroup {
    /// By order of an operator, moves tablets with about half of the group's bytes to a new group. `expected`: the membership log id that the request
    /// was made for.
    ///
    /// # Errors
    /// `FailedPrecondition` for METADATA's group and for a group with fewer than two tablets; `WrongTablet` when the group has
    /// another membership; `Busy` while another division, a split or a merge is in progress; `NotLeader`, `NoLeader`; `Deadline`,
    /// `OutcomeUnknown` when it may still be applied.
    pub async fn divide(self: &Arc<Self>, expected: LogId, timeout: Duration) -> Result<Division, Failure> {
        self.divide_because(TabletEventCause::Operator, expected, timeout).await
    }

    /// As [`Self::divide`], for this cause.
    ///
    /// # Errors
    /// As [`Self::divide`].
    pub async fn divide_because(
        self: &Arc<Self>,
        cause: TabletEventCause,
        expected: LogId,
        timeout: Duration,
    ) -> Result<Division, Failure> {
        let Some(_token) = ExclusiveToken::try_acquire(&self.dividing) else {
            return Err(Failure::busy(RETRY_AFTER));
        };
        self.leader_term()?;
        let before = self.descriptor();
        if before.membership_log_id != expected {
            return Err(Failure::new(Reason::WrongTablet, "the replicas of the group have changed"));
        }
        self.flush_all_replicas(&before).await?;
        self.runtime.steps.reached(Step::DivideFlushed).await;
        let moved = self.choose_tablets().await?;
        let child = self.host.allocate_group_id().await?;
        self.runtime.steps.reached(Step::DivideId).await;
        let right = before.divide(child);
        let right = right.ok_or_else(|| Failure::busy(RETRY_AFTER))?;
        info!(group = %self.id(), %child, tablets = moved.len(), "group division started");
        self.propose_handover(CommandKind::Divide { tablets: moved.clone(), child }, timeout).await?;
        self.runtime.steps.reached(Step::DivideApplied).await;
        // The replica of the new group on this server writes it, if that one leads.
        let detail = format!("from group {} to group {child}", self.id());
        let event = NewTabletEvent { kind: TabletEventKind::Divided, cause, detail };
        self.host.tablets_changed(moved.clone(), Some(event));
        Ok(Division { left: self.descriptor(), right, moved })
    }

    async fn flush_all_replicas(&self, group: &GroupDescriptor) -> Result<(), Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let own = self.maintenance.run(move || state_machine.flush());
        let (own, ()) = tokio::join!(own, self.host.flush_other_replicas(group));
        Ok(own.map_err(pool_failure)??)
    }

    async fn choose_tablets(&self) -> Result<Vec<TabletId>, Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let mut sizes = self.maintenance.run(move || state_machine.sizes()).await.map_err(pool_failure)?;
        // A tablet that moves to another group goes there, not to the new one.
        let applied_state = self.state_machine.applied_state();
        sizes.retain(|tablet, _bytes| applied_state.tablet(*tablet).is_some_and(|tablet| tablet.moves_to.is_none()));
        if sizes.len() < 2 {
            let message = "a group with fewer than two tablets cannot be divided: split its tablet first";
            return Err(Failure::new(Reason::FailedPrecondition, message));
        }
        Ok(tablets_to_move(sizes.into_iter().collect()))
    }
}

/// Tablets with about half of the bytes, at least one and not all: the largest first, each to the side that has less.
fn tablets_to_move(mut sizes: Vec<(TabletId, u64)>) -> Vec<TabletId> {
    sizes.sort_by_key(|(tablet, bytes)| (std::cmp::Reverse(*bytes), *tablet));
    let (mut stays, mut moves) = (0_u64, 0_u64);
    let mut moved = Vec::new();
    for (tablet, bytes) in sizes {
        // One more byte each, so that empty tablets are divided too.
        let bytes = bytes.saturating_add(1);
        if moves < stays {
            moves = moves.saturating_add(bytes);
            moved.push(tablet);
        } else {
            stays = stays.saturating_add(bytes);
        }
    }
    moved.sort_unstable();
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(sizes: &[u64]) -> Vec<u64> {
        let sizes = (1..).zip(sizes).map(|(tablet, bytes)| (TabletId::new(tablet), *bytes)).collect();
        tablets_to_move(sizes).into_iter().map(TabletId::get).collect()
    }

    #[test]
    fn about_half_of_the_bytes_move() {
        assert_eq!(moved(&[10, 10, 10, 10]), [2, 4]);
        assert_eq!(moved(&[100, 40, 30, 20]), [2, 3, 4]);
        assert_eq!(moved(&[0, 0]), [2], "empty tablets are divided too");
        assert_eq!(moved(&[0, 0, 500]), [1, 2]);
    }
}
