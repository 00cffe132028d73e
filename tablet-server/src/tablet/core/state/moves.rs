//! The part of a group's state for moves of tablets between groups (`model::tablet_move`). Pure.

use ebla_model::id::{CopyId, LogId, LogIndex, OperationId, TableId, TabletId, Term};
use ebla_model::key::KeyRange;
use ebla_model::tablet_move::{
    Arrival, ArrivalProgress, Departure, DeparturePhase, ImportPosition, ImportedToken, MoveId,
};
use ebla_model::time::Micros;
use ebla_proto::convert;
use ebla_storage::store::layout::{self, MetaKey};

use super::{GroupState, MetaEdit, OPERATIONS_MAX};

impl GroupState {
    /// Whether the group has tablets, or receives some.
    #[must_use]
    pub fn has_cells(&self) -> bool {
        !self.tablets.is_empty() || !self.arrivals.is_empty()
    }

    /// Takes the times of a group from which a tablet is imported over: timestamps that were given there are not given again, and no
    /// cell that was dead there comes back. A group without cells takes its GC time, so that no cell becomes older by the move.
    pub fn take_over_times(&mut self, log: Micros, gc: Micros) {
        if self.has_cells() {
            self.set_times(self.times().raise(log, gc));
            return;
        }
        for (table, state) in &mut self.tables {
            state.floors.clear();
            self.dirty.floors.insert(*table);
        }
        self.floors_raised_at = Micros::ZERO;
        self.set_times(self.times().adopt(log, gc));
    }

    /// The group that a tablet departs to while it is still here, or `None` if it is served.
    #[must_use]
    pub fn departure_of(&self, tablet: TabletId) -> Option<&Departure> {
        self.departures.get(&tablet).filter(|departure| departure.phase == DeparturePhase::Copying)
    }

    /// Whether a tablet of this table with rows in `range` departs, or is being imported.
    #[must_use]
    pub fn is_moving(&self, table: TableId, range: &KeyRange) -> bool {
        let departs = |departure: &Departure| departure.phase == DeparturePhase::Copying;
        let departing = self.departures.values().filter(|departure| departs(departure));
        let departing = departing.map(|departure| (departure.tablet.table, &departure.tablet.range));
        let mut moving = departing.chain(self.importing().map(|arrival| (arrival.table, &arrival.range)));
        moving.any(|(of, rows)| of == table && rows.intersect(range).is_some())
    }

    /// Starts or changes a departure.
    pub fn put_departure(&mut self, departure: Departure) {
        self.dirty.departures.insert(departure.tablet.tablet);
        self.departures.insert(departure.tablet.tablet, departure);
    }

    /// Ends a departure.
    pub fn remove_departure(&mut self, tablet: TabletId) {
        self.departures.remove(&tablet);
        self.dirty.departures.insert(tablet);
    }

    /// The tablets that are being imported.
    pub fn importing(&self) -> impl Iterator<Item = &Arrival> {
        self.arrivals.values().filter(|arrival| arrival.is_importing())
    }

    /// The copies that were begun ahead of their moves and are not complete.
    pub fn copies(&self) -> impl Iterator<Item = (MoveId, CopyId)> {
        let importing = self.arrivals.iter().filter(|(_tablet, arrival)| arrival.is_importing());
        importing.filter_map(|(tablet, arrival)| {
            Some((MoveId { tablet: *tablet, generation: arrival.generation }, arrival.copy?))
        })
    }

    /// The arrival of this move.
    #[must_use]
    pub fn arrival_of(&self, id: MoveId) -> Option<&Arrival> {
        self.arrivals.get(&id.tablet).filter(|arrival| arrival.generation == id.generation)
    }

    /// Starts or changes an arrival.
    pub fn put_arrival(&mut self, tablet: TabletId, arrival: Arrival) {
        self.dirty.arrivals.insert(tablet);
        self.arrivals.insert(tablet, arrival);
    }

    /// Records that the content of a tablet is here up to this position.
    pub fn set_import_position(&mut self, tablet: TabletId, position: ImportPosition) {
        if let Some(arrival) = self.arrivals.get_mut(&tablet) {
            arrival.progress = ArrivalProgress::Importing(position);
            self.dirty.positions.insert(tablet);
        }
    }

