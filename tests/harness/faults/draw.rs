//! How each kind of recurring fault is drawn: its target, its duration, and the time until it begins.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_runtime::Rng;

use crate::cluster::{Direction, Node};
use crate::faults::fault::{Fault, FaultKind, Leases, RottenFile, SpaceLeft, Target, WallClock};
use crate::faults::rates::Rates;
use crate::faults::view::View;

/// A node that is partitioned from the lock service for longer than this loses its leases.
const LEASES_ENDURE: Duration = Duration::from_secs(3);

/// Clocks run faster or slower by at most this, in millionths.
const RATE_MAX_PPM: i32 = 100_000;

/// The arguments of a draw.
pub(super) struct Draw<'a> {
    pub(super) rates: &'a Rates,
    pub(super) rng: &'a Rng,
    pub(super) view: &'a View,
    /// Nodes that are down already.
    pub(super) down: &'a BTreeSet<Node>,
}

/// Faults with the time until each begins; `None`: there is no target.
type Drawn = Option<Vec<(Duration, Fault)>>;

impl Draw<'_> {
    pub(super) fn crash_one(&self, nodes: &[Node]) -> Drawn {
        Some(self.crash(self.pick(nodes)?))
    }

    /// A process without a disk is killed.
    pub(super) fn kill_one(&self, nodes: &[Node]) -> Drawn {
        let node = self.pick(nodes).filter(|node| !self.down.contains(node))?;
        at_once(FaultKind::Kill, Target::Node(node), between(self.rng, self.rates.down))
    }

    /// A process is killed, or its host loses power, at once or in the middle of disk operations.
    pub(super) fn crash(&self, node: Node) -> Vec<(Duration, Fault)> {
        if self.down.contains(&node) {
            return Vec::new();
        }
        let lasts = between(self.rng, self.rates.down);
        let fault = |kind, lasts| Fault::new(kind, Target::Node(node), lasts);
        if self.is_heads() {
            return vec![(Duration::ZERO, fault(FaultKind::Kill, lasts))];
        }
        if self.is_heads() {
            return vec![(Duration::ZERO, fault(FaultKind::PowerFailure, lasts))];
        }
        let operations = 1 + self.rng.below(20);
        let soon = Duration::from_millis(self.rng.below(30));
        vec![
            (Duration::ZERO, fault(FaultKind::DiskFailure { operations }, Duration::ZERO)),
            (soon, fault(FaultKind::PowerFailure, lasts)),
        ]
    }

    pub(super) fn lose(&self) -> Drawn {
        let node = self.pick(&self.view.tablet_servers()).filter(|node| !self.down.contains(node))?;
        let replaced = self.rates.replaced_after?;
        let lasts = between(self.rng, (replaced, replaced + Duration::from_secs(8)));
        at_once(FaultKind::Kill, Target::Node(node), lasts)
    }

    pub(super) fn cut(&self) -> Drawn {
        let link = (self.pick(&self.view.nodes)?, self.pick(&self.view.nodes)?);
        let kind = self.cut_kind(Direction::Out);
        let lasts = between(self.rng, (Duration::from_millis(100), Duration::from_secs(8)));
        at_once(kind, Target::Links(vec![link]), lasts)
    }

    /// Half of the time a leader.
    pub(super) fn isolate(&self) -> Drawn {
        let servers = self.view.tablet_servers();
        let alone = self.leader_or(&servers)?;
        let one_way = if self.is_heads() { Direction::Out } else { Direction::In };
        let kind = self.cut_kind(one_way);
        let lasts = between(self.rng, (Duration::from_millis(300), Duration::from_secs(8)));
        let links = servers.into_iter().filter(|other| *other != alone).map(|other| (alone, other)).collect();
        at_once(kind, Target::Links(links), lasts)
    }

    pub(super) fn lease_race(&self) -> Drawn {
        self.lease_race_of(self.pick(&self.view.leaders)?)
    }

    pub(super) fn skewed_lease_race(&self) -> Drawn {
        let leader = self.pick(&self.view.leaders)?;
        let rate = |node: Node| {
            let ppm = if node == leader { -RATE_MAX_PPM } else { RATE_MAX_PPM };
            (Duration::ZERO, Fault::new(FaultKind::ClockRate { ppm }, Target::Node(node), Duration::ZERO))
        };
        let rates = self.view.tablet_servers().into_iter().map(rate);
        Some(rates.chain(self.lease_race_of(leader)?).collect())
    }

    /// Two others: the one that a leader loses first, and the one that restarts when it is lost, too.
    fn followers(&self, leader: Node) -> Option<(Node, Node)> {
        let others: Vec<_> = self.view.tablet_servers().into_iter().filter(|node| *node != leader).collect();
        let lost = self.pick(&others)?;
        let after_lost = others.iter().skip_while(|node| **node != lost).nth(1);
        Some((lost, *after_lost.or(others.first())?))
    }

    /// The follower that is lost first misses what is written meanwhile.
    pub(super) fn rot_race(&self) -> Drawn {
        let leader = self.pick(&self.view.leaders)?;
        let (lost, restarts) = self.followers(leader)?;
        if self.down.contains(&restarts) {
            return None;
        }
        let alone = between(self.rng, (Duration::from_millis(500), Duration::from_millis(1_500)));
        let both = self.rates.election_max * 6;
        let down = between(self.rng, (Duration::from_millis(10), Duration::from_millis(100)));
        let fault = |kind, target, lasts| Fault::new(kind, target, lasts);
        let cut =
            |other, lasts| fault(FaultKind::Partition(Direction::Both), Target::Links(vec![(leader, other)]), lasts);
        Some(vec![
            (Duration::ZERO, cut(lost, alone + both)),
            (alone, cut(restarts, both)),
            (alone, fault(FaultKind::Kill, Target::Node(restarts), down)),
            (alone + down / 2, fault(FaultKind::Rot(RottenFile::LogTail), Target::Node(restarts), Duration::ZERO)),
        ])
    }

    fn lease_race_of(&self, leader: Node) -> Drawn {
        let (lost, restarts) = self.followers(leader)?;
        let (alone, both) = (self.rates.election_max * 5 / 4, self.rates.election_max * 3 / 2);
        let cut = |other, lasts| {
            Fault::new(FaultKind::Partition(Direction::Both), Target::Links(vec![(leader, other)]), lasts)
        };
        let down = between(self.rng, (Duration::from_millis(2), Duration::from_millis(30)));
        Some(vec![
            (Duration::ZERO, cut(lost, alone + both)),
            (alone, cut(restarts, both)),
            (alone, Fault::new(FaultKind::PowerFailure, Target::Node(restarts), down)),
        ])
    }

    pub(super) fn slow(&self) -> Drawn {
        let link = (self.pick(&self.view.nodes)?, self.pick(&self.view.nodes)?);
        let latency = between(self.rng, (Duration::from_millis(10), Duration::from_millis(300)));
        let lasts = between(self.rng, (Duration::from_secs(1), Duration::from_secs(6)));
        at_once(FaultKind::Slow(latency), Target::Links(vec![link]), lasts)
    }

    /// By up to a tenth of a second, five seconds, or an hour, in both directions.
    pub(super) fn clock_step(&self) -> Drawn {
        let node = self.pick(&self.view.tablet_servers())?;
        let span_micros = self.pick(&[100_000_u32, 5_000_000, 3_600_000_000])?;
        let off_micros =
            i64::try_from(self.rng.below(u64::from(span_micros) * 2)).unwrap_or(0) - i64::from(span_micros);
        at_once(FaultKind::ClockStep { micros: off_micros }, Target::Node(node), Duration::ZERO)
    }

    /// By up to one or ten per cent, in both directions: leases have a margin for that.
    pub(super) fn clock_rate(&self) -> Drawn {
        let node = self.pick(&self.view.tablet_servers())?;
        let span = self.pick(&[RATE_MAX_PPM / 10, RATE_MAX_PPM])?;
        let ppm = i32::try_from(self.rng.below(u64::from(span.unsigned_abs()) * 2 + 1)).unwrap_or(0) - span;
        at_once(FaultKind::ClockRate { ppm }, Target::Node(node), Duration::ZERO)
    }

    /// Half of the time a leader.
    pub(super) fn suspend(&self) -> Drawn {
        let node = self.leader_or(&self.view.nodes)?;
        let lasts = between(self.rng, (Duration::from_millis(300), Duration::from_secs(8)));
        let leases = if lasts > LEASES_ENDURE { Leases::Expire } else { Leases::Endure };
        let wall = if self.is_heads() { WallClock::GoesOn } else { WallClock::Stops };
        at_once(FaultKind::Suspend(wall, leases), Target::Node(node), lasts)
    }

    pub(super) fn no_lock_service(&self) -> Drawn {
        let node = self.pick(&self.view.nodes)?;
        let lasts = between(self.rng, (Duration::from_millis(200), Duration::from_secs(15)));
        let leases = if lasts > LEASES_ENDURE { Leases::Expire } else { Leases::Endure };
        at_once(FaultKind::NoLockService(leases), Target::Node(node), lasts)
    }

    /// A third of the time all tablet servers: then no leader may accept a write.
    pub(super) fn full_disk(&self) -> Drawn {
        let left = [SpaceLeft::BelowReserve, SpaceLeft::BelowHalf, SpaceLeft::OnlyForLog, SpaceLeft::Nothing];
        let left = self.pick(&left)?;
        let servers = self.view.tablet_servers();
        let target = match self.rng.below(3) {
            0 => Target::Nodes(servers),
            _ => Target::Node(self.pick(&servers)?),
        };
        let lasts = between(self.rng, (Duration::from_millis(500), Duration::from_secs(8)));
        at_once(FaultKind::FullDisk(left), target, lasts)
    }

    /// Half of the time a leader.
    pub(super) fn disk_error(&self) -> Drawn {
        let node = self.leader_or(&self.view.tablet_servers())?;
        if self.is_heads() {
            let lasts = between(self.rng, (Duration::from_millis(100), Duration::from_secs(6)));
            return at_once(FaultKind::StoreFailure, Target::Node(node), lasts);
        }
        if self.down.contains(&node) {
            return None;
        }
        let operations = 1 + self.rng.below(20);
        at_once(FaultKind::SyncFailure { operations }, Target::Node(node), Duration::ZERO)
    }

    pub(super) fn full_lock_service(&self) -> Drawn {
        let lasts = between(self.rng, (Duration::from_millis(200), Duration::from_secs(12)));
        at_once(FaultKind::FullLockService, Target::Everything, lasts)
    }

    /// Half of the time a leader.
    pub(super) fn slow_disk(&self) -> Drawn {
        let node = self.leader_or(&self.view.tablet_servers())?;
        let sync = between(self.rng, self.pick(&self.rates.slow_syncs)?);
        at_once(FaultKind::SlowDisk(sync), Target::Node(node), between(self.rng, self.rates.slow_for))
    }

    /// The registry is read at a start only, and it is lost with its server: only where servers are replaced.
    pub(super) fn rot(&self) -> Drawn {
        let node = self.pick(&self.view.tablet_servers())?;
        let file = match self.rng.below(5) {
            0 if self.rates.replaced_after.is_some() => RottenFile::Registry,
            0..=2 => RottenFile::Table,
            _ => RottenFile::Log,
        };
        let rot = |after| (after, Fault::new(FaultKind::Rot(file), Target::Node(node), Duration::ZERO));
        let stays_up = file != RottenFile::Registry && self.is_heads();
        if stays_up || self.down.contains(&node) {
            return Some(vec![rot(Duration::ZERO)]);
        }
        let lasts = between(self.rng, (Duration::from_millis(100), Duration::from_secs(2)));
        Some(vec![(Duration::ZERO, Fault::new(FaultKind::Kill, Target::Node(node), lasts)), rot(lasts / 2)])
    }

    /// All messages are lost, those of one direction are lost, or all wait.
    fn cut_kind(&self, one_way: Direction) -> FaultKind {
        match self.rng.below(3) {
            0 => FaultKind::Partition(Direction::Both),
            1 => FaultKind::Partition(one_way),
            _ => FaultKind::Hold,
        }
    }

    /// Half of the time a leader, if there is one; otherwise one of these nodes.
    fn leader_or(&self, nodes: &[Node]) -> Option<Node> {
        let leader = if self.is_heads() { self.pick(&self.view.leaders) } else { None };
        leader.or_else(|| self.pick(nodes))
    }

    fn is_heads(&self) -> bool {
        self.rng.below(2) == 0
    }

    fn pick<T: Copy>(&self, all: &[T]) -> Option<T> {
        let at = self.rng.below(u64::try_from(all.len()).unwrap_or(u64::MAX));
        all.get(usize::try_from(at).unwrap_or(usize::MAX)).copied()
    }
}

fn at_once(kind: FaultKind, target: Target, lasts: Duration) -> Drawn {
    Some(vec![(Duration::ZERO, Fault::new(kind, target, lasts))])
}

/// A whole number of milliseconds more than the minimum, at most the maximum.
pub(super) fn between(rng: &Rng, (min, max): (Duration, Duration)) -> Duration {
    let span = u64::try_from(max.saturating_sub(min).as_millis()).unwrap_or(u64::MAX);
    min + Duration::from_millis(rng.below(span.saturating_add(1)))
}
