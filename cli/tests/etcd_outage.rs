//! A complete outage of etcd: killed and frozen, for longer than every lease, under a verifying load. Tablet servers that are
//! killed meanwhile restart and serve. Changes of METADATA wait, and continue when etcd is back.
//!
//! An etcd that has reached its quota: the load goes on, a new table is refused with the reason, and once etcd is freed all works again without
//! the restart of a process.
//!
//! `EBLA_AWAY_SECONDS` sets how long it is killed in the first part (25 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;
use crate::support::commands::Commands;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ebla_chubby::etcd::Etcd;
use ebla_chubby::{LeaseId, SharedChubby};
use ebla_model::schema::TableName;
use ebla_proto::admin;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::etcd_space::EtcdSpace;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::verify::{self, Counts, Load, endpoints};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Members of etcd, and tablet servers.
const THREE: usize = 3;
/// The lease of masters and tablet servers.
const LEASE: Duration = Duration::from_secs(10);
/// Longer than every lease and a renewal: no master is active, no server is registered.
const PAST_LEASES: Duration = Duration::from_secs(15);
/// Timeout of a table creation that must fail.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of one that must succeed.
const LONG_TIMEOUT: Duration = Duration::from_secs(90);
/// Acknowledged writes in each part of the test.
const WRITES: u64 = 300;
/// The quota of etcd where it is filled. The files of the cluster and their history take less than a tenth of it.
const QUOTA_BYTES: u64 = 8 << 20;
/// What an error says when etcd is full: the cause, the next step, and etcd's own message.
const FULL: [&str; 3] = ["the lock service (etcd) is full", "disarm its alarm", "mvcc: database space exceeded"];

fn etcd() -> impl Iterator<Item = Node> {
    (0..THREE).map(Node::Etcd)
}

fn servers() -> Vec<Node> {
    (0..THREE).map(Node::TabletServer).collect()
}

/// The public admin API, as it answers.
struct Tables(BigtableTableAdminClient<Channel>);

impl Tables {
    /// Creates a table with one call, whose timeout is sent to the server.
    async fn create(&mut self, table: &str, timeout: Duration) -> Result<(), Status> {
        let families = HashMap::from([("f".to_owned(), admin::ColumnFamily::default())]);
        let mut request = Request::new(admin::CreateTableRequest {
            parent: "projects/test/instances/test".to_owned(),
            table_id: table.to_owned(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            ..Default::default()
        });
        request.set_timeout(timeout);
        self.0.create_table(request).await.map(drop)
    }
}

/// A cluster with its load.
struct OutageTest {
    runtime: Runtime,
    cluster: ProcessCluster<Loopback>,
    addresses: Vec<String>,
    table: TableName,
    load: Load,
}

impl OutageTest {
    async fn start(plan: Plan) -> Self {
        let runtime = Runtime::system("away");
        let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let addresses = cluster.addresses();
        let table = TableName::from_parts("test", "test", "verified").unwrap();
        let plan = verify::Plan { writers: 6, readers: 3, slots: 3, ..verify::Plan::default() };
        verify::create_table(&addresses[0], &table, plan.slots, &runtime).await.unwrap();
        let load = Load::new(plan, &runtime);
        Self { runtime, cluster, addresses, table, load }
    }

    fn tables(&self) -> Tables {
        Tables(BigtableTableAdminClient::new(self.runtime.net.channel(&self.addresses[0])))
    }

    async fn begin(&mut self, addresses: &[String]) -> verify::Running {
        self.load.start(&endpoints(addresses, &self.table, &self.runtime)).await.unwrap()
    }

    /// Ends a round, which must have no errors.
    async fn finish(&mut self, what: &str, running: verify::Running) -> Counts {
        let counts = self.load.finish(running).await;
        let (outcomes, errors) = ((counts.unknown, counts.failed), &counts.errors);
        assert!(outcomes == (0, 0) && errors.is_empty(), "{what}: errors on the data path: {outcomes:?} {errors:?}");
        println!(
            "{what}: {} writes acknowledged, {} reads, no error; longest stall {:?}",
            counts.acknowledged, counts.reads, counts.longest_stall
        );
        counts
    }

