//! Fault injection: each seed draws its fault rates (swarm testing), and the nemesis injects the faults between two steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebla_runtime::Rng;
use ebla_storage::disk::sim::{Fault, Loss};
use turmoil::Sim;

use crate::cluster::{SimCluster, SimHost, TIMINGS};
use crate::image;

/// Mean time between two faults of each kind; `None`: never.
#[derive(Clone, Debug)]
pub(crate) struct FaultRates {
    crash: Option<Duration>,
    crash_all: Option<Duration>,
    /// A server is down until its replicas have been replaced.
    lose: Option<Duration>,
    master_crash: Option<Duration>,
    cut: Option<Duration>,
    isolate: Option<Duration>,
    lease_race: Option<Duration>,
    slow: Option<Duration>,
    clock: Option<Duration>,
    chubby: Option<Duration>,
    /// Lost responses of the lock service, per mille.
    chubby_lost_per_mille: u64,
    /// Loss of unsynced data in a power failure.
    loss: Loss,
    /// The shortest and longest time that a crashed process stays down.
    down: (Duration, Duration),
}

impl FaultRates {
    /// No faults at all.
    pub(crate) const fn calm() -> Self {
        Self {
            crash: None,
            crash_all: None,
            lose: None,
            master_crash: None,
            cut: None,
            isolate: None,
            lease_race: None,
            slow: None,
            clock: None,
            chubby: None,
            chubby_lost_per_mille: 0,
            loss: Loss::All,
            down: (Duration::from_millis(2), Duration::from_millis(30)),
        }
    }

    /// Restarts of a few milliseconds while links are cut: finds forgotten leases and votes.
    pub(crate) const fn votes() -> Self {
        let (crash, lease_race) = (Some(Duration::from_secs(3)), Some(Duration::from_secs(2)));
        Self { crash, lease_race, ..Self::calm() }
    }

    /// Repeated power failures of all hosts.
    pub(crate) const fn power() -> Self {
        Self { crash_all: Some(Duration::from_secs(4)), crash: Some(Duration::from_secs(2)), ..Self::calm() }
    }

    /// Repeated crashes of all hosts and no other faults: with many writes, some are in progress each time.
    pub(crate) const fn outage() -> Self {
        Self { crash_all: Some(Duration::from_millis(1_500)), ..Self::calm() }
    }

    /// Clocks that jump, and leaders that change.
    pub(crate) const fn clocks() -> Self {
        Self { clock: Some(Duration::from_millis(700)), crash: Some(Duration::from_secs(3)), ..Self::calm() }
    }

    /// Servers that crash while requests are in progress.
    pub(crate) const fn kills() -> Self {
        Self { crash: Some(Duration::from_secs(1)), ..Self::calm() }
    }

    /// Links that are cut while requests are in progress.
    pub(crate) const fn parts() -> Self {
        let (cut, isolate) = (Some(Duration::from_millis(700)), Some(Duration::from_secs(3)));
        Self { cut, isolate, ..Self::calm() }
    }

    /// Isolated servers that clients still reach.
    pub(crate) const fn alone() -> Self {
        Self { isolate: Some(Duration::from_secs(5)), ..Self::calm() }
    }

    /// Random faults.
    pub(crate) fn draw(rng: &Rng) -> Self {
        let often = |chance: u64, from_ms: u64, to_ms: u64| {
            (rng.below(100) < chance).then(|| Duration::from_millis(from_ms + rng.below(to_ms - from_ms)))
        };
        let ranges = [(2, 30), (300, 3_000), (2_000, 30_000), (2, 3_000)];
        let (from, to) = ranges[index(rng, ranges.len())];
        let losses = [Loss::All, Loss::Some, Loss::Garbage, Loss::Nothing];
        Self {
            crash: often(75, 1_500, 10_000),
            crash_all: often(25, 10_000, 30_000),
            lose: None,
            master_crash: often(40, 5_000, 20_000),
            cut: often(60, 2_000, 10_000),
            isolate: often(50, 4_000, 15_000),
            lease_race: often(30, 4_000, 15_000),
            slow: often(40, 3_000, 10_000),
            clock: often(40, 2_000, 10_000),
            chubby: often(40, 4_000, 15_000),
            chubby_lost_per_mille: if rng.below(100) < 30 { rng.below(100) } else { 0 },
            loss: losses[index(rng, losses.len())],
            down: (Duration::from_millis(from), Duration::from_millis(to)),
        }
    }

