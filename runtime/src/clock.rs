//! Clocks: wall time and time since boot.
//!
//! Wall time is for users (cell timestamps, logs) and may jump. Time since boot never goes back and advances while the
//! machine sleeps (`CLOCK_BOOTTIME`), so leases use only it.
//!
//! A simulation has its own [`TimeSource`]s: one for each host through [`Clock::custom`], and one for the whole process through
//! [`replace_system_clock`], which [`Clock::system`] then returns to code that cannot be given a clock.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ebla_model::time::Micros;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// A source of time other than the machine.
pub trait TimeSource: Send + Sync + fmt::Debug {
    /// Microseconds since the Unix epoch; may jump either way.
    fn wall(&self) -> Micros;
    /// Time since boot; never goes back.
    fn monotonic(&self) -> Duration;
}

/// Replaces the machine's clocks in this process, if set.
static SYSTEM_OVERRIDE: OnceLock<Arc<dyn TimeSource>> = OnceLock::new();

/// Replaces the machine's clocks by `time` in the whole process: for a simulation, before anything else is started. Only
/// the first call has an effect; returns whether this one did.
pub fn replace_system_clock(time: Arc<dyn TimeSource>) -> bool {
    SYSTEM_OVERRIDE.set(time).is_ok()
}

/// A source of time; cheap to clone, and clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Custom(Arc<dyn TimeSource>),
    /// Guards two numbers; never locked during a call.
    Manual(Arc<Mutex<ManualTime>>),
}

#[derive(Debug)]
struct ManualTime {
    wall: Micros,
    monotonic: Duration,
}

/// Where a manual clock starts: a date in 2001, so that differences into the past stay positive.
const MANUAL_START: Micros = Micros::new(1_000_000_000_000_000);

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// Any other clock, such as that of a simulated host.
    #[must_use]
    pub fn custom(time: Arc<dyn TimeSource>) -> Self {
        Self(Source::Custom(time))
    }

    /// A clock that advances only by [`Clock::advance`].
    #[must_use]
    pub fn manual() -> Self {
        let start = ManualTime { wall: MANUAL_START, monotonic: Duration::from_secs(1_000) };
        Self(Source::Manual(Arc::new(Mutex::new(start))))
    }

    /// Microseconds since the Unix epoch; may jump either way.
    #[must_use]
    pub fn wall(&self) -> Micros {
        match &self.0 {
            Source::System => SYSTEM_OVERRIDE.get().map_or_else(system_wall, |time| time.wall()),
            Source::Custom(time) => time.wall(),
            Source::Manual(time) => time.lock().wall,
        }
    }

    /// Time since boot, sleep included; never goes back.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        match &self.0 {
            Source::System => SYSTEM_OVERRIDE.get().map_or_else(system_monotonic, |time| time.monotonic()),
            Source::Custom(time) => time.monotonic(),
            Source::Manual(time) => time.lock().monotonic,
        }
    }

    /// Advances both times of a manual clock; no effect on other clocks.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(time) = &self.0 {
            let mut time = time.lock();
            time.wall = time.wall.plus(by);
            time.monotonic = time.monotonic.saturating_add(by);
        }
    }

    /// Sets the wall time of a manual clock, as an administrator may; time since boot stays. No effect on other clocks.
    pub fn set_wall(&self, wall: Micros) {
        if let Source::Manual(time) = &self.0 {
            time.lock().wall = wall;
        }
    }
}

fn system_wall() -> Micros {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::new(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn system_monotonic() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_advances_on_request_and_with_its_clones() {
        let clock = Clock::manual();
        let other = clock.clone();
        let (wall, monotonic) = (clock.wall(), clock.monotonic());
        assert_eq!(other.wall(), wall);
        clock.advance(Duration::from_millis(5));
        assert_eq!(other.monotonic() - monotonic, Duration::from_millis(5));
        assert_eq!(other.wall().get() - wall.get(), 5_000);
    }

    #[test]
    fn the_wall_may_jump_while_monotonic_stays() {
        let clock = Clock::manual();
        let before = clock.monotonic();
        clock.set_wall(Micros::new(7));
        assert_eq!((clock.wall(), clock.monotonic()), (Micros::new(7), before));
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = Clock::system();
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
        assert!(clock.wall() > MANUAL_START);
    }
}
