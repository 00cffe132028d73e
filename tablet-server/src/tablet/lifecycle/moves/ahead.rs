//! Copying a tablet to the target while the source serves it, and what is left to send when it has departed.
//!
//! ```text
//!   begin the record of changes
//!   Begin, Chunk ...        the content, part by part
//!   take the changes, Chunk ...   again and again, until little is left
//!   Chunk                   the times of the source, which the target compares with its own
//!   Out                     the tablet departs
//!   take the last changes, Chunk ..., Finish
//! ```
//!
//! The record begins before the first part is read, and changes are taken before their content is read. So what a part of the copy
//! misses is in the record, and the last take, after `Out`, has all that the target does not have.
//!
//! Everything unusual ends the attempt: the record is given up, the tablet or its table changes, rows are dropped, the target refuses a
//! step, this replica does not lead any more. Before `Out` the target is then asked to drop the copy, and the tablet stays. After
//! `Out` it is taken back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::cluster_version::Feature;
use ebla_model::command::CommandKind;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{CopyId, LogIndex};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::session::SessionWindow;
use ebla_model::tablet_event::TabletEventCause;
use ebla_model::tablet_move::{
    Departure, ImportChunk, ImportPosition, ImportStart, ImportStatus, ImportedToken, MoveId, MoveStep,
};
use ebla_runtime::{BlockingError, Failpoint, Step};
use ebla_storage::store::GcRules;
use tokio::sync::SemaphorePermit;
use tracing::{info, warn};

use super::departure_in;
use super::difference::{Content, Difference};
use super::drive::{ENTRY_TIMEOUT, PAUSE_MAX, PAUSE_MIN, Turn};
use super::export::{self, CHUNK_BYTES, Exported};
use crate::tablet::TabletGroup;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::change_record::{Changes, RecordGauge};
use crate::tablet::core::state::GroupState;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::core::store_rules::gc_rules;
use crate::tablet::failure::Failure;
use crate::tablet::read::scan::pool_failure;

/// How often a tablet is copied from the beginning before its move fails.
const ATTEMPTS_MAX: u32 = 3;
/// The pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a step is repeated that has no reply. The tablet is served meanwhile.
const STEP_PATIENCE: Duration = Duration::from_secs(10);
/// A tablet departs when its last difference is at most this large, in bytes: sending it takes some milliseconds.
const REST_SMALL: usize = 256 << 10;
/// A tablet departs after [`ROUNDS_MAX`] differences if the last one is at most this large, and stays otherwise. In bytes; sending it takes
/// about 0.15 s.
const REST_MAX: usize = 8 << 20;
/// Maximum number of chunks after the departure, with those of the sessions.
const REST_CHUNKS_MAX: usize = 2 * REST_MAX / CHUNK_BYTES;
/// Maximum number of differences before a tablet departs.
const ROUNDS_MAX: u32 = 8;

/// What follows a copy, or a difference of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// What has changed meanwhile is sent.
    Difference,
    /// The target compares its times with those of the source, which a clock may have changed during the copy.
    Compare,
    /// The tablet departs.
    Depart,
    /// It changes faster than it can be copied.
    GiveUp,
}

/// What follows when changes of `rest` bytes are not sent, and `rounds` differences were. `compared`: the target has compared the times since.
const fn next_round(rest: usize, rounds: u32, compared: bool) -> Round {
    if rest <= REST_SMALL || (rounds >= ROUNDS_MAX && rest <= REST_MAX) {
        if compared { Round::Depart } else { Round::Compare }
    } else if rounds >= ROUNDS_MAX {
        Round::GiveUp
    } else {
        Round::Difference
    }
}

/// A copy that the target has, but for what has changed since the last difference.
pub(super) struct AheadCopy {
    record: RecordGuard,
    /// What the target has received with the beginning of the copy.
    start: ImportStart,
    /// The number of differences that the target has.
    number: u64,
    rest: Rest,
}

