//! The state machine of a group's replica: carries the rules of `apply` out on its store; driven by `raft`.
//!
//! One write batch contains the changes of many entries, with the log id of the last one: the store never claims an entry
//! whose effect it lacks. The data that readers need (range, schema, times) is published as one value after the batch is
//! written; a reader pins its view first and reads the published value second, so the range that it sees is never wider
//! than the one that its view covers. (A merge widens a range, to rows that every view of the same store has.)
//!
//! **Divide** is the only command that creates files. All earlier edits are flushed and checkpointed (hard links) into a
//! folder for the child, the new group; the child's own state replaces the copied one; the folder is synced, renamed and
//! registered; only then is the parent written and flushed without the moved tablets; only then does the child start. A crash
//! in between is repaired by applying the entry again: a registered child is left unchanged, anything unregistered is created
//! again. A registered replica that something else has created stops this one instead.
//!
//! Not here: when to flush, where folders are ([`ReplicaFactory`]), and Raft.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::command::{CallToken, Command, CommandKind, Reply};
use ebla_model::error::{Error, Reason};
use ebla_model::group_time::GroupTimes;
use ebla_model::id::{CopyId, GroupId, LogId, LogIndex, TabletId};
use ebla_model::idempotency;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, Membership};
use ebla_model::session::SequenceCheck;
use ebla_model::tablet_move::MoveStep;
use ebla_model::time::Micros;
use ebla_runtime::Failpoint;
use ebla_storage::store::layout::{self, MetaKey};
use ebla_storage::store::{Batch, GroupStore, Relocation, Scrub, SharedResources};
use parking_lot::{Mutex, RwLock};
use tracing::{error, info};

use crate::raft::{AppliedPosition, CheckpointOrigin, CommittedEntry, Fault, GroupOrigin, GroupReplica, StateMachine};
use crate::tablet::WriteId;
use crate::tablet::core::applied_state::{AppliedState, GroupMetadata};
use crate::tablet::core::apply::{self, Applier, CellEdit, CellReader};
use crate::tablet::core::change_record::{ChangeRecords, Changes, RecordGauge};
use crate::tablet::core::command;
use crate::tablet::core::damage::DamageReports;
use crate::tablet::core::entry::{DecodedEntry, DecodedPayload};
use crate::tablet::core::file_sizes::FileSizeCache;
use crate::tablet::core::planted;
use crate::tablet::core::state::{GroupState, MetaEdit};
use crate::tablet::core::store_rules::{gc_rules, wanted_families};
use crate::tablet::core::stored_cells::StoredCells;

/// A batch is written at the end of the command that reaches this number of edits.
const EDITS_MAX: usize = 16_384;

/// What is known here of the child of a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildLookup {
    /// It does not exist: the division creates it.
    Missing,
    /// It exists, or existed and was removed: the division was applied before, or the leader of the child has requested it.
    Known,
    /// The server has a replica of a group with the same id that something else has created.
    Unrelated,
}

/// Creates the stores of local replicas and starts their groups.
pub trait ReplicaFactory: Send + Sync + 'static {
    /// Looks for the child that a division of `origin.parent` at `origin.divide_index` creates as `replica`.
    fn find_child(&self, replica: GroupReplica, origin: GroupOrigin) -> ChildLookup;

    /// Lets `fill` create a store in a new folder for the child of a division, then makes that the registered folder of `replica`:
    /// synced, renamed, registered. Blocking; durable on return.
    ///
    /// # Errors
    /// When the disk fails, or `fill` does.
    fn create_store(
        &self,
        replica: GroupReplica,
        origin: GroupOrigin,
        fill: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// Opens the child that `parent` created by its entry at `divide_index`, and starts its group. Returns at once.
    fn start_child(&self, parent: GroupReplica, divide_index: LogIndex, child: GroupReplica);

    /// Makes the checkpoint in `folder` the registered folder of `replica` instead of the current one, which is removed
    /// when its last reader is gone. Blocking; durable on return, with the store opened.
    ///
    /// # Errors
    /// When the disk fails, or there is no usable store in `folder`.
    fn install_store(&self, replica: GroupReplica, folder: &Path, old: Arc<GroupStore>) -> Result<GroupStore, Error>;
}

