//! Tests of the cluster handle with a fake cluster: it hides failures without losing or duplicating rows or writes.

mod directory;
mod exactly_once;
mod fake;
mod small_calls;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Reason;
use ebla_model::id::ServerId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::convert::{self, LargeRows};
use ebla_proto::data::ReadRowsResponse;
use ebla_runtime::{Rng, Runtime};
use futures::TryStreamExt;
use futures::future::join_all;
use prost::Message;

use self::fake::{ClusterEvent, Fake, TABLE, key};
use crate as client;
use crate::locate::{Level, Source};
use crate::read::{RowMerger, whole_rows};
use crate::{Client, Cluster, ClusterOptions, Deadline, Direction, Read, RowWrite};

fn cluster(fake: &Fake) -> Cluster {
    let runtime = Runtime { rng: first_replica_rng(), ..Runtime::system("test") };
    Cluster::new(ClusterOptions {
        directory: Arc::new(fake.clone()),
        transport: Arc::new(fake.clone()),
        runtime,
        home: None,
    })
}

/// A generator with which the first replica is tried first.
fn first_replica_rng() -> Rng {
    let is_steady = |seed: &u64| {
        let rng = Rng::seeded(*seed);
        rng.below(1 << 16).is_multiple_of(3)
    };
    Rng::seeded((0..).find(is_steady).unwrap())
}

/// A deadline that only a hang reaches.
fn far_deadline(cluster: &Cluster) -> Deadline {
    cluster.deadline(Duration::from_secs(30))
}

async fn scan(cluster: &Cluster, limit: u64, direction: Direction) -> Vec<RowKey> {
    let read = Read { limit: RowLimit::new(limit), direction, ..Read::new(TABLE, RowSet::all()) };
    let parts: Vec<_> = cluster.read_rows(read, far_deadline(cluster)).try_collect().await.unwrap();
    parts.into_iter().flat_map(|part| whole_rows(part.response).unwrap()).map(|row| row.key).collect()
}

fn set(row: &RowKey, value: &str) -> RowWrite {
    let mutation = Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    RowWrite { row: row.clone(), mutations: vec![convert::mutation_to_bytes(&mutation)], token: None }
}

/// Schedules splits and leader changes during a scan of 100 rows, which takes about 40 messages.
fn schedule_splits_and_elections(fake: &Fake) {
    fake.schedule(2, ClusterEvent::Split { at: "r0020" });
    fake.schedule(4, ClusterEvent::Lead { key: "r0010", server: 3 });
    fake.schedule(9, ClusterEvent::Split { at: "r0055" });
    fake.schedule(11, ClusterEvent::Lead { key: "r0056", server: 1 });
    fake.schedule(15, ClusterEvent::Split { at: "r0080" });
    fake.schedule(16, ClusterEvent::Split { at: "r0040" });
    fake.schedule(20, ClusterEvent::Lead { key: "r0080", server: 2 });
}

/// Schedules merges, and a split of a merged tablet, during such a scan.
fn schedule_merges(fake: &Fake) {
    fake.schedule(2, ClusterEvent::Merge { at: "r0030" });
    fake.schedule(4, ClusterEvent::Lead { key: "r0010", server: 3 });
    fake.schedule(9, ClusterEvent::Split { at: "r0045" });
    fake.schedule(15, ClusterEvent::Merge { at: "r0060" });
    fake.schedule(20, ClusterEvent::Lead { key: "r0080", server: 2 });
}

#[tokio::test]
async fn a_scan_survives_merges() {
    for direction in [Direction::Ascending, Direction::Descending] {
        let fake = Fake::new(&["r0030", "r0060"]);
        let mut rows = fake.fill(100);
        schedule_merges(&fake);
        let scanned = scan(&cluster(&fake), 0, direction).await;
        if direction == Direction::Descending {
            rows.reverse();
        }
        assert_eq!(scanned, rows);
    }
}

#[tokio::test]
async fn writes_are_applied_once_during_merges() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows: Vec<RowKey> = (0..100).map(|row| key(&format!("r{row:04}"))).collect();
    fake.trigger(ClusterEvent::LoseResponses(2));
    fake.schedule(1, ClusterEvent::Merge { at: "r0030" });
    fake.schedule(3, ClusterEvent::LoseResponses(1));
    fake.schedule(4, ClusterEvent::Merge { at: "r0060" });
    let cluster = cluster(&fake);
    let writes = rows.iter().map(|row| set(row, "v")).collect();
    let results = cluster.mutate_rows(TABLE, writes, far_deadline(&cluster)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let state = fake.state();
    assert!(rows.iter().all(|row| state.applied.get(row) == Some(&1)), "{:?}", state.applied);
}

