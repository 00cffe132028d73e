//! The retry state of one call: which server to try next, what a failure teaches, how long to back off, when to stop.
//!
//! A server that did not respond in time is skipped for a few rounds: its peers may still name it as the leader while
//! they elect another. A server that responded with an error, or whose connection broke, is tried again after a
//! back-off. After several rounds without a leader METADATA is read again: the known replicas may have been removed.

use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{Generation, LogId, ServerId, TabletId};

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

/// Whether the outcome of a write is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ambiguity {
    NotApplied,
    MayBeApplied,
}

/// The retry state of one call.
#[derive(Clone, Debug)]
pub(crate) struct RetryState {
    deadline: Deadline,
    backoff: Backoff,
    replicas: TriedReplicas,
    ambiguity: Ambiguity,
}

impl RetryState {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            backoff: Backoff::default(),
            replicas: TriedReplicas::default(),
            ambiguity: Ambiguity::NotApplied,
        }
    }

    pub(crate) const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The destination of the next attempt. Looks up the tablet as often as necessary.
    pub(crate) async fn route(&mut self, context: &ClusterContext, position: &Position) -> Result<Route, Error> {
        loop {
            let tablet = match context.lookups.find(position) {
                Some(tablet) => tablet,
                None => match context.lookups.locate(position, self.deadline).await {
                    Ok(lookup) => lookup.tablet,
                    Err(error) => {
                        self.back_off(context, error).await?;
                        continue;
                    }
                },
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
            match context.options.directory.address(server).await {
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
        if may_be_applied(error.error.reason) {
            self.ambiguity = Ambiguity::MayBeApplied;
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
        let left = self.deadline.remaining(&runtime.clock);
        match decision {
            RetryDecision::Stop => Err(error),
            _again if left.is_zero() => Err(self.deadline_exceeded(error)),
            RetryDecision::Now => Ok(()),
            RetryDecision::After(delay) => {
                tokio::time::sleep(runtime.rng.jitter(delay).min(left)).await;
                if self.deadline.has_passed(&runtime.clock) { Err(self.deadline_exceeded(error)) } else { Ok(()) }
            }
        }
    }

    /// The deadline has passed: `Deadline` if a write may have been applied, otherwise `Unavailable`.
    fn deadline_exceeded(&self, last: Error) -> Error {
        let reason = match self.ambiguity {
            Ambiguity::MayBeApplied => Reason::Deadline,
            Ambiguity::NotApplied => Reason::Unavailable,
        };
        Error::new(reason, format!("deadline exceeded; last error: {last}"))
    }
}

fn now(context: &ClusterContext) -> Duration {
    context.options.runtime.clock.monotonic()
}

/// Whether a write that failed with this reason may have been applied, or may still be.
const fn may_be_applied(reason: Reason) -> bool {
    match reason.kind() {
        ErrorKind::FixRequest | ErrorKind::RefreshAndRetry | ErrorKind::Wait | ErrorKind::RetryElsewhere => false,
        ErrorKind::RetryHere | ErrorKind::GiveUp => true,
    }
}

/// The action for an error, given its source. Without a response another server is tried, whatever the error. A server
/// whose own deadline has passed, or that stops, does not end the call: the call still has time.
fn effective_kind(error: &Error, source: FailureSource) -> ErrorKind {
    match (source, error.kind) {
        (_, ErrorKind::FixRequest) => ErrorKind::FixRequest,
        (FailureSource::Disconnected | FailureSource::Timeout, _) => ErrorKind::RetryElsewhere,
        (FailureSource::Response, _) if matches!(error.reason, Reason::Deadline | Reason::Cancelled) => {
            ErrorKind::RetryElsewhere
        }
        (FailureSource::Response, kind) => kind,
    }
}
