//! The front: the public API on every tablet server.
//!
//! ```text
//!   google.bigtable.v2.Bigtable    headers -> budget -> service -> validate -> ebla_client::Cluster -> answer
//!   google.bigtable.admin.v2.*     admin: handed to the master in office
//!   google.longrunning.Operations  the same
//!   ebla.operate.Operate           the same
//! ```
//!
//! A front knows no tablet and no schema: it checks what a request says about itself, gives it a deadline, and hands
//! it on. Its cluster handle has one session, so a write is applied once however often it is sent again.

pub mod admin;
mod answer;
mod budget;
mod features;
mod headers;
mod idempotency;
pub mod limits;
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

use self::budget::{Budget, Budgeted};
use self::headers::Headed;
pub use self::{
    admin::{Master, Relay},
    budget::RequestBytes,
    service::DataService,
};

/// What a front is made of.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// The cluster, through this server's router.
    pub cluster: Cluster,
    /// Where the master's address stands.
    pub chubby: SharedChubby,
    /// The copy of it, for when Chubby is away.
    pub directory: ChubbyDirectory,
    /// Clock, random numbers, network.
    pub runtime: Runtime,
    /// How many bytes of data requests it may hold.
    pub request_bytes: RequestBytes,
}

/// Adds the public services and the operator's to a server's routes.
pub fn add_services(routes: Routes, config: FrontConfig) -> Routes {
    let clock = config.runtime.clock.clone();
    let data = DataService::new(config.cluster, clock.clone());
    let data = BigtableServer::new(data).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
    let master = Master::new(config.chubby, config.directory, config.runtime);
    routes
        .add_service(Headed::new(Budgeted::new(data, Budget::new(config.request_bytes)), clock))
        .add_service(Relay::<BigtableTableAdminServer<()>>::new(master.clone()))
        .add_service(Relay::<BigtableInstanceAdminServer<()>>::new(master.clone()))
        .add_service(Relay::<OperationsServer<()>>::new(master.clone()))
        .add_service(Relay::<OperateServer<()>>::new(master))
}