#[tokio::test]
async fn a_scan_survives_splits_and_leader_changes() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    schedule_splits_and_elections(&fake);
    assert_eq!(scan(&cluster(&fake), 0, Direction::Ascending).await, rows);
}

#[tokio::test]
async fn a_reversed_scan_survives_splits_and_leader_changes() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let mut rows = fake.fill(100);
    schedule_splits_and_elections(&fake);
    rows.reverse();
    assert_eq!(scan(&cluster(&fake), 0, Direction::Descending).await, rows);
}

/// Two rows with cells that are larger than a message, between small rows, and a row with the empty key before them.
fn with_large_rows() -> Fake {
    let fake = Fake::new(&["m"]);
    for row in ["", "b", "d", "k", "p"] {
        fake.put(&key(row), b"q", Bytes::from(format!("small {row}")));
    }
    for row in ["c", "n"] {
        for cell in [b"a", b"b", b"c"] {
            fake.put(&key(row), cell, Bytes::from(vec![cell[0]; 700]));
        }
    }
    fake
}

#[tokio::test]
async fn a_row_with_a_failure_inside_is_read_again_from_its_beginning() {
    let (mut resets, mut steps) = (0, 0);
    // A leader change at each message in turn.
    for step in 1..80 {
        let fake = with_large_rows();
        fake.schedule(step, ClusterEvent::Lead { key: "c", server: 3 });
        fake.schedule(step, ClusterEvent::Lead { key: "n", server: 1 });
        let cluster = cluster(&fake);
        let direction = if step % 2 == 0 { Direction::Ascending } else { Direction::Descending };
        let read = Read { direction, large_rows: LargeRows::Split, ..Read::new(TABLE, RowSet::all()) };
        let parts: Vec<_> = cluster.read_rows(read, far_deadline(&cluster)).try_collect().await.unwrap();
        resets += parts.iter().filter(|part| part.row_reset).count();
        assert_eq!(parts.iter().map(|part| part.rows).sum::<u64>(), 7);
        let mut merger = RowMerger::of_tablets();
        let mut rows: Vec<_> = parts
            .into_iter()
            .flat_map(|part| merger.merge(ReadRowsResponse::decode(part.response).unwrap()).unwrap())
            .collect();
        merger.finish().unwrap();
        if direction == Direction::Descending {
            rows.reverse();
        }
        assert_eq!(rows, fake.rows(), "after step {step}");
        steps = fake.state().steps;
    }
    assert!(steps < 80 && resets > 10, "{resets} resets in {steps} steps");
}

#[tokio::test]
async fn a_row_with_the_empty_key_is_returned_once() {
    let fake = with_large_rows();
    let keys: Vec<_> = fake.rows().into_iter().map(|row| row.key).collect();
    assert_eq!(keys[0], RowKey::EMPTY);
    // The first message has the row; then the leader changes.
    fake.schedule(4, ClusterEvent::Lead { key: "c", server: 3 });
    assert_eq!(scan(&cluster(&fake), 0, Direction::Ascending).await, keys);
    let reversed: Vec<_> = keys.iter().rev().cloned().collect();
    assert_eq!(scan(&cluster(&fake), 0, Direction::Descending).await, reversed);
}

#[tokio::test]
async fn a_table_deletes_rows_with_invalid_keys_and_writes_none() {
    let fake = with_large_rows();
    let name = TableName::from_parts("p", "inst", "t").unwrap();
    let runtime = Runtime { rng: first_replica_rng(), ..Runtime::system("test") };
    let (directory, transport) = (Arc::new(fake.clone()), Arc::new(fake.clone()));
    let table = Client::cluster(ClusterOptions { directory, transport, runtime, home: None }).table(&name);
    let cell = Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::new(),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    };
    let calls = fake.state().calls.clone();
    for invalid in [RowKey::EMPTY, RowKey::new(vec![b'k'; 4097])] {
        let errors = [
            table.mutate_row(&invalid, std::slice::from_ref(&cell)).await.err(),
            table.mutate_row(&invalid, &[Mutation::DeleteRow, cell.clone()]).await.err(),
            table.check_and_mutate(&invalid, None, &[], std::slice::from_ref(&cell)).await.err(),
            table.read_modify_write(&invalid, &[]).await.err(),
        ];
        let reasons: Vec<_> = errors.into_iter().map(|error| error.map(|error| error.reason)).collect();
        assert_eq!(reasons, [Some(Reason::InvalidArgument); 4]);
    }
    assert_eq!(fake.state().calls, calls, "no request was sent");
    table.mutate_row(&RowKey::EMPTY, &[Mutation::DeleteRow]).await.unwrap();
    assert_eq!(fake.state().applied.get(&RowKey::EMPTY), Some(&1));
}

