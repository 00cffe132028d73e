//! The queue of a tablet's writes and the task that proposes them.
//!
//! Times and places in the queue are given under one lock, so a later write of a row never has an earlier time. What
//! gathers while a proposal is under way goes into the next one: commands of about 4 MiB, bound to the term in which
//! their writes were queued. If the leadership is lost before, they surely were not applied.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ebla_model::Reason;
use ebla_model::command::{Command, CommandKind, Reply, RowReply, RowWrite};
use ebla_model::time::Micros;
use ebla_runtime::{Bug, planted};
use tokio::sync::{Notify, oneshot};

use crate::raft::ProposeError;
use crate::tablet::Tablet;
use crate::tablet::admission::Permit;
use crate::tablet::command::{self, COMMAND_BYTES_MAX};
use crate::tablet::failure::Failure;
use crate::tablet::latch::Guard;
use crate::tablet::write::unknown;

/// Bytes that one proposal takes from the queue at most: a few commands.
const PROPOSAL_BYTES_MAX: usize = 4 * COMMAND_BYTES_MAX;

/// The answer to a queued write.
pub(super) type Answer = Result<RowReply, Failure>;

/// A write that waits to be proposed.
struct Queued {
    /// The term in which it was decided.
    term: u64,
    write: RowWrite,
    bytes: usize,
    answer: oneshot::Sender<Answer>,
    /// Given back after the answer.
    held: Held,
}

/// What a write holds until it is answered.
pub(super) struct Held {
    _latch: Guard,
    _permit: Arc<Permit>,
}

impl Held {
    pub(super) const fn new(latch: Guard, permit: Arc<Permit>) -> Self {
        Self { _latch: latch, _permit: permit }
    }
}

/// The writes of a tablet that wait to be proposed.
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// Held while a write takes its time and its place.
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
pub(super) struct Waiting {
    writes: VecDeque<Queued>,
    /// The last time given. Never goes back, whatever the clock does.
    given: Micros,
    tick_wanted: bool,
}

impl Waiting {
    /// The time for what is decided now: whole milliseconds, equal within one.
    pub(super) fn stamp(&mut self, wall: Micros, applied: Micros) -> Micros {
        self.given = wall.truncate_to_millis().max(self.given).max(applied);
        if planted(Bug::TimeGoesBack) {
            self.given = wall.truncate_to_millis();
        }
        self.given
    }
}

impl WriteQueue {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Asks for a command that carries nothing but the time.
    pub(crate) fn want_tick(&self) {
        self.waiting().tick_wanted = true;
        self.arrived.notify_one();
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writes for the next proposal, in their order, and whether a tick is wanted.
    fn take(&self) -> (Vec<Queued>, bool) {
        let mut waiting = self.waiting();
        let mut bytes = 0;
        let mut count = 0;
        for queued in &waiting.writes {
            if count > 0 && bytes + queued.bytes > PROPOSAL_BYTES_MAX {
                break;
            }
            bytes += queued.bytes;
            count += 1;
        }
        let taken = waiting.writes.drain(..count).collect();
        (taken, std::mem::take(&mut waiting.tick_wanted))
    }
}

impl Tablet {
    pub(super) fn enqueue(
        &self,
        mut waiting: MutexGuard<'_, Waiting>,
        term: u64,
        write: RowWrite,
        held: Held,
    ) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let bytes = command::row_bytes(&write);
        waiting.writes.push_back(Queued { term, write, bytes, answer, held });
        let is_first = waiting.writes.len() == 1;
        drop(waiting);
        if is_first {
            self.queue.arrived.notify_one();
        }
        receiver
    }

    /// Proposes what is queued until the tablet's tasks end; what is left then was surely not applied.
    async fn propose_writes(&self) {
        let token = self.runtime.tasks.token();
        while token.run_until_cancelled(self.queue.arrived.notified()).await.is_some() {
            loop {
                let (queued, tick) = self.queue.take();
                if queued.is_empty() && !tick {
                    break;
                }
                self.propose_taken(queued, tick).await;
            }
        }
        for queued in self.queue.take().0 {
            queued.answer(Err(Failure::new(Reason::Unavailable, "the replica has stopped")));
        }
    }

