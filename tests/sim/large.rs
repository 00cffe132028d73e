//! A client of large values: each write is an entry, and a Raft frame, of 1 MiB or more.
//!
//! Each worker has a row in each tablet of a table of its own, and no other worker writes it. A value consists of its version and of bytes that follow
//! from the version, so that every byte that is read can be checked while only versions are stored. A write of unknown outcome may be applied at
//! any later time: a row has the version that was acknowledged last, or one of unknown outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, Table};
use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_workload::verify::history::Token;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, connect, create_table, key, wait_for};
use crate::time::{self, HostTime};

/// The tablets of the table, by the first byte of their rows: one for each group of three servers.
const TABLETS: [&str; 3] = ["a", "m", "t"];
/// The minimum size of a value in bytes.
const VALUE_BYTES_MIN: u64 = 1 << 20;
/// The size of most values is below the minimum and this number of bytes more. A quarter of them has up to [`SimCluster::value_bytes_max`].
const SPAN_BYTES: u64 = 3 << 20;
/// That of some values is below the minimum and this number more.
const SMALL_SPAN_BYTES: u64 = 1 << 10;
/// Concurrent operations.
const WORKERS: u32 = 2;
/// The writer of the final checks.
const PROVER: u32 = WORKERS;
/// Operations on one connection.
const OPERATIONS: usize = 20;
/// Between two operations of a worker, about: each costs several milliseconds of processor time.
const PAUSE: Duration = Duration::from_millis(250);
/// Timeout of a call.
const CALL: Duration = Duration::from_secs(6);
/// Timeout of the final reads and writes.
const PROVED: Duration = Duration::from_secs(60);

/// What a row may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    /// The version that was acknowledged last.
    acknowledged: Option<Token>,
    /// Those of unknown outcome.
    unknown: BTreeSet<Token>,
}

/// The rows that were written, by name.
pub(crate) type LargeRows = BTreeMap<String, Versions>;

impl Versions {
    fn allow(&self, version: Option<Token>) -> bool {
        version == self.acknowledged || version.is_some_and(|version| self.unknown.contains(&version))
    }
}

/// Creates the table.
pub(crate) async fn create(cluster: &SimCluster, runtime: &Runtime) {
    let splits: Vec<RowKey> = TABLETS.iter().skip(1).map(|first| key(first)).collect();
    create_table(cluster, runtime, &table_name(), &splits).await;
}

