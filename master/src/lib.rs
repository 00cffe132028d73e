//! The master: manages the cluster's metadata. Reads and writes of rows never pass through it.
//!
//! ```text
//!   mastership  election       standby -> active master -> standby; the lock `master` in Chubby, its epoch fences all
//!   bootstrap                  the cluster's id; the first tablets of a new cluster
//!   observation -> cluster (snapshot) -> plan (pure) -> reconciler     every minute, and on request
//!   metrics                    what a monitoring system reads
//!   health  events  alerts     health of the tablets; what operators read in the log, such as a quorum loss
//!   group_status               groups, and how far the replicas of one are in its log
//!   problems  problem_watch    what is wrong and since when, for status requests; it looks every ten seconds
//!   lag                        replicas that are far behind
//!   event_log                  events of the cluster, kept in Chubby for `ebla events`
//!   registration               the cluster's description of itself in Chubby
//!   check                      the check of the cluster that an operator requests
//!   heat                       which keys of tables are used: its table, heat maps, hot tablets
//!   usage  loads               what tables cost, and their quotas; the busiest tables and tablets
//!   upgrade                    the active cluster version: when it rises, and an operator's hold
//!   replica_changes            replica repair in the background: the changes that a plan has started
//!   merging  relocation        merges and moves of tablets
//!   recovery                   an operator's recovery of a Chubby that has lost data
//!   jobs                       changes of tables: intent in Chubby first, then steps that can be repeated
//!   instances  profiles        instances and app profiles
//!   operations                 results of long-running operations
//!   schema_store               typed records in Chubby's files
//!   server_client  routing     requests to tablet servers: to one, to a tablet's leader, to all tablets of a range
//!   traces                     what its operations wait for
//!   admin  operator            the APIs that are served
//! ```
//!
//! Invariants: an action is fenced three ways (ARCHITECTURE.md, invariant 6): transactions by the lock's create
//! revision, requests to servers by (cluster id, master epoch), requests about a tablet by its expected generation and
//! membership. [`cluster`] and [`plan`] are pure. All durable state is in Chubby and in the tablets: a new master needs
//! no memory of the previous one.

mod active;
mod admin;
pub mod alerts;
mod bootstrap;
mod check;
pub mod cluster;
mod division;
mod drain;
mod election;
mod event_limit;
mod event_log;
pub mod events;
#[cfg(test)]
#[path = "../../tests/golden.rs"]
mod golden;
mod group_status;
pub mod health;
mod heat;
mod instances;
mod jobs;
mod lag;
mod loads;
mod mastership;
mod merging;
pub mod metrics;
mod observation;
mod operations;
mod operator;
pub mod plan;
mod problem_watch;
mod problems;
mod profiles;
mod quorum_loss;
mod reconciler;
mod recovery;
mod registration;
mod relocation;
mod replica_changes;
mod restoration;
mod routing;
mod schema_store;
mod server_client;
mod splitting;
mod traces;
mod upgrade;
mod usage;
mod views;

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_model::cluster_name::ClusterName;
use ebla_model::cluster_version::SupportedVersions;
use ebla_model::error::{Error, Reason};
use ebla_model::heat::HeatOption;
use ebla_model::schema::TableState;
use ebla_proto::DESCRIPTORS;
use ebla_proto::health::health_server::{self, HealthServer};
use ebla_proto::operate::operate_server::{self, OperateServer};
use ebla_proto::services::bigtable_instance_admin_server::{self, BigtableInstanceAdminServer};
use ebla_proto::services::bigtable_table_admin_server::{self, BigtableTableAdminServer};
use ebla_proto::services::operations_server::{self, OperationsServer};
use ebla_proto::status::to_status;
use ebla_proto::trace::server_traces_server::ServerTracesServer;
use ebla_proto::{convert, record};
use ebla_routing::{
    ChubbyDirectory, CollectorAddress, HealthService, ReadinessCheck, ServerTracesService, start_trace_export,
};
use ebla_runtime::metrics::Source;
use ebla_runtime::trace::{MASTER, Origin, Recorder, TraceOptions, WithTrace};
use ebla_runtime::{Runtime, ServeOptions, add_reflection, serve};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

use crate::active::ActiveMaster;
use crate::bootstrap::PendingBootstrap;
use crate::health::Health;
use crate::mastership::Mastership;
use crate::metrics::{MasterMetrics, MasterSource};
pub use crate::plan::auto_merge::MergeRules;
use crate::plan::replica_balance::ReplicaBalance;
use crate::traces::TracedChubby;

/// The delay between two checks whether every tablet has a leader.
const READY_DELAY: Duration = Duration::from_millis(20);
/// How long calls in progress may take at a graceful stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the other tasks may take then.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The services that server reflection lists.
const DESCRIBED_SERVICES: [&str; 5] = [
    bigtable_table_admin_server::SERVICE_NAME,
    bigtable_instance_admin_server::SERVICE_NAME,
    operations_server::SERVICE_NAME,
    operate_server::SERVICE_NAME,
    health_server::SERVICE_NAME,
];

