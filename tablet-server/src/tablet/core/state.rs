//! The replicated state of a group besides its cells, and its persistent form: its tablets, the schemas of their tables,
//! sessions and tokens.
//!
//! It is stored under the meta keys of the replica's store (`storage::store::layout`), which change in the same write
//! batch as the cells, so after a crash they match the cells exactly. The membership is stored once, with the group; the
//! descriptors of the tablets here are complete.
//!
//! Pure: the state is a value, and changes are returned as a list of edits.

#[cfg(test)]
mod fuzz_tests;
mod loader;
mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::gc::age_floor;
use ebla_model::group_time::GroupTimes;
use ebla_model::id::{FamilyId, GroupId, LogId, LogIndex, OperationId, SessionId, TableId, TabletId};
use ebla_model::idempotency::{TokenRecord, TokenTable};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{self, GroupDescriptor, Membership, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::session::SessionWindow;
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{Arrival, Departure, DroppedRows, ImportedToken};
use ebla_model::time::Micros;
use ebla_proto::convert;
use ebla_runtime::Failpoint;
use ebla_storage::store::layout::{self, MetaKey};

use self::loader::StateLoader;

/// Maximum number of stored operations; the oldest ids are forgotten first. A master does not repeat such old ones.
const OPERATIONS_MAX: usize = 1024;

/// Maximum number of stored ids of dropped tables; the lowest are forgotten first. A request for a tablet of a forgotten
/// one fails with the error that the group does not have the tablet.
const DROPPED_MAX: usize = 1024;

/// Raises floors to the ages that the rules of a schema expire at a GC time. Returns whether one has changed.
pub fn raise_by_rules(floors: &mut BTreeMap<FamilyId, Micros>, schema: &TableSchema, gc_time: Micros) -> bool {
    let mut is_raised = false;
    for family in &schema.families {
        let Some(floor) = age_floor(family.gc.as_ref(), gc_time) else { continue };
        let known = floors.entry(family.id).or_insert(Micros::ZERO);
        is_raised |= floor > *known;
        *known = floor.max(*known);
    }
    is_raised
}

/// Age floors are raised in steps of the GC time, because each raise expires the views in use.
const FLOOR_STEP: Duration = Duration::from_secs(60);

/// A change of the meta keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaEdit {
    /// Stores this value under the key.
    Put(MetaKey, Bytes),
    /// Removes the key.
    Delete(MetaKey),
}

/// A table as a group knows it, for its tablets in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableState {
    /// The schema, in the latest version that this group has received.
    pub schema: Arc<TableSchema>,
    /// Cells below the floor of their family are dead, whatever later rules say. Floors never fall.
    pub floors: BTreeMap<FamilyId, Micros>,
}

/// The state of a replica except its cells.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// The group and its replicas.
    pub descriptor: GroupDescriptor,
    /// The tablets of the group, each with the group's replicas.
    pub tablets: BTreeMap<TabletId, TabletDescriptor>,
    /// The tables of these tablets, and tables whose tablets have all moved to other groups.
    pub tables: BTreeMap<TableId, TableState>,
    /// Tables that were dropped.
    pub dropped: BTreeSet<TableId>,
    /// The last entry applied.
    pub applied: LogId,
    /// The greatest timestamp of a command: the log's time.
    pub time: Micros,
    /// The time at which cell ages are evaluated: see [`GroupTimes`].
    pub gc_time: Micros,
    /// The recently applied writes of each session.
    pub sessions: BTreeMap<SessionId, SessionWindow>,
    /// By how much the log's time is ahead of the session time: see [`GroupState::session_time`].
    pub jumped: Duration,
    /// The recently applied writes with an idempotency token.
    pub tokens: TokenTable,
    /// The applied operations, so that repeating one has no effect, with the rows that it dropped, if it did.
    pub operations: BTreeMap<OperationId, Option<DroppedRows>>,
    /// Tablets that move to other groups.
    pub departures: BTreeMap<TabletId, Departure>,
    /// Tablets that move to this group.
    pub arrivals: BTreeMap<TabletId, Arrival>,
    /// Tickets of moves below this index are void (`model::tablet_move`).
    pub ticket_floor: LogIndex,
    /// The GC time when the floors were last raised. Not stored: after a restart they are raised at the first command, which
    /// may be earlier than on other replicas but is not visible, because reads use the GC time itself.
    floors_raised_at: Micros,
    dirty: DirtyKeys,
}

