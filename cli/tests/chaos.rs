//! Faults of every kind on a cluster of processes, three members of etcd, two masters and five tablet servers, under a
//! verifying load: nothing acknowledged is lost, nothing is applied twice, no read is stale, no row is half written.
//!
//! A second table of many tablets is at rest meanwhile: it shares its groups with the load. At the end it has all its rows, and
//! each of its tablets accepts a write.
//!
//! The cluster has TLS and access control unless `EBLA_SECURITY=off`. The load is a caller with a token and the least rights: it may use its
//! table, as the only member of the lists of all families. The table at rest has a family that is hidden from it.
//!
//! The schedule is drawn from a seed, which is printed; `EBLA_CHAOS_SEED` repeats it. The number of faults of each kind is set by
//! the variables in `items` and `cuts`, the tablets at rest by `EBLA_CHAOS_TABLETS`; `make chaos` sets higher numbers. Without network namespaces there are no partitions.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]
#![expect(clippy::panic, reason = "a test may fail, and then says where")]

use crate::support;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, ReadOptions, Table};
use ebla_model::access::Role as AccessRole;
use ebla_model::filter::Filter;
use ebla_model::id::ServerId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::{Clock, Runtime};
use ebla_tests::cluster::{Cluster as _, Direction, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::faults::fault::{FaultKind, Target};
use ebla_tests::faults::nemesis::ClusterNemesis;
use ebla_tests::faults::parameters::{security, seed, times};
use ebla_tests::faults::schedule::{ScheduleItem, schedule};
use ebla_tests::faults::stalls::{Leaders, attribute_stalls, since_boot, table};
use ebla_tests::netns::NetNs;
use ebla_tests::network::{Loopback, NodeNetwork};
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured::{Callers, Security};
use ebla_workload::verify::rows::{FAMILIES, Layout};
use ebla_workload::verify::{Load, Plan as LoadPlan, Running, create_table, endpoints_of};

/// The families of the table at rest: one that all read, and one that is hidden from the load.
const FAMILY: &str = "f";
const HIDDEN: &str = "hidden";
const TABLET_SERVERS: usize = 5;
/// Tablets of the load, with one writer each: a fault of one server must only affect those that it leads.
const TABLETS: u32 = 8;
/// Minimum duration of a listed stall.
const STALL: Duration = Duration::from_millis(300);
/// Small enough that the load's tablets split during the test.
const SPLIT_BYTES: u64 = 2 << 20;
/// Writes acknowledged between two faults.
const BETWEEN: u64 = 200;
/// Timeout of these writes.
const LIVE: Duration = Duration::from_secs(120);

#[test]
fn faults_of_every_kind_cause_no_anomalies() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let plan = Plan { split_bytes: Some(SPLIT_BYTES), ..Plan::new(support::ebla(), TABLET_SERVERS) };
        match NetNs::available() {
            Ok(()) => {
                let network = NetNs::start(&plan.nodes()).unwrap();
                chaos(plan, network, [items(), cuts()].concat()).await;
            }
            Err(reason) => {
                println!("partitions are skipped: {reason}");
                chaos(plan, Loopback::claim().unwrap(), items()).await;
            }
        }
    });
}

/// Faults that work on every machine, and the variables with their numbers.
fn items() -> Vec<ScheduleItem> {
    let one = |node: fn(usize) -> Node, count| (0..count).map(|number| Target::Node(node(number))).collect::<Vec<_>>();
    let role = |role| vec![Target::Role(role)];
    let item = |kind, targets, lasts, times| ScheduleItem { kind, targets, lasts, times };
    vec![
        item(FaultKind::Kill, one(Node::TabletServer, TABLET_SERVERS), SHORT, times("EBLA_CHAOS_KILLS", 5)),
        item(FaultKind::Stop, one(Node::TabletServer, TABLET_SERVERS), SHORT, times("EBLA_CHAOS_STOPS", 1)),
        item(FaultKind::Kill, role(Role::ActiveMaster), SHORT, times("EBLA_CHAOS_MASTERS", 1)),
        item(FaultKind::Kill, one(Node::Etcd, 3), SHORT, times("EBLA_CHAOS_ETCD", 2)),
        item(FaultKind::Kill, role(Role::EtcdLeader), SHORT, times("EBLA_CHAOS_ETCD_LEADERS", 1)),
        item(FaultKind::Kill, vec![Target::Everything], SHORT, times("EBLA_CHAOS_EVERYTHING", 2)),
        item(FaultKind::Pause, role(Role::BusiestTabletServer), LONG, times("EBLA_CHAOS_PAUSES", 1)),
        item(FaultKind::Pause, role(Role::ActiveMaster), LONG, times("EBLA_CHAOS_MASTER_PAUSES", 1)),
    ]
}

