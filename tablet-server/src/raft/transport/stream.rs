//! The link to a server over the network: one stream of frames for entries, one for heartbeats, unary calls for the rest.
//!
//! A stream carries the frames of all groups between two servers; frames that queue while the socket is busy are sent
//! together. Replies arrive in any order and are matched by call number. When a stream breaks, all its pending calls fail at
//! once; after a delay the next frame opens another stream. Heartbeats have a stream of their own, so that they do not wait
//! behind megabytes of entries.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_proto::cluster_guard::with_cluster_id;
use ebla_proto::raft::raft_client::RaftClient;
use ebla_proto::raft::{Frame, FrameReply, SnapshotPart, snapshot_part};
use ebla_runtime::Runtime;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::link::PeerLink;
use super::message::{MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable};
use super::options::{AddressBook, MESSAGE_BYTES_MAX, NetworkOptions};
use super::wire;
use crate::raft::counters::RaftCounters;
use crate::raft::storage::snapshot::send_files;
use crate::raft::types::{AppendRequest, AppendResponse, RaftVote};

/// The largest number of frames that wait for the socket of one stream. More are refused: each group has only a few in flight.
const QUEUED_FRAMES_MAX: usize = 16 * 1024;
/// The largest number of snapshot parts that wait for the socket; each has about 1 MiB.
const QUEUED_PARTS_MAX: usize = 4;
/// The delay, with jitter, before a broken stream is opened again.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// The link to one server. Its tasks stop with those of the network.
pub(super) struct StreamLink {
    endpoint: Arc<Endpoint>,
    entries: Arc<FrameStream>,
    heartbeats: Arc<FrameStream>,
}

/// The server at the other end, shared by both streams and the unary calls.
struct Endpoint {
    server: ServerId,
    addresses: Arc<dyn AddressBook>,
    runtime: Runtime,
    maintenance: ebla_runtime::Blocking,
    counters: Arc<RaftCounters>,
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
            _ => self.runtime.net.channel(&address),
        };
        *current = Some((address, channel.clone()));
        let client = RaftClient::new(channel);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Adds the cluster id to a message: the address may belong to a server of another cluster by now, which then refuses it.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        with_cluster_id(tonic::Request::new(message), self.addresses.cluster())
    }

    fn unreachable(&self, reason: impl std::fmt::Display) -> Unreachable {
        Unreachable(format!("server {}: {reason}", self.server))
    }
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
            addresses: Arc::clone(&options.addresses),
            runtime: runtime.clone(),
            maintenance: options.maintenance.clone(),
            counters: Arc::clone(counters),
            channel: Mutex::default(),
        });
        Self { entries: FrameStream::new(&endpoint), heartbeats: FrameStream::new(&endpoint), endpoint }
    }
}

impl PeerLink for StreamLink {
    fn append(
        &self,
        kind: StreamKind,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>> {
        let stream = match kind {
            StreamKind::Entries => &self.entries,
            StreamKind::Heartbeats => &self.heartbeats,
        };
        match stream.send(|call| wire::append_frame(call, header, request)) {
            Ok(reply) => async move {
                // The sender is dropped when the stream breaks.
                let reply = reply.await.map_err(|_sender_dropped| Unreachable("the stream was closed".to_owned()))?;
                wire::decode_append_reply(reply)
            }
            .boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
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
            let first = wire::snapshot_header(header, &snapshot.vote, &snapshot.applied);
            let first = SnapshotPart { part: Some(snapshot_part::Part::Header(first)) };
            sender.try_send(first).map_err(|error| endpoint.unreachable(error))?;
            // If a read fails, the stream ends without its end part and the receiver refuses the snapshot.
            let send = send_files(snapshot.folder, sender, endpoint.maintenance.clone());
            endpoint.runtime.tasks.spawn_until_stopped("snapshot", async move {
                if let Err(error) = send.await {
                    tracing::warn!(%error, "cannot read the checkpoint; snapshot transfer aborted");
                }
            });
            let reply = endpoint.client()?.install_snapshot(endpoint.request(ReceiverStream::new(parts))).await;
            wire::decode_snapshot_reply(reply.map_err(|status| endpoint.unreachable(status))?.into_inner())
        }
        .boxed()
    }
}

/// One stream of frames. The first frame opens it.
struct FrameStream {
    endpoint: Arc<Endpoint>,
    next_call: AtomicU64,
    /// Locked for one lookup or insertion.
    state: Mutex<FrameStreamState>,
}

#[derive(Default)]
struct FrameStreamState {
    /// The queue of frames, while the stream is open or being opened.
    outgoing: Option<mpsc::Sender<Frame>>,
    /// The calls that wait for their reply, by call number.
    pending: HashMap<u64, oneshot::Sender<FrameReply>>,
    /// The stream is not opened before this time since boot.
    reconnect_at: Duration,
}

impl FrameStream {
    fn new(endpoint: &Arc<Endpoint>) -> Arc<Self> {
        Arc::new(Self { endpoint: Arc::clone(endpoint), next_call: AtomicU64::new(1), state: Mutex::default() })
    }

