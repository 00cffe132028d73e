//! Replica repair: real tablet servers and a master in one process, a load that records every answer, and at the end
//! the same content on all replicas of every tablet.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, also in its helpers")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::{SharedChubby, paths};
use ebla_client::table::ReadOptions;
use ebla_client::{Client, Table};
use ebla_master::plan::replica_balance::ReplicaBalance;
use ebla_master::{Master, MasterConfig};
use ebla_model::id::{GroupId, ReplicaId, ServerId, TabletId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::convert;
use ebla_runtime::{Clock, Runtime};
use ebla_storage::log::GroupReplica;
use ebla_storage::registry::{Registry, ReplicaState};
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::Digest;
use ebla_tablet_server::{LocalServers, RestartScope, ServerConfig, ServerOptions, TabletServer};
use tokio::sync::oneshot;

/// How long a test waits for an event; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(180);
/// A repair starts this long after a server was found missing.
const GRACE: Duration = Duration::from_secs(3);
/// The first id of a replica that is added to a group.
const FIRST_ADDED: ReplicaId = ReplicaId::new(1001);
const WRITERS: usize = 6;
/// Tablets of the table that the load writes to.
const SPLITS: [&str; 4] = ["w1", "w2", "w3", "w4"];

/// Shorter than in production, so that failovers do not slow the test down.
const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(400),
    election_max: Duration::from_millis(800),
};

/// Servers, some of them crashed, and a master.
struct TestCluster {
    chubby: SharedChubby,
    servers: Vec<Option<TabletServer>>,
    master: Option<Master>,
    runtime: Runtime,
    data: tempfile::TempDir,
}

