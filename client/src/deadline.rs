//! When a call must be answered.
//!
//! A deadline is an instant of the runtime's monotonic clock, so the same code keeps time in production and in
//! simulation. It is made once, at the edge, and handed down unchanged: whoever waits, waits at most what remains.

use std::time::Duration;

use ebla_runtime::Clock;

/// The instant after which nobody waits for the answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// `limit` from now.
    pub fn after(clock: &Clock, limit: Duration) -> Self {
        Self(clock.monotonic().saturating_add(limit))
    }

    /// The instant `at` of the monotonic clock.
    pub const fn at(at: Duration) -> Self {
        Self(at)
    }

    /// What remains; zero when it has passed.
    pub fn remaining(self, clock: &Clock) -> Duration {
        self.0.saturating_sub(clock.monotonic())
    }

    /// Whether it has passed.
    pub fn has_passed(self, clock: &Clock) -> bool {
        self.remaining(clock).is_zero()
    }
}
