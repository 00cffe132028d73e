//! Two releases in one cluster, a rolling upgrade from one to the other under load, and attempts to go back.
//!
//! Processes of both releases run the same code. Those of the earlier one support the first cluster version only, so that nothing may use what
//! needs a later one until the last of them was replaced.
//!
//! ```text
//!   old        all processes run the earlier release
//!   mixed      processes are killed and start with any of the two
//!   upgrade    one after another starts with the later release, and a few with the earlier one again, until the later version is active
//!   rollbacks  some start with the earlier one and are refused
//!   end        all run the later release, and the later version is active
//! ```
//!
//! Checked all the time: no tablet server is registered that does not support the active version, none of them has received what its version does
//! not have, and no process that was not upgraded yet is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_chubby::{Chubby, paths};
use ebla_model::cluster_version::{ClusterVersion, Feature, SupportedVersions};
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_proto::{convert, record};
use ebla_runtime::Rng;
use ebla_tests::cluster::Node;
use ebla_tests::faults::fault::{Fault, FaultKind, Target};
use futures::FutureExt as _;
use parking_lot::Mutex;

use crate::cluster::{Phase, SimCluster, SimHost};

/// What processes of the earlier release support.
const EARLIER: SupportedVersions = SupportedVersions { oldest: ClusterVersion::FIRST, newest: ClusterVersion::FIRST };
/// What those of the later one support.
const LATER: SupportedVersions = SupportedVersions::OWN;

/// When the upgrade begins after the load: first all processes are of the earlier release, then of any.
const STAGES: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(10)];
/// About the time between two processes that are killed to start again.
const BETWEEN: Duration = Duration::from_millis(1_000);
/// About how long a process that is replaced is down: most are not, and some for longer than a lease.
const DOWN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(4)];

/// How long the last server of the earlier release is down after a crash: longer than its lease, and than every process must support a version.
const LAST_DOWN: Duration = Duration::from_secs(10);

/// What a host has run.
#[derive(Debug)]
pub(crate) struct HostRelease {
    /// Its present or last process.
    running: SupportedVersions,
    /// Whether a process of the later release has run on it.
    is_upgraded: bool,
    /// Whether its last process was refused because of its version.
    is_refused: bool,
    /// When a process that is replaced is back at the latest.
    down_until: Duration,
    /// Whether its next process is of the same release: it has only crashed.
    has_crashed: bool,
}

impl Default for HostRelease {
    fn default() -> Self {
        Self { running: LATER, is_upgraded: false, is_refused: false, down_until: Duration::ZERO, has_crashed: false }
    }
}

/// The operator who replaces the processes.
#[derive(Debug)]
pub(crate) struct Rollout {
    rng: Rng,
    /// When the load began.
    began: Mutex<Option<Duration>>,
    /// When the next process is killed.
    next_at: Mutex<Duration>,
    /// The version that was last seen active.
    active: Mutex<ClusterVersion>,
    /// Whether the last server of the earlier release has crashed before it was upgraded.
    has_last_crashed: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Old,
    Mixed,
    Upgrade,
    Rollbacks,
    End,
}

impl Rollout {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            began: Mutex::default(),
            next_at: Mutex::default(),
            active: Mutex::default(),
            has_last_crashed: AtomicBool::new(false),
        }
    }

    /// For how long every process must support the later version.
    pub(crate) fn upgrade_delay(&self) -> Duration {
        Duration::from_millis(300 + self.rng.below(700))
    }

    fn stage(&self, phase: Phase, now: Duration) -> Stage {
        match phase {
            Phase::Boot => return Stage::Old,
            Phase::Load => {}
            Phase::Drain | Phase::Converge => return Stage::End,
        }
        let loaded = now.saturating_sub(*self.began.lock().get_or_insert(now));
        match STAGES.into_iter().position(|end| loaded < end) {
            Some(0) => Stage::Old,
            Some(_) => Stage::Mixed,
            None if *self.active.lock() < LATER.newest => Stage::Upgrade,
            None => Stage::Rollbacks,
        }
    }

    /// The versions that the next process of a host supports.
    pub(crate) fn next_release(&self, phase: Phase, host: &SimHost, now: Duration) -> SupportedVersions {
        let mut release = host.release.lock();
        if std::mem::take(&mut release.has_crashed) {
            return release.running;
        }
        let earlier_of_ten = match self.stage(phase, now) {
            Stage::Old => 10,
            Stage::Mixed => 5,
            Stage::Upgrade if release.running == LATER => 5,
            Stage::Rollbacks if !release.is_refused => 5,
            Stage::Rollbacks | Stage::Upgrade | Stage::End => 0,
        };
        release.running = if self.rng.below(10) < earlier_of_ten { EARLIER } else { LATER };
        release.is_upgraded |= release.running == LATER;
        release.is_refused = false;
        release.running
    }

    /// The process to replace now, if it is time for one.
    pub(crate) fn due(&self, cluster: &SimCluster, now: Duration) -> Option<Fault> {
        let stage = self.stage(cluster.phase(), now);
        let mut next_at = self.next_at.lock();
        if stage == Stage::Old || now < *next_at {
            return None;
        }
        let rng = &self.rng;
        let runs = |node: &Node| cluster.host(*node).release.lock().down_until <= now;
        let nodes: Vec<Node> = cluster.nodes().into_iter().filter(runs).collect();
        let is_earlier = |node: &Node| cluster.host(*node).release.lock().running == EARLIER;
        let any = |nodes: &[Node]| {
            let number = usize::try_from(rng.below(nodes.len().max(1) as u64)).unwrap_or_default();
            nodes.get(number).copied()
        };
        // One after another, but for the stage that mixes them at random.
        if stage != Stage::Mixed && nodes.len() < cluster.nodes().len() {
            return None;
        }
        // Each new master takes seconds, and without one no version becomes active.
        let (servers, masters): (Vec<Node>, Vec<Node>) =
            nodes.iter().partition(|node| matches!(node, Node::TabletServer(_)));
        let of_later = if rng.below(8) == 0 { &masters } else { &servers };
        let of_earlier: Vec<Node> = nodes.iter().copied().filter(is_earlier).collect();
        // The later version needs some time without one of the earlier release.
        let is_upgraded = stage == Stage::Upgrade && of_earlier.is_empty();
        let pause = if is_upgraded { BETWEEN * 2 } else { BETWEEN };
        *next_at = now + rng.jitter(pause);
        let node = match stage {
            Stage::Mixed => any(&nodes),
            // Masters first, so that the last one is a tablet server.
            Stage::Upgrade if of_earlier.iter().any(|node| masters.contains(node)) => {
                of_earlier.iter().copied().find(|node| masters.contains(node))
            }
            Stage::Upgrade | Stage::Rollbacks => any(&of_earlier).or_else(|| any(of_later)),
            Stage::Old | Stage::End => any(&of_earlier),
        }?;
        let host = cluster.host(node);
        let is_last = stage == Stage::Upgrade && of_earlier == [node] && matches!(node, Node::TabletServer(_));
        let down = if is_last && !self.has_last_crashed.swap(true, Ordering::Relaxed) {
            host.release.lock().has_crashed = true;
            LAST_DOWN
        } else {
            rng.jitter(DOWN[usize::from(!is_upgraded && rng.below(4) == 0)])
        };
        // The fault may find it down for another reason, and has no effect then.
        host.release.lock().down_until = now + down;
        cluster.trace.lock().count(now, &host.name, "replaced", "");
        Some(Fault::new(FaultKind::Kill, Target::Node(node), down))
    }
}

