//! The write path: admission, row latch, timestamp, group commit, reply.
//!
//! ```text
//!   row --- admission --- latch --- queue ---------- batcher --------- Group::propose
//!                                   |  timestamp     |  commands of about 4 MiB, bound to the term
//!                                   |  under its lock |  one proposal in flight; writes that arrive meanwhile
//!                                   |                |  form the next one (group commit)
//!
//! A row's latch travels with its write and is released when the write is answered, also when the caller has gone. Blind
//! writes share it; writes that depend on the row's content (`rmw`), including additions to aggregates, hold it exclusively.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Deadline;
use ebla_model::Reason;
use ebla_model::aggregate::{Aggregator, SKETCH_BYTES_MAX, SKETCHES_MAX};
use ebla_model::cell::Row;
use ebla_model::command::{CallToken, CommandKind, Refusal, RefusalKind, Reply, RowReply, RowWrite};
use ebla_model::error::{Error, ErrorKind};
use ebla_model::id::{Generation, TableId, Term};
use ebla_model::idempotency::CallKind;
use ebla_model::key::RowKey;
use ebla_model::mutation::{self, Mutation};
use ebla_model::schema::TableSchema;
use ebla_model::session::SequenceCheck;
use ebla_runtime::Failpoint;
use ebla_runtime::trace::{self, Stage};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::raft::ProposeError;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::command;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::failure::Failure;
use crate::tablet::write::admission::{GROUP_BYTES, Permit, RETRY_AFTER};
use crate::tablet::write::latch::{LatchGuard, LatchMode};
use crate::tablet::write::queue::{QueuedReply, WriteCaller, WriteGuards, WriteTerms};
use crate::tablet::write::rmw::{
    ConditionalWrite, ResolvedWrite, Submission, already_acknowledged, call_token, evaluate_mutations,
};
use crate::tablet::{RowMutations, Tablet, TabletGroup, WriteId};

/// Maximum bytes of sketches that one call writes: a permit covers no more.
const SKETCHES_BYTES_MAX: usize = GROUP_BYTES as usize;

/// What the rows of one call share.
struct WriteCall {
    generation: Generation,
    /// Of blind writes: the others are queued in the term of their evaluation.
    terms: WriteTerms,
    permit: Arc<Permit>,
}

impl Tablet {
    /// Writes rows, each independently; one result for each, in their order.
    ///
    /// Not cancel-safe: queued writes are applied.
    ///
    /// # Errors
    /// For all rows: `NotLeader`, `NoLeader`, `WrongTablet`, `TabletDropped`, `Busy`; then nothing was applied. For a
    /// row: the same, `NotFoundFamily`, `InvalidArgument`, `ResourceExhausted` for lack of disk space; `OutcomeUnknown` and `Deadline` when it may still be applied,
    /// which the same request, sent again, finds out; `SessionForgotten` when the outcome cannot be determined any more.
    pub async fn write(
        &self,
        generation: Generation,
        rows: Vec<RowMutations>,
        timeout: Duration,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        let term = self.leader_term()?;
        let metadata = self.served()?;
        Self::check_generation(&metadata, generation)?;
        let started = metadata.load.call_start(|| self.runtime.clock.monotonic());
        self.admission.count_rows(rows.len());
        let schema = metadata.schema();
        let until = Deadline::after(&self.runtime.clock, timeout);
        let counted = |row: &RowMutations| {
            let bytes = request_bytes(row, schema);
            metadata.load.count_write(&row.row, bytes);
            bytes
        };
        let bytes = rows.iter().map(counted).sum();
        let permit = Arc::new(trace::waiting(Stage::Memory, self.admission.admit(bytes, timeout)).await?);
        let mut deadline = pin!(tokio::time::sleep(until.remaining(&self.runtime.clock)));
        let call = WriteCall { generation, terms: WriteTerms { term, deadline: until }, permit };
        let submissions = self.submit_rows(call, rows, schema, deadline.as_mut()).await;
        let results = self.wait_for_results(submissions, deadline).await;
        metadata.load.count_latency(started, || self.runtime.clock.monotonic());
        Ok(results)
    }

