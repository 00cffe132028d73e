//! The parts of a cluster handle.

use std::fmt;
use std::sync::Arc;

use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

use crate::directory::Directory;
use crate::transport::Transport;

/// The parts of a cluster handle.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The locations of the root tablet and the servers.
    pub directory: Arc<dyn Directory>,
    /// The transport to the servers.
    pub transport: Arc<dyn Transport>,
    /// Clock, random numbers, tasks.
    pub runtime: Runtime,
    /// The server of this process, which is tried first while no leader is known.
    pub home: Option<ServerId>,
}

impl fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterOptions").field("home", &self.home).finish_non_exhaustive()
    }
}