    async fn propose_taken(&self, queued: Vec<Queued>, tick: bool) {
        let Ok(term) = self.leading() else {
            let leader = self.leader();
            queued.into_iter().for_each(|one| one.answer(Err(Failure::not_leader(leader))));
            return;
        };
        let (current, stale): (Vec<_>, Vec<_>) = queued.into_iter().partition(|one| one.term == term);
        // Decided in an earlier term of this same replica: what it was decided by may have changed.
        stale.into_iter().for_each(|one| one.answer(Err(Failure::not_leader(None))));
        let time = self.queue.waiting().stamp(self.runtime.clock.wall(), self.machine.published().time);
        if current.is_empty() {
            if tick {
                let bytes = command::encode(&Command { time, kind: CommandKind::Tick });
                let _answer_of_no_interest = self.group.propose(vec![bytes], Some(term)).await;
            }
            return;
        }
        let (commands, waiting) = cut(current, time);
        let answers = self.group.propose(commands, Some(term)).await;
        let mut answers = answers.into_iter();
        for rows in waiting {
            let answer = answers.next().unwrap_or(Err(ProposeError::Unknown));
            self.answer_rows(rows, answer);
        }
    }

    fn answer_rows(&self, rows: Vec<Waiter>, answer: Result<Bytes, ProposeError>) {
        let reply = answer.map_err(|error| self.propose_failure(error));
        let reply = reply.and_then(|bytes| Ok(command::decode_reply(&bytes)?));
        match reply {
            Ok(Reply::Write(replies)) if replies.len() == rows.len() => {
                rows.into_iter().zip(replies).for_each(|(row, reply)| row.answer(Ok(reply)));
            }
            Ok(Reply::Refused(refusal)) => {
                rows.into_iter().for_each(|row| row.answer(Ok(RowReply::Refused(refusal.clone()))));
            }
            Ok(_) => rows.into_iter().for_each(|row| row.answer(Err(unknown()))),
            Err(failure) => rows.into_iter().for_each(|row| row.answer(Err(failure.clone()))),
        }
    }
}

/// Starts what proposes a tablet's writes; it lives as long as the tablet's tasks.
pub(crate) fn start_batcher(tablet: &Arc<Tablet>) {
    let worker = Arc::clone(tablet);
    let work = tablet.runtime.tasks.own("batcher", async move { worker.propose_writes().await });
    tablet.group.accompany(work);
}

/// Who waits for a row's answer while its command is under way.
struct Waiter {
    answer: oneshot::Sender<Answer>,
    held: Held,
}

impl Waiter {
    fn answer(self, answer: Answer) {
        // The caller may have gone; what it wrote is applied all the same.
        let _unwanted = self.answer.send(answer);
        drop(self.held);
    }
}

impl Queued {
    fn answer(self, answer: Answer) {
        Waiter { answer: self.answer, held: self.held }.answer(answer);
    }
}

/// Commands of about 4 MiB, each with those who wait for its rows.
fn cut(queued: Vec<Queued>, time: Micros) -> (Vec<Bytes>, Vec<Vec<Waiter>>) {
    let (mut commands, mut waiting) = (Vec::new(), Vec::new());
    let (mut rows, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut close = |rows: &mut Vec<RowWrite>, waiters: &mut Vec<Waiter>| {
        if !rows.is_empty() {
            let kind = CommandKind::Write(std::mem::take(rows));
            commands.push(command::encode(&Command { time, kind }));
            waiting.push(std::mem::take(waiters));
        }
    };
    for one in queued {
        if bytes + one.bytes > COMMAND_BYTES_MAX {
            close(&mut rows, &mut waiters);
            bytes = 0;
        }
        bytes += one.bytes;
        rows.push(one.write);
        waiters.push(Waiter { answer: one.answer, held: one.held });
    }
    close(&mut rows, &mut waiters);
    (commands, waiting)
}
