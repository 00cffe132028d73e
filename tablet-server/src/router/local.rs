//! The tablet handlers of the servers of this process: a request to one is a call, not a message.
//!
//! A server behind a [`LocalTarget`] fails as a process does: when it is killed, calls in flight end at once, and their
//! outcome is unknown.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use ebla_client::{CallError, ReadStream};
use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::ServerId;
use futures::StreamExt as _;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::tablet::handler::TabletHandler;

/// The handlers of the servers of one process, by server id; clones share one map.
#[derive(Clone, Debug, Default)]
pub struct LocalHandlers(Arc<RwLock<BTreeMap<ServerId, Entry>>>);

#[derive(Clone, Debug)]
struct Entry {
    /// Weak, because the map outlives its servers.
    handler: Weak<TabletHandler>,
    killed: CancellationToken,
}

impl LocalHandlers {
    /// Makes the tablets of `server` reachable until `killed` is cancelled.
    pub(crate) fn register(&self, server: ServerId, handler: &Arc<TabletHandler>, killed: CancellationToken) {
        let entry = Entry { handler: Arc::downgrade(handler), killed };
        self.0.write().insert(server, entry);
    }

    /// Removes `server`: from now on calls to it go over the network, and fail.
    pub(crate) fn deregister(&self, server: ServerId) {
        self.0.write().remove(&server);
    }

    /// The handler of `server`, if it runs in this process.
    pub(super) fn get(&self, server: ServerId) -> Option<LocalTarget> {
        let servers = self.0.read();
        let Entry { handler, killed } = servers.get(&server)?;
        Some(LocalTarget { handler: handler.upgrade()?, killed: Some(killed.clone()) })
    }
}

/// A tablet server of this process as the target of a call.
pub(super) struct LocalTarget {
    handler: Arc<TabletHandler>,
    /// `None` for the caller's own server, which stops together with the caller.
    killed: Option<CancellationToken>,
}

impl LocalTarget {
    /// The caller's own server.
    pub(super) fn own(handler: &Arc<TabletHandler>) -> Self {
        Self { handler: Arc::clone(handler), killed: None }
    }

    /// Whether it is the caller's own server.
    pub(super) const fn is_own(&self) -> bool {
        self.killed.is_none()
    }

    pub(super) fn handler(&self) -> &TabletHandler {
        &self.handler
    }

    /// The outcome of a call, or an error when the server is killed first.
    pub(super) async fn or_killed<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        match &self.killed {
            Some(killed) => killed.run_until_cancelled(call).await.unwrap_or_else(|| Err(killed_error())),
            None => call.await,
        }
    }

    /// The stream, cut off when the server is killed.
    pub(super) fn until_killed(self, stream: ReadStream) -> ReadStream {
        match self.killed {
            Some(killed) => stream.take_until(killed.cancelled_owned()).boxed(),
            None => stream,
        }
    }
}

/// Like a broken connection: the outcome of the call is unknown.
fn killed_error() -> CallError {
    let message = "the server was stopped".to_owned();
    Error { kind: ErrorKind::RetryElsewhere, reason: Reason::OutcomeUnknown, message }.into()
}
