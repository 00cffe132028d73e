//! The queue of a group's writes, and the batcher: the task that proposes them (group commit).
//!
//! Timestamps and queue positions are assigned under one lock, so a later write of a row never has an earlier timestamp.
//! Writes that arrive while a proposal is in flight form the next one, together with those that arrive soon after it
//! (`gather`): commands of about 4 MiB, bound to the term in which their writes were queued. If the leadership is lost before
//! the proposal, they are surely not applied. The same is true for writes whose deadline passes before it, and for those whose
//! callers have gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Deadline;
use ebla_model::Reason;
use ebla_model::cluster_version::Feature;
use ebla_model::command::{Command, CommandKind, Reply, RowReply, RowWrite};
use ebla_model::id::Term;
use ebla_model::time::Micros;
use ebla_runtime::trace::{self, Operation};
use ebla_runtime::{Clock, Failpoint};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::raft::{AppliedCommand, ProposeError};
use crate::tablet::TabletGroup;
use crate::tablet::core::command::{self, COMMAND_BYTES_MAX};
use crate::tablet::failure::Failure;
use crate::tablet::write::admission::{Permit, RETRY_AFTER};
use crate::tablet::write::batch_times::ProposedBatch;
use crate::tablet::write::gather::Gathering;
use crate::tablet::write::latch::LatchGuard;
use crate::tablet::write::mutate::outcome_unknown;

/// Maximum bytes of one proposal: a few commands.
const PROPOSAL_BYTES_MAX: usize = 4 * COMMAND_BYTES_MAX;

/// The reply to a queued write.
pub(super) type QueuedReply = Result<RowReply, Failure>;

/// A write in the queue.
struct QueuedWrite {
    terms: WriteTerms,
    write: RowWrite,
    bytes: usize,
    reply: oneshot::Sender<QueuedReply>,
    /// Released after the reply.
    guards: WriteGuards,
    /// The operation of the call, and when the write was queued.
    operation: Option<(Arc<Operation>, Duration)>,
}

/// When a queued write may still be proposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteTerms {
    /// The term in which it is queued: only in this one.
    pub(super) term: Term,
    /// The deadline of its caller: only before.
    pub(super) deadline: Deadline,
}

/// The latches and the permit that a write holds until it is answered.
pub(super) struct WriteGuards {
    _latch: Option<LatchGuard>,
    /// That of the table: of a write that is evaluated.
    _table: Option<LatchGuard>,
    _permit: Arc<Permit>,
}

impl WriteGuards {
    /// Those of a blind write.
    pub(super) const fn blind(latch: LatchGuard, permit: Arc<Permit>) -> Self {
        Self { _latch: Some(latch), _table: None, _permit: permit }
    }

    /// Those of a write that is evaluated.
    pub(super) const fn conditional(table: LatchGuard, latch: LatchGuard, permit: Arc<Permit>) -> Self {
        Self { _latch: Some(latch), _table: Some(table), _permit: permit }
    }
}

/// The queue of a group's writes, of all its tablets.
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// Locked while a write gets its timestamp and its position.
    pub(super) pending: Mutex<PendingWrites>,
    arrived: Notify,
}

#[derive(Default)]
pub(super) struct PendingWrites {
    writes: VecDeque<QueuedWrite>,
    /// The last assigned timestamp. Never goes back, whatever the clock does.
    last_timestamp: Micros,
    /// The term of the last command, and when it got its timestamp, by the monotonic clock.
    last_command: Option<(Term, Duration)>,
    tick_requested: bool,
    /// The batcher is notified when the queue reaches this number of writes; of the first one it is always notified.
    awaited: usize,
}

impl PendingWrites {
    /// Assigns a timestamp: whole milliseconds, not below the last one nor below `applied`.
    pub(super) fn assign_timestamp(&mut self, wall: Micros, applied: Micros) -> Micros {
        self.last_timestamp = wall.truncate_to_millis().max(self.last_timestamp).max(applied);
        if Failpoint::TimeGoesBack.is_enabled() {
            self.last_timestamp = wall.truncate_to_millis();
        }
        self.last_timestamp
    }

