//! The openraft types of this crate, and the conversions from `model`'s types to them and back. They do not leave `raft/`.
//!
//! A log id is (term, index), as in standard Raft with one leader per term. A node id is a replica id; the node is the
//! server that holds the replica. The address book resolves that server's address at each connection attempt.

use std::fmt;

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex, ReplicaId, ServerId, Term};
use ebla_model::metadata::{Membership, Replica};
use openraft::RaftMetrics;
use openraft::impls::leader_id_std::LeaderId;
use openraft::type_config::alias::{EntryOf, LogIdOf, StoredMembershipOf, VoteOf};

use super::error::Fault;
use super::runtime::RaftRuntime;
use super::state_machine::AppliedPosition;

/// A command of the group. Raft sees only its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The server that holds a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host(pub(crate) u64);

openraft::declare_raft_types!(
    /// openraft's type configuration for tablets.
    pub(crate) TypeConfig:
        D = Command,
        R = Bytes,
        Node = Host,
        LeaderId = LeaderId<u64, u64>,
        AsyncRuntime = RaftRuntime,
        ErrorSource = Fault,
);

pub(super) type RaftLogId = LogIdOf<TypeConfig>;
pub(super) type RaftVote = VoteOf<TypeConfig>;
pub(super) type RaftEntry = EntryOf<TypeConfig>;
pub(super) type RaftMembership = openraft::Membership<u64, Host>;
pub(super) type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(super) type AppendResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
pub(super) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(super) type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
pub(super) type TransferRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;

pub(super) fn raft_log_id(id: LogId) -> RaftLogId {
    RaftLogId::new(id.term.get().into(), id.index.get())
}

pub(super) fn log_id(id: &RaftLogId) -> LogId {
    LogId { term: Term::new(id.leader_id.term), index: LogIndex::new(id.index) }
}

/// The term of a vote.
pub(super) fn vote_term(vote: &RaftVote) -> Term {
    Term::new(vote.leader_id.term)
}

/// The term that a replica is in.
pub(super) fn current_term(metrics: &RaftMetrics<TypeConfig>) -> Term {
    Term::new(metrics.current_term)
}

/// A vote for `replica` that no quorum has granted yet.
pub(super) fn vote(term: Term, replica: u64) -> RaftVote {
    RaftVote::new(term.get(), replica)
}

/// A vote for `replica` that a quorum has granted: the replica leads in `term`.
pub(super) fn committed_vote(term: Term, replica: u64) -> RaftVote {
    RaftVote::new_committed(term.get(), replica)
}

pub(super) fn replica(id: u64, host: Host) -> Replica {
    Replica { replica: ReplicaId::new(id), server: ServerId::new(host.0) }
}

/// Fails when a voter has no server; this crate never writes such a membership.
pub(super) fn raft_membership(membership: &Membership) -> Result<RaftMembership, Fault> {
    let voters = membership.voters.iter().map(|set| set.iter().map(|id| id.get()).collect()).collect();
    let nodes: std::collections::BTreeMap<u64, Host> =
        membership.replicas.iter().map(|(id, server)| (id.get(), Host(server.get()))).collect();
    RaftMembership::new(voters, nodes).map_err(|error| Fault::new(format!("invalid membership: {error}")))
}

pub(super) fn membership(membership: &RaftMembership) -> Membership {
    let voters = membership.get_joint_config().iter();
    let voters = voters.map(|set| set.iter().map(|id| ReplicaId::new(*id)).collect()).collect();
    let replicas = membership.nodes().map(|(id, host)| (ReplicaId::new(*id), ServerId::new(host.0))).collect();
    Membership { voters, replicas }
}

pub(super) fn stored_membership(applied: &AppliedPosition) -> Result<StoredMembershipOf<TypeConfig>, Fault> {
    let (id, members) = &applied.membership;
    Ok(StoredMembershipOf::<TypeConfig>::new(id.map(raft_log_id), raft_membership(members)?))
}
