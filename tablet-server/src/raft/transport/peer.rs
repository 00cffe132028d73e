//! openraft's network of one group: each peer is a [`PeerLink`] with the header of this group's messages.
//!
//! Appends are pipelined: several requests are in flight at once, and their responses are returned in the order of the
//! requests. The stream ends at the first response that is not a full success; openraft then starts another one from what it
//! knows.
//!
//! openraft announces each commit at once, with a request of its own when there are no entries to send (a commit notice). To
//! the follower that is not worth as much as a write costs, so a commit notice waits a moment for entries that carry the
//! same commit index.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{ReplicaId, ServerId};
use ebla_runtime::Failpoint;
use ebla_storage::log::GroupReplica;
use futures::{Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable as RaftUnreachable,
};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{SnapshotResponse, StreamAppendResult, TransferLeaderResponse};
use openraft::type_config::alias::SnapshotOf;
use openraft::{Instant as _, OptionalSend};

use super::follower_recovery::{FollowerRecovery, Heartbeat, HeartbeatMonitor};
use super::link::PeerLink;
use super::links::Links;
use super::message::{
    AppendReceipt, GroupOrigin, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable,
};
use crate::raft::entry_times::EntryClock;
use crate::raft::lease::quorum::QuorumTracker;
use crate::raft::runtime::BootInstant;
use crate::raft::storage::adapter::SnapshotData;
use crate::raft::storage::snapshot::Checkpoints;
use crate::raft::types::{
    AppendRequest, AppendResponse, Host, RaftVote, TransferRequest, TypeConfig, VoteRequest, VoteResponse, log_id,
    vote_term,
};

/// The largest number of appends of one group in flight to one follower; each has at most about 1 MiB.
const INFLIGHT_APPENDS_MAX: usize = 4;

/// How long a commit notice waits for entries. Without entries a follower applies that much later; nothing that waits for its
/// apply (the child of a split, a new leader) suffers from it.
const COMMIT_NOTICE_DELAY: Duration = Duration::from_millis(20);

type PeerError = RPCError<TypeConfig>;
type AppendResult = Result<StreamAppendResult<TypeConfig>, PeerError>;

/// Creates the peers of one group.
pub(in crate::raft) struct PeerFactory {
    pub(in crate::raft) links: Arc<Links>,
    pub(in crate::raft) group: GroupReplica,
    pub(in crate::raft) origin: GroupOrigin,
    pub(in crate::raft) checkpoints: Checkpoints,
    pub(in crate::raft) quorum: QuorumTracker,
    pub(in crate::raft) recovery: FollowerRecovery,
    pub(in crate::raft) entry_clock: EntryClock,
}

