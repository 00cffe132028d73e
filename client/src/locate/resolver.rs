//! Which question comes next on the way to a tablet.
//!
//! A *flight* looks for one position. It has one question under way at a time; [`Resolver::answer`] takes what came
//! back and says what to ask next, until it is done. Each step looks at the cache afresh, the cheapest level first:
//!
//! 1. the tablet is cached: done;
//! 2. the METADATA tablet that lists it is cached: read up to a hundred rows from there on, neighbours included;
//! 3. the root tablet is cached: read the row of that METADATA tablet;
//! 4. ask where the root tablet is.
//!
//! So a wrong guess needs no rule of its own: what a server refused is forgotten, and the next step goes one level up.
//! What comes back from above unchanged after it was refused ends the flight with "wait": METADATA is written after
//! the fact, and asking again at once would not make it faster.
//!
//! A METADATA tablet that has no leader for a moment is read from any of its replicas that answer: descriptors are hints, which the
//! tablet that is found confirms or corrects, so lookups do not wait for METADATA's elections.
//!
//! Single flight: for one table there is one flight at a time. Whoever else wants a place in it waits, and mostly finds
//! it among the neighbours. Flights do not pause or retry by time; that is the caller's affair.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{Generation, LogId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{self, TabletDescriptor};

use super::cache::Cache;
use super::{Hop, LeaderHint, Level, Located, Position, Probe, Source};

/// Rows of METADATA that one lookup reads: the tablet asked for and its neighbours.
pub const PREFETCH_ROWS: u64 = 100;
/// Questions of one flight before it is given up: replicas that send it to and fro must not keep it for ever.
const QUESTIONS_MAX: u32 = 24;

/// Names a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlightId(u64);

/// What to do for a caller who wants a position.
#[derive(Debug)]
pub enum Want {
    /// It is known.
    Found(Located),
    /// A flight for this table is under way: wait for its end, then ask again.
    Join(FlightId),
    /// A flight has begun: carry out its first effect.
    Start(FlightId, Effect),
}

/// What the shell carries out for a flight.
#[derive(Debug)]
pub enum Effect {
    /// Ask where the root tablet is; the answer is [`Answer::Root`].
    AskRoot,
    /// Read rows of a METADATA tablet; the answer is [`Answer::Rows`] or [`Answer::Refused`].
    Read(MetadataRead),
    /// The flight has ended. When it is `Ok`, the position is in the cache.
    Done(Result<(), Error>, Vec<Hop>),
}

/// Rows of METADATA to be read.
#[derive(Clone, Debug)]
pub struct MetadataRead {
    /// The METADATA tablet that is asked.
    pub tablet: Located,
    /// At which server.
    pub server: ServerId,
    /// From where to where; clamped to the tablet's range by the server.
    pub rows: KeyRange,
    /// At most so many rows.
    pub rows_max: u64,
    /// The server need not lead the tablet.
    pub any_replica: bool,
}

/// A tablet as METADATA lists it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The descriptor.
    pub descriptor: Arc<TabletDescriptor>,
    /// The leader, where one was noted.
    pub leader: Option<LeaderHint>,
}

/// Why a server did not serve a tablet, and what it said to that.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The error.
    pub error: Error,
    /// Whether a server said so, rather than silence.
    pub voice: Voice,
    /// The tablets as the server knows them.
    pub descriptors: Vec<Arc<TabletDescriptor>>,
    /// Who leads, as far as the server knows.
    pub leader: Option<LeaderHint>,
}

/// Who speaks in a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// The server that was asked.
    Server,
    /// The connection, at once: asking again costs little.
    Connection,
    /// Nobody: it was waited for in vain, and will not be asked again soon.
    Silence,
}

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// Where the root tablet is.
    Root(Result<Arc<TabletDescriptor>, Error>),
    /// Rows of METADATA, in order; fewer than asked for means that there are no more in the tablet.
    Rows(Vec<Listed>),
    /// The server did not serve the read.
    Refused(Refusal),
}

