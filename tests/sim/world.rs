//! What outlives a host's crash, and what the whole simulation shares: disks, folders, links, clocks, the notes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::Error;
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Net, Rng, Runtime, Tasks};
use ebla_storage::disk::SimDisk;
use ebla_storage::tablet::StoreOptions;
use ebla_tablet_server::config::Threads;
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::TabletManager;
use ebla_tablet_server::{RestartScope, ServerConfig, ServerOptions, TabletServer};

use crate::chubby::{Link, LinkedChubby};
use crate::history::History;
use crate::net::SimNet;
use crate::run::Plan;
use crate::time::{self, HostTime};
use crate::trace::Trace;

/// Where every tablet server listens.
pub(crate) const SERVER_PORT: u16 = 8086;
/// Where every master listens.
const MASTER_PORT: u16 = 9000;
/// Times of the Raft groups: shorter than in production, so that more elections fit into a run.
pub(crate) const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(150),
    election_max: Duration::from_millis(500),
};
/// About how long a sync takes.
const SYNC: Duration = Duration::from_millis(2);
/// Small, so that a run turns over a few segments.
const SEGMENT_BYTES: u64 = 256 << 10;

/// How soon a server that is silent is given up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// How long leases outlive their holder, and how long a server may be gone then before its replicas are made elsewhere;
    /// `None`: as in production, so nearly never within a run.
    short: Option<(Duration, Duration)>,
}

impl Patience {
    /// A few seconds.
    pub(crate) fn short(rng: &Rng) -> Self {
        let lease = Duration::from_millis(1_500 + rng.below(1_500));
        Self { short: Some((lease, Duration::from_millis(500 + rng.below(2_500)))) }
    }

    /// After this a server that says nothing has been given up.
    pub(crate) fn end(self) -> Option<Duration> {
        self.short.map(|(lease, grace)| lease + grace)
    }
}

/// What the client hosts are told to do.
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

/// One simulated machine that may crash.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) disk: SimDisk,
    pub(crate) folder: PathBuf,
    pub(crate) time: HostTime,
    pub(crate) link: Arc<Link>,
    /// Counts the runs of its process.
    runs: AtomicU64,
    /// The process gave up: it is to be started again.
    pub(crate) failed: AtomicBool,
    /// The replicas of the running process, on a tablet server.
    hosted: Mutex<Weak<TabletManager>>,
}

/// Everything that hosts share.
pub(crate) struct World {
    seed: u64,
    /// Whether workers also write the same row again and again.
    pub(crate) owns: bool,
    pub(crate) patience: Patience,
    pub(crate) trace: Mutex<Trace>,
    pub(crate) history: Mutex<History>,
    pub(crate) phase: Mutex<Phase>,
    pub(crate) chubby: OnceLock<Embedded>,
    pub(crate) servers: Vec<Machine>,
    pub(crate) masters: Vec<Machine>,
    /// Client hosts whose operations have all ended.
    pub(crate) drained: AtomicU64,
    /// Told by the verifying host: what is wrong, or nothing.
    pub(crate) verdict: Mutex<Option<Vec<String>>>,
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    fn new(name: String, folder: &Path, rng: &Rng) -> Self {
        Self {
            folder: folder.join(&name),
            disk: SimDisk::new(),
            time: HostTime::default(),
            link: Link::new(rng.fork()),
            runs: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            hosted: Mutex::default(),
            name,
        }
    }

    /// The replicas, when the process runs.
    pub(crate) fn hosted(&self) -> Option<Arc<TabletManager>> {
        held(&self.hosted).upgrade()
    }

    /// `host:port` that a tablet server is reached by.
    pub(crate) fn address(&self) -> String {
        format!("{}:{SERVER_PORT}", self.name)
    }
}

impl World {
    pub(crate) fn new(plan: &Plan, folder: &Path, trace: Trace) -> Arc<Self> {
        let rng = Rng::seeded(plan.seed ^ 0x5eed_11e5);
        let machines = |kind: &str, count: usize| -> Vec<Machine> {
            (1..=count).map(|number| Machine::new(format!("{kind}-{number}"), folder, &rng)).collect()
        };
        Arc::new(Self {
            seed: plan.seed,
            owns: plan.owns,
            patience: plan.patience,
            trace: Mutex::new(trace),
            history: Mutex::default(),
            phase: Mutex::new(Phase::Boot),
            chubby: OnceLock::new(),
            servers: machines("server", plan.servers),
            masters: machines("master", plan.masters),
            drained: AtomicU64::new(0),
            verdict: Mutex::default(),
        })
    }

