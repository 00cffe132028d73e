//! A storage together with the machine's time and chance.

use std::time::Duration;

use ebla_model::Micros;
use ebla_runtime::Runtime;

use crate::error::Error;
use crate::store::{Change, Children, Predicate, Row, Servers, Store, Surroundings};

/// The longest pause between two tries; the first are shorter.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// By how much a pause is longer than the one before.
const PAUSE_STEP: Duration = Duration::from_millis(5);

/// A storage in real surroundings. Clones are the same storage.
#[derive(Clone, Debug)]
pub struct Grounded<S> {
    store: S,
    runtime: Runtime,
}

impl<S> Grounded<S> {
    /// `store`, with the clock and the random numbers of `runtime`.
    pub const fn new(store: S, runtime: Runtime) -> Self {
        Self { store, runtime }
    }
}

impl<S: Send + Sync> Surroundings for Grounded<S> {
    fn now(&self) -> Micros {
        self.runtime.clock.wall().truncate_to_millis()
    }

    fn fresh(&self) -> u64 {
        self.runtime.rng.u64()
    }

    async fn pause(&self, tries: u32) {
        let pause = PAUSE_STEP.saturating_mul(tries).min(PAUSE_MAX);
        tokio::time::sleep(self.runtime.rng.jitter(pause)).await;
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

impl<S: Store> Store for Grounded<S> {
    async fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.store.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Predicate, then: Vec<Change>) -> Result<bool, Error> {
        self.store.change_if(key, when, then).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.store.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.store.add(counter, by).await
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.store.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.store.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.store.counters(after, limit).await
    }
}