/// One lookup under way.
#[derive(Debug)]
struct Flight {
    position: Position,
    /// Where to go on in METADATA after a tablet of it that had no row: the row is in the next one.
    cursor: Option<RowKey>,
    asked: Option<Asked>,
    /// Servers asked for the tablet of the present question.
    tried: Vec<ServerId>,
    /// The servers that are there but do not lead, and what they said; the last is kept for the final error.
    spoken: Vec<(ServerId, Error)>,
    /// Descriptors that a server refused in this flight.
    refused: Vec<(TabletId, Generation, LogId)>,
    hops: Vec<Hop>,
    /// Round trips and time since the last level was found.
    round_trips: u32,
    took: Duration,
    questions: u32,
}

/// The question under way.
#[derive(Debug)]
enum Asked {
    Root,
    Read { read: Box<MetadataRead>, position: Position },
}

impl Flight {
    fn new(position: Position) -> Self {
        Self {
            position,
            cursor: None,
            asked: None,
            tried: Vec::new(),
            spoken: Vec::new(),
            refused: Vec::new(),
            hops: Vec::new(),
            round_trips: 0,
            took: Duration::ZERO,
            questions: 0,
        }
    }

    fn has_refused(&self, descriptor: &TabletDescriptor) -> bool {
        self.refused.contains(&mark(descriptor))
    }

    /// A level was found: notes what it cost since the one before.
    fn hop(&mut self, level: Level, source: Source, tablet: TabletId) {
        let hop = Hop { level, source, tablet, round_trips: self.round_trips, took: self.took };
        self.hops.push(hop);
        self.round_trips = 0;
        self.took = Duration::ZERO;
    }
}

impl Flight {
    /// A METADATA tablet was in the cache already.
    fn note_cached(&mut self, descriptor: &TabletDescriptor) {
        if self.hops.iter().any(|hop| hop.tablet == descriptor.tablet) {
            return;
        }
        let level = if descriptor.tablet == TabletId::ROOT { Level::Root } else { Level::Metadata };
        let (source, tablet) = (Source::Cache, descriptor.tablet);
        self.hops.push(Hop { level, source, tablet, round_trips: 0, took: Duration::ZERO });
    }
}

fn mark(descriptor: &TabletDescriptor) -> (TabletId, Generation, LogId) {
    let (generation, log_id) = descriptor.fence();
    (descriptor.tablet, generation, log_id)
}

/// Rows of METADATA that list what a flight lacks.
struct Listing {
    tablet: Located,
    rows: KeyRange,
    position: Position,
}

/// What a flight lacks.
enum Need {
    Root,
    Rows(Box<Listing>),
}

impl Need {
    fn rows(tablet: &Located, rows: KeyRange, position: Position) -> Self {
        Self::Rows(Box::new(Listing { tablet: tablet.clone(), rows, position }))
    }
}

/// All lookups of one client, over its cache.
#[derive(Debug, Default)]
pub struct Resolver {
    cache: Cache,
    flights: BTreeMap<FlightId, Flight>,
    by_table: BTreeMap<TableId, FlightId>,
    flights_begun: u64,
    /// Where the next round of voters begins, so that clients without a hint do not all ask the same one first.
    rotor: usize,
}

impl Resolver {
    /// A resolver over an empty cache. `rotor`: any number, such as a random one.
    pub fn new(rotor: usize) -> Self {
        Self { rotor, ..Self::default() }
    }

    /// What is known.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Looks for a position: in the cache, else by a flight.
    pub fn want(&mut self, position: &Position) -> Want {
        if let Some(located) = self.cache.find(position) {
            return Want::Found(located.clone());
        }
        if let Some(flight) = self.by_table.get(&position.table) {
            return Want::Join(*flight);
        }
        let id = FlightId(self.flights_begun);
        self.flights_begun = self.flights_begun.wrapping_add(1);
        self.by_table.insert(position.table, id);
        let (flight, effect) = self.decide(Flight::new(position.clone()));
        self.keep(id, flight, &effect);
        Want::Start(id, effect)
    }

