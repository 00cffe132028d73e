//! The master's orders to tablet servers, one attempt each, with (cluster id, master epoch) on every one.
//!
//! A server that has seen a later epoch refuses (`StaleEpoch`), which ends nothing here: the lock's loss is learnt from Chubby.
//! All orders may be repeated; what was done is found done.

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

/// How long a server may take to answer at all.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long a server may take to say what it has.
const REPORT_LIMIT: Duration = Duration::from_secs(2);
/// How long opening or removing a replica may take.
const REPLICA_LIMIT: Duration = Duration::from_secs(10);
/// How long one step of an operation may take at one tablet.
const APPLY_LIMIT: Duration = Duration::from_secs(10);
/// How long one attempt at a change of replicas may take: a new replica is sent the whole tablet. What was sent when the time
/// is over is not lost, the next attempt goes on.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);
/// How long a leader may take to hand over.
const TRANSFER_LIMIT: Duration = Duration::from_secs(5);
/// A split flushes before it cuts.
const SPLIT_LIMIT: Duration = Duration::from_secs(30);

/// What a new replica begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The seed that all first replicas of a new tablet share.
    Seed,
    /// Nothing: the leader fills it.
    Empty,
}

/// An order that was not carried out, and what the server said about where to go instead.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) detail: tablet::TabletError,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, detail: tablet::TabletError::default() }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        let (error, detail) = from_status(&status);
        Self { error, detail: detail.unwrap_or_default() }
    }
}