/// The default time that a server may be down before its replicas are replaced.
pub const REPAIR_GRACE: Duration = Duration::from_secs(30);
/// The default time for which every process must support a later cluster version before it becomes active.
pub const UPGRADE_DELAY: Duration = Duration::from_secs(60);

/// The configuration of a master.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Where to listen, `host:port`; port 0 picks a free one.
    pub listen: String,
    /// The address that others connect to; `None`: the address that was bound.
    pub advertise: Option<String>,
    /// Replicas of each new tablet, if there are as many servers.
    pub replicas: usize,
    /// Servers that a new cluster waits for before its first tablets are created; each gets a replica.
    pub bootstrap_servers: usize,
    /// The TTL of the master lock: how long a standby waits after the active master was killed.
    pub lease_ttl: Duration,
    /// How long a server may be down before its replicas are replaced: longer than a restart takes.
    pub repair_grace: Duration,
    /// When small tablets are merged.
    pub merges: MergeRules,
    /// Whether replicas are moved between healthy servers.
    pub replica_balance: ReplicaBalance,
    /// For how long every process must support a later cluster version before it becomes active.
    pub upgrade_delay: Duration,
    /// The cluster versions that this process supports and registers: those of its release.
    pub versions: SupportedVersions,
    /// Whether key heat is collected: the same as of the tablet servers.
    pub heat: HeatOption,
    /// The name under which the cluster registers itself in Chubby.
    pub cluster_name: ClusterName,
    /// Which of its operations are recorded.
    pub traces: TraceOptions,
    /// The collector that gets the records of its traces, if there is one.
    pub collector: Option<CollectorAddress>,
}

impl MasterConfig {
    /// `replicas` for each tablet, and as many servers to bootstrap; a lease of 10 s and a grace of 30 s; merges below 64 MiB after
    /// an hour; replica balance; a later cluster version after a minute; no key heat; the name `ebla`; the default traces, for no collector.
    #[must_use]
    pub fn new(listen: &str, replicas: usize) -> Self {
        let replicas = replicas.max(1);
        Self {
            listen: listen.to_owned(),
            advertise: None,
            replicas,
            bootstrap_servers: replicas,
            lease_ttl: Duration::from_secs(10),
            repair_grace: REPAIR_GRACE,
            merges: MergeRules::default(),
            replica_balance: ReplicaBalance::On,
            upgrade_delay: UPGRADE_DELAY,
            versions: SupportedVersions::OWN,
            heat: HeatOption::Off,
            cluster_name: ClusterName::default(),
            traces: TraceOptions::default(),
            collector: None,
        }
    }
}

/// What a cluster contains, and the health of its tablets.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The health of the tablets.
    pub health: Health,
    /// Tables of users.
    pub tables: usize,
    /// The size of one replica of each tablet.
    pub tablet_bytes: u64,
}

