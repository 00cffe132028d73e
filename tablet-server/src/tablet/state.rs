//! What a tablet replica knows beside its cells, and how that is kept.
//!
//! It stands under the meta keys of the replica's store (`storage::tablet::layout`), which change in the same write
//! batch as the cells, so after a crash they say exactly what the cells hold. An applied operation is kept with an empty
//! value, the one that ended the tablet with [`ENDED`].
//!
//! Pure: the state is a value, and what changed is a list of edits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::gc::age_floor;
use ebla_model::id::{FamilyId, Generation, LogId, OperationId, SessionId, TableId, TabletId};
use ebla_model::idempotency::TokenMemory;
use ebla_model::key::KeyRange;
use ebla_model::metadata::{Membership, TabletDescriptor};
use ebla_model::schema::{Family, TableSchema};
use ebla_model::session::SessionWindow;
use ebla_model::time::Micros;
use ebla_proto::convert;
use ebla_proto::record;
use ebla_storage::tablet::layout::{self, MetaKey};

/// The value kept with the operation that ended the tablet.
pub const ENDED: &[u8] = b"ended";

/// Operations remembered; the oldest ids go first. A master does not repeat one that is so far back.
const OPERATIONS_MAX: usize = 1024;

/// Age floors are raised in steps of the GC time: each raise makes running views expire.
const FLOOR_STEP: Duration = Duration::from_secs(60);

/// What the log's time advances by beyond this, from one command to the next, is no time in which sessions were idle: it may
/// be that a leader's clock is ahead, and a write whose answer was lost under the old leader comes again under the new one.
const IDLE_STEP_MAX: Duration = Duration::from_secs(60);

/// A change of the meta keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaEdit {
    /// The key holds this value.
    Put(MetaKey, Bytes),
    /// The key is gone.
    Delete(MetaKey),
}

/// Everything of a replica but its cells.
#[derive(Clone, Debug)]
pub struct TabletState {
    /// Range, generation and replicas.
    pub descriptor: TabletDescriptor,
    /// The table's schema, as far as this tablet has been told.
    pub schema: Arc<TableSchema>,
    /// The last entry applied.
    pub applied: LogId,
    /// The greatest time a command carried: the log's time.
    pub time: Micros,
    /// Cells are judged by age as of this time.
    pub gc_time: Micros,
    /// Cells below the floor of their family are gone, whatever later rules say. Floors never fall.
    pub floors: BTreeMap<FamilyId, Micros>,
    /// What was applied lately of each session that writes here.
    pub sessions: BTreeMap<SessionId, SessionWindow>,
    /// How much of the log's time was leaps: see [`TabletState::session_time`].
    pub leapt: Duration,
    /// What was applied lately with a token of its caller's.
    pub tokens: TokenMemory,
    /// Operations applied, so that a repetition does nothing.
    pub operations: BTreeSet<OperationId>,
    /// The operation that ended this tablet.
    pub dropped: Option<OperationId>,
    /// The GC time when the floors were last raised. Not kept: after a restart they are raised at the first command, which
    /// may be earlier than elsewhere and shows nobody anything, since reads judge by the GC time itself.
    floors_drawn: Micros,
    changed: Changed,
}

/// What was changed since the last [`TabletState::take_edits`].
#[derive(Clone, Debug, Default)]
struct Changed {
    descriptor: bool,
    schema: bool,
    floors: bool,
    ended: bool,
    leapt: bool,
    sessions: BTreeSet<SessionId>,
    tokens: BTreeSet<Bytes>,
    operations: BTreeSet<OperationId>,
}

