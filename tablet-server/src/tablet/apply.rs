//! What a command does to a tablet: a function of the state, the cells it looks at, and the command.
//!
//! Commands are resolved, so nothing here reads a clock, a setting or a filter; every replica that applies the same log
//! ends with the same cells, the same sessions and the same answers. Refusals are decided here, from replicated state
//! alone, one row at a time.
//!
//! **Deletes** act on what exists when they are applied, in commit order, whatever the timestamps. The cells are looked
//! up: a few are deleted one by one, many by a range tombstone (which costs the next reader of a memtable more). Which of
//! the two is chosen makes no difference to what is seen.
//!
//! **Edits gather** over many commands into one write batch. A delete must also meet what earlier commands of the same
//! batch wrote; it looks at the gathered edits of rows that were touched, so no batch needs to be cut for it. `Collect`
//! and `Split` do want everything written before: see [`wants_written`].
//!
//! **Counting rules.** When a newer version is deleted, an older one that was already dead must not come back. Such a
//! delete first removes what is dead in its column.

use std::collections::{BTreeSet, HashSet};

use ebla_model::codec::{self, CellKey};
use ebla_model::command::{Command, CommandKind, Refusal, RefusalKind, Reply, RowReply, RowWrite};
use ebla_model::error::Error;
use ebla_model::gc::Judge;
use ebla_model::id::{FamilyId, TabletId};
use ebla_model::idempotency;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::Change;
use ebla_model::schema::TableSchema;
use ebla_model::session::Verdict;
use ebla_model::time::Micros;
use ebla_runtime::{Bug, planted};

use crate::tablet::state::TabletState;

/// Up to so many cells are deleted one by one; more by a range tombstone.
const SINGLE_DELETES_MAX: usize = ebla_storage::tablet::cells::SINGLE_DELETES_MAX;

/// Sequences that a session may have applied above its lowest outstanding one. A session that answers none of its
/// writes is refused rather than forgotten.
const OUTSTANDING_MAX: usize = 65_536;

/// Sessions that a tablet remembers; more are refused until some have been idle for long enough.
const SESSIONS_MAX: usize = 10_000;

/// Why a write was refused that was first sent too long ago.
pub(super) const LATE: &str = "start_time is more than 15 minutes ago: the idempotency token may have been forgotten";
/// Why a write was refused that was first sent in the future.
pub(super) const EARLY: &str = "start_time is more than 5 minutes ahead of the server's clock";

/// The cells as they are in the store, without the edits gathered since.
pub trait Cells {
    /// The keys from `lower` up to but not including `upper` (absent: to the end) when they are few, ascending; `None` when
    /// they are many. Replicas may differ in what they call many.
    ///
    /// # Errors
    /// What the store says. The replica stops: another one may have read it.
    fn few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error>;

    /// All of these keys, ascending.
    ///
    /// # Errors
    /// As [`Cells::few`].
    fn all(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error>;
}

/// A change of the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The cell has this stored value.
    Put(Vec<u8>, Vec<u8>),
    /// The cell is gone.
    Delete(Vec<u8>),
    /// The cells with `from <= key < to` are gone; without `to`, all from `from` on.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
}

/// Whether everything gathered must be in the store before this command is applied.
#[must_use]
pub fn wants_written(kind: &CommandKind) -> bool {
    matches!(kind, CommandKind::Split { .. } | CommandKind::Collect { .. })
}

/// Whether this command does nothing but add cells, so that no stored one is looked at.
#[must_use]
pub fn only_adds(kind: &CommandKind) -> bool {
    let adds = |change: &Change| matches!(change, Change::SetCell { .. });
    match kind {
        CommandKind::Write(rows) => rows.iter().flat_map(|row| &row.changes).all(adds),
        CommandKind::Tick => true,
        _ => false,
    }
}

