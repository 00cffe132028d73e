//! A rolling upgrade from the previous release under a verifying load: each process is restarted with the program under test, then with the
//! previous program again, then forward. No request fails, nothing acknowledged is lost and nothing is applied twice. Until a later
//! cluster version is active, what needs it is refused; afterwards the previous program is.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebla_client::Client;
use ebla_client::admin::{ExecutionMode, VersionHold};
use ebla_model::error::Reason;
use ebla_model::quota::QuotaLimits;
use ebla_model::schema::TableName;
use ebla_proto::operate::UpgradeStatusReply;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster, Release};
use ebla_workload::verify::{Endpoint, Load, Plan as LoadPlan, Running, create_table};

const MASTERS: usize = 2;
const TABLET_SERVERS: usize = 3;
/// Tablets of the load.
const TABLETS: u32 = 4;
/// Writes acknowledged after each restart.
const BETWEEN: u64 = 200;
/// For how long all must support a version before it becomes active.
const UPGRADE_DELAY: Duration = Duration::from_secs(2);
/// Timeout of a change that the cluster makes by itself.
const CHANGE_MAX: Duration = Duration::from_secs(90);

#[test]
fn each_process_is_upgraded_and_downgraded_under_load_without_a_failed_request() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    let previous = match previous_release() {
        Ok(program) => program,
        Err(skip) => {
            println!("skipped: {skip}");
            return;
        }
    };
    support::block_on(upgrade(&previous));
}

/// The program of the previous release, which `make previous` has built.
fn previous_release() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/previous-release.sh");
    let output = Command::new(script).arg("path").output().map_err(|error| error.to_string())?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() { Ok(path) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

async fn upgrade(previous: &Path) {
    let runtime = Runtime::system("upgrade");
    let plan = Plan::new(&previous.display().to_string(), TABLET_SERVERS);
    assert_eq!(plan.masters, MASTERS);
    let cluster = ProcessCluster::start(plan, Loopback::claim().unwrap(), &runtime).await.unwrap();
    let name = TableName::from_parts("test", "test", "verified").unwrap();
    create_table(&cluster.addresses()[0], &name, TABLETS, &runtime).await.unwrap();
    let load_plan = LoadPlan { writers: 6, readers: 2, slots: TABLETS, ..LoadPlan::default() };
    let mut load = Load::new(load_plan, &runtime);
    let mut endpoints = Vec::new();
    for number in 0..TABLET_SERVERS {
        let client = Client::connect_any(&cluster.addresses(), runtime.clone()).await.unwrap();
        endpoints.push(Endpoint { name: format!("client {number}"), store: client.table(&name) });
    }
    let running = load.start(&endpoints).await.unwrap();
    let delay = UPGRADE_DELAY.as_secs().to_string();
    let old = cluster.release();
    let new = cluster.add_release("new", Path::new(support::ebla()), &["--upgrade-delay", &delay]).unwrap();
    let mut rolling = Rolling { cluster, running: &running, name, runtime: runtime.clone() };
    rolling.wait_for_writes().await;

    // Forward; the masters first, so that the version can be held.
    rolling.restart_masters(&new).await;
    assert!(
        rolling.admin().await.hold_upgrade(ExecutionMode::Execute, VersionHold::Hold).await.unwrap().active_version
            == 1
    );
    rolling.restart_servers(&new, 0..1).await;
    let status = rolling.status().await;
    assert_eq!((status.active_version, status.next_version, status.held), (1, 2, true));
    assert_eq!(status.processes.len(), MASTERS + TABLET_SERVERS, "{status:?}");
    let waits_for_servers =
        status.obstacles.iter().filter(|obstacle| obstacle.contains(", which supports versions 1: restart it"));
    assert_eq!(waits_for_servers.count(), TABLET_SERVERS - 1, "{status:?}");
    rolling.refuse_quota().await;
    rolling.restart_servers(&new, 1..TABLET_SERVERS).await;
    tokio::time::sleep(3 * UPGRADE_DELAY).await;
    let status = rolling.status().await;
    assert_eq!((status.active_version, status.obstacles.len()), (1, 1), "only the hold is left: {status:?}");
    rolling.refuse_quota().await;

    // Back: the servers first, as the masters serve the hold.
    rolling.restart_servers(&old, 0..TABLET_SERVERS).await;
    rolling.restart_masters(&old).await;

    // Forward again. The hold is still recorded.
    rolling.restart_masters(&new).await;
    rolling.restart_servers(&new, 0..TABLET_SERVERS).await;
    assert!(rolling.status().await.held);
    rolling.admin().await.hold_upgrade(ExecutionMode::Execute, VersionHold::Continue).await.unwrap();
    rolling.wait_for_version(2).await;
    let limits = QuotaLimits { cells: Some(1 << 40), ..QuotaLimits::default() };
    rolling.admin().await.set_quota(&rolling.name, None, limits).await.unwrap();
    rolling.wait_for_writes().await;

    // There is no way back now: the previous program says why it cannot join, and the load goes on without that server.
    rolling.refuse_old(Node::TabletServer(0), &old, &new).await;
    rolling.refuse_old_master(&old, &new).await;
    rolling.restart_servers(&new, 0..1).await;

    load.finish(running).await;
    let report = load.check(&endpoints).await.unwrap();
    println!("{}", report.text());
    assert!(report.is_good(), "{}", report.text());
    assert!(report.counts.errors.is_empty(), "requests failed\n{}", report.text());
    assert_eq!((report.counts.failed, report.counts.unknown), (0, 0), "writes failed\n{}", report.text());
}

/// A cluster whose processes are restarted one after the other.
struct Rolling<'a> {
    cluster: ProcessCluster<Loopback>,
    running: &'a Running,
    name: TableName,
    runtime: Runtime,
}

