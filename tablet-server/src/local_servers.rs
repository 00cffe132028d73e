//! The tablet servers of one process (`ebla up`, tests), which reach each other without a socket.

use crate::raft;
use crate::router;

/// The registry of the servers of one process; clones share one registry. A server is registered when it starts and
/// deregistered when it stops, so a stopped one is as unreachable as a process that ended.
#[derive(Clone, Default)]
pub struct LocalServers {
    /// For Raft messages between replicas.
    pub(crate) raft: raft::LocalPeers,
    /// For requests to tablet leaders.
    pub(crate) router: router::LocalHandlers,
}
