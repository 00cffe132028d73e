//! What each fault does to turmoil's hosts and links, to the simulated disks and clocks, and to the links to the lock service.

use std::time::Duration;

use ebla_runtime::Rng;
use ebla_storage::disk::sim::{Fault as DiskFault, Loss};
use ebla_tests::cluster::{Direction, Node};
use ebla_tests::faults::fault::{Action, FaultKind, Leases, Place, RottenFile};
use turmoil::Sim;

use crate::cluster::{SimCluster, SimHost};
use crate::{rot, space, transfers};

/// About how long a message takes on a link that was slow.
const LATENCY: Duration = Duration::from_millis(1);

/// Severity of the faults of a run.
pub(crate) struct Severity {
    /// Lost responses of the lock service, per mille, on a link that was cut once.
    pub(crate) chubby_lost_per_mille: u64,
    /// Loss of unsynced data in a power failure.
    pub(crate) loss: Loss,
    /// Random numbers of that loss.
    pub(crate) rng: Rng,
}

/// The state of the simulation between two steps.
pub(crate) struct Effects<'s, 'a> {
    pub(crate) now: Duration,
    pub(crate) sim: &'s mut Sim<'a>,
    pub(crate) cluster: &'s SimCluster,
    pub(crate) severity: &'s Severity,
}

