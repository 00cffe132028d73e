//! The table of leases and their deadlines. Pure: times are arguments.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::watch;

use crate::LeaseId;

/// All leases of the service.
#[derive(Debug, Default)]
pub(super) struct Leases {
    last: u64,
    leases: BTreeMap<LeaseId, Lease>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    /// Time since boot at which it expires unless it is renewed.
    deadline: Duration,
    /// Upgradable while the session exists.
    holder: Weak<()>,
    /// Dropped with the lease, which notifies the holder.
    _alive: watch::Sender<()>,
}

impl Leases {
    /// Grants a lease from `now` on; the receiver closes when it is lost.
    pub(super) fn grant(&mut self, now: Duration, ttl: Duration, holder: Weak<()>) -> (LeaseId, watch::Receiver<()>) {
        self.last += 1;
        let id = LeaseId::new(self.last);
        let (alive, lost) = watch::channel(());
        let deadline = now.saturating_add(ttl);
        self.leases.insert(id, Lease { ttl, deadline, holder, _alive: alive });
        (id, lost)
    }

    /// Renews the leases whose sessions exist and returns the expired ones, which stay in the table until
    /// [`Leases::end`].
    pub(super) fn tick(&mut self, now: Duration) -> Vec<LeaseId> {
        for lease in self.leases.values_mut().filter(|lease| lease.holder.strong_count() > 0) {
            lease.deadline = now.saturating_add(lease.ttl);
        }
        self.leases.iter().filter(|(_id, lease)| lease.deadline <= now).map(|(id, _lease)| *id).collect()
    }

    /// Removes these leases.
    pub(super) fn end(&mut self, expired: &[LeaseId]) {
        self.leases.retain(|id, _lease| !expired.contains(id));
    }

    /// Whether files may still be put under it.
    pub(super) fn has(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Whether its holder may rely on it at `now`.
    pub(super) fn is_alive(&self, id: LeaseId, now: Duration) -> bool {
        self.leases.get(&id).is_some_and(|lease| now < lease.deadline)
    }

    /// Stops the renewals of a lease.
    pub(super) fn stop_renewing(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.holder = Weak::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_held_lease_survives_any_pause_of_the_ticks() {
        let mut leases = Leases::default();
        let holder = Arc::new(());
        let (id, _lost) = leases.grant(SECOND, SECOND, Arc::downgrade(&holder));
        assert!(leases.tick(100 * SECOND).is_empty());
        assert!(leases.is_alive(id, 100 * SECOND));
    }

    #[test]
    fn a_dropped_lease_expires_after_its_ttl() {
        let mut leases = Leases::default();
        let holder = Arc::new(());
        let (id, lost) = leases.grant(SECOND, 10 * SECOND, Arc::downgrade(&holder));
        drop(holder);
        assert!(leases.tick(10 * SECOND).is_empty());
        assert_eq!(leases.tick(11 * SECOND), vec![id]);
        assert!(!leases.is_alive(id, 11 * SECOND));
        leases.end(&[id]);
        assert!(!leases.has(id));
        assert!(lost.has_changed().is_err());
    }
}
