//! A cluster of processes: etcd, masters, tablet servers, and optionally mounttables, each the shipped program with its own
//! folder.
//!
//! ```text
//!   FOLDER/ebla                 the program, copied before the run: another build may overwrite the original
//!   FOLDER/NAME                 the program of another release, if the cluster is upgraded
//!   FOLDER/logs/NODE.log        the log of each process over all restarts; kept when the test fails
//!   FOLDER/data/NODE/           the data folder of each process
//!   FOLDER/data/NODE.ready      its ready file
//! ```
//!
//! Addresses are assigned by a [`NodeNetwork`] and are stable over restarts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_client::Admin;
use ebla_model::access::{Policy, Resource};
use ebla_model::id::ServerId;
use ebla_proto::operate::StatusReply;
use ebla_runtime::Runtime;
use tempfile::TempDir;

use crate::child::{Child, POLL};
use crate::cluster::{Cluster, Direction, Node, Role};
use crate::etcd::{Build, EtcdCluster, EtcdPlan};
use crate::network::{NodeNetwork, last_number};
use crate::secured::{set_policies, wait_mounttable_permitted};

/// Timeout until the cluster is healthy, several leases (10 s).
const WHOLE_MAX: Duration = Duration::from_secs(120);
/// Timeout of a graceful stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Timeout of a request to the master.
const ASK_MAX: Duration = Duration::from_secs(5);
const MASTER_PORT: u16 = 8085;
const PUBLIC_PORT: u16 = 8086;
const NAMES_PORT: u16 = 8101;
/// Options of mounttables: empty nodes are deleted at once, sweeps are frequent, and mounts expire at their deadlines, so that
/// the expected state is exact. Users have no limits. The superuser is `server`.
const NAMES: &str = "--insecure-dev-identity --superuser server --gc-grace 0 --sweep-period 5 --tablets 6 --no-outage-credit \
                     --max-nodes-per-user 0 --max-servers-per-user 0";

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program under test.
    pub program: PathBuf,
    /// Members of etcd.
    pub etcd: usize,
    /// The source of etcd.
    pub build: Build,
    /// Size of etcd's database in bytes above which it refuses writes; `None`: the program's default.
    pub etcd_quota_bytes: Option<u64>,
    /// Masters: one active, the others standby.
    pub masters: usize,
    /// Tablet servers.
    pub tablet_servers: usize,
    /// Servers of one mounttable in the cluster, in which masters and tablet servers are published if `publishes`.
    pub mounttables: usize,
    /// Whether they are published.
    pub publishes: bool,
    /// Size in bytes above which a tablet splits; `None`: the program's default.
    pub split_bytes: Option<u64>,
    /// How long a tablet server may be unavailable before its replicas are replaced; `None`: the program's default.
    pub repair_grace: Option<Duration>,
    /// Replicas of each new group; `None`: the program's default.
    pub replicas: Option<u8>,
    /// More options of the masters' command lines.
    pub master_options: Vec<String>,
    /// More options of the tablet servers' command lines.
    pub server_options: Vec<String>,
    /// Folder with `ca.crt`, and `NODE.crt` and `NODE.key` of each node: every connection uses TLS. The runtime of the test must trust that
    /// CA.
    pub certificates: Option<PathBuf>,
    /// Policies that are set before mounttables are started, by the runtime of the test. They are effective for mounttables; a test waits
    /// until they are for its users: `Callers::wait_permitted`.
    pub policies: Vec<(Resource, Policy)>,
}

impl Plan {
    /// Three members of Debian's etcd, two masters and `tablet_servers` of `program`, no mounttable.
    #[must_use]
    pub fn new(program: &str, tablet_servers: usize) -> Self {
        let program = PathBuf::from(program);
        let build = Build::Debian;
        Self {
            program,
            etcd: 3,
            build,
            etcd_quota_bytes: None,
            masters: 2,
            tablet_servers,
            mounttables: 0,
            publishes: false,
            split_bytes: None,
            repair_grace: None,
            replicas: None,
            master_options: Vec::new(),
            server_options: Vec::new(),
            certificates: None,
            policies: Vec::new(),
        }
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        let etcd = (0..self.etcd).map(Node::Etcd);
        let masters = (0..self.masters).map(Node::Master);
        let tablet_servers = (0..self.tablet_servers).map(Node::TabletServer);
        let mounttables = (0..self.mounttables).map(Node::Mounttable);
        etcd.chain(masters).chain(tablet_servers).chain(mounttables).collect()
    }
}

