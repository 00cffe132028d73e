//! The read-modify-write path: CheckAndMutate, ReadModifyWrite, mutations that add to aggregates, and writes with a token.
//!
//! Such a write holds its row's latch exclusively from the evaluation to the apply. All earlier writes of the row are applied
//! by then, so the leader evaluates it against its own store; the accepted proposal, bound to the term, proves that it still
//! leads. It shares the latch of its table, which a drop of rows and a change of the schema hold
//! exclusively: neither comes in between. So no filter runs in apply. The result is stored with the session, and with the caller's idempotency token if there
//! is one: a write that is sent again finds it there. A write with a token takes this path whatever it does.
//!
//! Whether it was applied before is part of the group's state, which an apply holds for a moment, and a checkpoint or a snapshot
//! installation for long. A thread of the read pool waits for the state for a moment only, so that the writes of one group never
//! keep the reads of all others from the pool; afterwards the write waits without a thread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Deadline;
use ebla_model::Reason;
use ebla_model::cell::Row;
use ebla_model::command::{CallToken, RowReply};
use ebla_model::error::Error;
use ebla_model::id::Generation;
use ebla_model::idempotency::{self, CallKind, IdempotencyToken};
use ebla_model::key::RowKey;
use ebla_model::mutation::{self, Change, Mutation};
use ebla_model::rmw::{self, Operation, Rule};
use ebla_model::session::SequenceCheck;
use ebla_model::time::Micros;
use ebla_proto::{convert, data};
use ebla_runtime::Failpoint;
use ebla_runtime::trace::{self, Stage};
use prost::Message;
use tokio::sync::oneshot;

use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::apply::{EARLY, LATE};
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::{GroupStateMachine, duplicate_check, token_check};
use crate::tablet::failure::Failure;
use crate::tablet::read::projection::Projection;
use crate::tablet::read::scan::{pool_failure, read_row};
use crate::tablet::write::latch::LatchMode;
use crate::tablet::write::mutate::{check_row_in_range, mutations_bytes, outcome_unknown};
use crate::tablet::write::queue::{QueuedReply, WriteCaller, WriteGuards, WriteTerms};
use crate::tablet::{CheckRequest, ModifyRequest, Tablet, WriteId};

/// The result of evaluating a conditional write.
pub(super) struct ResolvedWrite {
    /// The changes to propose.
    pub(super) changes: Vec<Change>,
    /// The response to store, if it cannot be computed again.
    pub(super) result: Option<Bytes>,
}

/// A conditional write before it is proposed.
enum Evaluation {
    /// It was applied before, with this stored result if there is one.
    AlreadyApplied(Option<Bytes>),
    /// It must be proposed.
    Resolved(ResolvedWrite),
}

/// An attempt to evaluate a conditional write by `E`.
enum Attempt<E> {
    Done(Result<Evaluation, Error>),
    /// The state was held for too long; the evaluation must be tried again.
    StateHeld(E),
}

/// A write whose changes depend on the row's content.
pub(super) struct ConditionalWrite {
    /// The tablet's generation as the caller knows it.
    pub(super) generation: Generation,
    /// The id of the write.
    pub(super) id: WriteId,
    /// The row.
    pub(super) row: RowKey,
    /// The caller's idempotency token.
    pub(super) token: Option<CallToken>,
    /// The caller's deadline.
    pub(super) deadline: Deadline,
}

/// A conditional write that was submitted.
pub(super) enum Submission {
    /// It was applied before, with this stored result if there is one.
    AlreadyApplied(Option<Bytes>),
    /// It is queued; its reply after the apply, and the result to return then.
    Queued(oneshot::Receiver<QueuedReply>, Option<Bytes>),
}

impl Submission {
    /// A queued write without a stored result.
    pub(super) const fn queued(reply: oneshot::Receiver<QueuedReply>) -> Self {
        Self::Queued(reply, None)
    }
}

impl Tablet {
    /// Applies one of two lists of mutations, depending on whether a filter matches the row. Returns whether it matched.
    ///
    /// # Errors
    /// As a row of [`Tablet::write`].
    pub async fn check(&self, request: CheckRequest, timeout: Duration) -> Result<bool, Failure> {
        let deadline = Deadline::after(&self.runtime.clock, timeout);
        let write = ConditionalWrite {
            generation: request.generation,
            id: request.id,
            row: request.row.clone(),
            token: call_token(CallKind::Check, request.token.clone()),
            deadline,
        };
        let schema = Arc::clone(self.metadata()?.schema());
        if request.then.iter().chain(&request.otherwise).any(Mutation::stores_cells) {
            self.check_writes_accepted(&request.id)?;
        }
        let bytes = mutations_bytes(&request.then, &schema).max(mutations_bytes(&request.otherwise, &schema));
        let clock = self.runtime.clock.clone();
        let evaluate = move |state_machine: &GroupStateMachine, metadata: &TabletMetadata, now| {
            let is_late = || deadline.has_passed(&clock);
            evaluate_check(state_machine, metadata, &request, now, &is_late)
        };
        let result = self.read_modify_write(write, bytes, evaluate, timeout).await?;
        Ok(result.first() == Some(&MATCHED))
    }

