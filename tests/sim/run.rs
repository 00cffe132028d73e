//! One run of one seed: hosts, faults and load, then recovery and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use ebla_model::id::{GroupId, LogIndex, ReplicaId, Term};
use ebla_runtime::Rng;
use ebla_storage::store::GroupStore;
use ebla_tablet_server::raft::GroupReplica;
use ebla_tablet_server::tablet::TabletGroup;
use ebla_tests::faults::rates::Recurring;

use crate::cluster::{self, FailureTimeouts, Phase, SimCluster};
use crate::load;
use crate::names;
use crate::nemesis::Nemesis;
use crate::rates::FaultRates;
use crate::replicas;
use crate::trace::Trace;
use crate::{ages, clocks, drops, sums, tenant};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) servers: usize,
    pub(crate) masters: usize,
    pub(crate) clients: u64,
    /// Duration of the load under faults.
    pub(crate) load: Duration,
    pub(crate) fault_rates: FaultRates,
    /// Whether workers also overwrite the same rows repeatedly, which detects timestamps that go back.
    pub(crate) owns: bool,
    /// The size of the values of these rows, at least. Large ones let scans take several batches, and garbage collections begin.
    pub(crate) value_bytes: usize,
    /// Clients that count, in addition to the others.
    pub(crate) counters: u64,
    /// Whether one more client drops ranges of rows.
    pub(crate) drops: bool,
    /// When a split is ordered, and where.
    pub(crate) splits: Vec<(Duration, String)>,
    /// The mean time between two orders to move a tablet to another group.
    pub(crate) moves: Option<Duration>,
    /// Whether other tables are created, changed and deleted meanwhile.
    pub(crate) tables: bool,
    /// Whether there is a mounttable, with clients that use its names.
    pub(crate) names: bool,
    /// Whether a client checks when the cells of a family with a maximum age are removed. Not with wall clocks that jump: a leader whose
    /// clock is ahead may age cells early.
    pub(crate) ages: bool,
    /// Whether commit logs are so small that they are purged. The engine's files in a snapshot differ from run to run, and with them
    /// the time of its transfer: such a run is not repeated exactly.
    pub(crate) purges_logs: bool,
    /// Timeouts after which a failed server is replaced.
    pub(crate) failure_timeouts: FailureTimeouts,
    /// Whether the run stops at the first anomaly.
    pub(crate) stops_at_first: bool,
}

