//! Routing: from a request for rows of a table to the tablets that hold them, on any server.
//!
//! The router is the cluster client with a shortcut: [`ebla_client::Cluster`] looks tablets up, divides requests among
//! them, and retries until the deadline; [`Router`] is the [`ebla_client::Transport`] below it, which calls tablets of
//! this server and of other servers in the same process directly, and sends other requests over gRPC. Requests and
//! responses are the same messages in both cases, so a stale route gets the same error in both.
//!
//! Not here: the public API (`front`), the rules of the data model (`tablet`).

mod forward;
mod local;
pub mod plan;

use std::sync::Arc;

use ebla_client::{Cluster, ClusterOptions, Directory, GrpcTransport};
use ebla_model::id::ServerId;
use ebla_runtime::Runtime;

pub use self::local::LocalHandlers;
use crate::tablet::handler::TabletHandler;

/// Forwards requests to the tablets of this server and of others.
pub struct Router {
    home: ServerId,
    handler: Arc<TabletHandler>,
    local_handlers: LocalHandlers,
    directory: Arc<dyn Directory>,
    remote: GrpcTransport,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Router {
    /// A router on the server `home`, whose tablets `handler` serves, also to the other `local_servers`; `directory` knows the
    /// addresses of other servers.
    #[must_use]
    pub fn new(
        home: ServerId,
        handler: TabletHandler,
        local_handlers: LocalHandlers,
        directory: Arc<dyn Directory>,
        runtime: &Runtime,
    ) -> Self {
        let handler = Arc::new(handler);
        local_handlers.register(home, &handler, runtime.tasks.killed());
        let remote = GrpcTransport::new(runtime.clone(), Arc::clone(&directory));
        Self { home, handler, local_handlers, directory, remote }
    }

    /// A cluster handle that uses this router; lookups run as tasks of `runtime`.
    #[must_use]
    pub fn cluster(self, runtime: Runtime) -> Cluster {
        let (home, directory) = (Some(self.home), Arc::clone(&self.directory));
        Cluster::new(ClusterOptions { directory, transport: Arc::new(self), runtime, home })
    }
}
