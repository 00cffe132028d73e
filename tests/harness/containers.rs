//! A cluster of containers: `deploy/compose.yaml` under a separate project name, started and removed by the script of
//! `make cluster`; faults are injected with `docker kill`, `pause` and `network disconnect`.
//!
//! Nothing here connects to the containers' addresses: requests are sent from inside a container (`docker exec`), so that a
//! container that is disconnected from the network can be queried too. Containers address each other by name; a container
//! that is reconnected has another address.
//!
//! Projects are called `ebla-test-PID-NUMBER`. What a test that was killed left behind is found by that name and removed by the
//! next one; a developer's own cluster has another name and no port in common.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::cluster::{Cluster, Direction, Node, Role};
use crate::secured::Security;

/// Timeout of a call of `docker`, which can take many seconds under load.
const DOCKER_MAX: Duration = Duration::from_secs(180);
/// Making images and starting: the base image is a download of a hundred megabytes, once.
const START_MAX: Duration = Duration::from_secs(15 * 60);
/// How often a Prometheus is asked, once a second: it scrapes every 15 s, and processes may still be starting.
const SCRAPE_ATTEMPTS: u32 = 120;
/// Timeout until the cluster is healthy, longer than many leases.
const WHOLE_SECONDS: u64 = 150;
/// Timeout until the balance has given each server a replica.
const SPREAD_MAX: Duration = Duration::from_secs(150);
/// Timeout of the start of the load.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// Printed by `ebla verify` when it starts to write.
const WRITES: &str = "writing to";
/// As deploy/compose.yaml has them.
const ETCD: usize = 3;
const MASTERS: usize = 2;
const MOUNTTABLES: usize = 2;
const TABLET_SERVERS: usize = 5;
/// As many as deploy/cluster.sh supports.
const TABLET_SERVERS_MAX: usize = 15;
const PREFIX: &str = "ebla-test-";
/// Attempts to pause a container.
const PAUSES_MAX: u32 = 10;
/// Lines of a container's log shown in a failure.
const TAIL: &str = "12";

/// The reason why containers are not available; `None` if they are.
#[must_use]
pub fn missing() -> Option<String> {
    let works = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let status = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !cfg!(target_os = "linux") {
        return Some("the program is put into a Linux image as it was built here, and this is no Linux".to_owned());
    }
    if !works("docker", &["version"]) {
        return Some("no Docker engine answers".to_owned());
    }
    if !works("docker", &["compose", "version"]) && !works("docker-compose", &["version"]) {
        return Some("Docker has no Compose tool here".to_owned());
    }
    None
}

impl Security {
    const fn scheme(self) -> &'static str {
        match self {
            Self::On => "https",
            Self::Off => "http",
        }
    }
}

/// A running cluster of three etcd, two masters, and five tablet servers or another number of them. Dropped, it is removed with its data; in a failing
/// test the ends of its logs are printed before that.
pub struct ContainerCluster {
    project: String,
    security: Security,
    tablet_servers: usize,
    partitioned: BTreeSet<Node>,
}

impl ContainerCluster {
    /// Makes an image of `program`, starts everything with five tablet servers, and waits until all tablets are led.
    ///
    /// # Errors
    /// When the image cannot be created, or the cluster does not become healthy; with the output.
    pub async fn start(program: &Path, security: Security) -> io::Result<Self> {
        Self::start_with(program, security, TABLET_SERVERS).await
    }

    /// As [`Self::start`], with this number of tablet servers.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(program: &Path, security: Security, tablet_servers: usize) -> io::Result<Self> {
        // Tests of one process run side by side, each with its cluster.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        sweep();
        let project = format!("{PREFIX}{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let cluster = Self { project, security, tablet_servers, partitioned: BTreeSet::new() };
        let mut up = Command::from(script(&cluster.project));
        up.env("SECURITY", security.name()).env("SERVERS", tablet_servers.to_string()).arg("up").arg(program);
        if let Err(error) = output("start a cluster of containers", up, START_MAX).await {
            // The containers are removed with `cluster`.
            let gone = cluster.all_run().await.err().map(|gone| gone.to_string()).unwrap_or_default();
            return Err(io::Error::new(error.kind(), format!("{error}\n{gone}")));
        }
        Ok(cluster)
    }