/// The program of a release, for the processes of a cluster that is upgraded.
#[derive(Clone, Debug)]
pub struct Release {
    /// The program.
    program: PathBuf,
    /// More options of masters.
    master_options: Vec<String>,
}

/// A running cluster. When dropped, its processes are killed; in a failing test their logs are kept and their ends printed.
pub struct ProcessCluster<S: NodeNetwork> {
    // In the order of dropping: processes before the network and the folder that they use.
    mounttables: Vec<Child>,
    servers: Vec<Child>,
    /// The numbers of tablet servers that were stopped permanently.
    retired: BTreeSet<usize>,
    masters: Vec<Child>,
    etcd: EtcdCluster,
    network: S,
    folder: TempDir,
    /// The mounttables in which masters and tablet servers mount themselves.
    roots: Vec<String>,
    plan: Plan,
    runtime: Runtime,
}

impl<S: NodeNetwork> ProcessCluster<S> {
    /// Starts everything in `network` and waits until the cluster is healthy.
    ///
    /// # Errors
    /// When a program is missing or exits, or the cluster is not healthy in two minutes; with the ends of the logs.
    pub async fn start(mut plan: Plan, network: S, runtime: &Runtime) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("ebla-cluster-").tempdir()?;
        let (data, logs) = (folder.path().join("data"), folder.path().join("logs"));
        fs::create_dir(&data)?;
        fs::create_dir(&logs)?;
        let copy = folder.path().join("ebla");
        fs::copy(&plan.program, &copy)?;
        plan.program = copy;
        let etcd = EtcdPlan {
            members: plan.etcd,
            build: plan.build,
            certificates: plan.certificates.as_deref(),
            quota_bytes: plan.etcd_quota_bytes,
        };
        let etcd = EtcdCluster::start_at(&network, &data, &logs, etcd).await?;
        let runtime = runtime.child("processes");
        // They are started after the cluster that stores their table.
        let mounttables = std::mem::take(&mut plan.mounttables);
        let roots = if plan.publishes { mounttable_addresses(&network, mounttables) } else { Vec::new() };
        let mut cluster = Self {
            mounttables: Vec::new(),
            servers: Vec::new(),
            retired: BTreeSet::new(),
            masters: Vec::new(),
            etcd,
            network,
            folder,
            roots,
            plan,
            runtime,
        };
        for number in 0..cluster.plan.masters {
            let child = cluster.start_child(Node::Master(number))?;
            cluster.masters.push(child);
        }
        for number in 0..cluster.plan.tablet_servers {
            let child = cluster.start_child(Node::TabletServer(number))?;
            cluster.servers.push(child);
        }
        cluster.wait_healthy().await?;
        let first = cluster.addresses().into_iter().next().unwrap_or_default();
        set_policies(&first, &cluster.plan.policies, &cluster.runtime).await?;
        for number in 0..mounttables {
            let node = Node::Mounttable(number);
            wait_mounttable_permitted(&cluster.plan, &cluster.addresses(), node, &cluster.runtime).await?;
            let child = cluster.start_mounttable(number)?;
            cluster.mounttables.push(child);
            // The first one creates the table.
            cluster.wait_ready(&[Node::Mounttable(number)]).await?;
        }
        cluster.plan.mounttables = mounttables;
        cluster.wait_healthy().await?;
        Ok(cluster)
    }

    fn start_child(&self, node: Node) -> io::Result<Child> {
        // The network has an address for it.
        last_number(node)?;
        Child::start(&node.to_string(), self.command_line(node, &self.release()), &self.log(node))
    }

    /// The release that the plan names.
    #[must_use]
    pub fn release(&self) -> Release {
        Release { program: self.plan.program.clone(), master_options: self.plan.master_options.clone() }
    }

    /// Copies the program of another release into the cluster's folder. `master_options`: more options of its masters.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn add_release(&self, name: &str, program: &Path, master_options: &[&str]) -> io::Result<Release> {
        let copy = self.folder.path().join(name);
        fs::copy(program, &copy)?;
        Ok(Release { program: copy, master_options: master_options.iter().map(|&option| option.to_owned()).collect() })
    }

    /// Makes the next restart of a master or tablet server run this release.
    ///
    /// # Errors
    /// `NotFound` when there is no such node.
    pub fn set_release(&mut self, node: Node, release: &Release) -> io::Result<()> {
        let line = self.command_line(node, release);
        self.child(node)?.set_command(line);
        Ok(())
    }

    /// The log of a process over all restarts.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_log(&self, node: Node) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log(node))?).into_owned())
    }

    /// The command line of a master or a tablet server.
    fn command_line(&self, node: Node, release: &Release) -> Vec<String> {
        let is_master = matches!(node, Node::Master(_));
        let (command, port) = if is_master { ("master", MASTER_PORT) } else { ("tablet-server", PUBLIC_PORT) };
        let mut line = self.network.prefix(node);
        // Tests count tables and tablets; earlier releases do not know the option.
        line.extend(["env", "EBLA_HEAT_MAP=off"].map(str::to_owned));
        line.push(release.program.display().to_string());
        line.push(command.to_owned());
        let mut flag = |name: &str, value: String| line.extend([format!("--{name}"), value]);
        flag("etcd", self.etcd.endpoints().join(","));
        flag("listen", format!("{}:{port}", self.network.host(node)));
        flag("data", self.data(node).display().to_string());
        flag("ready-file", self.ready_file(node).display().to_string());
        for root in &self.roots {
            flag("publish-to", root.clone());
        }
        if let (Node::TabletServer(_), Some(bytes)) = (node, self.plan.split_bytes) {
            flag("split-bytes", bytes.to_string());
        }
        if let (Node::Master(_), Some(grace)) = (node, self.plan.repair_grace) {
            flag("repair-grace", grace.as_secs().to_string());
        }
        if let (Node::Master(_), Some(replicas)) = (node, self.plan.replicas) {
            flag("replicas", replicas.to_string());
        }
        if is_master {
            line.extend(release.master_options.iter().cloned());
        } else {
            line.extend(self.plan.server_options.iter().cloned());
        }
        line.extend(self.security(node));
        line
    }

    fn start_mounttable(&self, number: usize) -> io::Result<Child> {
        let node = Node::Mounttable(number);
        let mut line = self.network.prefix(node);
        line.extend([self.plan.program.display().to_string(), "mounttable".to_owned()]);
        line.extend(self.security(node));
        line.extend(NAMES.split_whitespace().map(str::to_owned));
        // Each uses another tablet server as its entry point.
        let cluster =
            format!("{}:{PUBLIC_PORT}", self.network.host(Node::TabletServer(number % self.servers.len().max(1))));
        let listen = format!("{}:{NAMES_PORT}", self.network.host(node));
        let ready = self.ready_file(node).display().to_string();
        for (flag, value) in [("--cluster", cluster), ("--listen", listen), ("--ready-file", ready)] {
            line.extend([flag.to_owned(), value]);
        }
        Child::start(&node.to_string(), line, &self.log(node))
    }

    /// The options of TLS, or of its absence: the addresses of a namespace are not loopback, but they are isolated.
    fn security(&self, node: Node) -> Vec<String> {
        let Some(folder) = &self.plan.certificates else { return vec!["--insecure".to_owned()] };
        let files = [
            ("--tls-ca", "ca.crt".to_owned()),
            ("--tls-cert", format!("{node}.crt")),
            ("--tls-key", format!("{node}.key")),
        ];
        files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), folder.join(file).display().to_string()]).collect()
    }

    fn log(&self, node: Node) -> PathBuf {
        self.folder.path().join(format!("logs/{node}.log"))
    }

    fn data(&self, node: Node) -> PathBuf {
        self.folder.path().join(format!("data/{node}"))
    }

    fn ready_file(&self, node: Node) -> PathBuf {
        self.folder.path().join(format!("data/{node}.ready"))
    }

    /// The address of each mounttable, in order, running or not; the same over restarts.
    #[must_use]
    pub fn mounttable_addresses(&self) -> Vec<String> {
        mounttable_addresses(&self.network, self.plan.mounttables)
    }

    /// The endpoints of its etcd.
    #[must_use]
    pub fn etcd_endpoints(&self) -> Vec<String> {
        self.etcd.endpoints()
    }

    /// The folder of all files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process ids of the running tablet servers, in order.
    #[must_use]
    pub fn tablet_server_pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(Child::id).collect()
    }

    /// Starts one more tablet server, and waits until it is ready; returns its number. Only in networks whose nodes need no preparation.
    ///
    /// # Errors
    /// When it cannot be started, exits, or is not ready in two minutes.
    pub async fn join(&mut self) -> io::Result<usize> {
        let number = self.servers.len();
        let node = Node::TabletServer(number);
        let child = self.start_child(node)?;
        self.servers.push(child);
        self.plan.tablet_servers = self.servers.len();
        self.wait_ready(&[node]).await?;
        Ok(number)
    }

    /// Stops a tablet server permanently: the cluster is healthy without it. Its number is not used again.
    ///
    /// # Errors
    /// When it does not exit with success.
    pub async fn retire(&mut self, number: usize) -> io::Result<()> {
        self.stop(Node::TabletServer(number)).await?;
        self.retired.insert(number);
        Ok(())
    }

    /// The id of a tablet server, as the master knows it by its address.
    ///
    /// # Errors
    /// `NotConnected` when there is no status, `NotFound` when the server is not in it.
    pub async fn server_id(&self, number: usize) -> io::Result<ServerId> {
        let address = self.public_address(number);
        let servers = self.status().await?.servers.into_iter().filter_map(|one| one.server);
        let mut ids = servers.filter(|server| server.address == address).map(|server| ServerId::new(server.server));
        ids.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{address} is not in the status")))
    }

    /// The address of a tablet server.
    #[must_use]
    pub fn public_address(&self, number: usize) -> String {
        format!("{}:{PUBLIC_PORT}", self.network.host(Node::TabletServer(number)))
    }

    /// The numbers of the tablet servers that were not stopped permanently.
    fn serving(&self) -> impl Iterator<Item = usize> {
        (0..self.plan.tablet_servers).filter(|number| !self.retired.contains(number))
    }

    /// Stops all tablet servers gracefully at the same time, which writes their memtables to files, and starts them again.
    ///
    /// # Errors
    /// When one does not exit with success, or the cluster is not healthy in two minutes afterwards.
    pub async fn restart_tablet_servers(&mut self) -> io::Result<()> {
        let stops = self.servers.iter_mut().map(|server| server.terminate(STOP_MAX));
        for status in futures::future::join_all(stops).await {
            let status = status?;
            if !status.success() {
                return Err(io::Error::other(format!("a tablet server exited with {status}")));
            }
        }
        for number in 0..self.servers.len() {
            self.restart(Node::TabletServer(number)).await?;
        }
        self.wait_healthy().await
    }

    /// The active master's status, through the first tablet server that forwards the request.
    ///
    /// # Errors
    /// `NotConnected` when none does.
    pub async fn status(&self) -> io::Result<StatusReply> {
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        for address in self.addresses() {
            match self.status_through(&address).await {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn status_through(&self, address: &str) -> io::Result<StatusReply> {
        let admin = Admin::connect(address, &self.runtime);
        match tokio::time::timeout(ASK_MAX, admin.status()).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(io::Error::new(io::ErrorKind::NotConnected, format!("{address}: {error}"))),
            Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("{address}: {late}"))),
        }
    }

    /// Why the cluster is not healthy; `None` when it is.
    async fn unhealthy_reason(&self) -> Option<String> {
        for address in self.addresses() {
            let reply = match self.status_through(&address).await {
                Ok(reply) => reply,
                Err(error) => return Some(error.to_string()),
            };
            let up = reply.servers.iter().filter(|server| server.reachable).count();
            let serving = self.serving().count();
            if up < serving {
                return Some(format!("{address}: {up} of {serving} tablet servers are reachable"));
            }
            if reply.tablets == 0 || reply.tablets_led < reply.tablets {
                return Some(format!("{address}: {} of {} tablets are led", reply.tablets_led, reply.tablets));
            }
        }
        None
    }

    fn child(&mut self, node: Node) -> io::Result<&mut Child> {
        let child = match node {
            Node::TabletServer(number) => self.servers.get_mut(number),
            Node::Master(number) => self.masters.get_mut(number),
            Node::Mounttable(number) => self.mounttables.get_mut(number),
            Node::Etcd(_) => None,
        };
        child.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no {node}")))
    }

    /// The node whose address this is.
    fn node_at(&self, address: &str) -> Option<Node> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        self.plan.nodes().into_iter().find(|node| self.network.host(*node) == host)
    }

    fn log_tails(&self) -> String {
        let own = self.masters.iter().chain(&self.servers).chain(&self.mounttables).map(Child::log_tail);
        own.chain([self.etcd.log_tails()]).collect::<Vec<_>>().join("\n")
    }
}

