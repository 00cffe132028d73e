//! Key heat with real tablet servers: a hot row and a sequential writer are found, and users do not see where that is stored.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, also in its helpers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_client::heat::{HeatQuery, KeyHeat};
use ebla_client::{Deadline, Table};
use ebla_master::MasterConfig;
use ebla_model::error::Reason;
use ebla_model::heat::{HeatMetric, HeatOption, HeatStep};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_routing::{ChubbyDirectory, HeatTable};
use ebla_runtime::Rng;
use ebla_tablet_server::ServerOptions;

use crate::life::{TIMEOUT, TestCluster, name, set, soon, start_master_with};

/// Short windows: a test cannot wait for minutes.
const HEAT: HeatOption = HeatOption::Every(Duration::from_secs(1));
const HOT_ROW: &str = "row-0042";

async fn cluster_with_heat() -> TestCluster {
    let mut cluster = TestCluster::start_with(|options| ServerOptions { heat: HEAT, ..options }).await;
    cluster.master.stop().await;
    let config = MasterConfig { heat: HEAT, ..MasterConfig::new("127.0.0.1:0", 3) };
    cluster.master = start_master_with(config, &cluster.chubby, &cluster.runtime).await;
    cluster
}

async fn write(table: &Table, rows: Vec<RowKey>) {
    let rows: Vec<_> = rows.into_iter().map(|row| (row, set("a"))).collect();
    for written in table.mutate_rows(&rows).await.unwrap() {
        written.unwrap();
    }
}

