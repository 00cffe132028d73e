//! Crashes exactly after one step of a move, a change of replicas, a transfer, a split, a merge or a division ([`Step`]).
//!
//! ```text
//!   observer   each host's runtime reports its steps; at the chosen one the host waits there
//!   crash      the host, the master, another tablet server or all tablet servers crash, and start again a moment later
//!   operator   drains servers in turn, so that replicas move; the other operations are requested by the overseer
//!   proof      besides the checks of all runs: no move is left half way, no folder without a replica, `ebla check` finds nothing
//! ```
//!
//! A step that is not reached is an error of the run: then the crash was not tested.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_client::Admin;
use ebla_client::admin::{CheckDepth, CheckMode, ExecutionMode};
use ebla_runtime::{Clock, Rng, Runtime, Step, StepObserver, Steps};
use ebla_tests::cluster::Node;
use ebla_tests::faults::fault::{Fault, FaultKind, Target};
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::cluster::{Phase, SimCluster};
use crate::drains;
use crate::load::any_address;
use crate::process::{Ran, run_concurrently, start_with};
use crate::time::{self, HostTime};

/// How long the crashed host is down.
const DOWN: Duration = Duration::from_millis(1_500);
/// The load runs this long before a step may be chosen.
const WARM_UP: Duration = Duration::from_secs(5);
/// Timeout until a check finds nothing: the master reconciles once a minute.
const CLEAN: Duration = Duration::from_secs(100);

/// The process that crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// The one that has done the step.
    Actor,
    /// The master.
    Master,
    /// A tablet server that has not done the step.
    Other,
    /// All tablet servers, simultaneously.
    Servers,
}

impl Victim {
    const ALL: [Self; 4] = [Self::Actor, Self::Master, Self::Other, Self::Servers];
}

/// The crash of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepCrash {
    step: Step,
    victim: Victim,
}

impl StepCrash {
    /// That of `EBLA_SIM_STEP` and `EBLA_SIM_VICTIM`; without the former none.
    pub(crate) fn chosen() -> Option<Self> {
        let name = std::env::var("EBLA_SIM_STEP").ok().filter(|name| !name.is_empty())?;
        let step = Step::ALL.into_iter().find(|step| format!("{step:?}") == name);
        let victim = std::env::var("EBLA_SIM_VICTIM").unwrap_or_else(|_| "Actor".to_owned());
        let victim = Victim::ALL.into_iter().find(|one| format!("{one:?}") == victim);
        assert!(step.is_some() && victim.is_some(), "EBLA_SIM_STEP={name}: no step or no victim of this name");
        Some(Self { step: step?, victim: victim? })
    }
}

/// The host that has reached the chosen step, and whether the crash was carried out.
#[derive(Debug)]
pub(crate) struct StepWatch {
    crash: StepCrash,
    /// The first host that has reached the step under load.
    reached: Mutex<Option<String>>,
    is_armed: AtomicBool,
    is_done: AtomicBool,
}

impl StepWatch {
    pub(crate) fn new(crash: StepCrash) -> Self {
        Self { crash, reached: Mutex::default(), is_armed: AtomicBool::new(false), is_done: AtomicBool::new(false) }
    }

    /// The steps of a host.
    pub(crate) fn steps_of(self: &Arc<Self>, host: &str) -> Steps {
        Steps::observed_by(Arc::new(HostSteps { watch: Arc::clone(self), host: host.to_owned() }))
    }

