//! All replicas of a server: opened at start, made and removed by order, born of splits, found by id.
//!
//! The registry on disk says which replicas live here; this is the same set in memory, with their groups running. A
//! tablet has at most one replica on a server. What may be made, and when, is decided by three facts: a replica that was
//! removed never lives again (tombstone); a tablet that begins is made from its seed on every replica alike; any other
//! missing replica is made *empty* and filled by the leader's snapshot, never from a seed whose content it cannot have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{Generation, LogId, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_runtime::{Blocking, Bug, Runtime, planted};
use ebla_storage::log::{CommitLog, Record};
use ebla_storage::registry::{Registry, ReplicaRecord, ReplicaState};
use ebla_storage::tablet::{Shared, TabletStore};
use futures::StreamExt as _;
use tracing::{error, info, warn};

use crate::raft::{Group, GroupConfig, GroupDirectory, GroupId, Lookup, Network, Origin, Pools, RaftTimings};
use crate::tablet::admission::Admission;
use crate::tablet::cradle::{Cradle, begin_log};
use crate::tablet::machine::{self, Machine, Nursery};
use crate::tablet::split::SplitHelp;
use crate::tablet::state::TabletState;
use crate::tablet::{Parts, Report, Tablet};

/// Replicas are opened so many at a time: opening reads files, and a server may have a thousand.
const OPENED_AT_ONCE: usize = 8;
/// How long a replica's tasks may take to end.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Whether a store has been closed is looked at so often ...
const CLOSE_LOOK: Duration = Duration::from_millis(5);
/// ... and so many times.
const CLOSE_LOOKS: usize = 400;

/// What the set of replicas is made with.
pub struct HostedParts {
    /// This server.
    pub server: ServerId,
    /// What lives here, on disk.
    pub registry: Arc<Registry>,
    /// The server's commit log.
    pub log: CommitLog,
    /// Groups whose log is damaged: their replicas are not started.
    pub quarantined: BTreeSet<GroupId>,
    /// Groups on the other servers.
    pub network: Arc<Network>,
    /// Memory and threads of all stores.
    pub shared: Arc<Shared>,
    /// Threads for apply and maintenance.
    pub pools: Pools,
    /// Threads for reads.
    pub reads: Blocking,
    /// Clock and tasks.
    pub runtime: Runtime,
    /// Folder for checkpoints on their way.
    pub scratch: PathBuf,
    /// Times of the groups.
    pub timings: RaftTimings,
    /// Whether replicas that ran before keep out of elections at first; see [`GroupConfig::wait_before_voting`].
    pub wait_before_voting: bool,
    /// What splits need.
    pub help: Arc<dyn SplitHelp>,
}

/// The replicas of a server.
pub struct Hosted {
    me: Weak<Self>,
    parts: HostedParts,
    admission: Admission,
    /// Held to look up, insert or remove.
    replicas: RwLock<BTreeMap<TabletId, Replica>>,
    /// Replicas whose group is being started, so that none is started twice. Held for a look-up.
    starting: Mutex<BTreeSet<GroupId>>,
    /// The server is about to end.
    leaving: AtomicBool,
}

#[derive(Clone)]
struct Replica {
    tablet: Arc<Tablet>,
    /// Owns the tablet's tasks.
    runtime: Runtime,
}

/// How a replica came to be, which decides how its group starts.
#[derive(Clone, Copy)]
enum Birth {
    /// It ran before.
    Reopened,
    /// It begins from a seed that all replicas share, or empty.
    New,
    /// It is the child of a split; where the parent led, it stands for election at once.
    Child(Origin),
}

/// What a replica that is made by order begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With the seed that all first replicas of a tablet share, if the tablet has never changed; else with nothing.
    Seed,
    /// With nothing: its leader fills it.
    Empty,
}

/// What [`Hosted::create_replica`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The replica was made and runs.
    Made,
    /// It was here already.
    Here,
    /// It was removed from this server for ever.
    Removed,
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("server", &self.parts.server).finish_non_exhaustive()
    }
}

