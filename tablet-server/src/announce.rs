//! METADATA after a change: every leader sees to it that its tablet stands there.
//!
//! A tablet's own descriptor is the truth and METADATA is derived from it, after the fact. Whoever comes to lead a tablet,
//! splits it, or sees its replicas change, writes the tablet's row, guarded so that nothing newer is overwritten, and
//! tries until it is done or somebody else leads. So a split whose leader dies before METADATA knows of it is written
//! by the next leaders of its halves, and no step needs a record of its own.
//!
//! **Order.** A row's key is its tablet's end, so the right half of a split takes over its parent's row and the left half
//! needs a new one. The new row must come first: were the parent's row overwritten before, keys of the left half would
//! be found in no tablet. A right half therefore waits until the row that ends where it begins is there.
//!
//! The root tablet stands in Chubby's file `root` instead.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ebla_chubby::{Compare, Counter, SharedChubby, Write, next_ids, paths};
use ebla_client::channel::Channels;
use ebla_client::locate::LeaderHint;

use ebla_client::{Cluster, Deadline, Directory};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{Generation, ServerId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{self, TabletDescriptor};
use ebla_proto::control::FlushRequest;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::{convert, status};
use ebla_routing::{Annotations, ChubbyDirectory, Metadata};
use ebla_runtime::Runtime;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::tablet::hosted::Hosted;
use crate::tablet::split::SplitHelp;

/// Rows written at a time.
const AT_ONCE: usize = 16;
/// How long one attempt at a row may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause before what failed is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a leader waits for another replica's flush before a split.
const FLUSH: Duration = Duration::from_secs(2);

/// What tablets of this server need of the cluster, and the writer of their METADATA rows.
pub struct Announcer {
    server: ServerId,
    chubby: SharedChubby,
    directory: ChubbyDirectory,
    channels: Channels,
    runtime: Runtime,
    hosted: OnceLock<Weak<Hosted>>,
    /// Tablets whose rows are to be looked at; at most one entry for each tablet here.
    pending: Mutex<BTreeSet<TabletId>>,
    arrived: Notify,
}

/// Whether a tablet's row stands, or must wait for another's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announced {
    Done,
    /// The row that ends where this tablet begins is not there yet, or the tablet's replicas are being changed.
    Waits,
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Announcer {
    /// An announcer that gathers what is to be written until [`Announcer::start`].
    #[must_use]
    pub fn new(server: ServerId, chubby: SharedChubby, directory: ChubbyDirectory, runtime: &Runtime) -> Arc<Self> {
        Arc::new(Self {
            server,
            chubby,
            directory,
            channels: Channels::new(runtime.net.clone()),
            runtime: runtime.clone(),
            hosted: OnceLock::new(),
            pending: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    /// Begins to write; the task ends with the runtime's tasks. Only the first call counts.
    pub fn start(self: &Arc<Self>, hosted: &Arc<Hosted>, cluster: Cluster) {
        if self.hosted.set(Arc::downgrade(hosted)).is_err() {
            return;
        }
        let announcer = Arc::clone(self);
        // The task owns the handle: kept here, it would keep the replicas that it reaches alive, and they this announcer.
        self.runtime.tasks.spawn_until_stopped("announcer", async move { announcer.run(&cluster).await });
    }

    async fn run(&self, cluster: &Cluster) {
        loop {
            let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            if pending.is_empty() {
                self.arrived.notified().await;
                continue;
            }
            let again: BTreeSet<TabletId> = futures::stream::iter(pending)
                .map(|tablet| async move { (tablet, self.announce(cluster, tablet).await) })
                .buffer_unordered(AT_ONCE)
                .filter_map(|(tablet, outcome)| async move { is_to_repeat(tablet, outcome).then_some(tablet) })
                .collect()
                .await;
            if !again.is_empty() {
                self.pending.lock().unwrap_or_else(PoisonError::into_inner).extend(again);
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
            }
        }
    }

    async fn announce(&self, cluster: &Cluster, tablet: TabletId) -> Result<Announced, Error> {
        let hosted = self.hosted.get().and_then(Weak::upgrade);
        let Some(tablet) = hosted.and_then(|hosted| hosted.tablet(tablet)) else { return Ok(Announced::Done) };
        let Some(leadership) = tablet.group().leadership() else { return Ok(Announced::Done) };
        let shape = Arc::clone(&tablet.machine().published().shape);
        if shape.dropped || shape.descriptor.generation == Generation::new(0) {
            return Ok(Announced::Done);
        }
        if tablet.group().status().membership_log_id != Some(shape.descriptor.membership_log_id) {
            // The log has a later membership than the descriptor: it is about to be applied.
            return Ok(Announced::Waits);
        }
        if tablet.id() == TabletId::ROOT {
            return self.announce_root(&shape.descriptor).await;
        }
        let deadline = cluster.deadline(ATTEMPT);
        let metadata = Metadata::new(cluster.clone());
        if !left_neighbour_stands(&metadata, &shape.descriptor, deadline).await? {
            return Ok(Announced::Waits);
        }
        let leader = Some(LeaderHint { server: self.server, term: leadership.term });
        let note = Annotations { leader, event: None };
        metadata.put_descriptor(&shape.descriptor, &note, deadline).await?;
        debug!(tablet = %tablet.id(), generation = %shape.descriptor.generation, "announced");
        Ok(Announced::Done)
    }

    /// Keeps Chubby's `root` up to date. The master makes the file; a leader only replaces what is older.
    async fn announce_root(&self, descriptor: &TabletDescriptor) -> Result<Announced, Error> {
        let Some(file) = self.chubby.read(paths::ROOT).await? else { return Ok(Announced::Done) };
        let stored = convert::descriptor_from_bytes(file.value)?;
        if stored.fence() >= descriptor.fence() {
            return Ok(Announced::Done);
        }
        let unchanged = Compare::Modified(paths::ROOT.to_owned(), file.modified);
        let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(descriptor));
        match self.chubby.transact(vec![unchanged], vec![write]).await? {
            ebla_chubby::TransactionOutcome::Committed(_) => Ok(Announced::Done),
            ebla_chubby::TransactionOutcome::Conflict => Ok(Announced::Waits),
        }
    }

    async fn flush_at(&self, server: ServerId, tablet: TabletId) -> Result<(), Error> {
        let address = self.directory.address(server).await;
        let address = address.ok_or_else(|| Error::new(Reason::Unavailable, "the server's address is not known"))?;
        let mut client = ControlClient::new(self.channels.get(&address));
        let mut request = tonic::Request::new(FlushRequest { tablet: tablet.get() });
        request.set_timeout(FLUSH);
        client.flush(request).await.map(drop).map_err(|status| status::from_status(&status).0)
    }
}

/// Whether the rows of METADATA say where the keys before this tablet are, so that its own row may be written.
async fn left_neighbour_stands(
    metadata: &Metadata,
    descriptor: &TabletDescriptor,
    deadline: Deadline,
) -> Result<bool, Error> {
    let start = descriptor.range.start();
    if start.is_empty() {
        return Ok(true);
    }
    let own = listed(metadata, descriptor.row_key(), deadline).await?;
    // A row that begins where this tablet does has no left half to wait for; nor has a row that is not there yet.
    if own.is_none_or(|own| own.range.start() >= start) {
        return Ok(true);
    }
    let before = metadata::row_key(descriptor.table, Some(start));
    Ok(listed(metadata, before, deadline).await?.is_some())
}

async fn listed(metadata: &Metadata, row: RowKey, deadline: Deadline) -> Result<Option<TabletDescriptor>, Error> {
    let rows = metadata.read_range(KeyRange::single(row), deadline).await?;
    Ok(rows.into_iter().next().map(|entry| entry.descriptor))
}

fn is_to_repeat(tablet: TabletId, outcome: Result<Announced, Error>) -> bool {
    match outcome {
        Ok(announced) => announced == Announced::Waits,
        Err(error) => {
            // While the cluster starts or METADATA moves this is usual, and it is repeated until it succeeds.
            debug!(%tablet, %error, "not announced yet");
            true
        }
    }
}

impl SplitHelp for Announcer {
    fn next_tablet(&self) -> BoxFuture<'_, Result<TabletId, Error>> {
        Box::pin(async move {
            let ids = next_ids(self.chubby.as_ref(), Counter::Tablets, 1).await?;
            Ok(TabletId::new(ids.start))
        })
    }

    fn flush_others<'a>(&'a self, descriptor: &'a TabletDescriptor) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let others = descriptor.membership.replicas().filter(|replica| replica.server != self.server);
            let flushes = others.map(|replica| async move {
                let flushed = tokio::time::timeout(FLUSH, self.flush_at(replica.server, descriptor.tablet)).await;
                // Without it the split is as right, only slower there.
                match flushed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => warn!(server = %replica.server, %error, "replica not flushed before a split"),
                    Err(_elapsed) => warn!(server = %replica.server, "replica not flushed in time before a split"),
                }
            });
            futures::future::join_all(flushes).await;
        })
    }

    fn changed(&self, tablet: TabletId) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(tablet);
        self.arrived.notify_one();
    }
}
