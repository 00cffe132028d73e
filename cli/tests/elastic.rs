//! Servers join, are drained and removed, and are killed like the master and members of etcd, while tablets split, merge and move and groups
//! divide, all under a verifying load: nothing acknowledged is lost, nothing is applied twice, every drain ends, and at the end `ebla check` finds nothing.
//! METADATA has at least twenty tablets below the root meanwhile, and these split too: a second table, which is not used, has 240 tablets.
//!
//! `EBLA_ELASTIC_CHANGES` sets the number of servers that join, and that are drained (2 of each when unset). What is drawn comes from a
//! seed, which is printed; `EBLA_CHAOS_SEED` repeats it. The cluster has TLS and access control unless `EBLA_SECURITY=off`, and the load is a
//! caller with a token.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]
#![expect(clippy::panic, reason = "a test may fail, and then says where")]

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_client::admin::{CheckDepth, CheckMode, ExecutionMode};
use ebla_client::metadata::MetadataTablet;
use ebla_client::{Admin, Client};
use ebla_model::access::Role as AccessRole;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_runtime::{Rng, Runtime};
use ebla_tests::cluster::{Cluster as _, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::faults::parameters::{security, seed, times};
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured::{Callers, Security};
use ebla_workload::verify::rows::FAMILIES;
use ebla_workload::verify::{Load, Plan as LoadPlan, Running, create_table, endpoints_of};
use parking_lot::Mutex;

/// Servers at first. The load uses the addresses of the first two, which are killed but never drained.
const SERVERS: usize = 4;
const STAY: usize = 2;
const TABLETS: u32 = 6;
/// Small enough that the load's tablets also split by themselves.
const SPLIT_BYTES: u64 = 2 << 20;
/// A few rows of METADATA.
const METADATA_SPLIT_BYTES: u64 = 1 << 10;
/// Tablets of the table at rest, one row of METADATA each.
const TABLETS_AT_REST: u32 = 240;
/// Tablets of METADATA's second level, at least.
const SECOND_LEVEL: usize = 20;
/// Writes acknowledged between two faults.
const BETWEEN: u64 = 200;
/// Timeout of these writes.
const LIVE: Duration = Duration::from_secs(120);
/// Between two changes of tablets.
const PAUSE: Duration = Duration::from_millis(300);
/// Timeout of one change of tablets.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a drain while other servers are killed.
const DRAINED_MAX: Duration = Duration::from_secs(240);
/// Timeout until a check finds nothing: the master reconciles once a minute.
const CLEAN_MAX: Duration = Duration::from_secs(150);

#[test]
fn servers_join_and_leave_while_tablets_change_and_servers_are_killed() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(elastic(times("EBLA_ELASTIC_CHANGES", 2)));
}

async fn elastic(changes: usize) {
    let runtime = Runtime::system("elastic");
    let seed = seed(&runtime);
    println!("EBLA_CHAOS_SEED={seed}");
    let runtime = Runtime { rng: Rng::seeded(seed), ..runtime };
    let server_options = vec!["--metadata-split-bytes".to_owned(), METADATA_SPLIT_BYTES.to_string()];
    let mut plan = Plan { split_bytes: Some(SPLIT_BYTES), server_options, ..Plan::new(support::ebla(), SERVERS) };
    let network = Loopback::claim().unwrap();
    let callers = Callers::prepare(security(Security::On), &mut plan, changes, &network, &runtime).unwrap();
    println!("EBLA_SECURITY={}", callers.security().name());
    let cluster = ProcessCluster::start(plan, network, &callers.operator).await.unwrap();
    let addresses: Vec<String> = (0..STAY).map(|number| cluster.public_address(number)).collect();
    let name = TableName::from_parts("test", "test", "verified").unwrap();
    create_table(&addresses[0], &name, TABLETS, &callers.operator).await.unwrap();
    callers.grant(&addresses, &name, AccessRole::User, &FAMILIES).await.unwrap();
    let splits: Vec<_> = (1..TABLETS_AT_REST).map(|number| RowKey::new(format!("{number:04}"))).collect();
    let at_rest = TableName::from_parts("test", "test", "at-rest").unwrap();
    let admin = Admin::connect(&addresses[0], &callers.operator);
    admin.create_table(&at_rest, &[("family".to_owned(), None)], &splits).await.unwrap();
    let observer = Client::connect_cluster(&addresses[0], callers.observer.clone()).await.unwrap();
    split_metadata(&observer, &admin).await;
    let load_plan = LoadPlan { writers: 8, readers: 2, slots: TABLETS, ..LoadPlan::default() };
    let mut load = Load::new(load_plan, &runtime);
    let endpoints = endpoints_of(&addresses, &name, |address| callers.user_at(address));
    let running = load.start(&endpoints).await.unwrap();
    wait_for_writes(&running).await;

    let tablets = TabletChanges {
        addresses: addresses.clone(),
        table: name,
        operator: callers.operator.clone(),
        observer: callers.observer.clone(),
        stopped: AtomicBool::new(false),
        done: Mutex::default(),
    };
    let servers = Servers { cluster, runtime: callers.operator.clone(), addresses: addresses.clone(), kills: 0 };
    let change_servers = async {
        let servers = servers.change(changes, &running).await;
        tablets.stopped.store(true, Ordering::Relaxed);
        servers
    };
    let (mut servers, ()) = tokio::join!(change_servers, tablets.run());
    servers.cluster.wait_healthy().await.unwrap();
    load.finish(running).await;
    let report = load.check(&endpoints).await.unwrap();
    println!("{} kills, {:?}\n{}", servers.kills, tablets.done.lock(), report.text());
    assert!(report.is_good(), "EBLA_CHAOS_SEED={seed}: {}", report.text());
    let unexpected = report.counts.errors.keys().find(|reason| !support::TROUBLE.contains(&reason.as_str()));
    assert_eq!(unexpected, None, "EBLA_CHAOS_SEED={seed}: requests were refused\n{}", report.text());
    for kind in KINDS {
        assert!(
            tablets.done.lock().get(kind).is_some_and(|done| *done > 0),
            "EBLA_CHAOS_SEED={seed}: no {kind} succeeded"
        );
    }
    wait_until_clean(&servers.admin()).await;
    let second_level = second_level(&observer).await.len();
    println!("METADATA has {second_level} tablets below the root");
    assert!(second_level >= SECOND_LEVEL, "METADATA has only {second_level} tablets below the root");
}

