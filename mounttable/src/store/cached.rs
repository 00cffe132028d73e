//! A storage that remembers: what was read a moment ago answers [`Store::read_recent`], and only that. All other calls go
//! through, and a change takes what is known of its row away. What is known, and for how long, is [`cache`]'s business.
//!
//! While the storage does not answer, what was read within minutes serves, and says so. Who has something to tell waits no
//! longer than [`PATIENCE`] for it, and for a while after that nobody who has anything asks for the same rows; who has
//! nothing waits as long as the storage takes.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_model::Micros;
use futures::future::{Either, select};
use tokio::sync::watch;

use crate::error::{Error, Reason};
use crate::name::NodeName;
use crate::store::cache::{self, Cache, Look, Options, Seen, Ticket};
use crate::store::{Change, Children, Freshness, Predicate, Recent, Row, Servers, Step, Store, Surroundings};

/// How long who has something to tell waits for the storage to tell something newer.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What a read came to; `None` while it is under way.
type Outcome = Option<Result<Arc<Seen>, Error>>;

/// How reads were answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// From what was known.
    pub hits: u64,
    /// By reading the storage.
    pub misses: u64,
    /// By what somebody else was just reading.
    pub joined: u64,
    /// By what may be minutes old.
    pub stale: u64,
}

/// Requests to the storage, each one call of its API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    /// That read nodes.
    pub reads: u64,
    /// That change a node if a condition holds.
    pub changes: u64,
    /// That read or change counters: what users are charged for, heartbeats.
    pub counters: u64,
}

/// A storage with what is known of it. Clones know the same.
#[derive(Clone, Debug)]
pub struct Cached<S> {
    store: S,
    knowledge: Knowledge,
    /// Whether anything is kept.
    is_on: bool,
}

/// What the clones share.
#[derive(Clone, Debug)]
pub struct Knowledge(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    cache: Cache,
    under_way: BTreeMap<Ticket, watch::Receiver<Outcome>>,
    counts: Counts,
    requests: Requests,
}

impl Knowledge {
    /// How reads were answered until now.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// What the storage was asked for until now.
    pub fn requests(&self) -> Requests {
        self.lock().requests
    }

    /// Guards what is known for a look, never while anybody waits.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, which: impl FnOnce(&mut Counts) -> &mut u64) {
        let mut state = self.lock();
        let count = which(&mut state.counts);
        *count = count.saturating_add(1);
    }

    fn asks(&self, which: impl FnOnce(&mut Requests) -> &mut u64) {
        let mut state = self.lock();
        let count = which(&mut state.requests);
        *count = count.saturating_add(1);
    }
}

impl<S: Store + Surroundings> Cached<S> {
    /// Nothing is known of `store` yet.
    pub fn new(store: S, options: Options) -> Self {
        let state = State {
            cache: Cache::new(options),
            under_way: BTreeMap::new(),
            counts: Counts::default(),
            requests: Requests::default(),
        };
        Self { store, knowledge: Knowledge(Arc::new(Mutex::new(state))), is_on: options.rows > 0 }
    }

    /// What the clones share, for who counts.
    pub fn knowledge(&self) -> Knowledge {
        self.knowledge.clone()
    }

    /// Reads the steps of a ticket, for all who wait for them; `None` when the patience of who has something to tell is
    /// at its end.
    async fn read_for_all(&self, flight: Flight<'_>, patience: Patience) -> Option<Result<Arc<Seen>, Error>> {
        let began = self.store.now();
        self.knowledge.asks(|requests| &mut requests.reads);
        let (keys, children) = (Step::keys(&flight.steps), Step::children(&flight.steps));
        let rows = self.wait(patience, self.store.read(&keys, &children)).await?;
        let outcome = rows.map(|rows| {
            let mut came = Seen::new();
            flight.steps.iter().zip(&rows).for_each(|(step, row)| cache::parts(step, row.as_ref(), &mut came));
            Arc::new(came)
        });
        flight.end(&outcome, began);
        Some(outcome)
    }

    /// What somebody else reads: nothing if he goes away; `None` when the patience is at its end.
    async fn join(
        &self,
        mut receiver: watch::Receiver<Outcome>,
        patience: Patience,
    ) -> Option<Result<Arc<Seen>, Error>> {
        let landed = async { receiver.wait_for(Option::is_some).await.ok()?.clone() };
        let outcome = self.wait(patience, landed).await?;
        outcome.or_else(|| Some(Ok(Arc::default())))
    }

    /// What `work` comes to, unless the patience ends first.
    async fn wait<T>(&self, patience: Patience, work: impl Future<Output = T>) -> Option<T> {
        match patience {
            Patience::Endless => Some(work.await),
            Patience::Short => match select(pin!(work), pin!(self.store.sleep(PATIENCE))).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            },
        }
    }
}

/// How long to wait for the storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// As long as it takes: there is nothing else to tell.
    Endless,
    /// No longer than [`PATIENCE`].
    Short,
}

/// Steps that are being read. Whatever becomes of the read, nobody waits for it in vain.
struct Flight<'a> {
    knowledge: &'a Knowledge,
    ticket: Ticket,
    steps: Vec<Step>,
    sender: watch::Sender<Outcome>,
}

impl Flight<'_> {
    fn end(self, outcome: &Result<Arc<Seen>, Error>, began: Micros) {
        if let Ok(came) = outcome {
            self.knowledge.lock().cache.learn(self.ticket, &self.steps, came, began);
        }
        self.sender.send_replace(Some(outcome.clone()));
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.knowledge.lock();
        state.cache.give_up(self.ticket, &self.steps);
        state.under_way.remove(&self.ticket);
    }
}