impl TabletState {
    /// A replica of a tablet that has just been made: applied up to the seed, all of it to be saved.
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
            leapt: Duration::ZERO,
            tokens: TokenMemory::default(),
            operations: BTreeSet::new(),
            dropped: None,
            floors_drawn: Micros::ZERO,
            changed: Changed::default(),
        }
    }

    /// A replica that knows nothing of its tablet but the name: the group's leader sends it a snapshot. Its generation is
    /// none that a request names, so it answers nothing. `table`: where it is not known, METADATA's.
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

    /// The right half of a split of this tablet, applied up to the seed. What was applied of a session stays known, so
    /// that a write sent again after the split is still recognised; so do the tokens of the rows that it gets.
    #[must_use]
    pub fn child(&self, descriptor: TabletDescriptor) -> Self {
        let mut child = Self { descriptor, applied: LogId::SEED, changed: Changed::default(), ..self.clone() };
        let _of_the_left_half = child.tokens.retain(&child.descriptor.range);
        child
    }

    /// Reads what [`TabletState::save`] and the edits of later commands left.
    ///
    /// # Errors
    /// `DataDamaged` when a key that must be there is missing, or a value cannot be read.
    pub fn load(meta: impl IntoIterator<Item = (Bytes, Bytes)>) -> Result<Self, Error> {
        let mut loading = Loading::default();
        for (key, value) in meta {
            loading.take(&key, &value).map_err(|error| error.context("read tablet state"))?;
        }
        loading.finish()
    }

    /// All meta keys, for a store that has none yet.
    #[must_use]
    pub fn save(&self) -> Vec<MetaEdit> {
        let mut all = self.clone();
        all.changed = Changed {
            descriptor: true,
            schema: true,
            floors: true,
            ended: true,
            leapt: true,
            sessions: self.sessions.keys().copied().collect(),
            tokens: self.tokens.keys().cloned().collect(),
            operations: self.operations.clone(),
        };
        all.take_edits()
    }

    /// The edits that bring the stored keys to this state, counted from the last call. the applied id and the
    /// times are always among them.
    #[must_use]
    pub fn take_edits(&mut self) -> Vec<MetaEdit> {
        let changed = std::mem::take(&mut self.changed);
        let mut edits = vec![
            MetaEdit::Put(MetaKey::Applied, layout::encode_log_id(self.applied)),
            MetaEdit::Put(MetaKey::LastTime, layout::encode_micros(self.time)),
            MetaEdit::Put(MetaKey::GcTime, layout::encode_micros(self.gc_time)),
        ];
        if changed.descriptor {
            edits.push(MetaEdit::Put(MetaKey::Descriptor, convert::descriptor_to_bytes(&self.descriptor)));
        }
        if changed.schema {
            edits.push(MetaEdit::Put(MetaKey::Schema, convert::schema_to_bytes(&self.schema)));
        }
        if changed.floors {
            edits.push(MetaEdit::Put(MetaKey::Floors, layout::encode_floors(&self.floors)));
        }
        if changed.leapt {
            edits.push(MetaEdit::Put(MetaKey::Leapt, layout::encode_micros(Micros::ZERO.plus(self.leapt))));
        }
        edits.extend(changed.sessions.iter().map(|id| self.session_edit(*id)));
        edits.extend(changed.tokens.into_iter().map(|key| self.token_edit(key)));
        edits.extend(changed.operations.iter().map(|id| self.operation_edit(*id)));
        edits
    }

    /// Takes a command's time: neither the log's time nor the GC time goes back. Age floors follow in steps.
    pub fn advance_time(&mut self, time: Micros) {
        let leap = time.since(self.time).saturating_sub(IDLE_STEP_MAX);
        if !leap.is_zero() && self.time > Micros::ZERO {
            self.leapt = self.leapt.saturating_add(leap);
            self.changed.leapt = true;
        }
        self.time = self.time.max(time);
        self.gc_time = self.gc_time.max(time);
        if self.gc_time.since(self.floors_drawn) >= FLOOR_STEP {
            self.draw_floors();
            self.forget_idle_sessions();
            self.forget_tokens();
        }
    }

    /// The time by which sessions are idle: the log's time without its leaps. It may be slow, which keeps sessions for longer,
    /// and never advances by more than a minute a command.
    #[must_use]
    pub fn session_time(&self) -> Micros {
        self.time.minus(self.leapt)
    }

    /// Whether something changed since the last [`TabletState::take_edits`] that readers or compactions must know.
    #[must_use]
    pub fn is_reshaped(&self) -> bool {
        self.changed.descriptor || self.changed.schema || self.changed.floors || self.changed.ended
    }

    /// Takes a new range and generation. What is known of rows outside the range goes with them.
    pub fn set_descriptor(&mut self, descriptor: TabletDescriptor) {
        self.changed.tokens.extend(self.tokens.retain(&descriptor.range));
        self.descriptor = descriptor;
        self.changed.descriptor = true;
    }

    /// Takes the membership that the log holds at `id`.
    pub fn set_membership(&mut self, id: LogId, membership: Membership) {
        self.descriptor.membership = membership;
        self.descriptor.membership_log_id = id;
        self.changed.descriptor = true;
    }

    /// Takes a later schema. Floors are drawn first under the old rules: what they had ended stays ended.
    pub fn set_schema(&mut self, schema: TableSchema) {
        self.draw_floors();
        self.floors.retain(|family, _| schema.family_by_id(*family).is_some());
        self.schema = Arc::new(schema);
        self.changed.schema = true;
        self.changed.floors = true;
    }

    /// Notes an operation; `true` when it was not noted before.
    pub fn note_operation(&mut self, operation: OperationId) -> bool {
        if !self.operations.insert(operation) {
            return false;
        }
        self.changed.operations.insert(operation);
        while self.operations.len() > OPERATIONS_MAX {
            if let Some(oldest) = self.operations.pop_first() {
                self.changed.operations.insert(oldest);
            }
        }
        true
    }

    /// Ends the tablet.
    pub fn drop_tablet(&mut self, operation: OperationId) {
        self.dropped = Some(operation);
        self.operations.insert(operation);
        self.changed.operations.insert(operation);
        self.changed.ended = true;
    }

    /// The session's window, made when the session is new here or was idle for so long that it counts as new.
    pub fn session(&mut self, id: SessionId) -> &mut SessionWindow {
        self.changed.sessions.insert(id);
        let time = self.session_time();
        let window = self.sessions.entry(id).or_default();
        if window.expired(time) {
            *window = SessionWindow::default();
        }
        window
    }

    /// Whether a session that is not known can be taken in. It looks at those that are alive by the log's time, however
    /// many others this replica still holds: all replicas come to the same.
    pub fn has_room_for_session(&mut self, id: SessionId, sessions_max: usize) -> bool {
        if self.sessions.len() < sessions_max || self.sessions.contains_key(&id) {
            return true;
        }
        self.forget_idle_sessions();
        self.sessions.len() < sessions_max
    }

    /// Whether one more token can be remembered. As with sessions, all replicas come to the same.
    pub fn has_room_for_token(&mut self, key: &[u8], result: Option<&Bytes>) -> bool {
        if !self.tokens.has_room(key, result) {
            self.forget_tokens();
        }
        self.tokens.has_room(key, result)
    }

    /// Remembers a write with a token that is being applied.
    pub fn remember(&mut self, key: &[u8], started: Option<Micros>, result: Option<&Bytes>) {
        // Copied: a slice of the log's entry would keep all of it in memory.
        let (key, result) = (Bytes::copy_from_slice(key), result.map(|result| Bytes::copy_from_slice(result)));
        self.tokens.record(key.clone(), started, result, self.time);
        self.changed.tokens.insert(key);
    }

    fn forget_tokens(&mut self) {
        self.changed.tokens.extend(self.tokens.forget(self.time));
    }

    /// Forgets sessions that were idle for too long. Which ones are still kept changes no answer: see
    /// [`TabletState::session`].
    fn forget_idle_sessions(&mut self) {
        let time = self.session_time();
        let changed = &mut self.changed.sessions;
        self.sessions.retain(|id, window| {
            let idle = window.expired(time);
            if idle {
                changed.insert(*id);
            }
            !idle
        });
    }

    /// The state in the form that is the same on all replicas that have applied the same entries: floors are drawn now
    /// and expired sessions and tokens forgotten, however long ago each replica has done so.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let mut state = self.clone();
        state.draw_floors();
        state.forget_idle_sessions();
        state.forget_tokens();
        state
    }

    /// Raises the floors to where the age rules draw them at the GC time. Below them compactions drop cells without
    /// asking, on each replica in its own time; readers see nothing there from now on.
    fn draw_floors(&mut self) {
        self.floors_drawn = self.gc_time;
        let floor = |family: &Family| Some((family.id, age_floor(family.gc.as_ref(), self.gc_time)?));
        let floors: Vec<_> = self.schema.families.iter().filter_map(floor).collect();
        for (family, floor) in floors {
            let known = self.floors.entry(family).or_insert(Micros::ZERO);
            if floor > *known {
                *known = floor;
                self.changed.floors = true;
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
        match self.tokens.get(&key).map(convert::remembered_to_bytes) {
            Some(value) => MetaEdit::Put(MetaKey::Token(key), value),
            None => MetaEdit::Delete(MetaKey::Token(key)),
        }
    }

    fn operation_edit(&self, id: OperationId) -> MetaEdit {
        let key = MetaKey::Operation(id);
        if !self.operations.contains(&id) {
            return MetaEdit::Delete(key);
        }
        let value = if self.dropped == Some(id) { Bytes::from_static(ENDED) } else { Bytes::new() };
        MetaEdit::Put(key, value)
    }
}

/// A state while its keys are read.
#[derive(Default)]
struct Loading {
    applied: Option<LogId>,
    descriptor: Option<TabletDescriptor>,
    schema: Option<TableSchema>,
    time: Micros,
    gc_time: Micros,
    floors: BTreeMap<FamilyId, Micros>,
    sessions: BTreeMap<SessionId, SessionWindow>,
    leapt: Duration,
    tokens: TokenMemory,
    operations: BTreeSet<OperationId>,
    dropped: Option<OperationId>,
}

impl Loading {
    fn take(&mut self, key: &[u8], value: &Bytes) -> Result<(), Error> {
        let unknown = || Error::damaged(format!("unknown meta key {:?}", Bytes::copy_from_slice(key)));
        match MetaKey::decode(key).ok_or_else(unknown)? {
            MetaKey::Applied => self.applied = Some(layout::decode_log_id(value)?),
            MetaKey::LastTime => self.time = layout::decode_micros(value)?,
            MetaKey::GcTime => self.gc_time = layout::decode_micros(value)?,
            MetaKey::Leapt => self.leapt = layout::decode_micros(value)?.since(Micros::ZERO),
            MetaKey::Floors => self.floors = layout::decode_floors(value)?,
            MetaKey::Descriptor => self.descriptor = Some(convert::descriptor_from_bytes(value.clone())?),
            MetaKey::Schema => self.schema = Some(convert::schema_from_bytes(value.clone())?),
            MetaKey::Session(id) => {
                let session = convert::decode_record::<record::Session>(value.clone())?;
                self.sessions.insert(id, convert::session_from_proto(&session)?);
            }
            MetaKey::Token(key) => self.tokens.restore(key, convert::remembered_from_bytes(value.clone())?),
            MetaKey::Operation(id) => {
                self.operations.insert(id);
                if value.as_ref() == ENDED {
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
            leapt: self.leapt,
            tokens: self.tokens,
            operations: self.operations,
            dropped: self.dropped,
            floors_drawn: Micros::ZERO,
            changed: Changed::default(),
        })
    }
}