    /// A command of a leader in `term`, with its timestamp, the time since the last one, and the clock if that is behind the timestamp.
    pub(super) fn stamp(&mut self, kind: CommandKind, term: Term, clock: &Clock, applied: Micros) -> Command {
        let now = clock.monotonic();
        let last = self.last_command.replace((term, now)).filter(|(last, _at)| *last == term);
        let elapsed = last.map(|(_term, at)| now.saturating_sub(at));
        let wall = clock.wall();
        let time = self.assign_timestamp(wall, applied);
        let clock = (wall < time && !Failpoint::CatchUpUnbounded.is_enabled()).then_some(wall);
        Command { time, elapsed, clock, kind }
    }
}

impl WriteQueue {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Requests a tick, a command that carries only the time, unless the last command is younger than `pause`. `now`: the monotonic clock.
    pub(crate) fn request_tick(&self, now: Duration, pause: Duration) {
        let mut pending = self.pending.lock();
        if pending.last_command.is_none_or(|(_term, at)| now.saturating_sub(at) > pause) {
            pending.tick_requested = true;
            drop(pending);
            self.arrived.notify_one();
        }
    }

    /// The number of queued writes.
    fn len(&self) -> usize {
        self.pending.lock().writes.len()
    }

    /// Waits until `count` writes are queued or a tick is requested. Cancel-safe.
    async fn wait_for(&self, count: usize) {
        loop {
            {
                let mut pending = self.pending.lock();
                if pending.tick_requested || pending.writes.len() >= count {
                    return;
                }
                pending.awaited = count;
            }
            self.arrived.notified().await;
        }
    }

    /// The writes for the next proposal, in their order, and whether a tick is requested.
    ///
    /// A write whose deadline has passed or whose caller has gone is dropped: no caller needs its outcome, and under overload it
    /// delays writes whose callers still wait. The caller's own timer is no substitute: it runs late on a busy machine.
    fn take_batch(&self, clock: &Clock) -> (Vec<QueuedWrite>, bool) {
        let (mut taken, mut abandoned, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        let mut pending = self.pending.lock();
        while let Some(queued) = pending.writes.pop_front() {
            if queued.reply.is_closed() {
                abandoned.push(queued);
            } else if queued.terms.deadline.has_passed(clock) {
                late.push(queued);
            } else if !taken.is_empty() && bytes + queued.bytes > PROPOSAL_BYTES_MAX {
                pending.writes.push_front(queued);
                break;
            } else {
                bytes += queued.bytes;
                taken.push(queued);
            }
        }
        let is_tick_requested = std::mem::take(&mut pending.tick_requested);
        drop(pending);
        // Their latches and permits are released outside the lock.
        drop(abandoned);
        late.into_iter().for_each(|queued| queued.reply(Err(Failure::too_late(RETRY_AFTER))));
        (taken, is_tick_requested)
    }
}

/// The way back to the caller of a write, and its operation. Made before the queue is locked, so that no clock is read for it under the lock.
pub(super) struct WriteCaller {
    reply: oneshot::Sender<QueuedReply>,
    receiver: oneshot::Receiver<QueuedReply>,
    operation: Option<(Arc<Operation>, Duration)>,
}

impl WriteCaller {
    /// The running task, which waits for the queue from now on.
    pub(super) fn current() -> Self {
        let (reply, receiver) = oneshot::channel();
        let operation = trace::current().map(|operation| {
            let queued_at = operation.now();
            (operation, queued_at)
        });
        Self { reply, receiver, operation }
    }
}

impl TabletGroup {
    pub(super) fn enqueue(
        &self,
        mut pending: MutexGuard<'_, PendingWrites>,
        terms: WriteTerms,
        write: RowWrite,
        (guards, caller): (WriteGuards, WriteCaller),
    ) -> oneshot::Receiver<QueuedReply> {
        let WriteCaller { reply, receiver, operation } = caller;
        let bytes = command::row_bytes(&write);
        let guards =
            if Failpoint::LatchReleasedEarly.is_enabled() { WriteGuards { _latch: None, ..guards } } else { guards };
        pending.writes.push_back(QueuedWrite { terms, write, bytes, reply, guards, operation });
        let queued = pending.writes.len();
        let notifies = queued == 1 || queued == pending.awaited;
        drop(pending);
        if notifies {
            self.queue.arrived.notify_one();
        }
        receiver
    }