/// The way to the servers, in the name of one master.
pub(crate) struct Orders {
    channels: Channels,
    directory: Arc<dyn Directory>,
    fence: control::Fence,
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl Orders {
    pub(crate) fn new(net: Net, directory: Arc<dyn Directory>, cluster: ClusterId, epoch: MasterEpoch) -> Self {
        let cluster = Bytes::copy_from_slice(&cluster.to_bytes());
        let fence = control::Fence { cluster, master_epoch: epoch.get() };
        Self { channels: Channels::new(net), directory, fence }
    }

    async fn client(&self, server: ServerId) -> Result<ControlClient<Channel>, Refused> {
        let address = self.directory.address(server).await;
        let absent = || Error::new(Reason::Unavailable, format!("server {server} is not registered"));
        Ok(ControlClient::new(self.channels.get(&address.ok_or_else(absent)?)))
    }

    /// The message with the fence's companion: how long the master waits.
    fn request<T>(message: T, limit: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(limit);
        request
    }

    fn fence(&self) -> Option<control::Fence> {
        Some(self.fence.clone())
    }

    /// Makes a replica of a tablet; answers `made`, `here`, or `removed` for one that may never be there again.
    pub(crate) async fn create_replica(
        &self,
        server: ServerId,
        descriptor: &TabletDescriptor,
        schema: &TableSchema,
        replica: ReplicaId,
        beginning: Beginning,
    ) -> Result<String, Refused> {
        let message = control::CreateReplicaRequest {
            fence: self.fence(),
            descriptor: Some(convert::descriptor_to_proto(descriptor)),
            schema: Some(convert::schema_to_proto(schema)),
            replica: replica.get(),
            empty: beginning == Beginning::Empty,
        };
        let mut client = self.client(server).await?;
        let reply = within(REPLICA_LIMIT, client.create_replica(Self::request(message, REPLICA_LIMIT))).await?;
        Ok(reply.outcome)
    }

    /// Removes a replica for ever.
    pub(crate) async fn drop_replica(
        &self,
        server: ServerId,
        tablet: TabletId,
        replica: ReplicaId,
    ) -> Result<(), Refused> {
        let message = control::DropReplicaRequest { fence: self.fence(), tablet: tablet.get(), replica: replica.get() };
        let mut client = self.client(server).await?;
        within(REPLICA_LIMIT, client.drop_replica(Self::request(message, REPLICA_LIMIT))).await.map(drop)
    }

    /// One step of an operation at a tablet that the server leads; answers what the tablet covers.
    pub(crate) async fn apply(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        kind: Kind,
    ) -> Result<TabletDescriptor, Refused> {
        let message = control::ApplyRequest {
            fence: self.fence(),
            table: tablet.table.get(),
            tablet: tablet.tablet.get(),
            kind: Some(kind),
        };
        let mut client = self.client(server).await?;
        let reply = within(APPLY_LIMIT, client.apply(Self::request(message, APPLY_LIMIT))).await?;
        Ok(descriptor(reply.descriptor)?)
    }

    /// Splits a tablet that the server leads, at the key or where it is halved.
    pub(crate) async fn split(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        at: Option<&RowKey>,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Refused> {
        let at = at.map(|key| key.bytes().clone());
        let message = control::SplitRequest { fence: self.fence(), expected: Some(expected(tablet)), at };
        let mut client = self.client(server).await?;
        let reply = within(SPLIT_LIMIT, client.split(Self::request(message, SPLIT_LIMIT))).await?;
        Ok((descriptor(reply.left)?, descriptor(reply.right)?))
    }

    /// Has a tablet's leader hand over to the replica on the server `to`.
    pub(crate) async fn transfer(
        &self,
        leader: ServerId,
        tablet: &TabletDescriptor,
        to: ServerId,
    ) -> Result<(), Refused> {
        let expected = Some(expected(tablet));
        let message = control::TransferRequest { fence: self.fence(), expected, to_server: to.get() };
        let mut client = self.client(leader).await?;
        within(TRANSFER_LIMIT, client.transfer(Self::request(message, TRANSFER_LIMIT))).await.map(drop)
    }

    /// Adds and removes a replica of a tablet that the server leads; answers the tablet with its new replicas.
    pub(crate) async fn change_replicas(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        add: Option<Replica>,
        remove: Option<ReplicaId>,
    ) -> Result<TabletDescriptor, Refused> {
        let add = add.map(|add| record::Replica { replica: add.replica.get(), server: add.server.get() });
        let message = control::ChangeReplicasRequest {
            fence: self.fence(),
            expected: Some(expected(tablet)),
            add,
            remove: remove.map_or(0, ReplicaId::get),
        };
        let mut client = self.client(server).await?;
        let reply = within(CHANGE_LIMIT, client.change_replicas(Self::request(message, CHANGE_LIMIT))).await?;
        Ok(descriptor(reply.descriptor)?)
    }

    /// Whether a server answers at all; asked often, so the question is small.
    pub(crate) async fn answers(&self, server: ServerId) -> bool {
        let Some(address) = self.directory.address(server).await else { return false };
        let mut client = LocateClient::new(self.channels.get(&address));
        within(ANSWER_LIMIT, client.counters(Self::request(CountersRequest {}, ANSWER_LIMIT))).await.is_ok()
    }

    /// What a server has.
    pub(crate) async fn report(&self, server: ServerId) -> Result<control::ReportReply, Refused> {
        let message = control::ReportRequest { fence: self.fence() };
        let mut client = self.client(server).await?;
        within(REPORT_LIMIT, client.report(Self::request(message, REPORT_LIMIT))).await
    }
}

/// What the master believes of a tablet.
fn expected(tablet: &TabletDescriptor) -> control::Expected {
    control::Expected {
        tablet: tablet.tablet.get(),
        generation: tablet.generation.get(),
        membership_log_id: Some(convert::log_id_to_proto(tablet.membership_log_id)),
    }
}

fn descriptor(message: Option<record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let message = message.ok_or_else(|| Error::internal("the server left the descriptor out"))?;
    convert::descriptor_from_proto(&message)
}

/// Gives an order up after `limit`; what became of it is not known then.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Refused> {
    match tokio::time::timeout(limit, call).await {
        Ok(answered) => Ok(answered?.into_inner()),
        Err(_elapsed) => Err(Error::new(Reason::OutcomeUnknown, "the server did not answer in time").into()),
    }
}
