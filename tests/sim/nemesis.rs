//! Injects faults between two steps of the simulation: [`Driver`] decides which, [`Effects`] carries them out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ebla_runtime::Rng;
use ebla_tests::cluster::Node;
use ebla_tests::faults::driver::{Driver, Step};
use ebla_tests::faults::fault::{Action, Fault, FaultKind, Target};
use ebla_tests::faults::rates::Recurring;
use ebla_tests::faults::view::View;
use turmoil::Sim;

use crate::beside;
use crate::cluster::SimCluster;
use crate::effects::{Effects, Severity};
use crate::rates::FaultRates;
use crate::transfers::TransferCuts;

/// Time until the restart of a process that ended by an error.
const RESTART_AFTER: Duration = Duration::from_millis(500);

/// Time from the beginning of the load until all clocks leap.
const LEAP_AFTER: Duration = Duration::from_secs(3);
/// How long they are wrong: no server finds out in that time.
const LEAP_LASTS: Duration = Duration::from_secs(1);
/// By how much they are ahead.
const LEAP_MICROS: i64 = 3_600_000_000;

/// Injects the faults.
pub(crate) struct Nemesis {
    driver: Driver,
    severity: Severity,
    transfer_cuts: Option<TransferCuts>,
}

impl Nemesis {
    /// `from`: the time since the start of the simulation, as in the other methods.
    pub(crate) fn new(fault_rates: FaultRates, rng: Rng, from: Duration) -> Self {
        let FaultRates { rates, chubby_lost_per_mille, loss, transfer_cuts } = fault_rates;
        let severity = Severity { chubby_lost_per_mille, loss, rng: rng.fork() };
        let transfer_cuts = transfer_cuts.map(|mean| TransferCuts::new(mean, rng.fork(), from));
        Self { driver: Driver::with_rates(rates, rng, from), severity, transfer_cuts }
    }

    /// Plans that the wall clocks of all servers leap ahead soon, and back.
    pub(crate) fn leap_clocks(&mut self, now: Duration, servers: usize) {
        for (at, micros) in [(now + LEAP_AFTER, LEAP_MICROS), (now + LEAP_AFTER + LEAP_LASTS, 0)] {
            for server in (0..servers).map(Node::TabletServer) {
                self.driver.plan(at, Fault::new(FaultKind::ClockStep { micros }, Target::Node(server), Duration::ZERO));
            }
        }
    }

    /// Carries out what is due.
    pub(crate) fn act(&mut self, now: Duration, sim: &mut Sim<'_>, cluster: &SimCluster) {
        self.restart_failed(now, cluster);
        if let Some(fault) = cluster.step_watch.as_ref().and_then(|watch| watch.due(cluster)) {
            self.driver.plan(now, fault);
        }
        if let Some(fault) = cluster.rollout.as_ref().and_then(|rollout| rollout.due(cluster, now)) {
            self.driver.plan(now, fault);
        }
        for fault in beside::due(cluster) {
            self.driver.plan(now, fault);
        }
        if let Some(fault) = self.transfer_cuts.as_mut().and_then(|cuts| cuts.due(now, sim, cluster)) {
            self.driver.plan(now, fault);
        }
        while self.driver.next_at().is_some_and(|due| due <= now) {
            match self.driver.step(now, &view(cluster)) {
                Some(Step::Drawn(kind)) => count(now, kind, cluster),
                Some(Step::Actions(actions)) => self.carry_out(&actions, now, sim, cluster),
                None => {}
            }
        }
    }

    /// Ends all faults and starts all processes; wall clocks stay as they are, and all run evenly. No new faults afterwards.
    pub(crate) fn end_faults(&mut self, sim: &mut Sim<'_>, cluster: &SimCluster) {
        self.transfer_cuts = None;
        let actions = self.driver.end_all();
        self.carry_out(&actions, sim.elapsed(), sim, cluster);
        for node in cluster.nodes() {
            let host = cluster.host(node);
            host.link.set_lost(0);
            host.time.set_rate(sim.elapsed(), 0);
            // The power cut that follows the failure of a disk was cancelled with the others.
            if host.disk.loses_power() {
                self.driver.plan(sim.elapsed(), Fault::new(FaultKind::PowerFailure, Target::Node(node), RESTART_AFTER));
            } else {
                host.disk.disarm();
            }
        }
        cluster.note("nemesis", "relents", "");
    }

    /// A process that ended by an error is started again.
    fn restart_failed(&mut self, now: Duration, cluster: &SimCluster) {
        // Each simulated millisecond: nothing is allocated unless there is one.
        if !cluster.has_failed_host() {
            return;
        }
        for node in cluster.nodes() {
            if cluster.host(node).failed.swap(false, Ordering::Relaxed) {
                self.driver.plan(now, Fault::new(FaultKind::Kill, Target::Node(node), RESTART_AFTER));
            }
        }
    }

    fn carry_out(&self, actions: &[Action], now: Duration, sim: &mut Sim<'_>, cluster: &SimCluster) {
        let mut effects = Effects { now, sim, cluster, severity: &self.severity };
        for action in actions {
            effects.carry_out(*action);
        }
    }
}

/// The hosts, and the servers that lead some tablet.
fn view(cluster: &SimCluster) -> View {
    let leads = |node: &Node| {
        let hosted = cluster.host(*node).hosted();
        hosted.is_some_and(|hosted| hosted.groups().iter().any(|group| group.is_leader()))
    };
    let nodes = cluster.nodes();
    let leaders = nodes.iter().copied().filter(leads).collect();
    View { nodes, leaders, ..View::default() }
}

/// Faults of several hosts, and the loss of one, are counted in addition to their crashes.
fn count(now: Duration, kind: Recurring, cluster: &SimCluster) {
    let name = match kind {
        Recurring::CrashAll => "crash-all",
        Recurring::Lose => "lose",
        _ => return,
    };
    cluster.trace.lock().count(now, "nemesis", name, "");
}