    /// The same with servers that are replaced.
    pub(crate) fn with_losses(self, rng: &Rng) -> Self {
        Self { lose: Some(Duration::from_millis(4_000 + rng.below(6_000))), ..self }
    }

    fn mean(&self, kind: FaultKind) -> Option<Duration> {
        match kind {
            FaultKind::Crash => self.crash,
            FaultKind::CrashAll => self.crash_all,
            FaultKind::Lose => self.lose,
            FaultKind::MasterCrash => self.master_crash,
            FaultKind::Cut => self.cut,
            FaultKind::Isolate => self.isolate,
            FaultKind::LeaseRace => self.lease_race,
            FaultKind::Slow => self.slow,
            FaultKind::Clock => self.clock,
            FaultKind::Chubby => self.chubby,
        }
    }
}

/// The servers that lead some tablet.
fn leaders(cluster: &SimCluster) -> Vec<&SimHost> {
    let leads = |host: &&SimHost| {
        let hosted = host.hosted();
        hosted.is_some_and(|hosted| hosted.tablets().iter().any(|tablet| tablet.group().leadership().is_some()))
    };
    cluster.servers.iter().filter(leads).collect()
}

fn index(rng: &Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).unwrap()
}

/// A kind of recurring fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultKind {
    Crash,
    CrashAll,
    Lose,
    MasterCrash,
    Cut,
    Isolate,
    LeaseRace,
    Slow,
    Clock,
    Chubby,
}

const KINDS: [FaultKind; 10] = [
    FaultKind::Crash,
    FaultKind::CrashAll,
    FaultKind::Lose,
    FaultKind::MasterCrash,
    FaultKind::Cut,
    FaultKind::Isolate,
    FaultKind::LeaseRace,
    FaultKind::Slow,
    FaultKind::Clock,
    FaultKind::Chubby,
];

/// A scheduled event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next fault of this kind.
    Inject(FaultKind),
    /// The process is killed; in a power failure the host too.
    Crash(String),
    Start(String),
    /// Messages between the two are lost for this time.
    Cut(String, String, Duration),
    Heal(String, String),
    Quicken(String, String),
    Reconnect(String),
}

/// Kinds of link failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutKind {
    /// What is sent is lost, both ways.
    Both,
    /// What the first sends is lost.
    OneWay,
    /// What is sent waits and arrives when the link is healed.
    Hold,
}

/// Injects the faults.
pub(crate) struct Nemesis {
    fault_rates: FaultRates,
    rng: Rng,
    due: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    next: u64,
    cuts: BTreeMap<(String, String), CutKind>,
    /// Hosts that are down.
    down: BTreeMap<String, ()>,
    /// No new faults.
    over: bool,
}

/// About how long a message takes on a link that is not slow.
const LATENCY: Duration = Duration::from_millis(1);
/// A host that is partitioned from the lock service for longer than this loses its leases.
const LEASES_ENDURE: Duration = Duration::from_secs(3);

impl Nemesis {
    pub(crate) fn new(fault_rates: FaultRates, rng: Rng, from: Duration) -> Self {
        let mut nemesis = Self {
            fault_rates,
            rng,
            due: BinaryHeap::new(),
            next: 0,
            cuts: BTreeMap::new(),
            down: BTreeMap::new(),
            over: false,
        };
        for kind in KINDS {
            nemesis.schedule(from, kind);
        }
        nemesis
    }

    fn at(&mut self, when: Duration, act: Event) {
        self.next += 1;
        self.due.push(Reverse((when, self.next, act)));
    }

    fn schedule(&mut self, now: Duration, kind: FaultKind) {
        if let Some(mean) = self.fault_rates.mean(kind) {
            let wait = self.rng.jitter(mean);
            self.at(now + wait, Event::Inject(kind));
        }
    }

    fn between(&self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from((to.saturating_sub(from)).as_micros()).unwrap();
        from + Duration::from_micros(self.rng.below(span.max(1)))
    }

