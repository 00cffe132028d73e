//! Writes that are decided by what their row holds: CheckAndMutate, ReadModifyWrite, and mutations that add to aggregates.
//!
//! They hold their row alone from the decision to the apply. All writes that came before them are applied by then, so
//! this replica's own store is what they decide by; that it still leads is proved when the proposal, bound to the term, is
//! accepted. So no filter runs at apply. The answer is kept with the session, and with the caller's token where there is
//! one: sent again, it is found there. A write with a token is decided here whatever it does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::Reason;
use ebla_model::cell::Row;
use ebla_model::command::{CallToken, RowReply};
use ebla_model::error::Error;
use ebla_model::id::Generation;
use ebla_model::idempotency::{self, CallKind, IdempotencyToken};
use ebla_model::key::RowKey;
use ebla_model::mutation::{self, Change, Mutation};
use ebla_model::rmw::{self, Operation, Rule};
use ebla_model::session::Verdict;
use ebla_model::time::Micros;
use ebla_proto::{convert, data};
use ebla_runtime::{Bug, planted};
use prost::Message;
use tokio::sync::oneshot;

use crate::tablet::apply::{EARLY, LATE};
use crate::tablet::failure::Failure;
use crate::tablet::latch::Mode;
use crate::tablet::machine::{Machine, Published};
use crate::tablet::queue::{Answer, Held};
use crate::tablet::read::{pool_failure, read_row};
use crate::tablet::wanted::Wanted;
use crate::tablet::write::{mutations_bytes, row_write, unknown};
use crate::tablet::{CheckRequest, ModifyRequest, Tablet, WriteId};

/// What a decided write comes to.
pub(super) struct Decision {
    /// What is written.
    pub(super) changes: Vec<Change>,
    /// The answer to keep, where it cannot be computed again.
    pub(super) result: Option<Bytes>,
}

/// What is known of a decided write before it is proposed.
enum Decided {
    /// It was applied before, with this answer where one was kept.
    Before(Option<Bytes>),
    /// It is to be proposed.
    Now(Decision),
}

/// A write that is to be decided.
pub(super) struct Subject {
    /// The tablet's generation as the caller knows it.
    pub(super) generation: Generation,
    /// Names the write.
    pub(super) id: WriteId,
    /// The row.
    pub(super) row: RowKey,
    /// The caller's own name for the write.
    pub(super) token: Option<CallToken>,
}

/// A decided write on its way.
pub(super) enum Proposed {
    /// It was applied before, with this answer where one was kept.
    Before(Option<Bytes>),
    /// It is queued, and this is its answer once it is applied.
    Queued(oneshot::Receiver<Answer>, Option<Bytes>),
}

impl Proposed {
    /// One that keeps no answer.
    pub(super) const fn queued(answer: oneshot::Receiver<Answer>) -> Self {
        Self::Queued(answer, None)
    }
}

impl Tablet {
    /// Applies one list of mutations or the other, depending on what a filter sees of the row. Whether it matched.
    ///
    /// # Errors
    /// As a row of [`Tablet::write`].
    pub async fn check(&self, request: CheckRequest, timeout: Duration) -> Result<bool, Failure> {
        let subject = Subject {
            generation: request.generation,
            id: request.id,
            row: request.row.clone(),
            token: call_token(CallKind::Check, request.token.clone()),
        };
        let schema = Arc::clone(&self.machine.published().shape.schema);
        let bytes = mutations_bytes(&request.then, &schema).max(mutations_bytes(&request.otherwise, &schema));
        let clock = self.runtime.clock.clone();
        let deadline = clock.monotonic().saturating_add(timeout);
        let decide = move |machine: &Machine, published: &Published, now| {
            let is_late = || clock.monotonic() >= deadline;
            decide_check(machine, published, &request, now, &is_late)
        };
        let result = self.decided(subject, bytes, decide, timeout).await?;
        Ok(result.first() == Some(&MATCHED))
    }

