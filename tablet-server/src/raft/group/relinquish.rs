//! The end of a leadership that this replica has given up itself.
//!
//! From the moment at which a leader asks another voter to campaign, openraft accepts no proposal and sends no heartbeat in this
//! term. But openraft's core learns only from the log that a later term has begun: it waits until the new vote is on disk. While the
//! disk hangs, the core would count as leader for ever, and each request would wait for it. So the term is recorded here, and counts as
//! over: this replica refers to others, and requests in flight end.

use std::pin::pin;

use ebla_model::id::{ReplicaId, Term};
use futures::future::{BoxFuture, select};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;

use super::Group;
use crate::raft::status::GroupStatus;
use crate::raft::types::current_term;

/// The latest term whose leadership this replica has given up. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::raft) struct RelinquishedTerm(watch::Sender<Term>);

impl RelinquishedTerm {
    pub(in crate::raft) fn new() -> Self {
        Self(watch::Sender::new(Term::default()))
    }

    /// The leadership in this term, and in all earlier ones, is given up.
    pub(in crate::raft) fn record(&self, term: Term) {
        self.0.send_if_modified(|known| {
            let is_later = term > *known;
            *known = term.max(*known);
            is_later
        });
    }

    /// Whether the leadership in this term is given up.
    pub(in crate::raft) fn covers(&self, term: Term) -> bool {
        term <= *self.0.borrow()
    }

    /// Returns when the leadership in `term` is given up. Cancel-safe.
    pub(in crate::raft) async fn wait_for(&self, term: Term) {
        // `self` holds the sender, so the channel stays open.
        drop(self.0.subscribe().wait_for(|known| term <= *known).await);
    }

    /// Receives each change.
    pub(in crate::raft) fn changes(&self) -> watch::Receiver<Term> {
        self.0.subscribe()
    }

    /// The status that openraft's core has published, without a leadership of `own` that is given up.
    pub(in crate::raft) fn correct(&self, mut status: GroupStatus, own: ReplicaId) -> GroupStatus {
        if self.covers(status.term) {
            status.is_leader = false;
            status.leader = status.leader.filter(|leader| leader.replica != own);
        }
        status
    }
}

impl Group {
    /// Runs `work`, and drops it unless it has ended soon after the leadership in `term` was given up.
    pub(super) async fn run_in_term(&self, term: Term, work: BoxFuture<'_, ()>) {
        let given_up = async {
            self.relinquished.wait_for(term).await;
            // Usually the next leader is elected, and this replica learns about it and about the end of the work, much sooner.
            tokio::time::sleep(self.timings().election_max).await;
        };
        select(work, pin!(given_up)).await;
    }

    /// Returns when this replica has given up a leadership and knows no later term. Cancel-safe.
    pub(super) async fn leadership_given_up(&self) {
        let led = {
            let metrics = self.metrics.borrow_watched();
            (metrics.state == ServerState::Leader).then(|| current_term(&metrics))
        };
        match led {
            Some(term) => self.relinquished.wait_for(term).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;
    use ebla_model::metadata::Replica;

    use super::*;

    #[test]
    fn a_term_that_was_given_up_is_not_led() {
        let (own, relinquished) = (ReplicaId::new(7), RelinquishedTerm::new());
        let status = |leader, term| GroupStatus {
            term: Term::new(term),
            is_leader: leader == own,
            leader: Some(Replica { replica: leader, server: ServerId::new(1) }),
            ..GroupStatus::default()
        };
        let led = |term| {
            let now = relinquished.correct(status(own, term), own);
            assert_eq!(now.is_leader, now.leader.is_some());
            now.is_leader
        };
        assert!(led(4));
        relinquished.record(Term::new(4));
        relinquished.record(Term::new(2));
        assert_eq!([3, 4, 5].map(led), [false, false, true]);
        let other = status(ReplicaId::new(8), 4);
        assert_eq!(relinquished.correct(other.clone(), own), other);
    }
}
