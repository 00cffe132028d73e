//! Three tablet servers in one process over real folders: rows written and read through each of them, split, failed over,
//! restarted. There is no master: the test makes the first tablets by itself.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::{SharedChubby, Write, paths};
use ebla_client::{Check, Cluster, Modify, Read, RowWrite};
use ebla_model::aggregate::{Aggregator, decode_state};
use ebla_model::cell::FamilyName;
use ebla_model::id::{ClusterId, OperationId, ServerId, TableId, TabletId};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::{TabletDescriptor, first_tablets};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::{Family, TableName, TableSchema, TableState};
use ebla_model::{FamilyId, Micros, Reason, SchemaVersion};
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::{control, convert, data, record};
use ebla_runtime::{Clock, Runtime, Tasks};
use ebla_tablet_server::raft::RaftTimings;
use ebla_tablet_server::tablet::hosted::Beginning;
use ebla_tablet_server::{Neighbours, Restart, ServerConfig, ServerOptions, TabletServer};
use futures::TryStreamExt as _;
use prost::Message as _;
use tempfile::TempDir;

const TABLE: TableId = TableId::new(5);
const TABLET: TabletId = TabletId::new(100);
const LIVE: Duration = Duration::from_secs(60);

/// Shorter than in production, so that a failover does not take the test's time.
const TIMINGS: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(400),
    election_max: Duration::from_millis(800),
};

fn schema() -> TableSchema {
    TableSchema {
        table: TABLE,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(1),
        families: vec![
            Family {
                id: FamilyId::new(1),
                name: FamilyName::new("cf").unwrap(),
                gc: None,
                locality_group: 0,
                aggregator: None,
            },
            Family {
                id: FamilyId::new(2),
                name: FamilyName::new("sum").unwrap(),
                gc: None,
                locality_group: 0,
                aggregator: Some(Aggregator::Sum),
            },
        ],
        next_family: FamilyId::new(3),
        deletion_protection: false,
        state: TableState::Active,
    }
}

struct House {
    _dir: TempDir,
    chubby: Embedded,
    neighbours: Neighbours,
    tasks: Tasks,
    servers: Vec<Option<TabletServer>>,
    /// Where the servers tell others to look for them; absent: where they listen.
    advertise: Option<String>,
}

impl House {
    async fn start(split_bytes: u32) -> Self {
        Self::start_at(split_bytes, None).await
    }