/// The state machine of one replica.
pub struct GroupStateMachine {
    id: GroupReplica,
    shared: Arc<SharedResources>,
    factory: Arc<dyn ReplicaFactory>,
    /// The state as of the last applied entry. Locked for the whole of an apply, a checkpoint and a snapshot installation:
    /// they exclude each other. Readers do not lock it. A panic in apply ends the process; nothing half done is ever
    /// continued.
    state: Mutex<GroupState>,
    /// The store that `state` belongs to; a snapshot installation replaces it. Locked to copy the pointer.
    store: RwLock<Arc<GroupStore>>,
    /// Locked to copy or replace the pointer.
    applied_state: RwLock<Arc<AppliedState>>,
    file_sizes: FileSizeCache,
    damage: DamageReports,
    /// Of tablets that are being copied.
    changes: ChangeRecords,
}

impl std::fmt::Debug for GroupStateMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupStateMachine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Writes a state as the first data of a new, empty store. Flushed on return.
///
/// # Errors
/// When the store fails.
pub fn initialize_store(store: &GroupStore, state: &GroupState) -> Result<(), Error> {
    write_meta(store, state.save())
}

impl GroupStateMachine {
    /// Opens the state machine of the replica in `store`.
    ///
    /// # Errors
    /// `DataDamaged` when the store's state cannot be read.
    pub fn open(
        id: GroupReplica,
        store: GroupStore,
        shared: Arc<SharedResources>,
        factory: Arc<dyn ReplicaFactory>,
    ) -> Result<Self, Error> {
        let state = GroupState::load(store.meta_scan(&[])?)?;
        store.set_gc_rules(gc_rules(&state));
        store.place_tables(wanted_families(&state))?;
        let applied_state = RwLock::new(Arc::new(AppliedState::of(&state, GroupMetadata::of(&state, None))));
        Ok(Self {
            id,
            shared,
            factory,
            state: Mutex::new(state),
            store: RwLock::new(Arc::new(store)),
            applied_state,
            file_sizes: FileSizeCache::default(),
            damage: DamageReports::default(),
            changes: ChangeRecords::default(),
        })
    }

    /// The replica's id.
    #[must_use]
    pub const fn id(&self) -> GroupReplica {
        self.id
    }

    /// The reports that the store may be damaged.
    #[must_use]
    pub const fn damage(&self) -> &DamageReports {
        &self.damage
    }

    /// The published applied state. A read must pin its view first.
    #[must_use]
    pub fn applied_state(&self) -> Arc<AppliedState> {
        Arc::clone(&self.applied_state.read())
    }

    /// The current store.
    #[must_use]
    pub fn store(&self) -> Arc<GroupStore> {
        Arc::clone(&self.store.read())
    }

    /// The approximate size of a tablet's rows, as in [`Self::sizes`]; zero if the group does not hold it.
    #[must_use]
    pub fn size_bytes(&self, tablet: TabletId) -> u64 {
        self.sizes().get(&tablet).copied().unwrap_or_default()
    }

    /// The approximate size of each tablet's rows, on disk and in memory. Unflushed data is attributed evenly to the tablets.
    /// Blocking when files have changed.
    #[must_use]
    pub fn sizes(&self) -> BTreeMap<TabletId, u64> {
        let store = self.store();
        let in_files = self.file_sizes.of(&store, &self.applied_state().metadata).tablets;
        let tablets = u64::try_from(in_files.len()).unwrap_or(u64::MAX).max(1);
        let unflushed = store.unflushed_bytes().unwrap_or_default() / tablets;
        in_files.iter().map(|(tablet, bytes)| (*tablet, bytes.saturating_add(unflushed))).collect()
    }

