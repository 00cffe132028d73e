//! The gRPC transport: one channel to each address, made at its first use and kept.
//!
//! A channel connects again by itself after a loss. Channels to addresses that are no longer used stay; there are as
//! many as servers ever had addresses, and an idle one holds no connection for long.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebla_proto::belonging::from_cluster;
use ebla_proto::status::from_status;
use ebla_proto::tablet;
use ebla_proto::tablet::tablets_client::TabletsClient;
use ebla_runtime::Net;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::directory::Directory;
use crate::transport::{CallError, ReadStream, Target, Transport};

/// The largest message taken or sent: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Channels by address. Cheap to share behind an `Arc`.
pub struct Channels {
    net: Net,
    /// Guards the map; held for a look-up.
    open: Mutex<HashMap<String, Channel>>,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").field("net", &self.net).finish_non_exhaustive()
    }
}

impl Channels {
    /// No channels yet.
    pub fn new(net: Net) -> Self {
        Self { net, open: Mutex::default() }
    }

    /// The channel to an address; does not wait for a connection.
    pub fn get(&self, address: &str) -> Channel {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(address) {
            return channel.clone();
        }
        let channel = self.net.channel(address);
        open.insert(address.to_owned(), channel.clone());
        channel
    }
}

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
    /// A transport to the servers of this directory's cluster, without connections yet.
    pub fn new(net: Net, directory: Arc<dyn Directory>) -> Self {
        Self { channels: Channels::new(net), directory }
    }

    /// The message with the time the caller waits, so that the server drops what nobody waits for, and with the cluster that it is
    /// for: the address may be a stranger's by now.
    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = from_cluster(Request::new(message), self.directory.cluster());
        request.set_timeout(limit);
        request
    }

    fn client(&self, target: &Target) -> TabletsClient<Channel> {
        TabletsClient::new(self.channels.get(&target.address))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn failed(status: Status) -> CallError {
    let (error, detail) = from_status(&status);
    CallError::new(error, detail)
}

impl Transport for GrpcTransport {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::ReadRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, limit));
        async move {
            let stream = client.read(request).await.map_err(failed)?.into_inner();
            Ok(stream.map(|reply| reply.map_err(failed)).boxed())
        }
        .boxed()
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::WriteRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, limit));
        async move { client.write(request).map_ok(tonic::Response::into_inner).map_err(failed).await }.boxed()
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::CheckRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, limit));
        async move { client.check(request).map_ok(tonic::Response::into_inner).map_err(failed).await }.boxed()
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::ModifyRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, limit));
        async move { client.modify(request).map_ok(tonic::Response::into_inner).map_err(failed).await }.boxed()
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        message: tablet::SampleRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>> {
        let (mut client, request) = (self.client(target), self.request(message, limit));
        async move { client.sample(request).map_ok(tonic::Response::into_inner).map_err(failed).await }.boxed()
    }
}
