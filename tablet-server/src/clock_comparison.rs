//! The comparison of this server's clock with those of the other servers: whether it is off, and what follows.
//!
//! Only timestamps that servers assign follow the wall clock, so a clock that is off makes nothing wrong but those. A timestamp that
//! is far ahead hides later cells until the true time has reached it, so a leader with such a clock refuses writes; the client
//! repeats them, and finds the next leader. METADATA is exempt, and so is a group that no server with a right clock can lead.
//!
//! `clock_exchange` asks the other servers, and transfers leaderships while the clock is off.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::clock_offset::{ClockState, clock_state};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_runtime::Failpoint;
use parking_lot::Mutex;

/// How long the time of a server counts.
const AGE_MAX: Duration = Duration::from_secs(30);
/// A server has responded recently if it did so at most this long ago: two comparisons may fail in between.
const RESPONDING_AGE_MAX: Duration = Duration::from_secs(15);

/// The comparison of this server's clock with others. Its groups share it.
#[derive(Default)]
pub struct ClockComparison {
    /// By how many microseconds each other server's clock is ahead of this one, and when that was seen. Locked for a lookup.
    samples: Mutex<BTreeMap<ServerId, (i64, Duration)>>,
    /// The state of this server's clock, and the servers whose clocks are not off. Guards values.
    state: Mutex<(ClockState, BTreeSet<ServerId>)>,
    /// Whether it refuses writes: read for each write.
    refuses: AtomicBool,
}

impl fmt::Debug for ClockComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClockComparison").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl ClockComparison {
    /// The state of this server's clock.
    #[must_use]
    pub fn state(&self) -> ClockState {
        self.state.lock().0
    }

    /// Records by how much the clock of `peer` is ahead.
    pub fn record(&self, peer: ServerId, offset_micros: i64, now: Duration) {
        self.samples.lock().insert(peer, (offset_micros, now));
    }

    /// Determines the state, and returns it if the clock is off from now on, or not any more.
    pub fn evaluate(&self, now: Duration) -> Option<ClockState> {
        let is_compared = !Failpoint::ClocksNotCompared.is_enabled();
        let state = if is_compared { clock_state(&self.clocks(now), 0) } else { ClockState::default() };
        let (before, _trusted) = std::mem::replace(&mut *self.state.lock(), (state, self.trusted(now)));
        let is_ahead = state.offset_micros.is_some_and(|offset| offset > 0);
        self.refuses.store(state.is_off && is_ahead, Ordering::Relaxed);
        (before.is_off != state.is_off).then_some(state)
    }

    /// All known clocks, relative to this one, which is 0.
    fn clocks(&self, now: Duration) -> Vec<i64> {
        let mut samples = self.samples.lock();
        samples.retain(|_peer, (_offset, at)| now.saturating_sub(*at) <= AGE_MAX);
        samples.values().map(|(offset, _at)| *offset).chain([0]).collect()
    }

    /// The other servers that have responded recently.
    #[must_use]
    pub fn responding(&self, now: Duration) -> BTreeSet<ServerId> {
        let samples = self.samples.lock();
        let recent = samples.iter().filter(|(_peer, (_offset, at))| now.saturating_sub(*at) <= RESPONDING_AGE_MAX);
        recent.map(|(peer, _sample)| *peer).collect()
    }

    /// The other servers whose clocks are known and not off.
    #[must_use]
    pub fn trusted(&self, now: Duration) -> BTreeSet<ServerId> {
        let clocks = self.clocks(now);
        let samples = self.samples.lock();
        let trusted = samples.iter().filter(|(_peer, (offset, _at))| !clock_state(&clocks, *offset).is_off);
        trusted.map(|(peer, _sample)| *peer).collect()
    }

    /// Whether [`Self::refusal`] may return an error for some group. Cheap.
    #[must_use]
    pub fn may_refuse(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// The error of a write in a group with voters on these servers, while this server's clock is too far ahead and another one of
    /// them can lead. `server`: this one.
    #[must_use]
    pub fn refusal(&self, server: ServerId, mut voters: impl Iterator<Item = ServerId>) -> Option<Error> {
        if !self.may_refuse() {
            return None;
        }
        let ahead = {
            let state = self.state.lock();
            let (clock, trusted) = &*state;
            voters.any(|voter| trusted.contains(&voter)).then_some(clock.offset_micros?)?
        };
        let ahead = seconds(ahead);
        let message = format!(
            "the clock of tablet server {server} is {ahead} s ahead of the other servers: another server takes over its tablets; \
             synchronise the clock (NTP)"
        );
        Some(Error::new(Reason::Unavailable, message))
    }
}

/// Microseconds as seconds with one decimal.
pub(crate) fn seconds(micros: i64) -> String {
    let tenths = micros / 100_000;
    format!("{}{}.{}", if tenths < 0 { "-" } else { "" }, tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId::new(1);
    const SECOND: i64 = 1_000_000;

    fn refusal(clocks: &ClockComparison) -> Option<Error> {
        clocks.refusal(SERVER, [1, 2].map(ServerId::new).into_iter())
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn seconds_have_one_decimal() {
        assert_eq!([seconds(-750_000), seconds(12_399_999), seconds(0)], ["-0.7", "12.3", "0.0"]);
    }

    #[test]
    fn a_clock_that_is_ahead_refuses_writes_until_it_agrees() {
        let clocks = ClockComparison::default();
        for peer in [2, 3] {
            clocks.record(ServerId::new(peer), -12 * SECOND - 300_000, at(1));
        }
        assert_eq!(refusal(&clocks), None, "not evaluated yet");
        assert!(clocks.evaluate(at(1)).unwrap().is_off);
        assert_eq!(clocks.trusted(at(1)), [2, 3].map(ServerId::new).into());
        let refused = refusal(&clocks).unwrap();
        assert_eq!(refused.reason, Reason::Unavailable);
        assert!(
            refused.message.starts_with("the clock of tablet server 1 is 12.3 s ahead of the other servers"),
            "{refused}"
        );
        let without_others = [SERVER, ServerId::new(9)].into_iter();
        assert_eq!(clocks.refusal(SERVER, without_others), None, "no server with a right clock can lead");
        for peer in [2, 3] {
            clocks.record(ServerId::new(peer), 0, at(6));
        }
        assert!(!clocks.evaluate(at(6)).unwrap().is_off);
        assert_eq!(refusal(&clocks), None);
    }

    #[test]
    fn a_clock_that_is_behind_takes_writes_and_does_not_lead() {
        let clocks = ClockComparison::default();
        for peer in [2, 3] {
            clocks.record(ServerId::new(peer), 3_600 * SECOND, at(1));
        }
        let state = clocks.evaluate(at(1)).unwrap();
        assert_eq!(state, ClockState { offset_micros: Some(-3_600 * SECOND), is_off: true });
        assert_eq!(refusal(&clocks), None);
    }

    #[test]
    fn a_peer_whose_clock_is_off_gets_no_leadership_and_old_times_do_not_count() {
        let clocks = ClockComparison::default();
        for (peer, offset) in [(2, 0), (3, 60 * SECOND), (4, 0)] {
            clocks.record(ServerId::new(peer), offset, at(1));
        }
        assert_eq!(clocks.trusted(at(31)), [2, 4].map(ServerId::new).into());
        assert_eq!(clocks.evaluate(at(31)), None);
        assert_eq!(clocks.state(), ClockState { offset_micros: Some(0), is_off: false });
        assert_eq!(clocks.evaluate(at(32)), None);
        assert_eq!(clocks.state(), ClockState::default(), "nothing is known any more");
    }
}
