//! Bytes of files that change on the disk: what is lost, what is still served, and what is said about it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use ebla_client::{Client, ReadOptions, Table};
use ebla_model::error::{Error, Reason};
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::control::FlushRequest;
use ebla_proto::control::control_client::ControlClient;
use ebla_runtime::{Rng, Runtime};
use serde_json::Value;
use support::{Up, run};
use tonic::Code;

/// Rows of about a kilobyte: many blocks of 16 KiB.
const ROWS: u32 = 2_000;
/// More rows than are in a block.
const BLOCK_ROWS_MAX: usize = 100;
/// Polls of a state that changes within seconds.
const POLLS: usize = 3_000;

/// A table of an `ebla up` with one server.
struct OneServer {
    address: String,
    table: Table,
    runtime: Runtime,
}

fn key(row: u32) -> RowKey {
    RowKey::new(format!("row{row:06}"))
}

fn set(rng: &Rng) -> Mutation {
    // No compression makes random bytes smaller, so a row stays where its number predicts.
    let value: Vec<u8> = (0..125).flat_map(|_| rng.u64().to_le_bytes()).collect();
    Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from(value),
    }
}

impl OneServer {
    fn of(up: &Up, table: &str) -> Self {
        let runtime = Runtime::system("rot");
        let name = TableName::from_parts("dev", "dev", table).unwrap();
        let table = Client::endpoint(&up.addresses[0], runtime.clone()).table(&name);
        Self { address: up.addresses[0].clone(), table, runtime }
    }

    async fn write(&self, rows: Range<u32>) {
        let rows: Vec<_> = rows.map(|row| (key(row), vec![set(&self.runtime.rng)])).collect();
        for part in rows.chunks(500) {
            let results = self.table.mutate_rows(part).await.unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        }
    }

    /// The rows that cannot be read one by one, with what is said about the first.
    async fn unreadable(&self, rows: Range<u32>) -> (Vec<u32>, Option<Error>) {
        let (mut damaged, mut first) = (Vec::new(), None);
        for row in rows {
            match self.table.read_row(&key(row), None).await {
                Ok(found) => assert!(found.is_some(), "row {row} is lost"),
                Err(error) => {
                    assert_eq!(error.reason, Reason::DataDamaged, "row {row}: {error}");
                    damaged.push(row);
                    first.get_or_insert(error);
                }
            }
        }
        (damaged, first)
    }

    async fn scan(&self) -> Result<usize, Error> {
        Ok(self.table.read_rows(RowSet::all(), ReadOptions::default()).await?.len())
    }

    /// Writes the memtable of a group into a file. Whether that was possible: not after a compaction has met damage.
    async fn flush(&self, group: u64) -> bool {
        let mut control = ControlClient::new(self.runtime.net.channel(&self.address));
        let flushed = control.flush(FlushRequest { group }).await;
        flushed.map_err(|status| assert_eq!(status.code(), Code::DataLoss, "{status}")).is_ok()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&run(&self.address, &["status", "-o", "json"])).unwrap()
    }

    /// Waits until the server reports a damaged replica that it keeps.
    fn wait_until_kept(&self) {
        let kept = (0..POLLS).any(|_| {
            support::pause();
            self.status()["servers"][0]["damaged_replicas_kept"] == 1
        });
        assert!(kept, "{}", self.status());
    }
}

/// The largest file of rows of any group, and its group.
fn largest_table(data: &Path) -> (PathBuf, u64) {
    let groups = std::fs::read_dir(data.join("server-1/groups")).unwrap().map(|group| group.unwrap().path());
    let files = groups.flat_map(|group| std::fs::read_dir(group).unwrap()).map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|end| end == "sst"));
    let largest = tables.max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let folder = largest.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let group = folder.strip_prefix('g').unwrap().split('-').next().unwrap().parse().unwrap();
    (largest, group)
}

/// Changes some bytes in the first half of a file, where the rows are whose keys begin with `row000`.
fn damage(file: &Path) {
    let quarter = file.metadata().unwrap().len() / 4;
    File::options().write(true).open(file).unwrap().write_all_at(&[0xA5; 16], quarter).unwrap();
}

