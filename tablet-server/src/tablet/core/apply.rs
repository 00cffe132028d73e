//! Applying commands to a group: a function of the state, the stored cells, and the command.
//!
//! Commands are resolved, so this module uses no clock, setting or filter; every replica that applies the same log
//! ends with the same cells, the same sessions and the same replies. Refusals are decided here, from replicated state
//! alone, one row at a time.
//!
//! **Deletes** affect the cells that exist when they are applied, in commit order, whatever the timestamps. The cells are
//! looked up: a few are deleted one by one, many by a range tombstone (which makes later reads of the memtable slower).
//! Readers see no difference between the two.
//!
//! **Edits** of many commands are buffered for one write batch. A delete must also find the cells that earlier commands of
//! the same batch wrote; it searches the buffered edits of touched rows, so no batch needs to be cut for it. `Collect`
//! `Divide` and the end of an import need all earlier edits written first: see [`needs_written_edits`].
//!
//! **Operations** are applied once. A number that a restored Chubby has given twice is refused for the second operation, as far as the
//! state shows that it was another one: the reply "done" would acknowledge an operation that was not carried out.
//!
//! **Rows** of requests and commands are those of the table. The cells of all tables are in one store, under stored rows
//! (`model::stored_row`): a row becomes a stored row here, where its tablet is known.
//!
//! **Rules that count versions.** When a newer version is deleted, an older one that was already dead must not reappear. So
//! such a delete first removes the dead versions of its column.

mod moves;

use std::collections::{BTreeSet, HashSet};

use ebla_model::codec::{self, CellKey};
use ebla_model::command::{Command, CommandKind, NewTablet, Refusal, RefusalKind, Reply, RowReply, RowWrite};
use ebla_model::error::Error;
use ebla_model::gc::VersionGc;
use ebla_model::id::{FamilyId, GroupId, OperationId, TableId, TabletId};
use ebla_model::idempotency;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::mutation::Change;
use ebla_model::schema::TableSchema;
use ebla_model::session::SequenceCheck;
use ebla_model::stored_row::{stored_range, stored_row};
use ebla_model::tablet_move::{DroppedRows, MoveStep};
use ebla_model::time::Micros;
use ebla_runtime::Failpoint;

use crate::tablet::core::family_counters::WrittenCells;
use crate::tablet::core::state::GroupState;

/// Maximum number of cells deleted one by one; more are deleted by a range tombstone.
const SINGLE_DELETES_MAX: usize = ebla_storage::store::cells::SINGLE_DELETES_MAX;

/// Maximum number of applied sequences of a session above its lowest outstanding one. A session that never advances
/// it is refused; nothing is forgotten.
const OUTSTANDING_MAX: usize = 65_536;

/// Maximum number of sessions of a group; more are refused until some have expired.
const SESSIONS_MAX: usize = 10_000;

/// The refusal of a write that was first sent too long ago.
pub(in crate::tablet) const LATE: &str =
    "start_time is more than 15 minutes ago: the idempotency token may have been forgotten";
/// The refusal of a write that was first sent in the future.
pub(in crate::tablet) const EARLY: &str = "start_time is more than 5 minutes ahead of the server's clock";

/// Access to the cells in the store, without the buffered edits.
pub trait CellReader {
    /// The keys in `[lower, upper)` (`None`: to the end) when they are few, ascending; `None` when
    /// they are many. Replicas may differ in what counts as many.
    ///
    /// # Errors
    /// Errors of the store. The replica stops, because another one may have read the cells.
    fn keys_if_few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error>;

    /// All keys in `[lower, upper)`, ascending.
    ///
    /// # Errors
    /// As [`CellReader::keys_if_few`].
    fn keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error>;
}

/// A change of the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellEdit {
    /// Stores this encoded value under the key.
    Put(Vec<u8>, Vec<u8>),
    /// Deletes the cell.
    Delete(Vec<u8>),
    /// Deletes the cells with `from <= key < to`; without `to`, all from `from` on.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
}