impl Plan {
    /// The random plan of this seed.
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
        let fault_rates = FaultRates::draw(&rng);
        // In a third of the runs there is a spare server, which replaces failed ones.
        let (servers, fault_rates, failure_timeouts) = match rng.below(3) {
            0 => {
                let (fault_rates, failure_timeouts) = fault_rates.with_losses(&rng);
                (4, fault_rates, failure_timeouts)
            }
            _ => (3, fault_rates, FailureTimeouts::default()),
        };
        let moves = (rng.below(2) == 0).then(|| Duration::from_millis(500 + rng.below(4_000)));
        let tables = rng.below(2) == 0;
        let fault_rates = if seed % 4 == 1 { fault_rates.with_drift() } else { fault_rates };
        let ages = seed % 4 == 1 && !fault_rates.rates.recurs(Recurring::ClockStep);
        let names = seed % 6 == 4;
        let fault_rates = if names { fault_rates.with_mounttables() } else { fault_rates };
        Self {
            seed,
            servers,
            masters,
            clients,
            load,
            fault_rates,
            owns: seed.is_multiple_of(2),
            value_bytes: if seed % 7 == 3 { 32 << 10 } else { 0 },
            counters: if seed % 3 == 1 { 2 } else { 0 },
            drops: seed % 5 == 2,
            splits,
            moves,
            tables,
            names,
            ages,
            purges_logs: seed % 4 == 3,
            failure_timeouts,
            stops_at_first: false,
        }
    }

    /// The plan of this name: `swarm` for random faults, or one with many faults of one kind.
    pub(crate) fn named(name: &str, seed: u64) -> Self {
        let plan = Self {
            servers: 3,
            failure_timeouts: FailureTimeouts::default(),
            load: Duration::from_secs(20),
            owns: false,
            value_bytes: 0,
            counters: 0,
            drops: false,
            moves: None,
            tables: false,
            names: false,
            ages: false,
            purges_logs: false,
            stops_at_first: true,
            ..Self::draw(seed)
        };
        match name {
            "calm" => Self::calm(seed),
            "votes" => Self { fault_rates: FaultRates::votes(), splits: Vec::new(), ..plan },
            "power" => Self { fault_rates: FaultRates::power(), splits: Vec::new(), ..plan },
            "outage" => Self { fault_rates: FaultRates::outage(), splits: Vec::new(), clients: 8, ..plan },
            "clocks" => Self { fault_rates: FaultRates::clocks(), owns: true, ..plan },
            "parts" => Self { fault_rates: FaultRates::parts(), splits: many_splits(), ..plan },
            "alone" => Self { fault_rates: FaultRates::alone(), splits: Vec::new(), clients: 8, ..plan },
            "splits" => Self { fault_rates: FaultRates::calm(), splits: many_splits(), clients: 3, ..plan },
            "moves" => Self {
                fault_rates: FaultRates::moves(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(100)),
                clients: 8,
                ..plan
            },
            "snapshots" => Self {
                fault_rates: FaultRates::snapshots(),
                splits: Vec::new(),
                moves: Some(Duration::from_secs(2)),
                tables: true,
                purges_logs: true,
                clients: 8,
                ..plan
            },
            "sums" => Self { fault_rates: FaultRates::parts(), splits: many_splits(), clients: 1, counters: 3, ..plan },
            "transit" => Self {
                fault_rates: FaultRates::transit(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(100)),
                clients: 1,
                counters: 4,
                drops: true,
                ..plan
            },
            "drift" => Self {
                fault_rates: FaultRates::clocks(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(300)),
                owns: true,
                clients: 4,
                counters: 2,
                ..plan
            },
            "rates" => Self {
                fault_rates: FaultRates::clock_rates(),
                splits: Vec::new(),
                moves: Some(Duration::from_secs(2)),
                ages: true,
                owns: true,
                clients: 4,
                counters: 1,
                ..plan
            },
            "suspend" => Self {
                fault_rates: FaultRates::suspensions(),
                splits: Vec::new(),
                ages: true,
                owns: true,
                clients: 4,
                counters: 1,
                ..plan
            },
            "bulk" => Self {
                fault_rates: FaultRates::kills(),
                splits: Vec::new(),
                owns: true,
                value_bytes: 64 << 10,
                clients: 4,
                ..plan
            },
            "names" => Self { fault_rates: FaultRates::names(), splits: Vec::new(), clients: 1, names: true, ..plan },
            "kills" => Self { fault_rates: FaultRates::kills(), splits: many_splits(), clients: 3, ..plan },
            _ => Self::draw(seed),
        }
    }

    /// The names of all hosts that send messages.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let numbered =
            |kind: &str, count: usize| (1..=count).map(|number| format!("{kind}-{number}")).collect::<Vec<_>>();
        let from_zero =
            |kind: &str, count: u64| (0..count).map(|number| format!("{kind}-{number}")).collect::<Vec<_>>();
        let mut names = [
            numbered("server", self.servers),
            numbered("master", self.masters),
            numbered("mounttable", if self.names { names::SERVERS } else { 0 }),
            from_zero("client", self.clients),
            from_zero("counter", self.counters),
        ]
        .concat();
        names.push("overseer".to_owned());
        let others = [("dropper", self.drops), ("names", self.names), ("tenant", self.tables), ("ager", self.ages)];
        names.extend(others.iter().filter(|(_, runs)| *runs).map(|(name, _)| (*name).to_owned()));
        names
    }

    /// The number of client hosts that drain.
    fn drained(&self) -> u64 {
        self.clients + self.counters + [self.drops, self.names, self.ages].map(u64::from).iter().sum::<u64>()
    }

    /// No faults.
    pub(crate) fn calm(seed: u64) -> Self {
        let splits = vec![(Duration::from_secs(8), "k/0".to_owned())];
        Self {
            fault_rates: FaultRates::calm(),
            load: Duration::from_secs(30),
            splits,
            moves: Some(Duration::from_secs(2)),
            tables: true,
            ..Self::draw(seed)
        }
    }
}

