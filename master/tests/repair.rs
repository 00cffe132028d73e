//! Replicas that are lost and made again: real tablet servers and a master in one process, a load that notes every answer,
//! and at the end the same content on all replicas of every tablet.

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
use ebla_master::{Master, MasterConfig};
use ebla_model::id::{ReplicaId, ServerId, TabletId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::convert;
use ebla_runtime::{Clock, Runtime};
use ebla_storage::registry::{Registry, ReplicaState};
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::digest::Digest;
use ebla_tablet_server::{Neighbours, Restart, ServerConfig, ServerOptions, TabletServer};
use tokio::sync::oneshot;

/// How long a test waits for what must happen some time; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);
/// A repair begins this long after a server was missed.
const GRACE: Duration = Duration::from_secs(3);
/// The first id of a replica that is added to a tablet.
const FIRST_ADDED: ReplicaId = ReplicaId::new(1001);
const WRITERS: usize = 6;
/// Tablets of the table that the load writes to.
const SPLITS: [&str; 4] = ["w1", "w2", "w3", "w4"];

/// Shorter than in production, so that a failover does not take the test's time.
const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(400),
    election_max: Duration::from_millis(800),
};

/// Servers, some of them gone, and a master.
struct House {
    chubby: SharedChubby,
    servers: Vec<Option<TabletServer>>,
    master: Option<Master>,
    runtime: Runtime,
    data: tempfile::TempDir,
}

impl House {
    /// So many servers; a new cluster begins when `first` of them are there.
    async fn open(servers: usize, first: usize) -> Self {
        ebla_runtime::telemetry::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let data = tempfile::tempdir().unwrap();
        let mut house = Self { chubby, servers: Vec::new(), master: None, runtime, data };
        for _ in 0..servers {
            house.join().await;
        }
        house.enthrone(first).await;
        house
    }

    /// One more server.
    async fn join(&mut self) {
        self.servers.push(None);
        self.start(self.servers.len() - 1).await;
    }

    /// Starts a server, with what it had.
    async fn start(&mut self, at: usize) {
        let options = ServerOptions {
            timings: TIMINGS,
            restart: Restart::Alone,
            lease_ttl: Duration::from_secs(2),
            // A neighbourhood of its own: everything between servers goes over sockets.
            ..ServerOptions::up(Neighbours::default())
        };
        let config = ServerConfig::new(self.folder(at), "127.0.0.1:0", options);
        let server = TabletServer::start(config, self.chubby.clone(), self.runtime.clone()).await.unwrap();
        server.ready().await;
        self.servers[at] = Some(server);
    }

    fn folder(&self, at: usize) -> PathBuf {
        self.data.path().join(at.to_string())
    }

    /// Ends a server as a crash does.
    async fn lose(&mut self, at: usize) {
        self.servers[at].take().unwrap().abort().await;
    }

    /// A new master, in office and with all tablets led.
    async fn enthrone(&mut self, first: usize) {
        let config = MasterConfig { servers_first: first, repair_grace: GRACE, ..MasterConfig::new("127.0.0.1:0", 3) };
        let master = Master::start(config, self.chubby.clone(), self.runtime.clone()).await.unwrap();
        tokio::time::timeout(PATIENCE, master.ready()).await.unwrap();
        self.master = Some(master);
    }

    fn server(&self, at: usize) -> &TabletServer {
        self.servers[at].as_ref().unwrap()
    }

    fn alive(&self) -> impl Iterator<Item = &TabletServer> {
        self.servers.iter().flatten()
    }

    async fn client(&self, at: usize) -> Client {
        Client::connect_cluster(self.server(at).address(), self.runtime.clone()).await.unwrap()
    }

    /// All tablets as METADATA and Chubby list them; `None` while METADATA cannot be read.
    async fn listed(&self) -> Option<BTreeMap<TabletId, TabletDescriptor>> {
        let cluster = self.alive().next().unwrap().cluster();
        let deadline = cluster.deadline(Duration::from_secs(5));
        let rows = cluster.metadata().read_range(KeyRange::all(), deadline).await.ok()?;
        let file = self.chubby.read(paths::ROOT).await.ok()??;
        let root = convert::descriptor_from_bytes(file.value).unwrap();
        let rows = rows.into_iter().map(|entry| entry.descriptor).filter(|row| row.tablet != TabletId::ROOT);
        Some(rows.chain([root]).map(|tablet| (tablet.tablet, tablet)).collect())
    }

    /// What is not yet as it should be: three voters for each tablet on servers that live, and no replica beside them.
    async fn unrest(&self) -> Option<String> {
        let Some(listed) = self.listed().await else { return Some("METADATA cannot be read".to_owned()) };
        let alive: BTreeSet<ServerId> = self.alive().map(TabletServer::id).collect();
        let mut expected = BTreeSet::new();
        for tablet in listed.values() {
            let members = &tablet.membership;
            let lives = members.replicas().all(|replica| alive.contains(&replica.server));
            if members.voters.len() != 1 || members.voters[0].len() != 3 || members.replicas.len() != 3 || !lives {
                return Some(format!("tablet {} has {members:?}", tablet.tablet));
            }
            expected.extend(members.replicas().map(|replica| (replica.server, tablet.tablet, replica.replica)));
        }
        let mut found = BTreeSet::new();
        for server in self.alive() {
            for (id, record) in server.hosted().registry().replicas() {
                if record.state != ReplicaState::Live || server.hosted().idle().contains(&id) {
                    return Some(format!("server {} has {id} {:?}, which does not run", server.id(), record.state));
                }
                found.insert((server.id(), id.tablet, id.replica));
            }
        }
        (found != expected).then(|| format!("on servers and not listed, or the reverse: {:?}", &found ^ &expected))
    }

