//! The replicated state of a tablet besides its cells, and its persistent form.
//!
//! It is stored under the meta keys of the replica's store (`storage::tablet::layout`), which change in the same write
//! batch as the cells, so after a crash they match the cells exactly. An applied operation is stored with an empty
//! value, the one that dropped the tablet with [`DROPPED_MARKER`].
//!
//! Pure: the state is a value, and changes are returned as a list of edits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::gc::age_floor;
use ebla_model::id::{FamilyId, Generation, LogId, OperationId, SessionId, TableId, TabletId};
use ebla_model::idempotency::TokenTable;
use ebla_model::key::KeyRange;
use ebla_model::metadata::{Membership, TabletDescriptor};
use ebla_model::schema::{Family, TableSchema};
use ebla_model::session::SessionWindow;
use ebla_model::time::Micros;
use ebla_proto::convert;
use ebla_proto::record;
use ebla_storage::tablet::layout::{self, MetaKey};

/// The value stored with the operation that dropped the tablet.
pub const DROPPED_MARKER: &[u8] = b"ended";

/// Maximum number of stored operations; the oldest ids are forgotten first. A master does not repeat such old ones.
const OPERATIONS_MAX: usize = 1024;

/// Age floors are raised in steps of the GC time, because each raise expires the views in use.
const FLOOR_STEP: Duration = Duration::from_secs(60);

/// If the log's time advances by more than this between two commands, the excess does not count as idle time of sessions: a
/// leader's clock may be ahead, and a write whose response was lost under the old leader may be repeated under the new one.
const IDLE_STEP_MAX: Duration = Duration::from_secs(60);

/// A change of the meta keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaEdit {
    /// Stores this value under the key.
    Put(MetaKey, Bytes),
    /// Removes the key.
    Delete(MetaKey),
}

/// The state of a replica except its cells.
#[derive(Clone, Debug)]
pub struct TabletState {
    /// Range, generation and replicas.
    pub descriptor: TabletDescriptor,
    /// The table's schema, in the latest version that this tablet has received.
    pub schema: Arc<TableSchema>,
    /// The last entry applied.
    pub applied: LogId,
    /// The greatest timestamp of a command: the log's time.
    pub time: Micros,
    /// The time at which cell ages are evaluated.
    pub gc_time: Micros,
    /// Cells below the floor of their family are dead, whatever later rules say. Floors never fall.
    pub floors: BTreeMap<FamilyId, Micros>,
    /// The recently applied writes of each session.
    pub sessions: BTreeMap<SessionId, SessionWindow>,
    /// The sum of the forward jumps of the log's time: see [`TabletState::session_time`].
    pub jumped: Duration,
    /// The recently applied writes with an idempotency token.
    pub tokens: TokenTable,
    /// The applied operations, so that repeating one has no effect.
    pub operations: BTreeSet<OperationId>,
    /// The operation that dropped this tablet.
    pub dropped: Option<OperationId>,
    /// The GC time when the floors were last raised. Not stored: after a restart they are raised at the first command, which
    /// may be earlier than on other replicas but is not visible, because reads use the GC time itself.
    floors_raised_at: Micros,
    dirty: DirtyKeys,
}

/// The changes since the last [`TabletState::take_edits`].
#[derive(Clone, Debug, Default)]
struct DirtyKeys {
    descriptor: bool,
    schema: bool,
    floors: bool,
    dropped: bool,
    jumped: bool,
    sessions: BTreeSet<SessionId>,
    tokens: BTreeSet<Bytes>,
    operations: BTreeSet<OperationId>,
}

impl TabletState {
    /// The state of a newly created tablet: applied up to the seed, nothing saved yet.
    #[must_use]
    pub fn fresh(descriptor: TabletDescriptor, schema: TableSchema) -> Self {
        Self {
            descriptor,
            schema: Arc::new(schema),
            applied: LogId::SEED,
            time: Micros::ZERO,
            gc_time: Micros::ZERO,
            floors: BTreeMap::new(),
            sessions: BTreeMap::new(),
            jumped: Duration::ZERO,
            tokens: TokenTable::default(),
            operations: BTreeSet::new(),
            dropped: None,
            floors_raised_at: Micros::ZERO,
            dirty: DirtyKeys::default(),
        }
    }

    /// The state of an empty replica, which the group's leader fills with a snapshot. Its generation matches no request, so
    /// it serves nothing. `table`: METADATA if the table is not known.
    #[must_use]
    pub fn empty(table: TableId, tablet: TabletId) -> Self {
        let descriptor = TabletDescriptor {
            table,
            tablet,
            range: KeyRange::all(),
            generation: Generation::new(0),
            membership: Membership::default(),
            membership_log_id: LogId::default(),
        };
        Self { applied: LogId::default(), ..Self::fresh(descriptor, TableSchema::metadata()) }
    }

