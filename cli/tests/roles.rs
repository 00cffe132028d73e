//! `ebla master` and `ebla tablet-server` as processes with a real etcd: starts, graceful stops, kills and restarts.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::process::Command;
use std::time::Duration;

use ebla_model::Micros;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node, Role};
use ebla_tests::etcd::{Build, EtcdCluster};
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::verify::{Counts, Load, Plan as LoadPlan, create_table, endpoints};
use serde_json::Value;
use support::{Process, documents};

/// Tablets of the table that the load works on, and of each other.
const TABLETS: u32 = 4;
const TABLETS_OF_OTHERS: u32 = 2;

/// Timeout of expected changes.
const LIVE: Duration = Duration::from_secs(60);

/// The states of all tablet servers, by the command.
fn states(address: &str) -> Vec<String> {
    let servers: Value = serde_json::from_str(&support::run(address, &["server", "list", "-o", "json"])).unwrap();
    servers.as_array().unwrap().iter().map(|server| server["state"].as_str().unwrap().to_owned()).collect()
}

/// Creates a table with this number of tablets through `address`.
async fn make(table: &str, tablets: u32, address: &str, runtime: &Runtime) -> TableName {
    let name = TableName::from_parts("test", "test", table).unwrap();
    create_table(address, &name, tablets, runtime).await.unwrap();
    name
}

/// Checks that the round had no errors.
fn assert_no_errors(round: &Counts, what: &str) {
    assert!(round.acknowledged > 0 && round.errors.is_empty(), "{what} caused errors: {round:?}");
}

