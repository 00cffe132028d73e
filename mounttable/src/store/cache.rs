//! What is known of rows that were read a moment ago, and who reads what is not. Pure: time is handed in.
//!
//! Each row is kept in parts: its own cells, and its reference to each child that somebody looked for. A walk needs of
//! each row on its path the row's own cells and one reference, and ends early where no walk goes on: at a row that is
//! absent, at one with a live server, at a reference that is not there.
//!
//! | what | for how long |
//! |---|---|
//! | cells | [`Options::ttl`] |
//! | that there are none, and a reference to a child that is being made | [`ABSENT`], at most that |
//! | cells, while the storage does not answer | [`STALE`]; that there are none is not told then |
//!
//! A name that is asked for again and again is not walked to each time: `super::paths` remembers where its walk went.
//!
//! Steps that somebody reads are *in flight*, and whoever needs them too waits instead of reading. A change of a row takes
//! what is known of it away, and its flights too: what they bring was read too early to be kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;

use crate::store::generations::{Generations, Known};
use crate::store::paths::{Holds, Paths};
use crate::store::{Glimpse, Part, Row, Step};

/// For how long it is known that something is not there.
pub const ABSENT: Duration = Duration::from_millis(250);

/// For how long what is known serves while the storage does not answer.
pub const STALE: Duration = Duration::from_secs(300);

/// For how long nobody who knows something of a row asks for it again after the storage has not answered.
pub const REST: Duration = Duration::from_secs(1);

/// What all that is known may take: nobody would tune it who has not set the number of rows.
const BYTES_MAX: usize = 256 * 1024 * 1024;

/// Rows that are remembered because the storage did not tell of them; when there are more, all are forgotten.
const REFUSED_MAX: usize = 10_000;

/// What an operator may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How many parts of rows are known at most: a name has two, its node and the way there. 0: nothing is kept.
    pub rows: usize,
    /// For how long.
    pub ttl: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { rows: 100_000, ttl: Duration::from_secs(1) }
    }
}

/// What was read during one call: parts of rows by key and child. Good for that call however old it gets.
pub type Seen = BTreeMap<(String, Option<String>), Option<Arc<Part>>>;

/// Which read a step is in flight with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The rows of a path, shared by all who ask for the same name.
pub type Rows = Arc<[Option<Glimpse>]>;

/// What is known of a path.
#[derive(Clone, PartialEq, Debug)]
pub enum Look {
    /// All that a walk of it needs, from the root down to where it ends.
    Known(Rows),
    /// The same, and it may be minutes old: the storage does not answer.
    Stale(Rows),
    /// Whoever looked is to read these steps, and to say with the ticket what came of it.
    Read(Ticket, Vec<Step>),
    /// Somebody else reads what is missing: these steps, the first of them with this ticket.
    Wait(Ticket, Vec<Step>),
}

/// What is known, and what is in flight.
#[derive(Debug)]
pub struct Cache {
    options: Options,
    kept: Generations,
    paths: Paths,
    flights: BTreeMap<Step, Ticket>,
    tickets: u64,
    /// Rows of which the storage did not tell, and when.
    refused: BTreeMap<String, Micros>,
}

