//! The attempts of one call: which server next, what was learnt from a failure, how long to pause, when to stop.
//!
//! A server that was waited for in vain is left out for a few rounds: its peers may still name it as the leader while
//! they elect another. A server that refused, or whose connection broke, is asked again after a pause. When some rounds
//! found no leader, METADATA is asked who the replicas are: those that are known may have been left behind.

use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{Generation, LogId, ServerId, TabletId};

use crate::cluster::Shared;
use crate::deadline::Deadline;
use crate::locate::resolver::Voice;
use crate::locate::{Located, Position};
use crate::retry::{Choices, Decision, Retry};
use crate::transport::{CallError, Target};
use crate::wire;

/// Rounds over all replicas for which a silent server is left out.
const SILENT_ROUNDS: u32 = 4;

/// Rounds that found no leader, after which METADATA is asked who the replicas are. With the pauses between them about two
/// seconds: an election is over by then, and a tablet whose leader died together with METADATA's does not wait for both.
const VAIN_ROUNDS: u32 = 12;

/// Where one attempt goes.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) located: Located,
    pub(crate) target: Target,
    /// When the attempt began, by the monotonic clock.
    pub(crate) begun: Duration,
}

/// Which replicas were asked since the call last paused, and which were silent lately.
#[derive(Clone, Debug, Default)]
struct Tried {
    /// The descriptor for which they were asked: with a newer one each may answer.
    about: Option<(TabletId, (Generation, LogId))>,
    asked: Vec<ServerId>,
    silent: Vec<ServerId>,
    /// Whether one of those asked is there at all.
    spoken: bool,
    rounds: u32,
}

impl Tried {
    /// The question is about this tablet now.
    fn turn_to(&mut self, located: &Located) {
        let about = Some((located.descriptor.tablet, located.descriptor.fence()));
        if self.about != about {
            self.about = about;
            self.asked.clear();
            self.spoken = false;
        }
    }

    fn note(&mut self, server: ServerId, voice: Voice) {
        self.asked.push(server);
        self.spoken |= voice == Voice::Server;
        if voice == Voice::Silence && !self.silent.contains(&server) {
            self.silent.push(server);
        }
    }

    /// The next server, or `None` when all were asked.
    fn next(&self, located: &Located, rotor: usize) -> Option<ServerId> {
        let out: Vec<ServerId> = self.asked.iter().chain(&self.silent).copied().collect();
        located.choose(&out, rotor)
    }

    /// Begins a new round.
    fn again(&mut self) {
        self.asked.clear();
        self.spoken = false;
        self.rounds += 1;
        if self.rounds.is_multiple_of(SILENT_ROUNDS) {
            self.silent.clear();
        }
    }

    /// Whether it is time to ask METADATA again who the replicas are.
    const fn in_vain(&self) -> bool {
        self.rounds > 0 && self.rounds.is_multiple_of(VAIN_ROUNDS)
    }
}

/// Whether what was sent may have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    MayBeApplied,
}

/// The story of one call.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    deadline: Deadline,
    retry: Retry,
    tried: Tried,
    doubt: Doubt,
}