/// The halves of a split as the tablet stands, or why it is not divided now.
///
/// # Errors
/// The refusal that every replica gives: the tablet was dropped, the key is no interior key (any more), or a change of
/// replicas is under way.
pub fn split(
    state: &TabletState,
    at: &RowKey,
    child: TabletId,
) -> Result<(TabletDescriptor, TabletDescriptor), Refusal> {
    if state.dropped.is_some() {
        return Err(dropped());
    }
    if state.descriptor.range.split_at(at).is_none() {
        return Err(refusal(RefusalKind::OutOfRange, "the key does not divide the tablet"));
    }
    state
        .descriptor
        .split(at, child)
        .ok_or_else(|| refusal(RefusalKind::NotNow, "the tablet's replicas are being changed, or it is the root"))
}

/// Applies commands to a state and gathers what they change of the cells.
pub struct Applier<'a, C> {
    state: &'a mut TabletState,
    cells: &'a C,
    edits: Vec<Edit>,
    /// Rows that the gathered edits touch.
    touched: HashSet<RowKey>,
}

impl<'a, C: Cells> Applier<'a, C> {
    /// Nothing is gathered yet.
    pub fn new(state: &'a mut TabletState, cells: &'a C) -> Self {
        Self { state, cells, edits: Vec::new(), touched: HashSet::new() }
    }

    /// Goes on with edits that were taken and not written.
    #[cfg(test)]
    fn resume(&mut self, edits: Vec<Edit>) {
        let rows = edits.iter().filter_map(Edit::put_key).filter_map(|key| Some(CellKey::decode(key).ok()?.row));
        self.touched.extend(rows);
        self.edits = edits;
    }

    /// The state as of the last command.
    pub fn state(&mut self) -> &mut TabletState {
        self.state
    }

