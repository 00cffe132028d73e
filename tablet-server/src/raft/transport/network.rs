//! The Raft network of a server: it starts the server's groups, and delivers the messages that arrive for them.
//!
//! There is one `Network` per server. Its groups share one link to each peer (`links`). It delivers each inbound message to the
//! group that the message names. A [`GroupDirectory`] knows which replicas are on this server, and decides what a message for
//! a missing replica means.

use std::sync::{Arc, OnceLock, Weak};

use ebla_model::id::{GroupId, ReplicaId};
use ebla_runtime::{PollWatch, Runtime};
use ebla_storage::log::CommitLog;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::links::Links;
use super::local::MessageReceiver;
use super::message::{
    AppendReceipt, GroupOrigin, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, Unreachable,
};
use super::options::NetworkOptions;
use super::snapshot_budget::{SnapshotBudget, SnapshotPermit};
use crate::raft::config::GroupConfig;
use crate::raft::counters::RaftCounters;
use crate::raft::election::fast_election;
use crate::raft::error::StartError;
use crate::raft::group::Group;
use crate::raft::runtime::executor::GroupExecutor;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{AppendRequest, RaftVote};

/// The replicas on this server.
pub trait GroupDirectory: Send + Sync + 'static {
    /// The group to which a message is addressed. May begin to create the replica and return [`GroupLookup::Unreachable`]
    /// meanwhile; must not block.
    fn group(&self, group: GroupId, replica: ReplicaId, origin: GroupOrigin) -> GroupLookup;
}

/// Whether a replica is on this server.
pub enum GroupLookup {
    /// It is.
    Local(Arc<Group>),
    /// It is not, or not yet: the sender retries later. The reason is for the sender's log.
    Unreachable(String),
}

/// The groups of a server, their links to the peers, and the receiver of the peers' messages.
pub struct Network {
    links: Arc<Links>,
    runtime: Runtime,
    /// The inbound streams of other servers: they are closed first when the server stops.
    inbound: Runtime,
    directory: OnceLock<Weak<dyn GroupDirectory>>,
    /// Runs the futures of all groups.
    executor: GroupExecutor,
}

impl Network {
    /// A network that delivers nothing until [`Network::set_directory`] is called. Its tasks belong to `runtime`.
    pub fn new(options: NetworkOptions, runtime: &Runtime) -> Arc<Self> {
        let local_peers = options.local_peers.clone();
        let server = options.server;
        let runtime = runtime.child("raft-network");
        let executor = GroupExecutor::start(&runtime);
        let network = Arc::new(Self {
            links: Arc::new(Links::new(options, runtime.clone())),
            inbound: runtime.child("inbound-streams"),
            runtime,
            directory: OnceLock::new(),
            executor,
        });
        let receiver: Weak<Self> = Arc::downgrade(&network);
        local_peers.register(server, receiver);
        network
    }

    /// Sets the directory of groups and begins to deliver messages. Only the first call has an effect.
    pub fn set_directory(&self, directory: Weak<dyn GroupDirectory>) {
        // A second directory would mean a second server on one network; the first one stays.
        let _already_set = self.directory.set(directory);
    }

    /// Starts a replica of a group. Its tasks run on the runtime of `runtime.tasks`, wherever this is called.
    ///
    /// A new replica that starts from a seed has an empty log and a state machine at `LogId::SEED`.
    ///
    /// # Errors
    /// When the log or the state machine is unreadable, or when they contradict each other.
    pub async fn start_group(
        &self,
        config: GroupConfig,
        log: CommitLog,
        machine: Arc<dyn StateMachine>,
        runtime: &Runtime,
    ) -> Result<Arc<Group>, StartError> {
        let shard = self.executor.shard(config.group.group);
        Group::start(config, log, machine, Arc::clone(&self.links), shard, runtime).await
    }

    /// The polls of the tasks that run the groups.
    pub fn executor_watches(&self) -> Vec<Arc<PollWatch>> {
        self.executor.watches()
    }

    /// Closes the inbound streams, which would keep the port in use; outbound streams stay open.
    pub fn close_inbound_streams(&self) {
        self.inbound.tasks.cancel();
    }

    /// Removes this server from the local peers and closes its links at once: for a stop that simulates a crash.
    pub fn abort(&self) {
        let options = self.options();
        options.local_peers.deregister(options.server);
        self.runtime.tasks.cancel();
        self.links.clear();
    }

    /// The counters of this server's replication.
    pub fn counters(&self) -> Arc<RaftCounters> {
        Arc::clone(self.links.counters())
    }

    pub(super) fn options(&self) -> &NetworkOptions {
        self.links.options()
    }

    /// Completes when the inbound streams must close.
    pub(super) fn inbound_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inbound.tasks.token().cancelled_owned()
    }

    pub(super) fn group(&self, header: &MessageHeader) -> Result<Arc<Group>, Unreachable> {
        let Some(directory) = self.directory.get().and_then(Weak::upgrade) else {
            return Err(Unreachable("the server is starting or stopping".to_owned()));
        };
        match directory.group(header.group, header.to, header.origin) {
            GroupLookup::Local(group) => Ok(group),
            GroupLookup::Unreachable(reason) => Err(Unreachable(reason)),
        }
    }

    /// The stream on which this message arrived has closed.
    pub(super) fn on_disconnect(&self, header: &MessageHeader) {
        let is_stopping = self.inbound.tasks.token().is_cancelled();
        if let (false, Ok(group)) = (is_stopping, self.group(header)) {
            fast_election::schedule(&group, header.from, &self.runtime.rng);
        }
    }

    /// The places for snapshots of this server.
    pub(in crate::raft) fn snapshots(&self) -> &SnapshotBudget {
        self.links.snapshots()
    }

    /// Fails when this server would not install a snapshot for this replica: checked before the files are received. `size_bytes`: of all
    /// files, 0 when it is not known. The permit is for the time until the snapshot is installed.
    pub(super) fn admit_snapshot(
        &self,
        header: &MessageHeader,
        size_bytes: u64,
    ) -> Result<SnapshotPermit, Unreachable> {
        self.group(header)?;
        let options = self.options();
        match options.capacity.snapshot_refusal(options.server, header.group, size_bytes) {
            Some(refusal) => Err(Unreachable(refusal.message)),
            None => self.snapshots().receive_permit(header.group),
        }
    }
}

impl MessageReceiver for Network {
    fn receive_append(
        &self,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>> {
        match self.group(&header) {
            Ok(group) => async move { group.receive_append(request).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn receive_request(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>> {
        match self.group(&header) {
            Ok(group) => async move { group.receive_request(request).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn receive_snapshot(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
        permit: SnapshotPermit,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        let group = self.group(&header);
        async move {
            let installed = group?.receive_snapshot(snapshot).await;
            drop(permit);
            installed
        }
        .boxed()
    }

    fn snapshot_permit(&self, header: &MessageHeader) -> Result<SnapshotPermit, Unreachable> {
        self.snapshots().receive_permit(header.group)
    }
}
