//! One run of one seed: hosts, faults, load, then peace and the proof.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use ebla_model::id::{ReplicaId, TabletId};
use ebla_runtime::Rng;
use ebla_tablet_server::raft::GroupId;

use crate::load;
use crate::nemesis::{Nemesis, Swarm};
use crate::replicas;
use crate::time::UP_BEFORE;
use crate::trace::Trace;
use crate::world::{self, Patience, Phase, World, held};

/// What a run is.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) servers: usize,
    pub(crate) masters: usize,
    pub(crate) clients: u64,
    /// How long the load runs under faults.
    pub(crate) load: Duration,
    pub(crate) swarm: Swarm,
    /// Whether workers also write the same row again and again: what times that go back need to be noticed.
    pub(crate) owns: bool,
    /// When a split is ordered, and where.
    pub(crate) splits: Vec<(Duration, String)>,
    /// How soon a server that is silent is given up.
    pub(crate) patience: Patience,
    /// Whether the run ends with the first thing that is found wrong.
    pub(crate) stops_early: bool,
}

impl Plan {
    /// What this seed draws.
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = Rng::seeded(seed);
        let load = Duration::from_secs(20 + rng.below(20));
        let mut splits: Vec<(Duration, String)> = (0..rng.below(6))
            .map(|number| {
                let letter = char::from(b'b' + u8::try_from(rng.below(24)).unwrap());
                (Duration::from_millis(4_000 + rng.below(load.as_secs() * 1_000)), format!("{letter}/{number}"))
            })
            .collect();
        splits.sort();
        let masters = 1 + usize::try_from(rng.below(2)).unwrap();
        let clients = 1 + rng.below(3);
        let swarm = Swarm::draw(&rng);
        // In a third of the runs there is a server to spare, and replicas move to it from others that are gone.
        let (servers, swarm, patience) = match rng.below(3) {
            0 => (4, swarm.with_losses(&rng), Patience::short(&rng)),
            _ => (3, swarm, Patience::default()),
        };
        Self {
            seed,
            servers,
            masters,
            clients,
            load,
            swarm,
            owns: seed.is_multiple_of(2),
            splits,
            patience,
            stops_early: false,
        }
    }

    /// The plan of this name: `swarm`, or one that has much of one thing.
    pub(crate) fn named(name: &str, seed: u64) -> Self {
        let plan = Self {
            servers: 3,
            patience: Patience::default(),
            load: Duration::from_secs(20),
            owns: false,
            stops_early: true,
            ..Self::draw(seed)
        };
        match name {
            "calm" => Self::calm(seed),
            "votes" => Self { swarm: Swarm::votes(), splits: Vec::new(), ..plan },
            "power" => Self { swarm: Swarm::power(), splits: Vec::new(), ..plan },
            "outage" => Self { swarm: Swarm::outage(), splits: Vec::new(), clients: 8, ..plan },
            "clocks" => Self { swarm: Swarm::clocks(), owns: true, ..plan },
            "parts" => Self { swarm: Swarm::parts(), splits: many_splits(), ..plan },
            "alone" => Self { swarm: Swarm::alone(), splits: Vec::new(), clients: 8, ..plan },
            "splits" => Self { swarm: Swarm::calm(), splits: many_splits(), clients: 3, ..plan },
            "kills" => Self { swarm: Swarm::kills(), splits: many_splits(), clients: 3, ..plan },
            _ => Self::draw(seed),
        }
    }

    /// No faults: everything must simply work.
    pub(crate) fn calm(seed: u64) -> Self {
        let splits = vec![(Duration::from_secs(8), "k/0".to_owned())];
        Self { swarm: Swarm::calm(), load: Duration::from_secs(30), splits, ..Self::draw(seed) }
    }
}

/// A split about twice a second.
fn many_splits() -> Vec<(Duration, String)> {
    let letters = (b'b'..=b'z').rev().map(char::from);
    letters
        .enumerate()
        .map(|(at, letter)| (Duration::from_millis(5_000 + 600 * at as u64), format!("{letter}/9")))
        .collect()
}

/// What came of a run.
pub(crate) struct Outcome {
    /// What was found wrong, in words.
    pub(crate) wrong: Vec<String>,
    /// One line of figures; the hash of the trace is in it.
    pub(crate) figures: String,
}

