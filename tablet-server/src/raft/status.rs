//! The status of a group, read from the metrics that openraft's core last published.
//!
//! openraft publishes server metrics (vote, role, membership) and data metrics (log, commit, apply). Each is consistent in
//! itself; data metrics that are read after server metrics are never older than these. Both remain as they were when the core
//! ends; only all metrics together tell that it has ended. A core that has ended is neither leader nor follower.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::id::{LogId, LogIndex, ReplicaId, Term};
use ebla_model::metadata::{Membership, Replica};
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};

use super::storage::adapter::Raft;
use super::types::{TypeConfig, current_term, log_id, membership, replica, vote_term};

/// This replica leads and may decide: it has applied the first entry of its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The term it leads in; proposals are bound to it.
    pub term: Term,
}

/// The status of a group, as far as this replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The term of the last vote on disk.
    pub term: Term,
    /// The leader.
    pub leader: Option<Replica>,
    /// Whether this replica leads *and* has applied the first entry of its term.
    pub is_leader: bool,
    /// The last entry of the log.
    pub last: Option<LogId>,
    /// The last entry of this log that is known to be committed.
    pub committed: Option<LogId>,
    /// The last entry applied here.
    pub applied: Option<LogId>,
    /// The last entry in the last snapshot.
    pub snapshot: Option<LogId>,
    /// The entry up to which the log has been purged.
    pub purged: Option<LogId>,
    /// The replicas, as of the last membership in the log.
    pub membership: Membership,
    /// The entry that carries that membership.
    pub membership_log_id: Option<LogId>,
    /// Whether that entry is committed.
    pub is_membership_committed: bool,
    /// At the leader: the last entry each other replica is known to hold.
    pub matched: BTreeMap<ReplicaId, Option<LogId>>,
    /// At the leader: when it sent the last message that each other replica has answered, as time since boot.
    pub last_contact: BTreeMap<ReplicaId, Duration>,
}

impl GroupStatus {
    /// At the leader: the voter with the longest log, among those that `may_lead`.
    pub fn transfer_candidate(&self, may_lead: impl Fn(&Replica) -> bool) -> Option<Replica> {
        let host = |id: &ReplicaId| self.membership.server_of(*id).map(|server| Replica { replica: *id, server });
        let voters = self.matched.iter().filter(|(id, _)| self.membership.is_voter(**id));
        let candidates =
            voters.filter_map(|(id, matched)| Some((host(id)?, matched))).filter(|(replica, _)| may_lead(replica));
        candidates.max_by_key(|(_, matched)| **matched).map(|(replica, _)| replica)
    }
}

/// Whether the core runs: it has neither been stopped nor ended by an error.
pub(super) fn is_running(raft: &Raft) -> bool {
    raft.metrics().borrow_watched().running_state.is_ok()
}

pub(super) fn leadership(raft: &Raft) -> Option<Leadership> {
    let (leads, term) = {
        let server = raft.server_metrics();
        let server = server.borrow_watched();
        let own = server.vote.committed && server.vote.leader_id.voted_for == server.id;
        (own && server.state == ServerState::Leader, vote_term(&server.vote))
    };
    let data = raft.data_metrics();
    let applied = data.borrow_watched().last_applied.as_ref().map(|id| log_id(id).term);
    (leads && applied == Some(term) && is_running(raft)).then_some(Leadership { term })
}

pub(super) fn status(raft: &Raft, own: ReplicaId) -> GroupStatus {
    let leads = leadership(raft).is_some();
    let server = raft.server_metrics();
    let server = server.borrow_watched().clone();
    let data = raft.data_metrics();
    let data = data.borrow_watched().clone();
    let members = &server.membership_config;
    let host = |id: &u64| members.get_node(id).copied();
    let leader = server.current_leader.filter(|_id| is_running(raft));
    let leader = leader.and_then(|id| Some(replica(id, host(&id)?)));
    let matched = data.replication.unwrap_or_default().into_iter();
    let matched = matched.map(|(id, at)| (ReplicaId::new(id), at.as_ref().map(log_id)));
    let last_contact = data.heartbeat.unwrap_or_default().into_iter();
    GroupStatus {
        term: vote_term(&server.vote),
        leader,
        is_leader: leads,
        last: data.last_log.as_ref().map(log_id),
        committed: data.local_committed.as_ref().map(log_id),
        applied: data.last_applied.as_ref().map(log_id),
        snapshot: data.snapshot.as_ref().map(log_id),
        purged: data.purged.as_ref().map(log_id),
        membership: membership(members.membership()),
        membership_log_id: members.log_id().as_ref().map(log_id),
        is_membership_committed: members.log_id() == server.committed_membership_config.log_id(),
        matched: matched.filter(|(id, _)| *id != own).collect(),
        last_contact: last_contact.filter_map(|(id, at)| Some((ReplicaId::new(id), at?.since_boot()))).collect(),
    }
}

/// `Some(true)` when `learner` holds the log of the leader up to `upto`; `Some(false)` when this replica does not lead.
pub(super) fn has_reached(metrics: &RaftMetrics<TypeConfig>, learner: ReplicaId, upto: LogIndex) -> Option<bool> {
    if metrics.state != ServerState::Leader {
        return Some(false);
    }
    let matched = metrics.replication.as_ref()?.get(&learner.get())?.as_ref()?;
    (log_id(matched).index >= upto).then_some(true)
}

/// `Some(true)` when `to` holds the whole log of the leader in `term`; `Some(false)` when that leadership has ended.
pub(super) fn is_matched(metrics: &RaftMetrics<TypeConfig>, to: ReplicaId, term: Term) -> Option<bool> {
    if metrics.state != ServerState::Leader || current_term(metrics) != term {
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
    fn the_transfer_candidate_is_the_voter_with_the_longest_log_that_may_lead() {
        let servers: Vec<_> = (1..=4).map(ServerId::new).collect();
        let mut membership = Membership::initial(&servers);
        // The fourth is a learner.
        membership.voters.iter_mut().for_each(|set| set.retain(|replica| replica.get() < 4));
        let at = |index| Some(LogId { term: Term::new(2), index: LogIndex::new(index) });
        let matched = [(2, at(7)), (3, at(9)), (4, at(12))].map(|(id, at)| (ReplicaId::new(id), at));
        let status = GroupStatus { membership, matched: BTreeMap::from(matched), ..GroupStatus::default() };
        let candidate = |may_lead: &dyn Fn(u64) -> bool| {
            status.transfer_candidate(|replica| may_lead(replica.server.get())).map(|replica| replica.replica.get())
        };
        assert_eq!(candidate(&|_any| true), Some(3));
        assert_eq!(candidate(&|server| server != 3), Some(2));
        assert_eq!(candidate(&|server| server > 3), None, "a learner does not lead");
    }
}
