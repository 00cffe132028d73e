//! The interface of a cluster under test: in this process, as processes, in network namespaces, or in containers. The simulation
//! has its own interface, because its faults are injected between two steps (docs/inside/decisions/0009-simulation.md).

use std::fmt;
use std::future::Future;
use std::io;

/// A part of a cluster that fails independently. Numbers start at 0 and are stable over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A tablet server.
    TabletServer(usize),
    /// A master, active or standby.
    Master(usize),
    /// A member of etcd.
    Etcd(usize),
    /// A server of a mounttable in the cluster.
    Mounttable(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TabletServer(number) => write!(f, "tablet-server-{number}"),
            Self::Master(number) => write!(f, "master-{number}"),
            Self::Etcd(number) => write!(f, "etcd-{number}"),
            Self::Mounttable(number) => write!(f, "mounttable-{number}"),
        }
    }
}

/// Direction of a partition, seen from the partitioned node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Incoming messages are lost.
    In,
    /// Outgoing messages are lost.
    Out,
    /// Messages in both directions are lost.
    Both,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Both => "both ways",
        })
    }
}

/// A role whose node only the cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The active master.
    ActiveMaster,
    /// The leader of etcd.
    EtcdLeader,
    /// The tablet server that leads the most tablets.
    BusiestTabletServer,
}

/// A cluster under test with fault injection.
///
/// Calls fail with `Unsupported` if this kind of cluster does not support them. They return when the fault is injected or ended;
/// only `wait_ready` and `wait_healthy` wait for recovery.
pub trait Cluster {
    /// Every node, running or not.
    fn nodes(&self) -> Vec<Node>;

    /// The public address of each tablet server, in order, running or not; the same over restarts.
    fn addresses(&self) -> Vec<String>;

    /// Kills a node. No effect if it does not run.
    fn kill(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Kills these nodes as simultaneously as possible.
    fn kill_all(&mut self, nodes: &[Node]) -> impl Future<Output = io::Result<()>> {
        async move {
            for node in nodes {
                self.kill(*node).await?;
            }
            Ok(())
        }
    }

    /// Stops a node gracefully and waits for its exit; a member of etcd is killed instead.
    fn stop(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Starts a node again with its data.
    fn restart(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Freezes a node.
    fn pause(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Resumes a frozen node.
    fn resume(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Partitions a node from all other nodes. The test still reaches it, like a client on its side.
    fn partition(&mut self, node: Node, direction: Direction) -> impl Future<Output = io::Result<()>>;

    /// Ends the partition of a node. No effect if it is not partitioned.
    fn heal(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// The node that has `role` now; `None` when there is none or it is unknown.
    fn find(&mut self, role: Role) -> impl Future<Output = Option<Node>>;

    /// Waits until these nodes report that they are ready.
    fn wait_ready(&mut self, nodes: &[Node]) -> impl Future<Output = io::Result<()>>;

    /// Waits until every node is ready and every tablet has a leader and is served through every address.
    fn wait_healthy(&mut self) -> impl Future<Output = io::Result<()>>;
}