    /// Queues the rows in their order. The permit is released with the last queued write.
    async fn submit_rows(
        &self,
        call: WriteCall,
        rows: Vec<RowMutations>,
        schema: &TableSchema,
        mut deadline: Pin<&mut Sleep>,
    ) -> Vec<Result<Submission, Failure>> {
        let mut submissions = Vec::with_capacity(rows.len());
        let mut sketches = 0;
        let refusal = self.write_refusal();
        for row in rows {
            if let Some(refusal) = &refusal
                && row.mutations.iter().any(Mutation::stores_cells)
                && !self.is_exempt_from_refusal(&row.id)
            {
                submissions.push(Err(refusal.clone().into()));
                continue;
            }
            // A few input bytes for each of very many sketches write much more than the permit covers: the rest is refused,
            // and the caller sends it again.
            sketches += sketch_bytes(&row.mutations, schema);
            submissions.push(if sketches > SKETCHES_BYTES_MAX && !submissions.is_empty() {
                Err(Failure::busy(RETRY_AFTER))
            } else {
                self.submit_row(&call, row, deadline.as_mut()).await
            });
        }
        submissions
    }

    /// Acquires the row's latch and queues the write: a blind one at once, any other after its evaluation.
    async fn submit_row(
        &self,
        call: &WriteCall,
        row: RowMutations,
        mut deadline: Pin<&mut Sleep>,
    ) -> Result<Submission, Failure> {
        let is_blind = row.token.is_none() && !row.mutations.iter().any(Mutation::is_aggregation);
        let is_shared = is_blind || (row.token.is_none() && Failpoint::AdditionUnlatched.is_enabled());
        let mode = if is_shared { LatchMode::Shared } else { LatchMode::Exclusive };
        let stored_row = self.stored_row(&row.row);
        if is_blind {
            let latch = self.latch(&stored_row, mode, deadline).await?;
            let guards = WriteGuards::blind(latch, Arc::clone(&call.permit));
            return match self.submit_blind(call.terms, row, guards) {
                Err(refusal) => Err(self.confirm_refusal(refusal, call.terms).await),
                submission => submission,
            };
        }
        let table = self.latch(&self.table_latch_key(), LatchMode::Shared, deadline.as_mut()).await?;
        let latch = self.latch(&stored_row, mode, deadline.as_mut()).await?;
        let guards = WriteGuards::conditional(table, latch, Arc::clone(&call.permit));
        tokio::select! {
            submission = self.submit_conditional_mutations(call, row, guards) => submission,
            () = deadline => Err(Failure::deadline()),
        }
    }

    /// Whether the write proceeds although writes are refused: the system needs it, or it was applied
    /// before and is sent again to learn that.
    fn is_exempt_from_refusal(&self, id: &WriteId) -> bool {
        self.table() == TableId::METADATA || self.state_machine.check_duplicate(id) != SequenceCheck::New
    }

