//! Driving a move to its end, by the leader of the source: one step after the other, each repeated until it has a reply.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::command::CommandKind;
use ebla_model::error::{Error, Reason};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{Departure, DeparturePhase, ImportChunk, ImportPosition, ImportStatus, MoveId, MoveStep};
use ebla_runtime::Step;
use tokio::sync::watch;
use tracing::{info, warn};

use super::ahead::AheadCopy;
use super::export::{self, Exported};
use super::{DrivenMove, Outcome, departs_elsewhere, departure_in};
use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;
use crate::tablet::read::scan::pool_failure;

/// The pause after a step that failed; it doubles up to [`PAUSE_MAX`].
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Timeout of an entry in the source's log.
pub(super) const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// What has become of a departure.
pub(super) enum Turn {
    /// Its state has changed.
    Next,
    /// The target has refused the move: the tablet stays.
    Stays(Failure),
}

impl TabletGroup {
    /// Drives a move in the background, unless this replica drives it already. The sender is dropped without an outcome when
    /// another replica leads. `cause`: for the events of the tablet, unless this replica knows it already.
    ///
    /// # Errors
    /// `FailedPrecondition` when the tablet is on its way to another group.
    pub(super) fn drive_move(
        self: &Arc<Self>,
        id: MoveId,
        target: GroupDescriptor,
        cause: TabletEventCause,
    ) -> Result<watch::Receiver<Outcome>, Failure> {
        let mut driven = self.moves.by_tablet.lock();
        let earlier = driven.get(&id.tablet).filter(|earlier| earlier.id == id).cloned();
        if let Some(running) = earlier.as_ref().filter(|earlier| earlier.outcome.has_changed().is_ok()) {
            let is_same = running.target == target.group;
            return if is_same {
                Ok(running.outcome.clone())
            } else {
                Err(departs_elsewhere(running.target, id.tablet))
            };
        }
        let cause = earlier.as_ref().map_or(cause, |earlier| earlier.cause);
        // A failure was that of another attempt.
        let known = earlier.and_then(|earlier| earlier.outcome.borrow().clone()).filter(Result::is_ok);
        let (sender, outcome) = watch::channel(known);
        driven.insert(id.tablet, DrivenMove { id, target: target.group, cause, outcome: outcome.clone() });
        drop(driven);
        let group = Arc::clone(self);
        self.runtime
            .tasks
            .spawn_until_stopped("move-tablet", async move { group.run_move(id, target, cause, &sender).await });
        Ok(outcome)
    }