    /// Adds tablet servers, or drains and removes the last ones, until there are `tablet_servers`; returns when all tablets are led.
    ///
    /// # Errors
    /// When a container cannot be created, a drain fails, or the cluster does not become healthy; with the output.
    pub async fn scale(&mut self, tablet_servers: usize) -> io::Result<()> {
        let mut scale = Command::from(script(&self.project));
        scale.arg("scale").env("SERVERS", tablet_servers.to_string());
        output(&format!("have {tablet_servers} tablet servers"), scale, START_MAX).await?;
        self.tablet_servers = tablet_servers;
        Ok(())
    }

    /// Adds a Prometheus, and returns when it scrapes `wanted` processes of Ebla.
    ///
    /// # Errors
    /// When its image or its container cannot be made, or when it does not scrape that number in time; with its last answer.
    pub async fn add_metrics(&mut self, wanted: usize) -> io::Result<()> {
        let mut add = Command::from(script(&self.project));
        add.arg("scale").env("SERVERS", self.tablet_servers.to_string()).env("METRICS", "on");
        output("add a Prometheus", add, START_MAX).await?;
        let container = format!("{}-prometheus", self.project);
        let query = r#"count(up{job="ebla"} == 1)"#;
        let asked = ["exec", &container, "promtool", "query", "instant", "http://127.0.0.1:9090", query];
        let mut said = String::new();
        for _attempt in 0..SCRAPE_ATTEMPTS {
            said = docker(&asked).await.unwrap_or_else(|error| error.to_string());
            if said.contains(&format!("=> {wanted} @")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Err(io::Error::other(format!("{wanted} processes are not scraped: {said}\n{}", log_tail(&container))))
    }

    /// Returns when each tablet server has a replica.
    ///
    /// # Errors
    /// When that takes too long; with the last status.
    pub async fn wait_spread(&self) -> io::Result<()> {
        let spread = async {
            loop {
                let status = self.status().await?;
                let servers = status.get("servers").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
                let has_replicas = |one: &&Value| one.get("replicas").and_then(Value::as_u64).is_some_and(|n| n > 0);
                if servers.iter().filter(has_replicas).count() == self.tablet_servers {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let late = |_elapsed| io::Error::new(io::ErrorKind::TimedOut, "a tablet server still has no replica");
        tokio::time::timeout(SPREAD_MAX, spread).await.map_err(late).flatten()
    }

    /// Starts `ebla verify` with these arguments in a separate container on the cluster's network, with the token of the operator if there is
    /// one, and returns when it writes.
    ///
    /// # Errors
    /// When it cannot be started, or does not start to write; with its output.
    pub async fn verify(&self, arguments: &[&str]) -> io::Result<Verifier> {
        let container = format!("{}-verify", self.project);
        let addresses = self.addresses().join(",");
        let mut line = vec!["run", "--detach", "--init", "--memory", "1g", "--network", &self.project];
        line.extend(["--dns", "127.0.0.1", "--dns-option", "timeout:1", "--dns-option", "attempts:1"]);
        let image = image(&self.project);
        let files = format!("{}_operator-files:/etc/ebla:ro", self.project);
        if self.security == Security::On {
            line.extend(["--volume", &files, "--env", "EBLA_TLS_CA=/etc/ebla/ca.crt"]);
            line.extend(["--env", "EBLA_TOKEN_FILE=/etc/ebla/operator.token"]);
        }
        line.extend(["--name", &container, &image, "ebla", "verify", "-o", "json", "--addr", &addresses]);
        line.extend(arguments);
        docker(&line).await?;
        let begins = async {
            while !log_tail(&container).contains(WRITES) {
                if docker(&["ps", "--quiet", "--filter", &format!("name=^{container}$")]).await?.is_empty() {
                    return Err(io::Error::other("the load exited before it started to write"));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        };
        let late = |_elapsed| io::Error::new(io::ErrorKind::TimedOut, "the load did not start to write in time");
        let begun = tokio::time::timeout(BEGIN_MAX, begins).await.map_err(late).flatten();
        begun.map_err(|error| io::Error::new(error.kind(), format!("{error}: {}", log_tail(&container))))?;
        Ok(Verifier { container })
    }

    /// The name of a node's container.
    #[must_use]
    pub fn container(&self, node: Node) -> String {
        format!("{}-{}", self.project, service(node))
    }

    /// Where this machine reaches a tablet server, from any program.
    ///
    /// # Errors
    /// When the container has no such port.
    pub async fn host_address(&self, tablet_server: usize) -> io::Result<String> {
        let port = docker(&["port", &self.container(Node::TabletServer(tablet_server)), "8086"]).await?;
        Ok(port.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// The folder with the keys, certificates and tokens of the cluster.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        files().join(&self.project)
    }

    /// Runs `ebla` with these arguments for the operator of the cluster; what it printed.
    ///
    /// # Errors
    /// When the command fails; with its output.
    pub async fn operator(&self, arguments: &[&str]) -> io::Result<String> {
        let mut command = Command::from(script(&self.project));
        command.arg("ebla").args(arguments);
        output(&format!("ebla {}", arguments.join(" ")), command, DOCKER_MAX).await
    }

    /// Runs a command inside a node's container; what it printed.
    ///
    /// # Errors
    /// When the command fails; with its output.
    pub async fn ask(&self, node: Node, command: &[&str]) -> io::Result<String> {
        let container = self.container(node);
        docker(&[&["exec", container.as_str()], command].concat()).await
    }

    /// The active master's status, through the first tablet server that forwards the request.
    async fn status(&self) -> io::Result<Value> {
        // A server's certificate does not permit calls of an operator.
        if self.security == Security::On {
            return Ok(serde_json::from_str(&self.operator(&["status", "-o", "json"]).await?)?);
        }
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        for number in 0..self.tablet_servers {
            match self.ask(Node::TabletServer(number), &["timeout", "5", "ebla", "status", "-o", "json"]).await {
                Ok(text) => return Ok(serde_json::from_str(&text)?),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Fails with the names of containers that exited by themselves, and the ends of their logs.
    async fn all_run(&self) -> io::Result<()> {
        let filter = format!("label=com.docker.compose.project={}", self.project);
        let listed = docker(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}} {{.State}}"]).await?;
        let running = |name: &str| listed.lines().any(|line| line == format!("{name} running"));
        let nodes = self.nodes().into_iter().chain((0..MOUNTTABLES).map(Node::Mounttable));
        let gone: Vec<_> = nodes.filter(|node| !running(&self.container(*node))).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let logs = gone.iter().map(|node| log_tail(&self.container(*node))).collect::<Vec<_>>().join("\n");
        Err(io::Error::other(format!("containers exited by themselves: {gone:?}\n{logs}")))
    }
}

impl Cluster for ContainerCluster {
    fn nodes(&self) -> Vec<Node> {
        let etcd = (0..ETCD).map(Node::Etcd);
        etcd.chain((0..MASTERS).map(Node::Master)).chain((0..self.tablet_servers).map(Node::TabletServer)).collect()
    }

    /// As containers on the same network reach them.
    fn addresses(&self) -> Vec<String> {
        (0..self.tablet_servers).map(|number| format!("{}:8086", service(Node::TabletServer(number)))).collect()
    }

    async fn kill(&mut self, node: Node) -> io::Result<()> {
        self.kill_all(&[node]).await
    }

    /// One call for all: they are killed within a moment, where a call each would take seconds.
    async fn kill_all(&mut self, nodes: &[Node]) -> io::Result<()> {
        let containers: Vec<_> = nodes.iter().map(|node| self.container(*node)).collect();
        let line: Vec<_> = ["kill"].into_iter().chain(containers.iter().map(String::as_str)).collect();
        match docker(&line).await {
            Err(error) if !error.to_string().contains("is not running") => Err(error),
            _ => Ok(()),
        }
    }

    async fn stop(&mut self, node: Node) -> io::Result<()> {
        docker(&["stop", "--time", "60", &self.container(node)]).await.map(drop)
    }

    async fn restart(&mut self, node: Node) -> io::Result<()> {
        docker(&["start", &self.container(node)]).await.map(drop)
    }

    /// The kernel freezes a group of processes only while none of them is in an uninterruptible call. Docker waits briefly for
    /// that and then fails with the container running: a retry succeeds.
    async fn pause(&mut self, node: Node) -> io::Result<()> {
        for _ in 1..PAUSES_MAX {
            match docker(&["pause", &self.container(node)]).await {
                Err(error) if error.to_string().contains("unable to freeze") => continue,
                other => return other.map(drop),
            }
        }
        docker(&["pause", &self.container(node)]).await.map(drop)
    }

    async fn resume(&mut self, node: Node) -> io::Result<()> {
        docker(&["unpause", &self.container(node)]).await.map(drop)
    }

    async fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()> {
        if direction != Direction::Both {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a container can only be partitioned in both directions",
            ));
        }
        docker(&["network", "disconnect", &self.project, &self.container(node)]).await?;
        self.partitioned.insert(node);
        Ok(())
    }

    async fn heal(&mut self, node: Node) -> io::Result<()> {
        if self.partitioned.remove(&node) {
            // Without the alias it would be on the network under its container's name only.
            let alias = service(node);
            docker(&["network", "connect", "--alias", &alias, &self.project, &self.container(node)]).await?;
        }
        Ok(())
    }

    async fn find(&mut self, role: Role) -> Option<Node> {
        let number = |address: &str, name: &str| -> Option<usize> {
            let host = address.split("://").last()?.split(':').next()?;
            host.strip_prefix(name)?.parse::<usize>().ok()?.checked_sub(1)
        };
        match role {
            Role::EtcdLeader => {
                let scheme = self.security.scheme();
                let endpoints = (1..=ETCD).map(|n| format!("{scheme}://etcd-{n}:2379")).collect::<Vec<_>>().join(",");
                let command = ["etcdctl", "--endpoints", &endpoints, "endpoint", "status", "-w", "json"];
                let members: Value = serde_json::from_str(&self.ask(Node::Etcd(0), &command).await.ok()?).ok()?;
                let leads = |one: &&Value| one.pointer("/Status/leader") == one.pointer("/Status/header/member_id");
                let leader = members.as_array()?.iter().find(leads)?;
                number(leader.get("Endpoint")?.as_str()?, "etcd-").map(Node::Etcd)
            }
            Role::ActiveMaster => {
                let status = self.status().await.ok()?;
                number(status.get("master")?.as_str()?, "master-").map(Node::Master)
            }
            Role::BusiestTabletServer => {
                let status = self.status().await.ok()?;
                let servers = status.get("servers")?.as_array()?.iter();
                let busiest = servers.max_by_key(|one| one.get("leads").and_then(Value::as_u64))?;
                number(busiest.get("bigtable")?.as_str()?, "tablet-server-").map(Node::TabletServer)
            }
        }
    }

    async fn wait_ready(&mut self, nodes: &[Node]) -> io::Result<()> {
        let seconds = WHOLE_SECONDS.to_string();
        for node in nodes {
            let address = match node {
                Node::Etcd(_) => {
                    let patient = format!(
                        "for i in $(seq {WHOLE_SECONDS}); do etcdctl endpoint health && exit; sleep 1; done; exit 1"
                    );
                    self.ask(*node, &["sh", "-c", &patient]).await?;
                    continue;
                }
                Node::Master(_) => "127.0.0.1:8085",
                Node::TabletServer(_) => "127.0.0.1:8086",
                Node::Mounttable(_) => {
                    let what = "mounttables in containers are not supported";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, what));
                }
            };
            self.ask(*node, &["ebla", "wait", "--addr", address, "--for", &seconds]).await?;
        }
        Ok(())
    }

    async fn wait_healthy(&mut self) -> io::Result<()> {
        self.all_run().await?;
        self.wait_ready(&(0..ETCD).map(Node::Etcd).collect::<Vec<_>>()).await?;
        self.wait_ready(&(0..MASTERS).map(Node::Master).collect::<Vec<_>>()).await?;
        // One call for all: entering a container takes longer than the question.
        let servers = self.tablet_servers;
        let wait = |address| format!("ebla wait --addr {address} --servers {servers} --for {WHOLE_SECONDS}");
        let all = self.addresses().into_iter().map(wait).collect::<Vec<_>>().join(" && ");
        match self.security {
            Security::Off => self.ask(Node::TabletServer(0), &["sh", "-c", &all]).await?,
            Security::On => {
                self.operator(&["wait", "--servers", &servers.to_string(), "--for", &WHOLE_SECONDS.to_string()]).await?
            }
        };
        // No container may have exited meanwhile.
        self.all_run().await
    }
}

impl Drop for ContainerCluster {
    #[expect(clippy::print_stderr, reason = "a failing test shows what the containers said")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for container in self.nodes().into_iter().map(|node| self.container(node)) {
                eprintln!("{}", log_tail(&container));
            }
            eprintln!("{}", log_tail(&format!("{}-verify", self.project)));
        }
        remove(&self.project);
    }
}

/// `ebla verify` in a container.
pub struct Verifier {
    container: String,
}

impl Verifier {
    /// Stops the load early, waits for the read-back, and returns the report.
    ///
    /// # Errors
    /// When there is no report; with the output.
    pub async fn finish(self) -> io::Result<Value> {
        docker(&["kill", "--signal", "TERM", &self.container]).await?;
        docker(&["wait", &self.container]).await?;
        let mut logs = Command::new("docker");
        logs.args(["logs", &self.container]);
        let said = output("read the report", logs, DOCKER_MAX).await?;
        let report = said.lines().rev().find(|line| !line.is_empty()).unwrap_or_default();
        let error = |error| io::Error::other(format!("{error}: {}", log_tail(&self.container)));
        serde_json::from_str(&said).or_else(|_not_alone| serde_json::from_str(report)).map_err(error)
    }
}

/// The name of a node in deploy/compose.yaml, where numbers start with 1.
fn service(node: Node) -> String {
    match node {
        Node::TabletServer(number) => format!("tablet-server-{}", number + 1),
        Node::Master(number) => format!("master-{}", number + 1),
        Node::Etcd(number) => format!("etcd-{}", number + 1),
        Node::Mounttable(number) => format!("mounttable-{}", number + 1),
    }
}

fn image(project: &str) -> String {
    format!("ebla:{}", project.trim_start_matches("ebla-"))
}

/// deploy/cluster.sh for a project: no port in common with others, and nothing is started again behind the test's back.
fn script(project: &str) -> std::process::Command {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster.sh");
    let mut command = std::process::Command::new(script);
    command.env("COMPOSE_PROJECT_NAME", project).env("EBLA_IMAGE", image(project)).env("EBLA_RESTART", "no");
    command.env("EBLA_CLUSTER_FILES", files()).env_remove("SECURITY");
    command.env_remove("SERVERS").envs((1..=TABLET_SERVERS_MAX).map(|number| (format!("EBLA_PORT_{number}"), "")));
    command.envs(["EBLA_NAMES_1", "EBLA_NAMES_2", "EBLA_PROMETHEUS"].map(|name| (name, ""))).env_remove("METRICS");
    command.stdin(Stdio::null());
    command
}

/// The folder with the files of all clusters of tests.
fn files() -> PathBuf {
    std::env::temp_dir().join("ebla-test-clusters")
}

/// Removes leftovers of tests that no longer run.
fn sweep() {
    const LABEL: &str = r#"{{.Label "com.docker.compose.project"}}"#;
    let mut projects = BTreeSet::new();
    for list in [&["ps", "--all"] as &[&str], &["network", "ls"], &["volume", "ls"]] {
        let listed = said(std::process::Command::new("docker").args(list).args(["--format", LABEL]));
        projects.extend(listed.lines().filter(|name| name.starts_with(PREFIX)).map(str::to_owned));
    }
    let alive = |project: &str| {
        let pid = project.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| Path::new("/proc").join(pid).exists())
    };
    projects.iter().filter(|project| !alive(project)).for_each(|project| remove(project));
}

/// Removes containers, network, volumes and image of a project, if they exist.
fn remove(project: &str) {
    said(std::process::Command::new("docker").args(["rm", "--force", &format!("{project}-verify")]));
    said(script(project).arg("down"));
    said(std::process::Command::new("docker").args(["image", "rm", "--force", &image(project)]));
}

/// The output of a command, even if it failed.
fn said(command: &mut std::process::Command) -> String {
    command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn log_tail(container: &str) -> String {
    let mut logs = std::process::Command::new("docker");
    let output = logs.args(["logs", "--tail", TAIL, container]).output();
    let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    format!("--- {container}\n{}", String::from_utf8_lossy(&text))
}

async fn docker(arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new("docker");
    command.args(arguments);
    output(&format!("docker {}", arguments.join(" ")), command, DOCKER_MAX).await
}

/// The output of `command`. Fails when the command fails or takes longer than `timeout`; then it is killed.
async fn output(what: &str, mut command: Command, timeout: Duration) -> io::Result<String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let late = |_elapsed| io::Error::new(io::ErrorKind::TimedOut, format!("{what}: not done after {timeout:?}"));
    let output = tokio::time::timeout(timeout, command.output()).await.map_err(late)??;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let both = [output.stdout, output.stderr].concat();
    Err(io::Error::other(format!("{what}: {}\n{}", output.status, String::from_utf8_lossy(&both))))
}
