//! The handle against a cluster in memory: what it hides, and that it hides it without losing or doubling anything.

mod directory;
mod fake;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Reason;
use ebla_model::id::ServerId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::convert::{self, LargeRows};
use ebla_proto::data::ReadRowsResponse;
use ebla_runtime::{Rng, Runtime};
use futures::TryStreamExt;
use futures::future::join_all;
use prost::Message;

use self::fake::{Fake, Happening, TABLE, key};
use crate::locate::{LeaderHint, Level, Source};
use crate::metadata::{Guarded, Note};
use crate::read::{RowMerger, whole_rows};
use crate::{Client, Cluster, Deadline, Direction, Options, Read, RowWrite};

fn cluster(fake: &Fake) -> Cluster {
    let runtime = Runtime { rng: steady(), ..Runtime::system("test") };
    Cluster::new(Options { directory: Arc::new(fake.clone()), transport: Arc::new(fake.clone()), runtime, home: None })
}

/// Random numbers for which the first guess at a leader is the first replica.
fn steady() -> Rng {
    let is_steady = |seed: &u64| {
        let rng = Rng::seeded(*seed);
        let _session = rng.u128();
        rng.below(1 << 16).is_multiple_of(3)
    };
    Rng::seeded((0..).find(is_steady).unwrap())
}

/// Long enough that only a hang would reach it.
fn soon(cluster: &Cluster) -> Deadline {
    cluster.deadline(Duration::from_secs(30))
}

async fn scan(cluster: &Cluster, limit: u64, direction: Direction) -> Vec<RowKey> {
    let read = Read { limit, direction, ..Read::new(TABLE, RowSet::all()) };
    let parts: Vec<_> = cluster.read_rows(read, soon(cluster)).try_collect().await.unwrap();
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

/// Splits and changes of leader in the midst of a scan of 100 rows, which takes some 40 messages.
fn trouble(fake: &Fake) {
    fake.at(2, Happening::Split { at: "r0020" });
    fake.at(4, Happening::Lead { key: "r0010", server: 3 });
    fake.at(9, Happening::Split { at: "r0055" });
    fake.at(11, Happening::Lead { key: "r0056", server: 1 });
    fake.at(15, Happening::Split { at: "r0080" });
    fake.at(16, Happening::Split { at: "r0040" });
    fake.at(20, Happening::Lead { key: "r0080", server: 2 });
}

#[tokio::test]
async fn a_scan_goes_on_over_splits_and_changes_of_leader() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    trouble(&fake);
    assert_eq!(scan(&cluster(&fake), 0, Direction::Ascending).await, rows);
}

#[tokio::test]
async fn a_reversed_scan_does_too() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let mut rows = fake.fill(100);
    trouble(&fake);
    rows.reverse();
    assert_eq!(scan(&cluster(&fake), 0, Direction::Descending).await, rows);
}

/// A row whose last cells are larger than a message, between small ones, and one with the empty key before them.
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
async fn a_row_that_is_lost_in_its_midst_is_read_again_from_its_beginning() {
    let (mut resets, mut steps) = (0, 0);
    // A change of leader at each message in turn.
    for step in 1..80 {
        let fake = with_large_rows();
        fake.at(step, Happening::Lead { key: "c", server: 3 });
        fake.at(step, Happening::Lead { key: "n", server: 1 });
        let cluster = cluster(&fake);
        let direction = if step % 2 == 0 { Direction::Ascending } else { Direction::Descending };
        let read = Read { direction, large_rows: LargeRows::Split, ..Read::new(TABLE, RowSet::all()) };
        let parts: Vec<_> = cluster.read_rows(read, soon(&cluster)).try_collect().await.unwrap();
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
async fn a_row_with_the_empty_key_is_shown_once() {
    let fake = with_large_rows();
    let keys: Vec<_> = fake.rows().into_iter().map(|row| row.key).collect();
    assert_eq!(keys[0], RowKey::EMPTY);
    // The first message holds the row; then the leader is another.
    fake.at(4, Happening::Lead { key: "c", server: 3 });
    assert_eq!(scan(&cluster(&fake), 0, Direction::Ascending).await, keys);
    let reversed: Vec<_> = keys.iter().rev().cloned().collect();
    assert_eq!(scan(&cluster(&fake), 0, Direction::Descending).await, reversed);
}

#[tokio::test]
async fn a_table_deletes_rows_of_illegal_keys_and_writes_none() {
    let fake = with_large_rows();
    let name = TableName::from_parts("p", "inst", "t").unwrap();
    let runtime = Runtime { rng: steady(), ..Runtime::system("test") };
    let (directory, transport) = (Arc::new(fake.clone()), Arc::new(fake.clone()));
    let table = Client::cluster(Options { directory, transport, runtime, home: None }).table(&name);
    let cell = Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::new(),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    };
    let calls = fake.state().calls.clone();
    for illegal in [RowKey::EMPTY, RowKey::new(vec![b'k'; 4097])] {
        let refused = [
            table.mutate_row(&illegal, std::slice::from_ref(&cell)).await.err(),
            table.mutate_row(&illegal, &[Mutation::DeleteRow, cell.clone()]).await.err(),
            table.check_and_mutate(&illegal, None, &[], std::slice::from_ref(&cell)).await.err(),
            table.read_modify_write(&illegal, &[]).await.err(),
        ];
        let reasons: Vec<_> = refused.into_iter().map(|error| error.map(|error| error.reason)).collect();
        assert_eq!(reasons, [Some(Reason::InvalidArgument); 4]);
    }
    assert_eq!(fake.state().calls, calls, "no server was asked");
    table.mutate_row(&RowKey::EMPTY, &[Mutation::DeleteRow]).await.unwrap();
    assert_eq!(fake.state().applied.get(&RowKey::EMPTY), Some(&1));
}

#[tokio::test]
async fn the_limit_is_counted_over_tablets_and_failures() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    trouble(&fake);
    assert_eq!(scan(&cluster(&fake), 64, Direction::Ascending).await, rows[..64]);
}

