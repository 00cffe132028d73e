//! The METADATA writer: every leader keeps the METADATA rows of its tablets up to date.
//!
//! A tablet's own descriptor is the truth and METADATA is derived from it, after the fact. A replica that becomes leader,
//! splits or merges tablets, or sees its replicas change writes the rows of the tablets. The write is guarded so that nothing newer is
//! overwritten, and retried until it succeeds or another replica leads. If the leader of a split dies before METADATA is
//! updated, the next leader writes the rows, so no step needs a record of its own. The same holds for a merge.
//!
//! **Order.** A row's key is its tablet's end, so the right half of a split takes over its parent's row and the left half
//! needs a new one. The new row must be written first: if the parent's row were overwritten before, keys of the left half
//! would belong to no tablet. So a tablet waits until the row that ends at its start exists. A merged tablet takes over the
//! row of the right tablet; only then is the row of the left one removed, for the same reason. Until that happens, a lookup reads
//! both rows, and the higher generation wins. `model::metadata::row_update` decides all this.
//!
//! The root tablet's descriptor is in Chubby's file `root` instead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ebla_chubby::{Compare, Counter, SharedChubby, Write, next_id_above, paths};
use ebla_client::channel::Channels;
use ebla_client::locate::LeaderHint;
use parking_lot::Mutex;

use ebla_client::{Cluster, Directory};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::{Error, Reason};
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{GroupId, LogIndex, ReplicaId, ServerId, TabletId};
use ebla_model::metadata::{GroupDescriptor, Membership, Replica, TabletDescriptor};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{ImportStatus, MoveId, MoveStep};
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::control::{EvidenceRequest, FlushRequest};
use ebla_proto::{convert, status};
use ebla_routing::{Annotations, ChubbyDirectory, Metadata, PutOutcome};
use ebla_runtime::Runtime;
use ebla_runtime::metrics;
use ebla_runtime::net::Windows;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tracing::{debug, error, warn};

use crate::evidence::highest_ids_at;
use crate::import_client::ImportClient;
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::lifecycle::split::TabletHost;

/// Events of one tablet that wait to be written.
const EVENTS_MAX: usize = 8;
/// Rows written concurrently.
const CONCURRENCY: usize = 16;
/// Timeout of one attempt to write a row.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before failed rows are retried.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of the question whether another replica is sound.
const EVIDENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of another replica's flush before a division.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The writer of METADATA rows, and the other services that tablets need from the cluster ([`TabletHost`]).
pub struct MetadataWriter {
    server: ServerId,
    chubby: SharedChubby,
    directory: ChubbyDirectory,
    channels: Arc<Channels>,
    imports: ImportClient,
    runtime: Runtime,
    manager: OnceLock<Weak<TabletManager>>,
    /// Events of tablets of this server, by kind.
    events: [metrics::Counter; TabletEventKind::ALL.len()],
    /// Tablets whose rows must be checked, with events to record; at most one entry for each tablet of this server.
    pending: Mutex<Pending>,
    arrived: Notify,
}

/// Tablets whose rows must be checked, each with the events to record.
type Pending = BTreeMap<TabletId, Vec<NewTabletEvent>>;

/// The result of checking a tablet's row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowStatus {
    UpToDate,
    /// The row that ends where this tablet begins does not exist yet, or the tablet's replicas are changing: try again.
    Deferred,
}

impl std::fmt::Debug for MetadataWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataWriter").field("server", &self.server).finish_non_exhaustive()
    }
}

