//! `ebla recover` with a real etcd: restored from a snapshot, empty, and later than the tablet servers.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;
use crate::support::commands::Commands;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};

/// Timeout of expected changes: leases of 10 s end first.
const LIVE: Duration = Duration::from_secs(90);

/// One cluster, whose etcd fails three times.
struct Recovered {
    cluster: ProcessCluster<Loopback>,
    commands: Commands,
    etcdctl: PathBuf,
    runtime: Runtime,
}

impl Recovered {
    async fn start(etcdctl: PathBuf) -> Self {
        let runtime = Runtime::system("recover");
        let plan = Plan { etcd: 1, masters: 1, build: Build::PyPi, ..Plan::new(support::ebla(), 3) };
        let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let address = cluster.addresses()[0].clone();
        Self { cluster, commands: Commands::new(address, runtime.clone()), etcdctl, runtime }
    }

    /// Creates a table with a row. After a recovery the servers read the new files within a second.
    async fn create(&self, table: &str, row: &str) {
        self.commands.run(&["table", "create", table, "--family", "a"]);
        self.commands.run_until_success(&["row", "set", table, row, "a:q=value"]).await;
    }

    fn has_row(&self, table: &str, row: &str) -> bool {
        let read = self.commands.output(&["row", "get", table, row, "--timeout", "10s"]);
        read.status.success() && String::from_utf8_lossy(&read.stdout).contains("value")
    }

    fn tables(&self) -> Vec<String> {
        self.commands.run(&["table", "list"]).lines().map(str::to_owned).collect()
    }

    fn etcdctl(&self, arguments: &[&str]) {
        let mut command = Command::new(&self.etcdctl);
        command.env("ETCDCTL_API", "3").args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn etcd_folder(&self) -> PathBuf {
        self.cluster.folder().join("data/etcd-0")
    }

    /// Replaces etcd's folder by what `fill` makes of its path.
    async fn replace_etcd(&mut self, fill: impl FnOnce(&Self, &Path)) {
        self.cluster.kill(Node::Etcd(0)).await.unwrap();
        let folder = self.etcd_folder();
        std::fs::remove_dir_all(&folder).unwrap();
        fill(self, &folder);
        self.cluster.restart(Node::Etcd(0)).await.unwrap();
        self.cluster.wait_ready(&[Node::Etcd(0)]).await.unwrap();
    }

    /// Recovers after a dry run, and waits until the cluster is healthy. Returns what the dry run has shown.
    async fn recover(&mut self) -> String {
        let planned = self.commands.run(&["recover", "--dry-run"]);
        assert!(planned.contains("nothing was changed"), "{planned}");
        let done = self.commands.run(&["recover"]);
        assert!(done.contains("done:"), "{done}");
        self.cluster.wait_healthy().await.unwrap();
        self.commands.wait_for_status("healthy").await;
        planned
    }

    async fn a_snapshot(&mut self) {
        self.create("before", "apple").await;
        self.create("deleted", "apple").await;
        let snapshot = self.cluster.folder().join("snapshot.db").display().to_string();
        let endpoint = self.cluster.etcd_endpoints()[0].clone();
        self.etcdctl(&["--endpoints", &endpoint, "snapshot", "save", &snapshot]);
        self.create("after", "pear").await;
        self.commands.run(&["table", "delete", "deleted", "--yes"]);
        let peer = format!("{}:2380", endpoint.rsplit_once(':').unwrap().0);
        self.replace_etcd(|run, folder| {
            let (folder, members) = (folder.display().to_string(), format!("m0={peer}"));
            let place = ["--data-dir", &folder, "--name", "m0", "--initial-cluster", &members];
            let arguments =
                [&["snapshot", "restore", &snapshot][..], &place, &["--initial-advertise-peer-urls", &peer]];
            run.etcdctl(&arguments.concat());
        })
        .await;
        self.commands.wait_for_status("ebla recover").await;
        assert!(self.has_row("before", "apple"), "reads continue");
        let refused = self.commands.output(&["table", "create", "refused", "--family", "a"]);
        assert_eq!(refused.status.code(), Some(5));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("ebla recover --dry-run"), "{refused:?}");
        let planned = self.recover().await;
        assert!(planned.contains("tables/after") && planned.contains("delete table"), "{planned}");
        assert!(self.has_row("before", "apple") && self.has_row("after", "pear"));
        let deadline = self.runtime.clock.monotonic() + LIVE;
        while self.tables() != ["after", "before"] {
            assert!(self.runtime.clock.monotonic() < deadline, "{:?}", self.tables());
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn an_empty_etcd(&mut self) {
        self.replace_etcd(|_run, _folder| {}).await;
        self.commands.wait_for_status("waiting for tablet servers: 0 of 3").await;
        assert!(self.has_row("after", "pear"), "reads continue");
        let planned = self.recover().await;
        assert!(planned.contains("tables/before") && planned.contains("write the record of cluster"), "{planned}");
        assert!(self.has_row("before", "apple") && self.has_row("after", "pear"));
        self.create("third", "fig").await;
    }

    /// The folders of all tablet servers are replaced by older copies.
    async fn an_etcd_that_is_too_new(&mut self) {
        let folders: Vec<PathBuf> =
            (0..3).map(|number| self.cluster.folder().join(format!("data/{}", Node::TabletServer(number)))).collect();
        let copy = |from: &Path, to: &Path| {
            assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
        };
        for (number, folder) in folders.iter().enumerate() {
            self.cluster.stop(Node::TabletServer(number)).await.unwrap();
            copy(folder, &folder.with_extension("copy"));
        }
        for number in 0..3 {
            self.cluster.restart(Node::TabletServer(number)).await.unwrap();
        }
        self.cluster.wait_healthy().await.unwrap();
        self.create("fourth", "quince").await;
        for (number, folder) in folders.iter().enumerate() {
            self.cluster.stop(Node::TabletServer(number)).await.unwrap();
            std::fs::remove_dir_all(folder).unwrap();
            std::fs::rename(folder.with_extension("copy"), folder).unwrap();
        }
        for number in 0..3 {
            self.cluster.restart(Node::TabletServer(number)).await.unwrap();
        }
        self.commands.wait_for_status("healthy").await;
        let shown = self.commands.run(&["recover"]);
        assert!(shown.contains("lacks nothing"), "{shown}");
        assert!(shown.contains("tables/fourth) has no tablet on any server"), "{shown}");
        assert_eq!(self.tables(), ["after", "before", "fourth", "third"], "nothing is deleted");
        assert!(self.has_row("before", "apple") && self.has_row("third", "fig"));
        self.commands.run(&["table", "delete", "fourth", "--yes"]);
        self.create("fifth", "plum").await;
        assert!(self.has_row("fifth", "plum"));
    }
}

#[test]
fn an_etcd_that_is_restored_or_empty_or_too_new_is_recovered() {
    let etcdctl = match Build::PyPi.program() {
        Ok(etcd) => etcd.with_file_name("etcdctl"),
        Err(skip) => {
            eprintln!("skipped: {skip}");
            return;
        }
    };
    support::block_on(async {
        let mut run = Recovered::start(etcdctl).await;
        run.a_snapshot().await;
        run.an_empty_etcd().await;
        run.an_etcd_that_is_too_new().await;
    });
}
