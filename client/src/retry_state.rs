//! The retry state of one call: which server to try next, what a failure teaches, how long to back off, when to stop.
//!
//! A server that did not respond in time is skipped for a few rounds: its peers may still name it as the leader while
//! they elect another. A server that responded with an error, or whose connection broke, is tried again after a
//! back-off. After several rounds without a leader METADATA is read again: the known replicas may have been removed.
//!
//! A write that may have been applied is repeated for five minutes at most ([`RESEND_MAX`]), however late the deadline of its call
//! is: the servers remember it only for a time, and would then apply it again.

use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{Generation, LogId, ServerId, TabletId};
use ebla_model::session::RESEND_MAX;
use ebla_runtime::trace::{self, Stage, TabletIds};

use crate::context::ClusterContext;
use crate::deadline::Deadline;
use crate::locate::messages::FailureSource;
use crate::locate::{CachedTablet, Position};
use crate::retry::{Backoff, Candidates, RetryDecision};
use crate::transport::{CallError, Target};
use crate::wire;

/// Rounds over all replicas for which a server that did not respond is skipped.
const SKIP_ROUNDS: u32 = 4;

/// Rounds without a leader after which METADATA is read again. With the back-off between them they take about two
/// seconds: an election is over by then, and a tablet whose leader failed together with METADATA's leader does not wait
/// for both elections.
const LEADERLESS_ROUNDS: u32 = 12;

/// The destination of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) tablet: CachedTablet,
    pub(crate) target: Target,
    /// When the attempt started, by the monotonic clock.
    pub(crate) started_at: Duration,
}

/// The replicas that were tried since the last back-off, and those that did not respond recently.
#[derive(Clone, Debug, Default)]
struct TriedReplicas {
    /// The version of the descriptor: for a newer one each replica is tried again.
    version: Option<(TabletId, (Generation, LogId))>,
    tried: Vec<ServerId>,
    unresponsive: Vec<ServerId>,
    /// Whether one of `tried` has responded.
    has_response: bool,
    rounds: u32,
}

impl TriedReplicas {
    /// The next attempts are for this tablet.
    fn set_tablet(&mut self, tablet: &CachedTablet) {
        let version = Some((tablet.descriptor.tablet, tablet.descriptor.fence()));
        if self.version != version {
            self.version = version;
            self.tried.clear();
            self.has_response = false;
        }
    }

    fn record(&mut self, server: ServerId, source: FailureSource) {
        self.tried.push(server);
        self.has_response |= source == FailureSource::Response;
        if source == FailureSource::Timeout && !self.unresponsive.contains(&server) {
            self.unresponsive.push(server);
        }
    }

    /// The next server, or `None` when all were tried.
    fn next(&self, tablet: &CachedTablet, round_robin_start: usize) -> Option<ServerId> {
        let skipped: Vec<ServerId> = self.tried.iter().chain(&self.unresponsive).copied().collect();
        tablet.choose_server(&skipped, round_robin_start)
    }

    fn start_round(&mut self) {
        self.tried.clear();
        self.has_response = false;
        self.rounds += 1;
        if self.rounds.is_multiple_of(SKIP_ROUNDS) {
            self.unresponsive.clear();
        }
    }

    /// Whether the descriptor may be stale, so that METADATA must be read again.
    const fn is_leaderless_for_long(&self) -> bool {
        self.rounds > 0 && self.rounds.is_multiple_of(LEADERLESS_ROUNDS)
    }
}

/// Whether the outcome of a call is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ambiguity {
    NotApplied,
    /// An attempt that started at this time, by the monotonic clock, may have been applied; none before it.
    MayBeApplied(Duration),
}

/// How long a request may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeats {
    /// It changes nothing: until the deadline.
    Always,
    /// It is a write: as long as the servers surely remember it.
    WhileRemembered,
}

/// The retry state of one call.
#[derive(Clone, Debug)]
pub(crate) struct RetryState {
    deadline: Deadline,
    repeats: Repeats,
    backoff: Backoff,
    replicas: TriedReplicas,
    ambiguity: Ambiguity,
}

