//! `ebla up`: a cluster in one process, until Ctrl-C. `ready` is what it prints when everything is ready.

mod ready;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::Client;
use ebla_console::AccessMode;
use ebla_master::Contents;
use ebla_model::cluster_name::ClusterName;
use ebla_mounttable_server::server::Server;
use ebla_runtime::Runtime;
use ebla_runtime::units::ByteSize;
use ebla_tablet_server::TabletServer;

#[cfg(test)]
pub(super) use self::ready::documents as ready_documents;
use self::ready::{Ready, Start};
use super::DEFAULT_ADDRESS;
use super::console::{ConsoleArguments, ConsoleParts};
use super::heat_map::HeatMapArgument;
use super::merges::MergeArguments;
use super::mounttable::{self, Mounttable};
use super::mt;
use super::node::ConnectionArguments;
use super::tablet_server::TraceArguments;
use crate::config::ConfigArguments;
use crate::local::{LocalCluster, LocalConfig};
use crate::output::{self, Failure, Format};
use crate::process::{self, DataFolder, Exposure, Listen, Monitoring, Signals};
use crate::splits::SplitArguments;

/// The default data folder.
const DEFAULT_DATA: &str = "./ebla-data";
/// The default address of the HTTP port.
const DEFAULT_HTTP: &str = "127.0.0.1:8080";
/// Time for the tasks of a mounttable that failed to start to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Run a cluster in this process
///
/// Examples:
///   ebla up
///   ebla up --ephemeral --listen 127.0.0.1:0 --ready-file ready.json
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Up {
    /// Configuration file
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Data folder
    #[arg(long, value_name = "DIR", env = "EBLA_DATA", conflicts_with = "ephemeral")]
    pub data: Option<PathBuf>,
    /// Use a temporary data folder, which is removed at the end
    #[arg(long)]
    pub ephemeral: bool,
    /// Number of tablet servers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub servers: u8,
    /// Address of the first tablet server [default: 127.0.0.1:8086, or the next free port]
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub listen: Option<String>,
    /// File to write when the cluster is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// When tablets split
    #[command(flatten)]
    pub splits: SplitArguments,
    /// When small tablets are merged
    #[command(flatten)]
    pub merges: MergeArguments,
    /// Key heat
    #[command(flatten)]
    pub heat: HeatMapArgument,
    /// Disk space below which writes that store cells are refused: bytes, or a number with K, M or G [default: 2 GiB, or a tenth
    /// of a file system below 20 GiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub disk_reserve: Option<ByteSize>,
    /// Memory for rows that are read again and again, all servers together: bytes, or a number with K, M or G; 0: none [default:
    /// 32M]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_or_zero)]
    pub scan_cache: Option<ByteSize>,
    /// Memory of each tablet server for locality groups in memory: bytes, or a number with K, M or G [default: 96 MiB for all together]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub memory_groups: Option<ByteSize>,
    /// Traces
    #[command(flatten)]
    pub traces: TraceArguments,
    /// Serve a mounttable stored in this cluster too, without authentication of callers: `ebla mt --root HOST:PORT`
    #[arg(
        long, value_name = "HOST:PORT", value_parser = process::host_port,
        num_args = 0..=1, default_missing_value = "127.0.0.1:8101",
    )]
    pub mounttable: Option<String>,
    /// Serve that mounttable as JSON over HTTP too, described by /v1/openapi.json
    #[arg(
        long, value_name = "HOST:PORT", value_parser = process::host_port,
        num_args = 0..=1, default_missing_value = "127.0.0.1:8180", requires = "mounttable",
    )]
    pub mounttable_http: Option<String>,
    /// Where to serve the web console, metrics, health and readiness over HTTP: /, /metrics, /healthz, /readyz, /debug/; off: nowhere [default: 127.0.0.1:8080,
    /// or the next free port]
    #[arg(long, value_name = "HOST:PORT|off", value_parser = http_address)]
    pub http: Option<HttpAddress>,
    /// The web console
    #[command(flatten)]
    pub console: ConsoleArguments,
    /// Name under which the cluster registers itself, for `ebla cluster list`: letters, digits, '.', '_' and '-'
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub cluster_name: ClusterName,
    /// Listen on addresses other than loopback although there is no TLS and no authentication
    #[arg(long)]
    pub insecure: bool,
    /// Connections
    #[command(flatten)]
    pub connections: ConnectionArguments,
    /// Output format; json prints the contents of the ready file on stdout
    #[arg(short = 'o', long = "output", value_parser = output::layouts(), default_value = "table")]
    pub output: Format,
}