    /// Takes the answer to a flight's question and says what to do next. `took`: how long the question was under way.
    pub fn answer(&mut self, id: FlightId, answer: Answer, took: Duration) -> Effect {
        let Some(mut flight) = self.flights.remove(&id) else {
            return Effect::Done(Err(Error::internal("the lookup has ended")), Vec::new());
        };
        flight.round_trips += 1;
        flight.took += took;
        let (flight, effect) = match (flight.asked.take(), answer) {
            (Some(Asked::Root), Answer::Root(root)) => self.root_came(flight, root),
            (Some(Asked::Read { read, position }), Answer::Rows(rows)) => {
                self.rows_came(flight, &read, &position, &rows)
            }
            (Some(Asked::Read { read, position }), Answer::Refused(refusal)) => {
                self.refusal_came(flight, *read, position, refusal)
            }
            _mismatch => done(flight, Err(Error::internal("the answer does not fit the question"))),
        };
        self.keep(id, flight, &effect);
        effect
    }

    /// Ends a flight that nobody carries out any more.
    pub fn abandon(&mut self, id: FlightId) {
        if let Some(flight) = self.flights.remove(&id) {
            self.by_table.remove(&flight.position.table);
        }
    }

    /// A server answered a request for a tablet as its leader.
    pub fn served(&mut self, by: ServerId, tablet: &Located) {
        if tablet.leader.is_none_or(|leader| leader.server != by) {
            self.cache.confirm_leader(&tablet.descriptor, by);
        }
    }

    /// A server refused a request for a tablet: the cache learns what it said. A descriptor that was refused is forgotten,
    /// so that the next lookup finds what was learnt in its place, or asks METADATA.
    pub fn refused(&mut self, by: ServerId, tablet: &Located, refusal: &Refusal) {
        for descriptor in &refusal.descriptors {
            self.cache.insert(descriptor, None);
        }
        if refusal.voice == Voice::Silence || matches!(refusal.error.reason, Reason::NotLeader | Reason::NoLeader) {
            self.cache.shun_leader(&tablet.descriptor, by);
        }
        if let Some(leader) = refusal.leader {
            let about = refusal.descriptors.iter().find(|descriptor| descriptor.tablet == tablet.descriptor.tablet);
            self.cache.set_leader(about.unwrap_or(&tablet.descriptor), leader);
            if about.is_none() && tablet.is_outgrown_by(leader) {
                self.cache.forget(&tablet.descriptor);
            }
        }
        if refusal.error.kind == ErrorKind::RefreshAndRetry {
            self.cache.forget(&tablet.descriptor);
        }
    }

    /// No known replica of a tablet can be reached, or none knows a leader for long: perhaps it lives elsewhere by now, so the
    /// next lookup asks METADATA.
    pub fn unserved(&mut self, tablet: &Located) {
        self.cache.forget(&tablet.descriptor);
    }

    fn keep(&mut self, id: FlightId, flight: Flight, effect: &Effect) {
        if matches!(effect, Effect::Done(..)) {
            self.by_table.remove(&flight.position.table);
        } else {
            self.flights.insert(id, flight);
        }
    }

    /// The next question, or the end when the cache has the position.
    fn decide(&self, mut flight: Flight) -> (Flight, Effect) {
        if self.cache.find(&flight.position).is_some() {
            return done(flight, Ok(()));
        }
        flight.tried.clear();
        flight.spoken.clear();
        match self.need(&flight) {
            Need::Root => ask_root(flight),
            Need::Rows(listing) => {
                flight.note_cached(&listing.tablet.descriptor);
                self.ask_rows(flight, listing.tablet, listing.rows, listing.position)
            }
        }
    }

