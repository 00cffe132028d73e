//! A store with a cache: it answers [`Store::read_recent`] from recently read rows. All other calls pass through, and a
//! change evicts its row. [`cache`] decides what is cached, and for how long.
//!
//! While the storage is unavailable, entries that are minutes old are served and marked as stale. A caller with stale
//! data waits at most [`FALLBACK_TIMEOUT`] for the storage, and for a while afterwards such callers do not ask it
//! again. A caller without data waits as long as the storage takes.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;
use futures::future::{Either, select};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::delegate;
use crate::error::{Error, Reason};
use crate::name::NodeName;
use crate::store::cache::{self, Cache, CacheOptions, FetchId, Lookup, ReadParts};
use crate::store::{
    Change, ChildSelection, Condition, Environment, Freshness, PathStep, RecentPath, Row, ServerSelection, Store,
};

/// The time that a caller with stale data waits for the storage.
pub const FALLBACK_TIMEOUT: Duration = Duration::from_millis(500);

/// The outcome of a read; `None` while it is in flight.
type FetchOutcome = Option<Result<Arc<ReadParts>, Error>>;

/// Lookups by the way they were answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LookupCounts {
    /// From the cache.
    pub hits: u64,
    /// By a read of the storage.
    pub misses: u64,
    /// By a read that another caller had started.
    pub joined: u64,
    /// From stale entries.
    pub stale: u64,
}

/// Requests to the storage, each one call of its API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounts {
    /// Reads of nodes.
    pub reads: u64,
    /// Conditional changes of nodes.
    pub changes: u64,
    /// Reads and changes of counters: quotas, heartbeats.
    pub counters: u64,
}

/// A store with a cache. Clones share the cache.
#[derive(Clone, Debug)]
pub struct CachingStore<S> {
    store: S,
    cache_handle: CacheHandle,
    /// Whether the cache is on.
    is_enabled: bool,
}

/// The cache that clones share.
#[derive(Clone, Debug)]
pub struct CacheHandle(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    cache: Cache,
    in_progress: BTreeMap<FetchId, watch::Receiver<FetchOutcome>>,
    counts: LookupCounts,
    requests: RequestCounts,
}

impl CacheHandle {
    /// Lookups since the start.
    pub fn counts(&self) -> LookupCounts {
        self.lock().counts
    }

    /// Requests to the storage since the start.
    pub fn requests(&self) -> RequestCounts {
        self.lock().requests
    }

    /// Held for one operation, never across an await.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    fn count_lookup(&self, which: impl FnOnce(&mut LookupCounts) -> &mut u64) {
        let mut state = self.lock();
        let count = which(&mut state.counts);
        *count = count.saturating_add(1);
    }

    fn count_request(&self, which: impl FnOnce(&mut RequestCounts) -> &mut u64) {
        let mut state = self.lock();
        let count = which(&mut state.requests);
        *count = count.saturating_add(1);
    }
}

impl<S: Store + Environment> CachingStore<S> {
    /// `store` with an empty cache.
    pub fn new(store: S, options: CacheOptions) -> Self {
        let state = State {
            cache: Cache::new(options),
            in_progress: BTreeMap::new(),
            counts: LookupCounts::default(),
            requests: RequestCounts::default(),
        };
        Self { store, cache_handle: CacheHandle(Arc::new(Mutex::new(state))), is_enabled: options.rows > 0 }
    }

    /// The cache that clones share, for its statistics.
    pub fn cache_handle(&self) -> CacheHandle {
        self.cache_handle.clone()
    }

    /// Reads the steps of a fetch for all callers that wait for them; `None` when the wait is bounded and the time is
    /// over.
    async fn read_for_all(&self, running: Fetch<'_>, fetch_wait: FetchWait) -> Option<Result<Arc<ReadParts>, Error>> {
        let began = self.store.now();
        self.cache_handle.count_request(|requests| &mut requests.reads);
        let (keys, children) = (PathStep::keys(&running.steps), PathStep::children(&running.steps));
        let rows = self.wait(fetch_wait, self.store.read(&keys, &children)).await?;
        let outcome = rows.map(|rows| {
            let mut fetched = ReadParts::new();
            running.steps.iter().zip(&rows).for_each(|(step, row)| cache::parts(step, row.as_ref(), &mut fetched));
            Arc::new(fetched)
        });
        running.end(&outcome, began);
        Some(outcome)
    }

