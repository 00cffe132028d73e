//! A replica's state machine: the rules of `apply` carried out on its store, for `raft` to drive.
//!
//! One write batch holds what many entries changed, with the last one's log id: the store never tells of an entry whose
//! effect it lacks. What readers need (range, schema, times) is published as one value after the batch is written;
//! a reader pins its view first and looks at what is published second, so it is never told a range that is wider than
//! what its view answers for.
//!
//! **Split** is the one command that makes files. Everything written before is flushed and linked into a folder for the
//! child; the child's own state replaces the copy's; the folder is synced, named and registered; only then is the
//! parent's cut written and flushed; only then does the child's group start. A crash anywhere between is repaired by
//! applying the entry again: a registered child is kept as it is, whatever is not registered is made anew.
//!
//! What is absent: when to flush, where folders live ([`Nursery`]), and Raft.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use ebla_model::command::{CallToken, Command, CommandKind, Reply};
use ebla_model::error::Error;
use ebla_model::id::{LogId, TabletId};
use ebla_model::idempotency;
use ebla_model::key::RowKey;
use ebla_model::metadata::{Membership, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::session::Verdict;
use ebla_model::time::Micros;
use ebla_runtime::{Bug, planted};
use ebla_storage::tablet::cells::{self, Probe};
use ebla_storage::tablet::layout::{self, MetaKey};
use ebla_storage::tablet::{Batch, Direction, GcRules, Shared, StoreError, TabletStore};
use tracing::info;

use crate::raft::{Applied, CommittedEntry, Fault, GroupId, Payload, StateMachine};
use crate::tablet::WriteId;
use crate::tablet::apply::{self, Applier, Cells, Edit};
use crate::tablet::command;
use crate::tablet::rows::Families;
use crate::tablet::state::{MetaEdit, TabletState};

/// A batch is written when so many edits have gathered, at the end of a command.
const EDITS_MAX: usize = 16_384;

/// What readers need of a tablet's state; changes seldom.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Range, generation, replicas.
    pub descriptor: TabletDescriptor,
    /// The table's schema as far as this replica has applied it.
    pub schema: Arc<TableSchema>,
    /// The schema as reads use it.
    pub families: Families,
    /// Whether the tablet has ended.
    pub dropped: bool,
}

/// What this replica has applied, as of its last write batch.
#[derive(Clone, Debug)]
pub struct Published {
    /// The last entry applied.
    pub applied: LogId,
    /// The log's time.
    pub time: Micros,
    /// Reads judge ages by this time.
    pub gc_time: Micros,
    /// Range and schema.
    pub shape: Arc<Shape>,
}

/// Where replicas live on this server: makes their folders known and their groups run.
pub trait Nursery: Send + Sync + 'static {
    /// Whether this replica lives here, or lived here and was removed: then it must not be made.
    fn knows(&self, replica: GroupId) -> bool;

    /// Lets `fill` make a store in a folder that does not exist yet, then makes it the registered home of `replica`:
    /// synced, renamed, registered. Blocking; durable on return.
    ///
    /// # Errors
    /// When the disk fails, or `fill` does.
    fn build(&self, replica: GroupId, fill: &mut dyn FnMut(&Path) -> Result<(), Error>) -> Result<(), Error>;

    /// Opens the child that `parent` has made by its entry at `split_index`, and starts its group. Returns at once.
    fn start_child(&self, parent: GroupId, split_index: u64, child: GroupId);

    /// Makes the checkpoint in `folder` the registered home of `replica` instead of the present one, which is removed
    /// when nobody reads it any more. Blocking; durable on return, with the store opened.
    ///
    /// # Errors
    /// When the disk fails, or there is no usable store in `folder`.
    fn replace(&self, replica: GroupId, folder: &Path, old: Arc<TabletStore>) -> Result<TabletStore, Error>;
}

