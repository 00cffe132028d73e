//! Time in the simulation: one clock that runs evenly, and for each host a wall clock and a time since boot that may not.
//!
//! Timers follow the even clock on every host. What a host decides by reading its clocks (leases, elections, ages, deadlines) follows its own.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::time::Micros;
use ebla_runtime::clock::TimeSource;
use ebla_runtime::{Clock, Failpoint};
use ebla_tests::faults::fault::WallClock;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

/// Uptime of every host at the start of the simulation.
const UP_BEFORE: Duration = Duration::from_secs(1_000);
/// Wall time at the start of the simulation, in microseconds.
const EPOCH_MICROS: i64 = 1_700_000_000_000_000;
/// Millionths in a whole.
const MILLION: i64 = 1_000_000;

thread_local! {
    /// The latest requested time, for code that runs between two steps, such as a drop.
    static LATEST: RefCell<Duration> = const { RefCell::new(Duration::ZERO) };
    /// The clock of each host, by the runtime of the host's tasks.
    static HOSTS: RefCell<Vec<(Id, HostTime)>> = const { RefCell::new(Vec::new()) };
}

/// How long the simulation has run.
pub(crate) fn elapsed() -> Duration {
    LATEST.with_borrow_mut(|latest| {
        if let Some(now) = turmoil::sim_elapsed() {
            *latest = now.max(*latest);
            return now;
        }
        *latest
    })
}

/// The time since the start of the simulation at which a correct wall clock shows `micros`.
pub(crate) fn since_epoch(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros - EPOCH_MICROS).unwrap_or_default())
}

/// The clocks of a host. The nemesis sets its wall clock, changes the rate of both clocks, and stops them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostTime(Arc<Mutex<Pace>>);

/// The clocks as linear functions of the time since `since`.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    since: Duration,
    /// What the time since boot has gained, in microseconds.
    boot_micros: i64,
    /// How far the wall clock is off, in microseconds.
    wall_micros: i64,
    /// How much faster than time both clocks run, in millionths.
    rate_ppm: i64,
    /// They were stopped at this moment.
    stopped: Option<Duration>,
}

impl Pace {
    /// What the clocks gain from `since` to `now`, beyond the time that passes.
    fn gained(&self, now: Duration) -> i64 {
        match self.stopped {
            Some(stopped) => -micros(now.saturating_sub(stopped)),
            None => micros(now.saturating_sub(self.since)) * self.rate_ppm / MILLION,
        }
    }

    /// The same clocks with `now` as the beginning.
    fn at(self, now: Duration) -> Self {
        let gained = self.gained(now);
        let (boot_micros, wall_micros) = (self.boot_micros + gained, self.wall_micros + gained);
        Self { since: now, boot_micros, wall_micros, ..self }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl HostTime {
    /// Makes these the clocks of the host that calls this, also for code that cannot be given a clock.
    pub(crate) fn register(&self) {
        let runtime = Handle::current().id();
        HOSTS.with_borrow_mut(|hosts| {
            hosts.retain(|(known, time)| *known != runtime && !Arc::ptr_eq(&time.0, &self.0));
            hosts.push((runtime, self.clone()));
        });
    }

    /// Sets how far the wall clock is off.
    pub(crate) fn set_off(&self, now: Duration, micros: i64) {
        let mut pace = self.0.lock();
        *pace = match pace.stopped {
            // What the stop takes from the clocks is determined when it ends.
            Some(_) => Pace { wall_micros: micros - pace.gained(now), ..*pace },
            None => Pace { wall_micros: micros, ..pace.at(now) },
        };
    }

    /// Sets how much faster than time the clocks run, in millionths.
    pub(crate) fn set_rate(&self, now: Duration, ppm: i64) {
        let mut pace = self.0.lock();
        *pace = match pace.stopped {
            Some(_) => Pace { rate_ppm: ppm, ..*pace },
            None => Pace { rate_ppm: ppm, ..pace.at(now) },
        };
    }

    /// Stops both clocks.
    pub(crate) fn stop(&self, now: Duration) {
        let mut pace = self.0.lock();
        *pace = Pace { stopped: Some(now), ..pace.at(now) };
    }

    /// Starts the clocks again. The time since boot counts the time of the stop.
    pub(crate) fn resume(&self, now: Duration, wall: WallClock) {
        let mut pace = self.0.lock();
        let stopped = pace.at(now);
        let (boot_micros, wall_micros) = (pace.boot_micros, pace.wall_micros);
        *pace = Pace {
            boot_micros: if Failpoint::BootClockStops.is_enabled() { stopped.boot_micros } else { boot_micros },
            wall_micros: if wall == WallClock::Stops { stopped.wall_micros } else { wall_micros },
            stopped: None,
            ..stopped
        };
    }

    /// Whether the clocks are stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.lock().stopped.is_some()
    }

    /// How far the wall clock is off, in microseconds.
    pub(crate) fn off(&self) -> i64 {
        self.0.lock().at(elapsed()).wall_micros
    }

    /// The time since boot at this time of the simulation.
    pub(crate) fn boot_at(&self, now: Duration) -> Duration {
        let gained = self.0.lock().at(now).boot_micros;
        let since = UP_BEFORE + now;
        let by = Duration::from_micros(gained.unsigned_abs());
        if gained < 0 { since.saturating_sub(by) } else { since + by }
    }

    /// As components take it.
    pub(crate) fn clock(&self) -> Clock {
        Clock::custom(Arc::new(self.clone()))
    }
}

impl TimeSource for HostTime {
    fn wall(&self) -> Micros {
        let now = elapsed();
        Micros::new(EPOCH_MICROS + micros(now) + self.0.lock().at(now).wall_micros)
    }

    fn monotonic(&self) -> Duration {
        self.boot_at(elapsed())
    }
}

/// The clocks of the host that asks; even ones for code that runs on none.
#[derive(Debug)]
pub(crate) struct HostClocks;

impl HostClocks {
    fn current() -> HostTime {
        let runtime = Handle::try_current().map(|runtime| runtime.id());
        HOSTS.with_borrow(|hosts| {
            let host = hosts.iter().find(|(known, _time)| runtime.as_ref().is_ok_and(|runtime| runtime == known));
            host.map(|(_runtime, time)| time.clone()).unwrap_or_default()
        })
    }
}

impl TimeSource for HostClocks {
    fn wall(&self) -> Micros {
        Self::current().wall()
    }

    fn monotonic(&self) -> Duration {
        Self::current().monotonic()
    }
}