    /// The fault that is due: once, at the moment at which the step was reached.
    pub(crate) fn due(&self, cluster: &SimCluster) -> Option<Fault> {
        let Self { crash: StepCrash { step, victim }, .. } = self;
        if cluster.phase() != Phase::Load {
            return None;
        }
        self.is_armed.store(time::elapsed() > WARM_UP, Ordering::Relaxed);
        let actor = self.reached.lock().clone()?;
        if self.is_done.swap(true, Ordering::Relaxed) {
            return None;
        }
        let rng = Rng::seeded(cluster.seed);
        cluster.trace.lock().count(time::elapsed(), &actor, "step", &format!("{step:?} {victim:?}"));
        let nodes = cluster.nodes();
        let name = |node: &Node| cluster.host(*node).name.clone();
        let servers: Vec<Node> = nodes.iter().copied().filter(|node| matches!(node, Node::TabletServer(_))).collect();
        let others: Vec<Node> = servers.iter().copied().filter(|node| name(node) != actor).collect();
        let target = match victim {
            Victim::Actor => Target::Node(nodes.iter().copied().find(|node| name(node) == actor)?),
            Victim::Master => Target::Node(Node::Master(0)),
            Victim::Other => Target::Node(others[usize::try_from(rng.below(others.len() as u64)).unwrap()]),
            Victim::Servers => Target::Nodes(servers),
        };
        let kind = if rng.below(2) == 0 { FaultKind::Kill } else { FaultKind::PowerFailure };
        Some(Fault::new(kind, target, DOWN))
    }

    /// What is wrong if the step was not reached.
    pub(crate) fn verdict(&self) -> Option<String> {
        let is_done = self.is_done.load(Ordering::Relaxed);
        (!is_done).then(|| format!("not tested: no host has reached {:?} under load", self.crash.step))
    }
}

/// Reports the steps of one host.
struct HostSteps {
    watch: Arc<StepWatch>,
    host: String,
}

impl StepObserver for HostSteps {
    fn reached(&self, step: Step) -> BoxFuture<'static, ()> {
        let watch = Arc::clone(&self.watch);
        let is_chosen = step == watch.crash.step && watch.is_armed.load(Ordering::Relaxed);
        if !is_chosen || watch.is_done.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(()));
        }
        watch.reached.lock().get_or_insert_with(|| self.host.clone());
        // The host goes no further until the crash, which may be its own.
        Box::pin(async move {
            while !watch.is_done.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

/// Drains one server after the other while the load lasts, so that replicas and leaderships move; then no server is drained.
pub(crate) async fn operator(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("operator", &HostTime::default(), 0);
    crate::load::wait_for(&cluster, Phase::Load).await;
    for host in cluster.servers.iter().cycle() {
        let mut drained = None;
        let mut left = usize::MAX;
        while cluster.phase() == Phase::Load && left > 0 {
            tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(300))).await;
            // Its id is known only while it runs.
            let Some(server) = host.hosted().map(|hosted| hosted.server()) else { continue };
            drained = Some(server);
            let order = async |admin: Admin| admin.drain_server(ExecutionMode::Execute, server).await;
            if let Ok(reply) = drains::call(&cluster, &runtime, order).await {
                left = reply.replicas.len();
            }
        }
        if left == 0 {
            cluster.trace.lock().count(time::elapsed(), "operator", "drained", &host.name);
        }
        if let Some(server) = drained {
            drains::undrain(&cluster, &runtime, server).await;
        }
        if cluster.phase() != Phase::Load {
            return Ok(());
        }
    }
    Ok(())
}