/// The state machine of one replica.
pub struct Machine {
    id: GroupId,
    shared: Arc<Shared>,
    nursery: Arc<dyn Nursery>,
    /// The state as of the last entry applied. Held for the whole of an apply, a checkpoint and an installation: they
    /// exclude each other. Readers do not take it.
    state: Mutex<TabletState>,
    /// The store that `state` belongs to; replaced by an installation. Held to copy the pointer.
    store: RwLock<Arc<TabletStore>>,
    /// Held to copy or replace the pointer.
    published: RwLock<Arc<Published>>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Fills a new, empty store with a state: the first thing that is written to it. Flushed on return.
///
/// # Errors
/// When the store fails.
pub fn initialise(store: &TabletStore, state: &TabletState) -> Result<(), Error> {
    let mut batch = Batch::new();
    add_meta(&mut batch, state.save());
    store.write(&batch)?;
    store.flush()?;
    Ok(())
}

impl Machine {
    /// The machine of the replica in `store`, as it was left.
    ///
    /// # Errors
    /// `DataDamaged` when the store's state cannot be read.
    pub fn open(
        id: GroupId,
        store: TabletStore,
        shared: Arc<Shared>,
        nursery: Arc<dyn Nursery>,
    ) -> Result<Self, Error> {
        let state = TabletState::load(store.meta_scan(&[])?)?;
        store.set_gc_rules(gc_rules(&state));
        let published = RwLock::new(Arc::new(publish(&state, shape(&state))));
        Ok(Self { id, shared, nursery, state: Mutex::new(state), store: RwLock::new(Arc::new(store)), published })
    }

    /// Which replica this is.
    #[must_use]
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// What is applied. For a read: only after its view is pinned.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The store as it is now.
    #[must_use]
    pub fn store(&self) -> Arc<TabletStore> {
        Arc::clone(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of the tablet's rows, on disk and in memory, roughly.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        let store = self.store();
        let range = &self.published().shape.descriptor.range;
        let on_disk = store.row_range_bytes(range).unwrap_or_default();
        on_disk.saturating_add(store.unflushed_bytes().unwrap_or_default())
    }

    /// Whether this write was applied before, as far as this replica has applied. Blocking: waits for an apply.
    #[must_use]
    pub fn judge(&self, id: &WriteId) -> Verdict {
        let state = self.state();
        match state.sessions.get(&id.session) {
            Some(window) if !window.expired(state.session_time()) && !planted(Bug::AppliedTwice) => {
                window.judge(id.sequence)
            }
            _ => Verdict::Fresh,
        }
    }

    /// What is known of a write with this token, as far as this replica has applied, at the time `now` if the log's is not
    /// later. Blocking: waits for an apply.
    #[must_use]
    pub fn judge_token(&self, row: &RowKey, token: &CallToken, now: Micros) -> idempotency::Verdict {
        let state = self.state();
        state.tokens.judge(&token.key(row), token.token.started, state.time.max(now))
    }

    /// Makes all that was applied durable in the store. Blocking.
    ///
    /// # Errors
    /// When the store fails; the replica must stop.
    pub fn flush(&self) -> Result<(), Error> {
        Ok(self.store().flush()?)
    }

    /// The log id up to which the store is durable.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn persisted_id(&self) -> Result<Option<LogId>, Error> {
        let value = self.store().persisted_meta(MetaKey::Applied)?;
        Ok(value.map(|value| layout::decode_log_id(&value)).transpose()?)
    }

    fn state(&self) -> MutexGuard<'_, TabletState> {
        // A panic in apply ends the process; nothing half done is ever continued.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_all(&self, state: &mut TabletState, steps: Vec<Step>) -> Result<Vec<Bytes>, Error> {
        let store = self.store();
        let cells = StoredCells { store: &store };
        let mut applier = Applier::new(state, &cells);
        let mut answers = Vec::with_capacity(steps.len());
        let mut run = Run { machine: self, store: &store, reshaped: false };
        for step in steps {
            answers.push(run.step(&mut applier, step)?);
            if applier.gathered() >= EDITS_MAX {
                run.commit(&mut applier)?;
            }
        }
        run.commit(&mut applier)?;
        let reshaped = run.reshaped;
        if reshaped {
            // Before anybody learns of the new shape: a cell of a new family must not meet the old rules.
            store.set_gc_rules(gc_rules(state));
        }
        self.publish(state, reshaped);
        Ok(answers)
    }

    fn publish(&self, state: &TabletState, reshaped: bool) {
        let shape = if reshaped { shape(state) } else { Arc::clone(&self.published().shape) };
        let published = Arc::new(publish(state, shape));
        *self.published.write().unwrap_or_else(PoisonError::into_inner) = published;
    }