impl RetryState {
    /// Of a read.
    pub(crate) fn of_read(deadline: Deadline) -> Self {
        Self::new(deadline, Repeats::Always)
    }

    /// Of a write under one id.
    pub(crate) fn of_write(deadline: Deadline) -> Self {
        Self::new(deadline, Repeats::WhileRemembered)
    }

    fn new(deadline: Deadline, repeats: Repeats) -> Self {
        Self {
            deadline,
            repeats,
            backoff: Backoff::default(),
            replicas: TriedReplicas::default(),
            ambiguity: Ambiguity::NotApplied,
        }
    }

    /// When the call ends: at its deadline, or earlier when a write whose outcome is unknown must not be sent any more.
    pub(crate) fn deadline(&self) -> Deadline {
        match (self.repeats, self.ambiguity) {
            (Repeats::WhileRemembered, Ambiguity::MayBeApplied(since)) => {
                self.deadline.min(Deadline::at(since.saturating_add(RESEND_MAX)))
            }
            _ => self.deadline,
        }
    }

    /// The destination of the next attempt. Looks up the tablet as often as necessary.
    pub(crate) async fn route(&mut self, context: &ClusterContext, position: &Position) -> Result<Route, Error> {
        let route = self.find_route(context, position).await;
        if let Ok(Route { tablet: CachedTablet { descriptor, .. }, target, .. }) = &route {
            trace::with_current(|operation| {
                let (table, tablet, group) = (descriptor.table, descriptor.tablet, descriptor.group);
                operation.set_tablet(TabletIds { table, tablet, group });
                operation.set_leader(target.server);
            });
        }
        route
    }

    async fn find_route(&mut self, context: &ClusterContext, position: &Position) -> Result<Route, Error> {
        if self.deadline() < self.deadline && self.deadline().has_passed(&context.options.runtime.clock) {
            // It waited for other requests of its call.
            return Err(self.deadline_exceeded(Error::new(Reason::OutcomeUnknown, "an attempt had no result")));
        }
        loop {
            let tablet = match context.lookups.find(position) {
                Some(tablet) => tablet,
                None => {
                    let looks_up = trace::stage(Stage::Lookup);
                    let located = context.lookups.locate(position, self.deadline()).await;
                    // The back-off is a stage of its own.
                    drop(looks_up);
                    match located {
                        Ok(lookup) => lookup.tablet,
                        Err(error) => {
                            self.back_off(context, error).await?;
                            continue;
                        }
                    }
                }
            };
            let Some(server) = self.choose_server(context, &tablet) else {
                self.back_off(context, Error::new(Reason::NoLeader, "the tablet has no replica to try")).await?;
                continue;
            };
            if context.options.home == Some(server) {
                // The address is not needed here; a server without a Chubby session still serves its tablets.
                return Ok(Route {
                    tablet,
                    target: Target { server, address: String::new() },
                    started_at: now(context),
                });
            }
            let address = trace::waiting(Stage::Lookup, context.options.directory.address(server)).await;
            match address {
                Some(address) => {
                    return Ok(Route { tablet, target: Target { server, address }, started_at: now(context) });
                }
                None => {
                    let target = Target { server, address: String::new() };
                    let route = Route { tablet, target, started_at: now(context) };
                    let error = Error::new(Reason::Unavailable, format!("server {server} has no known address"));
                    self.record_unsent(context, &route, error).await?;
                }
            }
        }
    }

    /// The server to try: the leader, this process, another voter; a new round when all were tried.
    fn choose_server(&mut self, context: &ClusterContext, tablet: &CachedTablet) -> Option<ServerId> {
        self.replicas.set_tablet(tablet);
        if let Some(home) = context.options.home
            && tablet.leader.is_none()
            && !self.replicas.tried.contains(&home)
            && tablet.descriptor.membership.replica_on(home).is_some()
        {
            return Some(home);
        }
        let round_robin_start = context.lookups.round_robin_start();
        if let Some(server) = self.replicas.next(tablet, round_robin_start) {
            return Some(server);
        }
        self.replicas.start_round();
        if self.replicas.is_leaderless_for_long() {
            context.lookups.invalidate(tablet);
        }
        self.replicas.next(tablet, round_robin_start).or_else(|| {
            self.replicas = TriedReplicas::default();
            self.replicas.next(tablet, round_robin_start)
        })
    }