#[tokio::test]
async fn the_row_limit_holds_across_tablets_and_failures() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    schedule_splits_and_elections(&fake);
    assert_eq!(scan(&cluster(&fake), 64, Direction::Ascending).await, rows[..64]);
}

#[tokio::test]
async fn bulk_writes_are_applied_once_despite_lost_responses() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows: Vec<RowKey> = (0..100).map(|row| key(&format!("r{row:04}"))).collect();
    fake.trigger(ClusterEvent::LoseResponses(2));
    fake.schedule(1, ClusterEvent::Split { at: "r0015" });
    fake.schedule(2, ClusterEvent::Lead { key: "r0015", server: 2 });
    fake.schedule(4, ClusterEvent::LoseResponses(1));
    fake.schedule(5, ClusterEvent::Busy(7));
    let cluster = cluster(&fake);
    let results =
        cluster.mutate_rows(TABLE, rows.iter().map(|row| set(row, "v")).collect(), far_deadline(&cluster)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let state = fake.state();
    assert!(rows.iter().all(|row| state.applied.get(row) == Some(&1)), "{:?}", state.applied);
}

#[tokio::test]
async fn a_single_write_is_applied_once_despite_lost_responses() {
    let fake = Fake::new(&[]);
    fake.trigger(ClusterEvent::LoseResponses(3));
    let cluster = cluster(&fake);
    cluster.mutate_row(TABLE, set(&key("a"), "v"), far_deadline(&cluster)).await.unwrap();
    assert_eq!(fake.state().applied[&key("a")], 1);
}

#[tokio::test]
async fn writes_of_one_row_in_one_call_keep_their_order() {
    let fake = Fake::new(&[]);
    fake.trigger(ClusterEvent::Busy(1));
    let cluster = cluster(&fake);
    let row = key("a");
    let writes = vec![set(&row, "first"), set(&key("b"), "other"), set(&row, "second")];
    let results = cluster.mutate_rows(TABLE, writes, far_deadline(&cluster)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(fake.value(&row), Some(Bytes::from_static(b"second")));
}

#[tokio::test]
async fn without_a_leader_a_write_fails_as_unavailable_at_the_deadline() {
    let fake = Fake::new(&[]);
    fake.trigger(ClusterEvent::NoLeader { key: "a" });
    let cluster = cluster(&fake);
    let deadline = cluster.deadline(Duration::from_millis(300));
    let error = cluster.mutate_row(TABLE, set(&key("a"), "v"), deadline).await.unwrap_err();
    assert_eq!(error.reason, Reason::Unavailable, "{error}");
    let calls = fake.state().calls[&TABLE];
    assert!((3..60).contains(&calls), "{calls} calls: it retries with back-off");
}

#[tokio::test]
async fn an_ambiguous_write_fails_with_deadline() {
    let fake = Fake::new(&[]);
    fake.trigger(ClusterEvent::LoseResponses(u32::MAX));
    let cluster = cluster(&fake);
    let deadline = cluster.deadline(Duration::from_millis(100));
    let error = cluster.mutate_row(TABLE, set(&key("a"), "v"), deadline).await.unwrap_err();
    assert_eq!(error.reason, Reason::Deadline, "{error}");
}

#[tokio::test]
async fn concurrent_readers_with_an_empty_cache_share_a_single_flight_lookup() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    let cluster = cluster(&fake);
    let reads = rows.iter().map(|row| {
        let read = Read::new(TABLE, RowSet::from_ranges([KeyRange::single(row.clone())]));
        cluster.read_rows(read, far_deadline(&cluster)).try_collect::<Vec<_>>()
    });
    assert!(join_all(reads).await.iter().all(Result::is_ok));
    let state = fake.state();
    assert_eq!(state.root_requests, 1);
    assert_eq!(
        state.calls[&ebla_model::id::TableId::METADATA],
        2,
        "one read each of the root tablet and the METADATA tablet"
    );
    drop(state);
    let counts = cluster.lookup_counts();
    assert_eq!((counts.found(), counts.failed()), (&BTreeMap::from([(3, 1)]), 0), "the paper's three round trips");
}

