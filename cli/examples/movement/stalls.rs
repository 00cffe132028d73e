//! The longest request while a tablet moves, is split or merged, or while leaderships and replicas leave a server.

use std::time::Duration;

use ebla_client::admin::ExecutionMode;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::network::Loopback;
use ebla_tests::process::ProcessCluster;

use crate::probes::Probes;
use crate::rows::{Rows, row_key};
use crate::{Arguments, Outcome, start};

/// Four, so that one can be drained.
const SERVERS: usize = 4;
/// Tablets that nothing happens to, besides the others.
const OTHERS: u64 = 6;
/// Between a write and a read of a client, and the next ones.
const PAUSE: Duration = Duration::from_millis(10);
/// Before and after each change, so that requests of earlier ones are over.
const SETTLE: Duration = Duration::from_millis(700);
/// How long the load runs without a change, for comparison.
const QUIET: Duration = Duration::from_secs(10);
/// Leaderships are balanced within this time after a server has returned.
const BALANCED: Duration = Duration::from_secs(20);
/// The timeout of a drain.
const DRAINED_MAX: Duration = Duration::from_secs(300);

/// One measured change.
struct Change {
    took: Duration,
    /// The longest request to the tablet of the change.
    own: Duration,
    /// The longest request to any other tablet.
    others: Duration,
}

/// The cluster, its load, and what happens to it.
struct Stalls {
    rows: Rows,
    probes: Probes,
    runtime: Runtime,
    sizes: Vec<u64>,
}

pub(crate) async fn measure(arguments: &Arguments) -> Outcome<()> {
    let runtime = Runtime::system("stalls");
    let mut cluster = start(arguments, SERVERS, &["--merge-bytes", "0"], Some(4 << 30), &runtime).await?;
    let sizes = arguments.megabytes.clone();
    let tablets = sizes.len() as u64 + OTHERS;
    // The last server is drained, and no client depends on it.
    let addresses: Vec<String> = (0..SERVERS - 1).map(|number| cluster.public_address(number)).collect();
    let rows = Rows::create("stalls", &addresses, tablets, &runtime).await?;
    for (tablet, megabytes) in sizes.iter().enumerate() {
        rows.fill(tablet as u64, megabytes * 1_000).await?;
    }
    let probes = Probes::start(&rows, (0..tablets).map(|tablet| (tablet, PAUSE)), &runtime);
    let stalls = Stalls { rows, probes, runtime, sizes };
    println!(
        "| change | MB | times | took, median ms | longest request to the tablet, median and maximum ms | to others, maximum ms |"
    );
    println!("|---|---|---|---|---|---|");
    let rest = async || {
        tokio::time::sleep(QUIET).await;
        Ok(())
    };
    let quiet = stalls.change(None, rest).await?;
    print("none, 10 s", None, &[quiet]);
    stalls.moves(arguments.times).await?;
    stalls.splits_and_merges(arguments.times).await?;
    stalls.servers(&mut cluster).await?;
    let counts = stalls.probes.stop().await;
    println!("\n{} requests succeeded, failed: {:?}", counts.succeeded, counts.failed);
    Ok(())
}

impl Stalls {
    /// Measures a change of the tablet of this number, or of all tablets.
    async fn change(&self, tablet: Option<u64>, act: impl AsyncFnOnce() -> Outcome<()>) -> Outcome<Change> {
        tokio::time::sleep(SETTLE).await;
        let began = self.runtime.clock.monotonic();
        act().await?;
        let took = self.runtime.clock.monotonic().saturating_sub(began);
        tokio::time::sleep(SETTLE).await;
        let longest = self.probes.longest_since(began);
        let of = |own: bool| {
            let chosen = longest.iter().filter(|(number, _)| tablet.is_none_or(|tablet| tablet == **number) == own);
            chosen.map(|(_, longest)| *longest).max().unwrap_or_default()
        };
        Ok(Change { took, own: of(true), others: of(false) })
    }

