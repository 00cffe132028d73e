//! `ebla master`: a master as a process of its own, in office or waiting to be.

use std::time::Duration;

use ebla_master::MasterConfig;
use ebla_mounttable_namespace::Publisher;
use ebla_runtime::Runtime;
use serde_json::json;

use super::role::Role;
use crate::output::Failure;
use crate::process::{self, Signals};

/// Run a master. Run two: one is in office, the other takes over when it ends.
///
/// All that a master knows stands in etcd and with the tablet servers: its folder holds only the lock that keeps a second
/// process out.
///
/// Example:
///   ebla master --etcd http://127.0.0.1:2379 --listen 127.0.0.1:8085 --data ./master-1
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Master {
    /// As for every process of a cluster
    #[command(flatten)]
    pub role: Role,
    /// Replicas of each new tablet; a new cluster waits for so many tablet servers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub replicas: u8,
    /// How long a tablet server may be missed before its replicas are made elsewhere
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub repair_grace: u32,
}

/// Runs until Ctrl-C or SIGTERM. Ready means that it serves and runs for office.
///
/// # Errors
/// What kept it from starting, with one thing to do.
pub async fn run(master: Master, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let chubby = master.role.begin(&runtime).await?;
    let _lock = process::lock(&master.role.data)?;
    let config = MasterConfig {
        advertise: master.role.advertise.clone(),
        lease_ttl: master.role.lease_ttl(),
        repair_grace: Duration::from_secs(master.repair_grace.into()),
        ..MasterConfig::new(&master.role.listen, master.replicas.into())
    };
    let running = ebla_master::Master::start(config, chubby, runtime.clone()).await?;
    let mut published = None;
    let served = signals.unless_told(serve(&master.role, &running, &mut published, &runtime)).await.unwrap_or(Ok(()));
    eprintln!("stopping: leaving office");
    let orderly = async {
        if let Some(publisher) = published {
            publisher.shutdown().await;
        }
        running.stop().await;
    };
    signals.stop(orderly).await;
    served
}

/// Publishes the master, tells that it is ready, and ends only when that fails.
async fn serve(
    role: &Role,
    running: &ebla_master::Master,
    published: &mut Option<Publisher>,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let address = running.address();
    *published = role.publish(&format!("ebla/masters/{address}"), address, runtime).await?;
    let ready = json!({"role": "master", "address": address, "pid": std::process::id()});
    role.announce("master", address, &ready)?;
    std::future::pending().await
}
