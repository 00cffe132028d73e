//! Fault rates of a run: those of the named plans, and random ones for each seed (swarm testing).

use std::time::Duration;

use ebla_runtime::Rng;
use ebla_storage::disk::sim::Loss;
use ebla_tests::faults::rates::{Rates, Recurring};

use crate::cluster::{FailureTimeouts, TIMINGS};

/// How often faults recur, and what they do to disks and to the lock service.
#[derive(Clone, Debug)]
pub(crate) struct FaultRates {
    pub(crate) rates: Rates,
    /// Lost responses of the lock service, per mille, on a link that was cut once.
    pub(crate) chubby_lost_per_mille: u64,
    /// Loss of unsynced data in a power failure.
    pub(crate) loss: Loss,
    /// The mean time between two cuts of a link in the middle of a large message; `None`: cuts come at random moments only.
    pub(crate) transfer_cuts: Option<Duration>,
}

impl FaultRates {
    /// No faults at all.
    pub(crate) fn calm() -> Self {
        let rates = Rates::none(TIMINGS.election_max);
        Self { rates, chubby_lost_per_mille: 0, loss: Loss::All, transfer_cuts: None }
    }

    /// No faults, and failed servers are replaced after a short time.
    fn calm_with_replacement() -> (Self, FailureTimeouts) {
        let timeouts = FailureTimeouts::fixed();
        let mut calm = Self::calm();
        calm.rates.replaced_after = timeouts.end();
        (calm, timeouts)
    }

    /// Restarts of a few milliseconds while links are cut: finds forgotten leases and votes.
    pub(crate) fn votes() -> Self {
        Self::calm().every(Recurring::Crash, 3_000).every(Recurring::LeaseRace, 2_000)
    }

    /// Repeated power failures of all hosts.
    pub(crate) fn power() -> Self {
        Self::calm().every(Recurring::CrashAll, 4_000).every(Recurring::Crash, 2_000)
    }

    /// Repeated crashes of all hosts and no other faults: with many writes, some are in progress each time.
    pub(crate) fn outage() -> Self {
        Self::calm().every(Recurring::CrashAll, 1_500)
    }

    /// Clocks that jump, and leaders that change.
    pub(crate) fn clocks() -> Self {
        Self::calm().every(Recurring::ClockStep, 700).every(Recurring::Crash, 3_000)
    }

    /// Servers that crash while requests are in progress.
    pub(crate) fn kills() -> Self {
        Self::calm().every(Recurring::Crash, 1_000)
    }

    /// Links that are cut while requests are in progress.
    pub(crate) fn parts() -> Self {
        Self::calm().every(Recurring::Cut, 700).every(Recurring::Isolate, 3_000)
    }

    /// Links that are cut from time to time: a tablet can move between a write and its repetition.
    pub(crate) fn moves() -> Self {
        Self::calm().every(Recurring::Cut, 500)
    }

    /// Links that are cut so rarely that most moves succeed.
    pub(crate) fn transit() -> Self {
        Self::calm().every(Recurring::Cut, 3_000)
    }

    /// Isolated servers that clients still reach.
    pub(crate) fn alone() -> Self {
        Self::calm().every(Recurring::Isolate, 5_000)
    }

    /// Servers that are down for so long that the entries they miss are purged.
    pub(crate) fn snapshots() -> Self {
        let mut calm = Self::calm();
        calm.rates.down = (Duration::from_millis(300), Duration::from_secs(3));
        calm.every(Recurring::Crash, 1_500)
    }

    /// Servers that crash, alone or all at once, or are suspended, and links that are cut: each change of a leader concerns many groups.
    pub(crate) fn many_groups() -> Self {
        let mut calm = Self::calm();
        calm.rates.down = (Duration::from_millis(2), Duration::from_secs(3));
        let crashes = calm.every(Recurring::Crash, 2_500).every(Recurring::CrashAll, 12_000);
        crashes.every(Recurring::Suspend, 5_000).every(Recurring::Cut, 2_000).every(Recurring::Isolate, 6_000)
    }

    /// Links that are cut in the middle of large messages or are slow, and servers that are down for so long that the entries they miss are
    /// purged.
    pub(crate) fn large_values() -> Self {
        let mut calm = Self::calm();
        calm.rates.down = (Duration::from_millis(300), Duration::from_secs(3));
        calm.transfer_cuts = Some(Duration::from_secs(4));
        calm.every(Recurring::Crash, 4_000).every(Recurring::Slow, 2_500)
    }

    /// Servers of the mounttable and of its storage that crash, and links that are cut.
    pub(crate) fn names() -> Self {
        let mut calm = Self::calm();
        calm.rates.down = (Duration::from_millis(2), Duration::from_secs(3));
        calm.every(Recurring::Crash, 4_000).every(Recurring::MounttableCrash, 3_000).every(Recurring::Cut, 4_000)
    }

    /// Links that are cut, also those to the lock service; an operator replaces processes meanwhile.
    pub(crate) fn versions() -> Self {
        Self::calm().every(Recurring::Cut, 6_000).every(Recurring::NoLockService, 12_000)
    }

    /// Lease races while clocks differ as much as a lease allows for.
    pub(crate) fn skewed_lease_races() -> Self {
        Self::calm().every(Recurring::SkewedLeaseRace, 2_000)
    }

    /// Clocks that run fast or slow, and leaders that change.
    pub(crate) fn clock_rates() -> Self {
        Self::calm().every(Recurring::ClockRate, 500).every(Recurring::LeaseRace, 1_500).every(Recurring::Crash, 3_000)
    }

    /// Suspended hosts, and links that are cut.
    pub(crate) fn suspensions() -> Self {
        Self::calm().every(Recurring::Suspend, 1_500).every(Recurring::Cut, 4_000)
    }

