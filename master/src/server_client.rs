//! Requests from the active master to tablet servers: one attempt each, fenced by (cluster id, master epoch).
//!
//! A server that has seen a later epoch rejects a request (`StaleEpoch`). Nothing stops because of that: Chubby
//! reports the loss of the master lock. All requests are idempotent.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Directory;
use ebla_client::channel::Channels;
use ebla_client::locate::LeaderHint;
use ebla_model::command::NewTablet;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{
    ClusterId, GroupId, LogId, MasterEpoch, OperationId, ReplicaId, ServerId, TableId, TabletId, Term,
};
use ebla_model::key::RowKey;
use ebla_model::locality::GroupSizes;
use ebla_model::metadata::{GroupDescriptor, Replica, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::tablet_event::TabletEventCause;
use ebla_proto::control::apply_request::Kind;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::locate::CountersRequest;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::status::from_status;
use ebla_proto::{control, convert, record, tablet};
use ebla_runtime::Runtime;
use ebla_runtime::net::Windows;
use ebla_runtime::trace::{self, Stage, TRACEPARENT};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::plan::quorum_loss::GroupRecovery;

/// The timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of creating or removing a replica.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of applying one step of an operation at one tablet.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of one attempt to change replicas: a new replica receives a copy of the whole group. After a timeout
/// the next attempt continues with the data that was sent.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of creating tablets in a group.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a split.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a merge.
const MERGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of one attempt to move a tablet, which copies all its cells. After a timeout the next attempt waits for the same
/// move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of forcing a membership: the replica is stopped, written to, and started.
const FORCE_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of reading the sizes of a table, which may flush first.
const SIZES_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of reading replicas as a whole.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(1_800);
/// The timeout of dividing a group, which flushes first.
const DIVIDE_TIMEOUT: Duration = Duration::from_secs(30);

/// The initial state of a new replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialState {
    /// The common seed that all first replicas of a new group share.
    Seed,
    /// Empty: the leader sends a snapshot.
    Empty,
}

/// A group that was divided.
#[derive(Clone, Debug)]
pub(crate) struct DividedGroup {
    /// The group.
    pub(crate) left: GroupDescriptor,
    /// The new group.
    pub(crate) right: GroupDescriptor,
    /// How many tablets have moved to the new group.
    pub(crate) tablets_moved: u64,
}

