//! The way to one other server: what is asked of it, and the two kinds of way there are.
//!
//! A [`PeerLink`] carries the messages of all groups between two servers. Over the network it is `stream::StreamLink`;
//! between servers of one process (`ebla up`, tests) [`LocalLink`] hands messages over as they are, without encoding
//! and without a socket.

use std::sync::Arc;

use ebla_model::id::{ReplicaId, ServerId, TabletId};
use futures::FutureExt;
use futures::future::BoxFuture;
use thiserror::Error;

use super::network::{Neighbours, Network};
use super::snapshot::Folder;
use super::state_machine::Applied;
use super::stream::StreamLink;
use super::types::{AppendRequest, AppendResponse, RaftVote, TransferRequest, VoteRequest, VoteResponse};

/// What created a group, so that a server that has not seen it yet can tell a late message from a needed replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The tablet that was split; 0 when the master made the group.
    pub parent: TabletId,
    /// Where in the parent's log the split stands.
    pub split_index: u64,
}

/// Between which replicas a message passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tablet: TabletId,
    pub(super) to: ReplicaId,
    pub(super) from: ReplicaId,
    pub(super) origin: Origin,
}

/// Which queue a message stands in: a heartbeat never waits behind entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Entries,
    Heartbeats,
}

/// What is asked once and answered once.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Vote(VoteRequest),
    PreVote(VoteRequest),
    Transfer(TransferRequest),
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Vote(VoteResponse),
    Done,
}

/// The other side could not be asked, or will not answer now: never a grant, never a success.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub(super) struct Unreachable(pub(super) String);

/// A checkpoint on its way to a follower.
#[derive(Debug)]
pub(super) struct SentSnapshot {
    pub(super) vote: RaftVote,
    pub(super) applied: Applied,
    pub(super) folder: Folder,
}

/// The way to one other server.
pub(super) trait PeerLink: Send + Sync + 'static {
    /// Hands a request over *now*, in the order of the calls; the future is its answer.
    fn append(
        &self,
        lane: Lane,
        header: Header,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>>;

    /// Asks for a vote or hands leadership over; overtakes entries.
    fn ask(&self, header: Header, ask: Ask) -> BoxFuture<'static, Result<Answer, Unreachable>>;

    /// Brings a checkpoint over and has it installed; answers with the vote the receiver holds then.
    fn install(&self, header: Header, snapshot: SentSnapshot) -> BoxFuture<'static, Result<RaftVote, Unreachable>>;
}

/// Both ways to a server; which one is taken is decided for each message, since a neighbour may start later.
pub(super) struct Link {
    pub(super) near: LocalLink,
    pub(super) far: StreamLink,
}

impl Link {
    fn way(&self) -> &dyn PeerLink {
        if self.near.neighbours.knows(self.near.to) { &self.near } else { &self.far }
    }
}

impl PeerLink for Link {
    fn append(
        &self,
        lane: Lane,
        header: Header,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>> {
        self.way().append(lane, header, request)
    }

    fn ask(&self, header: Header, ask: Ask) -> BoxFuture<'static, Result<Answer, Unreachable>> {
        self.way().ask(header, ask)
    }

    fn install(&self, header: Header, snapshot: SentSnapshot) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        self.way().install(header, snapshot)
    }
}

/// The way to a server in the same process.
pub(super) struct LocalLink {
    neighbours: Neighbours,
    from: ServerId,
    to: ServerId,
}

impl LocalLink {
    pub(super) fn new(neighbours: Neighbours, from: ServerId, to: ServerId) -> Self {
        Self { neighbours, from, to }
    }

    /// Looked up each time: a server that was stopped and started again is another `Network`.
    fn peer(&self) -> Result<Arc<Network>, Unreachable> {
        self.neighbours.reach(self.from, self.to).ok_or_else(|| Unreachable(format!("server {} is gone", self.to)))
    }
}

impl PeerLink for LocalLink {
    fn append(
        &self,
        _lane: Lane,
        header: Header,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>> {
        match self.peer() {
            Ok(peer) => started(peer.receive_append(header, request)),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn ask(&self, header: Header, ask: Ask) -> BoxFuture<'static, Result<Answer, Unreachable>> {
        match self.peer() {
            Ok(peer) => async move { peer.receive_ask(header, ask).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    fn install(&self, header: Header, snapshot: SentSnapshot) -> BoxFuture<'static, Result<RaftVote, Unreachable>> {
        match self.peer() {
            Ok(peer) => async move { peer.receive_snapshot(header, snapshot).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }
}

/// Polls once, so that the request stands in the group's queue before the next one is handed over.
pub(super) fn started<T: Send + 'static>(mut future: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
    match (&mut future).now_or_never() {
        Some(answer) => futures::future::ready(answer).boxed(),
        None => future,
    }
}