    /// The refusal of a write that stores cells, for lack of disk space or because the clock is ahead.
    ///
    /// # Errors
    /// `ResourceExhausted`, `Unavailable`; nothing of this request was applied.
    pub(super) fn check_writes_accepted(&self, id: &WriteId) -> Result<(), Failure> {
        match self.write_refusal() {
            Some(refusal) if !self.is_exempt_from_refusal(id) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Passes on the refusal of a write beyond a quota, unless it was applied before and is sent again to learn that.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing of this write was applied.
    pub(super) fn check_quota(&self, refusal: Option<Error>, id: &WriteId) -> Result<(), Failure> {
        match refusal {
            Some(refusal) if !self.is_exempt_from_refusal(id) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// The failure of a write that this replica refuses by its schema or its rows: the refusal, once it is known that the replica still
    /// leads in this term. One that was replaced does not know what a later leader has applied. A refusal by a quota is not confirmed: it
    /// follows the sizes, which are compared every few seconds.
    pub(super) async fn confirm_refusal(&self, refusal: Failure, terms: WriteTerms) -> Failure {
        if refusal.error.kind != ErrorKind::FixRequest {
            return refusal;
        }
        match self.confirm_leadership(terms.deadline.remaining(&self.runtime.clock)).await {
            Ok(()) if self.leader_term().is_ok_and(|now| now == terms.term) => refusal,
            Ok(()) => Failure::not_leader(None),
            Err(failure) => failure,
        }
    }

    async fn latch(&self, key: &RowKey, mode: LatchMode, deadline: Pin<&mut Sleep>) -> Result<LatchGuard, Failure> {
        if let Some(latch) = self.latches.try_acquire(key, mode) {
            return Ok(latch);
        }
        let _waits = trace::stage(Stage::Latch);
        tokio::select! {
            latch = self.latches.acquire(key, mode) => Ok(latch),
            () = deadline => Err(Failure::deadline()),
        }
    }

    /// Waits for the results of all rows, each until the deadline.
    async fn wait_for_results(
        &self,
        submissions: Vec<Result<Submission, Failure>>,
        mut deadline: Pin<&mut Sleep>,
    ) -> Vec<Result<(), Failure>> {
        // Of a command that is applied, the stages are known: see `batch_times`.
        let waits = trace::stage(Stage::Outcome);
        let mut results = Vec::with_capacity(submissions.len());
        for submission in submissions {
            results.push(match submission {
                Ok(submission) => self.wait_for_result(submission, deadline.as_mut()).await,
                Err(failure) => Err(failure),
            });
        }
        if !results.iter().any(is_outcome_open) {
            waits.discard();
        }
        results
    }

    async fn wait_for_result(&self, submission: Submission, deadline: Pin<&mut Sleep>) -> Result<(), Failure> {
        match submission {
            Submission::AlreadyApplied(_no_result) => Ok(()),
            Submission::Queued(reply, _no_result) => tokio::select! {
                biased;
                reply = reply => self.write_result(reply),
                () = deadline => Err(Failure::deadline()),
            },
        }
    }

    fn submit_blind(&self, terms: WriteTerms, row: RowMutations, guards: WriteGuards) -> Result<Submission, Failure> {
        let applied_state = self.state_machine.applied_state();
        let metadata = self.served_in(&applied_state)?;
        check_row_in_range(&metadata, &row.row)?;
        self.check_quota(metadata.schema().quota_refusal_of_mutations(&row.mutations), &row.id)?;
        let (caller, wall) = (WriteCaller::current(), self.runtime.clock.wall());
        let mut pending = self.queue.pending.lock();
        let now = pending.assign_timestamp(wall, applied_state.time);
        let schema = metadata.schema();
        let resolved = mutation::resolve(schema, &row.mutations, now);
        let changes = match resolved.and_then(|changes| changes.merge(schema, &Row::empty(row.row.clone()))) {
            Ok(changes) => changes,
            Err(error) => {
                drop(pending);
                // It may have been applied before its families were changed, and is sent again because its response was lost.
                return match self.state_machine.check_duplicate(&row.id) {
                    SequenceCheck::New => Err(error.into()),
                    SequenceCheck::Duplicate(result) => Ok(Submission::AlreadyApplied(result)),
                    SequenceCheck::Acknowledged => Err(already_acknowledged().into()),
                };
            }
        };
        let write = self.row_command(row.id, row.row, ResolvedWrite { changes, result: None }, None);
        Ok(Submission::queued(self.enqueue(pending, terms, write, (guards, caller))))
    }

    async fn submit_conditional_mutations(
        &self,
        call: &WriteCall,
        row: RowMutations,
        guards: WriteGuards,
    ) -> Result<Submission, Failure> {
        let RowMutations { id, row, mutations, token } = row;
        let key = row.clone();
        let evaluate = move |state_machine: &GroupStateMachine, metadata: &TabletMetadata, now| {
            evaluate_mutations(state_machine, metadata, (&key, &mutations), now)
        };
        let (generation, deadline) = (call.generation, call.terms.deadline);
        let token = call_token(CallKind::Mutate, token);
        let conditional = ConditionalWrite { generation, id, row, token, deadline };
        self.submit_conditional(conditional, guards, evaluate).await
    }

    fn write_result(&self, reply: Result<QueuedReply, oneshot::error::RecvError>) -> Result<(), Failure> {
        match reply.unwrap_or_else(|_gone| Err(outcome_unknown()))? {
            RowReply::Applied | RowReply::Duplicate(_) => Ok(()),
            RowReply::Refused(refusal) => Err(self.row_failure(&refusal)),
        }
    }

    /// The failure of a row's write: with the tablet's current descriptor if the group still holds it.
    pub(super) fn row_failure(&self, refusal: &Refusal) -> Failure {
        match (refusal.kind, self.descriptor()) {
            (RefusalKind::OutOfRange, Ok(descriptor)) => Failure::wrong_tablet(descriptor),
            (RefusalKind::OutOfRange, Err(gone)) => gone,
            _ => failure_of_refusal(refusal),
        }
    }

    /// The write in the form that a command carries.
    pub(super) fn row_command(
        &self,
        id: WriteId,
        row: RowKey,
        resolved: ResolvedWrite,
        token: Option<CallToken>,
    ) -> RowWrite {
        let ResolvedWrite { changes, result } = resolved;
        RowWrite {
            tablet: self.id,
            session: id.session,
            sequence: id.sequence,
            lowest_outstanding: id.lowest_outstanding,
            row,
            changes,
            result,
            token,
        }
    }
}

impl TabletGroup {
    /// Proposes a command other than a write; its timestamp is assigned by the queue.
    pub(crate) async fn propose_command(&self, kind: CommandKind, timeout: Duration) -> Result<Reply, Failure> {
        let term = self.leader_term()?;
        let propose = self.raft.propose(vec![self.encode_command(kind, term)], Some(term));
        let replies = tokio::time::timeout(timeout, propose).await.map_err(|_elapsed| Failure::deadline())?;
        self.decode_reply(replies.into_iter().next().unwrap_or(Err(ProposeError::Unknown)))
    }

    /// As [`Self::propose_command`]; drops `held` when the fate of the command is known, also when this future is dropped.
    pub(crate) async fn propose_holding<G: Send + 'static>(
        &self,
        kind: CommandKind,
        timeout: Duration,
        held: G,
    ) -> Result<Reply, Failure> {
        let term = self.leader_term()?;
        let propose = self.raft.propose_holding(self.encode_command(kind, term), term, held);
        let reply = tokio::time::timeout(timeout, propose).await.map_err(|_elapsed| Failure::deadline())?;
        self.decode_reply(reply)
    }

    /// As [`Self::propose_command`], for a command after which another group may serve tablets of this one: lease reads are
    /// suspended until its fate is known, also when this future is dropped.
    pub(crate) async fn propose_handover(&self, kind: CommandKind, timeout: Duration) -> Result<Reply, Failure> {
        self.propose_holding(kind, timeout, self.raft.suspend_lease_reads()).await
    }

    fn encode_command(&self, kind: CommandKind, term: Term) -> Bytes {
        command::encode(&self.stamp(kind, term))
    }

    fn decode_reply(&self, reply: Result<Bytes, ProposeError>) -> Result<Reply, Failure> {
        let reply = command::decode_reply(&reply.map_err(|error| self.failure_of_proposal(error))?)?;
        match reply {
            Reply::Refused(refusal) => Err(failure_of_refusal(&refusal)),
            reply => Ok(reply),
        }
    }

    /// The term in which this replica leads and may decide; an error with a leader hint when it does not lead.
    pub(crate) fn leader_term(&self) -> Result<Term, Failure> {
        match self.raft.leadership() {
            Some(leadership) => Ok(leadership.term),
            None => {
                // A leader that has not applied its term's first entry cannot serve yet: no hint.
                let leader = self.leader().filter(|_| !self.raft.status().is_leader);
                Err(Failure::not_leader(leader))
            }
        }
    }

    pub(in crate::tablet) fn elapsed_since(&self, started: Duration) -> Duration {
        self.runtime.clock.monotonic().saturating_sub(started)
    }

    pub(super) fn failure_of_proposal(&self, error: ProposeError) -> Failure {
        match error {
            ProposeError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            ProposeError::Unknown => outcome_unknown(),
            ProposeError::Stopped => Failure::new(Reason::Unavailable, "the replica has stopped"),
        }
    }
}

pub(super) fn check_row_in_range(metadata: &TabletMetadata, row: &RowKey) -> Result<(), Failure> {
    let descriptor = &metadata.descriptor;
    if descriptor.range.contains(row.as_bytes()) { Ok(()) } else { Err(Failure::wrong_tablet(descriptor.clone())) }
}

/// The failure of a command that was not applied.
fn failure_of_refusal(refusal: &Refusal) -> Failure {
    let message = refusal.message.clone();
    match refusal.kind {
        RefusalKind::OutOfRange => Failure::new(Reason::WrongTablet, message),
        RefusalKind::UnknownFamily => Failure::new(Reason::NotFoundFamily, message),
        RefusalKind::Dropped => Failure::new(Reason::TabletDropped, message),
        RefusalKind::SessionForgotten => Failure::new(Reason::SessionForgotten, message),
        RefusalKind::NotNow => Failure::new(Reason::Busy, message),
        RefusalKind::TokenOutOfTime => Failure::new(Reason::FailedPrecondition, message),
    }
}

/// Whether a row may still be applied.
fn is_outcome_open(result: &Result<(), Failure>) -> bool {
    result.as_ref().is_err_and(|failure| matches!(failure.error.reason, Reason::Deadline | Reason::OutcomeUnknown))
}

pub(super) fn outcome_unknown() -> Failure {
    Failure::new(
        Reason::OutcomeUnknown,
        "the write was proposed but its outcome is unknown; send it again with the same id",
    )
}

fn request_bytes(row: &RowMutations, schema: &TableSchema) -> usize {
    let token = row.token.as_ref().map_or(0, |token| token.token.len());
    64 + row.row.as_bytes().len() + mutations_bytes(&row.mutations, schema) + token
}

/// The approximate size of a row's mutations in bytes.
pub(super) fn mutations_bytes(mutations: &[Mutation], schema: &TableSchema) -> usize {
    let size = |mutation: &Mutation| match mutation {
        Mutation::SetCell { qualifier, value, .. } => qualifier.len() + value.len() + 64,
        Mutation::MergeToCell { qualifier, state, .. } => qualifier.len() + state.as_ref().map_or(0, Bytes::len) + 64,
        Mutation::AddToCell { qualifier, .. } | Mutation::DeleteColumn { qualifier, .. } => qualifier.len() + 64,
        Mutation::DeleteFamily { .. } | Mutation::DeleteRow => 64,
    };
    mutations.iter().map(size).sum::<usize>() + sketch_bytes(mutations, schema)
}

/// The maximum bytes of sketches that a row's mutations write; each sketch is written as a whole.
fn sketch_bytes(mutations: &[Mutation], schema: &TableSchema) -> usize {
    let is_sketch = |name: &str| {
        let family = schema.family_by_name(name);
        family.and_then(|family| family.aggregator).is_some_and(Aggregator::is_sketch)
    };
    let adds = |mutation: &&Mutation| match mutation {
        Mutation::AddToCell { family, .. } | Mutation::MergeToCell { family, .. } => is_sketch(family),
        _ => false,
    };
    mutations.iter().filter(adds).count().min(SKETCHES_MAX) * SKETCH_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use ebla_model::aggregate::{AggregateInput, InputType};
    use ebla_model::cell::FamilyName;
    use ebla_model::schema::{NewFamily, TableName};

    use super::*;

    fn add(family: &str) -> Mutation {
        Mutation::AddToCell {
            family: family.to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: ebla_model::Micros::ZERO,
            input: AggregateInput::Int64(1),
        }
    }

    #[test]
    fn additions_to_sketches_count_the_whole_sketch() {
        let count = Aggregator::UniqueCount(InputType::Int64);
        let families = [("u", Some(count)), ("s", Some(Aggregator::Sum))].map(|(name, aggregator)| NewFamily {
            name: FamilyName::new(name).unwrap(),
            gc: None,
            aggregator,
        });
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let schema = TableSchema::with_families(TableId::new(1), name, families).unwrap();
        assert_eq!(mutations_bytes(&[add("s"), add("absent")], &schema), 2 * 65);
        assert_eq!(mutations_bytes(&[add("u"), add("u")], &schema), 2 * (65 + SKETCH_BYTES_MAX));
        assert_eq!(sketch_bytes(&vec![add("u"); 100_000], &schema), SKETCHES_MAX * SKETCH_BYTES_MAX);
    }
}
