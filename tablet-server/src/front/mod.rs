//! The front: the public API on every tablet server.
//!
//! ```text
//!   google.bigtable.v2.Bigtable    headers -> arrival -> metrics -> caller -> admission -> budgets -> service -> validate -> access -> ebla_client::Cluster
//!                                  -> response
//!   google.bigtable.admin.v2.*     caller -> budget -> admin -> access: forwarded to the active master
//!   google.longrunning.Operations  the same
//!   ebla.operate.Operate           the same
//! ```
//!
//! A front knows no tablet and no schema: it validates the parts of a request that need neither, gives it a deadline, and
//! passes it to the cluster handle. That handle has one session, so a write is applied once however often it is sent.

mod access;
pub mod admin;
mod admission;
mod budget;
mod call_limit;
mod features;
mod headers;
mod idempotency;
mod metrics;
mod response;
mod samples;
pub mod service;
mod traces;
mod validate;

use std::sync::Arc;

use ebla_chubby::SharedChubby;
use ebla_client::Cluster;
use ebla_client::channel::Channels;
use ebla_model::Error;
use ebla_proto::{
    operate::operate_server::OperateServer,
    services::{
        bigtable_instance_admin_server::BigtableInstanceAdminServer, bigtable_server::BigtableServer,
        bigtable_table_admin_server::BigtableTableAdminServer, operations_server::OperationsServer,
    },
    trace::traces_server::TracesServer,
};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::net::Windows;
use ebla_runtime::trace::{Origin, Recorder, WithTrace};
use ebla_runtime::{Clock, LoadShed, Runtime};
use tonic::service::Routes;

use self::access::Metering;
pub(crate) use self::access::{AccessControl, TabletCall, TabletCaller};
use self::admission::CallAdmission;
use self::budget::RequestBudget;
use self::headers::ResponseHeaders;
use self::metrics::{CallMetrics, FrontService};
pub(crate) use self::metrics::{FAMILIES, FrontMetrics};
use self::traces::TraceService;
pub use self::{
    access::{AccessOptions, AuditOptions, AuditRotation, AuditedData, IdentityLimits, TokenOptions},
    admin::{AdminProxy, MasterClient},
    budget::RequestBytes,
    service::DataService,
};
use crate::deadline::WithArrival;
use crate::middleware::{GrpcService, WithMiddleware};
use crate::response_budget::{ReadBudget, ReadService, ResponseBudget};

/// The largest accepted message. A row may have 256 MiB; a single write of 100 MiB is legal.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// The approximate size of messages that list outcomes. Clients without TLS accept at most 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;
/// The bytes of admin requests that a front holds while it forwards them. They have a budget of their own: without a master they wait for
/// up to an hour, and must not take the room of data requests.
const ADMIN_BYTES: usize = 4 * admin::REQUEST_BYTES_MAX;

/// The dependencies and settings of a front.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// The cluster, through this server's router.
    pub cluster: Cluster,
    /// The source of the master's address.
    pub chubby: SharedChubby,
    /// A copy of Chubby's files, for times when Chubby is unavailable.
    pub directory: ChubbyDirectory,
    /// Clock, random numbers, network.
    pub runtime: Runtime,
    /// Memory budget of data requests.
    pub request_bytes: RequestBytes,
    /// Memory budget of the responses to reads.
    pub responses: ResponseBudget,
    /// Access control; `None`: every caller may do everything.
    pub access: Option<AccessOptions>,
    /// What counts its calls.
    pub(crate) metrics: FrontMetrics,
    /// What records its calls.
    pub(crate) recorder: Arc<Recorder>,
}

/// Starts access control, for the public services and for the service of tablets.
///
/// # Errors
/// `InvalidArgument` when its options cannot be used.
pub(crate) fn start_access(config: &FrontConfig) -> Result<AccessControl, Error> {
    AccessControl::start(config.access.clone(), &config.directory, &config.runtime)
}

/// Adds the public services and the operator's service to a server's routes. Also returns the filter that refuses calls before they reach these services.
pub(crate) fn add_services(routes: Routes, config: FrontConfig, access: AccessControl) -> (Routes, LoadShed) {
    let clock = config.runtime.clock.clone();
    let metrics = config.metrics;
    let admission = CallAdmission::new(clock.clone()).counted_by(&metrics);
    let data =
        DataService::new(config.cluster, clock.clone()).admitted_by(admission.clone()).guarded_by(access.clone());
    let data = BigtableServer::new(data).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let budget = RequestBudget::new(config.request_bytes).counted_by(&metrics, FrontService::Data);
    let data = data
        .with(budget)
        .with(Metering)
        .with(ReadBudget::new(ReadService::Public, config.responses))
        .with(admission.clone())
        .with(access.clone())
        .with(CallMetrics::new(metrics.clone(), FrontService::Data, clock.clone()));
    let recorder = config.recorder;
    let data = WithTrace::new(data, Arc::clone(&recorder), Origin::Data);
    let channels = Channels::to_peers(&config.runtime, Windows::CALLS);
    let traces = TraceService::new(Arc::clone(&recorder), config.directory.clone(), access.clone(), channels);
    let traces = TracesServer::new(traces).with(Metering).with(access.clone());
    let master = MasterClient::new(config.chubby, config.directory, config.runtime);
    let budget = RequestBudget::new(RequestBytes { total: ADMIN_BYTES, ..config.request_bytes });
    let budget = budget.counted_by(&metrics, FrontService::Admin);
    let admin = AdminParts { master, budget, access, metrics, clock: clock.clone(), recorder };
    let data = WithArrival::new(data, clock.clone()).with(ResponseHeaders::new(clock.clone()));
    let routes = routes
        .add_service(data)
        .add_service(WithArrival::new(admin.proxy::<BigtableTableAdminServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<BigtableInstanceAdminServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<OperationsServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<OperateServer<()>>(), clock))
        .add_service(traces);
    (routes, admission.load_shed())
}

/// A proxy behind the checks of its calls, the outermost one first.
type GuardedProxy<S> = WithTrace<WithMiddleware<Guarded<AdminProxy<S>>, CallMetrics>>;
/// A service behind access control and a budget.
type Guarded<S> = WithMiddleware<WithMiddleware<WithMiddleware<S, RequestBudget>, Metering>, AccessControl>;

/// What the proxies of all services of administrators share.
struct AdminParts {
    master: MasterClient,
    budget: RequestBudget,
    access: AccessControl,
    metrics: FrontMetrics,
    clock: Clock,
    recorder: Arc<Recorder>,
}

impl AdminParts {
    /// The proxy of one service.
    fn proxy<S: 'static>(&self) -> GuardedProxy<S> {
        let proxy = AdminProxy::new(self.master.clone(), self.access.clone());
        let proxy = proxy.with(self.budget.clone()).with(Metering).with(self.access.clone());
        let proxy = proxy.with(CallMetrics::new(self.metrics.clone(), FrontService::Admin, self.clock.clone()));
        WithTrace::new(proxy, Arc::clone(&self.recorder), Origin::Admin)
    }
}