    /// Records a failed attempt and backs off as needed; an error ends the call.
    pub(crate) async fn record_failure(
        &mut self,
        context: &ClusterContext,
        route: &Route,
        error: CallError,
    ) -> Result<(), Error> {
        if may_be_applied(error.error.reason) && self.ambiguity == Ambiguity::NotApplied {
            self.ambiguity = Ambiguity::MayBeApplied(route.started_at);
        }
        self.learn(context, route, error).await
    }

    /// As [`Self::record_failure`], for an attempt that sent nothing.
    async fn record_unsent(&mut self, context: &ClusterContext, route: &Route, error: Error) -> Result<(), Error> {
        self.learn(context, route, CallError::from(error)).await
    }

    async fn learn(&mut self, context: &ClusterContext, route: &Route, error: CallError) -> Result<(), Error> {
        let failure = wire::call_failure(&error, now(context).saturating_sub(route.started_at));
        self.replicas.record(route.target.server, failure.source);
        if failure.source != FailureSource::Response {
            context.options.directory.mark_unreachable(route.target.server);
        }
        context.lookups.record_failure(route.target.server, &route.tablet, &failure);
        if !self.replicas.has_response && self.replicas.next(&route.tablet, 0).is_none() {
            context.lookups.invalidate(&route.tablet);
        }
        let candidates = match self.replicas.next(&route.tablet, 0) {
            Some(_server) => Candidates::Left,
            None if failure.leader.is_some_and(|leader| !self.replicas.tried.contains(&leader.server)) => {
                Candidates::Left
            }
            None => Candidates::Exhausted,
        };
        let retry_after = wire::retry_after(&error);
        let kind = effective_kind(&failure.error, failure.source);
        let decision = self.backoff.next(kind, candidates, retry_after, &mut context.retry_budget.lock());
        self.wait(context, decision, failure.error).await
    }

    /// Backs off after a failure that does not concern a single server.
    pub(crate) async fn back_off(&mut self, context: &ClusterContext, error: Error) -> Result<(), Error> {
        let decision = self.backoff.next(error.kind, Candidates::Exhausted, None, &mut context.retry_budget.lock());
        self.wait(context, decision, error).await
    }

    /// An attempt made progress: the next failure starts with the shortest back-off.
    pub(crate) fn record_progress(&mut self) {
        self.backoff.reset();
        self.replicas = TriedReplicas::default();
    }

    async fn wait(&self, context: &ClusterContext, decision: RetryDecision, error: Error) -> Result<(), Error> {
        let runtime = &context.options.runtime;
        let left = self.deadline().remaining(&runtime.clock);
        match decision {
            RetryDecision::Stop => Err(self.final_error(error)),
            _again if left.is_zero() => Err(self.deadline_exceeded(error)),
            RetryDecision::Now => Ok(()),
            RetryDecision::After(delay) => {
                let _pauses = trace::stage(Stage::Retry);
                tokio::time::sleep(runtime.rng.jitter(delay).min(left)).await;
                if self.deadline().has_passed(&runtime.clock) { Err(self.deadline_exceeded(error)) } else { Ok(()) }
            }
        }
    }

    /// The error that ends the call. A refusal for lack of room concerns this attempt only: an earlier one, whose outcome is not
    /// known, may have been applied.
    pub(crate) fn final_error(&self, error: Error) -> Error {
        if error.reason == Reason::ResourceExhausted && self.ambiguity != Ambiguity::NotApplied {
            let message = format!("an earlier attempt may have been applied; the last one was refused: {error}");
            return Error::new(Reason::OutcomeUnknown, message);
        }
        error
    }