/// The address of the HTTP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// There is no such port.
    Off,
    /// `host:port`.
    At(String),
}

/// Parses the argument of `--http`.
fn http_address(text: &str) -> Result<HttpAddress, String> {
    match text {
        "off" => Ok(HttpAddress::Off),
        address => process::host_port(address).map(HttpAddress::At).map_err(|fault| format!("{fault}, or off")),
    }
}

/// A running cluster, and its mounttable if there is one.
pub struct Running {
    /// The cluster.
    pub cluster: LocalCluster,
    /// The mounttable stored in it, if requested.
    names: Option<Server>,
    monitoring: Monitoring,
    took: Duration,
    /// What the cluster contained when it became ready.
    contents: Option<Contents>,
    /// Whether there was a cluster in the folder before.
    start: Start,
}

impl Running {
    /// Where the mounttable listens, if there is one.
    pub fn mounttable(&self) -> Option<&str> {
        self.names.as_ref().map(Server::address)
    }

    /// Stops the mounttable, then the cluster.
    pub async fn stop(self) {
        self.monitoring.stopping();
        if let Some(names) = self.names {
            names.stop().await;
        }
        self.cluster.stop().await;
    }

    /// Address of the first tablet server.
    pub fn first_address(&self) -> &str {
        self.cluster.servers.first().map_or("", ebla_tablet_server::TabletServer::address)
    }
}

/// Runs until Ctrl-C or SIGTERM, or until a part fails.
///
/// # Errors
/// The reason why it cannot start or go on, and what to do.
pub async fn run(up: Up, runtime: Runtime) -> Result<(), Failure> {
    let runtime = up.connections.limit(runtime);
    let mut signals = Signals::watch()?;
    let Some(running) = start(&up, &mut signals, &runtime).await? else { return Ok(()) };
    let mut served = announce(&up, &running, &runtime);
    if served.is_ok() {
        served = tokio::select! {
            () = signals.next() => Ok(()),
            failed = running.cluster.failed() => Err(failed.into()),
        };
        eprintln!("\nstopping: draining, flushing");
    }
    signals.stop(running.stop()).await;
    served
}

/// Starts the cluster that the arguments describe; `None` when a signal arrived before it was ready. Arguments, addresses and
/// the folder are checked before anything is started. When one part fails to start, the others are stopped.
///
/// # Errors
/// As [`run`].
pub async fn start(up: &Up, signals: &mut Signals, runtime: &Runtime) -> Result<Option<Running>, Failure> {
    let started = runtime.clock.monotonic();
    let listen = match &up.listen {
        Some(listen) => listen.clone(),
        None => first_free(DEFAULT_ADDRESS).await,
    };
    let addresses = addresses(up, &listen);
    for Listen { address, .. } in &addresses {
        process::check_exposure(address, Exposure::from(up.insecure).with_tls_of(&runtime.net))?;
    }
    if let Some(file) = &up.ready_file {
        process::check_ready(file)?;
    }
    let folder = match &up.data {
        _ if up.ephemeral => DataFolder::ephemeral()?,
        Some(data) => DataFolder::claim(data)?,
        None => DataFolder::claim(DEFAULT_DATA.as_ref())?,
    };
    if let Err(failure) = process::check_free(&addresses).await {
        folder.discard();
        return Err(failure);
    }
    let start = Start::of(folder.path());
    let config = LocalConfig {
        servers: up.servers.into(),
        listen: listen.clone(),
        splits: up.splits,
        traces: up.traces.options(),
        collector: up.traces.otlp.clone(),
        merges: up.merges.rules(),
        disk_reserve: up.disk_reserve,
        scan_cache: up.scan_cache,
        memory_groups: up.memory_groups,
        heat: up.heat.heat_map,
        cluster_name: up.cluster_name.clone(),
    };
    let monitoring = match monitor(up, &addresses, runtime).await {
        Ok(monitoring) => monitoring,
        Err(failure) => {
            folder.discard();
            return Err(failure);
        }
    };
    let Some(cluster) = LocalCluster::start(config, folder, signals.next(), runtime).await? else { return Ok(None) };
    let of_names = runtime.child("names");
    let failed = match signals.unless_signalled(serve_names(up, &cluster, &of_names)).await {
        Some(Ok(names)) => {
            let took = runtime.clock.monotonic().saturating_sub(started);
            let contents = cluster.master.contents().await;
            show(&monitoring, &cluster, names.as_ref());
            if let Some(server) = cluster.servers.first() {
                let mounttable = names.iter().map(|names| mt::rooted(names.address())).collect();
                let parts = ConsoleParts { role: "up", server, access: AccessMode::Open, mounttable };
                monitoring.add_console(up.console.site(parts, runtime));
            }
            return Ok(Some(Running { cluster, names, monitoring, took, contents, start }));
        }
        Some(Err(failure)) => Err(failure),
        None => Ok(None),
    };
    of_names.tasks.stop(STOP_GRACE).await;
    cluster.stop().await;
    failed
}

