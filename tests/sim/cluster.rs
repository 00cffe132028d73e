//! The simulated cluster: the shared state that survives crashes of hosts, and the processes of the hosts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ebla_master::plan::auto_merge::MergeRules;
use ebla_master::plan::replica_balance::ReplicaBalance;
use ebla_master::{Master, MasterConfig};
use ebla_model::cluster_version::SupportedVersions;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_model::time::whole_micros;
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Blocking, Net, Rng, Runtime, Tasks};
use ebla_storage::disk::SimDisk;
use ebla_storage::store::StoreOptions;
use ebla_tablet_server::config::{ScrubOptions, Threads};
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::TabletManager;
use ebla_tablet_server::{RestartScope, ServerConfig, ServerOptions, TabletServer};
use ebla_tests::cluster::Node;
use ebla_tests::faults::rates::Recurring;
use ebla_tests::mounts::MountHistory;
use parking_lot::Mutex;

use crate::chubby::{Link, LinkedChubby, LockService};
use crate::history::History;
use crate::large::LargeRows;
use crate::lost::Loss;
use crate::names;
use crate::net::SimNet;
use crate::plan::Plan;
use crate::restored::Restoration;
use crate::rot::{self, Damaged};
use crate::slow::HostSyncs;
use crate::space::{self, HostSpace};
use crate::steps::StepWatch;
use crate::time::{self, HostTime};
use crate::trace::Trace;
use crate::versions::{self, HostRelease, Rollout};

/// Where every tablet server listens.
pub(crate) const SERVER_PORT: u16 = 8086;
/// Where every master listens.
const MASTER_PORT: u16 = 9000;
/// Timings of the Raft groups: shorter than in production, for more elections in a run.
pub(crate) const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(150),
    election_max: Duration::from_millis(500),
};
/// The budget of a commit log that is never reached, and the size of its segments: a run turns over a few.
const LARGE_LOG: (u64, u64) = (1 << 30, 256 << 10);
/// Segments are collected during a run, and servers that were down need snapshots.
const SMALL_LOG: (u64, u64) = (128 << 10, 32 << 10);
/// The same with a few entries of several MiB, so that servers that were down for a short time do not need snapshots.
const SMALL_LOG_OF_LARGE_VALUES: (u64, u64) = (8 << 20, 1 << 20);

/// All stores are read again and again where files rot, so that damage which no read meets is found before the end.
const SCRUB: ScrubOptions =
    ScrubOptions { first_after: Duration::from_secs(8), period: Duration::from_secs(15), bytes_per_second: 1 << 30 };

/// Timeouts after which a failed server is replaced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FailureTimeouts {
    /// Lease timeout and repair grace; `None`: as in production, which is hardly reached within a run.
    short: Option<(Duration, Duration)>,
}

impl FailureTimeouts {
    /// A few seconds.
    pub(crate) fn short(rng: &Rng) -> Self {
        let lease = Duration::from_millis(1_500 + rng.below(1_500));
        Self { short: Some((lease, Duration::from_millis(500 + rng.below(2_500)))) }
    }

    /// As short as possible without replacing servers that only restart.
    pub(crate) fn fixed() -> Self {
        Self { short: Some((Duration::from_secs(2), Duration::from_secs(2))) }
    }

    /// The time after which a failed server has been replaced.
    pub(crate) fn end(self) -> Option<Duration> {
        self.short.map(|(lease, grace)| lease + grace)
    }
}

/// Phases of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Wait until there is a table.
    Boot,
    /// Load, whatever fails.
    Load,
    /// No new operations.
    Drain,
    /// All faults are healed: every operation must succeed.
    Converge,
}

/// The links that hold messages back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holds {
    now: usize,
    /// When the last one ended.
    ended: Option<Duration>,
}

impl Holds {
    pub(crate) fn begin(&mut self) {
        self.now += 1;
    }

    pub(crate) fn end(&mut self, at: Duration) {
        self.now -= 1;
        self.ended = Some(at);
    }

    /// Whether any link has held messages back since this time.
    pub(crate) fn is_since(&self, time: Duration) -> bool {
        self.now > 0 || self.ended.is_some_and(|ended| ended >= time)
    }
}

/// One simulated host, which may crash.
pub(crate) struct SimHost {
    pub(crate) name: String,
    pub(crate) disk: SimDisk,
    pub(crate) folder: PathBuf,
    pub(crate) time: HostTime,
    pub(crate) link: Arc<Link>,
    /// Counts the runs of its process.
    runs: AtomicU64,
    /// The process failed and must be restarted.
    pub(crate) failed: AtomicBool,
    pub(crate) space: HostSpace,
    pub(crate) syncs: HostSyncs,
    /// Whether bytes of the registry have changed.
    pub(crate) has_rotten_registry: AtomicBool,
    /// The replicas of the running process, on a tablet server.
    hosted: Mutex<Weak<TabletManager>>,
    /// What its processes support.
    pub(crate) release: Mutex<HostRelease>,
}

