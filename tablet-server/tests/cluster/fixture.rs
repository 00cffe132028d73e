//! Three tablet servers in one process, and their initial tablets.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::{Counter, SharedChubby, Write, paths, raise_counter};
use ebla_model::aggregate::Aggregator;
use ebla_model::cell::FamilyName;
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::command::NewTablet;
use ebla_model::gc::GcRule;
use ebla_model::id::{ClusterId, GroupId, OperationId, ServerId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{GroupDescriptor, first_tablets};
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::{FamilyId, Micros, SchemaVersion};
use ebla_proto::{convert, record};
use ebla_runtime::clock::TimeSource;
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Clock, Runtime, Step, StepObserver, Steps, Tasks};
use ebla_tablet_server::config::ScrubOptions;
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::response_budget::ResponseBytes;
use ebla_tablet_server::tablet::TabletGroup;
use ebla_tablet_server::tablet::lifecycle::manager::InitialState;
use ebla_tablet_server::{CollectorAddress, LocalServers, RestartScope, ServerConfig, ServerOptions, TabletServer};
use futures::future::BoxFuture;
use tempfile::TempDir;
use tokio::sync::watch;

use super::slow_disk::SyncDelay;

pub(crate) const TABLE: TableId = TableId::new(5);
pub(crate) const TABLET: TabletId = TabletId::new(100);
pub(crate) const GROUP: GroupId = GroupId::new(1_000);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Shorter than in production, so that a failover does not take the test's time.
const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(400),
    election_max: Duration::from_millis(800),
};

fn family(id: u32, name: &str, gc: Option<GcRule>, aggregator: Option<Aggregator>) -> Family {
    Family { id: FamilyId::new(id), name: FamilyName::new(name).unwrap(), gc, locality_group: 0, aggregator }
}

/// Families without a rule, of sums, and of last values only.
pub(crate) fn schema() -> TableSchema {
    TableSchema {
        table: TABLE,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(1),
        families: vec![
            family(1, "cf", None, None),
            family(2, "sum", None, Some(Aggregator::Sum)),
            family(3, "last", Some(GcRule::MaxVersions(1)), None),
        ],
        locality_groups: Vec::new(),
        quotas: Default::default(),
        next_family: FamilyId::new(4),
        deletion_protection: false,
        state: TableState::Active,
    }
}

/// The machine's clocks, with a wall clock that is ahead by some time.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    ahead_micros: AtomicI64,
}

impl TimeSource for ServerClock {
    fn wall(&self) -> Micros {
        Micros::new(Clock::system().wall().get() + self.ahead_micros.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Clock::system().monotonic()
    }
}

/// Holds servers at a step of an operation.
pub(crate) struct Pause {
    /// The step; `None`: they are not held.
    at: watch::Sender<Option<Step>>,
    /// Whether one has reached it.
    is_reached: watch::Sender<bool>,
}

impl Pause {
    fn new() -> Self {
        Self { at: watch::Sender::new(None), is_reached: watch::Sender::new(false) }
    }

    pub(crate) fn begin(&self, step: Step) {
        self.at.send_replace(Some(step));
    }

    pub(crate) async fn until_reached(&self) {
        drop(self.is_reached.subscribe().wait_for(|is_reached| *is_reached).await);
    }

    pub(crate) fn end(&self) {
        self.at.send_replace(None);
    }
}

impl StepObserver for Pause {
    fn reached(&self, step: Step) -> BoxFuture<'static, ()> {
        let mut at = self.at.subscribe();
        let is_held = *at.borrow() == Some(step);
        if is_held {
            self.is_reached.send_replace(true);
        }
        Box::pin(async move {
            drop(at.wait_for(|held| *held != Some(step)).await);
        })
    }
}

pub(crate) struct Fixture {
    _dir: TempDir,
    chubby: Embedded,
    local_servers: LocalServers,
    tasks: Tasks,
    pub(crate) servers: Vec<Option<TabletServer>>,
    clocks: [Arc<ServerClock>; 3],
    pub(crate) sync_delays: [SyncDelay; 3],
    pub(crate) pause: Arc<Pause>,
    options: FixtureOptions,
}

/// What a fixture's servers are started with.
struct FixtureOptions {
    /// A tablet is split above this size.
    split_kib: u32,
    /// The address that the servers advertise; `None`: the one they listen on.
    advertise: Option<String>,
    scrub: ScrubOptions,
    response_bytes: ResponseBytes,
    /// A tablet with this many reads and writes per second is split; 0: none.
    split_load: u32,
    /// The budget of the commit log, a quarter of which is a segment; `None`: as in production.
    log_bytes: Option<ByteSize>,
    /// The cluster version that is active.
    version: ClusterVersion,
    /// The collector of traces.
    collector: Option<CollectorAddress>,
}

