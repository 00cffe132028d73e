//! The target's side of a move: each step of the source becomes an entry of this group's log.

use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::{CommandKind, Reply};
use ebla_model::id::{GroupId, LogIndex};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{ImportStatus, MoveId, MoveStep};

use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;

impl TabletGroup {
    /// A ticket for a move to this group: the index of the last entry that it has applied. A majority responds at this moment, so a
    /// tablet does not depart to a group that cannot take it.
    ///
    /// # Errors
    /// `FailedPrecondition` for METADATA's group; `NotLeader`, `NoLeader`, `Deadline`.
    pub async fn import_ticket(&self, timeout: Duration) -> Result<LogIndex, Failure> {
        if self.id() == GroupId::METADATA {
            return Err(Failure::new(Reason::FailedPrecondition, "METADATA's group holds no other tablets"));
        }
        self.leader_term()?;
        let until = self.runtime.clock.monotonic().saturating_add(timeout);
        let confirmed = self.raft.wait_for_read_index(until).await;
        confirmed.map_err(|_error| Failure::not_leader(self.leader()))?;
        Ok(self.state_machine.applied_state().applied.index)
    }

    /// Applies a step of a move to this group. `cause`: for the events of the tablet.
    ///
    /// # Errors
    /// `InvalidArgument` for a step that belongs to the source; `NotLeader`, `NoLeader`; `Deadline`, `OutcomeUnknown` when it may
    /// still be applied. Safe to repeat.
    pub async fn import(
        &self,
        id: MoveId,
        step: MoveStep,
        cause: TabletEventCause,
        timeout: Duration,
    ) -> Result<ImportStatus, Failure> {
        if !step.is_of_target() {
            return Err(Failure::new(Reason::InvalidArgument, "the step belongs to the log of the source"));
        }
        match self.propose_command(CommandKind::Move(id, step), timeout).await? {
            Reply::Import(status) => {
                if status == ImportStatus::Served {
                    let event = NewTabletEvent {
                        kind: TabletEventKind::Moved,
                        cause,
                        detail: format!("to group {}", self.id()),
                    };
                    self.host.tablets_changed(vec![id.tablet], Some(event));
                }
                Ok(status)
            }
            _ => Err(Failure::new(Reason::Internal, "unexpected reply to a step of a move")),
        }
    }
}