/// What the process shows over HTTP; the port is open from now on.
async fn monitor(up: &Up, taken: &[Listen<'_>], runtime: &Runtime) -> Result<Monitoring, Failure> {
    let monitoring = Monitoring::new("up", runtime);
    match &up.http {
        Some(HttpAddress::Off) => Ok(monitoring),
        Some(HttpAddress::At(address)) => monitoring.listen(Some(address), runtime).await,
        None => Ok(monitoring.listen_near(DEFAULT_HTTP, taken, runtime).await),
    }
}

/// Shows the figures of all parts. The process can serve when all of them can.
fn show(monitoring: &Monitoring, cluster: &LocalCluster, names: Option<&Server>) {
    monitoring.register(&[cluster.master.metrics()]);
    cluster.servers.iter().for_each(|server| monitoring.register(server.metrics()));
    let mut checks: Vec<_> = cluster.servers.iter().map(TabletServer::readiness).collect();
    checks.push(cluster.master.readiness());
    if let Some(names) = names {
        monitoring.register(&[names.metrics()]);
        checks.push(Arc::new(names.readiness()));
    }
    monitoring.readiness.decide_by(move || checks.iter().try_for_each(|check| check()));
}

/// The addresses to listen on that are known before the start.
fn addresses<'a>(up: &'a Up, listen: &'a str) -> Vec<Listen<'a>> {
    let names = [("--mounttable", &up.mounttable), ("--mounttable-http", &up.mounttable_http)];
    let names = names.into_iter().filter_map(|(option, address)| Some((option, address.as_deref()?)));
    let http = match &up.http {
        Some(HttpAddress::At(address)) => Some(("--http", address.as_str())),
        Some(HttpAddress::Off) | None => None,
    };
    let all = std::iter::once(("--listen", listen)).chain(names).chain(http);
    all.map(|(option, address)| Listen { option, address }).collect()
}

/// Serves a mounttable stored in the cluster, if requested.
async fn serve_names(up: &Up, cluster: &LocalCluster, runtime: &Runtime) -> Result<Option<Server>, Failure> {
    let Some(listen) = &up.mounttable else { return Ok(None) };
    let Some(first) = cluster.servers.first() else { return Ok(None) };
    let names = Mounttable::beside(first.address(), listen, up.mounttable_http.as_deref())?;
    let client = Client::in_process(first.cluster().clone(), first.address(), runtime.clone());
    Ok(Some(Box::pin(mounttable::serve(&names, mounttable::in_cluster(&names, &client), runtime)).await?))
}

/// Reports that the cluster is ready: writes the ready file, then a block on stderr (or JSON on stdout).
///
/// # Errors
/// When the ready file cannot be written.
pub fn announce(up: &Up, running: &Running, runtime: &Runtime) -> Result<(), Failure> {
    let ready = Ready::of(up, running, &runtime.net);
    if let Some(file) = &up.ready_file {
        process::write_ready(file, &ready.object())?;
    }
    if up.output == Format::Json {
        output::print(&format!("{}\n", ready.object()));
    }
    eprint!("{}", ready.block());
    Ok(())
}

/// The address itself, or the same host with the next free port, so that two clusters can run with default options.
pub(super) async fn first_free(address: &str) -> String {
    let Some((host, port)) = address.rsplit_once(':') else { return address.to_owned() };
    let first: u16 = port.parse().unwrap_or(0);
    for port in first..first.saturating_add(100) {
        let candidate = format!("{host}:{port}");
        if tokio::net::TcpListener::bind(&candidate).await.is_ok() {
            return candidate;
        }
    }
    format!("{host}:0")
}