/// State shared by all hosts.
pub(crate) struct SimCluster {
    pub(crate) seed: u64,
    /// Whether workers also overwrite the same rows repeatedly.
    pub(crate) owns: bool,
    /// The size of the values of these rows, at least.
    pub(crate) value_bytes: usize,
    /// Whether a client checks a maximum age.
    pub(crate) ages: bool,
    /// See [`Plan::leaps`].
    pub(crate) leaps: bool,
    /// The two servers that `beside` wants to be down, until they are.
    pub(crate) outage: Mutex<Option<[usize; 2]>>,
    /// Client hosts that count.
    pub(crate) counters: u64,
    pub(crate) failure_timeouts: FailureTimeouts,
    /// Whether the master moves replicas between healthy servers.
    balance: ReplicaBalance,
    /// How long adjacent tablets must be quiet until the master merges them; `None`: it merges none.
    merge_after: Option<Duration>,
    /// Whether commit logs are small.
    purges_logs: bool,
    /// See [`Plan::apply_delay`].
    apply_delay: Option<Duration>,
    metadata_split_bytes: Option<u64>,
    /// Whether files rot.
    pub(crate) rots: bool,
    /// Whether slow disks are the only faults.
    pub(crate) is_only_slow: bool,
    /// The file that has rotted last, until that is repaired.
    pub(crate) damaged: Mutex<Option<Damaged>>,
    /// The groups that have fewer voters than others, as they were last known.
    pub(crate) incomplete_groups: Mutex<BTreeSet<GroupId>>,
    /// The crash after a step, if the plan has one.
    pub(crate) step_watch: Option<Arc<StepWatch>>,
    /// The loss of a majority, if there was one.
    pub(crate) loss: Mutex<Option<Loss>>,
    /// The restoration of the lock service, if the plan has one.
    pub(crate) restoration: Mutex<Restoration>,
    /// The operator who replaces the processes of an earlier release, if there are some.
    pub(crate) rollout: Option<Rollout>,
    /// Whether answers to clients are lost around divisions.
    pub(crate) loses_answers: bool,
    /// Users of names that send pairs of calls.
    pub(crate) duels: u32,
    /// The number of groups for tables before the load begins, if there are more than the master creates.
    pub(crate) groups: Option<usize>,
    /// The bytes of the largest values of the client that writes large ones; `None`: there is none.
    pub(crate) value_bytes_max: Option<u64>,
    /// The rows of that client.
    pub(crate) large_rows: Mutex<LargeRows>,
    pub(crate) trace: Mutex<Trace>,
    pub(crate) history: Mutex<History>,
    pub(crate) phase: Mutex<Phase>,
    pub(crate) chubby: OnceLock<LockService>,
    pub(crate) servers: Vec<SimHost>,
    pub(crate) masters: Vec<SimHost>,
    /// Servers of the mounttable; none in most runs.
    pub(crate) mounttables: Vec<SimHost>,
    /// The links that hold messages back.
    pub(crate) holds: Mutex<Holds>,
    /// All hosts of the simulation by name, also that of the clients.
    pub(crate) host_names: Vec<String>,
    /// What is known of the names in it.
    pub(crate) names: Mutex<MountHistory>,
    /// Client hosts whose operations have all ended.
    pub(crate) drained: AtomicU64,
    /// Result of the final checks: the anomalies.
    pub(crate) result: Mutex<Option<Vec<String>>>,
}

impl SimHost {
    /// `record_delay`: by how much its writes of the cluster record are late.
    fn new(name: String, folder: &Path, rng: &Rng, record_delay: Duration) -> Self {
        Self {
            folder: folder.join(&name),
            disk: SimDisk::new(),
            time: HostTime::default(),
            link: Link::new(rng.fork(), record_delay),
            runs: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            space: HostSpace::default(),
            syncs: HostSyncs::default(),
            has_rotten_registry: AtomicBool::new(false),
            hosted: Mutex::default(),
            release: Mutex::default(),
            name,
        }
    }

    /// The replicas, when the process runs.
    pub(crate) fn hosted(&self) -> Option<Arc<TabletManager>> {
        self.hosted.lock().upgrade()
    }

    /// `host:port` that a tablet server is reached by.
    pub(crate) fn address(&self) -> String {
        format!("{}:{SERVER_PORT}", self.name)
    }
}