/// Whether all buffered edits must be written before this command is applied.
#[must_use]
pub fn needs_written_edits(kind: &CommandKind) -> bool {
    // A write that follows an import searches the store for the cells that it deletes, not the buffered edits.
    let ends_import = matches!(kind, CommandKind::Move(_, MoveStep::Finish));
    ends_import || matches!(kind, CommandKind::Divide { .. } | CommandKind::Collect { .. })
}

/// Whether this command only puts cells, so that no stored cell is read.
#[must_use]
pub fn is_put_only(kind: &CommandKind) -> bool {
    let adds = |change: &Change| matches!(change, Change::SetCell { .. });
    match kind {
        CommandKind::Write(rows) => rows.iter().flat_map(|row| &row.changes).all(adds),
        CommandKind::Tick => true,
        _ => false,
    }
}

/// A tablet of the group that does not move to another one.
fn staying(state: &GroupState, tablet: TabletId) -> Result<&TabletDescriptor, Refusal> {
    match state.departure_of(tablet) {
        Some(departure) => Err(moving(departure.target.group)),
        None => state.tablets.get(&tablet).ok_or_else(not_here),
    }
}

/// The halves of a split of a tablet in its current state, or the reason why it cannot be split now.
fn split(
    state: &GroupState,
    tablet: TabletId,
    at: &RowKey,
    child: TabletId,
) -> Result<(TabletDescriptor, TabletDescriptor), Refusal> {
    let tablet = staying(state, tablet)?;
    if state.tablets.contains_key(&child) {
        return Err(refusal(RefusalKind::NotNow, "the group has a tablet with the child's id"));
    }
    if tablet.range.split_at(at).is_none() {
        return Err(refusal(RefusalKind::OutOfRange, "the split key is not an interior key of the tablet"));
    }
    tablet.split(at, child).ok_or_else(|| refusal(RefusalKind::NotNow, "the root tablet cannot be split"))
}

/// The tablet that two tablets in the current state merge into, or the reason why they cannot be merged.
fn merge(state: &GroupState, left: TabletId, right: TabletId) -> Result<TabletDescriptor, Refusal> {
    let (left, right) = (staying(state, left)?, staying(state, right)?);
    right
        .merge(left)
        .ok_or_else(|| refusal(RefusalKind::OutOfRange, "the tablets are not adjacent, or one is the root tablet"))
}

/// The new group of a division in the current state with its tablets, or the reason why the group cannot be divided now.
///
/// # Errors
/// The refusal that every replica returns: a tablet is not in the group (any more), none would stay, or a change of replicas is
/// in progress.
pub fn divide(
    state: &GroupState,
    tablets: &[TabletId],
    child: GroupId,
) -> Result<(GroupDescriptor, Vec<TabletDescriptor>), Refusal> {
    if state.descriptor.group == GroupId::METADATA {
        return Err(refusal(RefusalKind::NotNow, "METADATA's group cannot be divided"));
    }
    let new = state.descriptor.divide(child);
    let new = new.ok_or_else(|| refusal(RefusalKind::NotNow, "the replicas of the group are being changed"))?;
    let unique: BTreeSet<TabletId> = tablets.iter().copied().collect();
    if unique.is_empty() || unique.len() >= state.tablets.len() {
        return Err(refusal(RefusalKind::OutOfRange, "some tablets must move and some must stay"));
    }
    let moved = unique.iter().map(|tablet| {
        let tablet = staying(state, *tablet)?;
        Ok(new.tablet(tablet.table, tablet.tablet, tablet.range.clone(), tablet.generation.next()))
    });
    let moved = moved.collect::<Result<Vec<_>, Refusal>>()?;
    Ok((new, moved))
}

/// Applies commands to a state and buffers their edits of the cells.
pub struct Applier<'a, C> {
    state: &'a mut GroupState,
    cells: &'a C,
    edits: Vec<CellEdit>,
    /// Rows that the buffered edits touch.
    touched_rows: HashSet<RowKey>,
    /// Since they were taken.
    written: WrittenCells,
}