    /// The cheapest level that can answer.
    fn need(&self, flight: &Flight) -> Need {
        let Some(rows) = listing_rows(&flight.position, flight.cursor.as_ref()) else { return Need::Root };
        let listing = Position::at(TableId::METADATA, rows.start().clone());
        if let Some(tablet) = self.cache.find(&listing) {
            return Need::rows(tablet, rows, flight.position.clone());
        }
        let Some(rows) = listing_rows(&listing, None) else { return Need::Root };
        match self.cache.find(&Position::at(TableId::METADATA, rows.start().clone())) {
            Some(root) => Need::rows(root, rows, listing),
            None => Need::Root,
        }
    }

    fn ask_rows(&self, mut flight: Flight, tablet: Located, rows: KeyRange, position: Position) -> (Flight, Effect) {
        let Some(server) = tablet.choose(&flight.tried, self.rotor) else {
            return done(flight, Err(Error::new(Reason::NoLeader, "no replica of METADATA answers")));
        };
        if let Err(error) = count(&mut flight) {
            return done(flight, Err(error));
        }
        let read = MetadataRead { tablet, server, rows, rows_max: PREFETCH_ROWS, any_replica: false };
        flight.tried.push(server);
        ask(flight, read, position)
    }

    fn root_came(&mut self, mut flight: Flight, root: Result<Arc<TabletDescriptor>, Error>) -> (Flight, Effect) {
        match root {
            Err(error) => done(flight, Err(error)),
            Ok(root) if flight.has_refused(&root) => done(flight, Err(behind())),
            Ok(root) => {
                self.cache.insert(&root, None);
                flight.hop(Level::Root, Source::Chubby, root.tablet);
                if self.cache.find(&Position::at(TableId::METADATA, root.range.start().clone())).is_none() {
                    return done(flight, Err(Error::internal("the root tablet does not begin where it should")));
                }
                self.decide(flight)
            }
        }
    }

    fn rows_came(
        &mut self,
        mut flight: Flight,
        read: &MetadataRead,
        position: &Position,
        rows: &[Listed],
    ) -> (Flight, Effect) {
        if !read.any_replica {
            self.served(read.server, &read.tablet);
        }
        let stale = rows.iter().filter(|row| flight.has_refused(&row.descriptor)).count();
        for row in rows.iter().filter(|row| !flight.has_refused(&row.descriptor)) {
            self.cache.insert(&row.descriptor, row.leader);
        }
        if let Some(found) = self.cache.find(position) {
            let source = match read.tablet.descriptor.tablet {
                TabletId::ROOT => Source::RootTablet,
                _other => Source::MetadataTablet,
            };
            let level = if position.table == TableId::METADATA { Level::Metadata } else { Level::Tablet };
            let tablet = found.descriptor.tablet;
            flight.hop(level, source, tablet);
            return self.decide(flight);
        }
        match (rows.is_empty(), go_on(read)) {
            // A replica that does not lead may not have heard of the table yet.
            (true, _) if read.any_replica => done(flight, Err(behind())),
            (true, Some(next)) if *position == flight.position => {
                flight.cursor = Some(next);
                self.decide(flight)
            }
            (true, _end) => done(flight, Err(no_such_table(position))),
            (false, _) if stale > 0 => done(flight, Err(behind())),
            (false, _) => done(flight, Err(Error::new(Reason::NoLeader, "METADATA lists no tablet for the key"))),
        }
    }