    /// The call has ended: `Unavailable` if nothing was applied; otherwise `Deadline`, or `OutcomeUnknown` before the deadline.
    fn deadline_exceeded(&self, last: Error) -> Error {
        if self.deadline() < self.deadline {
            let message = format!(
                "the write may have been applied, and is not sent again after {} s; last error: {last}",
                RESEND_MAX.as_secs()
            );
            return Error::new(Reason::OutcomeUnknown, message);
        }
        let reason = match self.ambiguity {
            Ambiguity::MayBeApplied(_) => Reason::Deadline,
            Ambiguity::NotApplied => Reason::Unavailable,
        };
        Error::new(reason, format!("deadline exceeded; last error: {last}"))
    }
}

fn now(context: &ClusterContext) -> Duration {
    context.options.runtime.clock.monotonic()
}

/// Whether a write that failed with this reason may have been applied, or may still be.
pub(crate) const fn may_be_applied(reason: Reason) -> bool {
    match reason.kind() {
        // Refused before anything was done.
        _ if matches!(reason, Reason::ResourceExhausted) => false,
        ErrorKind::FixRequest | ErrorKind::RefreshAndRetry | ErrorKind::Wait | ErrorKind::RetryElsewhere => false,
        ErrorKind::RetryHere | ErrorKind::GiveUp => true,
    }
}

/// Whether a response for this reason ends the attempt but not the call: the server's own deadline has passed, or it stops, and the
/// call still has time.
pub(crate) const fn ends_attempt_only(reason: Reason) -> bool {
    matches!(reason, Reason::Deadline | Reason::Cancelled)
}

/// The action for an error, given its source. Without a response another server is tried, whatever the error.
fn effective_kind(error: &Error, source: FailureSource) -> ErrorKind {
    match (source, error.kind) {
        (_, ErrorKind::FixRequest) => ErrorKind::FixRequest,
        (FailureSource::Disconnected | FailureSource::Timeout, _) => ErrorKind::RetryElsewhere,
        (FailureSource::Response, _) if ends_attempt_only(error.reason) => ErrorKind::RetryElsewhere,
        (FailureSource::Response, kind) => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_after_an_attempt_of_unknown_outcome_proves_nothing() {
        let mut state = RetryState::of_write(Deadline::at(Duration::MAX));
        let refused = || Error::new(Reason::ResourceExhausted, "no disk space");
        assert!(!may_be_applied(Reason::ResourceExhausted), "the refused attempt was not applied");
        assert_eq!(state.final_error(refused()), refused());
        state.ambiguity = Ambiguity::MayBeApplied(Duration::ZERO);
        let unknown = state.final_error(refused());
        assert!(unknown.reason == Reason::OutcomeUnknown && unknown.message.contains("no disk space"), "{unknown}");
        let missing = Error::new(Reason::NotFoundFamily, "no such family");
        assert_eq!(state.final_error(missing.clone()), missing, "apply refuses it after a check of duplicates");
    }

    #[test]
    fn a_write_of_unknown_outcome_is_not_repeated_for_long() {
        let (started, deadline) = (Duration::from_secs(1_000), Deadline::at(Duration::from_secs(5_000)));
        let last = || Error::new(Reason::OutcomeUnknown, "connection lost");
        let mut write = RetryState::of_write(deadline);
        assert_eq!((write.deadline(), write.deadline_exceeded(last()).reason), (deadline, Reason::Unavailable));
        write.ambiguity = Ambiguity::MayBeApplied(started);
        assert_eq!(write.deadline(), Deadline::at(started + RESEND_MAX));
        assert_eq!(write.deadline_exceeded(last()).reason, Reason::OutcomeUnknown);
        let short = Deadline::at(started + Duration::from_secs(60));
        let short = RetryState { deadline: short, ..write };
        assert_eq!((short.deadline(), short.deadline_exceeded(last()).reason), (short.deadline, Reason::Deadline));
        let mut read = RetryState::of_read(deadline);
        read.ambiguity = Ambiguity::MayBeApplied(started);
        assert_eq!(read.deadline(), deadline, "a read is repeated until the deadline");
    }
}