    /// Applies a split at `id`: everything before it is in the store.
    fn split(
        &self,
        state: &mut TabletState,
        store: &TabletStore,
        id: LogId,
        (at, child): (&RowKey, TabletId),
    ) -> Result<Reply, Error> {
        let (left, right) = match apply::split(state, at, child) {
            Ok(halves) => halves,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        let replica = GroupId { tablet: child, replica: self.id.replica };
        let lives_here = right.membership.is_voter(self.id.replica);
        if lives_here && !self.nursery.knows(replica) {
            let child_state = state.child(right.clone());
            self.nursery.build(replica, &mut |folder| self.bear(store, folder, &child_state))?;
        }
        state.set_descriptor(left.clone());
        state.applied = id;
        let mut batch = Batch::new();
        add_meta(&mut batch, state.take_edits());
        store.write(&batch)?;
        store.flush()?;
        self.publish(state, true);
        store.drop_outside(gc_rules(state))?;
        info!(tablet = %self.id.tablet, %child, %at, "split applied");
        if lives_here {
            self.nursery.start_child(self.id, id.index, replica);
        }
        Ok(Reply::Split { left: Box::new(left), right: Box::new(right) })
    }

    fn bear(&self, store: &TabletStore, folder: &Path, state: &TabletState) -> Result<(), Error> {
        store.checkpoint(folder)?;
        let child = TabletStore::open(folder, &self.shared)?;
        initialise(&child, state)?;
        if planted(Bug::SplitForgetsSessions) {
            let mut batch = Batch::new();
            state.sessions.keys().for_each(|id| batch.delete_meta(MetaKey::Session(*id)));
            child.write(&batch)?;
            child.flush()?;
        }
        Ok(())
    }
}

/// An entry, read.
struct Step {
    id: LogId,
    what: What,
}

enum What {
    Blank,
    Membership(Membership),
    Command(Command),
}

impl Step {
    fn read(entry: &CommittedEntry) -> Result<Self, Error> {
        let what = match &entry.payload {
            Payload::Blank => What::Blank,
            Payload::Membership(membership) => What::Membership(membership.clone()),
            Payload::Command(bytes) => What::Command(command::decode(bytes)?),
        };
        Ok(Self { id: entry.id, what })
    }

    /// Whether it only adds cells: nothing is looked up for it, and nothing but a memtable grows.
    fn is_plain(&self) -> bool {
        match &self.what {
            What::Blank => true,
            What::Membership(_) => false,
            What::Command(command) => apply::only_adds(&command.kind),
        }
    }
}

/// One call of apply.
struct Run<'a> {
    machine: &'a Machine,
    store: &'a TabletStore,
    reshaped: bool,
}

impl Run<'_> {
    fn step<C: Cells>(&mut self, applier: &mut Applier<'_, C>, step: Step) -> Result<Bytes, Error> {
        let answer = match step.what {
            What::Blank => Bytes::new(),
            What::Membership(membership) => {
                applier.state().set_membership(step.id, membership);
                Bytes::new()
            }
            What::Command(command) => command::encode_reply(&self.command(applier, step.id, command)?),
        };
        applier.state().applied = step.id;
        Ok(answer)
    }

    fn command<C: Cells>(&mut self, applier: &mut Applier<'_, C>, id: LogId, command: Command) -> Result<Reply, Error> {
        if apply::wants_written(&command.kind) {
            self.commit(applier)?;
        }
        let CommandKind::Split { at, child } = &command.kind else { return applier.apply(command) };
        applier.state().advance_time(command.time);
        self.reshaped = true;
        self.machine.split(applier.state(), self.store, id, (at, *child))
    }

    /// Writes what has gathered and the state it leads to, in one batch.
    fn commit<C: Cells>(&mut self, applier: &mut Applier<'_, C>) -> Result<(), Error> {
        let edits = applier.take_edits();
        let state = applier.state();
        self.reshaped |= state.is_reshaped();
        let mut batch = Batch::new();
        for edit in edits {
            match edit {
                Edit::Put(key, value) => batch.put(key, value),
                Edit::Delete(key) => batch.delete(key),
                Edit::DeleteRange(from, to) => batch.delete_range(from, to),
            }
        }
        add_meta(&mut batch, state.take_edits());
        Ok(self.store.write(&batch)?)
    }
}

impl StateMachine for Machine {
    fn applied(&self) -> Applied {
        let published = self.published();
        applied(published.applied, &published.shape.descriptor)
    }