/// About two splits per second.
fn many_splits() -> Vec<(Duration, String)> {
    let letters = (b'b'..=b'z').rev().map(char::from);
    letters
        .enumerate()
        .map(|(at, letter)| (Duration::from_millis(5_000 + 600 * at as u64), format!("{letter}/9")))
        .collect()
}

/// Result of a run.
pub(crate) struct Outcome {
    /// The anomalies, as text.
    pub(crate) wrong: Vec<String>,
    /// One line of figures; the hash of the trace is in it.
    pub(crate) figures: String,
}

/// Timeout of the creation of the first table.
const BOOT: Duration = Duration::from_secs(60);
/// Timeout of operations in progress after the load.
const DRAIN: Duration = Duration::from_secs(15);
/// Timeout of the final checks.
const PROOF: Duration = Duration::from_secs(200);
/// Timeout until replicas are equal: the periodic reconciliation of the master, once a minute, removes superfluous replicas.
const EQUAL: Duration = Duration::from_secs(90);

/// Timeout until no server with a wrong clock leads: servers compare their clocks every five seconds.
const CLOCKS: Duration = Duration::from_secs(60);

/// Runs the plan.
pub(crate) fn run(plan: &Plan, folder: &std::path::Path, trace: Trace) -> Outcome {
    let cluster = SimCluster::new(plan, folder, trace);
    let mut sim = build(plan, &cluster);
    let mut steps = Steps {
        sim: &mut sim,
        cluster: &cluster,
        stops_at_first: plan.stops_at_first,
        terms: BTreeMap::new(),
        voters: BTreeMap::new(),
        groups: BTreeMap::new(),
    };
    let mut wrong = Vec::new();
    if !steps.until(BOOT, None, |cluster| cluster.phase() == Phase::Load) {
        wrong.push(format!("not live: no table after {BOOT:?}"));
        return finish(plan, &cluster, &sim, wrong);
    }
    let rng = Rng::seeded(plan.seed ^ 0xbad_1dea);
    let mut nemesis = Nemesis::new(plan.fault_rates.clone(), rng, steps.sim.elapsed());
    steps.until(plan.load, Some(&mut nemesis), |_| false);
    *cluster.phase.lock() = Phase::Drain;
    steps.until(DRAIN, Some(&mut nemesis), |cluster| cluster.drained.load(Ordering::Relaxed) == plan.drained());
    let early = cluster.history.lock().wrong.clone();
    if plan.stops_at_first && !early.is_empty() {
        return finish(plan, &cluster, &sim, early);
    }
    nemesis.end_faults(steps.sim, &cluster);
    *cluster.phase.lock() = Phase::Converge;
    steps.until(PROOF, Some(&mut nemesis), |cluster| cluster.result.lock().is_some());
    match cluster.result.lock().take() {
        Some(found) => wrong.extend(found),
        None => wrong.push("not live: the final checks did not finish".to_owned()),
    }
    if wrong.is_empty() && !steps.until(EQUAL, Some(&mut nemesis), is_equal) {
        wrong.extend(replicas::differences(&cluster).into_iter().map(|one| format!("diverged: {one}")));
    }
    if wrong.is_empty() && !steps.until(CLOCKS, Some(&mut nemesis), |cluster| clocks::wrong_leaders(cluster).is_empty())
    {
        wrong.extend(clocks::wrong_leaders(&cluster).into_iter().map(|one| format!("wrong clock: {one}")));
    }
    finish(plan, &cluster, &sim, wrong)
}

/// Checked only a few times per second, because each check reads all stores.
fn is_equal(cluster: &SimCluster) -> bool {
    crate::time::elapsed().subsec_millis().is_multiple_of(250) && replicas::differences(cluster).is_empty()
}