    /// The same with clocks that run fast or slow, and hosts that are suspended.
    pub(crate) fn with_drift(self) -> Self {
        self.every(Recurring::ClockRate, 2_000).every(Recurring::Suspend, 6_000)
    }

    /// Disks that are full, of one server or of all, and crashes.
    pub(crate) fn full() -> Self {
        let mut calm = Self::calm();
        calm.rates.down = (Duration::from_millis(2), Duration::from_secs(2));
        calm.every(Recurring::FullDisk, 2_500).every(Recurring::Crash, 4_000)
    }

    /// Disks that fail, and crashes of all servers.
    pub(crate) fn failing() -> Self {
        Self::calm().every(Recurring::DiskError, 1_000).every(Recurring::CrashAll, 3_000)
    }

    /// Files whose bytes change, and crashes; servers are replaced.
    pub(crate) fn rot() -> (Self, FailureTimeouts) {
        let (mut calm, timeouts) = Self::calm_with_replacement();
        calm.rates.down = (Duration::from_millis(2), Duration::from_secs(1));
        (calm.every(Recurring::Rot, 1_500).every(Recurring::Crash, 4_000), timeouts)
    }

    /// Files whose bytes change, among them registries: a server with an empty folder joins at an address that others still use for its
    /// predecessor.
    pub(crate) fn rejoins() -> (Self, FailureTimeouts) {
        let (calm, timeouts) = Self::calm_with_replacement();
        (calm.every(Recurring::Rot, 1_000), timeouts)
    }

    /// Files whose bytes change while nothing else happens.
    pub(crate) fn decay() -> Self {
        Self::calm().every(Recurring::Rot, 4_000)
    }

    /// Damaged logs while a follower lags; damaged replicas are replaced.
    pub(crate) fn rot_races() -> (Self, FailureTimeouts) {
        let (calm, timeouts) = Self::calm_with_replacement();
        (calm.every(Recurring::RotRace, 4_000), timeouts)
    }

    /// Disks that are so slow, and for so long, that leaderships must leave them.
    pub(crate) fn slow_disks() -> Self {
        let mut calm = Self::calm();
        let millis = Duration::from_millis;
        calm.rates.slow_syncs = vec![(millis(600), millis(1_000)), (millis(10_000), millis(10_000))];
        calm.rates.slow_for = (millis(40_000), millis(50_000));
        calm.every(Recurring::SlowDisk, 20_000)
    }

    /// The same with disks that are slow from time to time.
    pub(crate) fn with_slow_disks(self) -> Self {
        self.every(Recurring::SlowDisk, 8_000)
    }

    /// The same with disks that are full from time to time.
    pub(crate) fn with_full_disks(self) -> Self {
        self.every(Recurring::FullDisk, 7_000)
    }

    /// The same with disks that fail from time to time.
    pub(crate) fn with_disk_errors(self) -> Self {
        self.every(Recurring::DiskError, 5_000)
    }

    /// The same with a lock service that has no space from time to time.
    pub(crate) fn with_full_lock_service(self) -> Self {
        self.every(Recurring::FullLockService, 8_000)
    }

    /// The same with files whose bytes change.
    pub(crate) fn with_rot(self) -> Self {
        self.every(Recurring::Rot, 5_000)
    }

    /// The same with servers of a mounttable that crash.
    pub(crate) fn with_mounttables(self) -> Self {
        self.every(Recurring::MounttableCrash, 5_000)
    }

    fn every(mut self, kind: Recurring, mean_ms: u64) -> Self {
        self.rates = self.rates.every(kind, Duration::from_millis(mean_ms));
        self
    }

    /// Random faults: each kind with some chance, and then a mean time between two of them.
    pub(crate) fn draw(rng: &Rng) -> Self {
        let down_ms = [(2, 30), (300, 3_000), (2_000, 30_000), (2, 3_000)];
        let (from, to) = down_ms[index(rng, down_ms.len())];
        let mut drawn = Self::calm();
        drawn.rates.down = (Duration::from_millis(from), Duration::from_millis(to));
        for (kind, chance_percent, from_ms, to_ms) in [
            (Recurring::Crash, 75, 1_500, 10_000),
            (Recurring::CrashAll, 25, 10_000, 30_000),
            (Recurring::MasterCrash, 40, 5_000, 20_000),
            (Recurring::Cut, 60, 2_000, 10_000),
            (Recurring::Isolate, 50, 4_000, 15_000),
            (Recurring::LeaseRace, 30, 4_000, 15_000),
            (Recurring::Slow, 40, 3_000, 10_000),
            (Recurring::ClockStep, 40, 2_000, 10_000),
            (Recurring::NoLockService, 40, 4_000, 15_000),
        ] {
            if rng.below(100) < chance_percent {
                drawn = drawn.every(kind, from_ms + rng.below(to_ms - from_ms));
            }
        }
        drawn.chubby_lost_per_mille = if rng.below(100) < 30 { rng.below(100) } else { 0 };
        let losses = [Loss::All, Loss::Some, Loss::Garbage, Loss::Nothing];
        drawn.loss = losses[index(rng, losses.len())];
        drawn
    }

    /// The same with servers that are replaced, and the timeouts after which they are.
    pub(crate) fn with_losses(self, rng: &Rng) -> (Self, FailureTimeouts) {
        let mut lossy = self.every(Recurring::Lose, 4_000 + rng.below(6_000));
        let timeouts = FailureTimeouts::short(rng);
        lossy.rates.replaced_after = timeouts.end();
        (lossy, timeouts)
    }
}

fn index(rng: &Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).unwrap()
}
