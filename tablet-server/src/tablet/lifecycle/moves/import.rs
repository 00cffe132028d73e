//! The target's side of a move: each step of the source becomes an entry of this group's log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::{CommandKind, Reply};
use ebla_model::group_time::{AGES_DIFFER, ages_differ};
use ebla_model::id::{CopyId, GroupId, LogIndex, Term};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{ImportChunk, ImportStatus, MoveId, MoveStep};
use ebla_model::time::Micros;

use tracing::{info, warn};

use crate::tablet::TabletGroup;
use crate::tablet::failure::Failure;

/// A copy that was begun ahead of its move is dropped after this time without a step: its source has probably lost its leader. Longer than
/// a leader that waits for an answer repeats a step.
const COPY_IDLE_MAX: Duration = Duration::from_secs(30);
/// Timeout of the entry that drops a copy.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(10);

/// When the last step of each copy has arrived, in a term of this leader.
pub(super) type ImportTimes = BTreeMap<MoveId, (Term, Duration)>;

/// The copies that are idle at `now`. Forgets those that have ended; one that the leader of this term sees for the first time begins now.
fn idle_copies(
    times: &mut ImportTimes,
    copies: &BTreeMap<MoveId, CopyId>,
    term: Term,
    now: Duration,
) -> Vec<(MoveId, CopyId)> {
    times.retain(|id, (of, _at)| *of == term && copies.contains_key(id));
    let mut is_idle = |id: &MoveId| {
        let (_term, at) = *times.entry(*id).or_insert((term, now));
        now.saturating_sub(at) > COPY_IDLE_MAX
    };
    let idle: Vec<_> = copies.iter().filter(|(id, _copy)| is_idle(id)).map(|(id, copy)| (*id, *copy)).collect();
    // The next entry that drops it comes no sooner than this one may take.
    idle.iter().for_each(|(id, _copy)| _ = times.insert(*id, (term, now)));
    idle
}

impl TabletGroup {
    /// Drops copies that have made no progress for long. Returns at once.
    pub(super) fn end_idle_copies(self: &Arc<Self>, copies: &BTreeMap<MoveId, CopyId>) {
        let Ok(term) = self.leader_term() else { return };
        let now = self.runtime.clock.monotonic();
        let idle = idle_copies(&mut self.moves.imports.lock(), copies, term, now);
        for (id, copy) in idle {
            let group = Arc::clone(self);
            self.runtime.tasks.spawn_until_stopped("abandon-copy", async move {
                let abandoned = group.propose_command(CommandKind::Move(id, MoveStep::Abandon(copy)), ABANDON_TIMEOUT);
                match abandoned.await {
                    Ok(_status) => info!(tablet = %id.tablet, group = %group.id(), "copy without progress dropped"),
                    Err(failure) => {
                        warn!(tablet = %id.tablet, group = %group.id(), error = %failure.error, "copy not dropped; will retry");
                    }
                }
            });
        }
    }

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

    /// Applies a step of a move to this group. `cause`: for the events of the tablet. `wall`: the clock of the source's leader; `None` from
    /// an earlier release.
    ///
    /// # Errors
    /// `InvalidArgument` for a step that belongs to the source; `NotLeader`, `NoLeader`; `Deadline`, `OutcomeUnknown` when it may
    /// still be applied. Safe to repeat.
    pub async fn import(
        &self,
        id: MoveId,
        step: MoveStep,
        cause: TabletEventCause,
        wall: Option<Micros>,
        timeout: Duration,
    ) -> Result<ImportStatus, Failure> {
        if !step.is_of_target() {
            return Err(Failure::new(Reason::InvalidArgument, "the step belongs to the log of the source"));
        }
        let is_part_of_copy = matches!(step, MoveStep::Begin(_) | MoveStep::Chunk(_));
        if is_part_of_copy && let Ok(term) = self.leader_term() {
            self.moves.imports.lock().insert(id, (term, self.runtime.clock.monotonic()));
        }
        if self.refuses_ages(&step, wall, timeout).await? {
            return Ok(ImportStatus::Refused(AGES_DIFFER.to_owned()));
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

    /// Whether a step with the times of the source must be refused: its cells, or those of this group, would become older than they are. A group
    /// without tablets takes the GC time of the source over.
    ///
    /// Apply compares the times once more, without clocks: every replica must come to the same result, also those of earlier releases. A step
    /// that is refused here may have been applied before: the source then asks the group to refuse the move for ever, and the reply says what is true.
    async fn refuses_ages(&self, step: &MoveStep, wall: Option<Micros>, timeout: Duration) -> Result<bool, Failure> {
        let source = match step {
            MoveStep::Begin(start) => {
                // The GC time of a group is that of its last entry, which may have been long ago.
                self.propose_command(CommandKind::Tick, timeout).await?;
                start.gc_time
            }
            MoveStep::Chunk(ImportChunk { times: Some((_log, gc_time)), .. }) => *gc_time,
            _ => return Ok(false),
        };
        let own = self.runtime.clock.wall();
        let present = wall.map_or(own, |wall| wall.min(own));
        let applied_state = self.state_machine.applied_state();
        Ok(!applied_state.metadata.tablets.is_empty() && ages_differ(applied_state.gc_time, source, present))
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{Generation, TabletId};

    use super::*;

    #[test]
    fn a_copy_is_dropped_when_the_leader_has_seen_no_step_of_it_for_long() {
        let id = |tablet| MoveId { tablet: TabletId::new(tablet), generation: Generation::new(1) };
        let copies = BTreeMap::from([(id(1), CopyId::new(11)), (id(2), CopyId::new(12))]);
        let mut times = ImportTimes::new();
        let idle = |times: &mut ImportTimes, term: u64, second: u64| {
            idle_copies(times, &copies, Term::new(term), Duration::from_secs(second))
        };
        times.insert(id(3), (Term::new(1), Duration::ZERO));
        assert_eq!(idle(&mut times, 1, 100), [], "seen for the first time");
        assert!(!times.contains_key(&id(3)), "ended");
        times.insert(id(2), (Term::new(1), Duration::from_secs(120)));
        assert_eq!(idle(&mut times, 1, 130), []);
        assert_eq!(idle(&mut times, 1, 131), [(id(1), CopyId::new(11))]);
        assert_eq!(idle(&mut times, 1, 132), [], "not again at once");
        assert_eq!(idle(&mut times, 2, 1000), [], "a new term begins to count");
        assert_eq!(idle(&mut times, 2, 1031).len(), 2);
    }
}