    /// The state of the right half of a split, applied up to the seed. It inherits the sessions, so
    /// that a write repeated after the split is still recognized, and the tokens of its rows.
    #[must_use]
    pub fn child(&self, descriptor: TabletDescriptor) -> Self {
        let mut child = Self { descriptor, applied: LogId::SEED, dirty: DirtyKeys::default(), ..self.clone() };
        let _of_the_left_half = child.tokens.retain(&child.descriptor.range);
        child
    }

    /// Reads the state stored by [`TabletState::save`] and the edits of later commands.
    ///
    /// # Errors
    /// `DataDamaged` when a required key is missing, or a value cannot be decoded.
    pub fn load(meta: impl IntoIterator<Item = (Bytes, Bytes)>) -> Result<Self, Error> {
        let mut loader = StateLoader::default();
        for (key, value) in meta {
            loader.load_key(&key, &value).map_err(|error| error.context("read tablet state"))?;
        }
        loader.finish()
    }

    /// All meta keys, for a new store.
    #[must_use]
    pub fn save(&self) -> Vec<MetaEdit> {
        let mut all = self.clone();
        all.dirty = DirtyKeys {
            descriptor: true,
            schema: true,
            floors: true,
            dropped: true,
            jumped: true,
            sessions: self.sessions.keys().copied().collect(),
            tokens: self.tokens.keys().cloned().collect(),
            operations: self.operations.clone(),
        };
        all.take_edits()
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
        if dirty.descriptor {
            edits.push(MetaEdit::Put(MetaKey::Descriptor, convert::descriptor_to_bytes(&self.descriptor)));
        }
        if dirty.schema {
            edits.push(MetaEdit::Put(MetaKey::Schema, convert::schema_to_bytes(&self.schema)));
        }
        if dirty.floors {
            edits.push(MetaEdit::Put(MetaKey::Floors, layout::encode_floors(&self.floors)));
        }
        if dirty.jumped {
            edits.push(MetaEdit::Put(MetaKey::Leapt, layout::encode_micros(Micros::ZERO.plus(self.jumped))));
        }
        edits.extend(dirty.sessions.iter().map(|id| self.session_edit(*id)));
        edits.extend(dirty.tokens.into_iter().map(|key| self.token_edit(key)));
        edits.extend(dirty.operations.iter().map(|id| self.operation_edit(*id)));
        edits
    }

    /// Advances to a command's timestamp: neither the log's time nor the GC time goes back. Age floors follow in steps.
    pub fn advance_time(&mut self, time: Micros) {
        let jump = time.since(self.time).saturating_sub(IDLE_STEP_MAX);
        if !jump.is_zero() && self.time > Micros::ZERO {
            self.jumped = self.jumped.saturating_add(jump);
            self.dirty.jumped = true;
        }
        self.time = self.time.max(time);
        self.gc_time = self.gc_time.max(time);
        if self.gc_time.since(self.floors_raised_at) >= FLOOR_STEP {
            self.raise_floors();
            self.forget_idle_sessions();
            self.forget_tokens();
        }
    }

    /// The clock for idle sessions: the log's time without its jumps. It may be slow, which keeps sessions for longer,
    /// and advances by at most a minute per command.
    #[must_use]
    pub fn session_time(&self) -> Micros {
        self.time.minus(self.jumped)
    }

    /// Whether metadata that readers or compactions depend on has changed since the last [`TabletState::take_edits`].
    #[must_use]
    pub fn has_metadata_changed(&self) -> bool {
        self.dirty.descriptor || self.dirty.schema || self.dirty.floors || self.dirty.dropped
    }

    /// Sets a new range and generation. Tokens of rows outside the range are removed.
    pub fn set_descriptor(&mut self, descriptor: TabletDescriptor) {
        self.dirty.tokens.extend(self.tokens.retain(&descriptor.range));
        self.descriptor = descriptor;
        self.dirty.descriptor = true;
    }

    /// Sets the membership of the log entry `id`.
    pub fn set_membership(&mut self, id: LogId, membership: Membership) {
        self.descriptor.membership = membership;
        self.descriptor.membership_log_id = id;
        self.dirty.descriptor = true;
    }

    /// Sets a later schema. Floors are raised first under the old rules: what these had expired stays dead.
    pub fn set_schema(&mut self, schema: TableSchema) {
        self.raise_floors();
        self.floors.retain(|family, _| schema.family_by_id(*family).is_some());
        self.schema = Arc::new(schema);
        self.dirty.schema = true;
        self.dirty.floors = true;
    }