/// The addresses of this number of mounttables in `network`.
fn mounttable_addresses<S: NodeNetwork>(network: &S, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{}:{NAMES_PORT}", network.host(Node::Mounttable(number)))).collect()
}

impl<S: NodeNetwork> Cluster for ProcessCluster<S> {
    fn nodes(&self) -> Vec<Node> {
        let is_retired = |node: &Node| matches!(node, Node::TabletServer(number) if self.retired.contains(number));
        self.plan.nodes().into_iter().filter(|node| !is_retired(node)).collect()
    }

    fn addresses(&self) -> Vec<String> {
        self.serving().map(|number| self.public_address(number)).collect()
    }

    async fn kill(&mut self, node: Node) -> io::Result<()> {
        match node {
            Node::Etcd(member) => self.etcd.kill(member),
            _ => self.child(node)?.kill(),
        }
        Ok(())
    }

    async fn stop(&mut self, node: Node) -> io::Result<()> {
        if let Node::Etcd(member) = node {
            self.etcd.kill(member);
            return Ok(());
        }
        let child = self.child(node)?;
        let status = child.terminate(STOP_MAX).await?;
        if status.success() {
            Ok(())
        } else {
            Err(child.failure(io::ErrorKind::Other, &format!("exited with {status}")))
        }
    }

