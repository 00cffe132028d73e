//! The parameters of a server's Raft network.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::id::{ClusterId, ServerId};
use ebla_runtime::Blocking;

use super::local::LocalPeers;
use crate::capacity::Capacity;

/// The largest message between servers: a row may be as large as the public API allows, and is sent alone.
pub(in crate::raft) const MESSAGE_BYTES_MAX: usize = 320 * 1024 * 1024;

/// The addresses of servers. Looked up at every connection attempt.
pub trait AddressBook: Send + Sync + 'static {
    /// The cluster of these servers; `None` before it is known.
    fn cluster(&self) -> Option<ClusterId>;

    /// The cluster version that is active, as far as it is known.
    fn active_version(&self) -> ClusterVersion;

    /// The last known `host:port` of a server.
    fn address(&self, server: ServerId) -> Option<String>;
}

/// The parameters of a `Network`.
pub struct NetworkOptions {
    /// The server that the network belongs to.
    pub server: ServerId,
    /// The cluster versions that it supports.
    pub versions: SupportedVersions,
    /// The longest election timeout, the same on every server.
    pub election_max: Duration,
    /// The addresses of the other servers.
    pub addresses: Arc<dyn AddressBook>,
    /// The servers in the same process.
    pub local_peers: LocalPeers,
    /// The folder for checkpoints that are received, on the file system of the stores; its content does not outlive the process.
    pub scratch: PathBuf,
    /// The thread pool that writes received checkpoints.
    pub maintenance: Blocking,
    /// A peer without a response in this time is treated as unreachable. Must not be below the time of a slow sync.
    pub response_timeout: Duration,
    /// Whether this server has disk space, which its replies say, and which other servers have.
    pub capacity: Arc<Capacity>,
}
