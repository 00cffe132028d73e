//! Reading the content of a tablet in chunks: cells, then idempotency tokens, then sessions.
//!
//! The cells do not change while the tablet departs, except that dead ones are removed. Tokens and sessions may change: those that
//! matter to the tablet's rows were there when it departed, and only expire or are acknowledged since. So a chunk may be read at any
//! time, by any leader.
//!
//! A copy that begins ahead of the move is read in the same way, up to the tokens, while the tablet is served: what changes meanwhile is in
//! the record of changes, and follows. Sessions come when the tablet departs, because each write of the group changes one.
//!
//! Cells that are garbage by their key alone are left out: the target does not know why they are dead, and they must not come back.

use std::ops::Bound;

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::error::Error;
use ebla_model::id::{CopyId, LogIndex, TableId};
use ebla_model::key::KeyRange;
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{
    Departure, ImportChunk, ImportPosition, ImportStart, ImportedSession, ImportedToken, RemovedCells,
};
use ebla_storage::store::{GcRules, ScanPlan, StoreError, View};

use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::core::store_rules::gc_rules;

/// A chunk ends after the item with which it reaches this size, in bytes.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Approximate size of an item besides its key and value.
pub(super) const ITEM_BYTES: usize = 16;

/// What is read.
#[derive(Clone, Debug)]
pub(super) struct Exported {
    pub(super) table: TableId,
    pub(super) range: KeyRange,
    /// The target's ticket.
    pub(super) ticket: LogIndex,
    /// The attempt, if the copy begins ahead of the move.
    pub(super) copy: Option<CopyId>,
}

impl Exported {
    /// A tablet that departs.
    pub(super) fn of(departure: &Departure) -> Self {
        let Departure { tablet, ticket, copy, .. } = departure;
        Self { table: tablet.table, range: tablet.range.clone(), ticket: *ticket, copy: *copy }
    }

    /// Its rows as they are stored.
    pub(super) fn stored_range(&self) -> KeyRange {
        stored_range(self.table, &self.range)
    }
}

/// What the target must know first; `None` if the group does not know the table.
pub(super) fn start(state: &GroupState, exported: &Exported) -> Option<ImportStart> {
    let (table, range) = (exported.table, &exported.range);
    Some(ImportStart {
        source: state.descriptor.group,
        ticket: exported.ticket,
        range: range.clone(),
        schema: state.tables.get(&table)?.schema.as_ref().clone(),
        time: state.time,
        gc_time: state.gc_time,
        drops: state.drops_of(table, range).map(|(id, range)| (id, range.clone())).collect(),
        drops_known_from: state.operations_known_from(),
        copy: exported.copy,
        floors: Some(state.raised_floors(table)),
    })
}

/// The content after `from`, about 1 MiB. Blocking.
///
/// # Errors
/// When the store cannot be read.
pub(super) fn next_chunk(
    state_machine: &GroupStateMachine,
    exported: &Exported,
    from: ImportPosition,
) -> Result<ImportChunk, Error> {
    let mut chunk = empty_chunk(exported.copy, from);
    let mut room = CHUNK_BYTES;
    if matches!(chunk.from, ImportPosition::Start | ImportPosition::Cell(_)) {
        let rules = state_machine.with_state(gc_rules);
        let store = state_machine.store();
        let position = chunk.from.clone();
        let (cells, left) = store.with_view(|view| read_cells(view, &rules, exported, &position))?;
        chunk.cells = cells;
        room = left;
        chunk.to = match (room, chunk.cells.last()) {
            (0, Some((key, _value))) => ImportPosition::Cell(key.clone()),
            // All cells are read: the tokens come next.
            _ => ImportPosition::Token(Bytes::new()),
        };
    }
    state_machine.with_state(|state| add_records(state, exported, &mut chunk, room));
    Ok(chunk)
}

/// A chunk without content, which ends where it begins.
pub(super) fn empty_chunk(copy: Option<CopyId>, from: ImportPosition) -> ImportChunk {
    ImportChunk {
        to: from.clone(),
        from,
        cells: Vec::new(),
        tokens: Vec::new(),
        sessions: Vec::new(),
        copy,
        removed: RemovedCells::default(),
        times: None,
    }
}

/// Keys and values of cells.
type Cells = Vec<(Bytes, Bytes)>;

/// The cells after a position, and the room that they leave in a chunk: none if there may be more.
fn read_cells(
    view: &View<'_>,
    rules: &GcRules,
    exported: &Exported,
    from: &ImportPosition,
) -> Result<(Cells, usize), StoreError> {
    let (mut lower, upper) = codec::range_bounds(&exported.stored_range());
    if let ImportPosition::Cell(last) = from {
        lower = [last.as_ref(), &[0]].concat();
    }
    let (mut cells, mut room) = (Vec::new(), CHUNK_BYTES);
    let mut scan = view.scan(&ScanPlan::new(&lower, upper.as_deref()).without_filling_cache())?;
    while let Some((key, value)) = scan.entry() {
        if !rules.is_garbage(key) {
            room = room.saturating_sub(key.len() + value.len() + ITEM_BYTES);
            cells.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            if room == 0 {
                break;
            }
        }
        scan.step()?;
    }
    Ok((cells, room))
}

/// Adds tokens and sessions after the chunk's end, until there is no room; moves its end. A copy that begins ahead has no sessions.
fn add_records(state: &GroupState, exported: &Exported, chunk: &mut ImportChunk, mut room: usize) {
    let now = state.session_time();
    if let ImportPosition::Token(last) = chunk.to.clone() {
        let (lower, upper) = codec::range_bounds(&exported.stored_range());
        let lower = if last.is_empty() { Bound::Included(lower) } else { Bound::Excluded(last.to_vec()) };
        for (key, token) in state.tokens.range((lower, upper.map_or(Bound::Unbounded, Bound::Excluded))) {
            if room == 0 {
                return;
            }
            room = room.saturating_sub(key.len() + token.result.as_ref().map_or(0, Bytes::len) + ITEM_BYTES);
            let (remaining, result) = (token.expires_at.since(now), token.result.clone());
            chunk.tokens.push(ImportedToken { key: key.clone(), remaining, result });
            chunk.to = ImportPosition::Token(key.clone());
        }
        if exported.copy.is_some() {
            chunk.to = ImportPosition::Difference(0);
            return;
        }
    }
    add_sessions(state, chunk, room);
}

/// Adds sessions after the chunk's end, until there is no room; moves its end.
pub(super) fn add_sessions(state: &GroupState, chunk: &mut ImportChunk, mut room: usize) {
    let now = state.session_time();
    let after = match chunk.to {
        ImportPosition::Token(_) | ImportPosition::Difference(_) => Bound::Unbounded,
        ImportPosition::Session(last) => Bound::Excluded(last),
        ImportPosition::Start | ImportPosition::Cell(_) | ImportPosition::End => return,
    };
    for (session, window) in state.sessions.range((after, Bound::Unbounded)) {
        if window.is_expired(now) {
            continue;
        }
        if room == 0 {
            return;
        }
        room = room.saturating_sub(window.size_bytes());
        let idle = now.since(window.last_used);
        chunk.sessions.push(ImportedSession { session: *session, window: window.clone(), idle });
        chunk.to = ImportPosition::Session(*session);
    }
    chunk.to = ImportPosition::End;
}
