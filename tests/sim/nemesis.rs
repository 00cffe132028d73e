//! The swarm: each seed draws which faults it has and how often, and the nemesis carries them out between two steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebla_runtime::Rng;
use ebla_storage::disk::sim::{Fault, Loss};
use turmoil::Sim;

use crate::image;
use crate::world::{Machine, TIMINGS, World, held};

/// How often each fault comes, as the mean time between two; absent: never in this run.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    crash: Option<Duration>,
    crash_all: Option<Duration>,
    /// A server is gone until others have taken its place.
    lose: Option<Duration>,
    master_crash: Option<Duration>,
    cut: Option<Duration>,
    isolate: Option<Duration>,
    betray: Option<Duration>,
    slow: Option<Duration>,
    clock: Option<Duration>,
    chubby: Option<Duration>,
    /// Answers of the lock service that are lost, of a thousand.
    chubby_lost_per_mille: u64,
    /// What a power cut does to what was not synced.
    loss: Loss,
    /// The shortest and longest time that a crashed process stays down.
    down: (Duration, Duration),
}

impl Swarm {
    /// No faults at all.
    pub(crate) const fn calm() -> Self {
        Self {
            crash: None,
            crash_all: None,
            lose: None,
            master_crash: None,
            cut: None,
            isolate: None,
            betray: None,
            slow: None,
            clock: None,
            chubby: None,
            chubby_lost_per_mille: 0,
            loss: Loss::All,
            down: (Duration::from_millis(2), Duration::from_millis(30)),
        }
    }

    /// Restarts of a few milliseconds while links are cut: what a forgotten promise or vote needs to be noticed.
    pub(crate) const fn votes() -> Self {
        let (crash, betray) = (Some(Duration::from_secs(3)), Some(Duration::from_secs(2)));
        Self { crash, betray, ..Self::calm() }
    }

    /// All machines lose their power at once, again and again.
    pub(crate) const fn power() -> Self {
        Self { crash_all: Some(Duration::from_secs(4)), crash: Some(Duration::from_secs(2)), ..Self::calm() }
    }

    /// All machines at once, again and again, and nothing between: who writes much has something under way each time.
    pub(crate) const fn outage() -> Self {
        Self { crash_all: Some(Duration::from_millis(1_500)), ..Self::calm() }
    }

    /// Clocks that jump, and leaders that change.
    pub(crate) const fn clocks() -> Self {
        Self { clock: Some(Duration::from_millis(700)), crash: Some(Duration::from_secs(3)), ..Self::calm() }
    }

    /// Servers that die while requests are on their way.
    pub(crate) const fn kills() -> Self {
        Self { crash: Some(Duration::from_secs(1)), ..Self::calm() }
    }

    /// Links that are cut while requests are on their way.
    pub(crate) const fn parts() -> Self {
        let (cut, isolate) = (Some(Duration::from_millis(700)), Some(Duration::from_secs(3)));
        Self { cut, isolate, ..Self::calm() }
    }

    /// Servers that are alone, and whom clients still reach.
    pub(crate) const fn alone() -> Self {
        Self { isolate: Some(Duration::from_secs(5)), ..Self::calm() }
    }

    /// Faults by chance.
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
            betray: often(30, 4_000, 15_000),
            slow: often(40, 3_000, 10_000),
            clock: often(40, 2_000, 10_000),
            chubby: often(40, 4_000, 15_000),
            chubby_lost_per_mille: if rng.below(100) < 30 { rng.below(100) } else { 0 },
            loss: losses[index(rng, losses.len())],
            down: (Duration::from_millis(from), Duration::from_millis(to)),
        }
    }

    /// The same, and servers that are given up.
    pub(crate) fn with_losses(self, rng: &Rng) -> Self {
        Self { lose: Some(Duration::from_millis(4_000 + rng.below(6_000))), ..self }
    }

    fn mean(&self, kind: Kind) -> Option<Duration> {
        match kind {
            Kind::Crash => self.crash,
            Kind::CrashAll => self.crash_all,
            Kind::Lose => self.lose,
            Kind::MasterCrash => self.master_crash,
            Kind::Cut => self.cut,
            Kind::Isolate => self.isolate,
            Kind::Betray => self.betray,
            Kind::Slow => self.slow,
            Kind::Clock => self.clock,
            Kind::Chubby => self.chubby,
        }
    }
}

/// The servers that lead some tablet.
fn leaders(world: &World) -> Vec<&Machine> {
    let leads = |machine: &&Machine| {
        let hosted = machine.hosted();
        hosted.is_some_and(|hosted| hosted.tablets().iter().any(|tablet| tablet.group().leadership().is_some()))
    };
    world.servers.iter().filter(leads).collect()
}