/// What a check of the cluster still finds after a while: METADATA, the descriptors and the contents of all replicas are compared.
pub(crate) async fn prove(cluster: &SimCluster, runtime: &Runtime) -> Vec<String> {
    let end = time::elapsed() + CLEAN;
    loop {
        let admin = Admin::connect(&any_address(cluster, &runtime.rng), runtime);
        let checked =
            tokio::time::timeout(Duration::from_secs(20), admin.check(CheckDepth::Contents, CheckMode::ReadOnly));
        let wrong = match checked.await {
            Ok(Ok(found)) => {
                let silent = found.silent_servers.iter().map(|server| format!("check: server {server} is silent"));
                let findings = found.findings.iter().map(|finding| format!("check: {}", finding.problem));
                silent.chain(findings).collect()
            }
            Ok(Err(error)) => vec![format!("check: {error}")],
            Err(_elapsed) => vec!["check: no answer".to_owned()],
        };
        if wrong.is_empty() || time::elapsed() > end {
            return wrong;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What operations have left behind: moves that are not finished, and folders that belong to no replica.
pub(crate) fn leftovers(cluster: &SimCluster) -> Vec<String> {
    let mut wrong = Vec::new();
    for host in &cluster.servers {
        let Some(hosted) = host.hosted() else { continue };
        let mut expected = BTreeSet::new();
        for group in hosted.groups() {
            let id = group.raft().id();
            expected.insert(format!("g{}-r{}", id.group, id.replica));
            group.state_machine().with_state(|state| {
                let half = state.departures.keys().chain(state.arrivals.keys());
                wrong.extend(half.map(|tablet| format!("{}: tablet {tablet} is in the middle of a move", host.name)));
            });
        }
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(host.folder.join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        // The name of a folder that was installed ends with a number; an old one must be gone.
        let found = names("groups");
        let of_replicas: BTreeSet<String> =
            found.iter().map(|name| name.split('.').next().unwrap_or_default().to_owned()).collect();
        if of_replicas != expected || found.len() != expected.len() {
            wrong.push(format!("{}: folders {found:?} of the replicas {expected:?}", host.name));
        }
        wrong.extend(
            ["set-aside", "scratch"]
                .iter()
                .flat_map(|folder| names(folder))
                .map(|name| format!("{}: {name} is left", host.name)),
        );
    }
    wrong
}

/// The crashes of a run of the suite; `EBLA_SIM_TASK=steps` runs those of all victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Only those of the process that has done the step.
    Actors,
    /// All.
    All,
}

/// Crashes after each step; returns whether all runs passed.
pub(crate) fn all(choice: Choice) -> bool {
    let victims: &[Victim] = if choice == Choice::All { &Victim::ALL } else { &[Victim::Actor] };
    // The master is the actor of its own steps.
    let is_same = |step: Step, victim: Victim| {
        victim == Victim::Master && [Step::MoveOrdered, Step::ReplicaId, Step::ReplicaCreated].contains(&step)
    };
    let wanted = std::env::var("EBLA_STEP").ok();
    let crashes: Vec<StepCrash> = Step::ALL
        .into_iter()
        .flat_map(|step| victims.iter().map(move |victim| StepCrash { step, victim: *victim }))
        .filter(|crash| !is_same(crash.step, crash.victim))
        .filter(|crash| wanted.as_ref().is_none_or(|wanted| *wanted == format!("{:?}", crash.step)))
        .collect();
    let clock = Clock::system();
    let began = clock.monotonic();
    let count = crashes.len();
    let mut failed = 0;
    let run = |crash: StepCrash| {
        let (step, victim) = (format!("{:?}", crash.step), format!("{:?}", crash.victim));
        (crash, start_with(seed(crash), "steps", &[("EBLA_SIM_STEP", &step), ("EBLA_SIM_VICTIM", &victim)]))
    };
    run_concurrently(crashes.into_iter(), run, |(crash, ran): (StepCrash, Ran)| {
        if !ran.succeeded {
            failed += 1;
            let StepCrash { step, victim } = crash;
            println!("FAILED: crash of {victim:?} after {step:?}\n{}", ran.text);
            println!(
                "run it again: EBLA_SIM_PLAN=steps EBLA_SIM_STEP={step:?} EBLA_SIM_VICTIM={victim:?} make sim SEED={}",
                ran.seed
            );
        }
    });
    let took = clock.monotonic().saturating_sub(began).as_secs_f64();
    println!("{count} crashes after a step, {failed} failed, in {took:.1} s");
    failed == 0
}

/// Another one for each crash.
fn seed(crash: StepCrash) -> u64 {
    let of = |position: Option<usize>| position.unwrap_or_default() as u64;
    let step = of(Step::ALL.iter().position(|step| *step == crash.step));
    1 + 10 * step + of(Victim::ALL.iter().position(|victim| *victim == crash.victim))
}