impl MetadataWriter {
    /// A writer that only queues tablets until [`MetadataWriter::start`].
    #[must_use]
    pub fn new(server: ServerId, chubby: SharedChubby, directory: ChubbyDirectory, runtime: &Runtime) -> Arc<Self> {
        let channels = Arc::new(Channels::to_peers(runtime, Windows::CALLS));
        let imports = ImportClient::new(Arc::clone(&channels), directory.clone(), runtime.clock.clone());
        Arc::new(Self {
            server,
            chubby,
            directory,
            channels,
            imports,
            runtime: runtime.clone(),
            manager: OnceLock::new(),
            events: Default::default(),
            pending: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    /// How often each kind of event has happened to groups and tablets that this server led; an event of a group counts once.
    pub(crate) fn event_counts(&self) -> impl Iterator<Item = (TabletEventKind, u64)> {
        TabletEventKind::ALL.into_iter().zip(self.events.iter().map(metrics::Counter::get))
    }

    fn count(&self, kind: TabletEventKind) {
        let kinds = TabletEventKind::ALL.into_iter().zip(&self.events);
        kinds.filter(|(known, _count)| *known == kind).for_each(|(_kind, count)| count.increment());
    }

    /// Starts writing; the task ends with the runtime's tasks. Only the first call has an effect.
    pub fn start(self: &Arc<Self>, manager: &Arc<TabletManager>, cluster: Cluster) {
        if self.manager.set(Arc::downgrade(manager)).is_err() {
            return;
        }
        let writer = Arc::clone(self);
        // The task owns the cluster handle: a field would form a reference cycle of handle, replicas and this writer.
        self.runtime.tasks.spawn_until_stopped("metadata-writer", async move { writer.run(&cluster).await });
    }

    async fn run(&self, cluster: &Cluster) {
        loop {
            let pending = std::mem::take(&mut *self.pending.lock());
            if pending.is_empty() {
                self.arrived.notified().await;
                continue;
            }
            let retries: Pending = futures::stream::iter(pending)
                .map(|(tablet, events)| async move {
                    let outcome = self.update_row(cluster, tablet, &events).await;
                    (tablet, events, outcome)
                })
                .buffer_unordered(CONCURRENCY)
                .filter_map(|(tablet, events, outcome)| async move {
                    must_retry(tablet, outcome).then_some((tablet, events))
                })
                .collect()
                .await;
            if !retries.is_empty() {
                add_pending(&mut self.pending.lock(), retries, Position::Before);
                tokio::time::sleep(self.runtime.rng.jitter(RETRY_PAUSE)).await;
            }
        }
    }

    /// An id that no known tablet or group has: ids ascend, so it is above all that were known before it was given. Known are those of this
    /// server and of the others that respond. A master compares all, but after a restoration of Chubby it may not have done so yet, and
    /// a division with the id of a group that runs elsewhere could mix or remove the replicas of both.
    ///
    /// # Errors
    /// `FailedPrecondition` when Chubby would give an id a second time, and while it is recorded that it lacks changes: it may do so
    /// then. Errors of Chubby.
    async fn allocate(&self, counter: Counter, id_of: impl Fn(&HighestIds) -> u64) -> Result<u64, Error> {
        if self.chubby.read(paths::BEHIND).await?.is_some() {
            let message = "the lock service was restored from an older backup or has lost data; splits and divisions are \
                           refused until it is recovered: ebla recover --dry-run shows what is missing";
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        let known = id_of(&self.highest_ids().await);
        if let Some(id) = next_id_above(self.chubby.as_ref(), counter, known).await? {
            return Ok(id);
        }
        let name = counter.name();
        error!(counter = name, known, "Chubby gives ids twice: it was restored from an older backup");
        let message = format!("the counter {name} is not above {known}, which is in use; a master raises it");
        Err(Error::new(Reason::FailedPrecondition, message))
    }

    /// The highest ids that this server and the others that respond know.
    async fn highest_ids(&self) -> HighestIds {
        let mut others = self.directory.servers_that_may_run();
        others.remove(&self.server);
        let known = highest_ids_at(&self.channels, others.into_values().collect()).await;
        let manager = self.manager.get().and_then(Weak::upgrade);
        let mut highest = manager.map(|manager| manager.highest_ids()).unwrap_or_default();
        known.values().for_each(|known| highest.raise(known));
        highest
    }

    async fn update_row(
        &self,
        cluster: &Cluster,
        tablet: TabletId,
        events: &[NewTabletEvent],
    ) -> Result<RowStatus, Error> {
        let manager = self.manager.get().and_then(Weak::upgrade);
        let Some(tablet) = manager.and_then(|manager| manager.tablet(tablet)) else { return Ok(RowStatus::UpToDate) };
        let Some(leadership) = tablet.raft().leadership() else { return Ok(RowStatus::UpToDate) };
        let Ok(tablet_metadata) = tablet.metadata() else { return Ok(RowStatus::UpToDate) };
        if tablet.raft().status().membership_log_id != Some(tablet_metadata.descriptor.membership_log_id) {
            // The log has a later membership than the descriptor: it will be applied soon.
            return Ok(RowStatus::Deferred);
        }
        if tablet.id() == TabletId::ROOT {
            return self.update_root_file(&tablet_metadata.descriptor).await;
        }
        let deadline = cluster.deadline(ATTEMPT_TIMEOUT);
        let metadata = Metadata::new(cluster.clone());
        let leader = Some(LeaderHint { server: self.server, term: leadership.term });
        let note = Annotations { leader, events: events.to_vec(), server: Some(self.server) };
        if metadata.put_tablet(&tablet_metadata.descriptor, &note, deadline).await? == PutOutcome::Waiting {
            return Ok(RowStatus::Deferred);
        }
        debug!(tablet = %tablet.id(), generation = %tablet_metadata.descriptor.generation, "METADATA updated");
        Ok(RowStatus::UpToDate)
    }

    /// Updates Chubby's file `root`. The master creates the file; a leader only replaces an older descriptor.
    async fn update_root_file(&self, descriptor: &TabletDescriptor) -> Result<RowStatus, Error> {
        let Some(file) = self.chubby.read(paths::ROOT).await? else { return Ok(RowStatus::UpToDate) };
        let stored = convert::descriptor_from_bytes(file.value)?;
        if stored.fence() >= descriptor.fence() {
            return Ok(RowStatus::UpToDate);
        }
        let unchanged = Compare::Modified(paths::ROOT.to_owned(), file.modified);
        let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(descriptor));
        match self.chubby.transact(vec![unchanged], vec![write]).await? {
            ebla_chubby::TransactionOutcome::Committed(_) => Ok(RowStatus::UpToDate),
            ebla_chubby::TransactionOutcome::Conflict => Ok(RowStatus::Deferred),
        }
    }

    /// Whether a replica runs, and its store is not damaged.
    async fn is_sound(&self, replica: Replica, group: GroupId) -> bool {
        let Some(address) = self.directory.address(replica.server).await else { return false };
        let mut client = ControlClient::new(self.channels.get(&address));
        let mut request = tonic::Request::new(EvidenceRequest { groups: vec![group.get()] });
        request.set_timeout(EVIDENCE_TIMEOUT);
        let Ok(reply) = client.evidence(request).await else { return false };
        let reply = reply.into_inner();
        // The address of a dead server may belong to another server now.
        reply.server == replica.server.get()
            && reply.groups.iter().any(|found| found.replica == replica.replica.get() && !found.damaged)
    }

    async fn flush_replica(&self, server: ServerId, group: GroupId) -> Result<(), Error> {
        let address = self.directory.address(server).await;
        let address = address.ok_or_else(|| Error::new(Reason::Unavailable, "the server's address is unknown"))?;
        let mut client = ControlClient::new(self.channels.get(&address));
        let mut request = tonic::Request::new(FlushRequest { group: group.get() });
        request.set_timeout(FLUSH_TIMEOUT);
        client.flush(request).await.map(drop).map_err(|status| status::from_status(&status).0)
    }
}

/// Whether events are older or newer than those that are pending.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Before,
    After,
}

/// Adds tablets with their events. Only the last [`EVENTS_MAX`] of a tablet are kept, while METADATA cannot be written.
fn add_pending(pending: &mut Pending, more: Pending, position: Position) {
    for (tablet, mut events) in more {
        let known = pending.entry(tablet).or_default();
        if position == Position::Before {
            std::mem::swap(known, &mut events);
        }
        known.extend(events);
        let excess = known.len().saturating_sub(EVENTS_MAX);
        known.drain(..excess);
    }
}

fn must_retry(tablet: TabletId, outcome: Result<RowStatus, Error>) -> bool {
    match outcome {
        Ok(status) => status == RowStatus::Deferred,
        Err(error) => {
            // Expected while the cluster starts or METADATA moves; retried until it succeeds.
            debug!(%tablet, %error, "METADATA update failed; retrying");
            true
        }
    }
}

impl TabletHost for MetadataWriter {
    fn allocate_tablet_id(&self) -> BoxFuture<'_, Result<TabletId, Error>> {
        Box::pin(async move {
            let tablet = |highest: &HighestIds| highest.tablet.get();
            Ok(TabletId::new(self.allocate(Counter::Tablets, tablet).await?))
        })
    }

    fn allocate_group_id(&self) -> BoxFuture<'_, Result<GroupId, Error>> {
        Box::pin(async move {
            let group = |highest: &HighestIds| highest.group.get();
            Ok(GroupId::new(self.allocate(Counter::Groups, group).await?))
        })
    }