/// Writes until `stop`: to a table of which half of the writes are of one row, and to one with growing keys.
async fn load(hot: Table, sequential: Table, stop: &AtomicBool) {
    let rng = Rng::seeded(1);
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let row = |at: u64| {
            let row = if at.is_multiple_of(2) { HOT_ROW.to_owned() } else { format!("row-{:04}", rng.below(10_000)) };
            RowKey::new(row)
        };
        write(&hot, (0..40).map(row).collect()).await;
        write(&sequential, (0..40).map(|at| RowKey::new(format!("{:012}", number * 40 + at))).collect()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn heat(cluster: &TestCluster, table: &TableName, ago: Duration) -> Option<KeyHeat> {
    let from = Some(cluster.runtime.clock.wall().minus(ago));
    let query = HeatQuery { from, metric: HeatMetric::Writes, ..HeatQuery::default() };
    match cluster.client.admin().key_heat(table, &query).await {
        Ok(heat) => Some(heat),
        // Nothing was collected yet.
        Err(error) if error.reason == Reason::FailedPrecondition => None,
        Err(error) => panic!("{error}"),
    }
}

/// The writes of a table in the stored steps of ten windows, as far as the master says that it has folded them; the reader of maps would
/// make steps that were not folded from windows.
async fn folded_writes(cluster: &TestCluster, directory: &ChubbyDirectory, table: &TableName) -> u64 {
    let client = cluster.client.low_level().unwrap();
    let Some(stored) = HeatTable::find(directory, client) else { return 0 };
    let id = directory.schemas().iter().find(|schema| schema.name == *table).unwrap().table;
    let now = cluster.runtime.clock.wall();
    let deadline = Deadline::after(&cluster.runtime.clock, TIMEOUT);
    let folded = stored.folded(HeatStep::TenMinutes, now, deadline).await.unwrap();
    assert!(!folded.is_ahead);
    let Some(until) = folded.until else { return 0 };
    let steps = stored.read(id, HeatStep::TenMinutes, (Micros::new(0), until), deadline).await.unwrap();
    steps.iter().map(|(_start, window)| window.total().writes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_row_and_a_sequential_writer_are_found() {
    let cluster = cluster_with_heat().await;
    let (hot, sequential) = (name("hot"), name("sequential"));
    let admin = cluster.client.admin();
    for table in [&hot, &sequential] {
        admin.create_table(table, &[("a".to_owned(), None)], &[]).await.unwrap();
    }
    let directory = ChubbyDirectory::start(cluster.chubby.clone(), &cluster.runtime);
    let stop = AtomicBool::new(false);
    let minutes = Duration::from_secs(300);
    let found = async {
        soon("the hot row is found", async || {
            let heat = heat(&cluster, &hot, minutes).await;
            heat.is_some_and(|heat| {
                heat.findings.iter().any(|said| said.contains(HOT_ROW) && said.contains("of the writes"))
            })
        })
        .await;
        soon("the sequential writer is found", async || {
            let heat = heat(&cluster, &sequential, minutes).await;
            heat.is_some_and(|heat| heat.findings.iter().any(|said| said.contains("sequential writer")))
        })
        .await;
        soon("hot tablets are listed", async || {
            let listed = cluster.client.admin().hot_tablets("p", "inst", (None, None)).await.unwrap();
            [&hot, &sequential].iter().all(|table| listed.iter().any(|tablet| tablet.table == **table))
        })
        .await;
        // 720 windows of a second are too few for an hour: ten of them are one column.
        soon("a long time has longer steps", async || {
            let heat = heat(&cluster, &hot, Duration::from_secs(3_600)).await.unwrap();
            assert_eq!(heat.step, Duration::from_secs(10));
            heat.columns.len() >= 2
        })
        .await;
        soon("longer steps of time are folded", async || folded_writes(&cluster, &directory, &hot).await > 0).await;
        stop.store(true, Ordering::Relaxed);
    };
    let loading = load(cluster.table(&hot), cluster.table(&sequential), &stop);
    tokio::time::timeout(TIMEOUT * 3, async { tokio::join!(found, loading) }).await.unwrap();

    let map = heat(&cluster, &hot, minutes).await.unwrap();
    let sums: Vec<u64> =
        (0..map.buckets.len()).map(|at| map.columns.iter().map(|column| column.values[at]).sum()).collect();
    let hottest = sums.iter().enumerate().max_by_key(|(_at, sum)| **sum).unwrap().0;
    let end = map.buckets.get(hottest + 1).map(|(end, _tablet)| end.clone());
    let range = KeyRange::new(map.buckets[hottest].0.clone(), end).unwrap();
    assert!(range.contains(HOT_ROW.as_bytes()), "{range} of {:?}", map.buckets);
    let tablet = cluster.client.tablets(&hot).await.unwrap().remove(0).0.tablet;
    assert_eq!(map.buckets[hottest].1, Some(tablet));
    // Keys outside the range of a query are not shown.
    let range = KeyRange::prefix(b"row-00");
    let query = HeatQuery { range: range.clone(), ..HeatQuery::default() };
    let part = cluster.client.admin().key_heat(&hot, &query).await.unwrap();
    assert!(!part.buckets.is_empty() && part.buckets.iter().all(|(start, _tablet)| range.contains(start.as_bytes())));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_key_heat_is_hidden() {
    let cluster = cluster_with_heat().await;
    let (user, admin) = (name("user"), cluster.client.admin());
    admin.create_table(&user, &[("a".to_owned(), None)], &[]).await.unwrap();
    write(&cluster.table(&user), vec![RowKey::new("k")]).await;
    soon("the table is there", async || heat(&cluster, &user, Duration::from_secs(60)).await.is_some()).await;

    let system = TableName::heat();
    assert_eq!(admin.list_tables("p", "inst").await.unwrap(), std::slice::from_ref(&user));
    assert!(admin.list_tables("-", "-").await.is_err());
    for outcome in [
        admin.get_table(&system).await.map(drop),
        admin.delete_table(&system).await,
        admin.key_heat(&system, &HeatQuery::default()).await.map(drop),
        cluster.table(&system).mutate_row(&RowKey::new("k"), &set("minute")).await,
        cluster.table(&system).read_row(&RowKey::new("k"), None).await.map(drop),
    ] {
        let reason = outcome.unwrap_err().reason;
        assert!(matches!(reason, Reason::InvalidArgument | Reason::NotFoundTable), "{reason:?}");
    }
    let status = admin.status().await.unwrap();
    assert_eq!((status.tables, status.tablets), (1, 4), "two tablets of METADATA, and one of each table");
    // Metadata and replicas of the table are as of any other.
    let check = ebla_client::admin::CheckDepth::Metadata;
    // The record of its group's creation may still be there.
    let mode = ebla_client::admin::CheckMode::ReadOnly;
    let begun = cluster.runtime.clock.monotonic();
    loop {
        let found = admin.check(check, mode).await.unwrap().findings;
        if found.is_empty() {
            break;
        }
        assert!(cluster.runtime.clock.monotonic() - begun < TIMEOUT, "{found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_heat_that_is_off_says_so() {
    let cluster = TestCluster::start().await;
    let (user, admin) = (name("user"), cluster.client.admin());
    admin.create_table(&user, &[("a".to_owned(), None)], &[]).await.unwrap();
    let refused = admin.key_heat(&user, &HeatQuery::default()).await.unwrap_err();
    assert!(refused.reason == Reason::FailedPrecondition && refused.message.contains("--heat-map on"), "{refused}");
    assert_eq!(admin.status().await.unwrap().tablets, 3);
    cluster.stop().await;
}
