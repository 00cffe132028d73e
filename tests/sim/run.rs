//! One run of one seed: hosts, faults and load, then recovery and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use ebla_model::id::{GroupId, LogIndex, ReplicaId, ServerId, Term};
use ebla_runtime::Rng;
use ebla_storage::store::GroupStore;
use ebla_tablet_server::raft::{GroupReplica, GroupStatus};
use ebla_tablet_server::tablet::TabletGroup;
use tokio::task::spawn_local;

use crate::cluster::{self, Phase, SimCluster};
use crate::load;
use crate::names;
use crate::nemesis::Nemesis;
use crate::plan::{CLIENTS, Plan};
use crate::replicas;
use crate::trace::Trace;
use crate::{ages, beside, clocks, drains, drops, large, lost, restored, rot, slow, steps, sums, tenant, versions};

/// Result of a run.
pub(crate) struct Outcome {
    /// The anomalies, as text.
    pub(crate) wrong: Vec<String>,
    /// One line of figures; the hash of the trace is in it.
    pub(crate) figures: String,
}

/// Timeout of the creation of the first tables.
const BOOT: Duration = Duration::from_secs(60);
/// Timeout of the divisions that make many groups.
const DIVISIONS: Duration = Duration::from_secs(60);
/// Timeout until the groups of a lost majority, or a lock service that was restored, are recovered.
const RECOVERED: Duration = Duration::from_secs(60);
/// Load without faults, before a loss and after its recovery.
const SETTLES: Duration = Duration::from_secs(4);
/// Timeout of operations in progress after the load.
const DRAIN: Duration = Duration::from_secs(15);
/// Timeout of the final checks.
const PROOF: Duration = Duration::from_secs(200);
/// Timeout until replicas are equal: the periodic reconciliation of the master, once a minute, removes superfluous replicas.
const EQUAL: Duration = Duration::from_secs(90);
/// Timeout until damage is found and the replica is stopped: the scrubber reads all stores every 15 s.
const SCRUBBED: Duration = Duration::from_secs(40);
/// Timeout until no server with a wrong clock leads: servers compare their clocks every five seconds.
const CLOCKS: Duration = Duration::from_secs(60);

/// Timeout until the last process is upgraded and the later version is active.
const UPGRADED: Duration = Duration::from_secs(60);

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
        leaders: Vec::new(),
    };
    let mut wrong = Vec::new();
    let boot = if plan.groups.is_some() { BOOT + DIVISIONS } else { BOOT };
    if !steps.until(boot, None, |cluster| cluster.phase() == Phase::Load) {
        let early = cluster.history.lock().wrong.clone();
        wrong.push(format!("not live: the load has not begun after {boot:?}"));
        wrong.extend(early);
        return finish(plan, &cluster, &sim, wrong);
    }
    let rng = Rng::seeded(plan.seed ^ 0xbad_1dea);
    let mut nemesis = Nemesis::new(plan.fault_rates.clone(), rng, steps.sim.elapsed());
    if plan.leaps {
        nemesis.leap_clocks(steps.sim.elapsed(), plan.servers);
    }
    steps.until(plan.load, Some(&mut nemesis), |_| false);
    if plan.loses_majority {
        wrong.extend(lose_majority(&mut steps, &mut nemesis, &Rng::seeded(plan.seed ^ 0x1055)));
    }
    if plan.restores {
        wrong.extend(restore_lock_service(&mut steps, &mut nemesis, &Rng::seeded(plan.seed ^ 0x1055)));
    }
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
    if wrong.is_empty() && plan.step_crash.is_some() {
        wrong.extend(cluster.step_watch.as_ref().and_then(|watch| watch.verdict()));
        if !steps.until(EQUAL, Some(&mut nemesis), has_no_leftovers) {
            wrong.extend(steps::leftovers(&cluster).into_iter().map(|one| format!("left: {one}")));
        }
    }
    if wrong.is_empty() && !steps.until(CLOCKS, Some(&mut nemesis), |cluster| clocks::wrong_leaders(cluster).is_empty())
    {
        wrong.extend(clocks::wrong_leaders(&cluster).into_iter().map(|one| format!("wrong clock: {one}")));
    }
    if wrong.is_empty()
        && cluster.rollout.is_some()
        && !steps.until(UPGRADED, Some(&mut nemesis), versions::is_complete)
    {
        wrong.push(format!(
            "not live: not every process is upgraded, or the later version is not active after {UPGRADED:?}"
        ));
    }
    if wrong.is_empty() && cluster.rots && !steps.until(SCRUBBED, Some(&mut nemesis), is_sound) {
        wrong.extend(rot::damaged_stores(&cluster).into_iter().map(|one| format!("damaged: {one}")));
    }
    finish(plan, &cluster, &sim, wrong)
}