    fn flush_other_replicas<'a>(&'a self, group: &'a GroupDescriptor) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let others = group.membership.replicas().filter(|replica| replica.server != self.server);
            let flushes = others.map(|replica| async move {
                let flushed =
                    tokio::time::timeout(FLUSH_TIMEOUT, self.flush_replica(replica.server, group.group)).await;
                // Without this flush the division is still correct, only slower on that replica.
                match flushed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        warn!(server = %replica.server, %error, "flush before group division failed on a replica")
                    }
                    Err(_elapsed) => {
                        warn!(server = %replica.server, "flush before group division timed out on a replica")
                    }
                }
            });
            futures::future::join_all(flushes).await;
        })
    }

    fn sound_members<'a>(&'a self, group: GroupId, members: &'a Membership) -> BoxFuture<'a, BTreeSet<ReplicaId>> {
        Box::pin(async move {
            let others = members.replicas().filter(|replica| replica.server != self.server);
            let asked = others.map(|replica| async move {
                let asked = tokio::time::timeout(EVIDENCE_TIMEOUT, self.is_sound(replica, group)).await;
                asked.is_ok_and(|is_sound| is_sound).then_some(replica.replica)
            });
            futures::future::join_all(asked).await.into_iter().flatten().collect()
        })
    }

    fn active_version(&self) -> ClusterVersion {
        self.directory.active_version()
    }

    fn import_ticket<'a>(&'a self, target: &'a GroupDescriptor) -> BoxFuture<'a, Result<LogIndex, Error>> {
        Box::pin(self.imports.ticket(target))
    }

    fn import<'a>(
        &'a self,
        target: &'a GroupDescriptor,
        id: MoveId,
        step: MoveStep,
        cause: TabletEventCause,
    ) -> BoxFuture<'a, Result<ImportStatus, Error>> {
        Box::pin(async move { self.imports.apply(target, id, &step, cause).await })
    }

    fn server(&self) -> ServerId {
        self.server
    }

    fn tablets_changed(&self, tablets: Vec<TabletId>, event: Option<NewTabletEvent>) {
        if let Some(event) = &event {
            self.count(event.kind);
        }
        let events: Vec<NewTabletEvent> = event.into_iter().collect();
        let changed = tablets.into_iter().map(|tablet| (tablet, events.clone())).collect();
        add_pending(&mut self.pending.lock(), changed, Position::After);
        self.arrived.notify_one();
    }
}
