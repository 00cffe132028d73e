//! How evenly bytes and load are spread over the servers while two join, and how long a drain takes afterwards, all under load.
//!
//! Five servers, 200 tablets of different sizes and loads. What a server has is the sum over its replicas: their bytes and writes; and over the
//! tablets that it leads: their reads and writes. The leaders report these values.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_client::admin::ExecutionMode;
use ebla_model::id::ServerId;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Node};

use crate::probes::Probes;
use crate::rows::Rows;
use crate::{Arguments, Outcome, start};

const SERVERS: usize = 5;
const JOINING: usize = 2;
const TABLETS: u64 = 200;
/// The sizes of tablets, in turn.
const KILOBYTES: [u64; 7] = [100, 6_000, 300, 2_000, 100, 1_000, 4_000];
/// The pauses of their clients in milliseconds, in turn.
const PAUSES_MS: [u64; 5] = [20, 320, 40, 160, 80];
/// The loads are averages over some seconds.
const WARM_UP: Duration = Duration::from_secs(40);
/// Between two measurements.
const STEP: Duration = Duration::from_secs(10);
/// The goal: within this part of the mean.
const GOAL_PERCENT: f64 = 15.0;
/// How long the balance may take.
const BALANCED_MAX: Duration = Duration::from_secs(300);
/// Ends after this many measurements within the goal.
const EVEN_STEPS: u32 = 4;
/// The timeout of a drain.
const DRAINED_MAX: Duration = Duration::from_secs(300);

/// What a server has.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    bytes: f64,
    writes: f64,
    requests: f64,
}

pub(crate) async fn measure(arguments: &Arguments) -> Outcome<()> {
    let runtime = Runtime::system("spread");
    let options = ["--merge-bytes", "0"];
    let mut cluster = start(arguments, SERVERS, &options, Some(4 << 30), &runtime).await?;
    // The last server is drained in the end, and no client depends on it.
    let addresses: Vec<String> = (0..SERVERS - 1).map(|number| cluster.public_address(number)).collect();
    let rows = Rows::create("spread", &addresses, TABLETS, &runtime).await?;
    for (tablet, kilobytes) in (0..TABLETS).zip(KILOBYTES.iter().cycle()) {
        rows.fill(tablet, *kilobytes).await?;
    }
    let pauses = PAUSES_MS.iter().cycle().map(|millis| Duration::from_millis(*millis));
    let probes = Probes::start(&rows, (0..TABLETS).zip(pauses), &runtime);
    tokio::time::sleep(WARM_UP).await;
    println!(
        "| s | servers | groups | bytes, furthest from the mean, % | writes | requests to leaders |\n|---|---|---|---|---|---|"
    );
    let shares = measured(&rows, SERVERS).await?;
    print(Duration::ZERO, SERVERS, &rows, &shares).await?;
    for _ in 0..JOINING {
        cluster.join().await?;
    }
    let began = runtime.clock.monotonic();
    let elapsed = || runtime.clock.monotonic().saturating_sub(began);
    let (mut reached, mut steps) = (None, 0);
    while elapsed() < BALANCED_MAX && steps < EVEN_STEPS {
        tokio::time::sleep(STEP).await;
        let shares = measured(&rows, SERVERS + JOINING).await?;
        print(elapsed(), SERVERS + JOINING, &rows, &shares).await?;
        let is_even = furthest(&shares).into_iter().all(|percent| percent <= GOAL_PERCENT);
        (reached, steps) = if is_even { (reached.or_else(|| Some(elapsed())), steps + 1) } else { (None, 0) };
    }
    match reached {
        Some(reached) => println!("\nall within {GOAL_PERCENT} % from {} s on", reached.as_secs()),
        None => println!("\nnot all within {GOAL_PERCENT} % at the end"),
    }
    let last = cluster.server_id(SERVERS - 1).await?;
    let began = runtime.clock.monotonic();
    rows.admin.drain_server(ExecutionMode::Execute, last).await?;
    while !rows.admin.drain_server(ExecutionMode::DryRun, last).await?.replicas.is_empty() {
        if runtime.clock.monotonic().saturating_sub(began) > DRAINED_MAX {
            return Err(format!("server {last} is not empty after {DRAINED_MAX:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("drained in {} ms", runtime.clock.monotonic().saturating_sub(began).as_millis());
    cluster.stop(Node::TabletServer(SERVERS - 1)).await?;
    let removed = async {
        while let Err(error) = rows.admin.remove_server(ExecutionMode::Execute, last).await {
            println!("not removed yet: {error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), removed).await?;
    let longest = probes.longest_since(Duration::ZERO).into_values().max().unwrap_or_default();
    let counts = probes.stop().await;
    println!(
        "removed; {} requests succeeded, failed: {:?}; the longest took {} ms",
        counts.succeeded,
        counts.failed,
        longest.as_millis()
    );
    Ok(())
}

/// What each server has; of those that have something, or none yet.
async fn measured(rows: &Rows, servers: usize) -> Outcome<Vec<Shares>> {
    let loads = rows.admin.tablet_loads(&rows.name).await?;
    let mut shares: BTreeMap<ServerId, Shares> = BTreeMap::new();
    for (tablet, leader) in rows.client.tablets(&rows.name).await? {
        let Some((bytes, load)) = loads.get(&tablet.tablet) else { continue };
        for replica in tablet.membership.replicas() {
            let of = shares.entry(replica.server).or_default();
            of.bytes += *bytes as f64;
            of.writes += load.writes_per_second as f64;
        }
        if let Some(leader) = leader {
            shares.entry(leader.server).or_default().requests += load.per_second() as f64;
        }
    }
    let mut shares: Vec<Shares> = shares.into_values().collect();
    shares.resize(servers.max(shares.len()), Shares::default());
    Ok(shares)
}

/// The largest distance of a server from the mean of bytes, writes and requests, in percent of it.
fn furthest(shares: &[Shares]) -> [f64; 3] {
    let of = |value: fn(&Shares) -> f64| {
        let mean = shares.iter().map(value).sum::<f64>() / shares.len() as f64;
        let distances = shares.iter().map(|one| (value(one) / mean - 1.0).abs() * 100.0);
        distances.fold(0.0, f64::max)
    };
    [of(|one| one.bytes), of(|one| one.writes), of(|one| one.requests)]
}

async fn print(at: Duration, servers: usize, rows: &Rows, shares: &[Shares]) -> Outcome<()> {
    let groups = rows.admin.groups().await?.len();
    let [bytes, writes, requests] = furthest(shares);
    println!("| {} | {servers} | {groups} | {bytes:.0} | {writes:.0} | {requests:.0} |", at.as_secs());
    Ok(())
}