impl<'s> Effects<'s, '_> {
    pub(crate) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Inject(kind, Place::Node(node)) => self.inject_at_host(kind, node),
            Action::Lift(kind, Place::Node(node)) => self.lift_at_host(kind, node),
            Action::Inject(kind, Place::Link(a, b)) => self.inject_at_link(kind, self.name(a), self.name(b)),
            Action::Lift(kind, Place::Link(a, b)) => self.lift_at_link(kind, self.name(a), self.name(b)),
        }
    }

    fn inject_at_host(&mut self, kind: FaultKind, node: Node) {
        let host = self.cluster.host(node);
        match kind {
            FaultKind::Kill => {
                self.crash(host, "kill");
                host.disk.restart();
            }
            FaultKind::PowerFailure => {
                self.crash(host, "power-cut");
                host.disk.power_cut(self.severity.loss, &self.severity.rng);
            }
            FaultKind::DiskFailure { operations } => host.disk.arm(operations, DiskFault::PowerFails),
            FaultKind::SyncFailure { operations } => {
                host.disk.arm(operations, DiskFault::SyncFails);
                self.count(&host.name, "sync-failure", "");
            }
            FaultKind::StoreFailure => {
                space::set_failing(host, true);
                self.count(&host.name, "store-failure", "");
            }
            FaultKind::FullLockService => {
                host.link.set_full(true);
                self.count(&host.name, "chubby-full", "");
            }
            FaultKind::ClockStep { micros } => {
                host.time.set_off(self.now, micros);
                self.count(&host.name, "clock-step", &micros.to_string());
            }
            FaultKind::ClockRate { ppm } => {
                host.time.set_rate(self.now, ppm.into());
                self.count(&host.name, "clock-rate", &ppm.to_string());
            }
            FaultKind::Suspend(_wall, leases) => {
                host.time.stop(self.now);
                self.cluster.holds.lock().begin();
                for other in self.cluster.host_names.iter().filter(|other| **other != host.name) {
                    self.sim.hold(host.name.as_str(), other.as_str());
                }
                self.cut_off(host, leases);
                self.count(&host.name, "suspend", "");
            }
            FaultKind::FullDisk(left) => {
                space::fill(host, left, self.now);
                self.count(&host.name, "full-disk", &format!("{left:?}"));
            }
            FaultKind::Rot(file) => self.rot(node, file),
            FaultKind::SlowDisk(sync) => {
                host.syncs.slow_down(sync, self.now);
                self.count(&host.name, "slow-disk", &format!("{sync:?}"));
            }
            FaultKind::NoLockService(leases) => {
                self.cut_off(host, leases);
                host.link.set_lost(self.severity.chubby_lost_per_mille);
                self.count(&host.name, "chubby-cut", "");
            }
            _ => unsupported(kind),
        }
    }

    fn lift_at_host(&mut self, kind: FaultKind, node: Node) {
        let host = self.cluster.host(node);
        match kind {
            FaultKind::Kill | FaultKind::PowerFailure => self.sim.bounce(host.name.as_str()),
            FaultKind::Suspend(wall, _leases) => {
                host.time.resume(self.now, wall);
                self.cluster.holds.lock().end(self.now);
                let others = self.cluster.host_names.iter().filter(|other| **other != host.name);
                // The messages of another host that stands still wait for that one.
                for other in others.filter(|other| !self.is_suspended(other)) {
                    self.sim.release(host.name.as_str(), other.as_str());
                }
                host.link.heal();
                self.cluster.note(&host.name, "resume", "");
            }
            FaultKind::FullDisk(_) => {
                space::free(host);
                self.cluster.note(&host.name, "free-disk", "");
            }
            FaultKind::StoreFailure => {
                space::set_failing(host, false);
                self.cluster.note(&host.name, "stores-write", "");
            }
            FaultKind::FullLockService => host.link.set_full(false),
            FaultKind::SlowDisk(_) => {
                host.syncs.speed_up(self.now);
                self.cluster.note(&host.name, "fast-disk", "");
            }
            FaultKind::NoLockService(_) if host.time.is_stopped() => {}
            FaultKind::NoLockService(_) => host.link.heal(),
            _ => unsupported(kind),
        }
    }

    fn rot(&self, node: Node, file: RottenFile) {
        let Node::TabletServer(number) = node else { return unsupported(FaultKind::Rot(file)) };
        if let Some(name) = rot::damage(self.cluster, number, file, &self.severity.rng) {
            let kind = match file {
                RottenFile::Log => "rot-log",
                RottenFile::LogTail => "rot-log-tail",
                RottenFile::Table => "rot-table",
                RottenFile::Registry => "rot-registry",
            };
            self.count(self.name(node), kind, &name);
        }
    }

    /// The host does not reach the lock service.
    fn cut_off(&self, host: &SimHost, leases: Leases) {
        host.link.cut();
        if leases == Leases::Expire
            && let Some(service) = self.cluster.chubby.get()
        {
            host.link.cut_off(service);
        }
    }

    fn inject_at_link(&mut self, kind: FaultKind, a: &str, b: &str) {
        if matches!(kind, FaultKind::Partition(_)) && transfers::is_loaded(self.sim, self.cluster, a, b) {
            self.count("nemesis", "cut-in-message", &format!("{a} {b}"));
        }
        match kind {
            FaultKind::Partition(Direction::Both) => {
                self.sim.partition(a, b);
                self.count("nemesis", "cut", &format!("{a} {b}"));
            }
            FaultKind::Partition(one_way) => {
                let (from, to) = from_to(one_way, a, b);
                self.sim.partition_oneway(from, to);
                self.count("nemesis", "cut-one-way", &format!("{from} {to}"));
            }
            FaultKind::Hold => {
                self.sim.hold(a, b);
                self.cluster.holds.lock().begin();
                self.count("nemesis", "hold", &format!("{a} {b}"));
            }
            FaultKind::Slow(latency) => {
                self.sim.set_link_latency(a, b, latency);
                self.count("nemesis", "slow", &format!("{a} {b} {latency:?}"));
            }
            _ => unsupported(kind),
        }
    }

    fn lift_at_link(&mut self, kind: FaultKind, a: &str, b: &str) {
        match kind {
            FaultKind::Partition(Direction::Both) => self.sim.repair(a, b),
            FaultKind::Partition(one_way) => {
                let (from, to) = from_to(one_way, a, b);
                self.sim.repair_oneway(from, to);
            }
            FaultKind::Hold => {
                self.sim.release(a, b);
                self.cluster.holds.lock().end(self.now);
            }
            FaultKind::Slow(_) => self.sim.set_link_latency(a, b, LATENCY),
            _ => unsupported(kind),
        }
        if self.is_suspended(a) || self.is_suspended(b) {
            self.sim.hold(a, b);
        }
        self.cluster.note("nemesis", "heal", &format!("{a} {b}"));
    }

    /// The storage engine is closed, which leaves in its files what a crash leaves (`ebla_storage::store::GroupStore`).
    fn crash(&mut self, host: &SimHost, kind: &str) {
        self.count(&host.name, kind, "");
        self.sim.crash(host.name.as_str());
    }

    /// Whether the host of this name stands still.
    fn is_suspended(&self, name: &str) -> bool {
        self.cluster
            .nodes()
            .into_iter()
            .map(|node| self.cluster.host(node))
            .any(|host| host.name == name && host.time.is_stopped())
    }

    fn name(&self, node: Node) -> &'s str {
        &self.cluster.host(node).name
    }

    fn count(&self, node: &str, kind: &str, what: &str) {
        self.cluster.trace.lock().count(self.now, node, kind, what);
    }
}

/// Sender and receiver of the lost messages; `one_way` is seen from `a`.
fn from_to<'n>(one_way: Direction, a: &'n str, b: &'n str) -> (&'n str, &'n str) {
    if one_way == Direction::In { (b, a) } else { (a, b) }
}

/// The driver draws only supported faults.
fn unsupported(kind: FaultKind) {
    unreachable!("the simulation has no {kind}");
}
