//! A tablet server of a cluster has no open files left under a verifying load: what it would have to open fails, its replicas wait, and the others
//! serve. It serves again when it has files.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use crate::support;

use std::process::Command;
use std::time::Duration;

use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::verify::{self, Load, endpoints};
use serde_json::Value;

const SERVERS: usize = 3;
/// The server without files.
const VICTIM: usize = 0;
/// Acknowledged writes in each part of the test.
const WRITES: u64 = 300;
const POLL: Duration = Duration::from_millis(50);
/// Timeout of what the cluster does by itself.
const LIVE: Duration = Duration::from_secs(60);
/// What the operating system says.
const NO_FILES: &str = "Too many open files";

/// Sets the limit of open files of a running process (the soft one, which can be raised again). Returns the earlier one.
fn limit_files(pid: u32, limit: u64) -> u64 {
    let prlimit = |arguments: &[&str]| {
        let output = Command::new("prlimit").args(["--pid", &pid.to_string()]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let before = prlimit(&["--nofile", "--output", "SOFT", "--noheadings", "--raw"]);
    prlimit(&[&format!("--nofile={limit}:")]);
    before.trim().parse().unwrap()
}

fn open_files(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

/// The groups that have more than one tablet.
fn divisible(address: &str) -> Vec<String> {
    let groups: Value = serde_json::from_str(&support::run(address, &["group", "list", "-o", "json"])).unwrap();
    let groups = groups.as_array().unwrap().iter().filter(|group| group["tablets"].as_u64() > Some(1));
    groups.map(|group| group["group"].to_string()).collect()
}

#[test]
fn a_server_without_open_files_keeps_no_other_from_serving_and_returns() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let runtime = Runtime::system("files");
        let plan = Plan { etcd: 1, masters: 1, ..Plan::new(support::ebla(), SERVERS) };
        let mut cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let addresses = cluster.addresses();
        let others = &addresses[VICTIM + 1..];
        let splits = ["b", "c", "d"].into_iter().flat_map(|start| ["--split", start]);
        let create = ["table", "create", "t", "--family", "f"].into_iter().chain(splits).collect::<Vec<_>>();
        support::run(&others[0], &create);
        let table = TableName::from_parts("test", "test", "verified").unwrap();
        let plan = verify::Plan { writers: 6, readers: 3, slots: 3, ..verify::Plan::default() };
        verify::create_table(&others[0], &table, plan.slots, &runtime).await.unwrap();
        let mut load = Load::new(plan, &runtime);

        let running = load.start(&endpoints(others, &table, &runtime)).await.unwrap();
        let pid = cluster.tablet_server_pids()[VICTIM];
        let before = limit_files(pid, open_files(pid));
        // Each replica of a divided group makes a store for the new group. It may be the leader that cannot, so that the command fails.
        for group in divisible(&others[0]) {
            let arguments = ["group", "divide", &group, "--addr", &others[0]];
            println!("{:?}", Command::new(support::ebla()).args(arguments).output().unwrap());
        }
        let deadline = runtime.clock.monotonic() + LIVE;
        while !cluster.read_log(Node::TabletServer(VICTIM)).unwrap().contains(NO_FILES) {
            assert!(runtime.clock.monotonic() < deadline, "nothing has failed for lack of open files");
            tokio::time::sleep(POLL).await;
        }
        let so_far = running.acknowledged();
        while running.acknowledged() < so_far + WRITES {
            assert!(runtime.clock.monotonic() < deadline, "the others do not serve: {}", running.acknowledged());
            tokio::time::sleep(POLL).await;
        }
        limit_files(pid, before);
        cluster.wait_healthy().await.unwrap();
        let counts = load.finish(running).await;
        assert!((counts.unknown, counts.failed) == (0, 0) && counts.errors.is_empty(), "{counts:?}");
        assert_eq!(cluster.tablet_server_pids()[VICTIM], pid, "the process has ended");

        let deadline = runtime.clock.monotonic() + LIVE;
        loop {
            let status = cluster.status().await.unwrap();
            let health = status.health.unwrap_or_default();
            if health.replicas_live == health.replicas_wanted
                && health.repairs == 0
                && status.tablets_led == status.tablets
            {
                break;
            }
            assert!(runtime.clock.monotonic() < deadline, "{health:?}");
            tokio::time::sleep(POLL).await;
        }
        let report = load.check(&endpoints(&addresses, &table, &runtime)).await.unwrap();
        assert!(report.is_good() && report.silent.is_empty(), "{}", report.text());
    });
}
