//! A store with the system's clock and random numbers.

use std::time::Duration;

use ebla_model::Micros;
use ebla_runtime::Runtime;

use crate::delegate;
use crate::store::{Environment, Store};

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
    delegate!(store: read_with, change_if, keys, add, counter, set_counter, counters);
}
