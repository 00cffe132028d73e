//! The servers of one process (`ebla up`, tests), which reach each other without a socket.

use crate::raft;
use crate::router;

/// The neighbourhood that servers of one process are started with; clones are the same one. A server enters when it
/// starts and leaves when it stops, so one that was stopped is as unreachable as a process that ended.
#[derive(Clone, Default)]
pub struct Neighbours {
    /// For messages between replicas.
    pub(crate) groups: raft::Neighbours,
    /// For requests on their way to a leader.
    pub(crate) tablets: router::Neighbours,
}