    /// The approximate bytes in files of rows that are in no tablet of the group. Blocking when files have changed.
    #[must_use]
    pub fn bytes_in_gaps(&self) -> u64 {
        self.file_sizes.of(&self.store(), &self.applied_state().metadata).in_gaps
    }

    /// Whether this write was applied before, as far as this replica has applied. Blocking: waits for an apply.
    #[must_use]
    pub fn check_duplicate(&self, id: &WriteId) -> SequenceCheck {
        self.with_state(|state| duplicate_check(state, id))
    }

    /// Reads the state of the group as of the last applied entry. Blocking: waits for an apply, a checkpoint or a snapshot
    /// installation, which may take long.
    pub fn with_state<T>(&self, read: impl FnOnce(&GroupState) -> T) -> T {
        read(&self.state.lock())
    }

    /// As [`Self::with_state`]; `None` when the state is held for longer than `patience`. Blocking for at most that.
    pub(in crate::tablet) fn try_with_state<T>(
        &self,
        patience: Duration,
        read: impl FnOnce(&GroupState) -> T,
    ) -> Option<T> {
        self.state.try_lock_for(patience).map(|state| read(&state))
    }

    /// Begins to record the changes of these stored rows for a copy, and reads the state at the same moment. Blocking: waits for an apply.
    /// Without a range: begins nothing.
    pub(in crate::tablet) fn begin_record<T>(
        &self,
        copy: CopyId,
        read: impl FnOnce(&GroupState) -> Option<(KeyRange, T)>,
    ) -> Option<(Arc<RecordGauge>, T)> {
        let state = self.state.lock();
        let (rows, value) = read(&state)?;
        Some((self.changes.begin(copy, &rows), value))
    }

    /// Takes the changes of all applied entries since the last take, and reads the state at the same moment. Blocking: waits for an apply.
    ///
    /// # Errors
    /// `Busy` when the record was given up.
    pub(in crate::tablet) fn take_changes<T>(
        &self,
        copy: CopyId,
        read: impl FnOnce(&GroupState) -> T,
    ) -> Result<(Changes, T), Error> {
        let state = self.state.lock();
        Ok((self.changes.take(copy)?, read(&state)))
    }

    /// Ends the record of a copy.
    pub(in crate::tablet) fn end_record(&self, copy: CopyId) {
        self.changes.end(copy);
    }

    /// Flushes all applied entries to the store's disk. Blocking.
    ///
    /// # Errors
    /// When the store fails; the replica must stop.
    pub fn flush(&self) -> Result<(), Error> {
        Ok(self.store().flush()?)
    }

    /// Moves about `bytes` of cells whose locality group has changed. Blocking: waits for an apply, and apply waits for it.
    ///
    /// # Errors
    /// When the store fails, or a cell cannot be read.
    pub fn relocate(&self, bytes: usize) -> Result<Relocation, Error> {
        let _no_apply = self.state.lock();
        Ok(self.store().relocate(bytes)?)
    }

