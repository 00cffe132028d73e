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
use ebla_runtime::Runtime;
use ebla_tests::api::Api;
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

#[test]
fn a_growing_table_splits_itself_and_scans_stay_exact() {
    let mebibytes: u64 = std::env::var("EBLA_LARGE_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024);
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(grow(mebibytes)));
    tokio.shutdown_background();
}

async fn grow(mebibytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::system("large");
    let up = Up::start(&folder.path().join("data"), &[]);
    Api::new(&runtime.net, &up.addresses[0], "large").create(&["f"], &[]).await.unwrap();
    let rows = mebibytes * 1024;
    // Room for every batch: a loader must never wait for the scans.
    let batches = usize::try_from(rows / BATCH + LOADERS).unwrap();
    let (done, mut loaded) = tokio::sync::mpsc::channel(batches);
    for loader in 0..LOADERS {
        let mut api = Api::new(&runtime.net, &up.addresses[(loader % 3) as usize], "large");
        let done = done.clone();
        runtime.tasks.spawn_until_stopped("loader", async move {
            for start in (loader * BATCH..rows).step_by((LOADERS * BATCH) as usize) {
                let numbers: Vec<u64> = (start..rows.min(start + BATCH)).collect();
                let entries: Vec<_> = numbers.iter().map(|n| (key(*n), value(*n))).collect();
                let refused = api.write_many(&entries, "f").await.unwrap();
                done.send((numbers, refused)).await.unwrap();
            }
        });
    }
    drop(done);
    // While the loaders write, every row acknowledged before a scan starts must be in it, exact.
    let mut api = Api::new(&runtime.net, &up.addresses[1], "large");
    let mut acknowledged = std::collections::BTreeSet::new();
    let (mut scans, mut scanned) = (0, 0);
    let mut finished = false;
    while !finished {
        loop {
            match loaded.try_recv() {
                Ok((numbers, refused)) => {
                    assert_eq!(refused, 0, "entries refused");
                    acknowledged.extend(numbers);
                }
                Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                    finished = true;
                    break;
                }
            }
        }
        scanned += check_scan(&mut api, &acknowledged).await;
        scans += 1;
        // The scans are there to be right, not to win the race for the processor against what they check.
        if !finished {
            tokio::time::sleep(SCAN_PAUSE).await;
        }
    }
    assert_eq!(acknowledged.len() as u64, rows, "a loader ended early");
    let tablets = api.tablet_ends().await.unwrap().len();
    println!("{mebibytes} MiB: {tablets} tablets, {scans} full scans of {scanned} rows while it grew, all exact");
    assert!(tablets as u64 >= 6 * mebibytes / 1024, "{tablets} tablets only");
}

/// Scans the whole table; each row must be whole and in order, and none of `wanted` may be missing.
async fn check_scan(api: &mut Api, wanted: &std::collections::BTreeSet<u64>) -> u64 {
    let mut expected: std::collections::BTreeMap<String, u64> = wanted.iter().map(|n| (key(*n), *n)).collect();
    let (mut last, mut seen) = (Bytes::new(), 0);
    api.scan("", |row| {
        assert!(row.key > last, "{:?} after {last:?}", row.key);
        let text = std::str::from_utf8(&row.key).unwrap();
        // The multiplier is odd, so its inverse turns a key back into its number.
        let number = u64::from_str_radix(text, 16).unwrap().wrapping_mul(inverse());
        assert_eq!(row.value("f", b"v"), Some(&value(number)), "row {text}");
        expected.remove(text);
        seen += 1;
        last = row.key;
    })
    .await
    .unwrap();
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
