//! A cluster of one etcd, one master and some tablet servers, each a process, with the table of the benchmark: created, filled,
//! spread evenly over the servers, and in files.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::time::Duration;

use ebla_client::Client;
use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Direction, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::{Loopback, NodeNetwork};
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_workload::bench::Values;
use ebla_workload::bench::closed_loop;
use ebla_workload::bench::paper::load::{Load, create, table_name};
use ebla_workload::bench::paper::{Layout, VALUE_BYTES};

use crate::Arguments;
use crate::cgroup::Groups;

/// Clients that fill the table, for each server.
const FILLING_CLIENTS: u64 = 4;
/// How long it may take until every server leads as many tablets as the others. Groups of one replica never move, so they are
/// spread evenly at once or not at all.
const SPREAD_MAX: Duration = Duration::from_secs(60);
const SPREAD_OF_ONE_REPLICA_MAX: Duration = Duration::from_secs(5);
/// Clusters that are started until the tablets of one are spread evenly: the server that has the group of METADATA gets no other
/// group if a server with a lower id has none.
const ATTEMPTS: u32 = 5;
/// The pause before the leaders are looked up again.
const PAUSE: Duration = Duration::from_millis(200);

/// A running cluster with its table.
pub(super) struct PaperCluster {
    running: Running,
    pub(super) load: Load,
}

/// The processes are killed when this is dropped, then their control groups are removed.
struct Running {
    processes: ProcessCluster<Grouped>,
    /// `None` where the system has none.
    groups: Option<Groups>,
}

/// The servers lead these numbers of tablets.
struct Uneven(Vec<u64>);

impl PaperCluster {
    pub(super) async fn start(
        layout: Layout,
        arguments: &Arguments,
        runtime: &Runtime,
    ) -> Result<Self, Box<dyn Error>> {
        for _ in 0..ATTEMPTS {
            match Box::pin(Self::start_once(layout, arguments, runtime)).await? {
                Ok(cluster) => return Ok(cluster),
                Err(Uneven(numbers)) => eprintln!("  the servers lead {numbers:?} tablets: stopping this cluster"),
            }
        }
        Err(format!("in {ATTEMPTS} clusters the tablets were not spread evenly over the servers").into())
    }

    async fn start_once(
        layout: Layout,
        arguments: &Arguments,
        runtime: &Runtime,
    ) -> Result<Result<Self, Uneven>, Box<dyn Error>> {
        let mut running = Running::start(layout, arguments, runtime).await?;
        let values = Values::new(runtime, VALUE_BYTES);
        let clients = connect(&running.processes, runtime).await?;
        create(first(&clients)?, layout).await?;
        let spread_max = if arguments.replicas == 1 { SPREAD_OF_ONE_REPLICA_MAX } else { SPREAD_MAX };
        if let Some(uneven) = wait_spread(first(&clients)?, layout, spread_max, runtime).await? {
            return Ok(Err(uneven));
        }
        let load = Load::new(&clients, layout, values.clone())?;
        let filled = closed_loop::run(runtime, load.filling_clients(FILLING_CLIENTS * layout.servers), None).await?;
        if let Some(error) = filled.first_error {
            return Err(format!("fill the table: {error}").into());
        }
        // Rows are read from files afterwards, with empty caches.
        running.processes.restart_tablet_servers().await?;
        let clients = connect(&running.processes, runtime).await?;
        if let Some(uneven) = wait_spread(first(&clients)?, layout, SPREAD_MAX, runtime).await? {
            return Ok(Err(uneven));
        }
        Ok(Ok(Self { running, load: Load::new(&clients, layout, values)? }))
    }

    /// The control groups of the servers; `None` where the system has none.
    pub(super) fn groups(&self) -> Option<&Groups> {
        self.running.groups.as_ref()
    }

    /// The ids of the tablet servers' processes.
    pub(super) fn server_pids(&self) -> Vec<u32> {
        self.running.processes.tablet_server_pids()
    }
}

impl Running {
    async fn start(layout: Layout, arguments: &Arguments, runtime: &Runtime) -> Result<Self, Box<dyn Error>> {
        let servers = u8::try_from(layout.servers)?;
        let groups = Groups::create(servers).ok();
        let prefix = |number| groups.as_ref().map(|groups| groups.prefix(number)).unwrap_or_default();
        let prefixes = (0..servers.into()).map(prefix).collect();
        let network = Grouped { loopback: Loopback::claim()?, prefixes };
        let plan = Plan {
            etcd: 1,
            build: Build::newest(),
            masters: 1,
            replicas: Some(arguments.replicas),
            ..Plan::new(&arguments.ebla.display().to_string(), servers.into())
        };
        Ok(Self { processes: ProcessCluster::start(plan, network, runtime).await?, groups })
    }
}

/// As many clients as servers, each connected to another one first.
async fn connect(processes: &ProcessCluster<Grouped>, runtime: &Runtime) -> Result<Vec<Client>, Box<dyn Error>> {
    let mut clients = Vec::new();
    for address in processes.addresses() {
        clients.push(Client::connect_cluster(&address, runtime.clone()).await?);
    }
    Ok(clients)
}

fn first(clients: &[Client]) -> Result<&Client, &'static str> {
    clients.first().ok_or("there is no tablet server")
}

/// Returns `None` when every server leads the same number of the table's tablets.
async fn wait_spread(
    client: &Client,
    layout: Layout,
    timeout: Duration,
    runtime: &Runtime,
) -> Result<Option<Uneven>, Box<dyn Error>> {
    let started = runtime.clock.monotonic();
    loop {
        let mut led: BTreeMap<_, u64> = BTreeMap::new();
        for (_, leader) in client.tablets(&table_name()?).await? {
            *led.entry(leader.map(|leader| leader.server)).or_default() += 1;
        }
        let is_even = led.len() as u64 == layout.servers
            && led.iter().all(|(leader, tablets)| leader.is_some() && *tablets == layout.tablets_per_server);
        if is_even {
            return Ok(None);
        }
        if runtime.clock.monotonic().saturating_sub(started) > timeout {
            return Ok(Some(Uneven(led.into_values().collect())));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A loopback network whose tablet servers run in control groups.
struct Grouped {
    loopback: Loopback,
    /// For each tablet server.
    prefixes: Vec<Vec<String>>,
}

impl NodeNetwork for Grouped {
    fn host(&self, node: Node) -> String {
        self.loopback.host(node)
    }

    fn prefix(&self, node: Node) -> Vec<String> {
        match node {
            Node::TabletServer(number) => self.prefixes.get(number).cloned().unwrap_or_default(),
            Node::Master(_) | Node::Etcd(_) | Node::Mounttable(_) => Vec::new(),
        }
    }

    fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()> {
        self.loopback.partition(node, direction)
    }

    fn heal(&mut self, node: Node) -> io::Result<()> {
        self.loopback.heal(node)
    }
}