/// The client's host.
pub(crate) async fn client(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("large", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let worker = |id| Worker { cluster: &cluster, runtime: &runtime, id, sent: 0 };
    futures::future::join_all((0..WORKERS).map(worker).map(Worker::run)).await;
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note("large", "drained", "");
    Ok(())
}

/// What is wrong with the rows after all faults: each is read through each server, and then written once more.
pub(crate) async fn prove(cluster: &SimCluster, runtime: &Runtime) -> Vec<String> {
    let proved = async {
        let rows: Vec<String> = cluster.large_rows.lock().keys().cloned().collect();
        let mut wrong = Vec::new();
        for server in &cluster.servers {
            let table = Client::endpoint(&server.address(), runtime.clone()).table(&table_name()).with_timeout(CALL);
            for row in &rows {
                let found = read_in_the_end(&table, row).await;
                wrong.extend(check(cluster, row, found.as_ref()).map(|one| format!("{one}, through {}", server.name)));
            }
        }
        let mut worker = Worker { cluster, runtime, id: PROVER, sent: 0 };
        for row in rows {
            let table = || Client::endpoint(&any_address(cluster, &runtime.rng), runtime.clone()).table(&table_name());
            while !worker.write(&table().with_timeout(CALL), std::slice::from_ref(&row)).await {
                tokio::time::sleep(PAUSE).await;
            }
            let found = read_in_the_end(&table().with_timeout(CALL), &row).await;
            wrong.extend(check(cluster, &row, found.as_ref()));
        }
        wrong
    };
    let failed =
        |_elapsed| vec![format!("not live: some large values still cannot be read or written after {PROVED:?}")];
    tokio::time::timeout(PROVED, proved).await.unwrap_or_else(failed)
}

fn bytes_max(cluster: &SimCluster) -> u64 {
    cluster.value_bytes_max.unwrap()
}

fn table_name() -> TableName {
    TableName::from_parts("sim", "sim", "large").unwrap()
}

/// A row; retries until it can be read.
async fn read_in_the_end(table: &Table, row: &str) -> Option<Row> {
    loop {
        match table.read_row(&key(row), None).await {
            Ok(found) => return found,
            Err(error) => tracing::info!(%error, row, "large value not read; retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

struct Worker<'a> {
    cluster: &'a SimCluster,
    runtime: &'a Runtime,
    id: u32,
    sent: u64,
}

impl Worker<'_> {
    async fn run(mut self) {
        while self.cluster.phase() == Phase::Load {
            let Some(client) = connect(self.cluster, self.runtime, &self.runtime.rng).await else { continue };
            let table = client.table(&table_name()).with_timeout(CALL);
            // A new connection after an error.
            for _ in 0..OPERATIONS {
                let has_succeeded = self.operate(&table).await;
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
                if self.cluster.phase() != Phase::Load || !has_succeeded {
                    break;
                }
            }
        }
    }

    /// Runs one random operation; returns whether it succeeded.
    async fn operate(&mut self, table: &Table) -> bool {
        let tablet = usize::try_from(self.runtime.rng.below(TABLETS.len() as u64)).unwrap();
        let rows = [tablet, (tablet + 1) % TABLETS.len()].map(|tablet| format!("{}/{}", TABLETS[tablet], self.id));
        match self.runtime.rng.below(10) {
            0..5 => self.write(table, &rows[..1]).await,
            5..7 => self.write(table, &rows).await,
            _ => self.read(table, &rows[0]).await,
        }
    }

    /// Writes a new version to each of these rows with one call; returns whether all were acknowledged.
    async fn write(&mut self, table: &Table, rows: &[String]) -> bool {
        let versions: Vec<(String, Token)> = rows.iter().map(|row| (row.clone(), self.next_token())).collect();
        self.announce(&versions);
        let entries: Vec<_> =
            versions.iter().map(|(row, version)| (key(row), vec![set(*version, bytes_max(self.cluster))])).collect();
        let answer = match entries.as_slice() {
            [(row, mutations)] => table.mutate_row(row, mutations).await.map(|()| vec![true]),
            several => {
                let answers = table.mutate_rows(several).await;
                answers.map(|answers| answers.iter().map(Result::is_ok).collect())
            }
        };
        self.note("write", &rows.join(" "), answer.as_ref().err());
        let are_written: Vec<bool> = answer.unwrap_or_default();
        self.acknowledge(&versions, &are_written);
        are_written.len() == rows.len() && are_written.iter().all(|is_written| *is_written)
    }

    async fn read(&self, table: &Table, row: &str) -> bool {
        let answer = table.read_row(&key(row), None).await;
        self.note("read", row, answer.as_ref().err());
        let Ok(found) = answer else { return false };
        let wrong = check(self.cluster, row, found.as_ref());
        self.cluster.history.lock().wrong.extend(wrong);
        true
    }

    fn next_token(&mut self) -> Token {
        self.sent += 1;
        Token { writer: self.id, sequence: self.sent }
    }

    /// Records versions that are about to be sent.
    fn announce(&self, versions: &[(String, Token)]) {
        let mut rows = self.cluster.large_rows.lock();
        for (row, version) in versions {
            rows.entry(row.clone()).or_default().unknown.insert(*version);
        }
    }

    fn acknowledge(&self, versions: &[(String, Token)], are_written: &[bool]) {
        let mut rows = self.cluster.large_rows.lock();
        for ((row, version), _) in versions.iter().zip(are_written).filter(|(_, is_written)| **is_written) {
            let known = rows.entry(row.clone()).or_default();
            known.unknown.remove(version);
            known.acknowledged = Some(*version);
            self.cluster.trace.lock().count(time::elapsed(), "large", "large-value", &version.to_string());
        }
    }

    fn note(&self, kind: &str, what: &str, error: Option<&Error>) {
        let outcome = error.map_or("ok", |error| error.reason.name());
        self.cluster.note(&format!("large-{}", self.id), kind, &format!("{what} {outcome}"));
        if let Some(error) = error {
            tracing::info!(worker = self.id, kind, what, %error, "operation on large values failed");
        }
    }
}

fn set(version: Token, bytes_max: u64) -> Mutation {
    Mutation::SetCell {
        family: "v".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: value(version, bytes_max),
    }
}

/// The value of a version: the version as text, a space, and bytes that cannot be compressed. Some are as small as possible, because replication
/// bounds the entries of a frame at the same size.
fn value(version: Token, bytes_max: u64) -> Bytes {
    let mut rng = StdRng::seed_from_u64((u64::from(version.writer) << 32) | version.sequence);
    let span = match rng.next_u64() % 4 {
        0 => SMALL_SPAN_BYTES,
        1 => bytes_max - VALUE_BYTES_MIN,
        _ => SPAN_BYTES,
    };
    let size = VALUE_BYTES_MIN + rng.next_u64() % span;
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    rng.fill_bytes(&mut bytes);
    let text = format!("{version} ");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Bytes::from(bytes)
}

/// What is wrong with a row that was read.
fn check(cluster: &SimCluster, row: &str, found: Option<&Row>) -> Option<String> {
    let version = match found.map(|row| version_of(row, bytes_max(cluster))).transpose() {
        Ok(version) => version,
        Err(broken) => return Some(format!("torn: {row} has {broken}")),
    };
    let rows = cluster.large_rows.lock();
    let versions = rows.get(row).cloned().unwrap_or_default();
    (!versions.allow(version)).then(|| format!("stale: {row} has version {version:?} instead of one of {versions:?}"))
}

/// The version of a row, each byte of which was checked; what it has instead of the value of a version.
fn version_of(row: &Row, bytes_max: u64) -> Result<Token, String> {
    let [cell] = row.cells.as_slice() else { return Err(format!("{} cells", row.cells.len())) };
    let text: Vec<u8> = cell.value.iter().copied().take(40).take_while(|byte| *byte != b' ').collect();
    let version: Token = String::from_utf8_lossy(&text).parse()?;
    let expected = value(version, bytes_max);
    if cell.value == expected {
        return Ok(version);
    }
    let equal = cell.value.iter().zip(expected.iter()).take_while(|(one, other)| one == other).count();
    let (size, right) = (cell.value.len(), expected.len());
    Err(format!("{size} bytes instead of the {right} of version {version}, of which the first {equal} are right"))
}