    /// Runs the due events. `now`: time since the start of the simulation.
    pub(crate) fn act(&mut self, now: Duration, sim: &mut Sim<'_>, cluster: &SimCluster) {
        for (name, host) in cluster.hosts() {
            if host.failed.swap(false, Ordering::Relaxed) && !self.down.contains_key(name) {
                self.crash(now, sim, cluster, host, Power::Stays);
                self.at(now + Duration::from_millis(500), Event::Start(name.to_owned()));
            }
        }
        while self.due.peek().is_some_and(|Reverse((when, _, _))| *when <= now) {
            let Some(Reverse((_, _, act))) = self.due.pop() else { return };
            match act {
                Event::Inject(_) if self.over => {}
                Event::Inject(kind) => {
                    self.inject(now, kind, sim, cluster);
                    self.schedule(now, kind);
                }
                Event::Crash(name) => {
                    let host = cluster.hosts()[name.as_str()];
                    self.crash(now, sim, cluster, host, Power::Goes);
                }
                Event::Start(name) => self.start(sim, &name),
                Event::Cut(..) if self.over => {}
                Event::Cut(a, b, long) => self.cut(now, sim, cluster, (&a, &b), CutKind::Both, long),
                Event::Heal(a, b) => self.heal(sim, cluster, &a, &b),
                Event::Quicken(a, b) => sim.set_link_latency(a.as_str(), b.as_str(), LATENCY),
                Event::Reconnect(name) => cluster.hosts()[name.as_str()].link.heal(),
            }
        }
    }

    fn inject(&mut self, now: Duration, kind: FaultKind, sim: &mut Sim<'_>, cluster: &SimCluster) {
        match kind {
            FaultKind::Crash => {
                let host = &cluster.servers[index(&self.rng, cluster.servers.len())];
                self.crash_for_a_while(now, sim, cluster, host);
            }
            FaultKind::CrashAll => {
                cluster.trace.lock().count(now, "nemesis", "crash-all", "");
                for host in &cluster.servers {
                    self.crash_for_a_while(now, sim, cluster, host);
                }
            }
            FaultKind::Lose => {
                let host = &cluster.servers[index(&self.rng, cluster.servers.len())];
                let Some(given_up) = cluster.failure_timeouts.end() else { return };
                if !self.down.contains_key(&host.name) {
                    cluster.trace.lock().count(now, "nemesis", "lose", &host.name);
                    self.crash(now, sim, cluster, host, Power::Stays);
                    let back = self.between(given_up, given_up + Duration::from_secs(8));
                    self.at(now + back, Event::Start(host.name.clone()));
                }
            }
            FaultKind::MasterCrash => {
                let host = &cluster.masters[index(&self.rng, cluster.masters.len())];
                self.crash_for_a_while(now, sim, cluster, host);
            }
            FaultKind::Cut => self.cut_one(now, sim, cluster),
            FaultKind::Isolate => self.isolate(now, sim, cluster),
            FaultKind::LeaseRace => self.lease_race(now, sim, cluster),
            FaultKind::Slow => self.slow(now, sim, cluster),
            FaultKind::Clock => self.step_clock(now, cluster),
            FaultKind::Chubby => self.cut_chubby(now, cluster),
        }
    }

    fn crash_for_a_while(&mut self, now: Duration, sim: &mut Sim<'_>, cluster: &SimCluster, host: &SimHost) {
        if self.down.contains_key(&host.name) {
            return;
        }
        let down = self.between(self.fault_rates.down.0, self.fault_rates.down.1);
        let power = if self.rng.below(2) == 0 { Power::Goes } else { Power::Stays };
        if power == Power::Goes && self.rng.below(2) == 0 {
            // In the middle of disk operations, some operations from now.
            host.disk.arm(1 + self.rng.below(20), Fault::PowerFails);
            let soon = Duration::from_millis(self.rng.below(30));
            self.at(now + soon, Event::Crash(host.name.clone()));
            self.at(now + soon + down, Event::Start(host.name.clone()));
            return;
        }
        self.crash(now, sim, cluster, host, power);
        self.at(now + down, Event::Start(host.name.clone()));
    }

