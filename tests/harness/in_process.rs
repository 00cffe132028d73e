//! A cluster in this process, from the same parts as the program: the fastest to start, and accessible to a debugger.
//!
//! The lock service is embedded, so there is no etcd to fail; nothing can be paused or cut off, and all servers share the
//! fate of this process when a sync fails. For all else there are processes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::Error;
use ebla_runtime::Runtime;
use ebla_tablet_server::config::{ServerConfig, ServerOptions};
use ebla_tablet_server::{LocalServers, TabletServer};

use crate::cluster::{Cluster, Direction, Node, Role};
use crate::network::{Loopback, NodeNetwork as _};

/// Timeout until the cluster is healthy.
const WHOLE_MAX: Duration = Duration::from_secs(60);
/// Replicas of a tablet.
const REPLICAS: usize = 3;

/// A running cluster. What runs ends with the runtime that it was started on.
pub struct InProcess {
    servers: Vec<Option<TabletServer>>,
    masters: Vec<Option<Master>>,
    chubby: SharedChubby,
    data: PathBuf,
    network: Loopback,
    runtime: Runtime,
}

impl InProcess {
    /// Starts `masters` and `servers`, their folders in `data`, and waits until all serves.
    ///
    /// # Errors
    /// Errors of the parts.
    pub async fn start(masters: usize, servers: usize, data: &Path, runtime: &Runtime) -> io::Result<Self> {
        let runtime = runtime.child("in-process");
        let chubby = Embedded::open(&data.join("chubby"), runtime.clock.clone(), &runtime.tasks);
        let chubby = chubby.map_err(|error| failed(Error::from(error)))?.shared();
        let (servers, masters) = ((0..servers).map(|_| None).collect(), (0..masters).map(|_| None).collect());
        let mut cluster =
            Self { servers, masters, chubby, data: data.to_path_buf(), network: Loopback::claim()?, runtime };
        for node in cluster.nodes() {
            cluster.restart(node).await?;
        }
        cluster.wait_healthy().await?;
        Ok(cluster)
    }

    /// Starts one more tablet server; returns its number.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn join(&mut self) -> io::Result<usize> {
        let number = self.servers.len();
        self.servers.push(None);
        let node = Node::TabletServer(number);
        self.restart(node).await?;
        self.wait_ready(&[node]).await?;
        Ok(number)
    }

    /// Stops everything gracefully.
    pub async fn stop_all(mut self) {
        for master in self.masters.iter_mut().filter_map(Option::take) {
            master.stop().await;
        }
        futures::future::join_all(self.servers.iter_mut().filter_map(Option::take).map(TabletServer::stop)).await;
    }

    /// The lock service.
    #[must_use]
    pub fn chubby(&self) -> &SharedChubby {
        &self.chubby
    }

    /// A running tablet server, for inspection.
    #[must_use]
    pub fn server(&self, number: usize) -> Option<&TabletServer> {
        self.servers.get(number)?.as_ref()
    }

    async fn start_server(&self, node: Node) -> io::Result<TabletServer> {
        let listen = format!("{}:8086", self.network.host(node));
        // Servers communicate over sockets and respect old leases after a restart, like separate processes.
        let mut options = ServerOptions::up(LocalServers::default());
        options.restart = ServerOptions::server().restart;
        let config = ServerConfig::new(self.data.join(node.to_string()), &listen, options);
        TabletServer::start(config, self.chubby.clone(), self.runtime.child("server")).await.map_err(failed)
    }

    async fn start_master(&self, node: Node) -> io::Result<Master> {
        let config =
            MasterConfig::new(&format!("{}:8085", self.network.host(node)), self.servers.len().clamp(1, REPLICAS));
        Master::start(config, self.chubby.clone(), self.runtime.child("master")).await.map_err(failed)
    }

    /// The active master: the first one that is ready.
    async fn active_master(&self) -> Option<usize> {
        let ready = self.masters.iter().enumerate().filter_map(|(number, master)| Some((number, master.as_ref()?)));
        let waits = ready.map(|(number, master)| {
            Box::pin(async move {
                master.ready().await;
                number
            })
        });
        let first = futures::future::select_all(waits.collect::<Vec<_>>());
        tokio::time::timeout(WHOLE_MAX, first).await.ok().map(|(number, _, _)| number)
    }
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