/// What is sent after the departure.
enum Rest {
    /// It was not read.
    Unread,
    /// The chunks that the target does not have, as far as its replies say.
    Chunks(VecDeque<ImportChunk>),
    /// It cannot be known any more, and why.
    Lost(String),
}

impl AheadCopy {
    pub(super) const fn copy(&self) -> CopyId {
        self.record.copied.copy
    }
}

/// What is copied.
#[derive(Clone, Debug)]
struct Copied {
    copy: CopyId,
    exported: Exported,
}

/// A record of changes; it ends with this value.
struct RecordGuard {
    state_machine: Arc<GroupStateMachine>,
    copied: Copied,
    gauge: Arc<RecordGauge>,
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        self.state_machine.end_record(self.copied.copy);
    }
}

/// The destination of a copy.
#[derive(Clone, Copy)]
struct Route<'a> {
    id: MoveId,
    target: &'a GroupDescriptor,
    cause: TabletEventCause,
}

impl TabletGroup {
    /// Copies a tablet to the target, and lets it depart. Returns the copy; `None` when the target has none, because an earlier release may
    /// be among the servers.
    ///
    /// # Errors
    /// `Busy` when the target cannot take the tablet now, or it changes too fast; errors of the target's leader. The tablet is served here.
    pub(super) async fn depart(
        &self,
        id: MoveId,
        target: &GroupDescriptor,
        cause: TabletEventCause,
    ) -> Result<Option<AheadCopy>, Failure> {
        let route = Route { id, target, cause };
        let is_allowed = Feature::CopiesAhead.is_active(self.host.active_version());
        if !is_allowed && !Failpoint::CopyAheadUnchecked.is_enabled() {
            let ticket = self.ticket(route).await?;
            self.propose_out(route, ticket, None).await?;
            return Ok(None);
        }
        let Some(_turn) = self.turn(id).await? else { return Ok(None) };
        let mut attempt = 1;
        loop {
            match self.attempt(route).await {
                Err(failure) if failure.error.reason == Reason::Busy && attempt < ATTEMPTS_MAX => {
                    info!(tablet = %id.tablet, target = %target.group, error = %failure.error, "tablet is copied again");
                    attempt += 1;
                    tokio::time::sleep(self.runtime.rng.jitter(ATTEMPT_PAUSE)).await;
                }
                ended => return ended.map(Some),
            }
        }
    }

