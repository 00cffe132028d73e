//! The backend of a client and its tables: a cluster, or the public Bigtable API at one address.

use std::time::Duration;

use ebla_proto::services::bigtable_client::BigtableClient;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::cluster::Cluster;
use crate::token::Credentials;

/// The default timeout of a call.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// How a client reaches its tables.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Cluster(Cluster),
    Endpoint(Box<BigtableClient<InterceptedService<Channel, Credentials>>>),
}