fn unsupported(what: &str) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("a part of this process cannot be {what}")))
}

impl Cluster for InProcess {
    fn nodes(&self) -> Vec<Node> {
        let servers = (0..self.servers.len()).map(Node::TabletServer);
        servers.chain((0..self.masters.len()).map(Node::Master)).collect()
    }

    fn addresses(&self) -> Vec<String> {
        (0..self.servers.len())
            .map(|number| format!("{}:8086", self.network.host(Node::TabletServer(number))))
            .collect()
    }

    async fn kill(&mut self, node: Node) -> io::Result<()> {
        match node {
            Node::TabletServer(number) => {
                if let Some(server) = self.servers.get_mut(number).and_then(Option::take) {
                    server.abort().await;
                }
            }
            Node::Master(number) => {
                if let Some(master) = self.masters.get_mut(number).and_then(Option::take) {
                    master.abort().await;
                }
            }
            Node::Etcd(_) => return unsupported("an etcd member"),
            Node::Mounttable(_) => return unsupported("a mounttable"),
        }
        Ok(())
    }

    async fn stop(&mut self, node: Node) -> io::Result<()> {
        match node {
            Node::TabletServer(number) => {
                if let Some(server) = self.servers.get_mut(number).and_then(Option::take) {
                    server.drain().await;
                    server.stop().await;
                }
            }
            Node::Master(number) => {
                if let Some(master) = self.masters.get_mut(number).and_then(Option::take) {
                    master.stop().await;
                }
            }
            Node::Etcd(_) => return unsupported("an etcd member"),
            Node::Mounttable(_) => return unsupported("a mounttable"),
        }
        Ok(())
    }

    async fn restart(&mut self, node: Node) -> io::Result<()> {
        self.kill(node).await?;
        match node {
            Node::TabletServer(number) => {
                let server = self.start_server(node).await?;
                if let Some(place) = self.servers.get_mut(number) {
                    *place = Some(server);
                }
            }
            Node::Master(number) => {
                let master = self.start_master(node).await?;
                if let Some(place) = self.masters.get_mut(number) {
                    *place = Some(master);
                }
            }
            Node::Etcd(_) => return unsupported("an etcd member"),
            Node::Mounttable(_) => return unsupported("a mounttable"),
        }
        Ok(())
    }

    async fn pause(&mut self, _node: Node) -> io::Result<()> {
        unsupported("paused")
    }

    async fn resume(&mut self, _node: Node) -> io::Result<()> {
        unsupported("resumed")
    }

    async fn partition(&mut self, _node: Node, _direction: Direction) -> io::Result<()> {
        unsupported("cut off")
    }

    async fn heal(&mut self, _node: Node) -> io::Result<()> {
        Ok(())
    }

    async fn find(&mut self, role: Role) -> Option<Node> {
        match role {
            Role::ActiveMaster => self.active_master().await.map(Node::Master),
            _ => None,
        }
    }

    async fn wait_ready(&mut self, nodes: &[Node]) -> io::Result<()> {
        for node in nodes {
            let Node::TabletServer(number) = node else { continue };
            let Some(server) = self.servers.get(*number).and_then(Option::as_ref) else { continue };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("{node} is not ready"));
            tokio::time::timeout(WHOLE_MAX, server.ready()).await.map_err(late)?;
        }
        Ok(())
    }

    async fn wait_healthy(&mut self) -> io::Result<()> {
        self.wait_ready(&self.nodes()).await?;
        let active = self.active_master().await;
        active.map(drop).ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "no master is ready"))
    }
}