    /// Ends an arrival. The tokens of a tablet that is not served are removed.
    pub fn remove_arrival(&mut self, tablet: TabletId) {
        let removed = self.arrivals.remove(&tablet);
        self.dirty.arrivals.insert(tablet);
        if removed.is_some_and(|arrival| arrival.is_importing()) {
            self.dirty.tokens.extend(self.tokens.retain(&self.stored_ranges()));
        }
    }

    /// Whether the group can store a token of a tablet that is imported. A difference of a copy may have a token again that is here already:
    /// it takes the place of the first one. Without copies a token comes once, and earlier releases decide alike.
    pub fn has_room_for_import(&mut self, token: &ImportedToken, copy: Option<CopyId>) -> bool {
        let result = token.result.as_ref();
        if copy.is_none() {
            return self.has_room_for_token(&token.key, result);
        }
        if !self.tokens.has_room_to_replace(&token.key, result) {
            self.forget_tokens();
        }
        self.tokens.has_room_to_replace(&token.key, result)
    }

    /// The copies of tablets of this table that are being imported and were begun ahead of their moves.
    pub fn copies_of(&self, table: TableId) -> Vec<(TabletId, Arrival)> {
        let is_copy = |arrival: &Arrival| arrival.is_importing() && arrival.copy.is_some() && arrival.table == table;
        let copies = self.arrivals.iter().filter(|(_tablet, arrival)| is_copy(arrival));
        copies.map(|(tablet, arrival)| (*tablet, arrival.clone())).collect()
    }

    /// Ends the imports of a table that is dropped.
    pub(super) fn drop_imports(&mut self, table: TableId) {
        let dropped = |arrival: &Arrival| arrival.is_importing() && arrival.table == table;
        let dropped = self.arrivals.iter().filter(|(_tablet, arrival)| dropped(arrival));
        let dropped: Vec<TabletId> = dropped.map(|(tablet, _arrival)| *tablet).collect();
        for tablet in dropped {
            self.arrivals.remove(&tablet);
            self.dirty.arrivals.insert(tablet);
        }
    }

    /// Makes all tickets void that were given before the entry that is being applied.
    pub fn raise_ticket_floor(&mut self) {
        self.ticket_floor = self.applied.index.plus(1);
        self.dirty.ticket_floor = true;
    }

    /// The operations that have dropped rows of a table in `range`, each with its own range.
    pub fn drops_of<'a>(
        &'a self,
        table: TableId,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = (OperationId, &'a KeyRange)> {
        let dropped = self.operations.iter().filter_map(|(id, dropped)| Some((*id, dropped.as_ref()?)));
        let of_table = dropped.filter(move |(_id, rows)| rows.table == table && rows.range.intersect(range).is_some());
        of_table.map(|(id, rows)| (id, &rows.range))
    }

    /// Operations below this one may have been applied and forgotten.
    #[must_use]
    pub fn operations_known_from(&self) -> OperationId {
        let is_full = self.operations.len() >= OPERATIONS_MAX;
        self.operations.first_key_value().filter(|_first| is_full).map(|(id, _)| *id).unwrap_or_default()
    }

    pub(super) fn departure_edit(&self, id: TabletId) -> MetaEdit {
        let key = MetaKey::Departure(id);
        match self.departures.get(&id).map(convert::tablet_move::departure_to_bytes) {
            Some(value) => MetaEdit::Put(key, value),
            None => MetaEdit::Delete(key),
        }
    }

    pub(super) fn arrival_edit(&self, id: TabletId) -> MetaEdit {
        let key = MetaKey::Arrival(id);
        match self.arrivals.get(&id) {
            Some(arrival) => MetaEdit::Put(key, convert::tablet_move::arrival_to_bytes(id, arrival)),
            None => MetaEdit::Delete(key),
        }
    }

    pub(super) fn ticket_floor_edit(&self) -> MetaEdit {
        if self.ticket_floor == LogIndex::default() {
            return MetaEdit::Delete(MetaKey::TicketFloor);
        }
        let floor = LogId { term: Term::default(), index: self.ticket_floor };
        MetaEdit::Put(MetaKey::TicketFloor, layout::encode_log_id(floor))
    }
}
