//! The tablets of the other servers of this process: a request for one is a call, not a message.
//!
//! A server behind its [`Door`] falls silent as a process does: when it is stopped without warning, calls that wait for
//! it end at once, and what they wanted may have been done or not.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use ebla_client::{CallError, ReadStream};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::tablet::serve::Local;

/// Servers of one process by their id; clones are the same map.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(Arc<RwLock<BTreeMap<ServerId, Entry>>>);

#[derive(Clone, Debug)]
struct Entry {
    /// Weak: the map outlives its servers.
    local: Weak<Local>,
    killed: CancellationToken,
}

impl Neighbours {
    /// The tablets of `server` can be reached from now on, until `killed`.
    pub(crate) fn enter(&self, server: ServerId, local: &Arc<Local>, killed: CancellationToken) {
        let entry = Entry { local: Arc::downgrade(local), killed };
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(server, entry);
    }

    /// Calls to `server` go over the network from now on, where nobody answers.
    pub(crate) fn leave(&self, server: ServerId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&server);
    }

    /// The way in, where the server lives in this process.
    pub(super) fn find(&self, server: ServerId) -> Option<Door> {
        let servers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Entry { local, killed } = servers.get(&server)?;
        Some(Door { local: local.upgrade()?, killed: Some(killed.clone()) })
    }
}

/// The way into a server of this process.
pub(super) struct Door {
    local: Arc<Local>,
    /// None for the caller's own server, whose end the caller shares.
    killed: Option<CancellationToken>,
}

impl Door {
    /// The caller's own.
    pub(super) fn own(local: &Arc<Local>) -> Self {
        Self { local: Arc::clone(local), killed: None }
    }

    pub(super) fn local(&self) -> &Local {
        &self.local
    }

    /// What a call comes to, unless the server is killed first.
    pub(super) async fn or_gone<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        match &self.killed {
            Some(killed) => killed.run_until_cancelled(call).await.unwrap_or_else(|| Err(gone())),
            None => call.await,
        }
    }

    /// The stream, which breaks off when the server is killed.
    pub(super) fn until_gone(self, stream: ReadStream) -> ReadStream {
        match self.killed {
            Some(killed) => stream.take_until(killed.cancelled_owned()).boxed(),
            None => stream,
        }
    }
}

/// As a connection that broke: nobody knows what became of the call.
fn gone() -> CallError {
    Error::new(Reason::Unavailable, "the server was stopped").into()
}
