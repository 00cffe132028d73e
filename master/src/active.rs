//! The active master: the master lock, the cluster's identity, and clients of the tablet servers and of METADATA.
//! Every action needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, Counter, TransactionOutcome, Write, next_ids_above};
use ebla_client::{Cluster, ClusterOptions, Deadline, Directory, GrpcTransport};
use ebla_model::cluster_event::NewClusterEvent;
use ebla_model::error::{Error, Reason};
use ebla_model::heat::HeatOption;
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{ClusterId, MasterEpoch, TableId};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::status::{is_unavailable, to_status};
use ebla_routing::{ChubbyDirectory, Metadata};
use ebla_runtime::trace::{self, Origin, Outcome, Recorder, TabletIds};
use ebla_runtime::{Blocking, Failpoint, Runtime};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tracing::warn;

use crate::election::MasterLock;
use crate::event_log::EventLog;
use crate::merging::BackgroundMerges;
use crate::plan::capacity::RepairWithoutRoom;
use crate::plan::counters::highest_of;
use crate::plan::upgrade::Readiness;
use crate::problems::{Problem, ProblemHistory};
use crate::replica_changes::ReplicaChanges;
use crate::schema_store::{self, Identity};
use crate::server_client::ServerClient;

/// Maps of key heat that are read at once, each of which takes some tens of megabytes at most.
const HEAT_READS_MAX: usize = 2;
/// For so long a term waits for servers without which a group has no majority, before changes start without them. Servers whose leases are
/// lost register again within a lease.
const EVIDENCE_MAX: Duration = Duration::from_secs(30);
/// For so long a change waits until it is known whether Chubby is behind.
const COMPARISON_MAX: Duration = Duration::from_secs(10);

/// Access to everything that the active master acts on; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ActiveMaster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lock: MasterLock,
    cluster: ClusterId,
    epoch: MasterEpoch,
    replicas: usize,
    heat: HeatOption,
    servers: ServerClient,
    client: Cluster,
    directory: ChubbyDirectory,
    replica_changes: ReplicaChanges,
    merges: BackgroundMerges,
    events: EventLog,
    /// METADATA as it was last read. Guards a pointer.
    cached_metadata: Mutex<Option<CachedMetadata>>,
    /// The repairs that wait for room, as the last round of the reconciler found them. Guards a pointer.
    repairs_without_room: Mutex<Arc<Vec<RepairWithoutRoom>>>,
    /// The tables that Chubby does not know, as the last round of the reconciler found them. Guards a pointer.
    unknown_tables: Mutex<Arc<BTreeSet<TableId>>>,
    /// What is wrong, and since when. Locked to take an observation or to copy it; a few entries for each server.
    problems: Mutex<ProblemHistory>,
    /// Since when the next cluster version could be active, and how long that must last. Guards plain values.
    upgrade_readiness: Mutex<(Readiness, Duration)>,
    runtime: Runtime,
    recorder: Arc<Recorder>,
    /// One permit, held while a new table is placed: two creations at once must not create groups twice.
    placement: Semaphore,
    /// A permit for each map of key heat that is being read: they take memory.
    heat_reads: Semaphore,
    /// Makes maps of key heat, which takes some time of a processor.
    heat_threads: Blocking,
    /// When this term began, as time since boot.
    began: Duration,
    /// Whether Chubby was compared with what the servers have, in this term.
    is_compared: watch::Sender<bool>,
    /// The highest ids that were in use in the last comparisons, and those that this term has allocated. Guards plain values.
    known_ids: Mutex<BTreeMap<Counter, u64>>,
    /// Wakes the reconciler before its next round is due.
    reconcile: Notify,
    /// Ends this term.
    resign: Notify,
}

/// METADATA as it was last read, for use while it cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct CachedMetadata {
    pub(crate) metadata: Arc<BTreeMap<RowKey, TabletDescriptor>>,
    /// When it was read, as time since boot.
    pub(crate) at: Duration,
}

