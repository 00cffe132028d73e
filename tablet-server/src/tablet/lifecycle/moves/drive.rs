//! Driving a move to its end, by the leader of the source: one step after the other, each repeated until it has a reply.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::command::CommandKind;
use ebla_model::error::{Error, Reason};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{Departure, DeparturePhase, ImportPosition, ImportStatus, MoveId, MoveStep};
use ebla_runtime::Step;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{DrivenMove, Outcome, departure_in, export};
use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;
use crate::tablet::read::scan::pool_failure;

/// The pause after a step that failed; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Timeout of an entry in the source's log.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// What has become of a departure.
enum Turn {
    /// Its state has changed.
    Next,
    /// The target has refused the move: the tablet stays.
    Stays(Failure),
}

impl TabletGroup {
    /// Drives a move in the background, unless this replica drives it already. The sender is dropped without an outcome when
    /// another replica leads. `cause`: for the events of the tablet, unless this replica knows it already.
    pub(super) fn drive_move(self: &Arc<Self>, id: MoveId, cause: TabletEventCause) -> watch::Receiver<Outcome> {
        let mut driven = self.moves.by_tablet.lock();
        let earlier = driven.get(&id.tablet).filter(|earlier| earlier.id == id).cloned();
        if let Some(running) = earlier.as_ref().filter(|earlier| earlier.outcome.has_changed().is_ok()) {
            return running.outcome.clone();
        }
        let cause = earlier.as_ref().map_or(cause, |earlier| earlier.cause);
        let known = earlier.and_then(|earlier| earlier.outcome.borrow().clone());
        let (sender, outcome) = watch::channel(known);
        driven.insert(id.tablet, DrivenMove { id, cause, outcome: outcome.clone() });
        drop(driven);
        let group = Arc::clone(self);
        self.runtime.tasks.spawn_until_stopped("move-tablet", async move { group.run_move(id, cause, &sender).await });
        outcome
    }

    async fn run_move(&self, id: MoveId, cause: TabletEventCause, outcome: &watch::Sender<Outcome>) {
        let mut pause = PAUSE_MIN;
        while self.leader_term().is_ok() {
            let Some(departure) = departure_in(&self.state_machine.applied_state(), id) else { return };
            let turn = match departure.phase {
                DeparturePhase::Copying => self.copy(&departure, cause).await,
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

    /// Sends the tablet to the target, and then removes it here.
    async fn copy(&self, departure: &Departure, cause: TabletEventCause) -> Result<Turn, Failure> {
        let started = self.runtime.clock.monotonic();
        let start = self.state_machine.with_state(|state| export::start(state, departure));
        let start = start.ok_or_else(|| Error::internal("the group does not know the table of a departing tablet"))?;
        let mut status = self.send(departure, MoveStep::Begin(Box::new(start)), cause).await?;
        loop {
            status = match status {
                ImportStatus::Importing(ImportPosition::End) => self.send(departure, MoveStep::Finish, cause).await?,
                ImportStatus::Importing(position) => {
                    self.leader_term()?;
                    let chunk = self.export(departure, position).await?;
                    self.send(departure, MoveStep::Chunk(chunk), cause).await?
                }
                ImportStatus::Served => {
                    self.propose_move(departure, MoveStep::Done).await?;
                    self.runtime.steps.reached(Step::MoveDone).await;
                    let (tablet, millis) = (departure.tablet.tablet, self.elapsed_since(started).as_millis());
                    info!(%tablet, source = %self.id(), target = %departure.target.group, millis, "tablet moved");
                    return Ok(Turn::Next);
                }
                ImportStatus::Refused(why) => return self.take_back(departure, why, cause).await,
            };
        }
    }

    async fn export(
        &self,
        departure: &Departure,
        from: ImportPosition,
    ) -> Result<ebla_model::tablet_move::ImportChunk, Failure> {
        let (state_machine, departure) = (Arc::clone(&self.state_machine), departure.clone());
        let read = move || export::next_chunk(&state_machine, &departure, from);
        Ok(self.maintenance.run(read).await.map_err(pool_failure)??)
    }

    /// The target cannot take the tablet. It must refuse the move for ever before the tablet is served here again.
    async fn take_back(&self, departure: &Departure, why: String, cause: TabletEventCause) -> Result<Turn, Failure> {
        match self.send(departure, MoveStep::Refuse, cause).await? {
            ImportStatus::Refused(_for_ever) => {
                self.propose_move(departure, MoveStep::Back).await?;
                let tablet = departure.tablet.tablet;
                info!(%tablet, source = %self.id(), target = %departure.target.group, why, "tablet move taken back");
                let message = format!("group {} cannot take tablet {tablet}: {why}", departure.target.group);
                Ok(Turn::Stays(Failure::new(Reason::Busy, message)))
            }
            // An earlier answer was lost: the next turn finds that the target serves it.
            ImportStatus::Served | ImportStatus::Importing(_) => Ok(Turn::Next),
        }
    }

    async fn forget_move(&self, departure: &Departure, cause: TabletEventCause) -> Result<Turn, Failure> {
        self.send(departure, MoveStep::Confirm, cause).await?;
        self.propose_move(departure, MoveStep::Forget).await?;
        self.runtime.steps.reached(Step::MoveForget).await;
        Ok(Turn::Next)
    }

    async fn send(
        &self,
        departure: &Departure,
        step: MoveStep,
        cause: TabletEventCause,
    ) -> Result<ImportStatus, Failure> {
        let sent = sent_step(&step);
        let status = self.host.import(&departure.target, departure.id(), step, cause).await?;
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
