//! Admission control: the bytes of writes in flight, for the server and for each group.
//!
//! Raft and the log do not limit bytes themselves, so a write takes a permit for its size before it enters the queue and
//! releases it when it is answered. When no permit is free it waits until its deadline; then the caller gets `Busy`, and
//! nothing was applied. A lower limit for each group keeps one group from using the whole server's budget.

use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::metrics::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::tablet::failure::Failure;

/// Bytes in flight in all groups of a server.
const SERVER_BYTES: u32 = 256 * 1024 * 1024;
/// Bytes in flight in one group.
pub(super) const GROUP_BYTES: u32 = 64 * 1024 * 1024;
/// The pause that `Busy` tells a refused caller to make.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Admission control of a server, or of one of its groups. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    server: Arc<Semaphore>,
    group: Arc<Semaphore>,
    /// The write stall: closed while memtables use too much memory. Shared by all groups.
    gate: Arc<watch::Sender<Gate>>,
    /// Rows of writes whose tablet was found. Shared by all groups.
    rows: Counter,
}

/// Whether new writes are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Writes are admitted.
    Open,
    /// Write stall: writes wait until flushes have caught up.
    Closed,
}

/// Permission to have some bytes in flight, until dropped.
#[derive(Debug)]
pub struct Permit {
    _group: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

impl Admission {
    /// Admission control of a server.
    #[must_use]
    pub fn new() -> Self {
        let gate = Arc::new(watch::Sender::new(Gate::Open));
        Self { server: permits(SERVER_BYTES), group: permits(GROUP_BYTES), gate, rows: Counter::default() }
    }

    /// Admission control of one more group, within the server's.
    #[must_use]
    pub fn group(&self) -> Self {
        let (server, gate, rows) = (Arc::clone(&self.server), Arc::clone(&self.gate), self.rows.clone());
        Self { server, group: permits(GROUP_BYTES), gate, rows }
    }

    /// Counts rows of a write whose tablet was found.
    pub(super) fn count_rows(&self, rows: usize) {
        self.rows.add(u64::try_from(rows).unwrap_or(u64::MAX));
    }

    /// Rows of writes whose tablet was found, since the server started.
    #[must_use]
    pub fn rows_written(&self) -> u64 {
        self.rows.get()
    }

    /// Whether writes are admitted.
    #[must_use]
    pub fn gate(&self) -> Gate {
        *self.gate.borrow()
    }

    /// Admits or stalls writes, in all groups.
    pub fn set_gate(&self, gate: Gate) {
        self.gate.send_if_modified(|now| std::mem::replace(now, gate) != gate);
    }

    /// Waits for a permit of `bytes`. A write above the limit waits for all of it, and runs alone.
    ///
    /// # Errors
    /// `Busy` when no permit was available within `timeout`.
    pub async fn admit(&self, bytes: usize, timeout: Duration) -> Result<Permit, Failure> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, GROUP_BYTES);
        tokio::time::timeout(timeout, self.take(count)).await.unwrap_or_else(|_elapsed| Err(Failure::busy(RETRY_AFTER)))
    }

    async fn take(&self, count: u32) -> Result<Permit, Failure> {
        // Neither the watch channel nor the semaphores are ever closed.
        if *self.gate.borrow() == Gate::Closed {
            let _open = self.gate.subscribe().wait_for(|gate| *gate == Gate::Open).await.map(drop);
        }
        let closed = |_closed| Failure::busy(RETRY_AFTER);
        let group = Arc::clone(&self.group).acquire_many_owned(count).await.map_err(closed)?;
        let server = Arc::clone(&self.server).acquire_many_owned(count).await.map_err(closed)?;
        Ok(Permit { _group: group, _server: server })
    }
}

fn permits(bytes: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(bytes).unwrap_or(Semaphore::MAX_PERMITS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_group_at_its_limit_refuses_and_recovers() {
        let admission = Admission::new();
        let group = admission.group();
        let all = group.admit(usize::MAX, Duration::ZERO).await.unwrap();
        let refused = group.admit(1, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.error.reason, ebla_model::Reason::Busy);
        assert!(admission.group().admit(1, Duration::ZERO).await.is_ok(), "another group has its own limit");
        drop(all);
        assert!(group.admit(1, Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn a_closed_gate_stalls_all_groups() {
        let admission = Admission::new();
        admission.set_gate(Gate::Closed);
        assert!(admission.group().admit(1, Duration::ZERO).await.is_err());
        admission.set_gate(Gate::Open);
        assert!(admission.group().admit(1, Duration::ZERO).await.is_ok());
    }
}