impl SimCluster {
    pub(crate) fn new(plan: &Plan, folder: &Path, trace: Trace) -> Arc<Self> {
        let rng = Rng::seeded(plan.seed ^ 0x5eed_11e5);
        let hosts = |kind: &str, count: usize| -> Vec<SimHost> {
            (1..=count)
                .map(|number| SimHost::new(format!("{kind}-{number}"), folder, &rng, plan.record_delay))
                .collect()
        };
        Arc::new(Self {
            seed: plan.seed,
            owns: plan.owns,
            value_bytes: plan.value_bytes,
            ages: plan.ages,
            leaps: plan.leaps,
            outage: Mutex::default(),
            counters: plan.counters,
            failure_timeouts: plan.failure_timeouts,
            balance: plan.balance,
            merge_after: plan.merge_after,
            purges_logs: plan.purges_logs,
            apply_delay: plan.apply_delay,
            metadata_split_bytes: plan.metadata_split_bytes,
            rots: [Recurring::Rot, Recurring::RotRace].iter().any(|kind| plan.fault_rates.rates.recurs(*kind)),
            is_only_slow: plan.is_only_slow,
            damaged: Mutex::default(),
            incomplete_groups: Mutex::default(),
            step_watch: plan.step_crash.map(|crash| Arc::new(StepWatch::new(crash))),
            loss: Mutex::default(),
            restoration: Mutex::default(),
            rollout: plan.mixes_versions.then(|| Rollout::new(Rng::seeded(plan.seed ^ 0x4e1ea5e))),
            loses_answers: plan.loses_answers,
            duels: plan.duels,
            groups: plan.groups,
            value_bytes_max: plan.value_bytes_max,
            large_rows: Mutex::default(),
            trace: Mutex::new(trace),
            history: Mutex::default(),
            phase: Mutex::new(Phase::Boot),
            chubby: OnceLock::new(),
            servers: hosts("server", plan.servers),
            masters: hosts("master", plan.masters),
            mounttables: hosts("mounttable", if plan.names { names::SERVERS } else { 0 }),
            holds: Mutex::default(),
            host_names: plan.host_names(),
            names: Mutex::default(),
            drained: AtomicU64::new(0),
            result: Mutex::default(),
        })
    }

    pub(crate) fn note(&self, node: &str, kind: &str, what: &str) {
        self.trace.lock().note(time::elapsed(), node, kind, what);
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// The nodes that can fail: all hosts.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let servers = (0..self.servers.len()).map(Node::TabletServer);
        let masters = (0..self.masters.len()).map(Node::Master);
        servers.chain(masters).chain((0..self.mounttables.len()).map(Node::Mounttable)).collect()
    }

    /// Whether the process of a host has ended by an error and is not started again yet.
    pub(crate) fn has_failed_host(&self) -> bool {
        self.hosts().any(|host| host.failed.load(Ordering::Relaxed))
    }