impl Rolling<'_> {
    async fn wait_for_writes(&self) {
        let wanted = self.running.acknowledged() + BETWEEN;
        let written = async {
            while self.running.acknowledged() < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(CHANGE_MAX, written).await.unwrap();
    }

    async fn restart(&mut self, node: Node, release: &Release) {
        self.cluster.set_release(node, release).unwrap();
        self.cluster.stop(node).await.unwrap();
        self.cluster.restart(node).await.unwrap();
        self.cluster.wait_healthy().await.unwrap();
        self.wait_for_writes().await;
    }

    async fn restart_servers(&mut self, release: &Release, servers: std::ops::Range<usize>) {
        for number in servers {
            self.restart(Node::TabletServer(number), release).await;
        }
    }

    /// The standbys first.
    async fn restart_masters(&mut self, release: &Release) {
        let active = self.cluster.find(Role::ActiveMaster).await.unwrap();
        for node in (0..MASTERS).map(Node::Master).filter(|node| *node != active) {
            self.restart(node, release).await;
        }
        self.restart(active, release).await;
    }

    async fn admin(&self) -> ebla_client::Admin {
        let client = Client::connect_any(&self.cluster.addresses(), self.runtime.clone()).await.unwrap();
        client.admin()
    }

    async fn status(&self) -> UpgradeStatusReply {
        self.admin().await.upgrade_status().await.unwrap()
    }

    /// Returns when this version is active.
    async fn wait_for_version(&self, version: u32) {
        let end = self.runtime.clock.monotonic() + CHANGE_MAX;
        loop {
            let status = self.status().await;
            if status.active_version == version {
                return;
            }
            assert!(self.runtime.clock.monotonic() < end, "version {version} does not become active: {status:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A quota needs version 2.
    async fn refuse_quota(&self) {
        let limits = QuotaLimits { cells: Some(1 << 40), ..QuotaLimits::default() };
        let refused = self.admin().await.set_quota(&self.name, None, limits).await.unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(
            refused.message.starts_with("quotas need cluster version 2, and version 1 is active until"),
            "{refused}"
        );
    }

    /// Starts the previous program, which must say why it does not join, and stops it. Leaves the node with the new one.
    async fn refuse_old(&mut self, node: Node, old: &Release, new: &Release) {
        self.cluster.set_release(node, old).unwrap();
        self.cluster.stop(node).await.unwrap();
        self.cluster.restart(node).await.unwrap();
        self.wait_for_refusal(node).await;
        self.wait_for_writes().await;
        self.cluster.set_release(node, new).unwrap();
    }

    /// The standby becomes one of the previous release, and the active one stops.
    async fn refuse_old_master(&mut self, old: &Release, new: &Release) {
        let active = self.cluster.find(Role::ActiveMaster).await.unwrap();
        let standby = (0..MASTERS).map(Node::Master).find(|node| *node != active).unwrap();
        self.cluster.set_release(standby, old).unwrap();
        self.cluster.stop(standby).await.unwrap();
        self.cluster.restart(standby).await.unwrap();
        self.cluster.stop(active).await.unwrap();
        self.wait_for_refusal(standby).await;
        self.cluster.set_release(standby, new).unwrap();
        self.cluster.stop(standby).await.unwrap();
        for node in [active, standby] {
            self.cluster.restart(node).await.unwrap();
        }
    }

    async fn wait_for_refusal(&self, node: Node) {
        const REASON: &str = "cluster record has version 2, this release supports versions up to 1";
        let end = self.runtime.clock.monotonic() + CHANGE_MAX;
        while !self.cluster.read_log(node).unwrap().contains(REASON) {
            assert!(self.runtime.clock.monotonic() < end, "{node} does not say why it cannot join");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