    pub(crate) fn note(&self, node: &str, kind: &str, what: &str) {
        held(&self.trace).note(time::elapsed(), node, kind, what);
    }

    pub(crate) fn phase(&self) -> Phase {
        *held(&self.phase)
    }

    /// All machines by name.
    pub(crate) fn machines(&self) -> BTreeMap<&str, &Machine> {
        self.servers.iter().chain(&self.masters).map(|machine| (machine.name.as_str(), machine)).collect()
    }

    /// The seams of one run of a host's process. Call it on the host.
    pub(crate) fn runtime(&self, name: &str, time: &HostTime, run: u64) -> Runtime {
        let mut salt = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run;
        for byte in name.bytes() {
            salt = salt.wrapping_mul(31).wrapping_add(u64::from(byte));
        }
        Runtime {
            clock: time.clock(),
            rng: Rng::seeded(salt),
            net: Net::custom(Arc::new(SimNet)),
            tasks: Tasks::new(name),
        }
    }

    fn begin(&self, machine: &Machine) -> Runtime {
        let run = machine.runs.fetch_add(1, Ordering::Relaxed);
        machine.link.forget();
        self.note(&machine.name, "start", &run.to_string());
        self.runtime(&machine.name, &machine.time, run)
    }

    async fn service(&self) -> &Embedded {
        loop {
            if let Some(service) = self.chubby.get() {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The process of a tablet server.
pub(crate) async fn tablet_server(world: Arc<World>, number: usize) -> turmoil::Result {
    let machine = &world.servers[number];
    let runtime = world.begin(machine);
    let chubby = LinkedChubby::shared(world.service().await, &machine.link, &runtime.tasks);
    let disk = machine.disk.clone();
    let mut options = ServerOptions::server();
    options.store = StoreOptions { cache_bytes: 8 << 20, memtable_bytes: 16 << 20, ..StoreOptions::up() };
    options.timings = TIMINGS;
    if let Some((lease, _grace)) = world.patience.short {
        options.lease_ttl = lease;
    }
    options.restart = RestartScope::Server;
    options.segment_bytes = ByteSize::new(SEGMENT_BYTES);
    options.threads = Threads::Inline { sync: SYNC };
    options.open_disk = Arc::new(move |_folder| Ok(Arc::new(disk.clone())));
    let config = ServerConfig {
        data_dir: machine.folder.clone(),
        listen: format!("0.0.0.0:{SERVER_PORT}"),
        advertise: Some(machine.address()),
        options,
    };
    match TabletServer::start(config, chubby, runtime).await {
        Ok(server) => {
            *held(&machine.hosted) = Arc::downgrade(server.tablet_manager());
            world.note(&machine.name, "serves", &server.id().to_string());
            std::future::pending().await
        }
        Err(error) => give_up(&world, machine, &error).await,
    }
}

/// What a process that cannot start does: it waits to be started again.
async fn give_up(world: &World, machine: &Machine, error: &Error) -> turmoil::Result {
    tracing::warn!(machine = machine.name, %error, "start failed");
    world.note(&machine.name, "failed", error.reason.name());
    machine.failed.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// The process of a master.
pub(crate) async fn master(world: Arc<World>, number: usize) -> turmoil::Result {
    let machine = &world.masters[number];
    let runtime = world.begin(machine);
    let chubby = LinkedChubby::shared(world.service().await, &machine.link, &runtime.tasks);
    let replicas = world.servers.len().min(3);
    let mut config = MasterConfig::new(&format!("0.0.0.0:{MASTER_PORT}"), replicas);
    config.advertise = Some(format!("{}:{MASTER_PORT}", machine.name));
    if let Some((lease, grace)) = world.patience.short {
        (config.lease_ttl, config.repair_grace) = (lease, grace);
    }
    match Master::start(config, chubby, runtime).await {
        Ok(_master) => std::future::pending().await,
        Err(error) => give_up(&world, machine, &error).await,
    }
}

/// The lock service's own host, which never fails.
pub(crate) async fn lock_service(world: Arc<World>) -> turmoil::Result {
    let runtime = world.runtime("chubby", &HostTime::default(), 0);
    let service = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    assert!(world.chubby.set(service).is_ok(), "started twice");
    std::future::pending().await
}
