//! The active master: the master lock, the cluster's identity, and clients of the tablet servers and of METADATA.
//! Every action needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, TransactionOutcome, Write};
use ebla_client::{Cluster, ClusterOptions, Deadline, Directory, GrpcTransport};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, MasterEpoch, TableId};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::status::is_unavailable;
use ebla_routing::{ChubbyDirectory, Metadata};
use ebla_runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::election::MasterLock;
use crate::merging::BackgroundMerges;
use crate::plan::capacity::RepairWithoutRoom;
use crate::plan::upgrade::Readiness;
use crate::replica_changes::ReplicaChanges;
use crate::schema_store::{self, Identity};
use crate::server_client::ServerClient;

/// Access to everything that the active master acts on; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ActiveMaster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lock: MasterLock,
    cluster: ClusterId,
    epoch: MasterEpoch,
    replicas: usize,
    servers: ServerClient,
    client: Cluster,
    directory: ChubbyDirectory,
    replica_changes: ReplicaChanges,
    merges: BackgroundMerges,
    /// METADATA as it was last read. Guards a pointer.
    cached_metadata: Mutex<Option<CachedMetadata>>,
    /// The repairs that wait for room, as the last round of the reconciler found them. Guards a pointer.
    repairs_without_room: Mutex<Arc<Vec<RepairWithoutRoom>>>,
    /// The tables that Chubby does not know, as the last round of the reconciler found them. Guards a pointer.
    unknown_tables: Mutex<Arc<BTreeSet<TableId>>>,
    /// Since when the next cluster version could be active, and how long that must last. Guards plain values.
    upgrade_readiness: Mutex<(Readiness, Duration)>,
    runtime: Runtime,
    /// One permit, held while a new table is placed: two creations at once must not create groups twice.
    placement: Semaphore,
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
    /// group.
    pub(crate) fn new(
        lock: MasterLock,
        identity: &Identity,
        directory: &ChubbyDirectory,
        replicas: usize,
        runtime: Runtime,
    ) -> Self {
        let shared_directory: Arc<dyn Directory> = Arc::new(directory.clone());
        let (cluster, epoch) = (identity.cluster, lock.epoch(identity.epoch_base));
        let servers = ServerClient::new(runtime.net.clone(), Arc::clone(&shared_directory), cluster, epoch);
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
            servers,
            client,
            directory: directory.clone(),
            replica_changes: ReplicaChanges::default(),
            merges: BackgroundMerges::default(),
            cached_metadata: Mutex::default(),
            repairs_without_room: Mutex::default(),
            unknown_tables: Mutex::default(),
            upgrade_readiness: Mutex::default(),
            runtime,
            placement: Semaphore::new(1),
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

    /// Checks that Chubby has every change that servers have seen: otherwise no change may start.
    ///
    /// # Errors
    /// `FailedPrecondition` while Chubby is [behind](crate::plan::behind); errors of Chubby.
    pub(crate) async fn check_not_behind(&self) -> Result<(), Error> {
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
