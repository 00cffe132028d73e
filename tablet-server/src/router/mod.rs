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

use ebla_client::{Cluster, Directory, GrpcTransport, Options};
use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

pub use self::neighbours::Neighbours;
use crate::tablet::serve::Local;

/// Carries requests to the tablets of this server and of others.
#[derive(Debug)]
pub struct Router {
    home: ServerId,
    local: Arc<Local>,
    neighbours: Neighbours,
    remote: GrpcTransport,
}

impl Router {
    /// A router on the server `home`, whose tablets `local` answers for, also to its `neighbours`.
    #[must_use]
    pub fn new(home: ServerId, local: Local, neighbours: Neighbours, runtime: &Runtime) -> Self {
        let local = Arc::new(local);
        neighbours.enter(home, &local, runtime.tasks.killed());
        Self { home, local, neighbours, remote: GrpcTransport::new(runtime.net.clone()) }
    }

    /// The cluster as seen from this server. `directory` tells where the other servers are; lookups run as tasks of
    /// `runtime`.
    #[must_use]
    pub fn cluster(self, directory: Arc<dyn Directory>, runtime: Runtime) -> Cluster {
        let home = Some(self.home);
        Cluster::new(Options { directory, transport: Arc::new(self), runtime, home })
    }
}