/// Checks that one block cannot be read, and that the error of it says what to do.
fn check_one_block(damaged: &[u32], first: Option<Error>) {
    assert!((1..BLOCK_ROWS_MAX).contains(&damaged.len()), "{damaged:?}");
    let said = first.unwrap().message;
    for part in ["projects/dev/instances/dev/tables/t ", "a block of tablet ", "only replica", "restore the lost ones"]
    {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

#[test]
fn the_only_replica_serves_all_rows_outside_of_a_damaged_block_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--servers", "1"]);
    for table in ["t", "other"] {
        run(&up.addresses[0], &["table", "create", table, "--family", "f"]);
    }
    support::block_on(async { OneServer::of(&up, "t").write(0..ROWS).await });
    up.stop();
    damage(&largest_table(&data).0);

    let up = Up::start(&data, &["--servers", "1"]);
    support::block_on(async {
        let (one, other) = (OneServer::of(&up, "t"), OneServer::of(&up, "other"));
        let (damaged, first) = one.unreadable(0..ROWS).await;
        check_one_block(&damaged, first);
        let scanned = one.scan().await.unwrap_err();
        assert_eq!(scanned.reason, Reason::DataDamaged, "{scanned}");
        other.write(0..10).await;
        assert_eq!(other.scan().await.unwrap(), 10);
        one.write(ROWS..ROWS + 10).await;
        // Apply of a deletion reads the cells: it meets the damage too, and must not meet it again after each start.
        one.table.mutate_row(&key(damaged[0]), &[Mutation::DeleteRow]).await.unwrap();
        one.wait_until_kept();
        let (after, _) = one.unreadable(0..damaged[0]).await;
        assert!(after.is_empty(), "{after:?}");
    });
    let verdict = run(&up.addresses[0], &["status"]);
    assert!(verdict.starts_with("degraded: tablet server 1 has 1 damaged replica"), "{verdict}");
    let servers = run(&up.addresses[0], &["server", "list"]);
    assert!(servers.contains(", 1 damaged"), "{servers}");
    up.stop();
}

#[test]
fn a_compaction_that_meets_damage_in_the_only_replica_interrupts_it_for_a_moment_only() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--servers", "1"]);
    run(&up.addresses[0], &["table", "create", "t", "--family", "f"]);
    support::block_on(async {
        let one = OneServer::of(&up, "t");
        one.write(0..ROWS).await;
        for group in std::fs::read_dir(data.join("server-1/groups")).unwrap() {
            let name = group.unwrap().file_name().into_string().unwrap();
            assert!(one.flush(name.strip_prefix('g').unwrap().split('-').next().unwrap().parse().unwrap()).await);
        }
        let (file, group) = largest_table(&data);
        damage(&file);
        // RocksDB compacts four files, and refuses all writes after it has met the damage.
        let mut written = ROWS;
        for _ in 0..3 {
            // Files without common keys would be moved, not read.
            one.write(0..20).await;
            one.write(ROWS - 20..ROWS).await;
            // On a slow machine the server has flushed by itself in between, so that the compaction comes earlier.
            if !one.flush(group).await {
                break;
            }
        }
        let kept = || one.status()["servers"][0]["damaged_replicas_kept"] == 1;
        for _ in 0..POLLS {
            if kept() {
                break;
            }
            one.write(written..written + 1).await;
            written += 1;
        }
        one.wait_until_kept();
        one.write(written..written + 50).await;
        let (damaged, first) = one.unreadable(0..written + 50).await;
        check_one_block(&damaged, first);
        assert!(damaged.iter().all(|row| *row < ROWS), "{damaged:?}");
        assert_eq!(one.status()["tablets_led"], one.status()["tablets"]);
    });
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(log.contains("it serves what is readable") && !log.contains("replica quarantined"), "{log}");
    up.stop();
}

#[test]
fn a_flipped_byte_in_the_lock_service_refuses_the_start_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--servers", "1"]);
    run(&up.addresses[0], &["table", "create", "t", "--family", "f"]);
    up.stop();
    let journal = data.join("chubby/journal");
    let sound = std::fs::read(&journal).unwrap();
    let mut damaged = sound.clone();
    damaged[40] ^= 1;
    std::fs::write(&journal, &damaged).unwrap();
    let start = Command::new(support::ebla())
        .args(["up", "--servers", "1", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data)
        .output();
    let start = start.unwrap();
    let said = String::from_utf8_lossy(&start.stderr);
    assert!(!start.status.success(), "{said}");
    for part in ["open the lock service", "chubby/journal", "restore this file from a copy"] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    assert_eq!(std::fs::read(&journal).unwrap(), damaged);
    std::fs::write(&journal, &sound).unwrap();
    let up = Up::start(&data, &["--servers", "1"]);
    assert_eq!(run(&up.addresses[0], &["table", "list"]), "t\n");
    up.stop();
}
