//! The gRPC transport: [`Transport`] over `ebla.tablet`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_proto::cluster_guard::with_cluster_id;
use ebla_proto::status::from_status;
use ebla_proto::tablet;
use ebla_proto::tablet::tablets_client::TabletsClient;
use ebla_runtime::Net;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::channel::{Channels, MESSAGE_BYTES_MAX};
use crate::directory::Directory;
use crate::transport::{CallError, ReadStream, Target, Transport};

/// [`Transport`] over `ebla.tablet`.
pub struct GrpcTransport {
    channels: Channels,
    directory: Arc<dyn Directory>,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// A transport to the servers of the directory's cluster. Connects at the first call.
    pub fn new(net: Net, directory: Arc<dyn Directory>) -> Self {
        Self { channels: Channels::new(net), directory }
    }

    /// A request with its timeout, so that the server drops expired work, and with the id of its cluster: the address
    /// may belong to a server of another cluster by now.
    fn request<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = with_cluster_id(Request::new(message), self.directory.cluster());
        request.set_timeout(timeout);
        request
    }

    fn client(&self, target: &Target) -> TabletsClient<Channel> {
        TabletsClient::new(self.channels.get(&target.address))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn call_error(status: Status) -> CallError {
    let (error, detail) = from_status(&status);
    CallError::new(error, detail)
}

impl Transport for GrpcTransport {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::ReadRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move {
            let stream = client.read(request).await.map_err(call_error)?.into_inner();
            Ok(stream.map(|reply| reply.map_err(call_error)).boxed())
        }
        .boxed()
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::WriteRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move { client.write(request).map_ok(tonic::Response::into_inner).map_err(call_error).await }.boxed()
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::CheckRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move { client.check(request).map_ok(tonic::Response::into_inner).map_err(call_error).await }.boxed()
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::ModifyRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move { client.modify(request).map_ok(tonic::Response::into_inner).map_err(call_error).await }.boxed()
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::SampleRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move { client.sample(request).map_ok(tonic::Response::into_inner).map_err(call_error).await }.boxed()
    }
}