    fn persisted(&self) -> Result<Applied, Fault> {
        let last = self.persisted_id().map_err(fault("read persisted state"))?;
        // The membership of the state in memory: it is the same or later, and only the position decides about the log.
        let mut applied = self.applied();
        applied.last = last.filter(|id| *id != LogId::default());
        Ok(applied)
    }

    fn apply(&self, entries: &[CommittedEntry]) -> Result<Vec<Bytes>, Fault> {
        let apply = || self.apply_all(&mut self.state(), read(entries)?);
        apply().map_err(fault("apply"))
    }

    fn apply_at_once(&self, entries: &[CommittedEntry]) -> Option<Result<Vec<Bytes>, Fault>> {
        // A checkpoint or an installation may hold it for long. Poisoned: the process ends.
        let mut state = self.state.try_lock().ok()?;
        let steps = match read(entries) {
            Ok(steps) => steps,
            Err(error) => return Some(Err(fault("apply")(error))),
        };
        if !steps.iter().all(Step::is_plain) || self.store().holds_up_writers() {
            return None;
        }
        Some(self.apply_all(&mut state, steps).map_err(fault("apply")))
    }

    fn checkpoint(&self, folder: &Path) -> Result<Applied, Fault> {
        let state = self.state();
        self.store().checkpoint(folder).map_err(|error| Fault::new(format!("checkpoint: {error}")))?;
        Ok(applied(state.applied, &state.descriptor))
    }

    fn install(&self, folder: &Path, _applied: Applied) -> Result<(), Fault> {
        let mut state = self.state();
        let store = self.nursery.replace(self.id, folder, self.store()).map_err(fault("install snapshot"))?;
        let load = || TabletState::load(store.meta_scan(&[])?);
        *state = load().map_err(fault("install snapshot"))?;
        store.set_gc_rules(gc_rules(&state));
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        self.publish(&state, true);
        info!(tablet = %self.id.tablet, replica = %self.id.replica, applied = %state.applied, "snapshot installed");
        Ok(())
    }
}

fn read(entries: &[CommittedEntry]) -> Result<Vec<Step>, Error> {
    entries.iter().map(Step::read).collect()
}

/// The cells of a store as apply looks at them.
struct StoredCells<'a> {
    store: &'a TabletStore,
}

impl Cells for StoredCells<'_> {
    fn few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let probe = self.store.with_view(|view| cells::probe(view, lower, upper))?;
        Ok(match probe {
            Probe::Few(keys) => Some(keys),
            Probe::Many => None,
        })
    }

    fn all(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        let read = |view: &ebla_storage::tablet::View<'_>| -> Result<_, StoreError> {
            let mut scan = view.cells(lower, upper, Direction::Forward)?;
            let mut keys = Vec::new();
            while let Some((key, _)) = scan.entry() {
                keys.push(key.to_vec());
                scan.step()?;
            }
            Ok(keys)
        };
        Ok(self.store.with_view(read)?)
    }
}

fn add_meta(batch: &mut Batch, edits: Vec<MetaEdit>) {
    for edit in edits {
        match edit {
            MetaEdit::Put(key, value) => batch.put_meta(key, value),
            MetaEdit::Delete(key) => batch.delete_meta(key),
        }
    }
}

pub(super) fn gc_rules(state: &TabletState) -> GcRules {
    let families = state.schema.families.iter().map(|family| family.id);
    GcRules::new(&state.descriptor.range, families, state.schema.next_family, state.floors.clone())
}

fn shape(state: &TabletState) -> Arc<Shape> {
    Arc::new(Shape {
        descriptor: state.descriptor.clone(),
        schema: Arc::clone(&state.schema),
        families: Families::new(&state.schema, &state.floors),
        dropped: state.dropped.is_some(),
    })
}

fn publish(state: &TabletState, shape: Arc<Shape>) -> Published {
    Published { applied: state.applied, time: state.time, gc_time: state.gc_time, shape }
}

fn applied(last: LogId, descriptor: &TabletDescriptor) -> Applied {
    // An empty replica has applied nothing and knows of no members: Raft sends it a snapshot.
    if last == LogId::default() {
        return Applied { last: None, membership: (None, Membership::default()) };
    }
    Applied { last: Some(last), membership: (Some(descriptor.membership_log_id), descriptor.membership.clone()) }
}

fn fault(doing: &'static str) -> impl Fn(Error) -> Fault {
    move |error| Fault::new(format!("{doing}: {error}"))
}