    /// Computes new values from the row's content. Returns an encoded `google.bigtable.v2.ReadModifyWriteRowResponse` with the
    /// new values of the affected columns.
    ///
    /// # Errors
    /// As a row of [`Tablet::write`], and `FailedPrecondition` when a value is not a counter.
    pub async fn modify(&self, request: ModifyRequest, timeout: Duration) -> Result<Bytes, Failure> {
        let write = ConditionalWrite {
            generation: request.generation,
            id: request.id,
            row: request.row.clone(),
            token: call_token(CallKind::Modify, request.token.clone()),
            deadline: Deadline::after(&self.runtime.clock, timeout),
        };
        self.check_writes_accepted(&request.id)?;
        let bytes = request.rules.iter().map(rule_bytes).sum();
        let evaluate = move |state_machine: &GroupStateMachine, metadata: &TabletMetadata, now| {
            evaluate_modify(state_machine, metadata, &request, now)
        };
        self.read_modify_write(write, bytes, evaluate, timeout).await
    }

    async fn read_modify_write<E>(
        &self,
        write: ConditionalWrite,
        bytes: usize,
        evaluate: E,
        timeout: Duration,
    ) -> Result<Bytes, Failure>
    where
        E: FnOnce(&GroupStateMachine, &TabletMetadata, Micros) -> Result<ResolvedWrite, Error> + Send + 'static,
    {
        let work = self.run_read_modify_write(write, bytes, evaluate, timeout);
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_elapsed| Err(Failure::deadline()))
    }

    async fn run_read_modify_write<E>(
        &self,
        write: ConditionalWrite,
        bytes: usize,
        evaluate: E,
        timeout: Duration,
    ) -> Result<Bytes, Failure>
    where
        E: FnOnce(&GroupStateMachine, &TabletMetadata, Micros) -> Result<ResolvedWrite, Error> + Send + 'static,
    {
        let load = Arc::clone(&self.metadata()?.load);
        load.count_write(&write.row, bytes);
        let started = load.call_start(|| self.runtime.clock.monotonic());
        self.admission.count_rows(1);
        let permit = Arc::new(trace::waiting(Stage::Memory, self.admission.admit(bytes + 256, timeout)).await?);
        let mode = if Failpoint::DecisionUnlatched.is_enabled() { LatchMode::Shared } else { LatchMode::Exclusive };
        let (table, row) = (self.table_latch_key(), self.stored_row(&write.row));
        let table = trace::waiting(Stage::Latch, self.latches.acquire(&table, LatchMode::Shared)).await;
        let latch = trace::waiting(Stage::Latch, self.latches.acquire(&row, mode)).await;
        let guards = WriteGuards::conditional(table, latch, permit);
        let (reply, result) = match self.submit_conditional(write, guards, evaluate).await? {
            Submission::AlreadyApplied(result) => return Ok(result.unwrap_or_default()),
            Submission::Queued(reply, result) => (reply, result.unwrap_or_default()),
        };
        if Failpoint::AnswerBeforeCommit.is_enabled() {
            return Ok(result);
        }
        let waits = trace::stage(Stage::Outcome);
        let reply = reply.await.unwrap_or_else(|_gone| Err(outcome_unknown()));
        load.count_latency(started, || self.runtime.clock.monotonic());
        let reply = reply?;
        waits.discard();
        match reply {
            RowReply::Applied => Ok(result),
            RowReply::Duplicate(result) => Ok(result.unwrap_or_default()),
            RowReply::Refused(refusal) => Err(self.row_failure(&refusal)),
        }
    }

    /// Evaluates a write whose latch is held, and queues it. If cancelled before it returns, nothing was queued.
    pub(super) async fn submit_conditional<E>(
        &self,
        write: ConditionalWrite,
        guards: WriteGuards,
        evaluate: E,
    ) -> Result<Submission, Failure>
    where
        E: FnOnce(&GroupStateMachine, &TabletMetadata, Micros) -> Result<ResolvedWrite, Error> + Send + 'static,
    {
        let ConditionalWrite { generation, id, row, token, deadline } = write;
        // Only now: if the leadership began while this write waited, another leader's writes may have come before.
        let term = self.leader_term()?;
        let applied_state = self.state_machine.applied_state();
        let metadata = self.served_in(&applied_state)?;
        Self::check_generation(&metadata, generation)?;
        check_row_in_range(&metadata, &row)?;
        let wall = self.runtime.clock.wall();
        let now = self.queue.pending.lock().assign_timestamp(wall, applied_state.time);
        let row_and_token = token.clone().map(|token| (self.stored_row(&row), token));
        let check = AppliedCheck { id, row_and_token, now };
        let terms = WriteTerms { term, deadline };
        let resolved = match self.evaluate(check, Arc::clone(&metadata), evaluate).await {
            Ok(Evaluation::Resolved(resolved)) => resolved,
            // Known from the replicated state of this term's leader, or of a leader it follows: applied permanently.
            Ok(Evaluation::AlreadyApplied(result)) => return Ok(Submission::AlreadyApplied(result)),
            Err(refusal) => {
                drop(guards);
                return Err(self.confirm_refusal(refusal, terms).await);
            }
        };
        self.check_quota(metadata.schema().quota_refusal_of_changes(&resolved.changes), &id)?;
        let result = resolved.result.clone();
        let write = self.row_command(id, row, resolved, token);
        let caller = WriteCaller::current();
        Ok(Submission::Queued(self.enqueue(self.queue.pending.lock(), terms, write, (guards, caller)), result))
    }
}

