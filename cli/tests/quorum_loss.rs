//! `ebla tablet recover`: two of three tablet servers are lost permanently, and everything is recovered from the third one.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use std::path::{Path, PathBuf};
use std::process::Output;

use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use serde_json::Value;

use crate::support;
use crate::support::commands::Commands;

struct Lost {
    cluster: ProcessCluster<Loopback>,
    commands: Commands,
}

impl Lost {
    async fn start(build: Build) -> Self {
        let runtime = Runtime::system("quorum-loss");
        let plan = Plan { etcd: 1, masters: 1, build, ..Plan::new(support::ebla(), 3) };
        let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
        let address = cluster.addresses()[0].clone();
        Self { cluster, commands: Commands::new(address, runtime) }
    }

    /// The number of the tablet server with the first address.
    fn first_server(&self) -> u64 {
        let listed: Value = serde_json::from_str(&self.commands.run(&["server", "list", "-o", "json"])).unwrap();
        let own = listed.as_array().unwrap().iter().find(|server| server["bigtable"] == self.commands.address());
        own.unwrap()["id"].as_u64().unwrap()
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.cluster.folder().join(format!("data/{}", Node::TabletServer(number)))
    }

    fn has_rows(&self) -> bool {
        let read = self.commands.output(&["row", "scan", "fruit", "--timeout", "20s"]);
        let shown = String::from_utf8_lossy(&read.stdout).into_owned();
        read.status.success() && ["apple", "pear", "plum"].iter().all(|row| shown.contains(row))
    }
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn tablets_that_lost_two_of_three_replicas_are_recovered_from_the_last_one() {
    let build = Build::PyPi;
    if let Err(skip) = build.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let mut lost = Lost::start(build).await;
        lost.commands.run(&["table", "create", "fruit", "--family", "a", "--split", "m"]);
        for row in ["apple", "pear", "plum"] {
            lost.commands.run(&["row", "set", "fruit", row, "a:q=value"]);
        }
        let from = lost.first_server().to_string();
        let (dry_run, execute) = (
            ["tablet", "recover", "--from", &from, "--dry-run"],
            ["tablet", "recover", "--from", &from, "--accept-data-loss"],
        );
        assert!(refusal(&lost.commands.output(&execute)).contains("has lost its majority"), "all replicas live");
        for number in [1, 2] {
            lost.cluster.kill(Node::TabletServer(number)).await.unwrap();
        }
        assert!(refusal(&lost.commands.output(&execute)).contains("registered"), "they are registered and may return");
        // A new master has not read METADATA, and cannot.
        lost.cluster.kill(Node::Master(0)).await.unwrap();
        lost.cluster.restart(Node::Master(0)).await.unwrap();
        let planned = lost.commands.run_until_success(&dry_run).await;
        assert!(planned.contains("group 1 (") && planned.contains("nothing was changed"), "{planned}");
        assert!(planned.contains("later ones are lost"), "{planned}");
        let done = lost.commands.run(&execute);
        assert!(done.contains("are recorded as lost"), "{done}");
        assert!(lost.has_rows());
        lost.commands.run(&["row", "set", "fruit", "quince", "a:q=value"]);
        assert!(
            refusal(&lost.commands.output(&execute)).contains("has lost its majority"),
            "nothing is left to recover"
        );

        // A lost server with its folder does not join again; with an empty one it is a new server.
        let node = Node::TabletServer(1);
        lost.cluster.restart(node).await.unwrap();
        let ended = lost.cluster.wait_ready(&[node]).await.unwrap_err().to_string();
        assert!(ended.contains("was given up as lost"), "{ended}");
        for number in [1, 2] {
            std::fs::remove_dir_all(Path::new(&lost.folder(number))).unwrap();
            lost.cluster.restart(Node::TabletServer(number)).await.unwrap();
        }
        lost.cluster.wait_healthy().await.unwrap();
        lost.commands.wait_for_status("healthy").await;
        lost.cluster.kill(Node::TabletServer(1)).await.unwrap();
        assert!(lost.has_rows(), "there are three replicas again");
    });
}
