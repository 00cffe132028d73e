//! Whether a tablet server can serve, for supervisors and load balancers.
//!
//! ```text
//!   starting                 no port is open, the process has not created this yet
//!   stores open              not ready: not registered in Chubby yet
//!   registered once          ready, also when Chubby is lost later: loaded tablets are served without it (ARCHITECTURE.md, invariant 8)
//!   draining, refused        not ready
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ebla_runtime::Tasks;
use tokio::sync::watch;

use crate::registration::RegistrationStatus;
use crate::tablet::lifecycle::manager::TabletManager;

/// Whether a server can serve. It does not keep the server's stores open.
#[derive(Debug)]
pub(crate) struct ServerReadiness {
    manager: Weak<TabletManager>,
    registration: OnceLock<watch::Receiver<RegistrationStatus>>,
    /// Whether the server has ever been registered.
    was_registered: AtomicBool,
}

impl ServerReadiness {
    /// The readiness of the server with these stores, which are open.
    pub(crate) fn new(manager: &Arc<TabletManager>) -> Arc<Self> {
        let manager = Arc::downgrade(manager);
        Arc::new(Self { manager, registration: OnceLock::new(), was_registered: AtomicBool::new(false) })
    }

    /// The server registers, as this receiver reports. The first registration is remembered, whether anything asks or not.
    pub(crate) fn observe(self: &Arc<Self>, registration: &watch::Receiver<RegistrationStatus>, tasks: &Tasks) {
        let _first = self.registration.set(registration.clone());
        let (readiness, mut status) = (Arc::clone(self), registration.clone());
        tasks.spawn_until_stopped("readiness", async move {
            if status.wait_for(|now| *now == RegistrationStatus::Registered).await.is_ok() {
                readiness.was_registered.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Whether the server is registered now.
    pub(crate) fn is_registered(&self) -> bool {
        self.registration.get().is_some_and(|status| *status.borrow() == RegistrationStatus::Registered)
    }

    /// Whether the server can serve.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn now(&self) -> Result<(), String> {
        if self.manager.upgrade().is_none_or(|manager| manager.is_draining()) {
            return Err("the server is stopping".to_owned());
        }
        let status = self.registration.get().map(|status| status.borrow().clone()).unwrap_or_default();
        match status {
            RegistrationStatus::Registered => Ok(()),
            RegistrationStatus::Refused(error) => Err(error.message),
            RegistrationStatus::Unregistered if self.was_registered.load(Ordering::Relaxed) => Ok(()),
            RegistrationStatus::Unregistered => {
                Err("the server is not registered in Chubby yet: are etcd's addresses right, and is it up?".to_owned())
            }
        }
    }
}