/// METADATA's tablets below the root.
async fn second_level(client: &Client) -> Vec<MetadataTablet> {
    let mut tablets = client.metadata_tablets().await.unwrap();
    tablets.retain(|one| one.descriptor.tablet != TabletId::ROOT);
    tablets
}

/// Splits tablets of METADATA until there are [`SECOND_LEVEL`]. Those that servers have split by themselves count.
async fn split_metadata(client: &Client, admin: &Admin) {
    let mut last = String::new();
    let splits = async {
        loop {
            let tablets = second_level(client).await;
            if tablets.len() >= SECOND_LEVEL {
                return;
            }
            let largest = tablets.iter().max_by_key(|one| one.rows).unwrap().descriptor.tablet;
            // Its server may be splitting it.
            last = admin.split_tablet(largest).await.map_or_else(|error| error.to_string(), |_halves| String::new());
        }
    };
    let has_ended = tokio::time::timeout(LIVE, splits).await.is_ok();
    assert!(has_ended, "METADATA has fewer than {SECOND_LEVEL} tablets after {LIVE:?}: {last}");
}

async fn wait_for_writes(running: &Running) {
    let wanted = running.acknowledged() + BETWEEN;
    let written = async {
        while running.acknowledged() < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LIVE, written).await.is_ok(), "fewer than {BETWEEN} writes in {LIVE:?}");
}