    fn refusal_came(
        &mut self,
        mut flight: Flight,
        read: MetadataRead,
        position: Position,
        refusal: Refusal,
    ) -> (Flight, Effect) {
        if matches!(refusal.error.kind, ErrorKind::FixRequest | ErrorKind::GiveUp) && refusal.voice == Voice::Server {
            return done(flight, Err(refusal.error.context("read METADATA")));
        }
        if read.any_replica {
            return ask_any_replica(flight, read, position, refusal.error);
        }
        self.refused(read.server, &read.tablet, &refusal);
        let here = Position::at(TableId::METADATA, read.rows.start().clone());
        let known = self.cache.find(&here).filter(|known| mark(&known.descriptor) == mark(&read.tablet.descriptor));
        let Some(known) = known.cloned() else {
            // Forgotten, or known better now.
            flight.refused.push(mark(&read.tablet.descriptor));
            return self.decide(flight);
        };
        if refusal.voice == Voice::Server {
            flight.spoken.push((read.server, refusal.error));
        }
        if known.choose(&flight.tried, self.rotor).is_some() {
            return self.ask_rows(flight, known, read.rows, position);
        }
        // Nobody leads it now.
        if let Some((_server, error)) = flight.spoken.last().cloned() {
            return ask_any_replica(flight, MetadataRead { tablet: known, ..read }, position, error);
        }
        self.cache.forget(&known.descriptor);
        flight.refused.push(mark(&known.descriptor));
        self.decide(flight)
    }
}

fn done(flight: Flight, result: Result<(), Error>) -> (Flight, Effect) {
    let mut flight = flight;
    let hops = std::mem::take(&mut flight.hops);
    (flight, Effect::Done(result, hops))
}

fn ask_root(mut flight: Flight) -> (Flight, Effect) {
    if let Err(error) = count(&mut flight) {
        return done(flight, Err(error));
    }
    flight.asked = Some(Asked::Root);
    (flight, Effect::AskRoot)
}

/// Asks a replica that is there and does not lead: it knows where tablets were a moment ago. `otherwise`: the error when all of
/// them were asked so.
fn ask_any_replica(mut flight: Flight, read: MetadataRead, position: Position, otherwise: Error) -> (Flight, Effect) {
    match flight.spoken.pop().filter(|_| count(&mut flight).is_ok()) {
        Some((server, _said)) => ask(flight, MetadataRead { server, any_replica: true, ..read }, position),
        None => done(flight, Err(otherwise.context("read METADATA"))),
    }
}

fn ask(mut flight: Flight, read: MetadataRead, position: Position) -> (Flight, Effect) {
    flight.asked = Some(Asked::Read { read: Box::new(read.clone()), position });
    (flight, Effect::Read(read))
}

fn count(flight: &mut Flight) -> Result<(), Error> {
    flight.questions += 1;
    if flight.questions > QUESTIONS_MAX {
        return Err(Error::new(Reason::NoLeader, "the lookup was sent to and fro"));
    }
    Ok(())
}

/// The rows of METADATA that list the tablet at `position` and those after it; `None` for the root tablet, which is
/// listed in Chubby.
fn listing_rows(position: &Position, cursor: Option<&RowKey>) -> Option<KeyRange> {
    if position.table == TableId::METADATA && position.probe.is_in(&metadata::root_range()) {
        return None;
    }
    let table = metadata::table_range(position.table);
    let first = match &position.probe {
        Probe::At(key) => metadata::lookup_key(position.table, key).successor(),
        Probe::Below(end) => metadata::row_key(position.table, end.as_ref()),
    };
    let first = cursor.map_or(first.clone(), |cursor| cursor.clone().max(first));
    KeyRange::new(first, table.end().cloned())
}

/// Where the next METADATA tablet begins, if the rows that were read reach into it.
fn go_on(read: &MetadataRead) -> Option<RowKey> {
    let next = read.tablet.range.end()?;
    read.rows.contains(next.as_bytes()).then(|| next.clone())
}

fn behind() -> Error {
    Error::new(Reason::NoLeader, "METADATA is behind: it still lists what a server refused")
}

fn no_such_table(position: &Position) -> Error {
    Error::new(Reason::NotFoundTable, format!("METADATA lists no tablet of table {}", position.table))
}