    /// The log id up to which the store is durable.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn flushed_id(&self) -> Result<Option<LogId>, Error> {
        let value = self.store().persisted_meta(MetaKey::Applied)?;
        Ok(value.map(|value| layout::decode_log_id(&value)).transpose()?)
    }

    fn apply_entries(&self, state: &mut GroupState, entries: Vec<DecodedEntry>) -> Result<Vec<Bytes>, Error> {
        let store = self.store();
        let cells = StoredCells { store: &store };
        let mut applier = Applier::new(state, &cells);
        let mut replies = Vec::with_capacity(entries.len());
        let mut context = ApplyContext { state_machine: self, store: &store, metadata_changed: false };
        for entry in entries {
            replies.push(context.apply_entry(&mut applier, entry)?);
            if applier.edit_count() >= EDITS_MAX {
                context.commit(&mut applier)?;
            }
        }
        context.commit(&mut applier)?;
        let written = applier.take_written();
        let metadata = if context.metadata_changed {
            // Before the new metadata is published: a cell of a new family must not be filtered by the old rules.
            store.set_gc_rules(gc_rules(state));
            GroupMetadata::of(state, Some(&self.applied_state().metadata))
        } else {
            Arc::clone(&self.applied_state().metadata)
        };
        metadata.count_written(written);
        self.publish(state, metadata);
        Ok(replies)
    }

    fn publish(&self, state: &GroupState, metadata: Arc<GroupMetadata>) {
        let applied_state = Arc::new(AppliedState::of(state, metadata));
        *self.applied_state.write() = applied_state;
    }

    /// Applies a division at `id`: all earlier edits are in the store.
    fn divide(
        &self,
        state: &mut GroupState,
        store: &GroupStore,
        id: LogId,
        (tablets, child): (&[TabletId], GroupId),
    ) -> Result<Reply, Error> {
        let (new, moved) = match apply::divide(state, tablets, child) {
            Ok(divided) => divided,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        let replica = GroupReplica { group: child, replica: self.id.replica };
        let is_local = new.membership.is_voter(self.id.replica);
        let origin = GroupOrigin { parent: self.id.group, divide_index: id.index };
        let found = if is_local { self.factory.find_child(replica, origin) } else { ChildLookup::Known };
        match found {
            ChildLookup::Known => {}
            ChildLookup::Missing => {
                let child_state = state.child(new, &moved);
                let mut fill = |folder: &Path| self.create_child_store(store, folder, &child_state);
                self.factory.create_store(replica, origin, &mut fill)?;
            }
            // The tablets would be removed here and be nowhere.
            ChildLookup::Unrelated => return Err(unrelated_child(self.id.group, replica)),
        }
        state.remove_tablets(tablets);
        state.applied = id;
        write_meta(store, state.take_edits())?;
        self.publish(state, GroupMetadata::of(state, Some(&self.applied_state().metadata)));
        store.drop_outside(gc_rules(state))?;
        info!(group = %self.id.group, %child, tablets = moved.len(), "group divided");
        if is_local {
            self.factory.start_child(self.id, id.index, replica);
        }
        Ok(Reply::Done)
    }

    fn create_child_store(&self, store: &GroupStore, folder: &Path, state: &GroupState) -> Result<(), Error> {
        store.checkpoint(folder)?;
        let child = GroupStore::open(folder, &self.shared)?;
        write_meta(&child, state.clone().take_edits())?;
        if Failpoint::DivideForgetsSessions.is_enabled() {
            let mut batch = Batch::new();
            state.sessions.keys().for_each(|id| batch.delete_meta(MetaKey::Session(*id)));
            child.write(&batch)?;
            child.flush()?;
        }
        Ok(())
    }
}

/// The context of one call of apply.
struct ApplyContext<'a> {
    state_machine: &'a GroupStateMachine,
    store: &'a GroupStore,
    metadata_changed: bool,
}

