//! The gRPC services on the port of a tablet server: who may call each, and what is done around its calls.

use std::sync::Arc;

use ebla_model::error::Error;
use ebla_proto::DESCRIPTORS;
use ebla_proto::control::control_server::ControlServer;
use ebla_proto::health::health_server::{self, HealthServer};
use ebla_proto::locate::locate_server::{self, LocateServer};
use ebla_proto::operate::operate_server;
use ebla_proto::services::CATALOGUE;
use ebla_proto::tablet::tablets_server::{self, TabletsServer};
use ebla_proto::trace::server_traces_server::ServerTracesServer;
use ebla_proto::trace::traces_server;
use ebla_routing::{ChubbyDirectory, HealthService, ServerTracesService};
use ebla_runtime::trace::{Origin, WithTrace};
use ebla_runtime::{Listener, Runtime, ServeOptions, add_reflection, serve};
use ebla_storage::log::CommitLog;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

use crate::control::ControlService;
use crate::deadline::WithArrival;
use crate::front::{self, FrontConfig};
use crate::guarded_tablets::GuardedTablets;
use crate::members_only::{TabletCallers, members_only, tablet_callers};
use crate::middleware::GrpcService;
use crate::raft::Network;
use crate::readiness::ServerReadiness;
use crate::response_budget::{ReadBudget, ReadService};
use crate::rpc::{LocateService, MESSAGE_BYTES_MAX, TabletService};
use crate::tablet::handler::TabletHandler;

/// The parts of which the services are built.
pub(crate) struct Services {
    /// The tablets of this server.
    pub(crate) handler: TabletHandler,
    /// The commit log, whose counters the service of locations reports.
    pub(crate) log: CommitLog,
    /// What Chubby says about the cluster.
    pub(crate) directory: ChubbyDirectory,
    /// The orders of the master.
    pub(crate) control: ControlService,
    /// Raft's network.
    pub(crate) network: Arc<Network>,
    /// The public API.
    pub(crate) front: FrontConfig,
    /// Whether the server can serve.
    pub(crate) readiness: Arc<ServerReadiness>,
}

/// The services whose health callers may ask for by name.
const HEALTH_SERVICES: &[&str] = &[
    "google.bigtable.v2.Bigtable",
    "google.bigtable.admin.v2.BigtableTableAdmin",
    "google.bigtable.admin.v2.BigtableInstanceAdmin",
];

/// Our services that server reflection lists beside those of Google: not those that only members of the cluster may call.
const OWN_SERVICES: [&str; 5] = [
    operate_server::SERVICE_NAME,
    traces_server::SERVICE_NAME,
    locate_server::SERVICE_NAME,
    tablets_server::SERVICE_NAME,
    health_server::SERVICE_NAME,
];

impl Services {
    /// Serves them on `listener` until the tasks of `runtime` are stopped; returns immediately.
    ///
    /// # Errors
    /// When access control cannot be started, or the services cannot be described.
    pub(crate) fn serve(self, listener: Listener, runtime: &Runtime) -> Result<(), Error> {
        let access = front::start_access(&self.front)?;
        let tablets = GuardedTablets::new(self.handler, access.clone());
        let tablets = TabletsServer::new(TabletService::new(tablets, self.directory.clone(), runtime.tasks.token()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let tablets = tablets.with(ReadBudget::new(ReadService::Tablets, self.front.responses.clone()));
        let tablets = WithArrival::new(tablets, runtime.clock.clone());
        let callers = if self.front.access.is_some() { TabletCallers::Trusted } else { TabletCallers::All };
        let tablets = InterceptedService::new(tablets, tablet_callers(callers));
        let control = ControlServer::new(self.control)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let traces = ServerTracesServer::new(ServerTracesService::new(Arc::clone(&self.front.recorder)))
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        // After the check of the caller, which decides whether a trace is sampled.
        let control = WithTrace::new(control, Arc::clone(&self.front.recorder), Origin::Server);
        let readiness = self.readiness;
        let health = HealthService::new(HEALTH_SERVICES, Arc::new(move || readiness.now()), runtime.tasks.token());
        let routes = Routes::new(tablets)
            .add_service(LocateServer::new(LocateService::new(
                self.directory,
                self.log,
                self.network.counters(),
                callers,
            )))
            .add_service(InterceptedService::new(control, members_only))
            .add_service(InterceptedService::new(traces, members_only))
            .add_service(InterceptedService::new(self.network.service(), members_only))
            .add_service(HealthServer::new(health));
        let (routes, load_shed) = front::add_services(routes, self.front, access);
        // Like the health service it is outside of access control: see `ebla_runtime::reflection`.
        let services: Vec<_> = CATALOGUE.iter().map(|service| service.name).chain(OWN_SERVICES).collect();
        let routes = add_reflection(routes, DESCRIPTORS, &services, &runtime.tasks.token())?;
        serve(&runtime.tasks, listener, routes, ServeOptions { load_shed, ..ServeOptions::default() });
        Ok(())
    }
}
