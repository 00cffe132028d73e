//! The front: the public API on every tablet server.
//!
//! ```text
//!   google.bigtable.v2.Bigtable    headers -> arrival -> admission -> budgets -> service -> validate -> ebla_client::Cluster -> response
//!   google.bigtable.admin.v2.*     budget -> admin: forwarded to the active master
//!   google.longrunning.Operations  the same
//!   ebla.operate.Operate           the same
//! ```
//!
//! A front knows no tablet and no schema: it validates the parts of a request that need neither, gives it a deadline, and
//! passes it to the cluster handle. That handle has one session, so a write is applied once however often it is sent.

pub mod admin;
mod admission;
mod budget;
mod call_limit;
mod features;
mod headers;
mod idempotency;
mod response;
pub mod service;
mod validate;

use ebla_chubby::SharedChubby;
use ebla_client::Cluster;
use ebla_proto::{
    operate::operate_server::OperateServer,
    services::{
        bigtable_instance_admin_server::BigtableInstanceAdminServer, bigtable_server::BigtableServer,
        bigtable_table_admin_server::BigtableTableAdminServer, operations_server::OperationsServer,
    },
};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::Runtime;
use tonic::service::Routes;

use self::admission::{CallAdmission, WithAdmission};
use self::budget::{RequestBudget, WithRequestBudget};
use self::headers::WithResponseHeaders;
pub use self::{
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
}

/// Adds the public services and the operator's service to a server's routes.
pub fn add_services(routes: Routes, config: FrontConfig) -> Routes {
    let clock = config.runtime.clock.clone();
    let admission = CallAdmission::new(clock.clone());
    let data = DataService::new(config.cluster, clock.clone()).admitted_by(admission.clone());
    let data = BigtableServer::new(data).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let data = WithRequestBudget::new(data, RequestBudget::new(config.request_bytes));
    let data = WithAdmission::new(WithResponseBudget::new(data, ReadService::Public, config.responses), admission);
    let master = MasterClient::new(config.chubby, config.directory, config.runtime);
    let admin = RequestBudget::new(RequestBytes { total: ADMIN_BYTES, ..config.request_bytes });
    routes
        .add_service(WithResponseHeaders::new(WithArrival::new(data, clock.clone()), clock.clone()))
        .add_service(WithArrival::new(admin_proxy::<BigtableTableAdminServer<()>>(&master, &admin), clock.clone()))
        .add_service(WithArrival::new(admin_proxy::<BigtableInstanceAdminServer<()>>(&master, &admin), clock.clone()))
        .add_service(WithArrival::new(admin_proxy::<OperationsServer<()>>(&master, &admin), clock.clone()))
        .add_service(WithArrival::new(admin_proxy::<OperateServer<()>>(&master, &admin), clock))
}

/// The proxy of one service; all share `budget`.
fn admin_proxy<S>(master: &MasterClient, budget: &RequestBudget) -> WithRequestBudget<AdminProxy<S>> {
    WithRequestBudget::new(AdminProxy::new(master.clone()), budget.clone())
}
