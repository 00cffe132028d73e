//! Requests from the active master to tablet servers: one attempt each, fenced by (cluster id, master epoch).
//!
//! A server that has seen a later epoch rejects a request (`StaleEpoch`). Nothing stops because of that: Chubby
//! reports the loss of the master lock. All requests are idempotent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Directory;
use ebla_client::channel::Channels;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, MasterEpoch, ReplicaId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_proto::control::apply_request::Kind;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::locate::CountersRequest;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::status::from_status;
use ebla_proto::{control, convert, record, tablet};
use ebla_runtime::Net;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// The timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of creating or removing a replica.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of applying one step of an operation at one tablet.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of one attempt to change replicas: a new replica receives a copy of the whole tablet. After a timeout
/// the next attempt continues with the data that was sent.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a split, which flushes first.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The initial state of a new replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialState {
    /// The seed log position that all first replicas of a new tablet share.
    Seed,
    /// Empty: the leader sends a snapshot.
    Empty,
}

/// A request that failed, and what the server said about the tablet and its leader.
#[derive(Clone, Debug)]
pub(crate) struct RpcError {
    pub(crate) error: Error,
    pub(crate) detail: tablet::TabletError,
}

impl From<Error> for RpcError {
    fn from(error: Error) -> Self {
        Self { error, detail: tablet::TabletError::default() }
    }
}

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        let (error, detail) = from_status(&status);
        Self { error, detail: detail.unwrap_or_default() }
    }
}

/// A client of all tablet servers, in the name of one active master.
pub(crate) struct ServerClient {
    channels: Channels,
    directory: Arc<dyn Directory>,
    fence: control::Fence,
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClient").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl ServerClient {
    pub(crate) fn new(net: Net, directory: Arc<dyn Directory>, cluster: ClusterId, epoch: MasterEpoch) -> Self {
        let cluster = Bytes::copy_from_slice(&cluster.to_bytes());
        let fence = control::Fence { cluster, master_epoch: epoch.get() };
        Self { channels: Channels::new(net), directory, fence }
    }

    async fn client(&self, server: ServerId) -> Result<ControlClient<Channel>, RpcError> {
        let address = self.directory.address(server).await;
        let not_registered = || Error::new(Reason::Unavailable, format!("server {server} is not registered"));
        Ok(ControlClient::new(self.channels.get(&address.ok_or_else(not_registered)?)))
    }

    /// A request with its timeout.
    fn request<T>(message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        request
    }

    fn fence(&self) -> Option<control::Fence> {
        Some(self.fence.clone())
    }

    /// Creates a replica of a tablet. Returns `made`, `here`, or `removed` for a replica that must never exist there
    /// again.
    pub(crate) async fn create_replica(
        &self,
        server: ServerId,
        descriptor: &TabletDescriptor,
        schema: &TableSchema,
        replica: ReplicaId,
        initial: InitialState,
    ) -> Result<String, RpcError> {
        let message = control::CreateReplicaRequest {
            fence: self.fence(),
            descriptor: Some(convert::descriptor_to_proto(descriptor)),
            schema: Some(convert::schema_to_proto(schema)),
            replica: replica.get(),
            empty: initial == InitialState::Empty,
        };
        let mut client = self.client(server).await?;
        let reply = within(REPLICA_TIMEOUT, client.create_replica(Self::request(message, REPLICA_TIMEOUT))).await?;
        Ok(reply.outcome)
    }

    /// Removes a replica permanently.
    pub(crate) async fn drop_replica(
        &self,
        server: ServerId,
        tablet: TabletId,
        replica: ReplicaId,
    ) -> Result<(), RpcError> {
        let message = control::DropReplicaRequest { fence: self.fence(), tablet: tablet.get(), replica: replica.get() };
        let mut client = self.client(server).await?;
        within(REPLICA_TIMEOUT, client.drop_replica(Self::request(message, REPLICA_TIMEOUT))).await.map(drop)
    }