    async fn restart(&mut self, node: Node) -> io::Result<()> {
        if let Node::Etcd(member) = node {
            return self.etcd.restart(member);
        }
        // The ready file of the old process must not count for the new one.
        drop(fs::remove_file(self.ready_file(node)));
        self.child(node)?.restart()
    }

    async fn pause(&mut self, node: Node) -> io::Result<()> {
        match node {
            Node::Etcd(member) => self.etcd.pause(member),
            _ => self.child(node)?.pause()?,
        }
        Ok(())
    }

    async fn resume(&mut self, node: Node) -> io::Result<()> {
        match node {
            Node::Etcd(member) => self.etcd.resume(member),
            _ => self.child(node)?.resume()?,
        }
        Ok(())
    }

    async fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()> {
        self.network.partition(node, direction)
    }

    async fn heal(&mut self, node: Node) -> io::Result<()> {
        self.network.heal(node)
    }

    async fn find(&mut self, role: Role) -> Option<Node> {
        if role == Role::EtcdLeader {
            return self.etcd.leader().await.map(Node::Etcd);
        }
        let status = self.status().await.ok()?;
        match role {
            Role::ActiveMaster => self.node_at(&status.master?.address),
            _ => {
                let busiest = status.servers.into_iter().max_by_key(|server| server.leads)?;
                self.node_at(&busiest.server?.address)
            }
        }
    }

