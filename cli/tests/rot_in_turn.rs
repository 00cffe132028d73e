//! Bytes of one tablet server's files change on its disk, and then each of the other two servers is killed: a replica that is not
//! intact must be repaired, or known not to be, before it is needed. No acknowledged row is lost.
//!
//! Damaged in turn: the commit log, RocksDB's manifest, the registry, a file of rows. Damage of a file of rows is found by a read, a compaction or
//! the scrubber, here by `ebla check`; `tablet-server/tests/cluster/damage.rs` tests that another server is lost before it is found.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Client, ReadOptions, Table};
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};

const SERVERS: usize = 3;
/// Rows of about a kilobyte that are written before each damage.
const ROWS: u32 = 500;
/// Timeout of a repair, and of a read while a server is lost.
const LIVE: Duration = Duration::from_secs(60);
/// How long a lost server may be away before the master replaces its replicas.
const GRACE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(100);

struct Run {
    cluster: ProcessCluster<Loopback>,
    name: TableName,
    written: u32,
    runtime: Runtime,
}

fn key(row: u32) -> RowKey {
    RowKey::new(format!("row{row:06}"))
}

/// Bytes that follow from the row, and that no compression makes smaller.
fn value(row: u32) -> Vec<u8> {
    let mut state = u64::from(row).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..125).flat_map(|_| next()).collect()
}

/// The files in a folder and those below it with names that `is_wanted` accepts.
fn files(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, is_wanted));
        } else if path.file_name().is_some_and(|name| is_wanted(&name.to_string_lossy())) {
            found.push(path);
        }
    }
    found
}

/// Changes bytes in the middle of what a file contains, without the zeros at its end.
fn damage(file: &Path) {
    let bytes = std::fs::read(file).unwrap();
    let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return };
    println!("damaged: {} at {} of {}", file.display(), last / 2, last + 1);
    File::options().write(true).open(file).unwrap().write_all_at(&[0xA5; 16], last as u64 / 2).unwrap();
}

fn largest(files: Vec<PathBuf>) -> PathBuf {
    files.into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap()
}

impl Run {
    async fn start() -> Self {
        let runtime = Runtime::system("rot");
        let plan = Plan { etcd: 1, masters: 1, repair_grace: Some(GRACE), ..Plan::new(support::ebla(), SERVERS) };
        let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let name = TableName::from_parts("dev", "dev", "t").unwrap();
        support::run(&cluster.addresses()[0], &["table", "create", "t", "--family", "f"]);
        Self { cluster, name, written: 0, runtime }
    }

    /// The table through one server.
    fn table(&self, server: usize) -> Table {
        let client = Client::endpoint(&self.cluster.addresses()[server], self.runtime.clone());
        client.with_timeout(LIVE).table(&self.name)
    }

    async fn write(&mut self) {
        let rows: Range<u32> = self.written..self.written + ROWS;
        let set = |row| Mutation::SetCell {
            family: "f".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: WriteTime::Server,
            value: Bytes::from(value(row)),
        };
        let rows: Vec<_> = rows.map(|row| (key(row), vec![set(row)])).collect();
        for result in self.table(0).mutate_rows(&rows).await.unwrap() {
            result.unwrap();
        }
        self.written += ROWS;
    }

    /// Reads every row through a server.
    async fn check(&self, server: usize) {
        let rows = self.table(server).read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
        assert_eq!(rows.len(), self.written as usize);
        for (row, found) in (0..).zip(&rows) {
            let cell = found.cells.first().unwrap();
            assert!(found.key == key(row) && cell.value == value(row), "row {row} is another one");
        }
    }

    fn folder(&self, server: usize) -> PathBuf {
        self.cluster.folder().join(format!("data/{}", Node::TabletServer(server)))
    }

    /// Why not every group has all its replicas, or a server is missing.
    async fn missing(&self) -> Option<String> {
        let status = match self.cluster.status().await {
            Ok(status) => status,
            Err(error) => return Some(error.to_string()),
        };
        let health = status.health.unwrap_or_default();
        // A server that was emptied has a new id, and is listed with its old one until its replicas are replaced.
        let (up, listed) = (status.servers.iter().filter(|server| server.reachable).count(), status.servers.len());
        let is_whole = health.replicas_live == health.replicas_wanted && health.repairs == 0 && health.tablets > 0;
        let is_served = status.tablets_led == status.tablets && up == SERVERS && listed == SERVERS;
        (!is_whole || !is_served).then(|| format!("{up} of {listed} servers, {health:?}"))
    }

