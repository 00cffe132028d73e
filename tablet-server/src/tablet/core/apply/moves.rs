//! Applying the steps of a move of a tablet to another group: in the source's log and in the target's (`model::tablet_move`).
//!
//! A step that has been applied before, or belongs to a move that has ended, changes nothing, and its reply tells the source where
//! the target stands.

use ebla_model::codec;
use ebla_model::command::{RefusalKind, Reply};
use ebla_model::group_time::{AGES_DIFFER, GroupTimes};
use ebla_model::id::{CopyId, GroupId, LogIndex, OperationId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::GroupDescriptor;
use ebla_model::schema::TableSchema;
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{
    Arrival, ArrivalProgress, Departure, DeparturePhase, DroppedRows, ImportChunk, ImportPosition, ImportStart,
    ImportStatus, ImportedSession, MoveId, MoveStep,
};
use ebla_model::time::Micros;
use ebla_runtime::Failpoint;

use super::{Applier, CellEdit, CellReader, SESSIONS_MAX, is_inside, not_here, refusal};

/// Maximum number of tablets that depart from a group at once, and of those that arrive.
const MOVES_MAX: usize = 16;

impl<C: CellReader> Applier<'_, C> {
    pub(super) fn move_step(&mut self, id: MoveId, step: MoveStep) -> Reply {
        match step {
            MoveStep::Out { target, ticket, copy } => self.move_out(id, target, ticket, copy),
            MoveStep::Done => self.move_done(id),
            MoveStep::Back => self.move_back(id),
            MoveStep::Forget => {
                if self.departure(id).is_some_and(|departure| departure.phase == DeparturePhase::Left) {
                    self.state.remove_departure(id.tablet);
                }
                Reply::Done
            }
            MoveStep::Begin(start) => Reply::Import(self.begin_import(id, *start)),
            MoveStep::Chunk(chunk) => Reply::Import(self.import(id, chunk)),
            MoveStep::Finish => Reply::Import(self.finish_import(id)),
            MoveStep::Refuse => Reply::Import(self.refuse_import(id)),
            MoveStep::Abandon(copy) => Reply::Import(self.abandon_import(id, copy)),
            MoveStep::Confirm => Reply::Import(self.confirm_import(id)),
        }
    }

    fn departure(&self, id: MoveId) -> Option<&Departure> {
        self.state.departures.get(&id.tablet).filter(|departure| departure.id() == id)
    }

    fn move_out(&mut self, id: MoveId, target: GroupDescriptor, ticket: LogIndex, copy: Option<CopyId>) -> Reply {
        let own = self.state.descriptor.group;
        let not_now = |message: &str| Reply::Refused(refusal(RefusalKind::NotNow, message));
        let Some(tablet) = self.state.tablets.get(&id.tablet) else { return Reply::Refused(not_here()) };
        if tablet.generation != id.generation {
            return Reply::Refused(refusal(RefusalKind::OutOfRange, "the tablet has changed"));
        }
        if own == GroupId::METADATA || target.group == GroupId::METADATA || target.group == own {
            return Reply::Refused(refusal(RefusalKind::OutOfRange, "the tablet cannot move to this group"));
        }
        match self.state.departures.get(&id.tablet) {
            Some(departure)
                if departure.id() == id && departure.target.group == target.group && departure.copy == copy =>
            {
                return Reply::Done;
            }
            Some(departure) if departure.id() == id => {
                return not_now("the tablet is already being moved");
            }
            Some(_earlier) => return not_now("an earlier move of the tablet is not forgotten yet"),
            None if self.state.departures.len() >= MOVES_MAX => return not_now("too many tablets leave this group"),
            None => {}
        }
        let departure = Departure { tablet: tablet.clone(), target, ticket, copy, phase: DeparturePhase::Copying };
        self.state.put_departure(departure);
        Reply::Done
    }

    fn move_done(&mut self, id: MoveId) -> Reply {
        let Some(departure) = self.departure(id).cloned() else { return Reply::Refused(not_here()) };
        if departure.phase == DeparturePhase::Copying {
            self.delete_rows(departure.tablet.table, &departure.tablet.range);
            self.state.remove_tablets(&[id.tablet]);
            self.state.put_departure(Departure { phase: DeparturePhase::Left, ..departure });
        }
        Reply::Done
    }

    fn move_back(&mut self, id: MoveId) -> Reply {
        let is_here = self.departure(id).is_some_and(|departure| departure.phase == DeparturePhase::Copying);
        let tablet = self.state.tablets.get(&id.tablet).filter(|_tablet| is_here).cloned();
        let Some(mut tablet) = tablet else { return Reply::Refused(not_here()) };
        // The next move of the tablet is another one.
        tablet.generation = tablet.generation.next();
        self.state.remove_departure(id.tablet);
        self.state.put_tablet(tablet);
        Reply::Done
    }

    fn begin_import(&mut self, id: MoveId, start: ImportStart) -> ImportStatus {
        if let Some(arrival) = self.state.arrival_of(id)
            && (arrival.copy == start.copy || !arrival.is_importing())
        {
            return status(arrival);
        }
        if start.ticket < self.state.ticket_floor {
            return ImportStatus::Refused("the ticket of the move is void; move the tablet again".to_owned());
        }
        if let Some(arrival) = self.obsolete_copy(id) {
            self.end_import(id.tablet, &arrival);
        }
        let adopted = match self.check_import(id.tablet, &start) {
            Ok(adopted) => adopted,
            Err(why) => return ImportStatus::Refused(why),
        };
        let ImportStart { source, range, schema, time, gc_time, copy, .. } = start;
        let table = schema.table;
        if !Failpoint::MoveForgetsTime.is_enabled() {
            self.state.take_over_times(time, gc_time);
        }
        if self.state.tables.get(&table).is_none_or(|known| known.schema.version < schema.version) {
            self.replace_schema(schema);
        }
        for (operation, range) in adopted {
            self.state.record_operation(operation, Some(DroppedRows { table, range }));
        }
        // What an earlier stay of the tablet, or an import that was refused, has left in the store.
        self.delete_rows(table, &range);
        let progress = ArrivalProgress::Importing(ImportPosition::Start);
        let arrival = Arrival { generation: id.generation, table, range, source, copy, progress };
        let reply = status(&arrival);
        self.state.put_arrival(id.tablet, arrival);
        reply
    }

    /// An arrival of this tablet that was begun ahead of its move, and that another attempt, or a move of a later generation of the tablet,
    /// replaces. If it was the later attempt, it is refused from now on, and a further one follows.
    fn obsolete_copy(&self, id: MoveId) -> Option<Arrival> {
        let arrival = self.state.arrivals.get(&id.tablet)?;
        let is_obsolete = arrival.copy.is_some() && arrival.is_importing() && arrival.generation <= id.generation;
        is_obsolete.then(|| arrival.clone())
    }

    /// The operations that this group takes over as applied, or why it refuses the move.
    fn check_import(&self, tablet: TabletId, start: &ImportStart) -> Result<Vec<(OperationId, KeyRange)>, String> {
        let state = &self.state;
        let table = start.schema.table;
        if state.descriptor.group == GroupId::METADATA {
            return Err("METADATA's group holds no other tablets".to_owned());
        }
        if state.dropped.contains(&table) {
            return Err("the table was dropped".to_owned());
        }
        if state.arrivals.contains_key(&tablet) {
            return Err("an earlier move of the tablet has not ended; move it again later".to_owned());
        }
        if state.arrivals.len() >= MOVES_MAX {
            return Err("too many tablets arrive in the group; move it again later".to_owned());
        }
        let overlaps = |range: &KeyRange| range.intersect(&start.range).is_some();
        let tablets = state.tablets_of(table).map(|tablet| &tablet.range);
        let importing = state.importing().filter(|arrival| arrival.table == table).map(|arrival| &arrival.range);
        if state.tablets.contains_key(&tablet) || tablets.chain(importing).any(overlaps) {
            return Err("the group has a tablet with these rows".to_owned());
        }
        self.check_schema(start)?;
        self.check_times(start.time, start.gc_time)?;
        self.check_drops(start)
    }

    /// A cell that was copied may die in the source by the rules there before the tablet departs. By a later schema it may be alive, and would be
    /// visible again here: the source must have that schema first. Earlier releases, which make no copies, do not compare.
    fn check_schema(&self, start: &ImportStart) -> Result<(), String> {
        let known = self.state.tables.get(&start.schema.table).map(|known| known.schema.version);
        if start.copy.is_some() && known.is_some_and(|known| known > start.schema.version) {
            let why = "the table is being changed, and the group with the tablet does not know its schema yet; move the tablet again later";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Sets a later schema of a table, or its first one here. Copies of its tablets by the earlier one end: see [`Self::check_schema`]. Their
    /// sources find that with their next step.
    pub(super) fn replace_schema(&mut self, schema: TableSchema) {
        for (tablet, arrival) in self.state.copies_of(schema.table) {
            self.end_import(tablet, &arrival);
        }
        self.state.set_schema(schema);
    }

    /// Ages are evaluated at a group's GC time. If that of one group is later than the present in the other group, because a clock was
    /// ahead when the group was new, cells of the other one would be older than they are, and those with a maximum age would vanish.
    fn check_times(&self, time: Micros, gc_time: Micros) -> Result<(), String> {
        let (here, there) = (self.state.times(), GroupTimes { gc: gc_time, ..GroupTimes::default() });
        let is_ahead = here.is_gc_ahead_of(time) || there.is_gc_ahead_of(here.log);
        if self.state.has_cells() && is_ahead { Err(AGES_DIFFER.to_owned()) } else { Ok(()) }
    }

    /// An operation that drops rows is applied once by each group. If only one of the two groups has applied it to rows of the
    /// tablet, it is still being applied, and the move would make it miss rows or drop new ones.
    fn check_drops(&self, start: &ImportStart) -> Result<Vec<(OperationId, KeyRange)>, String> {
        let (state, table) = (&self.state, start.schema.table);
        let busy = || Err("rows of the tablet are being dropped; move it again later".to_owned());
        let is_known_there =
            |id: OperationId| id < start.drops_known_from || start.drops.iter().any(|(known, _range)| *known == id);
        if state.drops_of(table, &start.range).any(|(id, _range)| !is_known_there(id)) {
            return busy();
        }
        let known_from = state.operations_known_from();
        let is_known = |id: &OperationId| *id < known_from || state.operations.contains_key(id);
        let adopted: Vec<_> = start.drops.iter().filter(|(id, _range)| !is_known(id)).cloned().collect();
        let tablets = || state.tablets_of(table).map(|tablet| &tablet.range);
        let importing = || state.importing().filter(|arrival| arrival.table == table).map(|arrival| &arrival.range);
        let is_due = |range: &KeyRange| tablets().chain(importing()).any(|rows| rows.intersect(range).is_some());
        if adopted.iter().any(|(_id, range)| is_due(range)) { busy() } else { Ok(adopted) }
    }

    fn import(&mut self, id: MoveId, chunk: ImportChunk) -> ImportStatus {
        let arrival = match self.state.arrival_of(id) {
            None => return unknown(),
            Some(arrival) => arrival.clone(),
        };
        if arrival.is_importing() && arrival.copy != chunk.copy {
            return ImportStatus::Refused("the chunk belongs to another copy of the tablet".to_owned());
        }
        if arrival.progress != ArrivalProgress::Importing(chunk.from.clone()) {
            return status(&arrival);
        }
        let (lower, upper) = codec::range_bounds(&stored_range(arrival.table, &arrival.range));
        let stored = chunk.cells.iter().map(|(key, _)| key).chain(chunk.tokens.iter().map(|token| &token.key));
        let removed = chunk.removed.keys.iter().chain(chunk.removed.ranges.iter().map(|(from, _to)| from));
        let mut keys = stored.chain(removed);
        if !keys.all(|key| is_inside(key, &lower, upper.as_deref())) {
            return ImportStatus::Refused("the chunk has rows of another tablet".to_owned());
        }
        if let Some(Err(why)) = chunk.times.map(|(time, gc_time)| self.check_times(time, gc_time)) {
            return ImportStatus::Refused(why);
        }
        if !self.has_room_for_sessions(&chunk.sessions) {
            return ImportStatus::Refused(
                "too many sessions write to the group; move the tablet again later".to_owned(),
            );
        }
        for token in &chunk.tokens {
            if !self.state.has_room_for_import(token, chunk.copy) {
                let why = "the group's memory for idempotency tokens is full; move the tablet again later";
                return ImportStatus::Refused(why.to_owned());
            }
            if !Failpoint::MoveForgetsTokens.is_enabled() {
                self.state.import_token(token);
            }
        }
        for session in chunk.sessions {
            if !Failpoint::MoveForgetsSessions.is_enabled() {
                self.absorb_session(session);
            }
        }
        if let Some((time, gc_time)) = chunk.times.filter(|_times| !Failpoint::MoveForgetsTime.is_enabled()) {
            self.state.take_over_times(time, gc_time);
        }
        for (from, to) in chunk.removed.ranges {
            let to = Some(to.to_vec()).filter(|to| !to.is_empty()).into_iter().chain(upper.clone()).min();
            if to.as_ref().is_none_or(|to| from.as_ref() < to.as_slice()) {
                self.edits.push(CellEdit::DeleteRange(from.to_vec(), to));
            }
        }
        self.edits.extend(chunk.removed.keys.into_iter().map(|key| CellEdit::Delete(key.to_vec())));
        self.edits.extend(chunk.cells.into_iter().map(|(key, value)| CellEdit::Put(key.to_vec(), value.to_vec())));
        self.state.set_import_position(id.tablet, chunk.to.clone());
        ImportStatus::Importing(chunk.to)
    }

    fn has_room_for_sessions(&mut self, sessions: &[ImportedSession]) -> bool {
        let new = |state: &super::GroupState| {
            sessions.iter().filter(|one| !state.sessions.contains_key(&one.session)).count()
        };
        if self.state.sessions.len() + new(self.state) > SESSIONS_MAX {
            self.state.forget_idle_sessions();
        }
        self.state.sessions.len() + new(self.state) <= SESSIONS_MAX
    }

    fn absorb_session(&mut self, imported: ImportedSession) {
        let last_used = self.state.session_time().minus(imported.idle);
        self.state.session(imported.session).absorb(imported.window, last_used);
    }

    fn finish_import(&mut self, id: MoveId) -> ImportStatus {
        let arrival = match self.state.arrival_of(id) {
            None => return unknown(),
            Some(arrival) => arrival.clone(),
        };
        if arrival.progress != ArrivalProgress::Importing(ImportPosition::End) {
            return status(&arrival);
        }
        let generation = id.generation.next();
        let tablet = self.state.descriptor.tablet(arrival.table, id.tablet, arrival.range.clone(), generation);
        self.state.put_tablet(tablet);
        self.state.put_arrival(id.tablet, Arrival { progress: ArrivalProgress::Served, ..arrival });
        ImportStatus::Served
    }

    fn refuse_import(&mut self, id: MoveId) -> ImportStatus {
        let arrival = self.state.arrival_of(id).cloned();
        if arrival.as_ref().is_some_and(|arrival| !arrival.is_importing()) {
            return ImportStatus::Served;
        }
        match arrival {
            Some(arrival) => self.end_import(id.tablet, &arrival),
            None => self.state.raise_ticket_floor(),
        }
        ImportStatus::Refused("the move is refused".to_owned())
    }

    /// Ends a copy; a `Begin` of it that arrives later is refused by its ticket. A later attempt is not concerned.
    fn abandon_import(&mut self, id: MoveId, copy: CopyId) -> ImportStatus {
        match self.state.arrival_of(id).cloned() {
            Some(arrival) if arrival.is_importing() && arrival.copy == Some(copy) => {
                self.end_import(id.tablet, &arrival)
            }
            Some(arrival) => return status(&arrival),
            None => self.state.raise_ticket_floor(),
        }
        ImportStatus::Refused("the copy is abandoned".to_owned())
    }

    /// Removes what has been imported of a tablet, and makes all earlier tickets void.
    fn end_import(&mut self, tablet: TabletId, arrival: &Arrival) {
        self.delete_rows(arrival.table, &arrival.range);
        self.state.remove_arrival(tablet);
        self.state.raise_ticket_floor();
    }

    fn confirm_import(&mut self, id: MoveId) -> ImportStatus {
        match self.state.arrival_of(id) {
            Some(arrival) if arrival.is_importing() => status(arrival),
            Some(_served) => {
                self.state.remove_arrival(id.tablet);
                ImportStatus::Served
            }
            None => ImportStatus::Served,
        }
    }
}

fn status(arrival: &Arrival) -> ImportStatus {
    match &arrival.progress {
        ArrivalProgress::Importing(position) => ImportStatus::Importing(position.clone()),
        ArrivalProgress::Served => ImportStatus::Served,
    }
}

fn unknown() -> ImportStatus {
    ImportStatus::Refused("the group does not take part in this move".to_owned())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod time_tests;
