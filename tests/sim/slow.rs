//! Disks that are slow for a while, and the check that a server with a slow disk leads nothing.
//!
//! A sync of a host's commit log takes some simulated time; a crash does not change that. The bound of the check follows from
//! `model/src/sync_delay.rs`: 17 of the last 32 syncs must have been slow, then five seconds pass, and each second the server looks; or one sync
//! has lasted for five seconds. Then the server transfers its leaderships, each second again.

use std::time::Duration;

use ebla_model::id::GroupId;
use ebla_tablet_server::log_writer::SyncLatency;
use ebla_tablet_server::tablet::TabletGroup;
use parking_lot::Mutex;

use crate::cluster::{SimCluster, SimHost};

/// About how long a sync takes.
const SYNC: Duration = Duration::from_millis(2);
/// Syncs that take this time are surely slow: each lasts for half of it at least.
const SURELY_SLOW: Duration = Duration::from_millis(600);
/// One sync is so long that it hangs.
const HANGS: Duration = Duration::from_secs(10);
/// Slow syncs until their median is slow, with some more, because each takes a random time.
const SYNCS: u32 = 20;
/// Until the server has looked and has transferred its leaderships.
const LEAVES: Duration = Duration::from_secs(10);
/// For so long a server may lead a group again that has elected it meanwhile.
const AGAIN: Duration = Duration::from_secs(4);
/// A disk that was slow counts as slow for less than this time: its last slow syncs are too old after a minute, and then it has to be fast for
/// half a minute.
const REMEMBERED: Duration = Duration::from_secs(100);

/// The syncs of a host's disk. They outlive its crashes.
pub(crate) struct HostSyncs {
    latency: SyncLatency,
    /// The average of one sync, and since when it is that; `None`: the disk is not slow.
    slow: Mutex<Option<(Duration, Duration)>>,
    /// When the disk was slow for the last time.
    ended: Mutex<Option<Duration>>,
    /// The group that it leads although it should not, and since when.
    leads: Mutex<Option<(GroupId, Duration)>>,
}

impl Default for HostSyncs {
    fn default() -> Self {
        let latency = SyncLatency::new(SYNC);
        Self { latency, slow: Mutex::default(), ended: Mutex::default(), leads: Mutex::default() }
    }
}

impl HostSyncs {
    /// As a server of the host takes it.
    pub(crate) fn latency(&self) -> SyncLatency {
        self.latency.clone()
    }

    /// From now on a sync takes about `sync`.
    pub(crate) fn slow_down(&self, sync: Duration, now: Duration) {
        *self.slow.lock() = Some((sync, now));
        self.latency.set(sync);
    }

    /// Syncs are fast again.
    pub(crate) fn speed_up(&self, now: Duration) {
        *self.slow.lock() = None;
        *self.ended.lock() = Some(now);
        self.latency.set(SYNC);
    }

    /// Whether no server can take the disk for slow.
    fn is_sound(&self, now: Duration) -> bool {
        let is_over = |ended: Duration| now.saturating_sub(ended) >= REMEMBERED;
        self.slow.lock().is_none() && self.ended.lock().is_none_or(is_over)
    }

    /// Whether the server must have found out by now that the disk is slow, and must have acted.
    fn is_surely_slow(&self, now: Duration) -> bool {
        let Some((sync, since)) = *self.slow.lock() else { return false };
        let known = if sync >= HANGS { LEAVES } else { sync * SYNCS + LEAVES };
        sync >= SURELY_SLOW && now.saturating_sub(since) >= known
    }

    /// Records which group the server leads although it should not; returns it if that lasts too long.
    fn record(&self, leads: Option<GroupId>, now: Duration) -> Option<GroupId> {
        let mut known = self.leads.lock();
        *known = match (*known, leads) {
            (Some((before, since)), Some(group)) if before == group => Some((group, since)),
            (_, leads) => leads.map(|group| (group, now)),
        };
        known.filter(|(_group, since)| now.saturating_sub(*since) >= AGAIN).map(|(group, _since)| group)
    }
}

/// Checks that servers with slow disks do not lead what another server can lead. For runs without other faults.
pub(crate) fn check_leaders(cluster: &SimCluster, now: Duration) {
    for host in &cluster.servers {
        let leads = if host.syncs.is_surely_slow(now) { leads_needlessly(cluster, host, now) } else { None };
        if let Some(group) = host.syncs.record(leads, now) {
            let slow = host.syncs.slow.lock().map(|(sync, since)| format!("a sync has taken {sync:?} since {since:?}"));
            let wrong = format!("slow disk: {} leads group {group} at {now:?}, and {slow:?}", host.name);
            cluster.history.lock().wrong.push(wrong);
        }
    }
}

/// A group that this host leads, and that a voter on a host with a sound disk could lead.
fn leads_needlessly(cluster: &SimCluster, host: &SimHost, now: Duration) -> Option<GroupId> {
    let sound: Vec<_> = cluster
        .servers
        .iter()
        .filter(|other| other.syncs.is_sound(now))
        .filter_map(|other| other.hosted().map(|hosted| hosted.server()))
        .collect();
    let can_leave = |group: &TabletGroup| {
        let membership = group.raft().status().membership;
        membership.replicas().any(|replica| membership.is_voter(replica.replica) && sound.contains(&replica.server))
    };
    let hosted = host.hosted()?;
    let led = hosted.groups().into_iter().filter(|group| group.is_leader() && can_leave(group));
    led.map(|group| group.id()).min()
}