/// Waits until `ebla check` finds nothing: what faults have left behind is removed at the latest by the master's periodic reconciliation.
async fn wait_until_clean(admin: &Admin) {
    let mut last = String::new();
    let clean = async {
        loop {
            match admin.check(CheckDepth::Contents, CheckMode::ReadOnly).await {
                Ok(found) if found.findings.is_empty() && found.silent_servers.is_empty() => return found,
                Ok(found) => last = format!("{:?}, silent servers {:?}", found.findings, found.silent_servers),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    match tokio::time::timeout(CLEAN_MAX, clean).await {
        Ok(found) => println!("check: {} tablets, replicas of {} compared, no findings", found.tablets, found.compared),
        Err(_elapsed) => panic!("ebla check still reports {last}"),
    }
}

/// The servers, which come and go.
struct Servers {
    cluster: ProcessCluster<Loopback>,
    runtime: Runtime,
    addresses: Vec<String>,
    kills: usize,
}

impl Servers {
    /// Joins and drains in turn, with kills before, while and after each.
    async fn change(mut self, changes: usize, running: &Running) -> Self {
        for number in 0..changes {
            self.kill_one(running).await;
            let joined = self.cluster.join().await.unwrap();
            println!("tablet-server-{joined} joins");
            self.kill_one(running).await;
            // The oldest one that may leave.
            self.drain(STAY + number, running).await;
        }
        self.kill_one(running).await;
        self
    }

    fn admin(&self) -> Admin {
        Admin::connect(&self.addresses[0], &self.runtime)
    }

    /// Kills a tablet server, the active master or a member of etcd, and starts it again.
    async fn kill_one(&mut self, running: &Running) {
        let node = match self.runtime.rng.below(4) {
            0 => self.cluster.find(Role::ActiveMaster).await.unwrap_or(Node::Master(0)),
            1 => self.one_of(|node| matches!(node, Node::Etcd(_))),
            _ => self.one_of(|node| matches!(node, Node::TabletServer(_))),
        };
        println!("kill {node}");
        self.kills += 1;
        self.cluster.kill(node).await.unwrap();
        tokio::time::sleep(self.runtime.rng.jitter(Duration::from_secs(1))).await;
        self.cluster.restart(node).await.unwrap();
        wait_for_writes(running).await;
    }

    fn one_of(&self, of_kind: fn(&Node) -> bool) -> Node {
        let nodes: Vec<Node> = self.cluster.nodes().into_iter().filter(of_kind).collect();
        nodes[usize::try_from(self.runtime.rng.below(nodes.len() as u64)).unwrap()]
    }

    /// Drains a server, and kills others meanwhile; then it is stopped and removed.
    async fn drain(&mut self, number: usize, running: &Running) {
        let clock = self.runtime.clock.clone();
        let end = clock.monotonic() + DRAINED_MAX;
        let id = self.id_of(number, end).await;
        println!("drain tablet-server-{number}, server {id}");
        let mut last = String::from("no answer");
        let mut has_killed = false;
        loop {
            assert!(clock.monotonic() < end, "server {id} is not empty after {DRAINED_MAX:?}: {last}");
            // Refused or unanswered while others are down: it is sent again.
            match self.admin().drain_server(ExecutionMode::Execute, id).await {
                Ok(left) if left.replicas.is_empty() => break,
                Ok(left) => {
                    last = format!("{} replicas are left; {}", left.replicas.len(), left.obstacle);
                    if !has_killed {
                        has_killed = true;
                        self.kill_one(running).await;
                    }
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.cluster.retire(number).await.unwrap();
        while let Err(error) = self.admin().remove_server(ExecutionMode::Execute, id).await {
            assert!(clock.monotonic() < end, "server {id} is not removed: {error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        println!("server {id} is removed");
        wait_for_writes(running).await;
    }

    async fn id_of(&self, number: usize, end: Duration) -> ServerId {
        loop {
            match self.cluster.server_id(number).await {
                Ok(id) => return id,
                Err(error) => assert!(self.runtime.clock.monotonic() < end, "tablet-server-{number}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// What happens to tablets; each must succeed at least once.
const KINDS: [&str; 4] = ["split", "merge", "move", "division"];

/// Random changes of tablets, one after the other.
#[derive(Debug)]
struct TabletChanges {
    addresses: Vec<String>,
    table: TableName,
    operator: Runtime,
    /// Learns where tablets are.
    observer: Runtime,
    stopped: AtomicBool,
    /// How many of each kind have succeeded.
    done: Mutex<BTreeMap<&'static str, u64>>,
}

impl TabletChanges {
    async fn run(&self) {
        for number in 0.. {
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            // A group costs processor time until the end, so one division is enough.
            let divides = number % 10 == 5 && !self.done.lock().contains_key("division");
            let kind = if divides { "division" } else { KINDS[self.below(3)] };
            let changed = tokio::time::timeout(CHANGE_TIMEOUT, self.change(kind)).await;
            if matches!(changed, Ok(Ok(()))) {
                *self.done.lock().entry(kind).or_default() += 1;
            }
            tokio::time::sleep(self.operator.rng.jitter(PAUSE)).await;
        }
    }

    async fn change(&self, kind: &str) -> Result<(), Error> {
        let address = &self.addresses[self.below(self.addresses.len())];
        let client = Client::connect_cluster(address, self.observer.clone()).await?;
        let admin = Admin::connect(address, &self.operator);
        let tablets: Vec<_> = client.tablets(&self.table).await?.into_iter().map(|(tablet, _leader)| tablet).collect();
        let first = self.below(tablets.len());
        match kind {
            "split" => admin.split(&self.table, None, tablets[first].range.start()).await.map(drop),
            "merge" => admin.merge_tablets(tablets[first].tablet, None).await.map(drop),
            "division" => {
                let groups = admin.groups().await?.into_iter().filter(|one| one.group.group != GroupId::METADATA);
                let largest = groups.max_by_key(|one| one.tablets).map(|one| one.group.group);
                admin.divide_group(largest.unwrap_or(GroupId::METADATA)).await.map(drop)
            }
            _ => {
                let groups = admin.groups().await?.into_iter().map(|one| one.group.group);
                let others: Vec<_> =
                    groups.filter(|group| *group != GroupId::METADATA && *group != tablets[first].group).collect();
                admin.move_tablet(tablets[first].tablet, others[self.below(others.len())]).await.map(drop)
            }
        }
    }

    fn below(&self, count: usize) -> usize {
        usize::try_from(self.operator.rng.below(count.max(1) as u64)).unwrap()
    }
}
