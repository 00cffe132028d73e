//! How many bytes of writes may be under way, over the server and for one tablet.
//!
//! Raft and the log bound no bytes themselves, so a write takes a permit for its size before it enters the queue and
//! gives it back when it is answered. When none is free it waits until its deadline; then the caller is told to come
//! back later, and nothing was applied. One tablet cannot take what all share: it has a smaller bound of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::tablet::failure::Failure;

/// Bytes under way in all tablets of a server.
const SERVER_BYTES: u32 = 256 * 1024 * 1024;
/// Bytes under way in one tablet.
pub(super) const TABLET_BYTES: u32 = 64 * 1024 * 1024;
/// How long a refused caller should wait.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The permits of a server, or of one of its tablets. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    server: Arc<Semaphore>,
    tablet: Arc<Semaphore>,
    /// Whether memory asks writes to wait; shared by all tablets.
    gate: Arc<watch::Sender<Gate>>,
}

/// Whether new writes are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// They are.
    Open,
    /// They wait until flushes have caught up.
    Shut,
}

/// The right to have some bytes under way, until dropped.
#[derive(Debug)]
pub struct Permit {
    _tablet: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

impl Admission {
    /// The permits of a server.
    #[must_use]
    pub fn new() -> Self {
        let gate = Arc::new(watch::Sender::new(Gate::Open));
        Self { server: permits(SERVER_BYTES), tablet: permits(TABLET_BYTES), gate }
    }

    /// The permits of one more tablet, within the server's.
    #[must_use]
    pub fn tablet(&self) -> Self {
        Self { server: Arc::clone(&self.server), tablet: permits(TABLET_BYTES), gate: Arc::clone(&self.gate) }
    }

    /// Lets writes in or keeps them waiting, in all tablets.
    pub fn set_gate(&self, gate: Gate) {
        self.gate.send_if_modified(|now| std::mem::replace(now, gate) != gate);
    }

    /// Waits for the right to have `bytes` under way. What is larger than the bound waits for all of it, and travels alone.
    ///
    /// # Errors
    /// `Busy` when the right was not to be had within `timeout`.
    pub async fn admit(&self, bytes: usize, timeout: Duration) -> Result<Permit, Failure> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, TABLET_BYTES);
        tokio::time::timeout(timeout, self.take(count)).await.unwrap_or_else(|_elapsed| Err(Failure::busy(RETRY_AFTER)))
    }

    async fn take(&self, count: u32) -> Result<Permit, Failure> {
        // Neither the gate nor the semaphores are ever closed.
        if *self.gate.borrow() == Gate::Shut {
            let _open = self.gate.subscribe().wait_for(|gate| *gate == Gate::Open).await.map(drop);
        }
        let closed = |_closed| Failure::busy(RETRY_AFTER);
        let tablet = Arc::clone(&self.tablet).acquire_many_owned(count).await.map_err(closed)?;
        let server = Arc::clone(&self.server).acquire_many_owned(count).await.map_err(closed)?;
        Ok(Permit { _tablet: tablet, _server: server })
    }
}

fn permits(bytes: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(bytes).unwrap_or(Semaphore::MAX_PERMITS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tablet_that_has_too_much_under_way_refuses_and_recovers() {
        let admission = Admission::new();
        let tablet = admission.tablet();
        let all = tablet.admit(usize::MAX, Duration::ZERO).await.unwrap();
        let refused = tablet.admit(1, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.error.reason, ebla_model::Reason::Busy);
        assert!(admission.tablet().admit(1, Duration::ZERO).await.is_ok(), "another tablet goes on");
        drop(all);
        assert!(tablet.admit(1, Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn a_shut_gate_keeps_all_tablets_waiting() {
        let admission = Admission::new();
        admission.set_gate(Gate::Shut);
        assert!(admission.tablet().admit(1, Duration::ZERO).await.is_err());
        admission.set_gate(Gate::Open);
        assert!(admission.tablet().admit(1, Duration::ZERO).await.is_ok());
    }
}
