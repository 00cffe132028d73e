//! The messages between replicas.

use ebla_model::id::{GroupId, LogIndex, ReplicaId};
use ebla_runtime::trace::FollowerWork;
use thiserror::Error;

use crate::raft::state_machine::AppliedPosition;
use crate::raft::storage::snapshot::ScratchFolder;
use crate::raft::types::{AppendResponse, RaftVote, TransferRequest, VoteRequest, VoteResponse};

/// What created a group. A server without the replica uses it to tell a late message from a replica that it must create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupOrigin {
    /// The group that was divided; 0 when the master created the group.
    pub parent: GroupId,
    /// The index of the division in the parent's log.
    pub divide_index: LogIndex,
}

/// The sender and the receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::raft) struct MessageHeader {
    pub(in crate::raft) group: GroupId,
    pub(in crate::raft) to: ReplicaId,
    pub(in crate::raft) from: ReplicaId,
    pub(in crate::raft) origin: GroupOrigin,
}

/// The stream that carries an append: a heartbeat never waits behind entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::raft) enum StreamKind {
    Entries,
    Heartbeats,
}

/// The response to an append, and what the follower did for it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::raft) struct AppendReceipt {
    pub(in crate::raft) response: AppendResponse,
    /// Of entries that were accepted: for traces. Nothing is decided by it.
    pub(in crate::raft) work: Option<FollowerWork>,
}

impl From<AppendResponse> for AppendReceipt {
    fn from(response: AppendResponse) -> Self {
        Self { response, work: None }
    }
}

/// A request that is sent as a unary call.
#[derive(Clone, Debug)]
pub(in crate::raft) enum RaftRequest {
    Vote(VoteRequest),
    PreVote(VoteRequest),
    Transfer(TransferRequest),
}

/// The response to a [`RaftRequest`].
#[derive(Clone, Debug)]
pub(in crate::raft) enum RaftResponse {
    Vote(VoteResponse),
    Done,
}

/// The other server cannot be reached or does not respond now. It never means a granted vote or a success.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub(in crate::raft) struct Unreachable(pub(in crate::raft) String);

/// A checkpoint that is sent to a follower.
#[derive(Debug)]
pub(in crate::raft) struct SnapshotTransfer {
    pub(in crate::raft) vote: RaftVote,
    pub(in crate::raft) applied: AppliedPosition,
    pub(in crate::raft) folder: ScratchFolder,
}