/// How long the cluster may take to open its first table.
const BOOT: Duration = Duration::from_secs(60);
/// After the load, operations under way may take so long.
const DRAIN: Duration = Duration::from_secs(15);
/// How long the proof may take, and replicas to become equal after it.
const PROOF: Duration = Duration::from_secs(70);
/// See [`PROOF`]. A master that was told of nothing looks around once a minute, and takes superfluous replicas away then.
const EQUAL: Duration = Duration::from_secs(90);

/// Runs the plan.
pub(crate) fn run(plan: &Plan, folder: &std::path::Path, trace: Trace) -> Outcome {
    let world = World::new(plan, folder, trace);
    let mut sim = build(plan, &world);
    let mut steps = Steps {
        sim: &mut sim,
        world: &world,
        stops_early: plan.stops_early,
        terms: BTreeMap::new(),
        voters: BTreeMap::new(),
    };
    let mut wrong = Vec::new();
    if !steps.until(BOOT, None, |world| world.phase() == Phase::Load) {
        wrong.push(format!("not live: no table after {BOOT:?}"));
        return finish(plan, &world, &sim, wrong);
    }
    let rng = Rng::seeded(plan.seed ^ 0xbad_1dea);
    let mut nemesis = Nemesis::new(plan.swarm.clone(), rng, steps.sim.elapsed());
    steps.until(plan.load, Some(&mut nemesis), |_| false);
    *held(&world.phase) = Phase::Drain;
    steps.until(DRAIN, Some(&mut nemesis), |world| world.drained.load(Ordering::Relaxed) == plan.clients);
    let early = held(&world.history).wrong.clone();
    if plan.stops_early && !early.is_empty() {
        return finish(plan, &world, &sim, early);
    }
    nemesis.relent(steps.sim, &world);
    *held(&world.phase) = Phase::Converge;
    steps.until(PROOF, Some(&mut nemesis), |world| held(&world.verdict).is_some());
    match held(&world.verdict).take() {
        Some(found) => wrong.extend(found),
        None => wrong.push("not live: no verdict".to_owned()),
    }
    if wrong.is_empty() && !steps.until(EQUAL, Some(&mut nemesis), is_equal) {
        wrong.extend(replicas::differences(&world).into_iter().map(|one| format!("diverged: {one}")));
    }
    finish(plan, &world, &sim, wrong)
}

/// Looks a few times a second only: every look reads all stores.
fn is_equal(world: &World) -> bool {
    crate::time::elapsed().subsec_millis().is_multiple_of(250) && replicas::differences(world).is_empty()
}

fn build<'a>(plan: &Plan, world: &Arc<World>) -> turmoil::Sim<'a> {
    let mut sim = turmoil::Builder::new()
        .epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
        .simulation_duration(Duration::from_secs(3_600))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(200))
        .max_message_latency(Duration::from_millis(3))
        .tcp_capacity(4_096)
        .enable_random_order()
        .rng_seed(plan.seed)
        .build();
    let shared = Arc::clone(world);
    sim.host("chubby", move || world::lock_service(Arc::clone(&shared)));
    for number in 0..plan.servers {
        let shared = Arc::clone(world);
        sim.host(world.servers[number].name.as_str(), move || world::tablet_server(Arc::clone(&shared), number));
    }
    for number in 0..plan.masters {
        let shared = Arc::clone(world);
        sim.host(world.masters[number].name.as_str(), move || world::master(Arc::clone(&shared), number));
    }
    for number in 0..plan.clients {
        let shared = Arc::clone(world);
        sim.host(format!("client-{number}"), move || load::client(Arc::clone(&shared), number));
    }
    let (shared, splits) = (Arc::clone(world), plan.splits.clone());
    sim.host("overseer", move || load::overseer(Arc::clone(&shared), splits.clone()));
    sim
}

struct Steps<'s, 'a> {
    sim: &'s mut turmoil::Sim<'a>,
    world: &'s Arc<World>,
    /// Whether a run ends with the first thing that is found wrong.
    stops_early: bool,
    /// The latest term that each replica has told.
    terms: BTreeMap<(usize, GroupId), u64>,
    /// All voters that each tablet has had.
    voters: BTreeMap<TabletId, BTreeSet<ReplicaId>>,
}

/// The state of all groups enters the trace so often.
const LOOK: Duration = Duration::from_millis(100);
/// The terms of all groups are compared with the earlier ones so often.
const TERMS: Duration = Duration::from_millis(20);

