//! Move of a tablet to another existing group, from the side of the leaders.
//!
//! ```text
//!   leader of the source                               leader of the target
//!     ticket  <------------------------------------->    confirm leadership, applied index
//!     Begin, Chunk ...  ---------------------------->    one entry of its log each; the source serves the tablet
//!     Out: the tablet departs
//!     last Chunk, Finish  -------------------------->    the tablet is served
//!     Done: the tablet is removed
//!     Confirm  ------------------------------------->    forget the move
//!     Forget
//! ```
//!
//! `model::tablet_move` defines the steps, `core::apply::moves` applies them. The leader of the source drives a move (`drive`). Before the
//! tablet departs, it is copied (`ahead`) while a record is kept of what changes in it (`core::change_record`); then only the last
//! difference must be sent while the tablet is not served. `export` reads the tablet's content, `difference` what has changed, `import` is the
//! target's side.
//!
//! **After a failure.** The record is in the memory of the leader that has made the copy. If another one finds that the tablet departs, it
//! takes it back. Before that, a failure concerns the target only, which drops the copy. In a cluster version without copies ahead, the content
//! is sent after `Out`; then the next step follows from the state of the group and the target's reply alone, and the next leader continues
//! the move. In both cases every step may be repeated, and an old leader that still sends steps does no harm.
//!
//! **Who serves.** The source stops at `Out`, the target starts at `Finish`. The source takes the tablet back only after the target
//! has refused the move, by an entry of its log. `Finish` is sent only by a leader that has applied `Out`, so its own reads of the
//! tablet have ended before the target can serve one. (An earlier leader's lease has expired by then.)
//!
//! **Exactly once.** The target takes over the sessions of the source, and the tokens of the tablet's rows: a write that the source
//! has applied is a duplicate in the target.

mod ahead;
mod difference;
mod drive;
mod export;
mod import;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::id::{Generation, GroupId, LogId, TabletId};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::tablet_event::TabletEventCause;
use ebla_model::tablet_move::{Departure, MoveId};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::tablet::TabletGroup;
use crate::tablet::core::applied_state::AppliedState;
use crate::tablet::failure::Failure;

/// The outcome of a move, when there is one: the target serves the tablet, or why it stays.
type Outcome = Option<Result<(), Failure>>;

/// The moves that this replica drives as leader of the source.
#[derive(Debug)]
pub(in crate::tablet) struct DrivenMoves {
    /// Locked to look up or insert. A move that has ended is replaced by the next one of its tablet; at most one for each tablet.
    by_tablet: Mutex<BTreeMap<TabletId, DrivenMove>>,
    /// One tablet at a time is copied ahead of its move: records of changes need memory.
    copying: Semaphore,
    /// When the last step of each copy to this group has arrived, as far as this replica leads. Locked to look up or change.
    imports: Mutex<import::ImportTimes>,
}

impl Default for DrivenMoves {
    fn default() -> Self {
        Self { by_tablet: Mutex::default(), copying: Semaphore::new(1), imports: Mutex::default() }
    }
}

#[derive(Clone, Debug)]
struct DrivenMove {
    id: MoveId,
    target: GroupId,
    /// Only this leader knows it: it is not in the log.
    cause: TabletEventCause,
    outcome: watch::Receiver<Outcome>,
}

impl TabletGroup {
    /// Moves a tablet to the group `target`, and returns when the target serves it. A move to the same group that has begun is
    /// continued. `expected`: generation and membership log id that the request was made for; `cause`: for the events of the tablet.
    ///
    /// # Errors
    /// `FailedPrecondition` for METADATA, for a tablet of the target itself, and for one that moves elsewhere; `WrongTablet` when the
    /// group does not have the tablet in this form; `Busy` when the target cannot take the tablet now; `NotLeader`, `NoLeader`; `Unavailable` when the target does not respond; then the tablet is
    /// served as before. `Deadline`, `OutcomeUnknown` when the move goes on. Safe to repeat.
    pub async fn move_tablet(
        self: &Arc<Self>,
        tablet: TabletId,
        expected: (Generation, LogId),
        target: GroupDescriptor,
        cause: TabletEventCause,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let moved = async {
            self.leader_term()?;
            let id = MoveId { tablet, generation: expected.0 };
            match self.departure(id) {
                Some(departure) if departure.target.group != target.group => {
                    return Err(departs_elsewhere(departure.target.group, tablet));
                }
                Some(_departure) => {}
                None => self.check_move(tablet, expected, target.group)?,
            }
            self.wait_for_move(id, target, cause).await
        };
        tokio::time::timeout(timeout, moved).await.unwrap_or_else(|_elapsed| {
            let message = format!("tablet {tablet} has not moved in time; the move continues in the background");
            Err(Failure::new(Reason::Deadline, message))
        })
    }

    /// Continues the moves of the group's tablets that nothing drives here, and ends copies to this group that make no progress. Returns at
    /// once. For the leader: another replica does nothing.
    pub(crate) fn resume_moves(self: &Arc<Self>) {
        let metadata = Arc::clone(&self.state_machine.applied_state().metadata);
        if metadata.departures.is_empty() && metadata.copies.is_empty() {
            self.moves.imports.lock().clear();
            return;
        }
        if self.leader_term().is_err() {
            return;
        }
        for departure in metadata.departures.values() {
            // Another leader knew the cause.
            let _driven = self.drive_move(departure.id(), departure.target.clone(), TabletEventCause::Master);
        }
        self.end_idle_copies(&metadata.copies);
    }

    fn departure(&self, id: MoveId) -> Option<Departure> {
        departure_in(&self.state_machine.applied_state(), id)
    }

    fn check_move(&self, tablet: TabletId, expected: (Generation, LogId), target: GroupId) -> Result<(), Failure> {
        let refused = |message: String| Err(Failure::new(Reason::FailedPrecondition, message));
        let applied_state = self.state_machine.applied_state();
        let Some(found) = applied_state.tablet(tablet) else {
            return Err(Failure::new(Reason::WrongTablet, format!("tablet {tablet} is not in group {}", self.id())));
        };
        if self.id() == GroupId::METADATA || target == GroupId::METADATA {
            return refused(
                "METADATA's tablets and group 1 take no part in moves: choose another tablet or group".into(),
            );
        }
        if target == self.id() {
            return refused(format!("tablet {tablet} is in group {target} already: choose another group"));
        }
        if let Some(elsewhere) = found.moves_to {
            return Err(departs_elsewhere(elsewhere, tablet));
        }
        if found.descriptor.fence() == expected { Ok(()) } else { Err(Failure::wrong_tablet(found.descriptor.clone())) }
    }

    async fn wait_for_move(
        self: &Arc<Self>,
        id: MoveId,
        target: GroupDescriptor,
        cause: TabletEventCause,
    ) -> Result<(), Failure> {
        let mut outcome = self.drive_move(id, target, cause)?;
        loop {
            if let Some(outcome) = outcome.borrow_and_update().clone() {
                return outcome;
            }
            if outcome.changed().await.is_err() {
                // Another replica leads the group, and continues the move.
                return Err(Failure::not_leader(self.leader()));
            }
        }
    }
}

fn departure_in(applied_state: &AppliedState, id: MoveId) -> Option<Departure> {
    applied_state.metadata.departures.get(&id.tablet).filter(|departure| departure.id() == id).cloned()
}

fn departs_elsewhere(target: GroupId, tablet: TabletId) -> Failure {
    let message = format!("tablet {tablet} is being moved to group {target}: move it again when it is there");
    Failure::new(Reason::FailedPrecondition, message)
}

#[cfg(test)]
mod world_tests;