/// A request that failed, and what the server said about the tablet or the group and its leader.
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
    pub(crate) fn new(
        runtime: &Runtime,
        directory: Arc<dyn Directory>,
        cluster: ClusterId,
        epoch: MasterEpoch,
    ) -> Self {
        let cluster = Bytes::copy_from_slice(&cluster.to_bytes());
        let fence = control::Fence { cluster, master_epoch: epoch.get() };
        Self { channels: Channels::to_peers(runtime, Windows::CALLS), directory, fence }
    }

    async fn client(&self, server: ServerId) -> Result<ControlClient<Channel>, RpcError> {
        let address = self.directory.address(server).await;
        let not_registered = || Error::new(Reason::Unavailable, format!("server {server} is not registered"));
        Ok(ControlClient::new(self.channels.get(&address.ok_or_else(not_registered)?)))
    }

    /// A request with its timeout, and with the trace of the current operation.
    fn request<T>(message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        if let Some(header) = trace::context().and_then(|context| context.traceparent().parse().ok()) {
            request.metadata_mut().insert(TRACEPARENT, header);
        }
        request
    }

    fn fence(&self) -> Option<control::Fence> {
        Some(self.fence.clone())
    }

    /// Creates a replica of a group. Returns `made`, `here`, or `removed` for a replica that must never exist there
    /// again.
    pub(crate) async fn create_replica(
        &self,
        server: ServerId,
        group: &GroupDescriptor,
        replica: ReplicaId,
        initial: InitialState,
    ) -> Result<String, RpcError> {
        let message = control::CreateReplicaRequest {
            fence: self.fence(),
            group: Some(convert::group_to_proto(group)),
            replica: replica.get(),
            empty: initial == InitialState::Empty,
        };
        let mut client = self.client(server).await?;
        let reply = within(REPLICA_TIMEOUT, client.create_replica(Self::request(message, REPLICA_TIMEOUT))).await?;
        Ok(reply.outcome)
    }

    /// Removes a replica permanently, unless it has applied a later membership of its group than this one, which does not
    /// contain it.
    pub(crate) async fn drop_replica(
        &self,
        server: ServerId,
        group: GroupId,
        replica: ReplicaId,
        membership_log_id: LogId,
    ) -> Result<(), RpcError> {
        let message = control::DropReplicaRequest {
            fence: self.fence(),
            group: group.get(),
            replica: replica.get(),
            membership_log_id: Some(convert::log_id_to_proto(membership_log_id)),
        };
        let mut client = self.client(server).await?;
        within(REPLICA_TIMEOUT, client.drop_replica(Self::request(message, REPLICA_TIMEOUT))).await.map(drop)
    }

    /// Creates tablets of a table in a group that the server leads, unless the group has applied the operation before.
    /// Returns the leader; `None` when it has just lost the leadership.
    pub(crate) async fn create_tablets(
        &self,
        server: ServerId,
        group: GroupId,
        operation: OperationId,
        schema: &TableSchema,
        tablets: &[NewTablet],
    ) -> Result<Option<LeaderHint>, RpcError> {
        let message = control::CreateTabletsRequest {
            fence: self.fence(),
            group: group.get(),
            operation: operation.get(),
            schema: Some(convert::schema_to_proto(schema)),
            tablets: tablets.iter().map(convert::command::new_tablet_to_proto).collect(),
        };
        let mut client = self.client(server).await?;
        let reply = within(CREATE_TIMEOUT, client.create_tablets(Self::request(message, CREATE_TIMEOUT))).await?;
        Ok((reply.term != 0).then(|| LeaderHint { server, term: Term::new(reply.term) }))
    }

    /// Drops all tablets of a table in a group that the server leads, unless the group has applied the operation before.
    pub(crate) async fn drop_table(
        &self,
        server: ServerId,
        group: GroupId,
        operation: OperationId,
        table: TableId,
    ) -> Result<(), RpcError> {
        let message = control::ApplyRequest {
            fence: self.fence(),
            table: table.get(),
            group: group.get(),
            kind: Some(Kind::DropOperation(operation.get())),
            ..Default::default()
        };
        let mut client = self.client(server).await?;
        within(APPLY_TIMEOUT, client.apply(Self::request(message, APPLY_TIMEOUT))).await.map(drop)
    }

    /// Moves a tablet of a group that the server leads to the group `target`. Returns when it is there.
    pub(crate) async fn move_tablet(
        &self,
        server: ServerId,
        tablet: &TabletDescriptor,
        target: &GroupDescriptor,
        cause: TabletEventCause,
    ) -> Result<(), RpcError> {
        let message = control::MoveTabletRequest {
            fence: self.fence(),
            expected: Some(expected(tablet)),
            source: tablet.group.get(),
            target: Some(convert::group_to_proto(target)),
            cause: cause.name().to_owned(),
        };
        let mut client = self.client(server).await?;
        within(MOVE_TIMEOUT, client.move_tablet(Self::request(message, MOVE_TIMEOUT))).await.map(drop)
    }

    /// Divides a group that the server leads: some of its tablets move to a new group on the same servers.
    pub(crate) async fn divide(&self, server: ServerId, group: &GroupDescriptor) -> Result<DividedGroup, RpcError> {
        let message = control::DivideRequest { fence: self.fence(), expected: Some(expected_group(group)) };
        let mut client = self.client(server).await?;
        let reply = within(DIVIDE_TIMEOUT, client.divide(Self::request(message, DIVIDE_TIMEOUT))).await?;
        let (left, right) = (group_descriptor(reply.left)?, group_descriptor(reply.right)?);
        Ok(DividedGroup { left, right, tablets_moved: reply.tablets })
    }

    /// Applies one step of an operation at a tablet that the server leads: for all tablets of its table in its group.
    /// Returns the tablet's descriptor.
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
            ..Default::default()
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

    /// Merges two adjacent tablets of a group that the server leads: `right` gets the rows of `left`, which is gone.
    pub(crate) async fn merge(
        &self,
        server: ServerId,
        group: &GroupDescriptor,
        (left, right): (TabletId, TabletId),
        cause: TabletEventCause,
    ) -> Result<TabletDescriptor, RpcError> {
        let message = control::MergeRequest {
            fence: self.fence(),
            expected: Some(expected_group(group)),
            left: left.get(),
            right: right.get(),
            cause: cause.name().to_owned(),
        };
        let mut client = self.client(server).await?;
        let reply = within(MERGE_TIMEOUT, client.merge(Self::request(message, MERGE_TIMEOUT))).await?;
        Ok(descriptor(reply.merged)?)
    }

    /// Transfers the leadership of a group to the replica on the server `to`.
    pub(crate) async fn transfer(
        &self,
        leader: ServerId,
        group: &GroupDescriptor,
        to: ServerId,
    ) -> Result<(), RpcError> {
        let expected = Some(expected_group(group));
        let message = control::TransferRequest { fence: self.fence(), expected, to_server: to.get() };
        let mut client = self.client(leader).await?;
        within(TRANSFER_TIMEOUT, client.transfer(Self::request(message, TRANSFER_TIMEOUT))).await.map(drop)
    }

    /// Adds and removes a replica of a group that the server leads. Returns the group with its new membership.
    pub(crate) async fn change_replicas(
        &self,
        server: ServerId,
        group: &GroupDescriptor,
        add: Option<Replica>,
        remove: Option<ReplicaId>,
    ) -> Result<GroupDescriptor, RpcError> {
        let add = add.map(|add| record::Replica { replica: add.replica.get(), server: add.server.get() });
        let message = control::ChangeReplicasRequest {
            fence: self.fence(),
            expected: Some(expected_group(group)),
            add,
            remove: remove.map_or(0, ReplicaId::get),
        };
        let mut client = self.client(server).await?;
        let reply = within(CHANGE_TIMEOUT, client.change_replicas(Self::request(message, CHANGE_TIMEOUT))).await?;
        Ok(group_descriptor(reply.group)?)
    }

    /// Makes the replica on the server the only voter of its group. Returns the entry of the new membership.
    pub(crate) async fn force_membership(
        &self,
        server: ServerId,
        recovery: &GroupRecovery,
        live: &BTreeSet<ServerId>,
    ) -> Result<LogId, RpcError> {
        let message = control::ForceMembershipRequest {
            fence: self.fence(),
            expected: Some(expected_group(&recovery.group)),
            replica: recovery.survivor.get(),
            live: live.iter().map(|server| server.get()).collect(),
            lost: recovery.lost_on_live_servers.iter().map(|replica| replica.get()).collect(),
        };
        let mut client = self.client(server).await?;
        let request = Self::request(message, FORCE_TIMEOUT);
        let reply = within(FORCE_TIMEOUT, client.force_membership(request)).await?;
        Ok(reply.membership_log_id.as_ref().map_or_else(LogId::default, convert::log_id_from_proto))
    }

    /// Pings a server. Called often, so the request is small.
    pub(crate) async fn responds(&self, server: ServerId) -> bool {
        let Some(address) = self.directory.address(server).await else { return false };
        let mut client = LocateClient::new(self.channels.get(&address));
        within(PING_TIMEOUT, client.counters(Self::request(CountersRequest {}, PING_TIMEOUT))).await.is_ok()
    }

    /// What the locality groups of a table would need in memory on a server.
    pub(crate) async fn measure_memory(
        &self,
        server: ServerId,
        table: TableId,
    ) -> Result<control::MeasureMemoryReply, RpcError> {
        let message = control::MeasureMemoryRequest { table: table.get() };
        let mut client = self.client(server).await?;
        within(REPORT_TIMEOUT, client.measure_memory(Self::request(message, REPORT_TIMEOUT))).await
    }

    /// Requests the report of a server.
    pub(crate) async fn report(&self, server: ServerId) -> Result<control::ReportReply, RpcError> {
        let message = control::ReportRequest { fence: self.fence() };
        let mut client = self.client(server).await?;
        within(REPORT_TIMEOUT, client.report(Self::request(message, REPORT_TIMEOUT))).await
    }

    /// Requests what the locality groups of a table cost in the groups that the server leads.
    pub(crate) async fn table_sizes(
        &self,
        server: ServerId,
        table: TableId,
        sizes: GroupSizes,
    ) -> Result<control::TableSizesReply, RpcError> {
        let message = control::TableSizesRequest { table: table.get(), flush: sizes == GroupSizes::Flushed };
        let mut client = self.client(server).await?;
        within(SIZES_TIMEOUT, client.table_sizes(Self::request(message, SIZES_TIMEOUT))).await
    }

    /// Requests the digests of a server's replicas of these tablets; of all replicas if there are none. Reads them as a whole.
    pub(crate) async fn digest(&self, server: ServerId, tablets: Vec<u64>) -> Result<control::DigestReply, RpcError> {
        let mut client = self.client(server).await?;
        within(DIGEST_TIMEOUT, client.digest(Self::request(control::DigestRequest { tablets }, DIGEST_TIMEOUT))).await
    }

    /// Requests what the families of a table cost in the tablets that the server leads.
    pub(crate) async fn table_usage(
        &self,
        server: ServerId,
        table: TableId,
    ) -> Result<control::TableUsageReply, RpcError> {
        let message = control::TableUsageRequest { table: table.get() };
        let mut client = self.client(server).await?;
        within(SIZES_TIMEOUT, client.table_usage(Self::request(message, SIZES_TIMEOUT))).await
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

/// The state of the group that a request expects.
fn expected_group(group: &GroupDescriptor) -> control::ExpectedGroup {
    control::ExpectedGroup {
        group: group.group.get(),
        membership_log_id: Some(convert::log_id_to_proto(group.membership_log_id)),
    }
}

fn group_descriptor(message: Option<record::GroupDescriptor>) -> Result<GroupDescriptor, Error> {
    let message = message.ok_or_else(|| Error::internal("the server returned no group"))?;
    convert::group_from_proto(&message)
}

fn descriptor(message: Option<record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let message = message.ok_or_else(|| Error::internal("the server returned no descriptor"))?;
    convert::descriptor_from_proto(&message)
}

/// Fails after `timeout`; the outcome of the call is unknown then.
async fn within<T>(timeout: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, RpcError> {
    match trace::waiting(Stage::Server, tokio::time::timeout(timeout, call)).await {
        Ok(answered) => Ok(answered?.into_inner()),
        Err(_elapsed) => Err(Error::new(Reason::OutcomeUnknown, "the tablet server did not respond in time").into()),
    }
}