/// Partitions, and the variables with their numbers.
fn cuts() -> Vec<ScheduleItem> {
    let busiest = || vec![Target::Role(Role::BusiestTabletServer)];
    let cut =
        |direction, targets, times| ScheduleItem { kind: FaultKind::Partition(direction), targets, lasts: LONG, times };
    let each = times("EBLA_CHAOS_CUTS", 1);
    vec![
        cut(Direction::Both, busiest(), each),
        cut(Direction::In, busiest(), each),
        cut(Direction::Out, busiest(), each),
        cut(Direction::Both, vec![Target::Role(Role::ActiveMaster)], each),
    ]
}

/// A process that is restarted by a person or a supervisor.
const SHORT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Longer than every lease (10 s).
const LONG: (Duration, Duration) = (Duration::from_secs(12), Duration::from_secs(14));

async fn chaos<S: NodeNetwork>(mut plan: Plan, network: S, items: Vec<ScheduleItem>) {
    let runtime = Runtime::system("chaos");
    let callers = Callers::prepare(security(Security::On), &mut plan, 0, &network, &runtime).unwrap();
    println!("EBLA_SECURITY={}", callers.security().name());
    let seed = seed(&runtime);
    let schedule = schedule(seed, &items);
    println!("EBLA_CHAOS_SEED={seed}: {} faults", schedule.len());
    let began = runtime.clock.monotonic();
    let mut cluster = ProcessCluster::start(plan, network, &callers.operator).await.unwrap();
    let addresses = cluster.addresses();
    let name = TableName::from_parts("test", "test", "verified").unwrap();
    let load_plan = LoadPlan { writers: 8, readers: 2, slots: TABLETS, stall_listed: STALL, ..LoadPlan::default() };
    create_table(&addresses[0], &name, load_plan.slots, &callers.operator).await.unwrap();
    callers.grant(&addresses, &name, AccessRole::User, &FAMILIES).await.unwrap();
    let mut load = Load::new(load_plan, &runtime);
    let endpoints = endpoints_of(&addresses, &name, |address| callers.user_at(address));
    let running = load.start(&endpoints).await.unwrap();
    wait_for_writes(&running, &runtime.clock).await;
    let resting = RestingTable::create(&addresses, times("EBLA_CHAOS_TABLETS", 100), &callers).await;
    resting.write("before").await;

    let map = TabletMap::new(&addresses, name, &callers.observer).await;
    let mut nemesis = ClusterNemesis::new(&mut cluster, runtime.clock.clone());
    for (number, fault) in schedule.iter().enumerate() {
        let at = (runtime.clock.monotonic() - began).as_secs_f64();
        println!("{at:6.1} s, {} of {}: {fault}", number + 1, schedule.len());
        let leaders = map.leaders().await;
        nemesis
            .inject_with_leaders(fault, &leaders)
            .await
            .unwrap_or_else(|error| panic!("EBLA_CHAOS_SEED={seed}: {error}"));
        wait_for_writes(&running, &runtime.clock).await;
    }
    let records = nemesis.finish();
    load.finish(running).await;
    let report = load.check(&endpoints).await.unwrap();
    resting.check("before").await;
    resting.write("after").await;
    resting.check("after").await;

    let stalls = report.counts.stalls.iter().map(|stall| (stall.at.elapsed(), stall.lasted, stall.slot.0));
    let stalls = since_boot(&runtime.clock, report.began, stalls);
    println!(
        "stalls of {STALL:?} and more, {TABLETS} tablets\n{}\n{}",
        table(&attribute_stalls(&records, &stalls)),
        report.text()
    );
    assert!(report.is_good(), "EBLA_CHAOS_SEED={seed}\n{}", report.text());
    let unexpected = report.counts.errors.keys().find(|reason| !support::TROUBLE.contains(&reason.as_str()));
    assert_eq!(unexpected, None, "EBLA_CHAOS_SEED={seed}: requests were refused\n{}", report.text());
    assert_eq!(report.read_through, addresses, "EBLA_CHAOS_SEED={seed}: not every address reads back");
    assert!(report.counts.acknowledged > BETWEEN * schedule.len() as u64, "{}", report.text());
}

/// A table of many tablets with one row each.
struct RestingTable {
    /// As an administrator sees it.
    table: Table,
    /// As the load sees it, and the families that it reads.
    seen_by_user: Table,
    readable: Vec<&'static str>,
    rows: Vec<RowKey>,
}

