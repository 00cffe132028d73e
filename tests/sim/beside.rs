//! Groups without a majority beside healthy ones: two of four servers are down, and what they have in common waits, but nothing else.
//!
//! ```text
//!   choose   two servers that have two voters of some groups together, but not of METADATA's
//!   outage   both are down; hundreds of writes to their groups wait at a server that is up
//!   check    the same server writes a row of each other group in time
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebla_client::{Client, Table};
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId};
use ebla_runtime::Runtime;
use ebla_tests::cluster::Node;
use ebla_tests::faults::fault::{Fault, FaultKind, Target};

use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, key, wait_for};
use crate::quiet;
use crate::time::{self, HostTime};

/// How long both servers are down.
const OUTAGE: Duration = Duration::from_secs(20);
/// Time for elections, and until the server that is up knows the new leaders.
const ELECTIONS: Duration = Duration::from_secs(5);
/// How long the healthy groups are checked.
const CHECKED: Duration = Duration::from_secs(10);
/// Timeout of a write to a healthy group.
const HEALTHY: Duration = Duration::from_secs(2);
/// Writes that wait at once.
const WAITING: usize = 400;
/// Between two attempts to list the tablets, and until both servers are down.
const PAUSE: Duration = Duration::from_millis(200);

/// What becomes of the tablets while two servers are down.
struct Outage {
    /// Both servers, by their numbers.
    down: [usize; 2],
    /// A row of each tablet whose group has no majority then, and of each other tablet.
    stuck: Vec<String>,
    healthy: Vec<String>,
}

/// The servers that the client wants to be down now, as faults.
pub(crate) fn due(cluster: &SimCluster) -> Vec<Fault> {
    let down = cluster.outage.lock().take();
    let fault = |server| Fault::new(FaultKind::Kill, Target::Node(Node::TabletServer(server)), OUTAGE);
    down.into_iter().flatten().map(fault).collect()
}

/// The client's host.
pub(crate) async fn client(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("neighbour", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let tablets = tablets(&cluster, &runtime).await;
    match choose(&cluster, &tablets) {
        Some(outage) => check(&cluster, &runtime, &outage).await,
        None => wrong(&cluster, "no two servers are a majority of some groups only".to_owned()),
    }
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note("neighbour", "drained", "");
    Ok(())
}

/// A row of each tablet, and its group.
async fn tablets(cluster: &SimCluster, runtime: &Runtime) -> Vec<(String, GroupId)> {
    let list = async || {
        let client = Client::connect_cluster(&any_address(cluster, &runtime.rng), runtime.clone()).await?;
        client.tablets(&quiet::table_name()).await
    };
    loop {
        if let Ok(Ok(listed)) = tokio::time::timeout(HEALTHY, list()).await {
            let groups = listed.into_iter().map(|(tablet, _leader)| tablet.group).enumerate();
            return groups.map(|(tablet, group)| (quiet::first_row(tablet), group)).collect();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The two servers that divide the tablets most evenly; `None`: no two leave some of them with a majority and some without.
fn choose(cluster: &SimCluster, tablets: &[(String, GroupId)]) -> Option<Outage> {
    let voters = voters(cluster);
    let has_majority_on = |group: &GroupId, down: [usize; 2]| {
        voters.get(group).is_some_and(|voters| down.iter().all(|server| voters.contains(server)))
    };
    let servers = 0..cluster.servers.len();
    let pairs = servers.clone().flat_map(|one| servers.clone().skip(one + 1).map(move |other| [one, other]));
    let outages = pairs.filter(|down| !has_majority_on(&GroupId::METADATA, *down)).map(|down| {
        let rows = |is_stuck: bool| {
            let chosen = tablets.iter().filter(|(_row, group)| has_majority_on(group, down) == is_stuck);
            chosen.map(|(row, _group)| row.clone()).collect()
        };
        Outage { down, stuck: rows(true), healthy: rows(false) }
    });
    let smaller_part = |outage: &Outage| outage.stuck.len().min(outage.healthy.len());
    outages.max_by_key(smaller_part).filter(|outage| smaller_part(outage) > 0)
}

/// The servers of the voters of each group, by their numbers.
fn voters(cluster: &SimCluster) -> BTreeMap<GroupId, BTreeSet<usize>> {
    let running: Vec<_> =
        cluster.servers.iter().enumerate().filter_map(|(number, host)| Some((number, host.hosted()?))).collect();
    let number_of =
        |id: ServerId| running.iter().find(|(_number, hosted)| hosted.server() == id).map(|(number, _)| *number);
    let mut voters = BTreeMap::new();
    for group in running.iter().flat_map(|(_number, hosted)| hosted.groups()).filter(|group| group.is_leader()) {
        let membership = group.raft().status().membership;
        let of_group = membership.replicas().filter(|replica| membership.is_voter(replica.replica));
        voters.insert(group.id(), of_group.filter_map(|replica| number_of(replica.server)).collect());
    }
    voters
}

/// Takes both servers down, lets writes to the groups without a majority wait, and checks the others.
async fn check(cluster: &SimCluster, runtime: &Runtime, outage: &Outage) {
    *cluster.outage.lock() = Some(outage.down);
    cluster.note("neighbour", "stuck-tablets", &outage.stuck.len().to_string());
    cluster.note("neighbour", "healthy-tablets", &outage.healthy.len().to_string());
    let up = (0..cluster.servers.len()).find(|server| !outage.down.contains(server)).unwrap();
    let table = Client::endpoint(&cluster.servers[up].address(), runtime.clone()).table(&quiet::table_name());
    tokio::time::sleep(PAUSE).await;
    let waiting = (0..WAITING).map(|number| {
        let (table, row) = (table.with_timeout(ELECTIONS + CHECKED), outage.stuck[number % outage.stuck.len()].clone());
        async move { write(&table, &row).await }
    });
    let checked = async {
        tokio::time::sleep(ELECTIONS).await;
        let end = time::elapsed() + CHECKED;
        let table = table.with_timeout(HEALTHY);
        while time::elapsed() < end {
            for row in &outage.healthy {
                match write(&table, row).await {
                    Ok(()) => cluster.trace.lock().count(time::elapsed(), "neighbour", "healthy-write", row),
                    Err(error) => {
                        wrong(cluster, format!("row {row} of a healthy group at {:?}: {error}", time::elapsed()))
                    }
                }
            }
        }
    };
    let (waited, ()) = tokio::join!(futures::future::join_all(waiting), checked);
    for outcome in waited {
        match outcome {
            Ok(()) => wrong(cluster, "a write to a group without a majority was acknowledged".to_owned()),
            Err(error) => {
                cluster.trace.lock().count(time::elapsed(), "neighbour", "stuck-write", error.reason.name());
            }
        }
    }
}

fn wrong(cluster: &SimCluster, what: String) {
    cluster.history.lock().wrong.push(format!("beside: {what}"));
}

/// Writes the value that the row has already.
async fn write(table: &Table, row: &str) -> Result<(), Error> {
    table.mutate_row(&key(row), &[quiet::value_of(row)]).await
}
