//! `ebla master`: a master as a separate process, active or standby.

use std::time::Duration;

use ebla_master::MasterConfig;
use ebla_master::plan::replica_balance::ReplicaBalance;
use ebla_model::cluster_name::ClusterName;
use ebla_runtime::Runtime;
use serde_json::json;

use super::console;
use super::heat_map::HeatMapArgument;
use super::merges::MergeArguments;
use super::node::{Announcement, NodeArguments};
use super::tablet_server::TraceArguments;
use crate::output::Failure;
use crate::process::{self, Signals, Users};

/// Run a master. Run two: one is active, and the standby takes over when it stops.
///
/// A master stores all its state in etcd and in tablets. Its folder contains only the lock file that excludes a second
/// process.
///
/// Example:
///   ebla master --etcd http://127.0.0.1:2379 --listen 127.0.0.1:8085 --data ./master-1
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Master {
    /// Options of every process of a cluster
    #[command(flatten)]
    pub node: NodeArguments,
    /// Replicas of each new tablet; a new cluster waits for this number of tablet servers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub replicas: u8,
    /// Seconds that a tablet server may be unavailable before its replicas are created on other servers
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub repair_grace: u32,
    /// When small tablets are merged
    #[command(flatten)]
    pub merges: MergeArguments,
    /// Key heat
    #[command(flatten)]
    pub heat: HeatMapArgument,
    /// Whether replicas move between healthy servers so that all have about as much, and groups divide until there is one for each
    /// server
    #[arg(long, value_name = "on|off", value_enum, default_value = "on")]
    pub balance: Balance,
    /// Seconds for which every master and tablet server must support a later cluster version before it becomes active
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub upgrade_delay: u32,
    /// Name under which the cluster registers itself, for `ebla cluster list`: letters, digits, '.', '_' and '-'
    #[arg(long, value_name = "NAME", default_value_t)]
    pub cluster_name: ClusterName,
    /// Traces
    #[command(flatten)]
    pub traces: TraceArguments,
}

/// Whether replicas move between healthy servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Balance {
    /// They do.
    On,
    /// They do not.
    Off,
}

impl From<Balance> for ReplicaBalance {
    fn from(balance: Balance) -> Self {
        match balance {
            Balance::On => Self::On,
            Balance::Off => Self::Off,
        }
    }
}

/// Runs until Ctrl-C or SIGTERM. Ready means that the master serves and takes part in the election.
///
/// # Errors
/// The reason why it cannot start, and what to do.
pub async fn run(master: Master, runtime: Runtime) -> Result<(), Failure> {
    let runtime = master.node.connections.limit(runtime);
    let mut signals = Signals::watch()?;
    let chubby = master.node.prepare(&runtime).await?;
    let _lock = process::lock(&master.node.data)?;
    let monitoring = master.node.monitor("master", &runtime).await?;
    let config = MasterConfig {
        advertise: master.node.advertise.clone(),
        lease_ttl: master.node.lease_ttl(),
        repair_grace: Duration::from_secs(master.repair_grace.into()),
        merges: master.merges.rules(),
        replica_balance: master.balance.into(),
        heat: master.heat.heat_map,
        upgrade_delay: Duration::from_secs(master.upgrade_delay.into()),
        cluster_name: master.cluster_name,
        traces: master.traces.options(),
        collector: master.traces.otlp.clone(),
        ..MasterConfig::new(&master.node.listen, master.replicas.into())
    };
    monitoring.name_console(console::ELSEWHERE);
    let running = ebla_master::Master::start(config, chubby, runtime.clone()).await?;
    let address = running.address();
    monitoring.register(&[running.metrics()]);
    let check = running.readiness();
    monitoring.readiness.decide_by(move || check());
    let announcement = Announcement {
        process: "master".to_owned(),
        address,
        http: monitoring.address(),
        name: format!("ebla/masters/{address}"),
        ready: json!({"role": "master", "address": address, "pid": std::process::id()}),
        users: Users::Elsewhere,
    };
    let mut published = None;
    let serve = master.node.serve(announcement, std::future::ready(()), &mut published, &runtime);
    let served = signals.unless_signalled(serve).await.unwrap_or(Ok(()));
    monitoring.stopping();
    eprintln!("stopping: resigning as master");
    let graceful = async {
        if let Some(publisher) = published {
            publisher.shutdown().await;
        }
        running.stop().await;
    };
    signals.stop(graceful).await;
    served
}
