//! A cluster in this process under a verifying load while parts of it disappear.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use std::path::Path;
use std::time::Duration;

use ebla_client::admin::ExecutionMode;
use ebla_client::{Admin, Client, Table};
use ebla_model::error::Reason;
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tablet_server::TabletServer;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::in_process::InProcess;
use ebla_workload::verify::{Counts, Endpoint, Load, Plan, create_table, endpoints};

/// Places inside the load's tablets, between its kinds of rows.
const SPLITS: [&str; 5] = ["00/list", "00/row", "01/row", "02/list", "03/count"];

fn run(test: impl Future<Output = ()>) {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(test));
    tokio.shutdown_background();
}

fn table() -> TableName {
    TableName::from_parts("test", "test", "verified").unwrap()
}

/// Three servers and a master, with the load's table; the endpoints to the servers `through`.
async fn start(data: &Path, through_first: usize, runtime: &Runtime) -> (InProcess, Load, Vec<Endpoint<Table>>) {
    let cluster = InProcess::start(1, 3, data, runtime).await.unwrap();
    let addresses = cluster.addresses();
    let plan = Plan::default();
    create_table(&addresses[0], &table(), plan.slots, runtime).await.unwrap();
    let endpoints = endpoints(&addresses[..through_first], &table(), runtime);
    (cluster, Load::new(plan, runtime), endpoints)
}

/// How many groups a server leads.
fn led(server: &TabletServer) -> usize {
    server.tablet_manager().groups().iter().filter(|group| group.is_leader()).count()
}

/// Runs the load for this time.
async fn round(load: &mut Load, endpoints: &[Endpoint<Table>], millis: u64) -> Counts {
    let running = load.start(endpoints).await.unwrap();
    tokio::time::sleep(Duration::from_millis(millis)).await;
    let round = load.finish(running).await;
    assert!(round.acknowledged > 0, "nothing was written");
    round
}

/// Reads everything back through all `endpoints`: nothing may be wrong.
async fn check(load: &mut Load, endpoints: &[Endpoint<Table>]) {
    let report = load.check(endpoints).await.unwrap();
    assert!(report.is_good() && report.read_through.len() == endpoints.len(), "{}", report.text());
}

#[test]
fn a_lost_tablet_server_only_causes_a_stall() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("lost");
        // Only servers that stay are spoken to: what is measured is the cluster, not a dead connection.
        let (mut cluster, mut load, survivors) = start(folder.path(), 2, &runtime).await;
        let quiet = round(&mut load, &survivors, 2_000).await;

        let running = load.start(&survivors).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.kill(Node::TabletServer(2)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        let during = load.finish(running).await;
        assert!(during.acknowledged > 0, "nothing was written");

        let after = round(&mut load, &survivors, 2_000).await;
        check(&mut load, &survivors).await;
        println!(
            "one of three servers lost: longest stall {:?} (before {:?}, after {:?}); {} acknowledged, {} unknown, 0 lost, 0 stale",
            during.longest_stall,
            quiet.longest_stall,
            after.longest_stall,
            load.acknowledged(),
            quiet.unknown + during.unknown + after.unknown
        );
        cluster.stop_all().await;
    });
}

#[test]
fn a_graceful_stop_of_a_tablet_server_causes_no_errors() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("leaves");
        let (mut cluster, mut load, survivors) = start(folder.path(), 2, &runtime).await;
        let running = load.start(&survivors).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;

        let leaver = cluster.server(2).unwrap();
        let led_before = led(leaver);
        let began = runtime.clock.monotonic();
        leaver.drain().await;
        let left = runtime.clock.monotonic() - began;
        assert_eq!(led(leaver), 0, "leaderships remain");
        let lease = ebla_chubby::paths::server(leaver.id());
        assert_eq!(cluster.chubby().read(&lease).await.unwrap(), None, "the lease remains");
        cluster.stop(Node::TabletServer(2)).await.unwrap();
        let stopped = runtime.clock.monotonic() - began;

        tokio::time::sleep(Duration::from_secs(2)).await;
        let round = load.finish(running).await;
        assert!(round.errors.is_empty(), "there were errors: {:?}", round.errors);
        check(&mut load, &survivors).await;
        println!(
            "one of three servers stopped gracefully: {led_before} leaderships transferred in {left:?}, stopped after \
             {stopped:?}; longest stall {:?}, {} acknowledged, 0 errors",
            round.longest_stall,
            load.acknowledged()
        );
        cluster.stop_all().await;
    });
}

