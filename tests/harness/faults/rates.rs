//! Rates at which faults recur: a mean time between two faults of each kind. Faults of different kinds overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_runtime::Rng;

use crate::cluster::Node;
use crate::faults::draw::Draw;
use crate::faults::fault::Fault;
use crate::faults::view::View;

/// A kind of recurring fault. Targets and durations are drawn each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recurring {
    /// A tablet server is killed, or its host loses power, perhaps in the middle of a disk operation.
    Crash,
    /// The same for all tablet servers.
    CrashAll,
    /// A tablet server is down until its replicas have been replaced.
    Lose,
    /// As [`Self::Crash`], a master.
    MasterCrash,
    /// A link is cut, or holds messages.
    Cut,
    /// One tablet server, often a leader, is partitioned from all other tablet servers; masters and clients still reach it.
    Isolate,
    /// A leader is partitioned from one follower for longer than its lease, and then from the other one, which restarts at this
    /// moment. If that one forgets its lease, the two followers elect a leader while the first leader still reads by its lease.
    LeaseRace,
    /// A link is slow.
    Slow,
    /// The wall clock of a tablet server jumps.
    ClockStep,
    /// A node does not reach the lock service.
    NoLockService,
    /// A server of a mounttable is killed.
    MounttableCrash,
    /// The clocks of a tablet server begin to run fast or slow.
    ClockRate,
    /// A node stands still for a while.
    Suspend,
    /// The disk of a tablet server, or of all of them, is full for a while.
    FullDisk,
    /// Bytes of a file of a tablet server change, while it runs or while it is down for a moment.
    Rot,
    /// As [`Self::LeaseRace`], while the clock of the leader is slow and those of the other tablet servers are fast, as much as leases allow for.
    SkewedLeaseRace,
    /// The disk of a tablet server is slow for a while.
    SlowDisk,
    /// A leader is partitioned from one follower, and then from the other one, which restarts at this moment with a damaged log. If that one
    /// counts as whole, the two followers elect a leader that does not have what was acknowledged before.
    RotRace,
    /// A sync of the commit log of a tablet server fails, or the writes of its stores fail for a while.
    DiskError,
    /// The lock service has no space for a while.
    FullLockService,
}

impl Recurring {
    /// Every kind.
    pub const ALL: [Self; 20] = [
        Self::Crash,
        Self::CrashAll,
        Self::Lose,
        Self::MasterCrash,
        Self::Cut,
        Self::Isolate,
        Self::LeaseRace,
        Self::Slow,
        Self::ClockStep,
        Self::NoLockService,
        Self::MounttableCrash,
        Self::ClockRate,
        Self::Suspend,
        Self::FullDisk,
        Self::Rot,
        Self::SkewedLeaseRace,
        Self::SlowDisk,
        Self::RotRace,
        Self::DiskError,
        Self::FullLockService,
    ];
}

/// Mean times between faults, and the bounds of what is drawn.
#[derive(Clone, Debug)]
pub struct Rates {
    means: BTreeMap<Recurring, Duration>,
    /// Minimum and maximum time that a crashed process stays down.
    pub down: (Duration, Duration),
    /// The time after which a failed server has been replaced; `None`: servers are not replaced, so none is lost.
    pub replaced_after: Option<Duration>,
    /// The longest election timeout of the Raft groups, which a lease race must exceed.
    pub election_max: Duration,
    /// What a sync of a slow disk takes on average: minimum and maximum, one of these.
    pub slow_syncs: Vec<(Duration, Duration)>,
    /// Minimum and maximum time for which a disk is slow.
    pub slow_for: (Duration, Duration),
}

impl Rates {
    /// No faults at all; a crashed process stays down for 2 to 30 ms, and a disk would be slow for up to 20 s.
    #[must_use]
    pub fn none(election_max: Duration) -> Self {
        let down = (Duration::from_millis(2), Duration::from_millis(30));
        let millis = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        Self {
            means: BTreeMap::new(),
            down,
            replaced_after: None,
            election_max,
            // Not slow, slow, and one that hangs.
            slow_syncs: vec![millis(50, 300), millis(600, 2_000), millis(10_000, 10_000)],
            slow_for: millis(1_000, 20_000),
        }
    }

    /// The same with faults of this kind, `mean` apart on average.
    #[must_use]
    pub fn every(mut self, kind: Recurring, mean: Duration) -> Self {
        self.means.insert(kind, mean);
        self
    }

    /// Whether faults of this kind recur.
    #[must_use]
    pub fn recurs(&self, kind: Recurring) -> bool {
        self.means.contains_key(&kind)
    }

    pub(super) fn mean(&self, kind: Recurring) -> Option<Duration> {
        self.means.get(&kind).copied()
    }

    /// Faults of this kind, each with the time until it begins. None if there is no possible target.
    pub(super) fn draw(
        &self,
        kind: Recurring,
        rng: &Rng,
        view: &View,
        down: &BTreeSet<Node>,
    ) -> Vec<(Duration, Fault)> {
        let draw = Draw { rates: self, rng, view, down };
        let drawn = match kind {
            Recurring::Crash => draw.crash_one(&view.tablet_servers()),
            Recurring::CrashAll => Some(view.tablet_servers().into_iter().flat_map(|node| draw.crash(node)).collect()),
            Recurring::Lose => draw.lose(),
            Recurring::MasterCrash => draw.crash_one(&view.masters()),
            Recurring::Cut => draw.cut(),
            Recurring::Isolate => draw.isolate(),
            Recurring::LeaseRace => draw.lease_race(),
            Recurring::Slow => draw.slow(),
            Recurring::ClockStep => draw.clock_step(),
            Recurring::NoLockService => draw.no_lock_service(),
            Recurring::ClockRate => draw.clock_rate(),
            Recurring::Suspend => draw.suspend(),
            Recurring::FullDisk => draw.full_disk(),
            Recurring::Rot => draw.rot(),
            Recurring::SkewedLeaseRace => draw.skewed_lease_race(),
            Recurring::SlowDisk => draw.slow_disk(),
            Recurring::RotRace => draw.rot_race(),
            Recurring::DiskError => draw.disk_error(),
            Recurring::FullLockService => draw.full_lock_service(),
            Recurring::MounttableCrash => draw.kill_one(&view.mounttables()),
        };
        drawn.unwrap_or_default()
    }
}