/// A running master: active or standby.
pub struct Master {
    address: String,
    active: watch::Receiver<Option<ActiveMaster>>,
    directory: ChubbyDirectory,
    metrics: Arc<dyn Source>,
    /// Serves calls; stopped first.
    serving: Runtime,
    runtime: Runtime,
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Master {
    /// Binds, serves, and campaigns for the master lock. Its tasks are a group of their own under `runtime`'s.
    ///
    /// # Errors
    /// `Unavailable` when the address cannot be bound; `FailedPrecondition` when this release does not support the active cluster version.
    pub fn start(
        config: MasterConfig,
        chubby: SharedChubby,
        runtime: Runtime,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let runtime = runtime.child("master");
            upgrade::check_active(config.versions, &*chubby).await?;
            let listener = runtime.net.listen(&config.listen).await;
            let listener = listener
                .map_err(|error| Error::new(Reason::Unavailable, format!("listen on {}: {error}", config.listen)))?;
            let address = config.advertise.clone().unwrap_or_else(|| listener.local_addr().to_string());
            let master = record::Master {
                address: address.clone(),
                incarnation: runtime.rng.u64(),
                release: env!("CARGO_PKG_VERSION").to_owned(),
                versions: Some(convert::supported_to_proto(config.versions)),
                ..Default::default()
            };
            let (sender, active) = watch::channel(None);
            let serving = runtime.child("serving");
            let (pending, bootstrap) = watch::channel(None);
            let chubby = TracedChubby::shared(chubby);
            let directory = ChubbyDirectory::start(chubby.clone(), &runtime);
            let recorder = Recorder::new(MASTER, config.traces, runtime.clock.clone());
            if let Some(collector) = &config.collector {
                start_trace_export(&recorder, collector, &runtime)?;
            }
            let check = readiness(&active, &directory, &serving);
            let health = HealthServer::new(HealthService::new(&[], check, serving.tasks.token()));
            let routes = routes((&active, &bootstrap), &master, &recorder, &runtime).add_service(health);
            let routes = add_reflection(routes, DESCRIPTORS, &DESCRIBED_SERVICES, &serving.tasks.token())?;
            serve(&serving.tasks, listener, routes, ServeOptions::default());
            let metrics = MasterMetrics::default();
            let source =
                MasterSource { metrics: metrics.clone(), active: active.clone(), clock: runtime.clock.clone() };
            let mastership = Mastership {
                config,
                chubby,
                directory: directory.clone(),
                runtime: runtime.clone(),
                serving: serving.tasks.clone(),
                metrics,
                recorder,
                record: master,
                active: sender,
                pending,
            };
            runtime.tasks.spawn("mastership", mastership.run());
            Ok(Self { address, active, directory, metrics: Arc::new(source), serving, runtime })
        })
    }

    /// Where it listens, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it tells a monitoring system.
    #[must_use]
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::clone(&self.metrics)
    }

    /// Whether the master can do its work: it is the active one, or a standby that has read Chubby's files. The error is the reason.
    #[must_use]
    pub fn readiness(&self) -> ReadinessCheck {
        readiness(&self.active, &self.directory, &self.serving)
    }

    /// Returns when this is the active master, the cluster is running, and every tablet has a leader that responds.
    /// Cancel-safe.
    pub async fn ready(&self) {
        let mut active = self.active.clone();
        loop {
            let master = match active.wait_for(Option::is_some).await {
                Ok(master) => master.clone(),
                // The master was stopped; it will never be ready.
                Err(_stopped) => return std::future::pending().await,
            };
            if let Some(master) = master
                && observation::observe(&master).await.is_ok_and(|snapshot| snapshot.has_all_leaders())
            {
                return;
            }
            tokio::time::sleep(READY_DELAY).await;
        }
    }

    /// What the cluster contains and how it is; `None` while this master is a standby, or cannot read METADATA.
    pub async fn contents(&self) -> Option<Contents> {
        let master = self.active.borrow().clone()?;
        let snapshot = observation::observe(&master).await.ok()?;
        let leaders = snapshot.leader_reports();
        let sizes = leaders.values().map(|(_server, report)| report.size_bytes());
        Some(Contents {
            health: Health::of(&snapshot, master.replicas()),
            tables: snapshot
                .tables
                .values()
                .filter(|table| table.state == TableState::Active && !table.name.is_system())
                .count(),
            tablet_bytes: sizes.fold(0, u64::saturating_add),
        })
    }

    /// Graceful stop: accepts no more calls, drains those in progress, releases the master lock. A standby takes over
    /// without waiting for a lease to expire, and finishes all changes that are incomplete.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // A broken connection tells later callers that nothing was done: they retry until another master is active.
            self.serving.tasks.stop(DRAIN_TIMEOUT).await;
            self.runtime.tasks.stop(STOP_TIMEOUT).await;
        })
    }

    /// Stops as a crash does: connections break, the lock stays until its lease expires.
    pub fn abort(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.runtime.tasks.stop(Duration::ZERO).await;
        })
    }
}

/// See [`Master::readiness`].
fn readiness(
    active: &watch::Receiver<Option<ActiveMaster>>,
    directory: &ChubbyDirectory,
    serving: &Runtime,
) -> ReadinessCheck {
    let (active, directory, stopping) = (active.clone(), directory.clone(), serving.tasks.token());
    Arc::new(move || {
        if stopping.is_cancelled() {
            return Err("the master is stopping".to_owned());
        }
        // The copy of Chubby's files answers at once.
        let has_read = active.borrow().is_some() || directory.ready().now_or_never().is_some();
        if has_read {
            return Ok(());
        }
        Err("the master has not read Chubby's files yet: are etcd's addresses right, and is it up?".to_owned())
    })
}

/// Passes the requests of members of the cluster on.
fn members_only(request: Request<()>) -> Result<Request<()>, Status> {
    match ebla_runtime::members_only(request.extensions()) {
        Ok(()) => Ok(request),
        Err(error) => Err(to_status(&error)),
    }
}

fn routes(
    (active, pending): (&watch::Receiver<Option<ActiveMaster>>, &watch::Receiver<Option<PendingBootstrap>>),
    master: &record::Master,
    recorder: &Arc<Recorder>,
    runtime: &Runtime,
) -> Routes {
    let handle = admin::handle::MasterHandle::new(active.clone());
    let tables = admin::tables::Tables::new(handle.clone());
    let operator = operator::Operator::new(handle.clone(), pending.clone(), master.clone(), runtime.net.clone());
    let instances = BigtableInstanceAdminServer::new(admin::instances::Instances::new(handle.clone()));
    let operations = OperationsServer::new(admin::operations::OperationsService::new(handle));
    let traces = ServerTracesServer::new(ServerTracesService::new(Arc::clone(recorder)));
    // Users call them through tablet servers, which check their rights.
    Routes::new(InterceptedService::new(traced(BigtableTableAdminServer::new(tables), recorder), members_only))
        .add_service(InterceptedService::new(traced(OperateServer::new(operator), recorder), members_only))
        .add_service(InterceptedService::new(traced(instances, recorder), members_only))
        .add_service(InterceptedService::new(traced(operations, recorder), members_only))
        .add_service(InterceptedService::new(traces, members_only))
}

/// A service whose calls are recorded: after the check of the caller, because the caller decides whether a trace is sampled.
fn traced<S>(service: S, recorder: &Arc<Recorder>) -> WithTrace<S> {
    WithTrace::new(service, Arc::clone(recorder), Origin::Server)
}