/// Polls until the condition holds.
async fn until(what: &str, runtime: &Runtime, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = runtime.clock.monotonic() + Duration::from_secs(120);
    while !holds().await {
        assert!(runtime.clock.monotonic() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_server_that_joins_gets_replicas_and_a_drained_one_is_emptied_without_errors() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("elastic");
        let (mut cluster, mut load, endpoints) = start(folder.path(), 2, &runtime).await;
        let admin = Admin::connect(&cluster.addresses()[0], &runtime);
        let leaver = cluster.server(2).unwrap().id();
        let refused = admin.drain_server(ExecutionMode::Execute, leaver).await.unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition, "{refused}");

        let running = load.start(&endpoints).await.unwrap();
        let began = runtime.clock.monotonic();
        let joined = cluster.join().await.unwrap();
        // Three groups on three servers have nine replicas; four servers are balanced when one has three.
        let replicas =
            |cluster: &InProcess, number: usize| cluster.server(number).unwrap().tablet_manager().groups().len();
        until("the new server gets replicas", &runtime, async || replicas(&cluster, joined) >= 2).await;
        let balanced = runtime.clock.monotonic() - began;

        let planned = admin.drain_server(ExecutionMode::DryRun, leaver).await.unwrap();
        assert!(!planned.drained && !planned.replicas.is_empty(), "{planned:?}");
        let began = runtime.clock.monotonic();
        assert!(admin.drain_server(ExecutionMode::Execute, leaver).await.unwrap().drained);
        until("the drained server loses its replicas", &runtime, async || {
            let left = admin.drain_server(ExecutionMode::DryRun, leaver).await;
            left.is_ok_and(|left| left.drained && left.replicas.is_empty())
        })
        .await;
        let drained = runtime.clock.monotonic() - began;
        assert_eq!(replicas(&cluster, 2), 0);
        let refused = admin.remove_server(ExecutionMode::Execute, leaver).await.unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition, "it is registered: {refused}");
        cluster.stop(Node::TabletServer(2)).await.unwrap();
        admin.remove_server(ExecutionMode::Execute, leaver).await.unwrap();
        let listed = admin.status().await.unwrap().servers;
        assert!(listed.iter().all(|one| one.server.as_ref().unwrap().server != leaver.get()), "{listed:?}");
        let removed = admin.remove_server(ExecutionMode::Execute, leaver).await.unwrap_err();
        assert_eq!(removed.reason, Reason::NotFound, "{removed}");

        tokio::time::sleep(Duration::from_secs(1)).await;
        let round = load.finish(running).await;
        assert!(round.errors.is_empty(), "there were errors: {:?}", round.errors);
        check(&mut load, &endpoints).await;
        println!(
            "balanced {balanced:?} after a server joined; one drained in {drained:?} and removed; longest stall {:?}, {} acknowledged, \
             0 errors",
            round.longest_stall,
            load.acknowledged()
        );
        cluster.stop_all().await;
    });
}

#[test]
fn leaderships_are_rebalanced_after_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("share");
        let (mut cluster, mut load, endpoints) = start(folder.path(), 3, &runtime).await;
        let running = load.start(&endpoints).await.unwrap();
        let leads = |cluster: &InProcess| -> Vec<usize> {
            (0..3).filter_map(|number| cluster.server(number)).map(led).collect()
        };
        cluster.kill(Node::TabletServer(2)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.restart(Node::TabletServer(2)).await.unwrap();
        // METADATA has one group, the load three; balancing ends when the numbers of leaders differ by less than two.
        let deadline = runtime.clock.monotonic() + Duration::from_secs(90);
        let is_even = |cluster: &InProcess| {
            let mut leads = leads(cluster);
            leads.sort_unstable();
            leads == [1, 1, 2]
        };
        while !is_even(&cluster) {
            assert!(runtime.clock.monotonic() < deadline, "leaderships stay uneven: {:?}", leads(&cluster));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let round = load.finish(running).await;
        check(&mut load, &endpoints).await;
        println!(
            "killed, back, and even again: longest stall {:?}, {} acknowledged",
            round.longest_stall,
            load.acknowledged()
        );
        cluster.stop_all().await;
    });
}

/// Merges adjacent tablets of one group until there are none; returns how many merges that took.
async fn merge_all(admin: &Admin, address: &str, runtime: &Runtime) -> usize {
    let client = Client::connect_cluster(address, runtime.clone()).await.unwrap();
    for merges in 0.. {
        let listed = client.tablets(&table()).await.unwrap();
        let Some(pair) = listed.windows(2).find(|pair| pair[0].0.group == pair[1].0.group) else { return merges };
        admin.merge_tablets(pair[0].0.tablet, Some(pair[1].0.tablet)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    unreachable!("the loop ends when there is one tablet for each group")
}

#[test]
fn splits_and_merges_under_load_lose_nothing() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("splits");
        let (cluster, mut load, endpoints) = start(folder.path(), 3, &runtime).await;
        let running = load.start(&endpoints).await.unwrap();
        let admin = Client::endpoint(&cluster.addresses()[0], runtime.clone()).admin();
        for at in SPLITS {
            tokio::time::sleep(Duration::from_millis(300)).await;
            admin.split(&table(), Some(&RowKey::copy_from_slice(at.as_bytes())), &RowKey::EMPTY).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let ends = endpoints[0].store.sample_row_keys().await.unwrap();
        assert_eq!(ends.len(), Plan::default().slots as usize + SPLITS.len(), "{ends:?}");
        let merges = merge_all(&admin, &cluster.addresses()[0], &runtime).await;
        assert_eq!(merges, SPLITS.len(), "every split is undone");
        let round = load.finish(running).await;
        let ends = endpoints[0].store.sample_row_keys().await.unwrap();
        assert_eq!(ends.len(), Plan::default().slots as usize, "{ends:?}");
        check(&mut load, &endpoints).await;
        println!(
            "5 splits and merges under load: longest stall {:?}, {} acknowledged",
            round.longest_stall,
            load.acknowledged()
        );
        cluster.stop_all().await;
    });
}

#[test]
fn loaded_tablets_serve_without_a_master() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("headless");
        let (mut cluster, mut load, endpoints) = start(folder.path(), 3, &runtime).await;
        round(&mut load, &endpoints, 500).await;
        cluster.kill(Node::Master(0)).await.unwrap();
        let headless = round(&mut load, &endpoints, 2_000).await;
        assert!(headless.errors.is_empty(), "the data path had errors without the master: {:?}", headless.errors);
        check(&mut load, &endpoints).await;
        cluster.stop_all().await;
    });
}
