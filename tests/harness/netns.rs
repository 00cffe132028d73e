//! One network namespace for each node, connected by a bridge in another namespace: every node can be partitioned in either direction.
//!
//! ```text
//!   ebla-PID-N-switch:  bridge -- port -- eth0 in ebla-PID-N-NODE   10.a.b.x     one each
//!                          \---- port -- the test's own end         10.a.b.254
//! ```
//!
//! The bridge is not in the test's own namespace, so firewalls of the machine do not affect it. Needs root, `ip` and
//! `iptables`. Names carry the test's process id: runs do not collide, and what a killed run left is removed by the next.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::{Direction, Node};
use crate::network::{NodeNetwork, last_number};

/// Prefix of the names of namespaces.
const PREFIX: &str = "ebla-";
/// The last number of the test's own address.
const TEST_NUMBER: u8 = 254;
/// Blocks `10.a.b`, with `a` from 64 to 127.
const BLOCKS: u32 = 64 * 256;

/// Number of networks created by this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A network of namespaces; removed when dropped.
pub struct NetNs {
    /// `ebla-PID-N`.
    name: String,
    block: String,
    namespaces: Vec<String>,
    partitions: Vec<(Node, &'static str)>,
}

impl NetNs {
    /// Checks whether networks can be created here.
    ///
    /// # Errors
    /// With the reason, for a test to print and skip.
    pub fn available() -> io::Result<()> {
        sweep();
        let mut probe = Self::named()?;
        probe.add("probe")?;
        run(&["ip", "netns", "exec", &probe.namespace("probe"), "iptables", "-A", "INPUT", "-j", "ACCEPT"])
    }

