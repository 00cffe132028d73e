//! A store with the system's clock and random numbers.

use std::time::Duration;

use ebla_model::Micros;
use ebla_runtime::Runtime;

use crate::error::Error;
use crate::store::{Change, ChildSelection, Condition, Environment, Row, ServerSelection, Store};

/// The longest back-off.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The increase of the back-off per attempt.
const PAUSE_STEP: Duration = Duration::from_millis(5);

/// A store with the system's environment. Clones share the store.
#[derive(Clone, Debug)]
pub struct SystemStore<S> {
    store: S,
    runtime: Runtime,
}

impl<S> SystemStore<S> {
    /// `store` with the clock and the random numbers of `runtime`.
    pub const fn new(store: S, runtime: Runtime) -> Self {
        Self { store, runtime }
    }
}

impl<S: Send + Sync> Environment for SystemStore<S> {
    fn now(&self) -> Micros {
        self.runtime.clock.wall().truncate_to_millis()
    }

    fn unique_u64(&self) -> u64 {
        self.runtime.rng.u64()
    }

    async fn back_off(&self, attempts: u32) {
        let pause = PAUSE_STEP.saturating_mul(attempts).min(PAUSE_MAX);
        tokio::time::sleep(self.runtime.rng.jitter(pause)).await;
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

impl<S: Store> Store for SystemStore<S> {
    async fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.store.read_with(keys, children, servers).await
    }

    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
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
