//! Carries out what the resolver asks for: the shell around [`crate::locate`].
//!
//! A flight is a task of its own, so a caller who goes away does not end a lookup that others wait for. Each of its
//! questions has a limit; the flight as a whole ends because the resolver bounds the questions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::key::RowSet;
use ebla_proto::tablet;
use futures::StreamExt;
use tokio::sync::watch;

use crate::attempts::Route;
use crate::cluster::{Lookup, Shared, within};
use crate::deadline::Deadline;
use crate::locate::resolver::{Answer, Effect, FlightId, Listed, MetadataRead, Refusal, Resolver, Want};
use crate::locate::{Hop, Level, Located, Position, Source};
use crate::metadata;
use crate::transport::{CallError, Target};
use crate::wire;

/// How long one question of a lookup may take before the next server is asked.
const QUESTION: Duration = Duration::from_secs(1);

/// How a flight ended.
#[derive(Clone, Debug)]
struct Landed {
    result: Result<(), Error>,
    hops: Vec<Hop>,
}

type Landing = watch::Receiver<Option<Landed>>;

#[derive(Debug)]
struct State {
    resolver: Resolver,
    /// Where those who joined a flight wait.
    landings: BTreeMap<FlightId, Landing>,
}

/// The resolver and the flights under way.
#[derive(Debug)]
pub(crate) struct Lookups {
    /// Guards the resolver: sections are pure and short.
    state: Mutex<State>,
    rotor: usize,
}

impl Lookups {
    pub(crate) fn new(rotor: usize) -> Self {
        // METADATA's tablets are asked at their first replica first: in a fresh group that is the one that leads. Data has
        // leader hints in METADATA; without one its requests are spread.
        Self { state: Mutex::new(State { resolver: Resolver::new(0), landings: BTreeMap::new() }), rotor }
    }

    /// Where the round over voters begins.
    pub(crate) const fn rotor(&self) -> usize {
        self.rotor
    }

    /// A server answered as the leader of the tablet.
    pub(crate) fn served(&self, route: &Route) {
        if route.located.leader.is_none_or(|leader| leader.server != route.target.server) {
            self.state().resolver.served(route.target.server, &route.located);
        }
    }

    /// A server refused, or was silent.
    pub(crate) fn refused(&self, route: &Route, refusal: &Refusal) {
        self.state().resolver.refused(route.target.server, &route.located, refusal);
    }

    /// Nobody among the tablet's known replicas serves it.
    pub(crate) fn unserved(&self, tablet: &Located) {
        self.state().resolver.unserved(tablet);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn land(&self, id: FlightId) {
        let mut state = self.state();
        state.resolver.abandon(id);
        state.landings.remove(&id);
    }
}

/// A flight while its task lives; dropping it lets those who wait know.
struct Pilot {
    shared: Arc<Shared>,
    id: FlightId,
    landing: watch::Sender<Option<Landed>>,
}

impl Drop for Pilot {
    fn drop(&mut self) {
        self.shared.lookups.land(self.id);
    }
}

impl Shared {
    /// The tablet at `position` as the cache has it.
    pub(crate) fn find(&self, position: &Position) -> Option<Located> {
        self.lookups.state().resolver.cache().find(position).cloned()
    }

    /// The tablet at `position`, looked up if need be: one pass over the levels. An error of a retryable kind is for the
    /// caller's back-off.
    pub(crate) async fn locate(self: &Arc<Self>, position: &Position, deadline: Deadline) -> Result<Lookup, Error> {
        let mut trace = Vec::new();
        // A joined flight may bring other tablets of the table; the first own flight brings this one.
        loop {
            let mut landing = match self.board(position) {
                Boarding::Found(located) => return Ok(found(located, trace)),
                Boarding::Flight(landing) => landing,
            };
            let landed = tokio::time::timeout(
                deadline.remaining(&self.options.runtime.clock),
                landing.wait_for(Option::is_some),
            );
            let landed = match landed.await {
                Ok(Ok(landed)) => landed.clone(),
                Ok(Err(_closed)) => return Err(Error::new(Reason::Unavailable, "the lookup was given up")),
                Err(_elapsed) => return Err(Error::new(Reason::Unavailable, "the lookup takes too long")),
            };
            if let Some(landed) = landed {
                landed.result?;
                trace = landed.hops;
            }
        }
    }

