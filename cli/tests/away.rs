//! etcd wholly away: killed and frozen, for longer than every lease, under a verifying load; tablet servers that are killed
//! meanwhile come back and serve all the same. Changes of the map wait, and go on when it is back.
//!
//! `EBLA_AWAY_SECONDS` sets how long it is killed in the first part (25 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ebla_cli::verify::{self, Load, Tally, through};
use ebla_model::schema::TableName;
use ebla_proto::admin;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::site::Loopback;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Members of etcd, and tablet servers.
const THREE: usize = 3;
/// Longer than every lease and a renewal: no master is in office any more, no server registered.
const PAST_LEASES: Duration = Duration::from_secs(15);
/// How long a change of the map is given that must not succeed.
const IMPATIENT: Duration = Duration::from_secs(4);
/// And one that must.
const PATIENT: Duration = Duration::from_secs(90);
/// Writes that a part of the test wants to see acknowledged: the load is well under way.
const WRITES: u64 = 300;

fn etcd() -> impl Iterator<Item = Node> {
    (0..THREE).map(Node::Etcd)
}

fn servers() -> Vec<Node> {
    (0..THREE).map(Node::TabletServer).collect()
}

/// The public admin API, as it answers.
struct Tables(BigtableTableAdminClient<Channel>);

impl Tables {
    /// Makes a table with one call, whose deadline the server is told.
    async fn create(&mut self, table: &str, limit: Duration) -> Result<(), Status> {
        let families = HashMap::from([("f".to_owned(), admin::ColumnFamily::default())]);
        let mut request = Request::new(admin::CreateTableRequest {
            parent: "projects/test/instances/test".to_owned(),
            table_id: table.to_owned(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            ..Default::default()
        });
        request.set_timeout(limit);
        self.0.create_table(request).await.map(drop)
    }
}

/// A cluster with its load.
struct House {
    runtime: Runtime,
    cluster: ProcessCluster<Loopback>,
    addresses: Vec<String>,
    table: TableName,
    load: Load,
}

impl House {
    async fn start() -> Self {
        let runtime = Runtime::system("away");
        let plan = Plan::new(support::ebla(), THREE);
        let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let addresses = cluster.addresses();
        let table = TableName::from_parts("test", "test", "ledger").unwrap();
        let plan = verify::Plan { writers: 6, readers: 3, slots: 3, ..verify::Plan::default() };
        verify::create_table(&addresses[0], &table, plan.slots, &runtime).await.unwrap();
        let load = Load::new(plan, &runtime);
        Self { runtime, cluster, addresses, table, load }
    }

    fn tables(&self) -> Tables {
        Tables(BigtableTableAdminClient::new(self.runtime.net.channel(&self.addresses[0])))
    }

    async fn begin(&mut self, addresses: &[String]) -> verify::Running {
        self.load.start(&through(addresses, &self.table, &self.runtime)).await.unwrap()
    }

    /// Ends a round in which nobody may have noticed anything.
    async fn finish(&mut self, what: &str, running: verify::Running) -> Tally {
        let tally = self.load.finish(running).await;
        let (noticed, sure) = ((tally.unknown, tally.failed), &tally.errors);
        assert!(noticed == (0, 0) && sure.is_empty(), "{what}: errors on the data path: {noticed:?} {sure:?}");
        println!(
            "{what}: {} writes acknowledged, {} reads, no error; longest stall {:?}",
            tally.acknowledged, tally.reads, tally.longest_stall
        );
        tally
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
        let report = self.load.check(&through(addresses, &self.table, &self.runtime)).await.unwrap();
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
        self.cluster.ready(nodes).await.unwrap();
    }
}

#[test]
fn the_data_path_does_not_notice_that_etcd_is_away() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let mut house = House::start().await;
        Box::pin(killed_under_load(&mut house)).await;
        Box::pin(frozen_while_a_server_restarts(&mut house)).await;
        Box::pin(killed_while_all_servers_restart(&mut house)).await;
    });
}

/// No error on the data path; a change of the map is refused with the reason, or waits and is made.
async fn killed_under_load(house: &mut House) {
    let seconds = std::env::var("EBLA_AWAY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let lasts = Duration::from_secs(seconds).max(PAST_LEASES);
    let addresses = house.addresses.clone();
    let epoch = house.cluster.status().await.unwrap().master_epoch;
    let running = house.begin(&addresses).await;
    let clock = house.runtime.clock.clone();
    let began = clock.monotonic();
    house.kill_etcd().await;
    tokio::time::sleep(PAST_LEASES).await;
    let refused = house.tables().create("early", IMPATIENT).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("the lock service is away"), "{refused}");
    tokio::time::sleep((began + lasts).saturating_sub(clock.monotonic())).await;
    // It is asked for while etcd is away, and made when it is back.
    let mut late = house.tables();
    let (made, ()) = tokio::join!(late.create("late", PATIENT), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        house.restart_etcd().await;
    });
    made.unwrap();
    house.cluster.whole().await.unwrap();
    assert!(house.cluster.status().await.unwrap().master_epoch > epoch, "a master came into office again");
    house.tables().create("early", PATIENT).await.unwrap();
    house.finish(&format!("etcd killed for {seconds} s"), running).await;
    house.check("after etcd was killed", &addresses).await;
}

/// The restarted server is spoken to at its own address, while etcd answers nobody.
async fn frozen_while_a_server_restarts(house: &mut House) {
    let addresses = house.addresses.clone();
    let (others, restarted) = addresses.split_at(THREE - 1);
    let running = house.begin(others).await;
    for member in etcd() {
        house.cluster.pause(member).await.unwrap();
    }
    house.kill_and_restart(&servers()[THREE - 1..]).await;
    house.finish("a server killed while etcd is frozen, through the others", running).await;
    house.writes("the same, through the restarted server", restarted).await;
    for member in etcd() {
        house.cluster.resume(member).await.unwrap();
    }
    house.cluster.whole().await.unwrap();
    house.check("after etcd was frozen", &addresses).await;
}

/// They know each other from their folders.
async fn killed_while_all_servers_restart(house: &mut House) {
    let addresses = house.addresses.clone();
    house.kill_etcd().await;
    house.kill_and_restart(&servers()).await;
    house.check("all servers restarted while etcd is killed", &addresses).await;
    house.writes("all servers restarted while etcd is killed", &addresses).await;
    house.restart_etcd().await;
    house.cluster.whole().await.unwrap();
    house.tables().create("last", PATIENT).await.unwrap();
    house.check("at the end", &addresses).await;
}

#[test]
fn a_first_start_waits_for_etcd_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(support::ebla())
        .args(["tablet-server", "--etcd", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .env_remove("EBLA_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.by_ref().filter(|line| line.contains("a first start waits for Chubby")).take(2).count();
    let runs_on = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(waits == 2 && runs_on, "it says so again and again: {waits}");
}