    /// Waits for the read of another caller: no parts if that caller gave up; `None` when the wait is bounded and the
    /// time is over.
    async fn join(
        &self,
        mut receiver: watch::Receiver<FetchOutcome>,
        fetch_wait: FetchWait,
    ) -> Option<Result<Arc<ReadParts>, Error>> {
        let completed = async { receiver.wait_for(Option::is_some).await.ok()?.clone() };
        let outcome = self.wait(fetch_wait, completed).await?;
        outcome.or_else(|| Some(Ok(Arc::default())))
    }

    /// The outcome of `work`, unless the wait is bounded and the time is over.
    async fn wait<T>(&self, fetch_wait: FetchWait, work: impl Future<Output = T>) -> Option<T> {
        match fetch_wait {
            FetchWait::Unbounded => Some(work.await),
            FetchWait::Bounded => match select(pin!(work), pin!(self.store.sleep(FALLBACK_TIMEOUT))).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            },
        }
    }
}

/// How long to wait for the storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FetchWait {
    /// As long as it takes: there is no stale data.
    Unbounded,
    /// At most [`FALLBACK_TIMEOUT`].
    Bounded,
}

/// A read in flight. When it is dropped, the callers that joined it look again.
struct Fetch<'a> {
    cache_handle: &'a CacheHandle,
    fetch: FetchId,
    steps: Vec<PathStep>,
    sender: watch::Sender<FetchOutcome>,
}

impl Fetch<'_> {
    fn end(self, outcome: &Result<Arc<ReadParts>, Error>, began: Micros) {
        if let Ok(fetched) = outcome {
            self.cache_handle.lock().cache.complete(self.fetch, &self.steps, fetched, began);
        }
        self.sender.send_replace(Some(outcome.clone()));
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut state = self.cache_handle.lock();
        state.cache.abandon(self.fetch, &self.steps);
        state.in_progress.remove(&self.fetch);
    }
}

/// Evicts a row when its change is over, whatever the outcome.
struct EvictOnDrop<'a> {
    cache_handle: &'a CacheHandle,
    key: &'a str,
}

impl Drop for EvictOnDrop<'_> {
    fn drop(&mut self) {
        self.cache_handle.lock().cache.evict(self.key);
    }
}

/// What to do after a cache lookup.
enum NextStep<'a> {
    Done(RecentPath),
    Fetch(Fetch<'a>),
    Join(watch::Receiver<FetchOutcome>, Vec<PathStep>),
}

impl<S: Store + Environment> CachingStore<S> {
    /// The cached path to a name that was looked up recently.
    fn lookup_path(&self, name: &NodeName) -> Option<RecentPath> {
        let now = self.store.now();
        let mut state = self.cache_handle.lock();
        let rows = state.cache.lookup_path(name.as_str(), now)?;
        state.counts.hits = state.counts.hits.saturating_add(1);
        Some(RecentPath { rows, freshness: Freshness::Recent })
    }

    fn lookup(&self, name: &NodeName, path: &[PathStep], read_parts: &ReadParts) -> NextStep<'_> {
        let now = self.store.now();
        let mut state = self.cache_handle.lock();
        match state.cache.lookup(name.as_str(), path, read_parts, now) {
            Lookup::Hit(rows) => NextStep::Done(RecentPath { rows, freshness: Freshness::Recent }),
            Lookup::Stale(rows) => NextStep::Done(RecentPath { rows, freshness: Freshness::Stale }),
            Lookup::Fetch(fetch, steps) => {
                let (sender, receiver) = watch::channel(None);
                state.in_progress.insert(fetch, receiver);
                NextStep::Fetch(Fetch { cache_handle: &self.cache_handle, fetch, steps, sender })
            }
            Lookup::Join(fetch, steps) => {
                // A fetch stays registered until it is complete, and completes under the same lock.
                let running = state.in_progress.get(&fetch).cloned();
                NextStep::Join(running.unwrap_or_else(|| watch::channel(None).1), steps)
            }
        }
    }

    /// Stale data for a path, if there is any.
    fn stale_result(&self, path: &[PathStep], read_parts: &ReadParts) -> Option<RecentPath> {
        let now = self.store.now();
        let rows = self.cache_handle.lock().cache.stale(path, read_parts, now)?;
        Some(RecentPath { rows, freshness: Freshness::Stale })
    }
}