    /// Applies one step of an operation at a tablet that the server leads. Returns the tablet's descriptor.
    pub(crate) async fn apply(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        kind: Kind,
    ) -> Result<TabletDescriptor, RpcError> {
        let message = control::ApplyRequest {
            fence: self.fence(),
            table: tablet.table.get(),
            tablet: tablet.tablet.get(),
            kind: Some(kind),
        };
        let mut client = self.client(server).await?;
        let reply = within(APPLY_TIMEOUT, client.apply(Self::request(message, APPLY_TIMEOUT))).await?;
        Ok(descriptor(reply.descriptor)?)
    }

    /// Splits a tablet that the server leads, at the key or in the middle.
    pub(crate) async fn split(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        at: Option<&RowKey>,
    ) -> Result<(TabletDescriptor, TabletDescriptor), RpcError> {
        let at = at.map(|key| key.bytes().clone());
        let message = control::SplitRequest { fence: self.fence(), expected: Some(expected(tablet)), at };
        let mut client = self.client(server).await?;
        let reply = within(SPLIT_TIMEOUT, client.split(Self::request(message, SPLIT_TIMEOUT))).await?;
        Ok((descriptor(reply.left)?, descriptor(reply.right)?))
    }

    /// Transfers the leadership of a tablet to the replica on the server `to`.
    pub(crate) async fn transfer(
        &self,
        leader: ServerId,
        tablet: &TabletDescriptor,
        to: ServerId,
    ) -> Result<(), RpcError> {
        let expected = Some(expected(tablet));
        let message = control::TransferRequest { fence: self.fence(), expected, to_server: to.get() };
        let mut client = self.client(leader).await?;
        within(TRANSFER_TIMEOUT, client.transfer(Self::request(message, TRANSFER_TIMEOUT))).await.map(drop)
    }

    /// Adds and removes a replica of a tablet that the server leads. Returns the tablet with its new membership.
    pub(crate) async fn change_replicas(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        add: Option<Replica>,
        remove: Option<ReplicaId>,
    ) -> Result<TabletDescriptor, RpcError> {
        let add = add.map(|add| record::Replica { replica: add.replica.get(), server: add.server.get() });
        let message = control::ChangeReplicasRequest {
            fence: self.fence(),
            expected: Some(expected(tablet)),
            add,
            remove: remove.map_or(0, ReplicaId::get),
        };
        let mut client = self.client(server).await?;
        let reply = within(CHANGE_TIMEOUT, client.change_replicas(Self::request(message, CHANGE_TIMEOUT))).await?;
        Ok(descriptor(reply.descriptor)?)
    }

    /// Pings a server. Called often, so the request is small.
    pub(crate) async fn responds(&self, server: ServerId) -> bool {
        let Some(address) = self.directory.address(server).await else { return false };
        let mut client = LocateClient::new(self.channels.get(&address));
        within(PING_TIMEOUT, client.counters(Self::request(CountersRequest {}, PING_TIMEOUT))).await.is_ok()
    }

    /// Requests the report of a server.
    pub(crate) async fn report(&self, server: ServerId) -> Result<control::ReportReply, RpcError> {
        let message = control::ReportRequest { fence: self.fence() };
        let mut client = self.client(server).await?;
        within(REPORT_TIMEOUT, client.report(Self::request(message, REPORT_TIMEOUT))).await
    }
}

/// The state of the tablet that a request expects.
fn expected(tablet: &TabletDescriptor) -> control::Expected {
    control::Expected {
        tablet: tablet.tablet.get(),
        generation: tablet.generation.get(),
        membership_log_id: Some(convert::log_id_to_proto(tablet.membership_log_id)),
    }
}

fn descriptor(message: Option<record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let message = message.ok_or_else(|| Error::internal("the server returned no descriptor"))?;
    convert::descriptor_from_proto(&message)
}

/// Fails after `timeout`; the outcome of the call is unknown then.
async fn within<T>(timeout: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, RpcError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answered) => Ok(answered?.into_inner()),
        Err(_elapsed) => Err(Error::new(Reason::OutcomeUnknown, "the tablet server did not respond in time").into()),
    }
}
