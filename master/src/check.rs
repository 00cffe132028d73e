//! The check of a cluster that an operator requests (`ebla check`): observes everything, finds what is not as it should be
//! ([`crate::plan::check`]), and repairs what the reconciler would repair in its next rounds.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::{LogId, ReplicaId, ServerId, TabletId};
use ebla_proto::{control, convert, operate};
use futures::FutureExt as _;
use futures::future::join_all;
use tracing::info;

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::observation::ReadRows;
use crate::plan::auto_merge::{MergeContext, MergeMemory, MergeRules};
use crate::plan::check::{Contents, Finding, Remedy, ReplicaContent, findings, not_comparable};
use crate::plan::failure_detector::FailureDetector;
use crate::plan::false_rows::false_rows;
use crate::plan::load_settling::Loads;
use crate::plan::repair::PlanContext;
use crate::plan::replica_balance::ReplicaBalance;
use crate::plan::{Action, plan};
use crate::{observation, reconciler, restoration};

/// How often replicas are read again that have not applied the same entry, because the tablet is written to.
const COMPARISONS_MAX: usize = 3;
/// The pause before that.
const COMPARISON_PAUSE: Duration = Duration::from_millis(200);
/// Nothing counts as dead in a check: whether replicas must be replaced is left to the reconciler.
const GRACE: Duration = Duration::from_secs(3_600);
/// How often a repair is repeated while it makes progress: a repaired row may show another one.
const REPAIRS_MAX: usize = 4;

/// Checks the cluster, and with `request.repair` repairs what it can.
///
/// # Errors
/// When Chubby or METADATA cannot be read, or an action fails.
pub(crate) async fn check(master: &ActiveMaster, request: operate::CheckRequest) -> Result<operate::CheckReply, Error> {
    let mut repaired = Vec::new();
    let servers = observation::observe_servers(master).await?;
    let (snapshot, actions) = restoration::lost(master, &servers).await?;
    if !actions.is_empty() && !request.repair {
        // METADATA may not be readable without it.
        return Ok(reply(&Observed { snapshot, actions }, &Contents::default(), repaired));
    }
    if !actions.is_empty() {
        master.check_not_behind().await?;
        let restored = restoration::restore(master, &servers).await?;
        let found = findings(&snapshot, &restored, &Contents::default());
        repaired.extend(found.into_iter().filter(|one| one.remedy == Remedy::Master).map(|one| one.problem));
    }
    let mut observed = observe(master).await?;
    for _ in 0..REPAIRS_MAX {
        let repairable = findings(&observed.snapshot, &observed.actions, &Contents::default());
        let repairable: Vec<Finding> = repairable.into_iter().filter(|one| one.remedy == Remedy::Master).collect();
        if !request.repair || repairable.is_empty() {
            break;
        }
        master.check_not_behind().await?;
        for action in &observed.actions {
            reconciler::execute(master, action).await?;
        }
        // What the reconciler alone can do, such as a new replica.
        master.request_reconcile();
        observed = observe(master).await?;
        let left = findings(&observed.snapshot, &observed.actions, &Contents::default());
        let done: Vec<String> =
            repairable.into_iter().filter(|one| !left.contains(one)).map(|one| one.problem).collect();
        if done.is_empty() {
            break;
        }
        done.iter().for_each(|problem| info!(problem, "repaired by a check"));
        repaired.extend(done);
    }
    let contents = if request.quick { Contents::default() } else { read_contents(master, &observed.snapshot).await };
    Ok(reply(&observed, &contents, repaired))
}

/// The cluster, and what the planner would do.
struct Observed {
    snapshot: ClusterSnapshot,
    actions: Vec<Action>,
}

