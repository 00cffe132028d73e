//! Writes on their way into the log: latched, timed, gathered, proposed, answered.
//!
//! ```text
//!   row --- admission --- latch --- queue ---------- batcher --------- Group::propose
//!                                   |  time given     |  commands of about 4 MiB, bound to the term
//!                                   |  under its lock |  one proposal under way; what comes meanwhile gathers
//! ```
//!
//! A row's latch travels with its write and is released when that is answered, also when the caller has gone. Blind
//! writes share it; those that are decided by what the row holds (`decide`), additions to aggregates among them, hold it
//! alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::Reason;
use ebla_model::aggregate::{Aggregator, SKETCH_BYTES_MAX, SKETCHES_MAX};
use ebla_model::cell::Row;
use ebla_model::command::{CallToken, Command, CommandKind, Refusal, RefusalKind, Reply, RowReply, RowWrite};
use ebla_model::id::Generation;
use ebla_model::idempotency::CallKind;
use ebla_model::key::RowKey;
use ebla_model::mutation::{self, Mutation};
use ebla_model::schema::TableSchema;
use tokio::sync::oneshot;

use crate::raft::ProposeError;
use crate::tablet::admission::{RETRY_AFTER, TABLET_BYTES};
use crate::tablet::command;
use crate::tablet::decide::{Decision, Proposed, Subject, call_token, decide_mutations};
use crate::tablet::failure::Failure;
use crate::tablet::latch::Mode;
use crate::tablet::machine::{Machine, Published};
use crate::tablet::queue::{Answer, Held};
use crate::tablet::{RowMutations, Tablet, WriteId};

/// Most bytes of sketches that one call writes: what a permit covers at most.
const SKETCHES_BYTES_MAX: usize = TABLET_BYTES as usize;

impl Tablet {
    /// Writes rows, each for itself; one result for each, in their order.
    ///
    /// Not cancel-safe: what was queued is applied.
    ///
    /// # Errors
    /// For all rows alike: `NotLeader`, `NoLeader`, `WrongTablet`, `TabletDropped`, `Busy`; nothing was applied then. For a
    /// row: the same, `NotFoundFamily`, `InvalidArgument`; `OutcomeUnknown` and `Deadline` when it may yet be applied,
    /// which the same request, sent again, finds out; `SessionForgotten` when that can not be known any more.
    pub async fn write(
        &self,
        generation: Generation,
        rows: Vec<RowMutations>,
        timeout: Duration,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        let term = self.leading()?;
        self.expect_shape(&self.machine.published().shape, generation)?;
        let started = self.runtime.clock.monotonic();
        let schema = Arc::clone(&self.machine.published().shape.schema);
        let bytes = rows.iter().map(|row| request_bytes(row, &schema)).sum();
        let permit = Arc::new(self.admission.admit(bytes, timeout).await?);
        let deadline = tokio::time::sleep(timeout.saturating_sub(self.since(started)));
        tokio::pin!(deadline);
        let mut queued = Vec::with_capacity(rows.len());
        let mut sketches = 0;
        for row in rows {
            // Whoever sent a few bytes for each of very many sketches sends the rest again, in order: what is queued here
            // is large, and the permit covers no more.
            sketches += sketch_bytes(&row.mutations, &schema);
            if sketches > SKETCHES_BYTES_MAX && !queued.is_empty() {
                queued.push(Err(Failure::busy(RETRY_AFTER)));
                continue;
            }
            let is_blind = row.token.is_none() && !row.mutations.iter().any(Mutation::is_aggregation);
            let mode = if is_blind { Mode::Shared } else { Mode::Exclusive };
            let latch = match self.latches.try_acquire(&row.row, mode) {
                Some(latch) => latch,
                None => tokio::select! {
                    latch = self.latches.acquire(&row.row, mode) => latch,
                    () = &mut deadline => {
                        queued.push(Err(Failure::deadline()));
                        continue;
                    }
                },
            };
            let held = Held::new(latch, Arc::clone(&permit));
            queued.push(if is_blind {
                self.queue_blind(term, row, held).map(Proposed::queued)
            } else {
                tokio::select! {
                    proposed = self.queue_decided(generation, row, held) => proposed,
                    () = &mut deadline => Err(Failure::deadline()),
                }
            });
        }
        drop(permit);
        let mut results = Vec::with_capacity(queued.len());
        for answer in queued {
            results.push(match answer {
                Ok(Proposed::Queued(mut answer, _none)) => tokio::select! {
                    biased;
                    answer = &mut answer => self.write_result(answer),
                    () = &mut deadline => Err(Failure::deadline()),
                },
                Ok(Proposed::Before(_none)) => Ok(()),
                Err(failure) => Err(failure),
            });
        }
        Ok(results)
    }

    /// Proposes a command other than a write, in the order of the queue's times.
    pub(crate) async fn order(&self, kind: CommandKind, timeout: Duration) -> Result<Reply, Failure> {
        let term = self.leading()?;
        let applied = self.machine.published().time;
        let time = self.queue.waiting().stamp(self.runtime.clock.wall(), applied);
        let bytes = command::encode(&Command { time, kind });
        let propose = self.group.propose(vec![bytes], Some(term));
        let answers = tokio::time::timeout(timeout, propose).await.map_err(|_elapsed| Failure::deadline())?;
        let answer = answers.into_iter().next().unwrap_or(Err(ProposeError::Unknown));
        let reply = command::decode_reply(&answer.map_err(|error| self.propose_failure(error))?)?;
        match reply {
            Reply::Refused(refusal) => Err(self.refusal_failure(&refusal)),
            reply => Ok(reply),
        }
    }