    async fn run_move(
        &self,
        id: MoveId,
        target: GroupDescriptor,
        cause: TabletEventCause,
        outcome: &watch::Sender<Outcome>,
    ) {
        let mut ahead = None;
        if departure_in(&self.state_machine.applied_state(), id).is_none() {
            match self.depart(id, &target, cause).await {
                Ok(copy) => ahead = copy,
                Err(failure) => {
                    warn!(tablet = %id.tablet, target = %target.group, error = %failure.error, "tablet not moved");
                    outcome.send_replace(Some(Err(failure)));
                    return;
                }
            }
        }
        let mut pause = PAUSE_MIN;
        while self.leader_term().is_ok() {
            let Some(departure) = departure_in(&self.state_machine.applied_state(), id) else { return };
            let turn = match departure.phase {
                DeparturePhase::Copying => self.hand_over(&departure, ahead.as_mut(), cause).await,
                DeparturePhase::Left => {
                    outcome.send_replace(Some(Ok(())));
                    self.forget_move(&departure, cause).await
                }
            };
            match turn {
                Ok(Turn::Next) => pause = PAUSE_MIN,
                Ok(Turn::Stays(failure)) => {
                    let event = NewTabletEvent {
                        kind: TabletEventKind::MoveRefused,
                        cause,
                        detail: format!("group {} could not take it", departure.target.group),
                    };
                    self.host.tablets_changed(vec![id.tablet], Some(event));
                    outcome.send_replace(Some(Err(failure)));
                    return;
                }
                Err(failure) => {
                    let target = departure.target.group;
                    warn!(tablet = %id.tablet, %target, error = %failure.error, "tablet move waits");
                    tokio::time::sleep(self.runtime.rng.jitter(pause)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Sends what the target lacks, and then removes the tablet here. `ahead`: the copy that this replica has made.
    async fn hand_over(
        &self,
        departure: &Departure,
        ahead: Option<&mut AheadCopy>,
        cause: TabletEventCause,
    ) -> Result<Turn, Failure> {
        let Some(copy) = departure.copy else { return self.copy(departure, cause).await };
        match ahead.filter(|ahead| ahead.copy() == copy) {
            Some(ahead) => self.complete(departure, ahead, cause).await,
            None => {
                let why = "the leader that has copied it does not lead any more; move it again";
                self.take_back(departure, why.to_owned(), cause).await
            }
        }
    }

    /// Sends the tablet to the target, and then removes it here.
    async fn copy(&self, departure: &Departure, cause: TabletEventCause) -> Result<Turn, Failure> {
        let started = self.runtime.clock.monotonic();
        let exported = Exported::of(departure);
        let start = self.state_machine.with_state(|state| export::start(state, &exported));
        let start = start.ok_or_else(|| Error::internal("the group does not know the table of a departing tablet"))?;
        let mut status = self.send(departure, MoveStep::Begin(Box::new(start)), cause).await?;
        loop {
            status = match status {
                ImportStatus::Importing(ImportPosition::End) => self.send(departure, MoveStep::Finish, cause).await?,
                ImportStatus::Importing(position) => {
                    self.leader_term()?;
                    let chunk = self.export(exported.clone(), position).await?;
                    self.send(departure, MoveStep::Chunk(chunk), cause).await?
                }
                ImportStatus::Served => return self.leave(departure, started).await,
                ImportStatus::Refused(why) => return self.take_back(departure, why, cause).await,
            };
        }
    }

    /// The target serves the tablet.
    pub(super) async fn leave(&self, departure: &Departure, started: Duration) -> Result<Turn, Failure> {
        self.propose_move(departure, MoveStep::Done).await?;
        self.runtime.steps.reached(Step::MoveDone).await;
        let (tablet, millis) = (departure.tablet.tablet, self.elapsed_since(started).as_millis());
        info!(%tablet, source = %self.id(), target = %departure.target.group, unserved_millis = millis, "tablet moved");
        Ok(Turn::Next)
    }

    pub(super) async fn export(&self, exported: Exported, from: ImportPosition) -> Result<ImportChunk, Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let read = move || export::next_chunk(&state_machine, &exported, from);
        Ok(self.maintenance.run(read).await.map_err(pool_failure)??)
    }

    /// The target cannot take the tablet. It must refuse the move for ever before the tablet is served here again.
    pub(super) async fn take_back(
        &self,
        departure: &Departure,
        why: String,
        cause: TabletEventCause,
    ) -> Result<Turn, Failure> {
        match self.send(departure, MoveStep::Refuse, cause).await? {
            ImportStatus::Refused(_for_ever) => {
                self.propose_move(departure, MoveStep::Back).await?;
                let tablet = departure.tablet.tablet;
                info!(%tablet, source = %self.id(), target = %departure.target.group, why, "tablet move taken back");
                let message = format!("group {} cannot take tablet {tablet}: {why}", departure.target.group);
                Ok(Turn::Stays(Failure::new(Reason::Busy, message)))
            }
            // An earlier answer was lost.
            ImportStatus::Served => self.leave(departure, self.runtime.clock.monotonic()).await,
            ImportStatus::Importing(_) => Err(Error::internal("the target has not refused the move").into()),
        }
    }

    async fn forget_move(&self, departure: &Departure, cause: TabletEventCause) -> Result<Turn, Failure> {
        self.send(departure, MoveStep::Confirm, cause).await?;
        self.propose_move(departure, MoveStep::Forget).await?;
        self.runtime.steps.reached(Step::MoveForget).await;
        Ok(Turn::Next)
    }

    pub(super) async fn send(
        &self,
        departure: &Departure,
        step: MoveStep,
        cause: TabletEventCause,
    ) -> Result<ImportStatus, Failure> {
        self.send_to(&departure.target, departure.id(), step, cause).await
    }

    pub(super) async fn send_to(
        &self,
        target: &GroupDescriptor,
        id: MoveId,
        step: MoveStep,
        cause: TabletEventCause,
    ) -> Result<ImportStatus, Failure> {
        let sent = sent_step(&step);
        let status = self.host.import(target, id, step, cause).await?;
        if let Some(sent) = sent {
            self.runtime.steps.reached(sent).await;
        }
        Ok(status)
    }

    async fn propose_move(&self, departure: &Departure, step: MoveStep) -> Result<(), Failure> {
        self.propose_command(CommandKind::Move(departure.id(), step), ENTRY_TIMEOUT).await.map(drop)
    }
}

/// The step of the source after the target has carried out `step`.
fn sent_step(step: &MoveStep) -> Option<Step> {
    match step {
        MoveStep::Begin(_) => Some(Step::MoveBegin),
        MoveStep::Chunk(_) => Some(Step::MoveChunk),
        MoveStep::Finish => Some(Step::MoveFinish),
        MoveStep::Confirm => Some(Step::MoveConfirm),
        _ => None,
    }
}