    /// Computes new values from what the row holds. An encoded `google.bigtable.v2.ReadModifyWriteRowResponse`: the columns
    /// that were touched, as they are then.
    ///
    /// # Errors
    /// As a row of [`Tablet::write`], and `FailedPrecondition` when a value is no counter.
    pub async fn modify(&self, request: ModifyRequest, timeout: Duration) -> Result<Bytes, Failure> {
        let subject = Subject {
            generation: request.generation,
            id: request.id,
            row: request.row.clone(),
            token: call_token(CallKind::Modify, request.token.clone()),
        };
        let bytes = request.rules.iter().map(rule_bytes).sum();
        let decide =
            move |machine: &Machine, published: &Published, now| decide_modify(machine, published, &request, now);
        self.decided(subject, bytes, decide, timeout).await
    }

    async fn decided<D>(&self, subject: Subject, bytes: usize, decide: D, timeout: Duration) -> Result<Bytes, Failure>
    where
        D: FnOnce(&Machine, &Published, Micros) -> Result<Decision, Error> + Send + 'static,
    {
        let work = self.decided_now(subject, bytes, decide, timeout);
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_elapsed| Err(Failure::deadline()))
    }

    async fn decided_now<D>(
        &self,
        subject: Subject,
        bytes: usize,
        decide: D,
        timeout: Duration,
    ) -> Result<Bytes, Failure>
    where
        D: FnOnce(&Machine, &Published, Micros) -> Result<Decision, Error> + Send + 'static,
    {
        let permit = Arc::new(self.admission.admit(bytes + 256, timeout).await?);
        let mode = if planted(Bug::DecisionUnlatched) { Mode::Shared } else { Mode::Exclusive };
        let latch = self.latches.acquire(&subject.row, mode).await;
        let held = Held::new(latch, permit);
        let (answer, result) = match self.propose_decided(subject, held, decide).await? {
            Proposed::Before(result) => return Ok(result.unwrap_or_default()),
            Proposed::Queued(answer, result) => (answer, result.unwrap_or_default()),
        };
        if planted(Bug::AnswerBeforeCommit) {
            return Ok(result);
        }
        let answer = answer.await;
        match answer.unwrap_or_else(|_gone| Err(unknown()))? {
            RowReply::Applied => Ok(result),
            RowReply::Duplicate(result) => Ok(result.unwrap_or_default()),
            RowReply::Refused(refusal) => Err(self.refusal_failure(&refusal)),
        }
    }

    /// Decides a write whose row is held, and queues it. Cancelled before it returns, nothing was queued.
    pub(super) async fn propose_decided<D>(&self, subject: Subject, held: Held, decide: D) -> Result<Proposed, Failure>
    where
        D: FnOnce(&Machine, &Published, Micros) -> Result<Decision, Error> + Send + 'static,
    {
        let Subject { generation, id, row, token } = subject;
        // Only now: a leadership that began while we waited may have been preceded by another's writes.
        let term = self.leading()?;
        let published = self.machine.published();
        self.expect_shape(&published.shape, generation)?;
        self.expect_row(&published, &row)?;
        let now = self.queue.waiting().stamp(self.runtime.clock.wall(), published.time);
        let machine = Arc::clone(&self.machine);
        let named = token.clone().map(|token| (row.clone(), token));
        let work = move || match machine.judge(&id) {
            Verdict::Duplicate(result) => Ok(Decided::Before(result)),
            Verdict::Forgotten => Err(forgotten()),
            Verdict::Fresh => {
                if let Some((row, token)) = &named
                    && let Some(result) = known(machine.judge_token(row, token, now))?
                {
                    return Ok(Decided::Before(result));
                }
                let decision = decide(&machine, &published, now)?;
                if named.is_some() {
                    expect_bearable(decision.result.as_ref())?;
                }
                Ok(Decided::Now(decision))
            }
        };
        let decision = match self.reads.run(work).await.map_err(pool_failure)?? {
            // Known from the replicated state of this term's leader, or of one that it follows: applied for good.
            Decided::Before(result) => return Ok(Proposed::Before(result)),
            Decided::Now(decision) => decision,
        };
        let result = decision.result.clone();
        let write = row_write(id, row, decision, token);
        Ok(Proposed::Queued(self.enqueue(self.queue.waiting(), term, write, held), result))
    }
}