    /// Waits until no other tablet of the group is copied. `None`: the tablet has departed meanwhile, by an entry of an earlier attempt; it is
    /// not served, so it does not wait any longer.
    async fn turn(&self, id: MoveId) -> Result<Option<SemaphorePermit<'_>>, Failure> {
        let acquire = self.moves.copying.acquire();
        tokio::pin!(acquire);
        loop {
            tokio::select! {
                turn = &mut acquire => {
                    return turn.map(Some).map_err(|_closed| Error::new(Reason::Unavailable, "the group stops").into());
                }
                () = tokio::time::sleep(PAUSE_MAX) => {
                    self.leader_term()?;
                    if departure_in(&self.state_machine.applied_state(), id).is_some() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn ticket(&self, route: Route<'_>) -> Result<LogIndex, Failure> {
        let ticket = self.host.import_ticket(route.target).await?;
        self.runtime.steps.reached(Step::MoveTicket).await;
        let (tablet, group) = (route.id.tablet, route.target.group);
        info!(%tablet, source = %self.id(), target = %group, "tablet move started");
        Ok(ticket)
    }

    /// Lets the tablet depart. The entry names the tablet's generation, so it has no effect after a split, a merge or a division.
    async fn propose_out(&self, route: Route<'_>, ticket: LogIndex, copy: Option<CopyId>) -> Result<(), Failure> {
        let out = MoveStep::Out { target: route.target.clone(), ticket, copy };
        self.propose_command(CommandKind::Move(route.id, out), ENTRY_TIMEOUT).await?;
        self.runtime.steps.reached(Step::MoveOut).await;
        Ok(())
    }

    /// Copies the tablet once, and lets it depart.
    async fn attempt(&self, route: Route<'_>) -> Result<AheadCopy, Failure> {
        let ticket = self.ticket(route).await?;
        // The target compares its times with those of this log, which are those of the last entry.
        self.propose_command(CommandKind::Tick, ENTRY_TIMEOUT).await?;
        let copy = CopyId::new(self.runtime.rng.u64());
        let (record, start) = self.begin_record(route.id, copy, ticket).await?;
        let failure = match self.copy_ahead(route, record, start).await {
            Ok(made) => match self.propose_out(route, ticket, Some(copy)).await {
                Ok(()) => return Ok(made),
                // Its outcome was unknown, and it was applied.
                Err(_failure) if self.has_departed(route.id, copy) => return Ok(made),
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        // If the departure is applied after all, the tablet is taken back. If the target does not respond, it drops the copy later.
        let abandoned = self.send_to(route.target, route.id, MoveStep::Abandon(copy), route.cause).await;
        if let Err(failure) = abandoned {
            let (tablet, target) = (route.id.tablet, route.target.group);
            warn!(%tablet, %target, error = %failure.error, "the target does not know that a copy is given up");
        }
        Err(failure)
    }

    fn has_departed(&self, id: MoveId, copy: CopyId) -> bool {
        let departure = departure_in(&self.state_machine.applied_state(), id);
        departure.is_some_and(|departure| departure.copy == Some(copy))
    }

    async fn copy_ahead(
        &self,
        route: Route<'_>,
        record: RecordGuard,
        start: ImportStart,
    ) -> Result<AheadCopy, Failure> {
        let started = self.runtime.clock.monotonic();
        self.check_sessions().await?;
        let mut made = AheadCopy { record, start, number: 0, rest: Rest::Unread };
        let begin = MoveStep::Begin(Box::new(made.start.clone()));
        let mut position = match self.send_patiently(route, begin).await? {
            ImportStatus::Importing(ImportPosition::Start) => ImportPosition::Start,
            other => return Err(refused(route, other)),
        };
        while position != ImportPosition::Difference(0) {
            self.check_copy(route.id, &made)?;
            self.check_start(&made).await?;
            let began = self.runtime.clock.monotonic();
            let chunk = self.export(made.record.copied.exported.clone(), position).await?;
            position = self.send_chunk(route, chunk).await?;
            // Requests have as much time as the copy, but a target that does not answer at once must not make the pause longer than it keeps a copy.
            tokio::time::sleep(self.elapsed_since(began).min(PAUSE_MAX)).await;
        }
        self.runtime.steps.reached(Step::MoveCopied).await;
        let (mut rounds, mut compared) = (0, false);
        loop {
            self.check_copy(route.id, &made)?;
            match next_round(made.record.gauge.content_bytes(), rounds, compared) {
                Round::Depart => break,
                Round::GiveUp => return Err(too_fast()),
                Round::Compare => {
                    self.send_times(route, &mut made).await?;
                    compared = true;
                }
                Round::Difference => {
                    self.send_difference(route, &mut made).await?;
                    rounds += 1;
                    compared = false;
                }
            }
        }
        self.check_sessions().await?;
        self.check_start(&made).await?;
        let (tablet, millis) = (route.id.tablet, self.elapsed_since(started).as_millis());
        info!(%tablet, target = %route.target.group, differences = rounds, millis, "tablet copied");
        Ok(made)
    }

    /// Begins the record of changes, and reads what the target must know first.
    async fn begin_record(
        &self,
        id: MoveId,
        copy: CopyId,
        ticket: LogIndex,
    ) -> Result<(RecordGuard, ImportStart), Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let begin = move || {
            let begun = state_machine.begin_record(copy, |state| {
                let exported = exported_in(state, id, copy, ticket)?;
                let start = export::start(state, &exported)?;
                Some((exported.stored_range(), (exported, start)))
            });
            begun.map(|(gauge, (exported, start))| {
                (RecordGuard { state_machine, copied: Copied { copy, exported }, gauge }, start)
            })
        };
        let begun = self.maintenance.run(begin).await.map_err(pool_failure)?;
        begun.ok_or_else(|| changed().into())
    }

    /// Checks, before the next part is read, that the copy can still be completed. It is checked again when the tablet has departed.
    fn check_copy(&self, id: MoveId, made: &AheadCopy) -> Result<(), Failure> {
        self.leader_term()?;
        if made.record.gauge.is_given_up() {
            return Err(too_fast());
        }
        let applied_state = self.state_machine.applied_state();
        let tablet = applied_state.tablet(id.tablet);
        let is_same = |tablet: &TabletMetadata| {
            tablet.descriptor.generation == id.generation && tablet.schema().version == made.start.schema.version
        };
        if tablet.is_some_and(|tablet| is_same(tablet)) { Ok(()) } else { Err(changed().into()) }
    }

    /// Checks that what the target was sent first still holds, so that the tablet does not depart with a copy that cannot be completed.
    async fn check_start(&self, made: &AheadCopy) -> Result<(), Failure> {
        let (state_machine, start) = (Arc::clone(&self.state_machine), made.start.clone());
        let exported = made.record.copied.exported.clone();
        let holds = move || {
            state_machine.with_state(|state| export::start(state, &exported).is_some_and(|now| start.holds(&now)))
        };
        if self.maintenance.run(holds).await.map_err(pool_failure)? { Ok(()) } else { Err(changed().into()) }
    }

    /// Checks that the sessions, which are sent after the departure, do not remember too much.
    async fn check_sessions(&self) -> Result<(), Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let measure = move || -> usize {
            state_machine.with_state(|state| state.sessions.values().map(SessionWindow::size_bytes).sum())
        };
        let bytes = self.maintenance.run(measure).await.map_err(pool_failure)?;
        if bytes > REST_MAX {
            let message = "the responses that the group remembers for its writers are too large to be sent while a tablet is not served";
            return Err(Failure::new(Reason::Busy, message));
        }
        Ok(())
    }

    /// Sends what has changed since the last difference.
    async fn send_difference(&self, route: Route<'_>, made: &mut AheadCopy) -> Result<(), Failure> {
        let (state_machine, copied) = (Arc::clone(&self.state_machine), made.record.copied.clone());
        let number = made.number;
        let take = move || -> Result<Difference, Error> {
            let (changes, ()) = state_machine.take_changes(copied.copy, |_state| ())?;
            Ok(Difference::new(copied.copy, number, changes))
        };
        let mut difference = self.maintenance.run(take).await.map_err(pool_failure)??;
        while !difference.is_empty() {
            self.check_copy(route.id, made)?;
            let state_machine = Arc::clone(&self.state_machine);
            let read = move || -> Result<(Difference, ImportChunk), Error> {
                let (chunk, _room) = difference.next_chunk(&StoredContent::of(&state_machine), CHUNK_BYTES)?;
                Ok((difference, chunk))
            };
            let (rest, chunk) = self.maintenance.run(read).await.map_err(pool_failure)??;
            difference = rest;
            self.send_chunk(route, chunk).await?;
            made.number = difference.number();
        }
        Ok(())
    }

    /// Has the target compare its times with those of this group, while the tablet is served. They are compared again when it has departed.
    async fn send_times(&self, route: Route<'_>, made: &mut AheadCopy) -> Result<(), Failure> {
        // The times are those of the last entry.
        self.propose_command(CommandKind::Tick, ENTRY_TIMEOUT).await?;
        let (state_machine, copy, number) = (Arc::clone(&self.state_machine), made.copy(), made.number);
        let read =
            move || state_machine.with_state(|state| Difference::of_times(copy, number, (state.time, state.gc_time)));
        let chunk = self.maintenance.run(read).await.map_err(pool_failure)?;
        self.send_chunk(route, chunk).await?;
        made.number += 1;
        Ok(())
    }

    /// Sends a chunk of a copy; returns where it ends.
    async fn send_chunk(&self, route: Route<'_>, chunk: ImportChunk) -> Result<ImportPosition, Failure> {
        let end = chunk.to.clone();
        match self.send_patiently(route, MoveStep::Chunk(chunk)).await? {
            ImportStatus::Importing(position) if position == end => Ok(end),
            other => Err(refused(route, other)),
        }
    }

    /// Sends a step again until there is a reply, for some time.
    async fn send_patiently(&self, route: Route<'_>, step: MoveStep) -> Result<ImportStatus, Failure> {
        let started = self.runtime.clock.monotonic();
        let mut pause = PAUSE_MIN;
        loop {
            self.leader_term()?;
            match self.send_to(route.target, route.id, step.clone(), route.cause).await {
                Ok(status) => return Ok(status),
                Err(failure) if self.elapsed_since(started) > STEP_PATIENCE => return Err(failure),
                Err(_no_reply) => {}
            }
            tokio::time::sleep(self.runtime.rng.jitter(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends what is left of a copy after the tablet has departed, and then removes the tablet here.
    pub(super) async fn complete(
        &self,
        departure: &Departure,
        made: &mut AheadCopy,
        cause: TabletEventCause,
    ) -> Result<Turn, Failure> {
        let started = self.runtime.clock.monotonic();
        if matches!(made.rest, Rest::Unread) {
            made.rest = self.read_rest(departure, made).await?;
        }
        let chunks = match &mut made.rest {
            Rest::Chunks(chunks) => chunks,
            Rest::Lost(why) => return self.take_back(departure, why.clone(), cause).await,
            Rest::Unread => return Err(Error::internal("the rest of a copy was not read").into()),
        };
        while let Some(chunk) = chunks.front() {
            match self.send(departure, MoveStep::Chunk(chunk.clone()), cause).await? {
                ImportStatus::Importing(position) if position == chunk.to => _ = chunks.pop_front(),
                ImportStatus::Importing(_) => {
                    let why = "the target has another position of the copy";
                    return self.take_back(departure, why.to_owned(), cause).await;
                }
                ImportStatus::Served => return self.leave(departure, started).await,
                ImportStatus::Refused(why) => return self.take_back(departure, why, cause).await,
            }
        }
        self.runtime.steps.reached(Step::MoveDifference).await;
        match self.send(departure, MoveStep::Finish, cause).await? {
            ImportStatus::Served => self.leave(departure, started).await,
            ImportStatus::Refused(why) => self.take_back(departure, why, cause).await,
            ImportStatus::Importing(_) => {
                self.take_back(departure, "the target lacks a part of the copy".to_owned(), cause).await
            }
        }
    }

    /// The last difference and the sessions, on a thread for reads: the others may be busy with flushes, and the tablet is not served.
    ///
    /// # Errors
    /// When there is no thread now; nothing was taken.
    async fn read_rest(&self, departure: &Departure, made: &AheadCopy) -> Result<Rest, Failure> {
        let (state_machine, copied) = (Arc::clone(&self.state_machine), made.record.copied.clone());
        let (departure, start, number) = (departure.clone(), made.start.clone(), made.number);
        if made.record.gauge.content_bytes() > REST_MAX {
            return Ok(Rest::Lost(too_fast().error.to_string()));
        }
        let read = move || read_rest(&state_machine, &copied, &departure, &start, number);
        // Changes that were taken and not read are lost.
        Ok(match self.reads.run(read).await {
            Ok(Ok(chunks)) if chunks.len() <= REST_CHUNKS_MAX => Rest::Chunks(chunks),
            Ok(Ok(_chunks)) => Rest::Lost(too_fast().error.to_string()),
            Ok(Err(error)) => Rest::Lost(error.to_string()),
            Err(full @ BlockingError::Full) => return Err(pool_failure(full)),
            Err(error) => Rest::Lost(error.to_string()),
        })
    }
}

/// The tablet of a move, if the group has it and it may depart.
fn exported_in(state: &GroupState, id: MoveId, copy: CopyId, ticket: LogIndex) -> Option<Exported> {
    let tablet = state.tablets.get(&id.tablet).filter(|tablet| tablet.generation == id.generation)?;
    // The source may not have forgotten an earlier move of the tablet, which has come back.
    let is_here = !state.departures.contains_key(&id.tablet);
    is_here.then(|| Exported { table: tablet.table, range: tablet.range.clone(), ticket, copy: Some(copy) })
}

/// As [`TabletGroup::read_rest`]. Blocking.
fn read_rest(
    state_machine: &GroupStateMachine,
    copied: &Copied,
    departure: &Departure,
    start: &ImportStart,
    number: u64,
) -> Result<VecDeque<ImportChunk>, Error> {
    let exported = &copied.exported;
    // In one step: that the tablet departs, that all that was sent first still holds, and the changes, unless the record was given up.
    let (changes, (departs, now, times)) = state_machine.take_changes(copied.copy, |state| {
        let departs = state.departure_of(departure.tablet.tablet).is_some_and(|found| found.copy == Some(copied.copy));
        (departs, export::start(state, exported), (state.time, state.gc_time))
    })?;
    if !departs || !now.is_some_and(|now| start.holds(&now)) {
        return Err(changed());
    }
    let changes = if Failpoint::MoveForgetsDifference.is_enabled() { Changes::default() } else { changes };
    let difference = Difference::new(copied.copy, number, changes);
    difference.into_rest(&StoredContent::of(state_machine), times, CHUNK_BYTES, |chunk, room| {
        state_machine.with_state(|state| export::add_sessions(state, chunk, room));
    })
}

/// The present content of a replica.
struct StoredContent<'a> {
    state_machine: &'a GroupStateMachine,
    rules: GcRules,
}

impl<'a> StoredContent<'a> {
    fn of(state_machine: &'a GroupStateMachine) -> Self {
        Self { state_machine, rules: state_machine.with_state(gc_rules) }
    }
}

impl Content for StoredContent<'_> {
    fn cell(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        // The target does not know why it is dead.
        if self.rules.is_garbage(key) {
            return Ok(None);
        }
        Ok(self.state_machine.store().with_view(|view| view.get_cell(key))?)
    }

    fn token(&self, key: &Bytes) -> Option<ImportedToken> {
        self.state_machine.with_state(|state| {
            let token = state.tokens.get(key)?;
            let remaining = token.expires_at.since(state.session_time());
            Some(ImportedToken { key: key.clone(), remaining, result: token.result.clone() })
        })
    }
}

fn changed() -> Error {
    Error::new(
        Reason::Busy,
        "the tablet, its table or its rows are being changed, or an earlier move is not finished; move it again later",
    )
}

fn too_fast() -> Failure {
    Failure::new(Reason::Busy, "the tablet changes faster than it can be copied; move it again when it is written less")
}

fn refused(route: Route<'_>, status: ImportStatus) -> Failure {
    let why = match status {
        ImportStatus::Refused(why) => why,
        ImportStatus::Importing(_) => "it has another position of the copy".to_owned(),
        ImportStatus::Served => "it has served the tablet already".to_owned(),
    };
    Failure::new(Reason::Busy, format!("group {} cannot take tablet {}: {why}", route.target.group, route.id.tablet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tablet_departs_when_little_is_left_or_after_the_last_round() {
        for rounds in [0, ROUNDS_MAX, 100] {
            assert_eq!(next_round(REST_SMALL, rounds, true), Round::Depart);
            assert_eq!(
                next_round(REST_SMALL, rounds, false),
                Round::Compare,
                "writes stop after the times are compared"
            );
        }
        for compared in [true, false] {
            assert_eq!(next_round(REST_SMALL + 1, 0, compared), Round::Difference);
            assert_eq!(next_round(usize::MAX, ROUNDS_MAX - 1, compared), Round::Difference);
            assert_eq!(next_round(REST_MAX + 1, ROUNDS_MAX, compared), Round::GiveUp);
        }
        assert_eq!(next_round(REST_MAX, ROUNDS_MAX, true), Round::Depart);
        assert_eq!(next_round(REST_MAX, ROUNDS_MAX, false), Round::Compare);
    }
}
