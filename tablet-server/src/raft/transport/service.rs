//! `ebla.raft.Raft`, the gRPC service that receives the messages of the other servers.
//!
//! The frames of one stream are passed to their groups in the order of arrival; replies are returned as they are ready. A slow
//! group delays only itself: no frame waits for another frame's reply.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use ebla_model::capacity::WriteState;
use ebla_model::id::GroupId;
use ebla_proto::cluster_guard::{check_cluster_id, check_newest_version};
use ebla_proto::raft::raft_server::{Raft, RaftServer};
use ebla_proto::raft::{Frame, FrameReply, SnapshotPart, snapshot_part};
use ebla_proto::status::to_status;
use ebla_runtime::call_stream::{self, Received};
use ebla_storage::log::GroupReplica;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::election_guard::check_election_max;
use super::local::MessageReceiver;
use super::message::{MessageHeader, SnapshotTransfer, Unreachable};
use super::network::Network;
use super::options::MESSAGE_BYTES_MAX;
use super::receiver_guard::check_receiver;
use super::snapshot_budget::SnapshotPermit;
use super::wire::{self, Incoming, SnapshotAnnouncement};
use crate::raft::state_machine::AppliedPosition;
use crate::raft::storage::blocking::run_blocking;
use crate::raft::storage::snapshot::{PART_TIMEOUT, ScratchFolder, SnapshotReceiver, validate};
use crate::raft::types::RaftVote;

/// The largest number of frames of one stream that wait for their groups. Further frames stay in the socket until some have
/// their reply.
const INFLIGHT_FRAMES_MAX: usize = 4096;

type ReplyStream = Pin<Box<dyn Stream<Item = Result<FrameReply, Status>> + Send>>;

/// The service of one server.
pub struct Service {
    network: Arc<Network>,
}

impl Network {
    /// The gRPC service `ebla.raft.Raft` of this server.
    pub fn service(self: &Arc<Self>) -> RaftServer<Service> {
        RaftServer::new(Service { network: Arc::clone(self) })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Service {
    /// The message of a request, unless a server of another cluster sent it, or one that does not support the active version or has other
    /// election timeouts, or it is for another server.
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let options = self.network.options();
        let addresses = &options.addresses;
        check_cluster_id(request.metadata(), addresses.cluster())
            .and_then(|()| check_newest_version(request.metadata(), addresses.active_version()))
            .and_then(|()| check_receiver(request.metadata(), options.server))
            .and_then(|()| check_election_max(request.metadata(), options.election_max))
            .map_err(|error| to_status(&error))?;
        Ok(request.into_inner())
    }
}

/// The replicas whose frames arrived on one inbound stream. It is dropped with the stream: the connection has broken then, or
/// one of the two servers stops.
struct ConnectedPeers {
    network: Arc<Network>,
    last: BTreeMap<GroupId, MessageHeader>,
}

impl ConnectedPeers {
    const fn new(network: Arc<Network>) -> Self {
        Self { network, last: BTreeMap::new() }
    }

    /// Records the sender of a frame.
    fn record(&mut self, header: MessageHeader) {
        self.last.insert(header.group, header);
    }
}

impl Drop for ConnectedPeers {
    fn drop(&mut self) {
        for header in self.last.values() {
            self.network.on_disconnect(header);
        }
    }
}

/// Passes a frame to its group at once; the future is the reply. `connected_peers`: those of the frame's stream.
fn dispatch(
    network: &Arc<Network>,
    frame: Frame,
    connected_peers: Option<&mut ConnectedPeers>,
) -> BoxFuture<'static, FrameReply> {
    let call = frame.call;
    match wire::decode_frame(frame) {
        Ok((header, Incoming::Append(request))) => {
            if let Some(connected_peers) = connected_peers {
                connected_peers.record(header);
            }
            let response = network.receive_append(header, request);
            async move { wire::append_reply(call, response.await) }.boxed()
        }
        Ok((header, Incoming::Call(request))) => {
            let network = Arc::clone(network);
            async move { FrameReply { call, ..wire::call_reply(network.receive_request(header, request).await) } }
                .boxed()
        }
        Err(fault) => futures::future::ready(wire::append_reply(call, Err(Unreachable(fault.to_string())))).boxed(),
    }
}

#[tonic::async_trait]
impl Raft for Service {
    type ExchangeStream = ReplyStream;