impl<'a, C: CellReader> Applier<'a, C> {
    /// An applier without buffered edits.
    pub fn new(state: &'a mut GroupState, cells: &'a C) -> Self {
        Self { state, cells, edits: Vec::new(), touched_rows: HashSet::new(), written: WrittenCells::default() }
    }

    /// Continues with edits that were taken and not written.
    #[cfg(test)]
    fn resume(&mut self, edits: Vec<CellEdit>) {
        let rows = edits.iter().filter_map(CellEdit::put_key).filter_map(|key| Some(CellKey::decode(key).ok()?.row));
        self.touched_rows.extend(rows);
        self.edits = edits;
    }

    /// The state after the last command.
    pub fn state(&mut self) -> &mut GroupState {
        self.state
    }

    /// The number of buffered edits.
    #[must_use]
    pub fn edit_count(&self) -> usize {
        self.edits.len()
    }

    /// Returns the buffered edits; the caller writes them with the state's edits in one batch.
    pub fn take_edits(&mut self) -> Vec<CellEdit> {
        self.touched_rows.clear();
        std::mem::take(&mut self.edits)
    }

    /// Returns the cells that writes have stored, and deletions in one family, since the last call.
    pub fn take_written(&mut self) -> Vec<(TabletId, FamilyId, u64)> {
        self.written.take()
    }

    /// Applies one command other than `Divide`, which also creates files and is handled by the state machine.
    ///
    /// # Errors
    /// Only errors after which this replica cannot continue: its store fails, or it cannot apply the command.
    pub fn apply(&mut self, command: Command) -> Result<Reply, Error> {
        self.state.advance_time(command.time, command.elapsed, command.clock);
        match command.kind {
            CommandKind::Write(rows) => self.write(rows),
            CommandKind::CreateTablets { operation, schema, tablets } => {
                Ok(self.create_tablets(operation, &schema, tablets))
            }
            CommandKind::Split { tablet, at, child } => Ok(self.split(tablet, &at, child)),
            CommandKind::Merge { left, right } => Ok(self.merge(left, right)),
            CommandKind::SetSchema(schema) => Ok(self.set_schema(schema)),
            CommandKind::DropRange { operation, table, range } => Ok(self.drop_range(operation, table, &range)),
            CommandKind::Drop { operation, table } => Ok(self.drop_table(operation, table)),
            CommandKind::Move(id, step) => Ok(self.move_step(id, step)),
            CommandKind::Collect { tablet, range, time } => {
                self.collect(tablet, &range, time)?;
                Ok(Reply::Done)
            }
            CommandKind::Tick => Ok(Reply::Done),
            CommandKind::Divide { .. } => Err(Error::internal("a divide command reached the cell applier")),
        }
    }

    fn create_tablets(&mut self, operation: OperationId, schema: &TableSchema, tablets: Vec<NewTablet>) -> Reply {
        if self.state.dropped.contains(&schema.table) {
            return Reply::Refused(dropped());
        }
        if self.state.operations.contains_key(&operation) {
            // The group knows a table from its first tablet until it is dropped.
            return repeated(operation, self.state.tables.contains_key(&schema.table));
        }
        // An id that Chubby gave twice. The tablet that has it would be lost, and with it its rows.
        let other_table = |known: &TabletDescriptor| known.table != schema.table;
        if tablets.iter().any(|new| self.state.tablets.get(&new.tablet).is_some_and(other_table)) {
            return Reply::Refused(refusal(RefusalKind::NotNow, "a tablet of another table has the id of a new one"));
        }
        self.state.record_operation(operation, None);
        for NewTablet { tablet, range } in tablets {
            if !self.state.tablets.contains_key(&tablet) {
                self.state.add_tablet(schema.clone(), tablet, range);
            }
        }
        Reply::Done
    }

