//! The link to one other server. It carries the messages of all groups between two servers.
//!
//! Over the network it is a `stream::StreamLink`; between servers of one process (`ebla up`, tests) it is a
//! `local::LocalLink`.

use futures::future::BoxFuture;

use super::message::{
    AppendReceipt, MessageHeader, RaftRequest, RaftResponse, SnapshotTransfer, StreamKind, Unreachable,
};
use crate::raft::types::{AppendRequest, RaftVote};

/// The link to one other server.
pub(super) trait PeerLink: Send + Sync + 'static {
    /// Queues an append *now*, in the order of the calls; the future is the response.
    fn append(
        &self,
        kind: StreamKind,
        header: MessageHeader,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendReceipt, Unreachable>>;

    /// Sends a vote request or a leadership transfer; it may overtake entries.
    fn call(
        &self,
        header: MessageHeader,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, Unreachable>>;

    /// Sends a checkpoint and has it installed; returns the vote that the receiver holds then.
    fn install(
        &self,
        header: MessageHeader,
        snapshot: SnapshotTransfer,
    ) -> BoxFuture<'static, Result<RaftVote, Unreachable>>;
}