/// The changes since the last [`GroupState::take_edits`].
#[derive(Clone, Debug, Default)]
struct DirtyKeys {
    group: bool,
    tablets: BTreeSet<TabletId>,
    tables: BTreeSet<TableId>,
    floors: BTreeSet<TableId>,
    dropped: BTreeSet<TableId>,
    jumped: bool,
    sessions: BTreeSet<SessionId>,
    tokens: BTreeSet<Bytes>,
    operations: BTreeSet<OperationId>,
    departures: BTreeSet<TabletId>,
    arrivals: BTreeSet<TabletId>,
    /// Arrivals of which only the position has changed.
    positions: BTreeSet<TabletId>,
    ticket_floor: bool,
}

impl GroupState {
    /// The state of a newly created group, applied up to the seed, nothing saved yet. METADATA's group starts with
    /// METADATA's first tablets, every other group without a tablet.
    #[must_use]
    pub fn fresh(descriptor: GroupDescriptor) -> Self {
        let mut state = Self { applied: LogId::SEED, ..Self::empty(descriptor.group) };
        state.descriptor = descriptor;
        if state.descriptor.group == GroupId::METADATA {
            for (tablet, range) in metadata::first_ranges() {
                state.add_tablet(TableSchema::metadata(), tablet, range);
            }
            state.dirty = DirtyKeys::default();
        }
        state
    }

    /// The state of an empty replica, which the group's leader fills with a snapshot. It has no tablets, so it serves nothing.
    #[must_use]
    pub fn empty(group: GroupId) -> Self {
        Self {
            descriptor: GroupDescriptor {
                group,
                membership: Membership::default(),
                membership_log_id: LogId::default(),
            },
            tablets: BTreeMap::new(),
            tables: BTreeMap::new(),
            dropped: BTreeSet::new(),
            applied: LogId::default(),
            time: Micros::ZERO,
            gc_time: Micros::ZERO,
            sessions: BTreeMap::new(),
            jumped: Duration::ZERO,
            tokens: TokenTable::default(),
            operations: BTreeMap::new(),
            departures: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            ticket_floor: LogIndex::default(),
            floors_raised_at: Micros::ZERO,
            dirty: DirtyKeys::default(),
        }
    }

    /// The state of the new group of a divided one, applied up to the seed: it has the tablets `moved`. It inherits the
    /// sessions and operations, so that a write repeated after the division is still recognized, and the tokens of its rows.
    /// Moves stay with this group.
    /// Its edits turn a copy of the stored state of this group into its own.
    #[must_use]
    pub fn child(&self, descriptor: GroupDescriptor, moved: &[TabletDescriptor]) -> Self {
        let tablets: BTreeMap<_, _> = moved.iter().map(|tablet| (tablet.tablet, tablet.clone())).collect();
        let has_table = |table: &TableId| moved.iter().any(|tablet| tablet.table == *table);
        let tables = self.tables.iter().filter(|(table, _)| has_table(table));
        let tables = tables.map(|(table, state)| (*table, state.clone())).collect();
        let dirty = self.all_keys();
        let mut child = Self {
            descriptor,
            tablets,
            tables,
            applied: LogId::SEED,
            departures: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            ticket_floor: LogIndex::default(),
            dirty,
            ..self.clone()
        };
        // These keys are among the dirty ones.
        let _of_tablets_that_stay = child.tokens.retain(&child.stored_ranges());
        child
    }

    /// Reads the state stored by [`GroupState::save`] and the edits of later commands.
    ///
    /// # Errors
    /// `DataDamaged` when a required key is missing, or a value cannot be decoded.
    pub fn load(meta: impl IntoIterator<Item = (Bytes, Bytes)>) -> Result<Self, Error> {
        let mut loader = StateLoader::default();
        for (key, value) in meta {
            loader.load_key(&key, &value).map_err(|error| error.context("read group state"))?;
        }
        loader.finish()
    }