    fn board(self: &Arc<Self>, position: &Position) -> Boarding {
        let mut state = self.lookups.state();
        let (id, effect) = match state.resolver.want(position) {
            Want::Found(located) => return Boarding::Found(located),
            Want::Join(id) => {
                if let Some(landing) = state.landings.get(&id) {
                    return Boarding::Flight(landing.clone());
                }
                // Without its task a flight would never end.
                state.resolver.abandon(id);
                drop(state);
                return self.board(position);
            }
            Want::Start(id, effect) => (id, effect),
        };
        let (sender, landing) = watch::channel(None);
        state.landings.insert(id, landing.clone());
        drop(state);
        let pilot = Pilot { shared: Arc::clone(self), id, landing: sender };
        self.options.runtime.tasks.spawn_until_stopped("lookup", fly(pilot, effect));
        Boarding::Flight(landing)
    }

    async fn carry_out(&self, effect: Effect) -> Result<Answer, Landed> {
        match effect {
            Effect::AskRoot => Ok(Answer::Root(self.ask_root().await)),
            Effect::Read(read) => {
                let clock = &self.options.runtime.clock;
                let asked = clock.monotonic();
                Ok(match self.read_metadata(&read).await {
                    Ok(rows) => Answer::Rows(rows),
                    Err(error) => Answer::Refused(wire::refusal(&error, clock.monotonic().saturating_sub(asked))),
                })
            }
            Effect::Done(result, hops) => Err(Landed { result, hops }),
        }
    }

    async fn ask_root(&self) -> Result<Arc<ebla_model::metadata::TabletDescriptor>, Error> {
        let silence = |_elapsed| Error::new(Reason::Unavailable, "nobody said in time where the root tablet is");
        let root =
            tokio::time::timeout(QUESTION.saturating_mul(2), self.options.directory.root()).await.map_err(silence)?;
        root.map(Arc::new)
    }

    async fn read_metadata(&self, read: &MetadataRead) -> Result<Vec<Listed>, CallError> {
        let target = self.target(read.server).await?;
        let rows = RowSet::from_ranges([read.rows.clone()]).clamp(&read.tablet.range);
        let request = tablet::ReadRequest {
            header: Some(wire::header(&read.tablet)),
            rows: wire::key_ranges(&rows),
            filter: Some(metadata::location_filter()),
            limit: read.rows_max,
            reversed: false,
            count_stats: false,
            any_replica: read.any_replica,
            split_rows: false,
        };
        let collect = async {
            let mut stream = self.options.transport.read(&target, request, QUESTION).await?;
            let mut listed = Vec::new();
            while let Some(reply) = stream.next().await {
                let reply = reply?;
                listed.extend(metadata::listed(reply.response)?);
                if reply.finished {
                    break;
                }
            }
            Ok(listed)
        };
        within(QUESTION, collect).await
    }

    async fn target(&self, server: ServerId) -> Result<Target, CallError> {
        if self.options.home == Some(server) {
            return Ok(Target { server, address: String::new() });
        }
        match self.options.directory.address(server).await {
            Some(address) => Ok(Target { server, address }),
            None => Err(Error::new(Reason::Unavailable, format!("server {server} is not there")).into()),
        }
    }
}

enum Boarding {
    Found(Located),
    Flight(Landing),
}

/// Flies until the resolver says that it is done.
async fn fly(pilot: Pilot, mut effect: Effect) {
    let clock = pilot.shared.options.runtime.clock.clone();
    loop {
        let asked = clock.monotonic();
        match pilot.shared.carry_out(effect).await {
            Ok(answer) => {
                let took = clock.monotonic().saturating_sub(asked);
                effect = pilot.shared.lookups.state().resolver.answer(pilot.id, answer, took);
            }
            Err(landed) => {
                // Nobody may be waiting any more.
                pilot.landing.send_replace(Some(landed));
                return;
            }
        }
    }
}

fn found(located: Located, mut trace: Vec<Hop>) -> Lookup {
    let level = |hop: &Hop| hop.level == Level::Tablet || hop.tablet == located.descriptor.tablet;
    if !trace.iter().any(level) {
        trace.push(Hop {
            level: Level::Tablet,
            source: Source::Cache,
            tablet: located.descriptor.tablet,
            round_trips: 0,
            took: Duration::ZERO,
        });
    }
    Lookup { located, trace }
}