impl RestingTable {
    async fn create(addresses: &[String], tablets: usize, callers: &Callers) -> Self {
        let name = TableName::from_parts("test", "test", "resting").unwrap();
        let rows: Vec<_> = (0..tablets).map(|number| RowKey::new(format!("{number:06}"))).collect();
        let client = Client::endpoint(&addresses[0], callers.operator.clone()).with_timeout(LIVE);
        let families = [FAMILY, HIDDEN].map(|family| (family.to_owned(), None));
        client.admin().create_table(&name, &families, &rows[1..]).await.unwrap();
        callers.hide(&addresses[0], &name, HIDDEN).await.unwrap();
        callers.grant(addresses, &name, AccessRole::Reader, &[]).await.unwrap();
        let readable = match callers.security() {
            Security::On => vec![FAMILY],
            Security::Off => vec![FAMILY, HIDDEN],
        };
        let seen_by_user = callers.user_at(&addresses[0]).with_timeout(LIVE).table(&name);
        Self { table: client.table(&name), seen_by_user, readable, rows }
    }

    /// Writes `value` into both families of the row of every tablet.
    async fn write(&self, value: &'static str) {
        let mutations = [FAMILY, HIDDEN].map(|family| Mutation::SetCell {
            family: family.to_owned(),
            qualifier: Bytes::new(),
            timestamp: WriteTime::Server,
            value: Bytes::from_static(value.as_bytes()),
        });
        let rows: Vec<_> = self.rows.iter().map(|row| (row.clone(), mutations.to_vec())).collect();
        let written = self.table.mutate_rows(&rows).await.unwrap();
        assert_eq!(written.into_iter().find_map(Result::err), None, "{value}");
    }

    /// Every row has `value` as its newest cell, in each family that the load may read and in no other one.
    async fn check(&self, value: &str) {
        let newest = ReadOptions { filter: Some(Filter::CellsPerColumnLimit(1)), ..ReadOptions::default() };
        let rows = self.seen_by_user.read_rows(RowSet::all(), newest).await.unwrap();
        let cells = rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (&row.key, cell)));
        let read: Vec<_> = cells.map(|(row, cell)| (row, cell.family.as_str(), &cell.value[..])).collect();
        let cells_of = |row| self.readable.iter().map(move |family| (row, *family, value.as_bytes()));
        let expected: Vec<_> = self.rows.iter().flat_map(cells_of).collect();
        assert_eq!(read, expected);
    }
}

/// Finds the leaders of the load's tablets.
struct TabletMap {
    client: Client,
    table: TableName,
    /// The tablet servers by their ids in the cluster.
    nodes: BTreeMap<ServerId, Node>,
}

impl TabletMap {
    async fn new(addresses: &[String], table: TableName, runtime: &Runtime) -> Self {
        let client = Client::connect_cluster(&addresses[0], runtime.clone()).await.unwrap();
        let host = |address: &str| address.rsplit_once(':').unwrap().0.to_owned();
        let numbers: BTreeMap<_, _> = addresses.iter().map(|address| host(address)).zip(0..).collect();
        let servers = client.servers().await.unwrap().into_iter();
        let node = |address: &str| Node::TabletServer(numbers[&host(address)]);
        let nodes = servers.map(|one| (ServerId::new(one.server), node(&one.address))).collect();
        Self { client, table, nodes }
    }

    /// The leaders of the load's tablets and of tablets split from them, according to METADATA.
    async fn leaders(&self) -> Leaders {
        let tablets = self.client.tablets(&self.table).await.unwrap();
        let starts = [RowKey::EMPTY].into_iter().chain(Layout::splits(TABLETS)).collect::<Vec<_>>();
        let slot = |number: usize| KeyRange::new(starts[number].clone(), starts.get(number + 1).cloned()).unwrap();
        let of = |range: KeyRange| {
            let parts = tablets.iter().filter(move |(tablet, _leader)| tablet.range.intersect(&range).is_some());
            parts.filter_map(|(_tablet, leader)| self.nodes.get(&leader.as_ref()?.server).copied()).collect()
        };
        (0..).zip(0..starts.len()).map(|(slot_number, number)| (slot_number, of(slot(number)))).collect()
    }
}

/// Waits until the load has written more.
async fn wait_for_writes(running: &Running, clock: &Clock) {
    let (enough, deadline) = (running.acknowledged() + BETWEEN, clock.monotonic() + LIVE);
    while running.acknowledged() < enough {
        assert!(clock.monotonic() < deadline, "writes have stopped: {} acknowledged", running.acknowledged());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
