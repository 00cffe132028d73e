//! The way to a server over the network: one stream of frames for entries, one for heartbeats, calls for the rest.
//!
//! A stream carries the frames of all groups between two servers; what has gathered while the socket was busy goes out
//! together. Answers come back in any order and are matched by number. A stream that breaks fails all that waits on it
//! at once; after a pause the next frame opens another. Heartbeats have a stream of their own, so that they do not stand
//! behind megabytes of entries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_proto::belonging::from_cluster;
use ebla_proto::raft::raft_client::RaftClient;
use ebla_proto::raft::{Frame, FrameReply, SnapshotPart, snapshot_part};
use ebla_runtime::Runtime;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::link::{Answer, Ask, Header, Lane, PeerLink, SentSnapshot, Unreachable};
use super::network::{AddressBook, MESSAGE_BYTES_MAX, Network};
use super::snapshot::send_files;
use super::types::{AppendRequest, AppendResponse, RaftVote};
use super::wire;

/// Frames that wait for the socket on one stream. More are refused: each group has a few on their way at most.
const QUEUE_FRAMES: usize = 16 * 1024;
/// Parts of a snapshot that wait for the socket; each about 1 MiB.
const QUEUE_PARTS: usize = 4;
/// After a stream broke or could not be opened, the next attempt waits about this long.
const PAUSE: Duration = Duration::from_millis(100);

/// The way to one server. Its tasks end with the network's.
pub(super) struct StreamLink {
    way: Arc<Way>,
    entries: Arc<Stream>,
    heartbeats: Arc<Stream>,
}

/// What both streams and the calls share: how to get there.
struct Way {
    server: ServerId,
    addresses: Arc<dyn AddressBook>,
    runtime: Runtime,
    maintenance: ebla_runtime::Blocking,
    /// The channel and the address it goes to.
    channel: Mutex<Option<(String, Channel)>>,
}

impl Way {
    /// A client for where the server listens now.
    fn client(&self) -> Result<RaftClient<Channel>, Unreachable> {
        let address = self.addresses.address(self.server);
        let address = address.ok_or_else(|| Unreachable(format!("server {} has no address", self.server)))?;
        let mut held = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match held.take() {
            Some((known, channel)) if known == address => channel,
            _ => self.runtime.net.channel(&address),
        };
        *held = Some((address, channel.clone()));
        let client = RaftClient::new(channel);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// A message as it leaves: an address may be a stranger's by now, so it says which cluster it is for.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        from_cluster(tonic::Request::new(message), self.addresses.cluster())
    }

    fn lost(&self, what: impl std::fmt::Display) -> Unreachable {
        Unreachable(format!("server {}: {what}", self.server))
    }
}

impl StreamLink {
    pub(super) fn new(network: &Network, server: ServerId) -> Self {
        let way = Arc::new(Way {
            server,
            addresses: Arc::clone(&network.options().addresses),
            runtime: network.runtime().clone(),
            maintenance: network.options().maintenance.clone(),
            channel: Mutex::default(),
        });
        Self { entries: Stream::new(&way), heartbeats: Stream::new(&way), way }
    }
}