    /// All hosts that can fail.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &SimHost> {
        self.servers.iter().chain(&self.masters).chain(&self.mounttables)
    }

    /// The host of a node.
    pub(crate) fn host(&self, node: Node) -> &SimHost {
        match node {
            Node::TabletServer(number) => &self.servers[number],
            Node::Master(number) => &self.masters[number],
            Node::Mounttable(number) => &self.mounttables[number],
            Node::Etcd(_) => unreachable!("{node} is not simulated"),
        }
    }

    /// The runtime of one run of a host's process. Must be called on the host.
    pub(crate) fn runtime(&self, name: &str, time: &HostTime, run: u64) -> Runtime {
        time.register();
        let mut salt = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run;
        for byte in name.bytes() {
            salt = salt.wrapping_mul(31).wrapping_add(u64::from(byte));
        }
        Runtime {
            clock: time.clock(),
            rng: Rng::seeded(salt),
            net: Net::custom(Arc::new(SimNet)),
            tasks: Tasks::new(name),
            steps: self.step_watch.as_ref().map(|watch| watch.steps_of(name)).unwrap_or_default(),
        }
    }

    pub(crate) fn begin(&self, host: &SimHost) -> Runtime {
        let run = host.runs.fetch_add(1, Ordering::Relaxed);
        host.link.forget();
        self.note(&host.name, "start", &run.to_string());
        self.runtime(&host.name, &host.time, run)
    }

    /// The versions that the next process of a host supports.
    fn next_release(&self, host: &SimHost) -> SupportedVersions {
        let Some(rollout) = &self.rollout else { return SupportedVersions::OWN };
        let next = rollout.next_release(self.phase(), host, time::elapsed());
        self.note(&host.name, "supports", &next.to_string());
        next
    }

    pub(crate) async fn service(&self) -> &LockService {
        loop {
            if let Some(service) = self.chubby.get() {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// By how much a batch of entries is applied late.
fn lateness(max: Duration, rng: &Rng) -> Duration {
    if rng.below(4) > 0 { Duration::ZERO } else { Duration::from_micros(rng.below(whole_micros(max))) }
}

/// The process of a tablet server.
pub(crate) async fn tablet_server(cluster: Arc<SimCluster>, number: usize) -> turmoil::Result {
    let host = &cluster.servers[number];
    let runtime = cluster.begin(host);
    let chubby = LinkedChubby::shared(cluster.service().await, &host.link, &runtime.tasks);
    let disk = host.disk.clone();
    let mut options = ServerOptions::server();
    options.store = StoreOptions { cache_bytes: 8 << 20, memtable_bytes: 16 << 20, ..StoreOptions::up() };
    options.timings = TIMINGS;
    if let Some((lease, _grace)) = cluster.failure_timeouts.short {
        options.lease_ttl = lease;
    }
    options.restart = RestartScope::Server;
    options.versions = cluster.next_release(host);
    let (log_bytes, segment_bytes) = match (cluster.purges_logs, cluster.value_bytes_max.is_some()) {
        (false, _) => LARGE_LOG,
        (true, false) => SMALL_LOG,
        (true, true) => SMALL_LOG_OF_LARGE_VALUES,
    };
    options.log_bytes = ByteSize::new(log_bytes);
    options.segment_bytes = ByteSize::new(segment_bytes);
    if let Some(bytes) = cluster.metadata_split_bytes {
        options.metadata_split_bytes = ByteSize::new(bytes);
    }
    let late = |max| {
        let rng = runtime.rng.fork();
        Blocking::late(move || lateness(max, &rng))
    };
    let apply = cluster.apply_delay.map_or_else(Blocking::inline, late);
    options.threads = Threads::Inline { sync: host.syncs.latency(), apply };
    options.open_disk = Arc::new(move |_folder| Ok(Arc::new(disk.clone())));
    if cluster.rots {
        options.scrub = SCRUB;
    }
    // Those of the machine differ from run to run.
    let probe = host.space.probe();
    options.resources = Arc::new(move |_folder, _reserve| Arc::clone(&probe));
    let config = ServerConfig {
        data_dir: host.folder.clone(),
        listen: format!("0.0.0.0:{SERVER_PORT}"),
        advertise: Some(host.address()),
        options,
    };
    match TabletServer::start(config, chubby, runtime).await {
        Ok(server) => {
            *host.hosted.lock() = Arc::downgrade(server.tablet_manager());
            cluster.note(&host.name, "serves", &server.id().to_string());
            space::fail_stores(host);
            let error = tokio::select! {
                error = server.failed() => error,
                error = server.registration_refused(), if cluster.rollout.is_some() => error,
            };
            // The power of the disk has failed, and that of the host is about to.
            if host.disk.loses_power() {
                return std::future::pending().await;
            }
            give_up(&cluster, host, &error).await
        }
        Err(error) => {
            if error.reason == Reason::DataDamaged && rot::empty(host) {
                cluster.note(&host.name, "emptied", "");
            }
            give_up(&cluster, host, &error).await
        }
    }
}

/// Waits for a restart of the process, which has ended by an error.
pub(crate) async fn give_up(cluster: &SimCluster, host: &SimHost, error: &Error) -> turmoil::Result {
    tracing::warn!(host = host.name, %error, "process ended");
    cluster.note(&host.name, "failed", error.reason.name());
    if cluster.rollout.is_some() {
        versions::note_error(cluster, host, error, time::elapsed());
    }
    host.failed.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// The process of a master.
pub(crate) async fn master(cluster: Arc<SimCluster>, number: usize) -> turmoil::Result {
    let host = &cluster.masters[number];
    let runtime = cluster.begin(host);
    let chubby = LinkedChubby::shared(cluster.service().await, &host.link, &runtime.tasks);
    let replicas = cluster.servers.len().min(3);
    let mut config = MasterConfig::new(&format!("0.0.0.0:{MASTER_PORT}"), replicas);
    config.advertise = Some(format!("{}:{MASTER_PORT}", host.name));
    config.replica_balance = cluster.balance;
    config.merges = match cluster.merge_after {
        Some(merge_after) => MergeRules { merge_after, ..MergeRules::default() },
        None => MergeRules::OFF,
    };
    if let Some((lease, grace)) = cluster.failure_timeouts.short {
        (config.lease_ttl, config.repair_grace) = (lease, grace);
    }
    config.versions = cluster.next_release(host);
    if let Some(rollout) = &cluster.rollout {
        config.upgrade_delay = rollout.upgrade_delay();
    }
    match Master::start(config, chubby, runtime).await {
        Ok(_master) => std::future::pending().await,
        Err(error) => give_up(&cluster, host, &error).await,
    }
}

/// The lock service, which does not crash.
pub(crate) async fn lock_service(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("chubby", &HostTime::default(), 0);
    let service = LockService::start(runtime.clock.clone(), runtime.tasks.clone());
    assert!(cluster.chubby.set(service).is_ok(), "started twice");
    std::future::pending().await
}