impl Cache {
    /// Nothing is known.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            kept: Generations::new(options.rows, BYTES_MAX),
            paths: Paths::new(options.ttl),
            flights: BTreeMap::new(),
            tickets: 0,
            refused: BTreeMap::new(),
        }
    }

    /// What is known of the path to `name`, if somebody has looked at it just now, and it is as it was then.
    pub fn recall(&mut self, name: &str, now: Micros) -> Option<Rows> {
        self.paths.get(name, now)
    }

    /// What is known of `path`, which leads to `name`, by who has `seen` some of it during this call already.
    pub fn look(&mut self, name: &str, path: &[Step], seen: &Seen, now: Micros) -> Look {
        let (ttl, absent) = (self.options.ttl, self.options.ttl.min(ABSENT));
        let missing = match self.walk(path, seen, now, |known| Some(if known.is_settled() { ttl } else { absent })) {
            Ok(walked) => {
                let keys = path.iter().take(walked.rows.len()).map(|step| step.key.as_str());
                self.paths.put(name, keys, &walked.rows, walked.holds, now);
                return Look::Known(walked.rows);
            }
            Err(missing) => missing,
        };
        let rests = |step: &Step| self.refused.get(&step.key).is_some_and(|at| is_within(*at, now, REST));
        if missing.iter().any(rests)
            && let Some(rows) = self.stale(path, seen, now)
        {
            return Look::Stale(rows);
        }
        let free: Vec<_> = missing.iter().filter(|step| !self.flights.contains_key(step)).cloned().collect();
        match missing.first().and_then(|step| self.flights.get(step)) {
            Some(ticket) if free.is_empty() => Look::Wait(*ticket, missing),
            _ => {
                self.tickets = self.tickets.wrapping_add(1);
                let ticket = Ticket(self.tickets);
                self.flights.extend(free.iter().map(|step| (step.clone(), ticket)));
                Look::Read(ticket, free)
            }
        }
    }

    /// What may be told of a path while the storage does not answer: nothing of what is absent.
    pub fn stale(&mut self, path: &[Step], seen: &Seen, now: Micros) -> Option<Rows> {
        self.walk(path, seen, now, |known| known.is_settled().then_some(STALE)).ok().map(|walked| walked.rows)
    }

    /// The steps of a ticket were read: what came, begun at `at`. What has been changed meanwhile is not kept.
    pub fn learn(&mut self, ticket: Ticket, steps: &[Step], came: &Seen, at: Micros) {
        for step in steps {
            self.refused.remove(&step.key);
            if !self.land(ticket, step) {
                continue;
            }
            for child in [None, step.child.clone()] {
                let part = (step.key.clone(), child);
                if let Some(cells) = came.get(&part) {
                    if self.kept.get(&part.0, part.1.as_deref()).is_none_or(|known| known.cells != *cells) {
                        self.paths.changed(&part.0);
                    }
                    self.kept.put(&part.0, part.1.as_deref(), Known { cells: cells.clone(), at });
                }
            }
        }
    }

    /// The steps of a ticket are not read any more.
    pub fn give_up(&mut self, ticket: Ticket, steps: &[Step]) {
        for step in steps {
            self.land(ticket, step);
        }
    }

    /// Whether the step was still in flight with this ticket.
    fn land(&mut self, ticket: Ticket, step: &Step) -> bool {
        let is_mine = self.flights.get(step) == Some(&ticket);
        if is_mine {
            self.flights.remove(step);
        }
        is_mine
    }

    /// The storage did not tell of these steps.
    pub fn refuse(&mut self, steps: Vec<Step>, now: Micros) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.extend(steps.into_iter().map(|step| (step.key, now)));
    }

    /// Forgets a row, and what is in flight of it.
    pub fn evict(&mut self, key: &str) {
        self.kept.evict(key);
        self.paths.changed(key);
        self.flights.retain(|step, _| step.key != key);
    }

    /// How many parts are known, and about how many bytes they take.
    pub fn size(&self) -> (usize, usize) {
        self.kept.size()
    }

    /// The rows from the root to where a walk ends, or the steps that are not known. `lasts`: for how long something
    /// serves, if at all.
    fn walk(
        &mut self,
        path: &[Step],
        seen: &Seen,
        now: Micros,
        lasts: impl Fn(&Known) -> Option<Duration>,
    ) -> Result<Walk, Vec<Step>> {
        let mut holds = Holds { from: Micros::ZERO, until: Micros::MAX };
        let mut part = |key: &str, child: Option<&str>| {
            if !seen.is_empty()
                && let Some(cells) = seen.get(&(key.to_owned(), child.map(str::to_owned)))
            {
                // Good for this call, and nobody else's.
                holds.until = now;
                return Some(cells.clone());
            }
            let known = self.kept.get(key, child)?;
            let ttl = lasts(&known).filter(|ttl| is_within(known.at, now, *ttl))?;
            let served = known.cells.as_ref().map_or(Micros::ZERO, |part| part.served_until());
            let until = known.at.plus(ttl).min(if served > now { served } else { Micros::MAX });
            holds = Holds { from: holds.from.max(known.at), until: holds.until.min(until) };
            Some(known.cells)
        };
        let (mut rows, mut missing) = (Vec::with_capacity(path.len()), Vec::new());
        for step in path {
            let own = part(&step.key, None);
            let reference = step.child.as_deref().map(|child| part(&step.key, Some(child)));
            let is_end = matches!(reference, Some(Some(None)))
                || own.as_ref().is_some_and(|own| own.as_ref().is_none_or(|own| own.served_until() > now));
            match (own, reference) {
                (Some(None), _) => rows.push(None),
                (Some(Some(own)), Some(Some(reference @ Some(_)))) => rows.push(Some(Glimpse { own, reference })),
                (Some(Some(own)), reference) if is_end || reference.is_none() => {
                    rows.push(Some(Glimpse { own, reference: None }));
                }
                _ => missing.push(step.clone()),
            }
            if is_end {
                break;
            }
        }
        if missing.is_empty() { Ok(Walk { rows: rows.into(), holds }) } else { Err(missing) }
    }
}

/// What is known of a whole path.
struct Walk {
    rows: Rows,
    /// While nothing changes.
    holds: Holds,
}

impl Known {
    /// Whether it is likely to stay as it is: something is there, and is not just being made.
    fn is_settled(&self) -> bool {
        self.cells.as_ref().is_some_and(|part| !part.is_pending())
    }
}

/// A row as it was read, in the parts that a step asks for.
pub fn parts(step: &Step, row: Option<&Row>, into: &mut Seen) {
    let seen = row.map(|row| Glimpse::of(row.clone(), step.child.as_deref()));
    let (own, reference) = seen.map_or((None, None), |seen| (Some(seen.own), seen.reference));
    into.insert((step.key.clone(), None), own.filter(|own| !own.cells().is_empty()));
    if let Some(child) = &step.child {
        into.insert((step.key.clone(), Some(child.clone())), reference);
    }
}

/// A clock that went back makes everything old.
fn is_within(at: Micros, now: Micros, duration: Duration) -> bool {
    now >= at && now.since(at) < duration
}