impl ApplyContext<'_> {
    fn apply_entry<C: CellReader>(
        &mut self,
        applier: &mut Applier<'_, C>,
        entry: DecodedEntry,
    ) -> Result<Bytes, Error> {
        let reply = match entry.payload {
            DecodedPayload::Blank => Bytes::new(),
            DecodedPayload::Membership(membership) => {
                applier.state().set_membership(entry.id, membership);
                Bytes::new()
            }
            DecodedPayload::Command(command) => command::encode_reply(&self.command(applier, entry.id, command)?),
        };
        applier.state().applied = entry.id;
        Ok(reply)
    }

    fn command<C: CellReader>(
        &mut self,
        applier: &mut Applier<'_, C>,
        id: LogId,
        command: Command,
    ) -> Result<Reply, Error> {
        if apply::needs_written_edits(&command.kind) {
            self.commit(applier)?;
        }
        match &command.kind {
            CommandKind::Divide { tablets, child } => {
                applier.state().advance_time(command.time, command.elapsed, command.clock);
                self.metadata_changed = true;
                self.state_machine.divide(applier.state(), self.store, id, (tablets, *child))
            }
            CommandKind::CreateTablets { .. } | CommandKind::Move(_, MoveStep::Begin(_)) => {
                let reply = applier.apply(command)?;
                // Before the first cell of a new tablet is written: a compaction under the old rules would drop it.
                self.store.set_gc_rules(gc_rules(applier.state()));
                self.store.place_tables(wanted_families(applier.state()))?;
                Ok(reply)
            }
            CommandKind::SetSchema(_) => {
                let reply = applier.apply(command)?;
                // Before the first cell of a new family is written.
                self.store.place_tables(wanted_families(applier.state()))?;
                Ok(reply)
            }
            _ => applier.apply(command),
        }
    }

    /// Writes the buffered edits and the state after them, in one batch.
    fn commit<C: CellReader>(&mut self, applier: &mut Applier<'_, C>) -> Result<(), Error> {
        let edits = applier.take_edits();
        let state = applier.state();
        self.metadata_changed |= state.has_metadata_changed();
        let meta_edits = state.take_edits();
        self.state_machine.changes.note(&edits, &meta_edits);
        let mut batch = Batch::new();
        for edit in edits {
            match edit {
                CellEdit::Put(key, value) => batch.put(key, value),
                CellEdit::Delete(key) => batch.delete(key),
                CellEdit::DeleteRange(from, to) => batch.delete_range(from, to),
            }
        }
        add_meta_edits(&mut batch, meta_edits);
        Ok(self.store.write(&batch)?)
    }
}

impl StateMachine for GroupStateMachine {
    fn applied(&self) -> AppliedPosition {
        let applied_state = self.applied_state();
        applied_position(applied_state.applied, &applied_state.metadata.descriptor)
    }

    fn persisted(&self) -> Result<AppliedPosition, Fault> {
        let last = self.flushed_id().map_err(fault("read persisted state"))?;
        // The membership in memory is the same or later, and only the position matters for the log.
        let mut position = self.applied();
        position.last = last.filter(|id| *id != LogId::default());
        Ok(position)
    }

    fn apply(&self, entries: &[CommittedEntry]) -> Result<Vec<Bytes>, Fault> {
        let entries = decode(entries)?;
        self.apply_entries(&mut self.state.lock(), entries).map_err(fault("apply"))
    }

    fn try_apply_inline(&self, entries: &[CommittedEntry]) -> Option<Result<Vec<Bytes>, Fault>> {
        // A checkpoint or a snapshot installation may hold it for long.
        let mut state = self.state.try_lock()?;
        let entries = match decode(entries) {
            Ok(entries) => entries,
            Err(undecodable) => return Some(Err(undecodable)),
        };
        if !entries.iter().all(DecodedEntry::is_put_only) || self.store().is_write_stalled() {
            return None;
        }
        Some(self.apply_entries(&mut state, entries).map_err(fault("apply")))
    }

    fn checkpoint(&self, folder: &Path) -> Result<AppliedPosition, Fault> {
        let state = self.state.lock();
        self.store().checkpoint(folder).map_err(Error::from).map_err(fault("checkpoint"))?;
        Ok(applied_position(state.applied, &state.descriptor))
    }

    fn verify(&self, checkpoint: &Path, origin: CheckpointOrigin) -> Result<(), Fault> {
        match Scrub::check(checkpoint).map_err(Error::from) {
            Ok(_bytes) => Ok(()),
            Err(error) => {
                if error.reason == Reason::DataDamaged && origin == CheckpointOrigin::Own {
                    self.damage.report();
                }
                Err(fault("verify checkpoint")(error))
            }
        }
    }

