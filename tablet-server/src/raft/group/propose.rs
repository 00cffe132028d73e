//! Proposals: commands that the leader appends to the log of the group.

use std::sync::Arc;

use bytes::Bytes;
use ebla_model::id::{LogIndex, Term};
use ebla_model::metadata::Replica;
use futures::FutureExt as _;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::alias::OneshotReceiverOf;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Group, leader_hint};
use crate::raft::error::ProposeError;
use crate::raft::status::GroupStatus;
use crate::raft::types::{Command, TypeConfig, log_id};

/// A command that was applied here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCommand {
    /// Its position in the log of the group.
    pub index: LogIndex,
    /// What the state machine returned.
    pub result: Bytes,
}

impl Group {
    /// Proposes commands in this order, and waits until each is applied here or its outcome is known otherwise.
    ///
    /// `term`: the commands are refused as `NotLeader` unless this replica leads in exactly this term. Waits while too many bytes
    /// of proposals are in flight. Not cancel-safe: a command that was proposed stays proposed.
    pub async fn propose(&self, commands: Vec<Bytes>, term: Option<Term>) -> Vec<Result<Bytes, ProposeError>> {
        let outcomes = self.propose_indexed(commands, term).await;
        outcomes.into_iter().map(|outcome| outcome.map(|applied| applied.result)).collect()
    }

    /// As [`Group::propose`], with the position of each command in the log.
    pub async fn propose_indexed(
        &self,
        commands: Vec<Bytes>,
        term: Option<Term>,
    ) -> Vec<Result<AppliedCommand, ProposeError>> {
        if let Some(hint) = self.refuses_proposals(term) {
            return vec![Err(ProposeError::NotLeader { hint }); commands.len()];
        }
        let _permit = self.acquire_permits(commands.iter().map(Bytes::len).sum()).await;
        if let Some(hint) = self.refuses_proposals(term) {
            return vec![Err(ProposeError::NotLeader { hint }); commands.len()];
        }
        let began = self.clock.monotonic();
        let mut outcomes = vec![Err(ProposeError::Unknown); commands.len()];
        let work = async {
            let mut proposed = Vec::with_capacity(commands.len());
            for command in commands {
                proposed.push(self.propose_one(command, term).await);
            }
            for (outcome, proposal) in outcomes.iter_mut().zip(proposed) {
                *outcome = match proposal {
                    Ok(result) => proposal_outcome(result.await),
                    Err(error) => Err(error),
                };
            }
        };
        match term {
            Some(term) => self.run_in_term(term, work.boxed()).await,
            None => work.await,
        }
        if outcomes.iter().all(Result::is_ok) {
            self.counters.record_commit(self.clock.monotonic().saturating_sub(began));
        }
        outcomes
    }

    /// Whether proposals in `term` are refused because this replica gives the leadership up or has given it up, with the next leader as
    /// far as it is known.
    #[expect(clippy::option_option, reason = "whether they are refused, and whether the next leader is known")]
    fn refuses_proposals(&self, term: Option<Term>) -> Option<Option<Replica>> {
        let has_ended = || term.filter(|term| self.relinquished.covers(*term)).map(|_term| self.status().leader);
        self.pending_transfer().or_else(has_ended)
    }

    /// Proposes one command, and drops `held` when its fate is known: it is applied here, refused, in no log, or the term is over.
    ///
    /// When the future is dropped, the proposal continues, and `held` is kept.
    ///
    /// # Errors
    /// As [`Group::propose`].
    pub async fn propose_holding<G: Send + 'static>(
        self: &Arc<Self>,
        command: Bytes,
        term: Term,
        held: G,
    ) -> Result<Bytes, ProposeError> {
        let group = Arc::clone(self);
        let work = async move {
            let outcome = group.propose(vec![command], Some(term)).await.pop().unwrap_or(Err(ProposeError::Unknown));
            if outcome == Err(ProposeError::Unknown) {
                // The core has ended, or this replica leads no more. In a later term the entry is applied before any lease read, and before
                // any write is evaluated.
                group.wait_for_end_of(term).await;
            }
            drop(held);
            outcome
        };
        // Not until the group is stopped: while its core still runs, lease reads must not be allowed again.
        self.tasks.start("raft-propose", work).await.unwrap_or(Err(ProposeError::Unknown))
    }

    /// Returns when this replica does not lead in `term` any more.
    async fn wait_for_end_of(&self, term: Term) {
        let has_ended = |status: &GroupStatus| !status.is_leader || status.term != term;
        let mut status = self.watch();
        // An error: the group has stopped.
        drop(status.wait_for(has_ended).await);
    }

    async fn propose_one(
        &self,
        command: Bytes,
        term: Option<Term>,
    ) -> Result<OneshotReceiverOf<TypeConfig, ClientWriteResult<TypeConfig>>, ProposeError> {
        self.counters.count_proposal();
        let (responder, result) = ProgressResponder::complete_only();
        let request = self.raft.write(Command(command)).responder(responder);
        let request = match term {
            Some(term) => request.with_leader(term.get()),
            None => request,
        };
        request.await.map(|()| result).map_err(|_fatal| ProposeError::Stopped)
    }

    async fn acquire_permits(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        // A proposal above the bound takes all permits and is proposed alone.
        let count = permits(bytes).min(permits(self.config.proposal_bytes_max));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.proposals.acquire_many(count).await.ok()
    }
}

/// A semaphore permit stands for a kibibyte, so that the number of permits fits.
pub(super) fn permits(bytes: usize) -> usize {
    (bytes / 1024 + 1).min(Semaphore::MAX_PERMITS)
}

/// The outcome of a proposal. Without a result the outcome is unknown: the core stopped, or the apply failed.
fn proposal_outcome<E>(result: Result<ClientWriteResult<TypeConfig>, E>) -> Result<AppliedCommand, ProposeError> {
    match result {
        Ok(Ok(applied)) => {
            let index = log_id(&applied.log_id).index;
            Ok(AppliedCommand { index, result: applied.data })
        }
        // openraft reports this before it appends anything.
        Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
            Err(ProposeError::NotLeader { hint: leader_hint(&forward) })
        }
        Ok(Err(_)) | Err(_) => Err(ProposeError::Unknown),
    }
}
