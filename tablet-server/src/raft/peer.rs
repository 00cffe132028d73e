//! openraft's network of one group: each peer is a [`PeerLink`] with the header of this group's messages.
//!
//! Appends are pipelined: some requests are on their way at once, and answers are given back in the order of the requests.
//! The stream ends at the first answer that is not a full success; openraft then starts another from what it knows.
//!
//! openraft tells each commit at once, with a request of its own when there are no entries to send. The follower has no
//! use for it that would be worth as much as a write: such a request waits a moment for entries that carry the same news.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{ReplicaId, ServerId};
use ebla_storage::log::GroupId;
use futures::{Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable as RaftUnreachable,
};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{SnapshotResponse, StreamAppendResult, TransferLeaderResponse};
use openraft::type_config::alias::SnapshotOf;
use openraft::{Instant as _, OptionalSend};

use super::acknowledged::Acknowledged;
use super::boottime::BootInstant;
use super::comeback::{Comeback, Heartbeats};
use super::link::{Answer, Ask, Header, Lane, Origin, PeerLink, SentSnapshot, Unreachable};
use super::network::Network;
use super::snapshot::Checkpoints;
use super::state_machine::SnapshotData;
use super::types::{
    AppendRequest, AppendResponse, Host, RaftVote, TransferRequest, TypeConfig, VoteRequest, VoteResponse, log_id,
};

/// Requests of one group on their way to one follower; each holds at most about 1 MiB.
const PIPELINE: usize = 4;

/// How long the news of a commit waits for entries to travel with. A follower applies so much later where there are none;
/// what waits for its apply (the child of a split, a new leader) is not hurt by this.
const COMMIT_WAIT: Duration = Duration::from_millis(20);

type Failed = RPCError<TypeConfig>;
type AppendResult = Result<StreamAppendResult<TypeConfig>, Failed>;

/// Makes the peers of one group.
pub(super) struct Peers {
    pub(super) network: Arc<Network>,
    pub(super) group: GroupId,
    pub(super) origin: Origin,
    pub(super) checkpoints: Checkpoints,
    pub(super) acknowledged: Acknowledged,
    pub(super) comeback: Comeback,
}

impl Peers {
    fn peer(&self, lane: Lane, target: u64, host: Host) -> Peer {
        let header = Header {
            tablet: self.group.tablet,
            to: ReplicaId::new(target),
            from: self.group.replica,
            origin: self.origin,
        };
        Peer {
            link: self.network.link(ServerId::new(host.0)),
            header,
            lane,
            answer_wait: self.network.options().answer_wait,
            checkpoints: self.checkpoints.clone(),
            acknowledged: self.acknowledged.clone(),
            heartbeats: (lane == Lane::Heartbeats).then(|| self.comeback.watch()),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, host: &Host) -> Peer {
        self.peer(Lane::Entries, target, *host)
    }

    async fn new_heartbeat_client(&mut self, target: u64, host: &Host) -> Peer {
        self.peer(Lane::Heartbeats, target, *host)
    }
}

/// One replica of the group, on another server.
pub(super) struct Peer {
    link: Arc<dyn PeerLink>,
    header: Header,
    lane: Lane,
    answer_wait: Duration,
    checkpoints: Checkpoints,
    acknowledged: Acknowledged,
    /// On the lane of heartbeats.
    heartbeats: Option<Heartbeats>,
}

impl Peer {
    async fn ask(&self, ask: Ask, wait: Duration) -> Result<Answer, Failed> {
        let kind = match ask {
            Ask::Vote(_) | Ask::PreVote(_) => RPCTypes::Vote,
            Ask::Transfer(_) => RPCTypes::TransferLeader,
        };
        let answer = self.link.ask(self.header, ask);
        match tokio::time::timeout(wait, answer).await {
            Ok(answer) => answer.map_err(failed),
            Err(_elapsed) => Err(timed_out(&self.header, kind, wait)),
        }
    }

    async fn ask_vote(&self, ask: Ask, wait: Duration) -> Result<VoteResponse, Failed> {
        match self.ask(ask, wait).await? {
            Answer::Vote(response) => Ok(response),
            Answer::Done => Err(NetworkError::from_string("the answer does not fit the question").into()),
        }
    }

    /// Hands the request over at once; the future is its outcome.
    fn append(&self, request: AppendRequest, wait: Duration) -> impl Future<Output = AppendResult> + Send + use<> {
        let previous = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(previous);
        let answer = self.answered(request, wait);
        async move {
            match answer.await? {
                AppendResponse::Conflict if previous.is_none() => {
                    Err(NetworkError::from_string("a conflict with nothing").into())
                }
                response => Ok(response.into_stream_result(previous, last)),
            }
        }
    }