    /// Moves of tablets of each size between groups.
    async fn moves(&self, times: u64) -> Outcome<()> {
        for (number, megabytes) in (0..).zip(&self.sizes) {
            let mut changes = Vec::new();
            for _ in 0..times {
                let tablet = self.rows.tablet_of(&row_key(number, 0)).await?;
                changes.push(self.change(Some(number), async || self.rows.move_away(&tablet).await).await?);
            }
            print("move to another group", Some(*megabytes), &changes);
        }
        Ok(())
    }

    /// Splits of tablets of each size; the halves are merged again, in one group and from different groups.
    async fn splits_and_merges(&self, times: u64) -> Outcome<()> {
        for (number, megabytes) in (0..).zip(&self.sizes) {
            let (mut splits, mut merges, mut moved) = (Vec::new(), Vec::new(), Vec::new());
            let at = row_key(number, megabytes * 500 + 1);
            for _ in 0..times {
                splits.push(self.split(number, &at).await?);
                merges.push(self.merge(number).await?);
                self.split(number, &at).await?;
                let left = self.rows.tablet_of(&row_key(number, 0)).await?;
                self.rows.move_away(&left).await?;
                moved.push(self.merge(number).await?);
            }
            print("split", Some(*megabytes), &splits);
            print("merge in one group", Some(*megabytes), &merges);
            print("merge from two groups", Some(*megabytes), &moved);
        }
        Ok(())
    }

    async fn split(&self, number: u64, at: &ebla_model::key::RowKey) -> Outcome<Change> {
        let act = async || {
            self.rows.admin.split(&self.rows.name, Some(at), &ebla_model::key::RowKey::EMPTY).await?;
            Ok(())
        };
        self.change(Some(number), act).await
    }

    async fn merge(&self, number: u64) -> Outcome<Change> {
        let left = self.rows.tablet_of(&row_key(number, 0)).await?.tablet;
        let act = async || {
            self.rows.admin.merge_tablets(left, None).await?;
            Ok(())
        };
        self.change(Some(number), act).await
    }

    /// Leaderships and replicas leave the last server, which is drained.
    async fn servers(&self, cluster: &mut ProcessCluster<Loopback>) -> Outcome<()> {
        let last = cluster.server_id(SERVERS - 1).await?;
        let admin = &self.rows.admin;
        let drained = async || {
            admin.drain_server(ExecutionMode::Execute, last).await?;
            let end = self.runtime.clock.monotonic() + DRAINED_MAX;
            while !admin.drain_server(ExecutionMode::DryRun, last).await?.replicas.is_empty() {
                if self.runtime.clock.monotonic() > end {
                    return Err(format!("server {last} is not empty after {DRAINED_MAX:?}").into());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(())
        };
        print("drain of a server", None, &[self.change(None, drained).await?]);
        self.transfers(cluster).await
    }
}

impl Stalls {
    /// Leaderships are transferred: away from the busiest server, which is asked to stop, and later back to it.
    async fn transfers(&self, cluster: &mut ProcessCluster<Loopback>) -> Outcome<()> {
        // Not the first one, whose address the admin calls use.
        let node = Node::TabletServer(1);
        let stopped = self.change(None, async || Ok(cluster.stop(node).await?)).await?;
        print("transfer of a server's leaderships", None, &[stopped]);
        let returned = async || {
            cluster.restart(node).await?;
            cluster.wait_ready(&[node]).await?;
            tokio::time::sleep(BALANCED).await;
            Ok(())
        };
        print("it returns, transfers back", None, &[self.change(None, returned).await?]);
        Ok(())
    }
}

fn print(what: &str, megabytes: Option<u64>, changes: &[Change]) {
    let millis = |time: Duration| time.as_millis();
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let mut took: Vec<Duration> = changes.iter().map(|change| change.took).collect();
    let mut own: Vec<Duration> = changes.iter().map(|change| change.own).collect();
    let others = changes.iter().map(|change| change.others).max().unwrap_or_default();
    let longest = own.iter().max().copied().unwrap_or_default();
    println!(
        "| {what} | {} | {} | {} | {}, {} | {} |",
        megabytes.map_or_else(|| "-".to_owned(), |megabytes| megabytes.to_string()),
        changes.len(),
        millis(median(&mut took)),
        millis(median(&mut own)),
        millis(longest),
        millis(others),
    );
}
