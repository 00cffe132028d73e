//! A table that grows splits itself, and full scans read it back byte for byte while it does. And more large requests at once
//! than a server has room for: it refuses some and lives.
//!
//! `EBLA_LARGE_MIB` sets the table's size (1024 when unset: at 128 MiB a tablet, at least 6 tablets).

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test may fail, and then says where"
)]

mod support;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use ebla_client::table::ReadOptions;
use ebla_client::{Client, Table};
use ebla_model::gc::GcRule;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_runtime::Runtime;
use futures::TryStreamExt as _;
use futures::future::{join_all, poll_fn};
use hyper::body::{Body, Frame};
use support::Up;
use tonic::codegen::Service as _;
use tonic::{Code, Status};

const VALUE_BYTES: usize = 1_000;
const BATCH: u64 = 500;
const LOADERS: u64 = 4;
const SCAN_PAUSE: Duration = Duration::from_secs(2);
/// Of each call: a scan of the whole table while it grows, on a machine that other tests keep busy, takes more than the default of a minute.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);

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
    let table = |at: usize| Client::endpoint(&up.addresses[at], runtime.clone()).table(&name).with_timeout(TIMEOUT);
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

/// A hundred writes of nearly 100 MiB each, at once and over a connection each: ten gigabytes, of which a server takes half a
/// gigabyte at a time.
#[test]
fn a_hundred_writes_of_100_mib_at_once_are_refused_and_the_server_lives() {
    support::block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system("flood");
        let up = Up::start(&folder.path().join("data"), &[]);
        let name = TableName::from_parts("test", "test", "flood").unwrap();
        let client = Client::endpoint(&up.addresses[0], runtime.clone());
        client.admin().create_table(&name, &[("f".to_owned(), Some(GcRule::MaxVersions(1)))], &[]).await.unwrap();

        let calls = (0..100).map(|number| flood(&runtime, &up.addresses[0], &name, number));
        let codes: Vec<Code> = join_all(calls).await;
        let count = |wanted: Code| codes.iter().filter(|code| **code == wanted).count();
        let (done, refused) = (count(Code::Ok), count(Code::ResourceExhausted));
        println!("100 writes of {} MiB at once: {done} done, {refused} refused", FLOOD_BYTES >> 20);
        assert_eq!(done + refused, codes.len(), "{codes:?}");
        assert!(done > 0 && refused > 0, "{codes:?}");

        let table = client.table(&name);
        let (key, mutations) = set(1);
        table.mutate_row(&key, &mutations).await.unwrap();
        let read = table.read_row(&key, None).await.unwrap().unwrap();
        assert_eq!(read.newest("f", b"v").map(|cell| &cell.value), Some(&value(1)), "it serves as before");
    });
}

/// A value of this size and its request stay below the largest value, 100 MiB.
const FLOOD_BYTES: usize = 99 << 20;

/// Writes one large value, which is streamed; returns the status code. The group applies the accepted writes one after another: on a busy
/// machine the last of them take longer than the timeout of calls that have none of their own.
async fn flood(runtime: &Runtime, address: &str, table: &TableName, number: u64) -> Code {
    let mut channel = runtime.net.channel(address);
    let body = tonic::body::Body::new(LargeWrite::new(table, number));
    let request = http::Request::post(format!("http://{address}/google.bigtable.v2.Bigtable/MutateRow"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "20M")
        .body(body)
        .unwrap();
    poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let mut answer = match channel.call(request).await {
        Ok(answer) => answer,
        Err(error) => return Status::from_error(Box::new(error)).code(),
    };
    let mut code = Status::from_header_map(answer.headers());
    while let Some(frame) = poll_fn(|context| Pin::new(answer.body_mut()).poll_frame(context)).await {
        match frame {
            Ok(frame) => code = frame.trailers_ref().and_then(Status::from_header_map).or(code),
            Err(status) => return status.code(),
        }
    }
    code.map_or(Code::Unknown, |status| status.code())
}

/// The body of a MutateRow whose value is one repeated piece.
struct LargeWrite {
    /// The encoding before the value: lengths, row key, column.
    head: Option<Bytes>,
    piece: Bytes,
    left: usize,
}

impl LargeWrite {
    fn new(table: &TableName, number: u64) -> Self {
        // The value is each message's last field, so that an encoding without it, with larger lengths, is what goes before it.
        let cell = [field(1, b"f"), field(2, b"v"), field_head(4, FLOOD_BYTES)].concat();
        let set = [field_head(1, cell.len() + FLOOD_BYTES), cell].concat();
        let mutation = [field_head(3, set.len() + FLOOD_BYTES), set].concat();
        let request = [field(1, table.to_string().as_bytes()), field(2, key(number).as_bytes()), mutation].concat();
        let mut head = BytesMut::new();
        head.put_u8(0);
        head.put_u32((request.len() + FLOOD_BYTES) as u32);
        head.put_slice(&request);
        Self { head: Some(head.freeze()), piece: Bytes::from(vec![7; 1 << 20]), left: FLOOD_BYTES }
    }
}

/// A field of bytes.
fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
    [field_head(tag, bytes.len()), bytes.to_vec()].concat()
}

/// Its beginning: tag and length.
fn field_head(tag: u32, length: usize) -> Vec<u8> {
    let mut head = Vec::new();
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut head);
    prost::encoding::encode_varint(length as u64, &mut head);
    head
}

impl Body for LargeWrite {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = self.piece.slice(..self.left.min(self.piece.len()));
        self.left -= piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}
