//! Three tablet servers in one process, and the tablets they begin with.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::{SharedChubby, Write, paths};
use ebla_model::aggregate::Aggregator;
use ebla_model::cell::FamilyName;
use ebla_model::gc::GcRule;
use ebla_model::id::{ClusterId, ServerId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{TabletDescriptor, first_tablets};
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::{FamilyId, SchemaVersion};
use ebla_proto::{convert, record};
use ebla_runtime::{Clock, Runtime, Tasks};
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::hosted::Beginning;
use ebla_tablet_server::{Neighbours, Restart, ServerConfig, ServerOptions, TabletServer};
use tempfile::TempDir;

pub(crate) const TABLE: TableId = TableId::new(5);
pub(crate) const TABLET: TabletId = TabletId::new(100);
pub(crate) const LIVE: Duration = Duration::from_secs(60);

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
        next_family: FamilyId::new(4),
        deletion_protection: false,
        state: TableState::Active,
    }
}

pub(crate) struct House {
    _dir: TempDir,
    chubby: Embedded,
    neighbours: Neighbours,
    tasks: Tasks,
    pub(crate) servers: Vec<Option<TabletServer>>,
    /// Where the servers tell others to look for them; absent: where they listen.
    advertise: Option<String>,
}

impl House {
    pub(crate) async fn start(split_bytes: u32) -> Self {
        Self::start_at(split_bytes, None).await
    }

    pub(crate) async fn start_at(split_bytes: u32, advertise: Option<String>) -> Self {
        if let Ok(filter) = std::env::var("EBLA_LOG") {
            ebla_runtime::telemetry::init(&filter);
        }
        let tasks = Tasks::new("house");
        let chubby = Embedded::in_memory(Clock::system(), &tasks);
        let mut house = Self {
            _dir: tempfile::tempdir().unwrap(),
            chubby,
            neighbours: Neighbours::default(),
            tasks,
            servers: Vec::new(),
            advertise,
        };
        for at in 0..3 {
            let server = house.open(at, split_bytes).await;
            house.servers.push(Some(server));
        }
        house.begin().await;
        house.listed().await;
        house
    }

    pub(crate) async fn open(&self, at: usize, split_kib: u32) -> TabletServer {
        let options = ServerOptions {
            timings: TIMINGS,
            restart: Restart::Alone,
            split_bytes: ebla_runtime::config::ByteSize::new(u64::from(split_kib) * 1024),
            ..ServerOptions::up(self.neighbours.clone())
        };
        let advertise = self.advertise.clone();
        let config = ServerConfig { data_dir: self.folder(at), listen: "127.0.0.1:0".to_owned(), advertise, options };
        let mut runtime = Runtime::system("server");
        runtime.tasks = self.tasks.child(&format!("server-{at}"));
        let server = TabletServer::start(config, self.shared(), runtime).await.unwrap();
        server.ready().await;
        server
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

    /// What a master does at a cluster's first start, and for a table.
    pub(crate) async fn begin(&self) {
        let ids = self.ids();
        let [root, rest] = first_tablets(&ids);
        let cluster = convert::encode_record(record::Cluster {
            cluster: Bytes::copy_from_slice(&ClusterId::new(7).to_bytes()),
            state: record::ClusterState::Running.into(),
            first_tablets: Vec::new(),
            ..Default::default()
        });
        let writes = vec![
            Write::put(paths::CLUSTER, cluster),
            Write::put(paths::ROOT, convert::descriptor_to_bytes(&root)),
            Write::put(paths::table(TABLE), convert::schema_to_bytes(&schema())),
            Write::put(paths::name(&schema().name), TABLE.to_string()),
        ];
        self.shared().transact(Vec::new(), writes).await.unwrap();
        for server in self.servers.iter().flatten() {
            until("the cluster known", || server.hosted().registry().identity().is_some()).await;
        }
        let user = TabletDescriptor::fresh(TABLE, TABLET, KeyRange::all(), &ids);
        for (descriptor, schema) in [(root, TableSchema::metadata()), (rest, TableSchema::metadata()), (user, schema())]
        {
            for server in self.servers.iter().flatten() {
                let replica = descriptor.membership.replica_on(server.id()).unwrap();
                server
                    .hosted()
                    .create_replica(descriptor.clone(), schema.clone(), replica, Beginning::Seed)
                    .await
                    .unwrap();
            }
        }
    }

    /// Returns when METADATA lists the table's tablet.
    pub(crate) async fn listed(&self) {
        let cluster = self.server(0).cluster();
        let deadline = cluster.deadline(LIVE);
        while cluster
            .read_metadata(ebla_model::metadata::table_range(TABLE), deadline)
            .await
            .map_or(true, |listed| listed.is_empty())
        {
            assert!(!deadline.has_passed(&Clock::system()), "METADATA lists nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The server that leads a tablet, once there is one.
    pub(crate) async fn leader(&self, tablet: TabletId) -> usize {
        let mut found = None;
        until("a leader", || {
            found = self.servers.iter().position(|server| {
                let hosted = server.as_ref().map(TabletServer::hosted);
                hosted.and_then(|hosted| hosted.tablet(tablet)).is_some_and(|tablet| tablet.leads())
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
    let end = clock.monotonic() + LIVE;
    while !holds() {
        assert!(clock.monotonic() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Everything written so far goes to disk and the log forgets it, on every server that runs.
pub(crate) async fn forget_logs(house: &House) {
    for server in house.servers.iter().flatten() {
        for tablet in server.hosted().tablets() {
            tablet.machine().flush().unwrap();
            let persisted = tablet.machine().persisted_id().unwrap().unwrap();
            tablet.group().purge(persisted.index).await;
        }
    }
}