impl PeerFactory {
    fn peer(&self, kind: StreamKind, target: u64, host: Host) -> Peer {
        let header = MessageHeader {
            group: self.group.group,
            to: ReplicaId::new(target),
            from: self.group.replica,
            origin: self.origin,
        };
        let server = ServerId::new(host.0);
        Peer {
            server,
            link: self.links.link(server),
            links: Arc::clone(&self.links),
            header,
            kind,
            response_timeout: self.links.options().response_timeout,
            checkpoints: self.checkpoints.clone(),
            quorum: self.quorum.clone(),
            entry_clock: self.entry_clock.clone(),
            heartbeats: (kind == StreamKind::Heartbeats).then(|| self.recovery.monitor()),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for PeerFactory {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, host: &Host) -> Peer {
        self.peer(StreamKind::Entries, target, *host)
    }

    async fn new_heartbeat_client(&mut self, target: u64, host: &Host) -> Peer {
        self.peer(StreamKind::Heartbeats, target, *host)
    }
}

/// One replica of the group, on another server.
pub(in crate::raft) struct Peer {
    server: ServerId,
    link: Arc<dyn PeerLink>,
    links: Arc<Links>,
    header: MessageHeader,
    kind: StreamKind,
    response_timeout: Duration,
    checkpoints: Checkpoints,
    quorum: QuorumTracker,
    entry_clock: EntryClock,
    /// Present on the stream of heartbeats.
    heartbeats: Option<HeartbeatMonitor>,
}

impl Peer {
    async fn call(&self, request: RaftRequest, timeout: Duration) -> Result<RaftResponse, PeerError> {
        let action = match request {
            RaftRequest::Vote(_) | RaftRequest::PreVote(_) => RPCTypes::Vote,
            RaftRequest::Transfer(_) => RPCTypes::TransferLeader,
        };
        let response = self.link.call(self.header, request);
        match tokio::time::timeout(timeout, response).await {
            Ok(response) => response.map_err(peer_error),
            Err(_elapsed) => Err(timed_out(&self.header, action, timeout)),
        }
    }

    async fn request_vote(&self, request: RaftRequest, timeout: Duration) -> Result<VoteResponse, PeerError> {
        match self.call(request, timeout).await? {
            RaftResponse::Vote(response) => Ok(response),
            RaftResponse::Done => Err(NetworkError::from_string("response of the wrong kind to a vote request").into()),
        }
    }

    /// Sends an append at once; the future is its outcome.
    fn append(&self, request: AppendRequest, timeout: Duration) -> impl Future<Output = AppendResult> + Send + use<> {
        let previous = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(previous);
        let response = self.send_append(request, timeout);
        async move {
            match response.await? {
                AppendResponse::Conflict if previous.is_none() => Err(NetworkError::from_string(
                    "the follower reported a log conflict for an append without a previous entry",
                )
                .into()),
                response => Ok(response.into_stream_result(previous, last)),
            }
        }
    }

    /// Sends an append at once. Its response is recorded as the acknowledgment of this very message.
    fn send_append(
        &self,
        request: AppendRequest,
        timeout: Duration,
    ) -> impl Future<Output = Result<AppendResponse, PeerError>> + Send + use<> {
        let (header, quorum, heartbeats) = (self.header, self.quorum.clone(), self.heartbeats.clone());
        let (term, sent) = (vote_term(&request.vote), BootInstant::now().since_boot());
        // For traces, of requests with entries.
        let last = request.entries.last().map(|entry| log_id(&entry.log_id).index);
        let acknowledges = last.map(|last| (last, self.server, self.entry_clock.clone()));
        let response = self.link.append(self.kind, header, request);
        async move {
            let response = match tokio::time::timeout(timeout, response).await {
                Ok(response) => response.map_err(peer_error),
                Err(_elapsed) => Err(timed_out(&header, RPCTypes::AppendEntries, timeout)),
            };
            if let Some(heartbeats) = heartbeats {
                heartbeats.record(if response.is_ok() { Heartbeat::Answered } else { Heartbeat::Failed });
            }
            let AppendReceipt { response, work } = response?;
            if let (Some((last, server, entry_clock)), AppendResponse::Success) = (acknowledges, &response) {
                entry_clock.acknowledge(last, server, sent, work);
            }
            if !matches!(response, AppendResponse::HigherVote(_)) {
                let from_response = Failpoint::LeaseFromResponse.is_enabled();
                let sent = if from_response { BootInstant::now().since_boot() } else { sent };
                quorum.record(term, header.to.get(), sent);
            }
            Ok(response)
        }
    }

    /// A late heartbeat response is worth nothing; entries may wait for a slow disk.
    fn append_timeout(&self, option: &RPCOption) -> Duration {
        match self.kind {
            StreamKind::Heartbeats => option.soft_ttl(),
            StreamKind::Entries => self.response_timeout,
        }
    }

    async fn send_snapshot(&self, vote: RaftVote) -> Result<RaftVote, StreamingError<TypeConfig>> {
        // Before the checkpoint: one that waits would keep the files of its moment on disk. Held until the follower has replied.
        let _permit = self.links.snapshots().send_permit(self.header.group).await.map_err(peer_error)?;
        let (folder, applied) = self.checkpoints.create().await.map_err(|error| {
            StreamingError::from(RaftUnreachable::from_string(format!("cannot create a checkpoint: {error}")))
        })?;
        let snapshot = SnapshotTransfer { vote, applied, folder };
        self.link.install(self.header, snapshot).await.map_err(|error| StreamingError::from(peer_error(error)))
    }
}

fn peer_error(Unreachable(reason): Unreachable) -> PeerError {
    RaftUnreachable::from_string(reason).into()
}

fn timed_out(header: &MessageHeader, action: RPCTypes, timeout: Duration) -> PeerError {
    Timeout { action, id: header.from.get(), target: header.to.get(), timeout }.into()
}

/// The requests without the commit notices that another request follows soon enough.
fn coalesce_commit_notices<S>(requests: S) -> impl Stream<Item = AppendRequest> + Send
where
    S: Stream<Item = AppendRequest> + Send + Unpin,
{
    // The input may end while a notice is held back, and is polled once more after that.
    stream::unfold((requests.fuse(), None), |(mut requests, last_sent)| async move {
        let mut next = requests.next().await?;
        let delay = tokio::time::sleep(COMMIT_NOTICE_DELAY);
        let mut delay = std::pin::pin!(delay);
        // Only a request that follows entries of this stream is a commit notice: the first one probes the follower's log.
        while next.entries.is_empty() && last_sent.is_some() && next.prev_log_id == last_sent {
            tokio::select! {
                biased;
                later = requests.next() => match later {
                    Some(later) => next = later,
                    None => break,
                },
                () = &mut delay => break,
            }
        }
        let last = next.entries.last().map(|entry| entry.log_id).or(last_sent);
        Some((next, (requests, last)))
    })
}

/// Passes responses through, up to and including the first one that is not a full success.
fn until_failure<S>(responses: S) -> impl Stream<Item = AppendResult> + Send
where
    S: Stream<Item = AppendResult> + Send + Unpin,
{
    stream::unfold(Some(responses), |responses| async move {
        let mut responses = responses?;
        let response = responses.next().await?;
        let is_success = matches!(response, Ok(Ok(_)));
        Some((response, is_success.then_some(responses)))
    })
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(&mut self, request: AppendRequest, option: RPCOption) -> Result<AppendResponse, PeerError> {
        self.send_append(request, self.append_timeout(&option)).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, PeerError>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let timeout = self.append_timeout(&option);
        let peer: &'s Self = self;
        let requests = Box::pin(coalesce_commit_notices(input));
        let responses = requests.map(move |request| peer.append(request, timeout)).buffered(INFLIGHT_APPENDS_MAX);
        let responses: BoxStream<'s, AppendResult> = Box::pin(until_failure(Box::pin(responses)));
        Box::pin(futures::future::ready(Ok(responses)))
    }

    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, PeerError> {
        self.request_vote(RaftRequest::Vote(request), option.soft_ttl()).await
    }

    async fn pre_vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, PeerError> {
        self.request_vote(RaftRequest::PreVote(request), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        // openraft names the least that the snapshot must contain; the checkpoint may contain more.
        let at_least = snapshot.meta.last_log_id.as_ref().map(log_id);
        tracing::info!(group = %self.header.group, to = %self.header.to, ?at_least, "sending snapshot");
        tokio::select! {
            sent = self.send_snapshot(vote) => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => {
                    // openraft retries without a log line.
                    tracing::warn!(group = %self.header.group, to = %self.header.to, %error, "snapshot not sent; will retry");
                    Err(error)
                }
            },
            closed = cancel => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferRequest,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, PeerError> {
        self.call(RaftRequest::Transfer(request), option.soft_ttl()).await.map(|_done| Ok(()))
    }
}