async fn observe(master: &ActiveMaster) -> Result<Observed, Error> {
    let servers = observation::observe_servers(master).await?;
    let ReadRows { rows: metadata, damaged: damaged_rows } = observation::read_metadata(master).await?;
    let root = master.directory().root_tablet();
    let mut snapshot = ClusterSnapshot { servers, metadata, damaged_rows, root, ..ClusterSnapshot::default() };
    snapshot.servers.extend(observation::observe_unregistered(master, &snapshot).await);
    let snapshot = observation::with_chubby(master, snapshot).await?;
    let now = master.runtime().clock.monotonic();
    let mut failures = FailureDetector::default();
    failures.observe(&snapshot, now);
    let (replicas, in_progress) = (master.replicas(), master.replica_changes().in_progress());
    // Merges and balance change what is right.
    let merges = MergeContext { rules: MergeRules::OFF, memory: MergeMemory::default() };
    let (balance, loads) = (ReplicaBalance::Off, Loads::New);
    let ctx = PlanContext { now, grace: GRACE, replicas, failures, in_progress, balance, loads, merges };
    let mut actions = plan(&snapshot, &ctx);
    if !false_rows(&snapshot).is_empty() {
        // These servers reported before the rows were read.
        let servers = observation::observe_servers(master).await?;
        actions.extend(false_rows(&ClusterSnapshot { servers, ..snapshot.clone() }));
    }
    Ok(Observed { snapshot, actions })
}

/// The contents of all replicas that run. Those of a tablet that is written to are read some times.
async fn read_contents(master: &ActiveMaster, snapshot: &ClusterSnapshot) -> Contents {
    let mut contents = Contents::default();
    let mut wanted: Option<BTreeSet<TabletId>> = None;
    for attempt in 0..COMPARISONS_MAX {
        if attempt > 0 {
            tokio::time::sleep(master.runtime().rng.jitter(COMPARISON_PAUSE)).await;
        }
        let tablets: Vec<u64> = wanted.iter().flatten().map(|tablet| tablet.get()).collect();
        let servers = snapshot.servers.iter().filter(|(_id, server)| server.report.is_some()).map(|(id, _server)| *id);
        let requests = servers.map(|server| {
            let tablets = tablets.clone();
            async move { (server, master.servers().digest(server, tablets).await) }.boxed()
        });
        let mut read = Contents::default();
        for (server, reply) in join_all(requests).await {
            match reply {
                Ok(reply) => reply.replicas.into_iter().for_each(|replica| add_content(&mut read, server, replica)),
                Err(error) => drop(read.unreadable.insert((server, None), error.error.message)),
            }
        }
        contents.replicas.extend(read.replicas);
        contents.unreadable.extend(read.unreadable);
        let left = not_comparable(&contents);
        if left.is_empty() {
            break;
        }
        wanted = Some(left);
    }
    contents
}

fn add_content(contents: &mut Contents, server: ServerId, replica: control::ReplicaDigest) {
    let tablet = TabletId::new(replica.tablet);
    if replica.unreadable.is_empty() {
        contents.replicas.entry(tablet).or_default().push(content(server, &replica));
    } else {
        contents.unreadable.insert((server, Some(tablet)), replica.unreadable);
    }
}

fn content(server: ServerId, replica: &control::ReplicaDigest) -> ReplicaContent {
    ReplicaContent {
        server,
        replica: ReplicaId::new(replica.replica),
        applied: replica.applied.as_ref().map_or_else(LogId::default, convert::log_id_from_proto),
        digest: (replica.cells, replica.cells_crc32c, replica.state_crc32c),
    }
}

fn reply(observed: &Observed, contents: &Contents, repaired: Vec<String>) -> operate::CheckReply {
    let Observed { snapshot, actions } = observed;
    let left = not_comparable(contents);
    let silent = snapshot.servers.iter().filter(|(_id, server)| server.report.is_none()).map(|(id, _server)| *id);
    let assigned = snapshot.assigned_servers();
    let absent = assigned.into_iter().filter(|id| !snapshot.servers.contains_key(id));
    let finding = |finding: Finding| operate::CheckFinding {
        problem: finding.problem,
        next_step: match finding.remedy {
            Remedy::Master => String::new(),
            Remedy::Operator(step) => step.to_owned(),
        },
        repairable: finding.remedy == Remedy::Master,
    };
    operate::CheckReply {
        tables: snapshot.tables.len() as u64,
        tablets: snapshot.tablets().len() as u64,
        compared: contents.replicas.keys().filter(|tablet| !left.contains(tablet)).count() as u64,
        not_compared: left.len() as u64,
        silent_servers: silent.chain(absent).map(ServerId::get).collect::<BTreeSet<_>>().into_iter().collect(),
        findings: findings(snapshot, actions, contents).into_iter().map(finding).collect(),
        repaired,
    }
}