impl Hosted {
    /// Opens all replicas that live here and starts their groups.
    ///
    /// # Errors
    /// When a store cannot be opened for another reason than damage; a damaged one is quarantined and left out.
    pub async fn open(parts: HostedParts) -> Result<Arc<Self>, Error> {
        let hosted = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            parts,
            admission: Admission::new(),
            replicas: RwLock::default(),
            starting: Mutex::default(),
            leaving: AtomicBool::new(false),
        });
        let live = hosted.live()?;
        let opened = futures::stream::iter(live).map(|replica| hosted.reopen(replica)).buffer_unordered(OPENED_AT_ONCE);
        let outcomes: Vec<Result<(), Error>> = opened.collect().await;
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        // Only now: a message for a child must not have it made empty while its parent, not yet open, is about to make it.
        let directory: Weak<dyn GroupDirectory> = Weak::clone(&hosted.me) as Weak<dyn GroupDirectory>;
        hosted.parts.network.serve(directory);
        Ok(hosted)
    }

    /// This server.
    #[must_use]
    pub const fn server(&self) -> ServerId {
        self.parts.server
    }

    /// The replica of a tablet that is here and runs.
    #[must_use]
    pub fn tablet(&self, tablet: TabletId) -> Option<Arc<Tablet>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.get(&tablet).map(|replica| Arc::clone(&replica.tablet))
    }

    /// All replicas that run here.
    #[must_use]
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.values().map(|replica| Arc::clone(&replica.tablet)).collect()
    }

    /// What the replicas here know of a table's tablets.
    #[must_use]
    pub fn descriptors(&self, table: TableId) -> Vec<TabletDescriptor> {
        let known =
            |tablet: &Arc<Tablet>| tablet.table() == table && tablet.descriptor().generation > Generation::new(0);
        self.tablets().iter().filter(|tablet| known(tablet)).map(|tablet| tablet.descriptor()).collect()
    }

    /// What every replica here tells of itself.
    #[must_use]
    pub fn report(&self) -> Vec<Report> {
        self.tablets().iter().map(|tablet| tablet.report()).collect()
    }

    /// Replicas that may have lost what they acknowledged: they do not run.
    #[must_use]
    pub fn quarantined(&self) -> Vec<GroupId> {
        let records = self.parts.registry.replicas();
        records.into_iter().filter(|(_, record)| record.state == ReplicaState::Quarantined).map(|(id, _)| id).collect()
    }

    /// Replicas that are here and do not run: they are being started, or could not be.
    #[must_use]
    pub fn idle(&self) -> Vec<GroupId> {
        // In this order: one that is started meanwhile is seen in one place or the other.
        let records = self.parts.registry.replicas().into_iter();
        let live: Vec<_> = records.filter(|(_, record)| record.state == ReplicaState::Live).map(|(id, _)| id).collect();
        let runs = |id: &GroupId| self.tablet(id.tablet).is_some_and(|tablet| tablet.replica() == id.replica);
        live.into_iter().filter(|id| !runs(id)).collect()
    }

    /// What the writes of all tablets here may have under way.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The commit log.
    #[must_use]
    pub const fn log(&self) -> &CommitLog {
        &self.parts.log
    }

    /// What lives here, on disk.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.parts.registry
    }

    /// Memory and threads of all stores.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.parts.shared
    }

    /// Threads for flushes.
    #[must_use]
    pub const fn maintenance(&self) -> &Blocking {
        &self.parts.pools.maintenance
    }

    /// Makes a replica of a tablet and starts its group. A tablet that has never changed begins from its seed; a
    /// replica of any other begins empty and is filled by the leader. Safe to repeat; done to its end when the caller goes.
    ///
    /// # Errors
    /// When the disk fails, the replica is damaged, or another replica of the tablet lives here.
    pub async fn create_replica(
        self: &Arc<Self>,
        descriptor: TabletDescriptor,
        schema: TableSchema,
        replica: ReplicaId,
        beginning: Beginning,
    ) -> Result<Created, Error> {
        let hosted = Arc::clone(self);
        let make = async move { hosted.create_now(descriptor, schema, replica, beginning).await };
        self.carry_through("create-replica", make).await
    }

    async fn create_now(
        &self,
        descriptor: TabletDescriptor,
        schema: TableSchema,
        replica: ReplicaId,
        beginning: Beginning,
    ) -> Result<Created, Error> {
        let id = GroupId { tablet: descriptor.tablet, replica };
        if self.parts.registry.is_removed(id) {
            return Ok(Created::Removed);
        }
        if let Some(present) = self.tablet(id.tablet) {
            if present.replica() == replica {
                return Ok(Created::Here);
            }
            return Err(rival());
        }
        if self.parts.registry.identity().is_none() {
            // Its name would be forgotten at a restart, and with it whose replicas these are.
            return Err(Error::new(Reason::FailedPrecondition, "the server has not been told its cluster yet"));
        }
        let Some(_turn) = self.begin_start(id) else { return Err(being_started()) };
        let is_rival = |(other, record): &(GroupId, ReplicaRecord)| {
            other.tablet == id.tablet && *other != id && record.state == ReplicaState::Live
        };
        let has_rival = self.parts.registry.replicas().iter().any(is_rival);
        match self.parts.registry.replica(id).map(|record| record.state) {
            _ if has_rival => return Err(rival()),
            Some(ReplicaState::Quarantined) => return Err(Error::damaged("the replica is damaged")),
            Some(ReplicaState::Live) => {
                // It could not be started before.
                self.reopen(id).await?;
                return Ok(Created::Here);
            }
            Some(ReplicaState::Creating | ReplicaState::Removing) | None => {}
        }
        // A replica that the seed does not name was added later: it cannot know what was applied since.
        let is_new = beginning == Beginning::Seed
            && descriptor.generation == Generation::new(1)
            && descriptor.membership_log_id == LogId::SEED
            && descriptor.membership.server_of(replica) == Some(self.parts.server);
        let state = if is_new {
            TabletState::fresh(descriptor, schema)
        } else {
            TabletState::empty(descriptor.table, id.tablet)
        };
        let path = self.build_store(id, state).await?;
        self.start(id, path, Birth::New).await?;
        info!(tablet = %id.tablet, %replica, "replica made");
        Ok(Created::Made)
    }

    /// Ends a replica for ever: stops its group, deletes its folder, leaves a tombstone. Safe to repeat; done to its end
    /// when the caller goes.
    ///
    /// # Errors
    /// When the disk fails; `Busy` while the replica is being started.
    pub async fn drop_replica(self: &Arc<Self>, tablet: TabletId, replica: ReplicaId) -> Result<(), Error> {
        let (hosted, id) = (Arc::clone(self), GroupId { tablet, replica });
        self.carry_through("drop-replica", async move { hosted.drop_now(id).await }).await
    }

    async fn drop_now(&self, id: GroupId) -> Result<(), Error> {
        let GroupId { tablet, replica } = id;
        let Some(_turn) = self.begin_start(id) else { return Err(being_started()) };
        let removed = {
            let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
            let is_meant = replicas.get(&tablet).is_some_and(|present| present.tablet.replica() == replica);
            if is_meant { replicas.remove(&tablet) } else { None }
        };
        if let Some(present) = removed {
            stop(present).await;
        }
        if self.parts.registry.is_removed(id) {
            return Ok(());
        }
        // The log may forget it in its own time: after the tombstone nobody asks for it again.
        self.parts.log.submit(vec![Record::Removed { group: id }], Box::new(|_outcome| ()));
        let registry = Arc::clone(&self.parts.registry);
        self.maintain(move || Ok(registry.remove(id)?)).await?;
        info!(%tablet, %replica, "replica removed");
        Ok(())
    }

    /// The server is about to end: nothing that takes long is begun here any more, and no replica stands for election.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.tablets().iter().for_each(|tablet| tablet.group().abstain());
    }

    /// Whether the server is about to end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Writes all memtables to disk, so that the next start has little to apply again.
    pub async fn flush(&self) {
        let flushes = self.tablets().into_iter().map(|tablet| async move {
            let machine = Arc::clone(tablet.machine());
            if let Err(error) = self.maintain(move || machine.flush()).await {
                warn!(tablet = %tablet.id(), %error, "not flushed before the end");
            }
        });
        futures::stream::iter(flushes).for_each_concurrent(OPENED_AT_ONCE, |flush| flush).await;
    }

    /// Runs an order on a task of its own. Cut off half way, with the connection that it came by, it would leave a replica that is on
    /// disk and does not run.
    async fn carry_through<T: Send + 'static>(
        &self,
        name: &'static str,
        order: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.runtime.tasks.start_until_stopped(name, order).await;
        outcome.unwrap_or_else(|_gone| Err(Error::new(Reason::Unavailable, "the server stops")))
    }

    /// Stops all groups. Leadership is not handed over.
    pub async fn stop(&self) {
        let all = self.take_all();
        futures::stream::iter(all.into_values()).for_each_concurrent(OPENED_AT_ONCE, stop).await;
    }

    /// Stops all groups at once, as a crash would; returns when they hold nothing any more.
    pub async fn abort(&self) {
        let all = self.take_all();
        for replica in all.values() {
            replica.tablet.group().abort();
            replica.runtime.tasks.cancel();
        }
        let ends = all.into_values().map(|replica| async move {
            replica.runtime.tasks.stop(Duration::ZERO).await;
            replica.tablet.group().stop().await;
            closed(replica).await;
        });
        futures::future::join_all(ends).await;
    }

    fn take_all(&self) -> BTreeMap<TabletId, Replica> {
        let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *replicas)
    }

    /// The replicas to start; those with a damaged log are quarantined.
    fn live(&self) -> Result<Vec<GroupId>, Error> {
        let mut live = Vec::new();
        for (id, record) in self.parts.registry.replicas() {
            if record.state != ReplicaState::Live {
                continue;
            }
            if self.parts.quarantined.contains(&id) {
                error!(tablet = %id.tablet, replica = %id.replica, "replica's log is damaged: quarantined");
                self.parts.registry.quarantine(id)?;
                continue;
            }
            live.push(id);
        }
        Ok(live)
    }

    async fn reopen(&self, id: GroupId) -> Result<(), Error> {
        let Some(path) = self.parts.registry.path(id) else { return Ok(()) };
        match self.start(id, path, Birth::Reopened).await {
            Err(error) if error.reason == Reason::DataDamaged => {
                error!(tablet = %id.tablet, replica = %id.replica, %error, "replica is damaged: quarantined");
                Ok(self.parts.registry.quarantine(id)?)
            }
            outcome => outcome,
        }
    }

    async fn start(&self, id: GroupId, path: PathBuf, birth: Birth) -> Result<(), Error> {
        let nursery: Arc<dyn Nursery> = Arc::new(Cradle { hosted: Weak::clone(&self.me) });
        let shared = Arc::clone(&self.parts.shared);
        let open = move || {
            let store = TabletStore::open(&path, &shared)?;
            Machine::open(id, store, shared, nursery)
        };
        let machine = Arc::new(self.maintain(open).await?);
        let installed = self.parts.registry.replica(id).and_then(|record| record.installed);
        check_log(&self.parts.log, id, machine.published().applied, installed)?;
        let runtime = self.parts.runtime.child(&format!("tablet-{}", id.tablet));
        let log = self.parts.log.clone();
        let state_machine = Arc::clone(&machine) as Arc<dyn crate::raft::StateMachine>;
        let config = self.group_config(id, birth, &machine);
        let group = Group::start(config, log, state_machine, &self.parts.network, &runtime).await;
        let group = group.map_err(|error| Error::damaged(error.to_string()))?;
        let tablet = Tablet::start(Parts {
            id,
            machine,
            group,
            runtime: runtime.clone(),
            reads: self.parts.reads.clone(),
            maintenance: self.parts.pools.maintenance.clone(),
            admission: self.admission.clone(),
            help: Arc::clone(&self.parts.help),
        });
        announce_changes(&tablet, &runtime, &self.parts.help);
        let mut replicas = self.replicas.write().unwrap_or_else(PoisonError::into_inner);
        replicas.insert(id.tablet, Replica { tablet, runtime });
        Ok(())
    }

    fn group_config(&self, id: GroupId, birth: Birth, machine: &Machine) -> GroupConfig {
        let parts = &self.parts;
        let mut config = GroupConfig::new(id, parts.server, parts.scratch.clone(), parts.pools.clone());
        config.timings = parts.timings;
        match birth {
            Birth::Reopened if parts.wait_before_voting && !planted(Bug::VoteAfterRestart) => {
                config.wait_before_voting = Some(parts.timings.election_max);
            }
            // One of the replicas need not wait for a silence that proves nothing: no leader can be alive.
            Birth::Reopened | Birth::New => {
                let state = machine.published();
                let first = state.shape.descriptor.membership.replicas().next();
                config.elect_now = first.is_some_and(|first| first.replica == id.replica);
            }
            Birth::Child(origin) => {
                config.origin = origin;
                config.elect_now = self.tablet(origin.parent).is_some_and(|parent| parent.leads());
            }
        }
        config
    }

    async fn build_store(&self, id: GroupId, state: TabletState) -> Result<PathBuf, Error> {
        let (registry, shared) = (Arc::clone(&self.parts.registry), Arc::clone(&self.parts.shared));
        let log = self.parts.log.clone();
        let build = move || {
            let folder = registry.begin_create(id)?;
            let store = TabletStore::create(&folder, &shared)?;
            machine::initialise(&store, &state)?;
            drop(store);
            begin_log(&log, id)?;
            Ok(registry.finish_create(id)?)
        };
        self.maintain(build).await
    }

    async fn maintain<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.parts.pools.maintenance.run(call).await;
        outcome.map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?
    }

    /// The right to start this replica; `None` while somebody else does.
    fn begin_start(&self, id: GroupId) -> Option<StartTurn> {
        let hosted = self.me.upgrade()?;
        let is_first = self.starting().insert(id);
        // Made only by who is first: dropping a turn takes the lock and gives the place back.
        is_first.then(|| StartTurn { hosted, id })
    }

    fn starting(&self) -> MutexGuard<'_, BTreeSet<GroupId>> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a replica in the background: a registered child, or an empty one that a leader asked for.
    pub(super) fn start_later(&self, id: GroupId, origin: Origin) {
        let Some(turn) = self.begin_start(id) else { return };
        self.parts.runtime.tasks.spawn_until_stopped("start-replica", async move {
            let hosted = Arc::clone(&turn.hosted);
            if let Err(error) = hosted.start_missing(id, origin).await {
                warn!(tablet = %id.tablet, replica = %id.replica, %error, "replica not started");
            }
            drop(turn);
        });
    }

    async fn start_missing(&self, id: GroupId, origin: Origin) -> Result<(), Error> {
        if self.tablet(id.tablet).is_some() {
            return Ok(());
        }
        let path = match self.parts.registry.replica(id) {
            Some(record) if record.state == ReplicaState::Live => self.parts.registry.path(id),
            Some(record) if record.state != ReplicaState::Creating => return Ok(()),
            _ => None,
        };
        let path = match path {
            Some(path) => path,
            None => {
                warn!(tablet = %id.tablet, replica = %id.replica, "replica is made empty, for a snapshot");
                self.build_store(id, TabletState::empty(TableId::METADATA, id.tablet)).await?
            }
        };
        self.start(id, path, Birth::Child(origin)).await
    }
}

