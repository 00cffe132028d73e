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
/// How long it may take until every server leads as many tablets as the others.
const SPREAD_MAX: Duration = Duration::from_secs(60);
/// The pause before the leaders are looked up again.
const PAUSE: Duration = Duration::from_millis(200);

/// A running cluster. Its processes are killed when it is dropped, then its control groups are removed.
pub(super) struct PaperCluster {
    processes: ProcessCluster<Grouped>,
    /// `None` where the system has none.
    pub(super) groups: Option<Groups>,
    pub(super) load: Load,
}

impl PaperCluster {
    pub(super) async fn start(
        layout: Layout,
        arguments: &Arguments,
        runtime: &Runtime,
    ) -> Result<Self, Box<dyn Error>> {
        let servers = u8::try_from(layout.servers)?;
        let groups = Groups::create(servers).ok();
        let prefixes = (0..servers.into()).map(|number| groups.as_ref().map(|groups| groups.prefix(number)));
        let network =
            Grouped { loopback: Loopback::claim()?, prefixes: prefixes.map(Option::unwrap_or_default).collect() };
        let plan = Plan {
            etcd: 1,
            build: build(),
            masters: 1,
            replicas: Some(arguments.replicas),
            ..Plan::new(&arguments.ebla.display().to_string(), servers.into())
        };
        let mut processes = ProcessCluster::start(plan, network, runtime).await?;
        let values = Values::new(runtime, VALUE_BYTES);
        let load = Load::new(&clients(&processes, runtime).await?, layout, values.clone())?;
        create(first(&clients(&processes, runtime).await?)?, layout).await?;
        let filled = closed_loop::run(runtime, load.filling_clients(FILLING_CLIENTS * layout.servers), None).await?;
        if let Some(error) = filled.first_error {
            return Err(format!("fill the table: {error}").into());
        }
        // Rows are read from files afterwards, with empty caches.
        processes.restart_tablet_servers().await?;
        let clients = clients(&processes, runtime).await?;
        wait_spread(first(&clients)?, layout, runtime).await?;
        Ok(Self { processes, groups, load: Load::new(&clients, layout, values)? })
    }

    /// The ids of the tablet servers' processes.
    pub(super) fn server_pids(&self) -> Vec<u32> {
        self.processes.tablet_server_pids()
    }
}

/// As many clients as servers, each connected to another one first.
async fn clients(processes: &ProcessCluster<Grouped>, runtime: &Runtime) -> Result<Vec<Client>, Box<dyn Error>> {
    let mut clients = Vec::new();
    for address in processes.addresses() {
        clients.push(Client::connect_cluster(&address, runtime.clone()).await?);
    }
    Ok(clients)
}

fn first(clients: &[Client]) -> Result<&Client, &'static str> {
    clients.first().ok_or("there is no tablet server")
}

/// Returns when every server leads the same number of the table's tablets.
async fn wait_spread(client: &Client, layout: Layout, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let started = runtime.clock.monotonic();
    loop {
        let mut led: BTreeMap<_, u64> = BTreeMap::new();
        for (_, leader) in client.tablets(&table_name()?).await? {
            *led.entry(leader.map(|leader| leader.server)).or_default() += 1;
        }
        let is_even = led.len() as u64 == layout.servers
            && led.iter().all(|(leader, tablets)| leader.is_some() && *tablets == layout.tablets_per_server);
        if is_even {
            return Ok(());
        }
        if runtime.clock.monotonic().saturating_sub(started) > SPREAD_MAX {
            let numbers: Vec<_> = led.into_values().collect();
            return Err(format!(
                "the tablets are not spread evenly over the servers after {SPREAD_MAX:?}: {numbers:?}"
            )
            .into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The newer etcd of those that are installed.
fn build() -> Build {
    if Build::PyPi.program().is_ok() { Build::PyPi } else { Build::Debian }
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