/// A majority is lost and recovered, while the load goes on; what is wrong if it is not recovered.
fn lose_majority(steps: &mut Steps<'_, '_>, nemesis: &mut Nemesis, rng: &Rng) -> Option<String> {
    nemesis.end_faults(steps.sim, steps.cluster);
    steps.until(SETTLES, Some(&mut *nemesis), |_| false);
    let (survivor, lasts) = lost::cut_off(steps.sim, steps.cluster, rng);
    steps.until(lasts, None, |_| false);
    lost::lose(steps.sim, steps.cluster, survivor);
    let is_recovered = |cluster: &SimCluster| cluster.loss.lock().as_ref().is_some_and(lost::Loss::is_recovered);
    if !steps.until(RECOVERED, None, is_recovered) {
        return Some(format!("not live: no group was recovered {RECOVERED:?} after the loss of a majority"));
    }
    lost::replace(steps.sim, steps.cluster, survivor);
    steps.until(SETTLES, Some(nemesis), |_| false);
    None
}

/// The lock service is restored from a backup and recovered, while the load goes on; what is wrong if it is not recovered.
fn restore_lock_service(steps: &mut Steps<'_, '_>, nemesis: &mut Nemesis, rng: &Rng) -> Option<String> {
    nemesis.end_faults(steps.sim, steps.cluster);
    steps.until(SETTLES, Some(&mut *nemesis), |_| false);
    let lasts = restored::restore(steps.cluster, rng);
    steps.until(lasts, None, |_| false);
    restored::reconnect(steps.cluster);
    if !steps.until(RECOVERED, Some(&mut *nemesis), restored::is_recovered) {
        return Some(format!("not live: the lock service was not recovered {RECOVERED:?} after it was restored"));
    }
    steps.until(SETTLES, Some(nemesis), |_| false);
    None
}

/// Checked only a few times per second, because each check reads all stores.
fn is_equal(cluster: &SimCluster) -> bool {
    crate::time::elapsed().subsec_millis().is_multiple_of(250) && replicas::differences(cluster).is_empty()
}

/// Checked only a few times per second, because each check reads all folders.
fn has_no_leftovers(cluster: &SimCluster) -> bool {
    crate::time::elapsed().subsec_millis().is_multiple_of(250) && steps::leftovers(cluster).is_empty()
}

/// Checked only every few seconds, because each check reads all stores.
fn is_sound(cluster: &SimCluster) -> bool {
    let elapsed = crate::time::elapsed();
    elapsed.as_secs().is_multiple_of(5) && elapsed.subsec_millis() == 0 && rot::damaged_stores(cluster).is_empty()
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
    for number in 0..plan.servers {
        let shared = Arc::clone(cluster);
        sim.host(cluster.servers[number].name.as_str(), move || cluster::tablet_server(Arc::clone(&shared), number));
    }
    for number in 0..plan.masters {
        let shared = Arc::clone(cluster);
        sim.host(cluster.masters[number].name.as_str(), move || cluster::master(Arc::clone(&shared), number));
    }
    for number in 0..cluster.mounttables.len() {
        let shared = Arc::clone(cluster);
        sim.host(cluster.mounttables[number].name.as_str(), move || names::server(Arc::clone(&shared), number));
    }
    let (shared, plan) = (Arc::clone(cluster), plan.clone());
    sim.host(CLIENTS, move || clients(Arc::clone(&shared), plan.clone()));
    sim
}