    /// A round through these addresses that ends after a number of writes.
    async fn writes(&mut self, what: &str, addresses: &[String]) {
        let before = self.load.acknowledged();
        let running = self.begin(addresses).await;
        while running.acknowledged() < before + WRITES {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.finish(what, running).await;
    }

    /// Reads everything back through these addresses.
    async fn check(&mut self, what: &str, addresses: &[String]) {
        let report = self.load.check(&endpoints(addresses, &self.table, &self.runtime)).await.unwrap();
        assert!(report.is_good() && report.silent.is_empty(), "{what}\n{}", report.text());
    }

    async fn kill_etcd(&mut self) {
        for member in etcd() {
            self.cluster.kill(member).await.unwrap();
        }
    }

    async fn restart_etcd(&mut self) {
        for member in etcd() {
            self.cluster.restart(member).await.unwrap();
        }
    }

    async fn kill_and_restart(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.cluster.kill(*node).await.unwrap();
        }
        for node in nodes {
            self.cluster.restart(*node).await.unwrap();
        }
        self.cluster.wait_ready(nodes).await.unwrap();
    }
}

#[test]
fn an_etcd_outage_does_not_affect_the_data_path() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let mut test = OutageTest::start(Plan::new(support::ebla(), THREE)).await;
        Box::pin(killed_under_load(&mut test)).await;
        Box::pin(frozen_while_a_server_restarts(&mut test)).await;
        Box::pin(killed_while_all_servers_restart(&mut test)).await;
    });
}

/// No error on the data path; a table creation fails with the reason, or waits until etcd is back.
async fn killed_under_load(test: &mut OutageTest) {
    let seconds = std::env::var("EBLA_AWAY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let lasts = Duration::from_secs(seconds).max(PAST_LEASES);
    let addresses = test.addresses.clone();
    let epoch = test.cluster.status().await.unwrap().master_epoch;
    let running = test.begin(&addresses).await;
    let clock = test.runtime.clock.clone();
    let began = clock.monotonic();
    test.kill_etcd().await;
    tokio::time::sleep(PAST_LEASES).await;
    let refused = test.tables().create("early", SHORT_TIMEOUT).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("the lock service is unavailable"), "{refused}");
    tokio::time::sleep((began + lasts).saturating_sub(clock.monotonic())).await;
    // The request is sent during the outage and completes after it.
    let mut late = test.tables();
    let (made, ()) = tokio::join!(late.create("late", LONG_TIMEOUT), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        test.restart_etcd().await;
    });
    made.unwrap();
    test.cluster.wait_healthy().await.unwrap();
    assert!(test.cluster.status().await.unwrap().master_epoch > epoch, "a master was elected again");
    test.tables().create("early", LONG_TIMEOUT).await.unwrap();
    test.finish(&format!("etcd killed for {seconds} s"), running).await;
    test.check("after etcd was killed", &addresses).await;
}

/// The restarted server is used through its own address while etcd is frozen.
async fn frozen_while_a_server_restarts(test: &mut OutageTest) {
    let addresses = test.addresses.clone();
    let (others, restarted) = addresses.split_at(THREE - 1);
    let running = test.begin(others).await;
    for member in etcd() {
        test.cluster.pause(member).await.unwrap();
    }
    test.kill_and_restart(&servers()[THREE - 1..]).await;
    test.finish("a server killed while etcd is frozen, through the others", running).await;
    test.writes("the same, through the restarted server", restarted).await;
    for member in etcd() {
        test.cluster.resume(member).await.unwrap();
    }
    test.cluster.wait_healthy().await.unwrap();
    test.check("after etcd was frozen", &addresses).await;
}

/// The servers find each other with their cached directories.
async fn killed_while_all_servers_restart(test: &mut OutageTest) {
    let addresses = test.addresses.clone();
    test.kill_etcd().await;
    test.kill_and_restart(&servers()).await;
    test.check("all servers restarted while etcd is killed", &addresses).await;
    test.writes("all servers restarted while etcd is killed", &addresses).await;
    test.restart_etcd().await;
    test.cluster.wait_healthy().await.unwrap();
    test.tables().create("last", LONG_TIMEOUT).await.unwrap();
    test.check("at the end", &addresses).await;
}

