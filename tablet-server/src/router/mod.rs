//! From a request for rows of a table to the tablets that hold them, wherever they are led.
//!
//! The router is the cluster client with a short cut: [`ebla_client::Cluster`] looks tablets up, divides requests among
//! them, and retries until the deadline; [`Router`] is the [`ebla_client::Transport`] below it, which answers for tablets
//! of this server and of others in the same process without a wire, and sends the rest to their servers. A request and
//! its answer are the same messages either way, so a server that just lost a tablet is told so in the same words.
//!
//! What is absent: the public API (the front's), the rules of the data model (the tablet's).

mod forward;
mod neighbours;
pub mod plan;

use std::sync::Arc;

use ebla_client::{Cluster, ClusterOptions, Directory, GrpcTransport};
use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

pub use self::neighbours::Neighbours;
use crate::tablet::serve::Local;

/// Carries requests to the tablets of this server and of others.
pub struct Router {
    home: ServerId,
    local: Arc<Local>,
    neighbours: Neighbours,
    directory: Arc<dyn Directory>,
    remote: GrpcTransport,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Router {
    /// A router on the server `home`, whose tablets `local` answers for, also to its `neighbours`; `directory` tells where
    /// the other servers are.
    #[must_use]
    pub fn new(
        home: ServerId,
        local: Local,
        neighbours: Neighbours,
        directory: Arc<dyn Directory>,
        runtime: &Runtime,
    ) -> Self {
        let local = Arc::new(local);
        neighbours.enter(home, &local, runtime.tasks.killed());
        let remote = GrpcTransport::new(runtime.net.clone(), Arc::clone(&directory));
        Self { home, local, neighbours, directory, remote }
    }

    /// The cluster as seen from this server; lookups run as tasks of `runtime`.
    #[must_use]
    pub fn cluster(self, runtime: Runtime) -> Cluster {
        let (home, directory) = (Some(self.home), Arc::clone(&self.directory));
        Cluster::new(ClusterOptions { directory, transport: Arc::new(self), runtime, home })
    }
}