#[test]
fn processes_find_each_other_through_etcd_and_survive_restarts() {
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
    let verified = make("verified", TABLETS, &addresses[0], &runtime).await;
    let endpoints = endpoints(&addresses, &verified, &runtime);
    let mut load = Load::new(LoadPlan { writers: 6, readers: 2, slots: TABLETS, ..LoadPlan::default() }, &runtime);

    // The active master is killed: the standby takes over after its lease expires, and clients see no errors.
    let status = cluster.status().await.unwrap();
    let (epoch, master) = (status.master_epoch, status.master.unwrap().address);
    let before = events_of_masters(&addresses[0], 1, &runtime).await;
    let term = before.last().unwrap();
    assert_eq!((&term["event"], &term["detail"]), (&"master-elected".into(), &term_of(&master, epoch).into()));
    let running = load.start(&endpoints[..2]).await.unwrap();
    let died = cluster.find(Role::ActiveMaster).await.unwrap();
    let killed = runtime.clock.wall();
    cluster.kill(died).await.unwrap();
    make("second", TABLETS_OF_OTHERS, &addresses[1], &runtime).await;
    assert!(cluster.status().await.unwrap().master_epoch > epoch);
    let round = load.finish(running).await;
    assert_no_errors(&round, "the master's death");
    let without_master = round.longest_stall;
    assert_lease_lost(&addresses[1], &before, killed, &runtime).await;

    // A tablet server stops gracefully: clients of the other servers see no errors.
    let leaver = Node::TabletServer(2);
    let running = load.start(&endpoints[..2]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = runtime.clock.monotonic();
    cluster.stop(leaver).await.unwrap();
    let took = runtime.clock.monotonic() - began;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut listed = states(&addresses[0]);
    listed.sort();
    assert_eq!(listed, ["gone", "up", "up"], "its lease was released");
    let round = load.finish(running).await;
    assert_no_errors(&round, "a graceful stop");
    println!(
        "master killed: longest stall {without_master:?}; tablet server stopped gracefully in {took:?}: longest stall {:?}",
        round.longest_stall
    );

    // Both restart: the third server catches up, and gets replicas of new tables.
    cluster.restart(leaver).await.unwrap();
    cluster.restart(died).await.unwrap();
    cluster.wait_healthy().await.unwrap();
    assert_eq!(states(&addresses[2]), ["up"; 3]);
    let running = load.start(&endpoints[2..]).await.unwrap();
    make("third", TABLETS_OF_OTHERS, &addresses[2], &runtime).await;
    let office = cluster.find(Role::ActiveMaster).await.unwrap();
    cluster.stop(office).await.unwrap();
    make("fourth", TABLETS_OF_OTHERS, &addresses[2], &runtime).await;
    let round = load.finish(running).await;
    assert_no_errors(&round, "the graceful stop of a master");
    // METADATA's two tablets, the verified's and those of three other tables: three servers have a replica of each.
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
    let report = load.check(&endpoints).await.unwrap();
    assert!(report.is_good() && report.read_through == addresses, "{}", report.text());
}

/// The detail of an event of a master's term.
fn term_of(address: &str, epoch: u64) -> String {
    format!("at {address}, epoch {epoch}")
}

/// Waits until there are at least `count` events of masters, and returns them. The active master writes an event within about a second.
async fn events_of_masters(address: &str, count: usize, runtime: &Runtime) -> Vec<Value> {
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let shown = support::run(address, &["events", "-n", "1000", "-o", "json"]);
        let events: Value = serde_json::from_str(&shown).unwrap();
        documents::check("ebla events", &events);
        let is_of_master = |event: &&Value| event["event"].as_str().unwrap().starts_with("master-");
        let of_masters: Vec<_> = events.as_array().unwrap().iter().filter(is_of_master).cloned().collect();
        if of_masters.len() >= count {
            return of_masters;
        }
        assert!(runtime.clock.monotonic() < deadline, "{count} events of masters: {events:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A master that was killed has recorded nothing: the next one has found that the lease was not given back, and then records its own election.
/// `before`: the events of masters before the kill.
async fn assert_lease_lost(address: &str, before: &[Value], killed: Micros, runtime: &Runtime) {
    let events = events_of_masters(address, before.len() + 2, runtime).await;
    let (earlier, later) = events.split_at(before.len());
    assert_eq!(earlier, before, "the next master has the events of the first one");
    let [lost, elected, ..] = later else { unreachable!("there are two more") };
    assert_eq!((&lost["event"], &lost["cause"]), (&"master-lease-lost".into(), &"observed".into()));
    assert_eq!((&elected["event"], &elected["cause"]), (&"master-elected".into(), &"election".into()));
    let ended = &before.last().unwrap()["detail"];
    assert!(lost["detail"] == *ended && elected["detail"] != *ended, "{lost} {elected}");
    let time = |event: &Value| event["time_micros"].as_i64().unwrap();
    assert!(killed.get() < time(lost) && time(lost) <= time(elected), "{killed:?}: {lost} {elected}");
    for event in [lost, elected] {
        assert!(event["scope"] == "cluster" && event["server"].is_null() && event["about_server"].is_null(), "{event}");
    }
}

/// Runs a command; its exit code and what it printed on stdout.
fn code_and_json(address: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(support::ebla()).args(arguments).env("EBLA_ADDR", address).output().unwrap();
    let shown = serde_json::from_slice(&output.stdout);
    assert!(shown.is_ok(), "{arguments:?} {output:?}");
    (output.status.code(), shown.unwrap())
}

/// Polls the status until it is as expected. The command itself takes at most five seconds.
async fn status_is(address: &str, what: &str, is_right: impl Fn(&Value) -> bool, runtime: &Runtime) -> (i32, Value) {
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let (code, status) = code_and_json(address, &["status", "--exit-code", "-o", "json", "--timeout", "5s"]);
        if is_right(&status) {
            return (code.unwrap(), status);
        }
        assert!(runtime.clock.monotonic() < deadline, "{what}: {status:#}");
    }
}

/// Waits until each of these is in a log.
async fn logs(log: &std::path::Path, wanted: &[&str], runtime: &Runtime) {
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let missing: Vec<_> = wanted.iter().filter(|words| !text.contains(**words)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(runtime.clock.monotonic() < deadline, "{missing:?} in\n{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Status and logs when the master is killed, then most tablet servers, and when all processes are stopped.
#[test]
fn an_outage_is_visible_in_the_status_and_the_log_of_the_master() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let runtime = Runtime::system("outage");
        let plan = Plan { etcd: 1, masters: 1, ..Plan::new(support::ebla(), 4) };
        let mut cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let addresses = cluster.addresses();
        make("verified", TABLETS, &addresses[0], &runtime).await;
        let master = Node::Master(0);
        let log = cluster.folder().join(format!("logs/{master}.log"));
        let well = |status: &Value| status["verdict"] == "healthy";
        let (code, status) = status_is(&addresses[0], "all is well", well, &runtime).await;
        assert_eq!((code, status["servers"].as_array().unwrap().len()), (0, 4));

        // Only this command accepts the address of the master; others name the tablet servers.
        let at_master = status["master"].as_str().unwrap();
        assert_eq!(code_and_json(at_master, &["status", "-o", "json"]).1["verdict"], "healthy");
        let (code, said) = fails(&["table", "list", "--addr", at_master]);
        assert!(code == Some(2) && said.contains("is not a tablet server") && said.contains(&addresses[0]), "{said}");

        // Without a master the data comes from the servers and METADATA.
        cluster.kill(master).await.unwrap();
        let alone = |status: &Value| status["master_answers"] == false && status["tablets"].is_u64();
        let (code, status) = status_is(&addresses[1], "no master", alone, &runtime).await;
        assert_eq!((code, status["verdict"].as_str()), (6, Some("unavailable")));
        assert_eq!(status["reasons"][0], "no master is available; reads and writes continue; start a master");
        assert_eq!((status["tablets"].as_u64(), &status["tablets_led"]), (Some(u64::from(TABLETS) + 2), &Value::Null));
        assert!(!status["trouble"].as_str().unwrap().contains("lock service"), "{status:#}");
        let servers = status["servers"].as_array().unwrap();
        assert!(servers.iter().all(|one| one["state"] == "up" && one["replicas"].is_null()), "{status:#}");
        cluster.restart(master).await.unwrap();
        status_is(&addresses[1], "the master is back", well, &runtime).await;

        // Three of four servers die: METADATA cannot be read, and still they are all listed.
        for number in 1..4 {
            cluster.kill(Node::TabletServer(number)).await.unwrap();
        }
        let lost = |status: &Value| {
            let servers = status["servers"].as_array().unwrap();
            status["tablets"].is_null() && servers.iter().filter(|one| one["state"] == "gone").count() == 3
        };
        let (code, status) = status_is(&addresses[0], "three servers are lost", lost, &runtime).await;
        assert_eq!((code, status["verdict"].as_str()), (6, Some("unavailable")));
        assert_eq!(status["last_known"]["tablets"].as_u64(), Some(u64::from(TABLETS) + 2));
        assert!(status["tablets_without_quorum"].as_u64().unwrap() > 0, "{status:#}");
        let servers = status["servers"].as_array().unwrap();
        let gone: Vec<_> = servers.iter().filter(|one| one["state"] == "gone").collect();
        assert!(gone.iter().all(|one| one["replicas"].is_null() && one["bigtable"].is_string()), "{status:#}");
        let messages =
            ["tablet server lost", "tablets have no quorum", "tablets are under-replicated", "cannot read METADATA"];
        logs(&log, &messages, &runtime).await;
        for address in &addresses[1..] {
            logs(&log, &[&format!("address=\"{address}\"")], &runtime).await;
        }

        // The servers restart.
        for number in 1..4 {
            cluster.restart(Node::TabletServer(number)).await.unwrap();
        }
        status_is(&addresses[0], "the servers are back", well, &runtime).await;
        let messages = ["tablet server returned", "METADATA can be read again", "all tablets have a quorum"];
        logs(&log, &messages, &runtime).await;
        logs(&log, &["all tablets are fully replicated"], &runtime).await;

        // All processes are stopped together.
        stop_together(&mut cluster).await;
    });
}

/// Stops all masters and tablet servers simultaneously; none of them logs warnings.
async fn stop_together(cluster: &mut ProcessCluster<Loopback>) {
    let nodes: Vec<_> = cluster.nodes().into_iter().filter(|node| !matches!(node, Node::Etcd(_))).collect();
    let log = |node: &Node| cluster.folder().join(format!("logs/{node}.log"));
    let before: Vec<_> = nodes.iter().map(|node| std::fs::read(log(node)).unwrap().len()).collect();
    let mut pids = Vec::new();
    for node in &nodes {
        let ready = std::fs::read(cluster.folder().join(format!("data/{node}.ready"))).unwrap();
        let pid = serde_json::from_slice::<Value>(&ready).unwrap()["pid"].to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        pids.push(pid);
    }
    let logs: Vec<_> = nodes.iter().map(log).collect();
    for pid in pids {
        while runs(&pid) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for (log, before) in logs.iter().zip(before) {
        let text = String::from_utf8(std::fs::read(log).unwrap().split_off(before)).unwrap();
        // openraft calls a message to a group that has stopped an error.
        let is_stopped_group = |line: &&str| line.contains(" openraft::") && line.contains("RaftCore");
        let loud = |line: &&str| line.contains(" WARN ") || line.contains("ERROR ");
        let said: Vec<_> = text.lines().filter(loud).filter(|line| !is_stopped_group(line)).collect();
        assert!(said.is_empty(), "{}:\n{text}", log.display());
    }
}

/// Whether a process has not ended, waited for or not.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn a_new_cluster_reports_how_many_tablet_servers_it_waits_for() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let runtime = Runtime::system("awaited");
        let etcd = EtcdCluster::start(1, Build::Debian).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let start = |role: &str, name: &str| {
            let data = folder.path().join(name);
            let fixed = [role, "--etcd", &etcd.endpoints()[0], "--listen", "127.0.0.1:0", "--data"].map(str::to_owned);
            let arguments = [&fixed[..], &[data.to_str().unwrap().to_owned()]].concat();
            Process::start(&data, &arguments.iter().map(std::ffi::OsStr::new).collect::<Vec<_>>())
        };
        let master = start("master", "master");
        let first = start("tablet-server", "server-1");
        let address = first.ready["bigtable"].as_str().unwrap();
        let waits =
            |status: &Value| status["reasons"][0].as_str().unwrap().starts_with("waiting for tablet servers: 1 of 3");
        let (code, status) = status_is(address, "it waits", waits, &runtime).await;
        assert_eq!((code, status["servers"][0]["state"].as_str(), &status["tablets"]), (6, Some("up"), &Value::Null));
        logs(&folder.path().join("master.log"), &["waiting for tablet servers", "registered=1 wanted=3"], &runtime)
            .await;
        let (code, said) = fails(&["table", "list", "--addr", address]);
        assert!(code == Some(6) && said.contains("the cluster has not started"), "{said}");
        let _others = ["server-2", "server-3"].map(|name| start("tablet-server", name));
        status_is(address, "it has started", |status| status["verdict"] == "healthy", &runtime).await;
        master.kill();
        without_master(address, &runtime);
    });
}