    /// Creates a network with a namespace for each of `nodes`.
    ///
    /// # Errors
    /// Errors of `ip` and `iptables`.
    pub fn start(nodes: &[Node]) -> io::Result<Self> {
        sweep();
        let mut network = Self::named()?;
        network.add("switch")?;
        let switch = network.namespace("switch");
        run(&["ip", "-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        run(&["ip", "-n", &switch, "link", "set", "bridge", "up"])?;
        let own = network.own_end();
        run(&["ip", "link", "add", &own, "type", "veth", "peer", "name", "test", "netns", &switch])?;
        run(&["ip", "-n", &switch, "link", "set", "test", "master", "bridge", "up"])?;
        run(&["ip", "address", "add", &format!("{}.{TEST_NUMBER}/24", network.block), "dev", &own])?;
        run(&["ip", "link", "set", &own, "up"])?;
        for node in nodes {
            network.join(&switch, *node)?;
        }
        Ok(network)
    }

    fn named() -> io::Result<Self> {
        let (id, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let used = output(&["ip", "-4", "-o", "address"])?;
        let blocks = (0..BLOCKS).map(|step| id.wrapping_add(number).wrapping_add(step) % BLOCKS);
        let block = blocks.map(|at| format!("10.{}.{}", 64 + at / 256, at % 256));
        let free = block.into_iter().find(|block| !used.contains(&format!(" {block}.")));
        let block = free.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free block of addresses"))?;
        Ok(Self { name: format!("{PREFIX}{id}-{number}"), block, namespaces: Vec::new(), partitions: Vec::new() })
    }

    fn add(&mut self, role: &str) -> io::Result<()> {
        let namespace = self.namespace(role);
        run(&["ip", "netns", "add", &namespace])?;
        self.namespaces.push(namespace);
        Ok(())
    }

    fn namespace(&self, role: &str) -> String {
        format!("{}-{role}", self.name)
    }

    /// The test's end of its cable; at most 15 characters.
    fn own_end(&self) -> String {
        self.name.replacen(PREFIX, "eb", 1)
    }

    fn join(&mut self, switch: &str, node: Node) -> io::Result<()> {
        let number = last_number(node)?;
        self.add(&node.to_string())?;
        let namespace = self.namespace(&node.to_string());
        let (port, address) = (format!("port{number}"), format!("{}.{number}/24", self.block));
        run(&["ip", "-n", switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        run(&["ip", "-n", switch, "link", "set", &port, "master", "bridge", "up"])?;
        run(&["ip", "-n", &namespace, "address", "add", &address, "dev", "eth0"])?;
        run(&["ip", "-n", &namespace, "link", "set", "eth0", "up"])?;
        run(&["ip", "-n", &namespace, "link", "set", "lo", "up"])?;
        // Before the rules of partitions: the test is on this node's side.
        let test = format!("{}.{TEST_NUMBER}", self.block);
        run(&["ip", "netns", "exec", &namespace, "iptables", "-A", "INPUT", "-s", &test, "-j", "ACCEPT"])?;
        run(&["ip", "netns", "exec", &namespace, "iptables", "-A", "OUTPUT", "-d", &test, "-j", "ACCEPT"])
    }

    fn rule(&self, action: &str, node: Node, chain: &str) -> io::Result<()> {
        let namespace = self.namespace(&node.to_string());
        let interface = if chain == "INPUT" { "-i" } else { "-o" };
        run(&["ip", "netns", "exec", &namespace, "iptables", action, chain, interface, "eth0", "-j", "DROP"])
    }
}

impl NodeNetwork for NetNs {
    fn host(&self, node: Node) -> String {
        format!("{}.{}", self.block, last_number(node).unwrap_or(1))
    }

    fn prefix(&self, node: Node) -> Vec<String> {
        vec!["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), self.namespace(&node.to_string())]
    }

    fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()> {
        let chains: &[&'static str] = match direction {
            Direction::In => &["INPUT"],
            Direction::Out => &["OUTPUT"],
            Direction::Both => &["INPUT", "OUTPUT"],
        };
        for chain in chains {
            self.rule("-A", node, chain)?;
            self.partitions.push((node, chain));
        }
        Ok(())
    }

    fn heal(&mut self, node: Node) -> io::Result<()> {
        while let Some(at) = self.partitions.iter().position(|(partitioned, _chain)| *partitioned == node) {
            let (_node, chain) = self.partitions.remove(at);
            self.rule("-D", node, chain)?;
        }
        Ok(())
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // A veth pair is removed with the namespace of either end.
        for namespace in &self.namespaces {
            drop(run(&["ip", "netns", "delete", namespace]));
        }
    }
}

/// Removes the namespaces of processes that have exited.
fn sweep() {
    let names = output(&["ip", "netns", "list"]).unwrap_or_default();
    for name in names.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|id| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists()) {
            drop(run(&["ip", "netns", "delete", name]));
        }
    }
}

fn run(command: &[&str]) -> io::Result<()> {
    output(command).map(drop)
}

/// Runs a command and returns its output.
fn output(command: &[&str]) -> io::Result<String> {
    let words = command.join(" ");
    let (program, arguments) = command.split_first().ok_or_else(|| io::Error::other("no command"))?;
    let done = Command::new(program).args(arguments).output();
    let done = done.map_err(|error| io::Error::new(error.kind(), format!("{words}: {error}")))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!("{words}: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::child::Child;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Whether node `from` can connect to `to`.
    fn reaches(network: &NetNs, from: Node, to: Node) -> bool {
        let mut command = network.prefix(from);
        let script = format!("exec 3<>/dev/tcp/{}/2379", network.host(to));
        command.extend(["timeout", "2", "bash", "-c", &script].map(str::to_owned));
        let (program, arguments) = command.split_first().unwrap();
        Command::new(program).args(arguments).output().unwrap().status.success()
    }

    #[tokio::test]
    async fn a_partition_works_in_each_direction_and_heals() {
        if let Err(reason) = NetNs::available() {
            println!("skipped: {reason}");
            return;
        }
        let (one, other) = (Node::Etcd(0), Node::Etcd(1));
        let mut network = NetNs::start(&[one, other]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut listen = network.prefix(other);
        let script =
            "import socket,time; s=socket.create_server(('0.0.0.0',2379)); print('up',flush=True); time.sleep(600)";
        listen.extend(["python3", "-c", script].map(str::to_owned));
        let log = folder.path().join("log");
        let _listener = Child::start("listener", listen, &log).unwrap();
        let up = async {
            while !std::fs::read_to_string(&log).unwrap().contains("up") {
                tokio::time::sleep(crate::child::POLL).await;
            }
        };
        tokio::time::timeout(LIMIT, up).await.unwrap();

        assert!(reaches(&network, one, other));
        for direction in [Direction::In, Direction::Out, Direction::Both] {
            network.partition(other, direction).unwrap();
            assert!(!reaches(&network, one, other), "partition {direction}");
            let address: SocketAddr = format!("{}:2379", network.host(other)).parse().unwrap();
            assert!(TcpStream::connect_timeout(&address, LIMIT).is_ok(), "the test cannot reach the node");
            network.heal(other).unwrap();
            assert!(reaches(&network, one, other), "healed {direction}");
        }
        let name = network.name.clone();
        drop(network);
        assert!(!output(&["ip", "netns", "list"]).unwrap().contains(&format!("{name}-")));
    }
}