    fn install(&self, folder: &Path, _applied: AppliedPosition) -> Result<(), Fault> {
        let mut state = self.state.lock();
        self.changes.give_up();
        let store = self.factory.install_store(self.id, folder, self.store()).map_err(fault("install snapshot"))?;
        let load = || -> Result<GroupState, Error> {
            let loaded = GroupState::load(store.meta_scan(&[])?)?;
            if planted::omit_from_snapshot(&store, &loaded)? {
                GroupState::load(store.meta_scan(&[])?)
            } else {
                Ok(loaded)
            }
        };
        *state = load().map_err(fault("install snapshot"))?;
        store.set_gc_rules(gc_rules(&state));
        store.place_tables(wanted_families(&state)).map_err(Error::from).map_err(fault("install snapshot"))?;
        *self.store.write() = Arc::new(store);
        self.file_sizes.clear();
        self.publish(&state, GroupMetadata::of(&state, Some(&self.applied_state().metadata)));
        info!(group = %self.id.group, replica = %self.id.replica, applied = %state.applied, "snapshot installed");
        Ok(())
    }
}

fn unrelated_child(parent: GroupId, child: GroupReplica) -> Error {
    error!(group = %parent, %child, "group division refused: another group has the id of the new one; nothing was deleted");
    // The replica waits, and tries again: somebody has to remove the other group first.
    let wrong =
        format!("the division of group {parent} cannot be applied: {child} is of another group with the same id");
    Error::new(Reason::Unavailable, wrong)
}

/// Whether this write was applied before, as far as `state` tells.
pub(in crate::tablet) fn duplicate_check(state: &GroupState, id: &WriteId) -> SequenceCheck {
    match state.sessions.get(&id.session) {
        Some(window) if !window.is_expired(state.session_time()) && !Failpoint::AppliedTwice.is_enabled() => {
            window.check(id.sequence)
        }
        _ => SequenceCheck::New,
    }
}

/// Whether a write with this token was applied before, as far as `state` tells; its start time is evaluated at `now`, or at the
/// log's time if that is later. `row`: as stored.
pub(in crate::tablet) fn token_check(
    state: &GroupState,
    row: &RowKey,
    token: &CallToken,
    now: Micros,
) -> idempotency::TokenCheck {
    let times = state.times();
    let now = GroupTimes { log: times.log.max(now), ..times };
    state.tokens.check(&token.key(row), token.token.started, now)
}

/// Writes and flushes changes of the meta keys.
fn write_meta(store: &GroupStore, edits: Vec<MetaEdit>) -> Result<(), Error> {
    let mut batch = Batch::new();
    add_meta_edits(&mut batch, edits);
    store.write(&batch)?;
    store.flush()?;
    Ok(())
}

fn add_meta_edits(batch: &mut Batch, edits: Vec<MetaEdit>) {
    for edit in edits {
        match edit {
            MetaEdit::Put(key, value) => batch.put_meta(key, value),
            MetaEdit::Delete(key) => batch.delete_meta(key),
        }
    }
}

fn applied_position(last: LogId, descriptor: &GroupDescriptor) -> AppliedPosition {
    // An empty replica has applied nothing and knows no members: Raft sends it a snapshot.
    if last == LogId::default() {
        return AppliedPosition { last: None, membership: (None, Membership::default()) };
    }
    AppliedPosition {
        last: Some(last),
        membership: (Some(descriptor.membership_log_id), descriptor.membership.clone()),
    }
}

fn decode(entries: &[CommittedEntry]) -> Result<Vec<DecodedEntry>, Fault> {
    DecodedEntry::decode_all(entries).map_err(|error| Fault::of_log(error.reason, format!("apply: {error}")))
}

fn fault(doing: &'static str) -> impl Fn(Error) -> Fault {
    move |error| Fault::with_reason(error.reason, format!("{doing}: {error}"))
}