    /// The request is handed over at once; its answer is noted as its own.
    fn answered(
        &self,
        request: AppendRequest,
        wait: Duration,
    ) -> impl Future<Output = Result<AppendResponse, Failed>> + Send + use<> {
        let (header, acknowledged, heartbeats) = (self.header, self.acknowledged.clone(), self.heartbeats.clone());
        let (term, sent) = (request.vote.leader_id.term, BootInstant::now().since_boot());
        let answer = self.link.append(self.lane, header, request);
        async move {
            let response = match tokio::time::timeout(wait, answer).await {
                Ok(answer) => answer.map_err(failed),
                Err(_elapsed) => Err(timed_out(&header, RPCTypes::AppendEntries, wait)),
            };
            if let Some(heartbeats) = heartbeats {
                heartbeats.note(response.is_ok());
            }
            let response = response?;
            if !matches!(response, AppendResponse::HigherVote(_)) {
                acknowledged.note(term, header.to.get(), sent);
            }
            Ok(response)
        }
    }

    /// A heartbeat that is late is worth nothing; entries may wait for a slow disk.
    fn wait(&self, option: &RPCOption) -> Duration {
        match self.lane {
            Lane::Heartbeats => option.soft_ttl(),
            Lane::Entries => self.answer_wait,
        }
    }

    async fn send_snapshot(&self, vote: RaftVote) -> Result<RaftVote, StreamingError<TypeConfig>> {
        let (folder, applied) = self.checkpoints.make().await.map_err(|error| {
            StreamingError::from(RaftUnreachable::from_string(format!("make a checkpoint: {error}")))
        })?;
        let snapshot = SentSnapshot { vote, applied, folder };
        self.link.install(self.header, snapshot).await.map_err(|error| StreamingError::from(failed(error)))
    }
}

fn failed(Unreachable(reason): Unreachable) -> Failed {
    RaftUnreachable::from_string(reason).into()
}

fn timed_out(header: &Header, action: RPCTypes, timeout: Duration) -> Failed {
    Timeout { action, id: header.from.get(), target: header.to.get(), timeout }.into()
}

/// The requests to send, without those that only tell a commit and that another follows soon enough.
fn patient<S>(requests: S) -> impl Stream<Item = AppendRequest> + Send
where
    S: Stream<Item = AppendRequest> + Send + Unpin,
{
    // It may end while something is held back, and is asked once more after that.
    stream::unfold((requests.fuse(), None), |(mut requests, sent)| async move {
        let mut next = requests.next().await?;
        let until = tokio::time::sleep(COMMIT_WAIT);
        let mut until = std::pin::pin!(until);
        // Only what follows on entries of this stream: the first request asks where the follower stands.
        while next.entries.is_empty() && sent.is_some() && next.prev_log_id == sent {
            tokio::select! {
                biased;
                later = requests.next() => match later {
                    Some(later) => next = later,
                    None => break,
                },
                () = &mut until => break,
            }
        }
        let last = next.entries.last().map(|entry| entry.log_id).or(sent);
        Some((next, (requests, last)))
    })
}

/// Passes everything on up to and including the first item that is not a plain success.
fn until_trouble<S>(answers: S) -> impl Stream<Item = AppendResult> + Send
where
    S: Stream<Item = AppendResult> + Send + Unpin,
{
    stream::unfold(Some(answers), |answers| async move {
        let mut answers = answers?;
        let answer = answers.next().await?;
        let go_on = matches!(answer, Ok(Ok(_)));
        Some((answer, go_on.then_some(answers)))
    })
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(&mut self, request: AppendRequest, option: RPCOption) -> Result<AppendResponse, Failed> {
        self.answered(request, self.wait(&option)).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, Failed>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let wait = self.wait(&option);
        let peer: &'s Self = self;
        let requests = Box::pin(patient(input));
        let answers = requests.map(move |request| peer.append(request, wait)).buffered(PIPELINE);
        let answers: BoxStream<'s, AppendResult> = Box::pin(until_trouble(Box::pin(answers)));
        Box::pin(futures::future::ready(Ok(answers)))
    }

    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, Failed> {
        self.ask_vote(Ask::Vote(request), option.soft_ttl()).await
    }

    async fn pre_vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, Failed> {
        self.ask_vote(Ask::PreVote(request), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        // What openraft holds is a promise; the checkpoint may hold more.
        let promised = snapshot.meta.last_log_id.as_ref().map(log_id);
        tracing::info!(tablet = %self.header.tablet, to = %self.header.to, ?promised, "send a snapshot");
        tokio::select! {
            sent = self.send_snapshot(vote) => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => {
                    // openraft tries again without a word.
                    tracing::warn!(tablet = %self.header.tablet, to = %self.header.to, %error, "a snapshot was not sent");
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
    ) -> Result<TransferLeaderResponse<TypeConfig>, Failed> {
        self.ask(Ask::Transfer(request), option.soft_ttl()).await.map(|_done| Ok(()))
    }
}
