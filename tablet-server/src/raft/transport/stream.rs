//! The link to a server over the network: one stream of frames for entries, one for heartbeats, unary calls for the rest.
//!
//! A stream ([`CallStream`]) carries the frames of all groups between two servers. Heartbeats have a stream of their own, so
//! that they do not wait behind megabytes of entries.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::capacity::WriteState;
use ebla_model::cluster_version::SupportedVersions;
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::cluster_guard::{with_cluster_id, with_newest_version};
use ebla_proto::raft::raft_client::RaftClient;
use ebla_proto::raft::{Frame, FrameReply, SnapshotPart, snapshot_part};
use ebla_proto::status::to_status;
use ebla_runtime::Runtime;
use ebla_runtime::call_stream::{CallQueue, CallStream, CallStreamOptions, TimeLeft};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::election_guard::with_election_max;
use super::link::PeerLink;
use super::message::{
    AppendReceipt, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable,
};
use super::options::{AddressBook, MESSAGE_BYTES_MAX, NetworkOptions};
use super::receiver_guard::with_receiver;
use super::snapshot_budget::install_timeout;
use super::wire;
use crate::capacity::Capacity;
use crate::raft::counters::RaftCounters;
use crate::raft::storage::snapshot::{checkpoint_bytes, send_files};
use crate::raft::types::{AppendRequest, RaftVote};

/// A stream of frames. Each group has only a few frames in flight, so the queue is long enough; each frame has up to about 1 MiB, or one
/// larger entry, so the queue of a peer that reads slowly is bounded in bytes too. openraft sends a refused frame again.
const FRAMES: CallStreamOptions<Frame, FrameReply> = CallStreamOptions {
    name: "raft-stream",
    call_number: |reply| reply.call,
    call_bytes: Frame::encoded_len,
    // openraft has its own timers.
    shorten_timeout: |_frame, _waited| TimeLeft::Some,
    cancellation: None,
    queued_max: 16 * 1024,
    queued_bytes_max: 64 << 20,
    reconnect_delay: Duration::from_millis(100),
};
/// The largest number of snapshot parts that wait for the socket; each has about 1 MiB.
const QUEUED_PARTS_MAX: usize = 4;

/// The link to one server. Its tasks stop with those of the network.
pub(super) struct StreamLink {
    endpoint: Arc<Endpoint>,
    entries: Arc<CallStream<Frame, FrameReply>>,
    heartbeats: Arc<CallStream<Frame, FrameReply>>,
}

/// The server at the other end, shared by both streams and the unary calls.
struct Endpoint {
    server: ServerId,
    /// What the sender supports.
    versions: SupportedVersions,
    election_max: Duration,
    addresses: Arc<dyn AddressBook>,
    runtime: Runtime,
    maintenance: ebla_runtime::Blocking,
    counters: Arc<RaftCounters>,
    capacity: Arc<Capacity>,
    /// The channel and its address.
    channel: Mutex<Option<(String, Channel)>>,
}

impl Endpoint {
    /// A client for the server's present address.
    fn client(&self) -> Result<RaftClient<Channel>, Unreachable> {
        let address = self.addresses.address(self.server);
        let address = address.ok_or_else(|| Unreachable(format!("address of server {} is unknown", self.server)))?;
        let mut current = self.channel.lock();
        let channel = match current.take() {
            Some((known, channel)) if known == address => channel,
            _ => self.runtime.net.peer_channel(&address),
        };
        *current = Some((address, channel.clone()));
        let client = RaftClient::new(channel);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Adds the cluster id and the receiver to a message: the address may belong to another server by now, or to another cluster, which then refuses
    /// it. Also adds the newest version that the sender supports, and its election timeout.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let request = with_receiver(tonic::Request::new(message), self.server);
        let request = with_election_max(request, self.election_max);
        with_newest_version(with_cluster_id(request, self.addresses.cluster()), self.versions)
    }

    fn unreachable(&self, reason: impl std::fmt::Display) -> Unreachable {
        Unreachable(format!("server {}: {reason}", self.server))
    }
}

/// A stream of frames to a server, which the first frame opens.
fn frame_stream(endpoint: &Arc<Endpoint>) -> Arc<CallStream<Frame, FrameReply>> {
    let to = Arc::clone(endpoint);
    let open = Box::new(move |frames: CallQueue<Frame>| {
        let to = Arc::clone(&to);
        async move {
            let mut client =
                to.client().map_err(|error| to_status(&Error::new(Reason::Unavailable, error.to_string())))?;
            client.exchange(to.request(frames)).await.map(Response::into_inner)
        }
        .boxed()
    });
    CallStream::new(endpoint.runtime.clone(), FRAMES, open)
}