impl TestCluster {
    /// Starts the servers; a new cluster is bootstrapped when `bootstrap_servers` of them are registered.
    async fn start(servers: usize, bootstrap_servers: usize) -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let data = tempfile::tempdir().unwrap();
        let mut cluster = Self { chubby, servers: Vec::new(), master: None, runtime, data };
        for _ in 0..servers {
            cluster.add_server().await;
        }
        cluster.start_master(bootstrap_servers).await;
        cluster
    }

    /// Adds a server.
    async fn add_server(&mut self) {
        self.servers.push(None);
        self.start_server(self.servers.len() - 1).await;
    }

    /// Starts a server with its data folder.
    async fn start_server(&mut self, at: usize) {
        let options = ServerOptions {
            timings: TIMINGS,
            restart: RestartScope::Server,
            lease_ttl: Duration::from_secs(2),
            // Its own set of local peers: everything between servers goes over sockets.
            ..ServerOptions::up(LocalServers::default())
        };
        let config = ServerConfig::new(self.folder(at), "127.0.0.1:0", options);
        let server = TabletServer::start(config, self.chubby.clone(), self.runtime.clone()).await.unwrap();
        server.ready().await;
        self.servers[at] = Some(server);
    }

    fn folder(&self, at: usize) -> PathBuf {
        self.data.path().join(at.to_string())
    }

    /// Stops a server as a crash does.
    async fn crash(&mut self, at: usize) {
        self.servers[at].take().unwrap().abort().await;
    }

    /// Starts a master and waits until it is active and every tablet has a leader.
    async fn start_master(&mut self, bootstrap_servers: usize) {
        let config = MasterConfig {
            bootstrap_servers,
            repair_grace: GRACE,
            // Replicas move only because of repairs.
            replica_balance: ReplicaBalance::Off,
            ..MasterConfig::new("127.0.0.1:0", 3)
        };
        let master = Master::start(config, self.chubby.clone(), self.runtime.clone()).await.unwrap();
        tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
        self.master = Some(master);
    }

    fn server(&self, at: usize) -> &TabletServer {
        self.servers[at].as_ref().unwrap()
    }

    fn running(&self) -> impl Iterator<Item = &TabletServer> {
        self.servers.iter().flatten()
    }

    async fn client(&self, at: usize) -> Client {
        Client::connect_cluster(self.server(at).address(), self.runtime.clone()).await.unwrap()
    }

    /// All tablets as METADATA and Chubby list them; `None` while METADATA cannot be read.
    async fn listed(&self) -> Option<BTreeMap<TabletId, TabletDescriptor>> {
        let cluster = self.running().next().unwrap().cluster();
        let deadline = cluster.deadline(Duration::from_secs(5));
        let rows = cluster.read_metadata(KeyRange::all(), deadline).await.ok()?;
        let file = self.chubby.read(paths::ROOT).await.ok()??;
        let root = convert::descriptor_from_bytes(file.value).unwrap();
        let rows = rows.into_iter().map(|entry| entry.descriptor).filter(|row| row.tablet != TabletId::ROOT);
        Some(rows.chain([root]).map(|tablet| (tablet.tablet, tablet)).collect())
    }

    /// The first problem: each tablet's group must have three voters on running servers, and there must be no other replica.
    async fn problem(&self) -> Option<String> {
        let Some(listed) = self.listed().await else { return Some("METADATA cannot be read".to_owned()) };
        let alive: BTreeSet<ServerId> = self.running().map(TabletServer::id).collect();
        let mut expected = BTreeSet::new();
        for tablet in listed.values() {
            let members = &tablet.membership;
            let lives = members.replicas().all(|replica| alive.contains(&replica.server));
            if members.voters.len() != 1 || members.voters[0].len() != 3 || members.replicas.len() != 3 || !lives {
                return Some(format!("tablet {} has {members:?}", tablet.tablet));
            }
            expected.extend(members.replicas().map(|replica| (replica.server, tablet.group, replica.replica)));
        }
        let mut found = BTreeSet::new();
        for server in self.running() {
            for (id, record) in server.tablet_manager().registry().replicas() {
                if record.state != ReplicaState::Live || server.tablet_manager().idle().contains(&id) {
                    return Some(format!("server {} has {id} {:?}, which is not running", server.id(), record.state));
                }
                found.insert((server.id(), id.group, id.replica));
            }
        }
        (found != expected)
            .then(|| format!("on servers and not listed, or listed and not on servers: {:?}", &found ^ &expected))
    }

    /// Returns when there is nothing to repair.
    async fn repaired(&self, what: &str) {
        let end = self.runtime.clock.monotonic() + TIMEOUT;
        while let Some(problem) = self.problem().await {
            assert!(self.runtime.clock.monotonic() < end, "{what}: {problem}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns when the replicas of each tablet have applied the same entry, with the same content.
    async fn converged(&self) {
        let end = self.runtime.clock.monotonic() + TIMEOUT;
        loop {
            let digests = self.digests().await;
            let has_converged = |replicas: &Vec<Digest>| replicas.iter().all(|one| one.applied == replicas[0].applied);
            for (tablet, replicas) in &digests {
                if has_converged(replicas) {
                    let same = replicas.iter().all(|one| one == &replicas[0]);
                    assert!(same, "the replicas of tablet {tablet} differ: {replicas:?}");
                }
            }
            if digests.values().all(has_converged) {
                return;
            }
            assert!(self.runtime.clock.monotonic() < end, "replicas did not converge: {digests:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn digests(&self) -> BTreeMap<TabletId, Vec<Digest>> {
        let mut digests: BTreeMap<TabletId, Vec<Digest>> = BTreeMap::new();
        for server in self.running() {
            for tablet in server.tablet_manager().tablets() {
                digests.entry(tablet.id()).or_default().push(tablet.digest().await.unwrap());
            }
        }
        digests
    }

    /// Counts the replicas here that were added to their tablets; each must have been initialized by a snapshot.
    fn added(&self, at: usize) -> usize {
        let records = self.server(at).tablet_manager().registry().replicas();
        let added = records.into_iter().filter(|(id, _record)| id.replica >= FIRST_ADDED);
        added
            .inspect(|(id, record)| assert!(record.installed.is_some(), "{id} was not initialized by a snapshot"))
            .count()
    }

    async fn stop(self) {
        if let Some(master) = self.master {
            master.stop().await;
        }
        for server in self.servers.into_iter().flatten() {
            server.stop().await;
        }
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }
}

/// What one writer has recorded.
#[derive(Default)]
struct WriterResult {
    acknowledged: Vec<RowKey>,
    failed: u64,
}

/// Writers with their own rows, each in its own tablet as far as possible.
struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<oneshot::Receiver<WriterResult>>,
    table: Table,
}

fn load_name() -> TableName {
    TableName::from_parts("p", "inst", "load").unwrap()
}

impl Load {
    async fn create_table(client: &Client) {
        let splits = SPLITS.map(RowKey::new);
        client.admin().create_table(&load_name(), &[("a".to_owned(), None)], &splits).await.unwrap();
    }

    /// `round`: a prefix that separates the rows of several loads.
    fn start(client: &Client, runtime: &Runtime, round: &str) -> Self {
        let (stop, table) = (Arc::new(AtomicBool::new(false)), client.table(&load_name()));
        let writers = (0..WRITERS).map(|writer| {
            let (stop, table, prefix) = (Arc::clone(&stop), table.clone(), format!("w{writer}/{round}/"));
            let (done, result) = oneshot::channel();
            runtime.tasks.spawn_until_stopped("writer", async move {
                let mut result = WriterResult::default();
                let mut number = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    let row = RowKey::new(format!("{prefix}{number:06}"));
                    match table.mutate_row(&row, &[cell(&row)]).await {
                        Ok(()) => result.acknowledged.push(row),
                        Err(_failed) => result.failed += 1,
                    }
                    number += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                drop(done.send(result));
            });
            result
        });
        let writers = writers.collect();
        Self { stop, writers, table }
    }

    /// Stops the load and reads everything back. Returns the number of acknowledged rows.
    async fn verify(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        let mut acknowledged = Vec::new();
        for writer in self.writers {
            acknowledged.extend(writer.await.unwrap().acknowledged);
        }
        let rows = self.table.read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
        let found: BTreeMap<RowKey, Bytes> =
            rows.into_iter().map(|row| (row.key.clone(), row.cells[0].value.clone())).collect();
        for row in &acknowledged {
            assert_eq!(found.get(row), Some(&value(row)), "row {row} was acknowledged");
        }
        acknowledged.len()
    }
}

fn value(row: &RowKey) -> Bytes {
    row.as_bytes().repeat(20).into()
}

fn cell(row: &RowKey) -> Mutation {
    Mutation::SetCell { family: "a".to_owned(), qualifier: "q".into(), timestamp: WriteTime::Server, value: value(row) }
}

/// Polls until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Clock::system().monotonic() + TIMEOUT;
    while !holds() {
        assert!(Clock::system().monotonic() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_of_a_dead_server_are_replaced_and_it_is_used_again_when_it_returns() {
    let mut cluster = TestCluster::start(4, 3).await;
    let client = cluster.client(0).await;
    Load::create_table(&client).await;
    let load = Load::start(&client, &cluster.runtime, "first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The third server also has the root tablet and METADATA.
    let lost = cluster.server(2).id();
    cluster.crash(2).await;
    cluster.repaired("the first crash").await;
    let created: usize = [0, 1, 3].map(|at| cluster.added(at)).into_iter().sum();
    assert!(created >= 3, "its replicas were created elsewhere: {created}");
    let first = load.verify().await;

    cluster.start_server(2).await;
    assert_eq!(cluster.server(2).id(), lost, "its data folder is its identity");
    cluster.repaired("the removal of its extra replicas").await;
    assert!(cluster.server(2).tablet_manager().tablets().is_empty());
    assert_eq!(std::fs::read_dir(cluster.folder(2).join("groups")).unwrap().count(), 0, "its files are gone");

    let load = Load::start(&client, &cluster.runtime, "second");
    cluster.crash(1).await;
    cluster.repaired("the second crash").await;
    assert!(cluster.added(2) > 0, "the server that returned has replicas again");
    let second = load.verify().await;
    cluster.converged().await;
    println!("{created} replicas created after the first crash; {first} and {second} acknowledged, 0 lost");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_returns_within_the_grace_keeps_its_replicas() {
    let mut cluster = TestCluster::start(4, 3).await;
    let client = cluster.client(0).await;
    Load::create_table(&client).await;
    cluster.repaired("the initial").await;
    let before = cluster.server(2).tablet_manager().registry().replicas();
    cluster.crash(2).await;
    cluster.start_server(2).await;
    let load = Load::start(&client, &cluster.runtime, "after");
    tokio::time::sleep(GRACE * 2).await;
    cluster.repaired("nothing to repair").await;
    let after = cluster.server(2).tablet_manager().registry().replicas();
    let ids = |replicas: &[(GroupReplica, ebla_storage::registry::ReplicaRecord)]| -> Vec<_> {
        replicas.iter().map(|(id, _record)| *id).collect()
    };
    assert_eq!(ids(&before), ids(&after));
    load.verify().await;
    cluster.converged().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_of_five_servers_crash_one_after_the_other() {
    let mut cluster = TestCluster::start(5, 3).await;
    let client = cluster.client(4).await;
    Load::create_table(&client).await;
    let load = Load::start(&client, &cluster.runtime, "load");
    // Both have the root tablet and METADATA.
    for lost in [0, 1] {
        cluster.crash(lost).await;
        cluster.repaired(&format!("the crash of server {lost}")).await;
    }
    let acknowledged = load.verify().await;
    cluster.converged().await;
    println!("two of five lost: {acknowledged} acknowledged, 0 lost");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_master_finishes_an_incomplete_repair() {
    let mut cluster = TestCluster::start(4, 3).await;
    let client = cluster.client(0).await;
    Load::create_table(&client).await;
    let load = Load::start(&client, &cluster.runtime, "load");
    cluster.crash(2).await;
    let is_new = |server: &TabletServer| {
        server.tablet_manager().registry().replicas().iter().any(|(id, _record)| id.replica >= FIRST_ADDED)
    };
    until("a repair", || cluster.running().any(is_new)).await;
    cluster.master.take().unwrap().abort().await;
    cluster.start_master(3).await;
    cluster.repaired("the crash").await;
    load.verify().await;
    cluster.converged().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_replica_is_replaced_under_a_new_id() {
    let mut cluster = TestCluster::start(3, 3).await;
    let client = cluster.client(0).await;
    Load::create_table(&client).await;
    let load = Load::start(&client, &cluster.runtime, "load");
    cluster.repaired("the initial").await;
    let table = client.tablets(&load_name()).await.unwrap();
    let group = table[0].0.group;
    cluster.crash(2).await;
    let damaged = delete_folder(&cluster.folder(2), group);
    cluster.start_server(2).await;
    assert_eq!(cluster.server(2).tablet_manager().quarantined(), [damaged]);
    // There is no other server: the new replica is created where the damaged one was.
    cluster.repaired("the damage").await;
    let registry = cluster.server(2).tablet_manager().registry();
    assert!(registry.is_removed(damaged), "its id is never used again");
    assert_eq!(cluster.added(2), 1);
    load.verify().await;
    cluster.converged().await;
    cluster.stop().await;
}

/// Deletes the folder of a group's replica, as a bad disk might. Returns the replica.
fn delete_folder(data: &std::path::Path, group: GroupId) -> GroupReplica {
    let registry = Registry::open(data).unwrap();
    let (id, record) = registry.replicas().into_iter().find(|(id, _record)| id.group == group).unwrap();
    assert_eq!(record.state, ReplicaState::Live);
    std::fs::remove_dir_all(registry.path(id).unwrap()).unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_of_one_server_gets_replicas_when_servers_join() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client(0).await;
    Load::create_table(&client).await;
    let load = Load::start(&client, &cluster.runtime, "load");
    cluster.add_server().await;
    cluster.add_server().await;
    cluster.repaired("the growth").await;
    load.verify().await;
    cluster.converged().await;
    // Now one server may crash.
    cluster.crash(1).await;
    let load = Load::start(&client, &cluster.runtime, "after");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(load.verify().await > 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_status_lists_responding_servers_when_metadata_cannot_be_read() {
    let mut cluster = TestCluster::start(3, 3).await;
    let client = cluster.client(0).await;
    assert_eq!(client.admin().status().await.unwrap().trouble, "");
    cluster.crash(1).await;
    cluster.crash(2).await;
    let wait = async {
        loop {
            let status = client.admin().status().await.unwrap();
            let reachable = status.servers.iter().filter(|server| server.reachable).count();
            // The remaining leader responds until its lease expires.
            if !status.trouble.is_empty() && reachable == 1 {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(TIMEOUT, wait).await.unwrap();
    assert!(status.trouble.starts_with("METADATA cannot be read: "), "{}", status.trouble);
    assert_eq!((status.tablets, status.tablets_led), (0, 0));
    cluster.stop().await;
}