    async fn start_at(split_bytes: u32, advertise: Option<String>) -> Self {
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

    async fn open(&self, at: usize, split_kib: u32) -> TabletServer {
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

    fn folder(&self, at: usize) -> std::path::PathBuf {
        let root: &Path = self._dir.path();
        root.join(format!("s{at}"))
    }

    fn shared(&self) -> SharedChubby {
        self.chubby.shared()
    }

    fn server(&self, at: usize) -> &TabletServer {
        self.servers[at].as_ref().unwrap()
    }

    fn ids(&self) -> Vec<ServerId> {
        self.servers.iter().flatten().map(TabletServer::id).collect()
    }

    /// What a master does at a cluster's first start, and for a table.
    async fn begin(&self) {
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
    async fn listed(&self) {
        let cluster = self.server(0).cluster();
        let deadline = cluster.deadline(LIVE);
        while cluster.metadata().read_table(TABLE, deadline).await.map_or(true, |listed| listed.is_empty()) {
            assert!(!deadline.has_passed(&Clock::system()), "METADATA lists nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The server that leads a tablet, once there is one.
    async fn leader(&self, tablet: TabletId) -> usize {
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

    async fn stop(self) {
        for server in self.servers.into_iter().flatten() {
            server.stop().await;
        }
        self.tasks.stop(Duration::from_secs(5)).await;
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let clock = Clock::system();
    let end = clock.monotonic() + LIVE;
    while !holds() {
        assert!(clock.monotonic() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn key(n: u32) -> RowKey {
    RowKey::new(format!("row-{n:06}"))
}

fn set(qualifier: &'static str, value: impl Into<Bytes>) -> Bytes {
    convert::mutation_to_bytes(&Mutation::SetCell {
        family: "cf".to_owned(),
        qualifier: Bytes::from_static(qualifier.as_bytes()),
        timestamp: WriteTime::Server,
        value: value.into(),
    })
}

async fn write(cluster: &Cluster, from: u32, to: u32, size: usize) {
    let rows = (from..to)
        .map(|n| RowWrite { row: key(n), mutations: vec![set("q", payload(n, size))], token: None })
        .collect();
    let results = cluster.mutate_rows(TABLE, rows, cluster.deadline(LIVE)).await;
    for result in results {
        result.unwrap();
    }
}

/// Bytes that do not compress, and tell which row they belong to.
fn payload(n: u32, size: usize) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..size).map(|_| next()).collect()
}

/// All rows: key and newest value.
async fn scan(cluster: &Cluster) -> Vec<(RowKey, Bytes)> {
    let read = Read::new(TABLE, RowSet::all());
    let mut parts = cluster.read_rows(read, cluster.deadline(LIVE));
    let mut rows = Vec::new();
    while let Some(part) = parts.try_next().await.unwrap() {
        let response = data::ReadRowsResponse::decode(part.response).unwrap();
        let mut row = RowKey::EMPTY;
        for chunk in response.chunks {
            if !chunk.row_key.is_empty() {
                row = RowKey::new(chunk.row_key.clone());
            }
            if rows.last().is_none_or(|(last, _)| *last != row) {
                rows.push((row.clone(), chunk.value.clone()));
            }
        }
    }
    rows
}

fn expect_rows(rows: &[(RowKey, Bytes)], count: u32, size: usize) {
    assert_eq!(rows.len(), usize::try_from(count).unwrap());
    for (n, (row, value)) in (0..count).zip(rows) {
        assert_eq!(row, &key(n));
        assert_eq!(value.as_ref(), payload(n, size).as_slice());
    }
}

async fn increment(cluster: &Cluster, row: &RowKey) -> i64 {
    let rule =
        Rule { family: "cf".to_owned(), qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    let modify = Modify { row: row.clone(), rules: vec![convert::rule_to_bytes(&rule)], token: None };
    let answer = cluster.modify(TABLE, &modify, cluster.deadline(LIVE)).await.unwrap();
    let row = data::ReadModifyWriteRowResponse::decode(answer).unwrap().row.unwrap();
    let value = convert::row_from_proto(&row).unwrap().cells[0].value.clone();
    i64::from_be_bytes(value.as_ref().try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_are_written_and_read_through_every_server() {
    let house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 300, 100).await;
    for at in 0..3 {
        expect_rows(&scan(house.server(at).cluster()).await, 300, 100);
    }
    for n in 1..=30 {
        let cluster = house.server(usize::try_from(n % 3).unwrap()).cluster();
        assert_eq!(increment(cluster, &RowKey::new("counter")).await, n);
    }
    let cluster = house.server(1).cluster();
    let check = |then: Vec<Bytes>, otherwise: Vec<Bytes>| Check {
        row: RowKey::new("once"),
        predicate: None,
        then,
        otherwise,
        token: None,
    };
    let first = cluster.check(TABLE, check(Vec::new(), vec![set("q", "x")]), cluster.deadline(LIVE)).await;
    assert!(!first.unwrap());
    let second = cluster.check(TABLE, check(vec![set("q", "y")], Vec::new()), cluster.deadline(LIVE)).await;
    assert!(second.unwrap());
    let unknown = RowWrite {
        row: key(1),
        mutations: vec![convert::mutation_to_bytes(&Mutation::DeleteFamily { family: "nope".to_owned() })],
        token: None,
    };
    let refused = cluster.mutate_row(TABLE, unknown, cluster.deadline(LIVE)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::NotFoundFamily);
    house.stop().await;
}

fn add(input: i64) -> Bytes {
    convert::mutation_to_bytes(&Mutation::AddToCell {
        family: "sum".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: Micros::ZERO,
        input,
    })
}

fn token(text: &'static str) -> Option<IdempotencyToken> {
    Some(IdempotencyToken { token: Bytes::from_static(text.as_bytes()), started: None })
}

async fn sum(cluster: &Cluster, row: u32) -> i64 {
    let rows = scan(cluster).await;
    let value = &rows.iter().find(|(found, _)| *found == key(row)).unwrap().1;
    decode_state(value).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn additions_from_everywhere_count_once_each_and_outlive_a_leader() {
    let mut house = House::start(1 << 20).await;
    let mut adders = tokio::task::JoinSet::new();
    for at in 0..3 {
        let cluster = house.server(at).cluster().clone();
        adders.spawn(async move {
            for _ in 0..20 {
                let rows = (1..4).map(|n| RowWrite { row: key(n), mutations: vec![add(1), add(2)], token: None });
                for result in cluster.mutate_rows(TABLE, rows.collect(), cluster.deadline(LIVE)).await {
                    result.unwrap();
                }
            }
        });
    }
    adders.join_all().await;
    let lost = house.leader(TABLET).await;
    house.servers[lost].take().unwrap().abort().await;
    let cluster = house.server((lost + 1) % 3).cluster();
    for row in 1..4 {
        assert_eq!(sum(cluster, row).await, 180);
    }
    // Plain writes and increments have no place among them.
    let set = convert::mutation_to_bytes(&Mutation::SetCell {
        family: "sum".to_owned(),
        qualifier: Bytes::new(),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    });
    let write = RowWrite { row: key(1), mutations: vec![add(1), set], token: None };
    let refused = cluster.mutate_row(TABLE, write, cluster.deadline(LIVE)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidArgument);
    assert_eq!(sum(cluster, 1).await, 180, "nothing of it was written");
    house.stop().await;
}

/// Each server has a session of its own: only the token can tell that a write is the same again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_known_to_every_front_after_a_split_and_a_failover() {
    let mut house = House::start(1 << 20).await;
    let rule =
        Rule { family: "cf".to_owned(), qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    let modify = Modify { row: key(300), rules: vec![convert::rule_to_bytes(&rule)], token: token("an increment") };
    let added = RowWrite { row: key(100), mutations: vec![add(7)], token: token("an addition") };
    let check = Check {
        row: key(300),
        predicate: None,
        then: vec![set("checked", "again")],
        otherwise: vec![set("checked", "once")],
        token: token("a condition"),
    };
    let first = {
        let cluster = house.server(0).cluster();
        let deadline = || cluster.deadline(LIVE);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap());
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        cluster.modify(TABLE, &modify, deadline()).await.unwrap()
    };
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    tablet.split(Some(key(200)), LIVE).await.unwrap();
    drop(tablet);
    let leader = house.leader(TABLET).await;
    house.servers[leader].take().unwrap().abort().await;
    for at in (0..3).filter(|at| *at != leader) {
        let cluster = house.server(at).cluster();
        let deadline = || cluster.deadline(LIVE);
        assert_eq!(cluster.modify(TABLE, &modify, deadline()).await.unwrap(), first);
        assert!(!cluster.check(TABLE, check.clone(), deadline()).await.unwrap(), "the row has cells by now");
        cluster.mutate_row(TABLE, added.clone(), deadline()).await.unwrap();
        assert_eq!(sum(cluster, 100).await, 7);
    }
    let cluster = house.server((leader + 1) % 3).cluster();
    let other = Modify { token: token("another increment"), ..modify };
    assert_ne!(cluster.modify(TABLE, &other, cluster.deadline(LIVE)).await.unwrap(), first);
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_of_one_process_need_no_address_for_each_other() {
    let nobody = "127.0.0.1:9".to_owned();
    let house = House::start_at(1 << 20, Some(nobody)).await;
    for at in 0..3 {
        let cluster = house.server(at).cluster();
        write(cluster, 0, 30, 100).await;
        expect_rows(&scan(cluster).await, 30, 100);
    }
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tablet_splits_by_command_and_metadata_follows() {
    let house = House::start(1 << 20).await;
    let cluster = house.server(0).cluster();
    write(cluster, 0, 400, 200).await;
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    let (left, right) = tablet.split(None, LIVE).await.unwrap();
    assert_eq!(left.range.end(), Some(right.range.start()));
    for at in 0..3 {
        expect_rows(&scan(house.server(at).cluster()).await, 400, 200);
    }
    // Writes to both halves, and METADATA lists both in the end.
    write(cluster, 0, 400, 300).await;
    expect_rows(&scan(cluster).await, 400, 300);
    let deadline = cluster.deadline(LIVE);
    loop {
        let listed = cluster.metadata().read_table(TABLE, deadline).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|entry| entry.descriptor).collect();
        if listed == [left.clone(), right.clone()] {
            break;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for at in 0..3 {
        let hosted = house.server(at).hosted();
        until("the child on every server", || hosted.tablet(right.tablet).is_some()).await;
    }
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_leader_is_replaced_and_comes_back() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 200, 100).await;
    let lost = house.leader(TABLET).await;
    house.servers[lost].take().unwrap().abort().await;
    let other = (lost + 1) % 3;
    let cluster = house.server(other).cluster().clone();
    write(&cluster, 200, 300, 100).await;
    expect_rows(&scan(&cluster).await, 300, 100);
    assert_eq!(increment(&cluster, &RowKey::new("counter")).await, 1);
    // The server comes back with its folder and catches up.
    let back = house.open(lost, 1 << 20).await;
    let ahead = house.server(other).hosted().tablet(TABLET).unwrap().report().applied;
    until("the lost replica caught up", || {
        back.hosted().tablet(TABLET).is_some_and(|tablet| tablet.report().applied >= ahead)
    })
    .await;
    house.servers[lost] = Some(back);
    write(house.server(lost).cluster(), 300, 320, 100).await;
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_table_that_grows_splits_by_itself_while_it_is_written() {
    let house = House::start(512).await;
    let cluster = house.server(0).cluster();
    let mut written = 0;
    while written < 4000 {
        write(cluster, written, written + 200, 1000).await;
        written += 200;
    }
    let tablets = || -> usize {
        let mut seen = std::collections::BTreeSet::new();
        for server in house.servers.iter().flatten() {
            seen.extend(server.hosted().descriptors(TABLE).into_iter().map(|descriptor| descriptor.tablet));
        }
        seen.len()
    };
    until("the table split", || tablets() >= 4).await;
    for at in 0..3 {
        expect_rows(&scan(house.server(at).cluster()).await, written, 1000);
    }
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_whole_house_that_stops_finds_everything_again() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 300, 100).await;
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    tablet.split(Some(key(150)), LIVE).await.unwrap();
    write(house.server(1).cluster(), 0, 300, 120).await;
    drop(tablet);
    for server in &mut house.servers {
        server.take().unwrap().abort().await;
    }
    for at in 0..3 {
        let server = house.open(at, 1 << 20).await;
        house.servers[at] = Some(server);
    }
    for at in 0..3 {
        expect_rows(&scan(house.server(at).cluster()).await, 300, 120);
    }
    house.stop().await;
}

/// Everything written so far goes to disk and the log forgets it, on every server that runs.
async fn forget_logs(house: &House) {
    for server in house.servers.iter().flatten() {
        for tablet in server.hosted().tablets() {
            tablet.machine().flush().unwrap();
            let persisted = tablet.machine().persisted_id().unwrap().unwrap();
            tablet.group().purge(persisted.index).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_missed_a_split_and_the_log_gets_both_halves() {
    let mut house = House::start(1 << 20).await;
    write(house.server(0).cluster(), 0, 100, 100).await;
    let leader = house.leader(TABLET).await;
    let away = (leader + 1) % 3;
    house.servers[away].take().unwrap().abort().await;
    let cluster = house.server(leader).cluster().clone();
    write(&cluster, 0, 200, 100).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    let (_, right) = tablet.split(Some(key(120)), LIVE).await.unwrap();
    write(&cluster, 0, 300, 100).await;
    forget_logs(&house).await;
    write(&cluster, 300, 320, 100).await;

    let back = house.open(away, 1 << 20).await;
    for id in [TABLET, right.tablet] {
        let at = house.leader(id).await;
        let ahead = house.server(at).hosted().tablet(id).unwrap().report();
        until("the replica caught up", || {
            let report = back.hosted().tablet(id).map(|tablet| tablet.report());
            report.is_some_and(|report| report.applied >= ahead.applied && report.descriptor == ahead.descriptor)
        })
        .await;
    }
    // It can carry on alone with one of the others.
    house.servers[away] = Some(back);
    house.servers[leader].take().unwrap().abort().await;
    let cluster = house.server(away).cluster();
    expect_rows(&scan(cluster).await, 320, 100);
    write(cluster, 320, 330, 100).await;
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_are_taken_only_from_the_newest_master_of_this_cluster() {
    let house = House::start(1 << 20).await;
    let mut control = ControlClient::new(Runtime::system("test").net.channel(house.server(0).address()));
    let order = |cluster: u128, epoch: u64| control::ReportRequest {
        fence: Some(control::Fence {
            cluster: Bytes::copy_from_slice(&ClusterId::new(cluster).to_bytes()),
            master_epoch: epoch,
        }),
    };
    let report = control.report(order(7, 5)).await.unwrap().into_inner();
    assert_eq!(report.replicas.len(), 3);
    assert!(control.report(order(8, 6)).await.is_err(), "another cluster");
    let stale = control.report(order(7, 4)).await.unwrap_err();
    assert_eq!(ebla_proto::status::from_status(&stale).0.reason, Reason::StaleEpoch);

    // A replica that is dropped does not come again.
    let hosted = house.server(0).hosted();
    let replica = hosted.tablet(TABLET).unwrap().replica();
    let fence = order(7, 5).fence;
    let drop_it = control::DropReplicaRequest { fence: fence.clone(), tablet: TABLET.get(), replica: replica.get() };
    control.drop_replica(drop_it.clone()).await.unwrap();
    control.drop_replica(drop_it).await.unwrap();
    assert!(hosted.tablet(TABLET).is_none());
    let descriptor = house.server(1).hosted().tablet(TABLET).unwrap().descriptor();
    let make = control::CreateReplicaRequest {
        empty: false,
        fence,
        descriptor: Some(convert::descriptor_to_proto(&descriptor)),
        schema: Some(convert::schema_to_proto(&schema())),
        replica: replica.get(),
    };
    assert_eq!(control.create_replica(make).await.unwrap().into_inner().outcome, "removed");
    // Two of three go on.
    write(house.server(0).cluster(), 0, 20, 100).await;
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_tablet_takes_nothing_any_more() {
    let house = House::start(1 << 20).await;
    let cluster = house.server(0).cluster();
    write(cluster, 0, 20, 100).await;
    let leader = house.leader(TABLET).await;
    let tablet = house.server(leader).hosted().tablet(TABLET).unwrap();
    tablet.drop_range(OperationId::new(1), KeyRange::prefix(b"row-00001"), LIVE).await.unwrap();
    tablet.drop_range(OperationId::new(1), KeyRange::all(), LIVE).await.unwrap();
    assert_eq!(scan(cluster).await.len(), 10);
    tablet.drop_table(OperationId::new(2), LIVE).await.unwrap();
    tablet.drop_table(OperationId::new(2), LIVE).await.unwrap();
    let write = RowWrite { row: key(1), mutations: vec![set("q", "x")], token: None };
    let refused = cluster.mutate_row(TABLE, write, cluster.deadline(Duration::from_secs(2))).await;
    assert!(refused.is_err());
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_applied_twice_while_leaders_fall_and_tablets_split() {
    let mut house = House::start(1 << 20).await;
    let tasks = Tasks::new("load");
    let (sender, mut done) = tokio::sync::mpsc::channel(16);
    // Server 0 stays: the writers' way in. Each has a counter of its own, and one that all share.
    for writer in 0..6_u32 {
        let (cluster, sender) = (house.server(0).cluster().clone(), sender.clone());
        tasks.spawn("writer", async move {
            for n in 1..=60 {
                let own = increment(&cluster, &RowKey::new(format!("row-{writer}"))).await;
                assert_eq!(own, n, "writer {writer}");
                increment(&cluster, &RowKey::new("row-shared")).await;
                let row = 1000 * (writer + 1) + u32::try_from(n).unwrap();
                write(&cluster, row, row + 1, 50).await;
            }
            sender.send(writer).await.unwrap();
        });
    }
    drop(sender);
    for (round, at) in [(0, "row-3"), (1, "row-1"), (2, "row-002000"), (3, "row-004000")] {
        tokio::time::timeout(LIVE, async {
            loop {
                // The tablet that holds the key now, wherever it is led.
                let key = RowKey::new(at);
                let found =
                    house.servers.iter().flatten().flat_map(|server| server.hosted().tablets()).find(|tablet| {
                        tablet.table() == TABLE && tablet.leads() && tablet.descriptor().range.contains(key.as_bytes())
                    });
                match found {
                    Some(tablet) if tablet.split(Some(key), LIVE).await.is_ok() => break,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        })
        .await
        .unwrap();
        let fallen = 1 + round % 2;
        house.servers[fallen].take().unwrap().abort().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let back = house.open(fallen, 1 << 20).await;
        house.servers[fallen] = Some(back);
    }
    let mut ended = 0;
    while done.recv().await.is_some() {
        ended += 1;
    }
    assert_eq!(ended, 6);
    let cluster = house.server(0).cluster();
    assert_eq!(increment(cluster, &RowKey::new("row-shared")).await, 361);
    assert_eq!(scan(cluster).await.len(), 6 * 60 + 7);
    house.stop().await;
}

/// `cargo test --release -p ebla-tablet-server --test cluster calls_per_second -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement, not a check"]
async fn calls_per_second() {
    let house = House::start(1 << 20).await;
    let clock = Clock::system();
    for clients in [1_u32, 16, 128] {
        for reads in [false, true] {
            let calls = 2000 * clients.min(16) / clients;
            let started = clock.monotonic();
            let work = (0..clients).map(|client| {
                let cluster = house.server(0).cluster().clone();
                async move {
                    for n in 0..calls {
                        let row = client * 10_000 + n;
                        if reads {
                            let rows = RowSet::from_ranges([KeyRange::single(key(row))]);
                            let mut parts = cluster.read_rows(Read::new(TABLE, rows), cluster.deadline(LIVE));
                            while parts.try_next().await.unwrap().is_some() {}
                        } else {
                            let write =
                                RowWrite { row: key(row), mutations: vec![set("q", payload(row, 1000))], token: None };
                            cluster.mutate_row(TABLE, write, cluster.deadline(LIVE)).await.unwrap();
                        }
                    }
                }
            });
            let mut set = tokio::task::JoinSet::new();
            work.for_each(|client| {
                set.spawn(client);
            });
            while let Some(ended) = set.join_next().await {
                ended.unwrap();
            }
            let took = clock.monotonic() - started;
            let what = if reads { "reads" } else { "writes" };
            let rate = f64::from(clients * calls) / took.as_secs_f64();
            println!("{clients} clients, {what}: {rate:.0}/s, {:.3} ms each", f64::from(clients) * 1000.0 / rate);
        }
    }
    house.stop().await;
}

/// `cargo test --release -p ebla-tablet-server --test cluster a_large -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes half a minute"]
async fn a_large_table_splits_while_it_is_loaded_and_scanned() {
    const ROWS: u32 = 320_000;
    const WRITERS: u32 = 8;
    let house = House::start(32 * 1024).await;
    let clock = Clock::system();
    let started = clock.monotonic();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let cluster = house.server(usize::try_from(writer % 3).unwrap()).cluster().clone();
        writers.spawn(async move {
            for batch in 0..(ROWS / WRITERS / 250) {
                let from = writer * (ROWS / WRITERS) + batch * 250;
                write(&cluster, from, from + 250, 1000).await;
            }
        });
    }
    let reader = house.server(1).cluster().clone();
    let mut scans = 0;
    while writers.join_next().await.is_some() {
        let rows = scan(&reader).await;
        assert!(rows.is_sorted_by(|(a, _), (b, _)| a < b), "a row came twice or out of order");
        scans += 1;
    }
    println!("loaded in {:?} beside {scans} scans", clock.monotonic() - started);
    let tablets = || house.servers.iter().flatten().flat_map(|s| s.hosted().descriptors(TABLE)).map(|d| d.tablet);
    until("the table split", || tablets().collect::<std::collections::BTreeSet<_>>().len() >= 8).await;
    let before = clock.monotonic();
    expect_rows(&scan(&reader).await, ROWS, 1000);
    println!("scanned in {:?}, {} replicas", clock.monotonic() - before, tablets().count());
    house.stop().await;
}
