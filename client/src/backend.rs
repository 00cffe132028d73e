//! The backend of a client and its tables: a cluster, or the public Bigtable API at one address.

use std::time::Duration;

use ebla_proto::services::bigtable_client::BigtableClient;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::cluster::Cluster;
use crate::token::BearerToken;

/// The default timeout of a call.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// How a client reaches its tables.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Cluster(Cluster),
    Endpoint(BigtableClient<InterceptedService<Channel, Credentials>>),
}

/// What each call of the public API carries: the token of the caller, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials(pub(crate) Option<BearerToken>);

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.header());
        }
        Ok(request)
    }
}