    fn crash(&mut self, now: Duration, sim: &mut Sim<'_>, cluster: &SimCluster, host: &SimHost, power: Power) {
        if self.down.insert(host.name.clone(), ()).is_some() {
            return;
        }
        let kind = match power {
            Power::Goes => "power-cut",
            Power::Stays => "kill",
        };
        cluster.trace.lock().count(now, &host.name, kind, "");
        // The engine flushes when it is closed, and a crashed process does not: the folder is put back as it was before that.
        // (If the folder were removed instead, the engine would wait a second in each store for the disk.)
        let image = host.folder.with_extension("image");
        if host.folder.exists() {
            image::take(&host.folder, &image);
        }
        sim.crash(host.name.as_str());
        if image.exists() {
            std::fs::remove_dir_all(&host.folder).unwrap();
            std::fs::rename(&image, &host.folder).unwrap();
        }
        match power {
            Power::Goes => host.disk.power_cut(self.fault_rates.loss, &self.rng),
            Power::Stays => host.disk.restart(),
        }
    }

    fn start(&mut self, sim: &mut Sim<'_>, name: &str) {
        if self.down.remove(name).is_some() {
            sim.bounce(name);
        }
    }

    fn cut_one(&mut self, now: Duration, sim: &Sim<'_>, cluster: &SimCluster) {
        let names: Vec<String> = cluster.hosts().keys().map(|name| (*name).to_owned()).collect();
        let (a, b) = (&names[index(&self.rng, names.len())], &names[index(&self.rng, names.len())]);
        let kind = [CutKind::Both, CutKind::OneWay, CutKind::Hold][index(&self.rng, 3)];
        let long = self.between(Duration::from_millis(100), Duration::from_secs(8));
        self.cut(now, sim, cluster, (a.as_str(), b.as_str()), kind, long);
    }

    /// Isolates one server from all other servers, half of the time a leader; masters and clients may still reach it.
    fn isolate(&mut self, now: Duration, sim: &Sim<'_>, cluster: &SimCluster) {
        let leaders = leaders(cluster);
        let alone = match self.rng.below(2) {
            0 if !leaders.is_empty() => &leaders[index(&self.rng, leaders.len())].name,
            _ => &cluster.servers[index(&self.rng, cluster.servers.len())].name,
        };
        let kind = [CutKind::Both, CutKind::OneWay, CutKind::Hold][index(&self.rng, 3)];
        let outward = self.rng.below(2) == 0;
        let long = self.between(Duration::from_millis(300), Duration::from_secs(8));
        for other in cluster.servers.iter().map(|host| &host.name).filter(|name| *name != alone) {
            let pair = if outward { (alone.as_str(), other.as_str()) } else { (other.as_str(), alone.as_str()) };
            self.cut(now, sim, cluster, pair, kind, long);
        }
    }

    /// Partitions a leader from one follower for longer than its lease, and then from the other one, which restarts at this
    /// moment. If that one forgets its lease, the two followers elect a leader while the first leader still reads by its lease.
    fn lease_race(&mut self, now: Duration, sim: &Sim<'_>, cluster: &SimCluster) {
        let leaders = leaders(cluster);
        if leaders.is_empty() {
            return;
        }
        let leader = &leaders[index(&self.rng, leaders.len())].name;
        let others: Vec<&String> =
            cluster.servers.iter().map(|host| &host.name).filter(|name| *name != leader).collect();
        let first = index(&self.rng, others.len());
        let (lost, restarts) = (others[first], others[(first + 1) % others.len()]);
        let (alone, both) = (TIMINGS.election_max * 5 / 4, TIMINGS.election_max * 3 / 2);
        self.cut(now, sim, cluster, (leader, lost), CutKind::Both, alone + both);
        self.at(now + alone, Event::Cut(leader.clone(), restarts.clone(), both));
        self.at(now + alone, Event::Crash(restarts.clone()));
        let down = self.between(Duration::from_millis(2), Duration::from_millis(30));
        self.at(now + alone + down, Event::Start(restarts.clone()));
    }