    /// Proposes queued writes until the group's tasks end; writes left then are surely not applied.
    async fn propose_writes(&self) {
        let token = self.runtime.tasks.token();
        let mut gathering = Gathering::new();
        while token.run_until_cancelled(self.queue.arrived.notified()).await.is_some() {
            loop {
                self.gather(&mut gathering).await;
                let (queued, tick) = self.queue.take_batch(&self.runtime.clock);
                if queued.is_empty() && !tick {
                    break;
                }
                let (count, started) = (queued.len(), self.runtime.clock.monotonic());
                self.propose_batch(queued, tick).await;
                if count > 0 {
                    gathering.record_proposal(count, self.queue.len(), self.elapsed_since(started));
                }
            }
        }
        for queued in self.queue.take_batch(&self.runtime.clock).0 {
            queued.reply(Err(Failure::new(Reason::Unavailable, "the replica has stopped on this server")));
        }
    }

    /// Waits for the writes that are expected soon.
    async fn gather(&self, gathering: &mut Gathering) {
        if let Some((count, wait)) = gathering.wait(self.queue.len()) {
            let _elapsed = tokio::time::timeout(wait, self.queue.wait_for(count)).await;
            gathering.record_wait(self.queue.len());
        }
    }

    async fn propose_batch(&self, queued: Vec<QueuedWrite>, tick: bool) {
        let Ok(term) = self.leader_term() else {
            let leader = self.leader();
            queued.into_iter().for_each(|one| one.reply(Err(Failure::not_leader(leader))));
            return;
        };
        let (current, stale): (Vec<_>, Vec<_>) = queued.into_iter().partition(|one| one.terms.term == term);
        // Evaluated in an earlier term of this replica: the row may have changed since.
        stale.into_iter().for_each(|one| one.reply(Err(Failure::not_leader(None))));
        if current.is_empty() && !tick {
            return;
        }
        let stamped = self.stamp(CommandKind::Tick, term);
        if current.is_empty() {
            let _ignored = self.raft.propose(vec![command::encode(&stamped)], Some(term)).await;
            return;
        }
        let (commands, pending) = build_commands(current, &stamped);
        let proposed = self.runtime.clock.monotonic();
        let replies = self.raft.propose_indexed(commands, Some(term)).await;
        let mut replies = replies.into_iter();
        for rows in pending {
            let reply = replies.next().unwrap_or(Err(ProposeError::Unknown));
            if let Ok(AppliedCommand { index, .. }) = &reply {
                let batch = ProposedBatch { term, index: *index, proposed, times: self.raft.entry_times(*index) };
                let operations = rows.iter().filter_map(|row| row.operation.as_ref());
                batch.report(operations, rows.len(), || self.raft.entry_followers(*index));
            }
            self.reply_rows(rows, reply.map(|applied| applied.result));
        }
    }

    /// A command with its timestamp.
    pub(super) fn stamp(&self, kind: CommandKind, term: Term) -> Command {
        let applied = self.state_machine.applied_state().time;
        let command = self.queue.pending.lock().stamp(kind, term, &self.runtime.clock, applied);
        let is_readable = || Feature::LeaderClocks.is_active(self.host.active_version());
        Command { clock: command.clock.filter(|_clock| is_readable()), ..command }
    }

