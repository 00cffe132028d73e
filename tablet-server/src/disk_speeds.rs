//! Whether the disk of this server is slow, and those of the others.
//!
//! `slow_disk` evaluates the syncs of this server's commit log, and transfers the leaderships away while they are slow;
//! `clock_exchange` asks the other servers about theirs. A leadership never goes to a server whose disk is slow.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_model::sync_delay::{SyncDelay, SyncState, Syncs};
use parking_lot::Mutex;

/// The speed of a disk, as its server tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskSpeed {
    /// Its syncs take long.
    Slow,
    /// It is not slow.
    Sound,
}

/// The speeds of the servers' disks, as far as this server knows them.
#[derive(Debug, Default)]
pub struct DiskSpeeds {
    /// This server's. Guards values.
    own: Mutex<(SyncDelay, SyncState)>,
    /// The other servers whose disks were slow when they last responded. Locked for a lookup.
    slow_peers: Mutex<BTreeSet<ServerId>>,
}

impl DiskSpeeds {
    /// The syncs of this server's commit log.
    #[must_use]
    pub fn state(&self) -> SyncState {
        self.own.lock().1
    }

    /// Determines the state, and returns it if the disk is slow from now on, or not any more.
    pub fn evaluate(&self, now: Duration, syncs: &Syncs) -> Option<SyncState> {
        let mut own = self.own.lock();
        let (delay, known) = &mut *own;
        let state = delay.evaluate(now, syncs);
        let before = std::mem::replace(known, state);
        (before.is_slow != state.is_slow).then_some(state)
    }

    /// Records the speed of the disk of `peer`.
    pub fn record(&self, peer: ServerId, speed: DiskSpeed) {
        let mut slow_peers = self.slow_peers.lock();
        match speed {
            DiskSpeed::Slow => slow_peers.insert(peer),
            DiskSpeed::Sound => slow_peers.remove(&peer),
        };
    }

    /// Removes the servers with slow disks.
    #[must_use]
    pub fn without_slow(&self, mut servers: BTreeSet<ServerId>) -> BTreeSet<ServerId> {
        let slow_peers = self.slow_peers.lock();
        servers.retain(|server| !slow_peers.contains(server));
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_is_returned() {
        let speeds = DiskSpeeds::default();
        let (began, second) = (Duration::from_secs(100), Duration::from_secs(1));
        let hangs = Syncs { ended: Vec::new(), running_since: Some(began) };
        assert_eq!(speeds.evaluate(began + second, &hangs), None);
        assert_eq!(speeds.state(), SyncState { delay: Some(second), is_slow: false });
        let slow = SyncState { delay: Some(second * 5), is_slow: true };
        assert_eq!(speeds.evaluate(began + second * 5, &hangs), Some(slow));
        assert_eq!(speeds.evaluate(began + second * 6, &hangs), None);
        assert!(speeds.state().is_slow);
    }

    #[test]
    fn a_peer_counts_as_it_last_responded() {
        let speeds = DiskSpeeds::default();
        let all = BTreeSet::from([1, 2, 3].map(ServerId::new));
        speeds.record(ServerId::new(2), DiskSpeed::Slow);
        speeds.record(ServerId::new(3), DiskSpeed::Sound);
        assert_eq!(speeds.without_slow(all.clone()), [1, 3].map(ServerId::new).into());
        speeds.record(ServerId::new(2), DiskSpeed::Sound);
        assert_eq!(speeds.without_slow(all.clone()), all);
    }
}