    /// Records an operation; `true` when it is new.
    pub fn record_operation(&mut self, operation: OperationId) -> bool {
        if !self.operations.insert(operation) {
            return false;
        }
        self.dirty.operations.insert(operation);
        while self.operations.len() > OPERATIONS_MAX {
            if let Some(oldest) = self.operations.pop_first() {
                self.dirty.operations.insert(oldest);
            }
        }
        true
    }

    /// Drops the tablet.
    pub fn drop_tablet(&mut self, operation: OperationId) {
        self.dropped = Some(operation);
        self.operations.insert(operation);
        self.dirty.operations.insert(operation);
        self.dirty.dropped = true;
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

    /// Whether the tablet can accept one more session. Only sessions that are alive by the log's time count, however
    /// many expired ones this replica still stores: all replicas decide alike.
    pub fn has_room_for_session(&mut self, id: SessionId, sessions_max: usize) -> bool {
        if self.sessions.len() < sessions_max || self.sessions.contains_key(&id) {
            return true;
        }
        self.forget_idle_sessions();
        self.sessions.len() < sessions_max
    }

    /// Whether the tablet can store one more token. As with sessions, all replicas decide alike.
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
        self.tokens.record(key.clone(), started, result, self.time);
        self.dirty.tokens.insert(key);
    }

    fn forget_tokens(&mut self) {
        self.dirty.tokens.extend(self.tokens.expire(self.time));
    }

    /// Removes expired sessions. Which expired ones are still stored is never visible: see
    /// [`TabletState::session`].
    fn forget_idle_sessions(&mut self) {
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
        let floor = |family: &Family| Some((family.id, age_floor(family.gc.as_ref(), self.gc_time)?));
        let floors: Vec<_> = self.schema.families.iter().filter_map(floor).collect();
        for (family, floor) in floors {
            let known = self.floors.entry(family).or_insert(Micros::ZERO);
            if floor > *known {
                *known = floor;
                self.dirty.floors = true;
            }
        }
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
        if !self.operations.contains(&id) {
            return MetaEdit::Delete(key);
        }
        let value = if self.dropped == Some(id) { Bytes::from_static(DROPPED_MARKER) } else { Bytes::new() };
        MetaEdit::Put(key, value)
    }
}

/// Collects a state from its meta keys.
#[derive(Default)]
struct StateLoader {
    applied: Option<LogId>,
    descriptor: Option<TabletDescriptor>,
    schema: Option<TableSchema>,
    time: Micros,
    gc_time: Micros,
    floors: BTreeMap<FamilyId, Micros>,
    sessions: BTreeMap<SessionId, SessionWindow>,
    jumped: Duration,
    tokens: TokenTable,
    operations: BTreeSet<OperationId>,
    dropped: Option<OperationId>,
}

impl StateLoader {
    fn load_key(&mut self, key: &[u8], value: &Bytes) -> Result<(), Error> {
        let unknown = || Error::damaged(format!("unknown meta key {:?}", Bytes::copy_from_slice(key)));
        match MetaKey::decode(key).ok_or_else(unknown)? {
            MetaKey::Applied => self.applied = Some(layout::decode_log_id(value)?),
            MetaKey::LastTime => self.time = layout::decode_micros(value)?,
            MetaKey::GcTime => self.gc_time = layout::decode_micros(value)?,
            MetaKey::Leapt => self.jumped = layout::decode_micros(value)?.since(Micros::ZERO),
            MetaKey::Floors => self.floors = layout::decode_floors(value)?,
            MetaKey::Descriptor => self.descriptor = Some(convert::descriptor_from_bytes(value.clone())?),
            MetaKey::Schema => self.schema = Some(convert::schema_from_bytes(value.clone())?),
            MetaKey::Session(id) => {
                let session = convert::decode_record::<record::Session>(value.clone())?;
                self.sessions.insert(id, convert::session_from_proto(&session)?);
            }
            MetaKey::Token(key) => self.tokens.restore(key, convert::token_record_from_bytes(value.clone())?),
            MetaKey::Operation(id) => {
                self.operations.insert(id);
                if value.as_ref() == DROPPED_MARKER {
                    self.dropped = Some(id);
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<TabletState, Error> {
        let missing = |what: &str| Error::damaged(format!("read tablet state: {what} is missing"));
        Ok(TabletState {
            applied: self.applied.ok_or_else(|| missing("applied"))?,
            descriptor: self.descriptor.ok_or_else(|| missing("descriptor"))?,
            schema: Arc::new(self.schema.ok_or_else(|| missing("schema"))?),
            time: self.time,
            gc_time: self.gc_time,
            floors: self.floors,
            sessions: self.sessions,
            jumped: self.jumped,
            tokens: self.tokens,
            operations: self.operations,
            dropped: self.dropped,
            floors_raised_at: Micros::ZERO,
            dirty: DirtyKeys::default(),
        })
    }
}