impl Default for FixtureOptions {
    fn default() -> Self {
        Self {
            split_kib: 1 << 20,
            advertise: None,
            scrub: ScrubOptions::default(),
            response_bytes: ResponseBytes::default(),
            split_load: 0,
            log_bytes: None,
            version: ClusterVersion::NEWEST,
            collector: None,
        }
    }
}

impl Fixture {
    pub(crate) async fn start(split_kib: u32) -> Self {
        Self::start_with(FixtureOptions { split_kib, ..Default::default() }).await
    }

    /// As [`Self::start`], with servers that read all their stores again and again.
    pub(crate) async fn start_scrubbing() -> Self {
        let (first_after, period) = (Duration::ZERO, Duration::from_millis(500));
        let scrub = ScrubOptions { first_after, period, bytes_per_second: 1 << 30 };
        Self::start_with(FixtureOptions { scrub, ..Default::default() }).await
    }

    pub(crate) async fn start_at(split_kib: u32, advertise: Option<String>) -> Self {
        Self::start_with(FixtureOptions { split_kib, advertise, ..Default::default() }).await
    }

    /// As [`Self::start`], with this memory for responses.
    pub(crate) async fn start_with_responses(response_bytes: ResponseBytes) -> Self {
        Self::start_with(FixtureOptions { response_bytes, ..Default::default() }).await
    }

    /// As [`Self::start`], with servers that split a tablet with this many reads and writes per second.
    pub(crate) async fn start_splitting_by_load(split_load: u32) -> Self {
        Self::start_with(FixtureOptions { split_load, ..Default::default() }).await
    }

    /// As [`Self::start`], with servers whose commit log is above its budget after a few writes, so that they flush and purge at once.
    pub(crate) async fn start_with_small_logs() -> Self {
        Self::start_with(FixtureOptions { log_bytes: Some(ByteSize::new(128 << 10)), ..Default::default() }).await
    }

    /// As [`Self::start`], in a cluster with this active version.
    pub(crate) async fn start_in_version(version: ClusterVersion) -> Self {
        Self::start_with(FixtureOptions { version, ..Default::default() }).await
    }

    /// As [`Self::start`], with servers that export what they record to this collector.
    pub(crate) async fn start_exporting(collector: CollectorAddress) -> Self {
        Self::start_with(FixtureOptions { collector: Some(collector), ..Default::default() }).await
    }

    async fn start_with(options: FixtureOptions) -> Self {
        if let Ok(filter) = std::env::var("EBLA_LOG") {
            ebla_runtime::logging::init(&filter);
        }
        let tasks = Tasks::new("fixture");
        let chubby = Embedded::in_memory(Clock::system(), &tasks);
        let mut fixture = Self {
            _dir: tempfile::tempdir().unwrap(),
            chubby,
            local_servers: LocalServers::default(),
            tasks,
            servers: Vec::new(),
            clocks: Default::default(),
            sync_delays: Default::default(),
            pause: Arc::new(Pause::new()),
            options,
        };
        for at in 0..3 {
            let server = fixture.open(at, fixture.options.split_kib).await;
            fixture.servers.push(Some(server));
        }
        fixture.begin().await;
        fixture.listed().await;
        fixture
    }

    pub(crate) async fn open(&self, at: usize, split_kib: u32) -> TabletServer {
        let sync_delay = self.sync_delays[at].clone();
        let mut options = ServerOptions {
            open_disk: Arc::new(move |folder| sync_delay.open(folder)),
            timings: TIMINGS,
            restart: RestartScope::Server,
            split_bytes: ByteSize::new(u64::from(split_kib) * 1024),
            split_load: self.options.split_load,
            scrub: self.options.scrub,
            response_bytes: self.options.response_bytes,
            collector: self.options.collector.clone(),
            ..ServerOptions::up(self.local_servers.clone())
        };
        if let Some(log_bytes) = self.options.log_bytes {
            options.log_bytes = log_bytes;
            options.segment_bytes = ByteSize::new(log_bytes.bytes() / 4);
        }
        let advertise = self.options.advertise.clone();
        let config = ServerConfig { data_dir: self.folder(at), listen: "127.0.0.1:0".to_owned(), advertise, options };
        let mut runtime = Runtime::system("server");
        runtime.tasks = self.tasks.child(&format!("server-{at}"));
        runtime.clock = Clock::custom(Arc::clone(&self.clocks[at]) as Arc<dyn TimeSource>);
        runtime.steps = Steps::observed_by(Arc::clone(&self.pause) as Arc<dyn StepObserver>);
        let server = TabletServer::start(config, self.shared(), runtime).await.unwrap();
        server.ready().await;
        server
    }

    /// Sets the wall clock of a server ahead of the machine's, or behind it.
    pub(crate) fn set_ahead(&self, at: usize, seconds: i64) {
        self.clocks[at].ahead_micros.store(seconds * 1_000_000, Ordering::Relaxed);
    }

    pub(crate) fn folder(&self, at: usize) -> std::path::PathBuf {
        let root: &Path = self._dir.path();
        root.join(format!("s{at}"))
    }

