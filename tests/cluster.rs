//! A cluster in this process under a verifying load while parts of it disappear.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::path::Path;
use std::time::Duration;

use ebla_cli::local::{LocalCluster, LocalConfig};
use ebla_runtime::Runtime;
use ebla_tests::api::Api;
use ebla_tests::load::{FAMILIES, Load};

const WRITERS: usize = 12;

fn run(test: impl Future<Output = ()>) {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(test));
    tokio.shutdown_background();
}

async fn start(data: &Path, runtime: &Runtime) -> LocalCluster {
    let config = LocalConfig { data: data.into(), servers: 3, listen: "127.0.0.1:0".into(), split_bytes: None };
    LocalCluster::start(config, runtime).await.unwrap()
}

/// Splits that spread the load's rows, lists and counters over tablets.
const SPLITS: [&str; 5] = ["count/006", "list/", "list/006", "w000", "w006"];

#[test]
fn a_lost_tablet_server_costs_a_pause_and_nothing_else() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("lost");
        let mut cluster = start(folder.path(), &runtime).await;
        let addresses = cluster.addresses();
        Api::new(&runtime.net, &addresses[0], "ledger").create(&FAMILIES, &SPLITS).await.unwrap();
        // Only servers that stay are spoken to: what is measured is the cluster, not a dead connection.
        let survivors = addresses[..2].to_vec();
        let mut load = Load::new(&runtime, "ledger", WRITERS);

        let running = load.start(&survivors);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let quiet = load.finish(running).await;

        let running = load.start(&survivors);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let lost = cluster.servers.pop().unwrap();
        lost.abort().await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let during = load.finish(running).await;

        let running = load.start(&survivors);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = load.finish(running).await;

        for (name, round) in [("before", &quiet), ("during", &during), ("after", &after)] {
            assert_eq!(round.stale, Vec::<String>::new(), "stale {name}");
            assert!(round.acknowledged > 0, "nothing written {name}");
        }
        for address in &survivors {
            assert_eq!(load.verify(address).await.unwrap(), Vec::<String>::new(), "through {address}");
        }
        println!(
            "one of three servers lost: longest stall {:?} (before {:?}, after {:?}); {} acknowledged, {} unknown, 0 lost, 0 stale",
            during.longest_stall,
            quiet.longest_stall,
            after.longest_stall,
            load.acknowledged(),
            quiet.unknown + during.unknown + after.unknown
        );
        cluster.stop().await;
    });
}

#[test]
fn a_tablet_server_that_stops_in_order_is_not_missed() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("leaves");
        let mut cluster = start(folder.path(), &runtime).await;
        let addresses = cluster.addresses();
        Api::new(&runtime.net, &addresses[0], "ledger").create(&FAMILIES, &SPLITS).await.unwrap();
        let survivors = addresses[..2].to_vec();
        let mut load = Load::new(&runtime, "ledger", WRITERS);
        let running = load.start(&survivors);
        tokio::time::sleep(Duration::from_secs(1)).await;

        let leaver = cluster.servers.pop().unwrap();
        let led = || leaver.hosted().tablets().iter().filter(|tablet| tablet.leads()).count();
        let led_before = led();
        let began = runtime.clock.monotonic();
        leaver.leave().await;
        let left = runtime.clock.monotonic() - began;
        assert_eq!(led(), 0, "leaderships stayed");
        let lease = ebla_chubby::paths::server(leaver.id());
        assert_eq!(cluster.chubby.read(&lease).await.unwrap(), None, "the lease stayed");
        leaver.stop().await;
        let stopped = runtime.clock.monotonic() - began;

        tokio::time::sleep(Duration::from_secs(2)).await;
        let round = load.finish(running).await;
        assert_eq!((round.unknown, round.stale), (0, Vec::new()), "a writer noticed");
        for address in &survivors {
            assert_eq!(load.verify(address).await.unwrap(), Vec::<String>::new(), "through {address}");
        }
        println!(
            "one of three servers stopped in order: {led_before} leaderships handed over in {left:?}, stopped after \
             {stopped:?}; longest stall {:?}, {} acknowledged, 0 errors",
            round.longest_stall,
            load.acknowledged()
        );
        cluster.stop().await;
    });
}

#[test]
fn splits_under_load_lose_nothing() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("splits");
        let cluster = start(folder.path(), &runtime).await;
        let addresses = cluster.addresses();
        let mut api = Api::new(&runtime.net, &addresses[0], "ledger");
        api.create(&FAMILIES, &[]).await.unwrap();
        let mut load = Load::new(&runtime, "ledger", WRITERS);
        let running = load.start(&addresses);
        let client = ebla_client::Client::connect_cluster(&addresses[0], runtime.clone()).await.unwrap();
        let name = ebla_model::schema::TableName::from_parts("test", "test", "ledger").unwrap();
        for at in SPLITS {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let at = ebla_model::key::RowKey::copy_from_slice(at.as_bytes());
            client.admin().split(&name, Some(&at), &ebla_model::key::RowKey::EMPTY).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let round = load.finish(running).await;
        assert_eq!(round.stale, Vec::<String>::new());
        let ends: Vec<_> = api.tablet_ends().await.unwrap();
        assert_eq!(ends.len(), SPLITS.len() + 1, "{ends:?}");
        for address in &addresses {
            assert_eq!(load.verify(address).await.unwrap(), Vec::<String>::new(), "through {address}");
        }
        println!("5 splits under load: longest stall {:?}, {} acknowledged", round.longest_stall, load.acknowledged());
        cluster.stop().await;
    });
}

#[test]
fn without_master_and_lock_service_loaded_tablets_serve() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("headless");
        let cluster = start(folder.path(), &runtime).await;
        let addresses = cluster.addresses();
        Api::new(&runtime.net, &addresses[0], "ledger").create(&FAMILIES, &SPLITS).await.unwrap();
        let mut load = Load::new(&runtime, "ledger", WRITERS);
        let running = load.start(&addresses);
        tokio::time::sleep(Duration::from_millis(500)).await;
        load.finish(running).await;
        cluster.master.abort().await;
        let running = load.start(&addresses);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let round = load.finish(running).await;
        assert_eq!((round.unknown, round.stale), (0, Vec::new()), "the data path noticed that the master is gone");
        assert!(round.acknowledged > 0);
        assert_eq!(load.verify(&addresses[1]).await.unwrap(), Vec::<String>::new());
        cluster.stop().await;
    });
}
