//! One way to handle a cluster under test, wherever it runs: in this process, as processes, in network namespaces, in
//! containers. The simulation is none of these: its faults come between two moments (docs/inside/decisions/0009-simulation.md).

use std::fmt;
use std::future::Future;
use std::io;

/// A part of a cluster that fails alone. Numbers count from 0 and stay over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A tablet server.
    TabletServer(usize),
    /// A master, in office or waiting.
    Master(usize),
    /// A member of etcd.
    Etcd(usize),
    /// A server of a table of names in the cluster.
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

/// Which way a cut works, seen from the node that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It hears nobody, and is heard.
    In,
    /// It hears all, and nobody hears it.
    Out,
    /// Nothing passes.
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

/// A part that only the cluster itself can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The master that the others wait for.
    MasterInOffice,
    /// The member that leads etcd.
    EtcdLeader,
    /// The tablet server that leads the most tablets.
    BusiestTabletServer,
}

/// A cluster whose parts can be made to fail.
///
/// Every call errs with `Unsupported` where this kind of cluster cannot do it. Calls return when the fault is there, or
/// gone; none waits until anything serves again but the two that say so.
pub trait Cluster {
    /// Every node, running or not.
    fn nodes(&self) -> Vec<Node>;

    /// The public address of each tablet server, in order, running or not; the same over restarts.
    fn addresses(&self) -> Vec<String>;

    /// Ends a node at once: no drain, no flush, no goodbye. Without effect on one that does not run.
    fn kill(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Ends these nodes at once, as nearly at the same moment as this kind of cluster can.
    fn kill_all(&mut self, nodes: &[Node]) -> impl Future<Output = io::Result<()>> {
        async move {
            for node in nodes {
                self.kill(*node).await?;
            }
            Ok(())
        }
    }

    /// Tells a node to end in order and waits until it has; a member of etcd is killed, it knows no other end here.
    fn stop(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Starts a node on what it left behind.
    fn restart(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Makes a node stand still, without its noticing.
    fn pause(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Lets it go on.
    fn resume(&mut self, node: Node) -> impl Future<Output = io::Result<()>>;

    /// Cuts a node off from all other nodes. The test still reaches it: what a client on its side would see is the point.
    fn cut(&mut self, node: Node, direction: Direction) -> impl Future<Output = io::Result<()>>;

    /// Undoes every cut.
    fn heal(&mut self) -> impl Future<Output = io::Result<()>>;

    /// Who plays `role` now; `None` when nobody does, or nobody tells.
    fn find(&mut self, role: Role) -> impl Future<Output = Option<Node>>;

    /// Waits until these nodes say that they are ready, whatever the others do.
    fn ready(&mut self, nodes: &[Node]) -> impl Future<Output = io::Result<()>>;

    /// Waits until every node is ready and every tablet is led and served again, through every address.
    fn whole(&mut self) -> impl Future<Output = io::Result<()>>;
}