/// The right to start a replica, given back when dropped.
struct StartTurn {
    hosted: Arc<Hosted>,
    id: GroupId,
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        self.hosted.starting().remove(&self.id);
    }
}

fn rival() -> Error {
    Error::new(Reason::FailedPrecondition, "another replica of the tablet lives here")
}

fn being_started() -> Error {
    Error::new(Reason::Busy, "the replica is being started")
}

/// Fails when the log ends below what the store holds: then it has lost entries that were acknowledged.
fn check_log(log: &CommitLog, id: GroupId, applied: LogId, installed: Option<LogId>) -> Result<(), Error> {
    let known = log.last(id).max(installed).max(Some(LogId::SEED));
    if known.is_some_and(|last| applied.index > last.index) {
        let message = format!("the log of {id} ends before {applied}, which was applied");
        return Err(Error::damaged(message));
    }
    Ok(())
}

async fn stop(replica: Replica) {
    // The group first: a proposal under way may wait for a majority that has stopped before us.
    replica.tablet.group().stop().await;
    replica.runtime.tasks.stop(STOP_GRACE).await;
    closed(replica).await;
}

/// Returns when nobody holds the replica's store any more, so that its folder may be deleted or opened again; gives up after
/// a while, for a reader may be slow.
async fn closed(replica: Replica) {
    let machine = Arc::downgrade(replica.tablet.machine());
    drop(replica);
    for _ in 0..CLOSE_LOOKS {
        if machine.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(CLOSE_LOOK).await;
    }
}

