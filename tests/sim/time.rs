//! Time in the simulation: one clock that runs evenly for all hosts, and a wall clock for each that may be wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::Clock;
use ebla_runtime::clock::TimeSource;

/// Uptime of every host at the start of the simulation.
pub(crate) const UP_BEFORE: Duration = Duration::from_secs(1_000);
/// Wall time at the start of the simulation, in microseconds.
const EPOCH_MICROS: i64 = 1_700_000_000_000_000;

/// The latest requested time, for code that runs between two steps, such as a drop.
static LATEST_NANOS: AtomicU64 = AtomicU64::new(0);

/// How long the simulation has run.
pub(crate) fn elapsed() -> Duration {
    match turmoil::sim_elapsed() {
        Some(now) => {
            let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            LATEST_NANOS.fetch_max(nanos, Ordering::Relaxed);
            now
        }
        None => Duration::from_nanos(LATEST_NANOS.load(Ordering::Relaxed)),
    }
}

/// The time since the start of the simulation at which a correct wall clock shows `micros`.
pub(crate) fn since_epoch(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros - EPOCH_MICROS).unwrap_or_default())
}

/// A host's clock. The nemesis changes its wall time, but not the time since boot.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostTime {
    off_micros: Arc<AtomicI64>,
}

impl HostTime {
    /// Sets how far the wall clock is off.
    pub(crate) fn set_off(&self, micros: i64) {
        self.off_micros.store(micros, Ordering::Relaxed);
    }

    /// How far the wall clock is off, in microseconds.
    pub(crate) fn off(&self) -> i64 {
        self.off_micros.load(Ordering::Relaxed)
    }

    /// As components take it.
    pub(crate) fn clock(&self) -> Clock {
        Clock::custom(Arc::new(self.clone()))
    }
}

impl TimeSource for HostTime {
    fn wall(&self) -> Micros {
        let since = i64::try_from(elapsed().as_micros()).unwrap_or(i64::MAX);
        Micros::new(EPOCH_MICROS + since + self.off_micros.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        UP_BEFORE + elapsed()
    }
}