    fn cut(
        &mut self,
        now: Duration,
        sim: &Sim<'_>,
        cluster: &SimCluster,
        pair: (&str, &str),
        kind: CutKind,
        long: Duration,
    ) {
        let key = (pair.0.to_owned(), pair.1.to_owned());
        let is_cut = self.cuts.contains_key(&key) || self.cuts.contains_key(&(key.1.clone(), key.0.clone()));
        if pair.0 == pair.1 || is_cut {
            return;
        }
        match kind {
            CutKind::Both => sim.partition(pair.0, pair.1),
            CutKind::OneWay => sim.partition_oneway(pair.0, pair.1),
            CutKind::Hold => sim.hold(pair.0, pair.1),
        }
        let name = match kind {
            CutKind::Both => "cut",
            CutKind::OneWay => "cut-one-way",
            CutKind::Hold => "hold",
        };
        cluster.trace.lock().count(now, "nemesis", name, &format!("{} {}", pair.0, pair.1));
        self.cuts.insert(key, kind);
        self.at(now + long, Event::Heal(pair.0.to_owned(), pair.1.to_owned()));
    }

    fn heal(&mut self, sim: &Sim<'_>, cluster: &SimCluster, a: &str, b: &str) {
        let Some(kind) = self.cuts.remove(&(a.to_owned(), b.to_owned())) else { return };
        match kind {
            CutKind::Both => sim.repair(a, b),
            CutKind::OneWay => sim.repair_oneway(a, b),
            CutKind::Hold => sim.release(a, b),
        }
        cluster.note("nemesis", "heal", &format!("{a} {b}"));
    }

    fn slow(&mut self, now: Duration, sim: &Sim<'_>, cluster: &SimCluster) {
        let names: Vec<String> = cluster.hosts().keys().map(|name| (*name).to_owned()).collect();
        let (a, b) = (names[index(&self.rng, names.len())].clone(), names[index(&self.rng, names.len())].clone());
        if a == b {
            return;
        }
        let latency = self.between(Duration::from_millis(10), Duration::from_millis(300));
        let long = self.between(Duration::from_secs(1), Duration::from_secs(6));
        sim.set_link_latency(a.as_str(), b.as_str(), latency);
        cluster.trace.lock().count(now, "nemesis", "slow", &format!("{a} {b} {latency:?}"));
        self.at(now + long, Event::Quicken(a, b));
    }

    fn step_clock(&self, now: Duration, cluster: &SimCluster) {
        let host = &cluster.servers[index(&self.rng, cluster.servers.len())];
        let span = [100_000, 5_000_000, 3_600_000_000_i64][index(&self.rng, 3)];
        let far = i64::try_from(self.rng.below(span.unsigned_abs() * 2)).unwrap() - span;
        host.time.set_off(far);
        cluster.trace.lock().count(now, &host.name, "clock-step", &far.to_string());
    }

    fn cut_chubby(&mut self, now: Duration, cluster: &SimCluster) {
        let hosts: Vec<&SimHost> = cluster.hosts().into_values().collect();
        let host = hosts[index(&self.rng, hosts.len())];
        let long = self.between(Duration::from_millis(200), Duration::from_secs(15));
        host.link.cut();
        host.link.set_lost(self.fault_rates.chubby_lost_per_mille);
        if long > LEASES_ENDURE
            && let Some(service) = cluster.chubby.get()
        {
            host.link.cut_off(service);
        }
        cluster.trace.lock().count(now, &host.name, "chubby-cut", "");
        self.at(now + long, Event::Reconnect(host.name.clone()));
    }

    /// Ends all faults and starts all processes; clocks stay as they are. No new faults afterwards.
    pub(crate) fn end_faults(&mut self, sim: &mut Sim<'_>, cluster: &SimCluster) {
        self.over = true;
        let cuts: Vec<_> = self.cuts.keys().cloned().collect();
        for (a, b) in cuts {
            self.heal(sim, cluster, &a, &b);
        }
        let hosts = cluster.hosts();
        for (name, host) in &hosts {
            host.link.heal();
            host.link.set_lost(0);
            for other in hosts.keys().filter(|other| *other != name) {
                sim.set_link_latency(*name, *other, LATENCY);
            }
        }
        let down: Vec<String> = self.down.keys().cloned().collect();
        for name in down {
            self.start(sim, &name);
        }
        cluster.note("nemesis", "relents", "");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    Goes,
    Stays,
}
