//! `ebla up`: a cluster in one process, until Ctrl-C.

use std::path::PathBuf;
use std::time::Duration;

use ebla_master::health::Health;
use ebla_mounttable::server::Server;
use ebla_runtime::Runtime;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::DEFAULT_ADDRESS;
use super::mounttable::{self, Mounttable};
use crate::local::{LocalCluster, LocalConfig};
use crate::output::{self, Failure, Format};
use crate::process::{self, Signals};

/// Replicas that a tablet gets where there are as many servers.
const REPLICAS_MAX: usize = 3;
/// Where data is kept when nothing else is said.
const DEFAULT_DATA: &str = "./ebla-data";

/// Run a cluster in this process.
///
/// Examples:
///   ebla up
///   ebla up --ephemeral --listen 127.0.0.1:0 --ready-file ready.json
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Up {
    /// The folder that data is kept in
    #[arg(long, value_name = "DIR", env = "EBLA_DATA", conflicts_with = "ephemeral")]
    pub data: Option<PathBuf>,
    /// Keep nothing: a temporary folder, removed at the end
    #[arg(long)]
    pub ephemeral: bool,
    /// Tablet servers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub servers: u8,
    /// The first tablet server's address; the default falls to the next free port when it is taken
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Written, whole, when everything serves
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// A tablet larger than this many bytes splits
    #[arg(long, value_name = "BYTES")]
    pub split_bytes: Option<u64>,
    /// Serve a mounttable of this cluster too, and believe its callers: `ebla mt --root HOST:PORT`
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:8101")]
    pub mounttable: Option<String>,
    /// Serve that mounttable as JSON over HTTP too: /v1/openapi.json describes it
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:8180", requires = "mounttable")]
    pub mounttable_http: Option<String>,
    /// Serve beyond loopback although there is no TLS and no login
    #[arg(long)]
    pub insecure: bool,
    /// `json`: print the ready object on stdout
    #[arg(short = 'o', long = "output", value_enum, default_value = "table")]
    pub output: Format,
}

/// A cluster with what it was started from.
pub struct Running {
    /// The cluster.
    pub cluster: LocalCluster,
    /// A table of names in it, if one was asked for.
    names: Option<Server>,
    data: PathBuf,
    kept: Option<TempDir>,
    took: Duration,
    /// How many replicas tablets had when all served.
    health: Option<Health>,
}

impl Running {
    /// Stops what serves: what stands on the cluster before the cluster.
    pub async fn stop(self) {
        if let Some(names) = self.names {
            names.stop().await;
        }
        self.cluster.stop().await;
    }

    /// Where the first tablet server listens.
    pub fn first_address(&self) -> &str {
        self.cluster.servers.first().map_or("", ebla_tablet_server::TabletServer::address)
    }
}

/// Runs until Ctrl-C or SIGTERM.
///
/// # Errors
/// What kept it from starting, with one thing to do.
pub async fn run(up: Up, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let Some(running) = signals.unless_told(start(&up, &runtime)).await.transpose()? else { return Ok(()) };
    announce(&up, &running)?;
    signals.next().await;
    eprintln!("\nstopping: draining, flushing");
    signals.stop(running.stop()).await;
    Ok(())
}

/// Starts the cluster that the arguments describe.
///
/// # Errors
/// As [`run`].
pub async fn start(up: &Up, runtime: &Runtime) -> Result<Running, Failure> {
    let started = runtime.clock.monotonic();
    let kept = if up.ephemeral { Some(tempfile::tempdir()?) } else { None };
    let data = match (&kept, &up.data) {
        (Some(folder), _) => folder.path().to_path_buf(),
        (None, Some(data)) => data.clone(),
        (None, None) => PathBuf::from(DEFAULT_DATA),
    };
    let listen = match &up.listen {
        Some(listen) => listen.clone(),
        None => first_free(DEFAULT_ADDRESS).await,
    };
    process::check_exposure(&listen, up.insecure)?;
    let config = LocalConfig { data: data.clone(), servers: up.servers.into(), listen, split_bytes: up.split_bytes };
    let cluster = LocalCluster::start(config, runtime).await?;
    let names = match &up.mounttable {
        Some(listen) => {
            let http = up.mounttable_http.as_deref();
            for listen in [Some(listen.as_str()), http].into_iter().flatten() {
                process::check_exposure(listen, up.insecure)?;
            }
            let first = cluster.addresses().into_iter().next().unwrap_or_default();
            Some(Box::pin(mounttable::serve(&Mounttable::beside(&first, listen, http)?, runtime)).await?)
        }
        None => None,
    };
    let took = runtime.clock.monotonic().saturating_sub(started);
    let health = cluster.master.health().await;
    Ok(Running { cluster, names, data, kept, took, health })
}