    /// Queues a frame. The receiver gets its reply, or an error when the stream closes.
    fn send(self: &Arc<Self>, frame: impl FnOnce(u64) -> Frame) -> Result<oneshot::Receiver<FrameReply>, Unreachable> {
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let outgoing = match &state.outgoing {
            Some(outgoing) => outgoing.clone(),
            None => self.open(&mut state)?,
        };
        let frame = frame(call);
        let (bytes, entries) = (frame.encoded_len(), wire::entry_count(&frame));
        outgoing.try_send(frame).map_err(|error| self.endpoint.unreachable(error))?;
        self.endpoint.counters.count_frame(bytes, entries);
        let (sender, reply) = oneshot::channel();
        state.pending.insert(call, sender);
        Ok(reply)
    }

    fn open(self: &Arc<Self>, state: &mut FrameStreamState) -> Result<mpsc::Sender<Frame>, Unreachable> {
        if self.endpoint.runtime.clock.monotonic() < state.reconnect_at {
            return Err(self.endpoint.unreachable("the last attempt failed; waiting before the next one"));
        }
        let client = self.endpoint.client()?;
        let (outgoing, frames) = mpsc::channel(QUEUED_FRAMES_MAX);
        state.outgoing = Some(outgoing.clone());
        let stream = Arc::clone(self);
        self.endpoint.runtime.tasks.spawn_until_stopped("raft-stream", async move {
            let reason = stream.exchange(client, frames).await;
            tracing::debug!(server = %stream.endpoint.server, %reason, "raft stream closed");
            stream.close();
        });
        Ok(outgoing)
    }

    /// Runs until the stream closes; returns the reason.
    async fn exchange(&self, mut client: RaftClient<Channel>, frames: mpsc::Receiver<Frame>) -> String {
        let mut replies = match client.exchange(self.endpoint.request(ReceiverStream::new(frames))).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status.to_string(),
        };
        loop {
            match replies.message().await {
                Ok(Some(reply)) => self.resolve(reply),
                Ok(None) => return "closed by the other server".to_owned(),
                Err(status) => return status.to_string(),
            }
        }
    }

    fn resolve(&self, reply: FrameReply) {
        let pending = self.state.lock().pending.remove(&reply.call);
        if let Some(sender) = pending {
            // The caller may have given up meanwhile.
            let _receiver_dropped = sender.send(reply);
        }
    }

    /// Fails all pending calls, and lets the next frame open another stream after a delay.
    fn close(&self) {
        let delay = self.endpoint.runtime.rng.jitter(RECONNECT_DELAY);
        let mut state = self.state.lock();
        state.outgoing = None;
        state.reconnect_at = self.endpoint.runtime.clock.monotonic().saturating_add(delay);
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        drop(pending);
    }
}