    /// The term in which this replica may decide, or who leads instead.
    pub(crate) fn leading(&self) -> Result<u64, Failure> {
        match self.group.leadership() {
            Some(leadership) => Ok(leadership.term),
            None => {
                // A leader that has not applied its first entry yet is no leader to name.
                let leader = self.leader().filter(|_| !self.group.status().is_leader);
                Err(Failure::not_leader(leader))
            }
        }
    }

    pub(super) fn since(&self, started: Duration) -> Duration {
        self.runtime.clock.monotonic().saturating_sub(started)
    }

    fn queue_blind(&self, term: u64, row: RowMutations, held: Held) -> Result<oneshot::Receiver<Answer>, Failure> {
        let published = self.machine.published();
        self.expect_row(&published, &row.row)?;
        let mut waiting = self.queue.waiting();
        let now = waiting.stamp(self.runtime.clock.wall(), published.time);
        let schema = &published.shape.schema;
        let changes = mutation::resolve(schema, &row.mutations, now)?.settle(schema, &Row::empty(row.row.clone()))?;
        let write = row_write(row.id, row.row, Decision { changes, result: None }, None);
        Ok(self.enqueue(waiting, term, write, held))
    }

    async fn queue_decided(&self, generation: Generation, row: RowMutations, held: Held) -> Result<Proposed, Failure> {
        let RowMutations { id, row, mutations, token } = row;
        let key = row.clone();
        let decide = move |machine: &Machine, published: &Published, now| {
            decide_mutations(machine, published, (&key, &mutations), now)
        };
        let subject = Subject { generation, id, row, token: call_token(CallKind::Mutate, token) };
        self.propose_decided(subject, held, decide).await
    }

    pub(super) fn expect_row(&self, published: &Published, row: &RowKey) -> Result<(), Failure> {
        let descriptor = &published.shape.descriptor;
        if descriptor.range.contains(row.as_bytes()) { Ok(()) } else { Err(Failure::wrong_tablet(descriptor.clone())) }
    }

    fn write_result(&self, answer: Result<Answer, oneshot::error::RecvError>) -> Result<(), Failure> {
        match answer.unwrap_or_else(|_gone| Err(unknown()))? {
            RowReply::Applied | RowReply::Duplicate(_) => Ok(()),
            RowReply::Refused(refusal) => Err(self.refusal_failure(&refusal)),
        }
    }

    pub(super) fn refusal_failure(&self, refusal: &Refusal) -> Failure {
        let message = refusal.message.clone();
        match refusal.kind {
            RefusalKind::OutOfRange => Failure::wrong_tablet(self.descriptor()),
            RefusalKind::UnknownFamily => Failure::new(Reason::NotFoundFamily, message),
            RefusalKind::Dropped => Failure::new(Reason::TabletDropped, message),
            RefusalKind::SessionForgotten => Failure::new(Reason::SessionForgotten, message),
            RefusalKind::NotNow => Failure::new(Reason::Busy, message),
            RefusalKind::TokenOutOfTime => Failure::new(Reason::FailedPrecondition, message),
        }
    }

    pub(super) fn propose_failure(&self, error: ProposeError) -> Failure {
        match error {
            ProposeError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            ProposeError::Unknown => unknown(),
            ProposeError::Stopped => Failure::new(Reason::Unavailable, "the replica has stopped"),
        }
    }
}

/// The write as it stands in a command.
pub(super) fn row_write(id: WriteId, row: RowKey, decision: Decision, token: Option<CallToken>) -> RowWrite {
    let Decision { changes, result } = decision;
    RowWrite {
        session: id.session,
        sequence: id.sequence,
        lowest_outstanding: id.lowest_outstanding,
        row,
        changes,
        result,
        token,
    }
}

pub(super) fn unknown() -> Failure {
    Failure::new(Reason::OutcomeUnknown, "the write was proposed and its outcome is not known yet")
}

fn request_bytes(row: &RowMutations, schema: &TableSchema) -> usize {
    let token = row.token.as_ref().map_or(0, |token| token.token.len());
    64 + row.row.as_bytes().len() + mutations_bytes(&row.mutations, schema) + token
}

/// About what mutations of a row come to, in bytes.
pub(super) fn mutations_bytes(mutations: &[Mutation], schema: &TableSchema) -> usize {
    let size = |mutation: &Mutation| match mutation {
        Mutation::SetCell { qualifier, value, .. } => qualifier.len() + value.len() + 64,
        Mutation::MergeToCell { qualifier, state, .. } => qualifier.len() + state.as_ref().map_or(0, Bytes::len) + 64,
        Mutation::AddToCell { qualifier, .. } | Mutation::DeleteColumn { qualifier, .. } => qualifier.len() + 64,
        Mutation::DeleteFamily { .. } | Mutation::DeleteRow => 64,
    };
    mutations.iter().map(size).sum::<usize>() + sketch_bytes(mutations, schema)
}

/// The most that mutations of a row write in sketches, each of which is written as a whole.
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
    use ebla_model::aggregate::{Input, InputType};
    use ebla_model::cell::FamilyName;
    use ebla_model::id::TableId;
    use ebla_model::schema::{NewFamily, TableName};

    use super::*;

    fn add(family: &str) -> Mutation {
        Mutation::AddToCell {
            family: family.to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: ebla_model::Micros::ZERO,
            input: Input::Int64(1),
        }
    }

    #[test]
    fn additions_to_sketches_weigh_what_is_written() {
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