impl PeerLink for StreamLink {
    fn append(
        &self,
        lane: Lane,
        header: Header,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>> {
        let stream = match lane {
            Lane::Entries => &self.entries,
            Lane::Heartbeats => &self.heartbeats,
        };
        match stream.send(|call| wire::append_frame(call, header, request)) {
            Ok(reply) => async move {
                // The sender goes when the stream breaks.
                let reply = reply.await.map_err(|_gone| Unreachable("the stream broke".to_owned()))?;
                wire::append_reply_of(reply)
            }
            .boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn ask(&self, header: Header, ask: Ask) -> BoxFuture<'static, Result<Answer, Unreachable>> {
        let way = Arc::clone(&self.way);
        async move {
            let reply = way.client()?.call(way.request(wire::ask_frame(header, ask))).await;
            wire::answer_of(reply.map_err(|status| way.lost(status))?.into_inner())
        }
        .boxed()
    }

    fn install(&self, header: Header, snapshot: SentSnapshot) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        let way = Arc::clone(&self.way);
        async move {
            let (sender, parts) = mpsc::channel(QUEUE_PARTS);
            let first = wire::snapshot_header(header, &snapshot.vote, &snapshot.applied);
            let first = SnapshotPart { part: Some(snapshot_part::Part::Header(first)) };
            sender.try_send(first).map_err(|error| way.lost(error))?;
            // When reading fails the stream ends without its end part, and the receiver refuses.
            let send = send_files(snapshot.folder, sender, way.maintenance.clone());
            way.runtime.tasks.spawn_until_stopped("snapshot", async move {
                if let Err(error) = send.await {
                    tracing::warn!(%error, "a checkpoint could not be read");
                }
            });
            let reply = way.client()?.install_snapshot(way.request(ReceiverStream::new(parts))).await;
            wire::snapshot_reply_of(reply.map_err(|status| way.lost(status))?.into_inner())
        }
        .boxed()
    }
}

type Waiting = HashMap<u64, oneshot::Sender<FrameReply>>;

/// One stream of frames, opened when there is something to send.
struct Stream {
    way: Arc<Way>,
    next_call: AtomicU64,
    /// Held for a look-up or a push.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where frames go, while a stream is open or being opened.
    outgoing: Option<mpsc::Sender<Frame>>,
    waiting: Waiting,
    /// No attempt before this, as time since boot.
    not_before: Duration,
}

impl Stream {
    fn new(way: &Arc<Way>) -> Arc<Self> {
        Arc::new(Self { way: Arc::clone(way), next_call: AtomicU64::new(1), state: Mutex::default() })
    }

    /// Queues a frame; the receiver gets its reply, or ends when the stream does.
    fn send(self: &Arc<Self>, frame: impl FnOnce(u64) -> Frame) -> Result<oneshot::Receiver<FrameReply>, Unreachable> {
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let mut state = self.held();
        let outgoing = match &state.outgoing {
            Some(outgoing) => outgoing.clone(),
            None => self.open(&mut state)?,
        };
        outgoing.try_send(frame(call)).map_err(|error| self.way.lost(error))?;
        let (sender, reply) = oneshot::channel();
        state.waiting.insert(call, sender);
        Ok(reply)
    }

    fn open(self: &Arc<Self>, state: &mut State) -> Result<mpsc::Sender<Frame>, Unreachable> {
        if self.way.runtime.clock.monotonic() < state.not_before {
            return Err(self.way.lost("was unreachable just now"));
        }
        let client = self.way.client()?;
        let (outgoing, frames) = mpsc::channel(QUEUE_FRAMES);
        state.outgoing = Some(outgoing.clone());
        let stream = Arc::clone(self);
        self.way.runtime.tasks.spawn_until_stopped("raft-stream", async move {
            let why = stream.exchange(client, frames).await;
            tracing::debug!(server = %stream.way.server, %why, "stream of frames ended");
            stream.close();
        });
        Ok(outgoing)
    }

    /// Runs until the stream breaks; tells why.
    async fn exchange(&self, mut client: RaftClient<Channel>, frames: mpsc::Receiver<Frame>) -> String {
        let mut replies = match client.exchange(self.way.request(ReceiverStream::new(frames))).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status.to_string(),
        };
        loop {
            match replies.message().await {
                Ok(Some(reply)) => self.resolve(reply),
                Ok(None) => return "ended by the other side".to_owned(),
                Err(status) => return status.to_string(),
            }
        }
    }

    fn resolve(&self, reply: FrameReply) {
        let waiting = self.held().waiting.remove(&reply.call);
        if let Some(waiting) = waiting {
            // Who asked may have given up meanwhile.
            let _unwanted = waiting.send(reply);
        }
    }

    /// Fails all that waits and lets the next frame open another stream after a pause.
    fn close(&self) {
        let pause = self.way.runtime.rng.jitter(PAUSE);
        let mut state = self.held();
        state.outgoing = None;
        state.not_before = self.way.runtime.clock.monotonic().saturating_add(pause);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }

    fn held(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