/// The host of the lock service and of all clients.
async fn clients(cluster: Arc<SimCluster>, plan: Plan) -> turmoil::Result {
    let shared = || Arc::clone(&cluster);
    let service = spawn_local(cluster::lock_service(shared()));
    let mut running = vec![spawn_local(load::overseer(shared(), plan.splits.clone(), plan.moves))];
    running.extend((0..plan.clients).map(|number| spawn_local(load::client(shared(), number))));
    running.extend((0..plan.counters).map(|number| spawn_local(sums::client(shared(), number))));
    if plan.drops {
        running.push(spawn_local(drops::client(shared())));
    }
    if plan.names {
        running.push(spawn_local(names::client(shared())));
    }
    if plan.ages {
        running.push(spawn_local(ages::client(shared())));
    }
    if plan.beside {
        running.push(spawn_local(beside::client(shared())));
    }
    if plan.value_bytes_max.is_some() {
        running.push(spawn_local(large::client(shared())));
    }
    if plan.tables {
        running.push(spawn_local(tenant::run(shared())));
    }
    if let Some(mean) = plan.drains {
        running.push(spawn_local(drains::operator(shared(), mean)));
    }
    if plan.step_crash.is_some() {
        running.push(spawn_local(steps::operator(shared())));
    }
    if plan.loses_majority {
        running.push(spawn_local(lost::operator(shared())));
    }
    if plan.restores {
        running.push(spawn_local(restored::operator(shared())));
    }
    for client in running {
        client.await??;
    }
    service.await?
}

struct Steps<'s, 'a> {
    sim: &'s mut turmoil::Sim<'a>,
    cluster: &'s Arc<SimCluster>,
    /// Whether a run ends with the first thing that is found wrong.
    stops_at_first: bool,
    /// The server of each replica, and its latest term.
    terms: BTreeMap<(usize, GroupReplica), (ServerId, Term)>,
    /// All voters that each group has had.
    voters: BTreeMap<GroupId, BTreeSet<ReplicaId>>,
    /// Each replica as it was last seen.
    groups: BTreeMap<(usize, GroupReplica), SeenGroup>,
    /// Group, term and server of each leader at this moment.
    leaders: Vec<(GroupId, Term, usize)>,
}

/// A running replica. The weak pointers keep the addresses from being used again.
#[derive(Clone)]
struct SeenGroup {
    group: Weak<TabletGroup>,
    store: Weak<GroupStore>,
    /// Up to where its log is purged.
    purged: LogIndex,
}

/// A running replica and its status at this moment.
struct RunningReplica {
    server: usize,
    group: Arc<TabletGroup>,
    status: GroupStatus,
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
                if self.cluster.rots {
                    rot::forget_repaired(self.cluster);
                }
                if self.cluster.rollout.is_some() {
                    versions::check(self.cluster, now);
                }
                if self.cluster.is_only_slow {
                    slow::check_leaders(self.cluster, now);
                }
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

    /// Terms of a replica must not decrease, also over restarts. A server that joins with an empty folder must not have the replicas of its
    /// predecessor: it does not know their votes.
    fn compare_terms(&mut self, now: Duration) {
        for (number, host) in self.cluster.servers.iter().enumerate() {
            let Some(hosted) = host.hosted() else { continue };
            for group in hosted.groups() {
                let raft = group.raft();
                let (server, term) = (hosted.server(), raft.status().term);
                let known = self.terms.insert((number, raft.id()), (server, term));
                let Some((known_server, known_term)) = known else { continue };
                let (name, group) = (&host.name, group.id());
                if server != known_server {
                    let wrong =
                        format!("revived: group {group} of server {known_server} by {name}, now {server}, at {now:?}");
                    self.cluster.history.lock().wrong.push(wrong);
                }
                if term < known_term {
                    let wrong =
                        format!("forgotten: term {known_term} of group {group} by {name}, in {term} at {now:?}");
                    self.cluster.history.lock().wrong.push(wrong);
                }
            }
        }
    }

