//! A store in memory, for tests: it yields before every call, and before every row of a read, so that the poller of the
//! callers decides the order of steps.
//!
//! Its clock moves only when a caller backs off or a test advances it; a sleeper waits for that.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ebla_model::Micros;
use parking_lot::Mutex;

use crate::error::Error;
use crate::store::{
    Cell, Change, ChildSelection, Condition, Environment, Family, Row, SERVERS_SAMPLE, ServerSelection, Store,
};

/// How far one back-off advances the clock.
const PAUSE: Duration = Duration::from_millis(100);

/// Rows in memory; clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    /// Held for one step, never across an await.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<String, Row>,
    counters: BTreeMap<String, i64>,
    now: Micros,
    last_id: u64,
}

impl MemoryStore {
    /// An empty store, at the time `now`.
    pub fn at(now: Micros) -> Self {
        Self { state: Arc::new(Mutex::new(State { now, ..State::default() })) }
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock();
        state.now = state.now.plus(by);
    }

    /// A copy of all rows.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        self.state.lock().rows.clone()
    }
}

/// Yields once.
fn yield_once() -> impl Future<Output = ()> + Send {
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

impl Store for MemoryStore {
    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            yield_once().await;
            rows.push(self.state.lock().rows.get(key).map(|row| selected(row, children, servers)));
        }
        Ok(rows)
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        yield_once().await;
        let mut state = self.state.lock();
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
        yield_once().await;
        let state = self.state.lock();
        let following = state.rows.keys().filter(|key| after.is_none_or(|after| key.as_str() > after));
        Ok(following.take(limit).cloned().collect())
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        yield_once().await;
        let mut state = self.state.lock();
        let held = state.counters.entry(counter.to_owned()).or_default();
        *held = held.wrapping_add(by);
        Ok(*held)
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        yield_once().await;
        Ok(self.state.lock().counters.get(counter).copied())
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        yield_once().await;
        let counters = &mut self.state.lock().counters;
        match to {
            Some(to) => counters.insert(counter.to_owned(), to),
            None => counters.remove(counter),
        };
        Ok(())
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        yield_once().await;
        let state = self.state.lock();
        let following = state.counters.iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
        Ok(following.take(limit).map(|(name, held)| (name.clone(), *held)).collect())
    }
}

impl Environment for MemoryStore {
    fn now(&self) -> Micros {
        self.state.lock().now
    }

    fn unique_u64(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_id = state.last_id.wrapping_add(1);
        state.last_id
    }

    async fn back_off(&self, _tries: u32) {
        yield_once().await;
        self.advance(PAUSE);
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.now().plus(duration);
        while self.now() < until {
            yield_once().await;
        }
    }
}

/// The selected cells of a row. Touches no others: a row may be very wide.
fn selected(row: &Row, children: &ChildSelection, servers: &ServerSelection) -> Row {
    let of = |family: Family, start: Bound<String>| {
        let start = start.map(|column| (family, column));
        row.range((start, Bound::Unbounded)).take_while(move |((of, _), _)| *of == family)
    };
    let all = |family: Family| of(family, Bound::Included(String::new()));
    let one = |family: Family, column: &String| row.get_key_value(&(family, column.clone()));
    let servers_max = match servers {
        ServerSelection::All => usize::MAX,
        ServerSelection::None => 0,
        ServerSelection::First | ServerSelection::FirstAnd(_) => SERVERS_SAMPLE,
    };
    let mut cells: Vec<_> = all(Family::Meta).chain(all(Family::Servers).take(servers_max)).collect();
    if let ServerSelection::FirstAnd(address) = servers {
        cells.extend(one(Family::Servers, address));
    }
    match children {
        ChildSelection::Named(names) => cells.extend(names.iter().filter_map(|name| one(Family::Children, name))),
        ChildSelection::Page { prefix, after, limit } => {
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

/// One version per column: the latest, as in a Bigtable. A deletion before a write makes an earlier timestamp visible.
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
