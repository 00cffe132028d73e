//! The link between servers of one process (`ebla up`, tests): messages are passed as values, without encoding and without a
//! socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use ebla_model::id::ServerId;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::link::PeerLink;
use super::message::{
    AppendReceipt, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable,
};
use super::snapshot_budget::{INSTALL_TIMEOUT, SnapshotPermit};
use crate::raft::types::{AppendRequest, RaftVote};

/// The receiving side of a server: delivers messages to its groups.
pub(super) trait MessageReceiver: Send + Sync + 'static {
    /// Passes an append to its group.
    fn receive_append(
        &self,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>>;

    /// Passes a vote request or a leadership transfer to its group.
    fn receive_request(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>>;

    /// A place for a snapshot of this server's process: its files are not copied, so its size does not matter.
    fn snapshot_permit(&self, header: &MessageHeader) -> Result<SnapshotPermit, Unreachable>;

    /// Installs a snapshot in its group, and releases the permit then.
    fn receive_snapshot(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
        permit: SnapshotPermit,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>>;
}

/// The servers of one process, which reach each other without a socket. Clones share the state.
#[derive(Clone, Default)]
pub struct LocalPeers(Arc<Mutex<LocalPeersState>>);

/// Locked for one lookup.
#[derive(Default)]
struct LocalPeersState {
    servers: BTreeMap<ServerId, Weak<dyn MessageReceiver>>,
    partitions: BTreeSet<(ServerId, ServerId)>,
}

impl LocalPeers {
    /// Drops all messages between two servers: for tests of partitions.
    pub fn partition(&self, one: ServerId, other: ServerId) {
        self.0.lock().partitions.insert((one, other));
    }

    /// Heals all partitions.
    pub fn heal(&self) {
        self.0.lock().partitions.clear();
    }

    pub(super) fn register(&self, server: ServerId, receiver: Weak<dyn MessageReceiver>) {
        self.0.lock().servers.insert(server, receiver);
    }

    pub(super) fn deregister(&self, server: ServerId) {
        self.0.lock().servers.remove(&server);
    }

    /// The number of servers that run in the process.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().servers.len() as u64
    }

    fn contains(&self, server: ServerId) -> bool {
        self.0.lock().servers.contains_key(&server)
    }

    fn connect(&self, from: ServerId, to: ServerId) -> Option<Arc<dyn MessageReceiver>> {
        let state = self.0.lock();
        if state.partitions.contains(&(from, to)) || state.partitions.contains(&(to, from)) {
            return None;
        }
        state.servers.get(&to).and_then(Weak::upgrade)
    }
}

/// The link to a server in the same process.
pub(super) struct LocalLink {
    local_peers: LocalPeers,
    from: ServerId,
    to: ServerId,
}

impl LocalLink {
    pub(super) fn new(local_peers: LocalPeers, from: ServerId, to: ServerId) -> Self {
        Self { local_peers, from, to }
    }

    /// Whether the server runs in this process now.
    pub(super) fn is_running(&self) -> bool {
        self.local_peers.contains(self.to)
    }

    /// Looked up for each message: a server that was stopped and started again has another receiver.
    fn peer(&self) -> Result<Arc<dyn MessageReceiver>, Unreachable> {
        self.local_peers
            .connect(self.from, self.to)
            .ok_or_else(|| Unreachable(format!("server {} of this process is stopped or partitioned", self.to)))
    }
}

impl PeerLink for LocalLink {
    fn append(
        &self,
        _kind: StreamKind,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>> {
        match self.peer() {
            Ok(peer) => poll_eagerly(peer.receive_append(header, request)),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn call(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>> {
        match self.peer() {
            Ok(peer) => async move { peer.receive_request(header, request).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn install(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        let peer = self.peer();
        async move {
            let peer = peer?;
            let permit = peer.snapshot_permit(&header)?;
            let installed = peer.receive_snapshot(header, snapshot, permit);
            match tokio::time::timeout(INSTALL_TIMEOUT, installed).await {
                Ok(installed) => installed,
                Err(_elapsed) => Err(Unreachable(format!("the snapshot was not installed in {INSTALL_TIMEOUT:?}"))),
            }
        }
        .boxed()
    }
}

/// Polls once, so that the request is in the group's queue before the next one is sent.
fn poll_eagerly<T: Send + 'static>(mut future: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
    match (&mut future).now_or_never() {
        Some(output) => futures::future::ready(output).boxed(),
        None => future,
    }
}