impl<S: Store + Environment> Store for CachingStore<S> {
    async fn read_recent(&self, name: &NodeName) -> Result<RecentPath, Error> {
        if !self.is_enabled {
            self.cache_handle.count_request(|requests| &mut requests.reads);
            return Box::pin(self.store.read_recent(name)).await;
        }
        if let Some(recent) = self.lookup_path(name) {
            return Ok(recent);
        }
        let path = &PathStep::path(name);
        let mut read_parts = ReadParts::new();
        let (mut has_read, mut has_joined) = (false, false);
        // Each round brings a missing part, or finds that the caller that was reading it gave up.
        loop {
            let next = self.lookup(name, path, &read_parts);
            let (stale_result, requested) = match &next {
                NextStep::Done(_) => (None, Vec::new()),
                NextStep::Fetch(Fetch { steps, .. }) | NextStep::Join(_, steps) => {
                    (self.stale_result(path, &read_parts), steps.clone())
                }
            };
            let fetch_wait = if stale_result.is_some() { FetchWait::Bounded } else { FetchWait::Unbounded };
            let outcome = match next {
                NextStep::Done(recent) => {
                    self.cache_handle.count_lookup(|counts| match (recent.freshness, has_read, has_joined) {
                        (Freshness::Stale, _, _) => &mut counts.stale,
                        (_, true, _) => &mut counts.misses,
                        (_, false, true) => &mut counts.joined,
                        (_, false, false) => &mut counts.hits,
                    });
                    return Ok(recent);
                }
                NextStep::Fetch(running) => {
                    has_read = true;
                    // Boxed: a read of the storage is a large future, and a hit needs none.
                    Box::pin(self.read_for_all(running, fetch_wait)).await
                }
                NextStep::Join(receiver, _) => {
                    has_joined = true;
                    Box::pin(self.join(receiver, fetch_wait)).await
                }
            };
            let error = match outcome {
                Some(Ok(fetched)) => {
                    // A joined read may bring more, and older parts than this call has read: a row that was changed since.
                    let is_requested = |key: &String| requested.iter().any(|step| step.key == *key);
                    let parts = fetched.iter().filter(|((key, _), _)| is_requested(key));
                    read_parts.extend(parts.map(|(part, cells)| (part.clone(), cells.clone())));
                    continue;
                }
                Some(Err(error)) if error.reason != Reason::Unavailable => return Err(error),
                Some(Err(error)) => error,
                None => Error::new(Reason::Unavailable, "the storage did not answer in time"),
            };
            let now = self.store.now();
            self.cache_handle.lock().cache.mark_unavailable(requested, now);
            let recent = stale_result.ok_or(error)?;
            self.cache_handle.count_lookup(|counts| &mut counts.stale);
            return Ok(recent);
        }
    }

    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.cache_handle.count_request(|requests| &mut requests.reads);
        self.store.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        self.cache_handle.count_request(|requests| &mut requests.changes);
        let _evict_on_drop = EvictOnDrop { cache_handle: &self.cache_handle, key };
        self.store.change_if(key, when, then).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.cache_handle.count_request(|requests| &mut requests.reads);
        self.store.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.cache_handle.count_request(|requests| &mut requests.counters);
        self.store.add(counter, by).await
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.cache_handle.count_request(|requests| &mut requests.counters);
        self.store.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.cache_handle.count_request(|requests| &mut requests.counters);
        self.store.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.cache_handle.count_request(|requests| &mut requests.counters);
        self.store.counters(after, limit).await
    }
}

impl<S: Store + Environment> Environment for CachingStore<S> {
    delegate!(store: now, unique_u64, back_off, sleep);
}
