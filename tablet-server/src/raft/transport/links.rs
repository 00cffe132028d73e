//! The links of a server to its peers, shared by all groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::id::ServerId;
use ebla_runtime::Runtime;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::link::PeerLink;
use super::local::LocalLink;
use super::message::{
    AppendReceipt, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable,
};
use super::options::NetworkOptions;
use super::snapshot_budget::SnapshotBudget;
use super::stream::StreamLink;
use crate::raft::counters::RaftCounters;
use crate::raft::types::{AppendRequest, RaftVote};

/// One link to each peer, created at the first use.
pub(in crate::raft) struct Links {
    options: NetworkOptions,
    /// Owns the tasks of the links.
    runtime: Runtime,
    counters: Arc<RaftCounters>,
    snapshots: SnapshotBudget,
    /// The lock guards the map only.
    links: Mutex<BTreeMap<ServerId, Arc<Link>>>,
}

impl Links {
    pub(super) fn new(options: NetworkOptions, runtime: Runtime) -> Self {
        Self {
            options,
            runtime,
            counters: Arc::default(),
            snapshots: SnapshotBudget::default(),
            links: Mutex::default(),
        }
    }

    pub(in crate::raft) const fn options(&self) -> &NetworkOptions {
        &self.options
    }

    /// The counters of this server's replication.
    pub(in crate::raft) const fn counters(&self) -> &Arc<RaftCounters> {
        &self.counters
    }

    /// The places for snapshots of this server.
    pub(in crate::raft) const fn snapshots(&self) -> &SnapshotBudget {
        &self.snapshots
    }

    /// The link to `server`.
    pub(super) fn link(&self, server: ServerId) -> Arc<dyn PeerLink> {
        let mut links = self.links.lock();
        let link = links.entry(server).or_insert_with(|| {
            let local = LocalLink::new(self.options.local_peers.clone(), self.options.server, server);
            Arc::new(Link { local, remote: StreamLink::new(server, &self.options, &self.counters, &self.runtime) })
        });
        Arc::clone(link) as Arc<dyn PeerLink>
    }

    /// Drops all links.
    pub(super) fn clear(&self) {
        self.links.lock().clear();
    }
}

/// Both transports to a server. Each message chooses one, because a server may start later in the same process.
struct Link {
    local: LocalLink,
    remote: StreamLink,
}

impl Link {
    fn transport(&self) -> &dyn PeerLink {
        if self.local.is_running() { &self.local } else { &self.remote }
    }
}

impl PeerLink for Link {
    fn append(
        &self,
        kind: StreamKind,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>> {
        self.transport().append(kind, header, request)
    }

    fn call(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>> {
        self.transport().call(header, request)
    }

    fn install(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        self.transport().install(header, snapshot)
    }
}
