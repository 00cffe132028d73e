//! The target's side of a move: each step of the source becomes an entry of this group's log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::{CommandKind, Reply};
use ebla_model::gc::age_floor;
use ebla_model::group_time::{AGES_DIFFER, ages_differ};
use ebla_model::id::{CopyId, GroupId, LogIndex, Term};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{ImportChunk, ImportStart, ImportStatus, MoveId, MoveStep};
use ebla_model::time::Micros;

use tracing::{info, warn};

use crate::tablet::TabletGroup;
use crate::tablet::core::state::{GroupState, raise_by_rules};
use crate::tablet::failure::Failure;
use crate::tablet::read::scan::pool_failure;

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
        if self.hides_cells(&step).await? {
            return Ok(ImportStatus::Refused(FLOORS_DIFFER.to_owned()));
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

impl TabletGroup {
    /// Whether a step must be refused because the group would hide cells that are alive in the source; see [`hides_cells`].
    async fn hides_cells(&self, step: &MoveStep) -> Result<bool, Failure> {
        let MoveStep::Begin(start) = step else { return Ok(false) };
        let (state_machine, start) = (Arc::clone(&self.state_machine), start.clone());
        let compare = move || state_machine.with_state(|state| hides_cells(state, &start));
        self.maintenance.run(compare).await.map_err(pool_failure)
    }
}

/// A move is refused when it would hide cells that are alive in the source.
const FLOORS_DIFFER: &str = "the other group has had a shorter maximum age for the table, and would hide cells of the tablet; move it to another group";
/// By how much the floors of two groups may differ: a change of a rule reaches them one after the other.
const FLOORS_DIFFER_MAX: Duration = Duration::from_secs(60);

/// Whether a group's floors for a table would hide cells of a tablet that are alive in the source. A rule with a shorter maximum age may have been
/// in force in this group for longer than in the source, or may be in force here still, if the group has no tablet of the table: it got no later
/// schema then.
fn hides_cells(state: &GroupState, start: &ImportStart) -> bool {
    let (Some(there), Some(known)) = (&start.floors, state.tables.get(&start.schema.table)) else { return false };
    let (mut here, gc_time) = match state.has_cells() {
        true => (known.floors.clone(), state.gc_time),
        // It takes the GC time of the source over, and forgets its floors.
        false => (BTreeMap::new(), start.gc_time),
    };
    raise_by_rules(&mut here, &known.schema, gc_time);
    here.into_iter().any(|(family, floor)| {
        let Some(family) = start.schema.family_by_id(family) else { return false };
        let by_rule = age_floor(family.gc.as_ref(), gc_time).unwrap_or_default();
        let there = there.get(&family.id).copied().unwrap_or_default().max(by_rule);
        floor.since(there) > FLOORS_DIFFER_MAX
    })
}

#[cfg(test)]
mod tests {
    use ebla_model::cell::FamilyName;
    use ebla_model::gc::GcRule;
    use ebla_model::id::{Generation, SchemaVersion, ServerId, TableId, TabletId};
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::GroupDescriptor;
    use ebla_model::schema::{NewFamily, TableName, TableSchema};
    use ebla_model::tablet_move::{Departure, DeparturePhase};

    use super::super::export::{self, Exported};
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn schema(version: u64, days: u32) -> TableSchema {
        let family = NewFamily::plain(FamilyName::new("f").unwrap(), Some(GcRule::MaxAge(DAY * days)));
        let name = TableName::from_parts("p", "inst", "t").unwrap();
        let mut schema = TableSchema::with_families(TableId::new(5), name, [family]).unwrap();
        schema.version = SchemaVersion::new(version);
        schema
    }

    fn group(id: u64) -> GroupState {
        GroupState::fresh(GroupDescriptor::initial(GroupId::new(id), &[1, 2, 3].map(ServerId::new)))
    }

    /// The beginning of a move whose source has applied these schemas, each at its day.
    fn begin(schemas: &[(u64, TableSchema)], day: u64) -> ImportStart {
        let mut source = group(10);
        for (day, schema) in schemas {
            advance(&mut source, *day);
            source.set_schema(schema.clone());
        }
        advance(&mut source, day);
        let tablet = Departure {
            tablet: source.descriptor.new_tablet(TableId::new(5), TabletId::new(7), KeyRange::all()),
            target: source.descriptor.clone(),
            ticket: LogIndex::new(1),
            copy: None,
            phase: DeparturePhase::Copying,
        };
        export::start(&source, &Exported::of(&tablet)).unwrap()
    }

    fn advance(state: &mut GroupState, day: u64) {
        let at = Micros::ZERO.plus(DAY * u32::try_from(1_000 + day).unwrap());
        let passed = (state.time > Micros::ZERO).then(|| at.since(state.time));
        state.advance_time(at, passed, None);
    }

    /// A rule is loosened from one day to thirty on day 1, and a tablet moves on day 21.
    #[test]
    fn a_group_without_the_longer_age_takes_no_tablet() {
        let start = begin(&[(0, schema(1, 1)), (1, schema(2, 30))], 21);
        let mut stale = group(11);
        advance(&mut stale, 0);
        stale.set_schema(schema(1, 1));
        advance(&mut stale, 21);
        assert!(hides_cells(&stale, &start), "an empty group raises its floors by the rule that it knows");
        stale.add_tablet(schema(1, 1), TabletId::new(8), KeyRange::prefix(b"z"));
        assert!(hides_cells(&stale, &start));
        assert!(!hides_cells(&group(12), &start), "a group that does not know the table");
        let earlier_release = ImportStart { floors: None, ..start.clone() };
        assert!(!hides_cells(&stale, &earlier_release));

        let mut current = group(13);
        advance(&mut current, 0);
        current.add_tablet(schema(1, 1), TabletId::new(8), KeyRange::prefix(b"z"));
        advance(&mut current, 1);
        current.set_schema(schema(2, 30));
        advance(&mut current, 21);
        assert!(!hides_cells(&current, &start), "the source has the same floor");
    }

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
