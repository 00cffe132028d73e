//! The gRPC transport: [`Transport`] over `ebla.tablet`.
//!
//! Small requests are sent as messages of one stream per server ([`crate::small_calls`]), the others as calls of their own. Reads of more
//! than a message have a connection of their own: what their readers do not take blocks no other call. The connections are those of a peer, with
//! thousands of concurrent calls, in any program that uses this transport: a server, or a mounttable, has the calls of many callers.
//!
//! A call is the stage `forward` of the operation that makes it; of a read the first message belongs to it, later ones do not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_proto::cluster_guard::with_cluster_id;
use ebla_proto::status::from_status;
use ebla_proto::tablet;
use ebla_proto::tablet::call::Request as CallRequest;
use ebla_proto::tablet::call_reply::Outcome;
use ebla_proto::tablet::tablets_client::TabletsClient;
use ebla_runtime::Runtime;
use ebla_runtime::net::Windows;
use ebla_runtime::trace::{self, Stage};
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt, TryFutureExt, stream};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::channel::{Channels, MESSAGE_BYTES_MAX};
use crate::directory::Directory;
use crate::small_calls::{SmallCalls, is_small_read, is_small_write, unexpected_reply};
use crate::transport::{CallError, ReadStream, Target, Transport};

/// [`Transport`] over `ebla.tablet`.
pub struct GrpcTransport {
    channels: Channels,
    scan_channels: Channels,
    small_calls: SmallCalls,
    directory: Arc<dyn Directory>,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// A transport to the servers of the directory's cluster. Connects at the first call. Its tasks are those of `runtime`.
    pub fn new(runtime: Runtime, directory: Arc<dyn Directory>) -> Self {
        let channels = Channels::to_peers(&runtime, Windows::CALLS);
        let scan_channels = Channels::to_peers(&runtime, Windows::SCANS);
        Self { channels, scan_channels, small_calls: SmallCalls::new(runtime, Arc::clone(&directory)), directory }
    }

    async fn small_call(&self, target: &Target, request: CallRequest, timeout: Duration) -> Result<Outcome, CallError> {
        self.small_calls.call(&target.address, || self.client(target), request, timeout).await
    }

    /// The only message of a small read; `None` when it is too large for the stream.
    async fn small_read(
        &self,
        target: &Target,
        message: tablet::ReadRequest,
        timeout: Duration,
    ) -> Result<Option<tablet::ReadReply>, CallError> {
        match self.small_call(target, CallRequest::Read(message), timeout).await? {
            Outcome::Read(reply) => Ok(Some(reply)),
            Outcome::Oversized(_) => Ok(None),
            _ => Err(unexpected_reply()),
        }
    }

    /// A request with its timeout, so that the server drops expired work, and with the id of its cluster: the address
    /// may belong to a server of another cluster by now.
    fn request<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = with_cluster_id(Request::new(message), self.directory.cluster());
        request.set_timeout(timeout);
        request
    }

    fn client(&self, target: &Target) -> TabletsClient<Channel> {
        client(self.channels.get(&target.address))
    }
}

fn client(channel: Channel) -> TabletsClient<Channel> {
    TabletsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
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
        async move {
            let _forwards = trace::stage(Stage::Forward);
            if is_small_read(&message)
                && let Some(reply) = self.small_read(target, message.clone(), timeout).await?
            {
                return Ok(stream::once(future::ready(Ok(reply))).boxed());
            }
            let mut client = client(self.scan_channels.get(&target.address));
            let request = self.request(message, timeout);
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
        async move {
            let _forwards = trace::stage(Stage::Forward);
            if is_small_write(&message) {
                return match self.small_call(target, CallRequest::Write(message), timeout).await? {
                    Outcome::Write(reply) => Ok(reply),
                    _ => Err(unexpected_reply()),
                };
            }
            let (mut client, request) = (self.client(target), self.request(message, timeout));
            client.write(request).map_ok(tonic::Response::into_inner).map_err(call_error).await
        }
        .boxed()
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::CheckRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>> {
        async move {
            let _forwards = trace::stage(Stage::Forward);
            if is_small_write(&message) {
                return match self.small_call(target, CallRequest::Check(message), timeout).await? {
                    Outcome::Check(reply) => Ok(reply),
                    _ => Err(unexpected_reply()),
                };
            }
            let (mut client, request) = (self.client(target), self.request(message, timeout));
            client.check(request).map_ok(tonic::Response::into_inner).map_err(call_error).await
        }
        .boxed()
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::ModifyRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>> {
        async move {
            let _forwards = trace::stage(Stage::Forward);
            if is_small_write(&message) {
                return match self.small_call(target, CallRequest::Modify(message), timeout).await? {
                    Outcome::Modify(reply) => Ok(reply),
                    _ => Err(unexpected_reply()),
                };
            }
            let (mut client, request) = (self.client(target), self.request(message, timeout));
            client.modify(request).map_ok(tonic::Response::into_inner).map_err(call_error).await
        }
        .boxed()
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::SampleRequest,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, timeout));
        async move {
            let _forwards = trace::stage(Stage::Forward);
            client.sample(request).map_ok(tonic::Response::into_inner).map_err(call_error).await
        }
        .boxed()
    }
}