/// The largest answer that is kept with a token, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The kept answer of a check that matched.
const MATCHED: u8 = 1;
/// The kept answer of a check that did not.
const NOT_MATCHED: u8 = 0;

fn decide_check(
    machine: &Machine,
    published: &Published,
    request: &CheckRequest,
    now: Micros,
    is_late: &dyn Fn() -> bool,
) -> Result<Decision, Error> {
    let schema = &published.shape.schema;
    // Both ways are resolved: a family that does not exist is told whichever way is taken.
    let then = mutation::resolve(schema, &request.then, now)?;
    let otherwise = mutation::resolve(schema, &request.otherwise, now)?;
    let columns = &then.columns() | &otherwise.columns();
    let predicate = request.predicate.as_ref();
    let row = read_row(machine, &request.row, |families| Wanted::by_predicate(predicate, &columns, families))?;
    let matched = predicate.map_or_else(|| Ok(!row.is_empty()), |predicate| predicate.matches(&row, is_late))?;
    let (taken, answer) = if matched { (then, MATCHED) } else { (otherwise, NOT_MATCHED) };
    Ok(Decision { changes: taken.settle(schema, &row)?, result: Some(Bytes::copy_from_slice(&[answer])) })
}

/// What mutations come to, some of which add to what the row holds.
pub(super) fn decide_mutations(
    machine: &Machine,
    published: &Published,
    (row, mutations): (&RowKey, &[Mutation]),
    now: Micros,
) -> Result<Decision, Error> {
    let schema = &published.shape.schema;
    let resolution = mutation::resolve(schema, mutations, now)?;
    let columns = resolution.columns();
    let current = read_row(machine, row, |families| Wanted::columns(&columns, families))?;
    Ok(Decision { changes: resolution.settle(schema, &current)?, result: None })
}

fn decide_modify(
    machine: &Machine,
    published: &Published,
    request: &ModifyRequest,
    now: Micros,
) -> Result<Decision, Error> {
    let schema = &published.shape.schema;
    // A family that does not exist is told by the evaluation.
    let column = |rule: &Rule| Some((schema.family_by_name(&rule.family)?.id, rule.qualifier.clone()));
    let columns = request.rules.iter().filter_map(column).collect();
    let row = read_row(machine, &request.row, |families| Wanted::columns(&columns, families))?;
    let (changes, cells) = rmw::evaluate(schema, &row, &request.rules, now)?;
    let answer = convert::row_to_proto(&Row { key: request.row.clone(), cells });
    let answer = data::ReadModifyWriteRowResponse { row: Some(answer) };
    Ok(Decision { changes, result: Some(answer.encode_to_vec().into()) })
}

/// The token as a tablet keeps it.
pub(super) fn call_token(kind: CallKind, token: Option<IdempotencyToken>) -> Option<CallToken> {
    token.map(|token| CallToken { kind, token })
}

/// The answer of a write that was applied before, by its token; `None` when it was not.
fn known(verdict: idempotency::Verdict) -> Result<Option<Option<Bytes>>, Error> {
    match verdict {
        idempotency::Verdict::Fresh => Ok(None),
        idempotency::Verdict::Duplicate(result) => Ok(Some(result)),
        idempotency::Verdict::Late => Err(Error::new(Reason::FailedPrecondition, LATE)),
        idempotency::Verdict::Early => Err(Error::new(Reason::FailedPrecondition, EARLY)),
    }
}

/// A large answer would take the place of many tokens.
fn expect_bearable(result: Option<&Bytes>) -> Result<(), Error> {
    match result.map_or(0, Bytes::len) {
        length if length > ANSWER_BYTES_MAX => Err(Error::new(
            Reason::FailedPrecondition,
            format!("the answer has {length} bytes, too many to be remembered with an idempotency token"),
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

fn forgotten() -> Error {
    Error::new(Reason::SessionForgotten, "the session has declared this write answered")
}