    async fn wait_ready(&mut self, nodes: &[Node]) -> io::Result<()> {
        let started = self.runtime.clock.monotonic();
        if nodes.iter().any(|node| matches!(node, Node::Etcd(_))) {
            self.etcd.wait_ready().await?;
        }
        for node in nodes.iter().filter(|node| !matches!(node, Node::Etcd(_))) {
            let file = self.ready_file(*node);
            let clock = self.runtime.clock.clone();
            let child = self.child(*node)?;
            while !file.exists() {
                if let Some(status) = child.ended() {
                    return Err(child.failure(io::ErrorKind::Other, &format!("exited with {status}")));
                }
                if clock.monotonic() - started > WHOLE_MAX {
                    return Err(child.failure(io::ErrorKind::TimedOut, "is not ready"));
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    async fn wait_healthy(&mut self) -> io::Result<()> {
        let started = self.runtime.clock.monotonic();
        self.wait_ready(&self.nodes()).await?;
        while let Some(reason) = self.unhealthy_reason().await {
            if self.runtime.clock.monotonic() - started > WHOLE_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not healthy after {WHOLE_MAX:?}: {reason}"),
                ));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

impl<S: NodeNetwork> Drop for ProcessCluster<S> {
    #[expect(clippy::print_stderr, reason = "a failing test shows what the processes said")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!("{}", self.log_tails());
        let kept = std::env::temp_dir().join(format!("ebla-failed-{}", std::process::id()));
        drop(fs::remove_dir_all(&kept));
        if fs::rename(self.folder.path().join("logs"), &kept).is_ok() {
            eprintln!("all logs: {}", kept.display());
        }
    }
}