/// Tells that all serves: the ready file, then the block on stderr (or JSON on stdout).
///
/// # Errors
/// When the ready file cannot be written.
pub fn announce(up: &Up, running: &Running) -> Result<(), Failure> {
    let ready = ready_object(running);
    if let Some(file) = &up.ready_file {
        process::write_ready(file, &ready)?;
    }
    if up.output == Format::Json {
        output::print(&format!("{ready}\n"));
    }
    eprint!("{}", ready_block(up, running));
    Ok(())
}

fn ready_object(running: &Running) -> Value {
    let addresses = running.cluster.addresses();
    let server =
        |server: &ebla_tablet_server::TabletServer| json!({"id": server.id().get(), "bigtable": server.address()});
    let mut ready = json!({
        "bigtable": addresses.first(),
        "pid": std::process::id(),
        "servers": running.cluster.servers.iter().map(server).collect::<Vec<_>>(),
    });
    if let (Some(names), Some(ready)) = (&running.names, ready.as_object_mut()) {
        ready.insert("mounttable".to_owned(), names.address().into());
        if let Some(address) = names.http_address() {
            ready.insert("mounttable_http".to_owned(), address.into());
        }
    }
    ready
}

fn ready_block(up: &Up, running: &Running) -> String {
    let addresses = running.cluster.addresses();
    let first = addresses.first().map_or("", String::as_str);
    let kept = if running.kept.is_some() { "discarded at the end" } else { "kept; use --ephemeral to discard" };
    let mut block = format!(
        "ebla {}   data {} ({kept})\n\n  ready in {:.1} s    master 1    tablet servers {count}/{count}\n\n",
        env!("CARGO_PKG_VERSION"),
        running.data.display(),
        running.took.as_secs_f64(),
        count = addresses.len(),
    );
    block.push_str(&format!("  Bigtable API   {first}     export BIGTABLE_EMULATOR_HOST={first}\n"));
    if addresses.len() > 1 {
        block.push_str(&format!("  Other servers  {}\n", addresses.get(1..).unwrap_or_default().join("  ")));
    }
    if let Some(names) = &running.names {
        block
            .push_str(&format!("  Mounttable     {address}     export MT_ROOT={address}\n", address = names.address()));
        if let Some(address) = names.http_address() {
            block.push_str(&format!("  Names by HTTP  {address}     curl http://{address}/v1/openapi.json\n"));
        }
    }
    block.push_str(
        "\n  Try   ebla table create web --family anchor --family contents:maxversions=3\n        \
         ebla row set web com.cnn.www anchor:cnnsi.com=CNN\n        ebla row scan web --prefix com.\n        \
         ebla meta lookup web com.cnn.www\n\n",
    );
    block.push_str(&writes(addresses.len().min(REPLICAS_MAX), running.health.as_ref()));
    block.push_str(if up.insecure {
        " No TLS, no login (--insecure).\n"
    } else {
        " No TLS, no login: keep it on loopback.\n"
    });
    block.push_str("  Ctrl-C drains and stops. Help: ebla help\n");
    block
}

/// On how many disks writes are. A cluster that was started with fewer servers before goes on copying its tablets after it is
/// ready. `wanted`: replicas that a tablet should have.
fn writes(wanted: usize, health: Option<&Health>) -> String {
    let disks = health.and_then(|health| health.voters_min).unwrap_or(wanted);
    let majority = disks / 2 + 1;
    let plural = if disks == 1 { "disk" } else { "disks" };
    match health.map_or(0, |health| health.growing) {
        0 => format!("  Writes are on {majority} of {disks} {plural} before they are acknowledged."),
        growing => {
            let tablets = if growing == 1 { "1 tablet is".to_owned() } else { format!("{growing} tablets are") };
            format!(
                "  Writes are on {majority} of {disks} {plural} now; {tablets} being copied to {wanted} servers: see ebla status."
            )
        }
    }
}

/// The address itself, or the same host with the next free port: two clusters can run without a word said.
async fn first_free(address: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_block_tells_on_how_many_disks_writes_are_now() {
        let health = |voters, growing| Health { voters_min: Some(voters), growing, ..Health::default() };
        assert_eq!(writes(3, Some(&health(3, 0))), "  Writes are on 2 of 3 disks before they are acknowledged.");
        assert_eq!(writes(1, Some(&health(1, 0))), "  Writes are on 1 of 1 disk before they are acknowledged.");
        assert_eq!(
            writes(3, Some(&health(1, 24))),
            "  Writes are on 1 of 1 disk now; 24 tablets are being copied to 3 servers: see ebla status."
        );
        assert!(writes(3, Some(&health(1, 1))).contains("1 tablet is being copied"));
    }
}