    /// How many edits have gathered.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.edits.len()
    }

    /// Hands over what has gathered; the caller writes it with the state's edits in one batch.
    pub fn take_edits(&mut self) -> Vec<Edit> {
        self.touched.clear();
        std::mem::take(&mut self.edits)
    }

    /// Applies one command other than `Split`, which needs more than cells and is the machine's.
    ///
    /// # Errors
    /// Only what says that this replica cannot go on: its store fails, or the command is none it can apply.
    pub fn apply(&mut self, command: Command) -> Result<Reply, Error> {
        self.state.advance_time(command.time);
        match command.kind {
            CommandKind::Write(rows) => self.write(rows),
            CommandKind::SetSchema(schema) => Ok(self.set_schema(schema)),
            CommandKind::DropRange { operation, range } => {
                if self.state.dropped.is_some() {
                    return Ok(Reply::Refused(dropped()));
                }
                if self.state.note_operation(operation) {
                    self.drop_range(&range);
                }
                Ok(Reply::Done)
            }
            CommandKind::Drop { operation } => {
                if self.state.dropped.is_none() {
                    self.state.drop_tablet(operation);
                }
                Ok(Reply::Done)
            }
            CommandKind::Collect { range, time } => {
                self.collect(&range, time)?;
                Ok(Reply::Done)
            }
            CommandKind::Tick => Ok(Reply::Done),
            CommandKind::Split { .. } => Err(Error::internal("a split reached the rules for cells")),
        }
    }

    fn write(&mut self, rows: Vec<RowWrite>) -> Result<Reply, Error> {
        rows.into_iter().map(|row| self.write_row(row)).collect::<Result<_, _>>().map(Reply::Write)
    }

    fn write_row(&mut self, write: RowWrite) -> Result<RowReply, Error> {
        if let Some(reply) = self.judge_row(&write) {
            return Ok(reply);
        }
        for change in write.changes {
            self.change(&write.row, change)?;
        }
        if let Some(token) = &write.token {
            self.state.remember(&token.key(&write.row), token.token.started, write.result.as_ref());
        }
        let time = self.state.session_time();
        let window = self.state.session(write.session);
        window.record(write.sequence, write.lowest_outstanding, write.result, time);
        self.touched.insert(write.row);
        Ok(RowReply::Applied)
    }

    /// The answer to a write that changes nothing, in the order in which the questions matter: a write that was applied
    /// before a split moved its row is known where the row is now.
    fn judge_row(&mut self, write: &RowWrite) -> Option<RowReply> {
        if self.state.dropped.is_some() {
            return Some(RowReply::Refused(dropped()));
        }
        if !self.state.descriptor.range.contains(write.row.as_bytes()) {
            return Some(RowReply::Refused(refusal(RefusalKind::OutOfRange, "the row is not in this tablet")));
        }
        if !self.state.has_room_for_session(write.session, SESSIONS_MAX) {
            return Some(RowReply::Refused(refusal(RefusalKind::NotNow, "too many sessions write to this tablet")));
        }
        let window = self.state.session(write.session);
        match window.judge(write.sequence) {
            Verdict::Duplicate(_) if planted(Bug::AppliedTwice) => {}
            Verdict::Duplicate(result) => return Some(RowReply::Duplicate(result)),
            Verdict::Forgotten => {
                let message = "the session has declared this write answered";
                return Some(RowReply::Refused(refusal(RefusalKind::SessionForgotten, message)));
            }
            Verdict::Fresh => {}
        }
        if window.applied.len() >= OUTSTANDING_MAX {
            return Some(RowReply::Refused(refusal(RefusalKind::NotNow, "too many writes of the session are open")));
        }
        if let Some(reply) = self.judge_token(write) {
            return Some(reply);
        }
        let unknown =
            write.changes.iter().filter_map(family_of).find(|id| self.state.schema.family_by_id(*id).is_none());
        unknown.map(|id| RowReply::Refused(refusal(RefusalKind::UnknownFamily, format!("no family with id {id}"))))
    }

    /// The answer to a write whose token says that it is not to be applied, or not now.
    fn judge_token(&mut self, write: &RowWrite) -> Option<RowReply> {
        let token = write.token.as_ref()?;
        let key = token.key(&write.row);
        match self.state.tokens.judge(&key, token.token.started, self.state.time) {
            idempotency::Verdict::Duplicate(result) => Some(RowReply::Duplicate(result)),
            idempotency::Verdict::Late => Some(RowReply::Refused(refusal(RefusalKind::TokenOutOfTime, LATE))),
            idempotency::Verdict::Early => Some(RowReply::Refused(refusal(RefusalKind::TokenOutOfTime, EARLY))),
            idempotency::Verdict::Fresh if !self.state.has_room_for_token(&key, write.result.as_ref()) => {
                let message = "the tablet remembers as many idempotency tokens as it can";
                Some(RowReply::Refused(refusal(RefusalKind::NotNow, message)))
            }
            idempotency::Verdict::Fresh => None,
        }
    }

    fn change(&mut self, row: &RowKey, change: Change) -> Result<(), Error> {
        match change {
            Change::SetCell { family, qualifier, timestamp, value } => {
                let timestamp = if planted(Bug::ApplyReadsClock) {
                    ebla_runtime::Clock::system().wall().truncate_to_millis()
                } else {
                    timestamp
                };
                let key = codec::encode_parts(row.as_bytes(), family, &qualifier, timestamp);
                self.edits.push(Edit::Put(key, codec::encode_value(&value)));
                // A delete further on in the same row must find it.
                self.touched.insert(row.clone());
                Ok(())
            }
            Change::DeleteColumn { family, qualifier, start, end } => {
                let prefix = codec::column_prefix(row, family, &qualifier);
                if start > Micros::ZERO || end.is_some() {
                    self.delete_dead(row, family, &prefix)?;
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

    /// Deletes the cells of `row` between the bounds: those in the store and those gathered.
    fn delete(&mut self, row: &RowKey, lower: Vec<u8>, upper: Option<Vec<u8>>) -> Result<(), Error> {
        let stored = self.cells.few(&lower, upper.as_deref())?;
        let mut found: BTreeSet<Vec<u8>> = stored.iter().flatten().cloned().collect();
        if self.touched.contains(row) {
            let inside = |key: &&Vec<u8>| is_inside(key, &lower, upper.as_deref());
            found.extend(self.edits.iter().filter_map(Edit::put_key).filter(inside).cloned());
        }
        if stored.is_none() || found.len() > SINGLE_DELETES_MAX {
            self.edits.push(Edit::DeleteRange(lower, upper));
        } else {
            self.edits.extend(found.into_iter().map(Edit::Delete));
        }
        self.touched.insert(row.clone());
        Ok(())
    }

    /// Removes what is dead in the column, when its family has a rule that counts.
    fn delete_dead(&mut self, row: &RowKey, family: FamilyId, prefix: &[u8]) -> Result<(), Error> {
        let schema = std::sync::Arc::clone(&self.state.schema);
        let rule = schema.family_by_id(family).and_then(|family| family.gc.as_ref());
        let Some(rule) = rule.filter(|rule| rule.counts()) else { return Ok(()) };
        let upper = codec::prefix_end(prefix);
        let versions = self.existing(prefix, upper.as_deref())?;
        let mut judge = Judge::new(Some(rule), self.state.gc_time);
        for key in versions {
            let timestamp = CellKey::decode(&key)?.timestamp;
            if !judge.keeps(timestamp) {
                // The versions from here to the end of the column are dead.
                return self.delete(row, key, upper);
            }
        }
        Ok(())
    }

    /// The keys between the bounds as they are with the gathered edits.
    fn existing(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<BTreeSet<Vec<u8>>, Error> {
        let mut keys: BTreeSet<Vec<u8>> = self.cells.all(lower, upper)?.into_iter().collect();
        for edit in &self.edits {
            match edit {
                Edit::Put(key, _) if is_inside(key, lower, upper) => {
                    keys.insert(key.clone());
                }
                Edit::Put(..) => {}
                Edit::Delete(key) => {
                    keys.remove(key);
                }
                Edit::DeleteRange(from, to) => keys.retain(|key| !is_inside(key, from, to.as_deref())),
            }
        }
        Ok(keys)
    }

    fn set_schema(&mut self, schema: TableSchema) -> Reply {
        if self.state.dropped.is_some() {
            return Reply::Refused(dropped());
        }
        if schema.version > self.state.schema.version {
            self.state.set_schema(schema);
        }
        Reply::Done
    }

    fn drop_range(&mut self, range: &KeyRange) {
        if let Some(range) = self.state.descriptor.range.intersect(range) {
            let (from, to) = codec::range_bounds(&range);
            self.edits.push(Edit::DeleteRange(from, to));
        }
    }

    /// Deletes what the rules call dead at `time` in the rows of `range`. The proposer keeps the range small.
    fn collect(&mut self, range: &KeyRange, time: Micros) -> Result<(), Error> {
        let Some(range) = self.state.descriptor.range.intersect(range) else { return Ok(()) };
        let (lower, upper) = codec::range_bounds(&range);
        let schema = std::sync::Arc::clone(&self.state.schema);
        let mut column: Option<(CellKey, Judge<'_>)> = None;
        for key in self.cells.all(&lower, upper.as_deref())? {
            let cell = CellKey::decode(&key)?;
            let known = schema.family_by_id(cell.family);
            let fresh = column.as_ref().is_none_or(|(first, _)| !is_same_column(first, &cell));
            let judge = match &mut column {
                Some((_, judge)) if !fresh => judge,
                slot => {
                    let rule = known.and_then(|family| family.gc.as_ref());
                    &mut slot.insert((cell.clone(), Judge::new(rule, time))).1
                }
            };
            let below_floor = self.state.floors.get(&cell.family).is_some_and(|floor| cell.timestamp < *floor);
            if known.is_none() || below_floor || !judge.keeps(cell.timestamp) {
                self.edits.push(Edit::Delete(key));
            }
        }
        Ok(())
    }
}

impl Edit {
    fn put_key(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Put(key, _) => Some(key),
            Self::Delete(_) | Self::DeleteRange(..) => None,
        }
    }
}

fn is_same_column(a: &CellKey, b: &CellKey) -> bool {
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

fn dropped() -> Refusal {
    refusal(RefusalKind::Dropped, "the tablet was dropped")
}

fn refusal(kind: RefusalKind, message: impl Into<String>) -> Refusal {
    Refusal { kind, message: message.into() }
}

#[cfg(test)]
mod tests;