/// Tells whenever the replica comes to lead, or leads with other members: METADATA may have to follow.
fn announce_changes(tablet: &Arc<Tablet>, runtime: &Runtime, help: &Arc<dyn SplitHelp>) {
    let (id, help, group) = (tablet.id(), Arc::clone(help), Arc::clone(tablet.group()));
    runtime.tasks.spawn_until_stopped("announce", async move {
        let mut status = group.watch();
        let mut announced = None;
        loop {
            let now = {
                let status = status.borrow_and_update();
                status.is_leader.then_some((status.term, status.membership_log_id))
            };
            if now.is_some() && now != announced {
                help.changed(id);
            }
            announced = now;
            if status.changed().await.is_err() {
                return;
            }
        }
    });
}

impl GroupDirectory for Hosted {
    fn group(&self, tablet: TabletId, replica: ReplicaId, origin: Origin) -> Lookup {
        if let Some(present) = self.tablet(tablet) {
            return if present.replica() == replica {
                Lookup::Here(Arc::clone(present.group()))
            } else {
                Lookup::Unreachable(format!("replica {} of the tablet lives here", present.replica()))
            };
        }
        let id = GroupId { tablet, replica };
        if self.parts.registry.is_removed(id) {
            return Lookup::Unreachable("the replica was removed".to_owned());
        }
        if origin.parent == TabletId::default() {
            return Lookup::Unreachable("the replica is not here".to_owned());
        }
        // The parent's own log makes the child, unless the parent is past that entry or not here.
        let parent = self.tablet(origin.parent);
        let awaits_split = parent.is_some_and(|parent| parent.machine().published().applied.index < origin.split_index);
        if awaits_split {
            return Lookup::Unreachable("the parent has not reached the split".to_owned());
        }
        self.start_later(id, origin);
        Lookup::Unreachable("the replica is being made".to_owned())
    }
}