/// What a command shows without the master is there within seconds; a tablet server would repeat the call to the master for two minutes.
fn without_master(address: &str, runtime: &Runtime) {
    for (arguments, says, code) in [
        (&["events"][..], "events of tablets only", 0),
        (&["events", "-o", "json"], "events of tablets only", 0),
        (&["cluster", "describe"], "", 6),
        (&["cluster", "list"], "no cluster at", 6),
        (&["top", "--once"], "", 6),
    ] {
        let began = runtime.clock.monotonic();
        let (is, said) = fails(&[arguments, &["--addr", address]].concat());
        assert!(is == Some(code) && said.contains(says), "{arguments:?}: {is:?} {said}");
        assert!(runtime.clock.monotonic() - began < Duration::from_secs(30), "{arguments:?}: {said}");
    }
}

/// The processes of a cluster are found by their names in a mounttable.
#[test]
fn processes_are_published_under_their_names() {
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
        shows(&root, "ebla/tablet-servers/*", |names| names == published, &runtime).await;
        // Each process publishes itself independently.
        let is_master = |output: &[String]| matches!(output, [one] if one.starts_with("ebla/masters/"));
        shows(&root, "ebla/masters/*", is_master, &runtime).await;
        cluster.stop(Node::TabletServer(1)).await.unwrap();
        let stays: Vec<_> = published.into_iter().filter(|line| !line.ends_with(&addresses[1])).collect();
        shows(&root, "ebla/tablet-servers/*", |names| names == stays, &runtime).await;
    });
}

