//! What the master serves of google.bigtable.admin.v2.
//!
//! [`tables`] is served; of the instance admin and of long-running operations nothing is yet: each call answers
//! UNIMPLEMENTED with its name.

pub(crate) mod request;
pub(crate) mod tables;

use ebla_proto::services::bigtable_instance_admin_server::BigtableInstanceAdmin;
use ebla_proto::services::operations_server::Operations;

/// Instances, clusters and app profiles: not served by this release.
#[derive(Debug)]
pub(crate) struct Instances;

#[tonic::async_trait]
impl BigtableInstanceAdmin for Instances {}

/// Operations that outlive their call: there are none in this release.
#[derive(Debug)]
pub(crate) struct NoOperations;

#[tonic::async_trait]
impl Operations for NoOperations {}