impl ActiveMaster {
    /// `runtime`: its tasks stop when this master is no longer active. `replicas`: the number of replicas of a new
    /// group. `heat`: whether key heat is collected. `recorder`: of the operations of this master.
    pub(crate) fn new(
        lock: MasterLock,
        identity: &Identity,
        directory: &ChubbyDirectory,
        (replicas, heat): (usize, HeatOption),
        runtime: Runtime,
        recorder: Arc<Recorder>,
    ) -> Self {
        let shared_directory: Arc<dyn Directory> = Arc::new(directory.clone());
        let (cluster, epoch) = (identity.cluster, lock.epoch(identity.epoch_base));
        let servers = ServerClient::new(&runtime, Arc::clone(&shared_directory), cluster, epoch);
        let transport = Arc::new(GrpcTransport::new(runtime.clone(), Arc::clone(&shared_directory)));
        let client = Cluster::new(ClusterOptions {
            directory: shared_directory,
            transport,
            runtime: runtime.clone(),
            home: None,
        });
        Self(Arc::new(Inner {
            lock,
            cluster,
            epoch,
            replicas,
            heat,
            servers,
            client,
            directory: directory.clone(),
            replica_changes: ReplicaChanges::default(),
            merges: BackgroundMerges::default(),
            events: EventLog::default(),
            cached_metadata: Mutex::default(),
            repairs_without_room: Mutex::default(),
            unknown_tables: Mutex::default(),
            problems: Mutex::default(),
            upgrade_readiness: Mutex::default(),
            began: runtime.clock.monotonic(),
            is_compared: watch::Sender::new(Failpoint::ChubbyNotCompared.is_enabled()),
            known_ids: Mutex::default(),
            runtime,
            recorder,
            placement: Semaphore::new(1),
            heat_reads: Semaphore::new(HEAT_READS_MAX),
            heat_threads: heat_threads(heat),
            reconcile: Notify::new(),
            resign: Notify::new(),
        }))
    }

    pub(crate) fn chubby(&self) -> &dyn Chubby {
        &**self.0.lock.chubby()
    }

    pub(crate) fn epoch(&self) -> MasterEpoch {
        self.0.epoch
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    pub(crate) fn replicas(&self) -> usize {
        self.0.replicas
    }

    pub(crate) fn servers(&self) -> &ServerClient {
        &self.0.servers
    }

    /// Whether key heat is collected.
    pub(crate) fn heat(&self) -> HeatOption {
        self.0.heat
    }

    /// The cluster's rows.
    pub(crate) fn client(&self) -> &Cluster {
        &self.0.client
    }

    /// Waits while many maps of key heat are read at once, until the deadline. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` when the deadline passes; `Internal` when the semaphore is closed, which never happens.
    pub(crate) async fn heat_permit(&self, deadline: Deadline) -> Result<SemaphorePermit<'_>, Error> {
        let wait = tokio::time::timeout(deadline.remaining(&self.0.runtime.clock), self.0.heat_reads.acquire()).await;
        let message = "other heat maps are being made: try again later";
        let permit = wait.map_err(|_elapsed| Error::new(Reason::Unavailable, message))?;
        permit.map_err(|_closed| Error::internal("the semaphore of heat maps is closed"))
    }

    /// The threads that make maps of key heat; a caller has a [permit](Self::heat_permit).
    pub(crate) fn heat_threads(&self) -> &Blocking {
        &self.0.heat_threads
    }

