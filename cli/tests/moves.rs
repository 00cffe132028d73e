//! Tablets move between groups under a verifying load, while tablet servers and the master are killed: nothing acknowledged is lost,
//! nothing is applied twice, and afterwards every move has ended.
//!
//! `EBLA_MOVE_KILLS` sets the number of kills (6 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ebla_client::Client;
use ebla_model::id::{GroupId, TabletId};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::faults::parameters::times;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::verify::{Load, Plan as LoadPlan, Running, create_table, endpoints};

const TABLET_SERVERS: usize = 3;
/// Tablets of the load.
const TABLETS: u32 = 6;
/// Writes acknowledged between two kills.
const BETWEEN: u64 = 300;
/// Timeout of one order to move a tablet, and of its end after the last kill.
const MOVE_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn tablets_move_under_load_while_servers_are_killed() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(moves(times("EBLA_MOVE_KILLS", 6)));
}

async fn moves(kills: usize) {
    let runtime = Runtime::system("moves");
    let plan = Plan::new(support::ebla(), TABLET_SERVERS);
    let mut cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
    let addresses = cluster.addresses();
    let name = TableName::from_parts("test", "test", "verified").unwrap();
    let load_plan = LoadPlan { writers: 8, readers: 2, slots: TABLETS, ..LoadPlan::default() };
    create_table(&addresses[0], &name, TABLETS, &runtime).await.unwrap();
    let mut load = Load::new(load_plan, &runtime);
    let endpoints = endpoints(&addresses, &name, &runtime);
    let running = load.start(&endpoints).await.unwrap();
    wait_for_writes(&running).await;

    let mover = Mover::new(&addresses, &name, &runtime);
    let faults = async {
        mover.wait_for_move().await;
        for number in 0..kills {
            let node = match number % 3 {
                0 => cluster.find(Role::BusiestTabletServer).await.unwrap_or(Node::TabletServer(0)),
                1 => Node::TabletServer(number % TABLET_SERVERS),
                _ => cluster.find(Role::ActiveMaster).await.unwrap_or(Node::Master(0)),
            };
            println!("{} moves; kill {node}", mover.moved.load(Ordering::Relaxed));
            cluster.kill(node).await.unwrap();
            tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(500))).await;
            cluster.restart(node).await.unwrap();
            wait_for_writes(&running).await;
            mover.wait_for_move().await;
        }
        mover.stopped.store(true, Ordering::Relaxed);
    };
    tokio::join!(mover.run(), faults);
    cluster.wait_healthy().await.unwrap();
    load.finish(running).await;
    let report = load.check(&endpoints).await.unwrap();
    let moved = mover.moved.load(Ordering::Relaxed);
    println!("{moved} moves during {kills} kills\n{}", report.text());
    assert!(report.is_good(), "{}", report.text());
    let unexpected = report.counts.errors.keys().find(|reason| !support::TROUBLE.contains(&reason.as_str()));
    assert_eq!(unexpected, None, "requests were refused\n{}", report.text());

    // Every tablet can be moved again, so no move is left half way; and all of them into one group, where two merge.
    let client = mover.client(0).await;
    let groups = mover.groups(&client).await;
    for (tablet, _group) in mover.tablets(&client).await {
        mover.bring(&client, tablet, groups[0]).await;
    }
    let tablets = mover.tablets(&client).await;
    assert!(tablets.iter().all(|(_tablet, group)| *group == groups[0]), "{tablets:?}");
    client.admin().move_tablet(tablets[0].0, groups[1]).await.unwrap();
    let merged = client.admin().merge_tablets(tablets[0].0, Some(tablets[1].0)).await.unwrap();
    assert_eq!((merged.0.tablet, merged.1), (tablets[1].0, tablets[0].0), "tablets of different groups merge");
    let report = load.check(&endpoints).await.unwrap();
    assert!(report.is_good(), "{}", report.text());
}

async fn wait_for_writes(running: &Running) {
    let wanted = running.acknowledged() + BETWEEN;
    let written = async {
        while running.acknowledged() < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), written).await.unwrap();
}

/// Moves random tablets to random groups.
struct Mover {
    addresses: Vec<String>,
    table: TableName,
    runtime: Runtime,
    stopped: AtomicBool,
    /// Moves that were reported as finished.
    moved: AtomicU64,
}

impl Mover {
    fn new(addresses: &[String], table: &TableName, runtime: &Runtime) -> Self {
        Self {
            addresses: addresses.to_vec(),
            table: table.clone(),
            runtime: runtime.clone(),
            stopped: AtomicBool::new(false),
            moved: AtomicU64::new(0),
        }
    }

    async fn run(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let through = self.below(self.addresses.len());
            // Requests fail while a server is down.
            let ordered = tokio::time::timeout(MOVE_TIMEOUT, self.move_one(through)).await;
            if !matches!(ordered, Ok(Ok(()))) {
                tokio::time::sleep(self.runtime.rng.jitter(Duration::from_millis(100))).await;
            }
        }
    }

    /// Returns when one more move has finished.
    async fn wait_for_move(&self) {
        let before = self.moved.load(Ordering::Relaxed);
        let moved = async {
            while self.moved.load(Ordering::Relaxed) == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), moved).await.unwrap();
    }

    async fn move_one(&self, through: usize) -> Result<(), ebla_model::Error> {
        let client = Client::connect_cluster(&self.addresses[through], self.runtime.clone()).await?;
        let listed = client.tablets(&self.table).await?;
        let groups = client.admin().groups().await?.into_iter().map(|one| one.group.group);
        let (tablet, _leader) = &listed[self.below(listed.len())];
        let others: Vec<_> = groups.filter(|group| *group != GroupId::METADATA && *group != tablet.group).collect();
        client.admin().move_tablet(tablet.tablet, others[self.below(others.len())]).await?;
        self.moved.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn below(&self, count: usize) -> usize {
        usize::try_from(self.runtime.rng.below(count.max(1) as u64)).unwrap()
    }

    async fn client(&self, server: usize) -> Client {
        Client::connect_cluster(&self.addresses[server], self.runtime.clone()).await.unwrap()
    }

    async fn tablets(&self, client: &Client) -> Vec<(TabletId, GroupId)> {
        let listed = client.tablets(&self.table).await.unwrap();
        listed.into_iter().map(|(tablet, _leader)| (tablet.tablet, tablet.group)).collect()
    }

    async fn groups(&self, client: &Client) -> Vec<GroupId> {
        let groups = client.admin().groups().await.unwrap();
        groups.into_iter().map(|one| one.group.group).filter(|group| *group != GroupId::METADATA).collect()
    }

    /// Moves a tablet to a group, as soon as a move that has begun earlier has ended.
    async fn bring(&self, client: &Client, tablet: TabletId, group: GroupId) {
        let end = self.runtime.clock.monotonic() + MOVE_TIMEOUT;
        loop {
            let here = self.tablets(client).await.contains(&(tablet, group));
            let ordered = if here { return } else { client.admin().move_tablet(tablet, group).await };
            let Err(error) = ordered else { return };
            assert!(self.runtime.clock.monotonic() < end, "tablet {tablet} does not move to group {group}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