/// Waits until a listing is as it should be.
async fn shows(root: &str, pattern: &str, is_right: impl Fn(&[String]) -> bool, runtime: &Runtime) {
    let deadline = runtime.clock.monotonic() + LIVE;
    loop {
        let output = Command::new(support::ebla()).args(["mt", "glob", pattern, "--root", root]).output().unwrap();
        let lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        if is_right(&lines) {
            return;
        }
        assert!(runtime.clock.monotonic() < deadline, "{pattern}: {output:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The exit code and stderr.
fn fails(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(support::ebla()).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn invalid_options_are_refused_with_the_next_step() {
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
        let (code, said) = start("https://127.0.0.1:2379", "127.0.0.1:0", &[]);
        assert!(code == Some(2) && said.contains("--tls-ca FILE"), "{said}");
        let (code, said) = start(etcd, "foo", &[]);
        assert!(code == Some(2) && said.contains("127.0.0.1:8086"), "{said}");
        let (code, said) = start(etcd, "127.0.0.1:0", &["--ready-file", "/nonexist/x"]);
        assert!(code == Some(2) && said.contains("the folder /nonexist does not exist"), "{said}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let (code, said) = start(etcd, &address, &[]);
        assert!(code == Some(5) && said.contains(&address), "{said}");
        let held = ebla_cli::process::lock(folder.path()).unwrap();
        let (code, said) = start(etcd, "127.0.0.1:0", &[]);
        assert!(
            code == Some(5) && (said.contains("another ebla process uses") || said.contains("is in use")),
            "{said}"
        );
        drop(held);
    }
}