impl Tablet {
    /// Evaluates a write on a thread of the read pool, unless it was applied before.
    async fn evaluate<E>(
        &self,
        check: AppliedCheck,
        metadata: Arc<TabletMetadata>,
        mut evaluate: E,
    ) -> Result<Evaluation, Failure>
    where
        E: FnOnce(&GroupStateMachine, &TabletMetadata, Micros) -> Result<ResolvedWrite, Error> + Send + 'static,
    {
        let _evaluates = trace::stage(Stage::Evaluate);
        let check = Arc::new(check);
        let mut turn = None;
        loop {
            // While another write waits for the state, this one waits behind it.
            if turn.is_none() && self.state_turn.available_permits() == 0 {
                turn = self.state_turn.acquire().await.ok();
            }
            let (state_machine, metadata, check) =
                (Arc::clone(&self.state_machine), Arc::clone(&metadata), Arc::clone(&check));
            let work = move || attempt(&state_machine, &metadata, &check, evaluate);
            match self.reads.run_if_awaited(work).await.map_err(pool_failure)? {
                Attempt::Done(evaluated) => return self.unless_damaged(evaluated.map_err(Failure::from)),
                Attempt::StateHeld(again) => evaluate = again,
            }
            if turn.is_none() {
                turn = self.state_turn.acquire().await.ok();
            }
            tokio::time::sleep(STATE_RETRY).await;
        }
    }
}

/// How long a thread waits for the state of a group. An apply takes less.
const STATE_PATIENCE: Duration = Duration::from_millis(2);
/// The pause between two attempts to evaluate a write while the state is held.
const STATE_RETRY: Duration = Duration::from_millis(5);

/// What identifies a write that may have been applied before.
struct AppliedCheck {
    id: WriteId,
    /// The row as it is stored, and the caller's token.
    row_and_token: Option<(RowKey, CallToken)>,
    now: Micros,
}

impl AppliedCheck {
    /// What `state` knows of the write; `None`: it was not applied. With a stored result if there is one.
    fn applied(&self, state: &GroupState) -> Result<Option<Option<Bytes>>, Error> {
        match duplicate_check(state, &self.id) {
            SequenceCheck::Duplicate(result) => Ok(Some(result)),
            SequenceCheck::Acknowledged => Err(already_acknowledged()),
            SequenceCheck::New => match &self.row_and_token {
                Some((row, token)) => stored_result(token_check(state, row, token, self.now)),
                None => Ok(None),
            },
        }
    }
}

/// Evaluates a write unless it was applied before. Blocking.
fn attempt<E>(
    state_machine: &GroupStateMachine,
    metadata: &TabletMetadata,
    check: &AppliedCheck,
    evaluate: E,
) -> Attempt<E>
where
    E: FnOnce(&GroupStateMachine, &TabletMetadata, Micros) -> Result<ResolvedWrite, Error>,
{
    let Some(applied) = state_machine.try_with_state(STATE_PATIENCE, |state| check.applied(state)) else {
        return Attempt::StateHeld(evaluate);
    };
    let evaluated = || {
        if let Some(result) = applied? {
            return Ok(Evaluation::AlreadyApplied(result));
        }
        let resolved = evaluate(state_machine, metadata, check.now)?;
        if check.row_and_token.is_some() {
            check_result_size(resolved.result.as_ref())?;
        }
        Ok(Evaluation::Resolved(resolved))
    };
    Attempt::Done(evaluated())
}

