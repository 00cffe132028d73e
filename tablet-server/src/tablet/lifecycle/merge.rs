//! Merge of two adjacent tablets of a group, from the leader's side.
//!
//! Both tablets share the group's log, store, sessions and latches, so a merge is one entry that moves no data, and reads and
//! writes go on. A request that names the tablet that is gone is refused, as after a split; the caller locates the rows again
//! and resends it under the same (session, sequence). METADATA is updated after the fact, by [`TabletHost::tablets_changed`];
//! if the leader dies before that, the next leader updates it.
//!
//! Not here: tablets of different groups, whose rows would have to be copied.
//!
//! [`TabletHost::tablets_changed`]: crate::tablet::lifecycle::split::TabletHost::tablets_changed

use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::{CommandKind, Reply};
use ebla_model::id::{LogId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_runtime::Step;
use tracing::info;

use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;
use crate::tablet::lifecycle::replica_change::ExclusiveToken;
use crate::tablet::lifecycle::split::RETRY_AFTER;

impl TabletGroup {
    /// By order of an operator, merges the adjacent tablets `left` and `right` of a user table: `right` gets the rows of `left`, which is gone. Returns
    /// the merged tablet. `expected`: the membership log id that the request was made for.
    ///
    /// # Errors
    /// `FailedPrecondition` when the group does not hold both, or they are not adjacent; `WrongTablet` when the group has another
    /// membership; `Busy` while a split or another merge or division is in progress; `NotLeader`, `NoLeader`; `Deadline`,
    /// `OutcomeUnknown` when it may still be applied.
    pub async fn merge(
        &self,
        expected: LogId,
        (left, right): (TabletId, TabletId),
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        self.merge_because(TabletEventCause::Operator, expected, (left, right), timeout).await
    }

    /// As [`Self::merge`], for this cause.
    ///
    /// # Errors
    /// As [`Self::merge`].
    pub async fn merge_because(
        &self,
        cause: TabletEventCause,
        expected: LogId,
        (left, right): (TabletId, TabletId),
        timeout: Duration,
    ) -> Result<TabletDescriptor, Failure> {
        let Some(_token) = ExclusiveToken::try_acquire(&self.dividing) else {
            return Err(Failure::busy(RETRY_AFTER));
        };
        self.leader_term()?;
        if self.descriptor().membership_log_id != expected {
            return Err(Failure::new(Reason::WrongTablet, "the replicas of the group have changed"));
        }
        self.check_merge(left, right)?;
        info!(group = %self.id(), %left, %right, "tablet merge started");
        match self.propose_command(CommandKind::Merge { left, right }, timeout).await? {
            Reply::Merge(merged) => {
                self.runtime.steps.reached(Step::MergeApplied).await;
                let detail = format!("with tablet {left}, which had the rows before it");
                let event = NewTabletEvent { kind: TabletEventKind::Merged, cause, detail };
                self.host.tablets_changed(vec![merged.tablet], Some(event));
                Ok(*merged)
            }
            _ => Err(Failure::new(Reason::Internal, "unexpected reply to a merge command")),
        }
    }

    fn check_merge(&self, left: TabletId, right: TabletId) -> Result<(), Failure> {
        let refused = |message| Failure::new(Reason::FailedPrecondition, message);
        let applied_state = self.state_machine.applied_state();
        let find = |tablet| {
            let found = applied_state.tablet(tablet).map(|tablet| &tablet.descriptor);
            found.ok_or_else(|| refused(format!("tablet {tablet} is not in group {} any more", self.id())))
        };
        match find(right)?.merge(find(left)?) {
            Some(_merged) => Ok(()),
            None => Err(refused(format!("tablet {right} does not begin where tablet {left} of the same table ends"))),
        }
    }
}
