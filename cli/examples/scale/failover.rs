//! Three tablet servers, a master and an etcd of three members, each a process; one tablet server is killed.

use std::error::Error;
use std::io;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_tests::cluster::{Cluster as _, Direction, Node, Role};
use ebla_tests::etcd::Build;
use ebla_tests::network::{Loopback, NodeNetwork};
use ebla_tests::process::{Plan, ProcessCluster};

use crate::table::Table;
use crate::{Arguments, limited};

const SERVERS: usize = 3;
/// How long it may take until every tablet accepts a write, after the creation and after the kill.
const SERVED_MAX: Duration = Duration::from_secs(120);
/// The pause before the kill.
const SETTLED: Duration = Duration::from_secs(5);

/// The time from the kill of the server that leads the most tablets until every tablet has accepted a write.
pub(super) async fn measure(
    tablets: u64,
    arguments: &Arguments,
    runtime: &Runtime,
) -> Result<Duration, Box<dyn Error>> {
    let program = arguments.ebla.display().to_string();
    let plan = Plan { masters: 1, build: Build::newest(), ..Plan::new(&program, SERVERS) };
    let network = Limited { loopback: Loopback::claim()?, files: arguments.files };
    let mut cluster = ProcessCluster::start(plan, network, runtime).await?;
    let addresses = cluster.addresses();
    let table = Table::new(&addresses, tablets, runtime).await?;
    table.create().await?;
    table.write_each(SERVED_MAX).await?;
    tokio::time::sleep(SETTLED).await;
    let busiest = cluster.find(Role::BusiestTabletServer).await.unwrap_or(Node::TabletServer(0));
    let others = (0..SERVERS).map(Node::TabletServer).zip(addresses).filter(|(node, _)| *node != busiest);
    let others: Vec<_> = others.map(|(_, address)| address).collect();
    let table = Table::new(&others, tablets, runtime).await?;
    // The clients are connected and know the tablets.
    table.write_each(SERVED_MAX).await?;
    let killed = runtime.clock.monotonic();
    cluster.kill(busiest).await?;
    table.write_each(SERVED_MAX).await?;
    Ok(runtime.clock.monotonic().saturating_sub(killed))
}

/// A loopback network whose tablet servers have a limit of open files.
struct Limited {
    loopback: Loopback,
    files: Option<u64>,
}

impl NodeNetwork for Limited {
    fn host(&self, node: Node) -> String {
        self.loopback.host(node)
    }

    fn prefix(&self, node: Node) -> Vec<String> {
        match node {
            Node::TabletServer(_) => limited(self.files),
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