/// The largest response that is stored with a token, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;
/// The stored result of a check that matched.
const MATCHED: u8 = 1;
/// The stored result of a check that did not match.
const NOT_MATCHED: u8 = 0;

fn evaluate_check(
    state_machine: &GroupStateMachine,
    metadata: &TabletMetadata,
    request: &CheckRequest,
    now: Micros,
    is_late: &dyn Fn() -> bool,
) -> Result<ResolvedWrite, Error> {
    let schema = metadata.schema();
    // Both branches are resolved: an unknown family is reported whichever branch is taken.
    let then = mutation::resolve(schema, &request.then, now)?;
    let otherwise = mutation::resolve(schema, &request.otherwise, now)?;
    let columns = &then.columns() | &otherwise.columns();
    let predicate = request.predicate.as_ref();
    let row = read_row(state_machine, metadata, &request.row, |families| {
        Projection::for_predicate(predicate, &columns, families)
    })?;
    let matched = predicate.map_or_else(|| Ok(!row.is_empty()), |predicate| predicate.matches(&row, is_late))?;
    let (branch, result) = if matched { (then, MATCHED) } else { (otherwise, NOT_MATCHED) };
    Ok(ResolvedWrite { changes: branch.merge(schema, &row)?, result: Some(Bytes::copy_from_slice(&[result])) })
}

/// Resolves mutations that add to the row's aggregates.
pub(super) fn evaluate_mutations(
    state_machine: &GroupStateMachine,
    metadata: &TabletMetadata,
    (row, mutations): (&RowKey, &[Mutation]),
    now: Micros,
) -> Result<ResolvedWrite, Error> {
    let schema = metadata.schema();
    let resolution = mutation::resolve(schema, mutations, now)?;
    let columns = resolution.columns();
    let current = read_row(state_machine, metadata, row, |families| Projection::for_columns(&columns, families))?;
    Ok(ResolvedWrite { changes: resolution.merge(schema, &current)?, result: None })
}

fn evaluate_modify(
    state_machine: &GroupStateMachine,
    metadata: &TabletMetadata,
    request: &ModifyRequest,
    now: Micros,
) -> Result<ResolvedWrite, Error> {
    let schema = metadata.schema();
    // The evaluation reports unknown families.
    let column = |rule: &Rule| Some((schema.family_by_name(&rule.family)?.id, rule.qualifier.clone()));
    let columns = request.rules.iter().filter_map(column).collect();
    let row = read_row(state_machine, metadata, &request.row, |families| Projection::for_columns(&columns, families))?;
    let (changes, cells) = rmw::evaluate(schema, &row, &request.rules, now)?;
    let row = convert::row_to_proto(&Row { key: request.row.clone(), cells });
    let response = data::ReadModifyWriteRowResponse { row: Some(row) };
    Ok(ResolvedWrite { changes, result: Some(response.encode_to_vec().into()) })
}

/// The token in the form that a tablet stores.
pub(super) fn call_token(kind: CallKind, token: Option<IdempotencyToken>) -> Option<CallToken> {
    token.map(|token| CallToken { kind, token })
}

/// The stored result of a write that was applied before with the same token; `None` when it was not.
fn stored_result(verdict: idempotency::TokenCheck) -> Result<Option<Option<Bytes>>, Error> {
    match verdict {
        idempotency::TokenCheck::New => Ok(None),
        idempotency::TokenCheck::Duplicate(result) => Ok(Some(result)),
        idempotency::TokenCheck::Expired => Err(Error::new(Reason::FailedPrecondition, LATE)),
        idempotency::TokenCheck::FromFuture => Err(Error::new(Reason::FailedPrecondition, EARLY)),
    }
}

/// Refuses a large result: it would use the space of many tokens.
fn check_result_size(result: Option<&Bytes>) -> Result<(), Error> {
    match result.map_or(0, Bytes::len) {
        length if length > RESULT_BYTES_MAX => Err(Error::new(
            Reason::FailedPrecondition,
            format!("the response has {length} bytes, too many to be stored with an idempotency token"),
        )),
        _ => Ok(()),
    }
}

fn rule_bytes(rule: &Rule) -> usize {
    let operand = match &rule.operation {
        Operation::Append(suffix) => suffix.len(),
        Operation::Increment(_) => 8,
    };
    rule.qualifier.len() + operand + 64
}

pub(super) fn already_acknowledged() -> Error {
    Error::new(Reason::SessionForgotten, "duplicate check impossible: sequence already acknowledged by client")
}