    pub(crate) fn shared(&self) -> SharedChubby {
        self.chubby.shared()
    }

    pub(crate) fn server(&self, at: usize) -> &TabletServer {
        self.servers[at].as_ref().unwrap()
    }

    pub(crate) fn ids(&self) -> Vec<ServerId> {
        self.servers.iter().flatten().map(TabletServer::id).collect()
    }

    /// Does the work of a master at a cluster's first start, and for creating a table.
    pub(crate) async fn begin(&self) {
        let ids = self.ids();
        let [root, _rest] = first_tablets(&ids);
        let cluster = convert::cluster_to_bytes(record::Cluster {
            cluster: Bytes::copy_from_slice(&ClusterId::new(7).to_bytes()),
            state: record::ClusterState::Running.into(),
            first_tablets: Vec::new(),
            active_version: self.options.version.get(),
            ..Default::default()
        });
        let writes = vec![
            Write::put(paths::CLUSTER, cluster),
            Write::put(paths::ROOT, convert::descriptor_to_bytes(&root)),
            Write::put(paths::table(TABLE), convert::schema_to_bytes(&schema())),
            Write::put(paths::name(&schema().name), TABLE.to_string()),
        ];
        self.shared().transact(Vec::new(), writes).await.unwrap();
        for (counter, next) in [(Counter::Groups, GROUP.next().get()), (Counter::Tablets, TABLET.next().get())] {
            raise_counter(&self.chubby, counter, next).await.unwrap();
        }
        for server in self.servers.iter().flatten() {
            until("the cluster known", || server.tablet_manager().registry().identity().is_some()).await;
        }
        for group in [GroupId::METADATA, GROUP].map(|group| GroupDescriptor::initial(group, &ids)) {
            for server in self.servers.iter().flatten() {
                let replica = group.membership.replica_on(server.id()).unwrap();
                let manager = server.tablet_manager();
                manager.create_replica(group.clone(), replica, InitialState::Seed).await.unwrap();
            }
        }
        let tablet = NewTablet { tablet: TABLET, range: KeyRange::all() };
        let group = self.led_group(GROUP).await;
        group.create_tablets(OperationId::new(1_000), schema(), vec![tablet], TIMEOUT).await.unwrap();
        let descriptor = group.tablet(TABLET).unwrap().descriptor().unwrap();
        let cluster = self.server(0).cluster();
        let metadata = ebla_routing::Metadata::new(cluster.clone());
        metadata.put_descriptor(&descriptor, &Default::default(), cluster.deadline(TIMEOUT)).await.unwrap();
    }

    /// The leader's replica of a group; waits for a leader.
    pub(crate) async fn led_group(&self, group: GroupId) -> Arc<TabletGroup> {
        let mut found = None;
        until("a leader", || {
            let mut groups = self.servers.iter().flatten().filter_map(|server| server.tablet_manager().group(group));
            found = groups.find(|group| group.is_leader());
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// The tablets of [`TABLE`] that any server knows.
    pub(crate) fn tablets(&self) -> BTreeSet<TabletId> {
        let all = self.servers.iter().flatten().flat_map(|server| server.tablet_manager().tablets());
        all.filter(|tablet| tablet.table() == TABLE).map(|tablet| tablet.id()).collect()
    }

    /// Returns when METADATA lists the table's tablet.
    pub(crate) async fn listed(&self) {
        let cluster = self.server(0).cluster();
        let deadline = cluster.deadline(TIMEOUT);
        while cluster
            .read_metadata(ebla_model::metadata::table_range(TABLE), deadline)
            .await
            .map_or(true, |listed| listed.is_empty())
        {
            assert!(!deadline.has_passed(&Clock::system()), "METADATA lists nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The server that leads a tablet; waits for a leader.
    pub(crate) async fn leader(&self, tablet: TabletId) -> usize {
        let mut found = None;
        until("a leader", || {
            found = self.servers.iter().position(|server| {
                let manager = server.as_ref().map(TabletServer::tablet_manager);
                manager.and_then(|manager| manager.tablet(tablet)).is_some_and(|tablet| tablet.is_leader())
            });
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    pub(crate) async fn stop(self) {
        for server in self.servers.into_iter().flatten() {
            server.stop().await;
        }
        self.tasks.stop(Duration::from_secs(5)).await;
    }
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let clock = Clock::system();
    let end = clock.monotonic() + TIMEOUT;
    while !holds() {
        assert!(clock.monotonic() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Flushes all writes and purges the logs, on every running server.
pub(crate) async fn purge_logs(fixture: &Fixture) {
    for server in fixture.servers.iter().flatten() {
        for group in server.tablet_manager().groups() {
            group.state_machine().flush().unwrap();
            let flushed = group.state_machine().flushed_id().unwrap().unwrap();
            group.raft().purge(server.tablet_manager().purgeable(&group, flushed.index)).await;
        }
    }
}