    async fn wait_until_whole(&self) {
        let deadline = self.runtime.clock.monotonic() + LIVE;
        while let Some(missing) = self.missing().await {
            assert!(self.runtime.clock.monotonic() < deadline, "{missing}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The folders of the replicas that a server has quarantined, by its log.
    fn quarantined(&self, server: usize) -> Vec<PathBuf> {
        let log = self.log(server);
        let lines = log.lines().filter(|line| line.contains("replica quarantined"));
        let number = |line: &str, name: &str| {
            let (_, rest) = line.split_once(name).unwrap();
            rest.chars().take_while(char::is_ascii_digit).collect::<String>()
        };
        let folder = |line: &str| format!("groups/g{}-r{}", number(line, " group="), number(line, " replica="));
        lines.map(|line| self.folder(server).join(folder(line))).collect()
    }

    /// What `ebla check` prints.
    fn found(&self) -> String {
        let arguments = ["check", "--addr", &self.cluster.addresses()[0]];
        let output = Command::new(support::ebla()).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self, server: usize) -> String {
        let log = self.cluster.folder().join(format!("logs/{}.log", Node::TabletServer(server)));
        std::fs::read_to_string(log).unwrap()
    }

    async fn wait_until_quarantined(&self, server: usize) {
        let deadline = self.runtime.clock.monotonic() + LIVE;
        while self.quarantined(server).is_empty() {
            assert!(self.runtime.clock.monotonic() < deadline, "nothing is quarantined");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until other replicas have replaced those that the server has quarantined. Returns how many they are.
    async fn wait_until_replaced(&self, server: usize) -> usize {
        let folders = self.quarantined(server);
        let deadline = self.runtime.clock.monotonic() + LIVE;
        while folders.iter().any(|folder| folder.exists()) {
            assert!(self.runtime.clock.monotonic() < deadline, "{folders:?} are not replaced");
            tokio::time::sleep(POLL).await;
        }
        folders.len()
    }

    /// Writes rows, stops a server, damages its files and starts it again.
    async fn rot(&mut self, server: usize, damage: impl FnOnce(&Path)) {
        self.write().await;
        self.cluster.stop(Node::TabletServer(server)).await.unwrap();
        damage(&self.folder(server));
        self.cluster.restart(Node::TabletServer(server)).await.unwrap();
    }

    /// Kills each of the other servers, and reads everything without it.
    async fn lose_others(&mut self, server: usize) {
        for lost in (0..SERVERS).filter(|other| *other != server) {
            self.wait_until_whole().await;
            self.cluster.kill(Node::TabletServer(lost)).await.unwrap();
            self.check(server).await;
            self.cluster.restart(Node::TabletServer(lost)).await.unwrap();
            self.cluster.wait_ready(&[Node::TabletServer(lost)]).await.unwrap();
        }
        self.wait_until_whole().await;
        self.check(server).await;
    }
}

fn is_table(name: &str) -> bool {
    name.ends_with(".sst")
}

#[test]
fn rot_on_one_server_and_the_loss_of_each_other_lose_no_row() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let mut run = Run::start().await;

        run.rot(0, |folder| files(&folder.join("log"), &|_name| true).iter().for_each(|file| damage(file))).await;
        run.cluster.wait_ready(&[Node::TabletServer(0)]).await.unwrap();
        assert!(run.wait_until_replaced(0).await > 0, "the damage of the log was not found");
        run.lose_others(0).await;

        run.rot(2, |folder| {
            let group = largest(files(&folder.join("groups"), &is_table));
            let manifests = files(group.parent().unwrap(), &|name| name.starts_with("MANIFEST"));
            manifests.iter().for_each(|file| damage(file));
        })
        .await;
        run.cluster.wait_ready(&[Node::TabletServer(2)]).await.unwrap();
        assert_eq!(run.wait_until_replaced(2).await, 1, "the damage of the manifest was not found");
        run.lose_others(2).await;

        run.rot(0, |folder| damage(&folder.join("registry"))).await;
        let refused = run.cluster.wait_ready(&[Node::TabletServer(0)]).await.unwrap_err().to_string();
        assert!(refused.contains("registry") && refused.contains("start with an empty one"), "{refused}");
        // As the operator does: docs/operate/troubleshooting.md.
        std::fs::remove_dir_all(run.folder(0)).unwrap();
        run.cluster.restart(Node::TabletServer(0)).await.unwrap();
        run.cluster.wait_ready(&[Node::TabletServer(0)]).await.unwrap();
        run.lose_others(0).await;

        run.rot(1, |folder| damage(&largest(files(&folder.join("groups"), &is_table)))).await;
        run.cluster.wait_ready(&[Node::TabletServer(1)]).await.unwrap();
        run.wait_until_whole().await;
        let found = run.found();
        assert!(found.contains("cannot be read: "), "{found}");
        run.wait_until_quarantined(1).await;
        assert_eq!(run.wait_until_replaced(1).await, 1, "one file was damaged");
        run.lose_others(1).await;
        let found = run.found();
        assert!(found.ends_with("nothing is wrong\n"), "{found}");
    });
}
