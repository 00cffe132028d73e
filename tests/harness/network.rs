//! The network of a cluster of processes: each node has its own address, so ports are constant and stable over restarts.
//!
//! ```text
//!   Loopback    127.a.b.0/24, one block for each cluster; no partitions
//!   NetNs       10.a.b.0/24, one network namespace for each node (netns.rs); partitions in every direction
//! ```

use std::io;
use std::net::TcpListener;

use crate::cluster::{Direction, Node};

/// A network for nodes.
pub trait NodeNetwork: Send {
    /// The address that a node listens at, without a port.
    fn host(&self, node: Node) -> String;

    /// The prefix of the command line of a node's process, if needed.
    fn prefix(&self, node: Node) -> Vec<String>;

    /// Partitions a node from all other nodes in `direction`. The test still reaches it, like a client on the node's side.
    ///
    /// # Errors
    /// `Unsupported` where partitions are impossible, and errors of the system.
    fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()>;

    /// Ends the partition of a node. No effect if it is not partitioned.
    ///
    /// # Errors
    /// Errors of the system.
    fn heal(&mut self, node: Node) -> io::Result<()>;
}

/// The last number of a node's address in its block.
///
/// # Errors
/// `InvalidInput` beyond 150 tablet servers, which are numbered on when servers join, or 20 nodes of another role.
pub fn last_number(node: Node) -> io::Result<u8> {
    let (base, count, index) = match node {
        Node::Etcd(index) => (10, 20, index),
        Node::Master(index) => (30, 20, index),
        Node::Mounttable(index) => (50, 20, index),
        Node::TabletServer(index) => (70, 150, index),
    };
    let index = u8::try_from(index).ok().filter(|index| *index < count);
    index
        .map(|index| base + index)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{node}: too many")))
}

/// A block of the loopback network that belongs to this cluster.
///
/// The block is claimed by a listener at its last address: the system prevents other binds, and releases it when the test's
/// process exits.
pub struct Loopback {
    block: String,
    _claim: TcpListener,
}

/// The port of the claim; any number would do.
const CLAIM_PORT: u16 = 2;
/// Blocks that are tried: more clusters than that do not fit on a machine.
const BLOCKS: u32 = 4_096;

impl Loopback {
    /// Claims a free block.
    ///
    /// # Errors
    /// `AddrInUse` when all are taken.
    pub fn claim() -> io::Result<Self> {
        let first = std::process::id();
        for number in (0..BLOCKS).map(|step| first.wrapping_add(step)) {
            let [_, _, high, low] = number.to_be_bytes();
            // 127.0 and 127.255 are left to others.
            let block = format!("127.{}.{low}", 1 + u32::from(high) % 254);
            if let Ok(claim) = TcpListener::bind((format!("{block}.254"), CLAIM_PORT)) {
                return Ok(Self { block, _claim: claim });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every block of the loopback network is taken"))
    }
}

impl NodeNetwork for Loopback {
    fn host(&self, node: Node) -> String {
        format!("{}.{}", self.block, last_number(node).unwrap_or(1))
    }

    fn prefix(&self, _node: Node) -> Vec<String> {
        Vec::new()
    }

    fn partition(&mut self, _node: Node, _direction: Direction) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "nodes on loopback cannot be partitioned: use network namespaces",
        ))
    }

    fn heal(&mut self, _node: Node) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_never_share_a_block_and_nodes_never_an_address() {
        let (one, other) = (Loopback::claim().unwrap(), Loopback::claim().unwrap());
        let nodes = [
            Node::Etcd(0),
            Node::Etcd(19),
            Node::Master(0),
            Node::Master(1),
            Node::Mounttable(19),
            Node::TabletServer(0),
            Node::TabletServer(149),
        ];
        let hosts = |network: &Loopback| nodes.map(|node| network.host(node));
        let mut all: Vec<_> = hosts(&one).into_iter().chain(hosts(&other)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * nodes.len());
        assert!(last_number(Node::Etcd(20)).is_err());
        assert!(last_number(Node::TabletServer(150)).is_err());
    }
}
