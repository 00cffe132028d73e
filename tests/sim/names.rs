//! The mounttable as a tenant: its servers are hosts of the simulation, which crash and are cut off like others, and its table is in
//! the simulated cluster. Clients use names through all servers meanwhile.
//!
//! ```text
//!   names          hosts of the servers, and what the clients share
//!   names/users    the clients under faults;   names/duels   pairs of calls at the same moment
//!   names/proof    the checks after all faults have ended
//! ```
//!
//! Every response is compared with [`MountHistory`]: a mount that was acknowledged, and refreshed before its deadline, is found; a
//! server whose deadline has passed is not found any more; nothing that was removed comes back.

mod duels;
mod proof;
mod users;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::Client;
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_mounttable_server::server::{Server, ServerConfig, StartError, Storage};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_tree::Error as TreeError;
use ebla_mounttable_tree::Reason as TreeReason;
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::outage::Credit;
use ebla_mounttable_tree::store::bigtable::BigtableStore;
use ebla_mounttable_tree::store::cache::{CacheOptions, STALE_TTL};
use ebla_mounttable_tree::table::TableOptions;
use ebla_runtime::Runtime;
use ebla_tests::mounts::{Lookup, Tolerance};
use ebla_workload::bench::names::session::Session;

use crate::cluster::{Phase, SimCluster, SimHost, give_up};
use crate::load::any_address;
use crate::time;

pub(crate) use proof::prove;
pub(crate) use users::client;

/// Where every server of the mounttable listens.
const PORT: u16 = 8101;
/// Its superuser.
const SUPERUSER: &str = "server";
/// Its table.
const TABLE: &str = "names";
/// Its tablets at first.
const TABLETS: u16 = 2;
/// The age from which empty nodes are removed: short, so that removals and mounts meet.
const GRACE: Duration = Duration::from_millis(300);
/// Between two sweeps of the table.
const SWEEP: Duration = Duration::from_secs(5);
/// The age of the rows of a lookup, at most: the lifetime of entries in a server's cache, and of the reads in flight that it joins.
const AGE: Duration = Duration::from_secs(3);
/// The same while links hold messages back, also those of the reads in flight: the longest time of that, and [`AGE`].
const HELD_AGE: Duration = Duration::from_secs(12);

/// Servers of the mounttable.
pub(crate) const SERVERS: usize = 2;

/// Whether outages extend deadlines: in every fourth seed, and so in every second one of the random seeds with a mounttable.
fn credit(cluster: &SimCluster) -> Credit {
    if cluster.seed.is_multiple_of(4) { Credit::On } else { Credit::Off }
}

/// The address of a server.
fn address(host: &SimHost) -> String {
    format!("{}:{PORT}", host.name)
}

