//! `ebla master` and `ebla tablet-server` as processes that meet through a real etcd: they come, go in order, are killed,
//! and come back.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod support;

use std::process::Command;
use std::time::Duration;

use ebla_cli::verify::{Load, Plan as LoadPlan, Tally, create_table, through};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::site::Loopback;
use serde_json::Value;

/// Tablets of the table that the load works on, and of each other.
const TABLETS: u32 = 4;
const TABLETS_OF_OTHERS: u32 = 2;

/// How long what must happen some time may take.
const LIVE: Duration = Duration::from_secs(60);

/// The states of all tablet servers, by the command.
fn states(address: &str) -> Vec<String> {
    let servers: Value = serde_json::from_str(&support::run(address, &["server", "list", "-o", "json"])).unwrap();
    servers.as_array().unwrap().iter().map(|server| server["state"].as_str().unwrap().to_owned()).collect()
}

/// Makes a table through `address`, cut into so many tablets.
async fn make(table: &str, tablets: u32, address: &str, runtime: &Runtime) -> TableName {
    let name = TableName::from_parts("test", "test", table).unwrap();
    create_table(address, &name, tablets, runtime).await.unwrap();
    name
}

/// Nobody who was spoken to meanwhile had to say no.
fn unnoticed(round: &Tally, what: &str) {
    assert!(round.acknowledged > 0 && round.errors.is_empty(), "{what} was noticed: {round:?}");
}

#[test]
fn processes_meet_through_etcd_and_come_and_go() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(come_and_go());
}

async fn come_and_go() {
    let runtime = Runtime::system("roles");
    let plan = Plan { etcd: 1, ..Plan::new(support::ebla(), 3) };
    let mut cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
    let addresses = cluster.addresses();
    let ledger = make("ledger", TABLETS, &addresses[0], &runtime).await;
    let ways = through(&addresses, &ledger, &runtime);
    let mut load = Load::new(LoadPlan { writers: 6, readers: 2, slots: TABLETS, ..LoadPlan::default() }, &runtime);

    // The master in office dies: the standby takes over after its lease, and who called meanwhile need not know.
    let running = load.start(&ways[..2]).await.unwrap();
    let epoch = cluster.status().await.unwrap().master_epoch;
    let died = cluster.find(Role::MasterInOffice).await.unwrap();
    cluster.kill(died).await.unwrap();
    make("second", TABLETS_OF_OTHERS, &addresses[1], &runtime).await;
    assert!(cluster.status().await.unwrap().master_epoch > epoch);
    let round = load.finish(running).await;
    unnoticed(&round, "the master's death");
    let without_master = round.longest_stall;

    // A tablet server stops in order: nobody who speaks to the others notices.
    let leaver = Node::TabletServer(2);
    let running = load.start(&ways[..2]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = runtime.clock.monotonic();
    cluster.stop(leaver).await.unwrap();
    let took = runtime.clock.monotonic() - began;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut listed = states(&addresses[0]);
    listed.sort();
    assert_eq!(listed, ["gone", "up", "up"], "its lease went with it");
    let round = load.finish(running).await;
    unnoticed(&round, "an orderly stop");
    println!(
        "master killed: longest stall {without_master:?}; tablet server stopped in order in {took:?}: longest stall {:?}",
        round.longest_stall
    );

    // Both come back and are used: the third server serves what it missed, and gets replicas of new tables.
    cluster.restart(leaver).await.unwrap();
    cluster.restart(died).await.unwrap();
    cluster.whole().await.unwrap();
    assert_eq!(states(&addresses[2]), ["up"; 3]);
    let running = load.start(&ways[2..]).await.unwrap();
    make("third", TABLETS_OF_OTHERS, &addresses[2], &runtime).await;
    let office = cluster.find(Role::MasterInOffice).await.unwrap();
    cluster.stop(office).await.unwrap();
    make("fourth", TABLETS_OF_OTHERS, &addresses[2], &runtime).await;
    let round = load.finish(running).await;
    unnoticed(&round, "the orderly stop of a master");
    // METADATA's two tablets, the ledger's and those of three other tables: three servers have a replica of each.
    let tablets = u64::from(2 + TABLETS + 3 * TABLETS_OF_OTHERS);
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let servers = cluster.status().await.unwrap().servers;
        if servers.iter().all(|server| (server.replicas, server.assigned) == (tablets, tablets)) {
            break;
        }
        assert!(runtime.clock.monotonic() < deadline, "replicas are missing: {servers:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let report = load.check(&ways).await.unwrap();
    assert!(report.is_good() && report.read_through == addresses, "{}", report.text());
}

/// Who wants to know where a cluster is asks the names in it.
#[test]
fn processes_mount_themselves_under_their_names() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let runtime = Runtime::system("published");
        let plan = Plan { etcd: 1, masters: 1, mounttables: 1, publishes: true, ..Plan::new(support::ebla(), 3) };
        let mut cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let (root, addresses) = (cluster.mounttable_addresses()[0].clone(), cluster.addresses());
        // By their numbers in the cluster, which they got in the order in which they came.
        let servers = cluster.status().await.unwrap().servers.into_iter().filter_map(|one| one.server);
        let published: Vec<_> =
            servers.map(|one| format!("ebla/tablet-servers/{}  {}", one.server, one.address)).collect();
        shows(&root, "ebla/tablet-servers/*", |told| told == published, &runtime).await;
        // Each mounts itself when it comes to it: that the others have says nothing of the master.
        let is_master = |told: &[String]| matches!(told, [one] if one.starts_with("ebla/masters/"));
        shows(&root, "ebla/masters/*", is_master, &runtime).await;
        cluster.stop(Node::TabletServer(1)).await.unwrap();
        let stays: Vec<_> = published.into_iter().filter(|line| !line.ends_with(&addresses[1])).collect();
        shows(&root, "ebla/tablet-servers/*", |told| told == stays, &runtime).await;
    });
}

/// Waits until a listing is as it should be.
async fn shows(root: &str, pattern: &str, is_right: impl Fn(&[String]) -> bool, runtime: &Runtime) {
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let told = Command::new(support::ebla()).args(["mt", "glob", pattern, "--root", root]).output().unwrap();
        let lines: Vec<_> = String::from_utf8_lossy(&told.stdout).lines().map(str::to_owned).collect();
        if is_right(&lines) {
            return;
        }
        assert!(runtime.clock.monotonic() < deadline, "{pattern}: {told:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The exit code and what was said on stderr.
fn fails(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_cannot_work_is_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    for role in ["master", "tablet-server"] {
        let start = |etcd: &str, listen: &str, more: &[&str]| {
            let arguments = [&[role, "--etcd", etcd, "--listen", listen, "--data", data], more].concat();
            fails(&arguments)
        };
        let etcd = "http://127.0.0.1:1";
        let (code, said) = start(etcd, "0.0.0.0:0", &[]);
        assert!(code == Some(2) && said.contains("--insecure"), "{said}");
        let (code, said) = start(etcd, "0.0.0.0:0", &["--insecure"]);
        assert!(code == Some(2) && said.contains("--advertise"), "{said}");
        let (code, said) = start("nonsense", "127.0.0.1:0", &[]);
        assert!(code == Some(2) && said.contains("nonsense"), "{said}");
        let held = ebla_cli::process::lock(folder.path()).unwrap();
        let (code, said) = start(etcd, "127.0.0.1:0", &[]);
        assert!(code == Some(5) && (said.contains("another ebla runs") || said.contains("is in use")), "{said}");
        drop(held);
    }
}
