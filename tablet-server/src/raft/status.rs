//! How a group stands, read from what openraft's core last published.
//!
//! The server part of what it publishes (vote, role, membership) and the data part (log, commit, apply) are each
//! consistent in themselves; the data part is never older than the server part that was seen before it.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::id::{LogId, ReplicaId};
use ebla_model::metadata::{Membership, Replica};
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};

use super::types::{Raft, TypeConfig, log_id, membership, replica};

/// This replica leads and may decide: the first entry of its term has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The term it leads in; proposals are bound to it.
    pub term: u64,
}

/// How a group stands, as far as this replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The term of the last vote that is on disk.
    pub term: u64,
    /// Who leads.
    pub leader: Option<Replica>,
    /// Whether this replica leads *and* has applied the first entry of its term.
    pub is_leader: bool,
    /// The last entry of the log.
    pub last: Option<LogId>,
    /// The last entry known to be held by a majority, as far as it is in this log.
    pub committed: Option<LogId>,
    /// The last entry applied here.
    pub applied: Option<LogId>,
    /// The entry up to which the log has been purged.
    pub purged: Option<LogId>,
    /// The replicas, as of the last membership in the log.
    pub membership: Membership,
    /// The entry that carries that membership.
    pub membership_log_id: Option<LogId>,
    /// Whether a majority holds that entry.
    pub membership_committed: bool,
    /// At the leader: the last entry each other replica is known to hold.
    pub matched: BTreeMap<ReplicaId, Option<LogId>>,
    /// At the leader: when it sent what each other replica has answered last, as time since boot.
    pub heard: BTreeMap<ReplicaId, Duration>,
}

impl GroupStatus {
    /// At the leader: the voter that holds most of its log, among those that `may` lead.
    pub fn successor(&self, may: impl Fn(&Replica) -> bool) -> Option<Replica> {
        let host = |id: &ReplicaId| self.membership.server_of(*id).map(|server| Replica { replica: *id, server });
        let voters = self.matched.iter().filter(|(id, _)| self.membership.is_voter(**id));
        let candidates =
            voters.filter_map(|(id, matched)| Some((host(id)?, matched))).filter(|(replica, _)| may(replica));
        candidates.max_by_key(|(_, matched)| **matched).map(|(replica, _)| replica)
    }
}

pub(super) fn leadership(raft: &Raft) -> Option<Leadership> {
    let (leads, term) = {
        let server = raft.server_metrics();
        let server = server.borrow_watched();
        let own = server.vote.committed && server.vote.leader_id.voted_for == server.id;
        (own && server.state == ServerState::Leader, server.vote.leader_id.term)
    };
    let data = raft.data_metrics();
    let applied = data.borrow_watched().last_applied.as_ref().map(|id| id.leader_id.term);
    (leads && applied == Some(term)).then_some(Leadership { term })
}

pub(super) fn status(raft: &Raft, own: ReplicaId) -> GroupStatus {
    let leads = leadership(raft).is_some();
    let server = raft.server_metrics();
    let server = server.borrow_watched().clone();
    let data = raft.data_metrics();
    let data = data.borrow_watched().clone();
    let members = &server.membership_config;
    let host = |id: &u64| members.get_node(id).copied();
    let leader = server.current_leader.and_then(|id| Some(replica(id, host(&id)?)));
    let matched = data.replication.unwrap_or_default().into_iter();
    let matched = matched.map(|(id, at)| (ReplicaId::new(id), at.as_ref().map(log_id)));
    let heard = data.heartbeat.unwrap_or_default().into_iter();
    GroupStatus {
        term: server.vote.leader_id.term,
        leader,
        is_leader: leads,
        last: data.last_log.as_ref().map(log_id),
        committed: data.local_committed.as_ref().map(log_id),
        applied: data.last_applied.as_ref().map(log_id),
        purged: data.purged.as_ref().map(log_id),
        membership: membership(members.membership()),
        membership_log_id: members.log_id().as_ref().map(log_id),
        membership_committed: members.log_id() == server.committed_membership_config.log_id(),
        matched: matched.filter(|(id, _)| *id != own).collect(),
        heard: heard.filter_map(|(id, at)| Some((ReplicaId::new(id), at?.since_boot()))).collect(),
    }
}

/// `Some(true)` when `learner` holds the log of the leader up to `upto`; `Some(false)` when this replica does not lead.
pub(super) fn has_reached(metrics: &RaftMetrics<TypeConfig>, learner: ReplicaId, upto: u64) -> Option<bool> {
    if metrics.state != ServerState::Leader {
        return Some(false);
    }
    let matched = metrics.replication.as_ref()?.get(&learner.get())?.as_ref()?;
    (matched.index >= upto).then_some(true)
}

/// `Some(true)` when `to` holds the whole log of the leader in `term`; `Some(false)` when that leadership is over.
pub(super) fn is_matched(metrics: &RaftMetrics<TypeConfig>, to: ReplicaId, term: u64) -> Option<bool> {
    if metrics.state != ServerState::Leader || metrics.current_term != term {
        return Some(false);
    }
    let matched = metrics.replication.as_ref()?.get(&to.get())?.as_ref()?;
    (Some(matched.index) == metrics.last_log_index).then_some(true)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;

    use super::*;

    #[test]
    fn the_voter_that_holds_most_succeeds_among_those_that_may() {
        let servers: Vec<_> = (1..=4).map(ServerId::new).collect();
        let mut membership = Membership::fresh(&servers);
        // The fourth only learns.
        membership.voters.iter_mut().for_each(|set| set.retain(|replica| replica.get() < 4));
        let at = |index| Some(LogId { term: 2, index });
        let matched = [(2, at(7)), (3, at(9)), (4, at(12))].map(|(id, at)| (ReplicaId::new(id), at));
        let status = GroupStatus { membership, matched: BTreeMap::from(matched), ..GroupStatus::default() };
        let successor = |may: &dyn Fn(u64) -> bool| {
            status.successor(|replica| may(replica.server.get())).map(|replica| replica.replica.get())
        };
        assert_eq!(successor(&|_any| true), Some(3));
        assert_eq!(successor(&|server| server != 3), Some(2));
        assert_eq!(successor(&|server| server > 3), None, "a learner does not lead");
    }
}