impl Steps<'_, '_> {
    /// Steps until the condition holds (true) or the time is over (false).
    fn until(
        &mut self,
        limit: Duration,
        mut nemesis: Option<&mut Nemesis>,
        mut holds: impl FnMut(&World) -> bool,
    ) -> bool {
        let end = self.sim.elapsed() + limit;
        while self.sim.elapsed() < end {
            self.sim.step().unwrap();
            let now = self.sim.elapsed();
            if let Some(nemesis) = nemesis.as_mut() {
                nemesis.act(now, self.sim, self.world);
            }
            self.compare_leaders(now);
            if now.as_millis().is_multiple_of(TERMS.as_millis()) {
                self.compare_terms(now);
            }
            if now.as_millis() % LOOK.as_millis() == 0 {
                self.look(now);
            }
            if self.stops_early && !held(&self.world.history).wrong.is_empty() {
                return false;
            }
            if holds(self.world) {
                return true;
            }
        }
        false
    }

    /// No replica may forget a term that it has told, not over a restart either.
    fn compare_terms(&mut self, now: Duration) {
        for (number, machine) in self.world.servers.iter().enumerate() {
            for tablet in machine.hosted().iter().flat_map(|hosted| hosted.tablets()) {
                let group = tablet.group();
                let term = group.status().term;
                let known = self.terms.entry((number, group.id())).or_default();
                if term < *known {
                    let (name, tablet) = (&machine.name, tablet.id());
                    let wrong = format!("forgotten: term {known} of tablet {tablet} by {name}, in {term} at {now:?}");
                    held(&self.world.history).wrong.push(wrong);
                }
                *known = term;
            }
        }
    }

    /// Nobody may answer reads by its lease while another leads in a later term: it may have committed what the first one
    /// does not know. In one term one leads.
    fn compare_leaders(&self, now: Duration) {
        let mut leaders: BTreeMap<TabletId, Vec<(u64, &str, bool)>> = BTreeMap::new();
        for machine in &self.world.servers {
            for tablet in machine.hosted().iter().flat_map(|hosted| hosted.tablets()) {
                let Some(leadership) = tablet.group().leadership() else { continue };
                let reads = tablet.group().can_lease_read(UP_BEFORE + now);
                leaders.entry(tablet.id()).or_default().push((leadership.term, &machine.name, reads));
            }
        }
        for (tablet, leaders) in leaders.into_iter().filter(|(_, leaders)| leaders.len() > 1) {
            let terms: BTreeSet<u64> = leaders.iter().map(|(term, _, _)| *term).collect();
            if terms.len() < leaders.len() {
                let wrong = format!("split: {leaders:?} lead tablet {tablet} at {now:?}");
                held(&self.world.history).wrong.push(wrong);
            }
            let last = terms.last().copied();
            for (term, name, _) in leaders.iter().filter(|(term, _, reads)| *reads && Some(*term) != last) {
                let wrong = format!(
                    "stale: {name} reads tablet {tablet} by its lease of term {term} at {now:?}, {leaders:?} lead"
                );
                held(&self.world.history).wrong.push(wrong);
            }
        }
    }

    /// Notes how the groups stand, and counts replicas that tablets did not have when they were made.
    fn look(&mut self, now: Duration) {
        for machine in &self.world.servers {
            for report in machine.hosted().iter().flat_map(|hosted| hosted.report()) {
                let (tablet, generation) = (report.descriptor.tablet, report.descriptor.generation);
                let state = format!("{tablet} g{generation} t{} {} a{}", report.term, report.is_leader, report.applied);
                held(&self.world.trace).note(now, &machine.name, "group", &state);
                let voters = report.descriptor.membership.voters.into_iter().flatten();
                let Some(known) = self.voters.get_mut(&tablet) else {
                    self.voters.insert(tablet, voters.collect());
                    continue;
                };
                for replica in voters {
                    if known.insert(replica) {
                        let what = format!("{tablet} {replica}");
                        held(&self.world.trace).count(now, &machine.name, "replica-added", &what);
                    }
                }
            }
        }
    }
}

fn finish(plan: &Plan, world: &World, sim: &turmoil::Sim<'_>, wrong: Vec<String>) -> Outcome {
    let (known, unknown) = held(&world.history).counts();
    let mut trace = held(&world.trace);
    let (hash, events) = trace.digest();
    let faults: Vec<String> = trace.counts().iter().map(|(kind, count)| format!("{kind}={count}")).collect();
    let figures = format!(
        "seed={} hash={hash:016x} events={events} simulated_s={} acknowledged={known} unknown={unknown} {}",
        plan.seed,
        sim.elapsed().as_secs(),
        faults.join(" ")
    );
    Outcome { wrong, figures }
}
