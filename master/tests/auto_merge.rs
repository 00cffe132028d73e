//! Small tablets that are not used much are merged by themselves.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_client::Table;
use ebla_client::table::ReadOptions;
use ebla_master::{MasterConfig, MergeRules};
use ebla_model::key::{RowKey, RowSet};
use ebla_model::locality::GroupSizes;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_runtime::Rng;
use ebla_tablet_server::ServerOptions;

use crate::life::{TIMEOUT, TestCluster, key, name, set, soon, start_master_with};

const ROWS: usize = 3_000;
const TABLETS: usize = 30;
/// Every row with a number that is a multiple of this stays.
const KEPT: usize = 20;

fn row(number: usize) -> RowKey {
    RowKey::new(format!("{number:05}"))
}

/// A value that cannot be compressed.
fn value(rng: &Rng) -> Vec<Mutation> {
    let bytes: Vec<u8> = (0..128).flat_map(|_| rng.u64().to_be_bytes()).collect();
    let (family, qualifier) = ("a".to_owned(), "q".into());
    vec![Mutation::SetCell { family, qualifier, timestamp: WriteTime::Server, value: bytes.into() }]
}

async fn write(table: &Table, rows: Vec<(RowKey, Vec<Mutation>)>) {
    for batch in rows.chunks(500) {
        for written in table.mutate_rows(batch).await.unwrap() {
            written.unwrap();
        }
    }
}

async fn rows_of(table: &Table) -> Vec<RowKey> {
    let rows = table.read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
    rows.into_iter().map(|row| row.key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_mostly_emptied_shrinks_by_itself() {
    let mut cluster = TestCluster::start().await;
    let (name, rng) = (name("emptied"), Rng::seeded(1));
    let cuts: Vec<RowKey> = (1..TABLETS).map(|at| row(at * ROWS / TABLETS)).collect();
    cluster.client.admin().create_table(&name, &[("a".to_owned(), None)], &cuts).await.unwrap();
    let table = cluster.table(&name);
    write(&table, (0..ROWS).map(|number| (row(number), value(&rng))).collect()).await;
    let file_bytes = async || -> u64 {
        let groups = cluster.client.admin().describe_locality_groups(&name, GroupSizes::Flushed).await.unwrap();
        groups.iter().filter_map(|group| group.bytes.as_ref()).map(|bytes| bytes.files).sum()
    };
    let full = file_bytes().await;
    assert!(full > 3_000_000, "{full} bytes in files");
    let deleted = (0..ROWS).filter(|number| number % KEPT != 0);
    write(&table, deleted.map(|number| (row(number), vec![Mutation::DeleteRow])).collect()).await;
    let kept: Vec<RowKey> = (0..ROWS).filter(|number| number % KEPT == 0).map(row).collect();
    assert_eq!(rows_of(&table).await, kept);
    soon("its files shrink", async || file_bytes().await < full / 5).await;
    // The master that has run until now merges after an hour.
    assert_eq!(cluster.client.tablets(&name).await.unwrap().len(), TABLETS);

    cluster.master.stop().await;
    let merges = MergeRules { merge_after: Duration::from_secs(1), ..MergeRules::default() };
    let config = MasterConfig { merges, ..MasterConfig::new("127.0.0.1:0", 3) };
    cluster.master = start_master_with(config, &cluster.chubby, &cluster.runtime).await;
    let mut counts = BTreeSet::new();
    let shrinks = async {
        loop {
            // While tablets are moved and merged, every row can be read and written.
            let count = cluster.client.tablets(&name).await.unwrap().len();
            counts.insert(count);
            assert_eq!(rows_of(&table).await, kept, "{count} tablets");
            assert!(table.read_row(&row(count * KEPT), None).await.unwrap().is_some());
            table.mutate_row(&row(count / KEPT * KEPT), &set("a")).await.unwrap();
            if count == 1 {
                return;
            }
            // Not so often that the tablets are busy.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let ended = tokio::time::timeout(TIMEOUT * 2, shrinks).await;
    assert!(ended.is_ok(), "numbers of tablets: {counts:?}");
    assert!(counts.len() > 2, "not at once: {counts:?}");
    assert_eq!(rows_of(&table).await, kept);
    soon("the history says why", async || {
        let rows = cluster.client.tablet_events(Some(&name)).await.unwrap();
        rows.iter().flat_map(|row| &row.events).any(|event| event.what == "merged" && event.cause == "small")
    })
    .await;
    // METADATA lists one tablet, and the rows of the others are gone.
    let status = cluster.client.admin().status().await.unwrap();
    assert_eq!((status.tablets, status.tablets_led), (3, 3), "two of METADATA, one of the table");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_tablet_is_not_merged() {
    // The writes below may be enough to split the first tablet, whose parts would both be busy.
    let mut cluster = TestCluster::start_with(|options| ServerOptions { split_load: 0, ..options }).await;
    let name = name("busy");
    cluster.client.admin().create_table(&name, &[("a".to_owned(), None)], &[key("g"), key("p")]).await.unwrap();
    cluster.master.stop().await;
    let merges = MergeRules { merge_after: Duration::from_secs(5), ..MergeRules::default() };
    let config = MasterConfig { merges, ..MasterConfig::new("127.0.0.1:0", 3) };
    cluster.master = start_master_with(config, &cluster.chubby, &cluster.runtime).await;
    let table = cluster.table(&name);
    let tablets = async || cluster.client.tablets(&name).await.unwrap().len();
    // The first tablet is used, the others are merged.
    let merged = async {
        while tablets().await > 2 {
            write(&table, (0..50).map(|number| (RowKey::new(format!("a{number}")), set("a"))).collect()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, merged).await.unwrap();
    let first = cluster.client.tablets(&name).await.unwrap().remove(0).0;
    assert_eq!(first.range.end(), Some(&key("g")), "it is still there");
    assert_eq!(rows_of(&table).await.len(), 50);
    cluster.stop().await;
}