    /// A leader must not serve reads by its lease while there is a leader of a later term, which may have committed writes that
    /// the first one does not know. A term has at most one leader.
    fn compare_leaders(&mut self, now: Duration) {
        self.leaders.clear();
        // A host that stands still reads nothing.
        for (number, host) in self.cluster.servers.iter().enumerate().filter(|(_, host)| !host.time.is_stopped()) {
            for group in host.hosted().iter().flat_map(|hosted| hosted.groups()) {
                if let Some(leadership) = group.raft().leadership() {
                    self.leaders.push((group.id(), leadership.term, number));
                }
            }
        }
        self.leaders.sort_unstable();
        for leaders in self.leaders.chunk_by(|one, next| one.0 == next.0).filter(|leaders| leaders.len() > 1) {
            self.compare_leaders_of(leaders, now);
        }
    }

    /// The same for the leaders of one group, by term.
    fn compare_leaders_of(&self, leaders: &[(GroupId, Term, usize)], now: Duration) {
        let reads = |group: GroupId, number: usize| {
            let host = &self.cluster.servers[number];
            let group = host.hosted().and_then(|hosted| hosted.group(group));
            group.is_some_and(|group| group.raft().can_lease_read(host.time.boot_at(now)))
        };
        let named: Vec<(Term, &str, bool)> = leaders
            .iter()
            .map(|(group, term, number)| (*term, self.cluster.servers[*number].name.as_str(), reads(*group, *number)))
            .collect();
        let group = leaders[0].0;
        if named.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            let wrong = format!("split: {named:?} lead group {group} at {now:?}");
            self.cluster.history.lock().wrong.push(wrong);
        }
        let last = named.last().map(|(term, _, _)| *term);
        for (term, name, _) in named.iter().filter(|(term, _, reads)| *reads && Some(*term) != last) {
            let wrong =
                format!("stale: {name} reads group {group} by its lease of term {term} at {now:?}, {named:?} lead");
            self.cluster.history.lock().wrong.push(wrong);
        }
    }

    /// Counts purges of logs, and snapshot installs: each replaces the store of a running group.
    fn count_purges(&mut self, now: Duration, replicas: &[RunningReplica]) {
        for RunningReplica { server, group, status } in replicas {
            let purged = status.purged.unwrap_or_default().index;
            let store = Arc::downgrade(&group.state_machine().store());
            let seen = SeenGroup { group: Arc::downgrade(group), store, purged };
            let Some(before) = self.groups.insert((*server, group.raft().id()), seen.clone()) else { continue };
            let name = &self.cluster.servers[*server].name;
            let count = |kind| {
                self.cluster.trace.lock().count(now, name, kind, &format!("{} {purged}", group.id()));
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

    /// Traces the state of the groups, and counts replicas that were added to groups. Without the sizes of tablets, which a report to
    /// the master has: they take longer than the rest.
    fn look(&mut self, now: Duration) {
        let cluster = Arc::clone(self.cluster);
        let hosts = cluster.servers.iter().enumerate();
        let hosted = hosts.filter_map(|(server, host)| Some((server, host.hosted()?)));
        let groups = hosted.flat_map(|(server, hosted)| hosted.groups().into_iter().map(move |group| (server, group)));
        let running = |(server, group): (usize, Arc<TabletGroup>)| {
            let status = group.raft().status();
            RunningReplica { server, group, status }
        };
        let replicas: Vec<RunningReplica> = groups.map(running).collect();
        self.count_purges(now, &replicas);
        for RunningReplica { server, group, status } in replicas.iter().filter(|one| one.group.raft().is_running()) {
            let (name, id) = (&cluster.servers[*server].name, group.id());
            let applied_state = group.state_machine().applied_state();
            let (metadata, applied) = (&applied_state.metadata, applied_state.applied);
            let tablets = metadata.tablets.len();
            let state = format!("{id} n{tablets} t{} {} a{applied}", status.term, status.is_leader);
            cluster.trace.lock().note(now, name, "group", &state);
            let voters = metadata.descriptor.membership.voters.iter().flatten().copied();
            let Some(known) = self.voters.get_mut(&id) else {
                self.voters.insert(id, voters.collect());
                continue;
            };
            for replica in voters {
                if known.insert(replica) {
                    cluster.trace.lock().count(now, name, "replica-added", &format!("{id} {replica}"));
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