    async fn exchange(&self, request: Request<Streaming<Frame>>) -> Result<Response<ReplyStream>, Status> {
        let network = Arc::clone(&self.network);
        let mut connected_peers = ConnectedPeers::new(Arc::clone(&network));
        let receive = move |frame| Received::Call(None, dispatch(&network, frame, Some(&mut connected_peers)));
        let replies =
            call_stream::replies(self.admit(request)?, INFLIGHT_FRAMES_MAX, futures::future::pending(), receive);
        let network = Arc::clone(&self.network);
        let replies = replies.map_ok(move |reply| {
            let refuses_writes = network.options().capacity.write_state() == WriteState::Refuses;
            FrameReply { refuses_writes, ..reply }
        });
        // A server that was killed must send nothing more, even if the connection stays open.
        Ok(Response::new(replies.take_until(self.network.inbound_closed()).boxed()))
    }

    async fn call(&self, request: Request<Frame>) -> Result<Response<FrameReply>, Status> {
        Ok(Response::new(dispatch(&self.network, self.admit(request)?, None).await))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<FrameReply>, Status> {
        let outcome = self.receive(self.admit(request)?).await;
        Ok(Response::new(wire::snapshot_reply(outcome)))
    }
}

impl Service {
    async fn receive(&self, mut parts: Streaming<SnapshotPart>) -> Result<RaftVote, Unreachable> {
        let SnapshotAnnouncement { header, vote, applied, size_bytes } = match next_part(&mut parts).await? {
            snapshot_part::Part::Header(header) => {
                wire::decode_snapshot_header(header).map_err(|fault| Unreachable(fault.to_string()))?
            }
            _ => return Err(Unreachable("invalid snapshot: the first part is not the header".to_owned())),
        };
        validate(&applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let permit = self.network.admit_snapshot(&header, size_bytes)?;
        let folder = self.receive_files(&header, parts).await?;
        let folder = self.network.group(&header)?.verify_received(folder).await?;
        self.install(header, SnapshotTransfer { vote, applied, folder }, permit).await
    }

    async fn install(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
        permit: SnapshotPermit,
    ) -> Result<RaftVote, Unreachable> {
        let AppliedPosition { last, .. } = snapshot.applied;
        tracing::info!(group = %header.group, replica = %header.to, ?last, "snapshot received");
        self.network.receive_snapshot(header, snapshot, permit).await
    }

    async fn receive_files(
        &self,
        header: &MessageHeader,
        mut parts: Streaming<SnapshotPart>,
    ) -> Result<ScratchFolder, Unreachable> {
        let options = self.network.options();
        let (scratch, pool) = (options.scratch.clone(), options.maintenance.clone());
        let group = GroupReplica { group: header.group, replica: header.to };
        let mut receiver = self.blocking(move || SnapshotReceiver::create(&scratch, group)).await?;
        loop {
            match next_part(&mut parts).await? {
                snapshot_part::Part::Chunk(chunk) => {
                    receiver = pool
                        .run(move || receiver.write_chunk(&chunk))
                        .await
                        .map_err(|error| Unreachable(error.to_string()))?
                        .map_err(|error| Unreachable(error.to_string()))?;
                }
                snapshot_part::Part::End(_) => {
                    let finished = pool.run(move || receiver.finish()).await;
                    return finished
                        .map_err(|error| Unreachable(error.to_string()))?
                        .map_err(|error| Unreachable(error.to_string()));
                }
                snapshot_part::Part::Header(_) => {
                    return Err(Unreachable("invalid snapshot: a second header".to_owned()));
                }
            }
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        call: impl Fn() -> std::io::Result<T> + Send + Sync + 'static,
    ) -> Result<T, Unreachable> {
        let outcome = run_blocking(&self.network.options().maintenance, call).await;
        outcome.and_then(|inner| inner).map_err(|error| Unreachable(error.to_string()))
    }
}

/// The next part. A sender that stops in the middle must not hold its place for ever.
async fn next_part(parts: &mut Streaming<SnapshotPart>) -> Result<snapshot_part::Part, Unreachable> {
    match tokio::time::timeout(PART_TIMEOUT, parts.message()).await {
        Ok(Ok(Some(SnapshotPart { part: Some(part) }))) => Ok(part),
        Ok(Ok(_)) => Err(Unreachable("invalid snapshot: the end part is missing".to_owned())),
        Ok(Err(status)) => Err(Unreachable(status.to_string())),
        Err(_elapsed) => Err(Unreachable(format!("no part of the snapshot has arrived for {PART_TIMEOUT:?}"))),
    }
}
