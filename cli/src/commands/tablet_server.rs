//! `ebla tablet-server`: a tablet server as a process of its own.

use std::time::Duration;

use ebla_mounttable_namespace::Publisher;
use ebla_runtime::Runtime;
use ebla_runtime::units::ByteSize;
use ebla_tablet_server::{ServerConfig, ServerOptions};
use serde_json::json;

use super::role::Role;
use crate::output::Failure;
use crate::process::Signals;

/// How long a server that serves is given to register before it says that it is ready: without etcd it serves all the same.
const REGISTER_MAX: Duration = Duration::from_secs(5);
/// What the tasks of a server that did not start may take to end.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Run a tablet server: the Bigtable API, and replicas of tablets in its folder.
///
/// SIGTERM hands its tablets to the other servers before it ends; a second one ends it at once, as kill -9 does, which is as
/// safe.
///
/// Example:
///   ebla tablet-server --etcd http://127.0.0.1:2379 --listen 127.0.0.1:8086 --data ./server-1
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct TabletServer {
    /// As for every process of a cluster
    #[command(flatten)]
    pub role: Role,
    /// A tablet larger than this splits: bytes, or a number with K, M, G (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub split_bytes: Option<ByteSize>,
}

/// Runs until Ctrl-C or SIGTERM. Ready means that it serves, and is registered where etcd is there.
///
/// # Errors
/// What kept it from starting, or from taking part in the cluster, with one thing to do.
pub async fn run(server: TabletServer, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let chubby = server.role.begin(&runtime).await?;
    let mut options = ServerOptions { lease_ttl: server.role.lease_ttl(), ..ServerOptions::server() };
    if let Some(size) = server.split_bytes {
        options.split_bytes = size;
    }
    let config = ServerConfig {
        data_dir: server.role.data.clone(),
        listen: server.role.listen.clone(),
        advertise: server.role.advertise.clone(),
        options,
    };
    // The server locks its folder itself.
    let start = ebla_tablet_server::TabletServer::start(config, chubby, runtime.clone());
    let running = match signals.unless_told(start).await {
        Some(Ok(running)) => running,
        unfinished => {
            // What a half-started server has left running.
            runtime.tasks.stop(STOP_GRACE).await;
            return unfinished.map_or(Ok(()), |failed| failed.map(drop)).map_err(Failure::from);
        }
    };
    let mut published = None;
    let served = tokio::select! {
        served = signals.unless_told(serve(&server.role, &running, &mut published, &runtime)) => served.unwrap_or(Ok(())),
        refused = running.registration_refused() => Err(refused.into()),
    };
    eprintln!("stopping: handing tablets over, draining, flushing");
    let orderly = async {
        // First, so that nobody is sent here any more.
        if let Some(publisher) = published {
            publisher.shutdown().await;
        }
        running.drain().await;
        running.stop().await;
    };
    signals.stop(orderly).await;
    served
}

/// Publishes the server, tells that it is ready, and ends only when that fails.
async fn serve(
    role: &Role,
    running: &ebla_tablet_server::TabletServer,
    published: &mut Option<Publisher>,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let (address, id) = (running.address(), running.id());
    *published = role.publish(&format!("ebla/tablet-servers/{id}"), address, runtime).await?;
    // Not registered in time, it serves all the same.
    let _late = tokio::time::timeout(REGISTER_MAX, running.ready()).await;
    let ready = json!({"role": "tablet-server", "bigtable": address, "pid": std::process::id(), "server": id.get()});
    role.announce(&format!("tablet server {id}"), address, &ready)?;
    std::future::pending().await
}