    /// All meta keys, for a new store.
    #[must_use]
    pub fn save(&self) -> Vec<MetaEdit> {
        let mut all = Self { dirty: self.all_keys(), ..self.clone() };
        all.take_edits()
    }

    /// All keys of the state.
    fn all_keys(&self) -> DirtyKeys {
        DirtyKeys {
            group: true,
            tablets: self.tablets.keys().copied().collect(),
            tables: self.tables.keys().copied().collect(),
            floors: self.tables.keys().copied().collect(),
            dropped: self.dropped.clone(),
            jumped: true,
            sessions: self.sessions.keys().copied().collect(),
            tokens: self.tokens.keys().cloned().collect(),
            operations: self.operations.keys().copied().collect(),
            departures: self.departures.keys().copied().collect(),
            arrivals: self.arrivals.keys().copied().collect(),
            positions: BTreeSet::new(),
            ticket_floor: true,
        }
    }

    /// The edits since the last call that bring the stored keys to this state. The applied id and the
    /// times are always included.
    #[must_use]
    pub fn take_edits(&mut self) -> Vec<MetaEdit> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut edits = vec![
            MetaEdit::Put(MetaKey::Applied, layout::encode_log_id(self.applied)),
            MetaEdit::Put(MetaKey::LastTime, layout::encode_micros(self.time)),
            MetaEdit::Put(MetaKey::GcTime, layout::encode_micros(self.gc_time)),
        ];
        if dirty.group {
            edits.push(MetaEdit::Put(MetaKey::Group, convert::group_to_bytes(&self.descriptor)));
        }
        if dirty.jumped {
            edits.push(MetaEdit::Put(MetaKey::Leapt, layout::encode_micros(Micros::ZERO.plus(self.jumped))));
        }
        edits.extend(dirty.tablets.iter().map(|id| self.tablet_edit(*id)));
        edits.extend(dirty.tables.iter().map(|id| self.table_edit(*id)));
        edits.extend(dirty.floors.iter().map(|id| self.floors_edit(*id)));
        edits.extend(dirty.dropped.iter().map(|id| self.dropped_edit(*id)));
        edits.extend(dirty.sessions.iter().map(|id| self.session_edit(*id)));
        edits.extend(dirty.tokens.into_iter().map(|key| self.token_edit(key)));
        edits.extend(dirty.operations.iter().map(|id| self.operation_edit(*id)));
        edits.extend(dirty.departures.iter().map(|id| self.departure_edit(*id)));
        edits.extend(dirty.arrivals.union(&dirty.positions).map(|id| self.arrival_edit(*id)));
        edits.extend(dirty.ticket_floor.then(|| self.ticket_floor_edit()));
        edits
    }

    /// Advances the times as a command says. Age floors follow in steps.
    pub fn advance_time(&mut self, time: Micros, elapsed: Option<Duration>, clock: Option<Micros>) {
        self.set_times(self.times().advance(time, elapsed, clock));
    }

    fn set_times(&mut self, times: GroupTimes) {
        let jumped = times.log.since(times.session);
        self.dirty.jumped |= jumped != self.jumped;
        self.jumped = jumped;
        self.time = times.log;
        self.gc_time = if Failpoint::ClockJumpAgesCells.is_enabled() { times.log } else { times.gc };
        if self.gc_time.since(self.floors_raised_at) >= FLOOR_STEP {
            self.raise_floors();
            self.forget_idle_sessions();
            self.forget_tokens();
        }
    }

    /// The clock for idle sessions and tokens: the log's time without its jumps ([`GroupTimes`]). It may be slow, which keeps them
    /// for longer.
    #[must_use]
    pub fn session_time(&self) -> Micros {
        self.time.minus(self.jumped)
    }

    /// All times.
    #[must_use]
    pub fn times(&self) -> GroupTimes {
        GroupTimes { log: self.time, session: self.session_time(), gc: self.gc_time }
    }

    /// Whether metadata that readers or compactions depend on has changed since the last [`GroupState::take_edits`].
    #[must_use]
    pub fn has_metadata_changed(&self) -> bool {
        self.dirty.group
            || !self.dirty.tablets.is_empty()
            || !self.dirty.tables.is_empty()
            || !self.dirty.floors.is_empty()
            || !self.dirty.dropped.is_empty()
            || !self.dirty.departures.is_empty()
            || !self.dirty.arrivals.is_empty()
    }

    /// The stored rows of each tablet, and of each one that is being imported.
    #[must_use]
    pub fn stored_ranges(&self) -> Vec<KeyRange> {
        let tablets = self.tablets.values().map(|tablet| stored_range(tablet.table, &tablet.range));
        tablets.chain(self.importing().map(|arrival| stored_range(arrival.table, &arrival.range))).collect()
    }

    /// The tablets of a table.
    pub fn tablets_of(&self, table: TableId) -> impl Iterator<Item = &TabletDescriptor> {
        self.tablets.values().filter(move |tablet| tablet.table == table)
    }

    /// The table of a tablet.
    #[must_use]
    pub fn table_of(&self, tablet: TabletId) -> Option<&TableState> {
        self.tables.get(&self.tablets.get(&tablet)?.table)
    }

    /// Adds a new tablet, and its table unless the group knows it.
    pub fn add_tablet(&mut self, schema: TableSchema, tablet: TabletId, range: KeyRange) {
        let table = schema.table;
        if schema.version > self.tables.get(&table).map(|known| known.schema.version).unwrap_or_default() {
            self.set_schema(schema);
        }
        self.put_tablet(self.descriptor.new_tablet(table, tablet, range));
    }

    /// Sets a tablet's range and generation.
    pub fn put_tablet(&mut self, tablet: TabletDescriptor) {
        self.dirty.tablets.insert(tablet.tablet);
        self.tablets.insert(tablet.tablet, tablet);
    }

    /// Sets a tablet that has all rows of the tablet `left`, which is removed. The tokens of these rows stay.
    pub fn put_merged(&mut self, merged: TabletDescriptor, left: TabletId) {
        self.put_tablet(merged);
        self.tablets.remove(&left);
        self.dirty.tablets.insert(left);
        self.raise_ticket_floor();
    }

    /// Removes tablets that have moved to another group, with the tokens of their rows.
    pub fn remove_tablets(&mut self, tablets: &[TabletId]) {
        for tablet in tablets {
            self.tablets.remove(tablet);
            self.dirty.tablets.insert(*tablet);
        }
        self.dirty.tokens.extend(self.tokens.retain(&self.stored_ranges()));
        self.raise_ticket_floor();
    }

    /// Removes a table that is dropped, with its tablets and the tokens of its rows.
    pub fn drop_table(&mut self, table: TableId) {
        self.drop_imports(table);
        let tablets: Vec<TabletId> = self.tablets_of(table).map(|tablet| tablet.tablet).collect();
        self.remove_tablets(&tablets);
        self.tables.remove(&table);
        self.dirty.tables.insert(table);
        self.dirty.floors.insert(table);
        self.dropped.insert(table);
        self.dirty.dropped.insert(table);
        while self.dropped.len() > DROPPED_MAX {
            self.dirty.dropped.extend(self.dropped.pop_first());
        }
    }

    /// Sets the membership of the log entry `id`.
    pub fn set_membership(&mut self, id: LogId, membership: Membership) {
        self.descriptor.membership = membership;
        self.descriptor.membership_log_id = id;
        self.dirty.group = true;
        for tablet in self.tablets.values_mut() {
            tablet.membership = self.descriptor.membership.clone();
            tablet.membership_log_id = id;
        }
    }

    /// Sets a later schema of a table. Floors are raised first under the old rules: what these had expired stays dead.
    pub fn set_schema(&mut self, schema: TableSchema) {
        self.raise_floors();
        let table = schema.table;
        let mut floors = self.tables.get(&table).map(|known| known.floors.clone()).unwrap_or_default();
        floors.retain(|family, _| schema.family_by_id(*family).is_some());
        let is_new = self.tables.insert(table, TableState { schema: Arc::new(schema), floors }).is_none();
        if is_new || !Failpoint::SchemaNotSaved.is_enabled() {
            self.dirty.tables.insert(table);
        }
        self.dirty.floors.insert(table);
    }

    /// Records an operation, with the rows that it drops; `true` when it is new.
    pub fn record_operation(&mut self, operation: OperationId, dropped: Option<DroppedRows>) -> bool {
        if self.operations.contains_key(&operation) {
            return false;
        }
        self.operations.insert(operation, dropped);
        self.dirty.operations.insert(operation);
        while self.operations.len() > OPERATIONS_MAX {
            if let Some((oldest, _dropped)) = self.operations.pop_first() {
                self.dirty.operations.insert(oldest);
            }
        }
        true
    }

    /// The session's window; a new one if the session is unknown or expired.
    pub fn session(&mut self, id: SessionId) -> &mut SessionWindow {
        self.dirty.sessions.insert(id);
        let time = self.session_time();
        let window = self.sessions.entry(id).or_default();
        if window.is_expired(time) {
            *window = SessionWindow::default();
        }
        window
    }

    /// Whether the group can accept one more session. Only sessions that are alive by the session time count, however
    /// many expired ones this replica still stores: all replicas decide alike.
    pub fn has_room_for_session(&mut self, id: SessionId, sessions_max: usize) -> bool {
        if self.sessions.len() < sessions_max || self.sessions.contains_key(&id) {
            return true;
        }
        self.forget_idle_sessions();
        self.sessions.len() < sessions_max
    }

    /// Whether the group can store one more token. As with sessions, all replicas decide alike.
    pub fn has_room_for_token(&mut self, key: &[u8], result: Option<&Bytes>) -> bool {
        if !self.tokens.has_room(key, result) {
            self.forget_tokens();
        }
        self.tokens.has_room(key, result)
    }

    /// Records a write with a token that is being applied.
    pub fn record_token(&mut self, key: &[u8], started: Option<Micros>, result: Option<&Bytes>) {
        // Copied: a slice of the log's entry would keep all of it in memory.
        let (key, result) = (Bytes::copy_from_slice(key), result.map(|result| Bytes::copy_from_slice(result)));
        self.tokens.record(key.clone(), started, result, self.times());
        self.dirty.tokens.insert(key);
    }

    /// Takes over a token of a tablet that is being imported.
    pub fn import_token(&mut self, token: &ImportedToken) {
        // Copied as in `record_token`.
        let (key, result) = (Bytes::copy_from_slice(&token.key), token.result.as_deref().map(Bytes::copy_from_slice));
        let expires_at = self.session_time().plus(token.remaining);
        self.tokens.restore(key.clone(), TokenRecord { expires_at, result });
        self.dirty.tokens.insert(key);
    }

    fn forget_tokens(&mut self) {
        self.dirty.tokens.extend(self.tokens.expire(self.session_time()));
    }

    /// Removes expired sessions. Which expired ones are still stored is never visible: see
    /// [`GroupState::session`].
    pub fn forget_idle_sessions(&mut self) {
        let time = self.session_time();
        let dirty = &mut self.dirty.sessions;
        self.sessions.retain(|id, window| {
            let idle = window.is_expired(time);
            if idle {
                dirty.insert(*id);
            }
            !idle
        });
    }

    /// The state in a form that is equal on all replicas that have applied the same entries: floors are raised
    /// and expired sessions and tokens removed, whenever each replica did so itself.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let mut state = self.clone();
        state.raise_floors();
        state.forget_idle_sessions();
        state.forget_tokens();
        state
    }

    /// Raises the floors to the ages that the rules expire at the GC time. Compactions drop cells below them without
    /// a log entry, on each replica at its own time; readers see no cell there from now on.
    fn raise_floors(&mut self) {
        self.floors_raised_at = self.gc_time;
        let gc_time = self.gc_time;
        for (id, table) in &mut self.tables {
            if raise_by_rules(&mut table.floors, &table.schema, gc_time) {
                self.dirty.floors.insert(*id);
            }
        }
    }

    /// The floors of a table's families, raised to the present GC time; none of a table that the group does not know.
    pub fn raised_floors(&self, table: TableId) -> BTreeMap<FamilyId, Micros> {
        let Some(known) = self.tables.get(&table) else { return BTreeMap::new() };
        let mut floors = known.floors.clone();
        raise_by_rules(&mut floors, &known.schema, self.gc_time);
        floors
    }

    fn tablet_edit(&self, id: TabletId) -> MetaEdit {
        let key = MetaKey::Tablet(id);
        match self.tablets.get(&id) {
            Some(tablet) => MetaEdit::Put(key, convert::encode_record(convert::tablet_record_to_proto(tablet))),
            None => MetaEdit::Delete(key),
        }
    }

    fn table_edit(&self, id: TableId) -> MetaEdit {
        let key = MetaKey::Table(id);
        match self.tables.get(&id) {
            Some(table) => MetaEdit::Put(key, convert::schema_to_bytes(&table.schema)),
            None => MetaEdit::Delete(key),
        }
    }

    fn floors_edit(&self, id: TableId) -> MetaEdit {
        let key = MetaKey::Floors(id);
        match self.tables.get(&id) {
            Some(table) => MetaEdit::Put(key, layout::encode_floors(&table.floors)),
            None => MetaEdit::Delete(key),
        }
    }

    fn dropped_edit(&self, id: TableId) -> MetaEdit {
        let key = MetaKey::Dropped(id);
        if self.dropped.contains(&id) { MetaEdit::Put(key, Bytes::new()) } else { MetaEdit::Delete(key) }
    }

    fn session_edit(&self, id: SessionId) -> MetaEdit {
        let key = MetaKey::Session(id);
        match self.sessions.get(&id) {
            Some(window) => MetaEdit::Put(key, convert::encode_record(convert::session_to_proto(window))),
            None => MetaEdit::Delete(key),
        }
    }

    fn token_edit(&self, key: Bytes) -> MetaEdit {
        match self.tokens.get(&key).map(convert::token_record_to_bytes) {
            Some(value) => MetaEdit::Put(MetaKey::Token(key), value),
            None => MetaEdit::Delete(MetaKey::Token(key)),
        }
    }

    fn operation_edit(&self, id: OperationId) -> MetaEdit {
        let key = MetaKey::Operation(id);
        match self.operations.get(&id) {
            Some(dropped) => MetaEdit::Put(
                key,
                dropped.as_ref().map(convert::tablet_move::dropped_rows_to_bytes).unwrap_or_default(),
            ),
            None => MetaEdit::Delete(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;
    use ebla_model::key::RowKey;
    use ebla_model::schema::TableName;

    use super::*;

    fn write(stored: &mut BTreeMap<Vec<u8>, Bytes>, edits: Vec<MetaEdit>) {
        for edit in edits {
            match edit {
                MetaEdit::Put(key, value) => drop(stored.insert(key.encode(), value)),
                MetaEdit::Delete(key) => drop(stored.remove(&key.encode())),
            }
        }
    }

    #[test]
    fn a_copy_of_a_divided_group_becomes_the_new_group() {
        let group = |id| GroupDescriptor::initial(GroupId::new(id), &[1, 2, 3].map(ServerId::new));
        let mut parent = GroupState::fresh(group(4));
        for (tablet, table) in [(7, 2), (8, 2), (9, 3)] {
            let name = TableName::from_parts("p", "i", &format!("t{table}")).unwrap();
            let schema = TableSchema::with_families(TableId::new(table), name, []).unwrap();
            let range = KeyRange::new(RowKey::new(tablet.to_string()), None).unwrap();
            parent.add_tablet(schema, TabletId::new(tablet), range);
        }
        let mut stored = BTreeMap::new();
        write(&mut stored, parent.save());
        let moved = parent.tablets[&TabletId::new(8)].clone();
        let mut child = parent.child(group(5), &[TabletDescriptor { group: GroupId::new(5), ..moved }]);
        write(&mut stored, child.take_edits());
        let all = stored.into_iter().map(|(key, value)| (key.into(), value));
        let loaded = GroupState::load(all).unwrap();
        assert_eq!((&loaded.tablets, &loaded.tables), (&child.tablets, &child.tables));
        assert_eq!(loaded.tablets.keys().map(|id| id.get()).collect::<Vec<_>>(), [8]);
        assert_eq!(loaded.descriptor.group.get(), 5);
    }
}