fn index(rng: &Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).unwrap()
}

/// A fault that comes again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Crash,
    CrashAll,
    Lose,
    MasterCrash,
    Cut,
    Isolate,
    Betray,
    Slow,
    Clock,
    Chubby,
}

const KINDS: [Kind; 10] = [
    Kind::Crash,
    Kind::CrashAll,
    Kind::Lose,
    Kind::MasterCrash,
    Kind::Cut,
    Kind::Isolate,
    Kind::Betray,
    Kind::Slow,
    Kind::Clock,
    Kind::Chubby,
];

/// Something to do at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    /// The next fault of this kind.
    Strike(Kind),
    /// The process ends; the machine too, when its power goes.
    Crash(String),
    Start(String),
    /// What is sent between the two is lost for so long.
    Cut(String, String, Duration),
    Heal(String, String),
    Quicken(String, String),
    Reconnect(String),
}

/// How a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutKind {
    /// What is sent is lost, both ways.
    Both,
    /// What the first sends is lost.
    OneWay,
    /// What is sent waits and arrives when the link is healed.
    Hold,
}

/// Carries the faults out.
pub(crate) struct Nemesis {
    swarm: Swarm,
    rng: Rng,
    due: BinaryHeap<Reverse<(Duration, u64, Act)>>,
    next: u64,
    cuts: BTreeMap<(String, String), CutKind>,
    /// Who is down.
    down: BTreeMap<String, ()>,
    /// No new faults.
    over: bool,
}

/// About how long a message takes on a link that is not slow.
const LATENCY: Duration = Duration::from_millis(1);
/// A host that is cut off from the lock service for longer than this loses its leases.
const LEASES_ENDURE: Duration = Duration::from_secs(3);