    /// Does work that no call has asked for as an operation of its own, so that `ebla slow` shows what it waited for.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) async fn traced<T>(
        &self,
        method: &'static str,
        ids: TabletIds,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let operation = self.0.recorder.begin(method, Origin::Master, None);
        let named = Arc::clone(&operation);
        let outcome = |result: &Result<T, Error>| {
            // Rows of METADATA that the work has read or written have set theirs.
            named.set_tablet(ids);
            match result {
                Ok(_done) => Outcome::OK,
                Err(error) => Outcome::of_code(to_status(error).code().into()),
            }
        };
        // The future of a change is large, and would be a part of each one around it.
        trace::run(operation, Box::pin(work), outcome).await
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata::new(self.0.client.clone())
    }

    /// The copy of Chubby's files, for frequent reads and for outages of Chubby.
    pub(crate) fn directory(&self) -> &ChubbyDirectory {
        &self.0.directory
    }

    /// The replica changes in progress.
    pub(crate) fn replica_changes(&self) -> &ReplicaChanges {
        &self.0.replica_changes
    }

    /// The merges that the reconciler has started.
    pub(crate) fn merges(&self) -> &BackgroundMerges {
        &self.0.merges
    }

    /// The events that are not in Chubby yet.
    pub(crate) fn event_log(&self) -> &EventLog {
        &self.0.events
    }

    /// Records an event of the cluster that has happened now.
    pub(crate) fn record_event(&self, event: &NewClusterEvent) {
        self.0.events.record(event, self.runtime().clock.wall());
    }

    /// As [`Self::record_event`], for an event that clients can cause at will: not if one of its kind, about the same server or table, was
    /// recorded in the last ten minutes.
    pub(crate) fn record_limited_event(&self, event: &NewClusterEvent) {
        if self.0.events.permits(event, self.runtime().clock.monotonic()) {
            self.record_event(event);
        }
    }

    /// Caches what METADATA says until the next call, or until this master is no longer active.
    pub(crate) fn cache_metadata(&self, metadata: &BTreeMap<RowKey, TabletDescriptor>) {
        let cached = CachedMetadata { metadata: Arc::new(metadata.clone()), at: self.runtime().clock.monotonic() };
        *self.0.cached_metadata.lock() = Some(cached);
    }

    /// METADATA as it was last read by this master.
    pub(crate) fn cached_metadata(&self) -> Option<CachedMetadata> {
        self.0.cached_metadata.lock().clone()
    }

    /// Sets the repairs that wait for room, until the next call.
    pub(crate) fn set_repairs_without_room(&self, repairs: Vec<RepairWithoutRoom>) {
        *self.0.repairs_without_room.lock() = Arc::new(repairs);
    }

    /// The repairs that wait for room.
    pub(crate) fn repairs_without_room(&self) -> Arc<Vec<RepairWithoutRoom>> {
        Arc::clone(&self.0.repairs_without_room.lock())
    }

    /// Sets the tables that Chubby does not know, until the next call.
    pub(crate) fn set_unknown_tables(&self, tables: BTreeSet<TableId>) {
        *self.0.unknown_tables.lock() = Arc::new(tables);
    }

    /// The tables of which servers have tablets, and that Chubby does not know.
    pub(crate) fn unknown_tables(&self) -> Arc<BTreeSet<TableId>> {
        Arc::clone(&self.0.unknown_tables.lock())
    }

    /// Takes what the reconciler has found wrong, all of it.
    pub(crate) fn observe_problems(&self, problems: BTreeSet<Problem>) {
        let now = self.runtime().clock.wall();
        self.0.problems.lock().observe(problems, now);
    }

    /// Those of these problems that the reconciler has found, with the times at which it found them first. A status request sees
    /// less than the reconciler (not the servers that respond without a lease), so it changes no time.
    pub(crate) fn known_problems(&self, problems: &BTreeSet<Problem>) -> ProblemHistory {
        self.0.problems.lock().of(problems)
    }

    /// Sets since when the next cluster version could be active, and how long that must last, until the next call.
    pub(crate) fn set_upgrade_readiness(&self, readiness: Readiness, delay: Duration) {
        *self.0.upgrade_readiness.lock() = (readiness, delay);
    }

    /// Since when the next cluster version could be active, and how long that must last.
    pub(crate) fn upgrade_readiness(&self) -> (Readiness, Duration) {
        *self.0.upgrade_readiness.lock()
    }

    /// Excludes other placements until the permit is dropped. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` when the semaphore is closed, which never happens.
    pub(crate) async fn placement_permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.0.placement.acquire().await.map_err(|_closed| Error::internal("the placement semaphore is closed"))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    pub(crate) fn deadline(&self, timeout: Duration) -> Deadline {
        self.0.client.deadline(timeout)
    }

    /// As [`MasterLock::transact`].
    pub(crate) async fn transact(
        &self,
        compares: Vec<Compare>,
        writes: Vec<Write>,
    ) -> Result<TransactionOutcome, Error> {
        self.0.lock.transact(compares, writes).await
    }

    /// As [`Self::transact`], for the first step of a change. When the answer is lost, the error is `OutcomeUnknown`:
    /// "unavailable" would promise that nothing was done, and the caller would request the change again.
    pub(crate) async fn commit_intent(
        &self,
        compares: Vec<Compare>,
        writes: Vec<Write>,
    ) -> Result<TransactionOutcome, Error> {
        self.transact(compares, writes).await.map_err(|error| match error.reason {
            Reason::Unavailable => {
                self.request_reconcile();
                Error::new(Reason::OutcomeUnknown, error.message)
            }
            _ => error,
        })
    }

    /// Leaves a change that has started to the reconciler, and returns the error for its caller. Never "unavailable":
    /// see [`Self::commit_intent`].
    pub(crate) fn defer(&self, error: Error) -> Error {
        self.request_reconcile();
        if is_unavailable(error.reason) {
            return Error::new(
                Reason::OutcomeUnknown,
                format!("the change has started and will be finished in the background: {error}"),
            );
        }
        error
    }

    /// Requests a round of the reconciler, because work is left for it.
    pub(crate) fn request_reconcile(&self) {
        self.0.reconcile.notify_one();
    }

    /// Whether servers that have not responded are not waited for any more: Chubby was compared in this term, or the term lasts for so long that they
    /// may be lost.
    pub(crate) fn has_waited_for_evidence(&self) -> bool {
        self.is_compared() || self.0.runtime.clock.monotonic().saturating_sub(self.0.began) > EVIDENCE_MAX
    }

    /// A round of the reconciler has compared Chubby with what the servers have, and has recorded it if Chubby is behind. `highest`: the ids
    /// that are in use.
    pub(crate) fn note_comparison(&self, highest: &HighestIds) {
        for counter in Counter::ALL {
            self.note_id(counter, highest_of(highest, counter));
        }
        self.0.is_compared.send_replace(true);
    }

    fn note_id(&self, counter: Counter, id: u64) {
        let mut known_ids = self.0.known_ids.lock();
        let known = known_ids.entry(counter).or_default();
        *known = id.max(*known);
    }

    /// Allocates `count` ids, all above those that are known to this term.
    ///
    /// # Errors
    /// Those of Chubby; `Unavailable` when it would give an id again, because it was restored from an older backup in this term. The term ends
    /// then, and the next one compares Chubby before it changes anything.
    pub(crate) async fn allocate(&self, counter: Counter, count: u64) -> Result<Range<u64>, Error> {
        let known = self.0.known_ids.lock().get(&counter).copied().unwrap_or_default();
        let Some(ids) = next_ids_above(self.chubby(), counter, known, count).await? else {
            warn!(
                counter = counter.name(),
                known, "the lock service has gone back: the counter gives ids again; the term ends"
            );
            self.resign();
            let message = "the lock service was restored from an older backup or has lost data; the master compares it with the tablet servers: \
                           retry, and see ebla recover --dry-run";
            return Err(Error::new(Reason::Unavailable, message));
        };
        self.note_id(counter, ids.end.saturating_sub(1));
        Ok(ids)
    }

    /// Whether Chubby was compared with what the servers have, in this term.
    pub(crate) fn is_compared(&self) -> bool {
        *self.0.is_compared.borrow()
    }

    /// Checks that Chubby has every change that servers have seen: otherwise no change may start. Waits until that is known in this term.
    ///
    /// # Errors
    /// `FailedPrecondition` while Chubby is [behind](crate::plan::behind); `Unavailable` when it is not known in time whether it is; errors of
    /// Chubby.
    pub(crate) async fn check_not_behind(&self) -> Result<(), Error> {
        let mut compared = self.0.is_compared.subscribe();
        let comparison = compared.wait_for(|is_compared| *is_compared);
        if tokio::time::timeout(COMPARISON_MAX, comparison).await.is_err() {
            let message = "the master waits for tablet servers, to compare the lock service with what they have; changes start then: ebla \
                           server list shows which servers are missing";
            return Err(Error::new(Reason::Unavailable, message));
        }
        let Some(reasons) = schema_store::read_behind(self.chubby()).await? else { return Ok(()) };
        let message = format!(
            "the lock service lacks changes that the tablet servers have ({}): it was restored from an older backup or has \
             lost data; changes are refused until it is recovered: ebla recover --dry-run shows what is missing",
            reasons.join("; ")
        );
        Err(Error::new(Reason::FailedPrecondition, message))
    }

    /// The master lock.
    pub(crate) fn lock(&self) -> &MasterLock {
        &self.0.lock
    }

    /// Ends this term, so that the next one starts with what Chubby says now.
    pub(crate) fn resign(&self) {
        self.0.resign.notify_one();
    }

    /// Returns when this master must end its term. Cancel-safe.
    pub(crate) async fn resigned(&self) {
        self.0.resign.notified().await;
    }

    /// Returns when a round was requested. Cancel-safe.
    pub(crate) async fn reconcile_requested(&self) {
        self.0.reconcile.notified().await;
    }
}

/// The threads that make maps of key heat; without any while key heat is off, and if the system cannot create one.
fn heat_threads(heat: HeatOption) -> Blocking {
    if heat == HeatOption::Off {
        return Blocking::inline();
    }
    let pool = Blocking::pool("heat", 1, HEAT_READS_MAX);
    pool.unwrap_or_else(|error| {
        warn!(%error, "no thread for heat maps: they are made by the threads of other calls");
        Blocking::inline()
    })
}
