//! An in-memory store with failures, which counts its calls; and concurrent execution step by step.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::{Change, ChildSelection, Condition, Row, ServerSelection};
use ebla_mounttable_tree::{Environment, Error, Reason, Store, delegate};
use parking_lot::Mutex;

/// The behaviour of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Health {
    #[default]
    Fine,
    /// They fail.
    Away,
    /// They never return.
    Silent,
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    /// The number of reads of each row.
    reads: BTreeMap<String, usize>,
    calls: usize,
    pauses: usize,
    /// The largest number of cells of one row in one read.
    cells_max: usize,
    /// The number of cells in all reads.
    cells: usize,
}

/// Clones share the storage.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) memory: MemoryStore,
    state: Arc<Mutex<State>>,
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self { memory: MemoryStore::at(Micros::from_millis(1_000_000)), state: Arc::default() }
    }

    pub(crate) fn turn(&self, health: Health) {
        self.state.lock().health = health;
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.memory.advance(by);
    }

    /// The number of reads of a row since the last call.
    pub(crate) fn take_reads(&self, key: &str) -> usize {
        self.state.lock().reads.remove(key).unwrap_or_default()
    }

    /// The number of read calls since the last call.
    pub(crate) fn take_calls(&self) -> usize {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// The number of retries.
    pub(crate) fn pauses(&self) -> usize {
        self.state.lock().pauses
    }

    /// The largest number of cells of one row in one read since the last call.
    pub(crate) fn take_cells_max(&self) -> usize {
        std::mem::take(&mut self.state.lock().cells_max)
    }

    /// The number of cells in all reads since the last call.
    pub(crate) fn take_cells(&self) -> usize {
        std::mem::take(&mut self.state.lock().cells)
    }

    fn note(&self, keys: &[String], rows: &[Option<Row>]) {
        let mut state = self.state.lock();
        keys.iter().for_each(|key| *state.reads.entry(key.clone()).or_default() += 1);
        let cells = rows.iter().flatten().map(Row::len).max().unwrap_or_default();
        state.cells_max = state.cells_max.max(cells);
        state.cells += rows.iter().flatten().map(Row::len).sum::<usize>();
    }

    async fn find_node(&self) -> Result<(), Error> {
        let health = self.state.lock().health;
        match health {
            Health::Fine => Ok(()),
            Health::Away => Err(Error::new(Reason::Unavailable, "the storage is unavailable")),
            Health::Silent => pending().await,
        }
    }
}

impl Store for Storage {
    /// Returns a step after it has read, so that changes may happen in between.
    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.state.lock().calls += 1;
        self.find_node().await?;
        let rows = self.memory.read_with(keys, children, servers).await?;
        self.note(keys, &rows);
        tokio::task::yield_now().await;
        Ok(rows)
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        self.find_node().await?;
        self.memory.change_if(key, when, then).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.find_node().await?;
        self.memory.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.find_node().await?;
        self.memory.add(counter, by).await
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.find_node().await?;
        self.memory.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.find_node().await?;
        self.memory.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.find_node().await?;
        self.memory.counters(after, limit).await
    }
}

impl Environment for Storage {
    /// Yields; the tests control the clock.
    async fn back_off(&self, _tries: u32) {
        self.state.lock().pauses += 1;
        tokio::task::yield_now().await;
    }

    delegate!(memory: now, unique_u64, sleep);
}

/// A call in progress.
pub(crate) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Polls a call this often; its result, if it has finished.
pub(crate) fn go_on<T>(call: &mut Call<'_, T>, steps: usize) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..steps {
        if let Poll::Ready(out) = call.as_mut().poll(&mut context) {
            return Some(out);
        }
    }
    None
}

/// Runs one call alone.
pub(crate) fn alone<'a, T>(call: impl Future<Output = T> + 'a) -> T {
    go_on(&mut (Box::pin(call) as Call<'a, T>), 10_000_000).expect("a call that runs alone ends")
}

/// Runs calls concurrently, one step of each in turn; returns their results.
pub(crate) fn together<'a, T>(calls: impl IntoIterator<Item = Call<'a, T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.into_iter().map(|call| (call, None)).collect();
    for _ in 0..100_000 {
        for (call, out) in calls.iter_mut().filter(|(_, out)| out.is_none()) {
            *out = go_on(call, 1);
        }
        if calls.iter().all(|(_, out)| out.is_some()) {
            return calls.into_iter().filter_map(|(_, out)| out).collect();
        }
    }
    panic!("calls do not end");
}