impl StreamLink {
    pub(super) fn new(
        server: ServerId,
        options: &NetworkOptions,
        counters: &Arc<RaftCounters>,
        runtime: &Runtime,
    ) -> Self {
        let endpoint = Arc::new(Endpoint {
            server,
            versions: options.versions,
            election_max: options.election_max,
            addresses: Arc::clone(&options.addresses),
            runtime: runtime.clone(),
            maintenance: options.maintenance.clone(),
            counters: Arc::clone(counters),
            capacity: Arc::clone(&options.capacity),
            channel: Mutex::default(),
        });
        Self { entries: frame_stream(&endpoint), heartbeats: frame_stream(&endpoint), endpoint }
    }
}

impl PeerLink for StreamLink {
    fn append(
        &self,
        kind: StreamKind,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>> {
        let stream = match kind {
            StreamKind::Entries => &self.entries,
            StreamKind::Heartbeats => &self.heartbeats,
        };
        let counters = &self.endpoint.counters;
        let frame = |call| {
            let frame = wire::append_frame(call, header, request);
            counters.count_frame(frame.encoded_len(), wire::entry_count(&frame));
            frame
        };
        match stream.send(frame) {
            Ok(reply) => {
                let endpoint = Arc::clone(&self.endpoint);
                async move {
                    let reply = reply.await.map_err(|error| Unreachable(error.to_string()))?;
                    let state = if reply.refuses_writes { WriteState::Refuses } else { WriteState::Accepts };
                    endpoint.capacity.record_peer(endpoint.server, state);
                    wire::decode_append_reply(reply)
                }
                .boxed()
            }
            Err(refused) => futures::future::ready(Err(self.endpoint.unreachable(refused))).boxed(),
        }
    }

    fn call(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>> {
        let endpoint = Arc::clone(&self.endpoint);
        async move {
            let reply = endpoint.client()?.call(endpoint.request(wire::request_frame(header, request))).await;
            wire::decode_call_reply(reply.map_err(|status| endpoint.unreachable(status))?.into_inner())
        }
        .boxed()
    }

    fn install(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        let endpoint = Arc::clone(&self.endpoint);
        async move {
            let (sender, parts) = mpsc::channel(QUEUED_PARTS_MAX);
            let size_bytes = checkpoint_bytes(&snapshot.folder, &endpoint.maintenance).await;
            let size_bytes = size_bytes.map_err(|error| endpoint.unreachable(error))?;
            let first = wire::snapshot_header(header, &snapshot.vote, &snapshot.applied, size_bytes);
            let first = SnapshotPart { part: Some(snapshot_part::Part::Header(first)) };
            sender.try_send(first).map_err(|error| endpoint.unreachable(error))?;
            let sent = send_files(snapshot.folder, sender, endpoint.maintenance.clone());
            let mut client = endpoint.client()?;
            let reply = client.install_snapshot(endpoint.request(ReceiverStream::new(parts)));
            let reply = installed(sent, reply, install_timeout(size_bytes))
                .await
                .map_err(|reason| endpoint.unreachable(reason))?;
            wire::decode_snapshot_reply(reply.into_inner())
        }
        .boxed()
    }
}

/// The reply to a snapshot, while `sent` sends its files. After the last one the reply may take `timeout`. When the transfer
/// fails, the call is dropped: its stream ends without the end part, and the receiver refuses the snapshot.
async fn installed<R>(
    sent: impl Future<Output = io::Result<()>>,
    reply: impl Future<Output = Result<R, Status>>,
    timeout: Duration,
) -> Result<R, String> {
    let mut reply = std::pin::pin!(reply);
    tokio::select! {
        biased;
        // A receiver that refuses the snapshot replies before it has all files.
        reply = &mut reply => return reply.map_err(|status| status.to_string()),
        sent = sent => sent.map_err(|error| error.to_string())?,
    }
    match tokio::time::timeout(timeout, reply).await {
        Ok(reply) => reply.map_err(|status| status.to_string()),
        Err(_elapsed) => Err(format!("the snapshot was not installed in {timeout:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_whose_installation_hangs_fails_after_its_timeout() {
        let started = tokio::time::Instant::now();
        let timeout = install_timeout(1 << 30);
        let sent = async {
            tokio::time::sleep(timeout * 5).await;
            Ok(())
        };
        let failed = installed(sent, std::future::pending::<Result<(), Status>>(), timeout).await.unwrap_err();
        assert!(failed.contains("not installed in 92s"), "a minute, and 32 seconds to read a gibibyte: {failed}");
        assert_eq!(started.elapsed().as_secs(), (timeout * 6).as_secs(), "counted from the last part");
    }

    #[tokio::test]
    async fn a_refusal_and_a_failed_read_end_the_transfer() {
        let refused = installed(std::future::pending(), async { Ok("refused") }, Duration::ZERO).await;
        assert_eq!(refused, Ok("refused"));
        let failed = async { Err(io::Error::other("cannot read")) };
        assert_eq!(
            installed(failed, std::future::pending::<Result<(), Status>>(), Duration::ZERO).await,
            Err("cannot read".to_owned())
        );
    }
}
