//! The deadline of a call.
//!
//! A deadline is an instant of the runtime's monotonic clock, so the same code works in production and in simulation.
//! The edge creates it once and passes it down unchanged: every wait lasts at most the remaining time.

use std::time::Duration;

use ebla_runtime::Clock;

/// The instant at which a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// The deadline that ends `timeout` from now.
    pub fn after(clock: &Clock, timeout: Duration) -> Self {
        Self(clock.monotonic().saturating_add(timeout))
    }

    /// The instant `at` of the monotonic clock.
    pub const fn at(at: Duration) -> Self {
        Self(at)
    }

    /// The remaining time; zero when the deadline has passed.
    pub fn remaining(self, clock: &Clock) -> Duration {
        self.0.saturating_sub(clock.monotonic())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(self, clock: &Clock) -> bool {
        self.remaining(clock).is_zero()
    }
}
