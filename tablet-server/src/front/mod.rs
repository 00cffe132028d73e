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
mod validate;

use ebla_chubby::SharedChubby;
use ebla_client::Cluster;
use ebla_model::Error;
use ebla_proto::{
    operate::operate_server::OperateServer,
    services::{
        bigtable_instance_admin_server::BigtableInstanceAdminServer, bigtable_server::BigtableServer,
        bigtable_table_admin_server::BigtableTableAdminServer, operations_server::OperationsServer,
    },
};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::{Clock, Runtime};
use tonic::service::Routes;

use self::access::{AccessControl, WithCaller};
use self::admission::{CallAdmission, WithAdmission};
use self::budget::{RequestBudget, WithRequestBudget};
use self::headers::WithResponseHeaders;
pub(crate) use self::metrics::{FAMILIES, FrontMetrics};
use self::metrics::{FrontService, WithMetrics};
pub use self::{
    access::{AccessOptions, AuditOptions, AuditedData, IdentityLimits, TokenOptions},
    admin::{AdminProxy, MasterClient},
    budget::RequestBytes,
    service::DataService,
};
use crate::deadline::WithArrival;
use crate::response_budget::{ReadService, ResponseBudget, WithResponseBudget};

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
}

/// Adds the public services and the operator's service to a server's routes.
///
/// # Errors
/// `InvalidArgument` when the options of access control cannot be used.
pub fn add_services(routes: Routes, config: FrontConfig) -> Result<Routes, Error> {
    let access = AccessControl::start(config.access, &config.directory, &config.runtime)?;
    let clock = config.runtime.clock.clone();
    let metrics = config.metrics;
    let admission = CallAdmission::new(clock.clone()).counted_by(&metrics);
    let data =
        DataService::new(config.cluster, clock.clone()).admitted_by(admission.clone()).guarded_by(access.clone());
    let data = BigtableServer::new(data).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let budget = RequestBudget::new(config.request_bytes).counted_by(&metrics, FrontService::Data);
    let data = WithRequestBudget::new(data, budget);
    let data = WithAdmission::new(WithResponseBudget::new(data, ReadService::Public, config.responses), admission);
    let data = WithCaller::new(data, access.clone());
    let data = WithMetrics::new(data, metrics.clone(), FrontService::Data, clock.clone());
    let master = MasterClient::new(config.chubby, config.directory, config.runtime);
    let budget = RequestBudget::new(RequestBytes { total: ADMIN_BYTES, ..config.request_bytes });
    let budget = budget.counted_by(&metrics, FrontService::Admin);
    let admin = AdminParts { master, budget, access, metrics, clock: clock.clone() };
    Ok(routes
        .add_service(WithResponseHeaders::new(WithArrival::new(data, clock.clone()), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<BigtableTableAdminServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<BigtableInstanceAdminServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<OperationsServer<()>>(), clock.clone()))
        .add_service(WithArrival::new(admin.proxy::<OperateServer<()>>(), clock)))
}

/// What the proxies of all services of administrators share.
struct AdminParts {
    master: MasterClient,
    budget: RequestBudget,
    access: AccessControl,
    metrics: FrontMetrics,
    clock: Clock,
}

impl AdminParts {
    /// The proxy of one service.
    fn proxy<S>(&self) -> WithMetrics<WithCaller<WithRequestBudget<AdminProxy<S>>>> {
        let proxy = AdminProxy::new(self.master.clone(), self.access.clone());
        let proxy = WithCaller::new(WithRequestBudget::new(proxy, self.budget.clone()), self.access.clone());
        WithMetrics::new(proxy, self.metrics.clone(), FrontService::Admin, self.clock.clone())
    }
}