impl Attempts {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self { deadline, retry: Retry::default(), tried: Tried::default(), doubt: Doubt::None }
    }

    pub(crate) const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Where to send next. Looks the tablet up as often as it takes.
    pub(crate) async fn route(&mut self, shared: &std::sync::Arc<Shared>, position: &Position) -> Result<Route, Error> {
        loop {
            let located = match shared.find(position) {
                Some(located) => located,
                None => match shared.locate(position, self.deadline).await {
                    Ok(lookup) => lookup.located,
                    Err(error) => {
                        self.pause(shared, error).await?;
                        continue;
                    }
                },
            };
            let Some(server) = self.choose(shared, &located) else {
                self.pause(shared, Error::new(Reason::NoLeader, "the tablet has no replica to ask")).await?;
                continue;
            };
            if shared.options.home == Some(server) {
                // Its own address is not needed, and a server that Chubby has forgotten still serves its tablets.
                return Ok(Route { located, target: Target { server, address: String::new() }, begun: now(shared) });
            }
            match shared.options.directory.address(server).await {
                Some(address) => return Ok(Route { located, target: Target { server, address }, begun: now(shared) }),
                None => {
                    let target = Target { server, address: String::new() };
                    let route = Route { located, target, begun: now(shared) };
                    let error = Error::new(Reason::Unavailable, format!("server {server} is not there"));
                    self.failed_unsent(shared, &route, error).await?;
                }
            }
        }
    }

    /// The server to ask: the leader, this process, another voter; from the beginning again when all were asked.
    fn choose(&mut self, shared: &Shared, located: &Located) -> Option<ServerId> {
        self.tried.turn_to(located);
        if let Some(home) = shared.options.home
            && located.leader.is_none()
            && !self.tried.asked.contains(&home)
            && located.descriptor.membership.replica_on(home).is_some()
        {
            return Some(home);
        }
        let rotor = shared.lookups.rotor();
        if let Some(server) = self.tried.next(located, rotor) {
            return Some(server);
        }
        self.tried.again();
        if self.tried.in_vain() {
            shared.lookups.unserved(located);
        }
        self.tried.next(located, rotor).or_else(|| {
            self.tried = Tried::default();
            self.tried.next(located, rotor)
        })
    }

    /// An attempt failed: learns from it and pauses as needed; an error is the answer to the call.
    pub(crate) async fn failed(&mut self, shared: &Shared, route: &Route, error: CallError) -> Result<(), Error> {
        if may_be_applied(error.error.reason) {
            self.doubt = Doubt::MayBeApplied;
        }
        self.learn(shared, route, error).await
    }

    /// As [`Self::failed`], for an attempt of which nothing was sent.
    async fn failed_unsent(&mut self, shared: &Shared, route: &Route, error: Error) -> Result<(), Error> {
        self.learn(shared, route, CallError::from(error)).await
    }

    async fn learn(&mut self, shared: &Shared, route: &Route, error: CallError) -> Result<(), Error> {
        let refusal = wire::refusal(&error, now(shared).saturating_sub(route.begun));
        self.tried.note(route.target.server, refusal.voice);
        if refusal.voice != Voice::Server {
            shared.options.directory.doubt(route.target.server);
        }
        shared.lookups.refused(route, &refusal);
        if !self.tried.spoken && self.tried.next(&route.located, 0).is_none() {
            shared.lookups.unserved(&route.located);
        }
        let choices = match self.tried.next(&route.located, 0) {
            Some(_server) => Choices::Left,
            None if refusal.leader.is_some_and(|leader| !self.tried.asked.contains(&leader.server)) => Choices::Left,
            None => Choices::Exhausted,
        };
        let retry_after = wire::retry_after(&error);
        let kind = effective_kind(&refusal.error, refusal.voice);
        let decision = self.retry.next(kind, choices, retry_after, &mut shared.budget());
        self.carry_out(shared, decision, refusal.error).await
    }

    /// Something on the way failed that is not about a server.
    pub(crate) async fn pause(&mut self, shared: &Shared, error: Error) -> Result<(), Error> {
        let decision = self.retry.next(error.kind, Choices::Exhausted, None, &mut shared.budget());
        self.carry_out(shared, decision, error).await
    }

    /// An attempt brought something: what follows begins afresh.
    pub(crate) fn progressed(&mut self) {
        self.retry.reset();
        self.tried = Tried::default();
    }

    async fn carry_out(&self, shared: &Shared, decision: Decision, error: Error) -> Result<(), Error> {
        let runtime = &shared.options.runtime;
        let left = self.deadline.remaining(&runtime.clock);
        match decision {
            Decision::Stop => Err(error),
            _again if left.is_zero() => Err(self.out_of_time(error)),
            Decision::Now => Ok(()),
            Decision::After(pause) => {
                tokio::time::sleep(runtime.rng.jitter(pause).min(left)).await;
                if self.deadline.has_passed(&runtime.clock) { Err(self.out_of_time(error)) } else { Ok(()) }
            }
        }
    }

    /// The deadline has passed: `Deadline` when something may have been applied, else why nothing was.
    fn out_of_time(&self, last: Error) -> Error {
        let reason = match self.doubt {
            Doubt::MayBeApplied => Reason::Deadline,
            Doubt::None => Reason::Unavailable,
        };
        Error::new(reason, format!("out of time: {last}"))
    }
}

fn now(shared: &Shared) -> Duration {
    shared.options.runtime.clock.monotonic()
}

/// Whether a write that failed so may have been applied, or may still be.
const fn may_be_applied(reason: Reason) -> bool {
    match reason.kind() {
        ErrorKind::FixRequest | ErrorKind::RefreshAndRetry | ErrorKind::Wait | ErrorKind::RetryElsewhere => false,
        ErrorKind::RetryHere | ErrorKind::GiveUp => true,
    }
}

/// What an error asks for, given who spoke. Without a server's word another one is asked, whatever the code. A server whose own time
/// was over, or that stops, is no reason to give up: the call's time is not over.
fn effective_kind(error: &Error, voice: Voice) -> ErrorKind {
    match (voice, error.kind) {
        (_, ErrorKind::FixRequest) => ErrorKind::FixRequest,
        (Voice::Connection | Voice::Silence, _) => ErrorKind::RetryElsewhere,
        (Voice::Server, _) if matches!(error.reason, Reason::Deadline | Reason::Cancelled) => ErrorKind::RetryElsewhere,
        (Voice::Server, kind) => kind,
    }
}