fn build<'a>(plan: &Plan, cluster: &Arc<SimCluster>) -> turmoil::Sim<'a> {
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
    let shared = Arc::clone(cluster);
    sim.host("chubby", move || cluster::lock_service(Arc::clone(&shared)));
    for number in 0..plan.servers {
        let shared = Arc::clone(cluster);
        sim.host(cluster.servers[number].name.as_str(), move || cluster::tablet_server(Arc::clone(&shared), number));
    }
    for number in 0..plan.masters {
        let shared = Arc::clone(cluster);
        sim.host(cluster.masters[number].name.as_str(), move || cluster::master(Arc::clone(&shared), number));
    }
    for number in 0..plan.clients {
        let shared = Arc::clone(cluster);
        sim.host(format!("client-{number}"), move || load::client(Arc::clone(&shared), number));
    }
    for number in 0..plan.counters {
        let shared = Arc::clone(cluster);
        sim.host(format!("counter-{number}"), move || sums::client(Arc::clone(&shared), number));
    }
    if plan.drops {
        let shared = Arc::clone(cluster);
        sim.host("dropper", move || drops::client(Arc::clone(&shared)));
    }
    for number in 0..cluster.mounttables.len() {
        let shared = Arc::clone(cluster);
        sim.host(cluster.mounttables[number].name.as_str(), move || names::server(Arc::clone(&shared), number));
    }
    if plan.names {
        let shared = Arc::clone(cluster);
        sim.host("names", move || names::client(Arc::clone(&shared)));
    }
    if plan.ages {
        let shared = Arc::clone(cluster);
        sim.host("ager", move || ages::client(Arc::clone(&shared)));
    }
    let (shared, splits, moves) = (Arc::clone(cluster), plan.splits.clone(), plan.moves);
    sim.host("overseer", move || load::overseer(Arc::clone(&shared), splits.clone(), moves));
    if plan.tables {
        let shared = Arc::clone(cluster);
        sim.host("tenant", move || tenant::run(Arc::clone(&shared)));
    }
    sim
}

struct Steps<'s, 'a> {
    sim: &'s mut turmoil::Sim<'a>,
    cluster: &'s Arc<SimCluster>,
    /// Whether a run ends with the first thing that is found wrong.
    stops_at_first: bool,
    /// The latest term of each replica.
    terms: BTreeMap<(usize, GroupReplica), Term>,
    /// All voters that each group has had.
    voters: BTreeMap<GroupId, BTreeSet<ReplicaId>>,
    /// Each replica as it was last seen.
    groups: BTreeMap<(usize, GroupReplica), SeenGroup>,
}

/// A running replica. The weak pointers keep the addresses from being used again.
#[derive(Clone)]
struct SeenGroup {
    group: Weak<TabletGroup>,
    store: Weak<GroupStore>,
    /// Up to where its log is purged.
    purged: LogIndex,
}

/// Interval at which the state of all groups is traced.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which the terms of all groups are compared with earlier ones.
const TERMS: Duration = Duration::from_millis(20);

impl Steps<'_, '_> {
    /// Steps until the condition holds (true) or the timeout passes (false).
    fn until(
        &mut self,
        timeout: Duration,
        mut nemesis: Option<&mut Nemesis>,
        mut holds: impl FnMut(&SimCluster) -> bool,
    ) -> bool {
        let end = self.sim.elapsed() + timeout;
        while self.sim.elapsed() < end {
            self.sim.step().unwrap();
            let now = self.sim.elapsed();
            if let Some(nemesis) = nemesis.as_mut() {
                nemesis.act(now, self.sim, self.cluster);
            }
            self.compare_leaders(now);
            if now.as_millis().is_multiple_of(TERMS.as_millis()) {
                self.compare_terms(now);
            }
            if now.as_millis() % LOOK.as_millis() == 0 {
                self.look(now);
            }
            if self.stops_at_first && !self.cluster.history.lock().wrong.is_empty() {
                return false;
            }
            if holds(self.cluster) {
                return true;
            }
        }
        false
    }