    fn split(&mut self, tablet: TabletId, at: &RowKey, child: TabletId) -> Reply {
        match split(self.state, tablet, at, child) {
            Ok((left, right)) => {
                self.state.put_tablet(left.clone());
                self.state.put_tablet(right.clone());
                Reply::Split { left: Box::new(left), right: Box::new(right) }
            }
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    /// The cells of both tablets are in the same store under the same table, so only the ranges change.
    fn merge(&mut self, left: TabletId, right: TabletId) -> Reply {
        match merge(self.state, left, right) {
            Ok(merged) => {
                self.state.put_merged(merged.clone(), left);
                Reply::Merge(Box::new(merged))
            }
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    fn write(&mut self, rows: Vec<RowWrite>) -> Result<Reply, Error> {
        rows.into_iter().map(|row| self.write_row(row)).collect::<Result<_, _>>().map(Reply::Write)
    }

    fn write_row(&mut self, write: RowWrite) -> Result<RowReply, Error> {
        let table = match self.table_of_row(&write) {
            Ok(table) => table,
            Err(refusal) => return Ok(RowReply::Refused(refusal)),
        };
        let row = stored_row(table, &write.row);
        if let Some(reply) = self.early_reply(table, &row, &write) {
            return Ok(reply);
        }
        for change in write.changes {
            if let Some(family) = family_of(&change) {
                self.written.add(write.tablet, family);
            }
            self.change(table, &row, change)?;
        }
        if let Some(token) = write.token.as_ref().filter(|_token| !Failpoint::TokenForgotten.is_enabled()) {
            self.state.record_token(&token.key(&row), token.token.started, write.result.as_ref());
        }
        let time = self.state.session_time();
        let window = self.state.session(write.session);
        let result = write.result.filter(|_result| !Failpoint::ResultForgotten.is_enabled());
        window.record(write.sequence, write.lowest_outstanding, result, time);
        self.touched_rows.insert(row);
        Ok(RowReply::Applied)
    }

    /// The table of a row that is in its tablet.
    fn table_of_row(&self, write: &RowWrite) -> Result<TableId, Refusal> {
        let tablet = if Failpoint::MoveKeepsWriting.is_enabled() {
            self.state.tablets.get(&write.tablet).ok_or_else(not_here)?
        } else {
            staying(self.state, write.tablet)?
        };
        if tablet.range.contains(write.row.as_bytes()) {
            Ok(tablet.table)
        } else {
            Err(refusal(RefusalKind::OutOfRange, "the row is not in this tablet"))
        }
    }

    /// The reply to a write that changes nothing. `row`: as stored.
    fn early_reply(&mut self, table: TableId, row: &RowKey, write: &RowWrite) -> Option<RowReply> {
        if !self.state.has_room_for_session(write.session, SESSIONS_MAX) {
            return Some(RowReply::Refused(refusal(RefusalKind::NotNow, "too many sessions write to this group")));
        }
        let window = self.state.session(write.session);
        match window.check(write.sequence) {
            SequenceCheck::Duplicate(_) if Failpoint::AppliedTwice.is_enabled() => {}
            SequenceCheck::Duplicate(result) => return Some(RowReply::Duplicate(result)),
            SequenceCheck::Acknowledged => {
                let message = "duplicate check impossible: sequence already acknowledged by client";
                return Some(RowReply::Refused(refusal(RefusalKind::SessionForgotten, message)));
            }
            SequenceCheck::New => {}
        }
        if window.applied.len() >= OUTSTANDING_MAX {
            return Some(RowReply::Refused(refusal(
                RefusalKind::NotNow,
                "the session has too many outstanding writes",
            )));
        }
        if let Some(reply) = self.token_reply(row, write) {
            return Some(reply);
        }
        let known = self.state.tables.get(&table)?;
        let unknown = write.changes.iter().filter_map(family_of).find(|id| known.schema.family_by_id(*id).is_none());
        unknown.map(|id| RowReply::Refused(refusal(RefusalKind::UnknownFamily, format!("no family with id {id}"))))
    }

    /// The reply to a write that its token forbids to apply now.
    fn token_reply(&mut self, row: &RowKey, write: &RowWrite) -> Option<RowReply> {
        let token = write.token.as_ref()?;
        let key = token.key(row);
        match self.state.tokens.check(&key, token.token.started, self.state.times()) {
            idempotency::TokenCheck::Duplicate(result) => Some(RowReply::Duplicate(result)),
            idempotency::TokenCheck::Expired => Some(RowReply::Refused(refusal(RefusalKind::TokenOutOfTime, LATE))),
            idempotency::TokenCheck::FromFuture => Some(RowReply::Refused(refusal(RefusalKind::TokenOutOfTime, EARLY))),
            idempotency::TokenCheck::New if !self.state.has_room_for_token(&key, write.result.as_ref()) => {
                let message = "the group's memory for idempotency tokens is full";
                Some(RowReply::Refused(refusal(RefusalKind::NotNow, message)))
            }
            idempotency::TokenCheck::New => None,
        }
    }

    /// Applies a change of a stored row.
    fn change(&mut self, table: TableId, row: &RowKey, change: Change) -> Result<(), Error> {
        match change {
            Change::SetCell { family, qualifier, timestamp, value } => {
                let timestamp = if Failpoint::ApplyReadsClock.is_enabled() {
                    ebla_runtime::Clock::system().wall().truncate_to_millis()
                } else {
                    timestamp
                };
                let key = codec::encode_parts(row.as_bytes(), family, &qualifier, timestamp);
                self.edits.push(CellEdit::Put(key, codec::encode_value(&value)));
                // A later delete in the same row must find it.
                self.touched_rows.insert(row.clone());
                Ok(())
            }
            Change::DeleteColumn { family, qualifier, start, end } => {
                let prefix = codec::column_prefix(row, family, &qualifier);
                if start > Micros::ZERO || end.is_some() {
                    self.delete_dead(table, row, family, &prefix)?;
                }
                let Some((lower, upper)) = version_bounds(row, family, &qualifier, start, end) else { return Ok(()) };
                self.delete(row, lower, upper)
            }
            Change::DeleteFamily(family) => self.delete_prefix(row, codec::family_prefix(row, family)),
            Change::DeleteRow => self.delete_prefix(row, codec::row_prefix(row)),
        }
    }

    fn delete_prefix(&mut self, row: &RowKey, prefix: Vec<u8>) -> Result<(), Error> {
        let upper = codec::prefix_end(&prefix);
        self.delete(row, prefix, upper)
    }

    /// Deletes the cells of `row` between the bounds, both stored and buffered.
    fn delete(&mut self, row: &RowKey, lower: Vec<u8>, upper: Option<Vec<u8>>) -> Result<(), Error> {
        let stored = self.cells.keys_if_few(&lower, upper.as_deref())?;
        let mut found: BTreeSet<Vec<u8>> = stored.iter().flatten().cloned().collect();
        if self.touched_rows.contains(row) {
            let inside = |key: &&Vec<u8>| is_inside(key, &lower, upper.as_deref());
            found.extend(self.edits.iter().filter_map(CellEdit::put_key).filter(inside).cloned());
        }
        if stored.is_none() || found.len() > SINGLE_DELETES_MAX {
            self.edits.push(CellEdit::DeleteRange(lower, upper));
        } else {
            self.edits.extend(found.into_iter().map(CellEdit::Delete));
        }
        self.touched_rows.insert(row.clone());
        Ok(())
    }

    /// Deletes the dead versions of the column if its family has a rule that counts versions.
    fn delete_dead(&mut self, table: TableId, row: &RowKey, family: FamilyId, prefix: &[u8]) -> Result<(), Error> {
        let Some(known) = self.state.tables.get(&table) else { return Ok(()) };
        let schema = std::sync::Arc::clone(&known.schema);
        let rule = schema.family_by_id(family).and_then(|family| family.gc.as_ref());
        let Some(rule) = rule.filter(|rule| rule.counts_versions()) else { return Ok(()) };
        let upper = codec::prefix_end(prefix);
        let versions = self.current_keys(prefix, upper.as_deref())?;
        let mut judge = VersionGc::new(Some(rule), self.state.gc_time);
        for key in versions {
            let timestamp = CellKey::decode(&key)?.timestamp;
            if !judge.is_live(timestamp) {
                // The versions from here to the end of the column are dead.
                return self.delete(row, key, upper);
            }
        }
        Ok(())
    }

    /// The keys between the bounds after the buffered edits.
    fn current_keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<BTreeSet<Vec<u8>>, Error> {
        let mut keys: BTreeSet<Vec<u8>> = self.cells.keys(lower, upper)?.into_iter().collect();
        for edit in &self.edits {
            match edit {
                CellEdit::Put(key, _) if is_inside(key, lower, upper) => {
                    keys.insert(key.clone());
                }
                CellEdit::Put(..) => {}
                CellEdit::Delete(key) => {
                    keys.remove(key);
                }
                CellEdit::DeleteRange(from, to) => keys.retain(|key| !is_inside(key, from, to.as_deref())),
            }
        }
        Ok(keys)
    }

    fn set_schema(&mut self, schema: TableSchema) -> Reply {
        if self.state.dropped.contains(&schema.table) {
            return Reply::Refused(dropped());
        }
        // A group without tablets of the table gets its schema with its first one.
        if self.state.tables.get(&schema.table).is_some_and(|known| schema.version > known.schema.version) {
            self.replace_schema(schema);
        }
        Reply::Done
    }

    fn drop_range(&mut self, operation: OperationId, table: TableId, range: &KeyRange) -> Reply {
        if self.state.dropped.contains(&table) {
            return Reply::Refused(dropped());
        }
        if let Some(recorded) = self.state.operations.get(&operation) {
            // Without rows it was perhaps recorded by an earlier release.
            let is_same = recorded.as_ref().is_none_or(|rows| rows.table == table && rows.range == *range);
            return repeated(operation, is_same);
        }
        if self.state.is_moving(table, range) && !Failpoint::DropIgnoresMove.is_enabled() {
            // Its rows are being copied.
            return Reply::Refused(refusal(RefusalKind::NotNow, "a tablet with these rows is being moved"));
        }
        if self.state.record_operation(operation, Some(DroppedRows { table, range: range.clone() })) {
            let ranges: Vec<_> =
                self.state.tablets_of(table).filter_map(|tablet| tablet.range.intersect(range)).collect();
            ranges.iter().for_each(|range| self.delete_rows(table, range));
        }
        Reply::Done
    }

    fn drop_table(&mut self, operation: OperationId, table: TableId) -> Reply {
        if self.state.operations.contains_key(&operation) {
            // It would have removed the table.
            return repeated(operation, !self.state.tables.contains_key(&table));
        }
        // The target would serve a tablet of a table that is gone.
        let departing = self.state.tablets_of(table).find_map(|tablet| self.state.departure_of(tablet.tablet));
        if let Some(departure) = departing {
            return Reply::Refused(moving(departure.target.group));
        }
        if self.state.record_operation(operation, None) && self.state.tables.contains_key(&table) {
            self.delete_rows(table, &KeyRange::all());
            self.state.drop_table(table);
        }
        Reply::Done
    }

    fn delete_rows(&mut self, table: TableId, range: &KeyRange) {
        let (from, to) = codec::range_bounds(&stored_range(table, range));
        self.edits.push(CellEdit::DeleteRange(from, to));
    }

    /// Deletes the cells of a tablet in `range` that the GC rules call dead at `time`. The proposer keeps the range small.
    fn collect(&mut self, tablet: TabletId, range: &KeyRange, time: Micros) -> Result<(), Error> {
        let Some(known) = self.state.table_of(tablet).cloned() else { return Ok(()) };
        let Some(tablet) = self.state.tablets.get(&tablet) else { return Ok(()) };
        let Some(range) = tablet.range.intersect(range) else { return Ok(()) };
        let (lower, upper) = codec::range_bounds(&stored_range(tablet.table, &range));
        let schema = known.schema;
        let mut column: Option<(CellKey, VersionGc<'_>)> = None;
        for key in self.cells.keys(&lower, upper.as_deref())? {
            let cell = CellKey::decode(&key)?;
            let family = schema.family_by_id(cell.family);
            let fresh = column.as_ref().is_none_or(|(first, _)| !is_same_column(first, &cell));
            let judge = match &mut column {
                Some((_, judge)) if !fresh => judge,
                slot => {
                    let rule = family.and_then(|family| family.gc.as_ref());
                    &mut slot.insert((cell.clone(), VersionGc::new(rule, time))).1
                }
            };
            let below_floor = known.floors.get(&cell.family).is_some_and(|floor| cell.timestamp < *floor);
            if family.is_none() || below_floor || !judge.is_live(cell.timestamp) {
                self.edits.push(CellEdit::Delete(key));
            }
        }
        Ok(())
    }
}

impl CellEdit {
    fn put_key(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Put(key, _) => Some(key),
            Self::Delete(_) | Self::DeleteRange(..) => None,
        }
    }
}

fn is_same_column(a: &CellKey, b: &CellKey) -> bool {
    if Failpoint::CollectMixesColumns.is_enabled() {
        return a.row == b.row;
    }
    a.row == b.row && a.family == b.family && a.qualifier == b.qualifier
}

fn is_inside(key: &[u8], lower: &[u8], upper: Option<&[u8]>) -> bool {
    lower <= key && upper.is_none_or(|upper| key < upper)
}

/// The keys of a column's versions with `start <= timestamp < end`; `None` when there can be none. Newer versions have
/// lower keys.
fn version_bounds(
    row: &RowKey,
    family: FamilyId,
    qualifier: &[u8],
    start: Micros,
    end: Option<Micros>,
) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let prefix = codec::column_prefix(row, family, qualifier);
    let oldest = codec::encode_parts(row.as_bytes(), family, qualifier, start.max(Micros::ZERO));
    let upper = codec::prefix_end(&oldest);
    match end {
        None => Some((prefix, upper)),
        Some(end) if end <= start || end <= Micros::ZERO => None,
        Some(end) => {
            let newest = Micros::new(end.get() - 1);
            Some((codec::encode_parts(row.as_bytes(), family, qualifier, newest), upper))
        }
    }
}

fn family_of(change: &Change) -> Option<FamilyId> {
    match change {
        Change::SetCell { family, .. } | Change::DeleteColumn { family, .. } | Change::DeleteFamily(family) => {
            Some(*family)
        }
        Change::DeleteRow => None,
    }
}

/// The reply to an operation whose number is recorded: it is repeated, or Chubby has given the number twice.
fn repeated(operation: OperationId, is_same: bool) -> Reply {
    if is_same || Failpoint::ChubbyNotCompared.is_enabled() {
        return Reply::Done;
    }
    let message = format!(
        "another operation with the number {operation} was applied before: the lock service gave it twice, after it was restored from an \
         older backup; see ebla recover --dry-run"
    );
    Reply::Refused(refusal(RefusalKind::NotNow, message))
}

fn dropped() -> Refusal {
    refusal(RefusalKind::Dropped, "the table was dropped")
}

fn not_here() -> Refusal {
    refusal(RefusalKind::OutOfRange, "the tablet is not in this group")
}

fn moving(target: GroupId) -> Refusal {
    refusal(RefusalKind::NotNow, format!("the tablet is being moved to group {target}; retry soon"))
}

fn refusal(kind: RefusalKind, message: impl Into<String>) -> Refusal {
    Refusal { kind, message: message.into() }
}

#[cfg(test)]
mod tests;