#[tokio::test]
async fn rows_written_in_bulk_are_applied_once_whatever_is_lost() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows: Vec<RowKey> = (0..100).map(|row| key(&format!("r{row:04}"))).collect();
    fake.happens(Happening::LoseAnswers(2));
    fake.at(1, Happening::Split { at: "r0015" });
    fake.at(2, Happening::Lead { key: "r0015", server: 2 });
    fake.at(4, Happening::LoseAnswers(1));
    fake.at(5, Happening::Busy(7));
    let cluster = cluster(&fake);
    let results = cluster.mutate_rows(TABLE, rows.iter().map(|row| set(row, "v")).collect(), soon(&cluster)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let state = fake.state();
    assert!(rows.iter().all(|row| state.applied.get(row) == Some(&1)), "{:?}", state.applied);
}

#[tokio::test]
async fn a_single_write_is_applied_once_when_its_answer_is_lost() {
    let fake = Fake::new(&[]);
    fake.happens(Happening::LoseAnswers(3));
    let cluster = cluster(&fake);
    cluster.mutate_row(TABLE, set(&key("a"), "v"), soon(&cluster)).await.unwrap();
    assert_eq!(fake.state().applied[&key("a")], 1);
}

#[tokio::test]
async fn writes_of_one_row_in_one_call_keep_their_order() {
    let fake = Fake::new(&[]);
    fake.happens(Happening::Busy(1));
    let cluster = cluster(&fake);
    let row = key("a");
    let writes = vec![set(&row, "first"), set(&key("b"), "other"), set(&row, "second")];
    let results = cluster.mutate_rows(TABLE, writes, soon(&cluster)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(fake.value(&row), Some(Bytes::from_static(b"second")));
}

#[tokio::test]
async fn without_a_leader_a_call_waits_and_says_at_the_deadline_that_nothing_was_done() {
    let fake = Fake::new(&[]);
    fake.happens(Happening::NoLeader { key: "a" });
    let cluster = cluster(&fake);
    let deadline = cluster.deadline(Duration::from_millis(300));
    let error = cluster.mutate_row(TABLE, set(&key("a"), "v"), deadline).await.unwrap_err();
    assert_eq!(error.reason, Reason::Unavailable, "{error}");
    let calls = fake.state().calls[&TABLE];
    assert!((3..60).contains(&calls), "{calls} calls: neither given up nor hammered");
}

#[tokio::test]
async fn a_write_that_may_have_been_applied_says_so_at_the_deadline() {
    let fake = Fake::new(&[]);
    fake.happens(Happening::LoseAnswers(u32::MAX));
    let cluster = cluster(&fake);
    let deadline = cluster.deadline(Duration::from_millis(100));
    let error = cluster.mutate_row(TABLE, set(&key("a"), "v"), deadline).await.unwrap_err();
    assert_eq!(error.reason, Reason::Deadline, "{error}");
}

#[tokio::test]
async fn many_readers_with_an_empty_cache_make_one_lookup() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    let cluster = cluster(&fake);
    let reads = rows.iter().map(|row| {
        let read = Read::new(TABLE, RowSet::from_ranges([KeyRange::single(row.clone())]));
        cluster.read_rows(read, soon(&cluster)).try_collect::<Vec<_>>()
    });
    assert!(join_all(reads).await.iter().all(Result::is_ok));
    let state = fake.state();
    assert_eq!(state.root_asked, 1);
    assert_eq!(state.calls[&ebla_model::id::TableId::METADATA], 2, "root tablet and METADATA tablet, once each");
}

#[tokio::test]
async fn a_dead_leader_costs_one_attempt() {
    let fake = Fake::new(&[]);
    let rows = fake.fill(10);
    let cluster = cluster(&fake);
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    fake.state().down.insert(ServerId::new(1));
    fake.happens(Happening::Lead { key: "a", server: 3 });
    let before = fake.state().calls[&TABLE];
    cluster.mutate_row(TABLE, set(&key("a"), "v"), soon(&cluster)).await.unwrap();
    let calls = fake.state().calls[&TABLE] - before;
    assert!(calls <= 3, "{calls} calls");
    cluster.mutate_row(TABLE, set(&key("a"), "v"), soon(&cluster)).await.unwrap();
    assert_eq!(fake.state().calls[&TABLE] - before, calls + 1, "the dead server is not asked again");
}

