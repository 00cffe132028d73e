//! Two mounttables on a cluster of processes, used while tablet servers and mounttables are killed in turn, and once all
//! tablet servers together: no acknowledged mount is lost, nothing that was removed returns, listings and lookups
//! agree, and a check finds nothing that cannot be repaired.
//!
//! | module | what |
//! |---|---|
//! | [`expectations`] | the acknowledged state of each name, as a function of responses |
//! | [`users`] | tasks that use the names during the run |
//! | [`observations`] | the observations of all tasks |
//! | [`final_checks`] | checks of the table at the end |
//!
//! `EBLA_CHAOS_MOUNTTABLES` says how often each kind of fault comes, `EBLA_CHAOS_SEED` repeats a schedule; `make chaos` asks
//! for many. The cluster has TLS and access control unless `EBLA_SECURITY=off`; each mounttable uses the cluster with its own certificate.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]
#![expect(clippy::panic, reason = "a test may fail, and then says where")]

/// Waits until something is so; fails when it never is.
macro_rules! wait_for {
    ($clock:expr, $otherwise:expr, $is_so:expr) => {
        let deadline = $clock.monotonic() + $crate::mounttables::LIVE;
        while !$is_so {
            assert!($clock.monotonic() < deadline, "{} after {:?}", $otherwise, $crate::mounttables::LIVE);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
}

mod expectations;
use crate::support;
mod final_checks;
mod observations;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_mounttable_namespace::{Namespace, Publisher, Roots};
use ebla_runtime::{Clock, Rng, Runtime};
use ebla_tests::cluster::{Cluster, Node};
use ebla_tests::etcd::Build;
use ebla_tests::faults::fault::{FaultKind, Target};
use ebla_tests::faults::nemesis::ClusterNemesis;
use ebla_tests::faults::parameters::{security, seed, times};
use ebla_tests::faults::schedule::{ScheduleItem, schedule};
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured::{Callers, Security};
use tokio::sync::oneshot;

use crate::mounttables::expectations::Expectations;
use crate::mounttables::observations::Observations;
use crate::mounttables::users::{Owner, Server, User};

const TABLET_SERVERS: usize = 3;
const MOUNTTABLES: usize = 2;
/// Users with their own names.
const OWNERS: usize = 4;
/// Pairs of users who mount and delete the same.
const DUELS: usize = 2;
/// Servers with a name each.
const SERVERS: usize = 6;
/// Servers on one node.
const CROWD: usize = 200;
/// Of the crowd, mounted by one task.
const CROWD_EACH: usize = 100;
/// Changes that are acknowledged after each fault, before the next one comes.
const BETWEEN: u64 = 100;
/// When that takes longer, nothing works any more, whatever it says.
const LIVE: Duration = Duration::from_secs(120);
/// Renewal period of the library's publisher.
const PERIOD: Duration = Duration::from_secs(20);
/// The name under which it does.
const PUBLISHED: &str = "published/by/library";
/// A process that is started again.
const SHORT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// T062 T063 T064 T114 T116: while servers of both kinds are killed.
#[test]
fn names_survive_failures_of_servers_and_storage() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(async {
        let runtime = Runtime::system("mounttables");
        let seed = seed(&runtime);
        // What users do is drawn from it too.
        let runtime = Runtime { rng: Rng::seeded(seed), ..runtime };
        let mut plan = Plan { mounttables: MOUNTTABLES, ..Plan::new(support::ebla(), TABLET_SERVERS) };
        let network = Loopback::claim().unwrap();
        let callers = Callers::prepare(security(Security::On), &mut plan, 0, &network, &runtime).unwrap();
        println!("EBLA_SECURITY={}", callers.security().name());
        let mut cluster = ProcessCluster::start(plan, network, &callers.operator).await.unwrap();
        chaos(&mut cluster, &callers.operator, seed).await;
    });
}

async fn chaos(cluster: &mut ProcessCluster<Loopback>, runtime: &Runtime, seed: u64) {
    let schedule = schedule(seed, &items());
    println!("EBLA_CHAOS_SEED={seed}: {} faults, and one of all tablet servers", schedule.len());
    let addresses = cluster.mounttable_addresses();
    let expiring = final_checks::mount_for_a_while(runtime, &addresses).await;
    let publisher = publisher(runtime, &addresses).await;
    let load = Load::start(runtime, &addresses);
    load.begins(&runtime.clock).await;

    let mut nemesis = ClusterNemesis::new(cluster, runtime.clock.clone());
    for (number, fault) in schedule.iter().enumerate() {
        println!("{} of {}: {fault}", number + 1, schedule.len());
        nemesis.inject(fault).await.unwrap_or_else(|error| panic!("EBLA_CHAOS_SEED={seed}: {error}"));
        load.is_running(&runtime.clock).await;
    }
    drop(nemesis.finish());
    without_storage(cluster, &load, &runtime.clock).await;
    load.is_running(&runtime.clock).await;
    let (expectations, servers, observations) = load.end().await;

    println!(
        "{} changes acknowledged, {} of unknown outcome, {} answers marked stale, {} mounts promised on {} names",
        observations.acknowledged(),
        observations.unknown(),
        observations.stale(),
        expectations.required_count(),
        expectations.names().count(),
    );
    assert_eq!(observations.wrong(), Vec::<String>::new(), "EBLA_CHAOS_SEED={seed}");
    final_checks::is_clean(runtime, &addresses).await;
    final_checks::keeps(runtime, &addresses, &expectations, &servers).await;
    final_checks::has_expired(runtime, &addresses, &expiring).await;
    final_checks::is_published(runtime, &addresses, PUBLISHED, publisher).await;
    final_checks::leaves_nothing(runtime, &addresses).await;
}

/// The number of each kind is set by the variable.
fn items() -> Vec<ScheduleItem> {
    let each = times("EBLA_CHAOS_MOUNTTABLES", 2);
    let kill = |node: fn(usize) -> Node, count| ScheduleItem {
        kind: FaultKind::Kill,
        targets: (0..count).map(|number| Target::Node(node(number))).collect(),
        lasts: SHORT,
        times: each,
    };
    vec![kill(Node::TabletServer, TABLET_SERVERS), kill(Node::Mounttable, MOUNTTABLES)]
}

/// Kills all tablet servers until a response is marked stale: lookups continue from the cache.
async fn without_storage(cluster: &mut ProcessCluster<Loopback>, load: &Load, clock: &Clock) {
    println!("all tablet servers are killed");
    let all: Vec<_> = (0..TABLET_SERVERS).map(Node::TabletServer).collect();
    let before = load.observations.stale();
    cluster.kill_all(&all).await.unwrap();
    wait(clock, "no answer is marked stale", || load.observations.stale() > before).await;
    for node in all {
        cluster.restart(node).await.unwrap();
    }
    cluster.wait_healthy().await.unwrap();
}

async fn publisher(runtime: &Runtime, addresses: &[String]) -> Publisher {
    let roots: Vec<_> = addresses.iter().map(|address| format!("/{address}")).collect();
    let roots = Roots::new(roots.iter().map(String::as_str)).unwrap();
    let names = Namespace::builder(runtime.clone()).roots(roots).identity("library").build().unwrap();
    let publisher = Publisher::start(&names, PERIOD);
    publisher.add_server("library:1".parse().unwrap()).await;
    publisher.add_name(PUBLISHED, ebla_mounttable_tree::Target::Object).await;
    publisher
}

/// All users at work.
struct Load {
    observations: Arc<Observations>,
    stop: Arc<AtomicBool>,
    owners: Vec<oneshot::Receiver<Expectations>>,
    others: Vec<oneshot::Receiver<()>>,
    servers: Vec<Arc<Server>>,
}

impl Load {
    fn start(runtime: &Runtime, addresses: &[String]) -> Self {
        let (observations, stop) = (Arc::new(Observations::default()), Arc::new(AtomicBool::new(false)));
        let user = |called: &str| User::new(runtime, addresses, called, &observations, &stop);
        let start = |work: futures::future::BoxFuture<'static, ()>| runtime.tasks.start("user", work);
        let owner = |number| Owner::new(user(&format!("owner-{number}")), number);
        let owners = (0..OWNERS).map(|number| runtime.tasks.start("owner", owner(number).run())).collect();

        let single = |number| Arc::new(Server::new(&format!("servers/{number}"), format!("server-{number}:1")));
        let single: Vec<_> = (0..SERVERS).map(single).collect();
        let crowd = |number| Arc::new(Server::new("crowd/on/one", format!("crowd-{number}:1")));
        let crowd: Vec<_> = (0..CROWD).map(crowd).collect();
        let mut others = vec![start(Box::pin(users::publish(user("publisher"), single.clone())))];
        for part in crowd.chunks(CROWD_EACH) {
            others.push(start(Box::pin(users::publish(user("crowd"), part.to_vec()))));
        }
        for at in 0..addresses.len() {
            others.push(start(Box::pin(users::watch(user("watcher"), at, single.clone()))));
        }
        others.push(start(Box::pin(users::list(user("watcher"), "servers", single.clone()))));
        for number in 0..DUELS {
            let flat = format!("duel/{number}");
            let deep = format!("deep/{number}");
            others.push(start(Box::pin(users::duel(user("duellist"), flat.clone(), flat))));
            others.push(start(Box::pin(users::duel(user("duellist"), format!("{deep}/1/2/3/4/5/6"), deep))));
        }
        Self { observations, stop, owners, others, servers: [single, crowd].concat() }
    }

    /// Waits until every server was mounted, and a little more was done.
    async fn begins(&self, clock: &Clock) {
        wait(clock, "not every server is mounted", || self.servers.iter().all(|server| server.is_mounted())).await;
        self.is_running(clock).await;
    }

    /// Waits until a little more was acknowledged.
    async fn is_running(&self, clock: &Clock) {
        let enough = self.observations.acknowledged() + BETWEEN;
        wait(clock, "nothing is acknowledged any more", || self.observations.acknowledged() >= enough).await;
    }

    /// Tells all users to end, and waits for the answers that they wait for.
    async fn end(self) -> (Expectations, Vec<Arc<Server>>, Arc<Observations>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut expectations = Expectations::default();
        for owner in self.owners {
            expectations.add(owner.await.unwrap());
        }
        for other in self.others {
            other.await.unwrap();
        }
        (expectations, self.servers, self.observations)
    }
}

/// Polls what users have noted.
async fn wait(clock: &Clock, otherwise: &str, is_so: impl Fn() -> bool) {
    wait_for!(clock, otherwise, is_so());
}