#[tokio::test]
async fn a_failed_leader_costs_one_attempt() {
    let fake = Fake::new(&[]);
    let rows = fake.fill(10);
    let cluster = cluster(&fake);
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    fake.state().down.insert(ServerId::new(1));
    fake.trigger(ClusterEvent::Lead { key: "a", server: 3 });
    let before = fake.state().calls[&TABLE];
    cluster.mutate_row(TABLE, set(&key("a"), "v"), far_deadline(&cluster)).await.unwrap();
    let calls = fake.state().calls[&TABLE] - before;
    assert!(calls <= 3, "{calls} calls");
    cluster.mutate_row(TABLE, set(&key("a"), "v"), far_deadline(&cluster)).await.unwrap();
    assert_eq!(fake.state().calls[&TABLE] - before, calls + 1, "the failed server is not tried again");
}

#[tokio::test]
async fn removed_replicas_are_not_tried_permanently() {
    let fake = Fake::new(&[]);
    let rows = fake.fill(10);
    let cluster = cluster(&fake);
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    fake.trigger(ClusterEvent::Move { key: "a" });
    cluster.mutate_row(TABLE, set(&key("a"), "v"), far_deadline(&cluster)).await.unwrap();
    let before = fake.state().calls[&TABLE];
    cluster.mutate_row(TABLE, set(&key("a"), "v"), far_deadline(&cluster)).await.unwrap();
    assert_eq!(fake.state().calls[&TABLE] - before, 1, "they are not tried again");
}

#[tokio::test]
async fn lookups_do_not_wait_for_a_metadata_election() {
    let fake = Fake::new(&["r0003"]);
    let rows = fake.fill(10);
    fake.trigger(ClusterEvent::MetadataElection);
    fake.trigger(ClusterEvent::Split { at: "r0005" });
    let cluster = cluster(&fake);
    // The locations are stale; the servers of the tablets correct them.
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    assert_eq!(fake.state().root_requests, 1, "at the first attempt");
}

#[tokio::test]
async fn samples_are_the_ends_of_the_tablets() {
    let fake = Fake::new(&["f", "m"]);
    fake.trigger(ClusterEvent::Split { at: "c" });
    let cluster = cluster(&fake);
    let samples = cluster.sample(TABLE, far_deadline(&cluster)).await.unwrap();
    assert_eq!(samples, [(key("c"), 100), (key("f"), 200), (key("m"), 300), (RowKey::EMPTY, 400)]);
}

#[tokio::test]
async fn a_table_of_one_tablet_returns_its_last_row_as_a_sample() {
    let fake = Fake::new(&[]);
    let samples = async || cluster(&fake).sample(TABLE, far_deadline(&cluster(&fake))).await.unwrap();
    assert_eq!(samples().await, [(RowKey::EMPTY, 100)], "the table is empty");
    fake.fill(3);
    assert_eq!(samples().await, [(key("r0002"), 100), (RowKey::EMPTY, 100)]);
}

#[tokio::test]
async fn a_lookup_traces_its_hops() {
    let fake = Fake::new(&["f", "m"]);
    let cluster = cluster(&fake);
    let trace = cluster.locate(TABLE, &key("g"), far_deadline(&cluster)).await.unwrap().trace;
    let hops: Vec<_> = trace.iter().map(|hop| (hop.level, hop.source, hop.round_trips)).collect();
    let expected = [
        (Level::Root, Source::Chubby, 1),
        (Level::Metadata, Source::RootTablet, 1),
        (Level::Tablet, Source::MetadataTablet, 1),
    ];
    assert_eq!(hops, expected);
    let trace = cluster.locate(TABLE, &key("z"), far_deadline(&cluster)).await.unwrap().trace;
    assert_eq!(trace.iter().map(|hop| (hop.source, hop.round_trips)).collect::<Vec<_>>(), [(Source::Cache, 0)]);
}