#[tokio::test]
async fn replicas_that_were_left_behind_are_not_asked_for_ever() {
    let fake = Fake::new(&[]);
    let rows = fake.fill(10);
    let cluster = cluster(&fake);
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    fake.happens(Happening::Leaves { key: "a" });
    cluster.mutate_row(TABLE, set(&key("a"), "v"), soon(&cluster)).await.unwrap();
    let before = fake.state().calls[&TABLE];
    cluster.mutate_row(TABLE, set(&key("a"), "v"), soon(&cluster)).await.unwrap();
    assert_eq!(fake.state().calls[&TABLE] - before, 1, "they are not asked again");
}

#[tokio::test]
async fn lookups_do_not_wait_for_an_election_of_metadata() {
    let fake = Fake::new(&["r0003"]);
    let rows = fake.fill(10);
    fake.happens(Happening::MetadataElects);
    fake.happens(Happening::Split { at: "r0005" });
    let cluster = cluster(&fake);
    // What it learns so is two steps behind, and the tablets' own servers put it right.
    assert_eq!(scan(&cluster, 0, Direction::Ascending).await, rows);
    assert_eq!(fake.state().root_asked, 1, "at the first attempt");
}

#[tokio::test]
async fn samples_are_the_ends_of_the_tablets() {
    let fake = Fake::new(&["f", "m"]);
    fake.happens(Happening::Split { at: "c" });
    let cluster = cluster(&fake);
    let samples = cluster.sample(TABLE, soon(&cluster)).await.unwrap();
    assert_eq!(samples, [(key("c"), 100), (key("f"), 200), (key("m"), 300), (RowKey::EMPTY, 400)]);
}

#[tokio::test]
async fn a_table_of_one_tablet_has_its_last_row_as_a_sample() {
    let fake = Fake::new(&[]);
    let samples = async || cluster(&fake).sample(TABLE, soon(&cluster(&fake))).await.unwrap();
    assert_eq!(samples().await, [(RowKey::EMPTY, 100)], "it has no row");
    fake.fill(3);
    assert_eq!(samples().await, [(key("r0002"), 100), (RowKey::EMPTY, 100)]);
}

#[tokio::test]
async fn a_lookup_tells_its_way() {
    let fake = Fake::new(&["f", "m"]);
    let cluster = cluster(&fake);
    let trace = cluster.locate(TABLE, &key("g"), soon(&cluster)).await.unwrap().trace;
    let hops: Vec<_> = trace.iter().map(|hop| (hop.level, hop.source, hop.round_trips)).collect();
    let expected = [
        (Level::Root, Source::Chubby, 1),
        (Level::Metadata, Source::RootTablet, 1),
        (Level::Tablet, Source::MetadataTablet, 1),
    ];
    assert_eq!(hops, expected);
    let trace = cluster.locate(TABLE, &key("z"), soon(&cluster)).await.unwrap().trace;
    assert_eq!(trace.iter().map(|hop| (hop.source, hop.round_trips)).collect::<Vec<_>>(), [(Source::Cache, 0)]);
}

#[tokio::test]
async fn metadata_is_never_overwritten_by_something_older() {
    let fake = Fake::new(&[]);
    let cluster = cluster(&fake);
    let metadata = cluster.metadata();
    let server = ServerId::new(1);
    let parent = metadata.read_table(TABLE, soon(&cluster)).await.unwrap().remove(0).descriptor;
    let child = ebla_model::id::TabletId::new(99);
    let (left, right) = parent.split(&key("m"), child).unwrap();
    let note = Note { leader: Some(LeaderHint { server, term: 7 }), event: Some(("split".to_owned(), server)) };
    metadata.put_split(&left, &right, &note, soon(&cluster)).await.unwrap();
    metadata.put_split(&left, &right, &note, soon(&cluster)).await.unwrap();
    let late = metadata.put_descriptor(&parent, &Note::default(), soon(&cluster)).await.unwrap();
    assert_eq!(late, Guarded::Superseded(right.clone()));
    assert_eq!(metadata.delete(&parent, soon(&cluster)).await.unwrap(), Guarded::Superseded(right.clone()));
    let listed = metadata.read_table(TABLE, soon(&cluster)).await.unwrap();
    let tablets: Vec<&TabletDescriptor> = listed.iter().map(|entry| &entry.descriptor).collect();
    assert_eq!(tablets, [&left, &right]);
    assert!(listed.iter().all(|entry| entry.leader.is_some_and(|leader| leader.term == 7)));
    assert_eq!(metadata.delete(&left, soon(&cluster)).await.unwrap(), Guarded::Done);
    assert_eq!(metadata.delete(&left, soon(&cluster)).await.unwrap(), Guarded::Done);
    assert_eq!(metadata.read_table(TABLE, soon(&cluster)).await.unwrap().len(), 1);
}