impl Nemesis {
    pub(crate) fn new(swarm: Swarm, rng: Rng, from: Duration) -> Self {
        let mut nemesis = Self {
            swarm,
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

    fn at(&mut self, when: Duration, act: Act) {
        self.next += 1;
        self.due.push(Reverse((when, self.next, act)));
    }

    fn schedule(&mut self, now: Duration, kind: Kind) {
        if let Some(mean) = self.swarm.mean(kind) {
            let wait = self.rng.jitter(mean);
            self.at(now + wait, Act::Strike(kind));
        }
    }

    fn between(&self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from((to.saturating_sub(from)).as_micros()).unwrap();
        from + Duration::from_micros(self.rng.below(span.max(1)))
    }

    /// Does what is due. `now`: how long the simulation has run.
    pub(crate) fn act(&mut self, now: Duration, sim: &mut Sim<'_>, world: &World) {
        for (name, machine) in world.machines() {
            if machine.failed.swap(false, Ordering::Relaxed) && !self.down.contains_key(name) {
                self.crash(now, sim, world, machine, Power::Stays);
                self.at(now + Duration::from_millis(500), Act::Start(name.to_owned()));
            }
        }
        while self.due.peek().is_some_and(|Reverse((when, _, _))| *when <= now) {
            let Some(Reverse((_, _, act))) = self.due.pop() else { return };
            match act {
                Act::Strike(_) if self.over => {}
                Act::Strike(kind) => {
                    self.strike(now, kind, sim, world);
                    self.schedule(now, kind);
                }
                Act::Crash(name) => {
                    let machine = world.machines()[name.as_str()];
                    self.crash(now, sim, world, machine, Power::Goes);
                }
                Act::Start(name) => self.start(sim, &name),
                Act::Cut(..) if self.over => {}
                Act::Cut(a, b, long) => self.cut(now, sim, world, (&a, &b), CutKind::Both, long),
                Act::Heal(a, b) => self.heal(sim, world, &a, &b),
                Act::Quicken(a, b) => sim.set_link_latency(a.as_str(), b.as_str(), LATENCY),
                Act::Reconnect(name) => world.machines()[name.as_str()].link.set_cut(false),
            }
        }
    }

    fn strike(&mut self, now: Duration, kind: Kind, sim: &mut Sim<'_>, world: &World) {
        match kind {
            Kind::Crash => {
                let machine = &world.servers[index(&self.rng, world.servers.len())];
                self.crash_for_a_while(now, sim, world, machine);
            }
            Kind::CrashAll => {
                held(&world.trace).count(now, "nemesis", "crash-all", "");
                for machine in &world.servers {
                    self.crash_for_a_while(now, sim, world, machine);
                }
            }
            Kind::Lose => {
                let machine = &world.servers[index(&self.rng, world.servers.len())];
                let Some(given_up) = world.patience.end() else { return };
                if !self.down.contains_key(&machine.name) {
                    held(&world.trace).count(now, "nemesis", "lose", &machine.name);
                    self.crash(now, sim, world, machine, Power::Stays);
                    let back = self.between(given_up, given_up + Duration::from_secs(8));
                    self.at(now + back, Act::Start(machine.name.clone()));
                }
            }
            Kind::MasterCrash => {
                let machine = &world.masters[index(&self.rng, world.masters.len())];
                self.crash_for_a_while(now, sim, world, machine);
            }
            Kind::Cut => self.cut_one(now, sim, world),
            Kind::Isolate => self.isolate(now, sim, world),
            Kind::Betray => self.betray(now, sim, world),
            Kind::Slow => self.slow(now, sim, world),
            Kind::Clock => self.step_clock(now, world),
            Kind::Chubby => self.cut_chubby(now, world),
        }
    }

    fn crash_for_a_while(&mut self, now: Duration, sim: &mut Sim<'_>, world: &World, machine: &Machine) {
        if self.down.contains_key(&machine.name) {
            return;
        }
        let down = self.between(self.swarm.down.0, self.swarm.down.1);
        let power = if self.rng.below(2) == 0 { Power::Goes } else { Power::Stays };
        if power == Power::Goes && self.rng.below(2) == 0 {
            // In the middle of what the disk is doing, some operations from now.
            machine.disk.arm(1 + self.rng.below(20), Fault::PowerFails);
            let soon = Duration::from_millis(self.rng.below(30));
            self.at(now + soon, Act::Crash(machine.name.clone()));
            self.at(now + soon + down, Act::Start(machine.name.clone()));
            return;
        }
        self.crash(now, sim, world, machine, power);
        self.at(now + down, Act::Start(machine.name.clone()));
    }

    fn crash(&mut self, now: Duration, sim: &mut Sim<'_>, world: &World, machine: &Machine, power: Power) {
        if self.down.insert(machine.name.clone(), ()).is_some() {
            return;
        }
        let kind = match power {
            Power::Goes => "power-cut",
            Power::Stays => "kill",
        };
        held(&world.trace).count(now, &machine.name, kind, "");
        // The engine flushes when it is closed, and a crashed process does not: the folder is put back as it was before that.
        // (Taken away instead, the engine would wait a second in each store for a disk that may come back.)
        let image = machine.folder.with_extension("image");
        if machine.folder.exists() {
            image::take(&machine.folder, &image);
        }
        sim.crash(machine.name.as_str());
        if image.exists() {
            std::fs::remove_dir_all(&machine.folder).unwrap();
            std::fs::rename(&image, &machine.folder).unwrap();
        }
        match power {
            Power::Goes => machine.disk.power_cut(self.swarm.loss, &self.rng),
            Power::Stays => machine.disk.restart(),
        }
    }

    fn start(&mut self, sim: &mut Sim<'_>, name: &str) {
        if self.down.remove(name).is_some() {
            sim.bounce(name);
        }
    }

    fn cut_one(&mut self, now: Duration, sim: &Sim<'_>, world: &World) {
        let names: Vec<String> = world.machines().keys().map(|name| (*name).to_owned()).collect();
        let (a, b) = (&names[index(&self.rng, names.len())], &names[index(&self.rng, names.len())]);
        let kind = [CutKind::Both, CutKind::OneWay, CutKind::Hold][index(&self.rng, 3)];
        let long = self.between(Duration::from_millis(100), Duration::from_secs(8));
        self.cut(now, sim, world, (a.as_str(), b.as_str()), kind, long);
    }

    /// Parts one server from all other servers, half of the time one that leads; masters and clients may still reach it.
    fn isolate(&mut self, now: Duration, sim: &Sim<'_>, world: &World) {
        let leaders = leaders(world);
        let alone = match self.rng.below(2) {
            0 if !leaders.is_empty() => &leaders[index(&self.rng, leaders.len())].name,
            _ => &world.servers[index(&self.rng, world.servers.len())].name,
        };
        let kind = [CutKind::Both, CutKind::OneWay, CutKind::Hold][index(&self.rng, 3)];
        let outward = self.rng.below(2) == 0;
        let long = self.between(Duration::from_millis(300), Duration::from_secs(8));
        for other in world.servers.iter().map(|machine| &machine.name).filter(|name| *name != alone) {
            let pair = if outward { (alone.as_str(), other.as_str()) } else { (other.as_str(), alone.as_str()) };
            self.cut(now, sim, world, pair, kind, long);
        }
    }

    /// A leader loses one follower for longer than that one's promise, and then the other, which restarts at this moment. If
    /// it has forgotten its own promise, the two elect a leader while the first still reads by its lease.
    fn betray(&mut self, now: Duration, sim: &Sim<'_>, world: &World) {
        let leaders = leaders(world);
        if leaders.is_empty() {
            return;
        }
        let leader = &leaders[index(&self.rng, leaders.len())].name;
        let others: Vec<&String> =
            world.servers.iter().map(|machine| &machine.name).filter(|name| *name != leader).collect();
        let first = index(&self.rng, others.len());
        let (lost, restarts) = (others[first], others[(first + 1) % others.len()]);
        let (alone, both) = (TIMINGS.election_max * 5 / 4, TIMINGS.election_max * 3 / 2);
        self.cut(now, sim, world, (leader, lost), CutKind::Both, alone + both);
        self.at(now + alone, Act::Cut(leader.clone(), restarts.clone(), both));
        self.at(now + alone, Act::Crash(restarts.clone()));
        let down = self.between(Duration::from_millis(2), Duration::from_millis(30));
        self.at(now + alone + down, Act::Start(restarts.clone()));
    }

    fn cut(&mut self, now: Duration, sim: &Sim<'_>, world: &World, pair: (&str, &str), kind: CutKind, long: Duration) {
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
        held(&world.trace).count(now, "nemesis", name, &format!("{} {}", pair.0, pair.1));
        self.cuts.insert(key, kind);
        self.at(now + long, Act::Heal(pair.0.to_owned(), pair.1.to_owned()));
    }

    fn heal(&mut self, sim: &Sim<'_>, world: &World, a: &str, b: &str) {
        let Some(kind) = self.cuts.remove(&(a.to_owned(), b.to_owned())) else { return };
        match kind {
            CutKind::Both => sim.repair(a, b),
            CutKind::OneWay => sim.repair_oneway(a, b),
            CutKind::Hold => sim.release(a, b),
        }
        world.note("nemesis", "heal", &format!("{a} {b}"));
    }

    fn slow(&mut self, now: Duration, sim: &Sim<'_>, world: &World) {
        let names: Vec<String> = world.machines().keys().map(|name| (*name).to_owned()).collect();
        let (a, b) = (names[index(&self.rng, names.len())].clone(), names[index(&self.rng, names.len())].clone());
        if a == b {
            return;
        }
        let latency = self.between(Duration::from_millis(10), Duration::from_millis(300));
        let long = self.between(Duration::from_secs(1), Duration::from_secs(6));
        sim.set_link_latency(a.as_str(), b.as_str(), latency);
        held(&world.trace).count(now, "nemesis", "slow", &format!("{a} {b} {latency:?}"));
        self.at(now + long, Act::Quicken(a, b));
    }

    fn step_clock(&self, now: Duration, world: &World) {
        let machine = &world.servers[index(&self.rng, world.servers.len())];
        let span = [100_000, 5_000_000, 3_600_000_000_i64][index(&self.rng, 3)];
        let far = i64::try_from(self.rng.below(span.unsigned_abs() * 2)).unwrap() - span;
        machine.time.set_off(far);
        held(&world.trace).count(now, &machine.name, "clock-step", &far.to_string());
    }

    fn cut_chubby(&mut self, now: Duration, world: &World) {
        let machines: Vec<&Machine> = world.machines().into_values().collect();
        let machine = machines[index(&self.rng, machines.len())];
        let long = self.between(Duration::from_millis(200), Duration::from_secs(15));
        machine.link.set_cut(true);
        machine.link.set_lost(self.swarm.chubby_lost_per_mille);
        if long > LEASES_ENDURE
            && let Some(service) = world.chubby.get()
        {
            machine.link.cut_off(service);
        }
        held(&world.trace).count(now, &machine.name, "chubby-cut", "");
        self.at(now + long, Act::Reconnect(machine.name.clone()));
    }

    /// Heals everything and starts everybody; clocks stay as they are. No new faults from here on.
    pub(crate) fn relent(&mut self, sim: &mut Sim<'_>, world: &World) {
        self.over = true;
        let cuts: Vec<_> = self.cuts.keys().cloned().collect();
        for (a, b) in cuts {
            self.heal(sim, world, &a, &b);
        }
        let machines = world.machines();
        for (name, machine) in &machines {
            machine.link.set_cut(false);
            machine.link.set_lost(0);
            for other in machines.keys().filter(|other| *other != name) {
                sim.set_link_latency(*name, *other, LATENCY);
            }
        }
        let down: Vec<String> = self.down.keys().cloned().collect();
        for name in down {
            self.start(sim, &name);
        }
        world.note("nemesis", "relents", "");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    Goes,
    Stays,
}
