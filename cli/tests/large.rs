//! A table that grows splits itself, and full scans read it back byte for byte while it does.
//!
//! `EBLA_LARGE_MIB` sets the size (1024 when unset: at 128 MiB a tablet, at least 6 tablets).

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test may fail, and then says where"
)]

mod support;

use bytes::Bytes;
use ebla_client::table::ReadOptions;
use ebla_client::{Client, Table};
use ebla_model::gc::GcRule;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_runtime::Runtime;
use futures::TryStreamExt as _;
use support::Up;

const VALUE_BYTES: usize = 1_000;
const BATCH: u64 = 500;
const LOADERS: u64 = 4;
const SCAN_PAUSE: std::time::Duration = std::time::Duration::from_secs(2);

/// Incompressible, and a function of the key alone.
fn value(number: u64) -> Bytes {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(VALUE_BYTES + 8);
    while bytes.len() < VALUE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(VALUE_BYTES);
    bytes.into()
}

/// Spread over the key space, so that every tablet grows.
fn key(number: u64) -> String {
    format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn set(number: u64) -> (RowKey, Vec<Mutation>) {
    let cell = Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::from_static(b"v"),
        timestamp: WriteTime::At(Micros::ZERO),
        value: value(number),
    };
    (RowKey::new(key(number)), vec![cell])
}

#[test]
fn a_growing_table_splits_itself_and_scans_stay_exact() {
    let mebibytes: u64 = std::env::var("EBLA_LARGE_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024);
    support::block_on(grow(mebibytes));
}

async fn grow(mebibytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::system("large");
    let up = Up::start(&folder.path().join("data"), &[]);
    let name = TableName::from_parts("test", "test", "large").unwrap();
    let table = |at: usize| Client::endpoint(&up.addresses[at], runtime.clone()).table(&name);
    let admin = Client::endpoint(&up.addresses[0], runtime.clone()).admin();
    admin.create_table(&name, &[("f".to_owned(), Some(GcRule::MaxVersions(1)))], &[]).await.unwrap();
    let rows = mebibytes * 1024;
    // Room for every batch: a loader must never wait for the scans.
    let batches = usize::try_from(rows / BATCH + LOADERS).unwrap();
    let (done, mut loaded) = tokio::sync::mpsc::channel(batches);
    for loader in 0..LOADERS {
        let table = table((loader % 3) as usize);
        let done = done.clone();
        runtime.tasks.spawn_until_stopped("loader", async move {
            for start in (loader * BATCH..rows).step_by((LOADERS * BATCH) as usize) {
                let numbers: Vec<u64> = (start..rows.min(start + BATCH)).collect();
                let entries: Vec<_> = numbers.iter().map(|n| set(*n)).collect();
                for written in table.mutate_rows(&entries).await.unwrap() {
                    written.unwrap();
                }
                done.send(numbers).await.unwrap();
            }
        });
    }
    drop(done);
    // While the loaders write, every row acknowledged before a scan starts must be in it, exact.
    let table = table(1);
    let mut acknowledged = std::collections::BTreeSet::new();
    let (mut scans, mut scanned) = (0, 0);
    let mut finished = false;
    while !finished {
        loop {
            match loaded.try_recv() {
                Ok(numbers) => acknowledged.extend(numbers),
                Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                    finished = true;
                    break;
                }
            }
        }
        scanned += check_scan(&table, &acknowledged).await;
        scans += 1;
        // The scans are there to be right, not to win the race for the processor against what they check.
        if !finished {
            tokio::time::sleep(SCAN_PAUSE).await;
        }
    }
    assert_eq!(acknowledged.len() as u64, rows, "a loader ended early");
    let tablets = table.sample_row_keys().await.unwrap().len();
    println!("{mebibytes} MiB: {tablets} tablets, {scans} full scans of {scanned} rows while it grew, all exact");
    assert!(tablets as u64 >= 6 * mebibytes / 1024, "{tablets} tablets only");
}

/// Scans the whole table; each row must be whole and in order, and none of `wanted` may be missing.
async fn check_scan(table: &Table, wanted: &std::collections::BTreeSet<u64>) -> u64 {
    let mut expected: std::collections::BTreeMap<String, u64> = wanted.iter().map(|n| (key(*n), *n)).collect();
    let (mut last, mut seen) = (RowKey::EMPTY, 0);
    let mut rows = table.stream_rows(RowSet::all(), ReadOptions::default());
    while let Some(row) = rows.try_next().await.unwrap() {
        assert!(row.key > last, "{:?} after {last:?}", row.key);
        let text = std::str::from_utf8(row.key.as_bytes()).unwrap();
        // The multiplier is odd, so its inverse turns a key back into its number.
        let number = u64::from_str_radix(text, 16).unwrap().wrapping_mul(inverse());
        assert_eq!(row.newest("f", b"v").map(|cell| &cell.value), Some(&value(number)), "row {text}");
        expected.remove(text);
        seen += 1;
        last = row.key;
    }
    assert!(
        expected.is_empty(),
        "{} acknowledged rows are missing, {:?} first",
        expected.len(),
        expected.first_key_value()
    );
    seen
}

/// The inverse of the key's multiplier modulo 2^64, by Newton's iteration.
fn inverse() -> u64 {
    let a = 0x9E37_79B9_7F4A_7C15_u64;
    (0..6).fold(1u64, |x, _| x.wrapping_mul(2u64.wrapping_sub(a.wrapping_mul(x))))
}
