//! Storage in memory, for tests: it yields before every call, and a read of several rows before every row, so that
//! whoever polls the callers decides who comes next.
//!
//! Its clock moves only when somebody pauses, or a test moves it; who sleeps waits for that.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ebla_model::Micros;

use crate::error::Error;
use crate::store::{Cell, Change, Children, Family, Predicate, Row, Servers, Store, Surroundings, TELLING};

/// How far a pause moves the clock.
const PAUSE: Duration = Duration::from_millis(100);

/// Rows in memory; clones are the same rows.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Held for one step, never while anybody waits.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<String, Row>,
    counters: BTreeMap<String, i64>,
    now: Micros,
    drawn: u64,
}

impl Memory {
    /// No rows, at the time `now`.
    pub fn at(now: Micros) -> Self {
        Self { state: Arc::new(Mutex::new(State { now, ..State::default() })) }
    }

    /// Moves the clock.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.now = state.now.plus(by);
    }

    /// All rows as they are, without waiting.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        self.lock().rows.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets others go first, once.
fn yielded() -> impl Future<Output = ()> + Send {
    let mut has_yielded = false;
    poll_fn(move |context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

impl Store for Memory {
    async fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> Result<Vec<Option<Row>>, Error> {
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            yielded().await;
            rows.push(self.lock().rows.get(key).map(|row| seen(row, children, servers)));
        }
        Ok(rows)
    }

    async fn change_if(&self, key: &str, when: Predicate, then: Vec<Change>) -> Result<bool, Error> {
        yielded().await;
        let mut state = self.lock();
        if !when.holds(state.rows.get(key)) {
            return Ok(false);
        }
        let mut row = state.rows.remove(key).unwrap_or_default();
        then.into_iter().for_each(|change| apply(&mut row, change));
        if !row.is_empty() {
            state.rows.insert(key.to_owned(), row);
        }
        Ok(true)
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        yielded().await;
        let state = self.lock();
        let behind = state.rows.keys().filter(|key| after.is_none_or(|after| key.as_str() > after));
        Ok(behind.take(limit).cloned().collect())
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        yielded().await;
        let mut state = self.lock();
        let held = state.counters.entry(counter.to_owned()).or_default();
        *held = held.wrapping_add(by);
        Ok(*held)
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        yielded().await;
        Ok(self.lock().counters.get(counter).copied())
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        yielded().await;
        let counters = &mut self.lock().counters;
        match to {
            Some(to) => counters.insert(counter.to_owned(), to),
            None => counters.remove(counter),
        };
        Ok(())
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        yielded().await;
        let state = self.lock();
        let behind = state.counters.iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
        Ok(behind.take(limit).map(|(name, held)| (name.clone(), *held)).collect())
    }
}

impl Surroundings for Memory {
    fn now(&self) -> Micros {
        self.lock().now
    }

    fn fresh(&self) -> u64 {
        let mut state = self.lock();
        state.drawn = state.drawn.wrapping_add(1);
        state.drawn
    }

    async fn pause(&self, _tries: u32) {
        yielded().await;
        self.advance(PAUSE);
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.now().plus(duration);
        while self.now() < until {
            yielded().await;
        }
    }
}

/// What a read shows of a row. Touches only that: a row may be very wide.
fn seen(row: &Row, children: &Children, servers: &Servers) -> Row {
    let of = |family: Family, start: Bound<String>| {
        let start = start.map(|column| (family, column));
        row.range((start, Bound::Unbounded)).take_while(move |((of, _), _)| *of == family)
    };
    let all = |family: Family| of(family, Bound::Included(String::new()));
    let one = |family: Family, column: &String| row.get_key_value(&(family, column.clone()));
    let shown_servers = match servers {
        Servers::All => usize::MAX,
        Servers::None => 0,
        Servers::First | Servers::FirstAnd(_) => TELLING,
    };
    let mut cells: Vec<_> = all(Family::Meta).chain(all(Family::Servers).take(shown_servers)).collect();
    if let Servers::FirstAnd(address) = servers {
        cells.extend(one(Family::Servers, address));
    }
    match children {
        Children::Named(names) => cells.extend(names.iter().filter_map(|name| one(Family::Children, name))),
        Children::Page { prefix, after, limit } => {
            let start = match after {
                Some(after) if after >= prefix => Bound::Excluded(after.clone()),
                _ => Bound::Included(prefix.clone()),
            };
            let page = of(Family::Children, start).take_while(|((_, column), _)| column.starts_with(prefix));
            cells.extend(page.take(*limit));
        }
    }
    cells.into_iter().map(|(key, cell)| (key.clone(), cell.clone())).collect()
}

/// One version a column: the latest, as a Bigtable shows it. A delete in front of a write lets an earlier one be seen.
fn apply(row: &mut Row, change: Change) {
    match change {
        Change::Set(family, column, cell) => {
            let is_latest = |old: &Cell| old.timestamp <= cell.timestamp;
            if row.get(&(family, column.clone())).is_none_or(is_latest) {
                row.insert((family, column), cell);
            }
        }
        Change::DeleteColumn(family, column) => {
            row.remove(&(family, column));
        }
        Change::DeleteFamily(family) => row.retain(|(of, _), _| *of != family),
        Change::DeleteRow => row.clear(),
    }
}