/// A row that is being changed: whatever becomes of the change, what was known before is not known after it.
struct Evicted<'a> {
    knowledge: &'a Knowledge,
    key: &'a str,
}

impl Drop for Evicted<'_> {
    fn drop(&mut self) {
        self.knowledge.lock().cache.evict(self.key);
    }
}

/// What one look at what is known asks for.
enum Next<'a> {
    Told(Recent),
    Read(Flight<'a>),
    Join(watch::Receiver<Outcome>, Vec<Step>),
}

impl<S: Store + Surroundings> Cached<S> {
    /// What is known of the path to a name that was looked at a moment ago.
    fn recall(&self, name: &NodeName) -> Option<Recent> {
        let now = self.store.now();
        let mut state = self.knowledge.lock();
        let rows = state.cache.recall(name.as_str(), now)?;
        state.counts.hits = state.counts.hits.saturating_add(1);
        Some(Recent { rows, freshness: Freshness::Recent })
    }

    fn look(&self, name: &NodeName, path: &[Step], seen: &Seen) -> Next<'_> {
        let now = self.store.now();
        let mut state = self.knowledge.lock();
        match state.cache.look(name.as_str(), path, seen, now) {
            Look::Known(rows) => Next::Told(Recent { rows, freshness: Freshness::Recent }),
            Look::Stale(rows) => Next::Told(Recent { rows, freshness: Freshness::Stale }),
            Look::Read(ticket, steps) => {
                let (sender, receiver) = watch::channel(None);
                state.under_way.insert(ticket, receiver);
                Next::Read(Flight { knowledge: &self.knowledge, ticket, steps, sender })
            }
            Look::Wait(ticket, steps) => {
                // A flight is under way until it has landed, and lands under the same lock.
                let flight = state.under_way.get(&ticket).cloned();
                Next::Join(flight.unwrap_or_else(|| watch::channel(None).1), steps)
            }
        }
    }

    /// What may be told while the storage does not answer.
    fn fallback(&self, path: &[Step], seen: &Seen) -> Option<Recent> {
        let now = self.store.now();
        let rows = self.knowledge.lock().cache.stale(path, seen, now)?;
        Some(Recent { rows, freshness: Freshness::Stale })
    }
}

impl<S: Store + Surroundings> Store for Cached<S> {
    async fn read_recent(&self, name: &NodeName) -> Result<Recent, Error> {
        if !self.is_on {
            self.knowledge.asks(|requests| &mut requests.reads);
            return Box::pin(self.store.read_recent(name)).await;
        }
        if let Some(recent) = self.recall(name) {
            return Ok(recent);
        }
        let path = &Step::path(name);
        let mut seen = Seen::new();
        let (mut has_read, mut has_joined) = (false, false);
        // Each round brings something that was missing, or finds that whoever was to bring it went away.
        loop {
            let next = self.look(name, path, &seen);
            let (fallback, asked) = match &next {
                Next::Told(_) => (None, Vec::new()),
                Next::Read(Flight { steps, .. }) | Next::Join(_, steps) => (self.fallback(path, &seen), steps.clone()),
            };
            let patience = if fallback.is_some() { Patience::Short } else { Patience::Endless };
            let outcome = match next {
                Next::Told(recent) => {
                    self.knowledge.count(|counts| match (recent.freshness, has_read, has_joined) {
                        (Freshness::Stale, _, _) => &mut counts.stale,
                        (_, true, _) => &mut counts.misses,
                        (_, false, true) => &mut counts.joined,
                        (_, false, false) => &mut counts.hits,
                    });
                    return Ok(recent);
                }
                Next::Read(flight) => {
                    has_read = true;
                    // A read of the storage is a large future, and what is known is told without one.
                    Box::pin(self.read_for_all(flight, patience)).await
                }
                Next::Join(receiver, _) => {
                    has_joined = true;
                    Box::pin(self.join(receiver, patience)).await
                }
            };
            let error = match outcome {
                Some(Ok(came)) => {
                    seen.extend(came.iter().map(|(part, cells)| (part.clone(), cells.clone())));
                    continue;
                }
                Some(Err(error)) if error.reason != Reason::Unavailable => return Err(error),
                Some(Err(error)) => error,
                None => Error::new(Reason::Unavailable, "the storage does not answer in time"),
            };
            let now = self.store.now();
            self.knowledge.lock().cache.refuse(asked, now);
            let recent = fallback.ok_or(error)?;
            self.knowledge.count(|counts| &mut counts.stale);
            return Ok(recent);
        }
    }

    async fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.knowledge.asks(|requests| &mut requests.reads);
        self.store.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Predicate, then: Vec<Change>) -> Result<bool, Error> {
        self.knowledge.asks(|requests| &mut requests.changes);
        let _evicted = Evicted { knowledge: &self.knowledge, key };
        self.store.change_if(key, when, then).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.knowledge.asks(|requests| &mut requests.reads);
        self.store.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.knowledge.asks(|requests| &mut requests.counters);
        self.store.add(counter, by).await
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.knowledge.asks(|requests| &mut requests.counters);
        self.store.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.knowledge.asks(|requests| &mut requests.counters);
        self.store.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.knowledge.asks(|requests| &mut requests.counters);
        self.store.counters(after, limit).await
    }
}

impl<S: Store + Surroundings> Surroundings for Cached<S> {
    fn now(&self) -> Micros {
        self.store.now()
    }

    fn fresh(&self) -> u64 {
        self.store.fresh()
    }

    async fn pause(&self, tries: u32) {
        self.store.pause(tries).await;
    }

    async fn sleep(&self, duration: Duration) {
        self.store.sleep(duration).await;
    }
}