#[test]
fn a_full_etcd_does_not_affect_the_data_path() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let plan = Plan {
            etcd: 1,
            build: Build::Debian,
            etcd_quota_bytes: Some(QUOTA_BYTES),
            masters: 1,
            ..Plan::new(support::ebla(), THREE)
        };
        let mut test = OutageTest::start(plan).await;
        Box::pin(full_and_freed_under_load(&mut test)).await;
    });
}

/// The files of masters and tablet servers, with their leases. A process that has lost its lease, and one that was started again, gets another
/// lease.
async fn leases(chubby: &SharedChubby) -> Vec<(String, LeaseId)> {
    let (files, _revision) = chubby.list("").await.unwrap();
    files.into_iter().filter_map(|file| Some((file.path, file.lease?))).collect()
}

/// While the alarm NOSPACE is raised, etcd 3.4 rejects every put, every transaction with a put and every new lease. It serves reads, deletions,
/// compactions and the renewal of leases: a renewal changes only the memory of etcd's leader. So all processes keep their leases, and the
/// master stays active; but a process that has lost its lease gets no other one.
async fn full_and_freed_under_load(test: &mut OutageTest) {
    let addresses = test.addresses.clone();
    let endpoints = test.cluster.etcd_endpoints();
    let chubby = Etcd::new(&endpoints, &test.runtime).unwrap().shared();
    let session = chubby.open_session(LEASE).await.unwrap();
    let mut space = EtcdSpace::connect(&endpoints[0]).await.unwrap();
    let before = leases(&chubby).await;
    assert_eq!(before.len(), 2 + THREE, "the master lock, the registered master and the tablet servers: {before:?}");

    let running = test.begin(&addresses).await;
    let keys = Box::pin(space.fill()).await.unwrap();
    let clock = test.runtime.clock.clone();
    let filled = clock.monotonic();
    let no_lease = chubby.open_session(LEASE).await.unwrap_err().to_string();
    let no_table = test.tables().create("fruit", SHORT_TIMEOUT).await.unwrap_err();
    assert_eq!(no_table.code(), Code::Unavailable, "nothing was created, so the caller may retry: {no_table}");
    for part in FULL {
        assert!(no_lease.contains(part), "a new lease: {no_lease}");
        assert!(no_table.message().contains(part), "a new table: {no_table}");
    }
    tokio::time::sleep((filled + PAST_LEASES).saturating_sub(clock.monotonic())).await;
    test.finish(&format!("etcd full after {keys} keys, for {PAST_LEASES:?}"), running).await;
    test.writes("etcd full for longer than every lease", &addresses).await;
    test.check("while etcd is full", &addresses).await;
    assert!(session.is_alive(), "a lease was not renewed");
    assert_eq!(leases(&chubby).await, before, "a process has lost its lease while etcd was full");
    assert!(chubby.open_session(LEASE).await.is_err(), "etcd is full until it is freed");

    let running = test.begin(&addresses).await;
    Box::pin(space.free()).await.unwrap();
    test.tables().create("fruit", LONG_TIMEOUT).await.unwrap();
    let commands = Commands::new(addresses[0].clone(), test.runtime.clone());
    let fruit = "projects/test/instances/test/tables/fruit";
    commands.run_until_success(&["row", "set", fruit, "apple", "f:q=value"]).await;
    let row = commands.run(&["row", "get", fruit, "apple"]);
    assert!(row.contains("value"), "{row}");
    chubby.open_session(LEASE).await.unwrap();
    test.finish("etcd freed", running).await;
    test.cluster.wait_healthy().await.unwrap();
    assert_eq!(leases(&chubby).await, before, "a process was started again, or has lost its lease");
    test.check("after etcd was freed", &addresses).await;
}

#[test]
fn a_first_start_waits_for_etcd_and_logs_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(support::ebla())
        .args(["tablet-server", "--etcd", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .env_remove("EBLA_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.by_ref().filter(|line| line.contains("waiting for Chubby to assign a server id")).take(2).count();
    let runs_on = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(waits == 2 && runs_on, "it is logged repeatedly: {waits}");
}