    /// Returns when nothing is left to repair.
    async fn healed(&self, what: &str) {
        let end = self.runtime.clock.monotonic() + PATIENCE;
        while let Some(unrest) = self.unrest().await {
            assert!(self.runtime.clock.monotonic() < end, "{what}: {unrest}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns when the replicas of each tablet have applied the same entry, with the same content.
    async fn converged(&self) {
        let end = self.runtime.clock.monotonic() + PATIENCE;
        loop {
            let digests = self.digests().await;
            let is_level = |replicas: &Vec<Digest>| replicas.iter().all(|one| one.applied == replicas[0].applied);
            for (tablet, replicas) in &digests {
                if is_level(replicas) {
                    let same = replicas.iter().all(|one| one == &replicas[0]);
                    assert!(same, "the replicas of tablet {tablet} differ: {replicas:?}");
                }
            }
            if digests.values().all(is_level) {
                return;
            }
            assert!(self.runtime.clock.monotonic() < end, "replicas never came level: {digests:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn digests(&self) -> BTreeMap<TabletId, Vec<Digest>> {
        let mut digests: BTreeMap<TabletId, Vec<Digest>> = BTreeMap::new();
        for server in self.alive() {
            for tablet in server.hosted().tablets() {
                digests.entry(tablet.id()).or_default().push(tablet.digest().await.unwrap());
            }
        }
        digests
    }

    /// Replicas here that were added to their tablets; each must have been filled by a snapshot.
    fn added(&self, at: usize) -> usize {
        let records = self.server(at).hosted().registry().replicas();
        let added = records.into_iter().filter(|(id, _record)| id.replica >= FIRST_ADDED);
        added.inspect(|(id, record)| assert!(record.installed.is_some(), "{id} was not filled by a snapshot")).count()
    }

    async fn close(self) {
        if let Some(master) = self.master {
            master.stop().await;
        }
        for server in self.servers.into_iter().flatten() {
            server.stop().await;
        }
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }
}

/// What one writer was told.
#[derive(Default)]
struct Page {
    acknowledged: Vec<RowKey>,
    unknown: u64,
}

/// Writers of their own rows, each in a tablet of its own as far as there are some.
struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<oneshot::Receiver<Page>>,
    table: Table,
}

fn load_name() -> TableName {
    TableName::from_parts("p", "inst", "load").unwrap()
}

impl Load {
    async fn make_table(client: &Client) {
        let splits = SPLITS.map(RowKey::new);
        client.admin().create_table(&load_name(), &[("a".to_owned(), None)], &splits).await.unwrap();
    }

    /// `round`: makes the rows of one start differ from another's.
    fn start(client: &Client, runtime: &Runtime, round: &str) -> Self {
        let (stop, table) = (Arc::new(AtomicBool::new(false)), client.table(&load_name()));
        let writers = (0..WRITERS).map(|writer| {
            let (stop, table, prefix) = (Arc::clone(&stop), table.clone(), format!("w{writer}/{round}/"));
            let (done, page) = oneshot::channel();
            runtime.tasks.spawn_until_stopped("writer", async move {
                let mut page = Page::default();
                let mut number = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    let row = RowKey::new(format!("{prefix}{number:06}"));
                    match table.mutate_row(&row, &[cell(&row)]).await {
                        Ok(()) => page.acknowledged.push(row),
                        Err(_told) => page.unknown += 1,
                    }
                    number += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                drop(done.send(page));
            });
            page
        });
        let writers = writers.collect();
        Self { stop, writers, table }
    }

    /// Ends the load and reads everything back; how many rows were acknowledged.
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

/// Repeats until it holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Clock::system().monotonic() + PATIENCE;
    while !holds() {
        assert!(Clock::system().monotonic() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_server_is_replaced_and_is_used_again_when_it_returns() {
    let mut house = House::open(4, 3).await;
    let client = house.client(0).await;
    Load::make_table(&client).await;
    let load = Load::start(&client, &house.runtime, "first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The third server has the root tablet and METADATA besides.
    let lost = house.server(2).id();
    house.lose(2).await;
    house.healed("the first loss").await;
    let made: usize = [0, 1, 3].map(|at| house.added(at)).into_iter().sum();
    assert!(made >= 3, "its replicas were made elsewhere: {made}");
    let first = load.verify().await;

    house.start(2).await;
    assert_eq!(house.server(2).id(), lost, "its data folder is its identity");
    house.healed("what it had is superfluous").await;
    assert!(house.server(2).hosted().tablets().is_empty());
    assert_eq!(std::fs::read_dir(house.folder(2).join("tablets")).unwrap().count(), 0, "its files are gone");

    let load = Load::start(&client, &house.runtime, "second");
    house.lose(1).await;
    house.healed("the second loss").await;
    assert!(house.added(2) > 0, "the server that returned has replicas again");
    let second = load.verify().await;
    house.converged().await;
    println!("{made} replicas made after the first loss; {first} and {second} acknowledged, 0 lost");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_returns_within_the_grace_keeps_its_replicas() {
    let mut house = House::open(4, 3).await;
    let client = house.client(0).await;
    Load::make_table(&client).await;
    house.healed("the beginning").await;
    let before = house.server(2).hosted().registry().replicas();
    house.lose(2).await;
    house.start(2).await;
    let load = Load::start(&client, &house.runtime, "after");
    tokio::time::sleep(GRACE * 2).await;
    house.healed("nothing to heal").await;
    let after = house.server(2).hosted().registry().replicas();
    let ids = |replicas: &[(ebla_storage::log::GroupId, ebla_storage::registry::ReplicaRecord)]| -> Vec<_> {
        replicas.iter().map(|(id, _record)| *id).collect()
    };
    assert_eq!(ids(&before), ids(&after));
    load.verify().await;
    house.converged().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_of_five_are_lost_one_after_the_other() {
    let mut house = House::open(5, 3).await;
    let client = house.client(4).await;
    Load::make_table(&client).await;
    let load = Load::start(&client, &house.runtime, "load");
    // Both have the root tablet and METADATA.
    for lost in [0, 1] {
        house.lose(lost).await;
        house.healed(&format!("the loss of {lost}")).await;
    }
    let acknowledged = load.verify().await;
    house.converged().await;
    println!("two of five lost: {acknowledged} acknowledged, 0 lost");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_master_finishes_what_a_repair_has_begun() {
    let mut house = House::open(4, 3).await;
    let client = house.client(0).await;
    Load::make_table(&client).await;
    let load = Load::start(&client, &house.runtime, "load");
    house.lose(2).await;
    let is_new = |server: &TabletServer| {
        server.hosted().registry().replicas().iter().any(|(id, _record)| id.replica >= FIRST_ADDED)
    };
    until("a repair", || house.alive().any(is_new)).await;
    house.master.take().unwrap().abort().await;
    house.enthrone(3).await;
    house.healed("the loss").await;
    load.verify().await;
    house.converged().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_replica_is_replaced_under_a_new_id() {
    let mut house = House::open(3, 3).await;
    let client = house.client(0).await;
    Load::make_table(&client).await;
    let load = Load::start(&client, &house.runtime, "load");
    house.healed("the beginning").await;
    let table = client.tablets(&load_name()).await.unwrap();
    let tablet = table[0].0.tablet;
    house.lose(2).await;
    let damaged = lose_folder(&house.folder(2), tablet);
    house.start(2).await;
    assert_eq!(house.server(2).hosted().quarantined(), [damaged]);
    // There is no other server: the new replica lives where the damaged one was.
    house.healed("the damage").await;
    let registry = house.server(2).hosted().registry();
    assert!(registry.is_removed(damaged), "its id never lives again");
    assert_eq!(house.added(2), 1);
    load.verify().await;
    house.converged().await;
    house.close().await;
}

/// Removes the folder of a tablet's replica, as a bad disk might; which replica it was.
fn lose_folder(data: &std::path::Path, tablet: TabletId) -> ebla_storage::log::GroupId {
    let registry = Registry::open(data).unwrap();
    let (id, record) = registry.replicas().into_iter().find(|(id, _record)| id.tablet == tablet).unwrap();
    assert_eq!(record.state, ReplicaState::Live);
    std::fs::remove_dir_all(registry.path(id).unwrap()).unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_began_with_one_server_gets_replicas_when_others_join() {
    let mut house = House::open(1, 1).await;
    let client = house.client(0).await;
    Load::make_table(&client).await;
    let load = Load::start(&client, &house.runtime, "load");
    house.join().await;
    house.join().await;
    house.healed("the growth").await;
    load.verify().await;
    house.converged().await;
    // Now one may go.
    house.lose(1).await;
    let load = Load::start(&client, &house.runtime, "after");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(load.verify().await > 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_status_says_which_servers_are_left_when_metadata_cannot_be_read() {
    let mut house = House::open(3, 3).await;
    let client = house.client(0).await;
    assert_eq!(client.admin().status().await.unwrap().trouble, "");
    house.lose(1).await;
    house.lose(2).await;
    let asking = async {
        loop {
            let status = client.admin().status().await.unwrap();
            let reachable = status.servers.iter().filter(|server| server.reachable).count();
            // A leader that is left answers until its lease ends.
            if !status.trouble.is_empty() && reachable == 1 {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, asking).await.unwrap();
    assert!(status.trouble.starts_with("METADATA cannot be read: "), "{}", status.trouble);
    assert_eq!((status.tablets, status.tablets_led), (0, 0));
    house.close().await;
}