/// Notes that a process has ended by an error.
pub(crate) fn note_error(cluster: &SimCluster, host: &SimHost, error: &Error, now: Duration) {
    let mut release = host.release.lock();
    if error.reason != Reason::FailedPrecondition || release.running != EARLIER {
        return;
    }
    release.is_refused = true;
    cluster.trace.lock().count(now, &host.name, "refused-version", "");
    if !release.is_upgraded {
        let wrong = format!("refused: {} was never upgraded and is refused at {now:?}: {error}", host.name);
        cluster.history.lock().wrong.push(wrong);
    }
}

/// Whether the load uses what the cluster does not have yet, which is refused.
pub(crate) fn is_refusal(error: &Error) -> bool {
    error.reason == Reason::FailedPrecondition && error.message.contains("need cluster version")
}

/// What the lock service knows: the active version, and the tablet servers of the earlier release.
fn registered(cluster: &SimCluster) -> Option<(ClusterVersion, Vec<record::Server>)> {
    let chubby = cluster.chubby.get()?.files();
    // The embedded service answers at once.
    let file = chubby.read(paths::CLUSTER).now_or_never()?.ok()??;
    let active = convert::active_version(&convert::decode_record::<record::Cluster>(file.value).ok()?);
    let (files, _revision) = chubby.list(paths::SERVERS).now_or_never()?.ok()?;
    let servers = files.into_iter().filter_map(|file| convert::decode_record::<record::Server>(file.value).ok());
    let is_earlier = |server: &record::Server| convert::supported_from_proto(server.versions.as_ref()) == EARLIER;
    Some((active, servers.filter(is_earlier).collect()))
}

/// Checks that no registered server is met by what its version does not have.
pub(crate) fn check(cluster: &SimCluster, now: Duration) {
    let Some((active, servers)) = registered(cluster) else { return };
    let rollout = cluster.rollout.as_ref().unwrap();
    if std::mem::replace(&mut *rollout.active.lock(), active) < active {
        cluster.trace.lock().count(now, "chubby", "version-activated", &active.to_string());
    }
    for server in servers {
        let Some(host) = cluster.servers.iter().find(|host| host.address() == server.address) else { continue };
        let name = &host.name;
        let mut wrong = Vec::new();
        if active > EARLIER.newest {
            wrong.push(format!("mixed: version {active} is active, and {name} supports {EARLIER}, at {now:?}"));
        }
        // The registration outlives the process by its lease.
        if host.release.lock().running == EARLIER {
            wrong.extend(
                later_content(host).map(|what| format!("mixed: {name} supports {EARLIER} and has {what} at {now:?}")),
            );
        }
        cluster.history.lock().wrong.extend(wrong);
    }
}

/// What a host has that the first version does not have.
fn later_content(host: &SimHost) -> Option<String> {
    let hosted = host.hosted()?;
    for group in hosted.groups() {
        let applied_state = group.state_machine().applied_state();
        let metadata = &applied_state.metadata;
        if let Some(copy) = metadata.copies.values().next() {
            return Some(format!("a copy ahead of its move, {copy:?}, in group {}", group.id()));
        }
        // The schema of METADATA is part of each release.
        for tablet in metadata.tablets.values().filter(|tablet| tablet.table.schema.table != TableId::METADATA) {
            let features = [Feature::AggregateFamilies, Feature::LocalityGroups, Feature::Quotas];
            if let Some(feature) = features.into_iter().find(|feature| feature.is_used_by(&tablet.table.schema)) {
                return Some(format!("{} in table {}", feature.name(), tablet.table.schema.name));
            }
        }
    }
    None
}

/// Whether every process runs the later release and its version is active.
pub(crate) fn is_complete(cluster: &SimCluster) -> bool {
    let is_later = |host: &SimHost| host.release.lock().running == LATER;
    registered(cluster).is_some_and(|(active, _)| active == LATER.newest) && cluster.hosts().all(is_later)
}