/// The process of a server of the mounttable.
pub(crate) async fn server(cluster: Arc<SimCluster>, number: usize) -> turmoil::Result {
    let host = &cluster.mounttables[number];
    while cluster.phase() == Phase::Boot {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let runtime = cluster.begin(host);
    match start(&cluster, &runtime).await {
        Ok(_server) => {
            cluster.note(&host.name, "serves", "");
            std::future::pending().await
        }
        Err(error) => give_up(&cluster, host, &error).await,
    }
}

async fn start(cluster: &SimCluster, runtime: &Runtime) -> Result<Server, Error> {
    let client = Client::connect_cluster(&any_address(cluster, &runtime.rng), runtime.clone()).await?;
    let store = BigtableStore::new(&client, &TableName::from_parts("sim", "sim", TABLE)?)?;
    store.create_tables(&client.admin(), TABLETS).await?;
    let options = TableOptions { grace: GRACE, credit: credit(cluster), ..TableOptions::default() };
    let config = ServerConfig {
        listen: format!("0.0.0.0:{PORT}"),
        http_listen: None,
        table: TABLE.to_owned(),
        options,
        identity: AuthMethod::Development,
        superusers: vec![BlessingPattern::new(SUPERUSER)],
        sweep_period: SWEEP,
        cache: CacheOptions::default(),
    };
    let opened = Server::open(config, Vec::new(), Storage::Cluster(Box::new(store)), runtime.clone()).await;
    opened.map_err(|error| match error {
        StartError::Server(error) => error,
        StartError::Table(error) => Error::new(Reason::Unavailable, error.message),
    })
}

/// Sessions of one user with all servers.
fn sessions(cluster: &SimCluster, runtime: &Runtime, user: &str) -> Vec<Session> {
    let session = |host: &SimHost| Session::new(&runtime.net.channel(&address(host)), user).unwrap();
    cluster.mounttables.iter().map(session).collect()
}

/// The result of a call, `UNAVAILABLE` if there is none in time.
async fn in_time<T>(timeout: Duration, call: impl Future<Output = Result<T, TreeError>>) -> Result<T, TreeError> {
    let late = |_elapsed| Err(TreeError::new(TreeReason::Unavailable, "no answer"));
    tokio::time::timeout(timeout, call).await.unwrap_or_else(late)
}

/// Whether a call may fail with this error while something is down.
fn is_trouble(error: &TreeError) -> bool {
    matches!(error.reason, TreeReason::Unavailable | TreeReason::Cancelled)
}

/// Compares the response of a lookup that was sent at `began` with the history.
fn check(cluster: &SimCluster, name: &str, servers: &BTreeSet<String>, began: Duration, is_stale: bool) {
    let age = match cluster.holds.lock().is_since(began.saturating_sub(AGE)) {
        _ if is_stale => STALE_TTL,
        true => HELD_AGE,
        false => AGE,
    };
    let overdue = (credit(cluster) == Credit::Off).then_some(Duration::ZERO);
    let tolerance = Tolerance { age, overdue };
    let wrong = cluster.names.lock().wrong(&Lookup { name, servers, began, ended: time::elapsed(), tolerance });
    cluster.history.lock().wrong.extend(wrong.iter().map(ToString::to_string));
}

/// Resolves a name, compares the response with the history, and returns the servers.
async fn look_up(
    cluster: &SimCluster,
    session: &mut Session,
    name: &str,
    timeout: Duration,
) -> Result<BTreeSet<String>, TreeError> {
    let began = time::elapsed();
    let (servers, is_stale) = match in_time(timeout, session.resolve(name, 0)).await {
        Ok(entry) if entry.name.is_empty() => {
            (entry.servers.into_iter().map(|server| server.address).collect(), entry.stale)
        }
        Ok(entry) => {
            let elsewhere = format!("{name} leads elsewhere, with {} left", entry.name);
            return Err(TreeError::new(TreeReason::Damaged, elsewhere));
        }
        Err(error) if error.reason == TreeReason::NoSuchName => (BTreeSet::new(), false),
        Err(error) => return Err(error),
    };
    check(cluster, name, &servers, began, is_stale);
    Ok(servers)
}

/// Lists the names below a folder, compares the response with the history, and returns the names that lead to servers.
async fn list(
    cluster: &SimCluster,
    session: &mut Session,
    folder: &str,
    timeout: Duration,
) -> Result<Vec<(String, BTreeSet<String>)>, TreeError> {
    let began = time::elapsed();
    let pattern = if folder.is_empty() { "...".to_owned() } else { format!("{folder}/...") };
    let listed = in_time(timeout, session.list(&pattern)).await?;
    let of = |name: &str| listed.iter().find(|(listed, _)| listed == name).map(|(_, servers)| servers.clone());
    let below = format!("{folder}/");
    let is_in = |name: &str| folder.is_empty() || name.starts_with(&below);
    let names: Vec<String> = cluster.names.lock().names().filter(|name| is_in(name)).map(str::to_owned).collect();
    for name in names {
        check(cluster, &name, &of(&name).unwrap_or_default(), began, false);
    }
    Ok(listed)
}