    /// Terms of a replica must not decrease, also over restarts.
    fn compare_terms(&mut self, now: Duration) {
        for (number, host) in self.cluster.servers.iter().enumerate() {
            for group in host.hosted().iter().flat_map(|hosted| hosted.groups()) {
                let raft = group.raft();
                let term = raft.status().term;
                let known = self.terms.entry((number, raft.id())).or_default();
                if term < *known {
                    let (name, group) = (&host.name, group.id());
                    let wrong = format!("forgotten: term {known} of group {group} by {name}, in {term} at {now:?}");
                    self.cluster.history.lock().wrong.push(wrong);
                }
                *known = term;
            }
        }
    }

    /// A leader must not serve reads by its lease while there is a leader of a later term, which may have committed writes that
    /// the first one does not know. A term has at most one leader.
    fn compare_leaders(&self, now: Duration) {
        let mut leaders: BTreeMap<GroupId, Vec<(Term, &str, bool)>> = BTreeMap::new();
        // A host that stands still reads nothing.
        for host in self.cluster.servers.iter().filter(|host| !host.time.is_stopped()) {
            for group in host.hosted().iter().flat_map(|hosted| hosted.groups()) {
                let Some(leadership) = group.raft().leadership() else { continue };
                let reads = group.raft().can_lease_read(host.time.boot_at(now));
                leaders.entry(group.id()).or_default().push((leadership.term, &host.name, reads));
            }
        }
        for (group, leaders) in leaders.into_iter().filter(|(_, leaders)| leaders.len() > 1) {
            let terms: BTreeSet<Term> = leaders.iter().map(|(term, _, _)| *term).collect();
            if terms.len() < leaders.len() {
                let wrong = format!("split: {leaders:?} lead group {group} at {now:?}");
                self.cluster.history.lock().wrong.push(wrong);
            }
            let last = terms.last().copied();
            for (term, name, _) in leaders.iter().filter(|(term, _, reads)| *reads && Some(*term) != last) {
                let wrong = format!(
                    "stale: {name} reads group {group} by its lease of term {term} at {now:?}, {leaders:?} lead"
                );
                self.cluster.history.lock().wrong.push(wrong);
            }
        }
    }

    /// Counts purges of logs, and snapshot installs: each replaces the store of a running group.
    fn count_purges(&mut self, now: Duration) {
        for (number, host) in self.cluster.servers.iter().enumerate() {
            for group in host.hosted().iter().flat_map(|hosted| hosted.groups()) {
                let purged = group.raft().status().purged.unwrap_or_default().index;
                let store = Arc::downgrade(&group.state_machine().store());
                let seen = SeenGroup { group: Arc::downgrade(&group), store, purged };
                let Some(before) = self.groups.insert((number, group.raft().id()), seen.clone()) else { continue };
                let count = |kind| {
                    self.cluster.trace.lock().count(now, &host.name, kind, &format!("{} {purged}", group.id()));
                };
                if !Weak::ptr_eq(&before.group, &seen.group) {
                    continue;
                }
                if !Weak::ptr_eq(&before.store, &seen.store) {
                    count("snapshot-installed");
                } else if purged > before.purged {
                    count("log-purged");
                }
            }
        }
    }

    /// Traces the state of the groups, and counts replicas that were added to groups.
    fn look(&mut self, now: Duration) {
        self.count_purges(now);
        for host in &self.cluster.servers {
            for report in host.hosted().iter().flat_map(|hosted| hosted.report()) {
                let (group, tablets) = (report.descriptor.group, report.tablets.len());
                let state = format!("{group} n{tablets} t{} {} a{}", report.term, report.is_leader, report.applied);
                self.cluster.trace.lock().note(now, &host.name, "group", &state);
                let voters = report.descriptor.membership.voters.into_iter().flatten();
                let Some(known) = self.voters.get_mut(&group) else {
                    self.voters.insert(group, voters.collect());
                    continue;
                };
                for replica in voters {
                    if known.insert(replica) {
                        let what = format!("{group} {replica}");
                        self.cluster.trace.lock().count(now, &host.name, "replica-added", &what);
                    }
                }
            }
        }
    }
}

fn finish(plan: &Plan, cluster: &SimCluster, sim: &turmoil::Sim<'_>, wrong: Vec<String>) -> Outcome {
    let (known, unknown) = cluster.history.lock().counts();
    let mut trace = cluster.trace.lock();
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