    fn reply_rows(&self, rows: Vec<PendingReply>, reply: Result<Bytes, ProposeError>) {
        let decoded = reply.map_err(|error| self.failure_of_proposal(error));
        let decoded = decoded.and_then(|bytes| Ok(command::decode_reply(&bytes)?));
        match decoded {
            Ok(Reply::Write(row_replies)) if row_replies.len() == rows.len() => {
                rows.into_iter().zip(row_replies).for_each(|(row, reply)| row.reply(Ok(reply)));
            }
            Ok(Reply::Refused(refusal)) => {
                rows.into_iter().for_each(|row| row.reply(Ok(RowReply::Refused(refusal.clone()))));
            }
            Ok(_) => rows.into_iter().for_each(|row| row.reply(Err(outcome_unknown()))),
            Err(failure) => rows.into_iter().for_each(|row| row.reply(Err(failure.clone()))),
        }
    }
}

/// Starts the batcher; it lives as long as the group's tasks.
pub(crate) fn start_batcher(group: &Arc<TabletGroup>) {
    let worker = Arc::clone(group);
    let work = group.runtime.tasks.track("batcher", async move { worker.propose_writes().await });
    group.raft.spawn(work);
}

/// The receiver of a row's reply while its command is in flight.
struct PendingReply {
    reply: oneshot::Sender<QueuedReply>,
    guards: WriteGuards,
    operation: Option<(Arc<Operation>, Duration)>,
}

impl PendingReply {
    fn reply(self, reply: QueuedReply) {
        // The caller may have gone; its write is applied all the same.
        let _unwanted = self.reply.send(reply);
        drop(self.guards);
    }
}

impl QueuedWrite {
    fn reply(self, reply: QueuedReply) {
        PendingReply { reply: self.reply, guards: self.guards, operation: self.operation }.reply(reply);
    }
}

/// Builds commands of about 4 MiB with the times of `stamped`, each with the receivers of its rows' replies.
fn build_commands(queued: Vec<QueuedWrite>, stamped: &Command) -> (Vec<Bytes>, Vec<Vec<PendingReply>>) {
    let (mut commands, mut pending) = (Vec::new(), Vec::new());
    let mut elapsed = stamped.elapsed;
    let (mut rows, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut close = |rows: &mut Vec<RowWrite>, waiters: &mut Vec<PendingReply>| {
        if !rows.is_empty() {
            let kind = CommandKind::Write(std::mem::take(rows));
            commands.push(command::encode(&Command { time: stamped.time, elapsed, clock: stamped.clock, kind }));
            // The next ones have the same time.
            elapsed = Some(Duration::ZERO);
            pending.push(std::mem::take(waiters));
        }
    };
    for one in queued {
        if bytes + one.bytes > COMMAND_BYTES_MAX {
            close(&mut rows, &mut waiters);
            bytes = 0;
        }
        bytes += one.bytes;
        rows.push(one.write);
        waiters.push(PendingReply { reply: one.reply, guards: one.guards, operation: one.operation });
    }
    close(&mut rows, &mut waiters);
    (commands, pending)
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{Sequence, SessionId, TabletId};
    use ebla_model::key::RowKey;

    use super::*;
    use crate::tablet::write::admission::Admission;
    use crate::tablet::write::latch::{LatchMode, Latches};

    /// Queues a write of this row, and returns the receiver of its reply.
    async fn queue_write(
        (queue, latches, admission): (&WriteQueue, &Latches, &Admission),
        row: &'static str,
        deadline: Deadline,
    ) -> oneshot::Receiver<QueuedReply> {
        let row = RowKey::new(row);
        let permit = Arc::new(admission.admit(1, Duration::ZERO).await.unwrap());
        let guards = WriteGuards::blind(latches.try_acquire(&row, LatchMode::Exclusive).unwrap(), permit);
        let write = RowWrite {
            tablet: TabletId::new(1),
            session: SessionId::new(1),
            sequence: Sequence::new(1),
            lowest_outstanding: Sequence::new(1),
            row,
            changes: Vec::new(),
            result: None,
            token: None,
        };
        let (reply, receiver) = oneshot::channel();
        let terms = WriteTerms { term: Term::new(1), deadline };
        queue.pending.lock().writes.push_back(QueuedWrite { terms, write, bytes: 1, reply, guards, operation: None });
        receiver
    }

    fn taken_rows(queue: &WriteQueue, clock: &Clock) -> Vec<String> {
        let (taken, _tick) = queue.take_batch(clock);
        taken.iter().map(|queued| String::from_utf8_lossy(queued.write.row.as_bytes()).into_owned()).collect()
    }

    #[tokio::test]
    async fn a_write_whose_caller_has_gone_is_not_proposed() {
        let (queue, latches, admission) = (WriteQueue::new(), Latches::new(), Admission::new().group());
        let clock = Clock::manual();
        let mut callers = Vec::new();
        for row in ["a", "b", "c"] {
            let deadline = Deadline::after(&clock, Duration::from_secs(1));
            callers.push(queue_write((&queue, &latches, &admission), row, deadline).await);
        }
        drop(callers.remove(1));
        let (taken, _tick) = queue.take_batch(&clock);
        let rows: Vec<_> = taken.iter().map(|queued| queued.write.row.as_bytes()).collect();
        assert_eq!(rows, [b"a", b"c"]);
        assert_eq!((latches.rows(), queue.len()), (2, 0), "the latch of the abandoned write is free");
    }

    #[tokio::test]
    async fn a_write_whose_deadline_has_passed_is_not_proposed() {
        let (queue, latches, admission) = (WriteQueue::new(), Latches::new(), Admission::new().group());
        let clock = Clock::manual();
        let mut callers = Vec::new();
        for (row, seconds) in [("a", 3), ("b", 1), ("c", 2)] {
            let deadline = Deadline::after(&clock, Duration::from_secs(seconds));
            callers.push(queue_write((&queue, &latches, &admission), row, deadline).await);
        }
        clock.advance(Duration::from_secs(1));
        assert_eq!(taken_rows(&queue, &clock), ["a", "c"]);
        let refused = callers.remove(1).await.unwrap().unwrap_err();
        assert_eq!(refused.error.reason, Reason::Busy, "nothing was applied");
        assert!(refused.error.message.contains("deadline"), "{refused:?}");
        assert_eq!((latches.rows(), queue.len()), (0, 0), "its latch is free");
    }

    #[test]
    fn a_command_carries_the_time_since_the_last_one_of_its_term() {
        let (clock, mut pending) = (Clock::manual(), PendingWrites::default());
        let mut elapsed = |clock: &Clock, term| {
            let command = pending.stamp(CommandKind::Tick, Term::new(term), clock, Micros::ZERO);
            assert!(command.time >= clock.wall().truncate_to_millis());
            command.elapsed
        };
        assert_eq!(elapsed(&clock, 1), None);
        clock.advance(Duration::from_secs(5));
        assert_eq!(elapsed(&clock, 1), Some(Duration::from_secs(5)));
        clock.set_wall(clock.wall().plus(Duration::from_secs(1_000_000)));
        assert_eq!(elapsed(&clock, 1), Some(Duration::ZERO), "only the wall clock has jumped");
        clock.advance(Duration::from_secs(7));
        assert_eq!(elapsed(&clock, 3), None, "another replica may have led in between");
        assert_eq!(elapsed(&clock, 3), Some(Duration::ZERO));
    }

    #[test]
    fn a_tick_is_requested_unless_the_last_command_is_young() {
        let (queue, second) = (WriteQueue::new(), Duration::from_secs(1));
        let is_requested = |now: u32| {
            queue.request_tick(second * now, second);
            std::mem::take(&mut queue.pending.lock().tick_requested)
        };
        assert!(is_requested(1), "no command yet");
        queue.pending.lock().last_command = Some((Term::new(1), second * 5));
        assert_eq!([5, 6, 7].map(is_requested), [false, false, true]);
    }

    #[test]
    fn a_command_carries_the_clock_if_that_is_behind_its_timestamp() {
        let (clock, mut pending) = (Clock::manual(), PendingWrites::default());
        let mut carried = |clock: &Clock, applied| {
            let command = pending.stamp(CommandKind::Tick, Term::new(1), clock, applied);
            (command.time, command.clock)
        };
        let start = clock.wall();
        assert_eq!(carried(&clock, Micros::ZERO), (start.truncate_to_millis(), None));
        let ahead = start.plus(Duration::from_secs(1_000)).truncate_to_millis();
        assert_eq!(carried(&clock, ahead), (ahead, Some(start)), "the clock of an earlier leader was ahead");
        clock.set_wall(ahead.plus(Duration::from_secs(1)));
        assert_eq!(carried(&clock, ahead), (ahead.plus(Duration::from_secs(1)), None));
        clock.set_wall(start);
        assert_eq!(carried(&clock, ahead), (ahead.plus(Duration::from_secs(1)), Some(start)));
    }
}
