//! openraft's types as we fill them in, and the way from `model`'s to them and back. Nothing here leaves `raft/`.
//!
//! Log ids are (term, index): the standard rule of one leader in a term. A node id is a replica id, its node the server
//! that holds the replica; where that server listens is asked of the address book each time.

use std::fmt;

use bytes::Bytes;
use ebla_model::id::{LogId, ReplicaId, ServerId};
use ebla_model::metadata::{Membership, Replica};
use openraft::impls::leader_id_std::LeaderId;
use openraft::type_config::alias::{EntryOf, LogIdOf, StoredMembershipOf, VoteOf};

use super::boottime::BootRuntime;
use super::fault::Fault;
use super::state_machine::{Applied, Machine};

/// A command of the tablet: bytes here.
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
    /// openraft for tablets.
    pub(crate) TypeConfig:
        D = Command,
        R = Bytes,
        Node = Host,
        LeaderId = LeaderId<u64, u64>,
        AsyncRuntime = BootRuntime,
);

pub(super) type Raft = openraft::Raft<TypeConfig, Machine>;
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
    RaftLogId::new(id.term.into(), id.index)
}

pub(super) fn log_id(id: &RaftLogId) -> LogId {
    LogId { term: id.leader_id.term, index: id.index }
}

pub(super) fn vote(term: u64, replica: u64, committed: bool) -> RaftVote {
    if committed { RaftVote::new_committed(term, replica) } else { RaftVote::new(term, replica) }
}

pub(super) fn replica(id: u64, host: Host) -> Replica {
    Replica { replica: ReplicaId::new(id), server: ServerId::new(host.0) }
}

/// Errs when a voter has no server: such a membership was never written by us.
pub(super) fn raft_membership(membership: &Membership) -> Result<RaftMembership, Fault> {
    let voters = membership.voters.iter().map(|set| set.iter().map(|id| id.get()).collect()).collect();
    let nodes: std::collections::BTreeMap<u64, Host> =
        membership.replicas.iter().map(|(id, server)| (id.get(), Host(server.get()))).collect();
    RaftMembership::new(voters, nodes).map_err(|error| Fault::new(format!("membership: {error}")))
}

pub(super) fn membership(membership: &RaftMembership) -> Membership {
    let voters = membership.get_joint_config().iter();
    let voters = voters.map(|set| set.iter().map(|id| ReplicaId::new(*id)).collect()).collect();
    let replicas = membership.nodes().map(|(id, host)| (ReplicaId::new(*id), ServerId::new(host.0))).collect();
    Membership { voters, replicas }
}

pub(super) fn stored_membership(applied: &Applied) -> Result<StoredMembershipOf<TypeConfig>, Fault> {
    let (id, members) = &applied.membership;
    Ok(StoredMembershipOf::<TypeConfig>::new(id.map(raft_log_id), raft_membership(members)?))
}
